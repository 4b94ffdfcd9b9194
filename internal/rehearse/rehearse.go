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
	"holdfast/internal/mockgateway"
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
	if err := o.room(); err != nil {
		return Report{}, err
	}
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
	// epoch is of the sale that Ctl has begun.
	prove(ctx context.Context, epoch string) error
	Sample(ctx context.Context) (Sample, error)
	// payments are the gateway's own list.
	payments(ctx context.Context) ([]mockgateway.Listed, error)
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
	broken  int  // faults that have lasted their time
	asItIs  bool // the gateway's latency could not be set
	open    int  // seats neither paid nor given back when the drain's time was over
	marks   []Mark
	samples map[int]Sample
	most    extremes
	stopped []span // when the rehearsal had the queue or the worker away
}

// extremes are the worst that any sample has seen, whatever became of the rest of it.
type extremes struct {
	looks, queueLooks int // samples that had the seats, the queue
	oversold          int
	queueAge          float64
	queueOwn          float64 // queueAge without the time in which the rehearsal kept the queue from being emptied
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

	// Another rehearsal may have begun there meanwhile.
	if epoch, err := d.inForce(ctx); err != nil || epoch != d.epoch {
		return Report{}, cmp.Or(err, errBegunAnew)
	}
	if _, err := d.command(ctx, "open", "--yes"); err != nil {
		return Report{}, err
	}
	d.mark("open")
	opened := time.Now()
	breaking, endFaults := context.WithCancel(ctx)
	broken := make(chan error, 1)
	go func() { broken <- d.breakThings(breaking, opened, m) }()
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
	lasted := time.Since(opened)
	if _, err := d.command(ctx, "close", "--reason", reason); err != nil {
		return Report{}, err
	}
	d.mark("closed")
	if err := d.drain(ctx); err != nil {
		return Report{}, err
	}
	// The audit asks about every payment; how slow the gateway is has been seen.
	d.slow(ctx, 0)
	endSampling()
	watching.Wait()
	return d.report(ctx, m, lasted)
}

var errBegunAnew = errors.New("another rehearsal has begun the sale anew meanwhile: one at a time; nothing was opened")

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
	var err error
	if d.epoch, err = d.inForce(ctx); err != nil {
		return err
	}
	return d.on.prove(ctx, d.epoch)
}

func (d *drill) inForce(ctx context.Context) (epoch string, err error) { return inForce(ctx, d.on) }

// inForce is the epoch of the sale in force.
func inForce(ctx context.Context, on deployment) (epoch string, err error) {
	shown, err := command(ctx, on, "sale", "show", "--json")
	if err != nil {
		return "", err
	}
	var in struct {
		Epoch string `json:"epoch"`
	}
	if err := json.Unmarshal(shown, &in); err != nil || in.Epoch == "" {
		return "", fmt.Errorf("sale show: no epoch in %q: %w", shown, err)
	}
	return in.Epoch, nil
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

// watch samples once a second until ctx ends. A sample of which something could not be
// read is a gap in the report's curves; what it did read is judged all the same.
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
		d.judged(s)
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

// judged takes the worst of a sample into the extremes.
func (d *drill) judged(s Sample) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.Left != nil {
		d.most.looks++
		// The counters, which are of one moment. A count of the rows takes a while, and may
		// meet a seat where it was given back and again where it was sold.
		d.most.oversold = max(d.most.oversold, s.Taken-d.sale.Cap)
		for _, left := range s.Left {
			d.most.oversold = max(d.most.oversold, -left)
		}
	}
	if s.ageSeen {
		d.most.queueLooks++
		d.most.queueAge = max(d.most.queueAge, s.QueueAge)
		d.most.queueOwn = max(d.most.queueOwn, ownAge(s.QueueAge, s.aged, d.stopped))
	}
}

// inHand is how long a message that a killed worker had in hand stays hidden: the queue's
// visibility time-out, after which another worker is given it.
const inHand = time.Minute

// ownAge is the age of what lies in the queue now, in seconds, without the part of it in
// which nothing could be taken from there; the spans are in the order of their beginnings.
func ownAge(age float64, now time.Time, stopped []span) float64 {
	sent := now.Add(-time.Duration(age * float64(time.Second)))
	counted := sent
	for _, s := range stopped {
		from, to := s.from, s.to
		if s.hides > 0 && sent.Before(to) {
			to = from.Add(s.hides)
		}
		if to.IsZero() || to.After(now) {
			to = now
		}
		if from.Before(counted) {
			from = counted // no moment is taken off twice
		}
		if still := to.Sub(from); still > 0 {
			age -= still.Seconds()
			counted = to
		}
	}
	return max(0, age)
}

