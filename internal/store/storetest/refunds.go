package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// Driver is what a driver promises: records, refunds and notifications.
type Driver interface {
	Store
	Refunds
	Notifications
	// Asked notes the time of a question on a RELEASED record, if payment and asked_at
	// are those of the record as it was seen; nil when another time was noted since,
	// which stays. ErrNotFound, ErrOtherThanOrdered, ErrAlreadyPaid.
	Asked(ctx context.Context, seen booking.Record, at time.Time) error
	// Extend moves the deadline of a HELD record later, and its TTL with it; a
	// deadline that is not later changes nothing. Nil also without a record, and
	// when it is no longer HELD.
	Extend(ctx context.Context, candidateHash, attempt string, deadline time.Time) error
	// KeepHeld takes the TTL of a HELD record away. Nil also without a record, and when
	// it is no longer HELD.
	KeepHeld(ctx context.Context, candidateHash, attempt string) error
}

// Refunds is what a driver promises of refunds, all of it safe for concurrent use
// and safe to repeat. No scan of records meets one, and a store that has one is
// not empty.
type Refunds interface {
	// PutRefund puts a due refund if its transaction has none, and tells it; else it
	// returns the one that is there, untouched.
	PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error)
	// Refund is a consistent read; ErrNotFound.
	Refund(ctx context.Context, transaction string) (booking.Refund, error)
	// RefundsOf is a consistent read of an attempt's refunds, oldest decision first.
	// What cannot be read is left out and named by the error.
	RefundsOf(ctx context.Context, candidateHash, attempt string) ([]booking.Refund, error)
	// Refunds scans in pages, oldest decision first. An unreadable one is an error
	// that wraps ErrUnreadable, beside a refund with the transaction alone; the scan
	// goes on. Any other error ends it.
	Refunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	// OpenRefunds is Refunds without those that are done.
	OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error]
	// ClaimRefund leases a refund that is due or sent, when nobody holds it, the
	// holder's time is over at now, or the claim is the holder; it returns the refund
	// and whether it is claimed. ErrNotFound.
	ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (booking.Refund, bool, error)
	// RefundSent makes a due or sent refund sent at that time, or at the later one
	// that is noted. ErrNotOwner when it is done, or the claim is not the holder or
	// is over at that time.
	RefundSent(ctx context.Context, transaction, claim string, at time.Time) error
	// RefundDone makes a due or sent refund done and ends lease and trouble. Nil when
	// it is done so by the same hand and transaction; ErrRefundedOtherwise when it is
	// done by another.
	RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error
	// RefundTrouble notes the trouble and ends the lease; nil when that is so already.
	// ErrNotOwner when it is done, or the claim is not the holder.
	RefundTrouble(ctx context.Context, transaction, claim, trouble string) error
}

// MoneyCorrupter is what Corrupter is, for refunds and notifications.
type MoneyCorrupter interface {
	CorruptRefund(t testing.TB, transaction string)
	CorruptNotification(t testing.TB, id string)
}

// RunDriver holds the driver to the whole contract. open returns an empty store,
// closed by the test's cleanup.
func RunDriver(t *testing.T, open func(t *testing.T) Driver) {
	Run(t, func(t *testing.T) Store { return open(t) })
	tests := []struct {
		name string
		run  func(t *testing.T, s Driver)
	}{
		{"Extend", extend},
		{"KeepHeld", keepHeld},
		{"Asked", asked},
		{"AskedManyAtOnce", askedManyAtOnce},
		{"BrokenAsked", brokenAsked},
		{"PutRefund", putRefund},
		{"RefundGoesItsWay", refundGoesItsWay},
		{"RefundAfterACrash", refundAfterACrash},
		{"RefundDone", refundDone},
		{"RefundTrouble", refundTrouble},
		{"RefundScan", refundScan},
		{"RefundsAreNoRecords", refundsAreNoRecords},
		{"RefundUnreadable", refundUnreadable},
		{"RefundsManyAtOnce", refundsManyAtOnce},
		{"RefundEndedContext", refundEndedContext},
		{"BrokenRefundWrites", brokenRefundWrites},
		{"PutNotification", putNotification},
		{"CloseNotification", closeNotification},
		{"NotificationScan", notificationScan},
		{"NotificationUnreadable", notificationUnreadable},
		{"NotificationsManyAtOnce", notificationsManyAtOnce},
		{"NotificationEndedContext", notificationEndedContext},
		{"BrokenNotificationWrites", brokenNotificationWrites},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
	}
}

// Due makes a valid refund of a record and a transaction of its own, each decided
// later than the one before.
func Due() booking.Refund { return dueOf(Held()) }

