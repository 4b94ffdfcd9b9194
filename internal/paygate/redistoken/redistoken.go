// Package redistoken keeps the payment gateway's token for the whole fleet in
// Redis. The gateway gives a merchant account two tokens an hour and blocks an
// account for an hour that asks for a third, so every process shares one token,
// one of them renews it (a lock of 45 s at most), and a ledger of grant calls,
// written before the call in the same step that checks it, makes a third within an
// hour impossible. A token is renewed when five sixths of its life are over and used
// until its end meanwhile; one that the gateway refuses is replaced when the
// ledger allows, and used on when it does not. Keep has one there before anybody
// needs it.
//
// The lock is a lease of 10 s, which its holder renews while the gateway answers:
// a holder that was killed is replaced within 10 s. One that was merely held up for so
// long asks no more, if it had not asked yet; if it had, both of the hour's grants are
// used, and its late answer replaces a newer token only when that is refused.
//
// The ledger is as durable as Redis. It is entered again after the call, so
// that a failover during the call does not forget it; where Redis does not
// outlive the process, keep a copy (KeepCopy, Import).
//
// Fail mode: closed. Without Redis, a token or the right to ask for one, Token
// is an error and nothing is sent. After a failed grant nobody tries for 60 s.
//
// Clock: Redis's own decides expiry, renewal, lock and ledger. The process's
// clock bounds for how long (5 s) a token is used without asking Redis.
package redistoken

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/paygate"
)

// Lock 45 s > grant 30 s + storing its token 10 s, so that nobody else asks while
// the grant of a holder that lives may still succeed.
const (
	lockLife    = 45 * time.Second // from when the call was entered
	lease       = 10 * time.Second // of the lock, unless it is renewed
	extendEvery = 3 * time.Second  // three tries a lease
	grantTime   = 30 * time.Second
	storeTime   = 10 * time.Second

	grantsPerHour = 2
	// The gateway counts when a call arrives, the ledger when it was about to be
	// sent: a call may arrive a grant's time later, and one on its heels not.
	ledgerWindow = time.Hour + time.Minute

	pauseAfterFailure = 60 * time.Second
	trustFor          = 5 * time.Second        // a token is used without asking Redis
	refusalFor        = time.Second            // so is "there is none"
	pollEvery         = 200 * time.Millisecond // while another process asks
	scriptTime        = 5 * time.Second
	keepEvery         = 20 * time.Second // a quarter more or less, so that processes do not look together
)

// Why there is no token, other than the failure of a grant or of Redis.
var (
	// ErrGrantLimit: the hour's two grants are used up.
	ErrGrantLimit = errors.New("gateway token: the hour's two grants are used up")
	// ErrGrantPaused: a grant has failed less than a minute ago.
	ErrGrantPaused = errors.New("gateway token: a grant has failed, waiting a minute")
	// ErrGrantBusy: another process is asking for one.
	ErrGrantBusy = errors.New("gateway token: another process is asking for one")
	// ErrClosed: the source is closed.
	ErrClosed = errors.New("gateway token: source is closed")
)

var errAnswer = errors.New("gateway token: Redis gave an answer that the script does not give")

var errLockLost = errors.New("another process has it")

// Granter asks the gateway for a token, once, within ctx. An error that wraps
// booking.ErrNotSent says that the gateway was not asked.
type Granter interface {
	Grant(ctx context.Context) (paygate.Grant, error)
}

var (
	_ Granter             = (*paygate.Granter)(nil)
	_ paygate.TokenSource = (*Source)(nil)
)

// Source gives the fleet's token. Safe for concurrent use; Close it.
type Source struct {
	rdb     redis.UniversalClient
	granter Granter
	account string
	keys    []string
	now     func() time.Time
	log     *slog.Logger
	grants  *prometheus.CounterVec
	save    func(context.Context, []byte) error // nil: no copy is kept

	extendEvery, keepEvery time.Duration

	life context.Context // ends at Close
	end  context.CancelFunc
	work sync.WaitGroup // flights

	mu      sync.Mutex
	trusted answer // used until its time
	flight  *flight
	// unsure is the owner of a begin whose answer was lost: it may hold the lock
	// and an entry in the ledger, which the next flight then takes up.
	unsure string
}

// answer is what Token says: a token, or why there is none.
type answer struct {
	token string
	err   error
	until time.Time // this process's clock
}

// flight is one look into Redis, and at most one grant, on behalf of all who
// wait in this process.
type flight struct {
	owner string // of the call, if it comes to one
	done  chan struct{}
	answer
}

// Option changes a Source at its making.
type Option func(*Source)

// KeepCopy has save called with an Export whenever the ledger or the token
// changes by this process: before a grant call, which is not made if save
// fails, and after it. What it is given is secret.
func KeepCopy(save func(ctx context.Context, state []byte) error) Option {
	return func(s *Source) { s.save = save }
}

