package saleops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"holdfast/internal/booking"
)

// Census reads the whole seat ledger for the audit; see admission.Gate. It
// changes nothing.
type Census interface {
	Sale(ctx context.Context) (booking.Sale, error)
	ReadStatus(ctx context.Context) (booking.Figures, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
	Looks(ctx context.Context, codes []string) (map[string]time.Time, error)
	Count(ctx context.Context) (rows, looks int, f booking.Figures, err error)
}

// AuditOptions say what an audit looks at beside ledger, store and queue.
type AuditOptions struct {
	// Gateway asks the payment gateway about every attempt with a payment, at
	// most QueriesPerSecond.
	Gateway          bool
	QueriesPerSecond float64
	// Status reads status.json; nil leaves it out. Its error is
	// booking.ErrNotFound when there is none.
	Status func(ctx context.Context) ([]byte, error)
	// Wait passes the time between two readings; nil waits by the clock.
	Wait func(ctx context.Context, d time.Duration) error
}

// Verdict is what became of a rule.
type Verdict string

// The verdicts. Only the first says that a rule holds.
const (
	VerdictHolds  Verdict = "holds"
	VerdictBroken Verdict = "BROKEN"
	// VerdictNotSeen: it was to be looked at, and something gave no answer.
	VerdictNotSeen Verdict = "NOT SEEN"
	// VerdictNotAsked: the options left it out.
	VerdictNotAsked Verdict = "not asked"
)

// The codes of the rules; they never change.
const (
	RuleEpoch      = "epoch"
	RuleCaps       = "caps"
	RuleCounters   = "counters"
	RuleOneLive    = "one-live-booking"
	RuleRecords    = "records-and-rows"
	RulePaid       = "paid-records"
	RuleLookedAt   = "looked-at"
	RuleDoubt      = "doubt"
	RuleMoney      = "money"
	RuleSignals    = "signals"
	RuleQueue      = "queue"
	RuleStatus     = "status"
	RuleUnreadable = "unreadable"
)

// Rule is one rule with the figure that proves or breaks it.
type Rule struct {
	Code    string  `json:"code"`
	Text    string  `json:"text"`
	Verdict Verdict `json:"verdict"`
	Figure  string  `json:"figure"`
	// Broken says where, by candidate code; the first few of them. Count is how many
	// there are.
	Broken []string `json:"broken,omitempty"`
	Count  int      `json:"count"`
	// InFlight counts differences that are younger than two minutes, were gone when
	// looked at again, or are looks that are due now.
	InFlight int `json:"in_flight"`
}

// Report is an audit. It names candidates by their codes, for the operator's
// eyes: it is no text for a log.
type Report struct {
	At    time.Time `json:"at"` // by the ledger's clock
	Sale  string    `json:"sale"`
	Epoch string    `json:"epoch"`
	Open  bool      `json:"open"`
	Rules []Rule    `json:"rules"`
	// NotSeen says what the audit could not look at.
	NotSeen []string `json:"not_seen"`
}

// Broken tells whether a rule is.
func (r Report) Broken() bool { return r.any(VerdictBroken) }

// Unseen tells whether a rule that was to be looked at could not be: no rule need
// be broken, and it is no proof that all hold.
func (r Report) Unseen() bool { return r.any(VerdictNotSeen) }

func (r Report) any(v Verdict) bool {
	return slices.ContainsFunc(r.Rules, func(r Rule) bool { return r.Verdict == v })
}

const (
	// inFlight is the age below which a difference may be something on its way.
	inFlight = 2 * time.Minute
	// lookAgain is the longest that the reconciler puts a look off.
	lookAgain = 10 * time.Minute
	// A difference counts when every reading shows it. They are as far apart as a
	// status.json may be behind.
	auditReadings = 3
	auditPause    = 3 * time.Second
	// tellMost is how many places of one rule are told.
	tellMost = 20
)

// rules in the order they are told.
var rules = []struct{ code, text string }{
	{RuleEpoch, "the ledger is of the sale that was begun last"},
	{RuleCaps, "no more seats than a cap"},
	{RuleCounters, "counters are what the rows add up to"},
	{RuleOneLive, "one live booking a candidate"},
	{RuleRecords, "records and rows name the same attempts, and the same order"},
	{RulePaid, "a record is PAID if and only if its row is paid"},
	{RuleLookedAt, "every unfinished row is looked at in time"},
	{RuleDoubt, "a seat in doubt is kept, and asked about again"},
	{RuleMoney, "money that moved is a paid seat or a refund, never both, never neither"},
	{RuleSignals, "what the gateway has said on its own account is worked off"},
	{RuleQueue, "no message is stuck or dead"},
	{RuleStatus, "status.json says what the ledger says"},
	{RuleUnreadable, "all that is stored can be read, and every row is one of this sale's"},
}

// Audit compares ledger, store, queue, and as asked the gateway and status.json,
// and gives each rule with the figure that proves or breaks it. It changes
// nothing. A difference counts when it is older than two minutes, where its age
// can be told, and is there in each of three readings. The error says why the
// audit could not be made; booking.ErrLedgerUnknown when the ledger is empty.
func (o *Ops) Audit(ctx context.Context, opts AuditOptions) (Report, error) {
	if opts.Wait == nil {
		opts.Wait = wait
	}
	first, err := o.read(ctx, opts)
	if err != nil {
		return Report{}, fmt.Errorf("audit: %w", err)
	}
	charges, unanswered, err := o.ask(ctx, opts, first)
	if err != nil {
		return Report{}, fmt.Errorf("audit: %w", err)
	}
	first.compare(charges, first.rows)
	last := first
	stays := first.findings
	for n := 1; n < auditReadings && (len(stays) > 0 || (n == 1 && charges != nil)); n++ {
		if err := opts.Wait(ctx, auditPause); err != nil {
			return Report{}, fmt.Errorf("audit: %w", err)
		}
		again, err := o.read(ctx, opts)
		if err != nil {
			return Report{}, fmt.Errorf("audit: %w", err)
		}
		if again.epoch != first.epoch {
			return Report{}, errors.New("audit: another sale has begun meanwhile; run it again")
		}
		again.compare(charges, first.rows)
		last = again
		if n == 1 && charges != nil {
			// What was asked is compared with the rows after the question.
			for key, f := range again.findings {
				if f.rule == RuleMoney {
					stays[key] = f
				}
			}
		}
		for key := range stays {
			if f, there := again.findings[key]; there {
				stays[key] = f
				continue
			}
			last.inFlight[stays[key].rule]++
			delete(stays, key)
		}
	}
	return last.report(opts, stays, unanswered), nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finding is one place where a rule does not hold. Its key is the same in every
// reading.
type finding struct{ rule, text string }

// reading is everything as it was read once.
type reading struct {
	now           time.Time
	mark          booking.EpochMark // zero when no sale was reset
	epoch         string
	sale          booking.Sale
	figures       booking.Figures
	counted       booking.Figures // with rowsN and looksN of one moment
	rowsN, looksN int
	queue         booking.QueueStats
	rows          map[string]booking.Row    // by code
	looks         map[string]time.Time      // by code
	records       []booking.Record          // of the running sale
	others        int                       // records of other sales
	paidBy        map[string]string         // transaction -> the PAID record, of any sale
	refunds       map[string]booking.Refund // by transaction, of any sale
	signals       []booking.Notification    // open ones
	status        *statusDocument
	statusErr     error

	// What comparing found.
	findings       map[string]finding
	inFlight       map[string]int // by rule
	overdue        map[booking.Phase]int
	live           int // candidates with a live record
	never, far     int // rows: nobody will look at them, or later than may be
	doubts, called int // rows in doubt, and those of them that need a human
	forgotten      int // rows in doubt that nobody asks about in time
	looked         int // rows

	answered, completed int // payments
}

// statusDocument is what is compared of status.json.
type statusDocument struct {
	Version   int64     `json:"version"`
	UpdatedAt time.Time `json:"updated_at"`
	Open      bool      `json:"open"`
	Total     struct {
		Cap  int `json:"cap"`
		Left int `json:"left"`
	} `json:"total"`
	Levels []struct {
		ID   string `json:"id"`
		Cap  int    `json:"cap"`
		Left int    `json:"left"`
	} `json:"levels"`
}

// read reads everything once. Records come before rows: a PAID record is
// written after its row is paid, and that row stays so; and before refunds: a
// record is released for one that is there.
func (o *Ops) read(ctx context.Context, opts AuditOptions) (*reading, error) {
	r := &reading{
		rows: map[string]booking.Row{}, looks: map[string]time.Time{},
		paidBy: map[string]string{}, refunds: map[string]booking.Refund{},
		findings: map[string]finding{}, inFlight: map[string]int{}, overdue: map[booking.Phase]int{},
	}
	var err error
	// The mark before the epoch: a reset writes them the other way round.
	switch r.mark, err = o.Store.EpochMark(ctx); {
	case errors.Is(err, booking.ErrUnreadable):
		r.bad(RuleUnreadable, "mark", "%v", err)
	case err != nil && !errors.Is(err, booking.ErrNotFound):
		return nil, err
	}
	if r.epoch, err = o.Ledger.Epoch(ctx); err != nil {
		return nil, err
	}
	if r.mark.NewerThan(r.epoch) {
		r.bad(RuleEpoch, r.mark.Epoch, "the ledger is of epoch %s, and epoch %s was begun at %s: Redis has lost that reset", r.epoch, r.mark.Epoch, r.mark.At.UTC().Format(time.RFC3339))
	}
	if r.sale, err = o.Ledger.Sale(ctx); err != nil {
		return nil, fmt.Errorf("the running sale: %w", err)
	}
	if r.now, err = o.Ledger.Now(ctx); err != nil {
		return nil, err
	}
	if r.queue, err = o.Queue.Stats(ctx); err != nil {
		return nil, err
	}
	for rec, err := range o.Store.Records(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			r.bad(RuleUnreadable, "record "+rec.Attempt, "record %s of candidate hash %.8s: %v", rec.Attempt, rec.CandidateHash, err)
		case err != nil:
			return nil, err
		case rec.Epoch != r.epoch:
			r.others++
		default:
			r.records = append(r.records, rec)
		}
		if err == nil && rec.State == booking.StatePaid {
			r.paidBy[rec.Transaction] = fmt.Sprintf("record %s of %s is PAID by it", rec.Attempt, rec.Code)
		}
	}
	if err := o.readMoney(ctx, r); err != nil {
		return nil, err
	}
	if err := o.readRows(ctx, r); err != nil {
		return nil, err
	}
	if r.rowsN, r.looksN, r.counted, err = o.Ledger.Count(ctx); err != nil {
		return nil, err
	}
	if opts.Status != nil {
		r.status, r.statusErr = readStatus(ctx, opts.Status)
	}
	r.figures, err = o.Ledger.ReadStatus(ctx)
	return r, err
}

func (o *Ops) readRows(ctx context.Context, r *reading) error {
	page := make([]string, 0, chunk)
	look := func() error {
		looks, err := o.Ledger.Looks(ctx, page)
		for code, at := range looks {
			r.looks[code] = at
		}
		page = page[:0]
		return err
	}
	for d, err := range o.Ledger.Rows(ctx) {
		if err != nil {
			return err
		}
		if d.Err != nil {
			r.bad(RuleUnreadable, "row "+d.Code, "row of %s: %v", d.Code, d.Err)
			continue
		}
		if wrong := misshapen(d.Row, r.epoch); wrong != "" {
			r.bad(RuleUnreadable, "row "+d.Code, "row of %s: %s", d.Code, wrong)
		}
		r.rows[d.Code] = d.Row // its seat counts all the same
		if page = append(page, d.Code); len(page) == chunk {
			if err := look(); err != nil {
				return err
			}
		}
	}
	return look()
}

// misshapen says why no script can have left the row as it is; "" when one can.
func misshapen(row booking.Row, epoch string) string {
	switch {
	case !slices.Contains(booking.Phases(), row.Phase):
		return fmt.Sprintf("phase %q is unknown", row.Phase)
	case booking.AttemptEpoch(row.Attempt) != epoch:
		return fmt.Sprintf("attempt %q is not one of this sale's", row.Attempt)
	case (row.Phase == booking.PhaseNew) != (row.Payment == ""):
		return fmt.Sprintf("it is %s, and its payment is %q", row.Phase, row.Payment)
	case row.Payment != "" && row.Deadline == 0:
		return fmt.Sprintf("it is %s, and has no deadline", row.Phase)
	case (row.Phase == booking.PhasePaid) != (row.Transaction != ""):
		return fmt.Sprintf("it is %s, and its transaction is %q", row.Phase, row.Transaction)
	}
	return ""
}

func readStatus(ctx context.Context, get func(context.Context) ([]byte, error)) (*statusDocument, error) {
	body, err := get(ctx)
	if err != nil {
		return nil, err
	}
	var d statusDocument
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("status.json: %w: %w", booking.ErrUnreadable, err)
	}
	return &d, nil
}