// faultGap is from one fault's end to the next one.
const faultGap = 5 * time.Second

// breakThings has the faults happen one after the other, the first after a third of the
// rush. One that the end of the crowd cut short does not count.
func (d *drill) breakThings(ctx context.Context, opened time.Time, m *Measure) error {
	at := opened.Add(d.For / 3)
	for _, f := range d.Faults {
		if !until(ctx, at) {
			return nil
		}
		d.mark(string(f) + " breaks")
		back := d.away(f, m)
		heal, err := d.on.Break(ctx, f)
		if err != nil {
			return fmt.Errorf("break %s: %w", f, err)
		}
		if until(ctx, time.Now().Add(f.lasts())) {
			d.mu.Lock()
			d.broken++
			d.mu.Unlock()
		}
		// Healed also when the rehearsal is over: what follows needs it whole.
		whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		if f == FaultWorker {
			back() // how long it takes to start is its own time
		}
		err = heal(whole)
		cancel()
		if err != nil {
			return fmt.Errorf("heal %s: %w", f, err)
		}
		if f != FaultWorker {
			back()
		}
		d.mark(string(f) + " is whole again")
		at = time.Now().Add(faultGap)
	}
	return nil
}

// away says that a fault begins, for what is excused by it, and back that it has ended.
func (d *drill) away(f Fault, m *Measure) (back func()) {
	switch f {
	case FaultAPI:
		m.away(time.Now())
		return func() { m.back(time.Now()) }
	case FaultQueue, FaultWorker:
		s := span{from: time.Now()}
		if f == FaultWorker {
			s.hides = inHand
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		i := len(d.stopped)
		d.stopped = append(d.stopped, s)
		return func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.stopped[i].to = time.Now()
		}
	}
	return func() {}
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
		d.mu.Lock()
		d.asItIs = true
		d.mu.Unlock()
		d.mark(fmt.Sprintf("the gateway stays as slow as it is: %v", err))
	}
}

