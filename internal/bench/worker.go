package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
	"holdfast/internal/obs"
	queue "holdfast/internal/queue/sqlite"
	worker "holdfast/internal/record"
	"holdfast/internal/sqlitedb"
	store "holdfast/internal/store/sqlite"
)

// WorkerResult is one run.
type WorkerResult struct {
	// RecordsPerS is the median of the rounds: records over the time from the
	// worker's start to the commit that deleted the last message.
	RecordsPerS float64   `json:"records_per_s"`
	RoundsPerS  []float64 `json:"rounds_per_s"`
	// Records is how many were queued in each round.
	Records int `json:"records"`
	// Groups is how many message groups they were in; Behind how many of them had
	// another before them in their group, whose record had to be there first.
	Groups int `json:"groups"`
	Behind int `json:"behind"`
	// QueuedPerS is the rate at which 64 senders had the messages accepted.
	QueuedPerS float64 `json:"queued_per_s"`
	// JournalMode and Synchronous are SQLite's settings in both files: a commit has
	// been flushed to the disk when it returns. FlushMS is the median of a flush of
	// a small file beside them.
	JournalMode string  `json:"journal_mode"`
	Synchronous string  `json:"synchronous"`
	FlushMS     float64 `json:"flush_ms"`
	GOMAXPROCS  int     `json:"gomaxprocs"`
	// EmulatorResult is nil, and its keys are not there, when no emulator was named.
	*EmulatorResult
}

// WorkerOptions size a run. What is not here is as shipped.
type WorkerOptions struct {
	// Records are queued before each round.
	Records int
	Rounds  int
	// Within ends the rounds over SQLite, with an error, and again those over the
	// emulator.
	Within time.Duration
	// Emulator is the base URL of a running AWS emulator, to measure there too; ""
	// leaves that out. What is made there stays until the emulator ends.
	Emulator string
}

// DefaultWorker is what the quoted figures come from.
func DefaultWorker() WorkerOptions {
	return WorkerOptions{Records: 10_000, Rounds: 5, Within: time.Minute}
}

// workerSenders is how many messages are on their way into the queue at a time.
const workerSenders = 64

