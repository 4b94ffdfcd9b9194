package rehearse_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/rehearse"
)

// played is a report as a launch leaves it, with a primary that dies in the rush: figures
// that a small model of a sale makes, the same every time.
func played() rehearse.Report {
	dice := rand.New(rand.NewPCG(7, 7))
	about := func(v float64) float64 { return v * (0.9 + 0.2*dice.Float64()) }
	r := rehearse.Report{
		Seed: 7, Scale: 1, Hold: time.Minute, Faults: []string{"api", "redis"}, Target: "local", Candidates: 40_000,
		RateTarget: 2000, RateAchieved: 2031.4, HoldsCreated: 31_642, Sold: 20_700, Cap: 20_700, QueueAgeMax: 1.7,
		Answers: map[string]int{
			"202": 31_642, "level_full": 22_310, "duplicate": 4_117, "sold_out": 2_480, "invalid_code": 803,
			"email_mismatch": 611, "try_again": 94, "payment_unavailable": 41, "no_answer": 3, "hung_up": 512, "honeypot": 377,
		},
		Rejections: rehearse.Percentiles{Count: 24_790, P50: 3.2, P90: 9.8, P99: 41.3, P999: 88, Max: 131},
		LatencyMS: map[string]rehearse.Percentiles{
			"202":        {Count: 31_642, P50: 212, P90: 1_830, P99: 4_210, P999: 6_120.4, Max: 7_411},
			"level_full": {Count: 22_310, P50: 3.2, P90: 9.8, P99: 41.3, P999: 88, Max: 131},
			"duplicate":  {Count: 4_117, P50: 2.9, P90: 9.1, P99: 38.7, P999: 79, Max: 90},
			"sold_out":   {Count: 2_480, P50: 2.2, P90: 6, P99: 21, P999: 30.1, Max: 33},
			"try_again":  {Count: 94, P50: 801, P90: 1_900, P99: 2_004, P999: 2_010, Max: 2_010},
		},
		Reads: map[string]rehearse.Percentiles{
			"page":        {Count: 161_004, P50: 1.1, P90: 4, P99: 18, P999: 44, Max: 71},
			"status.json": {Count: 160_771, P50: 0.9, P90: 3.1, P99: 15.9, P999: 41, Max: 66},
			"booking":     {Count: 80_112, P50: 2.4, P90: 8, P99: 31, P999: 70, Max: 95},
		},
		Verdict: "holds",
		Rules: []rehearse.Rule{
			{Name: "caps", Text: "admitted seats of a level never exceed its cap", Figure: "20,700 of 20,700", Holds: true},
			{Name: "one booking", Text: "a candidate has at most one seat that is held or paid", Figure: "0 with two", Holds: true},
			{Name: "no leaks", Text: "every admitted seat ended paid or released", Figure: "0 left over", Holds: true},
			{Name: "money", Text: "each transaction is a paid seat or one refund", Figure: "20,700 seats, 214 refunds", Holds: true},
			{Name: "rate", Text: "bookings due in the rush were answered", Figure: "2,031 of 2,000 a second", Holds: true},
			{Name: "rejections", Text: "half of the rejections within 10 ms", Figure: "p50 3.2 ms", Holds: true},
			{Name: "queue", Text: "no message older than 4 s", Figure: "1.7 s", Holds: true},
		},
		Began: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC),
		Levels: []rehearse.Level{
			{ID: "N1", Name: "N1 Advanced", Cap: 2400, Sold: 2400}, {ID: "N2", Name: "N2 Upper intermediate", Cap: 3600, Sold: 3471},
			{ID: "N3", Name: "N3 Intermediate", Cap: 4800, Sold: 4702}, {ID: "N4", Name: "N4 Elementary", Cap: 5400, Sold: 5010},
			{ID: "N5", Name: "N5 Beginner", Cap: 5200, Sold: 5117},
		},
		Marks: []rehearse.Mark{
			{At: 0.8, What: "sale apply"}, {At: 1.4, What: "reset"}, {At: 3.9, What: "candidates load"}, {At: 4.6, What: "open"},
			{At: 12.9, What: "api breaks"}, {At: 15.2, What: "api is whole again"}, {At: 25.2, What: "redis breaks"},
			{At: 27.9, What: "redis is whole again"}, {At: 29.6, What: "the rush is over"}, {At: 301.2, What: "the last person has left"},
			{At: 301.9, What: "closed"}, {At: 322.4, What: "drained"},
		},
		CPU:     map[string]float64{"api": 141.2, "worker": 18.4, "redis_primary": 21.7, "redis_replica": 9.2, "gateway": 40.9, "load": 171.3},
		Machine: "2 cores, go1.26.8, linux/amd64",
	}
	caps := map[string]float64{"N1": 2400, "N2": 3600, "N3": 4800, "N4": 5400, "N5": 5200}
	wanted := map[string]float64{"N1": 0.2, "N2": 0.21, "N3": 0.22, "N4": 0.2, "N5": 0.17}
	taken := map[string]float64{}
	lapse := map[int]float64{}
	paid, paying, held, refused := 0.0, 0.0, 0.0, 0.0
	for at := range 324 {
		s := rehearse.Second{At: at}
		due := 0.0
		switch {
		case at < 5 || at > 301:
		case at < 30:
			due = about(2120)
		default:
			due = about(500*math.Exp(-float64(at-30)/70) + 4)
		}
		admitted := 0.0
		for id, share := range wanted {
			n := math.Min(due*share, caps[id]*20_700/21_400-taken[id])
			taken[id] += n
			admitted += n
		}
		down := at >= 26 && at < 28
		s.Due, s.Admitted = int(due), int(admitted)
		s.Rejected = s.Due - s.Admitted
		if down {
			s.Admitted, s.Rejected, s.Other = 0, s.Due/3, s.Due-s.Due/3
		}
		s.Answered = s.Due
		if s.Due > 0 {
			s.P50, s.P90, s.P99 = about(3), about(20), about(60)
			if at < 30 {
				s.P50, s.P90, s.P99 = about(14), about(700), about(4100)
			}
			if down {
				s.P50, s.P90, s.P99 = about(900), about(1900), about(2100)
			}
		}
		lapse[at+62] = admitted / 3
		gone := math.Min(lapse[at], held)
		for id := range taken {
			taken[id] -= (gone + refused*0.02) / 5
		}
		held += admitted - gone
		begun := math.Min(held*0.05, 400)
		held, paying = held-begun, paying+begun
		done := paying * 0.4
		paying, paid, refused = paying-done, paid+done*0.985, refused*0.98+done*0.015
		if !down && at%97 != 96 {
			load := due / 2100
			s.Sample = &rehearse.Sample{
				Left: map[string]int{}, QueueAge: about(0.1 + 1.4*load), QueueDepth: int(about(600 * load)),
				Phases: map[string]int{"new": int(about(40 * load)), "payable": int(about(300 * load)), "held": int(math.Max(0, held-about(340*load))), "paying": int(paying), "refused": int(refused), "paid": int(paid)},
				CPU: map[string]float64{
					"api": about(0.05 + 0.8*load), "worker": about(0.02 + 0.1*load), "redis_primary": about(0.02 + 0.15*load),
					"redis_replica": about(0.01 + 0.05*load), "gateway": about(0.03 + 0.25*load), "load": about(0.05 + 0.6*load),
				},
				RedisMemory: int64(21<<20 + paid*900),
			}
			for id := range caps {
				s.Left[id] = int(caps[id] - taken[id])
			}
			if at == 13 || at == 14 {
				delete(s.CPU, "api")
			}
		}
		r.Seconds = append(r.Seconds, s)
	}
	return r
}

