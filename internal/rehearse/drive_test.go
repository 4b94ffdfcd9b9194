package rehearse_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/rehearse"
)

// saleAt is five uneven levels, of which the sum is above the cap.
func saleAt(scale float64) booking.Sale {
	s := booking.Sale{Name: "test", Currency: "BDT", Cap: int(20700 * scale), Hold: time.Minute}
	for i, n := range []float64{2400, 3600, 4800, 5400, 5200} {
		s.Levels = append(s.Levels, booking.Level{ID: "N" + strconv.Itoa(i+1), Cap: int(n * scale), Fee: 100})
	}
	return s
}

// site is a deployment in memory that speaks the contract, the payer's page included. Seats
// that are not paid lapse with their hold.
type site struct {
	sale   booking.Sale
	hold   time.Duration
	began  time.Time
	rush   time.Duration
	listed int
	// gateway is how long an admitted booking takes; the others take no time.
	gateway time.Duration
	// first is asked before anything else; true when it has answered.
	first func(w http.ResponseWriter, r *http.Request, code string) bool
	// unmarked leaves the mock's marker away.
	unmarked bool

	mu       sync.Mutex
	seats    map[string]*seat // by code
	taken    map[string]int   // by level
	lapsed   time.Time        // when it was looked for last
	tokens   map[string]*seat
	version  int
	paid     int
	admitted int    // ever
	last     string // status.json without its version
	saw      map[string]int
	posts    map[string][]time.Time // by code
	clicks   map[string]time.Time   // by code and key
	mistyped map[string]bool
	refused  map[string]string // code to the level it was refused
	backs    map[string]int    // callbacks by payment
	worst    int
}

type seat struct {
	code, key, level, token string
	until                   time.Time
	working, paid           bool
}

func newSite(sale booking.Sale, o rehearse.Options, listed int) *site {
	return &site{
		sale: sale, hold: o.Hold, began: time.Now(), rush: o.For, listed: listed, gateway: 150 * time.Millisecond,
		seats: map[string]*seat{}, taken: map[string]int{}, tokens: map[string]*seat{}, saw: map[string]int{}, posts: map[string][]time.Time{},
		clicks: map[string]time.Time{}, mistyped: map[string]bool{}, refused: map[string]string{}, backs: map[string]int{},
	}
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && time.Since(s.began) < s.rush && !strings.HasPrefix(r.URL.Path, "/pay/") {
		s.count("read in the rush")
	}
	switch {
	case r.URL.Path == "/book":
		s.book(w, r)
	case r.URL.Path == "/status.json":
		s.status(w)
	case r.URL.Path == "/", r.URL.Path == "/result":
		s.count("page")
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			s.count("page not changed")
			w.WriteHeader(http.StatusNotModified)
			return
		}
		io.WriteString(w, strings.Repeat("page ", 1000))
	case strings.HasPrefix(r.URL.Path, "/booking/"):
		s.view(w, strings.TrimPrefix(r.URL.Path, "/booking/"))
	case strings.HasPrefix(r.URL.Path, "/pay/"):
		s.pay(w, r, strings.TrimPrefix(r.URL.Path, "/pay/"))
	case r.URL.Path == "/payment/callback":
		s.back(w, r, r.URL.Query().Get("paymentID"))
	}
}

// takes is the time that an answer takes.
func takes(d time.Duration) { <-time.After(d) }

func (s *site) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw[what]++
}

// lapse gives back what was not paid; the lock is held.
func (s *site) lapse() {
	if time.Since(s.lapsed) < 100*time.Millisecond {
		return
	}
	s.lapsed = time.Now()
	for code, seat := range s.seats {
		if !seat.paid && !seat.working && time.Now().After(seat.until) {
			delete(s.seats, code)
			s.taken[seat.level]--
			s.saw["lapsed"]++
		}
	}
}

func refuse(w http.ResponseWriter, status int, slug, more string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":%q,"message":"No.","request_id":"1"%s}`, slug, more)
}

