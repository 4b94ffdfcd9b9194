// Package objstoretest is the contract of an object store with conditional puts:
// every driver runs it. It asks only what S3 can promise too: an ETag need not
// change when the same content is put again. It needs no clock.
package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"holdfast/internal/booking"
	"holdfast/internal/objstore"
)

// Store is what a driver promises, as package objstore describes it; safe for
// concurrent use.
type Store interface {
	Get(ctx context.Context, key string) (body []byte, etag string, err error)
	Put(ctx context.Context, key string, body []byte, contentType, ifMatch string) (etag string, err error)
}

const kind = "application/json"

// Skip leaves a test out, for an emulator that cannot do what the real store does, and
// says why. The driver passes the test elsewhere.
type Skip struct{ Test, Why string }

// Run holds the driver to the contract. open returns an empty store twice, as
// two processes see it, closed by the test's cleanup; a driver within one
// process returns the same one.
func Run(t *testing.T, open func(t *testing.T) (a, b Store), skips ...Skip) {
	tests := []struct {
		name string
		run  func(t *testing.T, a, b Store)
	}{
		{"AbsentObject", absentObject},
		{"PutOnlyOverWhatWasSeen", conditionalPut},
		{"BodiesAreCopies", bodiesAreCopies},
		{"KeptButReportedLost", reportedLost},
		{"ManyWritersLoseNothing", manyWriters},
		{"EndedContext", endedContext},
	}
	why := map[string]string{}
	for _, s := range skips {
		why[s.Test] = s.Why
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if why[tt.name] != "" {
				t.Skip("not asked of this store: " + why[tt.name])
			}
			a, b := open(t)
			tt.run(t, a, b)
		})
	}
}

func absentObject(t *testing.T, a, _ Store) {
	if body, etag, err := a.Get(t.Context(), "status.json"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("Get of an absent object: got %q, %q, %v, want ErrNotFound", body, etag, err)
	}
	if etag, err := a.Put(t.Context(), "status.json", []byte("x"), kind, "some-etag"); !errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Errorf("Put over an absent object with an ETag: got %q, %v, want ErrPreconditionFailed", etag, err)
	}
	if _, _, err := a.Get(t.Context(), "status.json"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("Get after a refused Put: got %v, want ErrNotFound", err)
	}
}

func conditionalPut(t *testing.T, a, b Store) {
	first := put(t, a, "status.json", "one", "")
	holds(t, b, "status.json", "one", first)
	refused(t, b, "status.json", "two", "")
	second := put(t, b, "status.json", "two", first)
	if second == first {
		t.Errorf("ETag of another content: got %q again", second)
	}
	refused(t, a, "status.json", "three", first)
	holds(t, a, "status.json", "two", second)
	other := put(t, a, "folder/other file.json", "", "")
	holds(t, b, "folder/other file.json", "", other)
	holds(t, a, "status.json", "two", second)
}

func bodiesAreCopies(t *testing.T, a, _ Store) {
	body := []byte("one")
	if _, err := a.Put(t.Context(), "k", body, kind, ""); err != nil {
		t.Fatalf("Put: %v", err)
	}
	body[0] = 'X'
	got, _, err := a.Get(t.Context(), "k")
	if err != nil || string(got) != "one" {
		t.Errorf("object after its writer reused the bytes: got %q, %v, want \"one\"", got, err)
	}
	copy(got, "XXX")
	if got, _, err := a.Get(t.Context(), "k"); err != nil || string(got) != "one" {
		t.Errorf("object after a reader changed its copy: got %q, %v, want \"one\"", got, err)
	}
}

// reportedLost is a Put that was carried out and whose answer was lost: its
// repeat is refused or finds its own content, and a read shows which.
func reportedLost(t *testing.T, a, _ Store) {
	for _, ifMatch := range []string{"", put(t, a, "changed", "before", "")} {
		key := map[bool]string{true: "new", false: "changed"}[ifMatch == ""]
		lost := put(t, a, key, "mine", ifMatch)
		if _, err := a.Put(t.Context(), key, []byte("mine"), kind, ifMatch); !errors.Is(err, objstore.ErrPreconditionFailed) {
			t.Errorf("repeat of a Put that was carried out: got %v, want ErrPreconditionFailed", err)
		}
		holds(t, a, key, "mine", lost)
	}
}

func manyWriters(t *testing.T, a, b Store) {
	const writers, each = 6, 10
	put(t, a, "counter", "0", "")
	var wins atomic.Int64
	var wg sync.WaitGroup
	for w := range writers {
		s := []Store{a, b}[w%2]
		wg.Go(func() {
			for done := 0; done < each; {
				body, etag, err := s.Get(t.Context(), "counter")
				if err != nil {
					t.Errorf("Get: %v", err)
					return
				}
				n, err := strconv.Atoi(string(body))
				if err != nil {
					t.Errorf("object: %v", err)
					return
				}
				_, err = s.Put(t.Context(), "counter", fmt.Append(nil, n+1), kind, etag)
				switch {
				case err == nil:
					done++
					wins.Add(1)
				case !errors.Is(err, objstore.ErrPreconditionFailed):
					t.Errorf("Put: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	body, _, err := a.Get(t.Context(), "counter")
	if err != nil || string(body) != fmt.Sprint(writers*each) || wins.Load() != writers*each {
		t.Errorf("counter: got %s after %d puts, %v, want %d", body, wins.Load(), err, writers*each)
	}

	wins.Store(0)
	for w := range writers {
		s := []Store{a, b}[w%2]
		wg.Go(func() {
			_, err := s.Put(t.Context(), "once", fmt.Append(nil, w), kind, "")
			if err == nil {
				wins.Add(1)
			} else if !errors.Is(err, objstore.ErrPreconditionFailed) {
				t.Errorf("Put: %v", err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 {
		t.Errorf("put if absent, %d at once: got %d that went through, want 1", writers, wins.Load())
	}
}

func endedContext(t *testing.T, a, _ Store) {
	etag := put(t, a, "k", "one", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.Get(ctx, "k"); err == nil || errors.Is(err, booking.ErrNotFound) {
		t.Errorf("Get with an ended context: got %v, want an error that says nothing of the object", err)
	}
	if _, err := a.Put(ctx, "k", []byte("two"), kind, etag); err == nil || errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Errorf("Put with an ended context: got %v, want an error that says nothing of the object", err)
	}
	holds(t, a, "k", "one", etag)
}

func put(t *testing.T, s Store, key, body, ifMatch string) string {
	t.Helper()
	etag, err := s.Put(t.Context(), key, []byte(body), kind, ifMatch)
	if err != nil || etag == "" {
		t.Fatalf("Put %s over %q: got ETag %q, %v", key, ifMatch, etag, err)
	}
	return etag
}

func refused(t *testing.T, s Store, key, body, ifMatch string) {
	t.Helper()
	if etag, err := s.Put(t.Context(), key, []byte(body), kind, ifMatch); !errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Errorf("Put %s over %q: got %q, %v, want ErrPreconditionFailed", key, ifMatch, etag, err)
	}
}

func holds(t *testing.T, s Store, key, body, etag string) {
	t.Helper()
	got, gotTag, err := s.Get(t.Context(), key)
	if err != nil || !bytes.Equal(got, []byte(body)) || gotTag != etag {
		t.Errorf("Get %s: got %q, %q, %v, want %q, %q", key, got, gotTag, err, body, etag)
	}
}
