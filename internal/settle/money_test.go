package settle_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/settle"
	"holdfast/internal/testenv"
)

// onEach runs the test in-process and on a real pair whose replica acknowledges.
func onEach(t *testing.T, test func(t *testing.T, w *world)) {
	t.Run("in-process", func(t *testing.T) { test(t, inProcess(t)) })
	t.Run("pair", func(t *testing.T) { test(t, onPair(t)) })
}

// lapses is a booking whose seat was released, and whose money then moved.
func (w *world) lapses(t *testing.T, i int, level string) bookingtest.Booking {
	t.Helper()
	b := w.Held(t, i, level)
	w.sweep(t, booking.DefaultHold)
	w.Want(t, b, "", booking.StateReleased)
	w.Gateway.Complete(b.Payment.ID)
	return b
}

// fill gives every seat of the level to others, from candidate i on; the sale has
// three a level.
func (w *world) fill(t *testing.T, i int, level string) []bookingtest.Booking {
	t.Helper()
	var all []bookingtest.Booking
	for n := range 3 {
		b := w.Held(t, i+n, level)
		if err := w.paysAndReturns(t, b); err != nil {
			t.Fatalf("return of %s: %v", b.Code, err)
		}
		all = append(all, b)
	}
	return all
}

// Case 13: paid late, the seat resold. The buyer keeps it, and the late money has
// one refund, however often it is reported.
func TestCase13_PaidLateSeatResold(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		a := w.lapses(t, 1, "N1")
		others := w.fill(t, 2, "N1")
		for range 2 {
			w.wantBack(t, "late money", w.notified(t, a), a, booking.MoneyLate, "full")
		}
		w.Want(t, a, "", booking.StateReleased)
		w.wantMails(t, a, 0)
		for _, b := range others {
			w.wantPaid(t, b)
		}
	})
}

func TestCase13_PaidLateSeatStillFree(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		a := w.lapses(t, 1, "N1")
		for range 2 {
			if err := w.notified(t, a); err != nil {
				t.Errorf("late money, and a seat is free: %v", err)
			}
		}
		w.wantPaid(t, a)
		if _, err := w.Store.Refund(t.Context(), "TX"+a.Payment.ID); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("refund of money that has its seat: got %v, want none", err)
		}
	})
}

// Late money counts after close, which ends admissions of requests only.
func TestLate_AfterCloseCountsAllTheSame(t *testing.T) {
	w := inProcess(t)
	free, full := w.lapses(t, 1, "N1"), w.lapses(t, 5, "N2")
	w.fill(t, 2, "N2")
	if err := w.Ledger.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.notified(t, free); err != nil {
		t.Errorf("after close, a seat is free: %v", err)
	}
	w.wantBack(t, "after close, the level is full", w.notified(t, full), full, booking.MoneyLate, "full")
	w.wantPaid(t, free)
}

// The candidate has booked again: one live booking, and the old money goes back
// also when the new one is gone by the second report.
func TestLate_CandidateHasAnotherSeat(t *testing.T) {
	w := inProcess(t)
	old := w.lapses(t, 1, "N1")
	fresh := w.Held(t, 1, "N2")
	w.wantBack(t, "beside another seat", w.notified(t, old), old, booking.MoneyLate, "candidate")
	w.Want(t, old, "", booking.StateReleased)
	w.Want(t, fresh, booking.PhaseHeld, booking.StateHeld)
	w.sweep(t, booking.DefaultHold)
	w.Want(t, fresh, "", booking.StateReleased)
	w.wantBack(t, "reported again", w.notified(t, old), old, booking.MoneyLate, "candidate")
	w.Books.CheckAtRest(t)
}

