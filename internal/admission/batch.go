package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
)

// Group commit. Admissions that arrive together travel in one pipeline, in order, with
// one WAIT behind them. There is no timer and no goroutine of
// its own: a caller who finds nobody at work leads at once, alone; those who
// arrive meanwhile wait, and when the leader has its scripts' answers it hands
// the turn to the first of them, who leads all that are waiting by then. So a
// lone request waits for nobody, order of arrival is kept, and a batch whose
// WAIT is slow holds up no other.
//
// Small batches keep Redis and the process at work at the same time. But on a machine that
// has too much to do a turn takes a hundred times as long, and with a small bound on it
// next to nobody would be admitted just then: when many wait, or one has waited for long, a
// turn takes along all of them. One run of the script is short whatever the batch, so that Redis serves others in
// between.
const (
	runMost      = 32                    // admissions in one run of the script, and in one pipeline
	crowd        = 8 * runMost           // with more that wait, a pipeline has as many runs as it takes
	longWait     = 4 * time.Millisecond  // and so when somebody has waited that long for a turn
	batchMost    = 32 * runMost          // in one pipeline, even so
	waitingMost  = 8192                  // admissions that may wait for a turn; more are told to try again
	batchTimeout = time.Second           // one pipeline
	batchTries   = 5                     // times a batch is sent, each on another connection
	retryPause   = 5 * time.Millisecond  // before the second; it doubles
	tickEvery    = 20 * time.Millisecond // how often those who wait look at the time
	turnMost     = 2 * time.Millisecond  // a lone request, whose WAIT is in its pipeline, keeps the turn this long
)

// job is one admission on its way.
type job struct {
	ctx    context.Context // the caller's; only its end matters
	until  time.Time       // when the caller stops waiting
	req    booking.Request
	suffix string
	mode   string
	idem   string // key of the idempotency entry, or ""
	body   string // hash of what was asked for; only with a key

	// What the script is sent of it beside the request; set by each run.
	emailKey string
	level    int    // number of its level among the batch's
	rest     []byte // what only a seat needs
	room     [64]byte

	joined time.Time // the queue, for a turn

	// signal carries one message at a time; the outcome is set before the last.
	signal  chan signal
	outcome outcome
	// gone is set under the group's lock once the caller has given up, or been told that
	// its time is over; leads, once it has been given a turn.
	gone, leads bool
	// late is set after the script said expired once; the second time stands.
	late bool
}

// MarshalBinary is the part of the request that only a seat needs, as the client
// sends it: a job is its own argument, so that it costs no allocation.
func (j *job) MarshalBinary() ([]byte, error) { return j.rest, nil }

// over says why nobody waits for the job any more; nil while somebody does.
func (j *job) over() error {
	if j.timeIsOver(time.Now()) {
		return context.DeadlineExceeded
	}
	return j.ctx.Err()
}

// timeIsOver tells whether the job's time is over: a tick before it is, so that its caller
// hears in time.
func (j *job) timeIsOver(now time.Time) bool { return j.until.Sub(now) < tickEvery }

// signal is the turn to lead, or says that the time is over, or that the outcome is
// there.
type signal struct {
	lead bool
	turn uint64 // with lead
	over bool
}

// outcome is what became of a job.
type outcome struct {
	ans answer
	err error
}

// group hands out the turn.
type group struct {
	mu      sync.Mutex
	led     bool   // somebody has the turn
	turn    uint64 // counts turns, so that each is passed on once
	lone    bool   // its holder leads itself alone, with WAIT in the pipeline
	waiting []*job
	most    int // that may wait

	// ticking: a tick will look at the time for all who wait, since a timer each would
	// be a good part of what a refusal costs. It wakes those whose time is over and
	// nobody else: thousands who wake to look for themselves, in a stall, stand in the
	// way of the one who could end it.
	ticking bool
	atWork  [][]*job // the batches that are led, but for those of one
	ends    []*until // of the batches that are sent
}

// tickLater has the tick come, under the lock.
func (q *group) tickLater() {
	if !q.ticking {
		q.ticking = true
		time.AfterFunc(tickEvery, q.tick)
	}
}

func (q *group) tick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ticking = false
	now := time.Now()
	q.ends = slices.DeleteFunc(q.ends, func(e *until) bool {
		ended := !now.Before(e.at)
		if ended {
			close(e.over)
		}
		return ended
	})
	q.waiting = slices.DeleteFunc(q.waiting, func(j *job) bool { return j.gone || tellOver(j, now) })
	for _, batch := range q.atWork {
		for _, j := range batch {
			tellOver(j, now)
		}
	}
	if len(q.waiting)+len(q.atWork)+len(q.ends) > 0 {
		q.tickLater()
	}
}

