package record

import (
	"context"
	"sync"
)

// outage is the worker's knowledge that the store does not answer. Of those who
// wait for its end one asks the store, the others wait for that one.
type outage struct {
	prober chan struct{} // one token: the right to ask

	mu   sync.Mutex
	over chan struct{}               // nil while the store answers; closed when it does again
	ask  func(context.Context) error // nil tells that it does
}

// begin notes that the store does not answer, and which question ends the outage;
// true for the first to notice.
func (o *outage) begin(ask func(context.Context) error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over != nil {
		return false
	}
	o.over, o.ask = make(chan struct{}), ask
	return true
}

func (o *outage) running() (<-chan struct{}, func(context.Context) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over, o.ask
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over != nil {
		close(o.over)
		o.over, o.ask = nil, nil
	}
}

// wait returns when the store answers, at once when nothing else is known; the
// error is the context's.
func (o *outage) wait(ctx context.Context) error {
	over, ask := o.running()
	if over == nil {
		return ctx.Err()
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case o.prober <- struct{}{}:
	}
	defer func() { <-o.prober }()
	for tries := 1; ; tries++ {
		if now, _ := o.running(); now != over { // ended while this one took its turn
			return nil
		}
		if !sleep(ctx, backoff(tries)) {
			return ctx.Err()
		}
		if ask(ctx) == nil {
			o.end()
			return nil
		}
	}
}