// broke is the same launch with a seat sold twice.
func broke() rehearse.Report {
	r := played()
	r.Verdict, r.Oversold, r.DoubleBooked, r.ServerErrors = "broken", 1, 1, 12
	r.Levels[0].Sold++
	r.Rules[0].Holds, r.Rules[0].Figure = false, "2,401 of 2,400 in N1"
	r.Rules[1].Holds, r.Rules[1].Figure = false, "1 with two"
	return r
}

// node is an element of the page.
type node struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Children []node     `xml:",any"`
	Own      string     `xml:",chardata"`
}

func (n node) attr(name string) string {
	for _, a := range n.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// all are the elements inside of that name, with that class if it is not "".
func (n node) all(name, class string) []node {
	var found []node
	for _, c := range n.Children {
		if c.XMLName.Local == name && (class == "" || strings.Contains(" "+c.attr("class")+" ", " "+class+" ")) {
			found = append(found, c)
		}
		found = append(found, c.all(name, class)...)
	}
	return found
}

func (n node) byID(id string) node {
	for _, c := range n.Children {
		if c.attr("id") == id {
			return c
		}
		if found := c.byID(id); found.XMLName.Local != "" {
			return found
		}
	}
	return node{}
}

// text is what a reader reads, without regard to white space.
func (n node) text() string {
	s := n.Own
	for _, c := range n.Children {
		s += " " + c.text()
	}
	return strings.Join(strings.Fields(s), " ")
}

// pageOf is the page's source and its elements; it must be well-formed.
func pageOf(t *testing.T, r rehearse.Report) (string, node) {
	t.Helper()
	var out bytes.Buffer
	if err := rehearse.Page(&out, r); err != nil {
		t.Fatalf("page: got %v, want nil", err)
	}
	source := out.String()
	var root node
	if err := xml.Unmarshal(out.Bytes(), &root); err != nil {
		t.Fatalf("page: got %v, want a well-formed document", err)
	}
	return source, root
}

func TestPage_NeedsNothingBesideItAndAsksNobody(t *testing.T) {
	t.Parallel()
	source, root := pageOf(t, played())
	style := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(source, -1)
	if len(style) != 1 || len(style[0][1]) < 1000 {
		t.Fatalf("styles: got %d, want one, ours", len(style))
	}
	sum := sha256.Sum256([]byte(style[0][1]))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; base-uri 'none'; form-action 'none'"
	policy := ""
	for _, m := range root.all("meta", "") {
		if m.attr("http-equiv") == "Content-Security-Policy" {
			policy = m.attr("content")
		}
	}
	if policy != want {
		t.Errorf("policy: got %q, want %q", policy, want)
	}
	if got := regexp.MustCompile(`(?:[a-z]+:)?//[A-Za-z0-9]\S*|url\(|@import`).FindAllString(source, -1); got != nil {
		t.Errorf("addresses outside: got %q, want none", got)
	}
	if got := regexp.MustCompile(`<script| (?:style|src|srcset|on[a-z]+)=`).FindAllString(source, -1); got != nil {
		t.Errorf("got %q, which the policy forbids", got)
	}
	for _, link := range append(root.all("a", ""), root.all("link", "")...) {
		if h := link.attr("href"); h != "data:," && (!strings.HasPrefix(h, "#") || root.byID(h[1:]).XMLName.Local == "") {
			t.Errorf("link: got %q, want one to a place in the page", h)
		}
	}
}

func TestPage_IsSmallAndAlwaysTheSame(t *testing.T) {
	t.Parallel()
	r := played()
	for at := len(r.Seconds); at < 360; at++ {
		s := r.Seconds[at-300]
		s.At = at
		r.Seconds = append(r.Seconds, s)
	}
	first, _ := pageOf(t, r)
	if len(first) > 2<<20 {
		t.Errorf("six minutes: got %d bytes, want at most 2 MiB", len(first))
	}
	for range 10 { // maps have no order
		if again, _ := pageOf(t, r); again != first {
			t.Fatal("the same report: got two pages, want one")
		}
	}
}

// setTexts sets every text in a value, the names in its maps too.
func setTexts(v reflect.Value, to string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(to)
	case reflect.Pointer:
		if !v.IsNil() {
			setTexts(v.Elem(), to)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			setTexts(v.Field(i), to)
		}
	case reflect.Slice:
		for i := range v.Len() {
			setTexts(v.Index(i), to)
		}
	case reflect.Map:
		if v.Len() == 0 {
			return
		}
		first := slices.MinFunc(v.MapKeys(), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		one := v.MapIndex(first)
		v.Clear()
		v.SetMapIndex(reflect.ValueOf(to), one)
	}
}

// shapeOf are the names of all elements, in order.
func shapeOf(n node) []string {
	names := []string{n.XMLName.Local}
	for _, c := range n.Children {
		names = append(names, shapeOf(c)...)
	}
	return names
}

func TestPage_TextOfOthersStaysText(t *testing.T) {
	t.Parallel()
	with := func(text string) (string, node) {
		r := played()
		r.Seconds = r.Seconds[:40]
		setTexts(reflect.ValueOf(&r).Elem(), text)
		return pageOf(t, r)
	}
	_, tame := with("tame")
	for _, hostile := range []string{
		`</title></style><script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onload='alert(1)`, `{{.}}`, `<!--`, `]]>`, `&lt;b&gt;`, `javascript:alert(1)`,
	} {
		_, root := with(hostile)
		if diff := cmp.Diff(shapeOf(tame), shapeOf(root)); diff != "" {
			t.Errorf("%s: other elements (-tame +hostile):\n%s", hostile, diff)
		}
		if got := root.byID("h-rules"); got.XMLName.Local == "" || !strings.Contains(root.text(), hostile) {
			t.Errorf("%s: got a page without it, want it shown as it is", hostile)
		}
	}
}

// stepsOf counts the seconds that a line is drawn over.
func stepsOf(line node) int { return strings.Count(line.attr("d"), "h1") }

func TestPage_ChartsHaveEverySecondThatWasMeasured(t *testing.T) {
	t.Parallel()
	r := played()
	source, root := pageOf(t, r)
	all, sampled, due := len(r.Seconds), 0, 0
	for _, s := range r.Seconds {
		if s.Sample != nil {
			sampled++
		}
		if s.Due > 0 {
			due++
		}
	}
	if sampled == all || due == all || due == sampled {
		t.Fatalf("got %d seconds, %d sampled, %d with bookings, want them to differ", all, sampled, due)
	}
	for _, c := range []struct {
		id                       string
		seconds, lines, eachLine int
		areas                    int
	}{
		{"c-answers", all, 1, all, 3},
		{"c-latency", due, 3, due, 0},
		{"c-left", sampled, 5, sampled, 0},
		{"c-rows", sampled, 0, 0, 6},
		{"c-age", sampled, 1, sampled, 0},
		{"c-depth", sampled, 1, sampled, 0},
		{"c-cpu", sampled, 0, 0, 6},
		{"c-redis", sampled, 2, sampled, 0},
		{"c-memory", sampled, 1, sampled, 0},
	} {
		chart := root.byID(c.id)
		drawing := chart.all("svg", "plot")
		if len(drawing) != 1 {
			t.Fatalf("%s: got %d drawings, want one", c.id, len(drawing))
		}
		if got := len(drawing[0].all("rect", "hit")); got != c.seconds {
			t.Errorf("%s: got %d seconds to point at, want %d", c.id, got, c.seconds)
		}
		lines := drawing[0].all("path", "line")
		if len(lines) != c.lines || len(drawing[0].all("path", "area")) != c.areas {
			t.Errorf("%s: got %d lines and %d areas, want %d and %d", c.id, len(lines), len(drawing[0].all("path", "area")), c.lines, c.areas)
		}
		for i, l := range lines {
			if got := stepsOf(l); got != c.eachLine {
				t.Errorf("%s: line %d: got %d seconds, want %d", c.id, i, got, c.eachLine)
			}
		}
		if gaps := len(drawing[0].all("path", "gap")); (gaps == 1) != (c.seconds < all) {
			t.Errorf("%s: got %d paths of gaps for %d of %d seconds", c.id, gaps, c.seconds, all)
		}
		if got := len(drawing[0].all("path", "flag")); got != len(r.Marks) {
			t.Errorf("%s: got %d marks across, want %d", c.id, got, len(r.Marks))
		}
		if words := drawing[0].attr("aria-label"); drawing[0].attr("role") != "img" || !strings.Contains(words, "at most") || !strings.Contains(words, "at the end") {
			t.Errorf("%s: got role %q and words %q, want its figures in words", c.id, drawing[0].attr("role"), words)
		}
		if keys := len(chart.all("li", "")); keys < c.lines+c.areas {
			t.Errorf("%s: got %d keys, want one for each of %d", c.id, keys, c.lines+c.areas)
		}
	}
	if got := len(root.all("table", "all")[0].all("tr", "")); got != 1+all {
		t.Errorf("table of all figures: got %d rows, want a head and one for each of %d seconds", got, all)
	}
	words := root.all("p", "flags")
	for i, m := range r.Marks {
		want := fmt.Sprintf("%c %s (%d:%02d)", 'A'+i, m.What, int(m.At)/60, int(m.At)%60)
		if source := strings.NewReplacer("<b>", "", "</b>", "").Replace(source); len(words) != 2 || !strings.Contains(source, want) {
			t.Errorf("mark: got no %q, want it above the charts", want)
		}
	}
}

// scaleOf are the words beside a chart, from the bottom, and where they stand in percent.
func scaleOf(t *testing.T, chart node) (words []string, at []float64) {
	t.Helper()
	for _, tick := range chart.all("svg", "scale")[0].all("text", "") {
		var y float64
		if _, err := fmt.Sscanf(tick.attr("y"), "%f%%", &y); err != nil {
			t.Fatalf("tick at %q: %v", tick.attr("y"), err)
		}
		words, at = append(words, tick.text()), append(at, y)
	}
	return words, at
}

func TestPage_ChartsAreTrueToScale(t *testing.T) {
	t.Parallel()
	r := rehearse.Report{
		Cap: 400, Verdict: "holds", RateTarget: 80, Rules: []rehearse.Rule{{Name: "caps", Holds: true}},
		Levels: []rehearse.Level{{ID: "N1", Name: "One", Cap: 300}},
		Seconds: []rehearse.Second{
			{At: 2, Due: 100, Answered: 70, Admitted: 40, Rejected: 20, Other: 10, P50: 10, P90: 100, P99: 1000},
			{At: 3, Due: 50, Answered: 50, Admitted: 50, P50: 1, P90: 1, P99: 1, Sample: &rehearse.Sample{Left: map[string]int{"N1": -100, "N9": 100}, Phases: map[string]int{"paid": 200, "held": 100}, QueueAge: 2, CPU: map[string]float64{"api": 0.3}}},
			{At: 6, Due: 0, Sample: &rehearse.Sample{Left: map[string]int{"N1": 300}, Phases: map[string]int{"paid": 300}, QueueAge: 1, CPU: map[string]float64{}}},
		},
	}
	_, root := pageOf(t, r)
	for _, c := range []struct {
		id    string
		words []string
		at    []float64
		paths []string
	}{
		{"c-answers", []string{"0", "20", "40", "60", "80", "100"}, []float64{100, 80, 60, 40, 20, 0}, []string{
			"M0 0H2V1000H0zM4 0H6V1000H4z",           // not measured
			"M2 1000V600h1V1000zM3 1000V500h1V1000z", // admitted
			"M2 600V400h1V600z",                      // rejected, upon them
			"M2 400V300h1V400z",                      // other
			"M0 200H7",                               // the rate
			"M2 0h1V500h1M6 1000h1",                  // due
		}},
		{"c-latency", []string{"1 ms", "10 ms", "100 ms", "1 s"}, []float64{100, 66.7, 33.3, 0}, []string{
			"M0 0H2V1000H0zM4 0H7V1000H4z", "M2 667h1V1000h1", "M2 333h1V1000h1", "M2 0h1V1000h1",
		}},
		{"c-left", []string{"-100", "0", "100", "200", "300"}, []float64{100, 75, 50, 25, 0}, []string{
			"M0 0H3V1000H0zM4 0H6V1000H4z", "M3 1000h1M6 0h1", "M3 500h1",
		}},
		{"c-rows", []string{"0", "100", "200", "300", "400"}, []float64{100, 75, 50, 25, 0}, []string{
			"M0 0H3V1000H0zM4 0H6V1000H4z", "M3 1000V500h1V1000zM6 1000V250h1V1000z", "M3 500V250h1V500z", "M0 0H7",
		}},
		{"c-age", []string{"0", "1", "2", "3", "4"}, []float64{100, 75, 50, 25, 0}, []string{
			"M0 0H3V1000H0zM4 0H6V1000H4z", "M0 0H7", "M3 500h1M6 750h1",
		}},
		{"c-depth", []string{"0", "1"}, []float64{100, 0}, []string{"M0 0H3V1000H0zM4 0H6V1000H4z", "M3 1000h1M6 1000h1"}},
		{"c-cpu", []string{"0.0", "0.1", "0.2", "0.3"}, []float64{100, 66.7, 33.3, 0}, []string{"M0 0H3V1000H0zM4 0H7V1000H4z", "M3 1000V0h1V1000z"}},
	} {
		chart := root.byID(c.id)
		words, at := scaleOf(t, chart)
		if diff := cmp.Diff(c.words, words); diff != "" {
			t.Errorf("%s: scale (-want +got):\n%s", c.id, diff)
		}
		if diff := cmp.Diff(c.at, at); diff != "" {
			t.Errorf("%s: where the scale's words stand (-want +got):\n%s", c.id, diff)
		}
		var paths []string
		for _, p := range chart.all("svg", "plot")[0].all("path", "") {
			if p.attr("class") != "grid" {
				paths = append(paths, p.attr("d"))
			}
		}
		if diff := cmp.Diff(c.paths, paths); diff != "" {
			t.Errorf("%s: paths (-want +got):\n%s", c.id, diff)
		}
	}
	for _, id := range []string{"c-redis", "c-memory"} {
		if got := root.byID(id).text(); !strings.Contains(got, "Not measured") {
			t.Errorf("%s: got %q, want that it was not measured", id, got)
		}
	}
	if got := root.byID("c-answers").all("rect", "hit")[0].text(); got != "0:02: admitted 40, rejected 20, try again, no payment, no answer 10, due 100" {
		t.Errorf("a second pointed at: got %q, want its figures", got)
	}
}

// Letters that would stand upon each other are told together.
func TestPage_EachMarkHasItsLetter(t *testing.T) {
	t.Parallel()
	r := played()
	r.Marks = append(r.Marks, rehearse.Mark{At: math.NaN(), What: "never"}, rehearse.Mark{At: -1, What: "before"})
	_, root := pageOf(t, r)
	for class, want := range map[string][]string{
		"roomy": {"A–D", "E–F", "G–I", "J–K", "L"},
		"tight": {"A–I", "J–L"},
	} {
		var got []string
		last := math.Inf(-1)
		for _, l := range root.byID("c-age").all("g", class)[0].all("text", "") {
			got = append(got, l.text())
			var x float64
			if _, err := fmt.Sscanf(l.attr("x"), "%f%%", &x); err != nil || x-last < 3.5 {
				t.Errorf("%s: got %s at %v %%, %v, after one at %v %%, want room between", class, l.text(), x, err, last)
			}
			last = x
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s letters (-want +got):\n%s", class, diff)
		}
	}
}

// A rush is a few seconds of a long run.
func TestPage_TheRushHasChartsOfItsOwn(t *testing.T) {
	t.Parallel()
	r := played()
	_, root := pageOf(t, r)
	for _, id := range []string{"c-answers-rush", "c-latency-rush", "c-left-rush"} {
		plot := root.byID(id).all("svg", "plot")
		if len(plot) != 1 || plot[0].all("svg", "")[0].attr("viewBox") != "0 0 39 1000" {
			t.Errorf("%s: got %v, want a chart of the rush and ten seconds", id, plot)
		}
	}
	if got := len(root.byID("c-answers-rush").all("rect", "hit")); got != 39 {
		t.Errorf("seconds to point at: got %d, want 39", got)
	}
	r.Seconds = r.Seconds[:60]
	r.Marks = nil
	_, root = pageOf(t, r)
	if got := root.byID("c-answers-rush"); got.XMLName.Local != "" || root.byID("c-answers").XMLName.Local == "" {
		t.Error("a run that is hardly longer than its rush: got both, want one chart of it")
	}
}

func TestPage_BrokenLooksBroken(t *testing.T) {
	t.Parallel()
	_, root := pageOf(t, played())
	if got := root.byID("verdict").text(); root.byID("state").text() != "HOLDS" || got != "Every rule holds: 20,700 of 20,700 seats sold, none twice, at 2,031 bookings a second in the rush." {
		t.Errorf("a launch that holds: got %q, %q, want HOLDS and why", root.byID("state").text(), got)
	}
	if got := append(root.all("strong", "alarm"), root.all("dd", "alarm")...); len(got) != 0 {
		t.Errorf("a launch that holds: got %v, want nothing in the colour of alarm", got)
	}
	for _, c := range []struct {
		name, want string
		breaks     func(*rehearse.Report)
	}{
		{"a rule", "1 of 7 rules: one booking", func(r *rehearse.Report) { r.Verdict, r.Rules[1].Holds = "broken", false }},
		{"a rule, and a verdict that does not know", "1 of 7 rules: caps", func(r *rehearse.Report) { r.Rules[0].Holds = false }},
		{"the verdict alone", `the verdict is "broken"`, func(r *rehearse.Report) { r.Verdict = "broken" }},
		{"no verdict", `the verdict is ""`, func(r *rehearse.Report) { r.Verdict = "" }},
		{"no rules", "nothing was judged", func(r *rehearse.Report) { r.Rules = nil }},
		{"a figure that has a rule", "1 of 8 rules: leaked.", func(r *rehearse.Report) { r.Leaked, r.Rules = 2, append(r.Rules, rehearse.Rule{Name: "leaked"}) }},
		{"oversold", "3 oversold", func(r *rehearse.Report) { r.Oversold = 3 }},
		{"double booked", "1 double booked", func(r *rehearse.Report) { r.DoubleBooked = 1 }},
		{"leaked", "2 leaked", func(r *rehearse.Report) { r.Leaked = 2 }},
		{"unaccounted", "4 unaccounted payments", func(r *rehearse.Report) { r.UnaccountedPayments = 4 }},
		{"nothing at all", "nothing was judged", func(r *rehearse.Report) { *r = rehearse.Report{} }},
	} {
		r := played()
		c.breaks(&r)
		_, root := pageOf(t, r)
		verdict := root.byID("verdict").text()
		if !strings.HasPrefix(verdict, "Broken: ") || !strings.Contains(verdict, c.want) {
			t.Errorf("%s: got %q, want it broken by %q", c.name, verdict, c.want)
		}
		if state, class := root.byID("state").text(), root.all("body", "")[0].attr("class"); state != "BROKEN" || class != "broken" || !strings.HasPrefix(root.all("title", "")[0].text(), "BROKEN") {
			t.Errorf("%s: got state %q, class %q, title %q, want it to look broken", c.name, state, class, root.all("title", "")[0].text())
		}
	}
	_, root = pageOf(t, broke())
	var marked []string
	for _, dd := range root.all("dd", "alarm") {
		marked = append(marked, dd.text())
	}
	if diff := cmp.Diff([]string{"✗ 1", "✗ 1"}, marked); diff != "" {
		t.Errorf("figures that must be 0 (-want +got):\n%s", diff)
	}
	if got := len(root.all("tr", "not")); got != 2 || strings.Count(root.all("table", "rules")[0].text(), "✗ BROKEN") != 2 {
		t.Errorf("rules: got %d marked, want 2, in words", got)
	}
	if got := root.all("table", "levels")[0].text(); !strings.Contains(got, "1 over its cap") {
		t.Errorf("levels: got %q, want the seat over the cap told", got)
	}
	r := played()
	r.Rules[4].Holds = false // the rate
	_, root = pageOf(t, r)
	if got := root.all("dd", "alarm"); len(got) != 1 || got[0].text() != "✗ 2,031" {
		t.Errorf("a rate that is too low: got %v marked, want the rate", got)
	}
}

func TestPage_OddFiguresAreNoFigures(t *testing.T) {
	t.Parallel()
	r := played()
	for i := range r.Seconds {
		s := &r.Seconds[i]
		s.P99 = math.NaN()
		if s.Sample != nil {
			s.QueueAge, s.RedisMemory = math.Inf(1), 0
			s.CPU["api"] = math.NaN()
		}
	}
	r.Seconds = append(r.Seconds, r.Seconds[10], rehearse.Second{At: -4, Due: 12})
	source, root := pageOf(t, r)
	for _, d := range root.all("path", "") {
		if strings.ContainsAny(d.attr("d"), "NI") || strings.Contains(d.attr("d"), "000000") {
			t.Errorf("got path %.80q, want figures", d.attr("d"))
		}
	}
	if strings.Contains(source, "NaN") || strings.Contains(source, "Inf") {
		t.Errorf("got %q, want a gap", regexp.MustCompile(`.{40}(?:NaN|Inf).{20}`).FindString(source))
	}
	if got := len(root.byID("c-answers").all("rect", "hit")); got != 324 {
		t.Errorf("a second told twice, and one before the beginning: got %d seconds, want 324", got)
	}
}

func TestPage_CommandRepeatsTheRun(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*rehearse.Report){
		"seatctl rehearse --seed 7 --scale 1 --hold 1m0s --faults api,redis": func(*rehearse.Report) {},
		"seatctl rehearse --seed 7 --scale 0.05 --hold 10s --rate 300": func(r *rehearse.Report) {
			r.Scale, r.Hold, r.RateTarget, r.Faults = 0.05, 10*time.Second, 300, nil
		},
		"seatctl rehearse --seed 7 --scale 1 --hold 1m0s --for 40s --gateway-latency 1s": func(r *rehearse.Report) {
			r.Faults, r.For, r.Latency = nil, 40*time.Second, time.Second
		},
		`seatctl rehearse --seed 7 --scale 1 --hold 1m0s --target 'a b$(c)'\''d'`: func(r *rehearse.Report) { r.Faults, r.Target = nil, `a b$(c)'d` },
	} {
		r := played()
		change(&r)
		_, root := pageOf(t, r)
		if got := root.byID("command").Own; got != want {
			t.Errorf("command: got %q, want %q", got, want)
		}
	}
}

