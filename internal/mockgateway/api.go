package mockgateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// The names of the API's calls, for Options.Latency and the settings.
const (
	CallGrant   = "grant"
	CallRefresh = "refresh"
	CallCreate  = "create"
	CallExecute = "execute"
	CallStatus  = "status"
	CallRefund  = "refund"
	CallSearch  = "search"
)

// Calls lists every call's name.
func Calls() []string {
	return []string{CallGrant, CallRefresh, CallCreate, CallExecute, CallStatus, CallRefund, CallSearch}
}

const (
	success  = "0000"
	maxBody  = 64 << 10
	maxField = 255
)

var statusMessages = map[string]string{
	success: "Successful",
	"2002":  "Invalid Payment ID",
	"2006":  "Invalid Amount",
	"2007":  "Invalid Currency",
	"2008":  "Invalid Intent",
	"2023":  "Insufficient Balance",
	"2025":  "Invalid request body",
	"2026":  "Reversal amount cannot be greater than the original transaction amount",
	"2028":  "Transaction not known",
	"2029":  "Duplicate for all transactions",
	"2031":  "Invalid merchant invoice number",
	"2033":  "Transaction not found",
	"2034":  "Transaction already reversed",
	"2048":  "Invalid payer reference",
	"2049":  "Invalid merchant callback URL",
	"2003":  "Process failed",
	"2056":  "Invalid Payment State",
	"2060":  "Execute prerequisite is not met",
	"2062":  "The payment has already been completed",
	"2063":  "Mode is not valid as per request data",
	"2065":  "Mandatory field missing",
	"2117":  "Payment execution already been called before",
	"503":   "System is undergoing maintenance. Please try again later",
	"9999":  "System error",
}

// answer is what a call gets, once saved is on disk.
type answer struct {
	status  int
	fields  map[string]any
	saved   *batch
	effect  bool     // the call did its work, whatever it answers
	drawKey []string // what the draw of its latency rests on; nil is the call alone

	lost    bool          // nothing of it is sent: the connection is closed
	open    bool          // but only after openFor, or when the client has given up
	openFor time.Duration // 0 is without end
}

// accepted is an answer with code 0000.
func accepted(fields map[string]any) answer {
	fields["statusCode"], fields["statusMessage"] = success, statusMessages[success]
	return answer{status: http.StatusOK, fields: fields, effect: true}
}

// refusal is how the gateway itself says no: HTTP 200 and a code.
func refusal(code string) answer {
	words, ok := statusMessages[code]
	if !ok {
		words = "Refused"
	}
	return answer{status: http.StatusOK, fields: map[string]any{"statusCode": code, "statusMessage": words}}
}

// message is how what stands before the gateway says no.
func message(status int, text string) answer {
	return answer{status: status, fields: map[string]any{"message": text}}
}

type handler func(r *http.Request, body []byte) answer

// api is the one way in and out of every call: the outages first, then the
// work, then the disk, then the latency, then the answer. The work is done before
// the latency and also for a client that has hung up, so that a call whose
// answer comes too late has had its effect.
func (g *Gateway) api(call string, next handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		set := g.Settings()
		switch {
		case set.Down:
			g.count(FaultUnavailable, call)
			reply(w, message(http.StatusServiceUnavailable, "Service Unavailable"))
			return
		case set.Maintenance:
			g.count(FaultMaintenance, call)
			reply(w, refusal("503"))
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			reply(w, message(http.StatusRequestEntityTooLarge, "Request Too Long"))
			return
		}
		ans := next(r, body)
		if err := ans.saved.wait(); err != nil {
			ans = message(http.StatusInternalServerError, "Internal server error")
		}
		if ans.open {
			g.hold(r.Context(), ans.openFor)
		} else if d := g.latency(set, call, ans.drawKey); d > 0 {
			select {
			case <-g.opts.At(g.opts.Now().Add(d)):
			case <-r.Context().Done():
				return
			}
		}
		if ans.lost {
			panic(http.ErrAbortHandler) // net/http's own way to cut a connection
		}
		reply(w, ans)
	}
}

// hold keeps a call waiting for d, or without end if that is 0; at most until
// its client gives up or the gateway stops.
func (g *Gateway) hold(ctx context.Context, d time.Duration) {
	var over <-chan time.Time
	if d > 0 {
		over = g.opts.At(g.opts.Now().Add(d))
	}
	select {
	case <-over:
	case <-ctx.Done():
	case <-g.hungUp:
	}
}

