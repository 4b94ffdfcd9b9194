package saleops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/booking"
)

// Switches moves the operator's switch; see admission.Gate. Each is acknowledged or an
// error, and safe to repeat.
type Switches interface {
	// OpenOver opens at that time, now if it is zero, over what was shown and nothing
	// else: booking.ErrNotAsShown.
	OpenOver(ctx context.Context, shown booking.Shown, at time.Time) error
	// Close closes whatever stands.
	Close(ctx context.Context) error
}

// SwitchLedger is what opening and closing need of the seat ledger.
type SwitchLedger interface {
	Switches
	Now(ctx context.Context) (time.Time, error)
	Epoch(ctx context.Context) (string, error)
	Sale(ctx context.Context) (booking.Sale, error)
	// SaleFields are the sale as it is stored.
	SaleFields(ctx context.Context) (map[string]string, error)
	ReadStatus(ctx context.Context) (booking.Figures, error)
	AllowlistSize(ctx context.Context) (int, error)
	UnfinishedRebuild(ctx context.Context) (token string, err error)
	// Acknowledges is nil when the replicas acknowledge a write of now.
	Acknowledges(ctx context.Context) error
	// Elected tells whether some process holds the reconciler's lock.
	Elected(ctx context.Context) (bool, error)
}

// TokenSight is what may be known of the fleet's gateway token.
type TokenSight struct {
	ValidUntil time.Time // zero without a valid token
	GrantsLeft int
	NextGrant  time.Time // with none left
}

// FleetSight is what the processes' metrics say.
type FleetSight struct {
	// LastSweep is when a reconciler last looked at every due row; zero when no process
	// that answered says.
	LastSweep time.Time
	// Workers is how many processes that answered consume the queue.
	Workers int
	// Away says which processes did not answer, and why.
	Away []string
}

// Switch opens and closes booking, and shows that it is so: in the ledger, and where
// people read it.
type Switch struct {
	Ledger SwitchLedger
	Queue  Queue
	// Eviction is nil when Redis never evicts; ErrMayEvict when it does, else nobody
	// knows.
	Eviction func(ctx context.Context) error
	// Status reads status.json as people get it.
	Status func(ctx context.Context) ([]byte, error)
	Token  func(ctx context.Context) (TokenSight, error)
	// Fleet asks the processes; nil when nobody said where they are.
	Fleet func(ctx context.Context) (FleetSight, error)
	// LoadRunning tells of an allowlist that is being loaded, or whose load broke off; nil
	// when that leaves no trace.
	LoadRunning func(ctx context.Context) (booking.AllowlistLoad, error)
	// EpochMark is the latest epoch that a reset has begun; booking.ErrNotFound.
	EpochMark func(ctx context.Context) (booking.EpochMark, error)
	// Wait passes the time between two looks; nil waits by the clock.
	Wait func(ctx context.Context, d time.Duration) error
}

// ErrMayEvict says that Redis may evict keys, so that it must hold no seats.
var ErrMayEvict = errors.New("redis may evict keys")

// CheckVerdict is what a look before the opening found.
type CheckVerdict string

// The verdicts.
const (
	CheckOK      CheckVerdict = "ok"
	CheckWarning CheckVerdict = "warning"
	// CheckNotSeen: it could not be looked at, and counts as a warning.
	CheckNotSeen CheckVerdict = "not seen"
	// CheckRefused: opening would be wrong.
	CheckRefused CheckVerdict = "REFUSED"
)

// Check is one look before the opening.
type Check struct {
	Name    string       `json:"name"`
	Verdict CheckVerdict `json:"verdict"`
	Text    string       `json:"text"`
}

// Opening is what will be opened, and what speaks against it.
type Opening struct {
	Sale  booking.Sale    `json:"sale"`
	Epoch string          `json:"epoch"`
	Now   time.Time       `json:"now"` // by the ledger's clock
	At    time.Time       `json:"at,omitzero"`
	Was   booking.Figures `json:"-"`
	// Shown is what Open opens over.
	Shown booking.Shown `json:"-"`
	// Allowlist is how many candidates are on it; -1 when that could not be read.
	Allowlist int     `json:"allowlist"`
	Checks    []Check `json:"checks"`
}

