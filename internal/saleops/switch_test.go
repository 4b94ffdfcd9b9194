package saleops_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

// switchWorld is a ledger's switch, what people read of it, and the fleet beside it.
// Time passes by waiting.
type switchWorld struct {
	now            time.Time
	epoch          error
	sale           booking.Sale
	saleErr        error
	open           bool
	opensAt        time.Time
	total, level   int
	allowlist      int
	rebuild        string
	acks, ackErr   error // of a probe, and of a change
	readErr        error
	elected        bool
	page           string // "" says what the ledger says
	pageErr        error
	stats          booking.QueueStats
	eviction       error
	token          saleops.TokenSight
	fleet          saleops.FleetSight
	fleetErr       error
	loading        booking.AllowlistLoad
	loadingErr     error
	mark           booking.EpochMark
	markErr        error
	version        int64
	onWait         func()
	changes, waits int
	noFleet        bool
	over           booking.Shown // what was opened over
}

func newSwitchWorld() *switchWorld {
	now := time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	return &switchWorld{
		now: now, allowlist: 7, elected: true,
		sale:  booking.Sale{Name: "exam", Currency: "BDT", Cap: 10, Hold: time.Minute, Levels: []booking.Level{{ID: "N1", Name: "N1", Cap: 10, Fee: 1}}},
		token: saleops.TokenSight{ValidUntil: now.Add(time.Hour), GrantsLeft: 1},
		fleet: saleops.FleetSight{LastSweep: now.Add(-10 * time.Second), Workers: 1},
	}
}

func (w *switchWorld) change(open bool, at time.Time) error {
	w.changes++
	if w.ackErr == nil {
		w.open, w.opensAt = open, at
	}
	return w.ackErr
}

func (w *switchWorld) OpenOver(_ context.Context, shown booking.Shown, at time.Time) error {
	w.over = shown
	if at.IsZero() {
		return w.change(true, time.Time{})
	}
	return w.change(false, time.UnixMilli(at.UnixMilli()).UTC())
}
func (w *switchWorld) Close(context.Context) error { return w.change(false, time.Time{}) }
func (w *switchWorld) SaleFields(context.Context) (map[string]string, error) {
	return map[string]string{"name": w.sale.Name}, nil
}
func (w *switchWorld) Now(context.Context) (time.Time, error)     { return w.now, nil }
func (w *switchWorld) Epoch(context.Context) (string, error)      { return "e1", w.epoch }
func (w *switchWorld) Sale(context.Context) (booking.Sale, error) { return w.sale, w.saleErr }
func (w *switchWorld) AllowlistSize(context.Context) (int, error) { return w.allowlist, nil }
func (w *switchWorld) UnfinishedRebuild(context.Context) (string, error) {
	return w.rebuild, nil
}
func (w *switchWorld) Acknowledges(context.Context) error    { return w.acks }
func (w *switchWorld) Elected(context.Context) (bool, error) { return w.elected, nil }
func (w *switchWorld) Stats(context.Context) (booking.QueueStats, error) {
	return w.stats, nil
}

func (w *switchWorld) ReadStatus(context.Context) (booking.Figures, error) {
	f := booking.Figures{Version: w.version, At: w.now, Open: w.open, OpensAt: w.opensAt, Cap: w.sale.Cap, Total: w.total}
	for _, l := range w.sale.Levels {
		f.Levels = append(f.Levels, booking.LevelFigures{ID: l.ID, Name: l.Name, Cap: l.Cap, Admitted: w.level})
	}
	return f, w.readErr
}

func (w *switchWorld) status(context.Context) ([]byte, error) {
	if w.page != "" || w.pageErr != nil {
		return []byte(w.page), w.pageErr
	}
	at := ""
	if !w.opensAt.IsZero() {
		at = fmt.Sprintf(`,"opens_at":%q`, w.opensAt.Format(time.RFC3339Nano))
	}
	return fmt.Appendf(nil, `{"version":%d,"open":%v%s}`, max(w.version, 1), w.open, at), nil
}

func (w *switchWorld) sw() *saleops.Switch {
	s := &saleops.Switch{
		Ledger: w, Queue: w, Status: w.status,
		Eviction:    func(context.Context) error { return w.eviction },
		Token:       func(context.Context) (saleops.TokenSight, error) { return w.token, nil },
		Fleet:       func(context.Context) (saleops.FleetSight, error) { return w.fleet, w.fleetErr },
		LoadRunning: func(context.Context) (booking.AllowlistLoad, error) { return w.loading, w.loadingErr },
		EpochMark:   func(context.Context) (booking.EpochMark, error) { return w.mark, w.markErr },
		Wait: func(ctx context.Context, d time.Duration) error {
			w.waits++
			w.now = w.now.Add(d)
			if w.onWait != nil {
				w.onWait()
			}
			return ctx.Err()
		},
	}
	if w.noFleet {
		s.Fleet = nil
	}
	return s
}

