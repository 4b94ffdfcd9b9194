package pagetest_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"holdfast/internal/mockgateway"
	"holdfast/internal/testenv"
)

// Wallets of the mock gateway; any number it does not know pays.
const (
	walletPays     = "01711111111"
	walletNoMoney  = "01700002023" // code 2023
	walletWrongPIN = "01700002014"
	walletBlocked  = "01700002037"
)

func (p *tab) waitAtGateway() { p.t.Helper(); p.waitAt(p.w.gateway); p.waitFor("#field, button.main") }

// pays goes the payer's three steps.
func (p *tab) pays() { p.t.Helper(); p.paysWith(walletPays) }

func (p *tab) paysWith(wallet string) {
	p.t.Helper()
	for _, step := range [][2]string{{"wallet", wallet}, {"code", "123456"}, {"pin", "12345"}} {
		field := fmt.Sprintf("#field[name=%q]", step[0])
		p.fill(field, step[1])
		p.click("form:has(#field) button.main")
	}
}

func (p *tab) paysByKeyboard() {
	p.t.Helper()
	for _, step := range [][2]string{{"wallet", walletPays}, {"code", "123456"}, {"pin", "12345"}} {
		p.waitFor(fmt.Sprintf("#field[name=%q]", step[0]))
		p.tabTo("#field")
		p.press(step[1])
		p.press(kb.Enter)
	}
}

// cancels goes back without paying.
func (p *tab) cancels() { p.t.Helper(); p.click(`button[name="outcome"][value="cancel"]`) }

// token is the booking's, from the result page's address.
func (p *tab) token() string {
	p.t.Helper()
	u, err := url.Parse(eval[string](p, "location.href"))
	if err != nil || u.Query().Get("booking") == "" {
		p.t.Fatalf("the address of the result page: got %v, %v, want a booking in it", u, err)
	}
	return u.Query().Get("booking")
}

