package alarms_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/deploy/prometheus"
	"holdfast/internal/alarms"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process gives metrics, or none while it is away.
type process struct {
	mu   sync.Mutex
	text string
	away bool
}

func (p *process) set(lines ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = strings.Join(lines, "\n") + "\n"
}

func (p *process) leave(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

func (p *process) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	fmt.Fprint(w, p.text)
}

// world is processes, a clock, and a watch over them.
type world struct {
	*alarms.Watch
	processes []*process
	urls      []string
	now       time.Time
}

func watch(t *testing.T, n int, rules string) *world {
	t.Helper()
	w := &world{now: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)}
	for range n {
		p := new(process)
		server := httptest.NewServer(p)
		t.Cleanup(server.Close)
		w.processes, w.urls = append(w.processes, p), append(w.urls, server.URL+"/metrics")
	}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var err error
	w.Watch, err = alarms.New(alarms.Options{
		Targets: w.urls, Jobs: []alarms.Job{{Name: "seller", Metric: "sells"}, {Name: "packer", Metric: "packs"}},
		Rules: [][]byte{[]byte(rules)}, Client: hc, Now: func() time.Time { return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// look scrapes and judges after some time.
func (w *world) look(t *testing.T, after time.Duration) []alarms.Alarm {
	t.Helper()
	w.now = w.now.Add(after)
	w.Scrape(t.Context())
	return w.Judge(t.Context())
}

// want compares names and states, in order.
func want(t *testing.T, when string, got []alarms.Alarm, states ...string) {
	t.Helper()
	var list []string
	for _, a := range got {
		list = append(list, a.Name+" "+string(a.State))
	}
	if diff := cmp.Diff(states, list); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", when, diff)
	}
}

const rules = `
groups:
  - name: money
    interval: 15s
    rules:
      - alert: DoubtTooLong
        expr: holdfast_rows_in_doubt > 0
        for: 1m
        labels: {severity: page}
        annotations:
          summary: '{{ $value }} seats in doubt at {{ $labels.instance }}'
          runbook: docs/runbooks/doubt.md
`

func TestJudge_FiresOnceItHasHeldForAsLongAsTheRuleWants(t *testing.T) {
	t.Parallel()
	w := watch(t, 1, rules)
	w.processes[0].set("holdfast_rows_in_doubt 0")
	want(t, "at first", w.look(t, 0), "DoubtTooLong fine")
	w.processes[0].set("holdfast_rows_in_doubt 2")
	want(t, "when it begins", w.look(t, 10*time.Second), "DoubtTooLong pending")
	began := w.now
	want(t, "a moment before", w.look(t, 59*time.Second), "DoubtTooLong pending")
	got := w.look(t, time.Second)
	want(t, "after its time", got, "DoubtTooLong firing")
	host := strings.TrimSuffix(strings.TrimPrefix(w.urls[0], "http://"), "/metrics")
	wanted := alarms.Alarm{
		Name: "DoubtTooLong", Severity: "page", State: alarms.StateFiring, Since: began,
		Labels: map[string]string{"instance": host, "job": "unknown"}, Summary: "2 seats in doubt at " + host, Runbook: "docs/runbooks/doubt.md",
	}
	if diff := cmp.Diff(wanted, got[0]); diff != "" {
		t.Errorf("alarm (-want +got):\n%s", diff)
	}
	w.processes[0].set("holdfast_rows_in_doubt 0")
	want(t, "when it is over", w.look(t, 10*time.Second), "DoubtTooLong fine")
	w.processes[0].set("holdfast_rows_in_doubt 1")
	want(t, "when it begins again", w.look(t, 10*time.Second), "DoubtTooLong pending")
}

func TestJudge_TooLittleHistoryIsNeverFine(t *testing.T) {
	t.Parallel()
	w := watch(t, 1, `
groups:
  - name: g
    rules:
      - record: misses:rate2m
        expr: sum(rate(misses_total[2m]))
      - alert: Recorded
        expr: misses:rate2m > 100
      - alert: Rate
        expr: rate(misses_total[2m]) > 100
      - alert: Longest
        expr: increase(misses_total[3h]) > 100
      - alert: Now
        expr: misses_total > 1e9
`)
	w.processes[0].set("misses_total 1")
	want(t, "after one look", w.look(t, 0), "Longest not enough history", "Rate not enough history", "Recorded not enough history", "Now fine")
	var got []alarms.Alarm
	for range 12 {
		got = w.look(t, 10*time.Second)
	}
	want(t, "after two minutes", got, "Longest not enough history", "Now fine", "Rate fine", "Recorded fine")

	// True over a part of what it looks at: not fine, and no proof either.
	w.processes[0].set("misses_total 100000")
	want(t, "when all hold", w.look(t, 10*time.Second), "Rate firing", "Recorded firing", "Longest pending", "Now fine")
}

// Nothing has happened in two seconds is no word about two minutes: a look that has
// just begun alarms nobody.
func TestJudge_TrueOfAMomentIsNotEnoughHistory(t *testing.T) {
	t.Parallel()
	w := watch(t, 1, `
groups:
  - name: g
    rules:
      - alert: Unread
        expr: increase(reads_total[2m]) == 0
        for: 1m
`)
	w.processes[0].set("reads_total 7")
	want(t, "after one look", w.look(t, 0), "Unread not enough history")
	want(t, "after another", w.look(t, 2*time.Second), "Unread not enough history")
	want(t, "after more than a minute", w.look(t, 65*time.Second), "Unread pending")
	want(t, "after two", w.look(t, 60*time.Second), "Unread firing")
}

func TestJudge_WhatNobodyGivesIsNotFine(t *testing.T) {
	t.Parallel()
	w := watch(t, 2, `
groups:
  - name: g
    rules:
      - alert: QueueOld
        expr: queue_age_seconds > 60
      - alert: Gone
        expr: absent(other_metric)
      - alert: Down
        expr: up == 0
      - alert: Wrong
        expr: queue_age_seconds + on() group_left() up > 0
`)
	w.processes[0].set("other_metric 1")
	w.processes[1].set("queue_age_seconds 1")
	want(t, "when both answer", w.look(t, 0), "Wrong not evaluated", "Down fine", "Gone fine", "QueueOld fine")
	w.processes[1].leave(true)
	got := w.look(t, 10*time.Second)
	want(t, "when the second is away", got, "Down firing", "QueueOld no data", "Wrong no data", "Gone fine")
	if want := "no process gives queue_age_seconds"; got[1].Note != want {
		t.Errorf("note: got %q, want %q", got[1].Note, want)
	}
	told := w.Targets()
	if told[0].Error != "" || told[1].Error != "it answers 503 Service Unavailable" {
		t.Errorf("processes: got %+v, want that the second does not answer", told)
	}
	w.processes[0].set("queue_age_seconds 90")
	want(t, "when a metric ends", w.look(t, 10*time.Second), "Down firing", "Gone firing", "QueueOld firing", "Wrong not evaluated")
}

func TestJudge_AProcessThatCameBackHasAShortHistory(t *testing.T) {
	t.Parallel()
	w := watch(t, 1, "groups: [{name: g, rules: [{alert: Rate, expr: 'rate(a_total[1m]) > 1'}]}]")
	w.processes[0].set("a_total 1")
	for range 7 {
		w.look(t, 10*time.Second)
	}
	want(t, "after a minute", w.look(t, 0), "Rate fine")
	w.processes[0].leave(true)
	want(t, "away", w.look(t, 10*time.Second), "Rate no data")
	w.processes[0].leave(false)
	want(t, "back", w.look(t, 10*time.Second), "Rate not enough history")

	// The youngest of several counts, whichever it is.
	for young := range 2 {
		w := watch(t, 2, "groups: [{name: g, rules: [{alert: Rate, expr: 'rate(a_total[1m]) > 1'}]}]")
		w.processes[0].set("a_total 1")
		w.processes[1].set("a_total 1")
		w.processes[young].leave(true)
		for range 7 {
			w.look(t, 10*time.Second)
		}
		want(t, "one of two", w.look(t, 0), "Rate fine")
		w.processes[young].leave(false)
		want(t, "the other comes", w.look(t, 10*time.Second), "Rate not enough history")
	}
}

func TestQuery_ReadsHistogramsAndSumsOverProcesses(t *testing.T) {
	t.Parallel()
	w := watch(t, 2, rules)
	for i, p := range w.processes {
		p.set("# TYPE a counter", fmt.Sprintf("a %d", i+1), "# TYPE h histogram", `h_bucket{le="1"} 3`, `h_bucket{le="+Inf"} 4`, "h_sum 7", "h_count 4")
	}
	w.look(t, 0)
	for expr, value := range map[string]float64{"sum(a)": 3, "sum(h_count)": 8, `sum(h_bucket{le="1"})`: 6, "count(up == 1)": 2, `sum({__name__=~"h_.+"})`: 36} {
		got, err := w.Query(t.Context(), expr)
		if err != nil || len(got) != 1 || got[0].Value != value {
			t.Errorf("%s: got %v, %v, want %v", expr, got, err, value)
		}
	}
	if got, err := w.Query(t.Context(), "sum(nothing)"); err != nil || len(got) != 0 {
		t.Errorf("a metric that is not there: got %v, %v, want no sample", got, err)
	}
	if _, err := w.Query(t.Context(), "sum("); err == nil {
		t.Error("an expression that is none: got nil, want an error")
	}
}

func TestNew_NamesTheRuleThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ rules, want string }{
		"NoYAML":     {"\t", "rules file"},
		"NoRule":     {"groups: []", "it has no rule"},
		"Expression": {"groups: [{name: g, rules: [{alert: Broken, expr: 'sum('}]}]", "group g, Broken"},
		"NoName":     {"groups: [{name: g, rules: [{expr: 'up'}]}]", "group g, rule 1: want alert or record"},
		"Duration":   {"groups: [{name: g, rules: [{alert: A, expr: up, for: soon}]}]", "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := alarms.New(alarms.Options{Rules: [][]byte{[]byte(c.rules)}, Now: time.Now})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error that says %q", err, c.want)
			}
		})
	}
}