// Two processes report late payments of more people than there are seats, at once:
// each transaction is decided once, and no cap is passed.
func TestLate_ManyReportsAtOnceAreOneDecisionEach(t *testing.T) {
	w := inProcess(t)
	second, _ := w.another(t)
	var all []bookingtest.Booking
	for i := range 5 {
		all = append(all, w.Held(t, i+1, []string{"N1", "N1", "N1", "N2", "N2"}[i]))
	}
	w.sweep(t, booking.DefaultHold)
	for i := range 2 { // one seat of three is left in N1
		if err := w.paysAndReturns(t, w.Held(t, i+6, "N1")); err != nil {
			t.Fatalf("return: %v", err)
		}
	}
	var reports sync.WaitGroup
	for _, b := range all {
		w.Gateway.Complete(b.Payment.ID)
		charge := w.asks(t, b)
		for i := range 6 {
			s := []*settle.Service{w.settler, second}[i%2]
			reports.Go(func() {
				if err := s.Confirm(t.Context(), b.Code, b.Record, charge); err != nil && !errors.Is(err, booking.ErrRefunded) {
					t.Errorf("report of %s: %v", b.Code, err)
				}
			})
		}
	}
	reports.Wait()
	w.Background.Wait()
	ends := map[string]int{}
	for _, b := range all {
		ends[w.end(t, b)]++
	}
	if diff := cmp.Diff(map[string]int{"paid": 3, "released, refund": 2}, ends); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
	w.Books.CheckAtRest(t)
}

// Case 14: expiry and payment in the same instant, from two processes: each round
// ends as a paid seat or as a refund of a released one. Holds of one instant end
// within some milliseconds of each other, and their payers come in any order.
func TestCase14_ExpiryAndPaymentInTheSameInstant(t *testing.T) {
	t.Parallel()
	instants, together := 50, 20 // a thousand rounds
	if testing.Short() {
		instants = 10
	}
	sale := bookingtest.Sale()
	sale.Cap, sale.Levels[0].Cap = instants*together, instants*together
	w := open(t, testenv.Mini(t), 0, sale, instants*together)
	payer, _ := w.another(t)
	ends := map[string]int{}
	for instant := 0; instant < instants && !t.Failed(); instant++ {
		first := instant*together + 1
		all := make([]bookingtest.Booking, together)
		for i := range all {
			all[i] = w.Held(t, first+i, "N1")
			w.Gateway.Finish(all[i].Payment.ID)
		}
		deadline := all[rand.IntN(together)].Record.Deadline
		w.Clock.Advance(deadline.Sub(w.Clock.Now()))
		var both sync.WaitGroup
		both.Go(func() { // the runner, and candidates who book again as soon as they may
			if _, err := w.sweeper.Sweep(t.Context()); err != nil {
				t.Errorf("sweep: %v", err)
			}
			for i := 0; i < together; i += 3 {
				r := booking.Request{Code: all[i].Code, Email: bookingtest.Email(first + i), Level: "N1"}
				if _, err := w.Ledger.Admit(t.Context(), r, booking.NewAttemptSuffix(w.Clock.Now()), false); err != nil && !errors.Is(err, booking.ErrDuplicate) {
					t.Errorf("admit: %v", err)
				}
			}
		})
		for worker := range 2 {
			both.Go(func() {
				for _, i := range rand.Perm(together) {
					if i%2 != worker {
						continue
					}
					b := all[i]
					if i%4 < 2 {
						_ = payer.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID) // what the browser hears is not what counts
						continue
					}
					w.Gateway.Complete(b.Payment.ID) // an execution that reached the gateway late
					charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
					if err == nil {
						err = payer.Confirm(t.Context(), b.Code, b.Record, charge)
					}
					if err != nil && !errors.Is(err, booking.ErrRefunded) {
						t.Errorf("confirm: %v", err)
					}
				}
			})
		}
		both.Wait()
		w.Background.Wait()
		w.sweep(t, 3*time.Minute) // what is left over, and requests that went no further
		for _, b := range all {
			ends[w.end(t, b)]++
		}
	}
	w.Books.CheckAtRest(t)
	for _, end := range []string{"paid", "released", "released, refund"} {
		if ends[end] == 0 {
			t.Errorf("rounds that ended as %q: got none of %v, want every end to be met", end, ends)
		}
	}
	t.Logf("ends: %v", ends)
}

