package saleops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
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

// The verdicts.
const (
	VerdictHolds   Verdict = "holds"
	VerdictBroken  Verdict = "BROKEN"
	VerdictNotSeen Verdict = "not seen"
)

// The codes of the rules; they never change.
const (
	RuleCaps       = "caps"
	RuleCounters   = "counters"
	RuleOneLive    = "one-live-booking"
	RuleRecords    = "records-and-rows"
	RulePaid       = "paid-records"
	RuleLookedAt   = "looked-at"
	RuleDoubt      = "doubt"
	RuleMoney      = "money"
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
	// Broken says where; the first few of them. Count is how many there are.
	Broken []string `json:"broken,omitempty"`
	Count  int      `json:"count"`
	// InFlight counts differences that are younger than two minutes, or were gone
	// when looked at again.
	InFlight int `json:"in_flight"`
}

// Report is an audit.
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
func (r Report) Broken() bool {
	return slices.ContainsFunc(r.Rules, func(r Rule) bool { return r.Verdict == VerdictBroken })
}

const (
	// inFlight is the age below which a difference may be something on its way.
	inFlight = 2 * time.Minute
	// A difference counts when every reading shows it. They are as far apart as a
	// status.json may be behind.
	auditReadings = 3
	auditPause    = 3 * time.Second
	// tellMost is how many places of one rule are told.
	tellMost = 20
)

// rules in the order they are told.
var rules = []struct{ code, text string }{
	{RuleCaps, "no more seats than a cap"},
	{RuleCounters, "counters are what the rows add up to"},
	{RuleOneLive, "one live booking a candidate"},
	{RuleRecords, "records and rows name the same attempts"},
	{RulePaid, "a record is PAID if and only if its row is paid"},
	{RuleLookedAt, "every unfinished row is looked at, and none late"},
	{RuleDoubt, "a seat in doubt is kept"},
	{RuleMoney, "money moved if and only if the seat is paid"},
	{RuleQueue, "no message is stuck or dead"},
	{RuleStatus, "status.json says what the ledger says"},
	{RuleUnreadable, "every row and record can be read"},
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
	epoch         string
	sale          booking.Sale
	figures       booking.Figures
	counted       booking.Figures // with rowsN and looksN of one moment
	rowsN, looksN int
	queue         booking.QueueStats
	rows          map[string]booking.Row // by code
	looks         map[string]time.Time   // by code
	records       []booking.Record       // of the running sale
	others        int                    // records of other sales
	status        *statusDocument
	statusErr     error

	// What comparing found.
	findings         map[string]finding
	inFlight         map[string]int // by rule
	overdue          map[booking.Phase]int
	live             int // candidates with a live record
	doubts, looked   int // rows
	asked, completed int // payments
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
// written after its row is paid, and that row stays so.
func (o *Ops) read(ctx context.Context, opts AuditOptions) (*reading, error) {
	r := &reading{
		rows: map[string]booking.Row{}, looks: map[string]time.Time{},
		findings: map[string]finding{}, inFlight: map[string]int{}, overdue: map[booking.Phase]int{},
	}
	var err error
	if r.epoch, err = o.Ledger.Epoch(ctx); err != nil {
		return nil, err
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
			r.bad(RuleUnreadable, "record "+rec.Attempt, "%v", err)
		case err != nil:
			return nil, err
		case rec.Epoch != r.epoch:
			r.others++
		default:
			r.records = append(r.records, rec)
		}
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
			r.bad(RuleUnreadable, "row "+pseudonym(d.Code), "row of candidate %s: %v", pseudonym(d.Code), d.Err)
			continue
		}
		r.rows[d.Code] = d.Row
		if page = append(page, d.Code); len(page) == chunk {
			if err := look(); err != nil {
				return err
			}
		}
	}
	return look()
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

// pseudonym names a candidate without giving the code away.
func pseudonym(code string) string { return booking.CandidateHash(code)[:8] }

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

// badSince is bad for a difference that began at that time.
func (r *reading) badSince(since time.Time, rule, key, format string, args ...any) {
	if r.now.Sub(since) < inFlight {
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
		r.badSince(since, RuleOneLive, hash, "candidate %.8s has %d: %s", hash, len(recs), strings.Join(names, ", "))
	}
}

// attempts holds records and rows against each other.
func (r *reading) attempts() {
	records := make(map[string]booking.Record, len(r.records))
	for _, rec := range r.records {
		records[rec.Attempt] = rec
		row := r.rows[rec.Code]
		owns := row.Attempt == rec.Attempt
		switch {
		case rec.State == booking.StatePaid && (!owns || row.Phase != booking.PhasePaid || row.Payment != rec.PaymentID || row.Transaction != rec.Transaction):
			r.bad(RulePaid, rec.Attempt, "record %s is PAID by %s, and its row is %s", rec.Attempt, rec.Transaction, describe(row, owns))
		case rec.State == booking.StateHeld && !owns:
			since := rec.AdmittedAt
			if !r.now.Before(rec.Deadline) {
				since = rec.Deadline // a row goes no sooner, its record a moment later
			}
			r.badSince(since, RuleRecords, rec.Attempt, "record %s is HELD, and its attempt owns no row", rec.Attempt)
		case rec.State == booking.StateReleased && owns && row.Phase != booking.PhaseRefused && row.Phase != booking.PhaseNew && row.Phase != booking.PhasePaid:
			r.bad(RuleRecords, rec.Attempt, "record %s is RELEASED, and its row is %s", rec.Attempt, row.Phase)
		}
	}
	for code, row := range r.rows {
		if row.Payment == "" || row.Phase == booking.PhaseRefused {
			continue
		}
		rec, there := records[row.Attempt]
		switch {
		case row.Phase == booking.PhasePaid && rec.State != booking.StatePaid:
			r.badSince(time.UnixMilli(row.PaidAt), RulePaid, row.Attempt, "row %s is paid by %s, and its record is %q", row.Attempt, row.Transaction, rec.State)
		case !there:
			r.badSince(time.UnixMilli(row.AdmittedAt), RuleRecords, row.Attempt, "row %s of candidate %s is %s, and has no record", row.Attempt, pseudonym(code), row.Phase)
		}
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
		finished := row.Phase == booking.PhasePaid && row.RecordDone && row.MailDone
		if row.Looks > 0 || row.Doubt {
			r.doubts++
		}
		switch {
		case finished:
		case !looked:
			r.bad(RuleLookedAt, row.Attempt, "row %s is %s, and nobody will look at it", row.Attempt, row.Phase)
		case r.now.Sub(at) > inFlight:
			r.overdue[row.Phase]++
			r.bad(RuleLookedAt, row.Attempt, "row %s is %s, and its look is %s late", row.Attempt, row.Phase, r.now.Sub(at).Round(time.Second))
		case r.now.After(at):
			r.inFlight[RuleLookedAt]++
		}
		if looked {
			r.looked++
		}
	}
	if r.looksN != r.looked {
		r.bad(RuleLookedAt, fmt.Sprintf("codes %+d", r.looksN-r.looked), "%d codes will be looked at, %d of them have a row", r.looksN, r.looked)
	}
}