// tellOver tells a job whose time is over, under the lock, and whether it did. One that
// leads, or that has been sent something, is awake and will see.
func tellOver(j *job, now time.Time) bool {
	if j.gone || j.leads || len(j.signal) > 0 || !j.timeIsOver(now) {
		return false
	}
	j.gone = true
	j.signal <- signal{over: true}
	return true
}

var errCrowded = fmt.Errorf("too many admissions are waiting: %w", booking.ErrTryAgain)

// place is where a job stands when it has joined: with the turn, or in the queue
// behind it.
type place struct {
	lead bool
	turn uint64
	lone bool // the turn's holder leads itself alone
}

// join gives the job the turn at once if nobody has it, else queues it.
func (q *group) join(j *job) (place, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.led {
		q.led, q.lone = true, true
		return place{lead: true, turn: q.turn}, nil
	}
	if len(q.waiting) >= q.most {
		return place{}, errCrowded
	}
	j.joined = time.Now()
	q.waiting = append(q.waiting, j)
	q.tickLater()
	return place{turn: q.turn, lone: q.lone}, nil
}

// take gives the leader the jobs that wait, oldest first, itself included. They are at
// work until done.
func (q *group) take() []*job {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), runMost)
	if len(q.waiting) > crowd || n > 0 && time.Since(q.waiting[0].joined) > longWait {
		n = min(len(q.waiting), batchMost)
	}
	batch := make([]*job, 0, n)
	for _, j := range q.waiting[:n] {
		if !j.gone {
			batch = append(batch, j)
		}
	}
	q.waiting = q.waiting[n:]
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	if q.lone = len(batch) == 1; !q.lone {
		q.atWork = append(q.atWork, batch)
	}
	return batch
}

// done says that a batch that was taken has been led to its end.
func (q *group) done(batch []*job) {
	if len(batch) <= 1 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.atWork = slices.DeleteFunc(q.atWork, func(b []*job) bool { return &b[0] == &batch[0] })
}

// pass hands that turn, unless it was handed on before, to the first who waits.
func (q *group) pass(turn uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if turn != q.turn {
		return
	}
	// Until the next holder has taken its batch it is nobody's lone request: who
	// joins now is in that batch.
	q.turn++
	q.lone = false
	for len(q.waiting) > 0 {
		if next := q.waiting[0]; !next.gone {
			next.leads = true
			next.signal <- signal{lead: true, turn: q.turn}
			return
		}
		q.waiting = q.waiting[1:]
	}
	q.led = false
}

// leave says that the caller has given up. It returns what had been sent to it
// before, if anything: a turn must be passed on.
func (q *group) leave(j *job) (signal, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.gone = true
	select {
	case s := <-j.signal:
		return s, true
	default:
		return signal{}, false
	}
}

// finish gives the caller its outcome; false when it has given up.
func (q *group) finish(j *job, o outcome) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.gone {
		return false
	}
	j.outcome = o
	j.signal <- signal{}
	return true
}

// admitTogether brings one admission to its outcome, together with others.
func (g *Gate) admitTogether(j *job) (answer, error) {
	at, err := g.group.join(j)
	if err != nil {
		return answer{}, err
	}
	// Who waits, not the lone request, pays for timers.
	var held <-chan time.Time
	if at.lead {
		g.lead([]*job{j}, at.turn)
	} else if at.lone {
		t := time.NewTimer(turnMost)
		defer t.Stop()
		held = t.C
	}
	for {
		select {
		case <-held:
			g.group.pass(at.turn)
		case s := <-j.signal:
			if s.over {
				return answer{}, fmt.Errorf("admit: %w", context.DeadlineExceeded)
			}
			if !s.lead {
				return j.outcome.ans, j.outcome.err
			}
			// Whoever is ready to join does so first: on a busy machine a batch takes many
			// along instead of the few who got ahead, and on an idle one nobody is.
			runtime.Gosched()
			g.leadAll(s.turn)
		case <-j.ctx.Done():
			return g.giveUp(j, j.ctx.Err())
		}
	}
}

