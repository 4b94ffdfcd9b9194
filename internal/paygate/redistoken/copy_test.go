package redistoken_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/paygate/redistoken"
)

// aged is a copy whose token was asked for some time ago, and whose ledger has
// entries of these ages.
func aged(now time.Time, tokenAge time.Duration, ledger ...time.Duration) []byte {
	at := func(age time.Duration) string { return now.Add(-age).UTC().Format(time.RFC3339Nano) }
	var grants []string
	for i, age := range ledger {
		grants = append(grants, fmt.Sprintf(`{"owner":"owner-%d","at":%q}`, i, at(age)))
	}
	return fmt.Appendf(nil, `{"v":1,"account":"shop","token":"kept","called_at":%q,"renew_at":%q,"expires_at":%q,"grants":[%s]}`,
		at(tokenAge), at(tokenAge-50*time.Minute), at(tokenAge-time.Hour), strings.Join(grants, ","))
}

func mustImport(t *testing.T, p *process, state []byte) {
	t.Helper()
	if err := p.Import(t.Context(), state); err != nil {
		t.Fatalf("Import: %v", err)
	}
}

func TestImport_TakesTheTokenAndTheLedgerToAnEmptyRedis(t *testing.T) {
	t.Parallel()
	first := newFleet(t)
	p := first.process()
	p.must(t)
	state, err := p.Export(t.Context())
	if err != nil {
		t.Fatalf("Export: %v", err)
	}
	if strings.Contains(string(state), "refresh") {
		t.Errorf("Export holds the refresh token: %s", state)
	}

	second := newFleet(t)
	q := second.process()
	mustImport(t, q, state)
	mustImport(t, q, state)
	if got := q.must(t); got != token(1) {
		t.Errorf("Token after Import = %q, want %q", got, token(1))
	}
	second.gateway.wantCalls(t, "with an imported token", 0)
	again, err := q.Export(t.Context())
	if err != nil {
		t.Fatalf("Export: %v", err)
	}
	if diff := cmp.Diff(string(state), string(again)); diff != "" {
		t.Errorf("Export after Import: -want +got:\n%s", diff)
	}
	// One of the hour's two is used, by the earlier Redis.
	q.Rejected(t.Context(), token(1))
	second.advance(time.Minute)
	if got := q.must(t); got != token(1) { // this gateway's first
		t.Errorf("Token after a rejection = %q, want a new grant's", got)
	}
	second.gateway.wantCalls(t, "second grant of the hour", 1)
	second.gateway.set(func(g *gateway) { g.err = booking.ErrInDoubt })
	q.Rejected(t.Context(), token(1))
	q.must(t)
	second.gateway.wantCalls(t, "a third within the hour", 1)
}

func TestImport_AgesAsTheClockSays(t *testing.T) {
	t.Parallel()
	fleets(t, func(t *testing.T, f *fleet) {
		p := f.process()
		ctx := t.Context()
		clean := func() {
			t.Helper()
			p.Wait(t)
			if err := p.rdb.FlushAll(ctx).Err(); err != nil {
				t.Fatal(err)
			}
		}

		mustImport(t, p, aged(f.now(), 10*time.Minute, 10*time.Minute))
		if got := p.must(t); got != "kept" {
			t.Errorf("Token of ten minutes ago = %q, want it used", got)
		}
		f.gateway.wantCalls(t, "fresh", 0)

		clean()
		mustImport(t, p, aged(f.now(), 65*time.Minute, 65*time.Minute))
		if got := p.must(t); got != token(1) {
			t.Errorf("Token with an expired one kept = %q, want a new one", got)
		}
		f.gateway.wantCalls(t, "expired", 1)

		clean()
		mustImport(t, p, aged(f.now(), 51*time.Minute, 51*time.Minute))
		if got := p.must(t); got != "kept" {
			t.Errorf("Token of 51 minutes ago = %q, want it used during its renewal", got)
		}
		until(t, "it is renewed", func() bool { return p.rdb.HGet(ctx, currentKey, "token").Val() == token(2) })

		clean()
		mustImport(t, p, aged(f.now(), 70*time.Minute, 59*time.Minute, 2*time.Minute))
		if got, err := p.Token(ctx); !errors.Is(err, redistoken.ErrGrantLimit) {
			t.Errorf("Token with two grants in the ledger: got %q, %v; want %v", got, err, redistoken.ErrGrantLimit)
		}

		clean()
		mustImport(t, p, aged(f.now(), 70*time.Minute, 62*time.Minute, 2*time.Minute))
		if got := p.must(t); got != token(3) {
			t.Errorf("Token with one grant in the ledger = %q, want a new one", got)
		}
		if got := p.rdb.ZCard(ctx, grantsKey).Val(); got != 2 {
			t.Errorf("ledger has %d entries, want 2", got)
		}

		// Entries from the future count as now, and not for longer.
		clean()
		mustImport(t, p, aged(f.now(), 70*time.Minute, -10*time.Hour, -time.Minute))
		if got, err := p.Token(ctx); !errors.Is(err, redistoken.ErrGrantLimit) {
			t.Errorf("Token with two grants from the future: got %q, %v; want %v", got, err, redistoken.ErrGrantLimit)
		}
		for _, z := range p.rdb.ZRangeWithScores(ctx, grantsKey, 0, -1).Val() {
			if at := time.UnixMilli(int64(z.Score)); at.After(f.now().Add(time.Second)) {
				t.Errorf("ledger has an entry at %s, now is %s", at, f.now())
			}
		}
	})
}

