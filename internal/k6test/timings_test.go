package k6test

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Each phase takes what the server makes it take, and a connection costs only the request
// that waits for it.
func TestTracer_TellsThePhasesAsK6Does(t *testing.T) {
	t.Parallel()
	const pause = 60 * time.Millisecond
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-time.After(pause)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // what it cannot flush comes late, and the test fails
		<-time.After(pause)
	}))
	site.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		<-time.After(pause)
		return nil, nil
	}}
	site.StartTLS()
	t.Cleanup(site.Close)
	get := func() timings {
		over := &tracer{over: site.Client().Transport}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, site.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := over.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return over.trail.timings(time.Now())
	}
	first, second := get(), get()
	if first.handshaking < pause || first.connecting <= 0 || first.blocked < first.connecting+first.handshaking {
		t.Errorf("a new connection: got %+v, want handshaking of %s or more, and blocked with it and connecting in it", first, pause)
	}
	if second.connecting != 0 || second.handshaking != 0 || second.blocked >= first.blocked {
		t.Errorf("a connection that was there: got %+v, want no connecting and no handshaking", second)
	}
	const least = pause / 2 // who is slow to notice what came first sees less of the pause
	for _, got := range []timings{first, second} {
		if got.waiting < least || got.receiving < least || got.duration() != got.sending+got.waiting+got.receiving {
			t.Errorf("an answer: got %+v, want waiting and receiving of %s or more each, and duration without blocked", got, least)
		}
	}
}

// A round trip that found no connection has no phases, as in k6.
func TestTracer_HasNothingOfNoConnection(t *testing.T) {
	t.Parallel()
	over := &tracer{over: &http.Transport{}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := over.RoundTrip(r)
	if err == nil {
		_ = resp.Body.Close() // nobody is there who could have sent it
		t.Fatal("round trip: got an answer, want none")
	}
	if got := over.trail.timings(time.Now()); got != (timings{}) {
		t.Errorf("timings: got %+v, want none", got)
	}
}