// end names what became of the booking and its money, and holds that it is one of
// those that may be.
func (w *world) end(t *testing.T, b bookingtest.Booking) string {
	t.Helper()
	row, _, err := w.Ledger.Row(t.Context(), b.Code)
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		t.Fatal(err)
	}
	words := []string{"released"}
	if row.Attempt == b.Attempt {
		words[0] = string(row.Phase)
	}
	if _, err := w.Store.Refund(t.Context(), "TX"+b.Payment.ID); err == nil {
		words = append(words, "refund")
	}
	end, moved := strings.Join(words, ", "), w.asks(t, b).Status == booking.ChargeCompleted
	if want := []string{"released"}; !moved && !slices.Contains(want, end) {
		t.Errorf("%s, whose money has not moved: got %q, want %q", b.Code, end, want)
	}
	if want := []string{"paid", "released, refund"}; moved && !slices.Contains(want, end) {
		t.Errorf("%s, whose money has moved: got %q, want one of %q", b.Code, end, want)
	}
	return end
}

// Case 16: callback and notification together, fifty of each, then the callback
// reloaded ten times, then both again two days later.
func TestCase16_CallbackAndNotificationTogether(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		b := w.Held(t, 1, "N1")
		w.Gateway.Finish(b.Payment.ID)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err != nil && !errors.Is(err, booking.ErrPaying) {
					t.Errorf("return: got %v, want nil, or that another call is paying", err)
				}
			})
			all.Go(func() {
				charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
				if err != nil || charge.Status != booking.ChargeCompleted {
					return // open still: the notification comes again
				}
				if err := w.settler.Confirm(t.Context(), b.Code, b.Record, charge); err != nil {
					t.Errorf("notification: %v", err)
				}
			})
		}
		all.Wait()
		w.Background.Wait()
		w.wantPaid(t, b)
		row, rec := w.Row(t, b.Code), w.record(t, b)
		for round := range 11 {
			if round == 10 {
				w.Clock.Advance(48 * time.Hour)
			}
			for what, err := range map[string]error{"callback": w.returns(t, b), "notification": w.notified(t, b)} {
				if err != nil {
					t.Errorf("%s again: %v", what, err)
				}
			}
		}
		w.sweep(t, time.Hour)
		if diff := cmp.Diff(row, w.Row(t, b.Code)); diff != "" {
			t.Errorf("row changed (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(rec, w.record(t, b)); diff != "" {
			t.Errorf("record changed (-before +after):\n%s", diff)
		}
		w.wantExecutes(t, b, 1)
		w.wantPaid(t, b)
	})
}

// Case 17: two payments for one hold. The second is a refund record.
func TestCase17_SecondPaymentGoesBack(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		b := w.Held(t, 1, "N1")
		if err := w.paysAndReturns(t, b); err != nil {
			t.Fatalf("return: %v", err)
		}
		row, rec := w.Row(t, b.Code), w.record(t, b)
		again := w.Gateway.CompleteAgain(b.Payment.ID)
		for range 2 {
			err := w.settler.Confirm(t.Context(), b.Code, b.Record, again)
			wantErr(t, "second payment", err, booking.ErrRefunded)
			wantErr(t, "second payment", err, booking.ErrSecondPayment)
		}
		w.WantRefund(t, b, again.Transaction, booking.MoneySecond, "second")
		if diff := cmp.Diff(row, w.Row(t, b.Code)); diff != "" {
			t.Errorf("row changed (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(rec, w.record(t, b)); diff != "" {
			t.Errorf("record changed (-before +after):\n%s", diff)
		}
		w.wantPaid(t, b)
	})
}

