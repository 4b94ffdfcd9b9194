// Package web is the page a candidate sees: the form, the result, and the
// answer to a form sent without JavaScript. It renders; statuses, and headers
// other than those of every page, are the caller's.
//
// Form and result are rendered once for a sale and are the same bytes for
// everybody, wherever they are served from; what differs from one person to the
// next, their script asks for. All words are in both languages: those two pages
// carry both, the answer is in the one that the browser asks for. The package
// holds no state and has no clock. Fail mode: a build without one of its files,
// or with words that cannot be read, does not start.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"strings"

	"holdfast/internal/booking"
)

//go:embed *.html page.css page.js texts/*.json
var files embed.FS

var (
	script = asset("page.js")
	style  = asset("page.css")

	// policy names the one script and the one style by their hashes. There is
	// no form-action: browsers hold it against redirects too, and a form sent
	// without JavaScript is redirected to the payment gateway.
	policy = "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'"

	pages = template.Must(template.New("").Funcs(template.FuncMap{
		"policy": func() string { return policy },
		// Both are our own files, and inlined unchanged or their hashes would not fit.
		"script": func() template.HTML { return template.HTML("<script>" + script + "</script>") },
		"style":  func() template.HTML { return template.HTML("<style>" + style + "</style>") },
		"t":      func(key string) (string, error) { return ui(English, key) },
	}).ParseFS(files, "*.html"))
)

// The pages' objects in the bucket. The result's has no suffix, because its
// address has none; so it must be stored with its content type said.
const (
	indexName  = "index.html"
	resultName = "result"
)

const (
	// ContentType is every page's.
	ContentType = "text/html; charset=utf-8"

	// cacheControl has a CDN answer those who press reload by the thousand, and a
	// corrected page be everywhere within a minute: three caches lie on the way at
	// most (the CDN's region, its edge, the browser), and even if none told the next
	// one its copy's age, that is three times 20 s.
	cacheControl = "public, max-age=20"

	// saleMark stands in both pages and in no other file. See Ours.
	saleMark = `<script type="application/json" id="sale">`
)

// Header is one header of an answer.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// SecurityHeaders are the headers that every page goes out with, whoever serves it:
// the API, or a CDN, which must be told to add them. Strict-Transport-Security is not
// among them: it belongs to whoever ends TLS.
func SecurityHeaders() []Header {
	return []Header{
		// Only the one script and the one style of ours run, and they talk to this
		// origin only: what somebody slips into a page is dead. The pages say the same
		// of themselves, but for frame-ancestors (nobody lays the form, unseen, under
		// a page of theirs), which counts in a header only.
		{"Content-Security-Policy", policy + "; frame-ancestors 'none'"},
		// The result's address has the booking's token in it, a key to the booking: it
		// goes into nobody's log, ours and the gateway's included. The form's page has
		// the same, so that one table is enough for a CDN; its price is that a form
		// sent without JavaScript carries "Origin: null" (Fetch, "append a request
		// Origin header"), and nothing of ours looks at Origin: a booking needs the
		// candidate's own code and e-mail, and rides on no cookie.
		{"Referrer-Policy", "no-referrer"},
		// A page is HTML, and status.json is never taken for a script.
		{"X-Content-Type-Options", "nosniff"},
		// A window that opened the page, or that the page leads to, has no hold on it.
		{"Cross-Origin-Opener-Policy", "same-origin"},
		// The page needs none of what a phone has; a script that got in has it neither.
		{"Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"},
	}
}

// File is a page as it is served and as it is stored in a bucket.
type File struct {
	// Name is the object's, or the file's; Path is the page's address.
	Name, Path string
	// ContentType and CacheControl are headers to serve it with, beside
	// SecurityHeaders.
	ContentType, CacheControl string
	// Body is the page; Gzip is the same, compressed.
	Body, Gzip []byte
	// ETag is for both forms, and weak for that: the same page, not the same bytes
	// (RFC 9110, 8.8.1).
	ETag string
}

// Site is the two pages of a sale.
type Site struct {
	Index, Result File
}

// Files are both.
func (s *Site) Files() []File { return []File{s.Index, s.Result} }

// level is one kind of seat, for reading.
type level struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Fee has its currency: "1500.00 BDT".
	Fee string `json:"fee"`
}

// sale is what the pages know of theirs.
type sale struct {
	Title  string  `json:"title"`
	Levels []level `json:"levels"`
}

// Build renders the pages of a sale. From the same sale the same build makes the
// same bytes. An error is a mistake in the pages themselves.
func Build(s booking.Sale) (*Site, error) {
	shown := sale{Title: s.Called()}
	for _, l := range s.Levels {
		shown.Levels = append(shown.Levels, level{ID: l.ID, Name: l.Name, Fee: l.Fee.String() + " " + s.Currency})
	}
	var site Site
	for _, p := range []struct {
		to                   *File
		template, name, path string
	}{
		{&site.Index, "index.html", indexName, "/"},
		{&site.Result, "result.html", resultName, "/result"},
	} {
		var b bytes.Buffer
		err := pages.ExecuteTemplate(&b, p.template, struct {
			sale
			Sale  sale
			Texts map[Language]*words
		}{shown, shown, texts})
		if err != nil {
			return nil, fmt.Errorf("render %s: %w", p.template, err)
		}
		packed, err := compress(b.Bytes())
		if err != nil {
			return nil, fmt.Errorf("compress %s: %w", p.template, err)
		}
		sum := sha256.Sum256(b.Bytes())
		*p.to = File{
			Name: p.name, Path: p.path, ContentType: ContentType, CacheControl: cacheControl,
			Body: b.Bytes(), Gzip: packed, ETag: `W/"` + hex.EncodeToString(sum[:12]) + `"`,
		}
	}
	return &site, nil
}

// Ours tells whether that is a page of Build's, of any sale and of any version.
func Ours(page []byte) bool { return bytes.Contains(page, []byte(saleMark)) }

func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// AnswerData is the answer to a form sent without JavaScript that does not
// lead straight to the payment.
type AnswerData struct {
	// Words is the key of what is said; see Say.
	Words string
	// PaymentURL and BookingURL are links, each shown when set.
	PaymentURL, BookingURL string
	// In seconds, of which the first that is more than 0 is told in words: how long
	// there is to pay, when booking opens, when to try again.
	SecondsLeft, OpensIn, RetryAfter int
}

// answerView is what answer.html shows. Its texts are of its language.
type answerView struct {
	Lang                   Language
	Title, Message         string
	Time                   string // a whole sentence, or ""
	PaymentURL, BookingURL string
}

// T is a text of the page itself.
func (v answerView) T(key string) (string, error) { return ui(v.Lang, key) }

// Answer renders that page. Its error is the writer's.
func Answer(w io.Writer, l Language, d AnswerData) error {
	text := Say(l, d.Words)
	v := answerView{Lang: l, Title: text.Title, Message: text.Message, PaymentURL: d.PaymentURL, BookingURL: d.BookingURL}
	switch {
	case d.SecondsLeft > 0:
		v.Time = inTime(l, "time_left", d.SecondsLeft)
	case d.OpensIn > 0:
		v.Time = inTime(l, "opens_in", d.OpensIn)
	case d.RetryAfter > 0:
		v.Time = inTime(l, "try_again_in", d.RetryAfter)
	}
	return pages.ExecuteTemplate(w, "answer.html", v)
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

func hash(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