// found lists what is not ok, by name and verdict.
func found(o saleops.Opening) map[string]saleops.CheckVerdict {
	out := map[string]saleops.CheckVerdict{}
	for _, c := range o.Checks {
		if c.Verdict != saleops.CheckOK {
			out[c.Name] = c.Verdict
		}
	}
	return out
}

func TestSwitchLook_RefusesWhatMakesOpeningWrongAndWarnsOfTheRest(t *testing.T) {
	t.Parallel()
	type verdicts = map[string]saleops.CheckVerdict
	const refused, warning, unseen = saleops.CheckRefused, saleops.CheckWarning, saleops.CheckNotSeen
	now := newSwitchWorld().now
	for name, c := range map[string]struct {
		harm func(w *switchWorld)
		at   time.Time
		want verdicts
	}{
		"AllWell":         {func(*switchWorld) {}, time.Time{}, verdicts{}},
		"AllWellLater":    {func(*switchWorld) {}, now.Add(time.Hour / 2), verdicts{}},
		"NoEpoch":         {func(w *switchWorld) { w.epoch = booking.ErrLedgerUnknown }, time.Time{}, verdicts{"epoch": refused}},
		"NoSale":          {func(w *switchWorld) { w.saleErr = booking.ErrNotFound }, time.Time{}, verdicts{"sale": refused}},
		"NoCap":           {func(w *switchWorld) { w.sale.Cap = 0 }, time.Time{}, verdicts{"caps": refused}},
		"NoLevelCap":      {func(w *switchWorld) { w.sale.Levels[0].Cap = 0 }, time.Time{}, verdicts{"caps": refused}},
		"DamagedCounter":  {func(w *switchWorld) { w.level = -1 }, time.Time{}, verdicts{"caps": refused}},
		"SoldOut":         {func(w *switchWorld) { w.total, w.level = 10, 10 }, time.Time{}, verdicts{"caps": warning}},
		"EmptyAllowlist":  {func(w *switchWorld) { w.allowlist = 0 }, time.Time{}, verdicts{"allowlist": refused}},
		"Rebuilding":      {func(w *switchWorld) { w.rebuild = "token" }, time.Time{}, verdicts{"rebuild": refused}},
		"HalfLoaded":      {func(w *switchWorld) { w.loading.Half = true }, now.Add(time.Hour / 2), verdicts{"load": refused}},
		"NotAcknowledged": {func(w *switchWorld) { w.acks = booking.ErrNotAcknowledged }, now.Add(time.Hour / 2), verdicts{"replicas": refused}},
		"ReplicasUnknown": {func(w *switchWorld) { w.acks = errors.New("reset") }, time.Time{}, verdicts{"replicas": unseen}},
		"Evicts":          {func(w *switchWorld) { w.eviction = saleops.ErrMayEvict }, time.Time{}, verdicts{"eviction": refused}},
		"PolicyUnknown":   {func(w *switchWorld) { w.eviction = errors.New("not told") }, time.Time{}, verdicts{"eviction": unseen}},
		"PageOtherwise":   {func(w *switchWorld) { w.page = `{"open":true}` }, time.Time{}, verdicts{"status.json": warning}},
		"NoPage":          {func(w *switchWorld) { w.pageErr = booking.ErrNotFound }, time.Time{}, verdicts{"status.json": warning}},
		"NoToken":         {func(w *switchWorld) { w.token = saleops.TokenSight{NextGrant: w.now.Add(time.Minute)} }, time.Time{}, verdicts{"token": refused}},
		"TokenLater":      {func(w *switchWorld) { w.token = saleops.TokenSight{NextGrant: w.now.Add(time.Hour)} }, now.Add(time.Minute), verdicts{"token": warning}},
		"TokenInTime":     {func(w *switchWorld) { w.token = saleops.TokenSight{NextGrant: w.now.Add(time.Minute)} }, now.Add(time.Hour), verdicts{}},
		"TokenGrantable":  {func(w *switchWorld) { w.token = saleops.TokenSight{GrantsLeft: 1} }, time.Time{}, verdicts{}},
		"NoSweep":         {func(w *switchWorld) { w.fleet.LastSweep = w.now.Add(-121 * time.Second) }, time.Time{}, verdicts{"reconciler": refused}},
		"NoSweepYet":      {func(w *switchWorld) { w.fleet.LastSweep = w.now.Add(-time.Hour) }, now.Add(time.Hour / 2), verdicts{"reconciler": warning}},
		"SweepInTime":     {func(w *switchWorld) { w.fleet.LastSweep = w.now.Add(-2 * time.Minute) }, time.Time{}, verdicts{}},
		"SweepUntold":     {func(w *switchWorld) { w.fleet.LastSweep = time.Time{} }, time.Time{}, verdicts{"reconciler": unseen}},
		"NobodyElected":   {func(w *switchWorld) { w.fleet.LastSweep, w.elected = time.Time{}, false }, time.Time{}, verdicts{"reconciler": refused}},
		"NotDraining":     {func(w *switchWorld) { w.stats = booking.QueueStats{Waiting: 1, OldestAge: 61 * time.Second} }, time.Time{}, verdicts{"worker": refused}},
		"NoWorker":        {func(w *switchWorld) { w.fleet.Workers = 0 }, time.Time{}, verdicts{"worker": refused}},
		"WorkerAway":      {func(w *switchWorld) { w.fleet = saleops.FleetSight{LastSweep: w.now, Away: []string{"gone"}} }, time.Time{}, verdicts{"worker": unseen, "processes": warning}},
		"NoMetrics":       {func(w *switchWorld) { w.noFleet = true }, time.Time{}, verdicts{"worker": unseen, "reconciler": unseen}},
		"DeadLetters":     {func(w *switchWorld) { w.stats.Dead = 1 }, time.Time{}, verdicts{"dead letters": warning}},
		"OpenAndLater":    {func(w *switchWorld) { w.open = true }, now.Add(time.Hour / 2), verdicts{"switch": refused}},
		"OpenAgain":       {func(w *switchWorld) { w.open = true }, time.Time{}, verdicts{}},
		"TimeIsOver":      {func(*switchWorld) {}, now, verdicts{"time": refused}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSwitchWorld()
			c.harm(w)
			got, err := w.sw().Look(t.Context(), c.at)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, found(got)); diff != "" {
				t.Errorf("what is not ok (-want +got):\n%s", diff)
			}
			refuse := false
			for _, v := range c.want {
				refuse = refuse || v == refused
			}
			if got.Refused() != refuse || got.Warned() != (len(c.want) > 0 && !refuse) && !refuse {
				t.Errorf("refused, warned: got %v, %v, want refused %v", got.Refused(), got.Warned(), refuse)
			}
			if w.changes > 0 {
				t.Errorf("a look: got %d changes, want none", w.changes)
			}
		})
	}
}

