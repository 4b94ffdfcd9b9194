package saleops_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
	store "holdfast/internal/store/sqlite"
)

// gate reaches the world's ledger past its faults.
func (w *world) gate(t *testing.T) *admission.Gate {
	t.Helper()
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	g, err := admission.New(w.rdb, admission.Options{
		Keys: keys, Acks: 0, ClockOffset: w.Clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// records reaches the world's booking store past its faults.
func (w *world) records(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *world) resetter(t *testing.T) *saleops.Resetter {
	t.Helper()
	return &saleops.Resetter{Ledger: w.gate(t), Store: w.records(t), Queue: w.queue}
}

// over is a sale that has ended: two bookings are paid, one lapsed.
func over(t *testing.T) (w *world, paid []bookingtest.Booking, lapsed bookingtest.Booking) {
	t.Helper()
	w = open(t)
	paid = []bookingtest.Booking{w.Held(t, 1, "N1"), w.Held(t, 2, "N2")}
	lapsed = w.Held(t, 3, "N1")
	for _, b := range paid {
		w.pays(t, b)
	}
	w.sweep(t, booking.DefaultHold+time.Minute)
	w.Want(t, lapsed, "", booking.StateReleased)
	if err := w.Ledger.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, paid, lapsed
}

func mustPlan(t *testing.T, r *saleops.Resetter) saleops.ResetPlan {
	t.Helper()
	p, err := r.Plan(t.Context())
	if err != nil {
		t.Fatalf("plan: got %v, want nil", err)
	}
	return p
}

func mustReset(t *testing.T, r *saleops.Resetter) saleops.ResetDone {
	t.Helper()
	did, err := r.Carry(t.Context(), mustPlan(t, r))
	if err != nil {
		t.Fatalf("reset: got %v, want nil", err)
	}
	return did
}

// wantClean wants an audit in which no rule is broken, and a cross-check that finds
// nothing and leaves booking as it is.
func (w *world) wantClean(t *testing.T, epoch string) {
	t.Helper()
	before := w.rdb.Get(t.Context(), prefix+"booking:open").Val()
	report, err := w.ops.Audit(t.Context(), saleops.AuditOptions{Wait: func(context.Context, time.Duration) error { return nil }})
	if err != nil || report.Broken() || report.Epoch != epoch {
		t.Errorf("audit: got %+v, %v, want every rule to hold in epoch %s", report, err, epoch)
	}
	for range 2 { // a difference counts when it is there twice
		checked, err := w.sweeper.CrossCheck(t.Context())
		if err != nil {
			t.Errorf("cross-check: got %v, want nil", err)
		}
		for kind, n := range checked.Found {
			if n > 0 {
				t.Errorf("cross-check: got %d of %s, want none", n, kind)
			}
		}
	}
	if after := w.rdb.Get(t.Context(), prefix+"booking:open").Val(); after != before {
		t.Errorf("the switch: got %q, want %q as it was", after, before)
	}
}

func TestReset_EverythingElseGoesOnWithTheNewSale(t *testing.T) {
	w, paid, lapsed := over(t)
	r := w.resetter(t)
	plan := mustPlan(t, r)
	if plan.Over() != nil || plan.Paid != 2 || plan.Unmailed != 0 || plan.Candidates != 20 || plan.Epoch != bookingtest.Epoch || plan.Unmarked {
		t.Errorf("plan: got %+v, want two paid bookings and nothing against it", plan)
	}
	did, err := r.Carry(t.Context(), plan)
	if err != nil || did.Ended != bookingtest.Epoch || did.Forgotten != 2 || did.Begun <= did.Ended {
		t.Fatalf("reset: got %+v, %v, want two seats forgotten", did, err)
	}
	w.wantClean(t, did.Begun)
	for _, b := range paid {
		if got := w.State(t, b); got != booking.StatePaid {
			t.Errorf("record of %s: got %s, want it PAID as it was", b.Code, got)
		}
	}

	// Money of the ended sale that is no plain payment goes back, however free the
	// new one is; money of its paid seats does not.
	if err := w.Ledger.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Gateway.Complete(lapsed.Payment.ID)
	charge, err := w.Gateway.Query(t.Context(), lapsed.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.settler.Confirm(t.Context(), lapsed.Code, lapsed.Record, charge); !errors.Is(err, booking.ErrRefunded) {
		t.Errorf("late money of the ended sale: got %v, want a refund", err)
	}
	if refund, err := w.Store.Refund(t.Context(), charge.Transaction); err != nil || refund.Reason != "epoch" {
		t.Errorf("its refund: got %+v, %v, want one because of its epoch", refund, err)
	}
	charge, err = w.Gateway.Query(t.Context(), paid[0].Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.settler.Confirm(t.Context(), paid[0].Code, paid[0].Record, charge); !errors.Is(err, booking.ErrInDoubt) || errors.Is(err, booking.ErrRefunded) {
		t.Errorf("money of a seat that the reset forgot: got %v, want that a person is asked", err)
	}
	again := w.Held(t, 1, "N1")
	if booking.AttemptEpoch(again.Attempt) != did.Begun {
		t.Errorf("a new attempt: got %s, want one of epoch %s", again.Attempt, did.Begun)
	}
	w.wantClean(t, did.Begun)

	// And a lost Redis comes back as the new sale.
	w.pays(t, again)
	w.sweep(t, time.Minute)
	w.lose(t)
	out := w.mustRebuild(t)
	if out.Epoch != did.Begun || out.Paid != 1 || out.Held != 0 || out.Total != 1 || out.Decided != 1 {
		t.Errorf("rebuilt: got %+v, want the one seat of epoch %s, and one decision", out, did.Begun)
	}
	w.wantClean(t, did.Begun)
}

// The new sale has sold nothing yet: all that the store has is of the ended one.
func TestReset_ARebuildTakesTheNewSaleThoughItHasSoldNothing(t *testing.T) {
	w, _, _ := over(t)
	did := mustReset(t, w.resetter(t))
	w.lose(t)
	if out := w.mustRebuild(t); out.Epoch != did.Begun || out.Total != 0 {
		t.Errorf("rebuilt: got %+v, want epoch %s without a seat", out, did.Begun)
	}
	w.wantClean(t, did.Begun)
	w.lose(t)
	if out, err := w.ops.Start(t.Context(), big()); err != nil || out.Epoch != did.Begun || out.Total != 0 {
		t.Errorf("started: got %+v, %v, want epoch %s without a seat", out, err, did.Begun)
	}
}

func TestReset_RefusesWhileSomethingIsNotOver(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, w *world)
		want    string
	}{
		"Open":      {func(t *testing.T, w *world) { must(t, w.Ledger.Open(t.Context())) }, "booking is open"},
		"Scheduled": {func(t *testing.T, w *world) { must(t, w.Ledger.OpenAt(t.Context(), w.Clock.Now().Add(time.Hour))) }, "scheduled to open at"},
		"Rebuild":   {func(t *testing.T, w *world) { must(t, w.rdb.Set(t.Context(), prefix+"adm:rebuild", "x", 0).Err()) }, "a rebuild or a load"},
		"Queue":     {func(t *testing.T, w *world) { must(t, w.queue.Send(t.Context(), "0000", "id", []byte("{}"))) }, "1 waiting"},
		"Held":      {func(t *testing.T, w *world) { late(t, w, func() { w.Held(t, 5, "N1") }) }, "1 seats are held and not paid"},
		"New":       {func(t *testing.T, w *world) { late(t, w, func() { w.Admit(t, 5, "N1") }) }, "1 seats are held and not paid"},
		"Refused":   {func(t *testing.T, w *world) { late(t, w, func() { w.Refused(t, 5, "N1") }) }, "1 seats are held and not paid"},
		"Paying":    {func(t *testing.T, w *world) { late(t, w, func() { w.Paying(t, 5, "N1", "p", time.Minute) }) }, "1 seats are being paid or in doubt"},
		"HeldRecord": {func(t *testing.T, w *world) {
			late(t, w, func() {
				b := w.Held(t, 5, "N1")
				must(t, w.rdb.HDel(t.Context(), prefix+"adm:seen", b.Code).Err())
			})
		}, "1 records are HELD"},
		"LostTime": {func(t *testing.T, w *world) {
			must(t, w.rdb.HDel(t.Context(), prefix+"adm:seen", bookingtest.Code(1)).Err())
		}, "do not go together: run seatctl audit"},
		"NoRecord": {func(t *testing.T, w *world) {
			w.Faults.Always(bookingtest.OpMarkPaid, bookingtest.Lost)
			late(t, w, func() {
				b := w.Held(t, 5, "N1")
				w.Gateway.Finish(b.Payment.ID)
				_ = w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID) // the store does not take it
			})
		}, "1 paid seats are not known to have their record"},
		"Notification": {func(t *testing.T, w *world) {
			_, err := w.Store.PutNotification(t.Context(), booking.Notification{
				Version: booking.NotificationVersion, ID: "m1", ReceivedAt: w.Clock.Now(), SentAt: w.Clock.Now(), Unreadable: "no JSON",
			})
			must(t, err)
		}, "1 notifications of the gateway are open"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _, _ := over(t)
			r := w.resetter(t)
			before := mustPlan(t, r)
			c.prepare(t, w)
			plan := mustPlan(t, r)
			if err := plan.Over(); !errors.Is(err, saleops.ErrNotOver) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("plan: got %v, want that it says %q", err, c.want)
			}
			if _, err := r.Carry(t.Context(), before); !errors.Is(err, saleops.ErrNotOver) {
				t.Errorf("reset: got %v, want ErrNotOver", err)
			}
			if epoch, err := w.Ledger.Epoch(t.Context()); err != nil || epoch != bookingtest.Epoch {
				t.Errorf("epoch: got %s, %v, want %s", epoch, err, bookingtest.Epoch)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// late takes seats while booking is open for a moment.
func late(t *testing.T, w *world, take func()) {
	t.Helper()
	must(t, w.Ledger.Open(t.Context()))
	take()
	must(t, w.Ledger.Close(t.Context()))
}

// The count that was confirmed is the count that is forgotten.
func TestReset_RefusesMoreThanWasShown(t *testing.T) {
	w, _, _ := over(t)
	r := w.resetter(t)
	seen := mustPlan(t, r)
	late(t, w, func() { w.pays(t, w.Held(t, 5, "N1")) })
	w.sweep(t, time.Minute)
	if _, err := r.Carry(t.Context(), seen); !errors.Is(err, saleops.ErrSeenOtherwise) {
		t.Errorf("reset: got %v, want ErrSeenOtherwise", err)
	}
	if p := mustPlan(t, r); p.Paid != 3 || p.Epoch != seen.Epoch {
		t.Errorf("plan: got %+v, want the three seats as they were", p)
	}
}

// forgetful is a store that loses the mark.
type forgetful struct{ *store.Store }

var errForgotten = errors.New("the store is away")

func (forgetful) MarkEpoch(context.Context, booking.EpochMark) error { return errForgotten }

// A run that breaks off between ledger and store.
func TestReset_TheNextRunFinishesOneThatBrokeOff(t *testing.T) {
	w, _, _ := over(t)
	r := w.resetter(t)
	half := *r
	half.Store = forgetful{w.records(t)}
	first, err := half.Carry(t.Context(), mustPlan(t, r))
	if !errors.Is(err, errForgotten) || first.Begun == "" {
		t.Fatalf("reset: got %+v, %v, want that the store is away", first, err)
	}
	w.wantClean(t, first.Begun)
	plan := mustPlan(t, r)
	if !plan.Unmarked || plan.Paid != 0 || plan.Over() != nil {
		t.Errorf("plan: got %+v, want an empty sale whose mark is missing", plan)
	}
	second := mustReset(t, r)
	if second.Ended != first.Begun || mustPlan(t, r).Unmarked {
		t.Errorf("second run: got %+v, want it to end %s, and the mark to be there", second, first.Begun)
	}
	w.lose(t)
	if out := w.mustRebuild(t); out.Epoch != second.Begun || out.Total != 0 {
		t.Errorf("rebuilt: got %+v, want epoch %s without a seat", out, second.Begun)
	}
}

// Without the mark nobody can know that the reset was made: the paid seats come back.
func TestReset_BrokenOffAndRedisLostKeepsThePaidSeats(t *testing.T) {
	w, _, _ := over(t)
	r := w.resetter(t)
	half := *r
	half.Store = forgetful{w.records(t)}
	if _, err := half.Carry(t.Context(), mustPlan(t, r)); !errors.Is(err, errForgotten) {
		t.Fatalf("reset: got %v, want that the store is away", err)
	}
	w.lose(t)
	if out := w.mustRebuild(t); out.Epoch != bookingtest.Epoch || out.Paid != 2 {
		t.Errorf("rebuilt: got %+v, want the two paid seats of epoch %s", out, bookingtest.Epoch)
	}
}

// The ledger's step was made, and its answer lost: the operator runs it again.
type deaf struct{ *admission.Gate }

func (d deaf) Reset(ctx context.Context, epoch, next string, seen int) error {
	return errors.Join(d.Gate.Reset(ctx, epoch, next, seen), booking.ErrNotAcknowledged)
}

func TestReset_NotAcknowledgedIsRunAgain(t *testing.T) {
	w, _, _ := over(t)
	r := w.resetter(t)
	half := *r
	half.Ledger = deaf{w.gate(t)}
	if _, err := half.Carry(t.Context(), mustPlan(t, r)); !errors.Is(err, booking.ErrNotAcknowledged) {
		t.Fatalf("reset: got %v, want ErrNotAcknowledged", err)
	}
	did := mustReset(t, r)
	w.wantClean(t, did.Begun)
}

// reopened is a ledger whose booking somebody opens in the last moment.
type reopened struct{ *admission.Gate }

func (o reopened) Reset(ctx context.Context, epoch, next string, seen int) error {
	if err := o.Open(ctx); err != nil {
		return err
	}
	return o.Gate.Reset(ctx, epoch, next, seen)
}

// A refused run says nothing that somebody could take for the beginning of a sale.
func TestReset_RefusedByTheLedgerNamesNoEpoch(t *testing.T) {
	w, p := past(t)
	seen := mustPlan(t, w.resetter(t))
	r := w.resetter(t)
	r.Ledger = reopened{w.gate(t)}
	if did, err := r.Carry(t.Context(), seen); !errors.Is(err, booking.ErrNotEnded) || did != (saleops.ResetDone{}) {
		t.Errorf("reset: got %+v, %v, want a refusal and nothing done", did, err)
	}
	must(t, w.Ledger.Close(t.Context()))
	opts := saleops.PurgeOptions{OlderThan: month}
	plan := mustPlanPurge(t, p, opts)
	p.Ledger = reopened{w.gate(t)}
	if did, err := p.Carry(t.Context(), plan, opts); !errors.Is(err, booking.ErrNotEnded) || did != (saleops.Purged{}) {
		t.Errorf("purge: got %+v, %v, want a refusal and nothing done", did, err)
	}
	if epoch, err := w.Ledger.Epoch(t.Context()); err != nil || epoch != bookingtest.Epoch {
		t.Errorf("epoch: got %s, %v, want %s as before", epoch, err, bookingtest.Epoch)
	}
}

// Redis loses the reset and sells on under the epoch that it ended.
func TestRebuild_TwoRunningSalesAreForAPerson(t *testing.T) {
	w, _, _ := over(t)
	s := w.records(t)
	must(t, s.MarkEpoch(t.Context(), booking.EpochMark{
		Version: booking.EpochMarkVersion, Epoch: booking.NextEpoch(bookingtest.Epoch, w.Clock.Now()), At: w.Clock.Now(),
	}))
	if p := mustPlan(t, w.resetter(t)); p.Over() == nil {
		t.Errorf("plan: got %+v, want that Redis has lost time", p)
	}
	w.Clock.Advance(time.Minute)
	late(t, w, func() { w.Held(t, 7, "N1") })
	w.lose(t)
	_, err := w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild", err, saleops.ErrTwoSales)
	w.wantLost(t)
}

// lostReset is a ledger that a failover took back to before an acknowledged reset,
// whose mark is in the store, and late money that got its seat there since.
func lostReset(t *testing.T) (w *world, begun string) {
	t.Helper()
	w, _, lapsed := over(t)
	begun = booking.NextEpoch(bookingtest.Epoch, w.Clock.Now())
	must(t, w.records(t).MarkEpoch(t.Context(), booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: begun, At: w.Clock.Now()}))
	w.Clock.Advance(time.Minute)
	w.Gateway.Complete(lapsed.Payment.ID)
	charge, err := w.Gateway.Query(t.Context(), lapsed.Payment.ID)
	must(t, err)
	must(t, w.settler.Confirm(t.Context(), lapsed.Code, lapsed.Record, charge))
	w.Background.Wait()
	w.sweep(t, 2*time.Minute)
	w.Want(t, lapsed, booking.PhasePaid, booking.StatePaid)
	return w, begun
}

func TestAudit_TellsTheSaleThatWasBegunLast(t *testing.T) {
	w, _, _ := over(t)
	mustReset(t, w.resetter(t))
	report := w.audit(t, saleops.AuditOptions{})
	wantBroken(t, report)
	mark, err := w.records(t).EpochMark(t.Context())
	must(t, err)
	if got := rule(t, report, saleops.RuleEpoch).Figure; !strings.Contains(got, mark.Epoch) {
		t.Errorf("figure: got %q, want the epoch that was begun last, %s", got, mark.Epoch)
	}
}

func TestAudit_SaysThatRedisHasLostAReset(t *testing.T) {
	w, begun := lostReset(t)
	report := w.audit(t, saleops.AuditOptions{})
	wantBroken(t, report, saleops.RuleEpoch)
	if got := rule(t, report, saleops.RuleEpoch).Broken; len(got) != 1 || !strings.Contains(got[0], begun) || !strings.Contains(got[0], bookingtest.Epoch) {
		t.Errorf("broken: got %q, want both epochs", got)
	}
}

// Nobody may lose a paid seat because nobody looked who paid after the reset.
func TestRebuild_MoneyOfAnEndedSaleAfterItsResetIsForAPerson(t *testing.T) {
	w, begun := lostReset(t)
	w.lose(t)
	_, err := w.ops.Rebuild(t.Context(), big())
	wantErr(t, "rebuild", err, saleops.ErrTwoSales)
	if text := fmt.Sprint(err); !strings.Contains(text, begun) || !strings.Contains(text, bookingtest.Epoch) || !strings.Contains(text, "--epoch") {
		t.Errorf("rebuild: got %q, want both epochs and how to choose", text)
	}
	w.wantLost(t)
}

func TestChoose_TheRebuildTakesTheSaleThatAPersonNamed(t *testing.T) {
	for name, c := range map[string]struct {
		epoch func(begun string) string
		paid  int
	}{
		"TheOneThatTheResetEnded": {func(string) string { return bookingtest.Epoch }, 3},
		"TheOneThatItBegan":       {func(begun string) string { return begun }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, begun := lostReset(t)
			epoch := c.epoch(begun)
			w.lose(t)
			r := w.resetter(t)
			for range 2 { // a run that broke off after it is repeated
				must(t, r.Choose(t.Context(), epoch))
			}
			for range 2 { // and a later loss needs no second word
				if out := w.mustRebuild(t); out.Epoch != epoch || out.Paid != c.paid {
					t.Errorf("rebuilt: got %+v, want the %d paid seats of epoch %s", out, c.paid, epoch)
				}
				w.wantClean(t, epoch)
				w.lose(t)
			}
			w.mustRebuild(t)
			did := mustReset(t, r)
			w.lose(t)
			if out := w.mustRebuild(t); out.Epoch != did.Begun || out.Total != 0 {
				t.Errorf("rebuilt after the reset: got %+v, want epoch %s without a seat", out, did.Begun)
			}
		})
	}
}

// The later sale has sold seats before Redis fell back to the earlier one, and the
// earlier one is chosen.
func TestChoose_TheEarlierSaleStaysChosenThoughTheLaterHasRecords(t *testing.T) {
	w, _, _ := over(t)
	r := w.resetter(t)
	later := mustReset(t, r).Begun
	late(t, w, func() { w.pays(t, w.Held(t, 9, "N1")) })
	w.sweep(t, time.Minute)
	w.lose(t)
	must(t, r.Choose(t.Context(), bookingtest.Epoch))
	if out := w.mustRebuild(t); out.Epoch != bookingtest.Epoch || out.Paid != 2 {
		t.Errorf("rebuilt: got %+v, want the two paid seats of epoch %s", out, bookingtest.Epoch)
	}
	w.wantClean(t, bookingtest.Epoch)
	w.Clock.Advance(-365 * 24 * time.Hour) // the next epoch sorts behind both all the same
	if did := mustReset(t, r); did.Begun <= later {
		t.Errorf("reset after it: got epoch %s, want a later one than %s", did.Begun, later)
	}
}

func TestChoose_Refuses(t *testing.T) {
	w, begun := lostReset(t)
	r := w.resetter(t)
	wantErr(t, "while the ledger is there", r.Choose(t.Context(), begun), saleops.ErrNotLost)
	must(t, r.Choose(t.Context(), bookingtest.Epoch)) // it is that one: nothing to do
	if mark, err := w.records(t).EpochMark(t.Context()); err != nil || mark.Epoch != begun {
		t.Errorf("mark: got %+v, %v, want it as it was", mark, err)
	}
	w.lose(t)
	err := r.Choose(t.Context(), booking.NewEpoch(w.Clock.Now()))
	wantErr(t, "an epoch of nothing", err, saleops.ErrNoSuchEpoch)
	if !strings.Contains(err.Error(), begun) || !strings.Contains(err.Error(), bookingtest.Epoch) {
		t.Errorf("an epoch of nothing: got %v, want those that there are", err)
	}
	must(t, w.queue.Send(t.Context(), "0000", "id", []byte("{}")))
	wantErr(t, "with messages on their way", r.Choose(t.Context(), begun), saleops.ErrNotDrained)
}
