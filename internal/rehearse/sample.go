package rehearse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/app"
)

// What a Sample and CPU call the processes that are no part.
const (
	processPrimary = "redis_primary"
	processReplica = "redis_replica"
	processLoad    = "load" // the rehearsal itself
)

const (
	// sampleWithin bounds a sample, so that a server that is gone does not hold up the
	// next one.
	sampleWithin = 2 * time.Second
	// rowsShare is for how many times as long as a count of the ledger's rows took no
	// other is made: it reads them all, from the server that is being measured.
	rowsShare = 50
)

// sampling takes a deployment's samples, of which each needs something of those before
// it.
type sampling struct {
	operator *app.Operator
	taking   sync.Mutex    // one sample at a time, over what follows
	counted  time.Time     // the rows
	counting time.Duration // how long that took
	phases   map[string]int
	ageless  bool // the queue's driver does not tell its oldest message's age

	mu    sync.Mutex // all below
	at    time.Time
	used  map[string]time.Duration // processor time of each process, by what is its own
	spent map[string]time.Duration // the same since the start, by name
}

// newSampling begins now: what this process has used before is not the rehearsal's.
func newSampling() *sampling {
	s := &sampling{at: time.Now(), used: map[string]time.Duration{}, spent: map[string]time.Duration{}}
	s.used[processLoad], _ = processorTime(os.Getpid()) // 0 where the system does not tell
	return s
}

// sample reads everything, and by processes what the processes have used.
func (s *sampling) sample(ctx context.Context, processes func(context.Context, *Sample) error) (Sample, error) {
	s.taking.Lock()
	defer s.taking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sampleWithin)
	defer cancel()
	var out Sample
	errs := []error{s.seats(ctx, &out), s.rows(ctx, &out)}
	queue, err := s.operator.Ops.Queue.Stats(ctx)
	if err == nil {
		out.QueueAge, out.QueueDepth, out.ageSeen = queue.OldestAge.Seconds(), queue.Waiting+queue.InFlight, !s.ageless
		out.aged = time.Now()
	}
	errs = append(errs, err, processes(ctx, &out))
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("sample: %w", err)
	}
	return out, nil
}

// Sample reads the deployment's figures: seats and queue where they are decided, not
// through a process that may be broken. Left is a level's cap less what is admitted, so
// that a level sold over its cap is negative; a level whose counter is damaged is absent.
// Phases are the last count of the rows, which are counted again when that has taken less
// than a fiftieth of the time since. What could not be read is absent, and the error says
// why; CPU is there in any case. Safe for concurrent use, also while Break is at work.
func (s *Stage) Sample(ctx context.Context) (Sample, error) {
	return s.sampling.sample(ctx, s.sampleProcesses)
}

func (s *sampling) seats(ctx context.Context, out *Sample) error {
	f, err := s.operator.Gate.ReadStatus(ctx)
	if err != nil {
		return fmt.Errorf("seats: %w", err)
	}
	out.Left, out.Taken = map[string]int{}, f.Total
	for _, l := range f.Levels {
		if l.Admitted >= 0 {
			out.Left[l.ID] = l.Cap - l.Admitted
		}
	}
	return nil
}

func (s *sampling) rows(ctx context.Context, out *Sample) error {
	begun := time.Now()
	if begun.Sub(s.counted) < rowsShare*s.counting {
		out.Phases, out.counted = maps.Clone(s.phases), s.counted
		return nil
	}
	phases, told := map[string]int{}, map[string]bool{}
	for d, err := range s.operator.Gate.Rows(ctx) {
		if err != nil {
			return fmt.Errorf("rows: %w", err)
		}
		if d.Err == nil && !told[d.Code] {
			told[d.Code] = true
			phases[string(d.Row.Phase)]++
		}
	}
	s.phases, s.counted, s.counting = phases, begun, time.Since(begun)
	out.Phases, out.counted = maps.Clone(phases), begun
	return nil
}

// sampleProcesses reads what the processes have used, and what Redis keeps.
func (s *Stage) sampleProcesses(ctx context.Context, out *Sample) error {
	names, used := map[string]string{processLoad: processLoad}, map[string]time.Duration{}
	if own, err := processorTime(os.Getpid()); err == nil {
		used[processLoad] = own
	}
	for _, p := range []*part{s.api, s.worker, s.gateway} {
		names[p.name], used[p.name] = p.name, p.processorTime()
	}
	s.mu.Lock()
	primary := s.pair.Primary.Addr()
	names[primary] = processPrimary
	for _, r := range s.pair.Replicas {
		names[r.Addr()] = processReplica
	}
	s.mu.Unlock()
	var errs []error
	for addr, name := range names {
		if name != processPrimary && name != processReplica {
			continue
		}
		info, err := askRedis(ctx, redis.Options{Addr: addr})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		used[addr] = info.used
		if name == processPrimary {
			out.RedisMemory = info.memory
		}
	}
	out.CPU = s.sampling.account(names, used)
	return errors.Join(errs...)
}

// account turns what each process has used in all into the cores that were in use since
// the last time.
func (s *sampling) account(names map[string]string, used map[string]time.Duration) map[string]float64 {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	since := now.Sub(s.at).Seconds()
	cores := map[string]float64{}
	for id, total := range used {
		// A server that was made since began at nothing.
		delta := max(0, total-s.used[id])
		s.used[id] = total
		s.spent[names[id]] += delta
		cores[names[id]] += delta.Seconds() / since
	}
	s.at = now
	return cores
}

// CPU is the processor time in seconds that each process has used from the start to the
// last sample, by the names of Sample.CPU. Those that were killed count. Safe for
// concurrent use.
func (s *Stage) CPU() map[string]float64 { return s.sampling.cpu() }

func (s *sampling) cpu() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]float64{}
	for name, spent := range s.spent {
		all[name] = spent.Seconds()
	}
	return all
}

// redisInfo is what INFO tells of a server.
type redisInfo struct {
	memory int64
	used   time.Duration // processor time, of all its threads
}

// askRedis asks one server past any front, on a connection of its own; o is where and as
// whom.
func askRedis(ctx context.Context, o redis.Options) (redisInfo, error) {
	o.Protocol, o.PoolSize, o.MaxRetries, o.DisableIdentity, o.ContextTimeoutEnabled = 2, 1, -1, true, true
	o.DialTimeout, o.DialerRetries = time.Second, 1
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	rdb := redis.NewClient(&o)
	defer rdb.Close()
	var text string
	for _, section := range []string{"memory", "cpu"} { // one at a time, as every version understands
		part, err := rdb.Info(ctx, section).Result()
		if err != nil {
			return redisInfo{}, fmt.Errorf("info %s: %w", section, err)
		}
		text += part
	}
	figure := func(name string) (v float64) {
		for line := range strings.Lines(text) {
			if found, ok := strings.CutPrefix(line, name+":"); ok {
				v, _ = strconv.ParseFloat(strings.TrimSpace(found), 64)
			}
		}
		return v
	}
	seconds := figure("used_cpu_sys") + figure("used_cpu_user")
	return redisInfo{memory: int64(figure("used_memory")), used: time.Duration(seconds * float64(time.Second))}, nil
}
