package capacity_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/go-cmp/cmp"

	"holdfast/internal/capacity"
	"holdfast/internal/store/dynamo"
)

var update = flag.Bool("update", false, "write the generated tables of docs/capacity.md anew")

const document = "../../docs/capacity.md"

// sections cuts a document at its markers: text, a generated part's name, its text, and
// so on.
func sections(t *testing.T, doc string) (text, names, tables []string) {
	t.Helper()
	for {
		before, rest, found := strings.Cut(doc, "<!-- generated: ")
		text = append(text, before)
		if !found {
			return text, names, tables
		}
		name, rest, _ := strings.Cut(rest, " -->\n")
		body, after, closed := strings.Cut(rest, "<!-- end -->\n")
		if !closed {
			t.Fatalf("%s: generated part %q has no end", document, name)
		}
		names, tables, doc = append(names, name), append(tables, body), after
	}
}

func TestDocument_ShowsTheModelsFigures(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(document)
	if err != nil {
		t.Fatalf("read: got %v, want nil", err)
	}
	want := capacity.Tables(capacity.Current())
	text, names, got := sections(t, string(doc))
	if *update {
		out := text[0]
		for i, name := range names {
			out += fmt.Sprintf("<!-- generated: %s -->\n%s<!-- end -->\n%s", name, want[name], text[i+1])
		}
		if err := os.WriteFile(document, []byte(out), 0o644); err != nil {
			t.Fatalf("write: got %v, want nil", err)
		}
		return
	}
	if len(names) != len(want) {
		t.Errorf("generated parts: got %q, want each of %d once", names, len(want))
	}
	for i, name := range names {
		if diff := cmp.Diff(want[name], got[i]); diff != "" {
			t.Errorf("%s, %s (-model +document), go test ./internal/capacity -run Document -update writes it anew:\n%s", document, name, diff)
		}
	}
}

func TestDocument_SaysWhatHappensAtEachLimit(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(document)
	if err != nil {
		t.Fatalf("read: got %v, want nil", err)
	}
	rules, err := os.ReadFile("../../deploy/prometheus/alerts.yml")
	if err != nil {
		t.Fatalf("read alerts: got %v, want nil", err)
	}
	_, at, found := strings.Cut(string(doc), "\n## At the limit\n")
	if !found {
		t.Fatal("section At the limit: got none, want one")
	}
	at, _, _ = strings.Cut(at, "\n## ")
	in := capacity.Current()
	p, o := capacity.Choose(in, 1)
	limits := capacity.Limits(in, p, o)
	for _, l := range limits {
		if strings.Count(at, "\n| "+l.Name+" |") != 1 {
			t.Errorf("limit %q: got no row or several in At the limit, want one", l.Name)
		}
	}
	if got, want := strings.Count(at, "\n| "), len(limits)+1; got != want {
		t.Errorf("rows of At the limit: got %d, want %d", got, want)
	}
	for _, word := range strings.Split(at, "`") {
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") != "" || strings.ToLower(word) == word || word == strings.ToUpper(word) {
			continue // no alert's name
		}
		if !strings.Contains(string(rules), "alert: "+word+"\n") {
			t.Errorf("alert %s: got none of that name in the rules, want one", word)
		}
	}
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > within*math.Abs(want) {
		t.Errorf("%s: got %.6g, want %.6g within %.3g %%", what, got, want, 100*within)
	}
}

func TestQueue_WaitsAsTheClosedFormsSay(t *testing.T) {
	t.Parallel()
	const service = 100e-6
	for _, use := range []float64{0.3, 0.6, 0.8} {
		rate := use / service
		fixed := capacity.Queue(1, 1, rate, func(*rand.Rand) float64 { return service }, 200_000)
		near(t, fmt.Sprintf("M/D/1 at %.1f, wait", use), fixed.Mean, capacity.MD1(rate, service), 0.05)
		near(t, fmt.Sprintf("M/D/1 at %.1f, use", use), fixed.Use, use, 0.02)
		chance := capacity.Queue(2, 1, rate, func(r *rand.Rand) float64 { return service * r.ExpFloat64() }, 200_000)
		near(t, fmt.Sprintf("M/M/1 at %.1f, wait", use), chance.Mean, service*use/(1-use), 0.08)
		near(t, fmt.Sprintf("M/M/1 at %.1f, Little's law", use), chance.Inside, capacity.Little(rate, chance.Mean+service), 0.03)
	}
	// Servers enough for all: nobody waits, and those inside are rate times stay.
	many := capacity.Queue(3, 500, 1000, func(r *rand.Rand) float64 { return 0.2 * r.ExpFloat64() }, 200_000)
	near(t, "M/M/many, Little's law", many.Inside, capacity.Little(1000, 0.2), 0.03)
	if many.Mean != 0 {
		t.Errorf("M/M/many, wait: got %v, want 0", many.Mean)
	}
	if got := capacity.MD1(2/service, service); !math.IsInf(got, 1) {
		t.Errorf("M/D/1 over its capacity: got %v, want +Inf", got)
	}
}

