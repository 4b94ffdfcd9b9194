package redisproc

import "context"

// Pair is a primary and its replicas.
type Pair struct {
	Primary  *Server
	Replicas []*Server
}

// StartPair starts a primary and that many replicas of it, all in dir, and
// returns when every replica is online. ctx bounds the start only. The caller
// must Stop the pair.
func StartPair(ctx context.Context, dir string, replicas int) (*Pair, error) {
	primary, err := Start(ctx, Options{Dir: dir})
	if err != nil {
		return nil, err
	}
	p := &Pair{Primary: primary}
	for range replicas {
		r, err := Start(ctx, Options{Dir: dir, ReplicaOf: primary.Addr()})
		if err != nil {
			p.Stop()
			return nil, err
		}
		p.Replicas = append(p.Replicas, r)
	}
	return p, nil
}

// Stop ends all servers and returns when they are gone. Safe to repeat.
func (p *Pair) Stop() {
	for _, r := range p.Replicas {
		r.Stop()
	}
	p.Primary.Stop()
}
