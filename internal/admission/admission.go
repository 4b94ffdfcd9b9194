// Package admission is the seat ledger in Redis: it runs the scripts of
// scripts/lua and turns their words into the domain's outcomes.
//
// It fails closed. A result counts only after enough replicas acknowledged it
// by WAIT on the same connection; what was not acknowledged comes back as
// booking.ErrNotAcknowledged (from Admit as booking.ErrTryAgain, after the seat
// was undone on the same connection), and a caller rests nothing on it. A Redis
// without an epoch answers booking.ErrLedgerUnknown and changes nothing.
//
// The clock is Redis's own, read inside the scripts.
package admission

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/scripts/lua"
)

const (
	// waitTimeout is how long the replicas have to acknowledge, in ms.
	waitTimeout = 200
	// undoTimeout bounds the undo of an admission that was not acknowledged; the
	// caller's own time may be over by then.
	undoTimeout = time.Second
	// callTimeout bounds a call whose context has no deadline.
	callTimeout = 2 * time.Second
	// tries is how often a script is sent, each time on a fresh connection, when
	// the connection broke or the server was not ready. Every script finds its own
	// effect when it is repeated.
	tries = 3
	// complainEvery bounds what requests say of a damaged ledger in the log.
	complainEvery = 10 * time.Second
)

// AcksAuto asks for an acknowledgement from every attached replica that lags
// less than ten seconds, at least one.
const AcksAuto = -1

// Options are what a Gate needs to know beside its Redis.
type Options struct {
	// Keys of the sale.
	Keys Keys
	// Acks is how many replicas must acknowledge: AcksAuto, or a fixed number. 0
	// is for the local profile and for an engine that logs every write durably
	// before it answers.
	Acks int
	// ClockOffset is added to Redis's clock. Only test wiring sets it.
	ClockOffset func() time.Duration
	// OnPrimaryChanged is called when Watch finds another primary than before: what
	// was acknowledged may be missing there. It must not block; nil is none.
	OnPrimaryChanged func()
	// Log gets what an operator must act on.
	Log *slog.Logger
	// Registerer gets this room's metrics.
	Registerer prometheus.Registerer
}

// Gate runs the seat ledger's scripts. Safe for concurrent use.
type Gate struct {
	rdb     *redis.Client
	cohorts *cohorts // of rdb's connections
	keys    Keys
	fixed   int
	healthy atomic.Int64
	// runID is the primary's, as last seen.
	runID            atomic.Pointer[string]
	onPrimaryChanged func()
	// unseen says that the last look at the primary failed, and was complained of.
	unseen  atomic.Bool
	offset  func() time.Duration
	log     *slog.Logger
	metrics *metrics
	levels  atomic.Pointer[[]string]
	clock   serverClock
	group   group
	writes  lane // of scripts whose answer counts only when acknowledged
	reads   lane // of what one seat's reader asks
	// admitKeys are the keys that every admission shares, as the client wants them.
	admitKeys []any
	breaker   breaker
	// complained is when a request last complained of the ledger, Unix ns: one line
	// for all requests, not one each.
	complained atomic.Int64
}

// New makes a Gate on a client that NewClient made.
func New(rdb *redis.Client, o Options) (*Gate, error) {
	if rdb == nil || o.Keys.prefix == "" || o.Log == nil || o.Registerer == nil {
		return nil, errors.New("admission: client, keys, log and registerer are required")
	}
	members, ok := rdb.Options().Limiter.(*cohorts)
	if !ok {
		return nil, errors.New("admission: the client is not NewClient's")
	}
	if o.OnPrimaryChanged == nil {
		o.OnPrimaryChanged = func() {}
	}
	if o.ClockOffset == nil {
		o.ClockOffset = func() time.Duration { return 0 }
	}
	g := &Gate{
		rdb: rdb, cohorts: members, keys: o.Keys, fixed: o.Acks, offset: o.ClockOffset,
		onPrimaryChanged: o.OnPrimaryChanged, log: o.Log, metrics: newMetrics(o.Registerer),
	}
	for _, k := range append(o.Keys.base(), o.Keys.config(), o.Keys.open(), o.Keys.opensAt(), o.Keys.valid(), o.Keys.total()) {
		g.admitKeys = append(g.admitKeys, k)
	}
	g.healthy.Store(1)
	g.group.most = waitingMost
	g.writes.send, g.reads.send = g.sendWrites, g.sendReads
	g.breaker.run = breakerRun
	g.breaker.now, g.breaker.gauge = time.Now, g.metrics.breakerOpen
	return g, nil
}