// The second payment of an attempt whose seat had lapsed: the first to be reported
// has the seat, the other goes back.
func TestCase17_SecondPaymentOfLateMoney(t *testing.T) {
	w := inProcess(t)
	b := w.lapses(t, 1, "N1")
	again := w.Gateway.CompleteAgain(b.Payment.ID)
	if err := w.settler.Confirm(t.Context(), b.Code, b.Record, again); err != nil {
		t.Errorf("reported first: %v", err)
	}
	w.wantBack(t, "reported second", w.notified(t, b), b, booking.MoneySecond, "second")
	w.Background.Wait()
	w.wantPaid(t, b)
}

// Case 18: every order of created, failed, paid and refunded, each delivered twice,
// ends the same: paid beats failed, and a failed payment frees no seat.
func TestCase18_OrdersOfEvents(t *testing.T) {
	events := []string{"created", "failed", "paid", "refunded"}
	for _, order := range permutations(events) {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			w := inProcess(t)
			b := w.Unwritten(t, 1, "N1")
			w.Gateway.Refuse(b.Payment.ID, "2023")
			deliver := func(event string) {
				var err error
				switch event {
				case "created": // the worker's message
					w.Write(t, b)
				case "failed": // the gateway refuses the payer's return
					err = w.returns(t, b)
				case "paid": // and the money moves after all
					w.Gateway.Complete(b.Payment.ID)
					err = w.notified(t, b)
				case "refunded": // a word that is no "completed", whatever it is
					charge := w.asks(t, b)
					charge.Status = booking.ChargeUnknown
					if err := w.settler.Confirm(t.Context(), b.Code, b.Record, charge); !errors.Is(err, booking.ErrInDoubt) {
						t.Errorf("refunded: got %v, want a doubt", err)
					}
				}
				if err != nil && !errors.Is(err, booking.ErrRefused) {
					t.Errorf("%s: %v", event, err)
				}
				if row := w.Row(t, b.Code); row.Attempt != b.Attempt {
					t.Errorf("after %s the seat is %+v, want it kept", event, row)
				}
				w.Books.Check(t)
			}
			for _, event := range order {
				deliver(event)
				deliver(event)
			}
			for _, event := range order {
				deliver(event)
			}
			w.sweep(t, booking.DefaultHold)
			w.wantPaid(t, b)
		})
	}
}

func permutations(list []string) [][]string {
	if len(list) == 0 {
		return [][]string{nil}
	}
	var all [][]string
	for i := range list {
		rest := slices.Delete(slices.Clone(list), i, i+1)
		for _, p := range permutations(rest) {
			all = append(all, append([]string{list[i]}, p...))
		}
	}
	return all
}

// wrongs are completed charges that are not what was ordered, and can be given back.
var wrongs = map[string]func(*booking.Charge){
	"amount less": func(c *booking.Charge) { c.Amount-- },
	"amount more": func(c *booking.Charge) { c.Amount += 100 },
	"currency":    func(c *booking.Charge) { c.Currency = "USD" },
	"invoice":     func(c *booking.Charge) { c.Invoice += "0" },
	"no invoice":  func(c *booking.Charge) { c.Invoice = "" },
	"other level": func(c *booking.Charge) { c.Amount = 120000 },
}

// nonsense are completed charges of which only a person can say what they are.
var nonsense = map[string]func(*booking.Charge){
	"amount zero":    func(c *booking.Charge) { c.Amount = 0 },
	"negative":       func(c *booking.Charge) { c.Amount = -c.Amount },
	"no currency":    func(c *booking.Charge) { c.Currency = "" },
	"payment":        func(c *booking.Charge) { c.PaymentID = "TR999999" },
	"no transaction": func(c *booking.Charge) { c.Transaction = "" },
}

