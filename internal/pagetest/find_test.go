package pagetest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// finds asks for a candidate's booking, with code and e-mail alone.
func (p *tab) finds(i int) {
	p.t.Helper()
	p.fill("#code", code(i))
	p.fill("#email", email(i))
	p.click("#find")
}

// While seats are to be had, who looks for a booking gets none.
func TestFind_TakesNoSeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	var keys []string
	w.front.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/book" {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
		}
		return false
	})
	p := visit(t, w, "/")
	p.waitOpen()
	p.finds(0)
	p.waitAnswer("no_seat")
	w.wantSeats(t)
	p.choose("N1") // a level makes no difference
	p.click("#find")
	p.waitAnswer("no_seat")
	w.wantSeats(t)
	w.front.answers(nil)
	if strings.Join(keys, "") != "" {
		t.Errorf("keys of the requests: got %q, want none: nothing is asked for that could be given twice", keys)
	}
	w.takes(t, 0, "N2")
	p.click("#find")
	p.waitAnswer("duplicate_payable")
	p.waitFor("#answer-booking")
	p.click("#answer-pay")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	p.waitText("#result", "N2 Upper intermediate", email(0))
	w.wantSeats(t, "P0000 paid")

	again := visit(t, w, "/")
	again.waitOpen()
	again.finds(0)
	again.waitAnswer("duplicate_paid")
	again.click("#answer-booking")
	again.waitState("paid")
}

// The way to a booking is there before the opening too.
func TestFind_IsThereBeforeTheOpening(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{closed: true})
	if err := w.api.Gate.OpenAt(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	w.published(t, func(body string) bool { return strings.Contains(body, "opens_at") })
	p := visit(t, w, "/")
	p.waitPhase("soon")
	p.finds(0)
	p.waitAnswer("no_seat")
	p.click("#find")
	p.waitAnswer("no_seat")
}

// A request for a seat that had no answer is not forgotten because somebody looked for it
// before it arrived.
func TestFind_ForgetsNoUnansweredRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.fillIn(0, "N1")
	w.front.answers(busy(-1, http.StatusBadGateway, "text/html", "<h1>Bad gateway</h1>"))
	p.click("#submit")
	p.waitFor("#wait")
	p.click("#stop")
	p.waitAnswer("interrupted")
	w.front.answers(nil)
	p.click("#find")
	p.waitAnswer("no_seat")
	p.reload()
	p.waitAnswer("interrupted")
	p.waitOpen() // from now on nothing moves
	p.click("#answer-check")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// A payment refused on one machine, opened on another while the level has no seat left:
// theirs is still theirs, and the way to the next payment is there.
func TestFind_RefusedSeatOfAFullLevelIsPaidElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{sale: saleOf(11, level("N1", 1), level("N2", 10))})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.paysWith(walletNoMoney)
	p.waitState("refused")
	w.published(t, func(body string) bool { return strings.Contains(body, `"left":0`) })

	other := visit(t, w, "/result?booking="+url.QueryEscape(p.token()))
	other.waitState("refused")
	other.waitFor("#elsewhere")
	other.waitGone("#again")
	other.look("result-refused-elsewhere")
	other.click("#find-link")
	other.waitAt(w.site + "/#find")
	other.until("the focus on the way on", `document.activeElement === $('#find')`)
	other.waitOpen()
	other.until("a level that is full", `$('#levels input[value="N1"]').disabled`)
	other.fill("#code", code(0))
	other.fill("#email", email(0))
	other.choose("N2")
	other.click("#submit")
	other.waitAnswer("duplicate")
	other.look("answer-duplicate")
	other.click("#answer-check")
	other.waitAnswer("refused")
	other.click("#answer-booking")
	other.waitState("refused")
	other.click("#again")
	other.waitAtGateway()
	other.pays()
	other.waitState("paid")
	other.waitText("#result", "N1 Advanced", email(0))
	w.wantSeats(t, "P0000 paid")
}