// Worker measures how fast the worker moves bookings from the durable queue into
// the durable store: the real one, as the worker process builds and runs it, over
// two files on disk. A round queues the records, one message each in the groups
// that their candidates have, and then starts the worker. With an emulator named,
// as many rounds follow over the drivers of AWS; see EmulatorResult.
//
// The error says why there is no figure. A record that was put before one that was
// queued earlier in its group, one that is missing at the end and a message that is
// left are errors, and so are a folder for temporary files that is no disk and an
// emulator that does not answer. Not to be run beside another load.
func Worker(ctx context.Context, o WorkerOptions, progress io.Writer) (res WorkerResult, err error) {
	if o.Records < 1 || o.Rounds < 1 || o.Within <= 0 {
		return res, errors.New("worker: records, rounds and time must be positive")
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if volatile, err := inMemory(dir); err != nil {
		return res, err
	} else if volatile {
		return res, fmt.Errorf("%s is in memory and nothing in it is durable: set TMPDIR to a folder on a disk", dir)
	}
	var emulated *emulator
	if o.Emulator != "" { // one that is not there is told before the first round
		if emulated, err = reachEmulator(ctx, o.Emulator); err != nil {
			return res, err
		}
		defer emulated.close()
	}
	res = WorkerResult{Records: o.Records, JournalMode: sqlitedb.JournalMode, Synchronous: sqlitedb.Synchronous, GOMAXPROCS: runtime.GOMAXPROCS(0)}
	if res.FlushMS, err = flushMS(filepath.Join(dir, "flush")); err != nil {
		return res, err
	}
	files := workerPlace{name: "sqlite", records: o.Records, each: 1, open: openFiles}
	rounds, err := files.rounds(ctx, o, dir, progress)
	if err != nil {
		return res, err
	}
	res.RoundsPerS, res.RecordsPerS, res.QueuedPerS = rounds.worked, median(rounds.worked), rounded(median(rounds.queued), 0)
	res.Groups, res.Behind = rounds.groups, rounds.behind
	if emulated != nil {
		res.EmulatorResult, err = emulated.measure(ctx, o, dir, progress)
	}
	return res, err
}

// workerQueue is what a round needs of a queue.
type workerQueue interface {
	worker.Queue
	Send(ctx context.Context, group, dedupID string, body []byte) error
}

// workerStore is what a round needs of a store.
type workerStore interface {
	worker.Store
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
}

// workerDrivers are a round's, empty at its begin.
type workerDrivers struct {
	queue workerQueue
	store workerStore
	close func() error
}

// openFiles makes the drivers of SQLite in a new folder.
func openFiles(ctx context.Context, dir string) (d workerDrivers, err error) {
	q, err := queue.Open(ctx, filepath.Join(dir, "queue.db"), queue.Options{})
	if err != nil {
		return d, err
	}
	s, err := store.Open(ctx, filepath.Join(dir, "store.db"))
	if err != nil {
		return d, errors.Join(err, q.Close())
	}
	return workerDrivers{queue: q, store: s, close: func() error { return errors.Join(s.Close(), q.Close()) }}, nil
}

// workerPlace is where the worker is measured, and with what.
type workerPlace struct {
	name          string
	records, each int // see newBacklog
	// open makes a round's drivers; the folder is the round's own.
	open func(ctx context.Context, dir string) (workerDrivers, error)
}

// workerRounds are the figures of some rounds, in records a second.
type workerRounds struct {
	worked, queued []float64
	groups, behind int
}

// rounds measures one after the other in folders under dir.
func (p workerPlace) rounds(ctx context.Context, o WorkerOptions, dir string, progress io.Writer) (all workerRounds, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Within, fmt.Errorf("not done within %s: ask for fewer records", o.Within))
	defer cancel()
	for i := range o.Rounds {
		r := workerRound{backlog: newBacklog(p.records, p.each), dir: filepath.Join(dir, fmt.Sprint(p.name, i))}
		if err := r.run(ctx, p.open); err != nil {
			return all, fmt.Errorf("%s, round %d: %w", p.name, i+1, errors.Join(err, context.Cause(ctx)))
		}
		perS := rounded(float64(p.records)/r.worked.Seconds(), 0)
		fmt.Fprintf(progress, "%s, round %d of %d: %.0f records/s\n", p.name, i+1, o.Rounds, perS)
		all.worked = append(all.worked, perS)
		all.queued = append(all.queued, float64(p.records)/r.queued.Seconds())
		all.groups, all.behind = len(r.groups), r.behind()
	}
	return all, nil
}

// flushMS is the median of some flushes of a small file.
func flushMS(path string) (ms float64, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var took []float64
	for range 50 {
		begun := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(begun).Microseconds())/1000)
	}
	return rounded(median(took), 2), nil
}

// backlog is what is queued, in the order of each group.
type backlog struct {
	groups map[string][]booking.Record
	place  map[string]int // in its group, by attempt
}

// newBacklog makes n records, so many of each candidate.
func newBacklog(n, each int) backlog {
	b := backlog{groups: map[string][]booking.Record{}, place: make(map[string]int, n)}
	at := time.Now()
	epoch := booking.NewEpoch(at)
	for i := range n {
		row := booking.Row{
			Attempt: booking.AttemptID(epoch, booking.NewAttemptSuffix(at)), Level: openLevel, Amount: 150000, Currency: "BDT",
			Payment: fmt.Sprintf("%s%07d", wavePayment, i), AdmittedAt: at.UnixMilli(), Deadline: at.Add(booking.DefaultHold).UnixMilli(),
		}
		rec := row.HeldRecord(candidate(i/each), "http://gateway.bench/pay/"+row.Payment, "k3YOrG8qy6")
		group := booking.QueueGroup(rec.CandidateHash)
		b.place[rec.Attempt] = len(b.groups[group])
		b.groups[group] = append(b.groups[group], rec)
	}
	return b
}

func (b backlog) behind() int { return len(b.place) - len(b.groups) }

