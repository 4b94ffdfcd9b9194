package saleops_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
	store "holdfast/internal/store/sqlite"
)

const month = 30 * 24 * time.Hour

func (w *world) purger(t *testing.T) *saleops.Purger {
	t.Helper()
	return &saleops.Purger{Ledger: w.gate(t), Store: w.records(t), Queue: w.queue}
}

// past is a sale whose event was over a month ago: two paid bookings, one that
// lapsed, one refund that is done, one closed notification.
func past(t *testing.T) (*world, *saleops.Purger) {
	t.Helper()
	w, paid, lapsed := over(t)
	w.Gateway.Complete(lapsed.Payment.ID)
	charge, err := w.Gateway.Query(t.Context(), lapsed.Payment.ID)
	must(t, err)
	other := booking.Charge{Status: charge.Status, PaymentID: charge.PaymentID, Invoice: charge.Invoice, Transaction: charge.Transaction, Amount: 1, Currency: "BDT"}
	if err := w.settler.Confirm(t.Context(), lapsed.Code, lapsed.Record, other); !errors.Is(err, booking.ErrRefunded) {
		t.Fatalf("confirm: got %v, want a refund", err)
	}
	must(t, w.Store.RefundDone(t.Context(), charge.Transaction, "alice", "", "by bank, to Bob", w.Clock.Now()))
	_, err = w.Store.PutNotification(t.Context(), booking.Notification{
		Version: booking.NotificationVersion, ID: "m1", ReceivedAt: w.Clock.Now(), SentAt: w.Clock.Now(),
		Transaction: "TX1", Currency: "BDT", Invoice: paid[0].Record.Invoice, Reference: "for Bob",
	})
	must(t, err)
	must(t, w.Store.CloseNotification(t.Context(), "m1", booking.NotifiedPaid, w.Clock.Now()))
	w.Clock.Advance(month + time.Hour)
	return w, w.purger(t)
}

func mustPlanPurge(t *testing.T, p *saleops.Purger, opts saleops.PurgeOptions) saleops.PurgePlan {
	t.Helper()
	plan, err := p.Plan(t.Context(), opts)
	if err != nil {
		t.Fatalf("plan: got %v, want nil", err)
	}
	return plan
}

// everything is all that Redis and the store have, as text, without what each
// command leaves.
func (w *world) everything(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	keys, err := w.rdb.Keys(t.Context(), prefix+"*").Result()
	must(t, err)
	for _, key := range keys {
		b.WriteString(key + "\n")
		for _, v := range []any{w.rdb.Get(t.Context(), key).Val(), w.rdb.HGetAll(t.Context(), key).Val(), w.rdb.SMembers(t.Context(), key).Val()} {
			if text, err := jsonText(v); err == nil {
				b.WriteString(text + "\n")
			}
		}
	}
	s := w.records(t)
	for rec, err := range s.Records(t.Context()) {
		must(t, err)
		text, err := jsonText(rec)
		must(t, err)
		b.WriteString(text + "\n")
	}
	for r, err := range s.Refunds(t.Context()) {
		must(t, err)
		text, err := jsonText(r)
		must(t, err)
		b.WriteString(text + "\n")
	}
	for n, err := range s.Notifications(t.Context()) {
		must(t, err)
		text, err := jsonText(n)
		must(t, err)
		b.WriteString(text + "\n")
	}
	return b.String()
}

func TestPurge_LeavesNobodyNamed(t *testing.T) {
	w, p := past(t)
	opts := saleops.PurgeOptions{OlderThan: month}
	plan := mustPlanPurge(t, p, opts)
	want := saleops.Purged{Seats: 2, Epoch: bookingtest.Epoch, Lists: 1, Emails: 20, Stashes: plan.Would.Stashes, Records: 3, Refunds: 1, Notifications: 1}
	if diff := cmp.Diff(want, plan.Would); diff != "" || plan.Over() != nil {
		t.Errorf("plan: against it %v, would remove (-want +got):\n%s", plan.Against, diff)
	}
	if before := w.everything(t); !strings.Contains(before, bookingtest.Code(1)) || !strings.Contains(before, "@") || !strings.Contains(before, "Bob") {
		t.Fatalf("before the purge: got %s, want names", before)
	}
	did, err := p.Carry(t.Context(), plan, opts)
	if err != nil {
		t.Fatalf("purge: got %v, want nil", err)
	}
	want.Epoch = did.Epoch
	if diff := cmp.Diff(want, did); diff != "" || did.Epoch <= bookingtest.Epoch {
		t.Errorf("purged, now epoch %s (-want +got):\n%s", did.Epoch, diff)
	}
	after := w.everything(t)
	for i := range 20 {
		for _, name := range []string{bookingtest.Code(i + 1), booking.CandidateHash(bookingtest.Code(i + 1)), bookingtest.Email(i + 1)} {
			if strings.Contains(after, name) {
				t.Errorf("after the purge %s is still there", name)
			}
		}
	}
	if strings.Contains(after, "Bob") || strings.Contains(after, "alice") {
		t.Errorf("after the purge: got %s, want no person's words", after)
	}
	w.wantClean(t, did.Epoch)

	again, err := p.Carry(t.Context(), mustPlanPurge(t, p, opts), opts)
	if err != nil || again != (saleops.Purged{Epoch: did.Epoch}) {
		t.Errorf("purged again: got %+v, %v, want nothing left to do", again, err)
	}
	// The money that went back once is known to have.
	for r, err := range w.Store.Refunds(t.Context()) {
		if err != nil || r.State != booking.RefundDone || r.CandidateHash != booking.Purged {
			t.Errorf("refund: got %+v, %v, want it done and without a name", r, err)
		}
	}
	w.lose(t)
	if out := w.mustRebuild(t); out.Epoch != did.Epoch || out.Total != 0 {
		t.Errorf("rebuilt after the purge: got %+v, want epoch %s without a seat", out, did.Epoch)
	}
}