func TestPage_ClaimsNothingOfAStoreThatItCannotSee(t *testing.T) {
	t.Parallel()
	r := played()
	r.Target = "https://rehearsal.example.org"
	if _, root := pageOf(t, r); strings.Contains(root.text(), "store throttles") {
		t.Error("of a target: got store throttles, want none told")
	}
}

func TestPage_FiguresAsPeopleReadThem(t *testing.T) {
	t.Parallel()
	_, root := pageOf(t, played())
	text := root.text()
	for _, want := range []string{
		"1 December 2026, 04:00:00 UTC", "20,700 of 20,700", "holds created 31,642",
		"rate achieved 2,031 bookings a second, of 2,000 due in the rush",
		"rejections 3.2 ms p50 of every clear no; p99 41 ms", "admissions 212 ms p50 to the payment link; p99 4.2 s", "store throttles 0",
		"queue 1.7 s", "202 admitted 31,642", "50.2 %", "212.0 1,830.0 4,210.0 6,120.4 7,411.0",
		"no_answer no answer of the contract 3", "status.json 160,771 0.9 3.1", "load (the rehearsal itself) 171.3", "40,000", "2 cores, go1.26.8, linux/amd64", "length 5:24 min",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got a page without %q", want)
		}
	}
}

type brokenPipe struct{}

var errPipe = errors.New("nobody reads")

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

func TestPage_TellsThatItWasNotWritten(t *testing.T) {
	t.Parallel()
	if err := rehearse.Page(brokenPipe{}, played()); !errors.Is(err, errPipe) {
		t.Errorf("got %v, want %v", err, errPipe)
	}
}
