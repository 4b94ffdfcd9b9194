package admission

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/scripts/lua"
)

const (
	// loadLease is how long a load that is not heard of keeps its turn.
	loadLease = 30 * time.Second
	// swapMost is how many e-mails can change in one step with the list: bookings wait
	// for it, about a millisecond.
	swapMost = 500
	// listPage is about how many candidates are read, or seen to, at a time.
	listPage = 250
	// renewPages is after how many pages that need no step a load renews its lease.
	renewPages = 50
	// loadPatience is how long a load goes on with a step that is not acknowledged, or
	// whose connection is cut: replicas are replaced within it, and its lease is longer.
	loadPatience = 5 * time.Second
	// loadPause is the pause before the first repeat; it doubles up to loadPauseMost.
	loadPause     = 50 * time.Millisecond
	loadPauseMost = 800 * time.Millisecond
)

var (
	allowlistTurnScript   = newScript("allowlist_turn", lua.AllowlistTurn)
	allowlistStageScript  = newScript("allowlist_stage", lua.AllowlistStage)
	allowlistSwapScript   = newScript("allowlist_swap", lua.AllowlistSwap)
	allowlistEmailsScript = newScript("allowlist_emails", lua.AllowlistEmails)
)

// patiently makes a call of a load again that came to nothing for a reason that
// passes: one such moment must not cost a load of millions of rows. That is safe of
// what reads, and of the steps, each of which finds its own effect. It ends with ctx,
// with any other error (that the turn is lost, say), and begins no try after 5 s.
func (g *Gate) patiently(ctx context.Context, call func() error) error {
	began := time.Now()
	for pause := loadPause; ; pause = min(2*pause, loadPauseMost) {
		err := call()
		if err == nil || !passes(err) {
			return err
		}
		wait := pause/2 + rand.N(pause)
		if time.Since(began)+wait > loadPatience {
			return fmt.Errorf("tried again for %s: %w", time.Since(began).Round(100*time.Millisecond), err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// passes tells an error that a later try may not meet. A time-out is the call's own
// where the caller's time is not over.
func passes(err error) bool {
	return errors.Is(err, booking.ErrNotAcknowledged) || errors.Is(err, ErrExpired) || errors.Is(err, context.DeadlineExceeded) || retryable(err)
}

// loadStep runs one step of a load of the allowlist, patiently; of its answers only
// want is no error.
func (g *Gate) loadStep(ctx context.Context, s *script, token string, codes []string, want string, args ...any) (l booking.AllowlistLoad, err error) {
	err = g.patiently(ctx, func() error {
		l, err = g.tryStep(ctx, s, token, codes, want, args...)
		return err
	})
	return l, err
}

// tryStep is loadStep without a repeat.
func (g *Gate) tryStep(ctx context.Context, s *script, token string, codes []string, want string, args ...any) (booking.AllowlistLoad, error) {
	k := g.keys
	keys := append(k.base(), k.load(), k.valid(), k.next(), k.nextEmail(), k.old(), k.changed(), k.kept(), k.swaps(), k.open(), k.opensAt())
	for _, code := range codes {
		keys = append(keys, k.email(code))
	}
	a, err := g.change(ctx, s, keys, append([]any{token, loadLease.Milliseconds()}, args...)...)
	if err != nil {
		return booking.AllowlistLoad{}, err
	}
	l, err := allowlistLoad(s, a)
	if err != nil {
		return l, err
	}
	switch a.word {
	case want:
		return l, nil
	case "superseded":
		return l, fmt.Errorf("%s: %w", s.name, booking.ErrAllowlistTurn)
	case "torn":
		return l, fmt.Errorf("%s: %w", s.name, booking.ErrAllowlistTorn)
	case "unfinished":
		return l, fmt.Errorf("%s: %w", s.name, booking.ErrAllowlistHalf)
	case "differs":
		return l, fmt.Errorf("%s: row %s of the chunk: %w", s.name, a.detail, booking.ErrAllowlistRow)
	case "open":
		return l, fmt.Errorf("%s: %w", s.name, booking.ErrAllowlistOpen)
	case "many":
		return l, fmt.Errorf("%s: %w", s.name, booking.ErrAllowlistMany)
	}
	return l, fmt.Errorf("%s answered %q, which this program does not know", s.name, a.word)
}

func allowlistLoad(s *script, a answer) (booking.AllowlistLoad, error) {
	if len(a.rest) != 15 {
		return booking.AllowlistLoad{}, fmt.Errorf("%s answered %d values", s.name, len(a.rest))
	}
	text := func(i int) string { t, _ := a.rest[i].(string); return t }
	number := func(i int) int64 { n, _ := a.rest[i].(int64); return n }
	l := booking.AllowlistLoad{
		Token: text(0), Who: text(1), Swapped: text(4) == "swapped",
		Rows: int(number(6)), Added: int(number(7)), Changed: int(number(8)), Unchanged: int(number(9)), Listed: int(number(10)),
		Open: number(11) == 1, Left: number(12) == 1, Of: text(13),
	}
	if l.Of != "" {
		l.OfSince = time.UnixMilli(number(14)).UTC()
	}
	if l.Token != "" {
		l.Since, l.Until = time.UnixMilli(number(2)).UTC(), time.UnixMilli(number(3)).UTC()
	}
	return l, nil
}

// BeginAllowlist takes the turn to load the allowlist, for a token of the load's own
// and a word on who it is. The answer is the load that has the turn: another's, by
// its token, when one is at work whose lease has not lapsed. Like all steps of a load
// it is acknowledged or an error, renews the lease of 30 s, and is safe to repeat; each but
// LeaveAllowlist does so itself, for a few seconds, where it was not acknowledged or
// the connection was cut. What a dead load has left is there until ClearAllowlist.
func (g *Gate) BeginAllowlist(ctx context.Context, token, who string) (booking.AllowlistLoad, error) {
	s := allowlistTurnScript
	l, err := g.loadStep(ctx, s, token, nil, "taken", "take", who)
	if err != nil && l.Token != "" && l.Token != token {
		return l, nil
	}
	return l, err
}

// ClearAllowlist finishes what this load, or a dead one before it, has left: e-mails
// that were to change with the list in force are changed, those of who is neither on
// it nor has a seat are removed, and what is staged is forgotten. With keep the e-mails
// of who was on a list in force stay: give it unless nobody can have had an attempt,
// since money may come for one long after its seat was given back. Then the load may
// stage. It goes page by page, each an acknowledged step; interrupted, it is done
// again from the start and finds little left.
func (g *Gate) ClearAllowlist(ctx context.Context, token string, keep bool) (booking.AllowlistLoad, error) {
	return g.clearAllowlist(ctx, token, keep, "clear", "cleared")
}

// EndAllowlist is ClearAllowlist at a load's end: nobody has the turn after it. Where
// another has it already there is nothing to do: that one sees to what is left.
func (g *Gate) EndAllowlist(ctx context.Context, token string, keep bool) error {
	_, err := g.clearAllowlist(ctx, token, keep, "end", "ended")
	if errors.Is(err, booking.ErrAllowlistTurn) {
		return nil
	}
	return err
}

func (g *Gate) clearAllowlist(ctx context.Context, token string, keep bool, what, want string) (booking.AllowlistLoad, error) {
	if err := g.writeChanged(ctx, token, keep); err != nil {
		return booking.AllowlistLoad{}, err
	}
	for _, key := range []string{g.keys.old(), g.keys.next(), g.keys.kept()} {
		if err := g.seeToEmails(ctx, token, key, keep); err != nil {
			return booking.AllowlistLoad{}, err
		}
	}
	return g.loadStep(ctx, allowlistTurnScript, token, nil, want, what)
}

// writeChanged writes the e-mails that were too many to change with the list. Each is
// taken away once written, so at the end there are none.
func (g *Gate) writeChanged(ctx context.Context, token string, keep bool) error {
	var cursor uint64
	for {
		var fields []string
		var left int64
		if err := g.patiently(ctx, func() (err error) {
			if left, err = g.rdb.Exists(ctx, g.keys.changed()).Result(); err == nil && left > 0 {
				fields, cursor, err = g.rdb.HScan(ctx, g.keys.changed(), cursor, "", listPage).Result()
			}
			return err
		}); err != nil {
			return fmt.Errorf("read e-mails to change: %w", err)
		}
		if left == 0 {
			return nil
		}
		codes := make([]string, 0, len(fields)/2)
		for i := 0; i < len(fields); i += 2 {
			codes = append(codes, fields[i])
		}
		if err := g.seeTo(ctx, token, codes, keep); err != nil {
			return err
		}
	}
}

// seeToEmails has the e-mails of everybody of a set seen to who is not on the list,
// and of the kept ones also of who is again.
func (g *Gate) seeToEmails(ctx context.Context, token, set string, keep bool) error {
	var cursor uint64
	for page := 1; ; page++ {
		var codes []string
		var next uint64
		if err := g.patiently(ctx, func() (err error) {
			if codes, next, err = g.setPage(ctx, set, cursor); err == nil && set != g.keys.kept() {
				codes, err = g.among(ctx, codes, g.keys.valid(), false)
			}
			if err != nil {
				cursor = 0 // the next try may meet another server, to which it means nothing
			}
			return err
		}); err != nil {
			return fmt.Errorf("read candidates to clear away: %w", err)
		}
		if len(codes) > 0 || page%renewPages == 0 {
			if err := g.seeTo(ctx, token, codes, keep); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// seeTo is one step for a page, or more where the server gave a larger one.
func (g *Gate) seeTo(ctx context.Context, token string, codes []string, keep bool) error {
	mode := ""
	if keep {
		mode = "keep"
	}
	for {
		part := codes[:min(len(codes), listPage)]
		if _, err := g.loadStep(ctx, allowlistEmailsScript, token, part, "seen_to", append([]any{mode}, anys(part)...)...); err != nil {
			return err
		}
		if codes = codes[len(part):]; len(codes) == 0 {
			return nil
		}
	}
}

// LeaveAllowlist gives the turn up without clearing anything away: the next load
// does. booking.ErrAllowlistTurn when it is over already. Safe to repeat, which it
// leaves to its caller: a turn lapses by itself.
func (g *Gate) LeaveAllowlist(ctx context.Context, token string) error {
	_, err := g.tryStep(ctx, allowlistTurnScript, token, nil, "left", "leave")
	return err
}

// StageAllowlist stages the chunk of that number, from 1, of some hundred rows,
// beside the list in force: nobody is admitted by it. Errors: booking.ErrAllowlistTurn,
// ErrAllowlistTorn, ErrAllowlistRow. Repeated with the same number it counts nothing
// twice.
func (g *Gate) StageAllowlist(ctx context.Context, token string, number int, chunk []booking.Candidate) (booking.AllowlistLoad, error) {
	codes, args := make([]string, 0, len(chunk)), make([]any, 1, 1+2*len(chunk))
	args[0] = number
	for _, c := range chunk {
		codes = append(codes, c.Code)
		args = append(args, c.Code, c.Email)
	}
	return g.loadStep(ctx, allowlistStageScript, token, codes, "staged", args...)
}

// SwapAllowlist puts the list of that many chunks in force, in one step: an admission
// is decided by the old list or by the new one. Up to 500 e-mails change in that
// step too. With more it is refused while booking is open or scheduled, and else
// booking cannot be opened before EndAllowlist or ClearAllowlist has written them.
// Errors: booking.ErrAllowlistOpen, unless whileOpen; ErrAllowlistMany,
// ErrAllowlistTorn, ErrAllowlistTurn; of these nothing was changed. After any other
// the list may be in force, and repeated with the same token it says so.
func (g *Gate) SwapAllowlist(ctx context.Context, token string, chunks int, whileOpen bool) (booking.AllowlistLoad, error) {
	var codes []string
	if err := g.patiently(ctx, func() error {
		n, err := g.rdb.HLen(ctx, g.keys.nextEmail()).Result()
		if err == nil && n <= swapMost {
			codes, err = g.rdb.HKeys(ctx, g.keys.nextEmail()).Result()
		}
		return err
	}); err != nil {
		return booking.AllowlistLoad{}, fmt.Errorf("read e-mails to change: %w", err)
	}
	mode := ""
	if whileOpen {
		mode = "open"
	}
	return g.loadStep(ctx, allowlistSwapScript, token, codes, "swapped", append([]any{chunks, mode}, anys(codes)...)...)
}

// LeavingRows scans the rows of candidates who were on the list in force and are not
// on the one that is staged, or, once that was swapped in and before EndAllowlist,
// of those it removed. As Rows it only reads.
func (g *Gate) LeavingRows(ctx context.Context, swapped bool) iter.Seq2[booking.DueRow, error] {
	from, to := g.keys.valid(), g.keys.next()
	if swapped {
		from, to = g.keys.old(), g.keys.valid()
	}
	return func(yield func(booking.DueRow, error) bool) {
		var cursor uint64
		for {
			page, next, err := g.scan(ctx, cursor)
			if err != nil {
				yield(booking.DueRow{}, fmt.Errorf("scan rows: %w", err))
				return
			}
			rows := make(map[string]string, len(page)/2)
			codes := make([]string, 0, len(page)/2)
			for i := 0; i+1 < len(page); i += 2 {
				rows[page[i]] = page[i+1]
				codes = append(codes, page[i])
			}
			if codes, err = g.among(ctx, codes, from, true); err == nil {
				codes, err = g.among(ctx, codes, to, false)
			}
			if err != nil {
				yield(booking.DueRow{}, err)
				return
			}
			for _, code := range codes {
				if !yield(dueRow(code, rows[code]), nil) {
					return
				}
			}
			if cursor = next; cursor == 0 {
				return
			}
		}
	}
}

// KeptEmails is how many candidates are off the list and their e-mail is kept, for a
// seat or for money that may still make one.
func (g *Gate) KeptEmails(ctx context.Context) (int, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := g.rdb.SCard(ctx, g.keys.kept()).Result()
	if err != nil {
		return 0, fmt.Errorf("count kept e-mails: %w", err)
	}
	return int(n), nil
}

// Candidate reads one candidate in one transaction, and whether the code is on the
// list. The e-mail is "" when none is on file; off the list it is there only for a
// seat, or for money that may still make one.
func (g *Gate) Candidate(ctx context.Context, code string) (c booking.Candidate, onTheList bool, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	p := g.rdb.TxPipeline()
	listed, email := p.SIsMember(ctx, g.keys.valid(), code), p.Get(ctx, g.keys.email(code))
	if _, err := p.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return booking.Candidate{}, false, fmt.Errorf("read candidate: %w", err)
	}
	return booking.Candidate{Code: code, Email: email.Val()}, listed.Val(), nil
}

// Candidates reads the list in force page by page, each code once, in no promised
// order. booking.ErrAllowlistMoved ends it when another list was put in force
// meanwhile, and what was read is then of both. A code without an e-mail comes with
// booking.ErrAllowlistBroken, and the reading goes on. No command of it blocks Redis.
func (g *Gate) Candidates(ctx context.Context) iter.Seq2[booking.Candidate, error] {
	return func(yield func(booking.Candidate, error) bool) {
		began, err := g.swapped(ctx)
		if err != nil {
			yield(booking.Candidate{}, err)
			return
		}
		var cursor uint64
		for {
			codes, next, err := g.setPage(ctx, g.keys.valid(), cursor)
			if err != nil {
				yield(booking.Candidate{}, fmt.Errorf("read the allowlist: %w", err))
				return
			}
			page, err := g.emailsOf(ctx, codes)
			if err != nil {
				yield(booking.Candidate{}, err)
				return
			}
			// Afterwards, so that a page is of the list it began with.
			switch now, err := g.swapped(ctx); {
			case err != nil:
				yield(booking.Candidate{}, err)
				return
			case now != began:
				yield(booking.Candidate{}, booking.ErrAllowlistMoved)
				return
			}
			for _, c := range page {
				var err error
				if c.Email == "" {
					err = booking.ErrAllowlistBroken
				}
				if !yield(c, err) {
					return
				}
			}
			if cursor = next; cursor == 0 {
				return
			}
		}
	}
}

// swapped is how often a list was put in force.
func (g *Gate) swapped(ctx context.Context) (string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := g.rdb.Get(ctx, g.keys.swaps()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("read the allowlist: %w", err)
	}
	return n, nil
}

func (g *Gate) emailsOf(ctx context.Context, codes []string) ([]booking.Candidate, error) {
	if len(codes) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys := make([]string, len(codes))
	for i, code := range codes {
		keys[i] = g.keys.email(code)
	}
	values, err := g.rdb.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, fmt.Errorf("read e-mails on file: %w", err)
	}
	list := make([]booking.Candidate, len(codes))
	for i, v := range values {
		email, _ := v.(string)
		list[i] = booking.Candidate{Code: codes[i], Email: email}
	}
	return list, nil
}

// among leaves those of some codes that are in a set, or that are not.
func (g *Gate) among(ctx context.Context, codes []string, set string, in bool) ([]string, error) {
	if len(codes) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	is, err := g.rdb.SMIsMember(ctx, set, anys(codes)...).Result()
	if err != nil {
		return nil, fmt.Errorf("look candidates up: %w", err)
	}
	left := make([]string, 0, len(codes))
	for i, code := range codes {
		if is[i] == in {
			left = append(left, code)
		}
	}
	return left, nil
}

func (g *Gate) setPage(ctx context.Context, set string, cursor uint64) ([]string, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return g.rdb.SScan(ctx, set, cursor, "", listPage).Result()
}
