package pagetest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"holdfast/internal/mockgateway"
	"holdfast/internal/testenv"
)

// The verbs of a candidate.

// choose presses a level.
func (p *tab) choose(level string) {
	p.t.Helper()
	p.click(fmt.Sprintf(`#levels label:has(input[value=%q])`, level))
}

// fillIn fills the form in as that candidate.
func (p *tab) fillIn(i int, level string) {
	p.t.Helper()
	p.waitOpen()
	p.fill("#code", code(i))
	p.fill("#email", email(i))
	p.choose(level)
}

// books fills the form in and sends it.
func (p *tab) books(i int, level string) {
	p.t.Helper()
	p.fillIn(i, level)
	p.click("#submit")
}

// waitPhase waits until the page knows where the sale stands.
func (p *tab) waitPhase(phase string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("#state[data-phase=%q]", phase))
}

func (p *tab) waitOpen() { p.t.Helper(); p.waitPhase("open") }

// waitAnswer waits for the answer of that slug.
func (p *tab) waitAnswer(slug string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("#answer[data-slug=%q]", slug))
}

// waitState waits for a state of the result page.
func (p *tab) waitState(state string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("#result[data-state=%q]", state))
}

// wantOff wants the form's button to say that it is of no use now, and the form, as
// far as it can be filled in, to send nothing, by Enter neither.
func (p *tab) wantOff() {
	p.t.Helper()
	p.until("a button that is off", `$('#submit').getAttribute('aria-disabled') === 'true'`)
	if eval[bool](p, "$('#levels input:enabled') !== null") {
		p.click("#levels label:has(input:enabled)")
	}
	p.fill("#code", code(0))
	p.fill("#email", email(0))
	p.press(kb.Enter)
	p.click("#submit")
	p.settle()
	if n := p.asked("POST /book"); n != 0 {
		p.t.Errorf("a form that is off: got %d requests, want none", n)
	}
}

// From the form to the mail, with what the person is told on the way.
func TestBooking_FromTheFormToThePaidSeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.waitOpen()
	p.waitText(`#levels label:has(input[value="N1"])`, "N1 Advanced", "1500.00 BDT", "30")
	p.look("form-open")
	p.books(0, "N1")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	p.waitText("#result", "N1 Advanced", "1500.00 BDT", email(0))
	p.look("result-paid")
	w.wantSeats(t, "P0000 paid")
	w.wantMails(t, 1)
	w.published(t, func(body string) bool { return strings.Contains(body, `"left":29`) })
	another := visit(t, w, "/")
	another.waitText(`#levels label:has(input[value="N1"])`, "29")
	if n := p.asked("POST /book"); n != 1 {
		t.Errorf("requests for a seat: got %d, want 1", n)
	}
}

// One press at a time: the form can be filled in without a mouse, and a person sees
// where they are.
func TestBooking_ByKeyboardAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.waitOpen()
	p.tabTo("#code")
	p.press(code(1))
	p.tabTo("#email")
	p.press(email(1))
	p.tabTo("#levels input")
	p.press(" ")
	p.until("a level that is chosen", `$('#levels input:checked')`)
	p.tabTo("#submit")
	p.press(kb.Enter)
	p.waitAtGateway()
	p.paysByKeyboard()
	p.waitState("paid")
	w.wantSeats(t, "P0001 paid")
}

// tabTo presses Tab until the selector has the focus, and wants every stop on the way
// to be seen.
func (p *tab) tabTo(selector string) {
	p.t.Helper()
	for range 30 {
		p.press(kb.Tab)
		stop := eval[string](p, `(() => {
			const e = document.activeElement, shown = x => { const s = getComputedStyle(x);
				return (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0) || s.boxShadow !== 'none'; };
			if (e === document.body) return '';
			return [e, e.closest('label')].some(x => x && shown(x)) ? '' : e.outerHTML.slice(0, 80); })()`)
		if stop != "" {
			p.t.Errorf("the focus on %s: got nothing to see, want an outline", stop)
		}
		if eval[bool](p, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
	}
	p.t.Fatalf("%s: not reached by 30 presses of Tab", selector)
}

// What is missing is said beside its field, and nothing is sent.
func TestRefusal_EmptyFormIsMarkedAndNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.waitOpen()
	p.click("#submit")
	for _, field := range []string{"code", "email", "level"} {
		p.waitFor("#" + field + "-error")
	}
	p.until("a field that is marked", `$('#code').getAttribute('aria-invalid') === 'true'`)
	p.until("the focus in the first of them", `document.activeElement === $('#code')`)
	p.look("form-empty")
	if n := p.asked("POST /book"); n != 0 {
		t.Errorf("requests for a seat: got %d, want 0", n)
	}
}

