package pagetest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/testenv"
)

// blind has no figures come any more, and lets also answer first.
func blind(also func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if also != nil && also(w, r) {
			return true
		}
		if r.URL.Path == "/status.json" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return r.URL.Path == "/status.json"
	}
}

// Without figures a refusal counts for half a minute: nothing would ever take it back.
func TestBlind_ARefusalLapses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		off    string // what is off meanwhile
	}{
		"not open":   {http.StatusServiceUnavailable, `{"error":"closed","reason":"not_open"}`, `$('#state[data-phase="closed"]')`},
		"sold out":   {http.StatusTooManyRequests, `{"error":"closed","reason":"sold_out"}`, `$('#state[data-phase="sold_out"]')`},
		"level full": {http.StatusConflict, `{"error":"level_full","level":"N1"}`, `$('#levels input[value="N1"]').disabled`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setting{})
			p := newPerson(t, w).newTab()
			p.clockMoves()
			p.open("/")
			p.fillIn(0, "N1")
			w.front.answers(blind(busy(1, c.status, "application/json", c.body)))
			p.reload()
			p.until("a form without figures", `$('#state[data-phase="unknown"]') && $('#code').value === ''`)
			p.fill("#code", code(0))
			p.fill("#email", email(0))
			p.choose("N1")
			p.click("#submit")
			p.until("what the answer forbids", c.off)
			p.ahead(31 * time.Second)
			p.until("a form that can be sent again", `$('#submit').getAttribute('aria-disabled') === 'false' && !$('#levels input:disabled')`)
			if name == "sold out" {
				p.glimpses("form-blind")
			}
			p.click("#submit")
			p.waitAtGateway()
			w.wantSeats(t, "P0000 held")
		})
	}
}

// An old document counts no longer than a refusal, also from a cache that says its age.
func TestBlind_AnOldDocumentLapses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{closed: true})
	_, _, old, err := w.get(t, "/status.json")
	if err != nil {
		t.Fatal(err)
	}
	p := newPerson(t, w).newTab()
	p.clockMoves()
	p.open("/")
	p.waitPhase("closed")
	if err := w.api.Gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/status.json" {
			return false
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Age", "40")
		_, _ = io.WriteString(rw, old)
		return true
	})
	p.ahead(31 * time.Second)
	p.glance()
	p.waitPhase("unknown")
	p.waitText("#state", "You can send the form")
	p.fill("#code", code(0))
	p.fill("#email", email(0))
	p.choose("N1")
	p.click("#submit")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// The time is learnt from any answer of the server, and the countdown runs by it.
func TestBlind_CountsDownByTheAnswersClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	opens := time.Now().Add(12 * time.Second).UTC().Format(time.RFC3339)
	w.front.answers(blind(busy(1, http.StatusServiceUnavailable, "application/json", fmt.Sprintf(`{"error":"closed","reason":"not_open","opens_at":%q}`, opens))))
	p := newPerson(t, w).newTab()
	p.clockOff(5 * time.Hour)
	p.open("/")
	p.fill("#code", code(0))
	p.fill("#email", email(0))
	p.choose("N1")
	p.click("#submit")
	p.waitPhase("soon")
	p.waitFor("#countdown")
	p.waitOpen()
	p.click("#submit")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// A refusal that comes late yields to the figures that have come since it was asked for.
func TestFigures_NewerThanALateRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.fillIn(1, "N1")
	answer := make(chan struct{})
	full := busy(1, http.StatusConflict, "application/json", `{"error":"level_full","level":"N1"}`)
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && r.Header.Get("Idempotency-Key") != "" { // the page's
			<-answer
			return full(rw, r)
		}
		return false
	})
	p.click("#submit")
	p.waitSent()
	w.takes(t, 0, "N1")
	p.waitText(`#levels label:has(input[value="N1"])`, "29")
	close(answer)
	p.waitAnswer("level_full")
	if eval[bool](p, `$('#levels input[value="N1"]').disabled`) {
		t.Error("the level after a late refusal: got it off, want what the newer figures say")
	}
	p.click("#submit")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held", "P0001 held")
}

// dropped closes the connection of every request for a seat, without an answer.
func dropped(_ http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path == "/book" {
		panic(http.ErrAbortHandler)
	}
	return false
}

// A connection that breaks while the browser has one is no lack of it: the trying ends, as
// any other, and a person decides.
func TestConnectionLost_IsNotOffline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	p.clockMoves()
	p.open("/")
	p.fillIn(0, "N1")
	w.front.answers(dropped)
	p.click("#submit")
	p.waitAnswer("busy")
	p.waitFor("#wait")
	p.ahead(5 * time.Minute)
	p.waitAnswer("interrupted")
	w.front.answers(nil)
	p.click("#answer-check")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// Time without a connection is not time of trying; and when it comes back, not everybody
