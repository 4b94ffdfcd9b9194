package capacity

import "math"

// sizes are the vCPUs of EC2's c7g.large to c7g.16xlarge.
var sizes = [...]int{2, 4, 8, 16, 32, 64}

// How a plan is chosen.
const (
	zones       = 3    // instances come in threes, one a zone
	mostPerZone = 4    // instances of one size; for more, the next size is taken
	slotReserve = 1.25 // over what the rush needs
)

// unlimited slots show what the rush needs.
const unlimited = 1 << 30

// Choose finds the smallest fleet that carries the scale with every part under the
// ceiling at the peak, and with a zone gone still has cores enough; and as many Redis
// primaries as the seats need when no slot holds them back.
func Choose(in Inputs, scale float64) (Plan, Outcome) {
	p := Plan{Scale: scale, Instances: zones, Cores: sizes[0], Workers: unlimited, Slots: unlimited, Shards: 1}
	asks := Simulate(in, p)
	ceiling := in.API.Ceiling.Value
	p.Shards = int(math.Ceil(asks.RedisUse / ceiling))
	for _, p.Cores = range sizes {
		p.Instances = zones * int(math.Ceil(asks.APICores/ceiling/float64(p.Cores*zones)))
		if p.Instances <= zones*mostPerZone {
			break
		}
	}
	p.Workers = max(p.Instances, int(math.Ceil(asks.Sends/ceiling/WorkerRate(in))))
	p.Slots = int(max(in.Gateway.Slots.Value, 500*math.Ceil(asks.Slots*slotReserve/float64(p.Instances)/500)))
	return p, Simulate(in, p)
}

// Work is what a sale has had to do.
type Work struct {
	BusyHolds, Holds float64 // of all holds, those of the rush
	Paid, Lapsed     float64
	Refusals, Looks  float64 // that reached Redis
	Reads            float64 // of page and status, where the API serves them
}

// CPU is the seconds of CPU that the work costs each process.
type CPU struct{ API, Redis, Replica, Worker float64 }

// Spent adds up the work's CPU. What comes in the rush costs Redis what it costs among
// many, the rest what it costs alone.
func Spent(in Inputs, w Work) CPU {
	r, calm, crowded := in.Redis, w.Holds-w.BusyHolds, in.API.Crowded.Value
	return CPU{
		API: 1e-6 * (w.Holds*in.API.Admission.Value + w.Paid*in.API.Payment.Value + (w.Refusals+w.Looks+w.Reads)*in.API.Refusal.Value),
		Redis: crowded * 1e-6 * (w.BusyHolds*holdCost(r, busy) + calm*holdCost(r, alone) + w.Paid*paidCost(r, alone) +
			w.Lapsed*r.Release.Alone.Value + w.Refusals*r.Refusal.Alone.Value + w.Looks*r.Look.Alone.Value),
		Replica: crowded * 1e-6 * (w.BusyHolds*in.Replica.Hold.Busy.Value + calm*in.Replica.Hold.Alone.Value +
			w.Paid*in.Replica.Payment.Alone.Value + w.Lapsed*in.Replica.Release.Alone.Value),
		Worker: crowded * 1e-6 * w.Holds * in.Slow.WorkerCPU.Value,
	}
}

// Usage is what a launch uses of what is paid for by use, or kept.
type Usage struct {
	Holds, Paid, Lapsed          float64
	HeldItem, PaidItem, Message  int     // bytes
	SQSPerHold                   float64 // requests
	WritesPerHold, WritesPerPaid float64 // units; the second on top of the first
	SQSRequests                  float64
	WriteUnits, ReadUnits        float64
	WarmUnits                    float64 // above the default, of table and index
	Invocations, GBSeconds       float64
	LCUs                         float64 // to reserve at the balancer
	EdgeRequests                 float64
	EdgeGB, OriginGB             float64
	LogGB, NATGB                 float64
	RedisBytes                   float64
}

// warmDefault is what a new on-demand table, or index, takes from the first second on.
const warmDefault = 4_000