// money holds the gateway's word against the seats.
func (r *reading) money(charges map[string]booking.Charge, asked map[string]booking.Row) {
	ordered := map[string]booking.Record{}
	for _, rec := range r.records {
		ordered[rec.PaymentID] = rec
	}
	for code, row := range r.rows {
		if _, there := ordered[row.Payment]; !there && row.Payment != "" {
			ordered[row.Payment] = row.HeldRecord(code, "", "")
		}
	}
	r.asked = len(charges)
	for payment, charge := range charges {
		if charge.Status == booking.ChargeCompleted {
			r.completed++
		}
		rec, known := ordered[payment]
		if !known {
			continue // gone since: its attempt is told elsewhere if that was wrong
		}
		row := r.rows[rec.Code]
		owns := row.Attempt == rec.Attempt && row.Payment == payment
		if charge.Status != booking.ChargeCompleted {
			was := asked[rec.Code]
			if owns && row.Phase == booking.PhasePaid && was.Attempt == rec.Attempt && was.Phase == booking.PhasePaid {
				r.bad(RuleMoney, payment, "row %s is paid, and the gateway says that payment %s is %s", row.Attempt, payment, charge.Status)
			}
			continue
		}
		switch err := charge.Check(rec); {
		case err != nil:
			r.bad(RuleMoney, payment, "%v", err)
		case owns && row.Phase == booking.PhasePaid && row.Transaction == charge.Transaction:
		case owns && row.Phase != booking.PhasePaid:
			r.inFlight[RuleMoney]++ // the reconciler asks at the row's next look
		default:
			r.bad(RuleMoney, payment, "payment %s is completed by %s for attempt %s, and its row is %s", payment, charge.Transaction, rec.Attempt, describe(row, row.Attempt == rec.Attempt))
		}
	}
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
	var wrong []string
	differ := func(what string, says, is any) {
		if says != is {
			wrong = append(wrong, fmt.Sprintf("%s: %v, the ledger says %v", what, says, is))
		}
	}
	differ("open", doc.Open, f.Open)
	differ("cap", doc.Total.Cap, f.Cap)
	differ("left", doc.Total.Left, total)
	differ("levels", len(doc.Levels), len(f.Levels))
	for i := range min(len(doc.Levels), len(f.Levels)) {
		d, l := doc.Levels[i], f.Levels[i]
		differ(fmt.Sprintf("level %d", i+1), d.ID, l.ID)
		differ(l.ID+" cap", d.Cap, l.Cap)
		differ(l.ID+" left", d.Left, min(left(l.Cap, l.Admitted), total))
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
	statusSeen := opts.Status != nil && (r.statusErr == nil || errors.Is(r.statusErr, booking.ErrNotFound) || errors.Is(r.statusErr, booking.ErrUnreadable))
	for _, rule := range rules {
		list := broken[rule.code]
		slices.Sort(list)
		v := VerdictHolds
		if len(list) > 0 {
			v = VerdictBroken
		} else if (rule.code == RuleMoney && !opts.Gateway) || (rule.code == RuleStatus && !statusSeen) {
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
		late := 0
		var phases []string
		for _, p := range booking.Phases() {
			if n := r.overdue[p]; n > 0 {
				late += n
				phases = append(phases, fmt.Sprintf("%s %d", p, n))
			}
		}
		if late > 0 {
			return fmt.Sprintf("%d to be looked at, late: %s", r.looksN, strings.Join(phases, ", "))
		}
		return fmt.Sprintf("%d to be looked at, none late", r.looksN)
	case RuleDoubt:
		return fmt.Sprintf("%d seats in doubt", r.doubts)
	case RuleMoney:
		if !opts.Gateway {
			return "the gateway was not asked"
		}
		return fmt.Sprintf("%d payments asked about, %d completed, %d without a clear answer", r.asked, r.completed, unanswered)
	case RuleQueue:
		return fmt.Sprintf("%d waiting, %d in flight, %d dead, oldest %s", r.queue.Waiting, r.queue.InFlight, r.queue.Dead, r.queue.OldestAge.Round(time.Second))
	case RuleStatus:
		if r.status == nil {
			return "not read"
		}
		return fmt.Sprintf("version %d, %d left", r.status.Version, r.status.Total.Left)
	case RuleUnreadable:
		return fmt.Sprintf("%d rows, %d records read", len(r.rows), len(r.records)+r.others)
	}
	return ""
}