// New makes the source of one merchant account's token; every process of the
// fleet must name the account alike. It registers the source's metric.
func New(rdb redis.UniversalClient, granter Granter, account string, now func() time.Time, log *slog.Logger, reg prometheus.Registerer, opts ...Option) (*Source, error) {
	if rdb == nil || granter == nil || account == "" || now == nil || log == nil || reg == nil {
		return nil, errors.New("gateway token: Redis, granter, account, clock, logger or registerer is missing")
	}
	grants, err := newGrants(reg)
	if err != nil {
		return nil, err
	}
	s := &Source{rdb: rdb, granter: granter, account: account, keys: keys(account), now: now, log: log, grants: grants,
		extendEvery: extendEvery, keepEvery: keepEvery}
	s.life, s.end = context.WithCancel(context.Background())
	for _, o := range opts {
		o(s)
	}
	return s, nil
}

// Close refuses further calls and waits for a grant at work, which is at most
// 45 s: cutting it short would cost a token that the gateway counts.
func (s *Source) Close() {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.work.Wait()
}

// Token gives a token to call with, or waits within ctx for one that is being
// asked for. Giving up the wait stops nothing.
func (s *Source) Token(ctx context.Context) (string, error) {
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		return "", ErrClosed
	}
	if s.now().Before(s.trusted.until) {
		a := s.trusted
		s.mu.Unlock()
		return a.token, a.err
	}
	f := s.flight
	if f == nil {
		f = &flight{owner: cmp.Or(s.unsure, rand.Text()), done: make(chan struct{})}
		s.flight, s.unsure = f, ""
		s.work.Go(func() { s.fly(f) })
	}
	s.mu.Unlock()

	select {
	case <-f.done:
		return f.token, f.err
	case <-ctx.Done():
		return "", fmt.Errorf("gateway token: wait: %w", ctx.Err())
	}
}

// Anew asks for a token although there may be a good one, which proves the credentials
// that this source has; the ledger counts it as any. nil: the new one is the fleet's.
// After an error the one that is there stays in use: ErrGrantLimit, ErrGrantPaused,
// ErrGrantBusy, the gateway's refusal, or Redis's. Not to be repeated blindly.
func (s *Source) Anew(ctx context.Context) error {
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		return ErrClosed
	}
	done := make(chan error, 1)
	s.work.Go(func() { done <- s.anew() })
	s.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("gateway token: wait: %w", ctx.Err())
	}
}

func (s *Source) anew() error {
	owner := rand.Text()
	st, err := s.begin(owner, true)
	switch {
	case err != nil:
		return err
	case st.verdict == "yours":
		return s.renew(owner, state{called: st.called}).err // the old token is no answer here
	case st.verdict == "paused":
		return fmt.Errorf("%w: %s left", ErrGrantPaused, st.wait)
	case st.verdict == "limit":
		s.count(st)
		return fmt.Errorf("%w: next in %s", ErrGrantLimit, st.wait)
	}
	return ErrGrantBusy
}

// Rejected lets another token be asked for, if token is still the fleet's and
// the ledger allows. Where Redis does not answer, nothing changes.
func (s *Source) Rejected(ctx context.Context, token string) {
	marked, err := reject.Run(ctx, s.rdb, s.keys, token).Int()
	if err != nil {
		s.log.WarnContext(ctx, "gateway token: mark as rejected", "error", err)
		return
	}
	s.mu.Lock()
	if s.trusted.token == token {
		s.trusted = answer{}
	}
	s.mu.Unlock()
	if marked == 1 {
		s.log.WarnContext(ctx, "gateway token: rejected by the gateway")
	}
}

// Keep has a token there before anybody needs one: it looks at once and then every
// 20 s, a quarter more or less, and asks for one when there is none, or it is due, and
// no grant was asked for within the hour. The hour's last grant it leaves to a caller,
// who renews early: a gateway that is out before the opening must not cost both. It
// ends with ctx or Close, and returns nil.
func (s *Source) Keep(ctx context.Context) error {
	for {
		if err := s.keepOne(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
			s.log.WarnContext(ctx, "gateway token: have one ready", "error", err)
		}
		t := time.NewTimer(s.keepEvery*3/4 + mathrand.N(s.keepEvery/2))
		select {
		case <-t.C:
			continue
		case <-ctx.Done():
		case <-s.life.Done():
		}
		t.Stop()
		return nil
	}
}

func (s *Source) keepOne(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, scriptTime)
	defer cancel()
	ask, err := may.Run(look, s.rdb, s.keys, ledgerWindow.Milliseconds()).Int()
	if err != nil {
		return fmt.Errorf("gateway token: look: %w", err)
	}
	if ask == 0 {
		return nil
	}
	_, err = s.Token(ctx)
	return err
}

