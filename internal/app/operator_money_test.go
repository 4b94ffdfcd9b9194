package app_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/app"
	"holdfast/internal/paygate"
	"holdfast/internal/paygate/redistoken"
)

// granter gives a token for each call.
type granter struct {
	mu    sync.Mutex
	calls int
}

func (g *granter) Grant(context.Context) (paygate.Grant, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	return paygate.Grant{IDToken: paygate.Secret(fmt.Sprintf("token %d", g.calls)), ExpiresIn: time.Hour}, nil
}

// What an operator is told of grants is what the ledger of grants decides: so many
// are left, and the next one may be made at that millisecond, not before.
func TestTokenState_IsWhatTheLedgerOfGrantsDecides(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr(), Protocol: 2})
	defer rdb.Close()
	gateway, now := new(granter), time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	source := func() *redistoken.Source {
		t.Helper()
		s, err := redistoken.New(rdb, gateway, "shop", time.Now, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// grant needs one, the token being gone.
	grant := func() error {
		t.Helper()
		mini.SetTime(now)
		for _, key := range mini.Keys() {
			if strings.HasSuffix(key, ":current") {
				mini.Del(key)
			}
		}
		s := source() // that trusts no token of before
		defer s.Close()
		_, err := s.Token(t.Context())
		return err
	}
	told := func() app.TokenState {
		t.Helper()
		s := source()
		defer s.Close()
		st, err := app.TokenStateOf(t.Context(), s, now)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := told()
	if st.GrantsAnHour < 1 || st.GrantsLeft != st.GrantsAnHour || !st.ValidUntil.IsZero() {
		t.Fatalf("at first: got %+v, want all grants left, and no token", st)
	}
	for left := st.GrantsLeft - 1; left >= 0; left-- {
		if err := grant(); err != nil {
			t.Fatalf("grant with %d left: %v", left+1, err)
		}
		if st = told(); st.GrantsLeft != left || st.ValidUntil.IsZero() {
			t.Errorf("after a grant: got %+v, want %d left, and a token", st, left)
		}
		now = now.Add(10 * time.Minute)
	}
	next := st.NextGrant
	now = next.Add(-time.Millisecond)
	if st := told(); st.GrantsLeft != 0 {
		t.Errorf("just before the next: got %+v, want none left", st)
	}
	if err := grant(); !errors.Is(err, redistoken.ErrGrantLimit) {
		t.Errorf("just before the next: got %v, want %v", err, redistoken.ErrGrantLimit)
	}
	now = next
	if st := told(); st.GrantsLeft != 1 {
		t.Errorf("at the next: got %+v, want one left", st)
	}
	if err := grant(); err != nil {
		t.Errorf("at the next: got %v, want a token", err)
	}
}