// Case 20: money otherwise than ordered pays for no seat and goes back; the payment
// is over, the seat is not.
func TestCase20_OtherwiseThanOrderedGoesBack(t *testing.T) {
	for name, change := range wrongs {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			told, asked := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
			w.Gateway.Next(bookingtest.Execute, asked.Payment.ID, bookingtest.KeptCall())
			for _, b := range []bookingtest.Booking{told, asked} {
				w.Gateway.Divert(b.Payment.ID, change)
				w.wantBack(t, "return", w.paysAndReturns(t, b), b, booking.MoneyOther, "other_than_ordered")
				w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
				w.wantMails(t, b, 0)
				wantErr(t, "returned again", w.returns(t, b), booking.ErrRefused)
				w.wantExecutes(t, b, 1)
				w.wantBack(t, "reported again", w.notified(t, b), b, booking.MoneyOther, "other_than_ordered")
			}
			w.Books.CheckAtRest(t)
			fresh := w.Held(t, 1, "N1")
			if err := w.paysAndReturns(t, fresh); err != nil {
				t.Errorf("the candidate's next payment: %v", err)
			}
			w.sweep(t, booking.DefaultHold) // the other gives up
			w.Want(t, asked, "", booking.StateReleased)
			w.wantPaid(t, fresh)
		})
	}
}

// The same by a notification: the seat is as it was, until its time is over.
func TestCase20_OtherwiseThanOrderedByANotification(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Divert(b.Payment.ID, wrongs["amount less"])
	w.Gateway.Complete(b.Payment.ID)
	for range 2 {
		w.wantBack(t, "notification", w.notified(t, b), b, booking.MoneyOther, "other_than_ordered")
		w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	}
	w.Books.CheckAtRest(t)
	w.sweep(t, booking.DefaultHold)
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// And after the hold has lapsed: it never gets the seat that is free.
func TestCase20_OtherwiseThanOrderedAfterTheHold(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Divert(b.Payment.ID, wrongs["amount more"])
	w.sweep(t, booking.DefaultHold)
	w.Gateway.Complete(b.Payment.ID)
	for range 2 {
		w.wantBack(t, "notification", w.notified(t, b), b, booking.MoneyOther, "other_than_ordered")
		w.Want(t, b, "", booking.StateReleased)
		w.Books.CheckAtRest(t)
	}
}

// What nobody can understand decides nothing: the seat is kept, and an answer that
// makes sense pays for it.
func TestCase20_NonsenseIsADoubt(t *testing.T) {
	for name, change := range nonsense {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			told, asked := w.Held(t, 1, "N1"), w.Held(t, 2, "N2")
			w.Gateway.Next(bookingtest.Execute, told.Payment.ID, bookingtest.Altered(change))
			w.Gateway.Next(bookingtest.Execute, asked.Payment.ID, bookingtest.KeptCall())
			w.Gateway.Always(bookingtest.Query, asked.Payment.ID, bookingtest.Altered(change))
			for _, b := range []bookingtest.Booking{told, asked} {
				wantErr(t, "return", w.paysAndReturns(t, b), booking.ErrInDoubt)
				w.Want(t, b, booking.PhasePaying, booking.StateHeld)
			}
			w.Books.Check(t)
			w.sweep(t, time.Minute) // told's answer makes sense by now
			w.wantMails(t, told, 1)
			for range 4 {
				w.sweep(t, 11*time.Minute)
				w.Want(t, asked, booking.PhasePaying, booking.StateHeld)
				w.Books.Check(t)
			}
			if n := w.Faults.Calls(bookingtest.OpLate); n != 0 {
				t.Errorf("decisions about nonsense: got %d, want none", n)
			}
			w.Gateway.Always(bookingtest.Query, asked.Payment.ID, bookingtest.Obey())
			w.sweep(t, 11*time.Minute)
			w.wantPaid(t, asked)
		})
	}
}