// ask asks the gateway about every attempt that has a payment. unanswered is how
// many gave no clear answer.
func (o *Ops) ask(ctx context.Context, opts AuditOptions, r *reading) (charges map[string]booking.Charge, unanswered int, err error) {
	if !opts.Gateway {
		return nil, 0, nil
	}
	if o.Gateway == nil || opts.QueriesPerSecond <= 0 {
		return nil, 0, errors.New("gateway: it was not given, or no rate to ask at")
	}
	payments := map[string]struct{}{}
	for _, rec := range r.records {
		payments[rec.PaymentID] = struct{}{}
	}
	for _, row := range r.rows {
		if row.Payment != "" {
			payments[row.Payment] = struct{}{}
		}
	}
	var mu sync.Mutex
	charges = make(map[string]booking.Charge, len(payments))
	limit := rate.NewLimiter(rate.Limit(opts.QueriesPerSecond), queryWidth)
	g, asking := errgroup.WithContext(ctx)
	g.SetLimit(queryWidth)
	for payment := range payments {
		g.Go(func() error {
			if err := limit.Wait(asking); err != nil {
				return err
			}
			charge, err := o.Gateway.Query(asking, payment)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || charge.Status == booking.ChargeUnknown {
				unanswered++
				return asking.Err()
			}
			charges[payment] = charge
			return nil
		})
	}
	return charges, unanswered, g.Wait()
}