// giveUp ends a wait, unless the outcome has come just now.
func (g *Gate) giveUp(j *job, why error) (answer, error) {
	switch s, sent := g.group.leave(j); {
	case sent && s.lead:
		g.group.pass(s.turn)
	case sent && !s.over:
		return j.outcome.ans, j.outcome.err
	}
	return answer{}, fmt.Errorf("admit: %w", why)
}

// leadAll leads those who wait.
func (g *Gate) leadAll(turn uint64) {
	batch := g.group.take()
	defer g.group.done(batch)
	g.lead(batch, turn)
}

// lead sends a batch and finishes every job in it. A job that got no answer
// because the connection broke or the server was not ready is sent again on
// another connection: its suffix makes that safe.
func (g *Gate) lead(batch []*job, turn uint64) {
	pass := func() { g.group.pass(turn) }
	defer pass()
	g.metrics.batchSize.Observe(float64(len(batch)))
	for try := 1; ; try++ {
		batch = g.sendBatch(batch, pass, try == batchTries)
		if len(batch) == 0 {
			return
		}
		// A server that is being replaced refuses at once; give it a moment.
		time.Sleep(retryPause << (try - 1))
	}
}

// sendBatch runs the batch once and returns the jobs to be sent again.
func (g *Gate) sendBatch(batch []*job, pass func(), last bool) (again []*job) {
	// Not a caller's context: a batch belongs to all of them, and ends with the last.
	ctx, end := g.group.until(wantedBy(batch))
	defer end()
	conn := g.rdb.Conn()
	defer func() { _ = conn.Close() }() // gives the connection back to the pool

	acks := g.acks()
	blind := g.breaker.isOpen() // nobody would acknowledge: do not wait for it
	asked := 0
	if acks > 0 && !blind && len(batch) == 1 {
		// One round trip for a lone request; under load a rejection waits for nothing.
		asked = acks
	}
	results, wait := g.runBatch(ctx, conn, batch, asked)
	pass()

	seats, unheard := 0, false
	var demoted error
	for _, r := range results {
		switch {
		case r.err != nil && notPrimary(r.err):
			demoted = r.err
		case r.err == nil && needsAck(r.ans.word):
			seats++
		case r.err == nil && r.ans.word == "failed" && strings.Contains(r.ans.detail, "NOREPLICAS"):
			unheard = true // the server itself counts too few replicas
		}
	}
	acked := acks == 0
	if seats > 0 && acks > 0 && !blind && demoted == nil && !notPrimary(wait.Err()) {
		if asked == 0 {
			wait = waitFor(ctx, acks)
			_ = conn.Process(ctx, wait)
		}
		acked = wait.Err() == nil && wait.Val() >= int64(acks)
		if !notPrimary(wait.Err()) {
			g.breaker.note(acked)
		}
	}
	if notPrimary(wait.Err()) {
		demoted = wait.Err()
	}
	// A refusal has written nothing, so that replicas acknowledge it says little;
	// that they do not says all.
	if unheard || (seats == 0 && asked > 0 && demoted == nil && wait.Err() == nil && wait.Val() < int64(acks)) {
		g.breaker.note(false)
	}
	if !acked && seats > 0 && demoted == nil && !last && wait.Err() != nil && retryable(wait.Err()) {
		// The connection broke under the WAIT: the seats are taken, and perhaps
		// acknowledged. The same attempts find them, on another connection; a "full"
		// may have been full of them, and asks again.
		for i := range results {
			if w := results[i].ans.word; needsAck(w) || w == "level_full" || w == "sold_out" {
				results[i] = outcome{err: fmt.Errorf("admit: %w", wait.Err())}
			}
		}
	}
	if demoted != nil {
		// No word of this server counts, and a seat it took is the new primary's to
		// know: the same attempt finds it there, or takes it.
		g.cohorts.retire()
		for i := range results {
			results[i] = outcome{err: fmt.Errorf("admit: %w", demoted)}
		}
	}
	undo := g.settleBatch(batch, results, acked)
	for i, j := range batch {
		// A seat whose caller has left goes back. The others are told afterwards: for
		// them the level was full of it.
		if r := results[i]; acked && r.err == nil && ownsSeat(r.ans.word) && !g.group.finish(j, r) {
			undo = append(undo, undoOf(j, r.ans))
		}
	}
	if len(undo) > 0 {
		uncertain(results)
	}
	for i, j := range batch {
		switch r := results[i]; {
		case acked && r.err == nil && ownsSeat(r.ans.word): // told above
		case r.err != nil && !last && j.over() == nil && (retryable(r.err) || ctx.Err() != nil):
			again = append(again, j)
		case r.err == nil && r.ans.word == "expired" && !j.late && j.over() == nil:
			j.late = true // our idea of Redis's clock was old, and now is not
			again = append(again, j)
		default:
			g.group.finish(j, r)
		}
	}
	g.undoOn(conn, undo)
	return again
}

