package capacity

import (
	"cmp"
	"math"
	"slices"
)

// Limit is something that ends: a part as it is sized for the launch, or somebody
// else's quota.
type Limit struct {
	// Name is as in the document's table of what happens there.
	Name string
	// Limit is how much there is; a value of 0 means that nobody has said.
	Limit Figure
	// Use is how much a scale needs, whatever it is run on.
	Use func(in Inputs, p Plan, o Outcome) float64
}

// mailWithin is how soon a paid booking's mail is promised, in seconds (objectives.md).
const mailWithin = 12 * 60

// renewed is after how many minutes a gateway's token is renewed.
const renewed = 55

// Limits are all of them, first what breaks first when the plan's sale grows.
func Limits(in Inputs, p Plan, o Outcome) []Limit {
	given := func(v float64, unit, source string) Figure { return Figure{v, unit, Given, source} }
	modelled := func(v float64, unit, source string) Figure { return Figure{v, unit, Modelled, source} }
	limits := []Limit{
		{Name: "Redis primary, one thread", Limit: modelled(1, "core", "Redis runs scripts in one thread"),
			Use: func(_ Inputs, p Plan, o Outcome) float64 { return o.RedisUse * float64(p.Shards) }},
		{Name: "Redis primary, network", Limit: in.Ledger.Baseline,
			Use: func(_ Inputs, p Plan, o Outcome) float64 { return o.RedisBits * float64(p.Shards) / 1e9 }},
		{Name: "Redis primary, memory", Limit: in.Ledger.Memory,
			Use: func(in Inputs, p Plan, o Outcome) float64 {
				return Used(in, p.Scale, o).RedisBytes / (1 << 30)
			}},
		{Name: "Redis connections", Limit: given(65_000, "", "ElastiCache guide; our pool is 300 a process"),
			Use: func(_ Inputs, p Plan, _ Outcome) float64 { return 300 * float64(p.Instances) }},
		{Name: "API, three c7g.large", Limit: modelled(6, "cores", "as planned above"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.APICores }},
		{Name: "gateway slots, three processes", Limit: given(3*in.Gateway.Slots.Value, "", "`HOLDFAST_GATEWAY_SLOTS`"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.Slots }},
		{Name: "gateway token, one merchant account", Limit: given(2, "grants/h", "gateway's documentation; each Redis has a token of its own, renewed before its hour is over"),
			Use: func(_ Inputs, p Plan, _ Outcome) float64 { return 60.0 / renewed * float64(p.Shards) }},
		{Name: "gateway, creates", Limit: given(0, "/s", ""),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.Admitted }},
		{Name: "worker, three processes", Limit: modelled(3*WorkerRate(in), "/s", "batches in hand over their time"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.Sends }},
		{Name: "SQS FIFO, sends", Limit: given(9_000, "/s", "SQS guide, high throughput, Mumbai; 70,000 in N. Virginia, 2,400 in most regions"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.Sends }},
		{Name: "SQS FIFO, in flight", Limit: given(120_000, "", "SQS guide"),
			Use: func(in Inputs, p Plan, _ Outcome) float64 {
				return float64(p.Workers) * in.Slow.Pollers.Value * in.Slow.Batch.Value
			}},
		{Name: "DynamoDB table, not warmed", Limit: given(warmDefault, "units/s", "DynamoDB guide, new on-demand table"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.TableWrites }},
		{Name: "DynamoDB index, not warmed", Limit: given(warmDefault, "units/s", "DynamoDB guide, new on-demand index"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.IndexWrites }},
		{Name: "DynamoDB table, quota", Limit: given(40_000, "units/s", "DynamoDB guide, on-demand, a table"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.TableWrites }},
		{Name: "Lambda, at one time", Limit: given(1_000, "", "Lambda guide; new accounts have less"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return 2 * math.Ceil(warm(o.TableWrites)/1000) }},
		{Name: "SES, our share", Limit: given(12, "mails/s", "`HOLDFAST_SES_RATE` of deploy/env, three processes"),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.Paid / mailWithin }},
		{Name: "SES, sandbox", Limit: given(200, "mails/day", "SES guide; outside of it, as granted"),
			Use: func(in Inputs, p Plan, _ Outcome) float64 { return in.Demand.Seats.Value * p.Scale }},
		{Name: "SNS to the webhook", Limit: given(0, "/s", ""),
			Use: func(_ Inputs, _ Plan, o Outcome) float64 { return o.Payments }},
		{Name: "NAT ports to the gateway", Limit: given(3*55_000, "", "VPC guide: 55,000 an address and destination; three gateways"),
			Use: func(in Inputs, _ Plan, o Outcome) float64 {
				return o.Slots + Little(o.Payments, SlotTime(in))
			}},
		{Name: "WAF, requests of one ACL", Limit: given(100_000, "/s", "WAF guide"), Use: atEdge},
		{Name: "CloudFront, one distribution", Limit: given(250_000, "/s", "CloudFront guide"), Use: atEdge},
	}
	slices.SortStableFunc(limits, func(a, b Limit) int {
		return cmp.Compare(a.breaks(in, p, o), b.breaks(in, p, o))
	})
	return limits
}

func atEdge(in Inputs, p Plan, _ Outcome) float64 {
	return in.Demand.Rate.Value * p.Scale * (1 + in.Demand.Readers.Value)
}

// breaks is the scale at which the limit is met, if everything grows alike; +Inf when
// nobody knows.
func (l Limit) breaks(in Inputs, p Plan, o Outcome) float64 {
	if l.Limit.Value == 0 {
		return math.Inf(1)
	}
	return l.Limit.Value / l.Use(in, p, o) * p.Scale
}
