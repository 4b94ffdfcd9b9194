package saleops_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

// check is what the look before an opening says under this name.
func check(t *testing.T, w *switchWorld, at time.Time, name string) saleops.Check {
	t.Helper()
	o, err := w.sw().Look(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range o.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("got %+v, want a check of %s", o.Checks, name)
	return saleops.Check{}
}

// A killed dry run must not keep an announced sale closed: only a list whose e-mails
// are not all in force does.
func TestSwitchLook_RefusesForALoadOnlyWhatTheLedgerRefuses(t *testing.T) {
	t.Parallel()
	now := newSwitchWorld().now
	since := now.Add(-time.Minute)
	load := booking.AllowlistLoad{Token: "A", Who: "alice", Since: since, Until: now.Add(20 * time.Second)}
	for name, c := range map[string]struct {
		change func(l *booking.AllowlistLoad)
		err    error
		want   saleops.CheckVerdict
		text   string
	}{
		"AtWork":         {func(l *booking.AllowlistLoad) { l.Left = true }, nil, saleops.CheckWarning, "alice, since 2026-12-01T03:59:00Z, is at work"},
		"AtWorkWithHalf": {func(l *booking.AllowlistLoad) { l.Left, l.Half, l.Swapped = true, true, true }, nil, saleops.CheckRefused, "wait for its end"},
		"CutOffWithHalf": {func(l *booking.AllowlistLoad) { l.Left, l.Half, l.Until = true, true, now }, nil, saleops.CheckRefused, "alice, since 2026-12-01T03:59:00Z, was cut off"},
		"CutOffInForce":  {func(l *booking.AllowlistLoad) { l.Left, l.Swapped, l.Until = true, true, now }, nil, saleops.CheckWarning, "by alice, since 2026-12-01T03:59:00Z, was cut off"},
		"FoundByADryRun": {func(l *booking.AllowlistLoad) {
			l.Left, l.Swapped, l.Until, l.Of, l.OfSince = true, true, now, "bob", since.Add(-time.Hour)
		}, nil, saleops.CheckWarning, "by bob, since 2026-12-01T02:59:00Z,"},
		"KilledDryRun":       {func(l *booking.AllowlistLoad) { l.Left, l.Until = true, now }, nil, saleops.CheckWarning, "by alice, since 2026-12-01T03:59:00Z, broke off"},
		"TurnTakenAndLapsed": {func(l *booking.AllowlistLoad) { l.Until = now }, nil, saleops.CheckOK, "none"},
		"None":               {func(l *booking.AllowlistLoad) { *l = booking.AllowlistLoad{} }, nil, saleops.CheckOK, "none"},
		"NotRead":            {func(*booking.AllowlistLoad) {}, errors.New("no answer"), saleops.CheckNotSeen, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, at := range []time.Time{{}, now.Add(time.Hour / 2)} {
				w := newSwitchWorld()
				w.loading, w.loadingErr = load, c.err
				c.change(&w.loading)
				if got := check(t, w, at, "load"); got.Verdict != c.want || !strings.Contains(got.Text, c.text) {
					t.Errorf("opening at %v: got %+v, want %s, %q", at, got, c.want, c.text)
				}
			}
		})
	}
}

// A failover can take a reset back: then Redis has seats of a sale that is over.
func TestSwitchLook_RefusesALedgerThatHasLostAReset(t *testing.T) {
	t.Parallel()
	now := newSwitchWorld().now
	mark := func(epoch string) booking.EpochMark { return booking.EpochMark{Version: 1, Epoch: epoch, At: now} }
	for name, c := range map[string]struct {
		mark booking.EpochMark
		err  error
		want saleops.CheckVerdict
		text string
	}{
		"NeverReset":  {booking.EpochMark{}, booking.ErrNotFound, saleops.CheckOK, "e1"},
		"ThisOne":     {mark("e1"), nil, saleops.CheckOK, "e1"},
		"AnEarlier":   {mark("e0"), nil, saleops.CheckOK, "e1"},
		"LostByRedis": {mark("e2"), nil, saleops.CheckRefused, "epoch e2 at 2026-12-01T04:00:00Z, and Redis has the earlier e1"},
		"NotRead":     {booking.EpochMark{}, errors.New("the store is away"), saleops.CheckNotSeen, "the store is away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, at := range []time.Time{{}, now.Add(time.Hour / 2)} {
				w := newSwitchWorld()
				w.mark, w.markErr = c.mark, c.err
				if got := check(t, w, at, "epoch"); got.Verdict != c.want || !strings.Contains(got.Text, c.text) {
					t.Errorf("opening at %v: got %+v, want %s, %q", at, got, c.want, c.text)
				}
			}
		})
	}
}

// The page says what the ledger says, and is from before the change: another, given out
// in between, may yet come and say the contrary.
func TestSwitch_PageFromBeforeTheChangeIsNotBelieved(t *testing.T) {
	t.Parallel()
	w := newSwitchWorld()
	w.open, w.version = true, 2 // given out to a slow publisher
	w.page = `{"version":1,"open":false}`
	got, err := w.sw().Close(t.Context(), 5*time.Second)
	if err != nil || got.Published || !got.NoneAdmitted {
		t.Errorf("close: got %+v, %v, want all but the page", got, err)
	}
	wantMissing(t, got, "version 1, is from before the change: version 2")

	w = newSwitchWorld()
	w.open, w.version = true, 2
	w.page = `{"version":1,"open":false}`
	w.onWait = func() {
		switch w.waits {
		case 2:
			w.page = `{"version":2,"open":true}`
		case 4:
			w.version, w.page = 3, `{"version":3,"open":false}`
		}
	}
	if got, err = w.sw().Close(t.Context(), 30*time.Second); err != nil || !got.Published || w.waits != 4 {
		t.Errorf("close: got %+v, %v after %d waits, want the page of the fourth", got, err, w.waits)
	}

	// Versions given out since do not count: each says how the switch stands now.
	w = newSwitchWorld()
	w.open, w.version = true, 2
	w.page = `{"version":2,"open":false}`
	w.onWait = func() { w.version++ }
	if got, err = w.sw().Close(t.Context(), 30*time.Second); err != nil || !got.Published {
		t.Errorf("close while versions are given out: got %+v, %v, want it published", got, err)
	}

	w = newSwitchWorld()
	w.version = 2
	w.page = `{"version":1,"open":true}`
	if got, err = w.sw().Open(t.Context(), saleops.Opening{}); err != nil || got.Published || !got.Read {
		t.Errorf("open: got %+v, %v, want all but the page", got, err)
	}
	wantMissing(t, got, "version 1, is from before the change: version 2")
	w.onWait = func() { w.page = `{"version":2,"open":true}` }
	if got, err = w.sw().Open(t.Context(), saleops.Opening{}); err != nil || !got.Published {
		t.Errorf("open: got %+v, %v, want it published", got, err)
	}
}