// until is a context that ends at a time, or up to a tick later for those who wait
// for its end: the shared tick looks at the time. A timer for each batch would on an
// idle machine wake another core for each lone request.
type until struct {
	context.Context
	at   time.Time
	over chan struct{}
}

// Deadline is the time.
func (u *until) Deadline() (time.Time, bool) { return u.at, true }

// Done is closed when the time has come, unless the batch has ended before.
func (u *until) Done() <-chan struct{} { return u.over }

// Err tells whether the time has come.
func (u *until) Err() error {
	if time.Now().Before(u.at) {
		return nil
	}
	return context.DeadlineExceeded
}

// until makes a context that ends at the time; end takes it off the tick.
func (q *group) until(at time.Time) (_ context.Context, end func()) {
	u := &until{Context: context.Background(), at: at, over: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ends = append(q.ends, u)
	q.tickLater()
	return u, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.ends = slices.DeleteFunc(q.ends, func(e *until) bool { return e == u })
	}
}

// wantedBy is when the batch's time is over: no caller waits longer.
func wantedBy(batch []*job) time.Time {
	var last time.Time
	for _, j := range batch {
		if j.until.After(last) {
			last = j.until
		}
	}
	if most := time.Now().Add(batchTimeout); last.After(most) {
		return most
	}
	return last
}

// settleBatch marks what was acknowledged and lists the seats to undo: those
// that attempts of this batch took, if it was not.
func (g *Gate) settleBatch(batch []*job, results []outcome, acked bool) (undo []seatToUndo) {
	for i := range results {
		r := &results[i]
		if r.err != nil {
			continue
		}
		g.clock.learn(r.ans.now.Add(-g.offset()))
		r.ans.acked = acked
		if !acked && ownsSeat(r.ans.word) {
			undo = append(undo, undoOf(batch[i], r.ans))
		}
	}
	return undo
}

// uncertain turns every "full" into "try again": seats of its batch go back.
func uncertain(results []outcome) {
	for i := range results {
		if w := results[i].ans.word; w == "level_full" || w == "sold_out" {
			results[i].ans.word = "uncertain"
		}
	}
}

func ownsSeat(word string) bool { return word == "admitted" || word == "taken_over" }
func needsAck(word string) bool { return ownsSeat(word) || word == "replay" }

// runBatch runs the script over the batch, in runs of runMost that follow one another,
// once more with its source if the server had forgotten it, and then WAIT for as many
// replicas as asked. With an error in a run every job of that run has it: the script is
// atomic.
func (g *Gate) runBatch(ctx context.Context, conn *redis.Conn, batch []*job, asked int) ([]outcome, *redis.IntCmd) {
	runs := make([]*redis.Cmd, 0, (len(batch)+runMost-1)/runMost)
	for jobs := range slices.Chunk(batch, runMost) {
		runs = append(runs, redis.NewCmd(ctx, g.admitArgs(jobs, "EVALSHA", admitScript.sha)...))
	}
	wait := waitFor(ctx, asked)
	g.sendRuns(ctx, conn, runs, wait)
	if forgotten := slices.IndexFunc(runs, func(r *redis.Cmd) bool { return noScript(r.Err()) }); forgotten >= 0 {
		// The first of them brings the source, and with it the others' script. What other
		// runs were answered stands: they may have been behind, where somebody else had
		// brought the script in between.
		verb, script := "EVAL", admitScript.source
		for i := forgotten; i < len(runs); i++ {
			if noScript(runs[i].Err()) {
				runs[i] = redis.NewCmd(ctx, g.admitArgs(batch[i*runMost:min((i+1)*runMost, len(batch))], verb, script)...)
				verb, script = "EVALSHA", admitScript.sha
			}
		}
		wait = waitFor(ctx, asked)
		g.sendRuns(ctx, conn, slices.DeleteFunc(slices.Clone(runs), func(r *redis.Cmd) bool { return r.Val() != nil || r.Err() != nil }), wait)
	}
	results := make([]outcome, 0, len(batch))
	for i, jobs := range slices.Collect(slices.Chunk(batch, runMost)) {
		results = append(results, outcomesOf(runs[i], len(jobs))...)
	}
	return results, wait
}