// room is nil when all faults have their time before the last of the crowd gives up.
func (o Options) room() error {
	needs := o.For / 3
	for _, f := range o.Faults {
		needs += f.lasts() + faultGap
	}
	if there := o.For + o.Hold*7/2; len(o.Faults) > 0 && needs > there {
		hold := ((needs-o.For)*2/7 + time.Second).Round(time.Second)
		return fmt.Errorf("these faults need %s from the opening, and the crowd has left after %s: give it a --hold of %s or more, or fewer faults", needs.Round(time.Second), there, hold)
	}
	return nil
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

// drain waits until every seat is paid or given back and the queue is empty. Those that are
// still open when its time is over are the report's to tell.
func (d *drill) drain(ctx context.Context) error {
	closed := time.Now()
	waiting, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	for {
		s, err := d.on.Sample(waiting)
		d.judged(s)
		open := 0
		for phase, n := range s.Phases {
			if phase != string(booking.PhasePaid) {
				open += n
			}
		}
		if err == nil && open == 0 && s.QueueDepth == 0 && s.counted.After(closed) {
			d.mark("drained")
			return nil
		}
		if until(waiting, time.Now().Add(sampleEvery)) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		d.open = max(1, open) // what cannot be read is not drained
		d.mark(fmt.Sprintf("not drained: %d seats open, %d messages", open, s.QueueDepth))
		return nil
	}
}

func (d *drill) report(ctx context.Context, m *Measure, lasted time.Duration) (Report, error) {
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
	most := d.most
	if d.asItIs {
		r.Latency = 0
	}
	d.mu.Unlock()
	m.Into(&r)
	r.Rejections = m.Rejections()
	late, latest := m.Late()
	r.SentLate, r.SentLateMost = late, float64(latest)/float64(time.Millisecond)
	r.CPU = d.on.CPU()
	r.Oversold, r.QueueAgeMax = most.oversold, most.queueAge
	audit, money, err := d.settled(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := d.sold(ctx, &r); err != nil {
		return Report{}, err
	}
	told, second, err := d.told(ctx, m)
	if err != nil {
		return Report{}, err
	}
	r.DoubleBooked += second
	r.Rules = append(r.Rules, told, watched(most, lasted))
	if n := len(d.Faults); n > 0 {
		figure, all := fmt.Sprintf("%d of %d", d.broken, n), d.broken == n
		if slices.Contains(d.Faults, FaultReplies) {
			figure, all = fmt.Sprintf("%s; %d answers lost", figure, money.lost), all && money.lost > 0
		}
		if excused := m.Excused(); excused > 0 {
			figure += fmt.Sprintf("; %d bookings of the stream came while the API was away", excused)
		}
		r.Rules = append(r.Rules, Rule{"faults", "everything that was to break did, for its whole time", figure, all})
	}
	r.Leaked = d.open
	r.UnaccountedPayments = len(money.unaccounted)
	judge(&r, audit, most, m)
	return r, nil
}

// watched wants the seats to have been looked at: what nobody has seen is no proof. A fault
// may hide them for a while.
func watched(most extremes, lasted time.Duration) Rule {
	wanted := max(1, int(lasted.Seconds()/4))
	return Rule{"watched", "the seats were looked at all along", fmt.Sprintf("%d times in %.0f s", most.looks, lasted.Seconds()), most.looks >= wanted}
}

// settledWithin is as long as the audit takes a difference for something on its way.
const settledWithin = 150 * time.Second

// settled is the audit, and what the gateway's own list says, once nothing is on its way
// any more: a difference that is young is none yet, and would never be one in a run that
// ends sooner than that. What is still on its way afterwards counts.
func (d *drill) settled(ctx context.Context) (saleops.Report, money, error) {
	for end := time.Now().Add(settledWithin); ; {
		a, err := d.audit(ctx)
		if err != nil {
			return a, money{}, err
		}
		m, err := d.money(ctx)
		if err != nil {
			return a, money{}, err
		}
		moving := len(m.unaccounted)
		for _, r := range a.Rules {
			moving += r.InFlight
		}
		if moving == 0 || time.Now().After(end) {
			return a, m, nil
		}
		if !until(ctx, time.Now().Add(5*time.Second)) {
			return a, m, ctx.Err()
		}
	}
}

// money is what the gateway's own list says.
type money struct {
	unaccounted []string // transactions that are neither a paid record's nor given back
	lost        int      // payments of which an answer was lost
}

// money asks the gateway which money moved, whatever our own records say of it.
func (d *drill) money(ctx context.Context) (money, error) {
	list, err := d.on.payments(ctx)
	if err != nil {
		return money{}, fmt.Errorf("payments at the gateway: %w", err)
	}
	paid := map[string]bool{}
	err = d.exported(ctx, "PAID", []string{"transaction"}, func(v []string) { paid[v[0]] = true })
	if err != nil {
		return money{}, err
	}
	var m money
	for _, p := range list {
		if _, attempt, err := booking.ParseInvoice(p.Invoice); err != nil || booking.AttemptEpoch(attempt) != d.epoch {
			continue // another sale's
		}
		if slices.ContainsFunc(p.Faults, func(f mockgateway.Fault) bool { return f.Name == mockgateway.FaultAnswerLost && f.Applied > 0 }) {
			m.lost++
		}
		for _, t := range p.Transactions {
			if !paid[t.TrxID] && len(t.Refunds) == 0 {
				m.unaccounted = append(m.unaccounted, t.TrxID)
			}
		}
	}
	return m, nil
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

// told looks for everybody's seat who was told of one, and for those who were told of two
// at one time, of which the first may have been given back by a payment that failed.
func (d *drill) told(ctx context.Context, m *Measure) (rule Rule, second int, err error) {
	known, ended := map[Told]bool{}, map[string]string{}
	err = d.exported(ctx, "all", []string{"payment_id", "code", "level", "reason"}, func(v []string) {
		known[Told{v[0], v[1], v[2]}] = true
		ended[v[0]] = v[3]
	})
	heard := m.Told()
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
	for _, t := range m.Twice() {
		if reason := ended[t.First]; reason == "" || reason == string(booking.ReasonLapsed) {
			second++
		}
	}
	return Rule{"told", "whoever was told of a seat has its record", figure, len(missing) == 0}, second, err
}

// looked are the audit's rules: without one of them there is no proof of it.
var looked = []string{
	saleops.RuleEpoch, saleops.RuleCaps, saleops.RuleCounters, saleops.RuleOneLive, saleops.RuleRecords, saleops.RulePaid,
	saleops.RuleLookedAt, saleops.RuleDoubt, saleops.RuleMoney, saleops.RuleSignals, saleops.RuleQueue, saleops.RuleStatus,
	saleops.RuleUnreadable,
}

// judge adds the audit's rules and the rehearsal's own, and the verdict. What was not seen
// does not hold.
func judge(r *Report, audit saleops.Report, most extremes, m *Measure) {
	missing := slices.Clone(looked)
	for _, a := range audit.Rules {
		figure := a.Figure
		if a.InFlight > 0 {
			figure += fmt.Sprintf("; %d still on their way", a.InFlight)
		}
		r.Rules = append(r.Rules, Rule{Name: a.Code, Text: a.Text, Figure: figure, Holds: a.Verdict == saleops.VerdictHolds && a.InFlight == 0})
		missing = slices.DeleteFunc(missing, func(code string) bool { return code == a.Code })
		switch n := a.Count + a.InFlight; a.Code {
		case saleops.RuleMoney:
			r.UnaccountedPayments = max(r.UnaccountedPayments, n)
		case saleops.RuleOneLive:
			r.DoubleBooked = max(r.DoubleBooked, n)
		case saleops.RuleLookedAt, saleops.RuleDoubt:
			r.Leaked = max(r.Leaked, n)
		}
	}
	for _, code := range missing {
		r.Rules = append(r.Rules, Rule{Name: code, Text: "the audit looks at it", Figure: "not seen"})
	}
	zero := func(name, text string, n int) {
		r.Rules = append(r.Rules, Rule{Name: name, Text: text, Figure: fmt.Sprint(n), Holds: n == 0})
	}
	zero("oversold", "no cap was exceeded, whenever the seats were looked at and at the end", r.Oversold)
	zero("double booked", "nobody has two seats, or was told of two", r.DoubleBooked)
	zero("leaked", "every seat ended paid or released", r.Leaked)
	zero("unaccounted payments", "money that moved is a seat or a refund, by the gateway's own list too", r.UnaccountedPayments)
	zero("server errors", "no answer was an error of ours, and nobody was cut off with a seat", r.ServerErrors)
	zero("unanswered", "every booking and every return from the gateway had an answer", m.Unanswered())
	rejections := Rule{"rejections", fmt.Sprintf("half of the rejections within %.0f ms", rejectionsWithin), "none was seen", false}
	if r.Rejections.Count > 0 {
		rejections.Figure, rejections.Holds = fmt.Sprintf("p50 %.1f ms", r.Rejections.P50), r.Rejections.P50 < rejectionsWithin
	}
	queue := Rule{"queue", fmt.Sprintf("no message older than %.0f s", queueYoungerThan), "not seen: SQS tells it to CloudWatch alone, as ApproximateAgeOfOldestMessage", false}
	if most.queueLooks > 0 {
		queue.Figure, queue.Holds = fmt.Sprintf("%.1f s", most.queueOwn), most.queueOwn <= queueYoungerThan
		if most.queueAge > most.queueOwn {
			queue.Figure += fmt.Sprintf(", and %.1f s with the time in which the rehearsal had the queue or the worker away", most.queueAge)
		}
	}
	r.Rules = append(r.Rules,
		Rule{"sold", "every seat was sold", fmt.Sprintf("%d of %d", r.Sold, r.Cap), r.Sold == r.Cap},
		rateRule(r, m),
		rejections, queue,
	)
	r.Verdict = VerdictHolds
	for _, rule := range r.Rules {
		if !rule.Holds {
			r.Verdict = VerdictBroken
		}
	}
}

// rateRule wants every booking of the even stream answered in time; the stream has a whole
// number of them.
func rateRule(r *Report, m *Measure) Rule {
	due := math.Round(r.RateTarget*r.For.Seconds()) - float64(m.Excused())
	got := math.Round(r.RateAchieved * r.For.Seconds())
	return Rule{"rate", "bookings due in the rush were answered",
		fmt.Sprintf("%.0f of %.0f a second, %.0f of %.0f", r.RateAchieved, r.RateTarget, got, due), got >= due}
}