// dueOf makes a further refund of the record's attempt.
func dueOf(rec booking.Record) booking.Refund {
	n := serial.Add(1)
	return booking.NewRefund(rec, booking.Charge{
		Transaction: fmt.Sprintf("TX%08d", n), PaymentID: rec.PaymentID, Amount: rec.Amount, Currency: rec.Currency,
	}, booking.MoneyLate, booking.Decision{Reason: "full", At: start.Add(time.Duration(n) * time.Millisecond)})
}

// When things happen to the refunds of the suite.
var (
	claimedAt = start.Add(time.Hour)
	leaseEnds = claimedAt.Add(time.Minute)
	sentAt    = claimedAt.Add(time.Second)
	doneAt    = claimedAt.Add(2 * time.Second)
)

// gatewayName ends a refund whose money the gateway has given back.
const gatewayName = "gateway"

func refundClaimed(r booking.Refund) booking.Refund {
	r.Claim, r.ClaimUntil = "a", leaseEnds
	return r
}

// refundSent is what RefundSent makes of the refund.
func refundSent(r booking.Refund) booking.Refund {
	r = refundClaimed(r)
	r.State, r.SentAt = booking.RefundSent, sentAt
	return r
}

// refundEnded is what RefundDone makes of the refund.
func refundEnded(r booking.Refund) booking.Refund {
	r.State, r.DoneAt, r.DoneBy, r.RefundTransaction = booking.RefundDone, doneAt, gatewayName, "RF"+r.Transaction
	r.Claim, r.ClaimUntil, r.Trouble = "", time.Time{}, ""
	return r
}

func extend(t *testing.T, s Driver) {
	ctx, rec := t.Context(), Held()
	later := rec.Deadline.Add(5 * time.Minute)
	lengthen := func(what string, rec booking.Record, deadline time.Time) {
		t.Helper()
		if err := s.Extend(ctx, rec.CandidateHash, rec.Attempt, deadline); err != nil {
			t.Errorf("Extend %s: got %v, want none", what, err)
		}
	}
	lengthen("without a record", rec, later)
	absent(t, s, rec)
	mustPut(t, s, rec)
	want := rec
	want.Deadline, want.TTL = later, booking.HeldTTL(later)
	for _, deadline := range []time.Time{rec.Deadline, later.In(time.FixedZone("far", 6*3600)), later, rec.Deadline, {}} {
		lengthen("of a held record to "+deadline.String(), rec, deadline)
		if deadline.Equal(later) {
			rec = want
		}
		stored(t, s, rec)
	}

	noted := mustAnnounce(t, s, rec, start.Add(time.Minute))
	want = noted
	want.Deadline, want.TTL = later.Add(time.Minute), booking.HeldTTL(later.Add(time.Minute))
	lengthen("of an announced record", rec, want.Deadline)
	stored(t, s, want)
	mustRelease(t, s, noted) // as it was seen before
	want.State, want.Reason, want.TTL = booking.StateReleased, "lapsed", booking.ReleasedTTL(releasedAt(noted))
	lengthen("of a released record", rec, later.Add(time.Hour))
	stored(t, s, want)

	kept := Held()
	kept.TTL = time.Time{}
	mustPut(t, s, kept)
	lengthen("of a record that never goes", kept, later.Add(time.Hour))
	kept.Deadline = later.Add(time.Hour)
	stored(t, s, kept)

	done := Held()
	mustPay(t, s, done)
	lengthen("of a paid record", done, later.Add(time.Hour))
	stored(t, s, asPaid(done))

	if c, ok := s.(Corrupter); ok {
		bad := Held()
		mustPut(t, s, bad)
		c.Corrupt(t, bad.CandidateHash, bad.Attempt)
		if err := s.Extend(ctx, bad.CandidateHash, bad.Attempt, later.Add(time.Hour)); !errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("Extend of an unreadable record: got %v, want ErrUnreadable", err)
		}
	}
	for fault, through := range faults() {
		rec := Held()
		mustPut(t, s, rec)
		call := func() error { return s.Extend(ctx, rec.CandidateHash, rec.Attempt, rec.Deadline.Add(time.Minute)) }
		if err := through(call); err != nil && !errors.Is(err, errLost) {
			t.Fatalf("%s, first Extend: %v", fault, err)
		}
		want := rec
		want.Deadline, want.TTL = rec.Deadline.Add(time.Minute), booking.HeldTTL(rec.Deadline.Add(time.Minute))
		for range 2 {
			if err := call(); err != nil {
				t.Errorf("%s, repeated Extend: got %v, want none", fault, err)
			}
			stored(t, s, want)
		}
	}
}