func (s *site) book(w http.ResponseWriter, r *http.Request) {
	var in struct{ Code, Email, Level, Website string }
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &in) != nil {
		s.count("malformed")
		refuse(w, 400, "invalid_request", "")
		return
	}
	if r.Header.Get("X-Vegeta-Seq") != "" {
		s.count("the load library's own header")
	}
	s.mu.Lock()
	s.posts[in.Code] = append(s.posts[in.Code], time.Now())
	s.mu.Unlock()
	if s.first != nil && s.first(w, r, in.Code) {
		return
	}
	key := r.Header.Get("Idempotency-Key")
	got, slug, more := s.admit(in.Code, in.Email, in.Level, in.Website, key)
	if got == nil {
		status := map[string]int{"invalid_code": 400, "email_mismatch": 400, "duplicate": 409, "level_full": 409, "closed": 429}[slug]
		if strings.Contains(more, "working") {
			w.Header().Set("Retry-After", "2")
		}
		refuse(w, status, slug, more)
		return
	}
	if got.working {
		takes(s.gateway)
		s.mu.Lock()
		got.working = false
		got.until = time.Now().Add(s.hold)
		s.mu.Unlock()
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, `{"payment_url":"http://%s/pay/%s","payment_id":%q,"booking_url":"http://%s/booking/%s","expires_at":%q,"seconds_left":%d,"level":%q}`,
		r.Host, got.token, "TR"+got.token, r.Host, got.token, got.until.Format(time.RFC3339), int(time.Until(got.until)/time.Second), got.level)
	if r.Context().Err() != nil {
		s.count("hung up")
	}
}

func (s *site) admit(code, email, level, website, key string) (got *seat, slug, more string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapse()
	n, _ := strconv.Atoi(strings.TrimPrefix(code, "AB-"))
	at, clicked := s.clicks[code+" "+key]
	s.clicks[code+" "+key] = time.Now()
	switch {
	case website != "":
		s.saw["bot"]++
		return &seat{token: "fake" + strconv.Itoa(s.saw["bot"]), level: level, until: time.Now().Add(s.hold)}, "", ""
	case n <= 100_000 || n > 100_000+s.listed:
		s.saw["stranger"]++
		return nil, "invalid_code", ""
	case email != fmt.Sprintf("candidate%d@example.org", n):
		s.saw["mistyped"]++
		s.mistyped[code] = true
		return nil, "email_mismatch", ""
	}
	if s.mistyped[code] {
		delete(s.mistyped, code)
		s.saw["corrected"]++
	}
	if clicked && time.Since(at) < 20*time.Millisecond {
		s.saw["double click"]++
	}
	if has := s.seats[code]; has != nil {
		switch {
		case has.paid:
			s.saw["again, paid"]++
			return nil, "duplicate", `,"paid":true`
		case has.working:
			return nil, "duplicate", `,"note":"working"`
		case has.key == key:
			s.saw["replay"]++
			return &seat{token: has.token, level: has.level, until: has.until}, "", ""
		}
		s.saw["again"]++
		return nil, "duplicate", fmt.Sprintf(`,"payment_url":"http://site.test/pay/%s","booking_url":"http://site.test/booking/%s","seconds_left":%d`,
			has.token, has.token, int(time.Until(has.until)/time.Second))
	}
	in, all := s.taken[level], len(s.seats)
	i := slices.IndexFunc(s.sale.Levels, func(l booking.Level) bool { return l.ID == level })
	was, wasRefused := s.refused[code]
	if wasRefused && was != level {
		s.saw["another level"]++
	}
	if in >= s.sale.Levels[i].Cap || all >= s.sale.Cap {
		s.refused[code] = level
		if in >= s.sale.Levels[i].Cap {
			return nil, "level_full", ""
		}
		return nil, "closed", `,"reason":"sold_out"`
	}
	if wasRefused {
		s.saw["came back"]++
	}
	s.admitted++
	s.worst = max(s.worst, all+1)
	got = &seat{code: code, key: key, level: level, token: fmt.Sprintf("t%d", s.admitted), working: true}
	s.seats[code], s.tokens[got.token] = got, got
	s.taken[level]++
	return got, "", ""
}

func (s *site) status(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw["status.json"]++
	s.lapse()
	var b strings.Builder
	fmt.Fprintf(&b, `"open":true,"total":{"cap":%d,"left":%d},"levels":[`, s.sale.Cap, s.sale.Cap-len(s.seats))
	for i, l := range s.sale.Levels {
		fmt.Fprintf(&b, `%s{"id":%q,"cap":%d,"left":%d}`, map[bool]string{true: ","}[i > 0], l.ID, l.Cap, l.Cap-s.taken[l.ID])
	}
	if b.String() != s.last {
		s.version++
		s.last = b.String()
	}
	fmt.Fprintf(w, `{"version":%d,%s]}`, s.version, s.last)
}

