package rehearse

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"holdfast/internal/booking"
)

var (
	//go:embed page.html
	pageMarkup string
	//go:embed page.css
	pageStyle string

	pageTemplate = template.Must(template.New("page").Parse(strings.Replace(pageMarkup, "POLICY", pagePolicy(), 1)))
)

// pagePolicy allows the page its one style and its empty icon: no script, no request.
func pagePolicy() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'"
}

// Page writes the report as one HTML file for a browser or a printer. It needs nothing
// beside it, asks nobody for anything and runs no script. What was not measured is a gap,
// not a zero. A report that contradicts itself (its verdict says that it holds, a rule or
// a figure that it does not) is shown as broken. The same report gives the same bytes;
// the error is the writer's, and what was written by then is of no use.
func Page(w io.Writer, r Report) error {
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, newPageView(r)); err != nil {
		return fmt.Errorf("compose the page of the report: %w", err)
	}
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write the page of the report: %w", err)
	}
	return nil
}

// pageView is what page.html shows, in words.
type pageView struct {
	Style                        template.CSS
	Word, Class, Sentence, Began string
	Sold, Cap                    string
	Bar                          []pageBar
	Seats, Figures               []pageFigure
	Rules                        []Rule
	Levels                       []pageLevel
	Gaps                         bool
	Parts                        []pagePart
	Answers, Reads               pageAnswers
	Command                      string
	Run, CPU                     []pageFigure
	Columns                      []string
	Rows                         []pageRow
}

// pageFigure is a figure with its name; Class is how it looks.
type pageFigure struct{ Name, Value, Note, Class string }

// pageBar is the part of a bar from its left end.
type pageBar struct{ Percent, Class string }

type pageLevel struct {
	Name, Sold, Cap, Over string
	Bar                   []pageBar
}

type pageAnswers struct {
	What, Caption string
	Bars          bool // of the share that each kind has
	Rows          []pageAnswer
}

type pageAnswer struct {
	Kind, Means, Count, Share string
	Bar                       []pageBar
	MS                        [5]string
}

// pagePart is charts of one stretch of time.
type pagePart struct {
	ID, Title string
	Flags     []pageFlag
	Charts    []pageChart
}

type pageRow struct {
	Name  string
	Cells []string
}

func newPageView(r Report) pageView {
	line := newTimeline(r)
	v := pageView{
		Style: template.CSS(pageStyle), Word: "HOLDS", Class: "holds", Sentence: pageSentence(r),
		Sold: sayCount(r.Sold), Cap: sayCount(r.Cap), Bar: pageShare(r.Sold, r.Cap, "paid"),
		Seats: []pageFigure{
			{Name: "left", Value: sayCount(max(0, r.Cap-r.Sold))},
			{Name: "holds created", Value: sayCount(r.HoldsCreated)},
		},
		Figures: pageFigures(r), Rules: r.Rules,
		Parts:   pageParts(r, line),
		Answers: pageAnswersOf(r), Reads: pageReadsOf(r),
		Command: pageCommand(r),
	}
	if len(pageTroubles(r)) > 0 {
		v.Word, v.Class = "BROKEN", "broken"
	}
	if !r.Began.IsZero() {
		v.Began = r.Began.UTC().Format("2 January 2006, 15:04:05 UTC")
	}
	for _, l := range r.Levels {
		shown := pageLevel{Name: cmp.Or(l.Name, l.ID), Sold: sayCount(l.Sold), Cap: sayCount(l.Cap), Bar: pageShare(l.Sold, l.Cap, "paid")}
		if l.Sold > l.Cap {
			shown.Over, shown.Bar = sayCount(l.Sold-l.Cap), pageShare(1, 1, "refused")
		}
		v.Levels = append(v.Levels, shown)
	}
	for _, p := range v.Parts {
		v.Gaps = v.Gaps || slices.ContainsFunc(p.Charts, func(c pageChart) bool { return c.Gaps != "" })
	}
	v.Run = []pageFigure{
		{Name: "against", Value: cmp.Or(r.Target, "local")},
		{Name: "seed", Value: strconv.FormatUint(r.Seed, 10)},
		{Name: "scale", Value: sayPlain(r.Scale)},
		{Name: "candidates", Value: sayCount(r.Candidates)},
		{Name: "rate in the rush", Value: sayRate(r.RateTarget) + " bookings a second"},
		{Name: "time to pay", Value: r.Hold.String()},
		{Name: "sent late", Value: sayCount(r.SentLate) + " requests, by " + sayMS(r.SentLateMost) + " at most: the rehearsal's own doing, and in their times"},
		{Name: "faults", Value: cmp.Or(strings.Join(r.Faults, ", "), "none")},
		{Name: "length", Value: sayClock(line.width) + " min"},
		{Name: "machine", Value: cmp.Or(r.Machine, "not known")},
	}
	for _, name := range slices.Sorted(maps.Keys(r.CPU)) {
		v.CPU = append(v.CPU, pageFigure{Name: sayProcess(name), Value: sayDecimals(r.CPU[name], 1)})
	}
	v.Columns, v.Rows = pageTable(line)
	return v
}

