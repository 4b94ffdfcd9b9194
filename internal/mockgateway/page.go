package mockgateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// The outcomes of the payer's page, and the status that the callback carries.
const (
	outcomeSuccess = "success"
	outcomeCancel  = "cancel"
	outcomeFailure = "failure"
)

// The payer's steps, each named as the field it asks for. How far a payer has
// come travels in the page's address, in "wallet" as it was typed, "step" and
// "error", so that reload and the browser's own way back work. A PIN never gets
// there.
const (
	stepWallet = "wallet"
	stepCode   = "code"
	stepPIN    = "pin"
)

// textedCode is what the text message would say, for every payer.
const textedCode = "123456"

//go:embed page.html
var pageSource string

var (
	page       = template.Must(template.New("page").Parse(pageSource))
	pageCSP    = "default-src 'none'; style-src " + styleHash(pageSource) + "; base-uri 'none'; frame-ancestors 'none'"
	statusCode = regexp.MustCompile(`^[0-9]{3,4}$`)
	walletForm = regexp.MustCompile(`^01[0-9]{9}$`)
	pinForm    = regexp.MustCompile(`^[0-9]{5}$`)
)

// testNumber is a wallet whose owner's payment goes otherwise.
type testNumber struct {
	Number, Means string

	refuse     string // the code that execute answers
	unfinished bool   // the payer comes back satisfied, and has not finished
	late       bool   // execute answers in doubt, and money moves later
}

// lateMS is longer than the merchant keeps a browser waiting at its return (8 s).
const lateMS = 20_000

// testNumbers begin with the plain case; the others end in the real gateway's
// code that execute answers with. Nothing assigns to them.
var testNumbers = []testNumber{
	{Number: payerMSISDN, Means: "pays"},
	{Number: "01700002023", Means: "has not enough balance", refuse: "2023"},
	{Number: "01700002014", Means: "is refused for a wrong PIN", refuse: "2014"},
	{Number: "01700002016", Means: "is refused for a wrong one-time code", refuse: "2016"},
	{Number: "01700002037", Means: "is blocked", refuse: "2037"},
	{Number: "01700002060", Means: "comes back without having finished", unfinished: true},
	{Number: "01700002003", Means: "is slow: the money moves 20 seconds late", late: true},
}

// stepTexts are what a step says; its errors by the word in the address.
var stepTexts = map[string]struct {
	count                int
	heading, label, hint string
	errors               map[string]string
}{
	stepWallet: {1, "Your wallet", "Wallet number", "11 digits, such as " + payerMSISDN + ". Use no number of a real wallet.", map[string]string{
		"empty": "Type a wallet number.",
		"shape": "A wallet number has 11 digits and begins with 01.",
	}},
	stepCode: {2, "One-time code", "Code from the text message", "6 digits.", map[string]string{
		"empty": "Type the code from the text message.",
		"wrong": "This is not the code in the text message. Type it again.",
	}},
	stepPIN: {3, "Confirm with your PIN", "PIN", "Any 5 digits. Use no PIN of a real wallet.", map[string]string{
		"empty": "Type a PIN.",
		"shape": "A PIN has 5 digits. Type it again.",
	}},
}

// pageData is what the page shows. State is "open", "paid", "over" or
// "unknown"; what belongs to a step is there while it is open.
type pageData struct {
	State, Heading                                            string
	Merchant, Invoice, Amount, Currency, Reference, PaymentID string

	Step, Label, Hint, Error, Wallet, Code string
	Count                                  int
	Numbers                                []testNumber
}