// script is one operation with its digest.
type script struct{ name, source, sha string }

func newScript(name, source string) *script {
	return &script{name: name, source: source, sha: redis.NewScript(source).Hash()}
}

var (
	admitScript     = newScript("admit", lua.Admit)
	attachScript    = newScript("attach", lua.Attach)
	queuedScript    = newScript("queued", lua.Queued)
	undoScript      = newScript("undo", lua.Undo)
	beginPayScript  = newScript("begin_pay", lua.BeginPay)
	endPayScript    = newScript("end_pay", lua.EndPay)
	settleScript    = newScript("settle", lua.Settle)
	releaseScript   = newScript("release", lua.Release)
	doneScript      = newScript("done", lua.Done)
	postponeScript  = newScript("postpone", lua.Postpone)
	dueScript       = newScript("due", lua.Due)
	lookScript      = newScript("look", lua.Look)
	switchScript    = newScript("switch", lua.Switch)
	applySaleScript = newScript("apply_sale", lua.ApplySale)
	snapshotScript  = newScript("snapshot", lua.Snapshot)
	publishedScript = newScript("published", lua.Published)
)

// answer is a script's reply.
type answer struct {
	word   string
	detail string
	now    time.Time
	rest   []any
	acked  bool
}

// row decodes the row a script answered with.
func (a answer) row() (booking.Row, error) {
	var r booking.Row
	if err := json.Unmarshal([]byte(a.detail), &r); err != nil {
		return booking.Row{}, fmt.Errorf("read ledger row: %w: %w", booking.ErrLedgerDamaged, err)
	}
	return r, nil
}

// acks is how many replicas must acknowledge now.
func (g *Gate) acks() int {
	if g.fixed != AcksAuto {
		return g.fixed
	}
	return int(max(g.healthy.Load(), 1))
}

// call runs a script whose answer counts only when acknowledged: it returns
// booking.ErrNotAcknowledged otherwise, and booking.ErrLedgerUnknown or
// booking.ErrLedgerDamaged for those words.
func (g *Gate) call(ctx context.Context, s *script, keys []string, args ...any) (answer, error) {
	a, err := g.send(ctx, s, keys, args)
	if err != nil {
		return answer{}, err
	}
	if err := ledgerError(a); err != nil {
		return answer{}, err
	}
	if !a.acked {
		g.metrics.ackFailures.WithLabelValues(s.name).Inc()
		return answer{}, fmt.Errorf("%s: %w", s.name, booking.ErrNotAcknowledged)
	}
	return a, nil
}

// read runs a script that only reads; nothing may rest on its answer.
func (g *Gate) read(ctx context.Context, s *script, keys []string, args ...any) (a answer, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	all := append([]any{g.offset().Milliseconds()}, args...)
	err = g.repeat(ctx, func() error {
		v, err := g.rdb.EvalSha(ctx, s.sha, keys, all...).Result()
		if noScript(err) {
			v, err = g.rdb.Eval(ctx, s.source, keys, all...).Result()
		}
		if err == nil {
			a, err = parse(s, v)
		}
		return err
	})
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", s.name, err)
	}
	return a, ledgerError(a)
}

// readTogether is read for what looks at one seat and is done at once: it travels with
// others of its kind.
func (g *Gate) readTogether(ctx context.Context, s *script, keys []string, args ...any) (answer, error) {
	a, err := g.travel(ctx, &g.reads, s, keys, args)
	if err != nil {
		return answer{}, err
	}
	return a, ledgerError(a)
}