func keepHeld(t *testing.T, s Driver) {
	ctx, rec := t.Context(), Held()
	keep := func(what string, rec booking.Record) {
		t.Helper()
		if err := s.KeepHeld(ctx, rec.CandidateHash, rec.Attempt); err != nil {
			t.Errorf("KeepHeld %s: got %v, want none", what, err)
		}
	}
	keep("without a record", rec)
	absent(t, s, rec)
	mustPut(t, s, rec)
	rec.TTL = time.Time{}
	for range 2 {
		keep("of a held record", rec)
		stored(t, s, rec)
	}
	mustRelease(t, s, rec)
	keep("of a released record", rec)
	stored(t, s, asReleased(rec))

	done := Held()
	mustPay(t, s, done)
	keep("of a paid record", done)
	stored(t, s, asPaid(done))

	for fault, through := range faults() {
		rec := Held()
		mustPut(t, s, rec)
		call := func() error { return s.KeepHeld(ctx, rec.CandidateHash, rec.Attempt) }
		if err := through(call); err != nil && !errors.Is(err, errLost) {
			t.Fatalf("%s, first KeepHeld: %v", fault, err)
		}
		rec.TTL = time.Time{}
		for range 2 {
			if err := call(); err != nil {
				t.Errorf("%s, repeated KeepHeld: got %v, want none", fault, err)
			}
			stored(t, s, rec)
		}
	}
}

func putRefund(t *testing.T, s Driver) {
	ctx, rec := t.Context(), Held()
	r := dueOf(rec)
	noRefund(t, s, r)
	odd := r
	odd.DecidedAt = odd.DecidedAt.In(time.FixedZone("far", 6*3600))
	got, put, err := s.PutRefund(ctx, odd)
	checkRefund(t, "first PutRefund", got, err, r)
	if !put {
		t.Error("first PutRefund: got put=false, want true")
	}
	other := r
	other.Amount, other.Kind, other.DecidedAt = 1, booking.MoneySecond, start
	for name, move := range map[string]func(r booking.Refund) booking.Refund{
		"due":     func(r booking.Refund) booking.Refund { return r },
		"claimed": func(r booking.Refund) booking.Refund { mustClaimRefund(t, s, r); return refundClaimed(r) },
		"sent":    func(r booking.Refund) booking.Refund { mustSend(t, s, r); return refundSent(r) },
		"done":    func(r booking.Refund) booking.Refund { mustEnd(t, s, r); return refundEnded(r) },
	} {
		r := Due()
		mustPutRefund(t, s, r)
		want := move(r)
		other := other
		other.Transaction = r.Transaction
		got, put, err := s.PutRefund(ctx, other)
		checkRefund(t, "PutRefund over one that is "+name, got, err, want)
		if put {
			t.Errorf("PutRefund over one that is %s: got put=true, want false", name)
		}
		refundStored(t, s, want)
	}

	second, stranger := dueOf(rec), dueOf(again(rec))
	mustPutRefund(t, s, second)
	mustPutRefund(t, s, stranger)
	mustEnd(t, s, second)
	refundsOf(t, s, rec, r, refundEnded(second))
	refundsOf(t, s, Held())

	for name, spoil := range map[string]func(*booking.Refund){
		"is done":             func(r *booking.Refund) { r.State = booking.RefundDone },
		"is sent":             func(r *booking.Refund) { r.State = booking.RefundSent },
		"is claimed":          func(r *booking.Refund) { r.Claim = "a" },
		"is of a new version": func(r *booking.Refund) { r.Version++ },
		"has no payment":      func(r *booking.Refund) { r.PaymentID = "" },
		"gives nothing":       func(r *booking.Refund) { r.Amount = 0 },
		"has no transaction":  func(r *booking.Refund) { r.Transaction = "" },
	} {
		r := Due()
		spoil(&r)
		if _, _, err := s.PutRefund(ctx, r); err == nil {
			t.Errorf("PutRefund of one that %s: got no error, want one", name)
		}
		noRefund(t, s, r)
	}
}

