package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/reconcile"
	store "holdfast/internal/store/sqlite"
)

// check lets time pass, then has everything compared.
func (w *world) check(t *testing.T, after time.Duration) reconcile.Checked {
	t.Helper()
	w.Clock.Advance(after)
	got, err := w.sweeper.CrossCheck(t.Context())
	if err != nil {
		t.Fatalf("cross-check: %v", err)
	}
	w.Background.Wait()
	return got
}

// wantCheck checks, and wants these actions and these kinds found, one each.
func (w *world) wantCheck(t *testing.T, after time.Duration, actions []string, found ...reconcile.Kind) {
	t.Helper()
	got := w.check(t, after)
	var did []string
	for action, n := range got.Actions {
		for range n {
			did = append(did, action)
		}
	}
	slices.Sort(did)
	slices.Sort(actions)
	if !slices.Equal(did, actions) {
		t.Errorf("cross-check after %s: got actions %v, want %v", after, did, actions)
	}
	want := map[reconcile.Kind]int{}
	for _, kind := range found {
		want[kind]++
	}
	if diff := cmp.Diff(want, got.Found); diff != "" {
		t.Errorf("cross-check after %s: differences (-want +got):\n%s", after, diff)
	}
}

// lose takes the candidate's row and what counts it out of the ledger, as a Redis
// that has lost time does.
func (w *world) lose(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	_, err := w.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HDel(t.Context(), prefix+"adm:seen", b.Code)
		p.ZRem(t.Context(), prefix+"adm:due", b.Code)
		p.Decr(t.Context(), prefix+"adm:total")
		p.Decr(t.Context(), prefix+"adm:level:"+b.Record.Level)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// putRow writes a row past the scripts.
func (w *world) putRow(t *testing.T, code string, row booking.Row) {
	t.Helper()
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", code, raw).Err(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) wantOpen(t *testing.T, want bool) {
	t.Helper()
	f, err := w.Ledger.ReadStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.Open != want {
		t.Errorf("booking is open: got %t, want %t", f.Open, want)
	}
}

func TestCrossCheck_FindsNothingInASaleThatRuns(t *testing.T) {
	w := inProcess(t)
	paid := w.Held(t, 1, "N1")
	w.pays(t, paid)
	w.Refused(t, 2, "N1")
	w.Paying(t, 3, "N2", "p", payingLength)
	w.Unwritten(t, 4, "N2")
	w.Admit(t, 5, "N1")
	asked := w.Gateway.Calls(bookingtest.Query, "")
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, time.Minute, nil)
	if n := w.Gateway.Calls(bookingtest.Query, "") - asked; n != 0 {
		t.Errorf("queries: got %d, want 0", n)
	}
	if got := w.log.take(); len(got) > 0 {
		t.Errorf("alarms: got %v, want none", got)
	}
	w.wantOpen(t, true)
}

// A held record without a row.

func TestCrossCheck_HeldRecordWithoutRowIsEnded(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.wantCheck(t, 2*time.Minute-time.Second, nil)
	w.wantCalls(t, b, 0, 0)
	w.Faults.Before(bookingtest.OpRelease, func() {
		w.wantCalls(t, b, 1, 0)
		w.Want(t, b, "", booking.StateHeld)
	})
	w.wantCheck(t, time.Second, []string{"released"})
	if n := w.Faults.Calls(bookingtest.OpRelease); n != 1 {
		t.Errorf("releases in the ledger: got %d, want 1", n)
	}
	w.wantReleased(t, b, 1)
	w.wantCheck(t, 0, nil)
}

// regain puts a row back, and what counts it, as a failover does; it is due now.
func (w *world) regain(t *testing.T, b bookingtest.Booking, row booking.Row) {
	t.Helper()
	w.putRow(t, b.Code, row)
	_, err := w.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.ZAdd(t.Context(), prefix+"adm:due", redis.Z{Score: 1, Member: b.Code})
		p.Incr(t.Context(), prefix+"adm:total")
		p.Incr(t.Context(), prefix+"adm:level:"+row.Level)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Money without a row is late money: the seat after all, if one is free.
func TestCrossCheck_MoneyWithoutARowGetsASeatThatIsFree(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.Gateway.Complete(b.Payment.ID)
	w.wantCheck(t, 3*time.Minute, []string{"confirmed"})
	w.wantPaid(t, b)
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, 5*time.Minute, nil) // the row was admitted anew, and that is no difference
	if got := w.log.take(); len(got) != 0 {
		t.Errorf("alarms: got %v, want none", got)
	}
}

func TestCrossCheck_MoneyWithoutARowGoesBackWhenNoneIs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*booking.Charge)
		kind   booking.MoneyKind
		reason string
	}{
		"late":        {func(*booking.Charge) {}, booking.MoneyLate, "candidate"},
		"wrong money": {func(c *booking.Charge) { c.Amount++ }, booking.MoneyOther, "other_than_ordered"},
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.announce(t, b)
			w.lose(t, b)
			fresh := w.Held(t, 1, "N2")
			w.Gateway.Divert(b.Payment.ID, c.change)
			w.Gateway.Complete(b.Payment.ID)
			w.wantCheck(t, 3*time.Minute, []string{"refunded"})
			w.WantRefund(t, b, "TX"+b.Payment.ID, c.kind, c.reason)
			w.Want(t, b, "", booking.StateReleased)
			w.Want(t, fresh, booking.PhaseHeld, booking.StateHeld)
			w.Books.CheckAtRest(t)
			w.wantCheck(t, 0, nil)
		})
	}
}