// pageTroubles are the reasons for which a report does not hold.
func pageTroubles(r Report) []string {
	var why, broken []string
	for _, rule := range r.Rules {
		if !rule.Holds {
			broken = append(broken, rule.Name)
		}
	}
	if len(broken) > 0 {
		why = append(why, fmt.Sprintf("%d of %d rules: %s", len(broken), len(r.Rules), strings.Join(broken, ", ")))
	}
	if len(r.Rules) == 0 {
		why = append(why, "nothing was judged")
	}
	for _, f := range pageZeros(r) {
		if f.Class != "" && !slices.Contains(broken, f.Name) {
			why = append(why, f.Value+" "+f.Name)
		}
	}
	if len(why) == 0 && r.Verdict != "holds" {
		why = append(why, fmt.Sprintf("the verdict is %q, though each rule that is listed holds", r.Verdict))
	}
	return why
}

func pageSentence(r Report) string {
	if why := pageTroubles(r); len(why) > 0 {
		return "Broken: " + strings.Join(why, "; ") + "."
	}
	return fmt.Sprintf("Every rule holds: %s of %s seats sold, none twice, at %s bookings a second in the rush.", sayCount(r.Sold), sayCount(r.Cap), sayRate(r.RateAchieved))
}

// pageZeros are the figures without which no rehearsal holds, whatever its verdict says.
func pageZeros(r Report) []pageFigure {
	all := []pageFigure{
		{Name: "oversold", Value: sayCount(r.Oversold), Note: "most seats over a cap, ever seen"},
		{Name: "double booked", Value: sayCount(r.DoubleBooked), Note: "candidates with two seats"},
		{Name: "leaked", Value: sayCount(r.Leaked), Note: "seats neither paid nor released"},
		{Name: "unaccounted payments", Value: sayCount(r.UnaccountedPayments), Note: "neither a seat nor one refund"},
	}
	for i := range all {
		if all[i].Value != "0" {
			all[i].Class = "alarm"
			all[i].Note += ": must be 0"
		}
	}
	return all
}

func pageFigures(r Report) []pageFigure {
	figures := append([]pageFigure{
		{Name: "rate achieved", Value: sayRate(r.RateAchieved), Note: "bookings a second, of " + sayRate(r.RateTarget) + " due in the rush"},
		took("rejections", "p50 of every clear no", r.Rejections),
		took("admissions", "p50 to the payment link", r.LatencyMS[kindAdmitted]),
		{Name: "queue", Value: saySeconds(r.QueueAgeMax), Note: "age of the oldest message, at most"},
		{Name: "server errors", Value: sayCount(r.ServerErrors), Note: "wrong 5xx, or cut off with a seat"},
		{Name: "store throttles", Value: sayCount(r.StoreThrottles), Note: "writes that the store put off"},
	}, pageZeros(r)...)
	if !ofItsOwn(r) { // its store's metrics are its operator's
		figures = slices.DeleteFunc(figures, func(f pageFigure) bool { return f.Name == "store throttles" })
	}
	for i := range figures {
		f := &figures[i]
		for _, rule := range r.Rules {
			if rule.Name == cmp.Or(map[string]string{"rate achieved": "rate"}[f.Name], f.Name) && !rule.Holds {
				f.Class = "alarm"
			}
		}
		if f.Class != "" {
			f.Value = "✗ " + f.Value
		}
	}
	return figures
}

// ofItsOwn tells a rehearsal that started its deployment from one on a target.
func ofItsOwn(r Report) bool { return r.Target == "" || r.Target == "local" }