func (g *Gateway) count(fault, call string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tally.add(fault, call)
}

func reply(w http.ResponseWriter, a answer) {
	writeJSON(w, a.status, a.fields)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // no value here can fail
		http.Error(w, "encode answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a caller that hung up needs no answer
}

// decodeBody reads an object whose known fields are all text.
func decodeBody(body []byte, into any) bool { return json.Unmarshal(body, into) == nil }

type createBody struct {
	Mode        string `json:"mode"`
	Reference   string `json:"payerReference"`
	CallbackURL string `json:"callbackURL"`
	Amount      string `json:"amount"`
	Currency    string `json:"currency"`
	Intent      string `json:"intent"`
	Invoice     string `json:"merchantInvoiceNumber"`
}

// check finds the first fault, or "". Only payment without an agreement (mode
// 0011) for immediate sale is sold here.
func (b createBody) check() string {
	for _, v := range []string{b.Mode, b.Reference, b.CallbackURL, b.Amount, b.Currency, b.Intent, b.Invoice} {
		if v == "" {
			return "2065"
		}
	}
	amount, err := booking.ParseMoney(b.Amount)
	switch {
	case b.Mode != "0011":
		return "2063"
	case b.Intent != "sale":
		return "2008"
	case b.Currency != "BDT":
		return "2007"
	case err != nil || amount <= 0:
		return "2006"
	case !plain(b.Invoice):
		return "2031"
	case !plain(b.Reference):
		return "2048"
	}
	if u, err := url.Parse(b.CallbackURL); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.Fragment != "" {
		return "2049"
	}
	return ""
}

// plain is the gateway's rule for the merchant's own texts.
func plain(s string) bool { return len(s) <= maxField && !strings.ContainsAny(s, "<>&") }

func (g *Gateway) create(r *http.Request, body []byte) answer {
	var in createBody
	if !decodeBody(body, &in) {
		return refusal("2025")
	}
	if code := in.check(); code != "" {
		return refusal(code)
	}
	now := g.opts.Now()
	p := &payment{
		ID: newPaymentID(now), Invoice: in.Invoice, Amount: in.Amount, Currency: in.Currency, Intent: in.Intent,
		Reference: in.Reference, CallbackURL: in.CallbackURL,
		Hash: randomText(alnum, 24), Signature: randomText(alnum, 10), CreatedAt: now,
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	// The meaning of 2029 is unconfirmed; here an invoice number pays once.
	if g.byInvoice[p.Invoice] != nil {
		return refusal("2029")
	}
	if known := g.prospects[p.Invoice]; known != nil {
		p.Faults = known.Faults
		delete(g.prospects, p.Invoice)
	}
	g.know(p)
	g.save(p)
	ans := accepted(map[string]any{
		"paymentID":             p.ID,
		"bkashURL":              p.pageURL(g.baseURL(r)),
		"callbackURL":           p.CallbackURL,
		"successCallbackURL":    p.callback(outcomeSuccess),
		"failureCallbackURL":    p.callback(outcomeFailure),
		"cancelledCallbackURL":  p.callback(outcomeCancel),
		"amount":                p.Amount,
		"intent":                p.Intent,
		"currency":              p.Currency,
		"paymentCreateTime":     wireTime(now),
		"transactionStatus":     p.transactionStatus(now),
		"merchantInvoiceNumber": p.Invoice,
	})
	ans.saved = p.saved
	return ans
}

// save puts the payment's present state into the journal; the lock is held.
func (g *Gateway) save(p *payment) { p.saved = g.journal.add(kindPayment, p.ID, p) }

type paymentBody struct {
	PaymentID string `json:"paymentID"`
	TrxID     string `json:"trxID"`
	Amount    string `json:"amount"`
	SKU       string `json:"sku"`
	Reason    string `json:"reason"`
}

// know makes a new or restored payment known.
func (g *Gateway) know(p *payment) {
	g.payments[p.ID], g.byInvoice[p.Invoice] = p, p
	g.adopt(&p.party, func() *batch {
		g.save(p)
		return p.saved
	})
}

// bring does what has come due in a payment; the lock is held.
func (g *Gateway) bring(p *payment, now time.Time) {
	p.advance(now)
	if g.announce(p, now) {
		g.save(p)
	}
}

// announce makes the transactions known that a payment has got, with their
// notifications, and sees to those to come. It tells whether there were any; the
// caller saves the payment.
func (g *Gateway) announce(p *payment, now time.Time) bool {
	fresh := p.Transactions[p.announced:]
	p.announced = len(p.Transactions)
	for _, t := range fresh {
		g.byTrx[t.TrxID] = p
		g.notify(p, t, now)
	}
	return len(fresh) > 0
}

// withPayment finds the payment a call is about and does its work under the
// lock. The answer also waits for what others have changed in the payment: it
// may rest on that.
func (g *Gateway) withPayment(body []byte, do func(p *payment, in paymentBody, now time.Time) answer) answer {
	var in paymentBody
	if !decodeBody(body, &in) {
		return refusal("2025")
	}
	if in.PaymentID == "" {
		return refusal("2065")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.payments[in.PaymentID]
	if p == nil {
		return refusal("2002")
	}
	now := g.opts.Now()
	g.bring(p, now)
	ans := do(p, in, now)
	ans.saved = p.saved
	return ans
}

// The payer of every payment: a number that is nobody's.
const (
	payerMSISDN = "01700000000"
	payerType   = "Customer"
)

// shortCode is the merchant's wallet.
const shortCode = "50000"

func (g *Gateway) execute(_ *http.Request, body []byte) answer {
	return g.withPayment(body, func(p *payment, _ paymentBody, now time.Time) answer {
		before := p.ExecutedAt
		code := p.execute(now)
		g.settle(p, now)
		if code != success {
			ans := refusal(code)
			ans.effect = p.ExecutedAt != before
			return ans
		}
		t := p.told(CallExecute, *p.Transactions[0])
		g.save(p)
		return accepted(map[string]any{
			"paymentID":             p.ID,
			"trxID":                 t.TrxID,
			"transactionStatus":     p.transactionStatus(now),
			"amount":                t.Amount,
			"currency":              t.Currency,
			"intent":                p.Intent,
			"paymentExecuteTime":    wireTime(t.At),
			"merchantInvoiceNumber": t.Invoice,
			"payerType":             payerType,
			"payerReference":        p.Reference,
			"customerMsisdn":        payerMSISDN,
			"payerAccount":          payerMSISDN,
			"maxRefundableAmount":   t.Amount,
		})
	})
}

// settle follows every change by execute or press: what is due at once is done
// at once, the rest is waited for, and the payment is saved.
func (g *Gateway) settle(p *payment, now time.Time) {
	p.advance(now)
	g.announce(p, now)
	g.save(p)
	g.await(p)
}

// await does what is still to come in a payment when its time has come, so that
// it is notified although nobody asks.
func (g *Gateway) await(p *payment) {
	if p.awaited || p.CompletesAt.IsZero() && p.SecondAt.IsZero() {
		return
	}
	p.awaited = true
	g.work.Go(func() {
		for {
			g.mu.Lock()
			now := g.opts.Now()
			g.bring(p, now)
			due := p.CompletesAt
			if due.IsZero() {
				due = p.SecondAt
			}
			p.awaited = !due.IsZero()
			g.mu.Unlock()
			if due.IsZero() {
				return
			}
			select {
			case <-g.opts.At(due):
			case <-g.ending.Done():
				return
			}
		}
	})
}

func (g *Gateway) status(_ *http.Request, body []byte) answer {
	return g.withPayment(body, func(p *payment, _ paymentBody, now time.Time) answer {
		fields := map[string]any{
			"paymentID":         p.ID,
			"mode":              "0011",
			"paymentCreateTime": wireTime(p.CreatedAt),
			"transactionStatus": p.transactionStatus(now),
			"amount":            p.Amount,
			"currency":          p.Currency,
			"intent":            p.Intent,
			"merchantInvoice":   p.Invoice, // this call's own spelling
			"payerReference":    p.Reference,
		}
		if p.completed() {
			// Of two transactions this call shows the first.
			t := g.tell(p, CallStatus, p.Transactions[0])
			fields["amount"], fields["currency"], fields["merchantInvoice"] = t.Amount, t.Currency, t.Invoice
			fields["paymentExecuteTime"] = wireTime(t.At)
			fields["trxID"] = t.TrxID
			fields["customerMsisdn"] = payerMSISDN
			fields["payerAccount"] = payerMSISDN
		}
		return accepted(fields)
	})
}

// tell is told, for a call that changes nothing else.
func (g *Gateway) tell(p *payment, place string, t *transaction) transaction {
	said := p.told(place, *t)
	if said.Amount != t.Amount || said.Currency != t.Currency || said.Invoice != t.Invoice {
		g.save(p) // a fault was used
	}
	return said
}

// refund gives money back; with payment and transaction alone it tells of the
// transaction's last refund.
func (g *Gateway) refund(_ *http.Request, body []byte) answer {
	return g.withPayment(body, func(p *payment, in paymentBody, now time.Time) answer {
		asking := in.Amount == "" && in.SKU == "" && in.Reason == ""
		t := p.transaction(in.TrxID)
		switch {
		case t == nil:
			return refusal("2028")
		case asking && len(t.Refunds) == 0:
			return refusal("2033")
		case !asking && (in.Amount == "" || in.SKU == "" || in.Reason == "" || len(in.SKU) > maxField || len(in.Reason) > maxField):
			return refusal("2065")
		}
		if !asking {
			before := len(t.Refunds)
			code := p.refund(t, in.Amount, now)
			g.save(p)
			if code != success {
				ans := refusal(code)
				ans.effect = len(t.Refunds) > before
				return ans
			}
		}
		last := t.Refunds[len(t.Refunds)-1]
		return accepted(map[string]any{
			"originalTrxID":     t.TrxID,
			"refundTrxID":       last.TrxID,
			"transactionStatus": "Completed",
			"amount":            last.Amount,
			"currency":          t.Currency,
			"charge":            "0.00",
			"completedTime":     wireTime(last.At),
		})
	})
}

func (g *Gateway) search(_ *http.Request, body []byte) answer {
	var in paymentBody
	if !decodeBody(body, &in) {
		return refusal("2025")
	}
	if in.TrxID == "" {
		return refusal("2065")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.byTrx[in.TrxID]
	if p == nil {
		return refusal("2033")
	}
	t := g.tell(p, CallSearch, p.transaction(in.TrxID))
	ans := accepted(map[string]any{
		"trxID":                 t.TrxID,
		"transactionStatus":     "Completed",
		"transactionType":       "bKash Tokenized Checkout via API",
		"amount":                t.Amount,
		"currency":              t.Currency,
		"customerMsisdn":        payerMSISDN,
		"payerType":             payerType,
		"organizationShortCode": shortCode,
		"initiationTime":        wireTime(p.CreatedAt),
		"completedTime":         wireTime(t.At),
		"transactionReference":  p.Reference,
	})
	ans.saved = p.saved
	return ans
}

// The kinds of items in the journal.
const (
	kindPayment  = "payment"
	kindAccount  = "account"
	kindToken    = "token"
	kindProspect = "prospect"
	kindTally    = "tally"
	kindSigner   = "signer"
)

// restore takes up one item of the journal; only New calls it.
func (g *Gateway) restore(kind, key string, body []byte) error {
	switch kind {
	case kindPayment:
		p := &payment{}
		if err := json.Unmarshal(body, p); err != nil {
			return err
		}
		g.know(p)
		p.announced = len(p.Transactions)
		for _, t := range p.Transactions {
			g.byTrx[t.TrxID] = p
		}
	case kindAccount:
		a := &account{}
		if err := json.Unmarshal(body, a); err != nil {
			return err
		}
		g.takeAccount(key, a)
	case kindToken:
		var t token
		if err := json.Unmarshal(body, &t); err != nil {
			return err
		}
		g.tokens[key] = t
	case kindProspect:
		p := &prospect{}
		if err := json.Unmarshal(body, p); err != nil {
			return err
		}
		g.prospects[key] = p
		g.adoptProspect(key, p)
	case kindTally:
		return json.Unmarshal(body, &g.tally.counts)
	case kindSigner:
		s, err := parseSigner(body)
		if err != nil {
			return err
		}
		g.signer = s
	default:
		return fmt.Errorf("kind is unknown")
	}
	return nil
}