func refundGoesItsWay(t *testing.T, s Driver) {
	ctx, r := t.Context(), Due()
	claim := func(claim string, now, until time.Time, want bool, is booking.Refund) {
		t.Helper()
		got, ok, err := s.ClaimRefund(ctx, r.Transaction, claim, now, until)
		checkRefund(t, fmt.Sprintf("ClaimRefund by %q at %s", claim, now.Format(time.TimeOnly)), got, err, is)
		if ok != want {
			t.Errorf("ClaimRefund by %q at %s: got %t, want %t", claim, now.Format(time.TimeOnly), ok, want)
		}
		refundStored(t, s, is)
	}
	send := func(claim string, at time.Time, want error, is booking.Refund) {
		t.Helper()
		if err := s.RefundSent(ctx, r.Transaction, claim, at); !errors.Is(err, want) {
			t.Errorf("RefundSent by %q at %s: got %v, want %v", claim, at.Format(time.TimeOnly), err, want)
		}
		refundStored(t, s, is)
	}
	if _, ok, err := s.ClaimRefund(ctx, r.Transaction, "a", claimedAt, leaseEnds); ok || !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("ClaimRefund without a refund: got %t, %v, want ErrNotFound", ok, err)
	}
	if err := s.RefundSent(ctx, r.Transaction, "a", sentAt); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("RefundSent without a refund: got %v, want ErrNotFound", err)
	}
	noRefund(t, s, r)
	mustPutRefund(t, s, r)
	if _, _, err := s.ClaimRefund(ctx, r.Transaction, "", claimedAt, leaseEnds); err == nil {
		t.Error("ClaimRefund by an empty claim: got no error, want one")
	}
	if err := s.RefundSent(ctx, r.Transaction, "a", time.Time{}); err == nil {
		t.Error("RefundSent at no time: got no error, want one")
	}
	send("", sentAt, booking.ErrNotOwner, r)
	send("a", sentAt, booking.ErrNotOwner, r)

	claim("a", claimedAt, leaseEnds.Add(-time.Second), true, with(refundClaimed(r), func(r *booking.Refund) { r.ClaimUntil = leaseEnds.Add(-time.Second) }))
	claim("a", claimedAt, leaseEnds, true, refundClaimed(r)) // renewed
	claim("b", leaseEnds.Add(-time.Millisecond), leaseEnds.Add(time.Minute), false, refundClaimed(r))
	send("b", sentAt, booking.ErrNotOwner, refundClaimed(r))
	send("a", leaseEnds, booking.ErrNotOwner, refundClaimed(r)) // its time is over
	send("a", sentAt, nil, refundSent(r))
	send("a", sentAt, nil, refundSent(r))
	send("a", sentAt.Add(-time.Second), nil, refundSent(r)) // by a clock that is behind
	again := with(refundSent(r), func(r *booking.Refund) { r.SentAt = sentAt.Add(time.Second) })
	send("a", sentAt.Add(time.Second), nil, again)
	send("", sentAt, booking.ErrNotOwner, again)

	mustEnd(t, s, r)
	ended := refundEnded(again)
	refundStored(t, s, ended)
	claim("a", claimedAt, leaseEnds, false, ended)
	claim("b", leaseEnds.Add(time.Hour), leaseEnds.Add(2*time.Hour), false, ended)
	send("a", sentAt, booking.ErrNotOwner, ended)
	send("", sentAt, booking.ErrNotOwner, ended)
}

// A worker stops between "sent" and the gateway's answer; the next one finds that
// it may have been sent, and the first one, waking up, may send nothing.
func refundAfterACrash(t *testing.T, s Driver) {
	ctx, r := t.Context(), Due()
	mustPutRefund(t, s, r)
	mustSend(t, s, r)
	next := leaseEnds.Add(time.Minute)
	got, ok, err := s.ClaimRefund(ctx, r.Transaction, "b", leaseEnds, next)
	want := with(refundSent(r), func(r *booking.Refund) { r.Claim, r.ClaimUntil = "b", next })
	checkRefund(t, "ClaimRefund when the first one's time is over", got, err, want)
	if !ok {
		t.Error("ClaimRefund when the first one's time is over: got false, want true")
	}
	if err := s.RefundSent(ctx, r.Transaction, "a", leaseEnds.Add(-time.Second)); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("RefundSent by a claim that was taken over: got %v, want ErrNotOwner", err)
	}
	if err := s.RefundTrouble(ctx, r.Transaction, "a", "2073 late"); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("RefundTrouble by a claim that was taken over: got %v, want ErrNotOwner", err)
	}
	refundStored(t, s, want)
	mustEnd(t, s, r) // the gateway's word counts, whoever brings it
	refundStored(t, s, refundEnded(refundSent(r)))
}

