package local_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/testenv"
)

// Who starts the stack for the first time is told where the operators' screen is, and it
// works over a Redis in this process too.
func TestRun_PrintsTheAddressOfTheWall(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir(), testenv.FreeAddr(t), map[string]string{"PATH": t.TempDir()})
	address := s.Lines(t, 5)[4]
	if !strings.HasSuffix(address, "/wall") {
		t.Fatalf("fifth line: got %q, want the wall's address", address)
	}
	status, header, _ := s.get(t, address)
	if got := header.Get("Content-Type"); status != http.StatusOK || got != "text/html; charset=utf-8" {
		t.Errorf("GET %s: got %d %q, want a page", address, status, got)
	}
	var got struct {
		Sale  string `json:"sale"`
		Total struct {
			Cap int `json:"cap"`
		} `json:"total"`
	}
	status, _, body := s.get(t, address+".json")
	if err := json.Unmarshal(body, &got); err != nil || status != http.StatusOK || got.Sale != "demo-2026" || got.Total.Cap != 20700 {
		t.Errorf("GET %s.json: got %d %s, %v, want the demo sale", address, status, body, err)
	}
}
