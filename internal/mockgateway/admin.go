package mockgateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// How money moves, for Settings.Capture.
const (
	CaptureExecute = "execute" // by the merchant's execute call
	CapturePayer   = "payer"   // by the payer's press, without that call
)

// Settings are what a test changes while the gateway runs. They are not kept in
// the data folder.
type Settings struct {
	// LatencyMS goes before Options.Latency.
	LatencyMS Latencies `json:"latency_ms"`
	// Down answers every API call with HTTP 503 and does nothing.
	Down bool `json:"down"`
	// Maintenance answers every API call with HTTP 200 and code 503 and does
	// nothing.
	Maintenance bool `json:"maintenance,omitzero"`
	// Capture is CaptureExecute, which "" means too, or CapturePayer.
	Capture string `json:"capture,omitzero"`
	// GrantsPerHour goes before Options.GrantsPerHour unless it is 0.
	GrantsPerHour int `json:"grants_per_hour,omitzero"`
	// Seed makes the draws of Faults and latency repeatable.
	Seed uint64 `json:"seed,omitzero"`
	// Faults are drawn for a payment when create first names its invoice number.
	// Payments that are there keep what they have.
	Faults []PlannedFault `json:"faults,omitempty"`
	// Notifications says where completed payments are notified.
	Notifications Notifications `json:"notifications,omitzero"`
}

func (s Settings) check() error {
	if s.Capture != "" && s.Capture != CaptureExecute && s.Capture != CapturePayer {
		return fmt.Errorf("capture: want %s or %s", CaptureExecute, CapturePayer)
	}
	for _, f := range s.Faults {
		if err := f.check(); err != nil {
			return err
		}
	}
	return errors.Join(s.LatencyMS.check(), s.Notifications.check())
}

// Settings tells the present settings. What is in them is not to be changed.
func (g *Gateway) Settings() Settings {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.settings // its maps and lists are replaced, never changed
}

// SetSettings replaces all settings. The error says what is wrong with them;
// then nothing has changed. What is in s is not to be changed afterwards.
func (g *Gateway) SetSettings(s Settings) error {
	if err := s.check(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settings = s
	return nil
}

// decodeStrictly reads one JSON value without anything that is not known.
func decodeStrictly(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, more := d.Token(); more != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

// ParseSettings reads settings as PUT /mock/settings does.
func ParseSettings(b []byte) (Settings, error) {
	var s Settings
	if err := decodeStrictly(b, &s); err != nil {
		return Settings{}, err
	}
	return s, s.check()
}

func (g *Gateway) showSettings(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, g.Settings())
}

// putSettings replaces all settings; what is left out goes back to its default.
func (g *Gateway) putSettings(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		badRequest(w, err)
		return
	}
	s, err := ParseSettings(body)
	if err == nil {
		err = g.SetSettings(s)
	}
	if err != nil {
		badRequest(w, err)
		return
	}
	writeJSON(w, http.StatusOK, s)
}

func badRequest(w http.ResponseWriter, err error) {
	writeJSON(w, http.StatusBadRequest, map[string]any{"message": err.Error()})
}

func (g *Gateway) showFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, g.FaultCounts())
}

