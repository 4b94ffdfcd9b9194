package saleops_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
)

// charge is the gateway's word on the booking's payment.
func (w *world) charge(t *testing.T, b bookingtest.Booking) booking.Charge {
	t.Helper()
	c, err := w.Gateway.Query(t.Context(), b.Payment.ID)
	if err != nil {
		t.Fatalf("query %s: %v", b.Payment.ID, err)
	}
	return c
}

// confirm brings the booking's completed payment to its end, as a signal does.
func (w *world) confirm(t *testing.T, b bookingtest.Booking, want error) {
	t.Helper()
	if err := w.settler.Confirm(t.Context(), b.Code, b.Record, w.charge(t, b)); !errors.Is(err, want) {
		t.Fatalf("confirm %s: got %v, want %v", b.Payment.ID, err, want)
	}
	w.Background.Wait()
}

// lapsed is a seat of candidate i that was given back, and whose money came before
// its record was ended.
func (w *world) lapsed(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	b := w.Held(t, i, "N1")
	w.Clock.Advance(booking.DefaultHold + time.Second)
	if err := w.Ledger.Release(t.Context(), b.Code, b.Attempt); err != nil {
		t.Fatalf("release %s: %v", b.Code, err)
	}
	w.Gateway.Complete(b.Payment.ID)
	return b
}

// refunded is a lapsed seat of candidate i, who has booked another since: its money
// goes back.
func (w *world) refunded(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	b := w.lapsed(t, i)
	w.Held(t, i, "N2")
	w.confirm(t, b, booking.ErrRefunded)
	w.Books.Unseated[b.Payment.ID] = true
	return b
}

// otherwise has the gateway say that the payment completed with another amount.
func (w *world) otherwise(b bookingtest.Booking) {
	w.Gateway.Complete(b.Payment.ID)
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Amount++ }))
	w.Books.Unseated[b.Payment.ID] = true
}

// owe puts a refund of the booking's money.
func (w *world) owe(t *testing.T, b bookingtest.Booking, transaction string, kind booking.MoneyKind) booking.Refund {
	t.Helper()
	charge := booking.Charge{Transaction: transaction, PaymentID: b.Payment.ID, Amount: b.Record.Amount, Currency: b.Record.Currency}
	r, _, err := w.Store.PutRefund(t.Context(), booking.NewRefund(b.Record, charge, kind, booking.Decision{Reason: "full", At: w.Clock.Now()}))
	if err != nil {
		t.Fatalf("put refund of %s: %v", transaction, err)
	}
	return r
}

