package admission_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// shown is how the ledger stands, as an operator is shown it.
func (l *ledger) shown(t *testing.T) booking.Shown {
	t.Helper()
	fields, err := l.SaleFields(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now, err := l.Epoch(t.Context())
	if err != nil && !errors.Is(err, booking.ErrLedgerUnknown) {
		t.Fatal(err)
	}
	out := booking.Shown{Epoch: now, Sale: fields}
	if now == "" {
		return out
	}
	f, err := l.ReadStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out.Open, out.OpensAt = f.Open, f.OpensAt
	return out
}

func bigger() booking.Sale {
	sale := demo
	sale.Cap++
	return sale
}

// A change is made over what its operator was shown, or not at all.
func TestOver_AnotherStateThanWasShownIsRefused(t *testing.T) {
	at := time.Now().Add(time.Hour)
	changes := map[string]func(ctx context.Context, l *ledger, shown booking.Shown) error{
		"Open":     func(ctx context.Context, l *ledger, s booking.Shown) error { return l.OpenOver(ctx, s, time.Time{}) },
		"Schedule": func(ctx context.Context, l *ledger, s booking.Shown) error { return l.OpenOver(ctx, s, at) },
		"Apply": func(ctx context.Context, l *ledger, s booking.Shown) error {
			return second(l.ApplySaleOver(ctx, s, bigger(), false))
		},
		"Check": func(ctx context.Context, l *ledger, s booking.Shown) error {
			return second(l.ApplySaleOver(ctx, s, bigger(), true))
		},
	}
	type move struct {
		since    func(ctx context.Context, l *ledger) error
		ofSwitch bool // of the switch alone, which is nothing to a sale
	}
	set := func(field, value string) func(ctx context.Context, l *ledger) error {
		return func(ctx context.Context, l *ledger) error {
			return l.rdb.HSet(ctx, l.prefix+"sale:config", field, value).Err()
		}
	}
	moves := map[string]move{
		"Opened":    {func(ctx context.Context, l *ledger) error { return l.Open(ctx) }, true},
		"Scheduled": {func(ctx context.Context, l *ledger) error { return l.OpenAt(ctx, at.Add(time.Minute)) }, true},
		"ScheduledAndDue": {func(ctx context.Context, l *ledger) error {
			return l.rdb.Set(ctx, l.prefix+"booking:opens_at", 1, 0).Err()
		}, true},
		"Fee":      {set("fee:N1", "1"), false},
		"Name":     {set("name:N1", "another"), false},
		"Hold":     {set("hold_ms", "1000"), false},
		"NewField": {set("new", "1"), false},
		"NoField": {func(ctx context.Context, l *ledger) error {
			return l.rdb.HDel(ctx, l.prefix+"sale:config", "name:N9").Err()
		}, false},
		"Level": {func(ctx context.Context, l *ledger) error {
			less := demo
			less.Levels = demo.Levels[:2]
			return second(l.ApplySale(ctx, less, "", false))
		}, false},
		"TheSameSale": {func(ctx context.Context, l *ledger) error { return second(l.ApplySale(ctx, bigger(), "", false)) }, false},
		"Epoch": {func(ctx context.Context, l *ledger) error {
			return l.rdb.Set(ctx, l.prefix+"adm:epoch", "another", 0).Err()
		}, false},
	}
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for what, change := range changes {
			for how, m := range moves {
				l := fresh(t).open(t)
				mustDo(t, l.Close(t.Context()))
				// A switch that nobody has set, so that a due time opens.
				mustDo(t, l.rdb.Del(t.Context(), l.prefix+"booking:open").Err())
				shown := l.shown(t)
				mustDo(t, m.since(t.Context(), l))
				before := l.state(t)
				err := change(t.Context(), l, shown)
				if m.ofSwitch && (what == "Apply" || what == "Check") {
					if err != nil {
						t.Errorf("%s, %s since: got %v, want nil", what, how, err)
					}
					continue
				}
				if !errors.Is(err, booking.ErrNotAsShown) {
					t.Errorf("%s, %s since: got %v, want booking.ErrNotAsShown", what, how, err)
				}
				if after := l.state(t); after != before {
					t.Errorf("%s, %s since: something was changed:\n%s\nwas\n%s", what, how, after, before)
				}
			}
			l := fresh(t).open(t)
			mustDo(t, l.Close(t.Context()))
			shown := l.shown(t)
			if err := change(t.Context(), l, shown); err != nil {
				t.Errorf("%s, nothing since: got %v, want nil", what, err)
			}
			mustDo(t, l.rdb.Del(t.Context(), l.prefix+"adm:epoch").Err())
			if err := change(t.Context(), l, shown); !errors.Is(err, booking.ErrLedgerUnknown) {
				t.Errorf("%s, Redis emptied since: got %v, want booking.ErrLedgerUnknown", what, err)
			}
		}
	})
}