func TestScrape_SaysWhyAProcessGaveNothing(t *testing.T) {
	t.Parallel()
	w := watch(t, 2, rules)
	if got := w.Targets(); got[0].Error != "not asked yet" {
		t.Errorf("before the first look: got %+v, want that it was not asked", got[0])
	}
	w.processes[0].set("this is { no metric")
	w.processes[1].set("a " + strings.Repeat("1", 5<<20))
	got := w.Scrape(t.Context())
	if !strings.Contains(got[0].Error, "read its metrics") || !strings.Contains(got[1].Error, "too long") {
		t.Errorf("got %.200v, want why each gave nothing", got)
	}
}

func TestScrape_KnowsAProcessesJobByWhatItGives(t *testing.T) {
	t.Parallel()
	w := watch(t, 3, rules)
	w.processes[0].set("sells 1")
	w.processes[1].set("packs 1")
	w.processes[2].set("sells 1", "packs 1", "other 1")
	jobs := func(expr string) map[string]float64 {
		t.Helper()
		list, err := w.Query(t.Context(), expr)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, s := range list {
			out[s.Labels["job"]] = s.Value
		}
		return out
	}
	w.look(t, 0)
	if diff := cmp.Diff(map[string]float64{"seller": 2, "packer": 2}, jobs("sum by (job) (up)")); diff != "" {
		t.Errorf("processes that are up (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{"seller": 1}, jobs("other")); diff != "" {
		t.Errorf("job of a process with two (-want +got):\n%s", diff)
	}
	w.processes[1].leave(true)
	w.look(t, time.Second)
	if diff := cmp.Diff(map[string]float64{"seller": 2, "packer": 1}, jobs("sum by (job) (up)")); diff != "" {
		t.Errorf("when a packer is away (-want +got):\n%s", diff)
	}
}

// What is shipped is read, and what this package does not understand would not be seen.
func TestNew_ReadsTheRulesThatAreShipped(t *testing.T) {
	t.Parallel()
	w, err := alarms.New(alarms.Options{Rules: prometheus.Rules(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got := w.Judge(t.Context()); len(got) < 20 {
		t.Errorf("got %d alarms, want the twenty of the contract at least", len(got))
	} else if n := alarms.Count(got); n[alarms.StateFine] > 0 || n[alarms.StateFailed] > 0 {
		t.Errorf("without any process: got %v, want none fine and none that cannot be evaluated", n)
	}
}

// What a process that has never answered is up for, nobody knows.
func TestJudge_AProcessThatHasNeverAnsweredLeavesNoRuleAboutJobsFine(t *testing.T) {
	t.Parallel()
	w := watch(t, 2, "groups: [{name: g, rules: [{alert: SellerDown, expr: 'up{job=\"seller\"} == 0'}]}]")
	w.processes[0].set("sells 1")
	w.processes[1].leave(true)
	want(t, "at first", w.look(t, 0), "SellerDown no data")
	w.processes[1].set("packs 1")
	w.processes[1].leave(false)
	want(t, "once it has answered", w.look(t, time.Second), "SellerDown fine")
	w.processes[1].leave(true)
	want(t, "when it is away again", w.look(t, time.Second), "SellerDown fine")
	w.processes[0].leave(true)
	want(t, "when the seller is away", w.look(t, time.Second), "SellerDown firing")
}
