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
	case status == http.StatusUnauthorized && unread == nil && a.Message != "" && a == (answer{Message: a.Message}):
		return answer{}, fmt.Errorf("%w: %s", errUnauthorized, scrub(string(a.Message)))
	case status >= http.StatusInternalServerError:
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

// meaning is what a status code says of the payment it came for.
type meaning struct{ execute, query booking.ChargeStatus }

// refused codes are the payer's or an account's fault; with them no money
// moves, and the payment has had its one execution.
var refused = meaning{booking.ChargeRefused, booking.ChargeRefused}

// meanings is the one table of status codes. A code that is not in it
// (2001 bad app key, 2002 unknown payment, 2003 process failed, 2020 and 2024
// exceptions, 2029 duplicate, 2056 invalid state, 2062 already completed,
// 2068 and 2069 transaction completed or cancelled, 2116 and 2117 already
// executed, 2119 already processed, 503, 9999, and whatever is new) is
// booking.ChargeUnknown: it does not say whether money moved, so ask again.
// 2001 and 2002 are among them because a wrong key would otherwise end every
// payment of a sale, paid ones too.
var meanings = map[string]meaning{
	"2014": refused, // wrong PIN
	"2015": refused, // wrong PIN, too often
	"2016": refused, // wrong OTP
	"2017": refused, // wrong OTP, too often
	"2018": refused, // OTP expired
	"2019": refused, // PIN expired
	"2023": refused, // insufficient balance
	"2037": refused, // 2037 to 2041: an account's state forbids it
	"2038": refused,
	"2039": refused,
	"2040": refused,
	"2041": refused,
	"2057": refused, // not an account of this wallet
	"2058": refused, // not a customer's account
	// The payer has not finished. Only an execute can say so of itself; to a
	// query it is the state of a payment that is open.
	"2060": {booking.ChargeUnfinished, booking.ChargeOpen},
}

// status judges an answer. A payment is completed only by 0000 and Completed
// together. Initiated, and the words for one that did not come about
// (Cancelled, Expired, Declined), are not paid and not final: open. Every
// other word, Authorized and PendingAuthorized among them, is unknown.
func (a answer) status(call string) booking.ChargeStatus {
	completed := a.TransactionStatus == "Completed"
	if a.code() == codeSuccess {
		switch a.TransactionStatus {
		case "Completed":
			return booking.ChargeCompleted
		case "Initiated", "Cancelled", "Expired", "Declined":
			return booking.ChargeOpen
		}
		return booking.ChargeUnknown
	}
	m, ok := meanings[a.code()]
	if !ok || completed || a.TransactionStatus == "Authorized" || a.TransactionStatus == "PendingAuthorized" {
		return booking.ChargeUnknown
	}
	if call == callExecute {
		return m.execute
	}
	return m.query
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
