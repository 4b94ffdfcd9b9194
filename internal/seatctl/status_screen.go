package seatctl

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"holdfast/internal/alarms"
	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

// The control sequences of ECMA-48 that every terminal knows.
const (
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	clearScreen = "\x1b[2J"
	goHome      = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// tint is how a line is shown where there is colour.
type tint string

const (
	plain  tint = ""
	good   tint = "\x1b[32m"
	warn   tint = "\x1b[33m"
	bad    tint = "\x1b[1;31m"
	strong tint = "\x1b[1m"
	normal      = "\x1b[0m"
)

// screen draws views for a terminal of that size; height 0 is as many lines as it
// takes.
type screen struct {
	width, height int
	colour        bool
}

type line struct {
	text string
	tint tint
}

// page is a drawing that grows line by line.
type page struct {
	lines []line
	width int
}

func (p *page) add(t tint, format string, args ...any) {
	p.lines = append(p.lines, line{fmt.Sprintf(format, args...), t})
}

// field is a line with its name in front.
func (p *page) field(t tint, name, format string, args ...any) {
	p.add(t, "%-12s%s", name, fmt.Sprintf(format, args...))
}

// draw is the view as text, each line cut to the width.
func (s screen) draw(v view) string {
	var b strings.Builder
	for _, l := range s.cut(s.lines(v)) {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	return b.String()
}

// inPlace draws over the view before. The last line is not ended, which would scroll.
func (s screen) inPlace(v view) string {
	return goHome + strings.Join(s.cut(s.lines(v)), clearLine+"\r\n") + clearLine + clearBelow
}

// cut fits the lines to the screen. Of what is too much the last line says so.
func (s screen) cut(lines []line) []string {
	if s.height > 0 && len(lines) > s.height {
		more := len(lines) - s.height + 1
		lines = append(lines[:s.height-1:s.height-1], line{fmt.Sprintf("... %d more lines", more), warn})
	}
	out := make([]string, 0, len(lines))
	for _, l := range lines {
		text := strings.TrimRight(clip(oneLine(l.text), s.width), " ")
		if s.colour && l.tint != plain && text != "" {
			text = string(l.tint) + text + normal
		}
		out = append(out, text)
	}
	return out
}

// oneLine takes out what would move the cursor: error texts and names come from
// elsewhere.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}

// clip cuts a text to so many characters.
func clip(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return string(runes[:max(0, width-1)]) + ">"
}

func (s screen) lines(v view) []line {
	p := &page{width: s.width}
	p.head(v)
	p.seats(v)
	p.rows(v)
	p.money(v)
	p.fleet(v)
	p.alarms(v)
	return p.lines
}

func (p *page) head(v view) {
	state, t := "unknown", bad
	if seats := v.Seats; seats != nil {
		switch {
		case seats.Open && seats.Reason == "sold_out":
			state, t = "OPEN, SOLD OUT", strong
		case seats.Open:
			state, t = "OPEN", good
		case !seats.OpensAt.IsZero():
			state, t = "opens "+when(seats.OpensAt)+", "+fromNow(seats.OpensAt.Sub(seats.At)), strong
		default:
			state, t = "closed", strong
		}
	}
	left := "sale " + cmp.Or(v.Sale, "unknown") + "  " + state
	if n := v.firing(); n > 0 { // a short terminal may not show the alarms
		left, t = fmt.Sprintf("%s  %d FIRING", left, n), bad
	}
	right := v.At.UTC().Format("15:04:05Z")
	gap := max(2, p.width-utf8.RuneCountInString(left)-len(right))
	p.add(t, "%s%s%s", left, strings.Repeat(" ", gap), right)
}

func (p *page) seats(v view) {
	if v.Seats == nil {
		p.unknown(v, "seats", saleops.PartSeats)
		return
	}
	name := 5
	for _, l := range v.Seats.Levels {
		name = max(name, len(l.ID))
	}
	p.bar("all", name, v.Seats.Admitted, v.Seats.Cap)
	for _, l := range v.Seats.Levels {
		p.bar(l.ID, name, l.Admitted, l.Cap)
	}
	rate := "unknown"
	if v.AdmissionsAMinute != nil {
		rate = fmt.Sprintf("%s a minute", number(*v.AdmissionsAMinute))
	}
	net := "unknown"
	if v.SeatsAMinute != nil {
		net = fmt.Sprintf("%s, over %.0f s", signed(*v.SeatsAMinute), v.OverSeconds)
	}
	p.field(plain, "admissions", "%s; seats a minute %s", rate, net)
}

// bar is one line of seats; a narrow screen gets a short bar, or none.
func (p *page) bar(name string, nameWidth int, admitted *int, limit int) {
	if admitted == nil {
		p.add(bad, "%-*s DAMAGED: its counter is no number, and nobody is admitted", nameWidth, name)
		return
	}
	figures := fmt.Sprintf("%7s / %-7s %6s left", thousands(*admitted), thousands(limit), thousands(max(0, limit-*admitted)))
	room := min(p.width-nameWidth-len(figures)-4, 40)
	drawn := ""
	if room >= 5 {
		full := 0
		if limit > 0 {
			full = min(room, *admitted*room/limit)
		}
		drawn = "[" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "] "
	}
	t := plain
	if *admitted >= limit {
		t = strong
	}
	if *admitted > limit {
		t = bad
	}
	p.add(t, "%-*s %s%s", nameWidth, name, drawn, figures)
}

func (p *page) rows(v view) {
	if v.Rows == nil {
		p.unknown(v, "rows", saleops.PartRows)
		return
	}
	age := "now"
	if v.Seats != nil {
		if d := v.Seats.At.Sub(v.Rows.At); d >= time.Second {
			age = about(d) + " ago"
		}
	}
	ages := saleops.Ages()
	head := fmt.Sprintf("%-12s%8s", "rows", "all")
	for i, a := range ages {
		if i == 0 {
			head += fmt.Sprintf("%9s", "<"+minutes(a))
			continue
		}
		head += fmt.Sprintf("%9s", fmt.Sprintf("%d-%s", int(ages[i-1].Minutes()), minutes(a)))
	}
	head += fmt.Sprintf("%9s  %s", ">"+minutes(ages[len(ages)-1]), "oldest")
	p.add(strong, "%-64s counted %s", head, age)
	for _, c := range v.Rows.Phases {
		if c.Phase == booking.PhasePaid {
			continue
		}
		text := fmt.Sprintf("  %-10s%8s", c.Phase, thousands(c.Rows))
		for _, n := range c.ByAge {
			text += fmt.Sprintf("%9s", thousands(n))
		}
		if c.Rows > 0 {
			text += "  " + about(time.Duration(c.OldestSeconds)*time.Second)
		}
		p.add(plain, "%s", text)
	}
	t := plain
	if v.Rows.InDoubt > 0 {
		t = warn
	}
	if v.Rows.ForAPerson > 0 || v.Rows.Unreadable > 0 {
		t = bad
	}
	p.field(t, "in doubt", "%s, %s of them for a person; %s past their deadline", thousands(v.Rows.InDoubt), thousands(v.Rows.ForAPerson), thousands(v.Rows.PastDeadline))
	if v.Rows.Unreadable > 0 {
		p.field(bad, "unreadable", "%s rows: run the audit", thousands(v.Rows.Unreadable))
	}
}

func (p *page) money(v view) {
	paid := "unknown"
	if v.Rows != nil {
		paid = thousands(v.Rows.Paid())
	}
	p.field(plain, "paid", "%s", paid)
	if v.Refunds == nil {
		p.unknown(v, "refunds", saleops.PartRefunds)
	} else {
		t, more := plain, ""
		if v.Refunds.Due > 0 {
			t = warn
		}
		if v.Refunds.More {
			more = " or more"
		}
		text := fmt.Sprintf("%s%s due", thousands(v.Refunds.Due), more)
		if v.Refunds.Unreadable > 0 {
			t, text = bad, text+fmt.Sprintf(", %s unreadable", thousands(v.Refunds.Unreadable))
		}
		p.field(t, "refunds", "%s", text)
	}
	if v.Queue == nil {
		p.unknown(v, "queue", saleops.PartQueue)
		return
	}
	t := plain
	if v.Queue.Dead > 0 || v.Queue.OldestSeconds > 60 {
		t = bad
	}
	p.field(t, "queue", "%s waiting, %s in flight, oldest %s; dead letters %s", thousands(v.Queue.Waiting), thousands(v.Queue.InFlight),
		about(time.Duration(v.Queue.OldestSeconds*float64(time.Second))), thousands(v.Queue.Dead))
}

func (p *page) fleet(v view) {
	if v.LastSweep == nil {
		p.unknown(v, "reconciler", partSweep)
	} else {
		ago, t := v.At.Sub(*v.LastSweep), plain
		if ago > 2*time.Minute {
			t = bad
		}
		p.field(t, "reconciler", "last sweep %s ago", about(max(0, ago)))
	}
	replicas, t := "unknown", warn
	if v.Acknowledged != nil {
		replicas, t = "they acknowledge", plain
		if !*v.Acknowledged {
			replicas, t = "they do NOT acknowledge", bad
		}
	}
	failures := "unknown"
	if v.AckFailures != nil {
		failures = thousands(int(*v.AckFailures))
		if v.AckFailuresRecent != nil {
			failures += fmt.Sprintf(", %s in the last %.0f s", number(*v.AckFailuresRecent), v.OverSeconds)
		}
	}
	p.field(t, "replicas", "%s; acknowledgement failures %s", replicas, failures)
	switch {
	case v.Published == nil:
		p.unknown(v, "status.json", saleops.PartPublished)
	case *v.Published:
		p.field(plain, "status.json", "says of the switch what the ledger says")
	default:
		p.field(warn, "status.json", "does NOT say what the ledger says")
	}
	answer := 0
	for _, process := range v.Processes {
		if process.Error == "" {
			answer++
		}
	}
	if len(v.Processes) == 0 {
		p.unknown(v, "processes", partProcesses)
	} else {
		t := plain
		if answer < len(v.Processes) {
			t = bad
		}
		p.field(t, "processes", "%d of %d answer", answer, len(v.Processes))
	}
	for _, process := range v.Processes {
		if process.Error != "" {
			p.add(bad, "  away    %s", process.URL)
			p.add(bad, "          %s", process.Error)
		}
	}
}

func (p *page) alarms(v view) {
	if len(v.Alarms) == 0 {
		p.field(warn, "alarms", "unknown: no process was asked")
		return
	}
	n := alarms.Count(v.Alarms)
	t := plain
	switch {
	case n[alarms.StateFiring] > 0:
		t = bad
	case n[alarms.StatePending] > 0:
		t = warn
	}
	p.field(t, "alarms", "%d firing, %d pending, %d fine; not judged: %d short of history,", n[alarms.StateFiring], n[alarms.StatePending], n[alarms.StateFine], n[alarms.StateShort])
	p.field(t, "", "%d without data, %d not evaluated", n[alarms.StateNoData], n[alarms.StateFailed])
	for _, a := range v.Alarms {
		switch a.State {
		case alarms.StateFiring:
			p.alarm(bad, "FIRING", v, a)
		case alarms.StatePending:
			p.alarm(warn, "pending", v, a)
		case alarms.StateFailed:
			p.add(warn, "  %-8s%s: %s", "error", a.Name, a.Note)
		}
	}
	for _, state := range []alarms.State{alarms.StateShort, alarms.StateNoData} {
		var names []string
		for _, a := range v.Alarms {
			if a.State == state {
				names = append(names, a.Name)
			}
		}
		slices.Sort(names) // one alert may have several rules
		if names = slices.Compact(names); len(names) > 0 {
			p.wrap(fmt.Sprintf("  %s: ", state), names)
		}
	}
}

// wrap lists words over as many lines as they take.
func (p *page) wrap(text string, words []string) {
	indent := len(text)
	for i, w := range words {
		if i < len(words)-1 {
			w += ","
		}
		if len(text) > indent && len(text)+len(w) > p.width {
			p.add(plain, "%s", text)
			text = strings.Repeat(" ", indent)
		}
		text += w + " "
	}
	p.add(plain, "%s", text)
}

func (p *page) alarm(t tint, word string, v view, a alarms.Alarm) {
	p.add(t, "  %-8s%s, %s, for %s: %s", word, a.Name, cmp.Or(a.Severity, "no severity"), about(v.At.Sub(a.Since)), a.Summary)
	if a.Note != "" {
		p.add(t, "          %s", a.Note)
	}
	if a.Runbook != "" {
		p.add(t, "          %s", a.Runbook)
	}
}

func (p *page) unknown(v view, name, part string) {
	p.field(warn, name, "unknown: %s", cmp.Or(v.Unknown[part], "it was not read"))
}

func minutes(d time.Duration) string { return fmt.Sprintf("%dm", int(d.Minutes())) }

// number is a rounded figure.
func number(v float64) string {
	if v < 0 {
		return "-" + number(-v)
	}
	return thousands(int(v + 0.5))
}

func signed(v float64) string {
	if v >= 0 {
		return "+" + number(v)
	}
	return number(v)
}

// thousands writes a number with commas.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