func (r *reading) bad(rule, key, format string, args ...any) {
	r.findings[rule+"\n"+key] = finding{rule, fmt.Sprintf(format, args...)}
}

// badSince is bad for a difference that began at that time. A time to come, but
// for what passed while all was read, is no age.
func (r *reading) badSince(since time.Time, rule, key, format string, args ...any) {
	if r.now.Sub(since).Abs() < inFlight {
		r.inFlight[rule]++
		return
	}
	r.bad(rule, key, format, args...)
}

// compare finds where the rules do not hold. asked are the rows as they were
// before the gateway was asked.
func (r *reading) compare(charges map[string]booking.Charge, asked map[string]booking.Row) {
	r.seats()
	r.oneLive()
	r.attempts()
	r.lookedAt()
	r.returned()
	r.unworked()
	if charges != nil {
		r.money(charges, asked)
	}
	if r.queue.Dead > 0 {
		r.bad(RuleQueue, "dead", "%d dead letters: each may be a seat without its record", r.queue.Dead)
	}
	if r.queue.OldestAge > inFlight {
		r.bad(RuleQueue, "old", "the oldest message is %s old: the worker does not write", r.queue.OldestAge.Round(time.Second))
	}
	r.published()
}

// seats compares rows, counters and caps.
func (r *reading) seats() {
	byLevel := map[string]int{}
	for _, row := range r.rows {
		byLevel[row.Level]++
	}
	if r.counted.Total != r.rowsN {
		r.bad(RuleCounters, fmt.Sprintf("total %+d", r.counted.Total-r.rowsN), "all levels: the counter says %s, there are %d rows", number(r.counted.Total), r.rowsN)
	}
	if n := max(r.rowsN, r.counted.Total); n > r.counted.Cap {
		r.bad(RuleCaps, "total", "all levels: %d seats, the cap is %d", n, r.counted.Cap)
	}
	for _, l := range r.counted.Levels {
		n := byLevel[l.ID]
		delete(byLevel, l.ID)
		if l.Admitted != n {
			r.bad(RuleCounters, fmt.Sprintf("%s %+d", l.ID, l.Admitted-n), "level %s: the counter says %s, there are %d rows", l.ID, number(l.Admitted), n)
		}
		if most := max(n, l.Admitted); most > l.Cap {
			r.bad(RuleCaps, l.ID, "level %s: %d seats, the cap is %d", l.ID, most, l.Cap)
		}
	}
	for level, n := range byLevel {
		r.bad(RuleCaps, level, "level %q: %d seats, and it is not sold", level, n)
	}
}