// putFaults is SetFaults and SetAccountFaults.
func (g *Gateway) putFaults(w http.ResponseWriter, r *http.Request) {
	var in struct {
		PaymentID string  `json:"paymentID"`
		Invoice   string  `json:"merchantInvoiceNumber"`
		Account   string  `json:"account"`
		Faults    []Fault `json:"faults"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = decodeStrictly(body, &in)
	}
	if err != nil {
		badRequest(w, err)
		return
	}
	named := 0
	for _, name := range []string{in.PaymentID, in.Invoice, in.Account} {
		if name != "" {
			named++
		}
	}
	switch {
	case named != 1:
		err = errors.New("want one of paymentID, merchantInvoiceNumber and account")
	case in.Account != "":
		err = g.SetAccountFaults(in.Account, in.Faults...)
	case in.PaymentID != "" && !g.known(in.PaymentID):
		err = fmt.Errorf("paymentID %s: there is no such payment", in.PaymentID)
	default:
		err = g.SetFaults(in.PaymentID+in.Invoice, in.Faults...)
	}
	if err != nil {
		badRequest(w, err)
		return
	}
	writeJSON(w, http.StatusOK, in)
}

func (g *Gateway) known(paymentID string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.payments[paymentID] != nil
}

// Listed is a payment as /mock/payments shows it.
type Listed struct {
	PaymentID         string              `json:"paymentID"`
	Invoice           string              `json:"merchantInvoiceNumber"`
	Amount            string              `json:"amount"`
	Currency          string              `json:"currency"`
	TransactionStatus string              `json:"transactionStatus"`
	TrxID             string              `json:"trxID,omitempty"` // the first transaction's
	PayerFinished     bool                `json:"payerFinished"`
	Refuse            string              `json:"refuse,omitempty"`
	ExecuteCalls      int                 `json:"executeCalls"`
	CreatedAt         time.Time           `json:"createdAt"`
	ExecutedAt        time.Time           `json:"executedAt,omitzero"`
	CompletesAt       time.Time           `json:"completesAt,omitzero"` // money will move then
	Transactions      []ListedTransaction `json:"transactions,omitempty"`
	Faults            []Fault             `json:"faults,omitempty"`
	PageURL           string              `json:"bkashURL"`
}

// ListedTransaction is money that has moved: what was paid in truth, whatever
// the API's answers say.
type ListedTransaction struct {
	TrxID        string              `json:"trxID"`
	Invoice      string              `json:"merchantInvoiceNumber"`
	Amount       string              `json:"amount"`
	Currency     string              `json:"currency"`
	At           time.Time           `json:"at"`
	Refunds      []ListedRefund      `json:"refunds,omitempty"`
	Notification *ListedNotification `json:"notification,omitempty"`
}

// ListedRefund is money that has gone back.
type ListedRefund struct {
	RefundTrxID string    `json:"refundTrxID"`
	Amount      string    `json:"amount"`
	At          time.Time `json:"at"`
}

// ListedNotification is what came of telling the webhook of a transaction.
type ListedNotification struct {
	MessageID string    `json:"messageID"`
	Never     bool      `json:"never,omitempty"` // a fault: it is not sent
	Done      bool      `json:"done"`            // it is not sent any more
	Attempts  []Attempt `json:"attempts,omitempty"`
}

// Payments lists every payment, oldest first, once that is on disk. base is what
// the addresses of payer's pages start with, unless Options.BaseURL says so.
func (g *Gateway) Payments(base string) ([]Listed, error) {
	now := g.opts.Now()
	base = cmp.Or(g.opts.BaseURL, base)
	g.mu.Lock()
	all := make([]Listed, 0, len(g.payments))
	var last []*batch
	for _, p := range g.payments {
		g.bring(p, now)
		all = append(all, p.listed(base, now))
		last = append(last, p.saved)
	}
	g.mu.Unlock()
	for _, b := range last {
		if err := b.wait(); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Listed) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.PaymentID, b.PaymentID))
	})
	return all, nil
}

func (p *payment) listed(base string, now time.Time) Listed {
	l := Listed{
		PaymentID: p.ID, Invoice: p.Invoice, Amount: p.Amount, Currency: p.Currency,
		TransactionStatus: p.transactionStatus(now), PayerFinished: p.Finished, Refuse: p.Refuse,
		ExecuteCalls: p.ExecuteCalls, CreatedAt: p.CreatedAt, ExecutedAt: p.ExecutedAt, CompletesAt: p.CompletesAt,
		PageURL: p.pageURL(base),
	}
	for i, t := range p.Transactions {
		if i == 0 {
			l.TrxID = t.TrxID
		}
		lt := ListedTransaction{TrxID: t.TrxID, Invoice: t.Invoice, Amount: t.Amount, Currency: t.Currency, At: t.At}
		for _, r := range t.Refunds {
			lt.Refunds = append(lt.Refunds, ListedRefund{RefundTrxID: r.TrxID, Amount: r.Amount, At: r.At})
		}
		if n := t.Note; n != nil {
			lt.Notification = &ListedNotification{MessageID: n.ID, Never: n.Never, Done: n.Done, Attempts: slices.Clone(n.Attempts)}
		}
		l.Transactions = append(l.Transactions, lt)
	}
	for _, f := range p.Faults {
		l.Faults = append(l.Faults, *f)
	}
	return l
}

// listPayments shows every payment, oldest first.
func (g *Gateway) listPayments(w http.ResponseWriter, r *http.Request) {
	all, err := g.Payments(g.baseURL(r))
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, map[string]any{"message": err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, all)
}

// postSubscribe is Subscribe: 200 with what the webhook answered, 502 if it did
// not answer.
func (g *Gateway) postSubscribe(w http.ResponseWriter, r *http.Request) {
	a, err := g.Subscribe(r.Context())
	switch {
	case err != nil:
		badRequest(w, err)
	case a.Status == 0:
		writeJSON(w, http.StatusBadGateway, a)
	default:
		writeJSON(w, http.StatusOK, a)
	}
}

// showCertificate serves what a verifier fetches: the certificate under the name
// that SigningCertURL gives it, and ca.pem.
func (g *Gateway) showCertificate(w http.ResponseWriter, r *http.Request) {
	s, err := g.signature()
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, map[string]any{"message": err.Error()})
		return
	}
	var pem []byte
	switch r.PathValue("file") {
	case "ca.pem":
		pem = s.caPEM()
	case s.file():
		pem = s.chainPEM()
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write(pem) // a caller that hung up needs no answer
}