// get reads one key, with others; redis.Nil when it is not there.
func (g *Gate) get(ctx context.Context, key string) (string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var text string
	err := g.repeat(ctx, func() (err error) {
		e := &errand{ctx: ctx, args: []any{"GET", key}}
		if err = g.reads.run(e); err == nil {
			text, err = e.cmd.Text()
		}
		return err
	})
	return text, err
}

// send runs the script with WAIT behind it.
func (g *Gate) send(ctx context.Context, s *script, keys []string, args []any) (answer, error) {
	return g.travel(ctx, &g.writes, s, keys, args)
}

// travel runs the script by that lane, and again where another connection may do better.
func (g *Gate) travel(ctx context.Context, by *lane, s *script, keys []string, args []any) (a answer, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	args = append([]any{g.offset().Milliseconds()}, args...)
	err = g.repeat(ctx, func() error {
		a, err = travelOnce(ctx, by, s, keys, args)
		return err
	})
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", s.name, err)
	}
	return a, nil
}

func travelOnce(ctx context.Context, by *lane, s *script, keys []string, args []any) (answer, error) {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "EVALSHA", s.sha, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	e := &errand{ctx: ctx, args: append(all, args...), source: s.source}
	if err := by.run(e); err != nil {
		return answer{}, err
	}
	a, err := parse(s, e.cmd.Val())
	a.acked = e.acked
	return a, err
}

// repeat runs a call again, on another connection, where that may do better.
func (g *Gate) repeat(ctx context.Context, call func() error) error {
	for try := 1; ; try++ {
		err := call()
		if err == nil || try == tries || ctx.Err() != nil || !retryable(err) {
			return err
		}
	}
}

// exec sends the pipeline; afterwards each command has its own error. go-redis
// gives them none when the server refused the connection's handshake.
func exec(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	if err == nil {
		return
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return
		}
	}
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// waitFor is a WAIT for that many replicas. For none it returns at once, and
// still is an error on a server that is not the primary, so it vouches for what
// the scripts before it read.
func waitFor(ctx context.Context, acks int) *redis.IntCmd {
	return redis.NewIntCmd(ctx, "WAIT", acks, waitTimeout)
}

func anys(keys []string) []any {
	out := make([]any, len(keys))
	for i, k := range keys {
		out[i] = k
	}
	return out
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, callTimeout)
}

func parse(s *script, v any) (answer, error) {
	list, ok := v.([]any)
	if !ok || len(list) < 3 {
		return answer{}, fmt.Errorf("%s answered %T, want a list of at least three", s.name, v)
	}
	word, ok1 := list[0].(string)
	now, ok2 := list[2].(int64)
	if !ok1 || !ok2 {
		return answer{}, fmt.Errorf("%s answered %T and %T, want a word and a time", s.name, list[0], list[2])
	}
	a := answer{word: word, now: time.UnixMilli(now), rest: list[3:]}
	switch d := list[1].(type) {
	case string:
		a.detail = d
	case int64:
		a.detail = strconv.FormatInt(d, 10)
	}
	return a, nil
}

func ledgerError(a answer) error {
	switch a.word {
	case "unknown":
		return booking.ErrLedgerUnknown
	case "damaged":
		return fmt.Errorf("%s: %w", a.detail, booking.ErrLedgerDamaged)
	}
	return nil
}