func (s *site) view(w http.ResponseWriter, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw["booking"]++
	s.lapse()
	switch seat := s.tokens[token]; {
	case seat == nil:
		s.saw["unknown booking"]++
		refuse(w, 404, "not_found", "")
	case seat.paid:
		fmt.Fprint(w, `{"state":"paid"}`)
	case s.seats[seat.code] != seat:
		fmt.Fprint(w, `{"state":"released"}`)
	default:
		fmt.Fprintf(w, `{"state":"held","seconds_left":%d,"payment_url":"http://site.test/pay/%s"}`, int(time.Until(seat.until)/time.Second), token)
	}
}

func (s *site) pay(w http.ResponseWriter, r *http.Request, token string) {
	if !s.unmarked {
		w.Header().Set(mockgateway.Header, mockgateway.HeaderValue)
	}
	if r.Method == http.MethodPost {
		s.count("paying " + r.FormValue("outcome"))
		http.Redirect(w, r, "/payment/callback?status=success&signature=x&paymentID="+token, http.StatusSeeOther)
	}
}

func (s *site) back(w http.ResponseWriter, r *http.Request, token string) {
	takes(100 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapse()
	if s.backs[token]++; s.backs[token] == 2 {
		s.saw["callback again"]++
	}
	if seat := s.tokens[token]; seat != nil && s.seats[seat.code] == seat && !seat.paid {
		seat.paid = true
		s.paid++
	}
	http.Redirect(w, r, "/result?booking="+token, http.StatusSeeOther)
}

// pipes are connections in memory, so that time is a bubble's own.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// drive has a crowd come to a site in the bubble, and returns what was measured and for
// how long people stayed.
func drive(t *testing.T, ctx context.Context, c *rehearse.Crowd, hands int, s *site) (r rehearse.Report, m *rehearse.Measure, took time.Duration, err error) {
	t.Helper()
	ln := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ln) })
	began := time.Now()
	m = rehearse.NewMeasure(began)
	err = c.DriveOver(ctx, ln.dial, hands, "http://site.test", m)
	took = time.Since(began)
	end(t, server, &serving)
	m.Into(&r)
	return r, m, took, err
}

// end returns when every request is over; what the site saw can be read.
func end(t *testing.T, server *http.Server, serving *sync.WaitGroup) {
	t.Helper()
	if err := server.Shutdown(t.Context()); err != nil {
		t.Errorf("end the site: %v", err)
	}
	serving.Wait()
}

const manyHands = 4000

