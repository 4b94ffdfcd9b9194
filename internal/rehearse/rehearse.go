// Package rehearse is the launch drill: a sale from its beginning to its audit, at full
// rate, by the operator's own commands, with a crowd that does what people do, and a
// report of what happened. Alone it starts a deployment of its own: a Redis pair, the
// mock gateway, the API and the worker as processes; with a target it drives one that is
// there, if its gateway is the mock.
//
// Fail mode: a rule that was not seen to hold is broken. What could not be run at all is
// an error and no report. A deployment of its own is ended whatever happens, and its logs
// are kept when a rule is broken. Clock: the machine's, and monotonic where a time is
// measured.
package rehearse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/examples"
	"holdfast/internal/booking"
	"holdfast/internal/salefile"
	"holdfast/internal/saleops"
)

const (
	sampleEvery = time.Second
	// drainWithin is how long the last holds, payments and records may take after the
	// last person has left.
	drainWithin = 3 * time.Minute
	reason      = "rehearsal"
	// auditRate is questions a second: the mock has nobody else to answer by then.
	auditRate = "5000"
)

// The verdicts of a Report.
const (
	VerdictHolds  = "holds"
	VerdictBroken = "broken"
)

// The bounds of a rehearsal beside the contract's rules.
const (
	rejectionsWithin = 10.0 // ms, p50
	queueYoungerThan = 4.0  // s
)

// Run is the rehearsal. The report says whether every rule holds; an error means that it
// could not be run to its end, and the report has no verdict, or, where it has one, that
// the deployment was not left as it should be.
func Run(ctx context.Context, o Options) (_ Report, err error) {
	o = o.Complete()
	sale, err := saleOf(o)
	if err != nil {
		return Report{}, err
	}
	crowd := NewCrowd(o, sale)
	d := &drill{Options: o, sale: sale, crowd: crowd, began: time.Now()}
	if err := d.reach(ctx); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, d.on.Close()) }()
	r, err := d.run(ctx)
	if err != nil {
		if left := d.on.left(ctx); left != "" {
			err = fmt.Errorf("%w; %s", err, left)
		}
	}
	return r, err
}

// deployment is what the day's script needs of the one that it runs on: a Stage of its
// own, or a target that is there.
type deployment interface {
	// earlier tells of an earlier rehearsal whose sale is in force, and how many of its
	// seats are paid, which a new beginning forgets.
	earlier() (paid int, was bool)
	Ctl(ctx context.Context, stdin string, args ...string) (stdout, stderr []byte, code int)
	// prove is nil once the address that the crowd goes to has shown what Ctl has done.
	prove(ctx context.Context) error
	Sample(ctx context.Context) (Sample, error)
	CPU() map[string]float64
	SlowGateway(ctx context.Context, p99 time.Duration) error
	Break(ctx context.Context, f Fault) (heal func(context.Context) error, err error)
	// profile writes the API's processor profile of that time from now.
	profile(ctx context.Context, lasts time.Duration, to io.Writer) error
	// left says for a person how the sale stands that a rehearsal did not bring to its
	// end, also when ctx has ended; "" when there is none any more.
	left(ctx context.Context) string
	Close() error
}

// reach starts a deployment, or looks at the target.
func (d *drill) reach(ctx context.Context) error {
	if d.Target != "" {
		t, err := openTarget(ctx, d.Options, d.sale.Name)
		if err != nil {
			return fmt.Errorf("rehearse on %s: %w; nothing was changed there", d.Target, err)
		}
		d.on, d.site, d.gateway = t, t.url, t.gateway
		return nil
	}
	s, err := StartLocal(ctx, d.Options, d.sale)
	if err != nil {
		return fmt.Errorf("start the deployment: %w", err)
	}
	d.on, d.site, d.gateway = s, s.URL, s.Gateway
	return nil
}