// refused books for a candidate and wants that refusal at that field; what was typed
// stays.
func (p *tab) refused(code, email, slug, field string) {
	p.t.Helper()
	p.waitOpen()
	p.fill("#code", code)
	p.fill("#email", email)
	p.choose("N2")
	p.click("#submit")
	p.waitAnswer(slug)
	p.until("the mark at the field", fmt.Sprintf(`$('#%s').getAttribute('aria-invalid') === 'true'`, field))
	p.until("the focus there", fmt.Sprintf(`document.activeElement === $('#%s')`, field))
	if got := eval[string](p, `$('#code').value + ' ' + $('#email').value`); got != code+" "+email {
		p.t.Errorf("after the refusal: got fields %q, want %q", got, code+" "+email)
	}
	p.w.wantSeats(p.t)
}

func TestRefusal_CodeThatIsNotOnTheList(t *testing.T) {
	t.Parallel()
	p := visit(t, newWorld(t, setting{}), "/")
	p.refused("X9999", email(0), "invalid_code", "code")
	p.look("answer-invalid-code")
}

func TestRefusal_CodeThatIsNoCode(t *testing.T) {
	t.Parallel()
	p := visit(t, newWorld(t, setting{}), "/")
	p.refused("P0000?!", email(0), "invalid_code", "code")
}

func TestRefusal_AnotherMailThanRegistered(t *testing.T) {
	t.Parallel()
	p := visit(t, newWorld(t, setting{}), "/")
	p.refused(code(0), "someone@example.org", "email_mismatch", "email")
	p.look("answer-email-mismatch")
}

// The level that was just refused as full is off before the next figures come, and
// another can be had at once.
func TestRefusal_FullLevelIsOffAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{sale: saleOf(11, level("N1", 1), level("N2", 10))})
	p := visit(t, w, "/")
	p.fillIn(1, "N1")
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool { // the figures are late
		if r.URL.Path == "/status.json" {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
		return r.URL.Path == "/status.json"
	})
	w.takes(t, 0, "N1")
	p.click("#submit")
	p.waitAnswer("level_full")
	p.until("a level that is off", `$('#levels input[value="N1"]').disabled`)
	p.look("answer-level-full")
	p.choose("N2")
	p.click("#submit")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held", "P0001 held")
}

// The form is off while nothing is left, and on again by itself when a seat comes
// back.
func TestSoldOut_FormComesBackWithASeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{sale: saleOf(1, level("N1", 1))})
	w.takes(t, 0, "N1")
	w.published(t, func(body string) bool { return strings.Contains(body, `"left":0`) })
	p := visit(t, w, "/")
	p.waitPhase("sold_out")
	p.wantOff()
	p.look("form-sold-out")
	w.clock.Add(lapsed)
	p.books(1, "N1")
	p.waitAtGateway()
	w.wantSeats(t, "P0001 held")
}

// A sale whose caps add up to more than its seats: the answer tells what the figures
// have not told yet.
func TestSoldOut_IsHeardFromTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{sale: saleOf(1, level("N1", 1), level("N2", 1))})
	p := visit(t, w, "/")
	p.fillIn(1, "N2")
	w.takes(t, 0, "N1")
	p.click("#submit")
	p.until("that everything is taken", `$('#answer[data-slug="sold_out"], #answer[data-slug="level_full"]')`)
	p.waitPhase("sold_out")
	w.wantSeats(t, "P0000 held")
}

func TestNotOpen_FormIsOff(t *testing.T) {
	t.Parallel()
	p := visit(t, newWorld(t, setting{closed: true}), "/")
	p.waitPhase("closed")
	p.wantOff()
	p.look("form-closed")
}

// Closed while somebody fills the form in: a clear no, and no trying on.
func TestClosed_WhileTheFormIsFilledIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	if err := w.api.Gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.click("#submit")
	p.until("that booking is not open", `$('#answer[data-slug="not_open"], #state[data-phase="closed"]')`)
	p.waitPhase("closed")
	p.look("answer-closed")
	w.wantSeats(t)
}