func TestDrive_SellsEverySeatAndDoesWhatPeopleDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := rehearse.Options{Seed: 1, Scale: 0.05}.Complete()
		c := rehearse.NewCrowd(o, saleAt(o.Scale))
		s := newSite(saleAt(o.Scale), o, o.Candidates)
		r, m, took, err := drive(t, t.Context(), c, manyHands, s)
		if err != nil {
			t.Fatal(err)
		}
		if s.paid != s.sale.Cap || s.worst > s.sale.Cap {
			t.Errorf("got %d seats paid and at most %d taken, want all %d of both", s.paid, s.worst, s.sale.Cap)
		}
		if took >= c.Ends() {
			t.Errorf("people stayed for %s, want them home when every seat is paid, before %s", took, c.Ends())
		}
		for _, what := range []string{
			"bot", "stranger", "mistyped", "corrected", "double click", "hung up", "again", "again, paid", "replay",
			"another level", "came back", "lapsed", "callback again", "page not changed", "paying success", "booking",
		} {
			if s.saw[what] == 0 {
				t.Errorf("site saw nobody do %q, want some (it saw %v)", what, s.saw)
			}
		}
		for _, what := range []string{"malformed", "the load library's own header", "unknown booking"} {
			if n := s.saw[what]; n != 0 {
				t.Errorf("site saw %d of %q, want none", n, what)
			}
		}
		t.Log(took, s.saw, s.admitted, r.Answers, r.RateAchieved)
		if r.RateAchieved < o.Rate {
			t.Errorf("rate: got %.1f a second, want at least the %.0f that were asked for", r.RateAchieved, o.Rate)
		}
		if lapsed := float64(s.saw["lapsed"]) / float64(s.admitted); lapsed < 0.25 || lapsed > 0.42 {
			t.Errorf("got %.2f of the holds lapsed, want about a third", lapsed)
		}
		// The first answer to a closed tab is the only one that nobody has heard.
		if hung := r.Answers["hung_up"]; r.HoldsCreated > s.admitted || r.HoldsCreated < s.admitted-hung || len(m.Told()) != r.HoldsCreated {
			t.Errorf("got %d holds and %d told, want the site's %d less at most %d", r.HoldsCreated, len(m.Told()), s.admitted, hung)
		}
		if r.ServerErrors != 0 {
			t.Errorf("server errors: got %d, want 0", r.ServerErrors)
		}
		if n, latest := m.Late(); n != 0 {
			t.Errorf("got %d requests sent late, the latest by %s, want none", n, latest)
		}
		for kind, least := range map[string]int{"honeypot": 20, "invalid_code": 40, "email_mismatch": 30, "hung_up": 20, "duplicate": 300, "level_full": 100, "sold_out": 300} {
			if r.Answers[kind] < least {
				t.Errorf("answers: got %d of %s, want at least %d (%v)", r.Answers[kind], kind, least, r.Answers)
			}
		}
		if got := r.LatencyMS["202"].P50; got < 149 || got > 152 {
			t.Errorf("a 202 took %.1f ms at p50, want the gateway's 150", got)
		}
		if reads, want := s.saw["read in the rush"], 4*int(o.Rate*o.For.Seconds()); reads < want*95/100 || reads > want*105/100 {
			t.Errorf("got %d reads in the rush, want about %d: four to a booking", reads, want)
		}
	})
}

// A stall of a second is in the times of all that were due in it, also of those that the
// generator could not even send.
func TestDrive_AStallIsInTheTimes(t *testing.T) {
	t.Parallel()
	for name, hands := range map[string]int{"enough hands": manyHands, "four hands": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := rehearse.Options{Seed: 1, Rate: 100, For: 10 * time.Second, Hold: time.Second, Candidates: 1000}.Complete()
				sale := saleAt(0.05)
				for i := range sale.Levels {
					sale.Levels[i].Cap = 0
				}
				s := newSite(sale, o, o.Candidates)
				began := time.Now()
				s.first = func(http.ResponseWriter, *http.Request, string) bool {
					if since := time.Since(began); since >= 5*time.Second && since < 6*time.Second {
						time.Sleep(6*time.Second - since)
					}
					return false
				}
				c := rehearse.NewCrowd(o, saleAt(0.05))
				r, m, _, err := drive(t, t.Context(), c, hands, s)
				if err != nil {
					t.Fatal(err)
				}
				got := m.Rejections()
				if got.P50 > 1 || got.P99 < 850 || got.Max < 950 || got.Max > 1100 {
					t.Errorf("rejections: got %+v, want a p50 of nothing, a p99 of nearly a second and a max of one", got)
				}
				if second := r.Seconds[5]; second.P50 < 400 || second.P50 > 600 {
					t.Errorf("second of the stall: got p50 %.0f ms, want about 500", second.P50)
				}
				if n, _ := m.Late(); (n > 50) != (hands == 4) {
					t.Errorf("sent late: got %d, with %d hands", n, hands)
				}
				if r.RateAchieved < o.Rate {
					t.Errorf("rate: got %.1f, want %.0f: all were answered within 8 s", r.RateAchieved, o.Rate)
				}
			})
		})
	}
}

