package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/testenv"
)

// Whatever a library has to say of a Redis that is away, standard error has one JSON
// object a line, as docs/logs.md promises.
func TestAPI_WritesNothingButItsLogWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, testenv.Mini(t), "0", bookingtest.Sale(), 0)
	api := f.startAPI(t, testenv.FreeAddr(t)) // where nobody listens
	testenv.Eventually(t, func() error {
		status, _, err := f.get(t.Context(), f.apis[0]+"/health")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("health: got %d, want 200", status)
		}
		return err
	})
	if code := api.Stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("the end: got exit status %d, want 0", code)
	}
	if !strings.Contains(api.Output(), "connection refused") {
		t.Error("it has not missed Redis: this test shows nothing")
	}
	for line := range strings.Lines(api.Output()) {
		if !json.Valid([]byte(line)) {
			t.Fatalf("standard error: got %q, want one JSON object a line", line)
		}
	}
}
