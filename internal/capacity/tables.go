package capacity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// scales are what the document shows.
var scales = [...]float64{1, 10, 100}

// day is how long the machines of a launch stand ready, in hours.
const day = 24

// sized is a scale with what it is run on and what becomes of it.
type sized struct {
	Plan
	Outcome
	use Usage
}

// Tables are the document's generated parts by the name in their markers, as Markdown.
func Tables(in Inputs) map[string]string {
	all := make([]sized, len(scales))
	for i, scale := range scales {
		p, o := Choose(in, scale)
		all[i] = sized{p, o, Used(in, scale, o)}
	}
	return map[string]string{
		"short":  short(in, all[0]),
		"inputs": table([]string{"inputs", "mark", "from"}, inputRows(in)),
		"costs":  table([]string{"part", "an admission, to its 202", "a paid seat, on top", "a refusal", "mark"}, costRows(in, all[0].use)),
		"plans":  table([]string{"", "1×", "10×", "100×"}, planRows(in, all)),
		"slots":  table([]string{"scale", "slots in all", "sold out after", "waiting, most", "answers \"try again\"", "Redis, one primary"}, slotRows(in, all)),
		"money":  table([]string{"USD", "of what at 1×", "1×", "10×", "100×"}, moneyRows(in, all)),
		"limits": table([]string{"limit", "there is", "1× needs", "10× needs", "met at", "mark", "from"}, limitRows(in, all[0], all[1])),
		"check":  table([]string{"", "model", "measured"}, checkRows(in)),
	}
}

// table writes Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(head)))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

// short is what to know before all else.
func short(in Inputs, one sized) string {
	met := map[string]float64{}
	needs := map[string]float64{}
	for _, l := range Limits(in, one.Plan, one.Outcome) {
		met[l.Name], needs[l.Name] = l.breaks(in, one.Plan, one.Outcome), l.Use(in, one.Plan, one.Outcome)
	}
	sum, own := 0.0, 0.0
	for _, l := range Bill(in, one.Plan, one.use, day) {
		sum += l.Dollars
		if l.What == "SQS" || strings.HasPrefix(l.What, "DynamoDB") || l.What == "Lambda" {
			own += l.Dollars
		}
	}
	thread := met["Redis primary, one thread"]
	lines := []string{
		fmt.Sprintf("**1×** runs on %d × c7g.%s (%s busy) and a cache.r6g.large with two replicas (%s). The seats are gone in %s s. It costs %s USD; queue, table and functions are %.2f of it.",
			one.Instances, sizeName(one.Cores), percent(one.APICores/float64(one.Instances*one.Cores)), percent(one.RedisUse), about(one.SoldOut), about(sum), own),
		fmt.Sprintf("**Before any launch** two limits on mail must be raised: SES's sandbox, and our own share of what SES grants: the promise of 12 minutes needs %s mails a second, and the share in deploy/env carries %s×.",
			about(needs["SES, our share"]), about(met["SES, our share"])),
		fmt.Sprintf("**The table is warmed**, although it throttles only from %s× on.", about(met["DynamoDB table, not warmed"])),
		fmt.Sprintf("**Redis's one thread is the design's limit**: full at %s×, at its ceiling of %s at %s×. No larger node has a much faster one. Beyond, one sale becomes several.",
			about(thread), percent(in.API.Ceiling.Value), about(thread*in.API.Ceiling.Value)),
		"**Slots do not protect Redis** from a larger crowd: whoever finds none is checked, and comes again.",
		fmt.Sprintf("**The gateway's token** stands in the way of several sales: from %.0f Redis primaries on, one merchant account can be locked for an hour.", math.Floor(met["gateway token, one merchant account"])+1),
	}
	return "- " + strings.Join(lines, "\n- ") + "\n"
}