// comes back in the same instant.
func TestOffline_CostsNothingAndReturnsSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	p.clockMoves()
	p.before(`Math.random = () => 0.9`)
	p.watches("#wait")
	p.open("/")
	p.fillIn(0, "N1")
	p.offline(true)
	p.click("#submit")
	p.waitSight("Waiting for a connection")
	for _, d := range []time.Duration{5 * time.Minute, time.Minute} {
		p.goesOn(d, "POST /book")
		p.waitSight("Waiting for a connection") // a try that is not the last
	}
	p.waitAnswer("offline")
	p.offline(false)
	p.waitSight("Trying again in")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// Who comes back after a long time is asked before anything is sent.
func TestOffline_ForLongSendsNothingByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	p.clockMoves()
	p.open("/")
	p.fillIn(0, "N1")
	p.offline(true)
	p.click("#submit")
	p.waitAnswer("offline")
	p.waitFor("#wait")
	p.ahead(11 * time.Minute)
	p.waitAnswer("interrupted")
	p.offline(false)
	p.waitOpen()
	if n := w.front.bookings(); n != 0 {
		t.Errorf("requests for a seat: got %d, want none before a person says so", n)
	}
	p.click("#answer-check")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// later answers a path with a refusal that says when to come back.
func later(path string, headers ...string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, path) {
			return false
		}
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"error":"try_again"}`)
		return true
	}
}

// A wait that is too long to sit out is said, and ended by a person; a date is read by the
// clock that it was written by.
func TestRetryAfter_LongIsSaidAndNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]string{
		"seconds": {"Retry-After", "300"},
		"a date":  {"Retry-After", "Sat, 01 Jan 2000 00:05:00 GMT", "Date", "Sat, 01 Jan 2000 00:00:00 GMT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setting{})
			p := newPerson(t, w).newTab()
			p.clockMoves()
			p.open("/")
			p.fillIn(0, "N1")
			w.front.answers(later("/book", headers...))
			p.click("#submit")
			p.waitAnswer("try_again")
			p.waitText("#answer-time", "Try again in 5 minutes")
			p.waitFor("#answer-check")
			p.glimpses("answer-later")
			p.ahead(4 * time.Minute)
			p.until("less than a minute", `/in [0-9]+ second/.test(text('#answer-time'))`)
			if n := w.front.bookings(); n != 1 {
				t.Errorf("requests for a seat: got %d, want 1", n)
			}
			w.front.answers(nil)
			p.click("#answer-check")
			p.waitAtGateway()
			w.wantSeats(t, "P0000 held")
		})
	}
}

// The result page says at the first such answer that it cannot look, and looks no earlier.
func TestRetryAfter_OfABookingIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	token := w.takes(t, 0, "N1")
	w.front.answers(later("/booking/", "Retry-After", "300"))
	p := visit(t, w, "/result?booking="+url.QueryEscape(token))
	p.waitFor(`#result[data-slug="return_busy"]`)
	p.waitText("#time", "Try again in")
	p.glimpses("result-later")
	p.glance()
	p.settle()
	if n := p.asked("GET /booking/"); n != 1 {
		t.Errorf("requests for the booking: got %d, want 1", n)
	}
	w.front.answers(nil)
	p.click("#look")
	p.waitState("held")
}

// waitNaps waits until the page has napped so often, and gives how long each was to be, in
// ms.
func (p *tab) waitNaps(n int) []float64 {
	p.t.Helper()
	p.until(fmt.Sprintf("%d naps", n), fmt.Sprintf("naps.length >= %d", n))
	return eval[[]float64](p, "naps")
}

// The result page asks more and more seldom, never twice after the same time, and in the
// end only when a person says so.
func TestResult_AsksMoreAndMoreSeldomAndStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	token := w.takes(t, 0, "N1")
	w.front.answers(tells(`{"state":"paying","level":"N1","seconds_left":50}`))
	p := newPerson(t, w).newTab()
	p.napsQuickly()
	p.clockMoves()
	p.open("/result?booking=" + url.QueryEscape(token))
	naps := p.waitNaps(11)
	if first, last := naps[0], naps[10]; first < 1500 || first > 3000 || last < 45_000 || last > 75_000 {
		t.Errorf("naps: got %v, want from 2 s to a minute, about", naps)
	}
	if naps[9] == naps[10] {
		t.Errorf("naps: got %v, want them spread", naps)
	}
	p.ahead(31 * time.Minute)
	p.waitText("#time", "stopped looking")
	p.glimpses("result-stopped")
	before := len(eval[[]float64](p, "naps"))
	p.click("#look")
	p.waitGone("#look")
	if naps := p.waitNaps(before + 1); naps[before] > 3000 {
		t.Errorf("naps after the press: got %v, want to begin anew", naps[before:])
	}
}