// saleOf is the example sale at the rehearsal's scale.
func saleOf(o Options) (booking.Sale, error) {
	sale, err := salefile.Sale(bytes.NewReader(examples.Sale))
	if err != nil {
		return booking.Sale{}, err
	}
	scaled := func(n int) int { return max(1, int(math.Round(float64(n)*o.Scale))) }
	sale.Name, sale.Title = "rehearsal", "Rehearsal"
	sale.Cap, sale.Hold = scaled(sale.Cap), o.Hold
	for i := range sale.Levels {
		sale.Levels[i].Cap = scaled(sale.Levels[i].Cap)
	}
	return sale, nil
}

// drill is one rehearsal under way.
type drill struct {
	Options
	sale  booking.Sale
	crowd *Crowd
	began time.Time

	on            deployment
	site, gateway string // scheme and host
	epoch         string // of the sale

	mu      sync.Mutex
	broken  int // faults that have happened
	marks   []Mark
	samples map[int]Sample
}

func (d *drill) mark(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := time.Since(d.began).Seconds()
	d.marks = append(d.marks, Mark{At: at, What: what})
	fmt.Fprintf(d.Log, "%6.1f s  %s\n", at, what)
}

// command runs one of the operator's, and wants it done.
func (d *drill) command(ctx context.Context, args ...string) ([]byte, error) {
	return command(ctx, d.on, args...)
}

func command(ctx context.Context, on deployment, args ...string) ([]byte, error) {
	out, said, code := on.Ctl(ctx, "", args...)
	if code != 0 {
		return out, fmt.Errorf("seatctl %s: exit status %d: %s", strings.Join(args, " "), code, bytes.TrimSpace(said))
	}
	return out, nil
}

func (d *drill) run(ctx context.Context) (Report, error) {
	if err := d.prepare(ctx); err != nil {
		return Report{}, err
	}
	d.slow(ctx, d.RushLatency)
	m := NewMeasure(d.began)
	sampling, endSampling := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { d.watch(sampling) })
	defer func() { endSampling(); watching.Wait() }()

	if _, err := d.command(ctx, "open", "--yes"); err != nil {
		return Report{}, err
	}
	d.mark("open")
	opened := time.Now()
	breaking, endFaults := context.WithCancel(ctx)
	broken := make(chan error, 1)
	go func() { broken <- d.breakThings(breaking, opened) }()
	var calming sync.WaitGroup
	calming.Go(func() { d.calm(breaking, opened.Add(d.For)) })
	if d.Profile != nil {
		calming.Go(func() {
			if err := d.on.profile(breaking, d.For, d.Profile); err != nil && breaking.Err() == nil {
				d.mark(fmt.Sprintf("no profile: %v", err))
			}
		})
	}
	err := d.crowd.Drive(ctx, d.site, d.gateway, opened, m)
	endFaults()
	calming.Wait()
	if err = errors.Join(err, <-broken); err != nil {
		return Report{}, err
	}
	d.mark("the last person has left")
	if _, err := d.command(ctx, "close", "--reason", reason); err != nil {
		return Report{}, err
	}
	d.mark("closed")
	if err := d.drain(ctx); err != nil {
		return Report{}, err
	}
	d.mark("drained")
	// The audit asks about every payment; how slow the gateway is has been seen.
	d.slow(ctx, 0)
	endSampling()
	watching.Wait()
	return d.report(ctx, m)
}

