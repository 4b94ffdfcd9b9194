package mockgateway

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The faults. What each does stands in docs/mockgateway.md.
const (
	// Of any API call.
	FaultNoAnswer     = "no_answer"    // nothing is done; the connection stays open until the client gives up
	FaultCut          = "cut"          // nothing is done; the connection is closed
	FaultAnswerLost   = "answer_lost"  // the work is done; the connection is closed
	FaultUnauthorized = "unauthorized" // nothing is done; HTTP 401 to a valid token
	FaultMaintenance  = "maintenance"  // nothing is done; HTTP 200 with code 503
	FaultUnavailable  = "unavailable"  // nothing is done; HTTP 503
	FaultLockout      = "lockout"      // a token call blocks the account, as one too many does

	// Of the one execution.
	FaultRefused               = "refused"                 // no money moves, and none will
	FaultAlreadyExecuted       = "already_executed"        // money moves; the answer is 2117
	FaultAlreadyExecutedUnpaid = "already_executed_unpaid" // nothing is done; the answer is 2117
	FaultCompletesLate         = "completes_late"          // the answer is in doubt; money moves later
	FaultCompletesAfterCancel  = "completes_after_cancel"  // the payer cancels, and money can move all the same
	FaultTwoPayments           = "two_payments"            // the payer pays the invoice a second time

	// Of what was paid.
	FaultWrongAmount   = "wrong_amount"
	FaultWrongCurrency = "wrong_currency"
	FaultWrongInvoice  = "wrong_invoice"

	// Of a refund, beside those of any call.
	FaultRefundRefused   = "refund_refused"   // no money goes back
	FaultAlreadyRefunded = "already_refunded" // money goes back; the answer is 2034

	// Of a notification.
	FaultNotificationLate       = "notification_late"
	FaultNotificationDoubled    = "notification_doubled"
	FaultNotificationOutOfOrder = "notification_out_of_order" // overtaken by the one made next
	FaultNotificationNever      = "notification_never"
)

// Where faults act beside the API's calls.
const (
	placePress        = "press"        // a button on the payer's page
	placeTransaction  = "transaction"  // money moves
	placeNotification = "notification" // a notification is made or sent
)

// faultKind is what may be said of a fault.
type faultKind struct {
	places  []string      // where it acts unless calls are named
	calls   []string      // the calls that may be named; none if its place is fixed
	delay   time.Duration // if none is given; only where delayed
	delayed bool          // takes delay_ms
	coded   bool          // takes code
	valued  bool          // takes value
}

// faultKinds is the one table of faults; nothing assigns to it.
var faultKinds = map[string]faultKind{
	FaultNoAnswer:     {places: []string{CallExecute}, calls: Calls(), delayed: true},
	FaultCut:          {places: []string{CallExecute}, calls: Calls()},
	FaultAnswerLost:   {places: []string{CallExecute}, calls: Calls()},
	FaultUnauthorized: {places: []string{CallExecute}, calls: []string{CallCreate, CallExecute, CallStatus, CallRefund, CallSearch}},
	FaultMaintenance:  {places: []string{CallExecute}, calls: Calls()},
	FaultUnavailable:  {places: []string{CallExecute}, calls: Calls()},
	FaultLockout:      {places: []string{CallGrant, CallRefresh}, calls: []string{CallGrant, CallRefresh}},

	FaultRefused:               {places: []string{CallExecute, placePress}, coded: true},
	FaultAlreadyExecuted:       {places: []string{CallExecute}},
	FaultAlreadyExecutedUnpaid: {places: []string{CallExecute}},
	FaultCompletesLate:         {places: []string{CallExecute, placePress}, delayed: true, delay: time.Minute, coded: true},
	FaultCompletesAfterCancel:  {places: []string{placePress}, delayed: true},
	FaultTwoPayments:           {places: []string{placeTransaction}, delayed: true},

	FaultWrongAmount:   {places: []string{placeTransaction}, calls: tellingPlaces(), valued: true},
	FaultWrongCurrency: {places: []string{placeTransaction}, calls: tellingPlaces(), valued: true},
	FaultWrongInvoice:  {places: []string{placeTransaction}, calls: []string{CallExecute, CallStatus, placeNotification}, valued: true},

	FaultRefundRefused:   {places: []string{CallRefund}, coded: true},
	FaultAlreadyRefunded: {places: []string{CallRefund}},

	FaultNotificationLate:       {places: []string{placeNotification}, delayed: true, delay: time.Minute},
	FaultNotificationDoubled:    {places: []string{placeNotification}},
	FaultNotificationOutOfOrder: {places: []string{placeNotification}, delayed: true, delay: time.Minute},
	FaultNotificationNever:      {places: []string{placeNotification}},
}