// send queues everything, each group in its order.
func (b backlog) send(ctx context.Context, q workerQueue) error {
	g, ctx := errgroup.WithContext(ctx)
	work := make(chan []booking.Record)
	g.Go(func() error {
		defer close(work)
		for _, recs := range b.groups {
			select {
			case work <- recs:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range workerSenders {
		g.Go(func() error {
			for recs := range work {
				for _, rec := range recs {
					body, err := json.Marshal(rec)
					if err != nil {
						return err
					}
					if err := q.Send(ctx, booking.QueueGroup(rec.CandidateHash), rec.Invoice, body); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// workerRound is one backlog on its way through one worker.
type workerRound struct {
	backlog
	dir            string
	queued, worked time.Duration
}

func (r *workerRound) run(ctx context.Context, open func(context.Context, string) (workerDrivers, error)) (err error) {
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, logFile.Close()) }()
	d, err := open(ctx, r.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	begun := time.Now()
	if err := r.send(ctx, d.queue); err != nil {
		return fmt.Errorf("queue the records: %w", err)
	}
	r.queued = time.Since(begun)

	ordered := &orderedStore{workerStore: d.store, backlog: r.backlog, put: make(map[string]int, len(r.groups))}
	emptied := &countedQueue{workerQueue: d.queue, all: make(chan struct{})}
	emptied.left.Store(int64(len(r.place)))
	w, err := worker.New(worker.Deps{
		Queue: emptied, Store: ordered, Log: obs.NewLogger(logFile, slog.LevelInfo), Reg: obs.NewRegistry(), Now: time.Now,
	})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	begun = time.Now()
	go func() { ended <- w.Run(running) }()
	select {
	case <-emptied.all:
		r.worked = time.Since(begun)
	case <-ctx.Done():
	}
	stop()
	return errors.Join(<-ended, ctx.Err(), r.check(ctx, d.queue, ordered))
}

// check reads queue and store when the worker has ended.
func (r *workerRound) check(ctx context.Context, q workerQueue, s *orderedStore) error {
	left, err := q.Stats(ctx)
	if err != nil {
		return err
	}
	written := 0
	for rec, err := range s.Records(ctx) {
		if err != nil {
			return err
		}
		group := r.groups[booking.QueueGroup(rec.CandidateHash)]
		i, made := r.place[rec.Attempt]
		if !made || rec.State != booking.StateHeld || rec.Invoice != group[i].Invoice || rec.PaymentID != group[i].PaymentID {
			return fmt.Errorf("record %s is %s by payment %s: not what was queued", rec.Attempt, rec.State, rec.PaymentID)
		}
		written++
	}
	switch early := s.early.Load(); {
	case early > 0:
		return fmt.Errorf("%d records were put before one that was queued earlier in their group", early)
	case written != len(r.place) || left.Waiting+left.InFlight+left.Dead > 0:
		return fmt.Errorf("%d of %d records written, %d messages left and %d dead letters", written, len(r.place), left.Waiting+left.InFlight, left.Dead)
	}
	return nil
}

// orderedStore counts the records that come before one that was queued earlier in
// their group has been put.
type orderedStore struct {
	workerStore
	backlog
	early atomic.Int64

	mu  sync.Mutex
	put map[string]int // records that are there, by group
}

// PutHeld is the store's.
func (s *orderedStore) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	group := booking.QueueGroup(rec.CandidateHash)
	s.mu.Lock()
	if s.put[group] < s.place[rec.Attempt] {
		s.early.Add(1)
	}
	s.mu.Unlock()
	have, created, err := s.workerStore.PutHeld(ctx, rec)
	if created {
		s.mu.Lock()
		s.put[group]++
		s.mu.Unlock()
	}
	return have, created, err
}

// countedQueue tells when the last message has been deleted.
type countedQueue struct {
	workerQueue
	left atomic.Int64
	all  chan struct{} // closed then
}

// Delete is the queue's.
func (q *countedQueue) Delete(ctx context.Context, receipts []string) ([]string, error) {
	failed, err := q.workerQueue.Delete(ctx, receipts)
	if n := int64(len(receipts) - len(failed)); err == nil && n > 0 && q.left.Add(-n) == 0 {
		close(q.all)
	}
	return failed, err
}