// lost has the server do what it is asked, and the answer break off on the way.
func lost(next http.Handler, w http.ResponseWriter, r *http.Request) {
	next.ServeHTTP(httptest.NewRecorder(), r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"payment_url":"http`)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler) // closes the connection
}

// A new payment whose answer is lost, and then the page too: the same request is sent
// again and leads to that payment.
func TestBookAgain_AnswerLostIsTheSameRequestAfterAReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.paysWith(walletNoMoney)
	p.waitState("refused")
	var once sync.Once
	var mu sync.Mutex
	var keys []string
	down := true
	w.front.answers(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/book" {
			return false
		}
		mu.Lock()
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		isDown := down
		mu.Unlock()
		once.Do(func() { lost(w.front.next, rw, r) })
		if isDown {
			rw.WriteHeader(http.StatusBadGateway)
		}
		return isDown
	})
	p.click("#again")
	p.waitFor("#wait")
	w.wantSeats(t, "P0000 held") // the new payment's
	p.reload()
	p.waitAnswer("interrupted")
	p.waitState("released") // the old one's
	p.glimpses("result-interrupted")
	p.reload()
	p.waitAnswer("interrupted")
	p.waitState("released")
	mu.Lock()
	down = false
	mu.Unlock()
	p.click("#answer-check")
	p.waitAtGateway()
	w.front.answers(nil)
	for _, key := range keys {
		if key != keys[0] || key == "" {
			t.Errorf("keys of the requests: got %q, want one", keys)
			break
		}
	}
	p.pays()
	p.waitState("paid")
	w.wantSeats(t, "P0000 paid")
	if payments, err := w.mock.Payments(""); err != nil || len(payments) != 2 {
		t.Errorf("payments at the gateway: got %d, %v, want the refused one and one more", len(payments), err)
	}
}

// tells has the front tell that of every booking.
func tells(body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/booking/") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
		return true
	}
}

// What the form shows of a booking follows it: by itself, and as soon as somebody looks.
func TestPanel_FollowsTheBooking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	token := w.takes(t, 0, "N1")
	p, asleep := newPerson(t, w).newTab(), newPerson(t, w).newTab()
	p.napsQuickly()
	for _, tab := range []*tab{p, asleep} {
		tab.listens()
		tab.open("/")
		tab.books(0, "N1")
		tab.waitAnswer("duplicate_payable")
	}
	w.front.answers(tells(`{"state":"held","level":"N1","seconds_left":61,"payment_url":"` + w.gateway + `"}`))
	p.until("the newest answer's time", `/ (1 minute|[0-9]+ second)/.test(text('#answer-time'))`)
	w.front.answers(tells(`{"state":"paying","level":"N1","seconds_left":50}`))
	p.waitAnswer("paying")
	p.waitGone("#answer-pay")
	p.glimpses("form-paying")
	w.front.answers(nil)

	payer := visit(t, w, "/result?booking="+url.QueryEscape(token))
	payer.click("#pay")
	payer.waitAtGateway()
	payer.pays()
	payer.waitState("paid")
	p.waitAnswer("paid")
	p.waitHeard("paid")
	asleep.glance()
	asleep.waitAnswer("paid")
	asleep.waitGone("#answer-pay")
}

// Who sends the form again while their payment is being checked, or when it is paid, comes
// to their booking and not to that payment.
func TestSubmit_InPaymentLeadsToTheBooking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.open("/")
	p.waitAnswer("duplicate_payable")
	w.front.answers(tells(`{"state":"paying","level":"N1","seconds_left":50}`))
	p.glance()
	p.waitAnswer("paying")
	p.waitOpen()
	p.click("#submit")
	p.waitState("paying")
	w.front.answers(nil)
	p.glance()
	p.waitState("held")
	p.click("#pay")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	p.open("/")
	p.books(0, "N2")
	p.waitState("paid")
	if n := w.front.bookings(); n != 1 {
		t.Errorf("requests for a seat: got %d, want 1", n)
	}
	p.open("/")
	p.books(1, "N2") // somebody else at the same machine
	p.waitAtGateway()
	w.wantSeats(t, "P0000 paid", "P0001 held")
}

// What became of a request is said aloud, whole and once, and so is the end of the time.
func TestAnswer_IsSaidAloud(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	w.takes(t, 0, "N1")
	p := newPerson(t, w).newTab()
	p.clockMoves()
	p.listens()
	p.open("/")
	p.fillIn(0, "N1")
	p.fill("#code", "X9999")
	p.click("#submit")
	p.waitAnswer("invalid_code")
	p.waitHeard("invalid_code")
	p.fill("#code", code(0))
	p.click("#submit")
	p.waitAnswer("duplicate_payable")
	p.waitHeard("duplicate_payable")
	p.ahead(lapsed)
	p.waitAnswer("over")
	p.waitHeard("over")
}

// A booking that was given up or replaced: both ways on are there, and the form is filled
// in.
func TestReleased_BothWaysOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.cancels()
	p.waitState("held")
	old := p.token()
	w.clock.Add(lapsed)
	w.wantSeats(t)
	p.glance()
	p.waitState("released")
	p.waitText("#book-link", "Try again")
	w.takes(t, 0, "N2") // on another machine
	p.click("#find-link")
	p.waitAt(w.site + "/#find")
	p.until("a form that is filled in already", fmt.Sprintf(`$('#code').value === %q && $('#email').value === %q`, code(0), email(0)))
	p.waitOpen()
	p.click("#find")
	p.waitAnswer("duplicate_payable")
	p.click("#answer-booking")
	p.waitState("held")
	if now := p.token(); now == old {
		t.Errorf("the booking found: got the one that has ended, want the new one")
	}
}