// calm is a sale whose rush and seats last, so that the gateway's slots reach their
// steady state.
func calm() capacity.Inputs {
	in := capacity.Current()
	in.Demand.Rush.Value, in.Demand.Seats.Value = 200, 1e9
	return in
}

func TestSimulate_SlotsInUseAreRateTimesTheirTime(t *testing.T) {
	t.Parallel()
	in := calm()
	o := capacity.Simulate(in, capacity.Plan{Scale: 1, Instances: 3, Cores: 2, Workers: 3, Slots: 1e6, Shards: 1})
	rate := o.Admitted // those who were cut off come again, so it is a little more than arrives first
	near(t, "slots", o.Slots, capacity.Little(rate, capacity.SlotTime(in)), 0.01)
	near(t, "admissions/s", rate, in.Demand.Rate.Value*in.People.Fresh.Value, 0.02)
}

// The mean of a log-normal time that is cut off is known in closed form.
func TestSlotTime_IsTheMeanOfTheCutOffLogNormal(t *testing.T) {
	t.Parallel()
	in := capacity.Current()
	normal := func(z float64) float64 { return 0.5 * math.Erfc(-z/math.Sqrt2) }
	const z99 = 2.326348
	mu, end := math.Log(in.Gateway.Median.Value), in.Gateway.CutOff.Value
	sigma := math.Log(in.Gateway.P99.Value/in.Gateway.Median.Value) / z99
	z := (math.Log(end) - mu) / sigma
	want := math.Exp(mu+sigma*sigma/2)*normal(z-sigma) + end*(1-normal(z))
	near(t, "slot time", capacity.SlotTime(in), want, 1e-3)
}

func TestSimulate_SlotsBoundTheRateOfSale(t *testing.T) {
	t.Parallel()
	in := calm()
	const slots = 300
	o := capacity.Simulate(in, capacity.Plan{Scale: 1, Instances: 3, Cores: 2, Workers: 3, Slots: slots / 3, Shards: 1})
	near(t, "slots in use", o.Slots, slots, 1e-9)
	near(t, "payments of what was admitted", o.Payments, slots/capacity.SlotTime(in)*in.People.PaidFirst.Value, 0.05)
	if o.TurnedAway == 0 || o.Waiting == 0 {
		t.Errorf("waiting and turned away: got %v and %v, want some of both", o.Waiting, o.TurnedAway)
	}
}

func TestSimulate_SellsTheSeatsAndNoMore(t *testing.T) {
	t.Parallel()
	in := capacity.Current()
	in.People.PayMean.Value = 5 // everybody has paid before the end
	in.People.PaidFirst.Value = 1
	for _, slots := range []int{100, 320, 1000} {
		o := capacity.Simulate(in, capacity.Plan{Scale: 1, Instances: 3, Cores: 2, Workers: 3, Slots: slots, Shards: 1})
		near(t, fmt.Sprintf("paid seats with %d slots", slots), o.Paid, in.Demand.Seats.Value, 1e-3)
	}
}

func TestSimulate_SlowWorkerLeavesAQueue(t *testing.T) {
	t.Parallel()
	in := capacity.Current()
	p, fast := capacity.Choose(in, 1)
	if fast.QueueAge > 0.1 {
		t.Errorf("queue of the plan: got %v s old, want none to speak of", fast.QueueAge)
	}
	in.Slow.BatchTime.Value *= 12 // three workers write 500 records a second
	slow := capacity.Simulate(in, p)
	arrived := in.Demand.Seats.Value
	took := arrived / (3 * capacity.WorkerRate(in))
	near(t, "deepest queue", slow.QueueDepth, arrived*(1-fast.SoldOut/took), 0.1)
	near(t, "oldest message", slow.QueueAge, took-fast.SoldOut, 0.1)
}

func TestChoose_KeepsEveryPartUnderTheCeilingAndNoneTooLarge(t *testing.T) {
	t.Parallel()
	in := capacity.Current()
	ceiling := in.API.Ceiling.Value
	for _, scale := range []float64{0.1, 1, 3, 10, 100} {
		p, o := capacity.Choose(in, scale)
		cores := float64(p.Instances * p.Cores)
		for what, use := range map[string]float64{
			"API": o.APICores / cores, "Redis": o.RedisUse, "slots": o.Slots / float64(p.Instances*p.Slots),
			"worker": o.Sends / (float64(p.Workers) * capacity.WorkerRate(in)),
		} {
			most := ceiling
			if what == "slots" {
				most = 0.85
			}
			if use > most || use == 0 {
				t.Errorf("%v×, use of %s: got %.2f, want up to %.2f", scale, what, use, most)
			}
		}
		if lost := o.APICores / cores * 3 / 2; lost > 0.9 {
			t.Errorf("%v×, use of the API without a zone: got %.2f, want up to 0.90", scale, lost)
		}
		if o.TurnedAway > 0 {
			t.Errorf("%v×, turned away for want of a slot: got %v, want 0", scale, o.TurnedAway)
		}
		if p.Instances > 3 && o.APICores/(cores-3*float64(p.Cores)) < ceiling {
			t.Errorf("%v×: got %d instances, want three fewer: they would do", scale, p.Instances)
		}
		if fewer := p; p.Shards > 1 {
			fewer.Shards--
			if got := capacity.Simulate(in, fewer).RedisUse; got < ceiling {
				t.Errorf("%v×: got %d primaries, want one fewer: it would do", scale, p.Shards)
			}
		}
	}
}

