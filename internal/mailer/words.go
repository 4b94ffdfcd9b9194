package mailer

import (
	"strconv"
	"strings"
	"time"
)

// BanglaReview is "unreviewed" until somebody whose language it is has read the
// Bangla words below; then it says when that was.
const BanglaReview = "unreviewed"

// words are what the mail says in one language. Names, codes, amounts and
// numbers to quote stand in both as they are stored, so that they can be compared
// with the page and the wallet.
type words struct {
	Lang                                                         string // as in RFC 5646
	Title, Paid                                                  string
	Level, Amount, PaidAt, Candidate, Sale, Booking, Transaction string
	Web                                                          string
	When                                                         func(time.Time) string // a time, for reading
}

var english = words{
	Lang:        "en",
	Title:       "Your seat is confirmed",
	Paid:        "It is paid, and there is nothing more to do. Please keep this mail.",
	Level:       "Level",
	Amount:      "Paid",
	PaidAt:      "Paid on",
	Candidate:   "Candidate code",
	Sale:        "Sale",
	Booking:     "Booking",
	Transaction: "Transaction",
	Web:         "Your booking on the web",
	When:        func(t time.Time) string { return t.UTC().Format("2 January 2006, 15:04 UTC") },
}

var bangla = words{
	Lang:        "bn",
	Title:       "আপনার আসন নিশ্চিত হয়েছে",
	Paid:        "পেমেন্ট সম্পন্ন হয়েছে, আপনাকে আর কিছু করতে হবে না। ই-মেইলটি রেখে দিন।",
	Level:       "লেভেল",
	Amount:      "পরিশোধিত",
	PaidAt:      "পরিশোধের সময়",
	Candidate:   "প্রার্থী কোড",
	Sale:        "বিক্রয়",
	Booking:     "বুকিং নম্বর",
	Transaction: "লেনদেন নম্বর",
	Web:         "ওয়েবে আপনার বুকিং",
	When:        banglaTime,
}

var banglaMonths = [...]string{
	"জানুয়ারি", "ফেব্রুয়ারি", "মার্চ", "এপ্রিল", "মে", "জুন",
	"জুলাই", "আগস্ট", "সেপ্টেম্বর", "অক্টোবর", "নভেম্বর", "ডিসেম্বর",
}

// banglaTime is in Bangla digits, as dates are written in Bangla text.
func banglaTime(t time.Time) string {
	t = t.UTC()
	s := strconv.Itoa(t.Day()) + " " + banglaMonths[t.Month()-1] + t.Format(" 2006, 15:04 UTC")
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '০' + r - '0'
		}
		return r
	}, s)
}