func noScript(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") }

// retryable tells a broken connection or a server that is not ready, where
// another connection may do better, from an answer and from the caller's end.
func retryable(err error) bool {
	if errors.Is(err, redis.ErrPoolTimeout) {
		return true // nothing was sent
	}
	var redisErr redis.Error
	if errors.As(err, &redisErr) {
		for _, prefix := range []string{"LOADING ", "CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "ERR max number of clients"} {
			if strings.HasPrefix(redisErr.Error(), prefix) {
				return true
			}
		}
		return notPrimary(err)
	}
	// A dial has a time-out of its own, which looks like the end of a context.
	var opErr *net.OpError
	if errors.As(err, &opErr) && opErr.Op == "dial" {
		return true
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &netErr)
}

// Admit decides one request. A returned seat is acknowledged. Errors are the
// domain's outcomes (ErrDuplicate as *booking.DuplicateError, ErrNotOpen as
// *booking.NotOpenError); booking.ErrTryAgain when the seat was not
// acknowledged, and was then undone on the same connection. Any other error
// left no seat that this call knows of: a request that a stall delivers after
// its deadline takes none, and a seat whose answer was lost is free to be taken
// over after 15 s and is given back by the reconciler. suffix is
// booking.NewAttemptSuffix's, made for this call alone. With check nothing is
// taken, and a free seat is booking.ErrWouldAdmit.
func (g *Gate) Admit(ctx context.Context, r booking.Request, suffix string, check bool) (booking.Seat, error) {
	j := &job{ctx: ctx, req: r, suffix: suffix, mode: "take", signal: make(chan signal, 1), until: r.Until}
	if d, ok := ctx.Deadline(); ok && (j.until.IsZero() || d.Before(j.until)) {
		j.until = d
	}
	if j.until.IsZero() {
		j.until = time.Now().Add(callTimeout)
	}
	// With the breaker open nothing is taken: a free seat is "try again", and so is
	// a repeated request, whose seat cannot be acknowledged now.
	refuse := g.breaker.isOpen()
	if check || refuse {
		j.mode = "check"
	}
	if r.Key != "" {
		j.idem, j.body = g.keys.idem(r.Code, r.Key), bodyHash(r)
	}
	a, err := g.admitTogether(j)
	if err != nil {
		g.metrics.admitted("error").Inc()
		return booking.Seat{}, err
	}
	if refuse && a.word == "would_admit" {
		g.metrics.admitted("breaker").Inc()
		return booking.Seat{}, fmt.Errorf("admit: replicas do not acknowledge: %w: %w", booking.ErrTryAgain, booking.ErrNotAcknowledged)
	}
	outcome := a.word
	if needsAck(a.word) && !a.acked {
		outcome = "unacknowledged"
	}
	g.metrics.admitted(outcome).Inc()
	return g.seat(ctx, a)
}

func (g *Gate) seat(ctx context.Context, a answer) (booking.Seat, error) {
	switch a.word {
	case "admitted", "taken_over", "replay":
		if !a.acked {
			g.metrics.ackFailures.WithLabelValues("admit").Inc()
			return booking.Seat{}, fmt.Errorf("admit: %w: %w", booking.ErrTryAgain, booking.ErrNotAcknowledged)
		}
		row, err := a.row()
		if err != nil {
			return booking.Seat{}, err
		}
		return booking.Seat{Row: row, Now: a.now, Replay: a.word == "replay"}, nil
	case "duplicate":
		row, err := a.row()
		if err != nil {
			return booking.Seat{}, err
		}
		return booking.Seat{}, &booking.DuplicateError{Row: row, Now: a.now}
	case "not_open":
		ms, err := strconv.ParseInt(a.detail, 10, 64)
		if err != nil || ms <= 0 {
			return booking.Seat{}, &booking.NotOpenError{}
		}
		return booking.Seat{}, &booking.NotOpenError{OpensAt: time.UnixMilli(ms).UTC()}
	case "unknown", "damaged", "failed":
		err := ledgerError(a)
		if a.word == "failed" {
			err = fmt.Errorf("admit: the server refuses to write: %s", a.detail)
		}
		if last := g.complained.Load(); time.Since(time.Unix(0, last)) > complainEvery && g.complained.CompareAndSwap(last, time.Now().UnixNano()) {
			g.log.ErrorContext(ctx, "seat ledger refuses to decide", "error", err)
		}
		return booking.Seat{}, fmt.Errorf("%w: %w", booking.ErrTryAgain, err)
	}
	if err, ok := refusals[a.word]; ok {
		return booking.Seat{}, err
	}
	return booking.Seat{}, fmt.Errorf("admit answered %q, which this program does not know", a.word)
}

var refusals = map[string]error{
	"mismatch":       booking.ErrIdempotencyMismatch,
	"would_admit":    booking.ErrWouldAdmit,
	"invalid_level":  booking.ErrInvalidLevel,
	"invalid_code":   booking.ErrInvalidCode,
	"email_mismatch": booking.ErrEmailMismatch,
	"level_full":     booking.ErrLevelFull,
	"sold_out":       booking.ErrSoldOut,
	"expired":        booking.ErrTryAgain,
	"uncertain":      booking.ErrTryAgain, // full of seats that were not acknowledged
}

// serverClock estimates Redis's clock from its answers.
type serverClock struct {
	ahead atomic.Int64 // of this process's clock, in ns
	known atomic.Bool
}

func (c *serverClock) learn(now time.Time) {
	c.ahead.Store(int64(time.Until(now)))
	c.known.Store(true)
}

// wantedUntil is the time by Redis's clock after which the caller has given up:
// its deadline less what an acknowledgement takes. 0 while the clock is unknown.
func (g *Gate) wantedUntil(j *job) int64 {
	if !g.clock.known.Load() {
		return 0
	}
	return j.until.Add(time.Duration(g.clock.ahead.Load()) - (waitTimeout+50)*time.Millisecond).UnixMilli()
}

func bodyHash(r booking.Request) string {
	sum := sha256.Sum256([]byte(r.Code + "\n" + r.Email + "\n" + r.Level))
	return hex.EncodeToString(sum[:])
}

// rowAnswer turns the words that scripts share into a row or a sentinel.
func rowAnswer(s *script, a answer, success ...string) (booking.Row, time.Time, error) {
	for _, w := range success {
		if a.word == w {
			row, err := a.row()
			return row, a.now, err
		}
	}
	if err, ok := rowErrors[a.word]; ok {
		return booking.Row{}, a.now, fmt.Errorf("%s: %w", s.name, err)
	}
	return booking.Row{}, a.now, fmt.Errorf("%s answered %q, which this program does not know", s.name, a.word)
}

var rowErrors = map[string]error{
	"not_owner":       booking.ErrNotOwner,
	"has_payment":     booking.ErrHasPayment,
	"no_payment":      booking.ErrNoPayment,
	"paid":            booking.ErrAlreadyPaid,
	"paying":          booking.ErrPaying,
	"refused":         booking.ErrRefused,
	"deadline_passed": booking.ErrDeadlinePassed,
	"too_early":       booking.ErrTooEarly,
	"taken_over":      booking.ErrTakenOver,
	"second":          booking.ErrSecondPayment,
	"moved":           booking.ErrNotOwner,
}

// Attach gives the attempt its payment: new -> payable. It returns the row with
// its deadline, acknowledged. booking.ErrNotOwner or booking.ErrHasPayment when
// another call has the seat. Safe to repeat with the same payment.
func (g *Gate) Attach(ctx context.Context, code, attempt string, p booking.Payment) (booking.Row, time.Time, error) {
	byAttempt, err := json.Marshal(stash{V: 1, Code: code, Payment: p.ID, URL: p.URL, Signature: p.Signature})
	if err != nil {
		return booking.Row{}, time.Time{}, err
	}
	byPayment, err := json.Marshal(stash{V: 1, Code: code, Attempt: attempt, URL: p.URL, Signature: p.Signature})
	if err != nil {
		return booking.Row{}, time.Time{}, err
	}
	keys := append(g.keys.base(), g.keys.attempt(attempt), g.keys.payment(p.ID))
	a, err := g.call(ctx, attachScript, keys, code, attempt, p.ID, byAttempt, byPayment)
	if err != nil {
		return booking.Row{}, time.Time{}, err
	}
	return rowAnswer(attachScript, a, "attached")
}

// Queued says that the attempt's record is queued or stored: payable -> held.
// Safe to repeat; a row further on is left as it is.
func (g *Gate) Queued(ctx context.Context, code, attempt string) error {
	a, err := g.call(ctx, queuedScript, g.keys.base(), code, attempt)
	if err != nil {
		return err
	}
	_, _, err = rowAnswer(queuedScript, a, "queued")
	return err
}

// Undo gives back the seat of an attempt without a payment. nil when the seat
// is given back; booking.ErrNotOwner also when it had been before.
func (g *Gate) Undo(ctx context.Context, code, attempt string) error {
	return g.giveBack(ctx, undoScript, code, attempt)
}

// Release gives back the seat of an attempt whose time to pay is over; for the
// reconciler alone. nil when the seat is free; booking.ErrNotOwner also when it
// had been before; booking.ErrAlreadyPaid, ErrPaying, ErrTooEarly or
// ErrNoPayment when it may not.
func (g *Gate) Release(ctx context.Context, code, attempt string) error {
	return g.giveBack(ctx, releaseScript, code, attempt)
}

func (g *Gate) giveBack(ctx context.Context, s *script, code, attempt string) error {
	for fresh := range 2 {
		ids, err := g.levelIDs(ctx, fresh > 0)
		if err != nil {
			return err
		}
		keys := append(append(g.keys.base(), g.keys.total()), g.keys.levels(ids)...)
		a, err := g.call(ctx, s, keys, append([]any{code, attempt}, anys(ids)...)...)
		if err != nil {
			return err
		}
		switch a.word {
		case "freed", "restored":
			return nil
		case "levels":
			continue
		default:
			_, _, err = rowAnswer(s, a)
			return err
		}
	}
	return fmt.Errorf("%s: the row's level is not in the sale: %w", s.name, booking.ErrLedgerDamaged)
}

// levelIDs reads the sale's levels, from memory unless fresh is asked for.
func (g *Gate) levelIDs(ctx context.Context, fresh bool) ([]string, error) {
	if ids := g.levels.Load(); ids != nil && !fresh {
		return *ids, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	list, err := g.rdb.HGet(ctx, g.keys.config(), "levels").Result()
	if errors.Is(err, redis.Nil) {
		return nil, booking.ErrLedgerUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("read the sale's levels: %w", err)
	}
	ids := strings.Split(list, ",")
	g.levels.Store(&ids)
	return ids, nil
}

// BeginPay announces a payer's execute call of at most length: held or payable
// -> paying, before the deadline. It returns the acknowledged row. Safe to
// repeat with the same token. Errors: booking.ErrPaying, ErrRefused,
// ErrAlreadyPaid, ErrDeadlinePassed, ErrNoPayment, ErrNotOwner.
func (g *Gate) BeginPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error) {
	return g.beginPay(ctx, code, attempt, payment, token, "payer", length)
}

// TakeOverPay is BeginPay for the reconciler alone: it is not bound by the
// deadline and also takes a row that is paying past its end, which then never
// ends as held.
func (g *Gate) TakeOverPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error) {
	return g.beginPay(ctx, code, attempt, payment, token, "reconciler", length)
}

