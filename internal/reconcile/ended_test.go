package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
)

// At a gateway where money can move without our execute, attempts that have ended
// are asked about again: the notification may never come.

const day = 24 * time.Hour

// askAgain is a reconciler at a gateway where money can move without us.
func (w *world) askAgain(t *testing.T) *world {
	t.Helper()
	w.deps.Ended = w.Store
	w.sweeper = w.another(t)
	return w
}

// lapse makes a booking of candidate i whose hold is over and whose record is
// RELEASED.
func (w *world) lapse(t *testing.T, i int) bookingtest.Booking {
	t.Helper()
	b := w.Held(t, i, "N1")
	w.wantSweep(t, booking.DefaultHold, "released")
	return b
}

// lateMoney moves the payment's money, and nobody tells us.
func (w *world) lateMoney(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	w.Gateway.Complete(b.Payment.ID)
	w.wantCheck(t, 0, nil)
}

func (w *world) wantAsked(t *testing.T, b bookingtest.Booking, want bool) {
	t.Helper()
	rec, err := w.Store.Record(t.Context(), b.Record.CandidateHash, b.Attempt)
	if err != nil || rec.AskedAt.IsZero() == want {
		t.Errorf("record of %s: got asked_at %s, %v, want it noted: %t", b.Code, rec.AskedAt, err, want)
	}
}

func TestEnded_IsAskedAboutTwiceInAll(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	w.wantCheck(t, time.Hour-time.Minute, nil)
	w.wantCalls(t, b, 1, 0) // the one before the release
	w.wantAsked(t, b, false)
	w.wantCheck(t, 2*time.Minute, []string{"asked"})
	w.wantAsked(t, b, true)
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, day-2*time.Hour, nil)
	w.wantCalls(t, b, 2, 0)
	w.wantCheck(t, 2*time.Hour, []string{"asked"})
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, 28*day, nil)
	w.wantCalls(t, b, 3, 0)
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
	if got := w.log.take(); len(got) != 0 {
		t.Errorf("alarms: got %v, want none", got)
	}
}

func TestEnded_IsNotAskedAboutWhereMoneyMovesByUsAlone(t *testing.T) {
	w := inProcess(t)
	b := w.lapse(t, 1)
	w.wantCheck(t, 2*time.Hour, nil)
	w.wantCheck(t, 2*day, nil)
	w.wantCalls(t, b, 1, 0)
	w.wantAsked(t, b, false)
}

// A fleet that stood still over the first time asks once: that question is later
// than both.
func TestEnded_OneQuestionAfterADayIsBoth(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	w.wantCheck(t, 2*day, []string{"asked"})
	w.wantCheck(t, day, nil)
	w.wantCalls(t, b, 2, 0)
}

func TestEnded_LateMoneyGetsASeatThatIsFree(t *testing.T) {
	for name, after := range map[string]time.Duration{"found after an hour": 30 * time.Minute, "found after a day": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t).askAgain(t)
			b := w.lapse(t, 1)
			if after > time.Hour {
				w.wantCheck(t, 2*time.Hour, []string{"asked"})
			}
			w.Clock.Advance(after)
			w.lateMoney(t, b)
			before := w.changed.Load()
			w.wantCheck(t, day, []string{"confirmed"})
			w.wantPaid(t, b)
			if got := w.changed.Load() - before; got != 1 {
				t.Errorf("hints that the figures changed: got %d, want 1", got)
			}
			if got := len(w.Mailer.Sent()); got != 1 {
				t.Errorf("mails: got %d, want 1", got)
			}
			w.wantCheck(t, 0, nil)
			w.wantCheck(t, 2*day, nil)
		})
	}
}

func TestEnded_LateMoneyGoesBackWhenNoSeatIsFree(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, w *world)
		change    func(*booking.Charge)
		kind      booking.MoneyKind
		reason    string
	}{
		"the level is full": {func(t *testing.T, w *world) {
			for i := range 3 {
				w.pays(t, w.Held(t, 2+i, "N1"))
			}
		}, func(*booking.Charge) {}, booking.MoneyLate, "full"},
		"the candidate has another seat": {func(t *testing.T, w *world) { w.pays(t, w.Held(t, 1, "N2")) },
			func(*booking.Charge) {}, booking.MoneyLate, "candidate"},
		"it is the wrong money": {func(*testing.T, *world) {}, less, booking.MoneyOther, "other_than_ordered"},
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t).askAgain(t)
			b := w.lapse(t, 1)
			c.meanwhile(t, w)
			w.Clock.Advance(30 * time.Minute)
			w.Gateway.Divert(b.Payment.ID, c.change)
			w.lateMoney(t, b)
			w.wantCheck(t, time.Hour, []string{"refunded"})
			w.WantRefund(t, b, "TX"+b.Payment.ID, c.kind, c.reason)
			w.Want(t, b, "", booking.StateReleased)
			w.Books.CheckAtRest(t)
			w.wantCheck(t, 0, nil)
			w.wantCheck(t, day, []string{"refunded"}) // the second time, of the same refund
			w.wantCheck(t, 0, nil)
			w.wantCalls(t, b, 3, 0)
			if got := w.refunds(t); got != 1 {
				t.Errorf("refunds: got %d, want 1", got)
			}
			w.Books.CheckAtRest(t)
		})
	}
}

