package paygate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"holdfast/internal/booking"
)

const codeSuccess = "0000"

// completed is the one transaction status that says that money has moved.
const completed = "Completed"

// text is a value that the gateway documents as a string and that libraries
// have also seen as a number; a number is kept as it is written.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	switch {
	case bytes.Equal(b, []byte("null")):
		return nil
	case b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*t = text(s)
		return nil
	case b[0] == '-' || '0' <= b[0] && b[0] <= '9':
		*t = text(b)
		return nil
	}
	return errors.New("neither text nor number")
}

// answer is every field of every call's answer that is used. Fields about the
// payer (number, wallet) are not read, so that nothing can print them.
type answer struct {
	IDToken      text `json:"id_token"`
	RefreshToken text `json:"refresh_token"`
	ExpiresIn    text `json:"expires_in"`

	PaymentID          text `json:"paymentID"`
	BkashURL           text `json:"bkashURL"`
	SuccessCallbackURL text `json:"successCallbackURL"`

	TransactionStatus     text `json:"transactionStatus"`
	TrxID                 text `json:"trxID"`
	Amount                text `json:"amount"`
	Currency              text `json:"currency"`
	MerchantInvoiceNumber text `json:"merchantInvoiceNumber"` // create, execute
	MerchantInvoice       text `json:"merchantInvoice"`       // query, by some accounts
	PaymentExecuteTime    text `json:"paymentExecuteTime"`
	OriginalTrxID         text `json:"originalTrxID"`        // refund
	RefundTrxID           text `json:"refundTrxID"`          // refund
	CompletedTime         text `json:"completedTime"`        // refund, search
	TransactionReference  text `json:"transactionReference"` // search

	StatusCode    text `json:"statusCode"` // tokenized checkout
	StatusMessage text `json:"statusMessage"`
	ErrorCode     text `json:"errorCode"` // the older checkout product
	ErrorMessage  text `json:"errorMessage"`
	Message       text `json:"message"` // what stands before the gateway: no answer of its own
}

// errUnauthorized says that the gateway refused the token before it looked at
// the call.
var errUnauthorized = errors.New("token refused")

// codeMaintenance says nothing of the call it answers.
const codeMaintenance = "503"

// decode turns an HTTP answer into one with a code. Its errors wrap
// booking.ErrInDoubt, and ErrGatewayOutage where the gateway as a whole is out,
// but for a 401 with nothing but a message, which is
// errUnauthorized. The secrets that went out are taken out of the texts that
// came back.
func decode(status int, body []byte, secrets ...string) (answer, error) {
	var a answer
	unread := json.Unmarshal(body, &a)
	for _, words := range []*text{&a.StatusMessage, &a.ErrorMessage, &a.Message} {
		for _, secret := range secrets {
			*words = text(strings.ReplaceAll(string(*words), secret, hidden))
		}
	}
	switch {
	case status == http.StatusUnauthorized && unread == nil && a.bare():
		return answer{}, fmt.Errorf("%w: %s", errUnauthorized, scrub(string(a.Message)))
	case status >= http.StatusInternalServerError,
		(status == http.StatusForbidden || status == http.StatusTooManyRequests) && unread == nil && a.bare():
		return answer{}, fmt.Errorf("%w: %w: HTTP status %d", booking.ErrInDoubt, booking.ErrGatewayOutage, status)
	case status != http.StatusOK:
		return answer{}, fmt.Errorf("%w: HTTP status %d", booking.ErrInDoubt, status)
	case unread != nil:
		return answer{}, fmt.Errorf("%w: body is not the JSON it should be", booking.ErrInDoubt)
	case a.Message != "":
		return answer{}, fmt.Errorf("%w: %w: message %q", booking.ErrInDoubt, booking.ErrGatewayOutage, scrub(string(a.Message)))
	case a.StatusCode != "" && a.ErrorCode != "" && a.StatusCode != a.ErrorCode:
		return answer{}, fmt.Errorf("%w: two different codes", booking.ErrInDoubt)
	case a.MerchantInvoice != "" && a.MerchantInvoiceNumber != "" && a.MerchantInvoice != a.MerchantInvoiceNumber:
		return answer{}, fmt.Errorf("%w: two different invoice numbers", booking.ErrInDoubt)
	case a.code() == "":
		return answer{}, fmt.Errorf("%w: no status code", booking.ErrInDoubt)
	case a.code() == codeMaintenance:
		return answer{}, fmt.Errorf("%w: %w: maintenance", booking.ErrInDoubt, booking.ErrGatewayOutage)
	}
	return a, nil
}