// Refused tells whether opening would be wrong.
func (o Opening) Refused() bool { return o.any(CheckRefused) }

// Warned tells whether something is to be thought about first.
func (o Opening) Warned() bool { return o.any(CheckWarning) || o.any(CheckNotSeen) }

func (o Opening) any(v CheckVerdict) bool {
	for _, c := range o.Checks {
		if c.Verdict == v {
			return true
		}
	}
	return false
}

const (
	// sweepLate is how long no sweep may be finished before nobody gives seats back.
	sweepLate = 2 * time.Minute
	// queueLate is how old a message may be before the worker does not keep up.
	queueLate = time.Minute
	// switchEvery is the time between two looks whether a change is there; settleFor
	// the time between the two counts that prove a closing.
	switchEvery = 500 * time.Millisecond
	settleFor   = time.Second
	// lookTimeout bounds one of these looks.
	lookTimeout = 5 * time.Second
	// publishedWithin is how long an opening waits for status.json, which is never more
	// than 5 s behind.
	publishedWithin = 10 * time.Second
)

// Look tells what opening at that time would do, now if it is zero, and what speaks
// against it. It changes no seat and no switch. An error when the ledger does not
// answer.
func (s *Switch) Look(ctx context.Context, at time.Time) (Opening, error) {
	o := Opening{At: at, Allowlist: -1}
	var err error
	if o.Now, err = s.Ledger.Now(ctx); err != nil {
		return o, fmt.Errorf("look before the opening: %w", err)
	}
	add := func(name string, v CheckVerdict, format string, args ...any) {
		o.Checks = append(o.Checks, Check{name, v, fmt.Sprintf(format, args...)})
	}
	// What can still come right until a scheduled opening only warns.
	soon := CheckRefused
	if !at.IsZero() {
		soon = CheckWarning
		if !at.After(o.Now) {
			add("time", CheckRefused, "it is over: by the ledger's clock it is %s", o.Now.Format(time.RFC3339))
		}
	}
	switch o.Epoch, err = s.Ledger.Epoch(ctx); {
	case errors.Is(err, booking.ErrLedgerUnknown):
		add("epoch", CheckRefused, "there is none: this Redis is empty; apply a first sale, or rebuild")
		return o, nil
	case err != nil:
		return o, fmt.Errorf("look before the opening: %w", err)
	}
	switch mark, err := s.EpochMark(ctx); {
	case err != nil && !errors.Is(err, booking.ErrNotFound):
		add("epoch", CheckNotSeen, "%s; whether a reset has begun another: %v", o.Epoch, err)
	case mark.Epoch > o.Epoch: // epochs sort by time
		add("epoch", CheckRefused, "the store says that a reset began epoch %s at %s, and Redis has the earlier %s, so a failover has lost the reset: empty this Redis, and rebuild it",
			mark.Epoch, mark.At.UTC().Format(time.RFC3339), o.Epoch)
	default:
		add("epoch", CheckOK, "%s", o.Epoch)
	}
	o.Shown.Epoch = o.Epoch
	if o.Shown.Sale, err = s.Ledger.SaleFields(ctx); err != nil { // before what is shown of it
		return o, fmt.Errorf("look before the opening: %w", err)
	}
	switch o.Sale, err = s.Ledger.Sale(ctx); {
	case errors.Is(err, booking.ErrNotFound), errors.Is(err, booking.ErrLedgerDamaged):
		add("sale", CheckRefused, "%v: apply the sale", err)
		return o, nil
	case err != nil:
		return o, fmt.Errorf("look before the opening: %w", err)
	}
	if o.Was, err = s.Ledger.ReadStatus(ctx); err != nil {
		return o, fmt.Errorf("look before the opening: %w", err)
	}
	o.Shown.Open, o.Shown.OpensAt = o.Was.Open, o.Was.OpensAt
	s.checkSeats(&o, add)
	s.checkRedis(ctx, &o, add)
	s.checkFleet(ctx, o, soon, add)
	return o, nil
}