// tellingPlaces are where amount and currency are told; search tells no invoice.
func tellingPlaces() []string {
	return []string{CallExecute, CallStatus, CallSearch, placeNotification}
}

// Faults lists every fault's name, sorted.
func Faults() []string { return slices.Sorted(maps.Keys(faultKinds)) }

const maxDelay = 7 * 24 * time.Hour

// Fault is one way in which a payment, or an account's token calls, behave
// otherwise than they should.
type Fault struct {
	// Name is one of Faults.
	Name string `json:"name"`
	// Calls are where it acts, for faults of any call (default execute), for
	// lockout (default both token calls), and for wrong_*: without calls, other
	// money has moved than was ordered, and everything says so; with calls (or
	// "notification"), only those say so, and it is not true.
	Calls []string `json:"calls,omitempty"`
	// Times is how often it acts. 0 is once; negative is always.
	Times int `json:"times,omitempty"`
	// DelayMS is the time in milliseconds that the fault is about, if it is about
	// one. 0 is its default.
	DelayMS int64 `json:"delay_ms,omitempty"`
	// Value is what wrong_* tells. "" is a value near the right one.
	Value string `json:"value,omitempty"`
	// Code is the status code that refused, completes_late and refund_refused
	// answer with. "" is the fault's default.
	Code string `json:"code,omitempty"`
	// Applied is how often it has acted; the mock counts it.
	Applied int `json:"applied,omitempty"`
}

// PlannedFault is a fault that a payment has with a probability. The draw rests
// on the seed, the fault's name and calls, and the merchant's invoice number; for
// token calls, which have none, on the account and the ordinal of the call.
type PlannedFault struct {
	Fault
	// Probability is from 0 to 1.
	Probability float64 `json:"probability"`
}

func (f Fault) check() error {
	kind, ok := faultKinds[f.Name]
	if !ok {
		return fmt.Errorf("fault %q is unknown; want one of %s", f.Name, strings.Join(Faults(), ", "))
	}
	for _, call := range f.Calls {
		switch {
		case len(kind.calls) == 0:
			return fmt.Errorf("fault %s: its place is fixed; it takes no calls", f.Name)
		case !slices.Contains(kind.calls, call):
			return fmt.Errorf("fault %s: call %q: want one of %s", f.Name, call, strings.Join(kind.calls, ", "))
		}
	}
	switch {
	case f.DelayMS != 0 && !kind.delayed:
		return fmt.Errorf("fault %s takes no delay_ms", f.Name)
	case f.DelayMS < 0 || f.DelayMS > maxDelay.Milliseconds():
		return fmt.Errorf("fault %s: delay_ms: want 0 to %d", f.Name, maxDelay.Milliseconds())
	case f.Value != "" && !kind.valued:
		return fmt.Errorf("fault %s takes no value", f.Name)
	case f.Code != "" && !kind.coded:
		return fmt.Errorf("fault %s takes no code", f.Name)
	case f.Code != "" && (!statusCode.MatchString(f.Code) || f.Code == success):
		return fmt.Errorf("fault %s: code %q: want a status code other than 0000", f.Name, f.Code)
	}
	return nil
}

func (p PlannedFault) check() error {
	if !(p.Probability >= 0 && p.Probability <= 1) { // NaN, too
		return fmt.Errorf("fault %s: probability: want 0 to 1", p.Name)
	}
	return p.Fault.check()
}

// places are where it acts.
func (f *Fault) places() []string {
	if len(f.Calls) == 0 {
		return faultKinds[f.Name].places
	}
	return f.Calls
}

// ofTokenCalls tells whether it acts on nothing else.
func (f *Fault) ofTokenCalls() bool {
	return !slices.ContainsFunc(f.places(), func(place string) bool { return place != CallGrant && place != CallRefresh })
}

func (f *Fault) actsAt(place string) bool {
	return slices.Contains(f.places(), place) && (f.Times < 0 || f.Applied < max(1, f.Times))
}

