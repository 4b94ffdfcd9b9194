package paygate

import "holdfast/internal/booking"

// verdict is what a status code says of the call that it answers.
type verdict string

const (
	// ask: it does not say what happened. So does a code that is not in the table.
	ask verdict = "ask"
	// refused: it did not happen, and this payment or order is over.
	refused verdict = "refused"
	// barred: as refused, and our account may be why. A person must look.
	barred verdict = "barred"
	// unfinished: the payer has not finished; only an execute can say so.
	unfinished verdict = "unfinished"
	// open: the payment exists and is not paid.
	open verdict = "open"
	// none: the gateway has no such refund, or no such transaction.
	none verdict = "none"
	// bug: what we sent is wrong, for this order at least. A person must act. It
	// made no payment and gave nothing back, but of a payment it says nothing.
	bug verdict = "bug"
	// setup: as bug, and our account or its configuration is the reason, so that
	// every other call will meet the same.
	setup verdict = "setup"
)

// ours tells whether a person on our side must act.
func (v verdict) ours() bool { return v == bug || v == setup || v == barred }

// charge is the verdict in the words of execute and query. What is our fault is
// unknown there: a wrong key would otherwise end every payment of a sale, paid
// ones too.
func (v verdict) charge() booking.ChargeStatus {
	switch v {
	case refused, barred:
		return booking.ChargeRefused
	case unfinished:
		return booking.ChargeUnfinished
	case open:
		return booking.ChargeOpen
	}
	return booking.ChargeUnknown
}

// meaning is a code's verdict on each call.
type meaning struct{ create, execute, query, refund, refundStatus, search verdict }

func (m meaning) of(call string) verdict {
	switch call {
	case callCreate:
		return m.create
	case callExecute:
		return m.execute
	case callQuery:
		return m.query
	case callRefund:
		return m.refund
	case callRefundStatus:
		return m.refundStatus
	case callSearch:
		return m.search
	}
	return ask
}

func always(v verdict) meaning { return meaning{v, v, v, v, v, v} }

// meanings is the one table of status codes. HTTP 200 comes with all of them.
// 0000 is not in it: what it says depends on what else the answer holds. Nor is
// 503, maintenance, which is no answer to anything (see decode).
//
// A create that meets "ask" or "setup" has met a gateway that makes no payments
// now, which the circuit breaker counts; "refused" and "bug" are about one
// order.
var meanings = map[string]meaning{
	//       create   execute     query    refund   status  search
	"2001": always(setup),                                // bad app key
	"2002": always(bug),                                  // bad or unknown payment id
	"2003": always(ask),                                  // process failed
	"2006": always(bug),                                  // bad amount
	"2007": always(bug),                                  // bad currency
	"2008": always(bug),                                  // bad intent
	"2014": {refused, refused, refused, ask, ask, ask},   // wrong PIN
	"2015": {refused, refused, refused, ask, ask, ask},   // wrong PIN, too often
	"2016": {refused, refused, refused, ask, ask, ask},   // wrong OTP
	"2017": {refused, refused, refused, ask, ask, ask},   // wrong OTP, too often
	"2018": {refused, refused, refused, ask, ask, ask},   // OTP expired
	"2019": {refused, refused, refused, ask, ask, ask},   // PIN expired
	"2020": always(ask),                                  // exception
	"2023": {refused, refused, refused, setup, ask, ask}, // insufficient balance: the payer's, or for a refund ours
	"2024": always(ask),                                  // exception
	"2025": always(bug),                                  // bad body
	"2026": {ask, ask, ask, refused, ask, ask},           // refund of more than is left
	"2028": {ask, ask, ask, bug, bug, none},              // transaction unknown, though a refund has it from the gateway
	"2029": {refused, ask, ask, ask, ask, ask},           // duplicate for all transactions: ambiguous
	"2031": always(bug),                                  // bad invoice number
	"2033": {ask, ask, ask, bug, none, none},             // not found: to a refund its transaction, to a question the refund
	"2034": always(ask),                                  // already reversed: there is a refund, ask which
	"2037": {setup, refused, refused, setup, ask, ask},   // 2037 to 2041: an account's state forbids it; of the first
	"2038": {setup, refused, refused, setup, ask, ask},   // two the payer's, where a payer is in play, and of the others
	"2039": {setup, barred, barred, setup, ask, ask},     // the payee's, as libraries have it (unconfirmed)
	"2040": {setup, barred, barred, setup, ask, ask},
	"2041": {setup, barred, barred, setup, ask, ask},
	"2048": always(bug),                                    // bad payer reference
	"2049": always(bug),                                    // bad callback URL
	"2056": always(ask),                                    // invalid payment state: never paid by that alone
	"2057": {refused, refused, refused, refused, ask, ask}, // not an account of this wallet
	"2058": {refused, refused, refused, refused, ask, ask}, // not a customer's account
	"2060": {ask, unfinished, open, ask, ask, ask},         // execute prerequisite not met
	"2062": always(ask),                                    // payment already completed: ask, then confirm
	"2063": always(setup),                                  // mode is wrong
	"2064": always(setup),                                  // product mode is unavailable
	"2065": always(bug),                                    // mandatory field missing
	"2068": always(ask),                                    // transaction already completed
	"2069": always(ask),                                    // transaction already cancelled
	"2116": always(ask),                                    // agreement execution already done
	"2117": always(ask),                                    // payment execution called before: not the same as paid
	"2119": always(ask),                                    // authorized payment already processed
	"9999": always(ask),                                    // internal error
}

// RefusalOf tells a payer why a payment was refused with that status code; "" for what
// is no code of a refusal.
func RefusalOf(code string) booking.Refusal {
	switch code {
	case "2023":
		return booking.RefusalBalance
	case "2014", "2015", "2016", "2017", "2018", "2019":
		return booking.RefusalCredentials
	case "2037", "2038", "2057", "2058":
		return booking.RefusalAccount
	}
	return ""
}

// verdict is what the answer's code says of the call; not for code 0000.
func (a answer) verdict(call string) verdict {
	if m, ok := meanings[a.code()]; ok {
		return m.of(call)
	}
	return ask
}
