// Package web is the page a candidate sees: the form, the result, and the
// answer to a form sent without JavaScript. It renders; statuses and headers
// are the caller's.
//
// Every page works without JavaScript, which only keeps it fresh and saves a
// page load. Index and Result can also be rendered once and stored (S3 behind
// the CDN): what is not known then, the script fills in. The package holds no
// state and has no clock, and a render fails only when its writer does.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"
)

//go:embed *.html page.css page.js texts.json
var files embed.FS

var (
	script = asset("page.js")
	style  = asset("page.css")
	texts  = mustTexts()

	// policy names the one script and the one style by their hashes. There is
	// no form-action: browsers hold it against redirects too, and a form sent
	// without JavaScript is redirected to the payment gateway.
	policy = "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'"

	// CSP is the Content-Security-Policy header that every page goes out with.
	// The pages carry it themselves too, except for frame-ancestors, which
	// counts in a header only.
	CSP = policy + "; frame-ancestors 'none'"

	pages = template.Must(template.New("").Funcs(template.FuncMap{
		"policy": func() string { return policy },
		// Both are our own files, and inlined unchanged or their hashes would not fit.
		"script": func() template.HTML { return template.HTML("<script>" + script + "</script>") },
		"style":  func() template.HTML { return template.HTML("<style>" + style + "</style>") },
	}).ParseFS(files, "*.html"))
)

// Text is what a person reads of an outcome or of the state of a booking.
type Text struct {
	Title   string `json:"title"`
	Message string `json:"message"`
}

// Say gives the words for an error slug of POST /book or a state of
// GET /booking/. "closed" is told by its reason ("not_open", "sold_out"),
// "duplicate" also as "duplicate_payable" (a payment link is there),
// "duplicate_working" (the first request is still at work) and
// "duplicate_paid". Any other key is "internal".
func Say(key string) Text {
	if t, ok := texts[key]; ok {
		return t
	}
	return texts["internal"]
}

// Level is one kind of seat on the booking page.
type Level struct {
	ID, Name string
	// Fee is for reading, with its currency: "1500.00 BDT".
	Fee string
	// Left is how many seats are left: 0 is full, less than 0 is not known.
	Left int
}

// LeftText is Left in words; nothing when it is not known.
func (l Level) LeftText() string {
	switch {
	case l.Left < 0:
		return ""
	case l.Left == 0:
		return "full"
	}
	return strconv.Itoa(l.Left) + " left"
}

// IndexData is what the booking page shows before its script runs.
type IndexData struct {
	// Levels in the sale's order.
	Levels []Level
	// Fresh says that Open, OpensAt and Left are current. A page that is stored
	// leaves it false.
	Fresh bool
	Open  bool
	// OpensAt is the scheduled opening while not open; zero when there is none.
	OpensAt time.Time
	// Left is how many seats are left in all; less than 0 is not known.
	Left int
}

// Index renders the booking page.
func Index(w io.Writer, d IndexData) error {
	view := struct {
		Levels                     []Level
		Fresh                      bool
		State, OpensAt, OpensAtISO string
		Texts                      map[string]Text
	}{Levels: d.Levels, Fresh: d.Fresh, Texts: texts}
	switch {
	case !d.Fresh:
	case d.Open && soldOut(d):
		view.State = Say("sold_out").Title + ". " + Say("sold_out").Message
	case d.Open:
		view.State = "Booking is open."
	case !d.OpensAt.IsZero():
		view.State = "Booking opens on"
		view.OpensAt = d.OpensAt.UTC().Format("2 January 2006, 15:04 UTC")
		view.OpensAtISO = d.OpensAt.UTC().Format(time.RFC3339)
	default:
		view.State = Say("not_open").Title + "."
	}
	return pages.ExecuteTemplate(w, "index.html", view)
}

// soldOut holds when no seat is left in all, or none in any level.
func soldOut(d IndexData) bool {
	if d.Left == 0 {
		return true
	}
	for _, l := range d.Levels {
		if l.Left != 0 {
			return false
		}
	}
	return len(d.Levels) > 0
}

// ResultData is a booking as the result page shows it before its script runs.
type ResultData struct {
	// Token is the booking token; "" on a page that is stored, whose script
	// takes it from the address.
	Token string
	// State is a state of GET /booking/, "unknown" for a booking that is none of
	// ours, or "" when it was not looked up.
	State string
	// Level is the level's id or name.
	Level string
	// SecondsLeft is the time to pay.
	SecondsLeft int
	// PaymentURL is set while the booking can be paid.
	PaymentURL string
}

// Result renders the result page.
func Result(w io.Writer, d ResultData) error {
	const checking = "checking"
	view := struct {
		ResultData
		Text           Text
		Refresh, Again bool
		Time           string
		Texts          map[string]Text
	}{ResultData: d, Texts: texts}
	switch d.State {
	case "held", "refused":
		view.Refresh = true
		if d.SecondsLeft > 0 {
			view.Time = "You have " + span(d.SecondsLeft) + " to pay."
		}
	case "paying":
		view.Refresh = true
	case "paid", "released", "refund_due", "unknown":
	default:
		view.State = checking
		view.Refresh = d.Token != ""
	}
	view.Again = d.State == "refused" || d.State == "released" || d.State == "unknown"
	view.Text = Say(view.State)
	return pages.ExecuteTemplate(w, "result.html", view)
}

// AnswerData is the answer to a form sent without JavaScript that does not
// lead straight to the payment.
type AnswerData struct {
	// Status is the HTTP status the caller answers with.
	Status int
	// Title and Message are usually Say's.
	Title, Message string
	// PaymentURL and BookingURL are links, each shown when set.
	PaymentURL, BookingURL string
	// RetryAfter is in seconds; 0 says nothing of trying again.
	RetryAfter int
}

// Answer renders that page.
func Answer(w io.Writer, d AnswerData) error {
	view := struct {
		AnswerData
		Time string
	}{AnswerData: d}
	if d.RetryAfter > 0 {
		view.Time = span(d.RetryAfter)
	}
	return pages.ExecuteTemplate(w, "answer.html", view)
}

// span says a number of seconds in plain English, to the minute above one.
func span(seconds int) string {
	n, unit := seconds, "second"
	if seconds >= 60 {
		n, unit = seconds/60, "minute"
	}
	if n != 1 {
		unit += "s"
	}
	return strconv.Itoa(n) + " " + unit
}

// asset reads one of our files. Browsers hash what the HTML parser gives them,
// and that has no carriage returns.
func asset(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(fmt.Sprintf("embedded file: %v", err)) // a build without its files
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

func mustTexts() map[string]Text {
	var t map[string]Text
	if err := json.Unmarshal([]byte(asset("texts.json")), &t); err != nil {
		panic(fmt.Sprintf("texts.json: %v", err))
	}
	return t
}

func hash(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
