package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
	"holdfast/internal/saleops"
	"holdfast/internal/settle"
)

// payerMoves is a sale on a primary and a replica, at the mock gateway, where the
// payer's press moves the money and nobody is notified.
type payerMoves struct {
	*world
	mock   *mockgateway.Gateway
	client *paygate.Client
	token  *token
}

// token is one for each call, or none.
type token struct {
	granter *paygate.Granter
	gone    bool
}

func (s *token) Token(ctx context.Context) (string, error) {
	if s.gone {
		return "", errors.New("no token to be had")
	}
	granted, err := s.granter.Grant(ctx)
	return string(granted.IDToken), err
}

func (*token) Rejected(context.Context, string) {}

func atPayersGateway(t *testing.T) *payerMoves {
	t.Helper()
	w := &payerMoves{world: onPair(t)}
	var err error
	w.mock, err = mockgateway.New(mockgateway.Options{Now: w.Clock.Now, GrantsPerHour: -1})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(w.mock)
	t.Cleanup(func() {
		w.mock.HangUp()
		served.Close()
		if err := w.mock.Close(); err != nil {
			t.Errorf("close the mock: %v", err)
		}
	})
	if err := w.mock.SetSettings(mockgateway.Settings{Capture: mockgateway.CapturePayer}); err != nil {
		t.Fatal(err)
	}
	hc := paygate.NewHTTPClient(16)
	t.Cleanup(hc.CloseIdleConnections)
	base := served.URL + mockgateway.BasePath
	granter, err := paygate.NewGranter(base, paygate.Credentials{AppKey: "k", AppSecret: "s", Username: "u", Password: "p"}, hc)
	if err != nil {
		t.Fatal(err)
	}
	w.token = &token{granter: granter}
	quiet := slog.New(slog.DiscardHandler)
	w.client, err = paygate.New(paygate.Config{BaseURL: base, AppKey: "k"}, w.token, hc, quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	w.settler, err = settle.New(settle.Deps{
		Ledger: w.Ledger, Gateway: w.client, Store: w.Store, Mailer: w.Mailer, Sale: w.Books.Seats.(seats).Gate, Background: w.Background,
		BookingURL:     func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt },
		ExecuteTimeout: executeTimeout, Now: w.Clock.Now, Log: quiet, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.deps.Gateway, w.deps.Settler = w.client, w.settler
	w.askAgain(t)
	w.Books.Completed = func() []booking.Charge { return w.completed(t) }
	return w
}

// completed is the mock's truth about the money that has moved.
func (w *payerMoves) completed(t *testing.T) []booking.Charge {
	t.Helper()
	payments, err := w.mock.Payments("")
	if err != nil {
		t.Fatal(err)
	}
	var out []booking.Charge
	for _, p := range payments {
		for _, trx := range p.Transactions {
			amount, err := booking.ParseMoney(trx.Amount)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, booking.Charge{
				Status: booking.ChargeCompleted, PaymentID: p.PaymentID, Invoice: trx.Invoice, Transaction: trx.TrxID,
				Amount: amount, Currency: trx.Currency,
			})
		}
	}
	return out
}

// held gives candidate i a seat whose payment is the mock's.
func (w *payerMoves) held(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	row, code := w.Admit(t, i, "N1"), bookingtest.Code(i)
	p, err := w.client.Create(t.Context(), booking.Order{
		Invoice: booking.Invoice(booking.CandidateHash(code), row.Attempt), Amount: row.Amount, Currency: row.Currency,
		CallbackURL: "https://sale.test/payment/callback", Reference: "ref",
	})
	if err != nil {
		t.Fatalf("create payment: %v", err)
	}
	if row, _, err = w.Ledger.Attach(t.Context(), code, row.Attempt, p); err != nil {
		t.Fatalf("attach: %v", err)
	}
	if err := w.Ledger.Queued(t.Context(), code, row.Attempt); err != nil {
		t.Fatalf("queued: %v", err)
	}
	b := bookingtest.Booking{Code: code, Attempt: row.Attempt, Payment: p, Record: row.HeldRecord(code, p.URL, p.Signature)}
	w.Write(t, b)
	return b
}

// press is the payer's button: the money moves.
func (w *payerMoves) press(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	before := len(w.completed(t))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, b.Payment.URL, strings.NewReader(url.Values{"outcome": {"success"}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer := httptest.NewRecorder()
	w.mock.ServeHTTP(answer, r)
	if n := len(w.completed(t)) - before; answer.Code != http.StatusSeeOther || n != 1 {
		t.Fatalf("press: got %d and %d transactions, want 303 and one", answer.Code, n)
	}
}

// wantAudit audits everything, the gateway too, and wants no rule broken.
func (w *payerMoves) wantAudit(t *testing.T, gateway bool) {
	t.Helper()
	ops := saleops.Ops{
		Ledger: w.Books.Seats.(seats).Gate, Store: w.Store, Queue: drained{}, Gateway: w.client, Log: slog.New(slog.DiscardHandler),
	}
	report, err := ops.Audit(t.Context(), saleops.AuditOptions{
		Gateway: gateway, QueriesPerSecond: 1000, Wait: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		t.Fatalf("audit: %v", err)
	}
	for _, rule := range report.Rules {
		if rule.Verdict == saleops.VerdictBroken || rule.Verdict == saleops.VerdictNotSeen {
			t.Errorf("audit: rule %s is %s: %v", rule.Code, rule.Verdict, rule.Broken)
		}
	}
}

type drained struct{}

func (drained) Stats(context.Context) (booking.QueueStats, error) { return booking.QueueStats{}, nil }

// The notification is never sent, the hold is released, the payer presses half an
// hour later: after the hour there is a seat, or a refund where none is free, once,
// whatever the runners do, and the attempt is asked about twice in all.
func TestEnded_MoneyThatThePayerMovesAfterTheRelease(t *testing.T) {
	for name, c := range map[string]struct {
		full bool
		hear func(t *testing.T, w *payerMoves)
	}{
		"a seat":               {false, oneRunner},
		"a refund":             {true, oneRunner},
		"a seat, two runners":  {false, twoRunners},
		"a refund, two":        {true, twoRunners},
		"a seat, a crash":      {false, crashes(bookingtest.OpMarkPaid)},
		"a refund, a crash":    {true, crashes(bookingtest.OpPutRefund)},
		"a seat, no replica":   {false, noReplica},
		"a refund, no gateway": {true, noGateway},
	} {
		t.Run(name, func(t *testing.T) {
			w := atPayersGateway(t)
			late, never := w.held(t, 1), w.held(t, 2)
			w.wantSweep(t, booking.DefaultHold, "released", "released")
			others := []int{3, 4}
			if c.full {
				others = append(others, 5)
			}
			w.Clock.Advance(30*time.Minute - time.Duration(len(others))*booking.DefaultHold)
			for _, i := range others {
				b := w.held(t, i)
				w.press(t, b)
				w.wantSweep(t, booking.DefaultHold, "confirmed")
				w.Want(t, b, booking.PhasePaid, booking.StatePaid)
			}
			w.wantAudit(t, true)
			w.press(t, late)
			w.wantCheck(t, 0, nil)
			w.wantAudit(t, false)
			w.Want(t, late, "", booking.StateReleased)

			w.Clock.Advance(time.Hour)
			c.hear(t, w)
			w.Background.Wait()
			w.sweep(t, 2*time.Minute) // what a crash left of a paid row's work
			wantRefunds := 0
			if c.full {
				wantRefunds = 1
				w.Want(t, late, "", booking.StateReleased)
				w.wantAsked(t, late, true)
			} else {
				w.Want(t, late, booking.PhasePaid, booking.StatePaid)
			}
			if got := w.refunds(t); got != wantRefunds {
				t.Errorf("refunds: got %d, want %d", got, wantRefunds)
			}
			w.Want(t, never, "", booking.StateReleased)
			w.wantAsked(t, never, true)
			w.Books.CheckAtRest(t)
			w.wantAudit(t, true)

			w.wantCheck(t, 0, nil)
			second := []string{"asked"}
			if c.full {
				second = append(second, "refunded")
			}
			w.wantCheck(t, day, second)
			w.wantCheck(t, 7*day, nil)
			w.wantAudit(t, true)
			w.Books.CheckAtRest(t)
		})
	}
}

func oneRunner(t *testing.T, w *payerMoves) { w.check(t, 0) }

func twoRunners(t *testing.T, w *payerMoves) {
	ended := make(chan error, 2)
	for range 2 {
		r := w.another(t)
		go func() { _, err := r.CrossCheck(t.Context()); ended <- err }()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("cross-check: got %v, want none", err)
		}
	}
}

// crashes ends the first runner between the ledger's decision and the write.
func crashes(op bookingtest.Op) func(t *testing.T, w *payerMoves) {
	return func(t *testing.T, w *payerMoves) {
		w.Faults.Next(op, bookingtest.Lost)
		if got, err := w.sweeper.CrossCheck(t.Context()); err != nil || got.Actions["failed"] != 1 {
			t.Errorf("cross-check with a step that broke off: got %v, %v, want one that was not decided", got.Actions, err)
		}
		w.sweeper = w.another(t)
		w.check(t, 5*time.Minute)
	}
}

// noReplica: what is not acknowledged decides nothing outside Redis.
func noReplica(t *testing.T, w *payerMoves) {
	if err := w.pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	written := w.Faults.Calls(bookingtest.OpMarkPaid)
	got, err := w.sweeper.CrossCheck(t.Context())
	if err != nil || got.Actions["failed"] != 1 {
		t.Errorf("cross-check without a replica: got %v, %v, want one that was not decided", got.Actions, err)
	}
	if n := w.Faults.Calls(bookingtest.OpMarkPaid) - written; n != 0 {
		t.Errorf("writes of the paid record without a replica: got %d, want 0", n)
	}
	if err := w.pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	for range 20 { // until the replica has caught up
		if got, err = w.sweeper.CrossCheck(t.Context()); err == nil && got.Actions["confirmed"] == 1 {
			return
		}
	}
	t.Errorf("cross-check with the replica back: got %v, want the money confirmed", err)
}

func noGateway(t *testing.T, w *payerMoves) {
	w.token.gone = true
	w.wantCheck(t, 0, []string{"unanswered", "unanswered"})
	w.token.gone = false
	w.check(t, 5*time.Minute)
}