// Late money that got a seat after all, late money that goes back, and money
// otherwise than ordered: the rules hold, and the figures say what is due.
func TestAudit_MoneyIsASeatOrARefund(t *testing.T) {
	w := open(t)
	done := w.owe(t, w.Held(t, 5, "N2"), "TXofdone", booking.MoneyOther)
	if err := w.Store.RefundDone(t.Context(), done.Transaction, "gateway", "RF1", "", w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.sweep(t, booking.DefaultHold+time.Second)
	late := w.lapsed(t, 1)
	w.confirm(t, late, nil)
	w.refunded(t, 2)
	other := w.Held(t, 3, "N1")
	w.otherwise(other)
	w.confirm(t, other, booking.ErrRefunded)
	sent := w.owe(t, w.Held(t, 4, "N1"), "TXofold", booking.MoneyOther)
	if _, ok, err := w.Store.ClaimRefund(t.Context(), sent.Transaction, "c", w.Clock.Now(), w.Clock.Now().Add(time.Minute)); !ok || err != nil {
		t.Fatalf("claim: got %t, %v", ok, err)
	}
	if err := w.Store.RefundSent(t.Context(), sent.Transaction, "c", w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(3 * time.Minute)
	w.Want(t, late, booking.PhasePaid, booking.StatePaid)
	figure := func(r saleops.Report, before string) {
		t.Helper()
		wantBroken(t, r)
		got, want := rule(t, r, saleops.RuleMoney).Figure, before+"; refunds 2 due, 1 sent, 1 done, the oldest open one for 3m"
		if !strings.HasPrefix(got, want) {
			t.Errorf("money: got %q, want it to begin with %q", got, want)
		}
	}
	figure(w.audit(t, withGateway()), "6 payments asked about, 3 completed, 0 without a clear answer")
	r := w.audit(t, saleops.AuditOptions{})
	figure(r, "the gateway was not asked")
	if got := rule(t, r, saleops.RuleMoney).Verdict; got != saleops.VerdictNotAsked {
		t.Errorf("money without the gateway: got %s, want not asked", got)
	}
}

func TestAudit_MoneyThatIsBothOrNeither(t *testing.T) {
	const tx = "TXTR000001"
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, w *world, paid, back bookingtest.Booking)
		// with the gateway's word, and without it
		asked, unasked []string
		text           string
	}{
		{"a seat and a refund", func(t *testing.T, w *world, paid, _ bookingtest.Booking) { w.owe(t, paid, tx, booking.MoneyLate) },
			[]string{saleops.RuleMoney}, []string{saleops.RuleMoney}, "transaction " + tx},
		{"a row and a refund that is done", func(t *testing.T, w *world, paid, _ bookingtest.Booking) {
			w.owe(t, paid, tx, booking.MoneyLate)
			w.exec(t, `UPDATE records SET body = json_set(body, '$.state', 'HELD') WHERE attempt = ?`, paid.Attempt)
			if err := w.Store.RefundDone(t.Context(), tx, "gateway", "RF1", "", w.Clock.Now()); err != nil {
				t.Fatal(err)
			}
		}, []string{saleops.RuleMoney, saleops.RulePaid}, []string{saleops.RuleMoney, saleops.RulePaid}, "which is done, and row "},
		{"a refund, and a PAID record of another sale", func(t *testing.T, w *world, paid, _ bookingtest.Booking) {
			w.owe(t, paid, tx, booking.MoneyLate)
			w.lose(t)
			if _, err := w.Ledger.ApplySale(t.Context(), big(), booking.NewEpoch(w.Clock.Now()), false); err != nil {
				t.Fatal(err)
			}
		}, []string{saleops.RuleMoney}, []string{saleops.RuleMoney}, "of C0001 is PAID by it"},
		{"neither: the refund is gone", func(t *testing.T, w *world, _, _ bookingtest.Booking) { w.exec(t, `DELETE FROM refunds`) },
			[]string{saleops.RuleMoney}, []string{saleops.RuleMoney}, "of C0002 is RELEASED because its money goes back, and there is no refund of it"},
		{"neither: the payment was over for a refund", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			b := w.Refused(t, 5, "N1")
			w.exec(t, `UPDATE records SET body = json_set(body, '$.reason', 'refused refund') WHERE attempt = ?`, b.Attempt)
		}, []string{saleops.RuleMoney}, []string{saleops.RuleMoney}, "of C0005 is RELEASED because its money goes back, and there is no refund of it"},
		{"neither: the refund was never made", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			b := w.Held(t, 5, "N1")
			w.sweep(t, booking.DefaultHold+time.Second)
			w.Held(t, 5, "N2")
			w.Gateway.Complete(b.Payment.ID)
		}, []string{saleops.RuleMoney}, nil, "of C0005, there is no refund of it, and its row is another attempt's"},
		{"a refund of another payment", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.exec(t, `UPDATE refunds SET body = json_set(body, '$.payment_id', 'TR9')`)
		}, []string{saleops.RuleMoney}, nil, "of C0002, there is no refund of it"},
		{"a refund of another amount", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.exec(t, `UPDATE refunds SET body = json_set(body, '$.amount', 100)`)
		}, []string{saleops.RuleMoney}, nil, "of C0002 moved 1500.00 BDT, and its refund is of 1.00 BDT"},
		{"otherwise than ordered, without a refund", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.otherwise(w.Held(t, 5, "N1"))
			w.Clock.Advance(3 * time.Minute)
		}, []string{saleops.RuleMoney}, nil, "ordered 1500.00 BDT, paid 1500.01 BDT: payment completed otherwise than ordered, and there is no refund of it"},
		{"otherwise than ordered, with a seat", func(t *testing.T, w *world, paid, _ bookingtest.Booking) { w.otherwise(paid) },
			[]string{saleops.RuleMoney}, nil, "of C0001: payment TR000001: ordered 1500.00 BDT, paid 1500.01 BDT: payment completed otherwise than ordered, and its row is paid by " + tx},
		{"completed by no transaction", func(_ *testing.T, w *world, paid, _ bookingtest.Booking) {
			w.Gateway.Always(bookingtest.Query, paid.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Transaction = "" }))
		}, []string{saleops.RuleMoney}, nil, "completed without a transaction id"},
		{"a refund that cannot be read", func(t *testing.T, w *world, _, _ bookingtest.Booking) { w.exec(t, `UPDATE refunds SET body = '{'`) },
			[]string{saleops.RuleMoney, saleops.RuleUnreadable}, []string{saleops.RuleMoney, saleops.RuleUnreadable}, "refund of transaction TXTR000002: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := open(t)
			paid := w.Held(t, 1, "N1")
			w.pays(t, paid)
			back := w.refunded(t, 2)
			w.Clock.Advance(3 * time.Minute)
			c.damage(t, w, paid, back)
			wantBroken(t, w.audit(t, saleops.AuditOptions{}), c.unasked...)
			asked := withGateway()
			if c.name == "a refund, and a PAID record of another sale" {
				asked = saleops.AuditOptions{} // of another sale's payments nobody asks
			}
			r := w.audit(t, asked)
			wantBroken(t, r, c.asked...)
			if all := fmt.Sprint(rule(t, r, saleops.RuleMoney).Broken, rule(t, r, saleops.RuleUnreadable).Broken); !strings.Contains(all, c.text) {
				t.Errorf("told: got %q, want %q in it", all, c.text)
			}
		})
	}
}