// prepare is the day before: the sale, a new beginning, the list.
func (d *drill) prepare(ctx context.Context) error {
	saleFile, list := filepath.Join(d.Dir, "sale.yaml"), filepath.Join(d.Dir, "candidates.csv")
	if err := errors.Join(os.WriteFile(saleFile, saleYAML(d.sale), 0o600), writeList(list, d.crowd.Candidates())); err != nil {
		return fmt.Errorf("files of the rehearsal: %w", err)
	}
	apply := []string{"sale", "apply", saleFile, "--yes", "--reason", reason}
	anew := []string{"reset", "--reason", reason, "--confirm", d.sale.Name}
	load := []string{"candidates", "load", list, "--yes", "--reason", reason}
	day := [][]string{apply, anew, load}
	if paid, was := d.on.earlier(); was {
		if paid > 0 {
			anew = append(anew, "--with-paid", fmt.Sprintf("%s %d", d.sale.Name, paid))
		}
		// Its seats first: they could be more than this one has. Its list is a rehearsal's.
		day = [][]string{anew, apply, append(load, "--allow-removals")}
	}
	for _, args := range day {
		if _, err := d.command(ctx, args...); err != nil {
			return err
		}
		flags := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
		d.mark(strings.Join(args[:min(2, flags)], " "))
	}
	shown, err := d.command(ctx, "sale", "show", "--json")
	if err != nil {
		return err
	}
	var in struct {
		Epoch string `json:"epoch"`
	}
	if err := json.Unmarshal(shown, &in); err != nil || in.Epoch == "" {
		return fmt.Errorf("sale show: no epoch in %q: %w", shown, err)
	}
	d.epoch = in.Epoch
	return d.on.prove(ctx)
}

func saleYAML(s booking.Sale) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "name: %s\ntitle: %q\ncurrency: %s\ncap: %d\nhold: %s\nlevels:\n", s.Name, s.Title, s.Currency, s.Cap, s.Hold)
	for _, l := range s.Levels {
		fmt.Fprintf(&b, "  - {id: %s, name: %q, cap: %d, fee: %q}\n", l.ID, l.Name, l.Cap, l.Fee)
	}
	return b.Bytes()
}

func writeList(path string, list []booking.Candidate) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write([]string{"code", "email"})
	for _, c := range list {
		_ = w.Write([]string{c.Code, c.Email}) // into memory
	}
	w.Flush()
	return os.WriteFile(path, b.Bytes(), 0o600)
}

// watch samples once a second until ctx ends. What cannot be sampled is a gap.
func (d *drill) watch(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, err := d.on.Sample(ctx)
		if err != nil {
			continue
		}
		d.mu.Lock()
		if d.samples == nil {
			d.samples = map[int]Sample{}
		}
		d.samples[int(time.Since(d.began).Seconds())] = s
		d.mu.Unlock()
	}
}

// breakThings has the faults happen one after the other, the first after a third of the
// rush.
func (d *drill) breakThings(ctx context.Context, opened time.Time) error {
	at := opened.Add(d.For / 3)
	for _, f := range d.Faults {
		if !until(ctx, at) {
			return nil
		}
		d.mark(string(f) + " breaks")
		heal, err := d.on.Break(ctx, f)
		if err != nil {
			return fmt.Errorf("break %s: %w", f, err)
		}
		d.mu.Lock()
		d.broken++
		d.mu.Unlock()
		until(ctx, time.Now().Add(f.lasts()))
		// Healed also when the rehearsal is over: what follows needs it whole.
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		err = heal(whole)
		cancel()
		if err != nil {
			return fmt.Errorf("heal %s: %w", f, err)
		}
		d.mark(string(f) + " is whole again")
		at = time.Now().Add(10 * time.Second)
	}
	return nil
}

// calm ends the rush at the gateway too.
func (d *drill) calm(ctx context.Context, at time.Time) {
	if !until(ctx, at) {
		return
	}
	d.slow(ctx, d.TailLatency)
	d.mark("the rush is over")
}

// slow has the gateway answer that slowly; of one that does not take it the report says
// so.
func (d *drill) slow(ctx context.Context, p99 time.Duration) {
	if err := d.on.SlowGateway(ctx, p99); err != nil && ctx.Err() == nil {
		d.mark(fmt.Sprintf("the gateway stays as slow as it is: %v", err))
	}
}

// lasts is how long it stays broken.
func (f Fault) lasts() time.Duration {
	switch f {
	case FaultAPI, FaultWorker, FaultRedis:
		return 2 * time.Second
	}
	return 30 * time.Second
}