// bare tells whether the answer is a message and nothing else, which is how what
// stands before the gateway speaks.
func (a answer) bare() bool { return a.Message != "" && a == (answer{Message: a.Message}) }

func (a answer) code() string {
	if a.StatusCode != "" {
		return string(a.StatusCode)
	}
	return string(a.ErrorCode)
}

func (a answer) words() string {
	if a.StatusMessage != "" {
		return scrub(string(a.StatusMessage))
	}
	return scrub(string(a.ErrorMessage))
}

func (a answer) invoice() string {
	if a.MerchantInvoiceNumber != "" {
		return string(a.MerchantInvoiceNumber)
	}
	return string(a.MerchantInvoice)
}

// status judges an answer. A payment is completed only by 0000 and Completed
// together. Initiated, and the words for one that did not come about
// (Cancelled, Expired, Declined), are not paid and not final: open. Every
// other word, Authorized and PendingAuthorized among them, is unknown.
func (a answer) status(call string) booking.ChargeStatus {
	if a.code() == codeSuccess {
		switch a.TransactionStatus {
		case completed:
			return booking.ChargeCompleted
		case "Initiated", "Cancelled", "Expired", "Declined":
			return booking.ChargeOpen
		}
		return booking.ChargeUnknown
	}
	if a.TransactionStatus == completed || a.TransactionStatus == "Authorized" || a.TransactionStatus == "PendingAuthorized" {
		return booking.ChargeUnknown // a code and a status that contradict each other
	}
	return a.verdict(call).charge()
}

// charge turns an answer about the payment id into a booking.Charge. An answer
// about another payment, and a completed one that leaves out what must be
// compared, is no usable answer: the error wraps booking.ErrInDoubt.
func (a answer) charge(call, id string) (booking.Charge, error) {
	c := booking.Charge{
		Status:      a.status(call),
		PaymentID:   id,
		Invoice:     a.invoice(),
		Transaction: string(a.TrxID),
		Currency:    string(a.Currency),
		Code:        only(codeForm, a.code()),
		Text:        a.words(),
	}
	if a.PaymentID != "" && string(a.PaymentID) != id {
		return booking.Charge{}, fmt.Errorf("%w: it is about another payment", booking.ErrInDoubt)
	}
	amount, err := booking.ParseMoney(string(a.Amount))
	if err == nil {
		c.Amount = amount
	}
	if c.Status == booking.ChargeCompleted {
		switch {
		case err != nil:
			return booking.Charge{}, fmt.Errorf("%w: completed, but the amount cannot be read", booking.ErrInDoubt)
		case a.PaymentID == "" || !idForm.MatchString(c.Transaction) || c.Invoice == "" || c.Currency == "":
			return booking.Charge{}, fmt.Errorf("%w: completed, but without payment, transaction, invoice or currency", booking.ErrInDoubt)
		}
	}
	return c, nil
}

// inDoubt is the error for an answer whose code leaves open what happened.
func (a answer) inDoubt() error {
	return fmt.Errorf("%w: code %s %q", booking.ErrInDoubt, only(codeForm, a.code()), a.words())
}