// outcomesOf is what one run of the script says to each of its jobs.
func outcomesOf(cmd *redis.Cmd, jobs int) []outcome {
	a, err := answer{}, cmd.Err()
	if err == nil {
		a, err = parse(admitScript, cmd.Val())
	}
	decided := err == nil && a.word == "decided"
	if n := strings.Count(a.detail, "\x00") + 1; decided && n != jobs {
		err = fmt.Errorf("%d answers to %d requests", n, jobs)
	}
	if err != nil {
		err = fmt.Errorf("admit: %w", err)
	}
	results, others := make([]outcome, jobs), a.detail
	for i := range results {
		results[i] = outcome{ans: a, err: err}
		if decided && err == nil {
			one, rest, _ := strings.Cut(others, "\x00")
			others = rest
			results[i].ans.word, results[i].ans.detail, _ = strings.Cut(one, " ")
		}
	}
	return results
}

func (g *Gate) sendRuns(ctx context.Context, conn *redis.Conn, runs []*redis.Cmd, wait *redis.IntCmd) {
	pipe := conn.Pipeline()
	for _, run := range runs {
		_ = pipe.Process(ctx, run)
	}
	_ = pipe.Process(ctx, wait)
	exec(ctx, pipe)
}

// admitArgs is the script's call as its header says.
func (g *Gate) admitArgs(batch []*job, verb, script string) []any {
	levels, keyed := make([]string, 0, 8), 0
	for _, j := range batch {
		i := slices.Index(levels, j.req.Level)
		if i < 0 {
			i, levels = len(levels), append(levels, j.req.Level)
		}
		j.emailKey, j.level = g.keys.email(j.req.Code), i+1
		rest := append(append(j.room[:0], j.mode...), ' ')
		rest = append(append(strconv.AppendInt(rest, g.wantedUntil(j), 10), ' '), j.suffix...)
		if j.idem == "" {
			rest = append(rest, " 0 -"...)
		} else {
			keyed++
			rest = strconv.AppendInt(append(rest, ' '), int64(keyed), 10)
			rest = append(append(rest, ' '), j.body...)
		}
		j.rest = rest
	}
	keys := len(g.admitKeys) + len(batch) + len(levels) + keyed
	args := make([]any, 0, 3+keys+3+len(levels)+4*len(batch))
	args = append(args, verb, script, keys)
	args = append(args, g.admitKeys...)
	// Pointers into the jobs, since a value in an any is another allocation.
	for _, j := range batch {
		args = append(args, &j.emailKey)
	}
	for _, level := range levels {
		args = append(args, g.keys.level(level))
	}
	for _, j := range batch {
		if j.idem != "" {
			args = append(args, &j.idem)
		}
	}
	args = append(args, g.offset().Milliseconds(), len(batch), len(levels))
	for i := range levels {
		args = append(args, &levels[i])
	}
	for _, j := range batch {
		args = append(args, &j.req.Code)
	}
	for _, j := range batch {
		args = append(args, &j.req.Email)
	}
	for _, j := range batch {
		args = append(args, j.level)
	}
	for _, j := range batch {
		args = append(args, j)
	}
	return args
}

type seatToUndo struct {
	code, level string
	row         string
}

func undoOf(j *job, a answer) seatToUndo {
	return seatToUndo{code: j.req.Code, level: j.req.Level, row: a.detail}
}

// undoOn gives seats back on the connection that took them, so that it cannot
// overtake their admission. A seat that it cannot give back is 'new', and the
// reconciler undoes it.
func (g *Gate) undoOn(conn *redis.Conn, seats []seatToUndo) {
	if len(seats) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	pipe := conn.Pipeline()
	run := pipe.Eval // the first brings the source for the others
	by := undoScript.source
	var errs []error
	for _, s := range seats {
		row, err := answer{detail: s.row}.row()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// The row's level is the request's: a take-over keeps it.
		keys := append(g.keys.base(), g.keys.total(), g.keys.level(s.level))
		run(ctx, by, keys, g.offset().Milliseconds(), s.code, row.Attempt, s.level)
		run, by = pipe.EvalSha, undoScript.sha
	}
	_, err := pipe.Exec(ctx)
	if err := errors.Join(append(errs, err)...); err != nil {
		g.log.WarnContext(ctx, "undo of an admission did not go through; the reconciler gives the seat back", "seats", len(seats), "error", err)
	}
}