// land ends a flight for those who wait, once, and lets later callers use its
// answer for a while.
func (s *Source) land(f *flight, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted, s.flight = a, nil
	f.answer = a
	close(f.done)
}

func (s *Source) good(token string, left time.Duration) answer {
	return answer{token: token, until: s.now().Add(min(left, trustFor))}
}

// none is no token; the old one, refused by the gateway but not expired, is
// better than that.
func (s *Source) none(st state, err error) answer {
	if st.token != "" {
		return s.good(st.token, min(st.left, refusalFor))
	}
	return answer{err: err, until: s.now().Add(refusalFor)}
}

// fly finds the answer for those who wait on f and does the grant if it falls to
// this process.
func (s *Source) fly(f *flight) {
	for {
		st, err := s.begin(f.owner, false)
		switch {
		case err != nil:
			s.mu.Lock()
			s.unsure = f.owner
			s.mu.Unlock()
			s.land(f, s.none(state{}, err))
			return
		case st.verdict == "fresh":
			s.land(f, s.good(st.token, st.left))
			return
		case st.verdict == "yours" && st.usable():
			s.land(f, s.good(st.token, st.left)) // nobody waits for an early renewal
			if a := s.renew(f.owner, st); a.err == nil {
				s.mu.Lock()
				s.trusted = a
				s.mu.Unlock()
			}
			return
		case st.verdict == "yours":
			s.land(f, s.renew(f.owner, st))
			return
		case st.usable(): // busy, paused or limit, and no need to wait
			s.count(st)
			s.land(f, s.good(st.token, st.left))
			return
		case st.verdict == "paused":
			s.land(f, s.none(st, fmt.Errorf("%w: %s left", ErrGrantPaused, st.wait)))
			return
		case st.verdict == "limit":
			s.count(st)
			s.log.ErrorContext(s.life, "gateway token: none to be had", "next_grant_in", st.wait, "rejected_one_in_use", st.token != "")
			s.land(f, s.none(st, fmt.Errorf("%w: next in %s", ErrGrantLimit, st.wait)))
			return
		}
		// Another process asks, for as long as its lock lives.
		t := time.NewTimer(pollEvery)
		select {
		case <-t.C:
		case <-s.life.Done():
			t.Stop()
			s.land(f, answer{err: ErrClosed})
			return
		}
	}
}

func (s *Source) count(st state) {
	if st.verdict == "limit" {
		s.grants.WithLabelValues(outcomeLimited).Inc()
	}
}

// state is what begin tells.
type state struct {
	verdict  string
	token    string
	left     time.Duration
	rejected bool
	called   int64         // Unix ms, with "yours"
	wait     time.Duration // with "paused" and "limit"
}

func (st state) usable() bool { return st.token != "" && !st.rejected }

func (s *Source) begin(owner string, anew bool) (state, error) {
	// Not cut short by Close: an answer not waited for may cost a grant.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), scriptTime)
	defer cancel()
	r, err := begin.Run(ctx, s.rdb, s.keys, owner, lease.Milliseconds(), ledgerWindow.Milliseconds(), grantsPerHour, anew).Slice()
	if err != nil {
		return state{}, fmt.Errorf("gateway token: ask Redis: %w", err)
	}
	if len(r) == 5 {
		verdict, ok1 := r[0].(string)
		token, ok2 := r[1].(string)
		left, ok3 := r[2].(int64)
		rejected, ok4 := r[3].(int64)
		n, ok5 := r[4].(int64)
		st := state{verdict: verdict, token: token, left: time.Duration(left) * time.Millisecond, rejected: rejected == 1}
		if ok1 && ok2 && ok3 && ok4 && ok5 {
			switch verdict {
			case "fresh", "busy":
				return st, nil
			case "paused", "limit":
				st.wait = time.Duration(n) * time.Millisecond
				return st, nil
			case "yours":
				st.called = n
				return st, nil
			}
		}
	}
	return state{}, errAnswer
}

// renew asks the gateway, on a deadline of its own: the hour's grant is spent
// whether or not anybody still waits for it.
func (s *Source) renew(owner string, st state) answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), grantTime)
	defer cancel()
	var g paygate.Grant
	began := time.Now()
	letGo := s.holdOn(owner, st.called)
	err := s.keepCopy(ctx)
	if err != nil {
		err = fmt.Errorf("%w: %w", booking.ErrNotSent, err)
	} else {
		g, err = s.grant(ctx, owner, st.called)
	}
	letGo() // before the outcome is written: a call that never left must leave the ledger
	// Time is up for the grant, not for saying what came of it.
	after, cancelAfter := context.WithTimeout(context.WithoutCancel(s.life), storeTime)
	defer cancelAfter()
	if err != nil {
		return s.failed(after, owner, st, began, err)
	}
	return s.granted(after, owner, st, began, g)
}

