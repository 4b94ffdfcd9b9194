package mockgateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// settings are what a test changes while the gateway runs; they are not kept.
type settings struct {
	// LatencyMS holds milliseconds by call, or under "all" for the calls that are
	// not named. It goes before Options.Latency.
	LatencyMS latencies `json:"latency_ms"`
	// Down answers every API call with 503 and does nothing.
	Down bool `json:"down"`
}

type latencies map[string]int64

const (
	allCalls   = "all"
	maxLatency = 10 * time.Minute
)

// UnmarshalJSON also takes one number, for all calls.
func (l *latencies) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var all int64
	if json.Unmarshal(b, &all) == nil {
		*l = latencies{allCalls: all}
		return nil
	}
	m := map[string]int64{}
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	*l = m
	return nil
}

func (s settings) check() error {
	known := append(Calls(), allCalls)
	for call, ms := range s.LatencyMS {
		if !slices.Contains(known, call) {
			return fmt.Errorf("latency_ms: unknown call %q; want one of %s", call, strings.Join(known, ", "))
		}
		if ms < 0 || ms > maxLatency.Milliseconds() {
			return fmt.Errorf("latency_ms: %s: want 0 to %d", call, maxLatency.Milliseconds())
		}
	}
	return nil
}

// latency is how long to keep back the answer to a call.
func (g *Gateway) latency(s settings, call string) time.Duration {
	for _, name := range []string{call, allCalls} {
		if ms, ok := s.LatencyMS[name]; ok {
			return time.Duration(ms) * time.Millisecond
		}
	}
	if g.opts.Latency == nil {
		return 0
	}
	return g.opts.Latency(call)
}

func (g *Gateway) currentSettings() settings {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.settings // its map is replaced, never changed
}

func (g *Gateway) showSettings(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, g.currentSettings())
}

// putSettings replaces all settings; what is left out goes back to its default.
func (g *Gateway) putSettings(w http.ResponseWriter, r *http.Request) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	var s settings
	err := d.Decode(&s)
	if err == nil {
		err = s.check()
	}
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = fmt.Errorf("more than one JSON value")
		}
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]any{"message": err.Error()})
		return
	}
	g.mu.Lock()
	g.settings = s
	g.mu.Unlock()
	writeJSON(w, http.StatusOK, s)
}

// listed is a payment as /mock/payments shows it.
type listed struct {
	PaymentID         string    `json:"paymentID"`
	Invoice           string    `json:"merchantInvoiceNumber"`
	Amount            string    `json:"amount"`
	Currency          string    `json:"currency"`
	TransactionStatus string    `json:"transactionStatus"`
	TrxID             string    `json:"trxID,omitempty"`
	PayerFinished     bool      `json:"payerFinished"`
	Refuse            string    `json:"refuse,omitempty"`
	ExecuteCalls      int       `json:"executeCalls"`
	CreatedAt         time.Time `json:"createdAt"`
	ExecutedAt        time.Time `json:"executedAt,omitzero"`
	Refunds           []refund  `json:"refunds,omitempty"`
	PageURL           string    `json:"bkashURL"`
}

// listPayments shows every payment, oldest first.
func (g *Gateway) listPayments(w http.ResponseWriter, r *http.Request) {
	now, base := g.opts.Now(), g.baseURL(r)
	g.mu.Lock()
	all := make([]listed, 0, len(g.payments))
	var last []*batch
	for _, p := range g.payments {
		all = append(all, listed{
			PaymentID: p.ID, Invoice: p.Invoice, Amount: p.Amount, Currency: p.Currency,
			TransactionStatus: p.transactionStatus(now), TrxID: p.TrxID,
			PayerFinished: p.Finished, Refuse: p.Refuse, ExecuteCalls: p.ExecuteCalls,
			CreatedAt: p.CreatedAt, ExecutedAt: p.ExecutedAt, Refunds: slices.Clone(p.Refunds),
			PageURL: p.pageURL(base),
		})
		last = append(last, p.saved)
	}
	g.mu.Unlock()
	for _, b := range last {
		if err := b.wait(); err != nil {
			writeJSON(w, http.StatusInternalServerError, map[string]any{"message": err.Error()})
			return
		}
	}
	slices.SortFunc(all, func(a, b listed) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.PaymentID, b.PaymentID))
	})
	writeJSON(w, http.StatusOK, all)
}