func refundDone(t *testing.T, s Driver) {
	ctx := t.Context()
	missing := Due()
	if err := s.RefundDone(ctx, missing.Transaction, gatewayName, "RF1", "", doneAt); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("RefundDone without a refund: got %v, want ErrNotFound", err)
	}
	noRefund(t, s, missing)

	r := Due()
	mustPutRefund(t, s, r)
	for name, call := range map[string]func() error{
		"by nobody":                     func() error { return s.RefundDone(ctx, r.Transaction, "", "RF1", "", doneAt) },
		"at no time":                    func() error { return s.RefundDone(ctx, r.Transaction, gatewayName, "RF1", "", time.Time{}) },
		"without a transaction or note": func() error { return s.RefundDone(ctx, r.Transaction, gatewayName, "", "", doneAt) },
	} {
		if err := call(); err == nil {
			t.Errorf("RefundDone %s: got no error, want one", name)
		}
	}
	refundStored(t, s, r)

	// Straight from due: a person has settled it by hand.
	byHand := with(r, func(r *booking.Refund) {
		r.State, r.DoneAt, r.DoneBy, r.Note = booking.RefundDone, doneAt, "operator", "bank transfer"
	})
	if err := s.RefundDone(ctx, r.Transaction, "operator", "", "bank transfer", doneAt); err != nil {
		t.Errorf("RefundDone of a due refund: got %v, want none", err)
	}
	refundStored(t, s, byHand)
	if err := s.RefundDone(ctx, r.Transaction, "operator", "", "another note", doneAt.Add(time.Hour)); err != nil {
		t.Errorf("repeated RefundDone: got %v, want none", err)
	}
	refundStored(t, s, byHand)
	for name, call := range map[string]func() error{
		"another hand":        func() error { return s.RefundDone(ctx, r.Transaction, gatewayName, "", "note", doneAt) },
		"another transaction": func() error { return s.RefundDone(ctx, r.Transaction, "operator", "RF1", "", doneAt) },
		"both":                func() error { return s.RefundDone(ctx, r.Transaction, gatewayName, "RF1", "", doneAt) },
	} {
		if err := call(); !errors.Is(err, booking.ErrRefundedOtherwise) {
			t.Errorf("RefundDone by %s of one that is done: got %v, want ErrRefundedOtherwise", name, err)
		}
		refundStored(t, s, byHand)
	}
}

func refundTrouble(t *testing.T, s Driver) {
	ctx, r := t.Context(), Due()
	trouble := func(claim, text string, want error, is booking.Refund) {
		t.Helper()
		if err := s.RefundTrouble(ctx, r.Transaction, claim, text); !errors.Is(err, want) {
			t.Errorf("RefundTrouble %q by %q: got %v, want %v", text, claim, err, want)
		}
		refundStored(t, s, is)
	}
	if err := s.RefundTrouble(ctx, r.Transaction, "a", "2073 late"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("RefundTrouble without a refund: got %v, want ErrNotFound", err)
	}
	noRefund(t, s, r)
	mustPutRefund(t, s, r)
	if err := s.RefundTrouble(ctx, r.Transaction, "a", ""); err == nil {
		t.Error("RefundTrouble without any: got no error, want one")
	}
	trouble("", "2073 late", booking.ErrNotOwner, r)
	trouble("a", "2073 late", booking.ErrNotOwner, r)
	mustSend(t, s, r)
	trouble("b", "2073 late", booking.ErrNotOwner, refundSent(r))
	troubled := with(refundSent(r), func(r *booking.Refund) { r.Trouble, r.Claim, r.ClaimUntil = "2073 late", "", time.Time{} })
	trouble("a", "2073 late", nil, troubled)
	trouble("a", "2073 late", nil, troubled)
	trouble("a", "2074 other", booking.ErrNotOwner, troubled) // it holds nothing any more
	got, ok, err := s.ClaimRefund(ctx, r.Transaction, "b", claimedAt, leaseEnds)
	claimed := with(troubled, func(r *booking.Refund) { r.Claim, r.ClaimUntil = "b", leaseEnds })
	checkRefund(t, "ClaimRefund after trouble", got, err, claimed)
	if !ok {
		t.Error("ClaimRefund after trouble: got false, want true: its lease has ended")
	}
	trouble("a", "2073 late", booking.ErrNotOwner, claimed)
	mustEnd(t, s, r)
	trouble("b", "2073 late", booking.ErrNotOwner, refundEnded(troubled))
}

func refundScan(t *testing.T, s Driver) {
	ctx := t.Context()
	for _, err := range s.Refunds(ctx) {
		t.Errorf("scan of an empty store: got a refund or error %v, want none", err)
	}
	const n, workers = 1100, 20 // more than two pages
	all := make([]booking.Refund, n)
	for i := range all {
		all[i] = Due()
		// Several are decided in one millisecond; the oldest has the last transaction
		// and is put last.
		all[i].DecidedAt = start.Add(time.Duration((n-i)/3) * time.Millisecond)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				if _, _, err := s.PutRefund(ctx, all[i]); err != nil {
					t.Errorf("PutRefund: %v", err)
					return
				}
				if i%50 != 0 {
					continue
				}
				if err := s.RefundDone(ctx, all[i].Transaction, gatewayName, "RF"+all[i].Transaction, "", doneAt); err != nil {
					t.Errorf("RefundDone: %v", err)
					return
				}
				all[i] = refundEnded(all[i])
			}
		})
	}
	wg.Wait()
	open := slices.DeleteFunc(slices.Clone(all), func(r booking.Refund) bool { return r.State == booking.RefundDone })
	for name, c := range map[string]struct {
		scan iter.Seq2[booking.Refund, error]
		want []booking.Refund
	}{
		"Refunds": {s.Refunds(ctx), all}, "OpenRefunds": {s.OpenRefunds(ctx), open},
	} {
		var got []booking.Refund
		for r, err := range c.scan {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(got) > 0 && r.DecidedAt.Before(got[len(got)-1].DecidedAt) {
				t.Errorf("%s: got one decided at %s after %s, want the oldest decision first", name, r.DecidedAt, got[len(got)-1].DecidedAt)
			}
			got = append(got, r)
		}
		// Among the decisions of one millisecond no order is promised.
		slices.SortFunc(got, func(a, b booking.Refund) int { return strings.Compare(a.Transaction, b.Transaction) })
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s, %d of them (-want +got):\n%s", name, len(c.want), diff)
		}
		seen := 0
		for _, err := range c.scan {
			if err != nil {
				t.Errorf("%s that is left: %v", name, err)
			}
			if seen++; seen == 3 {
				break
			}
		}
		if seen != 3 {
			t.Errorf("%s that was left: got %d refunds, want 3", name, seen)
		}
	}
}