func (g *Gate) beginPay(ctx context.Context, code, attempt, payment, token, by string, length time.Duration) (booking.Row, time.Time, error) {
	a, err := g.call(ctx, beginPayScript, g.keys.base(), code, attempt, payment, token, length.Milliseconds(), by)
	if err != nil {
		return booking.Row{}, time.Time{}, err
	}
	return rowAnswer(beginPayScript, a, "begun")
}

// EndPay says how an execute call ended that did not pay: as PhaseRefused after
// a definite refusal, as PhaseHeld when it was not sent or the payer had not
// finished. booking.ErrTakenOver: the reconciler has the row, and it stays
// paying. Safe to repeat.
func (g *Gate) EndPay(ctx context.Context, code, attempt, token string, as booking.Phase) error {
	a, err := g.call(ctx, endPayScript, g.keys.base(), code, attempt, token, string(as))
	if err != nil {
		return err
	}
	_, _, err = rowAnswer(endPayScript, a, "ended")
	return err
}

// Settle says that this payment has paid for the attempt. It returns the
// acknowledged row. booking.ErrNotOwner: late money. booking.ErrSecondPayment: the
// seat is paid otherwise, or the transaction was decided to go back. Safe to repeat.
func (g *Gate) Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error) {
	a, err := g.call(ctx, settleScript, append(g.keys.base(), g.keys.late()), code, attempt, payment, transaction)
	if err != nil {
		return booking.Row{}, err
	}
	row, _, err := rowAnswer(settleScript, a, "paid")
	return row, err
}

