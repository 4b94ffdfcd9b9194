package mockgateway

import (
	"bytes"
	"crypto/subtle"
	_ "embed"
	"html/template"
	"net/http"
	"regexp"
)

// The buttons on the payer's page, and the status that the callback carries.
const (
	outcomeSuccess = "success"
	outcomeCancel  = "cancel"
	outcomeFailure = "failure"
)

//go:embed page.html
var pageSource string

var (
	page       = template.Must(template.New("page").Parse(pageSource))
	statusCode = regexp.MustCompile(`^[0-9]{3,4}$`)
)

// pageData is what the page shows. State is "open", "paid", "over" or
// "unknown".
type pageData struct {
	State, Invoice, Amount, Currency, Reference, PaymentID string
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
		showPage(w, http.StatusNotFound, pageData{State: "unknown"})
		return
	}
	g.bring(p, now)
	d := pageData{State: "open", Invoice: short(p.Invoice), Amount: p.Amount, Currency: p.Currency,
		Reference: p.Reference, PaymentID: p.ID}
	saved := p.saved
	switch {
	case p.completed():
		d.State = "paid"
	case p.over(now):
		d.State = "over"
	}
	g.mu.Unlock()
	if err := saved.wait(); err != nil {
		http.Error(w, "the payment could not be read", http.StatusInternalServerError)
		return
	}
	showPage(w, http.StatusOK, d)
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
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a browser that left needs no page
}

// pressButton does what the payer chose and sends the browser back to the
// merchant. A script may add refuse=<status code> to a success: the payer comes
// back satisfied, and execute answers with that code.
func (g *Gateway) pressButton(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	outcome, refuse := r.PostFormValue("outcome"), r.PostFormValue("refuse")
	switch {
	case outcome != outcomeSuccess && outcome != outcomeCancel && outcome != outcomeFailure:
		http.Error(w, "outcome: want success, cancel or failure", http.StatusBadRequest)
		return
	case refuse != "" && (outcome != outcomeSuccess || !statusCode.MatchString(refuse) || refuse == success):
		http.Error(w, "refuse: want a status code other than 0000, with outcome=success", http.StatusBadRequest)
		return
	}
	now := g.opts.Now()
	g.mu.Lock()
	p := g.find(r)
	if p == nil {
		g.mu.Unlock()
		showPage(w, http.StatusNotFound, pageData{State: "unknown"})
		return
	}
	g.bring(p, now)
	back := p.callback(p.press(outcome, refuse, g.settings.Capture == CapturePayer, now)) + "&apiVersion=1.2.0-beta/"
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

// short is an invoice number that fits on a telephone.
func short(s string) string {
	if r := []rune(s); len(r) > 20 {
		return string(r[:8]) + "…" + string(r[len(r)-8:])
	}
	return s
}