// number writes a counter; -1 is one that is missing or not a number.
func number(n int) string {
	if n < 0 {
		return "nothing that is a number"
	}
	return fmt.Sprint(n)
}

func live(rec booking.Record) bool { return rec.State != booking.StateReleased }

func (r *reading) oneLive() {
	by := map[string][]booking.Record{}
	for _, rec := range r.records {
		if live(rec) {
			by[rec.CandidateHash] = append(by[rec.CandidateHash], rec)
		}
	}
	r.live = len(by)
	for hash, recs := range by {
		if len(recs) < 2 {
			continue
		}
		var names []string
		var since time.Time
		for _, rec := range recs {
			names = append(names, fmt.Sprintf("%s %s", rec.State, rec.Attempt))
			if rec.AdmittedAt.After(since) {
				since = rec.AdmittedAt
			}
		}
		slices.Sort(names)
		r.badSince(since, RuleOneLive, hash, "%s has %d live records: %s", recs[0].Code, len(recs), strings.Join(names, ", "))
	}
}

// attempts holds records and rows against each other.
func (r *reading) attempts() {
	records := make(map[string]booking.Record, len(r.records))
	for _, rec := range r.records {
		records[rec.Attempt] = rec
		row := r.rows[rec.Code]
		owns := row.Attempt == rec.Attempt
		if owns {
			r.sameOrder(rec, row)
		}
		switch {
		case rec.State == booking.StatePaid && (!owns || row.Phase != booking.PhasePaid || row.Payment != rec.PaymentID || row.Transaction != rec.Transaction):
			r.bad(RulePaid, rec.Attempt, "record %s of %s is PAID by %s, and its row is %s", rec.Attempt, rec.Code, rec.Transaction, describe(row, owns))
		case rec.State == booking.StateHeld && !owns:
			since := rec.AdmittedAt
			if !r.now.Before(rec.Deadline) {
				since = rec.Deadline // a row goes no sooner, its record a moment later
			}
			r.badSince(since, RuleRecords, rec.Attempt, "record %s of %s is HELD, and its attempt owns no row", rec.Attempt, rec.Code)
		case rec.State == booking.StateHeld && row.Phase == booking.PhaseRefused && row.Released:
			r.bad(RuleRecords, rec.Attempt, "record %s of %s is HELD, and its refused row says that it is ended", rec.Attempt, rec.Code)
		case rec.State == booking.StateReleased && owns && row.Phase != booking.PhaseRefused && row.Phase != booking.PhasePaid:
			r.bad(RuleRecords, rec.Attempt, "record %s of %s is RELEASED, and its row is %s", rec.Attempt, rec.Code, row.Phase)
		}
	}
	for code, row := range r.rows {
		if row.Payment == "" {
			continue // its record is yet to come
		}
		rec, there := records[row.Attempt]
		if rec.Code != code {
			rec, there = booking.Record{}, false
		}
		switch {
		case row.Phase == booking.PhasePaid && rec.State != booking.StatePaid:
			r.badSince(time.UnixMilli(row.PaidAt), RulePaid, row.Attempt, "row %s of %s is paid by %s, and its record is %q", row.Attempt, code, row.Transaction, rec.State)
		case !there:
			r.badSince(time.UnixMilli(row.AdmittedAt), RuleRecords, row.Attempt, "row %s of %s is %s, and has no record", row.Attempt, code, row.Phase)
		case row.MailDone && rec.Mail != booking.MailSent:
			r.bad(RuleLookedAt, row.Attempt+" mail", "row %s of %s says that its mail is sent, and its record says %q: nobody will send it", row.Attempt, code, rec.Mail)
		}
	}
}

