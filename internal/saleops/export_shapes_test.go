package saleops_test

import (
	"os"
	"strings"
	"testing"

	"holdfast/internal/saleops"
)

// What docs/shapes.md names is what is written, in that order.
func TestExport_ColumnsAreThoseDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Export\n")
	section, _, _ = strings.Cut(section, "as in the record")
	at := 0
	for _, name := range saleops.ExportColumns() {
		i := strings.Index(section[at:], "`"+name+"`")
		if i < 0 {
			t.Fatalf("docs/shapes.md: got no column %s behind the ones before it, want it", name)
		}
		at += i
	}
}