func refundsAreNoRecords(t *testing.T, s Driver) {
	ctx, rec := t.Context(), Held()
	mustPutNotification(t, s, notice())
	if got, err := s.Empty(ctx); err != nil || !got {
		t.Errorf("Empty with a notification alone: got %t, %v, want true: it may be of money that is not ours", got, err)
	}
	mustPutRefund(t, s, dueOf(rec))
	if got, err := s.Empty(ctx); err != nil || got {
		t.Errorf("Empty with a refund: got %t, %v, want false", got, err)
	}
	for got, err := range s.Records(ctx) {
		t.Errorf("scan of records beside a refund and a notification: got %+v, %v, want nothing", got, err)
	}
	absent(t, s, rec)
	recordsOf(t, s, rec.CandidateHash)
	mustPut(t, s, rec)
	recordsOf(t, s, rec.CandidateHash, rec)
	if _, err := s.RecordByPayment(ctx, dueOf(Held()).PaymentID); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("RecordByPayment of a payment without a record: got %v, want ErrNotFound", err)
	}
}

func refundUnreadable(t *testing.T, s Driver) {
	c, ok := s.(MoneyCorrupter)
	if !ok {
		t.Skip("this driver's test cannot make a refund unreadable")
	}
	ctx, rec := t.Context(), Held()
	all := []booking.Refund{dueOf(rec), dueOf(rec), dueOf(rec)}
	for _, r := range all {
		mustPutRefund(t, s, r)
	}
	bad := all[1]
	c.CorruptRefund(t, bad.Transaction)
	good := []booking.Refund{all[0], all[2]}
	for name, scan := range map[string]iter.Seq2[booking.Refund, error]{"Refunds": s.Refunds(ctx), "OpenRefunds": s.OpenRefunds(ctx)} {
		var got []booking.Refund
		complaints := 0
		for r, err := range scan {
			if err == nil {
				got = append(got, r)
				continue
			}
			complaints++
			if !errors.Is(err, booking.ErrUnreadable) || !strings.Contains(err.Error(), bad.Transaction) {
				t.Errorf("%s: got %v, want ErrUnreadable that names the transaction", name, err)
			}
			if want := (booking.Refund{Transaction: bad.Transaction}); r != want {
				t.Errorf("%s: refund beside the error: got %+v, want its transaction alone", name, r)
			}
		}
		if diff := cmp.Diff(good, got); diff != "" || complaints != 1 {
			t.Errorf("%s: got %d unreadable, want 1; the others (-want +got):\n%s", name, complaints, diff)
		}
	}
	got, err := s.RefundsOf(ctx, rec.CandidateHash, rec.Attempt)
	if diff := cmp.Diff(good, got); diff != "" || !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("RefundsOf beside an unreadable one: got error %v, want ErrUnreadable; the others (-want +got):\n%s", err, diff)
	}
	// No call may take it for absent, nor write over it.
	for range 2 {
		for name, call := range refundCalls(ctx, s, bad) {
			if err := call(); !errors.Is(err, booking.ErrUnreadable) {
				t.Errorf("%s of an unreadable refund: got %v, want ErrUnreadable", name, err)
			}
		}
	}
	if got, err := s.Empty(ctx); err != nil || got {
		t.Errorf("Empty: got %t, %v, want false", got, err)
	}
}