type addCheck func(name string, v CheckVerdict, format string, args ...any)

func (s *Switch) checkSeats(o *Opening, add addCheck) {
	sellable, damaged := 0, o.Was.Total < 0
	for _, l := range o.Was.Levels {
		sellable += l.Cap
		damaged = damaged || l.Admitted < 0
	}
	switch {
	case o.Was.Cap <= 0 || sellable <= 0:
		add("caps", CheckRefused, "all levels together sell %d of %d seats: apply a sale that sells some", sellable, o.Was.Cap)
	case damaged:
		add("caps", CheckRefused, "a counter is damaged and closes its level: run the audit, then sale apply")
	case o.Was.Total >= o.Was.Cap:
		add("caps", CheckWarning, "no seat is left: %d of %d are admitted", o.Was.Total, o.Was.Cap)
	default:
		add("caps", CheckOK, "%d of %d seats are left", o.Was.Cap-o.Was.Total, o.Was.Cap)
	}
	if o.Was.Open && !o.At.IsZero() {
		add("switch", CheckRefused, "booking is open, and a scheduled opening would close it until then: close it first")
	}
}

func (s *Switch) checkRedis(ctx context.Context, o *Opening, add addCheck) {
	switch n, err := s.Ledger.AllowlistSize(ctx); {
	case err != nil:
		add("allowlist", CheckNotSeen, "%v", err)
	case n == 0:
		o.Allowlist = 0
		add("allowlist", CheckRefused, "it is empty, so nobody can book: load the candidates")
	default:
		o.Allowlist = n
		add("allowlist", CheckOK, "%d candidates", n)
	}
	switch token, err := s.Ledger.UnfinishedRebuild(ctx); {
	case err != nil:
		add("rebuild", CheckNotSeen, "%v", err)
	case token != "":
		add("rebuild", CheckRefused, "one has begun and is not finished: run the rebuild again")
	default:
		add("rebuild", CheckOK, "none is unfinished")
	}
	if s.LoadRunning != nil {
		s.checkLoad(ctx, o, add)
	}
	switch err := s.Ledger.Acknowledges(ctx); {
	case errors.Is(err, booking.ErrNotAcknowledged):
		add("replicas", CheckRefused, "they do not acknowledge, so nobody would be admitted")
	case err != nil:
		add("replicas", CheckNotSeen, "%v", err)
	default:
		add("replicas", CheckOK, "they acknowledge")
	}
	switch err := s.Eviction(ctx); {
	case errors.Is(err, ErrMayEvict):
		add("eviction", CheckRefused, "%v", err)
	case err != nil:
		add("eviction", CheckNotSeen, "%v", err)
	default:
		add("eviction", CheckOK, "noeviction")
	}
}

// checkLoad refuses where the ledger itself would refuse to open; whatever else a load is
// at, or has left, the list in force is whole.
func (s *Switch) checkLoad(ctx context.Context, o *Opening, add addCheck) {
	l, err := s.LoadRunning(ctx)
	by := func(who string, since time.Time) string {
		return fmt.Sprintf("a load by %s, since %s,", who, since.UTC().Format(time.RFC3339))
	}
	mine, dead := by(l.Who, l.Since), by(l.Who, l.Since)
	if l.Of != "" {
		dead = by(l.Of, l.OfSince)
	}
	switch atWork := l.Until.After(o.Now); {
	case err != nil:
		add("load", CheckNotSeen, "%v", err)
	case l.Half && atWork:
		add("load", CheckRefused, "%s is at work, and not all e-mails of the list in force are: wait for its end", mine)
	case l.Half:
		add("load", CheckRefused, "%s was cut off with its list in force and not all of its e-mails: run candidates load again", dead)
	case atWork:
		add("load", CheckWarning, "%s is at work: the list above is the one before it", mine)
	case l.Left && l.Swapped:
		add("load", CheckWarning, "%s was cut off with its list in force, which is whole: the next load clears away what is left of the one before", dead)
	case l.Left:
		add("load", CheckWarning, "%s broke off, and nothing of it is in force: the next load clears it away", mine)
	default:
		add("load", CheckOK, "none is unfinished")
	}
}

