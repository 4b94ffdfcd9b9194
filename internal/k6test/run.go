package k6test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options are how a script is run.
type Options struct {
	// Env is the script's __ENV; nothing of the process's own environment is in it.
	Env map[string]string
	// VUs is how many engines each scenario has at most. 0 is 4.
	VUs int
	// Iterations is how many each scenario begins at most. 0 is as many as its rate and
	// its duration make.
	Iterations int
	// Now is the script's clock, by which its Date goes; sleep and rates do not. nil is
	// time.Now.
	Now func() time.Time
	// Dial makes the connections, and what it takes is no part of k6's duration. nil is
	// that of net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Result is what was seen of a run, also of one that ended with an error.
type Result struct {
	// Console is what the script printed, a line each.
	Console []string
	// Iterations is how many of each scenario came to their end.
	Iterations map[string]int

	metrics *metrics
}

// Count is the sum of a Counter and the number of samples of any other metric; 0 of one
// that the script has not.
func (r *Result) Count(name string) float64 {
	r.metrics.mu.Lock()
	defer r.metrics.mu.Unlock()
	of, ok := r.metrics.all[name]
	switch {
	case !ok:
		return 0
	case of.kind == counter:
		return of.parts[""].aggregate(counter, "count", 0, 0)
	}
	return float64(len(of.parts[""].values))
}

// Threshold is one of a script's options.
type Threshold struct {
	Expression string
	Aborts     bool // ends the run when it is crossed
}

// Thresholds are those of the script with that environment, by metric. It sends nothing.
// The error is ErrScript.
func (s *Script) Thresholds(ctx context.Context, env map[string]string) (map[string][]Threshold, error) {
	r := s.newRun(ctx, Options{Env: env})
	defer r.end()
	v, err := r.newVU()
	if err != nil {
		return nil, err
	}
	o, err := v.options()
	if err != nil {
		return nil, err
	}
	found := map[string][]Threshold{}
	for name, all := range o.Thresholds {
		for _, t := range all {
			found[name] = append(found[name], Threshold{t.source, t.abort})
		}
	}
	return found, nil
}

// run is one run of a script.
type run struct {
	script  *Script
	o       Options
	ctx     context.Context // ends with the run, or with what ends it before its time
	stop    context.CancelCauseFunc
	metrics *metrics
	over    *http.Transport
	vus     atomic.Int64
	began   time.Time

	mu      sync.Mutex
	result  *Result
	shared  map[string]string // SharedArrays, as JSON
	sharing sync.Mutex        // held while one is made
}

// errEnded is the cause of a context of a run that is over.
var errEnded = errors.New("the run is over")

func (s *Script) newRun(ctx context.Context, o Options) *run {
	r := &run{
		script: s, o: o, metrics: newMetrics(), began: time.Now(), shared: map[string]string{},
		over: &http.Transport{DialContext: o.Dial, DisableCompression: true, MaxIdleConnsPerHost: 64},
	}
	r.result = &Result{Iterations: map[string]int{}, metrics: r.metrics}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	return r
}

func (r *run) end() {
	r.stop(errEnded)
	r.over.CloseIdleConnections()
}

// Run runs setup, the scenarios at the same time, and teardown, and judges the thresholds,
// in between too. The error is ErrScript, ErrAborted or ErrThreshold, or the context's own;
// the first of them ends the run at once. Once setup has come to its end, so does teardown,
// whatever ended the run, unless that was the context. The result is never nil.
func (s *Script) Run(ctx context.Context, o Options) (*Result, error) {
	o.VUs = cmp.Or(o.VUs, 4)
	r := s.newRun(ctx, o)
	defer r.end()
	return r.result, r.all(ctx)
}

func (r *run) all(ctx context.Context) error {
	first, err := r.newVU()
	if err != nil {
		return err
	}
	o, err := first.options()
	if err != nil {
		return err
	}
	if err := r.metrics.judge(o.Thresholds); err != nil {
		return fmt.Errorf("%w: %w", ErrScript, err)
	}
	data, err := first.once(r.ctx, "setup", "")
	if err != nil {
		return err
	}
	r.began = time.Now()
	var watching, scenarios sync.WaitGroup
	watching.Go(r.watch)
	for name, s := range o.Scenarios {
		scenarios.Go(func() {
			if err := r.runScenario(name, s, data); err != nil {
				r.stop(err)
			}
		})
	}
	scenarios.Wait()
	r.stop(errEnded)
	watching.Wait()
	err = context.Cause(r.ctx)
	if errors.Is(err, errEnded) {
		err = nil
	}
	if ctx.Err() != nil {
		return err
	}
	if _, wrong := first.once(ctx, "teardown", data); err == nil {
		err = wrong
	}
	if found := r.metrics.crossed(time.Since(r.began), true); err == nil && len(found) > 0 {
		err = fmt.Errorf("%w: %s", ErrThreshold, strings.Join(found, "; "))
	}
	return err
}

// watch ends the run at a threshold that is to end it. k6 looks every two seconds.
func (r *run) watch() {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		if found := r.metrics.crossed(time.Since(r.began), false); len(found) > 0 {
			r.stop(fmt.Errorf("%w, and the run ended: %s", ErrThreshold, strings.Join(found, "; ")))
			return
		}
	}
}

// runScenario begins its iterations when they are due, each on a VU that is free.
func (r *run) runScenario(name string, s scenario, data string) error {
	n := s.iterations()
	if r.o.Iterations > 0 {
		n = min(n, r.o.Iterations)
	}
	free := make(chan *vu, min(r.o.VUs, s.MaxVUs))
	for range cap(free) {
		v, err := r.newVU()
		if err != nil {
			return err
		}
		free <- v
	}
	var under sync.WaitGroup
	defer under.Wait()
	for i := range n {
		if !r.until(time.Duration(s.StartTime) + s.due(i)) {
			return nil
		}
		select {
		case <-r.ctx.Done():
			return nil
		case v := <-free:
			under.Go(func() {
				if err := v.iterate(name, s.Exec, i, data); err != nil {
					r.stop(err)
					return
				}
				r.ended(name)
				free <- v
			})
		}
	}
	return nil
}

// until waits for a moment of the run; false when it ended before.
func (r *run) until(at time.Duration) bool {
	timer := time.NewTimer(time.Until(r.began.Add(at)))
	defer timer.Stop()
	select {
	case <-r.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (r *run) ended(scenario string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Iterations[scenario]++
}

func (r *run) print(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Console = append(r.result.Console, line)
}
