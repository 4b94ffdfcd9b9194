package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

// In a second a hundred refusals have their lines, and for the others nothing is
// worked out, the client's name least of all. The next line says how many there were.
func TestLog_RefusalsAreSampledAndCostNothingUnwritten(t *testing.T) {
	t.Parallel()
	named := 0
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) {
			return booking.Held{}, booking.ErrLevelFull
		})
		d.Client = func(*http.Request) string { named++; return "5ad81f0c2b7e" }
	})
	const asked = 2000
	for range asked {
		e.book(t, goodBody)
	}
	lines := e.log.lines(t, "request")
	if len(lines) < 100 || len(lines) > asked/2 {
		t.Errorf("lines of %d refusals: got %d, want about 100 a second", asked, len(lines))
	}
	if named != len(lines) {
		t.Errorf("names of clients worked out: got %d, want as many as lines, %d", named, len(lines))
	}
	if l := lines[0]; l["client"] != "5ad81f0c2b7e" || l["level_id"] != "N1" || l["candidate"] == nil {
		t.Errorf("line: got %v, want client, level and candidate", l)
	}
}

// A refusal after a seat was taken is a seat's story, and never left out.
func TestLog_RefusalWithAnAttemptIsAlwaysWritten(t *testing.T) {
	t.Parallel()
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) {
			return booking.Held{Attempt: attempt}, fmt.Errorf("queue record: %w", booking.ErrTryAgain)
		})
	})
	const asked = 300
	for range asked {
		wantRefusal(t, "no queue", e.book(t, goodBody), 503, "try_again")
	}
	lines := e.log.lines(t, "request")
	if len(lines) != asked || lines[asked-1]["attempt"] != attempt || lines[asked-1]["level_id"] != "N1" {
		t.Errorf("lines: got %d, the last %v, want %d with their attempt", len(lines), lines[len(lines)-1], asked)
	}
}

// Whatever a sender can put anywhere may be somebody's code or number: the line has
// none of it.
func TestLog_NothingOfWhatWasSent(t *testing.T) {
	t.Parallel()
	const private = "PRIVATE-01712345678"
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
			if r.Level == "01712345678" {
				return booking.Held{}, booking.ErrInvalidLevel
			}
			panic(errors.New(private))
		})
	})
	e.book(t, `{"code":"ab-1001","email":"a.b@example.org","level":"01712345678"}`)
	e.book(t, goodBody) // and panics
	e.book(t, `{"code":"ab-1001","email":"a.b@example.org","level":"N1","`+private+`":1}`)
	e.book(t, `{"code":{"`+private+`":2}}`)
	e.book(t, `{"code":"`+private+`","`)
	e.send(t, http.MethodPost, "/book", formType, "code=%"+private)
	e.send(t, http.MethodPost, "/book", formType, private+"=1")
	e.send(t, private, "/book", jsonType, goodBody)
	e.send(t, http.MethodGet, "/booking/"+private, "", "")
	e.send(t, http.MethodGet, "/"+private+"?q="+private, "", "")
	e.send(t, http.MethodGet, "/payment/callback?status=success&signature="+private+"&paymentID="+private, "", "")
	if lines := e.log.lines(t, "request"); len(lines) != 11 {
		t.Errorf("lines: got %d, want one a request, 11", len(lines))
	}
	for _, never := range []string{private, "01712345678", "a.b@", "AB-1001", "ab-1001"} {
		if strings.Contains(e.log.String(), never) {
			t.Errorf("log: got %q in it, want nothing of what was sent:\n%s", never, e.log)
		}
	}
}

// The error of a connection names both its ends.
func TestLog_NoAddressOfAConnection(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/book", iotest.ErrReader(&net.OpError{
		Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 8080},
		Addr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4711}, Err: errors.New("i/o timeout"),
	}))
	r.Header.Set("Content-Type", jsonType)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	wantRefusal(t, "broken body", w, 400, "invalid_request")
	lines := e.log.lines(t, "request")
	if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0]["error"]), "i/o timeout") || strings.Contains(e.log.String(), "203.0.113.9") {
		t.Errorf("log: got %v, want the cause without the client's address", lines)
	}
}
