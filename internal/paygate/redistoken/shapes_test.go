package redistoken_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExport_IsWhatTheShapesPageShows(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```json gateway-token\n(.*?)\n```").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/shapes.md: got no ```json gateway-token block, want one")
	}
	p := newFleet(t).process()
	mustImport(t, p, m[1])
	got, err := p.Export(t.Context())
	if err != nil {
		t.Fatalf("Export: got %v, want nil", err)
	}
	if diff := cmp.Diff(string(m[1]), string(got)); diff != "" {
		t.Errorf("sample imported and exported (-want +got):\n%s", diff)
	}
}
