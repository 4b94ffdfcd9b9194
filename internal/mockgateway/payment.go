package mockgateway

import (
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
// answer with a status code; whoever calls them holds the Gateway's lock and
// saves the payment. What makes one payment behave differently from the others
// (Refuse today) is a field of it.
type payment struct {
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

	Finished     bool      `json:"finished,omitempty"` // the payer has done their part
	Refuse       string    `json:"refuse,omitempty"`   // the code that execute will answer
	ExecuteCalls int       `json:"execute_calls,omitempty"`
	ExecutedAt   time.Time `json:"executed_at,omitzero"` // its one execution, whatever came of it
	TrxID        string    `json:"trx_id,omitempty"`     // money has moved
	Refunds      []refund  `json:"refunds,omitempty"`

	saved *batch // its last change
}

type refund struct {
	TrxID  string    `json:"trx_id"`
	Amount string    `json:"amount"`
	At     time.Time `json:"at"`
}

func (p *payment) completed() bool { return p.TrxID != "" }

// over tells whether execute can no longer move money that it has not moved.
func (p *payment) over(now time.Time) bool {
	return !p.ExecutedAt.IsZero() || !now.Before(p.CreatedAt.Add(lapse))
}

// execute moves the money, once. A payment has one execution, and a refused one
// was it: from then on the answer is 2117, which says no more than that there
// was one. Executing a lapsed payment is answered with 2056 (unconfirmed), and
// one whose payer has not finished with 2060, which does not use it up.
func (p *payment) execute(now time.Time) string {
	p.ExecuteCalls++
	switch {
	case !p.ExecutedAt.IsZero():
		return "2117"
	case p.over(now):
		return "2056"
	case p.Refuse == "" && !p.Finished:
		return "2060"
	}
	p.ExecutedAt = now
	if p.Refuse != "" {
		return p.Refuse
	}
	p.TrxID = randomText(upperAlnum, 10)
	return success
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

// press is a button on the payer's page; refuse is the code that execute is to
// answer after a success all the same (a balance that is too low shows only
// then). Cancel leaves everything as it is: the payer may come back. It returns
// the status for the callback.
func (p *payment) press(outcome, refuse string, now time.Time) string {
	switch {
	case p.completed() || outcome == outcomeCancel:
		return outcome
	case p.over(now):
		return outcomeFailure
	case outcome == outcomeSuccess:
		p.Finished, p.Refuse = true, refuse
	case outcome == outcomeFailure:
		p.Finished, p.Refuse = false, "2023"
	}
	return outcome
}

// refund gives back part of the money or all that is left of it.
func (p *payment) refund(amount string, now time.Time) string {
	want, err := booking.ParseMoney(amount)
	if err != nil || want <= 0 {
		return "2006"
	}
	left, _ := booking.ParseMoney(p.Amount) // create has read it
	for _, r := range p.Refunds {
		gone, _ := booking.ParseMoney(r.Amount)
		left -= gone
	}
	switch {
	case left == 0:
		return "2034"
	case want > left:
		return "2026"
	}
	p.Refunds = append(p.Refunds, refund{TrxID: randomText(upperAlnum, 10), Amount: amount, At: now})
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