// styleHash is the source expression that lets the page's one style through.
func styleHash(html string) string {
	_, css, _ := strings.Cut(html, "<style>")
	css, _, _ = strings.Cut(css, "</style>")
	sum := sha256.Sum256([]byte(css))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// find returns the payment that the address names, if its hash is right.
func (g *Gateway) find(r *http.Request) *payment {
	p := g.payments[r.PathValue("payment")]
	if p == nil || subtle.ConstantTimeCompare([]byte(p.Hash), []byte(r.URL.Query().Get("hash"))) != 1 {
		return nil
	}
	return p
}

func (g *Gateway) showPage(w http.ResponseWriter, r *http.Request) {
	now := g.opts.Now()
	g.mu.Lock()
	p := g.find(r)
	if p == nil {
		g.mu.Unlock()
		showUnknown(w)
		return
	}
	g.bring(p, now)
	d := pageData{State: "open", Merchant: merchant(p.CallbackURL), Invoice: short(p.Invoice), Amount: p.Amount,
		Currency: p.Currency, Reference: short(p.Reference), PaymentID: p.ID}
	saved := p.saved
	switch {
	case p.completed():
		d.State, d.Heading = "paid", "This payment is complete"
	case p.over(now):
		d.State, d.Heading = "over", "This payment is over"
	default:
		d.takeStep(r.URL.Query())
	}
	g.mu.Unlock()
	if err := saved.wait(); err != nil {
		http.Error(w, "the payment could not be read", http.StatusInternalServerError)
		return
	}
	showPage(w, http.StatusOK, d)
}

// takeStep fills in the step that an address names. Without a wallet it is the
// first one, whatever else the address says.
func (d *pageData) takeStep(address url.Values) {
	d.Step, d.Wallet = stepWallet, address.Get("wallet")
	if number := walletNumber(d.Wallet); walletForm.MatchString(number) {
		d.Wallet = number
		if step := address.Get("step"); step == stepCode || step == stepPIN {
			d.Step = step
		}
	}
	t := stepTexts[d.Step]
	d.Count, d.Heading, d.Label, d.Hint, d.Error = t.count, t.heading, t.label, t.hint, t.errors[address.Get("error")]
	d.Code, d.Numbers = textedCode, testNumbers
}

func showUnknown(w http.ResponseWriter) {
	showPage(w, http.StatusNotFound, pageData{State: "unknown", Heading: "Payment not found"})
}

func showPage(w http.ResponseWriter, status int, d pageData) {
	var body bytes.Buffer
	if err := page.Execute(&body, d); err != nil {
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	// form-action stays open: browsers hold the redirect to the merchant against it.
	h.Set("Content-Security-Policy", pageCSP)
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a browser that left needs no page
}

// pressButton takes what the payer's page sends: an outcome, which ends the
// payment in one step, or the field of a step. A script may add refuse=<status
// code> to a success: the payer comes back satisfied, and execute answers with
// that code.
func (g *Gateway) pressButton(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	outcome, refuse := r.PostFormValue("outcome"), r.PostFormValue("refuse")
	step := ""
	for _, s := range []string{stepWallet, stepCode, stepPIN} {
		if r.PostForm.Has(s) {
			step = s
			break
		}
	}
	switch {
	case outcome == "" && refuse == "" && step != "":
		g.submitStep(w, r, step)
	case outcome != outcomeSuccess && outcome != outcomeCancel && outcome != outcomeFailure:
		http.Error(w, "outcome: want success, cancel or failure", http.StatusBadRequest)
	case refuse != "" && (outcome != outcomeSuccess || !statusCode.MatchString(refuse) || refuse == success):
		http.Error(w, "refuse: want a status code other than 0000, with outcome=success", http.StatusBadRequest)
	default:
		g.finish(w, r, outcome, testNumber{refuse: refuse})
	}
}

// submitStep sends the browser on to the next step, or back to this one with
// what is wrong; after the last one the payment ends as its wallet has it.
func (g *Gateway) submitStep(w http.ResponseWriter, r *http.Request, step string) {
	address, typed := r.URL.Query(), r.PostFormValue(step)
	if step == stepWallet {
		address.Set("wallet", clip(typed))
	}
	wallet := walletNumber(address.Get("wallet"))
	next, wrong := stepCode, ""
	switch {
	case step != stepWallet && !walletForm.MatchString(wallet): // the address was cut short
		step, wrong = stepWallet, "empty"
	case digits(typed) == "":
		wrong = "empty"
	case step == stepWallet && !walletForm.MatchString(wallet):
		wrong = "shape"
	case step == stepCode && digits(typed) != textedCode:
		wrong = "wrong"
	case step == stepCode:
		next = stepPIN
	case step == stepPIN && !pinForm.MatchString(digits(typed)):
		wrong = "shape"
	case step == stepPIN:
		var number testNumber // any other pays
		if i := slices.IndexFunc(testNumbers, func(t testNumber) bool { return t.Number == wallet }); i >= 0 {
			number = testNumbers[i]
		}
		g.finish(w, r, outcomeSuccess, number)
		return
	}
	address.Del("error")
	if wrong != "" {
		next = step
		address.Set("error", wrong)
	}
	address.Set("step", next)

	g.mu.Lock()
	p := g.find(r)
	g.mu.Unlock()
	if p == nil {
		showUnknown(w)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	// Without a path, so that it holds behind a proxy that cuts one off.
	w.Header().Set("Location", "?"+address.Encode())
	w.WriteHeader(http.StatusSeeOther)
}

// finish does what the payer chose, or what the number does to a success, and
// sends the browser back to the merchant. A second time does no harm.
func (g *Gateway) finish(w http.ResponseWriter, r *http.Request, outcome string, number testNumber) {
	now := g.opts.Now()
	g.mu.Lock()
	p := g.find(r)
	if p == nil {
		g.mu.Unlock()
		showUnknown(w)
		return
	}
	g.bring(p, now)
	payable := !p.completed() && !p.over(now)
	if number.late && payable && !slices.ContainsFunc(p.Faults, func(f *Fault) bool { return f.Name == FaultCompletesLate }) {
		p.Faults = append(p.Faults, &Fault{Name: FaultCompletesLate, DelayMS: lateMS})
	}
	status := outcome
	if number.unfinished && payable {
		p.Finished, p.Refuse = false, ""
	} else {
		status = p.press(outcome, number.refuse, g.settings.Capture == CapturePayer, now)
	}
	back := p.callback(status) + "&apiVersion=1.2.0-beta/"
	g.settle(p, now)
	saved := p.saved
	g.mu.Unlock()
	if err := saved.wait(); err != nil {
		http.Error(w, "the choice could not be kept", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, back, http.StatusSeeOther)
}

// merchant is the host that the payer comes back to; create has read the address.
func merchant(callbackURL string) string {
	u, err := url.Parse(callbackURL)
	if err != nil {
		return callbackURL
	}
	return u.Host
}

// digits is a number as people type it, in Latin or Bangla digits, without what
// they put in between.
func digits(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '০' && r <= '৯':
			return '0' + r - '০'
		case unicode.IsSpace(r) || r == '-':
			return -1
		}
		return r
	}, s)
}

// walletNumber is digits without the country's code.
func walletNumber(s string) string {
	return strings.TrimPrefix(strings.TrimPrefix(digits(s), "+"), "88")
}

// clip keeps what goes into an address short.
func clip(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40])
	}
	return s
}

// short is a number that fits on a telephone.
func short(s string) string {
	if r := []rune(s); len(r) > 20 {
		return string(r[:8]) + "…" + string(r[len(r)-8:])
	}
	return s
}