func TestDrive_NobodyRetriesForEver(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"try again":     func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "try_again", "") },
		"internal":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, 500, "internal", "") },
		"mismatch":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, 422, "idempotency_mismatch", "") },
		"not open":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "closed", `,"reason":"not_open"`) },
		"sold out":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, 429, "closed", `,"reason":"sold_out"`) },
		"no JSON":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"hangs up":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"never answers": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := rehearse.Options{Seed: 1, Rate: 20, For: 5 * time.Second, Hold: 10 * time.Second, Candidates: 100}.Complete()
				c := rehearse.NewCrowd(o, saleAt(0.01))
				s := newSite(saleAt(0.01), o, o.Candidates)
				s.first = func(w http.ResponseWriter, r *http.Request, _ string) bool { answer(w, r); return true }
				r, _, took, err := drive(t, t.Context(), c, manyHands, s)
				if err != nil || took > c.Ends()+20*time.Second {
					t.Errorf("people stayed for %s (%v), want at most %s and the last answers", took, err, c.Ends())
				}
				most := 0
				for _, posts := range s.posts {
					most = max(most, len(posts))
				}
				if most > 30 {
					t.Errorf("somebody booked %d times, want it to end", most)
				}
				if r.HoldsCreated != 0 {
					t.Errorf("holds: got %d, want 0", r.HoldsCreated)
				}
				if bad := name == "internal" || name == "no JSON"; (r.ServerErrors > 0) != bad {
					t.Errorf("server errors: got %d, of answers %v", r.ServerErrors, r.Answers)
				}
			})
		})
	}
}

func TestDrive_RetryAfterIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// A rush too short for all: nobody comes again but by a habit, or because of the answer.
		o := rehearse.Options{Seed: 1, Rate: 20, For: 5 * time.Second, Hold: 20 * time.Second, Candidates: 200}.Complete()
		s := newSite(saleAt(0.1), o, o.Candidates)
		told := map[string]time.Time{}
		s.first = func(w http.ResponseWriter, r *http.Request, code string) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, again := told[code]; again {
				return false
			}
			told[code] = time.Now()
			w.Header().Set("Retry-After", "7")
			refuse(w, 503, "try_again", "")
			return true
		}
		c := rehearse.NewCrowd(o, saleAt(0.1))
		r, _, _, err := drive(t, t.Context(), c, manyHands, s)
		if err != nil {
			t.Fatal(err)
		}
		pauses, early := map[time.Duration]int{}, 0
		for code, posts := range s.posts {
			if len(posts) < 2 {
				continue
			}
			pause := posts[1].Sub(told[code])
			if pauses[pause.Round(100*time.Millisecond)]++; pause < 7*time.Second {
				early++
			}
			if pause > 10500*time.Millisecond {
				t.Errorf("%s came again after %s, want at most half as much more than 7 s", code, pause)
			}
		}
		plan := c.Plan()
		if habits := plan["beside second"] + plan["beside hang up"] + plan["beside mistyped"]; early > habits || len(pauses) < 20 {
			t.Errorf("got %d who came again too early, want at most the %d who have a habit; and pauses that are spread: %v", early, habits, pauses)
		}
		if r.Answers["202"] < 150 {
			t.Errorf("got %d of 202, want nearly everybody at the second try", r.Answers["202"])
		}
	})
}

// A server that sends everybody away again and again has no higher rate for it.
func TestDrive_RepeatsAreNotInTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := rehearse.Options{Seed: 1, Rate: 10, For: 20 * time.Second, Hold: 20 * time.Second, Candidates: 200}.Complete()
		s := newSite(saleAt(0.1), o, o.Candidates)
		s.first = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
			refuse(w, 503, "try_again", "")
			return true
		}
		c := rehearse.NewCrowd(o, saleAt(0.1))
		r, _, _, err := drive(t, t.Context(), c, manyHands, s)
		if err != nil {
			t.Fatal(err)
		}
		plan := c.Plan()
		if r.RateAchieved != o.Rate {
			t.Errorf("rate: got %v of %d answers, want the %v of the even stream, without second clicks", r.RateAchieved, r.Answers["try_again"], o.Rate)
		}
		if n := r.Answers["try_again"]; n < 3*plan["slots"] {
			t.Errorf("got %d answers, want several for each of %d", n, plan["slots"])
		}
	})
}

