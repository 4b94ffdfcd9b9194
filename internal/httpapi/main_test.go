package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/flight"
	"holdfast/internal/httpapi"
	"holdfast/internal/obs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	code      = "AB-1001"
	email     = "a.b@example.org"
	attempt   = "1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd"
	payment   = "TR0011mqN0nOK1796097600412"
	signature = "k3YOrG8qy6"
	payURL    = "https://pay.test/pay/" + payment + "?hash=8Zr3kQw1TxYv5Nb7Lm2Pc9Df&mode=0011"
	goodBody  = `{"code":"ab-1001","email":"A.B@example.org","level":"N1"}`
	goodForm  = "code=ab-1001&email=A.B%40example.org&level=N1&website="
	jsonType  = "application/json"
	formType  = "application/x-www-form-urlencoded"
)

var (
	started = time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	want1   = booking.Request{Code: code, Email: email, Level: "N1"}
)

type booker func(ctx context.Context, r booking.Request) (booking.Held, error)

func (f booker) Book(ctx context.Context, r booking.Request) (booking.Held, error) { return f(ctx, r) }

// finder answers who looks for their seat.
type finder func(ctx context.Context, code, email string) error

func (f finder) Find(ctx context.Context, code, email string) error { return f(ctx, code, email) }

type settler struct {
	issued func(ctx context.Context, payment, signature string) (string, string, error)
	pay    func(ctx context.Context, code, attempt, payment string) error
}

func (s settler) Issued(ctx context.Context, payment, signature string) (string, string, error) {
	return s.issued(ctx, payment, signature)
}

func (s settler) Return(ctx context.Context, code, attempt, payment string) error {
	return s.pay(ctx, code, attempt, payment)
}

type viewer func(ctx context.Context, code, attempt string) (booking.View, error)

func (f viewer) View(ctx context.Context, code, attempt string) (booking.View, error) {
	return f(ctx, code, attempt)
}

type objects func(ctx context.Context, key string) ([]byte, string, error)

func (f objects) Get(ctx context.Context, key string) ([]byte, string, error) { return f(ctx, key) }

type sales func(ctx context.Context) (booking.Sale, error)

func (f sales) Sale(ctx context.Context) (booking.Sale, error) { return f(ctx) }

// edge is the edge over doubles that say yes to everything.
type edge struct {
	*httpapi.Server
	sealer  *booking.Sealer
	flights *flight.Group
	reg     *prometheus.Registry
	log     *log
}

// log is what was logged; safe for concurrent use.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// lines are the log lines with that message.
func (l *log) lines(t testing.TB, msg string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if m["msg"] == msg {
			out = append(out, m)
		}
	}
	return out
}

func newEdge(t testing.TB, change func(*httpapi.Deps)) *edge {
	t.Helper()
	sealer, err := booking.NewSealer(bytes.Repeat([]byte{7}, booking.SealKeySize))
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{sealer: sealer, flights: new(flight.Group), reg: prometheus.NewRegistry(), log: new(log)}
	d := e.deps()
	if change != nil {
		change(&d)
	}
	if e.Server, err = httpapi.New(d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.flights.Wait(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *edge) deps() httpapi.Deps {
	return httpapi.Deps{
		Finder: finder(func(context.Context, string, string) error { return booking.ErrNotFound }),
		Booker: booker(func(context.Context, booking.Request) (booking.Held, error) { return e.held(), nil }),
		Settler: settler{
			issued: func(_ context.Context, p, s string) (string, string, error) {
				if p != payment || s != signature {
					return "", "", booking.ErrNotFound
				}
				return code, attempt, nil
			},
			pay: func(context.Context, string, string, string) error { return nil },
		},
		Viewer: viewer(func(_ context.Context, c, a string) (booking.View, error) {
			if c != code || a != attempt {
				return booking.View{}, booking.ErrNotFound
			}
			return booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 599, PaymentURL: payURL}, nil
		}),
		Sealer: e.sealer, Background: e.flights, Codes: booking.DefaultCodeRule(),
		Pages: &httpapi.Pages{
			Objects: objects(func(context.Context, string) ([]byte, string, error) {
				return []byte(`{"version":1,"open":true,"total":{"cap":10,"left":4},"levels":[{"id":"N1","left":3}]}`), "e1", nil
			}),
			Sales: sales(func(context.Context) (booking.Sale, error) {
				return booking.Sale{Name: "demo", Currency: "BDT", Levels: []booking.Level{{ID: "N1", Name: "N1 Advanced", Cap: 10, Fee: 150000}}}, nil
			}),
		},
		ResultURL: "/result", ReturnBudget: 7500 * time.Millisecond,
		Log: obs.NewLogger(e.log, slog.LevelInfo), Registerer: e.reg,
	}
}

// token is the test's booking sealed.
func (e *edge) token() string { return e.sealer.Seal(code, attempt) }

func (e *edge) held() booking.Held {
	return booking.Held{
		PaymentID: payment, PaymentURL: payURL, BookingURL: "https://sale.test/booking/" + e.token(), Level: "N1",
		Attempt: attempt, ExpiresAt: started.Add(10 * time.Minute), SecondsLeft: 599,
	}
}

// refuses is an edge whose Booker answers that.
func refuses(t testing.TB, err error) *edge {
	t.Helper()
	return newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) { return booking.Held{}, err })
	})
}