func costRows(in Inputs, u Usage) [][]string {
	r, e, x := in.Redis, in.Edge, in.Prices
	micros := func(v float64) string { return about(v) + " µs" }
	both := func(of func(func(Pair) float64) float64) string {
		return fmt.Sprintf("%s to %s", about(of(busy)), micros(of(alone)))
	}
	mail := x.Mail.Value * 1000
	edge := x.Requests.Value*100 + x.WAF.Value + e.APIBytes.Value/1000*x.Transfer.Value
	hold := u.SQSPerHold*x.SQS.Value + u.WritesPerHold*x.Write.Value + edge
	paid := u.WritesPerPaid*x.Write.Value + in.Slow.PaidReads.Value*x.Read.Value + mail + edge*(1+in.People.LooksAHold.Value)
	return [][]string{
		{"API, CPU", micros(in.API.Admission.Value), micros(in.API.Payment.Value), micros(in.API.Refusal.Value), "modelled"},
		{"Redis primary, CPU, among many to alone", both(func(f func(Pair) float64) float64 { return holdCost(r, f) }),
			both(func(f func(Pair) float64) float64 { return paidCost(r, f) }), both(func(f func(Pair) float64) float64 { return f(r.Refusal) }), "measured"},
		{"each replica, CPU", both(func(f func(Pair) float64) float64 { return f(in.Replica.Hold) }),
			both(func(f func(Pair) float64) float64 { return f(in.Replica.Payment) }), "0", "measured"},
		{"script runs, of them awaited", "3, 3", "4, 4", "1/32 to 1, 0", "source"},
		{"replication stream, to each replica", about(in.Ledger.ReplHold.Value) + " B", about(in.Ledger.ReplPaid.Value) + " B", "0", "measured"},
		{"Redis memory", about(in.Ledger.Seat.Value) + " B", "0", "0", "measured"},
		{"gateway calls", "create", "execute", "0", "source"},
		{"a gateway slot", about(SlotTime(in)) + " s", "none", "none", "modelled"},
		{"queue message; requests", fmt.Sprintf("%d B; %.1f", u.Message, u.SQSPerHold), "0", "0", "modelled"},
		{"worker, CPU", micros(in.Slow.WorkerCPU.Value), "0", "0", "modelled"},
		{"table item; write units", fmt.Sprintf("%d B; %.0f + 1 of the index", u.HeldItem, u.WritesPerHold-1), fmt.Sprintf("%d B; %.0f", u.PaidItem, u.WritesPerPaid), "0", "modelled"},
		{"table, read units", "0", about(in.Slow.PaidReads.Value), "0", "modelled"},
		{"stream records, each to two functions", "1", about(in.Slow.PaidWrites.Value), "0", "source"},
		{"PostgreSQL upserts", "0", "1 to 3", "0", "source"},
		{"mail", "0", "1", "0", "source"},
		{"a read of `status.json` at the edge, USD a million", "", "", about(x.Requests.Value*100 + x.WAF.Value + e.StatusBytes.Value/1000*x.Transfer.Value), "modelled"},
		{"by use, USD a million", about(hold), about(paid), about(edge), "modelled"},
	}
}

// waits simulates the queues for a core and for Redis at a plan's peak: the 99th
// percentile of each, and the mean of the second by the closed form, in seconds.
func waits(in Inputs, p Plan, o Outcome) (core, redis, md1 float64) {
	const n = 40_000
	pay, crowd := in.API.Payment.Value*1e-6, o.Payments/o.Requests
	other := (o.APICores/in.API.Core.Value - o.Payments*pay) / (o.Requests - o.Payments)
	core = Queue(1, p.Instances*p.Cores, o.Requests, func(rng *rand.Rand) float64 {
		if rng.Float64() < crowd {
			return pay * in.API.Core.Value
		}
		return other * in.API.Core.Value
	}, n).P99
	run := o.RedisUse / o.RedisRuns
	redis = Queue(2, 1, o.RedisRuns, func(*rand.Rand) float64 { return run }, n).P99
	return core, redis, MD1(o.RedisRuns, run)
}

func planRows(in Inputs, all []sized) [][]string {
	names := []string{
		"instances, each with API and worker", "gateway slots of each", "worker processes in all", "cache.r6g.large primaries, two replicas each",
		"sold out after", "admissions/s", "cut off at the gateway: 502, the seat goes back", "gateway calls in flight", "of them by Little's law", "executes in flight, which need no slot",
		"API, cores at work", "API, use", "API, use with a zone gone", "wait for a core, p99",
		"Redis, use of the thread", "Redis, wait for it, p99 (mean by M/D/1)", "replication stream, to each replica", "Redis, use of its network", "Redis, memory of each",
		"payments/s", "records sent/s", "queue, oldest", "table write units/s", "index write units/s", "warm throughput to ask for, table and index",
		"data kept in the table", "LCUs to reserve at the balancer",
	}
	rows := make([][]string, len(names))
	for i, name := range names {
		rows[i] = []string{name}
	}
	for _, s := range all {
		p, o, u := s.Plan, s.Outcome, s.use
		core, redis, md1 := waits(in, p, o)
		cores := float64(p.Instances * p.Cores)
		stream := o.Admitted*in.Ledger.ReplHold.Value + o.Payments*in.Ledger.ReplPaid.Value
		gb := in.Ledger.Baseline.Value * 1e9
		column := []string{
			fmt.Sprintf("%d × c7g.%s", p.Instances, sizeName(p.Cores)), number(float64(p.Slots)), number(float64(p.Workers)), number(float64(p.Shards)),
			about(o.SoldOut) + " s", about(o.Admitted), about(o.CutOff), about(o.Slots), about(Little(in.Demand.Rate.Value*in.People.Fresh.Value*p.Scale, SlotTime(in))), about(Little(o.Payments, SlotTime(in))),
			about(o.APICores), percent(o.APICores / cores), percent(o.APICores / cores * zones / (zones - 1)), millis(core),
			percent(o.RedisUse), millis(redis) + " (" + millis(md1) + ")", about(stream/1e6/float64(p.Shards)) + " MB/s", percent(o.RedisBits / gb), about(u.RedisBytes/float64(p.Shards)/1e6) + " MB",
			about(o.Payments), about(o.Sends), about(o.QueueAge) + " s", about(o.TableWrites), about(o.IndexWrites), number(warm(o.TableWrites)) + ", " + number(warm(o.IndexWrites)),
			about((u.Paid*float64(u.PaidItem)+u.Lapsed*float64(u.HeldItem))/1e6) + " MB",
			about(u.LCUs),
		}
		for i, cell := range column {
			rows[i] = append(rows[i], cell)
		}
	}
	return rows
}

