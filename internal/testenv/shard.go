package testenv

import (
	"context"
	"slices"
	"testing"
	"time"

	"holdfast/internal/redisproc"
)

// Shard is a primary and its replicas as a managed Redis has them: clients know
// one address, which a failover gives to another server, and every replica
// reaches its primary over a network of its own.
type Shard struct {
	*redisproc.Pair
	// Front is where clients connect. Its faults are theirs.
	Front *FaultyProxy
	// Links[i] is the network between Replicas[i] and the primary. The replica is
	// the client there: DropReplies leaves it attached and lets no write reach it,
	// for good; after Cut it comes back by itself within a second or so of Forward.
	Links []*FaultyProxy
}

// Shard starts one, all replicas online.
func (e Engine) Shard(t testing.TB, replicas int) *Shard {
	t.Helper()
	e.Need(t)
	s := &Shard{Pair: &redisproc.Pair{Primary: e.start(t, "")}}
	for range replicas {
		link := Proxy(t, s.Primary.Addr())
		s.Links = append(s.Links, link)
		s.Replicas = append(s.Replicas, e.start(t, link.Addr()))
	}
	s.Front = Proxy(t, s.Primary.Addr())
	return s
}

// Failover kills the primary and has Promote do the rest.
func (s *Shard) Failover(t testing.TB) (promoted time.Time) {
	t.Helper()
	s.Primary.Kill()
	return s.Promote(t)
}

// Promote makes the replica that received most the primary, leads new clients to
// it, and has the other replicas follow it over new links. It returns when they
// are online, and tells when the promotion was done. The old primary is left as
// it is, and clients that are connected to it stay so, as after a change in DNS.
func (s *Shard) Promote(t testing.TB) (promoted time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	before := slices.Clone(s.Replicas)
	if err := s.Pair.Promote(ctx); err != nil {
		t.Fatal(err)
	}
	promoted = time.Now()
	s.Front.Retarget(s.Primary.Addr())
	heir := slices.Index(before, s.Primary)
	s.Links = slices.Delete(s.Links, heir, heir+1)
	for i, r := range s.Replicas {
		// A new address: told the old one again it would wait for its next periodic
		// task.
		s.Links[i] = Proxy(t, s.Primary.Addr())
		if err := r.Follow(ctx, s.Links[i].Addr()); err != nil {
			t.Fatal(err)
		}
	}
	return promoted
}
