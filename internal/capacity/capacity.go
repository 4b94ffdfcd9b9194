// Package capacity is the model behind docs/capacity.md: what a launch costs each part
// of the system, how large the parts must be for it, and which limit of others is met
// first. Inputs are figures with their source; everything else is worked out from them,
// by sums, by a fluid simulation of the rush, and by a small simulation of queues.
//
// Nothing here runs in production or touches anything outside: it is arithmetic. There
// is nothing that can fail; inputs that make no sense give figures that make no sense.
// Clock: none, the time of a simulation is a number of seconds. The same inputs and seed
// give the same figures.
package capacity

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// Mark says how far a figure can be trusted.
type Mark string

// The marks of a figure.
const (
	Measured Mark = "measured" // on the project's own machine; Source says where it is written down
	Given    Mark = "source"   // somebody else's document says so; Source names it
	Modelled Mark = "modelled" // worked out or assumed; Source says from what, and how to check it
)

// Figure is one input.
type Figure struct {
	Value  float64
	Unit   string
	Mark   Mark
	Source string
}

// Inputs are everything that the model is told. The tag of a field is its name in the
// document.
type Inputs struct {
	Demand  Demand  `say:"Demand"`
	People  People  `say:"What people do"`
	Gateway Gateway `say:"Payment gateway"`
	API     API     `say:"API process, CPU"`
	Redis   Redis   `say:"Redis primary, CPU of one script run, among many at once and alone"`
	Replica Replica `say:"Redis replica, CPU, among many at once and alone"`
	Ledger  Ledger  `say:"Redis, bytes"`
	Slow    Slow    `say:"Queue, worker, store"`
	Edge    Edge    `say:"Edge"`
	Prices  Prices  `say:"List prices in USD, us-east-1 unless said, read second-hand in 2026-09 to 2026-11"`
}

// Demand is the launch at scale 1.
type Demand struct {
	Candidates   Figure `say:"candidates"`
	Seats        Figure `say:"seats"`
	Rate         Figure `say:"bookings in the rush"`
	Rush         Figure `say:"length of the rush"`
	Readers      Figure `say:"reads to each booking in the rush"`
	Holds        Figure `say:"holds in all"`
	OriginHour   Figure `say:"requests at the origin, first hour"`
	EdgeHour     Figure `say:"requests at the edge, first hour"`
	OriginMinute Figure `say:"origin's busiest minute"`
}

// People is what candidates do once they have their answer.
type People struct {
	Fresh      Figure `say:"bookings of the rush by somebody who has no seat yet"`
	PaidFirst  Figure `say:"holds of the rush that are paid"`
	PayMean    Figure `say:"from the link to the way home, mean"`
	RetryMean  Figure `say:"from \"try again\" to the next try, mean"`
	LooksAHold Figure `say:"looks at the booking, each hold"`
}

// Gateway is the payment gateway as it behaves in the rush, and what we grant it.
type Gateway struct {
	P99    Figure `say:"create, 99th percentile"`
	Median Figure `say:"create, median"`
	CutOff Figure `say:"create is cut off after"`
	Slots  Figure `say:"slots of one process"`
	Wait   Figure `say:"a booking waits for a slot"`
}

// API is the CPU of one request in the API process.
type API struct {
	Refusal   Figure `say:"a refusal, or a look at a booking"`
	Admission Figure `say:"an admission, to its 202"`
	Payment   Figure `say:"everything after the 202, each paid seat"`
	Crowded   Figure `say:"all parts on two full cores: a cost over what it is measured by itself"`
	Core      Figure `say:"a core here, in cores there"`
	Ceiling   Figure `say:"use at the peak, at most"`
}

// Pair is one cost among many at once, when a turn of Redis serves many, and alone.
type Pair struct {
	Busy  Figure
	Alone Figure
}

// Redis is the primary's CPU for one script run, with reading, writing and WAIT.
type Redis struct {
	Admit     Pair `say:"admit, a seat"`
	Attach    Pair `say:"attach"`
	Queued    Pair `say:"queued"`
	Refusal   Pair `say:"admit, level full"`
	Duplicate Pair `say:"admit, duplicate"`
	Look      Pair `say:"row read"`
	BeginPay  Pair `say:"begin-pay"`
	Settle    Pair `say:"settle"`
	Done      Pair `say:"done (twice a paid seat)"`
	Release   Pair `say:"release"`
}