// After a reset another sale runs: money of the one before always goes back, also
// when the candidate has no seat and one is free.
func TestEnded_MoneyOfAnEarlierSaleGoesBack(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	if err := w.rdb.Set(t.Context(), prefix+"adm:epoch", "2nmkmg0bbbbb", 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(30 * time.Minute)
	w.lateMoney(t, b)
	w.wantCheck(t, time.Hour, []string{"refunded"})
	w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyLate, "epoch")
	w.Want(t, b, "", booking.StateReleased)
	w.wantCheck(t, 0, nil)
}

// The record of a refused attempt ends before its seat, and `holds extend` gives
// the seat time of which that record does not know: asked about meanwhile, money
// is the seat's own.
func TestEnded_RefusedAttemptWhoseSeatWasExtended(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.Refused(t, 1, "N1")
	now := w.Clock.Now()
	gate := w.Books.Seats.(seats).Gate
	if _, word, err := gate.Extend(t.Context(), b.Code, b.Attempt, "1", 3*time.Hour, now.Add(-time.Minute), now.Add(time.Minute)); err != nil || word != "extended" {
		t.Fatalf("extend: got %q, %v, want it extended", word, err)
	}
	w.Clock.Advance(30 * time.Minute)
	w.lateMoney(t, b)
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.wantCheck(t, time.Hour, []string{"confirmed"})
	w.wantPaid(t, b)
	w.wantCheck(t, day, nil)
}

func TestEnded_NoAnswerAndDoubtAreAskedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		answer bookingtest.Answer
		want   string
	}{
		"not sent":            {bookingtest.NotSent(), "unanswered"},
		"no answer":           {bookingtest.LostCall(), "unanswered"},
		"the reply is lost":   {bookingtest.KeptCall(), "unanswered"},
		"the answer is none":  {bookingtest.Garbled(), "doubt"},
		"an unknown word":     {bookingtest.Altered(func(c *booking.Charge) { c.Status = "on hold" }), "doubt"},
		"another's payment":   {bookingtest.Altered(func(c *booking.Charge) { c.PaymentID = "TRother" }), "doubt"},
		"without transaction": {bookingtest.Altered(func(c *booking.Charge) { c.Transaction = "" }), "doubt"},
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t).askAgain(t)
			b := w.lapse(t, 1)
			w.Clock.Advance(30 * time.Minute)
			w.lateMoney(t, b)
			w.Gateway.Next(bookingtest.Query, b.Payment.ID, c.answer, c.answer)
			w.wantCheck(t, time.Hour, []string{c.want})
			w.wantCheck(t, 5*time.Minute, []string{c.want})
			w.wantAsked(t, b, false)
			w.wantCheck(t, 5*time.Minute, []string{"confirmed"})
			w.wantPaid(t, b)
			w.wantCalls(t, b, 4, 0)
		})
	}
}

// many is a sale with n bookings whose holds are over.
func many(t *testing.T, n int) (*world, []bookingtest.Booking) {
	t.Helper()
	w := empty(t).askAgain(t)
	sale := bookingtest.Sale()
	sale.Cap, sale.Levels[0].Cap = n, n
	w.Open(t, sale, n)
	all := make([]bookingtest.Booking, n)
	for i := range all {
		all[i] = w.Held(t, i+1, "N1")
	}
	w.sweep(t, booking.DefaultHold)
	for _, b := range all {
		w.Want(t, b, "", booking.StateReleased)
	}
	return w, all
}

func TestEnded_GatewayThatIsOutIsAskedThreeTimes(t *testing.T) {
	for name, answer := range map[string]bookingtest.Answer{"not reached": bookingtest.NotSent(), "silent": bookingtest.LostCall()} {
		t.Run(name, func(t *testing.T) {
			w, all := many(t, 20)
			w.Gateway.Always(bookingtest.Query, "", answer)
			w.log.take()
			for range 2 {
				asked := w.Gateway.Calls(bookingtest.Query, "")
				w.wantCheck(t, time.Hour, []string{"unanswered", "unanswered", "unanswered"})
				if n := w.Gateway.Calls(bookingtest.Query, "") - asked; n != 3 {
					t.Errorf("questions of one check: got %d, want 3", n)
				}
				if got := w.log.takeWarnings(); len(got) != 1 {
					t.Errorf("warnings of one check: got %v, want one", got)
				}
			}
			w.Gateway.Always(bookingtest.Query, "", bookingtest.Obey())
			if got := w.check(t, 5*time.Minute).Actions; got["asked"] != len(all) || len(got) != 1 {
				t.Errorf("with the gateway back: got %v, want %d asked about", got, len(all))
			}
			w.wantCheck(t, 0, nil)
		})
	}
}