// took is how long answers took.
func took(name, note string, p Percentiles) pageFigure {
	if p.Count == 0 {
		return pageFigure{Name: name, Value: "none"}
	}
	return pageFigure{Name: name, Value: sayMS(p.P50), Note: note + "; p99 " + sayMS(p.P99)}
}

// pageMeanings says what the answers to a booking mean; kinds without one are told as they
// are.
var pageMeanings = map[string]string{
	kindAdmitted: "admitted", "duplicate": "has a seat already", "level_full": "no seat left in the level",
	"sold_out": "no seat left at all", "not_open": "before opening, or after the close",
	"invalid_request": "malformed", "invalid_code": "not on the list", "invalid_level": "no such level",
	"email_mismatch": "another mail than on the list", "idempotency_mismatch": "same key, another booking",
	"try_again": "not now, and nothing was taken", "payment_unavailable": "no payment, and the seat was given back",
	kindNoAnswer: "no answer of the contract", kindHungUp: "a tab that was closed meanwhile", kindBot: "a bot, answered as if admitted", "internal": "our mistake",
}

func pageAnswersOf(r Report) pageAnswers {
	a := pageAnswers{What: "answer", Caption: "How many answers of each kind, and how long they took from when the booking was due, in ms", Bars: true}
	all, most := 0, 0
	for _, n := range r.Answers {
		all, most = all+n, max(most, n)
	}
	kinds := map[string]bool{}
	for kind := range r.Answers {
		kinds[kind] = true
	}
	for kind := range r.LatencyMS {
		kinds[kind] = true
	}
	for _, kind := range slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Answers[b], r.Answers[a]), cmp.Compare(a, b))
	}) {
		class := "new"
		switch kind {
		case kindAdmitted:
			class = "held"
		case "try_again", "payment_unavailable", "internal", kindNoAnswer:
			class = "refused"
		}
		n := r.Answers[kind]
		row := pageAnswer{Kind: kind, Means: pageMeanings[kind], Count: sayCount(n), Bar: pageShare(n, most, class), MS: pageMS(r.LatencyMS[kind])}
		if all > 0 {
			row.Share = sayDecimals(100*float64(n)/float64(all), 1) + " %"
		}
		a.Rows = append(a.Rows, row)
	}
	return a
}

func pageReadsOf(r Report) pageAnswers {
	a := pageAnswers{What: "what", Caption: "How many of each were read, and how long that took, in ms"}
	for _, kind := range slices.Sorted(maps.Keys(r.Reads)) {
		a.Rows = append(a.Rows, pageAnswer{Kind: kind, Count: sayCount(r.Reads[kind].Count), MS: pageMS(r.Reads[kind])})
	}
	return a
}

func pageMS(p Percentiles) [5]string {
	if p.Count == 0 {
		return [5]string{"–", "–", "–", "–", "–"}
	}
	var ms [5]string
	for i, v := range []float64{p.P50, p.P90, p.P99, p.P999, p.Max} {
		ms[i] = sayDecimals(v, 1)
	}
	return ms
}

// pageBare is what a shell takes as it is.
var pageBare = regexp.MustCompile(`^[A-Za-z0-9_./:,@%+=-]+$`)

