package redisproc

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Pair is a primary and its replicas.
type Pair struct {
	Primary  *Server
	Replicas []*Server
}

// ErrNoReplica says that there is no replica to take the primary's place.
var ErrNoReplica = errors.New("no replica to promote")

// StartPair starts a primary and that many replicas of it, all in dir, and
// returns when every replica is online. ctx bounds the start only. The caller
// must Stop the pair.
func StartPair(ctx context.Context, dir string, replicas int) (*Pair, error) {
	return StartPairOf(ctx, Options{Dir: dir}, replicas)
}

// StartPairOf is StartPair with the same options for every server. ReplicaOf
// must be empty.
func StartPairOf(ctx context.Context, o Options, replicas int) (*Pair, error) {
	primary, err := Start(ctx, o)
	if err != nil {
		return nil, err
	}
	p := &Pair{Primary: primary}
	o.ReplicaOf = primary.Addr()
	for range replicas {
		r, err := Start(ctx, o)
		if err != nil {
			p.Stop()
			return nil, err
		}
		p.Replicas = append(p.Replicas, r)
	}
	return p, nil
}

// Promote puts the replica that received most in the primary's place, as a
// failover does, and leaves the others where they are until they Follow it. The
// old primary is not touched, and no longer the pair's to Stop: Kill or Stop it
// before. ErrNoReplica when there is none.
func (p *Pair) Promote(ctx context.Context) error {
	if len(p.Replicas) == 0 {
		return ErrNoReplica
	}
	heir, most := 0, int64(-1)
	for i, r := range p.Replicas {
		n, err := r.Received(ctx)
		if err != nil {
			return fmt.Errorf("find the heir: %w", err)
		}
		if n > most {
			heir, most = i, n
		}
	}
	if err := p.Replicas[heir].Promote(ctx); err != nil {
		return err
	}
	p.Primary = p.Replicas[heir]
	p.Replicas = slices.Delete(p.Replicas, heir, heir+1)
	return nil
}

// Stop ends all servers and returns when they are gone. Safe to repeat.
func (p *Pair) Stop() {
	for _, r := range p.Replicas {
		r.Stop()
	}
	p.Primary.Stop()
}