// grant asks the gateway, unless the lock was lost before: a process that stood still
// must not ask beside the one that took its place.
func (s *Source) grant(ctx context.Context, owner string, called int64) (paygate.Grant, error) {
	look, cancel := context.WithTimeout(ctx, scriptTime)
	defer cancel()
	held := 0
	err := s.persist(look, func() (err error) {
		held, err = s.extend(look, owner, called)
		return err
	})
	if err != nil || held == 0 {
		return paygate.Grant{}, fmt.Errorf("%w: the lock could not be held: %w", booking.ErrNotSent, cmp.Or(err, errLockLost))
	}
	return s.granter.Grant(ctx)
}

func (s *Source) extend(ctx context.Context, owner string, called int64) (int, error) {
	return extend.Run(ctx, s.rdb, s.keys, owner, called, lease.Milliseconds(), lockLife.Milliseconds(), ledgerWindow.Milliseconds()).Int()
}

// holdOn renews the lock's lease until it is let go. It neither takes a lost lock
// again nor stops the grant: the hour's grant is spent.
func (s *Source) holdOn(owner string, called int64) (letGo func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.life))
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(s.extendEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			once, done := context.WithTimeout(ctx, extendEvery)
			held, err := s.extend(once, owner, called)
			done()
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				s.log.WarnContext(ctx, "gateway token: renew the lock", "error", err)
			case held == 0:
				s.log.WarnContext(ctx, "gateway token: the lock was lost while the gateway was asked; another process may ask, too")
				return
			}
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

func (s *Source) failed(ctx context.Context, owner string, st state, began time.Time, cause error) answer {
	outcome, called := outcomeFailed, strconv.FormatInt(st.called, 10)
	if errors.Is(cause, booking.ErrNotSent) {
		outcome, called = outcomeNotSent, ""
	}
	s.grants.WithLabelValues(outcome).Inc()
	s.log.ErrorContext(ctx, "token grant", "outcome", outcome, "took", time.Since(began), "error", cause)
	pause := pauseAfterFailure
	if errors.Is(cause, errLockLost) {
		pause = 0 // nothing is wrong with the gateway, and another process is at it
	}
	err := s.persist(ctx, func() error {
		return fail.Run(ctx, s.rdb, s.keys, owner, called, pause.Milliseconds(), ledgerWindow.Milliseconds()).Err()
	})
	if err == nil {
		err = s.keepCopy(ctx)
	}
	if err != nil {
		s.log.ErrorContext(ctx, "gateway token: note a failed grant", "error", err)
	}
	return s.none(st, fmt.Errorf("gateway token: %w", cause))
}

func (s *Source) granted(ctx context.Context, owner string, st state, began time.Time, g paygate.Grant) answer {
	s.grants.WithLabelValues(outcomeGranted).Inc()
	now := s.good(string(g.IDToken), g.ExpiresIn)
	stored := int64(1)
	err := s.persist(ctx, func() error {
		r, err := store.Run(ctx, s.rdb, s.keys, owner, st.called, string(g.IDToken), g.ExpiresIn.Milliseconds(),
			(g.ExpiresIn * 5 / 6).Milliseconds(), ledgerWindow.Milliseconds()).Slice()
		if err != nil || len(r) != 3 {
			return cmp.Or(err, errAnswer)
		}
		token, ok1 := r[1].(string)
		left, ok2 := r[2].(int64)
		if stored, _ = r[0].(int64); stored == 0 && ok1 && ok2 {
			now = s.good(token, time.Duration(left)*time.Millisecond)
		}
		return nil
	})
	if err == nil {
		err = s.keepCopy(ctx)
	}
	attrs, level := []slog.Attr{
		slog.String("outcome", outcomeGranted), slog.Duration("took", time.Since(began)),
		slog.Duration("lifetime", g.ExpiresIn), slog.Bool("newer_one_there", stored == 0),
	}, slog.LevelInfo
	if err != nil {
		// This process can use it for a moment; the fleet cannot.
		level = slog.LevelError
		attrs = append(attrs, slog.Any("error", fmt.Errorf("keep the granted token: %w", err)))
	}
	s.log.LogAttrs(ctx, level, "token grant", attrs...)
	return now
}

// persist tries until it is done or ctx ends: what it writes is worth half an
// hour of sale.
func (s *Source) persist(ctx context.Context, write func() error) error {
	for {
		err := write()
		if err == nil {
			return nil
		}
		t := time.NewTimer(pollEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

func (s *Source) keepCopy(ctx context.Context) error {
	if s.save == nil {
		return nil
	}
	state, err := s.Export(ctx)
	if err == nil {
		err = s.save(ctx, state)
	}
	if err != nil {
		return fmt.Errorf("gateway token: keep a copy: %w", err)
	}
	return nil
}