func TestSwitchLook_ALedgerThatDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	w.readErr = errors.New("no answer")
	if _, err := w.sw().Look(t.Context(), time.Time{}); err == nil {
		t.Error("got nil, want an error")
	}
}

// wantMissing compares what is missing by the beginning of each text.
func wantMissing(t *testing.T, got saleops.Switched, want ...string) {
	t.Helper()
	ok := len(got.Missing) == len(want)
	for i := range want {
		ok = ok && strings.Contains(got.Missing[i], want[i])
	}
	if !ok {
		t.Errorf("missing: got %q, want %q", got.Missing, want)
	}
}

func TestSwitchOpen_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	got, err := w.sw().Open(t.Context(), saleops.Opening{})
	if err != nil || !got.Acknowledged || !got.Read || !got.Published || w.waits > 0 {
		t.Errorf("all well: got %+v, %v after %d waits, want all there at once", got, err, w.waits)
	}
	wantMissing(t, got)

	w = newSwitchWorld()
	at := w.now.Add(time.Hour).In(time.FixedZone("", 6*3600)).Add(123 * time.Microsecond)
	got, err = w.sw().Open(t.Context(), saleops.Opening{At: at})
	if err != nil || !got.Read || !got.Published || w.open {
		t.Errorf("scheduled: got %+v, %v, want all there, and closed until then", got, err)
	}

	w = newSwitchWorld()
	w.page = `{"open":false,"version":9}`
	got, err = w.sw().Open(t.Context(), saleops.Opening{})
	if err != nil || !got.Read || got.Published || w.waits < 10 {
		t.Errorf("stale page: got %+v, %v after %d waits, want that it was waited for", got, err, w.waits)
	}
	wantMissing(t, got, "status.json, version 9, says closed and the ledger open")

	w = newSwitchWorld()
	w.page = `{"open":false}`
	w.onWait = func() { w.page = `{"open":true}` }
	if got, err = w.sw().Open(t.Context(), saleops.Opening{}); err != nil || !got.Published || w.waits != 1 {
		t.Errorf("a page that is late: got %+v, %v after %d waits, want it there after one", got, err, w.waits)
	}

	w = newSwitchWorld()
	w.ackErr = booking.ErrNotAcknowledged
	got, err = w.sw().Open(t.Context(), saleops.Opening{})
	if !errors.Is(err, booking.ErrNotAcknowledged) || got.Acknowledged || got.Read {
		t.Errorf("not acknowledged: got %+v, %v, want that error and nothing believed", got, err)
	}
	wantMissing(t, got, "acknowledgement")
}