// waitBooking waits until the server says that state of a booking.
func (w *world) waitBooking(t *testing.T, token, state string) {
	t.Helper()
	testenv.Eventually(t, func() error {
		status, _, body, err := w.get(t, "/booking/"+token)
		if err == nil && (status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"state":%q`, state))) {
			err = fmt.Errorf("booking: %d %s, want state %s", status, body, state)
		}
		return err
	})
}

// Refused for want of money, and paid at the second try: one button, nothing typed
// twice, one seat.
func TestRefusedPayment_OneButtonToTheNextTry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.look("gateway-wallet")
	p.paysWith(walletNoMoney)
	p.waitState("refused")
	p.waitFor("#time")
	w.wantSeats(t, "P0000 refused")
	p.click("#again")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	p.waitText("#result", "N1 Advanced", email(0))
	w.wantSeats(t, "P0000 paid")
}

// The page says why: money, PIN, account.
func TestRefusedPayment_SaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	for i, c := range []struct{ wallet, slug string }{
		{walletNoMoney, "refused_balance"}, {walletWrongPIN, "refused_credentials"}, {walletBlocked, "refused_account"},
	} {
		p := visit(t, w, "/")
		p.books(i, "N1")
		p.waitAtGateway()
		p.paysWith(c.wallet)
		p.waitState("refused")
		p.waitText("#message", english(t).Answers[c.slug].Message)
		p.look("result-" + strings.ReplaceAll(c.slug, "_", "-"))
	}
}

// On another machine the page knows nothing of what was typed: it leads to the form,
// and the same code goes on with the same seat.
func TestRefusedPayment_ElsewhereLeadsToTheForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.paysWith(walletNoMoney)
	p.waitState("refused")
	other := visit(t, w, "/result?booking="+url.QueryEscape(p.token()))
	other.waitState("refused")
	other.click("#book-link")
	other.waitAt(w.site + "/")
	other.books(0, "N1")
	other.waitAtGateway()
	other.pays()
	other.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// Cancelled at the gateway: the seat is still held, and there is a way back to the
// payment.
func TestCancelled_SeatIsStillHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.cancels()
	p.waitState("held")
	p.waitFor("#time")
	p.look("result-held")
	w.wantSeats(t, "P0000 held")
	p.click("#pay")
	p.waitAtGateway()
	w.wantSeats(t, "P0000 held")
}

// The hold ends while its page is open: the page says so, and the seat can be had
// again by whoever comes first, this candidate too.
func TestLapsedHold_IsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.cancels()
	p.waitState("held")
	w.clock.Add(lapsed)
	w.wantSeats(t)
	p.glance()
	p.waitState("released")
	p.waitGone("#pay")
	p.look("result-released")
	p.click("#book-link")
	p.waitOpen()
	p.until("a form that is filled in already", fmt.Sprintf(`$('#code').value === %q && $('#email').value === %q && $('#levels input:checked')`, code(0), email(0)))
	p.click("#submit")
	p.waitAtGateway()
	p.pays()
	p.waitState("paid")
	w.wantSeats(t, "P0000 paid")
}

// Money that came when the seat had gone to somebody else comes back, and the page
// says so.
func TestLateMoney_RefundIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{sale: saleOf(1, level("N1", 1)), moves: true})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	w.clock.Add(lapsed)
	w.wantSeats(t)
	w.takes(t, 1, "N1")
	p.pays()
	p.waitAt(w.site + "/result")
	token := p.token()
	w.waitBooking(t, token, "refund_due")
	p.open("/result?booking=" + url.QueryEscape(token))
	p.waitState("refund_due")
	p.look("result-refund-due")
	w.wantSeats(t, "P0001 held")
}

// The gateway does not answer: the page says that the payment is being checked and not
// to pay again, and tells the result as soon as it is known.
func TestGatewaySilent_PageChecksAndThenTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{env: map[string]string{
		"HOLDFAST_REQUEST_BUDGET": "4s", "HOLDFAST_REDIS_BUDGET": "1s", "HOLDFAST_CREATE_BUDGET": "2s", "HOLDFAST_ENQUEUE_BUDGET": "500ms",
		"HOLDFAST_EXECUTE_TIMEOUT": "2500ms",
	}})
	// Status calls of the sweep are lost as well, until the test has seen the page.
	w.faults(t, mockgateway.Fault{Name: mockgateway.FaultAnswerLost, Calls: []string{mockgateway.CallExecute}},
		mockgateway.Fault{Name: mockgateway.FaultCut, Calls: []string{mockgateway.CallStatus}, Times: -1})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	p.pays()
	p.waitState("paying")
	p.waitGone("#pay")
	p.look("result-paying")
	w.wantSeats(t, "P0000 paying")
	payments, err := w.mock.Payments("")
	if err != nil || len(payments) != 1 {
		t.Fatalf("payments at the gateway: got %d, %v, want 1", len(payments), err)
	}
	if err := w.mock.SetFaults(payments[0].PaymentID); err != nil {
		t.Fatal(err)
	}
	w.clock.Add(time.Minute)
	w.wantSeats(t, "P0000 paid")
	p.waitState("paid")
	w.wantMails(t, 1)
}

// A link that is none of ours says so and leads to the form.
func TestUnknownBooking_IsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := newPerson(t, w).newTab()
	for _, path := range []string{"/result?booking=abc", "/result?error=unknown", "/result"} {
		p.open(path)
		p.waitState("unknown")
	}
	p.look("result-unknown")
	p.click("#book-link")
	p.waitAt(w.site + "/")
	p.waitOpen()
}

// The wallet's checkout in each of its states, as a person who pays meets it.
func TestPayersPage_EveryStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	p.books(0, "N1")
	p.waitAtGateway()
	address := eval[string](p, "location.href")
	p.click("summary")
	p.waitFor("details[open]")
	p.look("gateway-test-numbers")
	p.click("summary")
	p.click("form:has(#field) button.main") // with nothing in it
	p.waitFor("#error")
	p.look("gateway-wallet-wrong")
	for _, step := range [][2]string{{"wallet", walletPays}, {"code", "123456"}, {"pin", "12345"}} {
		p.waitFor(fmt.Sprintf("#field[name=%q]", step[0]))
		p.look("gateway-" + step[0])
		p.fill("#field", step[1])
		p.click("form:has(#field) button.main")
	}
	p.waitState("paid")
	p.open(address)
	p.waitFor("button.main")
	p.look("gateway-paid")
	p.open(strings.Replace(address, "hash=", "hash=x", 1))
	p.waitText("h1", "Payment not found")
	p.look("gateway-unknown")
}