// until waits for a time; false when ctx ends first.
func until(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// drain waits until every seat is paid or given back and the queue is empty.
func (d *drill) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	for {
		s, err := d.on.Sample(ctx)
		open := 0
		for phase, n := range s.Phases {
			if phase != string(booking.PhasePaid) {
				open += n
			}
		}
		if err == nil && open == 0 && s.QueueDepth == 0 {
			return nil
		}
		if !until(ctx, time.Now().Add(sampleEvery)) {
			d.mark(fmt.Sprintf("not drained: %d seats open, %d messages", open, s.QueueDepth))
			return ctx.Err()
		}
	}
}

func (d *drill) report(ctx context.Context, m *Measure) (Report, error) {
	r := Report{
		Seed: d.Seed, Scale: d.Scale, Hold: d.Hold, For: d.For, Latency: d.RushLatency, Target: cmp.Or(d.Target, "local"), Candidates: d.Candidates,
		RateTarget: d.Rate, Cap: d.sale.Cap, Began: d.began.UTC(),
		Machine: fmt.Sprintf("%d cores, %s, %s/%s", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH),
	}
	for _, f := range d.Faults {
		r.Faults = append(r.Faults, string(f))
	}
	d.mu.Lock()
	r.Marks = slices.Clone(d.marks)
	for at, s := range d.samples {
		r.Seconds = append(r.Seconds, Second{At: at, Sample: &s})
	}
	d.mu.Unlock()
	m.Into(&r)
	r.Rejections = m.Rejections()
	late, most := m.Late()
	r.SentLate, r.SentLateMost = late, float64(most)/float64(time.Millisecond)
	r.CPU = d.on.CPU()
	d.look(&r)
	audit, err := d.audit(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := d.sold(ctx, &r); err != nil {
		return Report{}, err
	}
	told, err := d.told(ctx, m.Told())
	if err != nil {
		return Report{}, err
	}
	r.Rules = append(r.Rules, told)
	if n := len(d.Faults); n > 0 {
		r.Rules = append(r.Rules, Rule{"faults", "everything that was to break did", fmt.Sprintf("%d of %d", d.broken, n), d.broken == n})
	}
	judge(&r, audit)
	return r, nil
}

// look is what the samples say.
func (d *drill) look(r *Report) {
	for _, s := range r.Seconds {
		if s.Sample == nil {
			continue
		}
		r.QueueAgeMax = max(r.QueueAgeMax, s.QueueAge)
		// The counters, which are of one moment. A count of the rows takes a while, and may
		// meet a seat where it was given back and again where it was sold.
		r.Oversold = max(r.Oversold, s.Taken-d.sale.Cap)
		for _, left := range s.Left {
			r.Oversold = max(r.Oversold, -left)
		}
	}
}

// audit is the operator's own, the gateway asked too. A broken rule is part of the
// report and no error.
func (d *drill) audit(ctx context.Context) (saleops.Report, error) {
	out, said, code := d.on.Ctl(ctx, "", "audit", "--gateway", "--rate", auditRate, "--json")
	var a saleops.Report
	if err := json.Unmarshal(out, &a); err != nil || code > 1 {
		return a, fmt.Errorf("audit: exit status %d: %w: %s", code, err, bytes.TrimSpace(said))
	}
	return a, nil
}

// exported reads the booking store's records of this sale in that state, one column after
// the other for each of them.
func (d *drill) exported(ctx context.Context, state string, columns []string, each func(values []string)) error {
	out, err := d.command(ctx, "bookings", "export", "--state", state)
	if err != nil {
		return err
	}
	rows := csv.NewReader(bytes.NewReader(out))
	head, err := rows.Read()
	if err != nil {
		return fmt.Errorf("exported bookings: %w", err)
	}
	columns = append([]string{"epoch"}, columns...) // a target's store has earlier ones
	at := make([]int, len(columns))
	for i, name := range columns {
		if at[i] = slices.Index(head, name); at[i] < 0 {
			return fmt.Errorf("exported bookings: no %s in %q", name, head)
		}
	}
	values := make([]string, len(columns))
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("exported bookings: %w", err)
		}
		for i := range at {
			values[i] = row[at[i]]
		}
		if values[0] == d.epoch {
			each(values[1:])
		}
	}
}