// What was measured is set here and in Rehearsal; the API's cost of a payment was fitted
// to it, and one factor to the other three.
func TestSpent_IsWhatTheRehearsalMeasured(t *testing.T) {
	t.Parallel()
	in := capacity.Current()
	done, measured := capacity.Rehearsal()
	model := capacity.Spent(in, done)
	for _, c := range []struct {
		process               string
		got, measured, within float64
	}{
		{"api", model.API, measured.API, 0.05},
		{"redis primary", model.Redis, measured.Redis, 0.15},
		{"redis replica", model.Replica, measured.Replica, 0.20},
		{"worker", model.Worker, measured.Worker, 0.20},
	} {
		near(t, c.process+", seconds of CPU", c.got, c.measured, c.within)
	}
	if got := capacity.BusiestMinute(in); got < 0.01 || got > 0.10 {
		t.Errorf("Redis in the design's busiest minute: got %.3f of a core, want 0.01 to 0.10", got)
	}
}

// The rehearsal's processor seconds stand in docs/benchmarks.md too.
func TestRehearsal_IsTheOneOfTheBenchmarks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, row, _ := strings.Cut(string(text), "| processor seconds: api, crowd, Redis, replica, gateway, worker | ")
	row, _, _ = strings.Cut(row, " |")
	_, m := capacity.Rehearsal()
	var api, crowd, redis, replica, gateway, worker float64
	if _, err := fmt.Sscanf(row, "%f, %f, %f, %f, %f, %f", &api, &crowd, &redis, &replica, &gateway, &worker); err != nil {
		t.Fatalf("docs/benchmarks.md: row %q: %v", row, err)
	}
	if got := (capacity.CPU{API: api, Redis: redis, Replica: replica, Worker: worker}); got != m {
		t.Errorf("docs/benchmarks.md: got %+v, want the model's %+v", got, m)
	}
}

func TestModel_SameInputsSameFigures(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(capacity.Tables(capacity.Current()), capacity.Tables(capacity.Current())); diff != "" {
		t.Errorf("tables, a second time (-first +second):\n%s", diff)
	}
}

// puts is a DynamoDB that takes everything and keeps the last item that was put.
type puts struct{ item map[string]map[string]string }

func (p *puts) RoundTrip(r *http.Request) (*http.Response, error) {
	var body struct{ Item map[string]map[string]string }
	err := json.NewDecoder(r.Body).Decode(&body)
	_ = r.Body.Close()
	p.item = body.Item
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, err
}

// The item's size is worked out from the record's JSON; here from what the driver sends.
func TestItemBytes_AreThoseTheDriverWrites(t *testing.T) {
	t.Parallel()
	sent := new(puts)
	client := dynamodb.New(dynamodb.Options{
		Region: "ap-south-1", HTTPClient: &http.Client{Transport: sent},
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	})
	held, paid := capacity.Sample(capacity.Current())
	if _, _, err := dynamo.New(client, "bookings").PutHeld(context.WithoutCancel(t.Context()), held); err != nil {
		t.Fatalf("put: got %v, want nil", err)
	}
	size := 0
	for name, value := range sent.item {
		size += len(name)
		if n, ok := value["N"]; ok {
			if _, err := strconv.ParseInt(n, 10, 64); err != nil {
				t.Errorf("%s: got number %q, want a whole one", name, n)
			}
			size += (len(strings.TrimRight(n, "0"))+1)/2 + 1
			continue
		}
		size += len(value["S"])
	}
	if got := capacity.ItemBytes(held); got != size || size == 0 {
		t.Errorf("item of a held record: got %d bytes, want %d", got, size)
	}
	if got := capacity.ItemBytes(paid); got <= size || capacity.Units(got) != 1 {
		t.Errorf("item of a paid record: got %d bytes, want more than %d, and one unit", got, size)
	}
	for bytes, want := range map[int]float64{1: 1, 1024: 1, 1025: 2, 4096: 4} {
		if got := capacity.Units(bytes); got != want {
			t.Errorf("units of %d bytes: got %v, want %v", bytes, got, want)
		}
	}
}