func millis(seconds float64) string {
	if seconds < 5e-6 {
		return "0 ms"
	}
	return about(seconds*1000) + " ms"
}

func sizeName(cores int) string {
	if cores == sizes[0] {
		return "large"
	}
	if cores == sizes[1] {
		return "xlarge"
	}
	return fmt.Sprintf("%dxlarge", cores/sizes[1])
}

func slotRows(in Inputs, all []sized) [][]string {
	var rows [][]string
	for _, c := range []struct {
		of    sized
		slots []int
	}{{all[0], []int{3000, 960, 750, 450, 300, 150}}, {all[1], []int{9600, 3000, 960}}} {
		for _, slots := range c.slots {
			p := c.of.Plan
			p.Instances, p.Slots, p.Shards = 3, slots/3, 1
			o := Simulate(in, p)
			sold := "not within 4 min"
			if !math.IsInf(o.SoldOut, 1) {
				sold = about(o.SoldOut) + " s"
			}
			rows = append(rows, []string{fmt.Sprintf("%.0f×", p.Scale), number(float64(slots)), sold, about(o.Waiting), about(o.TurnedAway), percent(o.RedisUse)})
		}
	}
	return rows
}

func moneyRows(in Inputs, all []sized) [][]string {
	var rows [][]string
	total := []string{"**a launch**", "the day; by use once"}
	for i, s := range all {
		sum := 0.0
		for j, l := range Bill(in, s.Plan, s.use, day) {
			if i == 0 {
				rows = append(rows, []string{l.What, l.Quantity})
			}
			rows[j] = append(rows[j], fmt.Sprintf("%.2f", l.Dollars))
			sum += l.Dollars
		}
		total = append(total, "**"+number(math.Round(sum))+"**")
	}
	return append(rows, total)
}

func limitRows(in Inputs, one, ten sized) [][]string {
	var rows [][]string
	for _, l := range Limits(in, one.Plan, one.Outcome) {
		there, mark, met := number(l.Limit.Value)+spaced(l.Limit.Unit), string(l.Limit.Mark), "unknown"
		if l.Limit.Value == 0 {
			there, mark = "not published: ask", ""
		}
		if at := l.breaks(in, one.Plan, one.Outcome); !math.IsInf(at, 1) {
			met = about(at) + "×"
		}
		rows = append(rows, []string{
			l.Name, there, about(l.Use(in, one.Plan, one.Outcome)), about(l.Use(in, ten.Plan, ten.Outcome)), met, mark, l.Limit.Source,
		})
	}
	return rows
}

// Rehearsal is what was done in the scale-1 rehearsal on two cores, and the seconds of
// CPU that were measured of it: 31,100 holds and 580,000 other requests in 200 s. How
// many of those reached Redis is modelled: some 50,000 bookings that took no seat and
// 80,000 looks at bookings; the rest read page and status.
func Rehearsal() (done Work, measured CPU) {
	return Work{BusyHolds: 20_700, Holds: 31_100, Paid: 20_700, Lapsed: 10_400, Refusals: 50_000, Looks: 80_000, Reads: 420_000},
		CPU{API: 122, Redis: 26, Replica: 7, Worker: 12}
}

// BusiestMinute is the share of its one core that Redis works in the busiest minute of
// the launch that the design tells of: all of the hour's work, as that minute has its
// part of the hour's requests, half of those that took no seat being looks at bookings.
func BusiestMinute(in Inputs) float64 {
	d := in.Demand
	other := (d.OriginHour.Value - d.Holds.Value - d.Seats.Value) / 2
	spent := Spent(in, Work{
		Holds: d.Holds.Value, Paid: d.Seats.Value, Lapsed: d.Holds.Value - d.Seats.Value, Refusals: other, Looks: other,
	})
	return spent.Redis * d.OriginMinute.Value / d.OriginHour.Value / 60
}

func checkRows(in Inputs) [][]string {
	done, measured := Rehearsal()
	model := Spent(in, done)
	seconds := func(what string, model, measured float64) []string {
		return []string{what, about(model) + " s", number(measured) + " s"}
	}
	return [][]string{
		seconds("rehearsal, CPU of the API (fitted)", model.API, measured.API),
		seconds("rehearsal, CPU of the Redis primary", model.Redis, measured.Redis),
		seconds("rehearsal, CPU of the replica", model.Replica, measured.Replica),
		seconds("rehearsal, CPU of the worker", model.Worker, measured.Worker),
		{"design's launch, Redis in the busiest minute", percent(BusiestMinute(in)), "under 10 % (source)"},
	}
}
