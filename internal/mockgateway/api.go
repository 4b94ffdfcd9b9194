package mockgateway

import (
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
	"2056":  "Invalid Payment State",
	"2060":  "Execute prerequisite is not met",
	"2063":  "Mode is not valid as per request data",
	"2065":  "Mandatory field missing",
	"2117":  "Payment execution already been called before",
}

// answer is what a call gets, once saved is on disk.
type answer struct {
	status int
	fields map[string]any
	saved  *batch
}

// accepted is an answer with code 0000.
func accepted(fields map[string]any) answer {
	fields["statusCode"], fields["statusMessage"] = success, statusMessages[success]
	return answer{status: http.StatusOK, fields: fields}
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

// api is the one way in and out of every call: down first, then the work, then
// the disk, then the latency, then the answer. The work is done before the
// latency and also for a client that has hung up, so that a call whose answer
// comes too late has had its effect.
func (g *Gateway) api(call string, next handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		set := g.currentSettings()
		if set.Down {
			reply(w, message(http.StatusServiceUnavailable, "Service Unavailable"))
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
		if d := g.latency(set, call); d > 0 {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
			case <-r.Context().Done():
				return
			}
		}
		reply(w, ans)
	}
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
	g.payments[p.ID], g.byInvoice[p.Invoice] = p, p
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
	ans := do(p, in, g.opts.Now())
	ans.saved = p.saved
	return ans
}

// The payer of every payment: a number that is nobody's.
const (
	payerMSISDN = "01700000000"
	payerType   = "Customer"
)

func (g *Gateway) execute(_ *http.Request, body []byte) answer {
	return g.withPayment(body, func(p *payment, _ paymentBody, now time.Time) answer {
		code := p.execute(now)
		g.save(p)
		if code != success {
			return refusal(code)
		}
		g.byTrx[p.TrxID] = p
		return accepted(map[string]any{
			"paymentID":             p.ID,
			"trxID":                 p.TrxID,
			"transactionStatus":     p.transactionStatus(now),
			"amount":                p.Amount,
			"currency":              p.Currency,
			"intent":                p.Intent,
			"paymentExecuteTime":    wireTime(now),
			"merchantInvoiceNumber": p.Invoice,
			"payerType":             payerType,
			"payerReference":        p.Reference,
			"customerMsisdn":        payerMSISDN,
			"payerAccount":          payerMSISDN,
			"maxRefundableAmount":   p.Amount,
		})
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
			fields["paymentExecuteTime"] = wireTime(p.ExecutedAt)
			fields["trxID"] = p.TrxID
			fields["customerMsisdn"] = payerMSISDN
			fields["payerAccount"] = payerMSISDN
		}
		return accepted(fields)
	})
}

// refund gives money back; with payment and transaction alone it tells of the
// last refund.
func (g *Gateway) refund(_ *http.Request, body []byte) answer {
	return g.withPayment(body, func(p *payment, in paymentBody, now time.Time) answer {
		asking := in.Amount == "" && in.SKU == "" && in.Reason == ""
		switch {
		case !p.completed() || in.TrxID != p.TrxID:
			return refusal("2028")
		case asking && len(p.Refunds) == 0:
			return refusal("2033")
		case !asking && (in.Amount == "" || in.SKU == "" || in.Reason == "" || len(in.SKU) > maxField || len(in.Reason) > maxField):
			return refusal("2065")
		}
		if !asking {
			if code := p.refund(in.Amount, now); code != success {
				return refusal(code)
			}
			g.save(p)
		}
		last := p.Refunds[len(p.Refunds)-1]
		return accepted(map[string]any{
			"originalTrxID":     p.TrxID,
			"refundTrxID":       last.TrxID,
			"transactionStatus": "Completed",
			"amount":            last.Amount,
			"currency":          p.Currency,
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
	ans := accepted(map[string]any{
		"trxID":                 p.TrxID,
		"transactionStatus":     "Completed",
		"transactionType":       "bKash Tokenized Checkout via API",
		"amount":                p.Amount,
		"currency":              p.Currency,
		"customerMsisdn":        payerMSISDN,
		"payerType":             payerType,
		"organizationShortCode": "50000",
		"initiationTime":        wireTime(p.CreatedAt),
		"completedTime":         wireTime(p.ExecutedAt),
		"transactionReference":  p.Reference,
	})
	ans.saved = p.saved
	return ans
}

// The kinds of items in the journal.
const (
	kindPayment = "payment"
	kindAccount = "account"
	kindToken   = "token"
)

// restore takes up one item of the journal; only New calls it.
func (g *Gateway) restore(kind, key string, body []byte) error {
	switch kind {
	case kindPayment:
		p := &payment{}
		if err := json.Unmarshal(body, p); err != nil {
			return err
		}
		g.payments[p.ID], g.byInvoice[p.Invoice] = p, p
		if p.completed() {
			g.byTrx[p.TrxID] = p
		}
	case kindAccount:
		a := &account{}
		if err := json.Unmarshal(body, a); err != nil {
			return err
		}
		g.accounts[key] = a
	case kindToken:
		var t token
		if err := json.Unmarshal(body, &t); err != nil {
			return err
		}
		g.tokens[key] = t
	default:
		return fmt.Errorf("kind is unknown")
	}
	return nil
}