// Who has a seat finds it when nobody can book any more; who has none is told so, and
// gets none.
func TestClosed_WhoHasASeatFindsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.takes(t, 0, "N1")
	if err := w.api.Gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.published(t, func(body string) bool { return strings.Contains(body, `"open":false`) })
	p := visit(t, w, "/")
	p.waitPhase("closed")
	p.fill("#code", code(1))
	p.fill("#email", email(1))
	p.click("#find")
	p.waitAnswer("no_seat")
	p.look("answer-no-seat")
	p.fill("#code", code(0))
	p.fill("#email", email(0))
	p.click("#find")
	p.waitAnswer("duplicate_payable")
	p.click("#answer-pay")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// The form opens at the sale's minute, whatever the telephone thinks the time is, by
// itself, and sends nothing before.
func TestOpening_ByItselfWithAWrongClock(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setting{closed: true})
			if err := w.api.Gate.OpenAt(t.Context(), time.Now().Add(20*time.Second)); err != nil {
				t.Fatal(err)
			}
			w.published(t, func(body string) bool { return strings.Contains(body, "opens_at") })
			p := newPerson(t, w).newTab()
			p.clockOff(off)
			p.open("/")
			p.waitPhase("soon")
			p.waitFor("#countdown")
			p.until("a countdown of seconds", `/^00:00:[012][0-9]$/.test(text('#countdown-figure'))`)
			p.wantOff()
			if off > 0 {
				p.look("form-soon")
			}
			p.choose("N1")
			p.waitOpen()
			p.click("#submit")
			p.waitAtGateway()
			// Not one too early: the first request is in time.
			if n := w.front.bookings(); n != 1 {
				t.Errorf("requests for a seat: got %d, want 1", n)
			}
			w.wantSeats(t, "P0000 held")
		})
	}
}

// Who holds a seat already, and has the mail to it, goes on to the payment.
func TestDuplicate_ContinuesToThePayment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.takes(t, 0, "N1")
	p := visit(t, w, "/")
	p.books(0, "N2") // another than the seat's, which the page names before it is paid for
	p.waitAnswer("duplicate_payable")
	p.waitText("#answer-message", "N1 Advanced")
	p.waitFor("#answer-time")
	p.look("answer-duplicate-payable")
	p.click("#answer-pay")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	w.wantSeats(t, "P0000 paid")

	again := visit(t, w, "/")
	again.books(0, "N1")
	again.waitAnswer("duplicate_paid")
	again.waitGone("#answer-pay")
	again.look("answer-duplicate-paid")
	again.click("#answer-booking")
	again.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// While no replica acknowledges, the page says that it goes on trying, and it does.
func TestTryAgain_GoesOnByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{ownRedis: true})
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	if err := w.pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	p.click("#submit")
	p.waitAnswer("try_again")
	p.waitFor("#wait")
	p.look("answer-try-again")
	if err := w.pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// The person can stop the trying, and start it again.
func TestTryAgain_CanBeStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	w.front.answers(busy(-1, http.StatusBadGateway, "text/html", "<h1>Bad gateway</h1>"))
	p.click("#submit")
	p.waitFor("#wait")
	p.click("#stop")
	p.waitGone("#wait")
	p.waitAnswer("interrupted")
	p.look("answer-interrupted")
	w.front.answers(nil)
	p.click("#answer-check")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

func TestPaymentUnavailable_GoesOnByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.faults(t, mockgateway.Fault{Name: mockgateway.FaultUnavailable, Calls: []string{mockgateway.CallCreate}, Times: -1})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAnswer("payment_unavailable")
	p.waitFor("#wait")
	p.look("answer-payment-unavailable")
	w.wantSeats(t)
	w.faults(t)
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// busy answers so many requests for a seat itself; less than 0 is all.
func busy(times, status int, contentType, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || r.URL.Path != "/book" || times == 0 {
			return false
		}
		times--
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return true
	}
}