// Replica is a replica's CPU for the same.
type Replica struct {
	Hold    Pair `say:"admit, attach and queued"`
	Payment Pair `say:"begin-pay, settle, done twice"`
	Release Pair `say:"release"`
}

// Ledger is what a candidate and a seat weigh.
type Ledger struct {
	Candidate  Figure `say:"memory of a candidate on the list"`
	Seat       Figure `say:"memory of a held or paid seat"`
	ReplHold   Figure `say:"replication stream, a hold to its 202"`
	ReplPaid   Figure `say:"replication stream, a payment"`
	ClientHold Figure `say:"to and from the API, a hold to its 202"`
	Baseline   Figure `say:"network of cache.r6g.large that is always there"`
	Memory     Figure `say:"memory of cache.r6g.large"`
}

// Slow is queue, worker and store.
type Slow struct {
	WorkerCPU    Figure `say:"worker's CPU, a record"`
	Pollers      Figure `say:"batches that a worker has in hand"`
	Batch        Figure `say:"messages of a batch under load"`
	BatchTime    Figure `say:"receive, write and delete one batch on AWS"`
	PaidWrites   Figure `say:"updates of a record that is paid"`
	PaidReads    Figure `say:"consistent reads, each paid seat"`
	PaymentURL   Figure `say:"gateway's payment URL"`
	StreamBatch  Figure `say:"stream records of one invocation"`
	FunctionTime Figure `say:"one invocation of a function"`
	FunctionSize Figure `say:"memory of a function"`
}

// Edge is what passes CDN, firewall and balancer.
type Edge struct {
	PageBytes   Figure `say:"page, compressed"`
	Pages       Figure `say:"pages opened, each candidate"`
	StatusBytes Figure `say:"status.json with its headers"`
	APIBytes    Figure `say:"a request and its answer at the origin"`
	LogBytes    Figure `say:"log of one request at the origin"`
}

// Prices are what the money is worked out from.
type Prices struct {
	Core      Figure `say:"EC2 c7g, one vCPU"`
	RedisNode Figure `say:"ElastiCache cache.r6g.large"`
	NAT       Figure `say:"NAT gateway"`
	NATData   Figure `say:"NAT, data"`
	ALB       Figure `say:"ALB"`
	LCU       Figure `say:"ALB, an LCU"`
	Requests  Figure `say:"CloudFront, HTTPS requests from India"`
	Transfer  Figure `say:"CloudFront, data to India"`
	WAFFixed  Figure `say:"WAF: one ACL and five rules"`
	WAF       Figure `say:"WAF, requests"`
	SQS       Figure `say:"SQS FIFO, requests"`
	Write     Figure `say:"DynamoDB, write request units"`
	Read      Figure `say:"DynamoDB, read request units"`
	Warm      Figure `say:"DynamoDB, warm throughput above the default, once"`
	Lambda    Figure `say:"Lambda, arm64"`
	Invoke    Figure `say:"Lambda, invocations"`
	Mail      Figure `say:"SES, mails"`
	Logs      Figure `say:"CloudWatch, log data"`
	Postgres  Figure `say:"RDS for PostgreSQL, small, two zones"`
}

// Where figures come from that several inputs name.
const (
	design    = "design of the launch"
	rehearsal = "rehearsal's crowd"
	ledgerRun = "`go test ./internal/capacity -run Ledger -v`"
	byRest    = "scale-1 rehearsal: what is left of the API's 132 s"
	priceList = "AWS price list"
	offer     = "vendor's pricing page"
)