// Used adds up a launch of a scale.
func Used(in Inputs, scale float64, o Outcome) Usage {
	d := in.Demand
	held, paid := Sample(in)
	u := Usage{
		Holds: d.Holds.Value * scale, Paid: d.Seats.Value * scale, Lapsed: (d.Holds.Value - d.Seats.Value) * scale,
		HeldItem: ItemBytes(held), PaidItem: ItemBytes(paid), Message: MessageBytes(held),
		EdgeRequests: d.EdgeHour.Value * scale,
	}
	u.SQSPerHold = 1 + 2/in.Slow.Batch.Value // sent alone, received and deleted in batches
	u.SQSRequests = u.Holds * u.SQSPerHold
	u.WritesPerHold = Units(u.HeldItem) + 1 // and the index
	u.WritesPerPaid = in.Slow.PaidWrites.Value * Units(u.PaidItem)
	u.WriteUnits = u.Holds*u.WritesPerHold + u.Paid*u.WritesPerPaid + u.Lapsed*Units(u.HeldItem)
	u.ReadUnits = u.Paid * in.Slow.PaidReads.Value
	changes := u.Holds + u.Paid*in.Slow.PaidWrites.Value + u.Lapsed
	u.Invocations = 2 * changes / in.Slow.StreamBatch.Value // two functions
	u.GBSeconds = u.Invocations * in.Slow.FunctionTime.Value / 1000 * in.Slow.FunctionSize.Value
	const gb = 1e9
	u.EdgeGB = (d.Candidates.Value*in.Edge.Pages.Value*in.Edge.PageBytes.Value + d.EdgeHour.Value*in.Edge.StatusBytes.Value) * scale / gb
	u.OriginGB = d.OriginHour.Value * in.Edge.APIBytes.Value * scale / gb
	u.LCUs = math.Ceil(o.Requests * in.Edge.APIBytes.Value * 3600 / gb) // one is a GB an hour
	u.LogGB = d.OriginHour.Value * in.Edge.LogBytes.Value * scale / gb
	u.NATGB = 3 * u.Holds * in.Edge.APIBytes.Value / gb // create, execute, query
	u.RedisBytes = d.Candidates.Value*scale*in.Ledger.Candidate.Value + d.Seats.Value*scale*in.Ledger.Seat.Value
	u.WarmUnits = max(0, warm(o.TableWrites)-warmDefault) + max(0, warm(o.IndexWrites)-warmDefault)
	return u
}

// warm is the warm throughput to ask for: the peak and a half, in thousands.
func warm(peak float64) float64 { return 1000 * math.Ceil(1.5*peak/1000) }

// Line is one line of the bill.
type Line struct {
	What, Quantity string
	Dollars        float64
}

// Bill is what a launch costs: the machines for the hours that they stand ready, the
// rest by use, and no free tier.
func Bill(in Inputs, p Plan, u Usage, hours float64) []Line {
	x := in.Prices
	n := func(v float64, what string) string { return about(v) + " " + what }
	return []Line{
		{"EC2: API and worker", n(float64(p.Instances), "× c7g, ") + n(float64(p.Cores), "vCPU"), float64(p.Instances*p.Cores) * hours * x.Core.Value},
		{"ElastiCache", n(float64(3*p.Shards), "nodes"), float64(3*p.Shards) * hours * x.RedisNode.Value},
		{"NAT", n(zones, "gateways, ") + n(u.NATGB, "GB"), zones*hours*x.NAT.Value + u.NATGB*x.NATData.Value},
		{"ALB", n(u.LCUs, "LCUs reserved"), hours * (x.ALB.Value + u.LCUs*x.LCU.Value)},
		{"CloudFront", n(u.EdgeRequests/1e6, "M requests, ") + n(u.EdgeGB+u.OriginGB, "GB"), u.EdgeRequests/1e4*x.Requests.Value + (u.EdgeGB+u.OriginGB)*x.Transfer.Value},
		{"WAF", n(u.EdgeRequests/1e6, "M requests"), x.WAFFixed.Value + u.EdgeRequests/1e6*x.WAF.Value},
		{"SQS", n(u.SQSRequests/1e6, "M requests"), u.SQSRequests / 1e6 * x.SQS.Value},
		{"DynamoDB, units", n(u.WriteUnits/1e6, "M writes, ") + n(u.ReadUnits/1e6, "M reads"), u.WriteUnits/1e6*x.Write.Value + u.ReadUnits/1e6*x.Read.Value},
		{"DynamoDB, warm throughput", n(u.WarmUnits, "units over the default"), u.WarmUnits * x.Warm.Value},
		{"Lambda", n(u.Invocations, "invocations"), u.Invocations/1e6*x.Invoke.Value + u.GBSeconds*x.Lambda.Value},
		{"SES", n(u.Paid, "mails"), u.Paid / 1000 * x.Mail.Value},
		{"CloudWatch logs", n(u.LogGB, "GB"), u.LogGB * x.Logs.Value},
		{"RDS for PostgreSQL", n(hours, "hours"), hours * x.Postgres.Value},
	}
}
