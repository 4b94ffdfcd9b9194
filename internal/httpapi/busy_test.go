package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

// entrance lets in while it is open.
type entrance struct {
	open            atomic.Bool
	entered, inside atomic.Int64
}

func (e *entrance) Enter() (func(), bool) {
	if !e.open.Load() {
		return nil, false
	}
	e.entered.Add(1)
	e.inside.Add(1)
	return func() { e.inside.Add(-1) }, true
}

// unread fails the test that reads it.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read, want a refusal before that")
	return 0, errors.New("not to be read")
}

func TestBook_TooMuchToDoIsRefusedUnread(t *testing.T) {
	t.Parallel()
	door := new(entrance)
	var inside atomic.Int64
	var outcome error
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Entrance = door
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) {
			inside.Store(door.inside.Load())
			return booking.Held{}, outcome
		})
	})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/book", unread{t})
	r.Header.Set("Content-Type", "application/json")
	w := serve(e, r)
	if got := decode(t, w.Body)["error"]; w.Code != http.StatusServiceUnavailable || got != "try_again" || w.Header().Get("Retry-After") == "" {
		t.Errorf("got %d %v, Retry-After %q; want 503 try_again with one", w.Code, got, w.Header().Get("Retry-After"))
	}
	for _, path := range []string{"/health", "/", "/status.json"} {
		if w := e.send(t, http.MethodGet, path, "", ""); w.Code != http.StatusOK {
			t.Errorf("%s meanwhile: got %d, want 200", path, w.Code)
		}
	}

	door.open.Store(true)
	for _, outcome = range []error{nil, booking.ErrLevelFull} {
		e.book(t, goodBody)
		if inside.Load() != 1 || door.inside.Load() != 0 {
			t.Errorf("%v: got %d inside while it is booked and %d afterwards, want 1 and 0", outcome, inside.Load(), door.inside.Load())
		}
	}
	e.book(t, "{") // not even read to its end
	if door.entered.Load() != 3 || door.inside.Load() != 0 {
		t.Errorf("got %d to have entered and %d inside, want 3 and none", door.entered.Load(), door.inside.Load())
	}
}

func TestLog_ReadsThatWentWellAreSampled(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	var readers sync.WaitGroup
	for range 300 {
		readers.Go(func() { e.send(t, http.MethodGet, "/status.json", "", "") })
	}
	readers.Wait()
	lines := e.log.lines(t, "request")
	if n := len(lines); n < 100 || n > 299 { // a second may end meanwhile, or two
		t.Errorf("lines of 300 reads: got %d, want 100 a second", n)
	}
	e.send(t, http.MethodGet, "/booking/forged", "", "")
	if got := e.log.lines(t, "request"); len(got) != len(lines)+1 {
		t.Errorf("lines of a read that went wrong: got %d more, want 1", len(got)-len(lines))
	}
	if n := e.metric(t, "holdfast_http_request_seconds", "route")["/status.json"]; n != 300 {
		t.Errorf("reads counted: got %v, want 300", n)
	}
}

// Many readers cost one read of the object, and nobody is shown what lay there before
// they asked.
func TestStatus_IsReadOnceForAllWhoAskTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var version, reads atomic.Int64
		goOn := make(chan struct{})
		e := newEdge(t, func(d *httpapi.Deps) {
			d.Pages.Objects = objects(func(context.Context, string) ([]byte, string, error) {
				v := version.Load()
				reads.Add(1)
				<-goOn
				return fmt.Appendf(nil, `{"version":%d}`, v), fmt.Sprint(v), nil
			})
		})
		var readers sync.WaitGroup
		ask := func(want string) {
			readers.Go(func() {
				if w := e.send(t, http.MethodGet, "/status.json", "", ""); w.Body.String() != want {
					t.Errorf("got %s, want %s", w.Body, want)
				}
			})
		}
		ask(`{"version":0}`)
		synctest.Wait()
		version.Store(1)
		for range 50 {
			ask(`{"version":1}`)
		}
		gone, leave := context.WithCancel(t.Context())
		left := make(chan int)
		go func() {
			left <- serve(e, httptest.NewRequestWithContext(gone, http.MethodGet, "/status.json", nil)).Code
		}()
		synctest.Wait()
		leave()
		if got := <-left; got != http.StatusServiceUnavailable {
			t.Errorf("who left: got %d, want 503, and no wait for the others' read", got)
		}
		close(goOn)
		readers.Wait()
		if n := reads.Load(); n != 2 {
			t.Errorf("reads: got %d, want 2", n)
		}
		time.Sleep(time.Second) // of the bubble: no gap is left of the reads before
		begun := time.Now()
		for range 100 {
			ask(`{"version":1}`)
			readers.Wait()
		}
		if n, took := reads.Load()-2, time.Since(begun); n != 100 || took != 99*20*time.Millisecond {
			t.Errorf("one after the other: got %d reads in %s, want 100 with 20ms between", n, took)
		}
	})
}