// Current are the inputs as they are known now. Everything in docs/capacity.md follows
// from them: change one, and write the document anew.
func Current() Inputs {
	given := func(v float64, unit, source string) Figure { return Figure{v, unit, Given, source} }
	measured := func(v float64, unit, source string) Figure { return Figure{v, unit, Measured, source} }
	modelled := func(v float64, unit, source string) Figure { return Figure{v, unit, Modelled, source} }
	pair := func(busy, alone float64) Pair {
		return Pair{measured(busy, "µs", ledgerRun), measured(alone, "µs", ledgerRun)}
	}
	return Inputs{
		Demand: Demand{
			Candidates:   given(40_000, "", design),
			Seats:        given(20_700, "", design),
			Rate:         given(2_000, "/s", design),
			Rush:         given(25, "s", design),
			Readers:      given(4, "", design),
			Holds:        given(31_600, "", design),
			OriginHour:   given(1_500_000, "", design),
			EdgeHour:     given(6_200_000, "", design),
			OriginMinute: given(54_800, "", design),
		},
		People: People{
			Fresh:      modelled(0.72, "", rehearsal+": 36,000 of 50,000; the rest ask again"),
			PaidFirst:  modelled(0.58, "", rehearsal),
			PayMean:    modelled(45, "s", "nobody has said; check with the gateway's own figures"),
			RetryMean:  modelled(5, "s", "the page: 1.5 s, then half as long again each time, spread; it grows to 20 s"),
			LooksAHold: modelled(5, "", "the result page looks after 1.5 s, then ever more rarely"),
		},
		Gateway: Gateway{
			P99:    given(4.1, "s", design+", first five minutes"),
			Median: modelled(0.41, "s", "a tenth of it, log-normal between; ask the gateway"),
			CutOff: given(5, "s", "`HOLDFAST_CREATE_BUDGET`"),
			Slots:  given(1_000, "", "`HOLDFAST_GATEWAY_SLOTS`"),
			Wait:   given(1, "s", "request budget less Redis, create and enqueue"),
		},
		API: API{
			Refusal:   modelled(40, "µs", "[hot path](benchmarks.md#hot-path): 68 µs of two cores, less load generator and Redis"),
			Admission: modelled(200, "µs", "[hot path](benchmarks.md#hot-path): 473 µs of two cores, less load generator, Redis and replica"),
			Payment:   modelled(4_550, "µs", byRest+", SQLite's writes included; profile it on AWS"),
			Crowded:   modelled(1.80, "", "scale-1 rehearsal: Redis, replica and worker took 45 s, their costs add up to 25 s; the API's costs have it in them"),
			Core:      modelled(1, "", "taken as equal; run `seatctl bench hotpath` on the instance"),
			Ceiling:   given(0.6, "", "house rule: a zone can fail and two thirds carry the peak"),
		},
		Redis: Redis{
			Admit: pair(27, 80), Attach: pair(43, 78), Queued: pair(30, 61),
			Refusal: pair(5.5, 54), Duplicate: pair(14, 75), Look: pair(10, 20),
			BeginPay: pair(33, 60), Settle: pair(32, 66), Done: pair(31, 66), Release: pair(27, 54),
		},
		Replica: Replica{Hold: pair(28, 71), Payment: pair(24, 80), Release: pair(6, 18)},
		Ledger: Ledger{
			Candidate:  measured(194, "B", "[benchmarks](benchmarks.md#loading-the-allowlist)"),
			Seat:       measured(2_200, "B", ledgerRun),
			ReplHold:   measured(2_620, "B", ledgerRun),
			ReplPaid:   measured(2_150, "B", ledgerRun),
			ClientHold: modelled(2_520, "B", "Redis's own count of the same run, one replica's stream taken off"),
			Baseline:   given(0.75, "Gbit/s", "MemoryDB guide, the same machine: db.r6g.large"),
			Memory:     modelled(13.07, "GiB", "the usual figure, not looked up; `INFO memory` of the node says it"),
		},
		Slow: Slow{
			WorkerCPU:    modelled(250, "µs", "[worker](benchmarks.md#worker): two cores over 8,000 records/s, if they were all at work"),
			Pollers:      given(8, "", "`internal/record`"),
			Batch:        modelled(10, "", "a backlog fills it"),
			BatchTime:    modelled(40, "ms", "three calls of 10 to 15 ms; not measured on AWS"),
			PaidWrites:   given(4, "", "announce, paid, mail claimed, mail sent"),
			PaidReads:    modelled(3, "", "by payment, before mail, by the sender"),
			PaymentURL:   modelled(280, "B", "the gateway's sandbox has a hash and three parameters in it"),
			StreamBatch:  given(100, "", "Lambda's default batch size"),
			FunctionTime: modelled(100, "ms", "one transaction of PostgreSQL, or nothing to do"),
			FunctionSize: modelled(0.25, "GB", "Go, arm64"),
		},
		Edge: Edge{
			PageBytes:   measured(23_000, "B", "[benchmarks](benchmarks.md#the-page)"),
			Pages:       modelled(2, "", "booking and result page"),
			StatusBytes: modelled(1_000, "B", "five levels, with HTTP's headers"),
			APIBytes:    modelled(2_000, "B", "headers are most of it"),
			LogBytes:    modelled(700, "B", "one wide line; a refusal beyond a hundred a second has none"),
		},
		Prices: Prices{
			Core:      given(0.03625, "/h", priceList+", 2026-09-29: c7g.large 0.0725"),
			RedisNode: given(0.206, "/h", "third party's copy of the price list"),
			NAT:       given(0.045, "/h", "vpc/pricing, 2026-09-20, us-east-2"),
			NATData:   given(0.045, "/GB", "vpc/pricing, 2026-09-20, us-east-2"),
			ALB:       given(0.0225, "/h", "elasticloadbalancing/pricing, 2026-09-20"),
			LCU:       given(0.008, "/h", "elasticloadbalancing/pricing, 2026-09-20"),
			Requests:  given(0.012, "/10k", priceList+" of CloudFront, third party's copy"),
			Transfer:  given(0.109, "/GB", priceList+" of CloudFront, third party's copy"),
			WAFFixed:  given(10, "/month", "waf/pricing, third party's copy"),
			WAF:       given(0.60, "/M", "waf/pricing, third party's copy"),
			SQS:       given(0.50, "/M", "sqs/pricing, third party, 2026-06"),
			Write:     given(0.625, "/M", offer+", third party's copy"),
			Read:      given(0.125, "/M", offer+", third party's copy"),
			Warm:      modelled(0.00065, "/unit", "taken as an hour of a provisioned unit; the pricing page has it"),
			Lambda:    given(0.0000133334, "/GB-s", offer+", third party's copy"),
			Invoke:    given(0.20, "/M", offer+", third party's copy"),
			Mail:      given(0.10, "/1,000", offer+", third party's copy"),
			Logs:      modelled(0.50, "/GB", "the usual figure, not looked up; see the pricing page"),
			Postgres:  modelled(0.07, "/h", "db.t4g.small twice, the usual figure, not looked up; see the pricing page"),
		},
	}
}

