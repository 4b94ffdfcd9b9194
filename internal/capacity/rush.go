package capacity

import "math"

// Plan is what a sale is run on.
type Plan struct {
	// Scale is of candidates, seats and rate together; 1 is the launch of the design.
	Scale float64
	// Instances run one API process each, with Cores and Slots gateway slots.
	Instances, Cores, Slots int
	// Workers are worker processes in all, on the same instances.
	Workers int
	// Shards are Redis primaries, each with its own sale and an equal part of it.
	Shards int
}

// Outcome is what the rush does to a plan. Rates are of the busiest second.
type Outcome struct {
	SoldOut     float64 // seconds until no seat is left; +Inf when there always is one
	Admitted    float64 // a second
	Slots       float64 // gateway calls in flight, the most at one time
	Waiting     float64 // bookings that wait for a slot, the most at one time
	TurnedAway  float64 // answers "try again" for want of a slot, in all
	CutOff      float64 // calls of the gateway that took too long, in all
	APICores    float64 // at work
	Requests    float64 // at the API, a second
	RedisUse    float64 // of each primary's one core
	RedisRuns   float64 // script runs a second, each primary
	RedisBits   float64 // bits a second out of and into each primary
	Payments    float64 // a second
	Sends       float64 // records sent to the queue, a second
	QueueDepth  float64 // messages, the most at one time
	QueueAge    float64 // seconds, the oldest
	TableWrites float64 // write units of the table a second
	IndexWrites float64 // write units of the index a second
	Paid        float64 // seats paid within the four minutes that are stepped through
}

// How the rush is stepped through: time is cut into steps, people are a quantity. What
// happens within the horizon decides every peak; the rest of the hour is a tail.
const (
	step    = 0.01
	horizon = 240
	second  = int(1 / step)
)

// Simulate runs the rush on a plan, as a fluid: each step admits as many as there are
// people, free slots and seats for. API, Redis and table are not made to queue: their
// use is what is asked of them, and more than there is means that they break.
func Simulate(in Inputs, p Plan) Outcome {
	var (
		seats   = in.Demand.Seats.Value * p.Scale
		slots   = float64(p.Instances * p.Slots)
		kernel  = latencies(in)
		steps   = horizon * second
		ending  = make([]float64, steps+len(kernel)+1) // calls that will have ended well
		cut     = make([]float64, steps+len(kernel)+1) // and those that will be cut off
		queue   = backlog{rate: float64(p.Workers) * WorkerRate(in) * step}
		waiting cohorts
		inUse   float64
		retry   float64
		paying  float64
		taken   float64
		out     = Outcome{SoldOut: math.Inf(1)}
		sums    = make([]flow, horizon)
		good    float64 // share of the calls that end before the cut-off
		item    = Units(itemHeld(in))
		paid    = Units(itemPaid(in))
	)
	for _, k := range kernel {
		good += k
	}
	for t := range steps {
		s := &sums[t/second]
		now := float64(t) * step
		inUse -= ending[t] + cut[t]
		taken -= cut[t]
		retry += cut[t]
		out.CutOff += cut[t]

		fresh, repeat := 0.0, 0.0
		if now < in.Demand.Rush.Value {
			arrived := in.Demand.Rate.Value * p.Scale * step
			fresh, repeat = arrived*in.People.Fresh.Value, arrived*(1-in.People.Fresh.Value)
		}
		back := retry * step / in.People.RetryMean.Value
		retry -= back
		fresh += back

		left := max(0, seats-taken)
		waiting.add(t, fresh)
		admitted := waiting.take(min(waiting.sum, max(0, slots-inUse), left))
		refused, checked := 0.0, 0.0
		switch {
		case admitted >= left: // the rest hears so at once, waiting or not
			out.SoldOut = min(out.SoldOut, now)
			refused = waiting.drop()
		case waiting.sum > 0: // whoever finds no slot is checked at once
			checked = fresh
		}
		late := waiting.older(t - int(in.Gateway.Wait.Value/step))
		out.TurnedAway += late
		retry += late
		inUse += admitted
		taken += admitted
		if admitted > 0 {
			for i, k := range kernel {
				ending[t+1+i] += admitted * k
			}
			cut[t+1+len(kernel)] += admitted * (1 - good)
		}

		sent := ending[t]
		queue.add(t, sent)
		written := queue.serve()
		paying += sent * in.People.PaidFirst.Value
		pay := paying * step / in.People.PayMean.Value
		paying -= pay
		out.Paid += pay

		s.admitted += admitted
		s.payments += pay
		s.sends += sent
		s.refused += refused
		s.repeated += repeat
		s.checked += checked
		s.looks += pay * in.People.LooksAHold.Value
		s.table += written*item + pay*in.Slow.PaidWrites.Value*paid
		s.index += written
		out.Slots = max(out.Slots, inUse)
		out.Waiting = max(out.Waiting, waiting.sum)
		out.QueueDepth = max(out.QueueDepth, queue.sum)
		out.QueueAge = max(out.QueueAge, queue.age(t))
	}
	for _, s := range sums {
		out.peaks(in, p, s)
	}
	return out
}