func (f *Fault) delay() time.Duration {
	if f.DelayMS == 0 {
		return faultKinds[f.Name].delay
	}
	return time.Duration(f.DelayMS) * time.Millisecond
}

// draw is a number from 0 to below 1 that the parts alone decide.
func draw(seed uint64, parts ...string) float64 {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, seed) // a hash takes everything
	for _, part := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(part)) + ":" + part))
	}
	return float64(binary.BigEndian.Uint64(h.Sum(nil))>>11) / (1 << 53)
}

// plan draws the faults of a payment by its invoice number.
func (s Settings) plan(invoice string) []*Fault {
	var faults []*Fault
	for _, planned := range s.Faults {
		if !planned.ofTokenCalls() && planned.hits(s.Seed, invoice) {
			faults = append(faults, planned.own())
		}
	}
	return faults
}

// planTokenCall draws the faults of one token call.
func (s Settings) planTokenCall(call, user string, ordinal int) []*Fault {
	var faults []*Fault
	for _, planned := range s.Faults {
		f := planned.own()
		if !f.actsAt(call) || !planned.hits(s.Seed, user+" "+strconv.Itoa(ordinal)) {
			continue
		}
		f.Calls, f.Times = []string{call}, 1
		faults = append(faults, f)
	}
	return faults
}

func (p PlannedFault) hits(seed uint64, key string) bool {
	calls := slices.Sorted(slices.Values(p.Calls))
	return draw(seed, append([]string{p.Name, key}, calls...)...) < p.Probability
}

// own is the fault as one payment has it.
func (p PlannedFault) own() *Fault {
	f := p.Fault
	f.Applied, f.Calls = 0, slices.Clone(f.Calls)
	return &f
}

// FaultCount is how often a fault has acted.
type FaultCount struct {
	Times int `json:"times"`
	// ByPlace counts by API call, or by "press", "transaction" and
	// "notification" for what is no call.
	ByPlace map[string]int `json:"by_place,omitempty"`
}

// tally counts what faults did; it survives a restart.
type tally struct {
	journal *journal
	counts  map[string]map[string]int
}

func (t *tally) add(name, place string) {
	if t.counts[name] == nil {
		t.counts[name] = map[string]int{}
	}
	t.counts[name][place]++
	t.journal.add(kindTally, "faults", t.counts)
}

// party is whoever has faults: a payment, an invoice that has no payment yet, or
// an account. Its methods want the Gateway's lock.
type party struct {
	Faults []*Fault `json:"faults,omitempty"`

	calls map[string]int // how often each call was made, for the draw of its latency
	tally *tally
	keep  func() *batch // puts its state into the journal
}

// take finds the first fault of these names that acts at a place, and counts it.
// nil is none. Whoever takes one keeps the party.
func (p *party) take(place string, names ...string) *Fault {
	for _, f := range p.Faults {
		if slices.Contains(names, f.Name) && f.actsAt(place) {
			f.Applied++
			p.tally.add(f.Name, place)
			return f
		}
	}
	return nil
}

// adopt makes a new or restored party work.
func (g *Gateway) adopt(p *party, keep func() *batch) {
	p.calls, p.tally, p.keep = map[string]int{}, g.tally, keep
}

// prospect holds the faults of an invoice number until it has a payment.
type prospect struct{ party }

func (g *Gateway) newProspect(invoice string) *prospect {
	p := &prospect{}
	g.prospects[invoice] = p
	g.adoptProspect(invoice, p)
	return p
}

func (g *Gateway) adoptProspect(invoice string, p *prospect) {
	g.adopt(&p.party, func() *batch { return g.journal.add(kindProspect, invoice, p) })
}

// SetFaults replaces the faults of one payment, named by payment id or invoice
// number, and what the plan has drawn for it. An invoice number may be named
// before its payment is created, so that create can have a fault. It is the one
// way to take a fault back.
func (g *Gateway) SetFaults(paymentOrInvoice string, faults ...Fault) error {
	return g.setFaults(func() (*party, error) {
		switch p, known := g.payments[paymentOrInvoice], g.prospects[paymentOrInvoice]; {
		case paymentOrInvoice == "":
			return nil, fmt.Errorf("set faults: no payment id and no invoice number")
		case p != nil:
			return &p.party, nil
		case g.byInvoice[paymentOrInvoice] != nil:
			return &g.byInvoice[paymentOrInvoice].party, nil
		case known != nil:
			return &known.party, nil
		}
		return &g.newProspect(paymentOrInvoice).party, nil
	}, faults)
}