func TestPurge_KeepsTheNextEventsAllowlist(t *testing.T) {
	w, p := past(t)
	opts := saleops.PurgeOptions{OlderThan: month, KeepCandidates: true}
	did, err := p.Carry(t.Context(), mustPlanPurge(t, p, opts), opts)
	if err != nil || did.Emails != 0 || did.Lists != 0 || did.Records != 3 {
		t.Errorf("purged: got %+v, %v, want the records alone", did, err)
	}
	if email, err := w.Ledger.Email(t.Context(), bookingtest.Code(1)); err != nil || email != bookingtest.Email(1) {
		t.Errorf("e-mail on file: got %q, %v, want it to stay", email, err)
	}
}

func TestPurge_OfAnEarlierSaleLeavesTheYounger(t *testing.T) {
	w, p := past(t)
	mustReset(t, w.resetter(t))
	late(t, w, func() { w.pays(t, w.Held(t, 9, "N1")) })
	w.sweep(t, time.Minute)
	opts := saleops.PurgeOptions{OlderThan: month, KeepCandidates: true}
	plan := mustPlanPurge(t, p, opts)
	if err := plan.Over(); !errors.Is(err, saleops.ErrNotOver) || !strings.Contains(err.Error(), "may be purged from") {
		t.Errorf("plan over a young sale: got %v, want that it says when", err)
	}
	if _, err := p.Carry(t.Context(), plan, opts); !errors.Is(err, saleops.ErrNotOver) {
		t.Errorf("purge: got %v, want ErrNotOver", err)
	}
	mustReset(t, w.resetter(t)) // now both are earlier ones
	plan = mustPlanPurge(t, p, opts)
	did, err := p.Carry(t.Context(), plan, opts)
	if err != nil || did.Records != 3 || did.Kept != 1 || did.Seats != 0 {
		t.Errorf("purged: got %+v, %v, want the three old records gone and the young one kept", did, err)
	}
}

// Money of a booking that has lapsed, or whose sale was reset, may still come: what it
// needs in Redis stays as long as its record does.
func TestPurge_LeavesRedisWhileABookingIsYoung(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T) *world{
		"AllLapsed": func(t *testing.T) *world {
			w := open(t)
			w.Held(t, 1, "N1")
			w.sweep(t, booking.DefaultHold+time.Minute)
			must(t, w.Ledger.Close(t.Context()))
			return w
		},
		"Reset": func(t *testing.T) *world {
			w, _, _ := over(t)
			mustReset(t, w.resetter(t))
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := prepare(t)
			w.Clock.Advance(time.Minute)
			p := w.purger(t)
			opts := saleops.PurgeOptions{OlderThan: month}
			before := w.everything(t)
			plan := mustPlanPurge(t, p, opts)
			if err := plan.Over(); !errors.Is(err, saleops.ErrNotOver) || !strings.Contains(err.Error(), "may be purged from") || !strings.Contains(err.Error(), "--keep-candidates") {
				t.Errorf("plan: got %v, want that it says when, and what may go before", err)
			}
			if _, err := p.Carry(t.Context(), plan, opts); !errors.Is(err, saleops.ErrNotOver) {
				t.Errorf("purge: got %v, want ErrNotOver", err)
			}
			if diff := cmp.Diff(before, w.everything(t)); diff != "" {
				t.Errorf("what is stored (-before +after):\n%s", diff)
			}
			keep := saleops.PurgeOptions{OlderThan: month, KeepCandidates: true}
			if did, err := p.Carry(t.Context(), mustPlanPurge(t, p, keep), keep); err != nil || did.Records != 0 || did.Kept == 0 {
				t.Errorf("purge of the store alone: got %+v, %v, want the young records kept", did, err)
			}
			w.Clock.Advance(month)
			if did, err := p.Carry(t.Context(), mustPlanPurge(t, p, opts), opts); err != nil || did.Emails != 20 || did.Records == 0 {
				t.Errorf("a month later: got %+v, %v, want everything gone", did, err)
			}
		})
	}
}