// Money that moved a moment ago may still be on its way to its refund.
func TestAudit_MoneyOtherwiseThanOrderedHasAnAge(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	w.otherwise(b)
	r := w.audit(t, withGateway())
	wantBroken(t, r)
	if got := rule(t, r, saleops.RuleMoney); got.InFlight != 1 {
		t.Errorf("money: got %d in flight, want 1", got.InFlight)
	}
	w.Clock.Advance(3 * time.Minute)
	wantBroken(t, w.audit(t, withGateway()), saleops.RuleMoney)
}

func TestAudit_NotificationsAreWorkedOffWithinTheHour(t *testing.T) {
	w := open(t)
	for i, ago := range []time.Duration{0, time.Minute, time.Hour} {
		n := booking.Notification{
			Version: booking.NotificationVersion, ID: fmt.Sprintf("m%d", i), ReceivedAt: w.Clock.Now().Add(-ago), SentAt: w.Clock.Now().Add(-ago),
			Transaction: fmt.Sprintf("TX%d", i), Currency: "BDT",
		}
		if _, err := w.Store.PutNotification(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	signals := func(figure string, broken ...string) saleops.Rule {
		t.Helper()
		r := w.audit(t, saleops.AuditOptions{})
		wantBroken(t, r, broken...)
		got := rule(t, r, saleops.RuleSignals)
		if !strings.HasPrefix(got.Figure, figure) {
			t.Errorf("signals: got %q, want it to begin with %q", got.Figure, figure)
		}
		return got
	}
	w.Clock.Advance(time.Minute)
	if got := signals("3 notifications open, the oldest for 1h1m", saleops.RuleSignals); len(got.Broken) != 1 || !strings.Contains(got.Broken[0], `notification m2 about transaction "TX2" is open since `) {
		t.Errorf("signals: got %q, want the oldest one", got.Broken)
	}
	if err := w.Store.CloseNotification(t.Context(), "m2", booking.NotifiedAnomaly, w.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	signals("2 notifications open, the oldest for 2m")
	w.exec(t, `UPDATE notifications SET body = '{' WHERE id = 'm1'`)
	signals("1 notifications open, the oldest for 1m", saleops.RuleUnreadable)
}