// sameOrder compares what row and record of one attempt both know. Of it only the
// deadline changes, to a later one, in the row first; and an attempt whose late
// money got it a seat after all is admitted anew, paid at once.
func (r *reading) sameOrder(rec booking.Record, row booking.Row) {
	var wrong differences
	differ(&wrong, "level", rec.Level, row.Level)
	differ(&wrong, "amount", rec.Amount, row.Amount)
	differ(&wrong, "currency", rec.Currency, row.Currency)
	differ(&wrong, "payment", rec.PaymentID, row.Payment)
	anew := row.Phase == booking.PhasePaid && row.AdmittedAt == row.PaidAt && row.Deadline == row.PaidAt
	if !anew || row.AdmittedAt < rec.AdmittedAt.UnixMilli() {
		differ(&wrong, "admitted", inMillis(rec.AdmittedAt), inMillis(time.UnixMilli(row.AdmittedAt)))
	}
	if !anew && row.Deadline < rec.Deadline.UnixMilli() {
		differ(&wrong, "deadline", inMillis(rec.Deadline), inMillis(time.UnixMilli(row.Deadline)))
	}
	if len(wrong) > 0 {
		r.bad(RuleRecords, rec.Attempt+" order", "record %s of %s is not what its row says: %s", rec.Attempt, rec.Code, strings.Join(wrong, "; "))
	}
}