// RecordDone marks a paid seat's record as written. Safe to repeat.
func (g *Gate) RecordDone(ctx context.Context, code, attempt string) error {
	return g.done(ctx, code, attempt, "record")
}

// MailDone marks a paid seat's mail as sent. Safe to repeat.
func (g *Gate) MailDone(ctx context.Context, code, attempt string) error {
	return g.done(ctx, code, attempt, "mail")
}

// RecordReleased says that a refused attempt's record is ended, so that the
// candidate may start another. booking.ErrNotOwner when the row has moved. Safe
// to repeat.
func (g *Gate) RecordReleased(ctx context.Context, code, attempt string) error {
	return g.done(ctx, code, attempt, "released")
}

func (g *Gate) done(ctx context.Context, code, attempt, what string) error {
	a, err := g.call(ctx, doneScript, g.keys.base(), code, attempt, what)
	if err != nil {
		return err
	}
	_, _, err = rowAnswer(doneScript, a, "done")
	return err
}

// Postpone has the row looked at again after d, provided it is still in the
// phase it was seen in; count says what to count. It never extends the time to
// pay. booking.ErrNotOwner when the row has moved.
func (g *Gate) Postpone(ctx context.Context, code, attempt string, seen booking.Phase, d time.Duration, count booking.Count) error {
	a, err := g.call(ctx, postponeScript, g.keys.base(), code, attempt, string(seen), d.Milliseconds(), string(count))
	if err != nil {
		return err
	}
	_, _, err = rowAnswer(postponeScript, a, "postponed")
	return err
}

