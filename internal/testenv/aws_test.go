package testenv_test

import (
	"net/http"
	"testing"

	"holdfast/internal/testenv"
)

// Each emulator is its own, empty, and gone when it is stopped.
func TestAWS_AnswersAndEnds(t *testing.T) {
	t.Parallel()
	e := testenv.AWS(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func() (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.Endpoint+"/moto-api/data.json", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if code, err := get(); err != nil || code != http.StatusOK {
		t.Fatalf("running: got %d, %v, want 200", code, err)
	}
	e.Stop()
	e.Stop()
	if code, err := get(); err == nil {
		t.Errorf("stopped: got %d, want no connection", code)
	}
}