// pageCommand is the command that has the same crowd come again, as far as the report
// knows it.
func pageCommand(r Report) string {
	args := []string{"seatctl", "rehearse", "--seed", strconv.FormatUint(r.Seed, 10), "--scale", sayPlain(r.Scale), "--hold", r.Hold.String()}
	if r.RateTarget != 2000*r.Scale {
		args = append(args, "--rate", sayPlain(r.RateTarget))
	}
	if r.For != 0 && r.For != defaultFor {
		args = append(args, "--for", r.For.String())
	}
	if r.Latency != 0 && r.Latency != defaultRushLatency {
		args = append(args, "--gateway-latency", r.Latency.String())
	}
	if len(r.Faults) > 0 {
		args = append(args, "--faults", strings.Join(r.Faults, ","))
	}
	if !ofItsOwn(r) {
		args = append(args, "--target", r.Target)
	}
	for i, a := range args {
		if !pageBare.MatchString(a) {
			args[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(args, " ")
}

// timeline is the time that all charts share.
type timeline struct {
	seconds []Second // in order, each once
	width   int      // seconds, from the beginning of the run
	flags   []pageFlag
	times   []pageTick
}

// pageFlag is a mark on a chart: a letter above it, and a line across.
type pageFlag struct {
	Letter, What, At string
	X                float64
}

// pageTick is a word on a scale.
type pageTick struct {
	Text, Percent, Anchor string
	Minor                 bool // not where there is little room
}

func newTimeline(r Report) timeline {
	var t timeline
	for _, s := range r.Seconds {
		if s.At >= 0 {
			t.seconds = append(t.seconds, s)
		}
	}
	slices.SortStableFunc(t.seconds, func(a, b Second) int { return cmp.Compare(a.At, b.At) })
	t.seconds = slices.CompactFunc(t.seconds, func(a, b Second) bool { return a.At == b.At })
	if n := len(t.seconds); n > 0 {
		t.width = t.seconds[n-1].At + 1
	}
	marks := slices.SortedStableFunc(slices.Values(r.Marks), func(a, b Mark) int { return cmp.Compare(a.At, b.At) })
	for _, m := range marks {
		if !(m.At >= 0 && m.At < 1e7) { // nor one that is no number
			continue
		}
		t.width = max(t.width, int(math.Ceil(m.At)))
		t.flags = append(t.flags, pageFlag{Letter: flagLetter(len(t.flags)), What: m.What, At: sayClock(int(m.At)), X: math.Round(m.At*10) / 10})
	}
	step := 3600
	for _, s := range []int{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800} {
		if t.width <= 12*s {
			step = s
			break
		}
	}
	for step < t.width/12 {
		step *= 2
	}
	for i := 0; i*step <= t.width && t.width > 0; i++ {
		t.times = append(t.times, pageTick{Text: sayClock(i * step), Percent: t.percent(float64(i * step)), Anchor: anchor(i*step, t.width), Minor: i%2 == 1})
	}
	return t
}

// anchor keeps a word at an end of a chart from standing beyond it.
func anchor(at, width int) string {
	switch {
	case at == 0:
		return "start"
	case 100*at > 96*width:
		return "end"
	}
	return "middle"
}

// letters are the letters of the marks, those together that would stand upon each other:
// room is how much of the width a few letters need.
func (t timeline) letters(room float64) []pageTick {
	var all []pageTick
	first := 0
	for i, f := range t.flags {
		text := t.flags[first].Letter + "–" + f.Letter
		if len(all) == 0 || f.X >= t.flags[first].X+room*float64(t.width) {
			first, text = i, f.Letter
			all = append(all, pageTick{Percent: t.percent(f.X), Anchor: anchor(int(f.X), t.width)})
		} else if all[len(all)-1].Anchor == "middle" {
			all[len(all)-1].Anchor = "start" // where they begin
		}
		all[len(all)-1].Text = text
	}
	return all
}

func (t timeline) percent(at float64) string {
	if t.width == 0 {
		return "0"
	}
	return sayPlain(math.Round(10000*at/float64(t.width)) / 100)
}

// curve is one figure over time; of gives NaN where it was not measured.
type curve struct {
	name, class string
	of          func(Second) float64
}

// plot is what a chart shows: curves upon each other, and lines.
type plot struct {
	id, title, unit string
	format          func(float64) string // a value with its unit
	stack, lines    []curve
	bound           float64 // drawn across unless it is 0
	boundName       string
	log             bool
	whole           bool // its figures are whole numbers
	final           bool // the last figure says more than the highest
}

// pageChart is a chart as page.html draws it: x in seconds, y from 0 at the top to 1,000.
type pageChart struct {
	ID, Title, Unit, Alt string
	Keys                 []pageKey
	Roomy, Tight         []pageTick // the marks' letters, on a screen and on a telephone
	Scale                []pageTick
	Width                int
	Gaps, Grid           string
	Paths                []pagePath
	Flags                []pageFlag
	Hits                 []pageHit
	Times                []pageTick
}

type pageKey struct {
	Name, Class, Most string
	Area              bool
}

type pagePath struct{ Class, D string }

// pageHit is a second that can be pointed at.
type pageHit struct {
	X     int
	Title string
}

// known is a figure, or NaN where there is none.
func known(v float64, there bool) float64 {
	if !there || math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

// sampled is a curve of what was sampled.
func sampled(of func(*Sample) float64) func(Second) float64 {
	return func(s Second) float64 {
		if s.Sample == nil {
			return math.NaN()
		}
		return known(of(s.Sample), true)
	}
}

func mebibytes(s *Sample) float64 { return known(float64(s.RedisMemory)/(1<<20), s.RedisMemory > 0) }

// entry is one figure of a map of them.
func entry[N int | float64](m map[string]N, name string) float64 {
	v, there := m[name]
	return known(float64(v), there)
}

// pageColours are the classes of what has no colour by custom.
var pageColours = []string{"held", "payable", "paid", "paying", "teal", "rose", "new"}

// pageParts are the charts of the whole run, and before them those of the rush, of which
// there is little to see in a run that is much longer.
func pageParts(r Report, t timeline) []pagePart {
	if len(t.seconds) == 0 {
		return nil
	}
	parts := []pagePart{{"run", "The whole run", t.flags, pageCharts(r, t)}}
	over := 0
	for _, s := range t.seconds {
		if s.Due > 0 && float64(s.Due) >= r.RateTarget/2 {
			over = s.At + 10
		}
	}
	if over == 0 || over > t.width/2 {
		return parts
	}
	early := r
	early.Seconds = slices.DeleteFunc(slices.Clone(t.seconds), func(s Second) bool { return s.At >= over })
	early.Marks = slices.DeleteFunc(slices.Clone(r.Marks), func(m Mark) bool { return m.At > float64(over) })
	rush := newTimeline(early)
	charts := pageCharts(early, rush)[:3]
	for i := range charts {
		charts[i].ID += "-rush"
	}
	return append([]pagePart{{"rush", "The rush", rush.flags, charts}}, parts...)
}

// pageCharts are those of a time: answers, latency and seats left come first.
func pageCharts(r Report, t timeline) []pageChart {
	driven := func(of func(Second) int) func(Second) float64 {
		return func(s Second) float64 { return float64(of(s)) }
	}
	// A second without a booking has no percentile; none is ever 0.
	took := func(of func(Second) float64) func(Second) float64 {
		return func(s Second) float64 { return known(of(s), s.Due > 0 && of(s) > 0) }
	}
	number := func(v float64) string { return sayCount(int(v)) }
	cores := func(v float64) string { return sayDecimals(v, 2) + " cores" }

	levels, phases, processes := map[string]bool{}, map[string]bool{}, map[string]float64{}
	for _, s := range t.seconds {
		if s.Sample == nil {
			continue
		}
		for id := range s.Left {
			levels[id] = true
		}
		for p := range s.Phases {
			phases[p] = true
		}
		for p, v := range s.CPU {
			processes[p] += known(v, true)
		}
	}
	var left, rows, cpu, redis []curve
	addLevel := func(id, name string) {
		if levels[id] {
			class := fmt.Sprintf("%s dash-%d", pageColours[len(left)%len(pageColours)], len(left)%5)
			left = append(left, curve{name, class, sampled(func(s *Sample) float64 { return entry(s.Left, id) })})
			delete(levels, id)
		}
	}
	for _, l := range r.Levels {
		addLevel(l.ID, cmp.Or(l.Name, l.ID))
	}
	for _, id := range slices.Sorted(maps.Keys(levels)) {
		addLevel(id, id)
	}
	addPhase := func(p, class string) {
		if phases[p] {
			rows = append(rows, curve{p, class, sampled(func(s *Sample) float64 { return entry(s.Phases, p) })})
			delete(phases, p)
		}
	}
	for _, p := range []booking.Phase{booking.PhasePaid, booking.PhaseHeld, booking.PhasePaying, booking.PhasePayable, booking.PhaseNew, booking.PhaseRefused} {
		addPhase(string(p), string(p))
	}
	for _, p := range slices.Sorted(maps.Keys(phases)) {
		addPhase(p, "rose")
	}
	for _, p := range slices.SortedFunc(maps.Keys(processes), func(a, b string) int {
		return cmp.Or(cmp.Compare(processes[b], processes[a]), cmp.Compare(a, b))
	}) {
		of := sampled(func(s *Sample) float64 { return entry(s.CPU, p) })
		cpu = append(cpu, curve{sayProcess(p), pageColours[len(cpu)%len(pageColours)], of})
		if strings.HasPrefix(p, "redis") {
			class := fmt.Sprintf("%s dash-%d", pageColours[len(redis)%len(pageColours)], len(redis)%5)
			redis = append(redis, curve{p, class, of})
		}
	}
	plots := []plot{
		{id: "c-answers", title: "Bookings and their answers", unit: "a second", format: number, whole: true,
			stack: []curve{
				{"admitted", "held", driven(func(s Second) int { return s.Admitted })},
				{"rejected", "new", driven(func(s Second) int { return s.Rejected })},
				{"try again, no payment, no answer", "refused", driven(func(s Second) int { return s.Other })},
			},
			lines: []curve{{"due", "ink", driven(func(s Second) int { return s.Due })}},
			bound: r.RateTarget, boundName: "the rush's rate"},
		{id: "c-latency", title: "Time to the answer, by when the booking was due", unit: "logarithmic scale", format: sayMS, log: true,
			lines: []curve{
				{"p50", "held", took(func(s Second) float64 { return s.P50 })},
				{"p90", "payable dash-1", took(func(s Second) float64 { return s.P90 })},
				{"p99", "refused dash-2", took(func(s Second) float64 { return s.P99 })},
			}},
		{id: "c-left", title: "Seats left", unit: "by level", format: number, whole: true, final: true, lines: left},
		{id: "c-rows", title: "Taken seats by phase", unit: "rows of the ledger, upon each other as in the key", format: number, whole: true, final: true, stack: rows,
			bound: float64(r.Cap), boundName: "the cap"},
		{id: "c-age", title: "Queue age", unit: "seconds", format: saySeconds,
			lines: []curve{{"oldest message", "held", sampled(func(s *Sample) float64 { return s.QueueAge })}},
			bound: queueYoungerThan, boundName: "the bound"},
		{id: "c-depth", title: "Queue depth", unit: "messages", format: number, whole: true,
			lines: []curve{{"messages", "held", sampled(func(s *Sample) float64 { return float64(s.QueueDepth) })}}},
		{id: "c-cpu", title: "Processor by process", unit: "cores in use, upon each other as in the key", format: cores, stack: cpu},
		{id: "c-redis", title: "Processor of Redis", unit: "cores in use", format: cores, lines: redis},
		{id: "c-memory", title: "Memory of Redis", unit: "MiB", format: func(v float64) string { return sayDecimals(v, 1) + " MiB" },
			lines: []curve{{"used", "held", sampled(mebibytes)}}},
	}
	charts := make([]pageChart, len(plots))
	for i, p := range plots {
		charts[i] = t.draw(p)
	}
	return charts
}

// draw makes a chart. A second in which none of its curves was measured is a gap; one of a
// stack that is missing beside others, as that of a process that was dead, adds nothing.
func (t timeline) draw(p plot) pageChart {
	c := pageChart{ID: p.id, Title: p.title, Unit: p.unit, Width: t.width, Flags: t.flags, Times: t.times}
	curves := slices.Concat(p.stack, p.lines)
	values := make([][]float64, len(curves))
	scale := axis{most: p.bound, log: p.log, whole: p.whole}
	if p.log {
		scale.least = math.Inf(1)
	}
	for i, u := range curves {
		for _, s := range t.seconds {
			values[i] = append(values[i], u.of(s))
		}
		scale.fit(values[i])
	}
	tops := make([]float64, len(t.seconds)) // of the stack so far
	for i := range p.stack {
		for j, v := range values[i] {
			tops[j] += max(0, orZero(v))
		}
	}
	scale.fit(tops)
	c.point(t, p, curves, values)
	if len(c.Hits) == 0 {
		return c
	}
	scale.finish()
	for _, v := range scale.ticks {
		y := scale.y(v)
		text := sayDecimals(v, scale.digits)
		if p.log {
			text = p.format(v)
		}
		c.Scale = append(c.Scale, pageTick{Text: text, Percent: sayPlain(float64(y) / 10)})
		c.Grid += fmt.Sprintf("M0 %dH%d", y, t.width)
	}
	clear(tops)
	for i, u := range p.stack {
		c.Paths = append(c.Paths, pagePath{"area " + u.class, t.bars(tops, values[i], scale)})
	}
	if p.bound != 0 {
		c.Paths = append(c.Paths, pagePath{"bound", fmt.Sprintf("M0 %dH%d", scale.y(p.bound), t.width)})
		c.Keys = append(c.Keys, pageKey{Name: p.boundName + ", " + p.format(p.bound), Class: "bound"})
	}
	for i, u := range p.lines {
		c.Paths = append(c.Paths, pagePath{"line " + u.class, t.steps(values[len(p.stack)+i], scale)})
	}
	c.Roomy, c.Tight = t.letters(0.035), t.letters(0.12)
	return c
}

// point makes what can be pointed at, the gaps between, the key and the words for who does
// not see the chart.
func (c *pageChart) point(t timeline, p plot, curves []curve, values [][]float64) {
	end := 0
	gap := func(to int) {
		if to > end {
			c.Gaps += fmt.Sprintf("M%d 0H%dV1000H%dz", end, to, end)
		}
	}
	for j, s := range t.seconds {
		var words []string
		for _, f := range t.flags {
			if int(f.X) == s.At {
				words = append(words, f.What)
			}
		}
		marks := len(words)
		for i, u := range curves {
			if v := values[i][j]; !math.IsNaN(v) {
				words = append(words, u.name+" "+p.format(v))
			}
		}
		if len(words) == marks {
			continue
		}
		gap(s.At)
		end = s.At + 1
		c.Hits = append(c.Hits, pageHit{s.At, sayClock(s.At) + ": " + strings.Join(words, ", ")})
	}
	gap(t.width)
	c.Alt = p.title + ", by second."
	for i, u := range curves {
		k := pageKey{Name: u.name, Class: "line " + u.class, Area: i < len(p.stack)}
		if k.Area {
			k.Class = "area " + u.class
		}
		most, last := -1, -1
		for j, v := range values[i] {
			if math.IsNaN(v) {
				continue
			}
			last = j
			if most < 0 || v > values[i][most] {
				most = j
			}
		}
		if most >= 0 {
			highest, final := p.format(values[i][most]), p.format(values[i][last])
			k.Most = "at most " + highest
			if p.final {
				k.Most = "at the end " + final
			}
			c.Alt += fmt.Sprintf(" %s: at most %s, at %s; at the end %s.", u.name, highest, sayClock(t.seconds[most].At), final)
		}
		c.Keys = append(c.Keys, k)
	}
}

// bars draws figures upon what is there already, and adds them to it.
func (t timeline) bars(tops, values []float64, scale axis) string {
	var d strings.Builder
	for j, v := range values {
		from := scale.y(tops[j])
		tops[j] += max(0, orZero(v))
		if to := scale.y(tops[j]); to != from {
			fmt.Fprintf(&d, "M%d %dV%dh1V%dz", t.seconds[j].At, from, to, from)
		}
	}
	return d.String()
}

// steps draws each figure as a line as long as its second, and joins neighbours.
func (t timeline) steps(values []float64, scale axis) string {
	var d strings.Builder
	end := -1
	for j, v := range values {
		at := t.seconds[j].At
		switch {
		case math.IsNaN(v):
			continue
		case at == end:
			fmt.Fprintf(&d, "V%dh1", scale.y(v))
		default:
			fmt.Fprintf(&d, "M%d %dh1", at, scale.y(v))
		}
		end = at + 1
	}
	return d.String()
}

// axis is a chart's scale of values, from 0 or below unless it is logarithmic.
type axis struct {
	least, most float64
	log, whole  bool
	ticks       []float64
	digits      int // after the point
}

// fit has the axis reach all these.
func (a *axis) fit(values []float64) {
	for _, v := range values {
		if v > 0 || !a.log && !math.IsNaN(v) {
			a.least, a.most = min(a.least, v), max(a.most, v)
		}
	}
}

// finish rounds the axis's ends and sets its ticks.
func (a *axis) finish() {
	if a.log {
		from, to := math.Floor(math.Log10(a.least)), math.Ceil(math.Log10(a.most))
		for e := from; e <= max(to, from+1); e++ {
			a.ticks = append(a.ticks, math.Pow(10, e))
		}
	} else {
		from, to := a.least, a.most
		if from == to {
			to = from + 1
		}
		step := (to - from) / 5
		power := math.Pow(10, math.Floor(math.Log10(step)))
		for _, m := range []float64{1, 2, 5, 10} {
			if m*power >= step {
				step = m * power
				break
			}
		}
		if a.whole {
			step = max(1, step)
		}
		a.digits = max(0, -int(math.Floor(math.Log10(step))))
		for n := math.Floor(from / step); n <= math.Ceil(to/step); n++ {
			a.ticks = append(a.ticks, n*step)
		}
	}
	a.least, a.most = a.ticks[0], a.ticks[len(a.ticks)-1]
}

// y is where a value stands: 0 at the top, 1,000 at the bottom.
func (a axis) y(v float64) int {
	if a.log {
		return int(math.Round(1000 * math.Log10(a.most/v) / math.Log10(a.most/a.least)))
	}
	return int(math.Round(1000 * (a.most - v) / (a.most - a.least)))
}

// pageTable is every second in words.
func pageTable(t timeline) ([]string, []pageRow) {
	columns := []string{"time", "due", "answered", "admitted", "rejected", "other", "p50", "p90", "p99",
		"seats left", "rows paid", "other rows", "queue age, s", "queue depth", "cores in use", "Redis, MiB"}
	var rows []pageRow
	for _, s := range t.seconds {
		row := pageRow{Name: sayClock(s.At)}
		for _, n := range []int{s.Due, s.Answered, s.Admitted, s.Rejected, s.Other} {
			row.Cells = append(row.Cells, sayCount(n))
		}
		for _, v := range []float64{s.P50, s.P90, s.P99} {
			cell := "–"
			if s.Due > 0 && v > 0 {
				cell = sayDecimals(v, 1)
			}
			row.Cells = append(row.Cells, cell)
		}
		if s.Sample == nil {
			row.Cells = append(row.Cells, slices.Repeat([]string{"–"}, len(columns)-1-len(row.Cells))...)
			rows = append(rows, row)
			continue
		}
		left, taken, cores := 0, 0, 0.0
		for _, n := range s.Left {
			left += n
		}
		for _, n := range s.Phases {
			taken += n
		}
		for _, v := range s.CPU {
			cores += v
		}
		paid := s.Phases[string(booking.PhasePaid)]
		row.Cells = append(row.Cells, sayCount(left), sayCount(paid), sayCount(taken-paid), sayDecimals(s.QueueAge, 1),
			sayCount(s.QueueDepth), sayDecimals(cores, 2), sayDecimals(mebibytes(s.Sample), 1))
		rows = append(rows, row)
	}
	return columns, rows
}

func orZero(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// flagLetter is A to Z, then AA.
func flagLetter(i int) string {
	s := ""
	for i++; i > 0; i = (i - 1) / 26 {
		s = string(rune('A'+(i-1)%26)) + s
	}
	return s
}

// pageShare is a bar of n of all.
func pageShare(n, all int, class string) []pageBar {
	if n <= 0 || all <= 0 {
		return nil
	}
	return []pageBar{{sayPlain(math.Round(1000*min(1, float64(n)/float64(all))) / 10), class}}
}

func sayProcess(name string) string {
	if name == "load" {
		return "load (the rehearsal itself)"
	}
	return name
}

func sayCount(n int) string { return sayDecimals(float64(n), 0) }

// sayPlain is a number as short as it can be told, for a command or a drawing.
func sayPlain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// sayDecimals is a number with its thousands apart.
func sayDecimals(v float64, digits int) string {
	if math.IsNaN(known(v, true)) {
		return "–"
	}
	s := strconv.FormatFloat(v, 'f', digits, 64)
	whole, rest, _ := strings.Cut(s, ".")
	sign := strings.TrimRight(whole, "0123456789")
	whole = whole[len(sign):]
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		whole += "." + rest
	}
	return sign + whole
}

// sayClock is minutes and seconds.
func sayClock(s int) string { return fmt.Sprintf("%d:%02d", s/60, s%60) }

func saySeconds(v float64) string { return sayDecimals(v, 1) + " s" }

// sayRate is never more than was reached.
func sayRate(v float64) string { return sayDecimals(math.Floor(v), 0) }

// sayMS is a time with the unit that fits, of milliseconds.
func sayMS(ms float64) string {
	switch {
	case ms < 0.1:
		return strconv.FormatFloat(ms, 'g', 2, 64) + " ms"
	case ms < 10:
		return strings.TrimSuffix(sayDecimals(ms, 1), ".0") + " ms"
	case ms < 1000:
		return sayDecimals(ms, 0) + " ms"
	}
	return strings.TrimSuffix(sayDecimals(ms/1000, 1), ".0") + " s"
}