// A scheduled opening that is shown stands as long as its time has not come.
func TestOver_AShownScheduleIsOpenedOver(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		at := time.Now().Add(time.Hour)
		mustDo(t, l.OpenAt(t.Context(), at))
		shown := l.shown(t)
		mustDo(t, l.OpenOver(t.Context(), shown, at.Add(time.Minute)))
		shown = l.shown(t)
		mustDo(t, l.OpenOver(t.Context(), shown, time.Time{}))
		mustDo(t, l.OpenOver(t.Context(), l.shown(t), time.Time{}))
		mustDo(t, l.OpenAt(t.Context(), at))
		shown = l.shown(t)
		l.offset.Store(int64(2 * time.Hour))
		if err := l.OpenOver(t.Context(), shown, at.Add(3*time.Hour)); !errors.Is(err, booking.ErrNotAsShown) {
			t.Errorf("scheduled over an opening that has come: got %v, want booking.ErrNotAsShown", err)
		}
	})
}

// answersLost has the server do what it was sent, and its client hear nothing of the
// first script with this many keys.
type answersLost struct {
	keys  int
	since func()
	lost  bool
}

func (*answersLost) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*answersLost) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *answersLost) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if args := cmds[0].Args(); h.lost || cmds[0].Err() != nil || len(args) < 3 || args[2] != h.keys {
			return err
		}
		h.lost = true
		if h.since != nil {
			h.since()
		}
		for _, cmd := range cmds {
			cmd.SetErr(io.EOF)
		}
		return io.EOF
	}
}

// The second try finds what the first one, whose answer was lost, has done; what
// somebody else has done since is not taken for it.
func TestOver_ALostAnswerIsFoundByTheNextTry(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(time.Hour)
	changes := map[string]struct {
		keys   int
		change func(ctx context.Context, l *ledger, shown booking.Shown) error
		since  func(ctx context.Context, l *ledger) error
	}{
		"Open": {
			8, func(ctx context.Context, l *ledger, s booking.Shown) error { return l.OpenOver(ctx, s, time.Time{}) },
			func(ctx context.Context, l *ledger) error { return l.OpenAt(ctx, at.Add(time.Minute)) },
		},
		"Schedule": {
			8, func(ctx context.Context, l *ledger, s booking.Shown) error { return l.OpenOver(ctx, s, at) },
			func(ctx context.Context, l *ledger) error { return l.Open(ctx) },
		},
		"Apply": {
			10, func(ctx context.Context, l *ledger, s booking.Shown) error {
				less := bigger()
				less.Levels = demo.Levels[:2]
				did, err := l.ApplySaleOver(ctx, s, less, false)
				if err == nil && (did.Epoch != epoch || did.Total != 1) {
					err = errors.New("it does not know the figures")
				}
				return err
			},
			func(ctx context.Context, l *ledger) error { return second(l.ApplySale(ctx, bigger(), "", false)) },
		},
	}
	rdb := connect(t, testenv.Mini(t))
	for name, c := range changes {
		for _, other := range []bool{false, true} {
			l := newLedger(t, rdb, 0).open(t)
			l.mustAdmit(t, 1, "N1")
			mustDo(t, l.Close(t.Context()))
			shown := l.shown(t)
			far := connect(t, rdb.Options().Addr)
			hook := &answersLost{keys: c.keys}
			if other {
				hook.since = func() { mustDo(t, c.since(t.Context(), l)) }
			}
			far.AddHook(hook)
			err := c.change(t.Context(), l.another(t, far, 0), shown)
			if !hook.lost {
				t.Fatalf("%s: no answer was lost: the test shows nothing", name)
			}
			if !other && err != nil {
				t.Errorf("%s: got %v, want it found", name, err)
			}
			if other && (err == nil || errors.Is(err, booking.ErrNotAsShown)) {
				t.Errorf("%s, and another's since: got %v, want an error that does not say it was not made", name, err)
			}
		}
	}
}

func TestBeginRebuild_SaysThatThereIsASale(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if _, err := l.BeginRebuild(t.Context()); !errors.Is(err, admission.ErrHasEpoch) {
			t.Errorf("got %v, want admission.ErrHasEpoch", err)
		}
	})
}