// untouched is an edge none of whose dependencies may be called.
func untouched(t testing.TB) *edge {
	t.Helper()
	return newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
			t.Errorf("Book: got called with %+v, want no call", r)
			return booking.Held{}, booking.ErrTryAgain
		})
		d.Settler = settler{
			issued: func(_ context.Context, p, _ string) (string, string, error) {
				t.Errorf("Issued: got called with %q, want no call", p)
				return "", "", booking.ErrNotFound
			},
			pay: func(_ context.Context, _, a, _ string) error {
				t.Errorf("Return: got called for %q, want no call", a)
				return nil
			},
		}
		d.Viewer = viewer(func(_ context.Context, c, a string) (booking.View, error) {
			t.Errorf("View: got called with %q, %q, want no call", c, a)
			return booking.View{}, booking.ErrNotFound
		})
	})
}

func newRequest(t testing.TB, method, target, body string) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
}

func serve(e *edge, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// send makes one request.
func (e *edge) send(t testing.TB, method, target, contentType, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := newRequest(t, method, target, body)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return serve(e, r)
}

func (e *edge) book(t testing.TB, body string) *httptest.ResponseRecorder {
	t.Helper()
	return e.send(t, http.MethodPost, "/book", jsonType, body)
}

func decode(t testing.TB, body io.Reader) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.NewDecoder(body).Decode(&m); err != nil {
		t.Errorf("body: got %v, want one JSON object", err)
	}
	return m
}

func keys(m map[string]any) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// wantProblem holds an answer to the shape of every error and returns its body.
func wantProblem(t testing.TB, what string, status int, h http.Header, body io.Reader, wantStatus int, slug string) map[string]any {
	t.Helper()
	m := decode(t, body)
	if status != wantStatus || m["error"] != slug {
		t.Errorf("%s: got %d %v, want %d %s", what, status, m["error"], wantStatus, slug)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json; charset=utf-8", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %s: got %q, want %q", what, name, got, want)
		}
	}
	if id := h.Get("X-Request-Id"); id == "" || m["request_id"] != id {
		t.Errorf("%s: request id: got %v in the body, %q in the header, want the same in both", what, m["request_id"], id)
	}
	if text, _ := m["message"].(string); text == "" {
		t.Errorf("%s: message: got none, want one", what)
	}
	if retry := h.Get("Retry-After"); (retry != "") != (status == 429 || status == 502 || status == 503) && slug != "duplicate" {
		t.Errorf("%s: Retry-After: got %q with status %d", what, retry, status)
	}
	return m
}

func wantRefusal(t testing.TB, what string, w *httptest.ResponseRecorder, status int, slug string) map[string]any {
	t.Helper()
	return wantProblem(t, what, w.Code, w.Header(), w.Body, status, slug)
}

// metric sums a metric's samples, by the values of one label, or under "" when
// it has none.
func (e *edge) metric(t testing.TB, name, label string) map[string]float64 {
	t.Helper()
	families, err := e.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			value := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					value = l.GetValue()
				}
			}
			out[value] += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}