// refundCalls is every call about one refund.
func refundCalls(ctx context.Context, s Driver, r booking.Refund) map[string]func() error {
	return map[string]func() error{
		"Refund":    func() error { _, err := s.Refund(ctx, r.Transaction); return err },
		"PutRefund": func() error { _, _, err := s.PutRefund(ctx, r); return err },
		"ClaimRefund": func() error {
			_, _, err := s.ClaimRefund(ctx, r.Transaction, "a", claimedAt, leaseEnds)
			return err
		},
		"RefundSent": func() error { return s.RefundSent(ctx, r.Transaction, "a", sentAt) },
		"RefundDone": func() error {
			return s.RefundDone(ctx, r.Transaction, gatewayName, "RF"+r.Transaction, "", doneAt)
		},
		"RefundTrouble": func() error { return s.RefundTrouble(ctx, r.Transaction, "a", "2073 late") },
	}
}

const atOnce = 16

// firstOf runs the call atOnce times at the same time and wants one of them to
// be the first; the call tells whether it was.
func firstOf(t *testing.T, what string, call func(i int) (bool, error)) {
	t.Helper()
	var first atomic.Int32
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			if ok, err := call(i); err != nil {
				t.Errorf("%s: %v", what, err)
			} else if ok {
				first.Add(1)
			}
		})
	}
	wg.Wait()
	if first.Load() != 1 {
		t.Errorf("%s, %d at once: got %d that were the first, want 1", what, atOnce, first.Load())
	}
}

func refundsManyAtOnce(t *testing.T, s Driver) {
	raceForRefund(t, []Driver{s}, Due())
}

// RaceMoney lets two openings of one store race for the same refunds and
// notifications, as processes do.
func RaceMoney(t *testing.T, a, b Driver, rounds int) {
	for range rounds {
		raceForRefund(t, []Driver{a, b}, Due())
		raceForNotification(t, []Driver{a, b}, notice())
	}
}

// raceForRefund takes a refund all its way, with many at once at every step.
func raceForRefund(t *testing.T, openings []Driver, r booking.Refund) {
	ctx := t.Context()
	s := func(i int) Driver { return openings[i%len(openings)] }
	firstOf(t, "PutRefund", func(i int) (bool, error) {
		_, put, err := s(i).PutRefund(ctx, r)
		return put, err
	})
	claims := make([]bool, atOnce)
	firstOf(t, "ClaimRefund", func(i int) (bool, error) {
		got, claimed, err := s(i).ClaimRefund(ctx, r.Transaction, fmt.Sprint("claim-", i), claimedAt, leaseEnds)
		if mine := got.Claim == fmt.Sprint("claim-", i); err == nil && mine != claimed {
			t.Errorf("ClaimRefund: got %t beside a refund claimed by %s, want them to agree", claimed, got.Claim)
		}
		claims[i] = claimed
		return claimed, err
	})
	firstOf(t, "RefundSent", func(i int) (bool, error) {
		err := s(i).RefundSent(ctx, r.Transaction, fmt.Sprint("claim-", i), sentAt)
		if claims[i] != (err == nil) {
			t.Errorf("RefundSent: got %v, claimed %t, want only the claim's holder to send", err, claims[i])
		}
		return accepted(err, booking.ErrNotOwner)
	})
	firstOf(t, "RefundDone", func(i int) (bool, error) {
		return accepted(s(i).RefundDone(ctx, r.Transaction, gatewayName, fmt.Sprint("RF", i), "", doneAt), booking.ErrRefundedOtherwise)
	})
	want, err := s(0).Refund(ctx, r.Transaction)
	if err != nil || want.State != booking.RefundDone {
		t.Fatalf("refund at the end: got %q, %v, want done", want.State, err)
	}
	for i := range openings {
		refundStored(t, s(i), want)
	}
}

// accepted tells a call that went through from one that was refused as it should.
func accepted(err, refusal error) (bool, error) {
	if errors.Is(err, refusal) {
		return false, nil
	}
	return err == nil, err
}

func refundEndedContext(t *testing.T, s Driver) {
	r, unput := Due(), Due()
	mustPutRefund(t, s, r)
	mustClaimRefund(t, s, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := refundCalls(ctx, s, r)
	calls["PutRefund"] = func() error { _, _, err := s.PutRefund(ctx, unput); return err }
	calls["RefundsOf"] = func() error { _, err := s.RefundsOf(ctx, r.CandidateHash, r.Attempt); return err }
	calls["Extend"] = func() error { return s.Extend(ctx, r.CandidateHash, r.Attempt, leaseEnds) }
	for name, scan := range map[string]iter.Seq2[booking.Refund, error]{"Refunds": s.Refunds(ctx), "OpenRefunds": s.OpenRefunds(ctx)} {
		calls[name] = func() error { return onlyError(t, name, scan) }
	}
	for name, call := range calls {
		if err := call(); err == nil || errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("%s with an ended context: got %v, want an error that says nothing of the refund", name, err)
		}
	}
	refundStored(t, s, refundClaimed(r))
	noRefund(t, s, unput)
}

