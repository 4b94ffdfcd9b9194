package rehearse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
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

// sampling is what one sample needs of those before it.
type sampling struct {
	at       time.Time
	used     map[string]time.Duration // processor time of each process, by what is its own
	spent    map[string]time.Duration // the same since the start, by name
	counted  time.Time                // the rows
	counting time.Duration            // how long that took
	phases   map[string]int
}

// Sample reads the deployment's figures: seats and queue where they are decided, not
// through a process that may be broken. Left is a level's cap less what is admitted, so
// that a level sold over its cap is negative; a level whose counter is damaged is absent.
// Phases are the last count of the rows, which are counted again when that has taken less
// than a fiftieth of the time since. What could not be read is absent, and the error says
// why; CPU is there in any case. Call it from one goroutine at a time; Break may be at
// work meanwhile.
func (s *Stage) Sample(ctx context.Context) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleWithin)
	defer cancel()
	var out Sample
	errs := []error{s.sampleSeats(ctx, &out), s.sampleRows(ctx, &out)}
	queue, err := s.operator.Ops.Queue.Stats(ctx)
	if err == nil {
		out.QueueAge, out.QueueDepth = queue.OldestAge.Seconds(), queue.Waiting+queue.InFlight
	}
	errs = append(errs, err, s.sampleProcesses(ctx, &out))
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("sample: %w", err)
	}
	return out, nil
}

func (s *Stage) sampleSeats(ctx context.Context, out *Sample) error {
	f, err := s.operator.Gate.ReadStatus(ctx)
	if err != nil {
		return fmt.Errorf("seats: %w", err)
	}
	out.Left = map[string]int{}
	for _, l := range f.Levels {
		if l.Admitted >= 0 {
			out.Left[l.ID] = l.Cap - l.Admitted
		}
	}
	return nil
}

func (s *Stage) sampleRows(ctx context.Context, out *Sample) error {
	begun := time.Now()
	last := &s.last
	if begun.Sub(last.counted) < rowsShare*last.counting {
		out.Phases = maps.Clone(last.phases)
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
	last.phases, last.counted, last.counting = phases, begun, time.Since(begun)
	out.Phases = maps.Clone(phases)
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
		info, err := askRedis(ctx, addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		used[addr] = info.used
		if name == processPrimary {
			out.RedisMemory = info.memory
		}
	}
	out.CPU = s.account(names, used)
	return errors.Join(errs...)
}

// account turns what each process has used in all into the cores that were in use since
// the last time.
func (s *Stage) account(names map[string]string, used map[string]time.Duration) map[string]float64 {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	since := now.Sub(s.last.at).Seconds()
	cores := map[string]float64{}
	for id, total := range used {
		// A server that was made since began at nothing.
		delta := max(0, total-s.last.used[id])
		s.last.used[id] = total
		s.last.spent[names[id]] += delta
		cores[names[id]] += delta.Seconds() / since
	}
	s.last.at = now
	return cores
}

// CPU is the processor time in seconds that each process has used from the start to the
// last sample, by the names of Sample.CPU. Those that were killed count. Safe for
// concurrent use.
func (s *Stage) CPU() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]float64{}
	for name, spent := range s.last.spent {
		all[name] = spent.Seconds()
	}
	return all
}

// redisInfo is what INFO tells of a server.
type redisInfo struct {
	memory int64
	used   time.Duration // processor time, of all its threads
}

// askRedis asks one server past any front, on a connection of its own.
func askRedis(ctx context.Context, addr string) (redisInfo, error) {
	rdb := redis.NewClient(&redis.Options{
		Addr: addr, Protocol: 2, PoolSize: 1, MaxRetries: -1, DisableIdentity: true, ContextTimeoutEnabled: true,
		DialTimeout: time.Second, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
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