// Due lists rows that must be looked at now, the oldest look first. It only
// reads.
func (g *Gate) Due(ctx context.Context, skip, limit int) ([]booking.DueRow, time.Time, error) {
	a, err := g.read(ctx, dueScript, g.keys.base(), skip, limit)
	if err != nil {
		return nil, time.Time{}, err
	}
	rows := make([]booking.DueRow, 0, len(a.rest)/2)
	for i := 0; i+1 < len(a.rest); i += 2 {
		code, _ := a.rest[i].(string)
		text, _ := a.rest[i+1].(string)
		d := booking.DueRow{Code: code}
		if err := json.Unmarshal([]byte(text), &d.Row); err != nil {
			d.Err = fmt.Errorf("row of a due code: %w: %w", booking.ErrLedgerDamaged, err)
		}
		rows = append(rows, d)
	}
	return rows, a.now, nil
}

// Row reads one candidate's row and the ledger's clock; booking.ErrNotFound
// when the candidate has none. It only reads: nothing may rest on it.
func (g *Gate) Row(ctx context.Context, code string) (booking.Row, time.Time, error) {
	a, err := g.readTogether(ctx, lookScript, g.keys.base(), code)
	if err != nil {
		return booking.Row{}, time.Time{}, err
	}
	if a.word == "none" {
		return booking.Row{}, a.now, booking.ErrNotFound
	}
	row, err := a.row()
	return row, a.now, err
}

// Now reads the ledger's clock.
func (g *Gate) Now(ctx context.Context) (time.Time, error) {
	t, err := g.rdb.Time(ctx).Result()
	if err != nil {
		return time.Time{}, fmt.Errorf("read the ledger's clock: %w", err)
	}
	return t.Add(g.offset()), nil
}