// SetAccountFaults replaces the faults of the token calls of an account, named
// by its user name.
func (g *Gateway) SetAccountFaults(user string, faults ...Fault) error {
	return g.setFaults(func() (*party, error) {
		if user == "" {
			return nil, fmt.Errorf("set faults: no user name")
		}
		return &g.account(user).party, nil
	}, faults)
}

func (g *Gateway) setFaults(find func() (*party, error), faults []Fault) error {
	own := make([]*Fault, 0, len(faults))
	for _, f := range faults {
		if err := f.check(); err != nil {
			return err
		}
		f.Applied, f.Calls = 0, slices.Clone(f.Calls)
		own = append(own, &f)
	}
	g.mu.Lock()
	p, err := find()
	if err != nil {
		g.mu.Unlock()
		return err
	}
	p.Faults = own
	saved := p.keep()
	g.mu.Unlock()
	return saved.wait()
}

// FaultCounts tells how often each fault has acted, those that never did
// included.
func (g *Gateway) FaultCounts() map[string]FaultCount {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]FaultCount{}
	for name := range faultKinds {
		c := FaultCount{ByPlace: maps.Clone(g.tally.counts[name])}
		for _, n := range c.ByPlace {
			c.Times += n
		}
		all[name] = c
	}
	return all
}

// faulty lets a call through to its handler unless a fault stands in its way. It
// comes after the check of the token, so that no fault is spent on a call that
// would have been turned away.
func (g *Gateway) faulty(call string, next handler) handler {
	return func(r *http.Request, body []byte) answer {
		g.mu.Lock()
		p, key := g.concerned(call, r, body)
		if p == nil {
			g.mu.Unlock()
			return next(r, body)
		}
		p.calls[call]++
		drawKey := []string{call, key, strconv.Itoa(p.calls[call])}
		f := p.take(call, FaultUnauthorized, FaultUnavailable, FaultMaintenance, FaultNoAnswer, FaultCut)
		if f != nil {
			ans := f.instead()
			ans.saved, ans.drawKey = p.keep(), drawKey
			g.mu.Unlock()
			return ans
		}
		g.mu.Unlock()

		ans := next(r, body)
		ans.drawKey = drawKey
		if !ans.effect {
			return ans
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if call == CallCreate {
			p = &g.byInvoice[key].party // made by now
		}
		if p.take(call, FaultAnswerLost) != nil {
			ans.saved, ans.lost = p.keep(), true
		}
		return ans
	}
}

// instead is what a call gets that a fault keeps from doing anything.
func (f *Fault) instead() answer {
	switch f.Name {
	case FaultUnauthorized:
		return message(http.StatusUnauthorized, "Unauthorized")
	case FaultUnavailable:
		return message(http.StatusServiceUnavailable, "Service Unavailable")
	case FaultMaintenance:
		return refusal("503")
	case FaultNoAnswer:
		return answer{lost: true, open: true, openFor: f.delay()}
	}
	return answer{lost: true}
}

// concerned finds whose faults a call meets, and the name by which draws are
// made for it; the lock is held. nil is a call about nothing that is known.
func (g *Gateway) concerned(call string, r *http.Request, body []byte) (*party, string) {
	var in struct {
		paymentBody
		Invoice string `json:"merchantInvoiceNumber"`
	}
	if !decodeBody(body, &in) {
		return nil, ""
	}
	var p *payment
	switch call {
	case CallGrant, CallRefresh:
		if user := r.Header.Get("username"); user != "" {
			a := g.account(user)
			a.Seen++
			a.Faults = append(a.Faults, g.settings.planTokenCall(call, user, a.Seen)...)
			return &a.party, user
		}
		return nil, ""
	case CallCreate:
		if in.Invoice == "" {
			return nil, ""
		}
		if p = g.byInvoice[in.Invoice]; p == nil {
			known := g.prospects[in.Invoice]
			if known == nil {
				known = g.newProspect(in.Invoice)
				known.Faults = g.settings.plan(in.Invoice)
			}
			return &known.party, in.Invoice
		}
	case CallSearch:
		p = g.byTrx[in.TrxID]
	default:
		p = g.payments[in.PaymentID]
	}
	if p == nil {
		return nil, ""
	}
	return &p.party, p.Invoice
}