// Money that goes back stays so, whatever the gateway says of it next: it never
// pays for the seat as well.
func TestConfirm_DecidedMoneyNeverPaysForTheSeatAsWell(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Next(bookingtest.Execute, b.Payment.ID, bookingtest.Altered(wrongs["amount less"]))
	w.wantBack(t, "return", w.paysAndReturns(t, b), b, booking.MoneyOther, "other_than_ordered")
	w.Books.Unseated[b.Payment.ID] = true // the refund is of the amount that was told
	w.wantBack(t, "as ordered by now", w.notified(t, b), b, booking.MoneyOther, "other_than_ordered")
	w.Want(t, b, booking.PhaseRefused, booking.StateReleased)
	w.sweep(t, booking.DefaultHold)
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// A PAID record is nobody's to refund, also when the ledger has lost its row: the
// cross-check closes booking, and a person must look.
func TestConfirm_MoneyOfAPaidRecordNeverGoesBack(t *testing.T) {
	for name, change := range map[string]func(*booking.Charge){
		"reported again": func(*booking.Charge) {}, "told otherwise": func(c *booking.Charge) { c.Amount-- },
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			if err := w.paysAndReturns(t, b); err != nil {
				t.Fatalf("return: %v", err)
			}
			charge := w.asks(t, b)
			change(&charge)
			if err := w.settler.Confirm(t.Context(), b.Code, b.Record, charge); err != nil {
				t.Errorf("while the ledger knows it: %v", err)
			}
			w.Background.Wait()
			w.wantPaid(t, b)

			if err := w.rdb.HDel(t.Context(), prefix+"adm:seen", b.Code).Err(); err != nil {
				t.Fatal(err)
			}
			wantErr(t, "once the row is lost", w.settler.Confirm(t.Context(), b.Code, b.Record, charge), booking.ErrInDoubt)
			if n := w.Faults.Calls(bookingtest.OpLate); n != 0 {
				t.Errorf("late decisions: got %d, want none", n)
			}
			again := w.Gateway.CompleteAgain(b.Payment.ID)
			wantErr(t, "a second payment then", w.settler.Confirm(t.Context(), b.Code, b.Record, again), booking.ErrSecondPayment)
			w.WantRefund(t, b, again.Transaction, booking.MoneySecond, "second")
			w.Want(t, b, "", booking.StatePaid)
		})
	}
}

// A transaction that two payments are said to have is for a person.
func TestConfirm_TransactionOfAnotherPaymentsRefundIsADoubt(t *testing.T) {
	w := inProcess(t)
	old := w.lapses(t, 1, "N1")
	w.Held(t, 1, "N1")
	w.wantBack(t, "late money", w.notified(t, old), old, booking.MoneyLate, "candidate")
	b := w.Held(t, 2, "N1")
	charge := w.asks(t, b)
	charge.Status, charge.Transaction = booking.ChargeCompleted, "TX"+old.Payment.ID
	wantErr(t, "confirm", w.settler.Confirm(t.Context(), b.Code, b.Record, charge), booking.ErrInDoubt)
	w.Want(t, b, booking.PhaseHeld, booking.StateHeld)
	w.Books.CheckAtRest(t)
}

// The process dies, or its call is lost, between any two steps of a late decision;
// the next report ends it the same way.
func TestLate_BrokenOffBetweenAnyTwoStepsEndsTheSameWay(t *testing.T) {
	for _, c := range []struct {
		op   bookingtest.Op
		paid bool
	}{
		{bookingtest.OpLate, false}, {bookingtest.OpPutRefund, false}, {bookingtest.OpReleaseRecord, false},
		{bookingtest.OpLate, true}, {bookingtest.OpMarkPaid, true}, {bookingtest.OpRecordDone, true},
		{bookingtest.OpClaimMail, true}, {bookingtest.OpMailDone, true},
	} {
		for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
			for next, goOn := range map[string]func(t *testing.T, w *world, b bookingtest.Booking){
				"report": func(t *testing.T, w *world, b bookingtest.Booking) { _ = w.notified(t, b) },
				"runner": func(t *testing.T, w *world, _ bookingtest.Booking) {
					w.Clock.Advance(3 * time.Minute)
					if _, err := w.sweeper.CrossCheck(t.Context()); err != nil {
						t.Errorf("cross-check: %v", err)
					}
					w.Background.Wait()
				},
			} {
				t.Run(fmt.Sprintf("%s %s, paid %t, next %s", c.op, name, c.paid, next), func(t *testing.T) {
					w := inProcess(t)
					b := w.Held(t, 1, "N1")
					w.Faults.Next(bookingtest.OpReleaseRecord, bookingtest.Lost) // so that the record is HELD
					w.sweep(t, booking.DefaultHold)
					w.Want(t, b, "", booking.StateHeld)
					w.Gateway.Complete(b.Payment.ID)
					if !c.paid {
						w.fill(t, 2, "N1")
					}
					w.Books.Unseated[b.Payment.ID] = true // until it is reported to its end
					w.Faults.Next(c.op, fault)
					_ = w.notified(t, b) // what the first report hears is not what counts
					w.Books.Check(t)
					goOn(t, w, b)
					w.Books.Check(t)
					for range 4 { // a paid row's next look, the end of a mail's claim
						w.sweep(t, time.Minute)
						w.Books.Check(t)
					}
					delete(w.Books.Unseated, b.Payment.ID)
					if c.paid {
						w.wantPaid(t, b)
					} else {
						w.WantRefund(t, b, "TX"+b.Payment.ID, booking.MoneyLate, "full")
						w.Want(t, b, "", booking.StateReleased)
						w.Books.CheckAtRest(t)
					}
					w.wantEndStays(t, b)
				})
			}
		}
	}
}