// A gateway that never answers about a few payments keeps nobody's money waiting:
// of the others each check asks some more.
func TestEnded_SilentPaymentsDoNotStarveTheOthers(t *testing.T) {
	w, all := many(t, 20)
	for _, b := range all[:6] {
		w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.LostCall())
	}
	w.Clock.Advance(time.Hour)
	for range 200 { // by chance: that one is never reached is as good as impossible
		w.check(t, 0)
	}
	for _, b := range all[6:] {
		w.wantAsked(t, b, true)
	}
	for _, b := range all[:6] {
		w.wantAsked(t, b, false)
	}
}

// Each write is lost, and kept but reported lost: the next check finds the money
// again and ends where the first would have.
func TestEnded_CrashBetweenDecisionAndWriteEndsInOneSeatOrRefund(t *testing.T) {
	for _, op := range []bookingtest.Op{
		bookingtest.OpSettle, bookingtest.OpLate, bookingtest.OpMarkPaid, bookingtest.OpRecordDone, bookingtest.OpPutRefund, bookingtest.OpAsked,
	} {
		for _, fault := range []bookingtest.Fault{bookingtest.Lost, bookingtest.Kept} {
			for _, full := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/full=%t", op, fault, full), func(t *testing.T) {
					w := inProcess(t).askAgain(t)
					b := w.lapse(t, 1)
					if full {
						for i := range 3 {
							w.pays(t, w.Held(t, 2+i, "N1"))
						}
					}
					w.Clock.Advance(30 * time.Minute)
					w.lateMoney(t, b)
					w.Clock.Advance(time.Hour)
					calls := w.Faults.Calls(op)
					w.Faults.Next(op, fault)
					got, err := w.sweeper.CrossCheck(t.Context())
					if reached := w.Faults.Calls(op) > calls; err != nil || reached != (got.Actions["failed"] == 1) {
						t.Fatalf("check with the fault: got %v, %v, the call was made: %t", got.Actions, err, reached)
					}
					w.Background.Wait()
					w.check(t, 5*time.Minute)
					w.sweep(t, 5*time.Minute) // the rest of a paid row's work
					if full {
						w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyLate, "full")
						w.Want(t, b, "", booking.StateReleased)
						w.wantAsked(t, b, true)
					} else {
						w.Want(t, b, booking.PhasePaid, booking.StatePaid)
					}
					w.Books.CheckAtRest(t)
					w.wantCheck(t, 0, nil)
				})
			}
		}
	}
}

// Two runners who both hear of the money decide it once.
func TestEnded_TwoRunnersAtOnceDecideOnce(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full=%t", full), func(t *testing.T) {
			w := inProcess(t).askAgain(t)
			b := w.lapse(t, 1)
			if full {
				for i := range 3 {
					w.pays(t, w.Held(t, 2+i, "N1"))
				}
			}
			w.Clock.Advance(30 * time.Minute)
			w.lateMoney(t, b)
			w.Clock.Advance(time.Hour)
			hold := bookingtest.NewHold()
			w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Late(hold), bookingtest.Late(hold))
			ended := make(chan error, 2)
			for range 2 {
				r := w.another(t)
				go func() { _, err := r.CrossCheck(t.Context()); ended <- err }()
			}
			<-hold.Arrived()
			<-hold.Arrived()
			hold.LetGo()
			for range 2 {
				if err := <-ended; err != nil {
					t.Errorf("cross-check: got %v, want none", err)
				}
			}
			w.Background.Wait()
			if full {
				w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyLate, "full")
				w.Want(t, b, "", booking.StateReleased)
			} else {
				w.Want(t, b, booking.PhasePaid, booking.StatePaid)
			}
			w.Books.CheckAtRest(t)
			w.wantCheck(t, 0, nil)
			w.wantCalls(t, b, 3, 0)
		})
	}
}

// A clock that jumps ahead by days and back again uses no question up.
func TestEnded_ClockThatWasAheadLosesNoQuestion(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	w.wantCheck(t, 3*day, []string{"asked"})
	w.wantCheck(t, -3*day, nil)
	w.Clock.Advance(30 * time.Minute)
	w.lateMoney(t, b)
	w.wantCheck(t, time.Hour, []string{"confirmed"})
	w.wantPaid(t, b)
}