// A connection that breaks once the seat is taken is the server's error, and the client
// does not cover it up by a repeat of its own.
func TestDrive_CutOffWithASeatIsAServerError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := rehearse.Options{Seed: 1, Rate: 20, For: 5 * time.Second, Hold: 20 * time.Second, Candidates: 100}.Complete()
		s := newSite(saleAt(0.1), o, o.Candidates)
		cut := map[string]bool{}
		s.first = func(_ http.ResponseWriter, r *http.Request, code string) bool {
			n, _ := strconv.Atoi(strings.TrimPrefix(code, "AB-"))
			s.mu.Lock()
			mine := n > 100_000 && n <= 100_100 && n%4 == 0 && len(s.posts[code]) == 1
			s.mu.Unlock()
			if !mine {
				return false
			}
			got, _, _ := s.admit(code, fmt.Sprintf("candidate%d@example.org", n), "N1", "", r.Header.Get("Idempotency-Key"))
			s.mu.Lock()
			got.working, got.until = false, time.Now().Add(s.hold)
			cut[code] = true
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		r, _, _, err := drive(t, t.Context(), rehearse.NewCrowd(o, saleAt(0.1)), manyHands, s)
		if err != nil {
			t.Fatal(err)
		}
		if want := len(cut); r.ServerErrors < want*9/10 || r.ServerErrors > want || want < 20 {
			t.Errorf("server errors: got %d, want those of %d who were cut off (less one or two who had closed the tab)", r.ServerErrors, want)
		}
	})
}

func TestDrive_PaysNowhereButAtTheMock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := rehearse.Options{Seed: 1, Rate: 20, For: 5 * time.Second, Hold: 20 * time.Second, Candidates: 100}.Complete()
		s := newSite(saleAt(0.1), o, o.Candidates)
		s.unmarked = true
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ln := &pipes{make(chan net.Conn), make(chan struct{})}
		server := &http.Server{Handler: s}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(ln) })
		err := rehearse.NewCrowd(o, saleAt(0.1)).DriveTo(ctx, ln.dial, "http://site.test", "http://gateway.test", rehearse.NewMeasure(time.Now()))
		end(t, server, &serving)
		if !rehearse.IsNotTheMock(err) {
			t.Errorf("got error %v, want that it is not the mock", err)
		}
		if n := s.saw["paying success"]; n != 0 {
			t.Errorf("got %d payments at another gateway, want none", n)
		}
	})
}

func TestDrive_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := rehearse.Options{Seed: 1, Rate: 100, For: 10 * time.Second, Hold: time.Minute, Candidates: 1000}.Complete()
		s := newSite(saleAt(0.05), o, o.Candidates)
		s.first = func(_ http.ResponseWriter, r *http.Request, _ string) bool {
			<-r.Context().Done()
			return true
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r, _, took, err := drive(t, ctx, rehearse.NewCrowd(o, saleAt(0.05)), 4, s)
		if !errors.Is(err, context.DeadlineExceeded) || took > 4*time.Second {
			t.Errorf("got error %v after %s, want the context's after 3 s", err, took)
		}
		due := 0
		for _, second := range r.Seconds {
			due += second.Due
		}
		if due < 295 || r.Answers["no_answer"] < 295 {
			t.Errorf("got %d due and %v, want all 300 that were due, sent or not", due, r.Answers)
		}
	})
}

// Over the machine's own connections, and with its clock.
func TestDrive_OverRealConnections(t *testing.T) {
	t.Parallel()
	o := rehearse.Options{Seed: 3, Rate: 200, For: time.Second, Hold: 2 * time.Second, Candidates: 100}.Complete()
	sale := saleAt(1)
	s := newSite(sale, o, o.Candidates)
	s.gateway = 5 * time.Millisecond
	var site atomic.Pointer[httptest.Server]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(&rewriter{ResponseWriter: w, to: site.Load().URL}, r)
	}))
	defer srv.Close()
	site.Store(srv)
	m := rehearse.NewMeasure(time.Now())
	if err := rehearse.NewCrowd(o, sale).Drive(t.Context(), srv.URL, srv.URL, time.Now(), m); err != nil {
		t.Fatal(err)
	}
	var r rehearse.Report
	m.Into(&r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paid < o.Candidates/3 || r.ServerErrors != 0 || r.Answers["no_answer"] != 0 || r.HoldsCreated < o.Candidates*9/10 {
		t.Errorf("got %d paid, %d server errors, %d holds and %v, want nearly all of %d to have a seat and many to pay",
			s.paid, r.ServerErrors, r.HoldsCreated, r.Answers, o.Candidates)
	}
}

// rewriter has the site's links lead to where it really listens.
type rewriter struct {
	http.ResponseWriter
	to string
}

func (w *rewriter) Write(b []byte) (int, error) {
	_, err := w.ResponseWriter.Write([]byte(strings.ReplaceAll(string(b), "http://site.test", w.to)))
	return len(b), err
}
