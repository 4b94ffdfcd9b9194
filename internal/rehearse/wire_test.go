package rehearse_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/rehearse"
)

// reading is a server that counts its connections, and a wire to it.
func reading(t *testing.T, secure bool, most int, h http.HandlerFunc) (w rehearse.Wire, made *atomic.Int64, s *httptest.Server) {
	t.Helper()
	made = new(atomic.Int64)
	s = httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	roots := x509.NewCertPool()
	if secure {
		s.StartTLS()
		roots.AddCert(s.Certificate())
	} else {
		s.Start()
	}
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	w = rehearse.NewWire(base, most, roots)
	t.Cleanup(func() { w.Close(); s.Close() })
	return w, made, s
}

func TestWire_KeepsItsConnection(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		w, made, _ := reading(t, secure, 4, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/304" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			if r.URL.Path == "/flushed" { // in chunks
				w.(http.Flusher).Flush()
			}
			fmt.Fprintf(w, "%s %s %s", r.Host, r.URL.Path, r.Header.Get("Accept"))
		})
		for _, path := range []string{"/a", "/304", "/flushed", "/b"} {
			status, body := w.Get(t.Context(), path, 10*time.Second)
			want := 200
			if path == "/304" {
				want = 304
			} else if !strings.HasSuffix(body, path+" application/json") {
				t.Errorf("%s: %s: got %q", name, path, body)
			}
			if status != want {
				t.Errorf("%s: %s: got %d, want %d", name, path, status, want)
			}
		}
		if n := made.Load(); n != 1 {
			t.Errorf("%s: got %d connections for one reader, want 1", name, n)
		}
	}
}

func TestWire_AsksAgainOnANewConnectionWhenTheKeptOneIsGone(t *testing.T) {
	t.Parallel()
	w, made, s := reading(t, false, 4, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close")
		}
		fmt.Fprint(w, "here")
	})
	for i, path := range []string{"/a", "/last", "/b"} {
		if status, body := w.Get(t.Context(), path, 10*time.Second); status != 200 || body != "here" {
			t.Errorf("%d, %s: got %d %q, want an answer", i, path, status, body)
		}
	}
	if n := made.Load(); n != 2 {
		t.Errorf("got %d connections, want another one after the server's close", n)
	}
	s.CloseClientConnections()
	if status, _ := w.Get(t.Context(), "/c", 10*time.Second); status != 200 {
		t.Errorf("after the server has closed what was kept: got %d, want 200", status)
	}
	if status, _ := w.Get(t.Context(), "/cut", 10*time.Second); status != 0 {
		t.Errorf("an answer that is cut off: got %d, want none", status)
	}
	s.Close()
	if status, _ := w.Get(t.Context(), "/d", 10*time.Second); status != 0 {
		t.Errorf("a server that is gone: got %d, want none", status)
	}
}

func TestWire_WaitsNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	w, _, _ := reading(t, false, 1, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/slow":
			<-goOn
		case "/endless":
			for range 3 << 10 {
				fmt.Fprint(w, strings.Repeat("x", 1<<10))
			}
		}
	})
	if status, _ := w.Get(t.Context(), "/slow", 10*time.Millisecond); status != 0 {
		t.Errorf("an answer that does not come: got %d, want none", status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range 2 { // one of them for the only connection
		waiting.Go(func() {
			if status, _ := w.Get(ctx, "/slow", time.Minute); status != 0 {
				t.Errorf("a reader that leaves: got %d, want none", status)
			}
		})
	}
	cancel()
	waiting.Wait()
	close(goOn)
	if status, _ := w.Get(t.Context(), "/endless", 10*time.Second); status != 0 {
		t.Errorf("an answer of megabytes: got %d, want none", status)
	}
	if status, _ := w.Get(t.Context(), "/", 10*time.Second); status != 200 {
		t.Errorf("afterwards: got %d, want 200", status)
	}
}

// A booking whose connection breaks is not sent a second time behind the crowd's back; the
// next one has a connection that works.
func TestWire_PostsOnceAndOverNothingThatIsGone(t *testing.T) {
	t.Parallel()
	var heard atomic.Int64
	came, goOn := make(chan struct{}), make(chan struct{})
	w, made, s := reading(t, false, 4, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		switch r.URL.Path {
		case "/together":
			came <- struct{}{}
			<-goOn
		case "/cut":
			heard.Add(1)
			panic(http.ErrAbortHandler)
		case "/early":
			w.WriteHeader(http.StatusEarlyHints)
		}
		fmt.Fprintf(w, "%s %s %d", r.Method, body, r.ContentLength)
	})
	if status, body := w.Post(t.Context(), "/a", "one", 10*time.Second); status != 200 || body != "POST one 3" {
		t.Errorf("got %d %q", status, body)
	}
	if status, body := w.Post(t.Context(), "/a", "", 10*time.Second); status != 200 || body != "POST  0" {
		t.Errorf("nothing: got %d %q", status, body)
	}
	if n := made.Load(); n != 1 {
		t.Errorf("got %d connections for one at a time, want 1", n)
	}
	if status, _ := w.Post(t.Context(), "/cut", "x", 10*time.Second); status != 0 || heard.Load() != 1 {
		t.Errorf("an answer that is cut off: got %d, and heard %d times, want none and once", status, heard.Load())
	}
	var posts sync.WaitGroup
	for range 3 {
		posts.Go(func() {
			if status, _ := w.Post(t.Context(), "/together", "x", 10*time.Second); status != 200 {
				t.Errorf("together: got %d", status)
			}
		})
	}
	for range 3 {
		<-came
	}
	close(goOn)
	posts.Wait()
	before := made.Load()
	s.CloseClientConnections() // three that are kept
	if status, _ := w.Post(t.Context(), "/a", "x", 10*time.Second); status != 200 || made.Load() != before+1 {
		t.Errorf("after the server has closed what was kept: got %d over %d new connections, want 200 over one", status, made.Load()-before)
	}
	if status, _ := w.Post(t.Context(), "/early", "x", 10*time.Second); status != 0 {
		t.Errorf("an interim answer: got %d, want none", status)
	}
	if status, body := w.Post(t.Context(), "/a", "y", 10*time.Second); status != 200 || body != "POST y 1" {
		t.Errorf("after an interim answer: got %d %q, want this one's own", status, body)
	}
}