// What is not the server's JSON decides nothing: an error page of the edge, and a
// portal that answers everything with its own page.
func TestNotOurJSON_IsBusyAndNeverADecision(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusBadGateway, http.StatusOK, http.StatusAccepted, http.StatusConflict} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setting{})
			p := visit(t, w, "/")
			p.fillIn(0, "N1")
			w.front.answers(busy(-1, status, "text/html", "<!doctype html><title>Log in to the network</title>"))
			p.click("#submit")
			p.waitAnswer("busy")
			p.waitFor("#wait")
			if status == http.StatusBadGateway {
				p.look("answer-busy")
			}
			w.wantSeats(t)
			w.front.answers(nil)
			p.waitAtGateway()
			w.wantSeats(t, "P0000 held")
		})
	}
}

// An error of the server's own is told with its number, and the same request can be
// sent again.
func TestInternalError_TheSameCanBeSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	w.front.answers(busy(1, http.StatusInternalServerError, "application/json", `{"error":"internal","message":"-","request_id":"r-4711"}`))
	p.click("#submit")
	p.waitAnswer("internal")
	p.waitText("#answer", "r-4711")
	p.look("answer-internal")
	p.click("#answer-check")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// slow has the gateway take its time over creating a payment.
func (w *world) slow(t *testing.T, d time.Duration) {
	t.Helper()
	w.change(t, func(s *mockgateway.Settings) {
		s.LatencyMS = mockgateway.Latencies{mockgateway.CallCreate: {Fixed: d}}
	})
}

// waitSent waits until the server has the request for a seat.
func (p *tab) waitSent() {
	p.t.Helper()
	testenv.Eventually(p.t, func() error {
		if p.w.front.bookings() == 0 {
			return errors.New("no request for a seat was sent")
		}
		return nil
	})
}

// The tab is closed while the request is under way. What was typed is gone with it, as
// the next person at the machine may expect; who types it again finds the seat, and
// pays for it.
func TestTabClosed_SeatIsThereOnReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.slow(t, 2*time.Second)
	who := newPerson(t, w)
	p := who.newTab()
	p.open("/")
	p.books(0, "N1")
	p.waitSent()
	p.close()
	w.wantSeats(t, "P0000 held")
	w.slow(t, 0)

	again := who.newTab()
	again.open("/")
	again.books(0, "N1")
	again.waitAnswer("duplicate_payable")
	again.click("#answer-pay")
	again.waitAtGateway()
	again.pays()
	again.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// resumes is what a person does whose earlier request the page remembers: it asks, or
// they press the one button, and there is the payment.
func (p *tab) resumes() {
	p.t.Helper()
	p.until("a way on", fmt.Sprintf(`seen('#answer-check') || seen('#answer-pay') || location.href.startsWith(%q)`, p.w.gateway))
	if eval[bool](p, "seen('#answer-check')") {
		p.look("form-unfinished")
		p.click("#answer-check")
		p.until("the payment", fmt.Sprintf(`seen('#answer-pay') || location.href.startsWith(%q)`, p.w.gateway))
	}
	if eval[bool](p, "seen('#answer-pay')") {
		p.click("#answer-pay")
	}
	p.waitAtGateway()
}

// The page is loaded again while the request is under way.
func TestReload_DuringTheRequestTakesOneSeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.slow(t, 2*time.Second)
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitSent()
	p.reload()
	p.waitOpen()
	p.resumes()
	w.wantSeats(t, "P0000 held")
}

func TestTwoPresses_AreOneRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.slow(t, time.Second)
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	// In one go: after the first the page moves, and a second finger would miss.
	eval[bool](p, "($('#submit').click(), $('#submit').click(), true)")
	p.waitAtGateway()
	if n := w.front.bookings(); n != 1 {
		t.Errorf("requests for a seat: got %d, want 1", n)
	}
	w.wantSeats(t, "P0000 held")
}

// Back from the gateway, with the page as it was left or loaded again: the seat is
// still theirs, and there is a way to the payment.
func TestBack_FromTheGatewayFindsTheWayToThePayment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.back()
	p.waitAt(w.site)
	p.until("a way on", `seen('#answer-pay') || seen('#answer-check')`)
	p.look("form-back-from-payment")
	p.resumes()
	p.pays()
	p.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// Two tabs, one candidate: one seat, and the second tab says so.
func TestTwoTabs_SameCandidateOneSeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	who := newPerson(t, w)
	first, second := who.newTab(), who.newTab()
	first.open("/")
	second.open("/")
	first.fillIn(0, "N1")
	second.fillIn(0, "N2")
	first.click("#submit")
	first.waitAtGateway()
	second.click("#submit")
	second.waitAnswer("duplicate_payable")
	w.wantSeats(t, "P0000 held")
}

