package k6test_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a deployment that keeps to the contract, with a gateway of its own, except for
// what a test takes in hand.
type fake struct {
	site, gateway *httptest.Server
	// instead answers a request of the site; true when it has.
	instead func(w http.ResponseWriter, r *http.Request) bool
	// marker is what the gateway says of itself.
	marker string
	// pays is where payment links lead; "" to the gateway.
	pays string
	// perLevel is how many seats each of the two levels has.
	perLevel int
	// again gives another seat to who has one already.
	again bool
	// charges is how often money moves for one press.
	charges int
	// ahead is how far the gateway's clock is; its Date says so, unless dateless.
	ahead    time.Duration
	dateless bool
	// page is the status of every payment page; 0 is that of one which works.
	page int
	// hides has the gateway's list name no payment.
	hides  bool
	closed bool

	mu       sync.Mutex
	seats    map[string]*seat // by code
	taken    map[string]int   // by level
	payments []*seat
	bookings int // POST /book
	pressed  int
}

type seat struct {
	code, level, key, payment string
	paid                      bool
	created                   time.Time // by the gateway's clock
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{marker: "holdfast", perLevel: 10, charges: 1, seats: map[string]*seat{}, taken: map[string]int{}}
	site, gateway := http.NewServeMux(), http.NewServeMux()
	site.HandleFunc("GET /{$}", func(http.ResponseWriter, *http.Request) {})
	site.HandleFunc("GET /status.json", f.status)
	site.HandleFunc("POST /book", f.book)
	site.HandleFunc("GET /booking/{token}", f.booking)
	site.HandleFunc("GET /payment/callback", f.callback)
	gateway.HandleFunc("GET /mock/settings", func(http.ResponseWriter, *http.Request) {})
	gateway.HandleFunc("GET /mock/payments", f.list)
	gateway.HandleFunc("POST /pay/{payment}", f.press)
	f.site = serve(t, func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if r.URL.Path == "/book" {
			f.bookings++
		}
		if f.instead == nil || !f.instead(w, r) {
			site.ServeHTTP(w, r)
		}
	})
	f.gateway = serve(t, func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.marker != "" {
			w.Header().Set("X-Mock-Gateway", f.marker)
		}
		w.Header().Set("Date", f.gatewayTime().UTC().Format(http.TimeFormat))
		if f.dateless {
			w.Header()["Date"] = nil
		}
		gateway.ServeHTTP(w, r)
	})
	return f
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func (f *fake) gatewayTime() time.Time { return time.Now().Add(f.ahead) }

func (f *fake) env() map[string]string {
	return deployment{f.site.URL, f.gateway.URL}.env(40, "1s", 0)
}

// counts tells how many bookings were sent and how many payments pressed.
func (f *fake) counts() (bookings, pressed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bookings, f.pressed
}

func say(w http.ResponseWriter, status int, body map[string]any) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}

func refuse(w http.ResponseWriter, status int, slug string, more ...any) {
	body := map[string]any{"error": slug, "message": "no", "request_id": "r1"}
	for i := 0; i < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	say(w, status, body)
}

func (f *fake) status(w http.ResponseWriter, _ *http.Request) {
	total := 0
	var levels []map[string]any
	for _, id := range []string{"N1", "N2"} {
		left := f.perLevel - f.taken[id]
		total += left
		levels = append(levels, map[string]any{"id": id, "name": id, "cap": f.perLevel, "left": left, "full": left == 0})
	}
	say(w, http.StatusOK, map[string]any{
		"version": 1, "open": !f.closed, "total": map[string]any{"cap": 2 * f.perLevel, "left": total}, "levels": levels,
	})
}

func (f *fake) book(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Code, Email, Level string
		Find               bool
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, "invalid_request")
		return
	}
	s, key := f.seats[in.Code], r.Header.Get("Idempotency-Key")
	switch {
	case s != nil && !f.again && s.key == key && !s.paid && !in.Find:
		f.admit(w, s)
	case s != nil && !f.again && s.paid:
		refuse(w, http.StatusConflict, "duplicate", "paid", true, "booking_url", f.site.URL+"/booking/"+s.code, "level", s.level)
	case s != nil && !f.again:
		refuse(w, http.StatusConflict, "duplicate", "payment_url", f.link(s), "booking_url", f.site.URL+"/booking/"+s.code, "seconds_left", 500, "level", s.level)
	case in.Find:
		refuse(w, http.StatusNotFound, "not_found")
	case f.taken[in.Level] >= f.perLevel:
		refuse(w, http.StatusConflict, "level_full", "level", in.Level)
	default:
		f.taken[in.Level]++
		s = &seat{code: in.Code, level: in.Level, key: key, payment: fmt.Sprintf("TR%d", len(f.payments)), created: f.gatewayTime()}
		f.seats[in.Code], f.payments = s, append(f.payments, s)
		f.admit(w, s)
	}
}

func (f *fake) link(s *seat) string {
	if f.pays != "" {
		return f.pays + "/pay/" + s.payment
	}
	return f.gateway.URL + "/pay/" + s.payment
}

func (f *fake) admit(w http.ResponseWriter, s *seat) {
	say(w, http.StatusAccepted, map[string]any{
		"payment_url": f.link(s), "payment_id": s.payment, "booking_url": f.site.URL + "/booking/" + s.code,
		"expires_at": time.Now().Add(time.Minute).UTC().Format(time.RFC3339), "seconds_left": 59, "level": s.level,
	})
}

func (f *fake) booking(w http.ResponseWriter, r *http.Request) {
	switch s := f.seats[r.PathValue("token")]; {
	case s == nil:
		refuse(w, http.StatusNotFound, "not_found")
	case s.paid:
		say(w, http.StatusOK, map[string]any{"state": "paid", "level": s.level, "seconds_left": 0})
	default:
		say(w, http.StatusOK, map[string]any{"state": "held", "level": s.level, "seconds_left": 500, "payment_url": f.link(s)})
	}
}

func (f *fake) callback(w http.ResponseWriter, r *http.Request) {
	for _, s := range f.payments {
		if s.payment == r.URL.Query().Get("paymentID") {
			s.paid = true
			http.Redirect(w, r, f.site.URL+"/result?booking="+s.code, http.StatusSeeOther)
			return
		}
	}
	http.Redirect(w, r, f.site.URL+"/result?error=unknown", http.StatusSeeOther)
}

func (f *fake) press(w http.ResponseWriter, r *http.Request) {
	f.pressed++
	if f.page != 0 {
		http.Error(w, "no", f.page)
		return
	}
	http.Redirect(w, r, f.site.URL+"/payment/callback?status=success&signature=s&paymentID="+r.PathValue("payment"), http.StatusSeeOther)
}

func (f *fake) list(w http.ResponseWriter, _ *http.Request) {
	all := []map[string]any{}
	for _, s := range f.payments {
		if f.hides {
			break
		}
		p := map[string]any{
			"merchantInvoiceNumber": strings.TrimPrefix(s.code, "AB-") + "-epoch-attempt", "createdAt": s.created,
		}
		if s.paid {
			p["transactions"] = make([]map[string]any, f.charges)
			for i := range f.charges {
				p["transactions"].([]map[string]any)[i] = map[string]any{"trxID": s.payment}
			}
		}
		all = append(all, p)
	}
	_ = json.NewEncoder(w).Encode(all) // the client may have left
}