// refund turns an answer about the refund of a transaction into a
// booking.RefundAnswer. Done needs 0000, Completed and the refund's own
// transaction; not done needs a code that says so. Anything between is an error
// that wraps booking.ErrInDoubt.
func (a answer) refund(call, payment, transaction string) (booking.RefundAnswer, error) {
	r := booking.RefundAnswer{Code: only(codeForm, a.code()), Text: a.words()}
	if a.PaymentID != "" && string(a.PaymentID) != payment || a.OriginalTrxID != "" && string(a.OriginalTrxID) != transaction {
		return booking.RefundAnswer{}, fmt.Errorf("%w: it is about another payment or transaction", booking.ErrInDoubt)
	}
	if a.code() != codeSuccess {
		v := a.verdict(call)
		notDone := v == none || call == callRefund && (v == refused || v.ours())
		if !notDone || a.RefundTrxID != "" || a.TransactionStatus == completed {
			return booking.RefundAnswer{}, a.inDoubt()
		}
		return r, nil
	}
	amount, err := booking.ParseMoney(string(a.Amount))
	switch {
	case a.TransactionStatus != completed:
		return booking.RefundAnswer{}, fmt.Errorf("%w: refund is %q", booking.ErrInDoubt, only(wordForm, string(a.TransactionStatus)))
	case a.RefundTrxID == "" || !idForm.MatchString(string(a.RefundTrxID)):
		return booking.RefundAnswer{}, fmt.Errorf("%w: completed, but without the refund's transaction", booking.ErrInDoubt)
	case err != nil || a.Currency == "":
		return booking.RefundAnswer{}, fmt.Errorf("%w: completed, but amount or currency cannot be read", booking.ErrInDoubt)
	}
	r.Done, r.Transaction, r.Original = true, string(a.RefundTrxID), string(a.OriginalTrxID)
	r.Amount, r.Currency = amount, string(a.Currency)
	r.CompletedAt, _ = ParseTime(string(a.CompletedTime))
	return r, nil
}

// transaction turns an answer about a transaction into a
// booking.TransactionAnswer.
func (a answer) transaction(id string) (booking.TransactionAnswer, error) {
	t := booking.TransactionAnswer{Code: only(codeForm, a.code()), Text: a.words()}
	if a.code() != codeSuccess {
		if a.verdict(callSearch) != none || a.TransactionStatus == completed {
			return booking.TransactionAnswer{}, a.inDoubt()
		}
		return t, nil
	}
	amount, err := booking.ParseMoney(string(a.Amount))
	switch {
	case string(a.TrxID) != id:
		return booking.TransactionAnswer{}, fmt.Errorf("%w: it is about another transaction", booking.ErrInDoubt)
	case a.TransactionStatus == completed && (err != nil || a.Currency == ""):
		return booking.TransactionAnswer{}, fmt.Errorf("%w: completed, but amount or currency cannot be read", booking.ErrInDoubt)
	}
	t.Found, t.Completed, t.Transaction = true, a.TransactionStatus == completed, id
	t.Currency = string(a.Currency)
	if err == nil {
		t.Amount = amount
	}
	t.CompletedAt, _ = ParseTime(string(a.CompletedTime))
	if _, _, err := booking.ParseInvoice(string(a.TransactionReference)); err == nil {
		t.Reference = string(a.TransactionReference)
	}
	return t, nil
}

// ParseTime reads the gateway's times, which put a colon before the
// milliseconds ("2025-11-02T14:29:02:166 GMT+0600"); package time has no
// layout for that.
func ParseTime(s string) (time.Time, error) {
	const colon = len("2006-01-02T15:04:05")
	if len(s) > colon && s[colon] == ':' {
		s = s[:colon] + "." + s[colon+1:]
	}
	t, err := time.Parse("2006-01-02T15:04:05.000 GMT-0700", s)
	if err != nil {
		return time.Time{}, fmt.Errorf("gateway time %.40q: want the form 2006-01-02T15:04:05:000 GMT-0700", s)
	}
	return t, nil
}