// A record that follows its late seat is given two minutes.
func TestCrossCheck_LatePaidRowIsGivenTimeForItsRecord(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.wantSweep(t, booking.DefaultHold, "released")
	w.Gateway.Complete(b.Payment.ID)
	charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	w.Faults.Next(bookingtest.OpMarkPaid, bookingtest.Lost)
	wantErr(t, "late money", w.settler.Confirm(t.Context(), b.Code, b.Record, charge), bookingtest.ErrLost)
	w.Want(t, b, booking.PhasePaid, booking.StateReleased)
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, time.Minute, nil)
	w.wantCheck(t, 2*time.Minute, nil)
	w.wantCheck(t, 0, nil, reconcile.KindState)
	w.wantSweep(t, 0, "resumed")
	w.wantPaid(t, b)
	w.wantCheck(t, 0, nil)
}

// announce is what somebody does who is about to execute the payment.
func (w *world) announce(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	if _, err := w.Store.StoreDriver.Announce(t.Context(), b.Record, w.Clock.Now()); err != nil {
		t.Error(err)
	}
}

// An execute call was announced: one answer ends nothing, before the payment has
// lapsed; afterwards a clear one does.
func TestCrossCheck_AnnouncedExecuteIsKeptUntilAClearAnswerAfterTheLapse(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.announce(t, b)
	w.lose(t, b)
	w.wantCheck(t, booking.DefaultHold, []string{"doubt"})
	w.wantCheck(t, 5*time.Minute, []string{"doubt"}, reconcile.KindHeldRecord)
	w.wantCalls(t, b, 1, 0) // a doubt is not asked about every time
	w.wantCheck(t, 5*time.Minute, []string{"doubt"}, reconcile.KindHeldRecord)
	w.wantCalls(t, b, 2, 0)
	w.wantCheck(t, 23*time.Hour, []string{"doubt"}, reconcile.KindHeldRecord)
	w.Want(t, b, "", booking.StateHeld)
	w.log.take()
	unclear := []bookingtest.Answer{
		bookingtest.LostCall(), bookingtest.Garbled(), bookingtest.Altered(func(c *booking.Charge) { c.Status = "on hold" }),
	}
	for i, answer := range unclear {
		w.Gateway.Next(bookingtest.Query, b.Payment.ID, answer)
		w.wantCheck(t, time.Hour, []string{"doubt"}, reconcile.KindHeldRecord)
		w.Want(t, b, "", booking.StateHeld)
		if n := loud(w.log.take()); n != 1 {
			t.Errorf("calls for a human after unclear answer %d: got %d, want 1", i+1, n)
		}
	}
	w.wantCheck(t, time.Hour, []string{"released"})
	w.Want(t, b, "", booking.StateReleased)
	w.Books.CheckAtRest(t)
}

// The gateway garbles its answer about a payment that has completed: it is found
// when the gateway is clear again, not lost.
func TestCrossCheck_CompletedMoneyOutlivesAnUnclearAnswerAfterTheLapse(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.announce(t, b)
	w.lose(t, b)
	w.Gateway.Complete(b.Payment.ID)
	w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Garbled())
	w.wantCheck(t, 24*time.Hour+3*time.Minute, []string{"doubt"})
	w.Want(t, b, "", booking.StateHeld)
	w.wantCheck(t, time.Hour, []string{"confirmed"})
	w.wantPaid(t, b)
}

// An answer that is older than an announced execute call ends nothing; money that
// moves by that call is found.
func TestCrossCheck_RecordAnnouncedMeanwhileIsKept(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.Faults.Before(bookingtest.OpReleaseRecord, func() { w.announce(t, b) })
	w.wantCheck(t, 3*time.Minute, []string{"moved"})
	w.Want(t, b, "", booking.StateHeld)
	w.wantCheck(t, 0, []string{"doubt"})
	w.Gateway.Complete(b.Payment.ID)
	w.wantCheck(t, 11*time.Minute, []string{"confirmed"})
	w.wantPaid(t, b)
}

func TestCrossCheck_AnswerInDoubtEndsNothing(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.Gateway.Next(bookingtest.Query, b.Payment.ID, bookingtest.Garbled(), bookingtest.LostCall())
	w.wantCheck(t, 3*time.Minute, []string{"doubt"})
	w.wantCheck(t, 10*time.Minute, []string{"doubt"}, reconcile.KindHeldRecord)
	w.Want(t, b, "", booking.StateHeld)
	w.wantCheck(t, 10*time.Minute, []string{"released"})
	w.wantReleased(t, b, 1)
}

func TestCrossCheck_GatewayOutageIsOneAlarmAndEndsNothing(t *testing.T) {
	w := inProcess(t)
	var lost []bookingtest.Booking
	for i := range 3 {
		b := w.Held(t, i+1, "N1")
		w.lose(t, b)
		lost = append(lost, b)
	}
	w.Gateway.Always(bookingtest.Query, "", bookingtest.NotSent())
	got := w.check(t, 3*time.Minute)
	if n := got.Actions["outage"] + got.Actions["skipped"]; n != 3 || got.Actions["outage"] == 0 {
		t.Errorf("actions: got %v, want an outage", got.Actions)
	}
	if got := w.log.take(); len(got) != 1 || !strings.Contains(got[0], "cannot be reached") {
		t.Errorf("alarms: got %v, want one", got)
	}
	w.Gateway.Always(bookingtest.Query, "", bookingtest.Obey())
	w.wantCheck(t, 5*time.Minute, []string{"released", "released", "released"})
	for _, b := range lost {
		w.Want(t, b, "", booking.StateReleased)
	}
}

