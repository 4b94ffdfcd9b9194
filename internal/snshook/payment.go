package snshook

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"time"
	"unicode"

	"holdfast/internal/booking"
)

// maxText bounds a text of the gateway, in bytes: its own limit for the longest.
const maxText = 255

// wallet is a number of the gateway's country, however it is spaced.
var wallet = regexp.MustCompile(`01[3-9](?:[ -]?[0-9]){8}`)

// card is a run of digits as long as a card's number, however it is spaced.
var card = regexp.MustCompile(`[0-9](?:[ -]?[0-9]){12,18}`)

// notification reads the gateway's message. One that cannot be read is returned
// too, with the reason and what could be read: it is genuine, and a person must
// look. The payer's number is left out wherever it stands.
func notification(m Message, receivedAt time.Time) booking.Notification {
	n := booking.Notification{Version: booking.NotificationVersion, ID: m.ID, ReceivedAt: receivedAt.UTC(), SentAt: m.SentAt}
	all, err := members([]byte(m.Text))
	if err != nil {
		n.Unreadable = "the message is not a JSON object"
		if errors.Is(err, errRepeated) {
			n.Unreadable = "a member of the message is repeated"
		}
		return n
	}
	r := reader{all: all}
	r.payer, _ = text(all["debitMSISDN"])
	n.Transaction = r.text("trxID")
	if n.Transaction == "" {
		r.problem("trxID is missing")
	}
	n.Invoice = r.text("merchantInvoiceNumber")
	if amount := r.money("amount"); amount != nil {
		n.Amount = *amount
	} else {
		r.problem("amount is missing")
	}
	n.Currency = r.text("currency")
	if n.Currency == "" {
		r.problem("currency is missing")
	}
	n.TransactionType = r.text("transactionType")
	n.Status = r.text("transactionStatus")
	n.Reference = r.text("transactionReference")
	n.SaleAmount = r.money("saleAmount")
	n.CouponAmount = r.money("couponAmount")
	n.MerchantShare = r.money("merchantShareAmount")
	n.Unreadable = r.reason
	return n
}

// reader reads members and remembers the first problem, in words that hold nothing
// of the message.
type reader struct {
	all    map[string]json.RawMessage
	payer  string
	reason string
}

func (r *reader) problem(text string) {
	if r.reason == "" {
		r.reason = text
	}
}

// text is a member of one line; "" when there is none, or when it holds a number that
// may be a wallet's or a card's.
func (r *reader) text(name string) string {
	s, ok := text(r.all[name])
	if !ok || len(s) > maxText || strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) {
		r.problem(name + " is not a plain text")
		return ""
	}
	if _, _, err := booking.ParseInvoice(s); err == nil {
		return s // ours: made of no number
	}
	if wallet.MatchString(s) || card.MatchString(s) || sameNumber(s, r.payer) {
		return ""
	}
	return s
}

// money is an amount; nil when there is none.
func (r *reader) money(name string) *booking.Money {
	s, ok := text(r.all[name])
	if ok && s == "" {
		return nil
	}
	m, err := booking.ParseMoney(s)
	if !ok || err != nil {
		r.problem(name + " is not an amount")
		return nil
	}
	return &m
}

// text is a JSON string or number as a text; "" for null and for nothing.
func text(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", true
	}
	if c := raw[0]; c == '-' || ('0' <= c && c <= '9') {
		return string(raw), true
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return strings.TrimSpace(s), true
}

// sameNumber tells whether the text holds the payer's number, with or without
// country code and leading zero, spaces and hyphens.
func sameNumber(s, payer string) bool {
	number := onlyDigits(payer)
	if len(number) < 8 {
		return false
	}
	return strings.Contains(onlyDigits(s), number[max(0, len(number)-10):])
}

func onlyDigits(s string) string {
	return strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return c
		}
		return -1
	}, s)
}