// An edge that refuses is asked seldom at once, and nothing is said of the booking.
func TestResult_BlockedIsSlowAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	token := w.takes(t, 0, "N1")
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/booking/") {
			rw.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(rw, "<h1>Request blocked</h1>")
			return true
		}
		return false
	})
	p := newPerson(t, w).newTab()
	p.napsQuickly()
	p.open("/result?booking=" + url.QueryEscape(token))
	p.waitFor(`#result[data-slug="return_busy"]`)
	if naps := p.waitNaps(1); naps[0] < 45_000 {
		t.Errorf("naps: got %v, want a minute, about, at once", naps)
	}
}

// outage answers every return of a payer as the server does when it cannot look, and
// counts them.
func outage(seen *atomic.Int64) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/payment/callback" {
			return false
		}
		seen.Add(1)
		from, to := r.URL.Query(), url.Values{"error": {"busy"}}
		for _, name := range []string{"paymentID", "status", "signature"} {
			to.Set(name, from.Get(name))
		}
		http.Redirect(w, r, "/result?"+to.Encode(), http.StatusSeeOther)
		return true
	}
}

// A payer whose return met an outage has not paid until it is heard: the page repeats it by
// itself.
func TestReturn_IsRepeatedUntilItIsHeard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{ownRedis: true})
	p := newPerson(t, w).newTab()
	p.napsQuickly()
	p.listens()
	p.watches("#time")
	p.open("/")
	p.books(0, "N1")
	p.waitAtGateway()
	if err := w.pair.Primary.Freeze(); err != nil {
		t.Fatal(err)
	}
	p.pays()
	p.waitFor(`#result[data-slug="returning"]`)
	p.waitHeard("returning")
	p.waitSight("(try 2)")
	if err := w.pair.Primary.Thaw(); err != nil {
		t.Fatal(err)
	}
	p.waitState("paid")
	p.waitText("#result", email(0))
	p.until("nothing kept of the return", "sessionStorage.getItem('holdfast-return') === null")
	w.wantSeats(t, "P0000 paid")
}

// The trying stops by itself after ten minutes, a reload between them or not; a person goes
// on.
func TestReturn_StopsByItselfAndGoesOnByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	var seen atomic.Int64
	w.front.answers(outage(&seen))
	p := newPerson(t, w).newTab()
	p.clockMoves()
	p.napsQuickly()
	p.open("/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.pays()
	p.waitFor(`#result[data-slug="returning"]`)
	p.waitText("#message", "not finished until this page shows it")
	p.waitNaps(4)
	const since = "JSON.parse(sessionStorage.getItem('holdfast-return')).since"
	began := eval[float64](p, since)
	p.open(eval[string](p, "location.href"))
	p.waitNaps(1)
	if got := eval[float64](p, since); got != began {
		t.Errorf("begin of the ten minutes after a reload: got %v, want %v as before", got, began)
	}
	p.ahead(11 * time.Minute)
	p.waitText("#time", "stopped looking")
	p.look("result-returning")
	tries := seen.Load()
	p.click("#look")
	testenv.Eventually(t, func() error {
		if n := seen.Load(); n != tries+1 {
			return fmt.Errorf("returns: got %d, want %d and one by hand", n, tries)
		}
		return nil
	})
	p.waitText("#time", "stopped looking")
	w.front.answers(nil)
	p.click("#look")
	p.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// First 3 to 6 s, then longer.
func TestReturn_NapsGrow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	var seen atomic.Int64
	w.front.answers(outage(&seen))
	p := newPerson(t, w).newTab()
	p.napsQuickly()
	p.open("/result?error=busy&paymentID=TR1&status=success&signature=s")
	naps := p.waitNaps(8)
	if naps[0] < 3000 || naps[0] > 6000 || naps[7] < 30_000 || naps[7] > 60_000 {
		t.Errorf("naps: got %v, want from 3 to 6 s up to a minute", naps)
	}
	w.front.answers(nil)
	p.waitState("unknown") // the server knows of no such payment
}

// A booking that cannot be looked up, with nothing to repeat: where to find it is said.
func TestReturn_WithNothingToRepeatLeadsToTheBooking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.takes(t, 0, "N1")
	p := visit(t, w, "/result?error=busy")
	p.waitFor(`#result[data-slug="return_busy"]`)
	p.glimpses("result-busy")
	p.click("#find-link")
	p.waitAt(w.site + "/#find")
	p.waitOpen()
	p.finds(0)
	p.waitAnswer("duplicate_payable")
}