func TestCrossCheck_NothingIsReleasedWhileReleasesArePutOff(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.deps.Ledger = resting{w.Ledger}
	w.sweeper = w.another(t)
	w.wantCheck(t, 3*time.Minute, []string{"put_off"})
	w.Want(t, b, "", booking.StateHeld)
}

// Release answered, the runner pauses; the candidate books again and pays; the
// runner goes on: it ends its own attempt's record and no other.
func TestHole3_PausedCrossCheckEndsItsOwnRecordOnly(t *testing.T) {
	w := inProcess(t)
	old := w.Held(t, 1, "N1")
	w.lose(t, old)
	var fresh bookingtest.Booking
	w.Faults.Before(bookingtest.OpReleaseRecord, func() {
		fresh = w.Held(t, 1, "N1")
		w.Gateway.Finish(fresh.Payment.ID)
		if err := w.settler.Return(t.Context(), fresh.Code, fresh.Attempt, fresh.Payment.ID); err != nil {
			t.Errorf("return: %v", err)
		}
	})
	w.wantCheck(t, 3*time.Minute, []string{"released"})
	w.Want(t, old, "", booking.StateReleased)
	w.wantPaid(t, fresh)
}

// Redis restarted from a snapshot: the epoch is there, an acknowledged paid seat
// is gone and would be sold again.
func TestHole15_PaidRecordWithoutItsRowClosesBooking(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.pays(t, b)
	w.lose(t, b)
	reg := prometheus.NewRegistry()
	w.deps.Registerer = reg
	r, err := reconcile.New(w.deps)
	if err != nil {
		t.Fatal(err)
	}
	w.sweeper = r
	if err := w.Ledger.OpenAt(t.Context(), w.Clock.Now().Add(-time.Minute)); err != nil { // also a scheduled opening is closed
		t.Fatal(err)
	}
	w.wantCheck(t, 0, []string{"lost_time"}, reconcile.KindPaidRecord)
	w.wantOpen(t, false)
	_, err = w.Ledger.Admit(t.Context(), booking.Request{Code: bookingtest.Code(2), Email: bookingtest.Email(2), Level: "N1"}, booking.NewAttemptSuffix(w.Clock.Now()), false)
	wantErr(t, "a request after the check", err, booking.ErrNotOpen)
	if got := w.log.take(); len(got) != 2 {
		t.Errorf("alarms: got %v, want the difference and that booking is closed", got)
	}
	w.Want(t, b, "", booking.StatePaid)

	w.wantCheck(t, 5*time.Minute, []string{"lost_time"}, reconcile.KindPaidRecord)
	if got := w.log.take(); len(got) != 0 {
		t.Errorf("alarms of the second check: got %v, want none again", got)
	}
	if got := gauge(t, reg, "holdfast_ledger_mismatch", string(reconcile.KindPaidRecord)); got != 1 {
		t.Errorf("gauge: got %v, want 1", got)
	}
}

// marks is a store in which an operator has reset the sale when the mark is read.
type marks struct {
	reconcile.Store
	reset func()
}

func (m marks) EpochMark(ctx context.Context) (booking.EpochMark, error) {
	m.reset()
	return m.Store.EpochMark(ctx)
}