// inputRows are the table of inputs: a title for each group, then what comes from one
// place together.
func inputRows(in Inputs) [][]string {
	var rows [][]string
	groups := reflect.ValueOf(in)
	for g := range groups.NumField() {
		rows = append(rows, []string{"**" + groups.Type().Field(g).Tag.Get("say") + "**", "", ""})
		group := groups.Field(g)
		for f := range group.NumField() {
			var figure Figure
			var value string
			switch v := group.Field(f).Interface().(type) {
			case Figure:
				figure, value = v, number(v.Value)
			case Pair:
				figure, value = v.Busy, number(v.Busy.Value)+" and "+number(v.Alone.Value)
			}
			say := group.Type().Field(f).Tag.Get("say") + ": " + value + spaced(figure.Unit)
			if last := rows[len(rows)-1]; last[1] == string(figure.Mark) && last[2] == figure.Source {
				last[0] += "; " + say
				continue
			}
			rows = append(rows, []string{say, string(figure.Mark), figure.Source})
		}
	}
	return rows
}

// spaced is a unit as it follows its number.
func spaced(unit string) string {
	if unit == "" || strings.HasPrefix(unit, "/") {
		return unit
	}
	return " " + unit
}

// number writes a figure with three digits that mean something, and commas.
func number(v float64) string {
	if v != 0 && math.Abs(v) < 100 {
		return strconv.FormatFloat(v, 'g', 5, 64)
	}
	digits := strconv.FormatInt(int64(math.Round(v)), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// about is number for what was worked out: no more digits than the inputs bear.
func about(v float64) string {
	if v == 0 {
		return "0"
	}
	step := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-1)
	if math.Abs(v) >= 100 {
		step /= 10
	}
	return number(math.Round(v/step) * step)
}

// percent writes a share.
func percent(v float64) string {
	if v > 0 && v < 0.01 {
		return "under 1 %"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}