// checkFleet looks at what must work beside Redis.
func (s *Switch) checkFleet(ctx context.Context, o Opening, bad CheckVerdict, add addCheck) {
	if missing := s.unpublished(ctx, o.Was); missing == "" {
		add("status.json", CheckOK, "it says what the ledger says")
	} else {
		add("status.json", CheckWarning, "%s", missing)
	}
	s.checkToken(ctx, o, bad, add)
	var fleet FleetSight
	fleetErr := errors.New("HOLDFAST_METRICS_URLS does not say where the processes are")
	if s.Fleet != nil {
		fleet, fleetErr = s.Fleet(ctx)
	}
	for _, text := range fleet.Away {
		add("processes", CheckWarning, "%s", text)
	}
	s.checkSweeps(ctx, o, fleet, bad, add)
	switch stats, err := s.Queue.Stats(ctx); {
	case err != nil:
		add("worker", CheckNotSeen, "%v", err)
	default:
		switch {
		case stats.OldestAge > queueLate:
			add("worker", bad, "the queue does not drain: its oldest message is %s old", stats.OldestAge.Round(time.Second))
		case stats.Waiting+stats.InFlight > 0 || fleet.Workers > 0:
			add("worker", CheckOK, "workers that answer: %d; %d messages wait, %d are in flight", fleet.Workers, stats.Waiting, stats.InFlight)
		case fleetErr != nil:
			add("worker", CheckNotSeen, "the queue is empty, and %v", fleetErr)
		case len(fleet.Away) > 0:
			add("worker", CheckNotSeen, "the queue is empty, and not all processes answer")
		default:
			add("worker", bad, "the queue is empty, and no process consumes it: start the worker")
		}
		if stats.Dead > 0 {
			add("dead letters", CheckWarning, "%d: look at them with dlq first", stats.Dead)
		} else {
			add("dead letters", CheckOK, "none")
		}
	}
}

func (s *Switch) checkToken(ctx context.Context, o Opening, bad CheckVerdict, add addCheck) {
	when := o.Now
	if o.At.After(when) {
		when = o.At
	}
	switch t, err := s.Token(ctx); {
	case err != nil:
		add("token", CheckNotSeen, "%v", err)
	case t.ValidUntil.After(when):
		add("token", CheckOK, "valid until %s", t.ValidUntil.UTC().Format(time.RFC3339))
	case t.GrantsLeft > 0:
		add("token", CheckOK, "none is valid then; %d grants are left", t.GrantsLeft)
	case t.NextGrant.After(when):
		add("token", bad, "none is valid then, and the next grant is at %s", t.NextGrant.UTC().Format(time.RFC3339))
	default:
		add("token", CheckOK, "none is valid then; the next grant is at %s", t.NextGrant.UTC().Format(time.RFC3339))
	}
}

func (s *Switch) checkSweeps(ctx context.Context, o Opening, fleet FleetSight, bad CheckVerdict, add addCheck) {
	if !fleet.LastSweep.IsZero() {
		ago := max(0, o.Now.Sub(fleet.LastSweep)).Round(time.Second)
		if ago > sweepLate {
			add("reconciler", bad, "its last sweep is %s ago: seats that lapse would not come back", ago)
			return
		}
		add("reconciler", CheckOK, "its last sweep is %s ago", ago)
		return
	}
	switch is, err := s.Ledger.Elected(ctx); {
	case err != nil:
		add("reconciler", CheckNotSeen, "%v", err)
	case is:
		add("reconciler", CheckNotSeen, "one is elected; no process says when it last swept")
	default:
		add("reconciler", bad, "none is elected: seats that lapse would not come back; start the API")
	}
}