// onlyError runs a scan that can but end with an error.
func onlyError[T any](t *testing.T, name string, scan iter.Seq2[T, error]) error {
	t.Helper()
	var last error
	n := 0
	for _, err := range scan {
		last = err
		n++
	}
	if n != 1 {
		t.Errorf("%s with an ended context: got %d results, want the error alone", name, n)
	}
	return last
}

// brokenRefundWrites runs each write lost, kept but reported lost, and whole, as
// brokenWrites does.
func brokenRefundWrites(t *testing.T, s Driver) {
	due := func(t *testing.T, r booking.Refund) { mustPutRefund(t, s, r) }
	claimed := func(t *testing.T, r booking.Refund) {
		due(t, r)
		mustClaimRefund(t, s, r)
	}
	sent := func(t *testing.T, r booking.Refund) {
		due(t, r)
		mustSend(t, s, r)
	}
	writes := []struct {
		name, call string
		setup      func(t *testing.T, r booking.Refund)
		want       func(r booking.Refund) booking.Refund
	}{
		{"PutRefund", "PutRefund", func(*testing.T, booking.Refund) {}, func(r booking.Refund) booking.Refund { return r }},
		{"ClaimRefundThatIsDue", "ClaimRefund", due, refundClaimed},
		{"ClaimRefundThatIsSent", "ClaimRefund", sent, refundSent},
		{"RefundSent", "RefundSent", claimed, refundSent},
		{"RefundDoneFromDue", "RefundDone", due, refundEnded},
		{"RefundDoneFromSent", "RefundDone", sent, func(r booking.Refund) booking.Refund { return refundEnded(refundSent(r)) }},
		{"RefundTrouble", "RefundTrouble", sent, func(r booking.Refund) booking.Refund {
			return with(refundSent(r), func(r *booking.Refund) { r.Trouble, r.Claim, r.ClaimUntil = "2073 late", "", time.Time{} })
		}},
	}
	for _, w := range writes {
		for fault, through := range faults() {
			t.Run(w.name+"/"+fault, func(t *testing.T) {
				r := Due()
				w.setup(t, r)
				call := refundCalls(t.Context(), s, r)[w.call]
				if err := through(call); err != nil && !errors.Is(err, errLost) {
					t.Fatalf("first call: %v", err)
				}
				for _, which := range []string{"repeat", "repeat of the repeat"} {
					if err := call(); err != nil {
						t.Errorf("%s: got %v, want none", which, err)
					}
					refundStored(t, s, w.want(r))
				}
			})
		}
	}
}

// with is the refund with a change.
func with(r booking.Refund, change func(r *booking.Refund)) booking.Refund {
	change(&r)
	return r
}

func mustPutRefund(t *testing.T, s Driver, r booking.Refund) {
	t.Helper()
	if _, put, err := s.PutRefund(t.Context(), r); err != nil || !put {
		t.Fatalf("PutRefund: got %t, %v, want true", put, err)
	}
}

// mustClaimRefund claims the refund for "a".
func mustClaimRefund(t *testing.T, s Driver, r booking.Refund) {
	t.Helper()
	if _, ok, err := s.ClaimRefund(t.Context(), r.Transaction, "a", claimedAt, leaseEnds); err != nil || !ok {
		t.Fatalf("ClaimRefund: got %t, %v, want true", ok, err)
	}
}

// mustSend claims the refund for "a", which is about to send it.
func mustSend(t *testing.T, s Driver, r booking.Refund) {
	t.Helper()
	mustClaimRefund(t, s, r)
	if err := s.RefundSent(t.Context(), r.Transaction, "a", sentAt); err != nil {
		t.Fatalf("RefundSent: %v", err)
	}
}

func mustEnd(t *testing.T, s Driver, r booking.Refund) {
	t.Helper()
	if err := s.RefundDone(t.Context(), r.Transaction, gatewayName, "RF"+r.Transaction, "", doneAt); err != nil {
		t.Fatalf("RefundDone: %v", err)
	}
}

func checkRefund(t *testing.T, what string, got booking.Refund, err error, want booking.Refund) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func refundStored(t *testing.T, s Driver, want booking.Refund) {
	t.Helper()
	got, err := s.Refund(t.Context(), want.Transaction)
	checkRefund(t, "refund in the store", got, err, want)
}

func noRefund(t *testing.T, s Driver, r booking.Refund) {
	t.Helper()
	if got, err := s.Refund(t.Context(), r.Transaction); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("refund that was never put: got %+v, %v, want ErrNotFound", got, err)
	}
}

func refundsOf(t *testing.T, s Driver, rec booking.Record, want ...booking.Refund) {
	t.Helper()
	got, err := s.RefundsOf(t.Context(), rec.CandidateHash, rec.Attempt)
	if err != nil {
		t.Errorf("RefundsOf: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("RefundsOf (-want +got):\n%s", diff)
	}
}
