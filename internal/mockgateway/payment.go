package mockgateway

import (
	"cmp"
	"crypto/rand"
	"net/url"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// lapse is how long a payment can be executed after it was created.
const lapse = 24 * time.Hour

// payment is one payment and the rules it lives by. Its methods change it and
// answer with a status code; whoever calls them holds the Gateway's lock,
// announces the transactions that were made and saves the payment. What makes
// one payment behave differently from the others is a field of it.
type payment struct {
	party

	ID          string    `json:"id"`
	Invoice     string    `json:"invoice"`
	Amount      string    `json:"amount"` // as given, and given back so
	Currency    string    `json:"currency"`
	Intent      string    `json:"intent"`
	Reference   string    `json:"reference"`
	CallbackURL string    `json:"callback_url"`
	Hash        string    `json:"hash"` // makes the payer's page unguessable
	Signature   string    `json:"signature"`
	CreatedAt   time.Time `json:"created_at"`

	Finished     bool           `json:"finished,omitempty"` // the payer has done their part
	Refuse       string         `json:"refuse,omitempty"`   // the code that execute will answer
	ExecuteCalls int            `json:"execute_calls,omitempty"`
	ExecutedAt   time.Time      `json:"executed_at,omitzero"`  // its one execution, whatever came of it
	Captured     bool           `json:"captured,omitempty"`    // that was the payer's press, not a call
	CompletesAt  time.Time      `json:"completes_at,omitzero"` // money will move
	SecondAt     time.Time      `json:"second_at,omitzero"`    // money will move once more
	Transactions []*transaction `json:"transactions,omitempty"`

	announced int    // of Transactions
	awaited   bool   // a goroutine waits for what is to come
	saved     *batch // its last change
}

// transaction is money that has moved. Amount, currency and invoice are what was
// paid, which a fault can make something else than what was ordered.
type transaction struct {
	TrxID    string        `json:"trx_id"`
	Amount   string        `json:"amount"`
	Currency string        `json:"currency"`
	Invoice  string        `json:"invoice"`
	At       time.Time     `json:"at"`
	Refunds  []refund      `json:"refunds,omitempty"`
	Note     *notification `json:"note,omitempty"`
}

type refund struct {
	TrxID  string    `json:"trx_id"`
	Amount string    `json:"amount"`
	At     time.Time `json:"at"`
}

func (p *payment) completed() bool { return len(p.Transactions) > 0 }

// over tells whether execute can no longer move money that it has not moved.
func (p *payment) over(now time.Time) bool {
	return !p.ExecutedAt.IsZero() || !now.Before(p.CreatedAt.Add(lapse))
}

// execute moves the money, once. A payment has one execution, and a refused one
// was it: from then on the answer is 2117, which says no more than that there
// was one; 2062 says that money has moved without it. Executing a lapsed payment
// is answered with 2056 (unconfirmed), and one whose payer has not finished with
// 2060, which does not use it up.
func (p *payment) execute(now time.Time) string {
	p.ExecuteCalls++
	switch {
	case p.Captured && p.completed():
		return "2062"
	case !p.ExecutedAt.IsZero():
		return "2117"
	case p.over(now):
		return "2056"
	case p.Refuse == "" && !p.Finished:
		return "2060"
	case p.take(CallExecute, FaultAlreadyExecutedUnpaid) != nil:
		return "2117"
	}
	code := p.charge(CallExecute, now)
	if code == success && p.take(CallExecute, FaultAlreadyExecuted) != nil {
		return "2117"
	}
	return code
}

// charge is the one execution.
func (p *payment) charge(place string, now time.Time) string {
	p.ExecutedAt = now
	if p.Refuse != "" {
		return p.Refuse
	}
	if f := p.take(place, FaultRefused); f != nil {
		return cmp.Or(f.Code, "2023")
	}
	if f := p.take(place, FaultCompletesLate); f != nil {
		p.CompletesAt = now.Add(f.delay())
		return cmp.Or(f.Code, "2003")
	}
	p.complete(now)
	return success
}

// complete moves the money, and says when it moves once more.
func (p *payment) complete(at time.Time) {
	t := &transaction{TrxID: randomText(upperAlnum, 10), Amount: p.Amount, Currency: p.Currency, Invoice: p.Invoice, At: at}
	*t = p.told(placeTransaction, *t)
	p.Transactions = append(p.Transactions, t)
	if f := p.take(placeTransaction, FaultTwoPayments); f != nil {
		p.SecondAt = at.Add(f.delay())
	}
}

// advance does what has come due. Afterwards every time in the past is done.
func (p *payment) advance(now time.Time) {
	if at := p.CompletesAt; !at.IsZero() && !now.Before(at) {
		p.CompletesAt = time.Time{}
		p.complete(at)
	}
	if at := p.SecondAt; !at.IsZero() && !now.Before(at) {
		p.SecondAt = time.Time{}
		first := p.Transactions[0]
		p.Transactions = append(p.Transactions, &transaction{
			TrxID: randomText(upperAlnum, 10), Amount: first.Amount, Currency: first.Currency, Invoice: first.Invoice, At: at,
		})
	}
}

// told is the transaction as it is told at a place.
func (p *payment) told(place string, t transaction) transaction {
	if f := p.take(place, FaultWrongAmount); f != nil {
		t.Amount = cmp.Or(f.Value, otherAmount(t.Amount))
	}
	if f := p.take(place, FaultWrongCurrency); f != nil {
		t.Currency = cmp.Or(f.Value, "USD")
	}
	if f := p.take(place, FaultWrongInvoice); f != nil {
		t.Invoice = cmp.Or(f.Value, otherInvoice(t.Invoice))
	}
	return t
}

// otherAmount is 1.00 less, or more where less would be nothing.
func otherAmount(amount string) string {
	m, _ := booking.ParseMoney(amount) // create has read it
	if m > 100 {
		return (m - 100).String()
	}
	return (m + 100).String()
}

func otherInvoice(invoice string) string {
	cut := len(invoice) - 1 // create wants at least one character
	if invoice[cut] == 'x' {
		return invoice[:cut] + "y"
	}
	return invoice[:cut] + "x"
}

// transaction finds one by its id.
func (p *payment) transaction(trxID string) *transaction {
	for _, t := range p.Transactions {
		if t.TrxID == trxID {
			return t
		}
	}
	return nil
}

// transactionStatus is the gateway's word on the payment. Only Initiated and
// Completed have been seen on the wire; Expired is known from libraries.
func (p *payment) transactionStatus(now time.Time) string {
	switch {
	case p.completed():
		return "Completed"
	case p.ExecutedAt.IsZero() && p.over(now):
		return "Expired"
	}
	return "Initiated"
}

// press is a button on the payer's page; refuse is the code that the execution
// is to answer after a success all the same (a balance that is too low shows
// only then). Cancel leaves everything as it is: the payer may come back. Where
// a press captures, it is the execution. press returns the status for the
// callback.
func (p *payment) press(outcome, refuse string, captures bool, now time.Time) string {
	switch {
	case p.completed():
		return outcome
	case outcome == outcomeCancel:
		if p.over(now) {
			return outcome
		}
		if f := p.take(placePress, FaultCompletesAfterCancel); f != nil {
			p.Finished = true
			if captures {
				p.ExecutedAt, p.Captured, p.CompletesAt = now, true, now.Add(f.delay())
			}
		}
		return outcome
	case !p.CompletesAt.IsZero() && p.Captured:
		return outcome // the payer has paid; the money is on its way
	case p.over(now):
		return outcomeFailure
	case outcome == outcomeSuccess:
		p.Finished, p.Refuse = true, refuse
		if !captures {
			break
		}
		p.Captured = true
		if p.charge(placePress, now); !p.completed() && p.CompletesAt.IsZero() {
			return outcomeFailure
		}
	case outcome == outcomeFailure:
		p.Finished, p.Refuse = false, "2023"
	}
	return outcome
}

// refund gives back part of a transaction's money or all that is left of it.
func (p *payment) refund(t *transaction, amount string, now time.Time) string {
	want, err := booking.ParseMoney(amount)
	if err != nil || want <= 0 {
		return "2006"
	}
	left, err := booking.ParseMoney(t.Amount)
	if err != nil { // a fault's value; the order's amount has been read
		left, _ = booking.ParseMoney(p.Amount)
	}
	for _, r := range t.Refunds {
		gone, _ := booking.ParseMoney(r.Amount)
		left -= gone
	}
	switch {
	case left <= 0:
		return "2034"
	case want > left:
		return "2026"
	}
	if f := p.take(CallRefund, FaultRefundRefused); f != nil {
		return cmp.Or(f.Code, "2023")
	}
	t.Refunds = append(t.Refunds, refund{TrxID: randomText(upperAlnum, 10), Amount: amount, At: now})
	if p.take(CallRefund, FaultAlreadyRefunded) != nil {
		return "2034"
	}
	return success
}

// callback is the merchant's address for a return with this status. The
// signature is the same in all three: it vouches for the payment, not for what
// came of it.
func (p *payment) callback(status string) string {
	sep := "?"
	if strings.Contains(p.CallbackURL, "?") {
		sep = "&"
	}
	return p.CallbackURL + sep + "paymentID=" + url.QueryEscape(p.ID) + "&status=" + status + "&signature=" + p.Signature
}

// pageURL is where the payer pays.
func (p *payment) pageURL(base string) string {
	return base + "/pay/" + p.ID + "?hash=" + p.Hash + "&mode=0011&apiVersion=v1.2.0-beta/"
}

const (
	upperAlnum = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	alnum      = upperAlnum + "abcdefghijklmnopqrstuvwxyz"
)

func newPaymentID(now time.Time) string {
	return "TR0011" + randomText(alnum, 8) + strconv.FormatInt(now.UnixMilli(), 10)
}

// randomText is a name that nobody can guess; the slight favour that % gives to
// some letters does not matter to it.
func randomText(alphabet string, n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails since Go 1.24
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	return string(b)
}

// wireTime writes a time as the gateway does, with a colon before the
// milliseconds.
func wireTime(t time.Time) string {
	t = t.In(time.FixedZone("", 6*60*60))
	return t.Format("2006-01-02T15:04:05") + ":" + t.Format(".000")[1:] + " GMT+0600"
}