// publishedSwitch is what is read of status.json.
type publishedSwitch struct {
	Version int64      `json:"version"`
	Open    bool       `json:"open"`
	OpensAt *time.Time `json:"opens_at"`
}

// unpublished says how status.json differs from the ledger's switch; "" when people
// read what it says.
func (s *Switch) unpublished(ctx context.Context, f booking.Figures) string {
	return s.unpublishedSince(ctx, f, 0)
}

// unpublishedSince is unpublished after a change, by whose time the ledger had given out
// versions of status.json up to that one: an earlier page may yet be followed by the
// one that says how the switch stood before.
func (s *Switch) unpublishedSince(ctx context.Context, f booking.Figures, version int64) string {
	body, err := s.Status(ctx)
	if err != nil {
		return fmt.Sprintf("status.json cannot be read: %v", err)
	}
	var doc publishedSwitch
	if err := json.Unmarshal(body, &doc); err != nil {
		return "status.json cannot be understood"
	}
	var at time.Time
	if doc.OpensAt != nil {
		at = *doc.OpensAt
	}
	switch same := doc.Open == f.Open && (f.Open || at.Equal(f.OpensAt)); {
	case same && doc.Version < version:
		return fmt.Sprintf("status.json, version %d, is from before the change: version %d is on its way, or was lost", doc.Version, version)
	case same:
		return ""
	}
	return fmt.Sprintf("status.json, version %d, says %s and the ledger %s", doc.Version, switchWord(doc.Open, at), switchWord(f.Open, f.OpensAt))
}

// switchWord says how the switch stands.
func switchWord(open bool, opensAt time.Time) string {
	switch {
	case open:
		return "open"
	case opensAt.IsZero():
		return "closed"
	}
	return "closed until " + opensAt.UTC().Format(time.RFC3339)
}

// Switched is what a change of the switch came to.
type Switched struct {
	// Acknowledged: the switch was moved, and the replicas have it.
	Acknowledged bool `json:"acknowledged"`
	// Read: the ledger was read back, and says so. At is its clock then.
	Read bool      `json:"read"`
	At   time.Time `json:"at,omitzero"`
	// NoneAdmitted: two counts after a closing show no further seat. Closing only.
	NoneAdmitted bool `json:"none_admitted"`
	// Published: status.json says so.
	Published bool `json:"published"`
	// Missing says what of these is, and why.
	Missing []string `json:"missing,omitempty"`
	// Admitted is the seats admitted at the last look; -1 when it could not be read.
	Admitted int `json:"admitted"`
}

// Open opens booking as the look says, and only over what it showed, then reads the
// ledger back and waits a few seconds for status.json. What is not so is in Missing; the
// error is that of a change that was not made, booking.ErrNotAsShown when something else
// stands. Repeat it with another look.
func (s *Switch) Open(ctx context.Context, look Opening) (Switched, error) {
	out, at := Switched{Admitted: -1}, look.At
	if err := s.Ledger.OpenOver(ctx, look.Shown, at); err != nil {
		out.Missing = []string{fmt.Sprintf("acknowledgement: %v", err)}
		return out, err
	}
	out.Acknowledged = true
	var given int64 // the last version of status.json by the first look after the switch
	err := s.until(ctx, publishedWithin, func(ctx context.Context) bool {
		out.Missing = nil
		f, err := s.Ledger.ReadStatus(ctx)
		if err != nil {
			out.Missing = []string{fmt.Sprintf("the ledger cannot be read back: %v", err)}
			return false
		}
		out.At, out.Admitted = f.At, f.Total
		// A scheduled opening may have come while status.json was waited for.
		out.Read = f.Open && !at.After(f.At) || !f.Open && !at.IsZero() && f.OpensAt.Equal(at.Truncate(time.Millisecond))
		if !out.Read {
			out.Missing = []string{fmt.Sprintf("the ledger says %s: someone else has moved the switch", switchWord(f.Open, f.OpensAt))}
			return false
		}
		if given == 0 {
			given = f.Version
		}
		why := s.unpublishedSince(ctx, f, given)
		if out.Published = why == ""; !out.Published {
			out.Missing = []string{why}
		}
		return out.Published
	})
	return out, err
}