func TestImport_NeverReplacesANewerToken(t *testing.T) {
	t.Parallel()
	fleets(t, func(t *testing.T, f *fleet) {
		p := f.process()
		p.must(t)
		mustImport(t, p, aged(f.now(), time.Minute, time.Minute))
		if got := p.must(t); got != token(1) {
			t.Errorf("Token = %q, want the newer one of Redis", got)
		}
		if got := p.rdb.ZCard(t.Context(), grantsKey).Val(); got != 2 {
			t.Errorf("ledger has %d entries, want both calls", got)
		}
	})
}

func TestImport_RefusesAsAWholeWhatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	good := string(aged(f.now(), time.Minute, time.Minute))
	for name, state := range map[string]string{
		"nothing":       "",
		"cut short":     good[:len(good)-5],
		"other version": strings.Replace(good, `"v":1`, `"v":2`, 1),
		"no version":    strings.Replace(good, `"v":1,`, ``, 1),
		"other account": strings.Replace(good, `"shop"`, `"other"`, 1),
		"a strange age": strings.Replace(good, `"called_at":"`, `"called_at":"kept`, 1),
	} {
		err := p.Import(t.Context(), []byte(state))
		if err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
		if strings.Contains(fmt.Sprint(err), "kept") {
			t.Errorf("%s: the error quotes the state: %v", name, err)
		}
	}
	if keys := f.mini.Keys(); len(keys) != 0 {
		t.Errorf("Redis has keys %v after refused imports, want none", keys)
	}
}

func TestExport_OfNothingCanBeImported(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.process()
	state, err := p.Export(t.Context())
	if err != nil || string(state) != `{"v":1,"account":"shop","grants":[]}` {
		t.Errorf("Export of nothing: got %s, %v", state, err)
	}
	mustImport(t, p, state)
	if got := p.must(t); got != token(1) {
		t.Errorf("Token = %q, want %q", got, token(1))
	}
}

func TestKeepCopy_HasTheCallBeforeItIsMade(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	type kept struct {
		Token  string
		Grants []any
		Calls  int
	}
	var saved []kept
	p := f.process(redistoken.KeepCopy(func(_ context.Context, state []byte) error {
		var k kept
		if err := json.Unmarshal(state, &k); err != nil {
			t.Error(err)
		}
		k.Calls, _ = f.gateway.asked()
		saved = append(saved, k)
		return nil
	}))
	p.must(t)
	p.Wait(t)
	var got []string
	for _, k := range saved {
		got = append(got, fmt.Sprintf("token %q, %d in the ledger, %d calls", k.Token, len(k.Grants), k.Calls))
	}
	want := []string{`token "", 1 in the ledger, 0 calls`, `token "secret-1", 1 in the ledger, 1 calls`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("copies: -want +got:\n%s", diff)
	}
}

func TestKeepCopy_ThatFailsPreventsTheCallAndDoesNotCount(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	full := errors.New("disk is full")
	p := f.process(redistoken.KeepCopy(func(context.Context, []byte) error { return full }))
	if _, err := p.Token(t.Context()); !errors.Is(err, full) {
		t.Errorf("Token: got %v, want %v", err, full)
	}
	f.gateway.wantCalls(t, "without a copy", 0)
	if f.mini.Exists(grantsKey) || f.mini.Exists(lockKey) || !f.mini.Exists(pauseKey) {
		t.Errorf("keys %v, want the pause alone", f.mini.Keys())
	}
}