// A failover has lost an acknowledged reset: Redis is back in the sale that it ended,
// and would sell its seats again.
func TestCrossCheck_AResetThatRedisHasLostClosesBooking(t *testing.T) {
	w := inProcess(t)
	records, err := store.Open(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	begin := func(epoch string) {
		t.Helper()
		if err := records.MarkEpoch(t.Context(), booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: epoch, At: w.Clock.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	begin(bookingtest.Epoch)
	w.wantCheck(t, 0, nil)
	next := booking.NextEpoch(bookingtest.Epoch, w.Clock.Now())
	begin(next)
	if err := w.Ledger.OpenAt(t.Context(), w.Clock.Now().Add(-time.Minute)); err != nil { // also a scheduled opening is closed
		t.Fatal(err)
	}
	changed := w.changed.Load()
	w.wantCheck(t, 0, []string{"lost_time"}, reconcile.KindResetLost)
	w.wantOpen(t, false)
	if got := w.log.take(); len(got) != 2 || w.changed.Load() == changed {
		t.Errorf("alarms: got %v, want the difference, and that booking is closed", got)
	}
	if err := w.Ledger.Open(t.Context()); err != nil { // whoever opens it all the same
		t.Fatal(err)
	}
	w.wantCheck(t, 5*time.Minute, []string{"lost_time"}, reconcile.KindResetLost)
	w.wantOpen(t, false)
	if got := w.log.take(); len(got) != 0 {
		t.Errorf("alarms of the second check: got %v, want none again", got)
	}
	if err := w.rdb.Set(t.Context(), prefix+"adm:epoch", next, 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.wantCheck(t, 0, nil)
}

// A reset that is made while the check looks is no loss: it writes the ledger first.
func TestCrossCheck_AResetMeanwhileIsNoLoss(t *testing.T) {
	w := inProcess(t)
	next := booking.NextEpoch(bookingtest.Epoch, w.Clock.Now())
	records, err := store.Open(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	w.deps.Store = marks{w.Store, func() {
		if err := w.rdb.Set(t.Context(), prefix+"adm:epoch", next, 0).Err(); err != nil {
			t.Error(err)
		}
		if err := records.MarkEpoch(t.Context(), booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: next, At: w.Clock.Now()}); err != nil {
			t.Error(err)
		}
	}}
	w.sweeper = w.another(t)
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, 0, nil)
	w.wantOpen(t, true)
}

// On a primary whose replica does not answer nothing is known, and nobody is admitted.
func TestCrossCheck_ALostResetRestsOnAcknowledgedAnswers(t *testing.T) {
	w := onPair(t)
	records, err := store.Open(t.Context(), w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	if err := records.MarkEpoch(t.Context(), booking.EpochMark{
		Version: booking.EpochMarkVersion, Epoch: booking.NextEpoch(bookingtest.Epoch, w.Clock.Now()), At: w.Clock.Now(),
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	got, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check", err, booking.ErrNotAcknowledged)
	if got.Found[reconcile.KindResetLost] != 0 || got.Actions["lost_time"] != 0 {
		t.Errorf("cross-check: got %+v, want nothing decided", got)
	}
	w.wantOpen(t, true)
}

// gauge reads one series of a gauge by its only label.
func gauge(t *testing.T, reg prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no series %s of %s", label, name)
	return 0
}

// unreadStore is a booking store whose records can be read, or cannot.
type unreadStore struct {
	reconcile.Store
	down bool
}

func (s *unreadStore) Records(ctx context.Context) iter.Seq2[booking.Record, error] {
	if s.down {
		return func(yield func(booking.Record, error) bool) { yield(booking.Record{}, errDown) }
	}
	return s.Store.Records(ctx)
}

var errDown = errors.New("the store is down")

// A zero that nobody has seen would say that store and ledger agree.
func TestCrossCheck_ShowsOnlyWhatItKnows(t *testing.T) {
	w := inProcess(t)
	reg, store := prometheus.NewRegistry(), &unreadStore{Store: w.deps.Store}
	w.deps.Registerer, w.deps.Store = reg, store
	r, err := reconcile.New(w.deps)
	if err != nil {
		t.Fatal(err)
	}
	b := w.Held(t, 1, "N1")
	forgotten := w.Row(t, b.Code)
	w.pays(t, b)
	w.putRow(t, b.Code, forgotten)

	none := map[string]float64{}
	every := map[string]float64{}
	for _, kind := range reconcile.Kinds() {
		every[string(kind)] = 0
	}
	every[string(reconcile.KindForgotten)] = 1
	known := map[string]float64{string(reconcile.KindForgotten): 1}
	var last float64
	for _, step := range []struct {
		name  string
		check bool
		down  bool
		want  map[string]float64
		moves bool // when the last whole check was
	}{
		{name: "before any check", want: none},
		{name: "a check that cannot read the store", check: true, down: true, want: none},
		{name: "a whole one", check: true, want: every, moves: true},
		{name: "the store is down again", check: true, down: true, want: known},
	} {
		store.down = step.down
		if step.check {
			if _, err := r.CrossCheck(t.Context()); errors.Is(err, errDown) != step.down || (err != nil) != step.down {
				t.Errorf("%s: got %v, want an error %t", step.name, err, step.down)
			}
		}
		if diff := cmp.Diff(step.want, series(t, reg, "holdfast_ledger_mismatch")); diff != "" {
			t.Errorf("%s: differences shown (-want +got):\n%s", step.name, diff)
		}
		at := series(t, reg, "holdfast_cross_check_last_success_timestamp_seconds")[""]
		if (at > last) != step.moves {
			t.Errorf("%s: last whole check: got %v after %v, want it to move %t", step.name, at, last, step.moves)
		}
		last = at
	}
}

// series reads a gauge's series by their only label; "" is one without.
func series(t *testing.T, reg prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name {
				continue
			}
			label := ""
			if len(m.GetLabel()) > 0 {
				label = m.GetLabel()[0].GetValue()
			}
			all[label] = m.GetGauge().GetValue()
		}
	}
	return all
}

func TestCrossCheck_SeatPaidByAnotherTransactionClosesBooking(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.pays(t, b)
	row := w.Row(t, b.Code)
	row.Transaction = "TXother"
	w.putRow(t, b.Code, row)
	w.wantCheck(t, 0, []string{"lost_time"}, reconcile.KindPaidRecord)
	w.wantOpen(t, false)
}

// The seat is still this attempt's, and only the payment is forgotten: it is
// settled again, loudly, and nobody else's sale ends.
func TestCrossCheck_ForgottenPaymentIsSettledAgain(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	before := w.Row(t, b.Code)
	w.pays(t, b)
	w.putRow(t, b.Code, before)
	w.wantCheck(t, 0, []string{"settled_again"}, reconcile.KindForgotten)
	if got := w.log.take(); len(got) != 1 {
		t.Errorf("alarms: got %v, want one", got)
	}
	w.wantOpen(t, true)
	w.sweep(t, time.Minute)
	w.wantPaid(t, b)
	w.wantCheck(t, 0, nil)
}

// A failover brings the row back after the plain read: the acknowledged answer
// says that the attempt owns it, and its record stays.
func TestHole27_PlainReadEndsNoRecord(t *testing.T) {
	w := inProcess(t)
	b := w.Paying(t, 1, "N1", "p", payingLength)
	row := w.Row(t, b.Code)
	w.lose(t, b)
	w.Faults.Before(bookingtest.OpRelease, func() { w.putRow(t, b.Code, row) })
	w.wantCheck(t, 3*time.Minute, []string{"moved"})
	w.Want(t, b, booking.PhasePaying, booking.StateHeld)
}

// Nothing outside Redis rests on an answer that was not acknowledged.
func TestHole27_UnacknowledgedAnswersChangeNothing(t *testing.T) {
	w := onPair(t)
	held, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.pays(t, paid)
	w.Clock.Advance(3 * time.Minute)
	w.lose(t, held)
	w.lose(t, paid)
	if err := w.pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	got, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check", err, booking.ErrNotAcknowledged)
	if got.Actions["failed"] != 1 || got.Actions["put_off"] != 1 {
		t.Errorf("actions: got %v, want one not acknowledged, and one not tried", got.Actions)
	}
	w.Want(t, held, "", booking.StateHeld)
	w.Want(t, paid, "", booking.StatePaid)
	w.wantOpen(t, true)
	if n := got.Found[reconcile.KindPaidRecord]; n != 0 {
		t.Errorf("paid records without a row: got %d, want 0: nobody knows yet", n)
	}
	if n := w.Faults.Calls(bookingtest.OpReleaseRecord); n != 0 {
		t.Errorf("ends of records: got %d, want 0", n)
	}
	if err := w.pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	for range 20 { // until the replica has caught up
		if _, err = w.sweeper.CrossCheck(t.Context()); err == nil {
			break
		}
	}
	w.Want(t, held, "", booking.StateReleased)
	w.wantOpen(t, false)
}

func TestCrossCheck_CloseThatWasNotAcknowledgedIsRepeated(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.pays(t, b)
	w.lose(t, b)
	w.Faults.Next(bookingtest.OpClose, bookingtest.Lost)
	_, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check", err, bookingtest.ErrLost)
	w.wantOpen(t, true)
	w.wantCheck(t, 0, []string{"lost_time"}, reconcile.KindPaidRecord)
	w.wantOpen(t, false)
}

// Each step of ending a record can break off, lost or kept; the next check
// finishes it.
func TestCrossCheck_BrokenStepIsFinishedByTheNext(t *testing.T) {
	for _, op := range []bookingtest.Op{bookingtest.OpRelease, bookingtest.OpReleaseRecord} {
		for name, fault := range map[string]bookingtest.Fault{"lost": bookingtest.Lost, "kept": bookingtest.Kept} {
			t.Run(string(op)+" "+name, func(t *testing.T) {
				w := inProcess(t)
				b := w.Held(t, 1, "N1")
				w.lose(t, b)
				w.Faults.Next(op, fault)
				w.Clock.Advance(3 * time.Minute)
				if _, err := w.sweeper.CrossCheck(t.Context()); err == nil {
					t.Error("cross-check with a broken step: got nil, want an error")
				}
				w.Books.Check(t)
				w.check(t, 5*time.Minute)
				w.Want(t, b, "", booking.StateReleased)
				w.Books.CheckAtRest(t)
			})
		}
	}
}

// Every other difference alarms when it is there on two checks in a row, once.
func TestCrossCheck_DifferencesAlarmWhenSeenTwice(t *testing.T) {
	set := func(key, value string) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			if err := w.rdb.Set(t.Context(), prefix+key, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	row := func(change func(*booking.Row)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			row := w.Row(t, bookingtest.Code(1))
			change(&row)
			w.putRow(t, bookingtest.Code(1), row)
		}
	}
	lookIn := func(d time.Duration) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			at := redis.Z{Score: float64(w.Clock.Now().Add(d).UnixMilli()), Member: bookingtest.Code(1)}
			if err := w.rdb.ZAdd(t.Context(), prefix+"adm:due", at).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		damage func(*testing.T, *world) // candidate 1 is held, 2 is paid, both in N1
		want   []reconcile.Kind
	}{
		{"row without record", func(t *testing.T, w *world) {
			w.exec(t, `DELETE FROM records WHERE attempt = ?`, w.Row(t, bookingtest.Code(1)).Attempt)
		}, []reconcile.Kind{reconcile.KindNoRecord}},
		{"paid row without record", func(t *testing.T, w *world) {
			w.exec(t, `DELETE FROM records WHERE attempt = ?`, w.Row(t, bookingtest.Code(2)).Attempt)
		}, []reconcile.Kind{reconcile.KindNoRecord}},
		{"row whose record is released", func(t *testing.T, w *world) {
			rec := w.Row(t, bookingtest.Code(1)).HeldRecord(bookingtest.Code(1), "", "")
			if err := w.Store.Release(t.Context(), rec, "test", w.Clock.Now()); err != nil {
				t.Fatal(err)
			}
		}, []reconcile.Kind{reconcile.KindState}},
		{"paid row whose record is held", row(func(r *booking.Row) { r.Phase, r.PaidAt = booking.PhasePaid, 1 }), []reconcile.Kind{reconcile.KindState}},
		{"row that nobody looks at", func(t *testing.T, w *world) {
			if err := w.rdb.ZRem(t.Context(), prefix+"adm:due", bookingtest.Code(1)).Err(); err != nil {
				t.Fatal(err)
			}
		}, []reconcile.Kind{reconcile.KindNotLooked}},
		{"row that cannot be read", func(t *testing.T, w *world) {
			if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", bookingtest.Code(1), "{").Err(); err != nil {
				t.Fatal(err)
			}
		}, []reconcile.Kind{reconcile.KindUnreadable, reconcile.KindCounter}},
		{"record that cannot be read", func(t *testing.T, w *world) {
			w.exec(t, `UPDATE records SET body = '{"v":2}' WHERE attempt = ?`, w.Row(t, bookingtest.Code(1)).Attempt)
		}, []reconcile.Kind{reconcile.KindUnreadable}},
		{"total one too many", set("adm:total", "3"), []reconcile.Kind{reconcile.KindCounter}},
		{"total one too few", set("adm:total", "1"), []reconcile.Kind{reconcile.KindCounter}},
		{"level one too many", set("adm:level:N1", "3"), []reconcile.Kind{reconcile.KindCounter}},
		{"level not a number", set("adm:level:N1", "two"), []reconcile.Kind{reconcile.KindCounter}},
		{"row of a level that is not sold", row(func(r *booking.Row) { r.Level = "N9" }), []reconcile.Kind{reconcile.KindCounter, reconcile.KindCounter, reconcile.KindState}},
		{"row of another payment", row(func(r *booking.Row) { r.Payment = "TR999999" }), []reconcile.Kind{reconcile.KindState}},
		{"row of another order", row(func(r *booking.Row) { r.Amount, r.Currency = r.Amount-1, "USD" }), []reconcile.Kind{reconcile.KindState}},
		{"row of another admission", row(func(r *booking.Row) { r.AdmittedAt-- }), []reconcile.Kind{reconcile.KindState}},
		{"row whose time to pay is shorter", row(func(r *booking.Row) { r.Deadline-- }), []reconcile.Kind{reconcile.KindState}},
		{"row whose time to pay was made longer", row(func(r *booking.Row) { r.Deadline, r.Hold = r.Deadline+60_000, r.Hold+60_000 }), nil},
		{"paid row of another order", func(t *testing.T, w *world) {
			r := w.Row(t, bookingtest.Code(2))
			r.Amount--
			w.putRow(t, bookingtest.Code(2), r)
		}, []reconcile.Kind{reconcile.KindState}},
		{"refused row that says its record is ended", row(func(r *booking.Row) { r.Phase, r.Released = booking.PhaseRefused, true }), []reconcile.Kind{reconcile.KindState}},
		{"refused row whose record is not ended yet", row(func(r *booking.Row) { r.Phase = booking.PhaseRefused }), nil},
		{"refused row without record", func(t *testing.T, w *world) {
			r := w.Row(t, bookingtest.Code(1))
			w.exec(t, `DELETE FROM records WHERE attempt = ?`, r.Attempt)
			r.Phase = booking.PhaseRefused
			w.putRow(t, bookingtest.Code(1), r)
		}, []reconcile.Kind{reconcile.KindNoRecord}},
		{"held row looked at an hour after its deadline", lookIn(70 * time.Minute), []reconcile.Kind{reconcile.KindTooLate}},
		{"held row looked at ten minutes after its deadline", lookIn(20 * time.Minute), nil},
		{"paying row looked at in an hour", func(t *testing.T, w *world) {
			row(func(r *booking.Row) { r.Phase, r.Owner, r.Ends = booking.PhasePaying, "p", 1 })(t, w)
			lookIn(time.Hour)(t, w)
		}, []reconcile.Kind{reconcile.KindTooLate}},
		{"deadline beyond the hold, and looked at then", func(t *testing.T, w *world) {
			row(func(r *booking.Row) { r.Deadline += time.Hour.Milliseconds() })(t, w)
			lookIn(70*time.Minute)(t, w)
		}, []reconcile.Kind{reconcile.KindTooLate}},
		{"phase that nobody knows", row(func(r *booking.Row) { r.Phase = "gone" }), []reconcile.Kind{reconcile.KindUnreadable}},
		{"row of another sale", func(t *testing.T, w *world) {
			r := w.Row(t, bookingtest.Code(1))
			r.Attempt = booking.AttemptID(booking.NewEpoch(time.Unix(1_700_000_000, 0)), booking.NewAttemptSuffix(w.Clock.Now()))
			r.Payment, r.Phase, r.Deadline = "", booking.PhaseNew, 0
			w.regain(t, bookingtest.Booking{Code: bookingtest.Code(3)}, r)
		}, []reconcile.Kind{reconcile.KindUnreadable}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := inProcess(t)
			w.Held(t, 1, "N1")
			w.pays(t, w.Held(t, 2, "N1"))
			c.damage(t, w)
			w.wantCheck(t, 3*time.Minute, nil)
			if got := w.log.take(); len(got) != 0 {
				t.Errorf("alarms of the first check: got %v, want none", got)
			}
			w.wantCheck(t, 0, nil, c.want...)
			if got := w.log.take(); len(got) != len(c.want) {
				t.Errorf("alarms of the second check: got %v, want %d", got, len(c.want))
			}
			w.wantCheck(t, 0, nil, c.want...)
			if got := w.log.take(); len(got) != 0 {
				t.Errorf("alarms of the third check: got %v, want none again", got)
			}
			w.wantOpen(t, true)
		})
	}
}

func TestCrossCheck_GlimpseIsNoAlarm(t *testing.T) {
	w := inProcess(t)
	b := w.Unwritten(t, 1, "N1")
	w.wantCheck(t, 3*time.Minute, nil)
	w.Write(t, b)
	w.wantCheck(t, 0, nil)
	w.wantCheck(t, 0, nil)
	if got := w.log.take(); len(got) != 0 {
		t.Errorf("alarms: got %v, want none", got)
	}
}

func TestCrossCheck_MoreSeatsThanACapAlarmAtOnce(t *testing.T) {
	w := inProcess(t)
	for i := range 2 {
		w.Held(t, i+1, "N1")
	}
	if err := w.rdb.HSet(t.Context(), prefix+"sale:config", "cap:N1", 1).Err(); err != nil {
		t.Fatal(err)
	}
	w.wantCheck(t, 0, nil, reconcile.KindOverCap)
	if got := w.log.take(); len(got) != 1 {
		t.Errorf("alarms: got %v, want one", got)
	}
}

func TestCrossCheck_TwoLiveRecordsOfOneCandidate(t *testing.T) {
	w := inProcess(t)
	old := w.Held(t, 1, "N1")
	w.lose(t, old)
	fresh := w.Held(t, 1, "N1")
	w.Gateway.Always(bookingtest.Query, old.Payment.ID, bookingtest.LostCall())
	w.wantCheck(t, 3*time.Minute, []string{"doubt"})
	w.wantCheck(t, 0, []string{"doubt"}, reconcile.KindHeldRecord, reconcile.KindTwoLive)
	w.Want(t, fresh, booking.PhaseHeld, booking.StateHeld)
	w.Gateway.Always(bookingtest.Query, old.Payment.ID, bookingtest.Obey())
	w.wantCheck(t, 10*time.Minute, []string{"released"})
	w.Want(t, old, "", booking.StateReleased)
	w.Want(t, fresh, booking.PhaseHeld, booking.StateHeld)
}

// What a broken-off check did not look at is not gone.
func TestCrossCheck_BrokenOffForgetsNothing(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.exec(t, `DELETE FROM records WHERE attempt = ?`, b.Attempt)
	w.wantCheck(t, 3*time.Minute, nil)
	for _, op := range []bookingtest.Op{bookingtest.OpScan, bookingtest.OpRows} {
		w.Faults.Next(op, bookingtest.Lost)
		_, err := w.sweeper.CrossCheck(t.Context())
		wantErr(t, "cross-check without "+string(op), err, bookingtest.ErrLost)
	}
	w.wantCheck(t, 0, nil, reconcile.KindNoRecord)
	w.Faults.Next(bookingtest.OpScan, bookingtest.Lost)
	got, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check", err, bookingtest.ErrLost)
	if n := got.Found[reconcile.KindNoRecord]; n != 1 {
		t.Errorf("rows without record after a broken-off check: got %d, want still 1", n)
	}
}

// An empty Redis decides nothing, and records of another sale are not compared.
func TestCrossCheck_OnlyTheRunningSale(t *testing.T) {
	w := inProcess(t)
	held, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.pays(t, paid)
	w.Clock.Advance(time.Hour)
	if err := w.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check of an empty ledger", err, booking.ErrLedgerUnknown)
	if _, err := w.Ledger.ApplySale(t.Context(), bookingtest.Sale(), booking.NewEpoch(w.Clock.Now()), false); err != nil {
		t.Fatal(err)
	}
	if err := w.Ledger.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCheck(t, 0, nil)
	w.wantOpen(t, true)
	w.Want(t, held, "", booking.StateHeld)
	w.Want(t, paid, "", booking.StatePaid)
}

func TestCrossCheck_ManyRecordsInPages(t *testing.T) {
	w := empty(t)
	sale := bookingtest.Sale()
	const n = 510
	sale.Cap, sale.Levels[0].Cap = n, n
	w.Open(t, sale, n)
	for i := range n {
		w.Held(t, i+1, "N1")
	}
	missing := w.Row(t, bookingtest.Code(n))
	w.exec(t, `DELETE FROM records WHERE attempt = ?`, missing.Attempt)
	w.wantCheck(t, 3*time.Minute, nil)
	w.wantCheck(t, 0, nil, reconcile.KindNoRecord)
}

// A new primary has no replica yet when it is looked at: the check that was asked
// for then is owed until one has finished, sweeps between, and finds what is lost.
func TestRun_CheckThatCannotFinishIsRepeatedUntilItHas(t *testing.T) {
	for name, unfinished := range map[string]func(w *world){
		"an answer was not acknowledged": func(w *world) {
			w.Faults.Next(bookingtest.OpSettle, bookingtest.Kept, bookingtest.Lost, bookingtest.Lost)
		},
		"the rows could not be read": func(w *world) {
			w.Faults.Next(bookingtest.OpRows, bookingtest.Lost, bookingtest.Lost, bookingtest.Lost)
		},
		"the records could not be read": func(w *world) {
			w.Faults.Next(bookingtest.OpScan, bookingtest.Lost, bookingtest.Lost, bookingtest.Lost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := inProcess(t)
			b := w.Held(t, 1, "N1")
			w.pays(t, b)
			row := w.Row(t, b.Code)
			w.deps.Every = time.Millisecond // checks are five minutes apart
			runner := w.another(t)
			var mu sync.Mutex
			var order []string
			whole := make(chan struct{})
			for range 100 {
				w.Faults.Before(bookingtest.OpDue, func() { mu.Lock(); order = append(order, "sweep"); mu.Unlock() })
			}
			for i := range 4 {
				w.Faults.Before(bookingtest.OpScan, func() {
					mu.Lock()
					order = append(order, "check")
					mu.Unlock()
					if i == 3 {
						close(whole)
					}
				})
			}
			w.lose(t, b)
			unfinished(w)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- runner.Run(ctx) }()
			select {
			case <-whole:
			case <-ctx.Done():
				t.Error("checks after the first: got too few in 20 s, want one after each that could not finish")
			}
			// What the last one owes is done before it ends, and a check that has
			// finished is not repeated.
			for f := (booking.Figures{Open: true}); f.Open && ctx.Err() == nil; {
				var err error
				if f, err = w.Ledger.ReadStatus(ctx); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("run: got %v, want nil", err)
			}
			w.wantOpen(t, false)
			w.putRow(t, b.Code, row) // for the checks of the test's end
			mu.Lock()
			defer mu.Unlock()
			for i := range order[1:] {
				if order[i] == "check" && order[i+1] == "check" {
					t.Errorf("order: got %v, want a sweep between two checks", order)
					break
				}
			}
		})
	}
}

func TestRun_ReleasesPutOffInACheckAreOwedToo(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.Clock.Advance(3 * time.Minute)
	unheard := &unheard{Ledger: w.Ledger}
	unheard.times.Store(3)
	w.deps.Ledger, w.deps.Every = unheard, time.Millisecond
	released := make(chan struct{})
	w.Faults.Before(bookingtest.OpReleaseRecord, func() { close(released) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	runner := w.another(t)
	go func() { ended <- runner.Run(ctx) }()
	select {
	case <-released:
	case <-ctx.Done():
		t.Error("record whose release was put off: got it kept for 20 s, want the check repeated")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
	w.Want(t, b, "", booking.StateReleased)
}

// Run checks at its start and when it is asked to, between sweeps.
func TestRun_CrossChecksAtOnceWhenAsked(t *testing.T) {
	w := inProcess(t)
	w.deps.Every = time.Hour
	w.sweeper = w.another(t)
	checked := make(chan struct{})
	for range 3 {
		w.Faults.Before(bookingtest.OpScan, func() { checked <- struct{}{} })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.sweeper.Run(ctx) }()
	<-checked // at the start
	for range 2 {
		w.sweeper.CrossCheckNow()
		w.sweeper.CrossCheckNow() // the same hint, or one more check
		<-checked
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}

func TestRun_CrossChecksFromTimeToTime(t *testing.T) {
	w := inProcess(t)
	w.deps.Every, w.deps.CheckEvery = time.Hour, time.Millisecond
	w.sweeper = w.another(t)
	checked := make(chan struct{})
	for range 3 {
		w.Faults.Before(bookingtest.OpScan, func() { checked <- struct{}{} })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.sweeper.Run(ctx) }()
	for range 3 {
		<-checked
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}

// A ledger that has lost everything does not fill the log.
func TestCrossCheck_TellsSoManyAndNoMore(t *testing.T) {
	w := empty(t)
	sale := bookingtest.Sale()
	const n = 1010
	sale.Cap, sale.Levels[0].Cap = n, n
	w.Open(t, sale, 0)
	for i := range n {
		code := bookingtest.Code(i + 1)
		rec := booking.Row{
			Attempt: booking.AttemptID(bookingtest.Epoch, booking.NewAttemptSuffix(w.Clock.Now())), Level: "N1", Amount: 150000, Currency: "BDT",
			Payment: fmt.Sprintf("TR%06d", i), AdmittedAt: w.Clock.Now().UnixMilli(), Deadline: w.Clock.Now().Add(time.Minute).UnixMilli(),
		}.HeldRecord(code, "", "")
		if _, err := w.Store.MarkPaid(t.Context(), booking.Paid{Record: rec, Transaction: fmt.Sprintf("TX%06d", i), PaidAt: w.Clock.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	got := w.check(t, 0)
	if got.Found[reconcile.KindPaidRecord] != n {
		t.Errorf("paid records without a row: got %d, want %d", got.Found[reconcile.KindPaidRecord], n)
	}
	differ, more := 0, 0
	for _, text := range w.log.take() {
		if text == "store and ledger differ" {
			differ++
		}
		if strings.Contains(text, "more places") {
			more++
		}
	}
	if differ != 1000 || more != 1 {
		t.Errorf("told %d one by one and %d times that there are more, want 1000 and 1", differ, more)
	}
	w.wantOpen(t, false)
}

func TestCrossCheck_DecidesNothingAfterItsContext(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	w.Clock.Advance(3 * time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	w.Faults.Before(bookingtest.OpScan, func() { cancel() })
	if _, err := w.sweeper.CrossCheck(ctx); err == nil {
		t.Error("cross-check whose context ended: got nil, want an error")
	}
	w.Want(t, b, "", booking.StateHeld)
	w.wantCalls(t, b, 0, 0)
}

// Rows that a rebuild has put back carry the sale's epoch, and differ from nothing.
func TestCrossCheck_RebuiltRowsAreTheSalesOwn(t *testing.T) {
	w := inProcess(t)
	held, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.pays(t, paid)
	rows := []booking.RestoredRow{
		{Code: held.Code, Row: w.Row(t, held.Code), Look: held.Record.Deadline, Payment: held.Payment},
		{Code: paid.Code, Row: w.Row(t, paid.Code), Payment: paid.Payment},
	}
	if err := w.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	token, err := w.Ledger.BeginRebuild(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Ledger.Restore(t.Context(), token, rows); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Ledger.FinishRebuild(t.Context(), bookingtest.Sale(), bookingtest.Epoch, token); err != nil {
		t.Fatal(err)
	}
	w.wantCheck(t, 3*time.Minute, nil)
	w.wantCheck(t, 0, nil)
}

// What is listed in Redis only is listed again by every check; where that fails the
// rest is checked, and the check is not whole.
func TestCrossCheck_RestoresListsOnceACheck(t *testing.T) {
	w := inProcess(t)
	b := w.Held(t, 1, "N1")
	w.lose(t, b)
	calls, fails := 0, bookingtest.ErrLost
	w.deps.Restore = func(ctx context.Context) error {
		calls++
		if _, limited := ctx.Deadline(); !limited {
			t.Error("restore: got no deadline, want one that leaves the check its time")
		}
		return fails
	}
	w.sweeper = w.another(t)
	w.Clock.Advance(3 * time.Minute)
	got, err := w.sweeper.CrossCheck(t.Context())
	wantErr(t, "cross-check", err, bookingtest.ErrLost)
	if got.Actions["released"] != 1 {
		t.Errorf("actions: got %v, want the rest checked all the same", got.Actions)
	}
	fails = nil
	w.wantCheck(t, 0, nil)
	if calls != 2 {
		t.Errorf("restores of two checks: got %d, want 2", calls)
	}
}

func TestCrossCheck_EmptyLedgerRestoresNothing(t *testing.T) {
	w := empty(t)
	w.deps.Restore = func(context.Context) error {
		t.Error("restore into a Redis that has no epoch: got a call, want none")
		return nil
	}
	_, err := w.another(t).CrossCheck(t.Context())
	wantErr(t, "cross-check", err, booking.ErrLedgerUnknown)
}