// sold counts the paid bookings.
func (d *drill) sold(ctx context.Context, r *Report) error {
	seats, levels := map[string]int{}, map[string]int{}
	err := d.exported(ctx, "PAID", []string{"code", "level"}, func(v []string) {
		seats[v[0]]++
		levels[v[1]]++
		r.Sold++
	})
	if err != nil {
		return err
	}
	for _, n := range seats {
		if n > 1 {
			r.DoubleBooked++
		}
	}
	for _, l := range d.sale.Levels {
		r.Levels = append(r.Levels, Level{ID: l.ID, Name: l.Name, Cap: l.Cap, Sold: levels[l.ID]})
		r.Oversold = max(r.Oversold, levels[l.ID]-l.Cap)
	}
	r.Oversold = max(r.Oversold, r.Sold-r.Cap)
	return nil
}

// told looks for everybody's seat who was told of one.
func (d *drill) told(ctx context.Context, heard []Told) (Rule, error) {
	known := map[Told]bool{}
	err := d.exported(ctx, "all", []string{"payment_id", "code", "level"}, func(v []string) { known[Told{v[0], v[1], v[2]}] = true })
	var missing []Told
	for _, t := range heard {
		if !known[t] {
			missing = append(missing, t)
		}
	}
	figure := fmt.Sprintf("%d of %d", len(heard)-len(missing), len(heard))
	for _, t := range missing[:min(3, len(missing))] {
		figure += fmt.Sprintf("; not %s, %s, %s", t.PaymentID, t.Code, t.Level)
	}
	return Rule{"told", "whoever was told of a seat has its record", figure, len(missing) == 0}, err
}

// judge adds the audit's rules and the rehearsal's own, and the verdict.
func judge(r *Report, audit saleops.Report) {
	for _, a := range audit.Rules {
		r.Rules = append(r.Rules, Rule{Name: a.Code, Text: a.Text, Figure: a.Figure, Holds: a.Verdict == saleops.VerdictHolds})
		switch a.Code {
		case saleops.RuleMoney:
			r.UnaccountedPayments = a.Count
		case saleops.RuleOneLive:
			r.DoubleBooked = max(r.DoubleBooked, a.Count)
		case saleops.RuleLookedAt, saleops.RuleDoubt:
			r.Leaked += a.Count
		}
	}
	zero := func(name, text string, n int) {
		r.Rules = append(r.Rules, Rule{Name: name, Text: text, Figure: fmt.Sprint(n), Holds: n == 0})
	}
	zero("oversold", "no cap was exceeded, not for a moment", r.Oversold)
	zero("double booked", "nobody has two seats", r.DoubleBooked)
	zero("leaked", "every seat ended paid or released", r.Leaked)
	zero("unaccounted payments", "money that moved is a seat or a refund", r.UnaccountedPayments)
	zero("server errors", "no answer was an error of ours, and nobody was cut off with a seat", r.ServerErrors)
	r.Rules = append(r.Rules,
		Rule{"sold", "every seat was sold", fmt.Sprintf("%d of %d", r.Sold, r.Cap), r.Sold == r.Cap},
		Rule{"rate", "bookings due in the rush were answered", fmt.Sprintf("%.0f of %.0f a second", r.RateAchieved, r.RateTarget), r.RateAchieved >= r.RateTarget},
		Rule{"rejections", fmt.Sprintf("half of the rejections within %.0f ms", rejectionsWithin), fmt.Sprintf("p50 %.1f ms", r.Rejections.P50), r.Rejections.P50 < rejectionsWithin},
		Rule{"queue", fmt.Sprintf("no message older than %.0f s", queueYoungerThan), fmt.Sprintf("%.1f s", r.QueueAgeMax), r.QueueAgeMax <= queueYoungerThan},
	)
	r.Verdict = VerdictHolds
	for _, rule := range r.Rules {
		if !rule.Holds {
			r.Verdict = VerdictBroken
		}
	}
}
