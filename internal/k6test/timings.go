package k6test

import (
	"crypto/tls"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// timings are the phases of a request that k6 documents as Response.timings. blocked lasts
// until there is a connection, and so contains connecting and handshaking, which are 0 on
// one that was there. All are 0 of a request that found no connection.
type timings struct {
	blocked, connecting, handshaking, sending, waiting, receiving time.Duration
}

// duration is what k6 calls so: it begins once there is a connection.
func (t timings) duration() time.Duration { return t.sending + t.waiting + t.receiving }

// trail is when a round trip came where. A dial that was given up may still write into it
// after its end.
type trail struct {
	mu sync.Mutex

	asked, got                   time.Time // for a connection
	dialed, connected            time.Time
	handshakeBegan, handshakeEnd time.Time
	wrote, answered              time.Time
}

// first notes the present for what has not happened before: a dial may try two addresses.
func (t *trail) first(at *time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.IsZero() {
		*at = time.Now()
	}
}

func (t *trail) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:      func(string) { t.first(&t.asked) },
		ConnectStart: func(string, string) { t.first(&t.dialed) },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				t.first(&t.connected)
			}
		},
		TLSHandshakeStart: func() { t.first(&t.handshakeBegan) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
			if err == nil {
				t.first(&t.handshakeEnd)
			}
		},
		GotConn: func(c httptrace.GotConnInfo) {
			t.first(&t.got)
			if c.Reused { // whatever was dialed meanwhile is for somebody else
				t.mu.Lock()
				defer t.mu.Unlock()
				t.dialed, t.connected, t.handshakeBegan, t.handshakeEnd = t.got, t.got, t.got, t.got
			}
		},
		WroteRequest: func(w httptrace.WroteRequestInfo) {
			if w.Err == nil {
				t.first(&t.wrote)
			}
		},
		GotFirstResponseByte: func() { t.first(&t.answered) },
	}
}

// timings are those of a round trip that ended at that time.
func (t *trail) timings(end time.Time) timings {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A request may be refused before it was written to its end.
	between := func(from, to time.Time) time.Duration {
		if from.IsZero() || to.Before(from) {
			return 0
		}
		return to.Sub(from)
	}
	answered := t.answered
	if answered.IsZero() {
		answered = end
	}
	return timings{
		blocked: between(t.asked, t.got), connecting: between(t.dialed, t.connected), handshaking: between(t.handshakeBegan, t.handshakeEnd),
		sending: between(t.got, t.wrote), waiting: between(t.wrote, answered), receiving: between(t.answered, end),
	}
}

// tracer is the transport of one request. Its trail is that of the last round trip, as k6
// has it of a request that was redirected.
type tracer struct {
	over  http.RoundTripper
	trail *trail
}

func (t *tracer) RoundTrip(r *http.Request) (*http.Response, error) {
	t.trail = &trail{}
	return t.over.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), t.trail.hooks())))
}