// flow is what one second brought.
type flow struct{ admitted, payments, sends, refused, repeated, checked, looks, table, index float64 }

// peaks takes a second into the maxima.
func (o *Outcome) peaks(in Inputs, p Plan, s flow) {
	up := func(v *float64, by float64) { *v = max(*v, by) }
	r, shards := in.Redis, float64(p.Shards)
	up(&o.Admitted, s.admitted)
	up(&o.Payments, s.payments)
	up(&o.Sends, s.sends)
	up(&o.Requests, s.admitted+s.payments+s.refused+s.repeated+s.checked+s.looks)
	up(&o.TableWrites, s.table)
	up(&o.IndexWrites, s.index)
	up(&o.APICores, in.API.Core.Value*1e-6*(s.admitted*in.API.Admission.Value+s.payments*in.API.Payment.Value+
		(s.refused+s.repeated+s.checked+s.looks)*in.API.Refusal.Value))
	up(&o.RedisUse, in.API.Core.Value*in.API.Crowded.Value*1e-6/shards*(s.admitted*holdCost(r, busy)+s.payments*paidCost(r, busy)+
		(s.refused+s.checked)*r.Refusal.Busy.Value+s.repeated*r.Duplicate.Busy.Value+s.looks*r.Look.Busy.Value))
	// Among many, one run decides up to 32 requests; the others are one each.
	up(&o.RedisRuns, ((s.admitted+s.refused+s.checked+s.repeated)/32+2*s.admitted+4*s.payments+s.looks)/shards)
	// Two replicas get the stream.
	up(&o.RedisBits, 8/shards*(s.admitted*(2*in.Ledger.ReplHold.Value+in.Ledger.ClientHold.Value)+
		s.payments*3*in.Ledger.ReplPaid.Value))
}

func busy(p Pair) float64  { return p.Busy.Value }
func alone(p Pair) float64 { return p.Alone.Value }

// holdCost is Redis's CPU of a hold to its 202, in microseconds; paidCost of its payment.
func holdCost(r Redis, of func(Pair) float64) float64 {
	return of(r.Admit) + of(r.Attach) + of(r.Queued)
}

func paidCost(r Redis, of func(Pair) float64) float64 {
	return of(r.BeginPay) + of(r.Settle) + 2*of(r.Done)
}

// latencies are the shares of the gateway's calls that end in each step before the
// cut-off.
func latencies(in Inputs) []float64 {
	l := newLogNormal(in.Gateway.Median.Value, in.Gateway.P99.Value)
	kernel := make([]float64, int(math.Round(in.Gateway.CutOff.Value/step)))
	for i := range kernel {
		kernel[i] = l.below(float64(i+1)*step) - l.below(float64(i)*step)
	}
	return kernel
}

// SlotTime is how long a call of the gateway holds its slot on average, in seconds, cut
// off as it is.
func SlotTime(in Inputs) float64 {
	mean, ended := 0.0, 0.0
	for i, k := range latencies(in) {
		mean += k * (float64(i) + 0.5) * step
		ended += k
	}
	return mean + (1-ended)*in.Gateway.CutOff.Value
}

// WorkerRate is how many records a second one worker writes on AWS.
func WorkerRate(in Inputs) float64 {
	return in.Slow.Pollers.Value * in.Slow.Batch.Value / (in.Slow.BatchTime.Value / 1000)
}

func itemHeld(in Inputs) int { held, _ := Sample(in); return ItemBytes(held) }
func itemPaid(in Inputs) int { _, paid := Sample(in); return ItemBytes(paid) }

// cohorts are quantities that wait, the oldest first.
type cohorts struct {
	of  []cohort
	sum float64
}

type cohort struct {
	came int
	n    float64
}

func (c *cohorts) add(t int, n float64) {
	if n > 0 {
		c.of = append(c.of, cohort{t, n})
		c.sum += n
	}
}

// take lets n go, the oldest first.
func (c *cohorts) take(n float64) float64 {
	for rest := n; rest > 0 && len(c.of) > 0; {
		part := min(rest, c.of[0].n)
		c.of[0].n -= part
		rest -= part
		if c.of[0].n <= 0 {
			c.of = c.of[1:]
		}
	}
	if c.sum -= n; c.sum < nobody {
		c.drop()
	}
	return n
}

// nobody is what rounding may leave of people.
const nobody = 1e-6

// older lets go all that came at t or before.
func (c *cohorts) older(t int) float64 {
	n := 0.0
	for len(c.of) > 0 && c.of[0].came <= t {
		n += c.of[0].n
		c.of = c.of[1:]
	}
	if c.sum -= n; c.sum < nobody {
		c.drop()
	}
	return n
}

// drop lets all go.
func (c *cohorts) drop() float64 {
	n := c.sum
	c.of, c.sum = nil, 0
	return n
}

// backlog is a queue that is served at a rate, a step.
type backlog struct {
	cohorts
	rate float64
}

func (b *backlog) serve() float64 { return b.take(min(b.sum, b.rate)) }

// age is of the oldest, in seconds.
func (b *backlog) age(t int) float64 {
	if len(b.of) == 0 {
		return 0
	}
	return float64(t-b.of[0].came) * step
}