// Close closes booking, and forgets a scheduled opening; it is done when no further
// admission is possible and status.json says so. While one of them is missing it looks
// again, for as long as given; then Missing says which. Its error is ctx's. Safe to
// repeat.
func (s *Switch) Close(ctx context.Context, within time.Duration) (Switched, error) {
	out := Switched{Admitted: -1}
	var before *booking.Figures // a count after the switch
	var given int64             // the last version of status.json by the first look after it
	err := s.until(ctx, within, func(ctx context.Context) bool {
		out.Missing = nil
		if !out.Acknowledged {
			if err := s.Ledger.Close(ctx); err != nil {
				out.Missing = append(out.Missing, fmt.Sprintf("acknowledgement of the switch, so a failover could open booking again: %v", err))
			} else {
				out.Acknowledged = true
			}
		}
		s.proveClosed(ctx, &out, &before, &given)
		return len(out.Missing) == 0
	})
	return out, err
}

// proveClosed counts once, and compares with the count before it. An admission that
// was sent before the switch may still be undone; after it each is refused by its
// script, so that no counter may grow.
func (s *Switch) proveClosed(ctx context.Context, out *Switched, before **booking.Figures, given *int64) {
	f, err := s.Ledger.ReadStatus(ctx)
	if err != nil {
		out.Missing = append(out.Missing, fmt.Sprintf("proof that nobody is admitted: the ledger cannot be read: %v", err))
		return
	}
	out.At, out.Admitted, out.Read = f.At, f.Total, !f.Open && f.OpensAt.IsZero()
	switch was := *before; {
	case !out.Read:
		out.Acknowledged, out.NoneAdmitted, *before, *given = false, false, nil, 0 // close it once more
		out.Missing = append(out.Missing, fmt.Sprintf("the ledger says %s: someone else has moved the switch", switchWord(f.Open, f.OpensAt)))
		return
	case !out.Acknowledged:
	case was == nil || grown(*was, f):
		out.NoneAdmitted, *before = false, &f
		out.Missing = append(out.Missing, "proof that nobody is admitted: seats were counted once, or late money took one since")
	case f.At.Sub(was.At) < settleFor:
		out.Missing = append(out.Missing, "proof that nobody is admitted: the two counts are not far enough apart")
	default:
		out.NoneAdmitted = true
	}
	if *given == 0 {
		*given = f.Version
	}
	why := s.unpublishedSince(ctx, f, *given)
	if out.Published = why == ""; !out.Published {
		out.Missing = append(out.Missing, why)
	}
}

// grown tells whether a level has more seats than before.
func grown(before, now booking.Figures) bool {
	had := map[string]int{}
	for _, l := range before.Levels {
		had[l.ID] = l.Admitted
	}
	for _, l := range now.Levels {
		if l.Admitted > had[l.ID] {
			return true
		}
	}
	return false
}

// until looks until done says so or the time is over, a last look being finished; its
// error is ctx's.
func (s *Switch) until(ctx context.Context, within time.Duration, done func(ctx context.Context) bool) error {
	pass := s.Wait
	if pass == nil {
		pass = wait
	}
	limit, end := context.WithTimeout(ctx, within) // looks take time, too
	defer end()
	for left := within; ; left -= switchEvery {
		look, cancel := context.WithTimeout(ctx, lookTimeout)
		is := done(look)
		cancel()
		if is || left <= 0 || limit.Err() != nil {
			return ctx.Err()
		}
		if err := pass(ctx, switchEvery); err != nil {
			return err
		}
	}
}