// A ledger that has lost time thinks seats free that are not: it is not asked for
// one.
func TestEnded_IsNotAskedAboutWhileRedisHasLostTime(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	paid := w.Held(t, 2, "N1")
	w.pays(t, paid)
	w.Clock.Advance(30 * time.Minute)
	w.lateMoney(t, b)
	row := w.Row(t, paid.Code)
	w.lose(t, paid)
	w.wantCheck(t, time.Hour, []string{"lost_time"}, reconcile.KindPaidRecord)
	w.wantCalls(t, b, 1, 0)
	w.regain(t, paid, row)
	w.wantCheck(t, 5*time.Minute, []string{"confirmed"})
	w.Want(t, b, booking.PhasePaid, booking.StatePaid)
}

// What ended attempts meet is not what the check was asked for: it has looked at
// everything, and is not repeated before its time.
func TestEnded_SilenceIsNoUnfinishedCheck(t *testing.T) {
	w := inProcess(t).askAgain(t)
	w.lapse(t, 1)
	w.Gateway.Always(bookingtest.Query, "", bookingtest.LostCall())
	w.Clock.Advance(2 * time.Hour)
	if _, err := w.sweeper.CrossCheck(t.Context()); err != nil {
		t.Errorf("cross-check: got %v, want none", err)
	}
}

// Nor is one that cannot be decided: it waits, and every sweep would read the whole
// store for it.
func TestEnded_OneThatCannotBeDecidedIsNoUnfinishedCheck(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	w.Clock.Advance(30 * time.Minute)
	w.lateMoney(t, b)
	if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", b.Code, "{").Err(); err != nil {
		t.Fatal(err)
	}
	w.Clock.Advance(time.Hour)
	got, err := w.sweeper.CrossCheck(t.Context())
	if err != nil || got.Actions["failed"] != 1 {
		t.Errorf("cross-check: got %v, %v, want one that was not decided and no error", got.Actions, err)
	}
	w.wantAsked(t, b, false)
}

// There is one rate for all questions of the fleet: without a turn nothing is asked.
func TestEnded_IsAskedAboutUnderTheFleetsRate(t *testing.T) {
	w, all := many(t, 20)
	w.deps.Width, w.deps.QueriesPerSecond = 4, 0.05 // a burst of four, then one that is too long to wait for
	w.sweeper = w.another(t)
	asked := w.Gateway.Calls(bookingtest.Query, "")
	w.wantCheck(t, time.Hour, []string{"asked", "asked", "asked", "asked"})
	if n := w.Gateway.Calls(bookingtest.Query, "") - asked; n != 4 {
		t.Errorf("questions of %d: got %d, want the rate's 4", len(all), n)
	}
}

// Between the scan and the question another runner has asked.
func TestEnded_RecordIsReadAgainBeforeTheQuestion(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	w.Faults.Before(bookingtest.OpRows, func() {
		got, err := w.another(t).CrossCheck(t.Context())
		if err != nil || got.Actions["asked"] != 1 {
			t.Errorf("another runner's check: got %v, %v, want it asked about", got.Actions, err)
		}
	})
	w.wantCheck(t, time.Hour, []string{"moved"})
	w.wantCalls(t, b, 2, 0)
}

// The gateway was found to be out before: nothing more is asked of it.
func TestEnded_OutageThatTheCheckHasMetIsNotProbed(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	lost := w.Held(t, 2, "N1")
	w.lose(t, lost)
	w.Gateway.Always(bookingtest.Query, "", bookingtest.NotSent())
	w.wantCheck(t, time.Hour, []string{"outage"})
	w.wantCalls(t, b, 1, 0)
}

// A store that takes no writes would have every question asked for nothing.
func TestEnded_StoreThatIsDownEndsTheQuestions(t *testing.T) {
	w, _ := many(t, 20)
	w.deps.Width = 1
	w.sweeper = w.another(t)
	w.Faults.Always(bookingtest.OpAsked, bookingtest.Lost)
	w.Clock.Advance(time.Hour)
	got, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check", err, bookingtest.ErrLost)
	if got.Actions["failed"] != 2 || len(got.Actions) != 1 {
		t.Errorf("actions: got %v, want two that failed", got.Actions)
	}
}

// Money moves after the answer, and its notification is faster than the note.
func TestEnded_PaidBetweenAnswerAndNote(t *testing.T) {
	w := inProcess(t).askAgain(t)
	b := w.lapse(t, 1)
	w.Faults.Before(bookingtest.OpAsked, func() {
		w.Gateway.Complete(b.Payment.ID)
		notified(t, w, b)
	})
	w.wantCheck(t, time.Hour, []string{"moved"})
	w.wantPaid(t, b)
	w.wantAsked(t, b, false)
}
