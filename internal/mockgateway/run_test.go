package mockgateway_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"

	"holdfast/internal/mockgateway"
)

func newServer(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return srv
}

// listening hands on the address in the program's first log line.
type listening struct{ url chan string }

var listensOn = regexp.MustCompile(`url=(http://\S+?)/v`)

func (l *listening) Write(b []byte) (int, error) {
	if m := listensOn.FindSubmatch(b); m != nil {
		l.url <- string(m[1])
	}
	return len(b), nil
}

func TestRun_LetsCallsInFlightFinish(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log := &listening{url: make(chan string, 1)}
	done := make(chan error, 1)
	go func() {
		done <- mockgateway.Run(ctx, []string{"-addr", "127.0.0.1:0", "-data", t.TempDir(), "-public", "https://pay.example"}, log)
	}()
	m := newMerchant(t, <-log.url)
	id, _ := m.create("inv-1")
	m.must(http.MethodPut, "/mock/settings", nil, `{"latency_ms":{"execute":300}}`)
	got := make(chan answered, 1)
	go func() {
		a, err := m.do(context.Background(), http.MethodPost, checkout+"/execute",
			map[string]string{"Authorization": m.token, "X-APP-Key": "app"}, `{"paymentID":"`+id+`"}`)
		if err != nil {
			t.Errorf("execute while stopping: %v", err)
		}
		got <- a
	}()
	// Stop once the call has done its work and waits for its latency.
	until(t, "execute has come in", func() bool {
		return bytes.Contains(m.must(http.MethodGet, "/mock/payments", nil, "").body, []byte(`"executeCalls":1`))
	})
	stop()
	wantCode(t, "execute in flight", <-got, "2060")
	if err := <-done; err != nil {
		t.Errorf("Run: %v, want nil after a stop", err)
	}
}

func TestRun_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	bad := filepath.Join(t.TempDir(), "settings.json")
	if err := os.WriteFile(bad, []byte(`{"up":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-settings", bad}, {"-settings", bad + ".none"}, {"-port", "1"}, {"extra"}, {"-public", "nonsense"}, {"-addr", "no such address"}} {
		if err := mockgateway.Run(ctx, args, io.Discard); err == nil {
			t.Errorf("Run %q: got no error, want one", args)
		}
	}
	if err := mockgateway.Run(ctx, []string{"-h"}, io.Discard); err != nil {
		t.Errorf("Run -h: %v, want nil", err)
	}
}

func TestRun_StartsWithTheSettingsOfAFile(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	file := filepath.Join(t.TempDir(), "settings.json")
	if err := os.WriteFile(file, []byte(`{"seed":5,"faults":[{"name":"no_answer","probability":1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &listening{url: make(chan string, 1)}
	done := make(chan error, 1)
	go func() { done <- mockgateway.Run(ctx, []string{"-addr", "127.0.0.1:0", "-settings", file}, log) }()
	m := newMerchant(t, <-log.url)
	id, page := m.create("inv-1")
	m.press(page, "outcome=success")
	gone := m.kept(t.Context(), "/execute", id)
	until(t, "the call is kept", func() bool {
		return bytes.Contains(m.must(http.MethodGet, "/mock/faults", nil, "").body, []byte(`"no_answer":{"times":1,`))
	})
	stop() // is not to wait for a call that nobody answers
	<-gone
	if err := <-done; err != nil {
		t.Errorf("Run: %v, want nil after a stop", err)
	}
}

// BenchmarkCreate says how many payments a second the mock can make, in memory
// and with its state on disk.
func BenchmarkCreate(b *testing.B) {
	for name, dir := range map[string]string{"memory": "", "sqlite": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			if dir != "" {
				dir = b.TempDir() // each run its own
			}
			m := serve(b, mockgateway.Options{DataDir: dir})
			m.create("first")
			var n atomic.Int64
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m.create("inv-" + strconv.FormatInt(n.Add(1), 10))
				}
			})
		})
	}
}