func TestSwitchClose_IsDoneWithAnAcknowledgedSwitchTwoCountsAndThePage(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	w.open, w.opensAt = true, time.Time{}
	got, err := w.sw().Close(t.Context(), 30*time.Second)
	if err != nil || !got.Acknowledged || !got.NoneAdmitted || !got.Published || w.open {
		t.Errorf("got %+v, %v, want closed, shown and published", got, err)
	}
	if w.waits < 2 {
		t.Errorf("two counts a second apart: got %d waits, want two", w.waits)
	}
	wantMissing(t, got)
	if got, err = w.sw().Close(t.Context(), 30*time.Second); err != nil || len(got.Missing) > 0 {
		t.Errorf("repeated: got %+v, %v, want the same", got, err)
	}
}

func TestSwitchClose_SaysWhichIsMissing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		harm func(w *switchWorld)
		want []string
	}{
		"Page":     {func(w *switchWorld) { w.page = `{"open":true}` }, []string{"says open and the ledger closed"}},
		"NoPage":   {func(w *switchWorld) { w.pageErr = errors.New("no bucket") }, []string{"no bucket"}},
		"Schedule": {func(w *switchWorld) { w.page = `{"open":false,"opens_at":"2030-01-01T00:00:00Z"}` }, []string{"says closed until 2030-01-01T00:00:00Z"}},
		"Acks":     {func(w *switchWorld) { w.ackErr = booking.ErrNotAcknowledged }, []string{"acknowledgement", "someone else"}},
		"Seats":    {func(w *switchWorld) { w.onWait = func() { w.total++; w.level++ } }, []string{"proof that nobody is admitted"}},
		"Level":    {func(w *switchWorld) { w.onWait = func() { w.level++ } }, []string{"proof that nobody is admitted"}},
		"Unread":   {func(w *switchWorld) { w.readErr = errors.New("down") }, []string{"the ledger cannot be read"}},
		"Reopened": {func(w *switchWorld) { w.onWait = func() { w.open = true } }, []string{"proof that nobody is admitted"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSwitchWorld()
			w.open = true
			c.harm(w)
			got, err := w.sw().Close(t.Context(), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			wantMissing(t, got, c.want...)
			if w.waits < 9 {
				t.Errorf("got %d waits, want that it was waited for", w.waits)
			}
		})
	}
}

func TestSwitchClose_TriesAgainUntilItIsAcknowledged(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	w.open, w.ackErr = true, booking.ErrNotAcknowledged
	w.onWait = func() {
		if w.waits == 3 {
			w.ackErr = nil
		}
	}
	got, err := w.sw().Close(t.Context(), 30*time.Second)
	if err != nil || len(got.Missing) > 0 || w.changes != 4 {
		t.Errorf("got %+v, %v after %d changes, want it closed by the fourth", got, err, w.changes)
	}
}

// A seat that comes back after the switch, from a batch that was undone, is no
// admission.
func TestSwitchClose_SeatsThatComeBackAreNoAdmission(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	w.open, w.total, w.level = true, 5, 5
	w.onWait = func() { w.total--; w.level-- }
	got, err := w.sw().Close(t.Context(), 5*time.Second)
	if err != nil || !got.NoneAdmitted || got.Admitted >= 5 {
		t.Errorf("got %+v, %v, want it done", got, err)
	}
}

func TestSwitchClose_AnInterruptionIsItsError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	w := newSwitchWorld()
	w.open, w.onWait = true, cancel
	got, err := w.sw().Close(ctx, 30*time.Second)
	if !errors.Is(err, context.Canceled) || !got.Acknowledged || len(got.Missing) == 0 {
		t.Errorf("got %+v, %v, want that it was interrupted, and what is missing", got, err)
	}
}