func inMillis(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// differences say what is not the same in two places.
type differences []string

func differ[T comparable](d *differences, what string, says, is T) {
	if says != is {
		*d = append(*d, fmt.Sprintf("%s: %v, the ledger says %v", what, says, is))
	}
}

func describe(row booking.Row, owns bool) string {
	switch {
	case row.Attempt == "":
		return "not there"
	case !owns:
		return "another attempt's, " + row.Attempt
	case row.Phase == booking.PhasePaid:
		return "paid by " + row.Transaction
	}
	return string(row.Phase)
}

func (r *reading) lookedAt() {
	for code, row := range r.rows {
		at, looked := r.looks[code]
		if looked {
			r.looked++
		}
		if row.Phase == booking.PhasePaid && row.RecordDone && row.MailDone {
			continue // finished
		}
		missed := ""
		switch {
		case !looked:
			r.never++
			missed = "nobody will look at it"
		case r.now.Sub(at) > inFlight:
			r.overdue[row.Phase]++
			missed = fmt.Sprintf("its look is %s late", r.now.Sub(at).Round(time.Second))
		case at.After(r.latestLook(row)):
			r.far++
			missed = "nobody will look at it before " + at.UTC().Format(time.RFC3339)
		case r.now.After(at):
			r.inFlight[RuleLookedAt]++
		}
		if missed != "" {
			r.bad(RuleLookedAt, row.Attempt, "row %s of %s is %s, and %s", row.Attempt, code, row.Phase, missed)
		}
		if !row.InDoubt() {
			continue
		}
		r.doubts++
		if row.ForAPerson() {
			r.called++
		}
		if missed != "" {
			r.forgotten++
			r.bad(RuleDoubt, row.Attempt, "row %s of %s is in doubt after %d extensions, and %s", row.Attempt, code, row.Looks, missed)
		}
	}
	if r.looksN != r.looked {
		r.bad(RuleLookedAt, fmt.Sprintf("codes %+d", r.looksN-r.looked), "%d codes will be looked at, %d of them have a row", r.looksN, r.looked)
	}
}

// latestLook is the latest that anyone may look at an unfinished row: within the
// longest that a look is put off, from now or, where the end of the time to pay
// is waited for, from then. Neither a row's deadline nor the end of its execute
// call puts that off beyond what its admission gave it.
func (r *reading) latestLook(row booking.Row) time.Time {
	from := r.now
	if row.Phase == booking.PhaseHeld || row.Phase == booking.PhaseRefused {
		deadline := time.UnixMilli(min(row.Deadline, row.AdmittedAt+row.Hold))
		if deadline.After(from) {
			from = deadline
		}
	}
	return from.Add(lookAgain + inFlight) // now is a while ago
}

// published compares status.json with the ledger's figures.
func (r *reading) published() {
	if errors.Is(r.statusErr, booking.ErrNotFound) {
		r.bad(RuleStatus, "none", "there is no status.json")
	}
	if errors.Is(r.statusErr, booking.ErrUnreadable) {
		r.bad(RuleStatus, "unreadable", "%v", r.statusErr)
	}
	if r.status == nil {
		return
	}
	doc, f := r.status, r.figures
	left := func(limit, admitted int) int {
		if admitted < 0 {
			return 0 // a damaged counter closes its level
		}
		return max(0, limit-admitted)
	}
	total := left(f.Cap, f.Total)
	var wrong differences
	differ(&wrong, "open", doc.Open, f.Open)
	differ(&wrong, "cap", doc.Total.Cap, f.Cap)
	differ(&wrong, "left", doc.Total.Left, total)
	differ(&wrong, "levels", len(doc.Levels), len(f.Levels))
	for i := range min(len(doc.Levels), len(f.Levels)) {
		d, l := doc.Levels[i], f.Levels[i]
		differ(&wrong, fmt.Sprintf("level %d", i+1), d.ID, l.ID)
		differ(&wrong, l.ID+" cap", d.Cap, l.Cap)
		differ(&wrong, l.ID+" left", d.Left, min(left(l.Cap, l.Admitted), total))
	}
	if len(wrong) > 0 {
		r.bad(RuleStatus, fmt.Sprint(doc.Version), "version %d of %s is stale: %s", doc.Version, doc.UpdatedAt.UTC().Format(time.RFC3339), strings.Join(wrong, "; "))
	}
}

// report tells what stayed.
func (r *reading) report(opts AuditOptions, stays map[string]finding, unanswered int) Report {
	out := Report{At: r.now.UTC(), Sale: r.sale.Name, Epoch: r.epoch, Open: r.figures.Open}
	broken := map[string][]string{}
	for _, f := range stays {
		broken[f.rule] = append(broken[f.rule], f.text)
	}
	statusSeen := r.statusErr == nil || errors.Is(r.statusErr, booking.ErrNotFound) || errors.Is(r.statusErr, booking.ErrUnreadable)
	for _, rule := range rules {
		list := broken[rule.code]
		slices.Sort(list)
		v := VerdictHolds
		switch {
		case len(list) > 0:
			v = VerdictBroken
		case (rule.code == RuleMoney && !opts.Gateway) || (rule.code == RuleStatus && opts.Status == nil):
			v = VerdictNotAsked
		case (rule.code == RuleMoney && unanswered > 0) || (rule.code == RuleStatus && !statusSeen):
			v = VerdictNotSeen
		}
		out.Rules = append(out.Rules, Rule{
			Code: rule.code, Text: rule.text, Verdict: v, Figure: r.figure(rule.code, opts, unanswered),
			Broken: list[:min(len(list), tellMost)], Count: len(list), InFlight: r.inFlight[rule.code],
		})
	}
	say := func(format string, args ...any) { out.NotSeen = append(out.NotSeen, fmt.Sprintf(format, args...)) }
	if !opts.Gateway {
		say("gateway: not asked whether money moved")
	} else if unanswered > 0 {
		say("gateway: no clear answer about %d payments", unanswered)
	}
	switch {
	case opts.Status == nil:
		say("status.json: not given")
	case !statusSeen:
		say("status.json: %v", r.statusErr)
	}
	if r.others > 0 {
		say("%d records of other sales", r.others)
	}
	say("back office: its table is not compared")
	return out
}

// perLevel writes two numbers of the whole sale and of each level.
func (r *reading) perLevel(a, b int, of func(l booking.LevelFigures, rows int) (a, b int)) string {
	byLevel := map[string]int{}
	for _, row := range r.rows {
		byLevel[row.Level]++
	}
	parts := []string{fmt.Sprintf("all %d/%d", a, b)}
	for _, l := range r.counted.Levels {
		a, b := of(l, byLevel[l.ID])
		parts = append(parts, fmt.Sprintf("%s %d/%d", l.ID, a, b))
	}
	return strings.Join(parts, ", ")
}

// figure is the number behind a rule.
func (r *reading) figure(rule string, opts AuditOptions, unanswered int) string {
	switch rule {
	case RuleEpoch:
		if r.mark.Epoch == "" {
			return fmt.Sprintf("ledger %s, no sale was reset", r.epoch)
		}
		return fmt.Sprintf("ledger %s, begun last %s", r.epoch, r.mark.Epoch)
	case RuleCaps:
		return "rows/cap " + r.perLevel(r.rowsN, r.counted.Cap, func(l booking.LevelFigures, rows int) (int, int) { return rows, l.Cap })
	case RuleCounters:
		return "counter/rows " + r.perLevel(r.counted.Total, r.rowsN, func(l booking.LevelFigures, rows int) (int, int) { return l.Admitted, rows })
	case RuleOneLive:
		return fmt.Sprintf("%d candidates with a live record", r.live)
	case RuleRecords:
		held, withPayment := 0, 0
		for _, rec := range r.records {
			if rec.State == booking.StateHeld {
				held++
			}
		}
		for _, row := range r.rows {
			if row.Payment != "" && row.Phase != booking.PhaseRefused && row.Phase != booking.PhasePaid {
				withPayment++
			}
		}
		return fmt.Sprintf("%d held records, %d rows that wait for money", held, withPayment)
	case RulePaid:
		records, rows := 0, 0
		for _, rec := range r.records {
			if rec.State == booking.StatePaid {
				records++
			}
		}
		for _, row := range r.rows {
			if row.Phase == booking.PhasePaid {
				rows++
			}
		}
		return fmt.Sprintf("%d paid records, %d paid rows", records, rows)
	case RuleLookedAt:
		late := []string{"none late"}
		if len(r.overdue) > 0 {
			late = nil
			for _, p := range slices.Sorted(maps.Keys(r.overdue)) {
				late = append(late, fmt.Sprintf("%s %d late", p, r.overdue[p]))
			}
		}
		if r.far > 0 {
			late = append(late, fmt.Sprintf("%d later than may be", r.far))
		}
		if r.never > 0 {
			late = append(late, fmt.Sprintf("%d unfinished and never looked at", r.never))
		}
		return fmt.Sprintf("%d to be looked at, %s", r.looksN, strings.Join(late, ", "))
	case RuleDoubt:
		return fmt.Sprintf("%d seats in doubt, %d of them after more than %d extensions, %d not asked about in time", r.doubts, r.called, booking.DoubtLooks, r.forgotten)
	case RuleMoney:
		asked := "the gateway was not asked"
		if opts.Gateway {
			asked = fmt.Sprintf("%d payments asked about, %d completed, %d without a clear answer", r.answered+unanswered, r.completed, unanswered)
		}
		return asked + "; refunds " + r.refundFigure()
	case RuleSignals:
		return r.signalFigure()
	case RuleQueue:
		return fmt.Sprintf("%d waiting, %d in flight, %d dead, oldest %s", r.queue.Waiting, r.queue.InFlight, r.queue.Dead, r.queue.OldestAge.Round(time.Second))
	case RuleStatus:
		if r.status == nil {
			return "not read"
		}
		return fmt.Sprintf("version %d, %d left", r.status.Version, r.status.Total.Left)
	case RuleUnreadable:
		return fmt.Sprintf("%d rows, %d records, %d refunds, %d open notifications read", len(r.rows), len(r.records)+r.others, len(r.refunds), len(r.signals))
	}
	return ""
}