// A load that comes between look and purge: nothing was begun, and that is said.
func TestPurge_RefusedByTheLedgerHasDoneNothing(t *testing.T) {
	w, p := past(t)
	mustReset(t, w.resetter(t))
	opts := saleops.PurgeOptions{OlderThan: month}
	plan := mustPlanPurge(t, p, opts)
	p.Ledger = loading{w.gate(t)}
	if did, err := p.Carry(t.Context(), plan, opts); !errors.Is(err, booking.ErrNotEnded) || did != (saleops.Purged{}) {
		t.Errorf("purge: got %+v, %v, want a refusal and nothing done", did, err)
	}
}

// loading is a ledger whose allowlist somebody begins to load in the last moment.
type loading struct{ *admission.Gate }

func (l loading) PurgePersonal(ctx context.Context, epoch string) (booking.PersonalKeys, error) {
	if _, err := l.BeginAllowlist(ctx, "L", "somebody"); err != nil {
		return booking.PersonalKeys{}, err
	}
	return l.Gate.PurgePersonal(ctx, epoch)
}

func TestPurge_RefusesWhatIsNotFinished(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, w *world)
		want    string
	}{
		"Open": {func(t *testing.T, w *world) { must(t, w.Ledger.Open(t.Context())) }, "booking is open"},
		"Refund": {func(t *testing.T, w *world) {
			_, _, err := w.Store.PutRefund(t.Context(), booking.Refund{
				Version: booking.RefundVersion, Transaction: "TX7", PaymentID: "TR7", CandidateHash: "hash", Attempt: "attempt",
				Amount: 1, Currency: "BDT", State: booking.RefundDue, DecidedAt: w.Clock.Now(),
			})
			must(t, err)
		}, "1 refunds are not done"},
		"EarlierHeld": {func(t *testing.T, w *world) {
			earlier := booking.AttemptID(strings.Repeat("0", 12), booking.NewAttemptSuffix(w.Clock.Now()))
			row := booking.Row{Attempt: earlier, Level: "N1", Amount: 1, Currency: "BDT", Payment: "TRe", AdmittedAt: 1, Deadline: 2}
			_, _, err := w.Store.PutHeld(t.Context(), row.HeldRecord("C0019", "", ""))
			must(t, err)
		}, "1 records of earlier sales are HELD"},
	} {
		t.Run(name, func(t *testing.T) {
			w, p := past(t)
			c.prepare(t, w)
			before := w.everything(t)
			opts := saleops.PurgeOptions{OlderThan: month}
			plan := mustPlanPurge(t, p, opts)
			if err := plan.Over(); !errors.Is(err, saleops.ErrNotOver) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("plan: got %v, want that it says %q", err, c.want)
			}
			if _, err := p.Carry(t.Context(), plan, opts); !errors.Is(err, saleops.ErrNotOver) {
				t.Errorf("purge: got %v, want ErrNotOver", err)
			}
			if diff := cmp.Diff(before, w.everything(t)); diff != "" {
				t.Errorf("what is stored (-before +after):\n%s", diff)
			}
		})
	}
}

func TestPurge_NothingThatMayStillBeAskedAbout(t *testing.T) {
	_, p := past(t)
	if _, err := p.Plan(t.Context(), saleops.PurgeOptions{OlderThan: saleops.PurgeAtLeast - time.Second}); err == nil {
		t.Error("plan of a purge of yesterday: got nil, want an error")
	}
}

// dyingStore is a store that is gone after some steps.
type dyingStore struct {
	*store.Store
	left atomic.Int64
}

var errDied = errors.New("the store is gone")

func (k *dyingStore) PurgeRecord(ctx context.Context, seen booking.Record) error {
	if k.left.Add(-1) < 0 {
		return errDied
	}
	return k.Store.PurgeRecord(ctx, seen)
}

func (k *dyingStore) Refunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	if k.left.Load() < 0 {
		return func(yield func(booking.Refund, error) bool) { yield(booking.Refund{}, errDied) }
	}
	return k.Store.Refunds(ctx)
}

func TestPurge_KilledHalfWayIsRunAgain(t *testing.T) {
	w, p := past(t)
	opts := saleops.PurgeOptions{OlderThan: month}
	plan := mustPlanPurge(t, p, opts)
	half := *p
	dying := &dyingStore{Store: w.records(t)}
	dying.left.Store(1)
	half.Store = dying
	did, err := half.Carry(t.Context(), plan, opts)
	if !errors.Is(err, errDied) || did.Records > 1 || did.Refunds != 0 || did.Emails != 20 {
		t.Errorf("killed purge: got %+v, %v, want one record gone at most, and the e-mails", did, err)
	}
	w.wantClean(t, did.Epoch)
	rest, err := p.Carry(t.Context(), mustPlanPurge(t, p, opts), opts)
	if err != nil || rest.Records+did.Records != 3 || rest.Refunds != 1 || rest.Notifications != 1 || rest.Seats != 0 || rest.Epoch != did.Epoch {
		t.Errorf("second run: got %+v, %v, want the rest gone", rest, err)
	}
	if after := w.everything(t); strings.Contains(after, bookingtest.Code(1)) {
		t.Errorf("after it: got %s, want no name", after)
	}
}

func jsonText(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}
