package rehearse

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"holdfast/internal/mockgateway"
	"holdfast/internal/redisproc"
	"holdfast/internal/sqlitedb"
)

// lostReplies is the part of the payments whose create loses its answer, and again of
// those whose execute does: well below a run of failures that would look like an outage.
const lostReplies = 0.1

// errNotAsked refuses a fault that the stage was not built for.
var errNotAsked = errors.New("the deployment was started without this fault among Options.Faults")

// Break has one fault begin, and returns what ends it: heal returns when the deployment
// is whole again, and is called once. One fault at a time; Sample and Ctl may be at work
// meanwhile.
//
//   - api, worker: killed as by kill -9; heal starts it again.
//   - gateway: killed in the same way, so that connections are refused, the payer's pages
//     too; heal starts it on its own data.
//   - redis: the primary is killed; heal promotes the replica, leads the address to it, and
//     has a new replica join, without which nothing is acknowledged.
//   - queue: the write lock of its file is held, as by a disk that stands still: a message
//     is not accepted and none is taken while it can still be counted.
//   - replies: of the payments that are created meanwhile, one in ten loses the answer to
//     its create, and one in ten that to its execute, after the money has moved; the latter
//     may come after heal.
func (s *Stage) Break(ctx context.Context, f Fault) (heal func(context.Context) error, err error) {
	switch f {
	case FaultAPI:
		s.api.kill()
		return s.startAPI, nil
	case FaultWorker:
		s.worker.kill()
		return s.startWorker, nil
	case FaultGateway:
		return s.breakGateway()
	case FaultRedis:
		return s.breakRedis()
	case FaultQueue:
		return s.breakQueue(ctx)
	case FaultReplies:
		return s.breakReplies(ctx)
	}
	return nil, fmt.Errorf("fault %q is unknown; want one of %q", f, Faults())
}

func (s *Stage) breakGateway() (func(context.Context) error, error) {
	if !s.has(FaultGateway) {
		return nil, fmt.Errorf("gateway: %w: it keeps its payments in memory", errNotAsked)
	}
	s.settingsMu.Lock()
	defer s.settingsMu.Unlock()
	s.gateway.kill()
	return func(ctx context.Context) error {
		s.settingsMu.Lock() // nobody changes them while it reads them
		defer s.settingsMu.Unlock()
		return s.startGateway(ctx)
	}, nil
}

func (s *Stage) breakRedis() (func(context.Context) error, error) {
	if s.front == nil {
		return nil, fmt.Errorf("redis: %w: its address leads to one server only", errNotAsked)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pair.Primary.Kill()
	return s.failOver, nil
}

// failOver is what a managed Redis does by itself.
func (s *Stage) failOver(ctx context.Context) error {
	s.mu.Lock()
	err := s.pair.Promote(ctx)
	primary := s.pair.Primary.Addr()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.front.lead(primary)
	replica, err := redisproc.Start(ctx, redisproc.Options{Dir: filepath.Join(s.data, "redis"), ReplicaOf: primary})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pair.Replicas = append(s.pair.Replicas, replica)
	return nil
}

// breakQueue holds the file's lock in a write of its own that changes nothing.
func (s *Stage) breakQueue(ctx context.Context) (func(context.Context) error, error) {
	db, err := sqlitedb.Open(ctx, filepath.Join(s.data, queueFile), sqlitedb.Schema{Name: "rehearsal"})
	if err != nil {
		return nil, fmt.Errorf("lock the queue: %w", err)
	}
	held, free, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	hold := sync.OnceFunc(func() { close(held) }) // a write may be run again
	go func() {
		_, err := sqlitedb.Write(ctx, db, func(*sqlitedb.Tx) (struct{}, error) {
			hold()
			<-free
			return struct{}{}, nil
		})
		done <- err
	}()
	unlock := sync.OnceValue(func() error {
		close(free)
		return errors.Join(<-done, db.Close())
	})
	select {
	case <-held:
	case err := <-done:
		return nil, fmt.Errorf("lock the queue: %w", errors.Join(err, db.Close()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlockQueue = unlock
	return func(context.Context) error { return unlock() }, nil
}

func (s *Stage) breakReplies(ctx context.Context) (func(context.Context) error, error) {
	lost := func(call string) mockgateway.PlannedFault {
		return mockgateway.PlannedFault{
			Fault: mockgateway.Fault{Name: mockgateway.FaultAnswerLost, Calls: []string{call}}, Probability: lostReplies,
		}
	}
	err := s.setGateway(ctx, func(set *mockgateway.Settings) {
		set.Faults = []mockgateway.PlannedFault{lost(mockgateway.CallCreate), lost(mockgateway.CallExecute)}
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return s.setGateway(ctx, func(set *mockgateway.Settings) { set.Faults = nil })
	}, nil
}