// wantEndStays reports the money once more, which changes nothing.
func (w *world) wantEndStays(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	row, rec := w.Row(t, b.Code), w.record(t, b)
	_ = w.notified(t, b)
	if diff := cmp.Diff([]any{row, rec}, []any{w.Row(t, b.Code), w.record(t, b)}); diff != "" {
		t.Errorf("reported once more (-before +after):\n%s", diff)
	}
	w.Books.CheckAtRest(t)
}

// A paid decision whose record is not written is finished by the sweep alone, which
// settles it again.
func TestLate_PaidDecisionIsFinishedByTheSweep(t *testing.T) {
	w := inProcess(t)
	b := w.lapses(t, 1, "N1")
	w.Faults.Next(bookingtest.OpMarkPaid, bookingtest.Lost)
	wantErr(t, "report", w.notified(t, b), bookingtest.ErrLost)
	w.Want(t, b, booking.PhasePaid, booking.StateReleased)
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
}

// Nothing rests on a decision that was not acknowledged: no record, no refund.
func TestLate_DecisionNotAcknowledgedWritesNothing(t *testing.T) {
	w := onPair(t)
	free, back := w.lapses(t, 1, "N1"), w.lapses(t, 5, "N2")
	w.Held(t, 5, "N2")
	w.cut(t)
	for _, b := range []bookingtest.Booking{free, back} {
		wantErr(t, "report while the replica is gone", w.notified(t, b), booking.ErrNotAcknowledged)
	}
	w.Want(t, free, "", booking.StateReleased)
	if _, err := w.Store.Refund(t.Context(), "TX"+back.Payment.ID); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("refund on an unacknowledged answer: got %v, want none", err)
	}
	w.heal(t)
	if err := w.notified(t, free); err != nil {
		t.Errorf("once the replica is back: %v", err)
	}
	w.wantBack(t, "once the replica is back", w.notified(t, back), back, booking.MoneyLate, "candidate")
	w.wantPaid(t, free)
}

// An execute call that was announced meanwhile does not keep a refunded record from
// its end: a payment is executed at most once, and this one has been.
func TestLate_RefundedRecordAnnouncedMeanwhileIsEnded(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.Faults.Next(bookingtest.OpReleaseRecord, bookingtest.Lost)
	w.sweep(t, booking.DefaultHold)
	w.Gateway.Complete(b.Payment.ID)
	w.fill(t, 2, "N1")
	w.Faults.Before(bookingtest.OpReleaseRecord, func() {
		if _, err := w.Store.StoreDriver.Announce(t.Context(), b.Record, w.Clock.Now()); err != nil {
			t.Error(err)
		}
	})
	w.wantBack(t, "report", w.notified(t, b), b, booking.MoneyLate, "full")
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}