// Ten seconds without a network in the middle of it: the page goes on by itself.
func TestOffline_GoesOnByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	p.offline(true)
	back := time.After(10 * time.Second) // of real time, once
	p.click("#submit")
	p.waitAnswer("offline")
	p.waitFor("#wait")
	p.look("answer-offline")
	<-back
	p.offline(false)
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// The server has done it and its answer breaks off on the way: the repeat is the same
// request, and gets the same seat. (Of an answer that has not even begun the page hears
// nothing: the browser asks again by itself.)
func TestAnswerLost_TheRepeatTakesNoSecondSeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	p.watches("#wait")
	p.open("/")
	p.fillIn(0, "N1")
	var once sync.Once
	var keys []string
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || r.URL.Path != "/book" {
			return false
		}
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		once.Do(func() {
			w.front.next.ServeHTTP(httptest.NewRecorder(), r)
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(rw, `{"payment_url":"http`)
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler) // closes the connection
		})
		return false
	})
	p.click("#submit")
	p.waitSight("Trying again in")
	p.waitAtGateway()
	w.front.answers(nil)
	if len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("keys of the requests: got %q, want two that are the same", keys)
	}
	w.wantSeats(t, "P0000 held")
	if payments, err := w.mock.Payments(""); err != nil || len(payments) != 1 {
		t.Errorf("payments at the gateway: got %d, %v, want 1", len(payments), err)
	}
}

// Where the browser forbids pages to keep anything, the form works all the same.
func TestStorageForbidden_SeatIsPaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	p.before(`for (const kind of ['localStorage', 'sessionStorage'])
		Object.defineProperty(window, kind, {get() { throw new DOMException('forbidden', 'SecurityError'); }})`)
	p.open("/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// A Bangla keyboard types Bangla digits.
func TestBanglaDigits_AreTheSameCode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.waitOpen()
	p.fill("#code", "p০০০৩")
	p.fill("#email", email(3))
	p.choose("N1")
	p.click("#submit")
	p.waitAtGateway()
	w.wantSeats(t, "P0003 held")
}

// A cache may be behind: an older document changes nothing.
func TestFigures_AnOlderDocumentChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	_, _, old, err := w.get(t, "/status.json")
	if err != nil {
		t.Fatal(err)
	}
	w.takes(t, 0, "N1")
	w.published(t, func(body string) bool { return strings.Contains(body, `"left":29`) })
	p := visit(t, w, "/")
	p.waitText(`#levels label:has(input[value="N1"])`, "29")
	var served atomic.Int64
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/status.json" {
			return false
		}
		served.Add(1)
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, old)
		return true
	})
	testenv.Eventually(t, func() error {
		p.glance()
		if n := served.Load(); n < 2 { // the first one has been read by then
			return fmt.Errorf("got %d documents asked for, want 2", n)
		}
		return nil
	})
	if got := eval[string](p, `text('#levels label:has(input[value="N1"])')`); !strings.Contains(got, "29") {
		t.Errorf("after a document that is older: got %q, want 29 left", got)
	}
}

// Both languages are in the page; the choice is kept.
func TestLanguage_IsSwitchedAndKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	who := newPerson(t, w)
	p := who.newTab()
	p.open("/")
	p.waitOpen()
	p.click("#lang")
	p.until("Bangla", `document.documentElement.lang === 'bn'`)
	p.until("Bangla letters", `/[\u0980-\u09ff]/.test(text('label[for=code]'))`)
	p.look("form-open")
	p.fill("#code", "X9999")
	p.fill("#email", email(0))
	p.choose("N1")
	p.click("#submit")
	p.waitAnswer("invalid_code")
	p.waitText("#answer-title", language(t, "bn").Answers["invalid_code"].Title)
	p.look("answer-invalid-code")

	again := who.newTab()
	again.open("/")
	again.until("Bangla, still", `document.documentElement.lang === 'bn' && /[\u0980-\u09ff]/.test(text('label[for=code]'))`)
	if n := p.asked("GET /"); n == 0 {
		t.Errorf("requests of the page: got none, want some")
	}
	w.wantSeats(t)
}
