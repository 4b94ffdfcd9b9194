// Package storetest is the contract of a booking store: every driver runs it by
// RunDriver; Run is the part about records alone.
//
// It asks only what both a SQLite file and a DynamoDB table can promise: a
// look-up by payment may lag, a scan has no order, a TTL may be kept to the second,
// rounded up. Each write is also tried with
// the call lost and with the call kept but reported lost, and then repeated.
// Clock: the times in the calls; it waits only for the look-up by payment.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
)

// Store is what a driver promises of records, all of it safe for concurrent use
// and safe to repeat.
type Store interface {
	// PutHeld puts a HELD record if its attempt has none (created), else returns
	// the record that is there, untouched.
	PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error)
	// MarkPaid makes the record PAID from HELD or RELEASED, or puts it as PAID if
	// none exists: transaction, paid_at, no TTL, mail due unless sent, in one
	// write. A repeat returns the record as it is. ErrOtherThanOrdered when the
	// record carries another payment; ErrSecondPayment, beside the record, when
	// another transaction paid it.
	MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error)
	// Announce notes an execute call on the HELD record, put if there is none, and
	// returns the record. The time noted is at, or later than the one that was there;
	// at the time that is noted it changes nothing. ErrAlreadyPaid, ErrNotOwner
	// (RELEASED), ErrOtherThanOrdered.
	Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error)
	// Release moves HELD to RELEASED with reason and TTL, if payment and execute_at
	// are those of the record as it was seen; nil when it is RELEASED with this
	// payment already. ErrNotFound, ErrOtherThanOrdered, ErrAlreadyPaid; ErrAnnounced
	// for another execute_at.
	Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error
	// Record is a consistent read; ErrNotFound.
	Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error)
	// RecordByPayment may lag behind writes; ErrNotFound.
	RecordByPayment(ctx context.Context, paymentID string) (booking.Record, error)
	// RecordsOf is a consistent read of a candidate's records, oldest attempt
	// first. What cannot be read is left out and named by the error.
	RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error)
	// Records scans in pages. An unreadable record is an error that wraps
	// ErrUnreadable and names its key, beside a record with the key alone; the
	// scan goes on. Any other error ends it.
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
	// Empty tells whether there is no record at all.
	Empty(ctx context.Context) (bool, error)
	// Ping tells whether the store takes writes now.
	Ping(ctx context.Context) error
	// ClaimMail leases the mail of a PAID record that is due: when nobody holds
	// it, the holder's time is over at now, or the claim is the holder.
	ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error)
	// MailSent marks the mail as sent; nil when it is already. ErrNotOwner when
	// the claim is not the holder.
	MailSent(ctx context.Context, candidateHash, attempt, claim string) error
}

// Corrupter is implemented by a test's store that can make one of its records
// unreadable behind the driver's back, by a version of the future for example,
// which every condition of a write must notice. Without it those cases are
// skipped.
type Corrupter interface {
	Corrupt(t testing.TB, candidateHash, attempt string)
}

// start is when the records of the suite were admitted, epoch the sale's.
var (
	start = time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	epoch = booking.NewEpoch(start)
)

var serial atomic.Int64

// Held makes a valid HELD record of a candidate and a payment of its own.
func Held() booking.Record {
	n := serial.Add(1)
	return again(booking.Record{Code: fmt.Sprintf("T-%06d", n)})
}

// again makes a further attempt of the record's candidate.
func again(rec booking.Record) booking.Record {
	n := serial.Add(1)
	at := start.Add(time.Duration(n) * time.Millisecond)
	row := booking.Row{
		Attempt: booking.AttemptID(epoch, booking.NewAttemptSuffix(at)), Level: "N1", Amount: 150000, Currency: "BDT",
		AdmittedAt: at.UnixMilli(), Deadline: at.Add(booking.DefaultHold).UnixMilli(),
	}
	row.Payment = "TR" + row.Attempt
	return row.HeldRecord(rec.Code, "https://gateway.example/pay/"+row.Payment, "k3YOrG8qy6")
}

func paid(rec booking.Record) booking.Paid {
	return booking.Paid{Record: rec, Transaction: "TX" + rec.Attempt, PaidAt: rec.AdmittedAt.Add(3 * time.Minute)}
}

// asPaid is what MarkPaid makes of the record.
func asPaid(rec booking.Record) booking.Record {
	p := paid(rec)
	rec.State, rec.Transaction, rec.PaidAt, rec.Mail, rec.TTL = booking.StatePaid, p.Transaction, p.PaidAt, booking.MailDue, time.Time{}
	return rec
}

func releasedAt(rec booking.Record) time.Time { return rec.Deadline.Add(20 * time.Second) }

// asReleased is what Release makes of the record.
func asReleased(rec booking.Record) booking.Record {
	rec.State, rec.Reason, rec.TTL = booking.StateReleased, "lapsed", booking.ReleasedTTL(releasedAt(rec))
	return rec
}

func asClaimed(rec booking.Record, claim string, until time.Time) booking.Record {
	rec.MailClaim, rec.MailClaimUntil = claim, until
	return rec
}

func asSent(rec booking.Record) booking.Record {
	rec.Mail, rec.MailClaim, rec.MailClaimUntil = booking.MailSent, "", time.Time{}
	return rec
}

// Run holds a store of records to the contract. open returns an empty store, closed by
// the test's cleanup.
func Run(t *testing.T, open func(t *testing.T) Store) {
	tests := []struct {
		name string
		run  func(t *testing.T, s Store)
	}{
		{"PutHeld", putHeld},
		{"MarkPaid", markPaid},
		{"Announce", announce},
		{"Release", release},
		{"Mail", mail},
		{"Reads", reads},
		{"Scan", scan},
		{"Unreadable", unreadable},
		{"UnreadablePaid", unreadablePaid},
		{"ManyAtOnce", manyAtOnce},
		{"EndedContext", endedContext},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
	}
	t.Run("BrokenWrites", func(t *testing.T) { brokenWrites(t, open) })
}

func putHeld(t *testing.T, s Store) {
	ctx, rec := t.Context(), Held()
	got, created, err := s.PutHeld(ctx, rec)
	check(t, "first PutHeld", got, err, rec)
	if !created {
		t.Error("first PutHeld: got created=false, want true")
	}
	other := rec
	other.PaymentID = "TRother"
	got, created, err = s.PutHeld(ctx, other)
	check(t, "PutHeld of an attempt that has a record", got, err, rec)
	if created {
		t.Error("second PutHeld: got created=true, want false")
	}

	for name, move := range map[string]func(booking.Record) booking.Record{
		"PAID":     func(r booking.Record) booking.Record { mustPay(t, s, r); return asPaid(r) },
		"RELEASED": func(r booking.Record) booking.Record { mustRelease(t, s, r); return asReleased(r) },
	} {
		rec := Held()
		mustPut(t, s, rec)
		want := move(rec)
		got, created, err := s.PutHeld(ctx, rec)
		check(t, "PutHeld over "+name, got, err, want)
		if created {
			t.Errorf("PutHeld over %s: got created=true, want false", name)
		}
		stored(t, s, want)
	}

	for name, spoil := range map[string]func(*booking.Record){
		"is PAID":             func(r *booking.Record) { r.State = booking.StatePaid },
		"is of a new version": func(r *booking.Record) { r.Version++ },
		"has no payment":      func(r *booking.Record) { r.PaymentID = "" },
	} {
		rec := Held()
		spoil(&rec)
		if _, _, err := s.PutHeld(ctx, rec); err == nil {
			t.Errorf("PutHeld of a record that %s: got no error, want one", name)
		}
		absent(t, s, rec)
	}
}

func markPaid(t *testing.T, s Store) {
	ctx := t.Context()

	t.Run("FromHeld", func(t *testing.T) {
		rec := Held()
		mustPut(t, s, rec)
		got, err := s.MarkPaid(ctx, paid(rec))
		check(t, "MarkPaid", got, err, asPaid(rec))
		stored(t, s, asPaid(rec))
	})
	t.Run("BeforeTheWorker", func(t *testing.T) {
		rec := Held()
		got, err := s.MarkPaid(ctx, paid(rec))
		check(t, "MarkPaid without a record", got, err, asPaid(rec))
		stored(t, s, asPaid(rec))
	})
	t.Run("FromReleased", func(t *testing.T) {
		rec := Held()
		mustPut(t, s, rec)
		mustRelease(t, s, rec)
		want := asPaid(rec)
		want.Reason = "lapsed"
		got, err := s.MarkPaid(ctx, paid(rec))
		check(t, "MarkPaid of a released record", got, err, want)
		stored(t, s, want)
	})
	t.Run("RepeatKeepsTheFirst", func(t *testing.T) {
		rec := Held()
		mustPay(t, s, rec)
		mustClaim(t, s, rec, "claim-1")
		if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "claim-1"); err != nil {
			t.Fatalf("MailSent: %v", err)
		}
		later := paid(rec)
		later.PaidAt = later.PaidAt.Add(time.Hour)
		got, err := s.MarkPaid(ctx, later)
		check(t, "repeated MarkPaid", got, err, asSent(asPaid(rec)))
		stored(t, s, asSent(asPaid(rec)))
	})
	t.Run("SecondTransaction", func(t *testing.T) {
		rec := Held()
		mustPay(t, s, rec)
		second := paid(rec)
		second.Transaction = "TXsecond"
		got, err := s.MarkPaid(ctx, second)
		if !errors.Is(err, booking.ErrSecondPayment) {
			t.Errorf("MarkPaid by a second transaction: got %v, want ErrSecondPayment", err)
		}
		if diff := cmp.Diff(asPaid(rec), got, toTheSecond()); diff != "" {
			t.Errorf("record beside ErrSecondPayment (-want +got):\n%s", diff)
		}
		stored(t, s, asPaid(rec))
	})
	t.Run("OtherPayment", func(t *testing.T) {
		held, gone, done := Held(), Held(), Held()
		mustPut(t, s, held)
		mustPut(t, s, gone)
		mustRelease(t, s, gone)
		mustPay(t, s, done)
		for _, want := range []booking.Record{held, asReleased(gone), asPaid(done)} {
			p := paid(want)
			p.Record.PaymentID = "TRother"
			if _, err := s.MarkPaid(ctx, p); !errors.Is(err, booking.ErrOtherThanOrdered) {
				t.Errorf("MarkPaid of a %s record by another payment: got %v, want ErrOtherThanOrdered", want.State, err)
			}
			stored(t, s, want)
		}
	})
	t.Run("Incomplete", func(t *testing.T) {
		for name, spoil := range map[string]func(*booking.Paid){
			"no transaction": func(p *booking.Paid) { p.Transaction = "" },
			"no time":        func(p *booking.Paid) { p.PaidAt = time.Time{} },
			"no record":      func(p *booking.Paid) { p.Record = booking.Record{} },
		} {
			p := paid(Held())
			rec := p.Record
			spoil(&p)
			if _, err := s.MarkPaid(ctx, p); err == nil {
				t.Errorf("MarkPaid with %s: got no error, want one", name)
			}
			absent(t, s, rec)
		}
	})
}

func announce(t *testing.T, s Store) {
	ctx := t.Context()
	announced := func(rec booking.Record, at time.Time) booking.Record { rec.ExecuteAt = at; return rec }
	at := start.Add(time.Minute)

	rec := Held()
	noted, err := s.Announce(ctx, rec, at)
	check(t, "Announce before the worker", noted, err, announced(rec, at))
	stored(t, s, announced(rec, at))
	if there, created, err := s.PutHeld(ctx, rec); err != nil || created || !there.ExecuteAt.Equal(at) {
		t.Errorf("the worker's late PutHeld: %+v, %v, %v, want the record untouched", there, created, err)
	}
	later := at.Add(time.Second)
	for range 2 { // the repeat is the same announcement
		noted, err = s.Announce(ctx, rec, later)
		check(t, "Announce again", noted, err, announced(rec, later))
		stored(t, s, announced(rec, later))
	}
	// By a clock that is behind it is another announcement all the same.
	noted, err = s.Announce(ctx, rec, at)
	if err != nil || !noted.ExecuteAt.After(later) {
		t.Errorf("Announce at an earlier time: got %s, %v, want later than %s", noted.ExecuteAt, err, later)
	}
	stored(t, s, announced(rec, noted.ExecuteAt))
	other := rec
	other.PaymentID = "TRother"
	if _, err := s.Announce(ctx, other, at); !errors.Is(err, booking.ErrOtherThanOrdered) {
		t.Errorf("Announce of another payment: got %v, want ErrOtherThanOrdered", err)
	}
	mustRelease(t, s, noted)
	want := asReleased(noted)
	if _, err := s.Announce(ctx, rec, at.Add(time.Hour)); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("Announce of a released record: got %v, want ErrNotOwner", err)
	}
	stored(t, s, want)

	rec = Held()
	mustPay(t, s, rec)
	if _, err := s.Announce(ctx, rec, at); !errors.Is(err, booking.ErrAlreadyPaid) {
		t.Errorf("Announce of a paid record: got %v, want ErrAlreadyPaid", err)
	}
	stored(t, s, asPaid(rec))
}

func release(t *testing.T, s Store) {
	ctx := t.Context()
	free := func(rec booking.Record, payment, reason string, at time.Time) error {
		rec.PaymentID = payment
		return s.Release(ctx, rec, reason, at)
	}

	rec := Held()
	if err := free(rec, rec.PaymentID, "lapsed", releasedAt(rec)); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("Release without a record: got %v, want ErrNotFound", err)
	}
	absent(t, s, rec)
	mustPut(t, s, rec)
	if err := free(rec, "TRother", "lapsed", releasedAt(rec)); !errors.Is(err, booking.ErrOtherThanOrdered) {
		t.Errorf("Release by another payment: got %v, want ErrOtherThanOrdered", err)
	}
	stored(t, s, rec)
	mustRelease(t, s, rec)
	stored(t, s, asReleased(rec))
	if err := free(rec, rec.PaymentID, "again", releasedAt(rec).Add(time.Hour)); err != nil {
		t.Errorf("repeated Release: got %v, want none", err)
	}
	if err := free(rec, "TRother", "again", releasedAt(rec)); !errors.Is(err, booking.ErrOtherThanOrdered) {
		t.Errorf("Release of a released record by another payment: got %v, want ErrOtherThanOrdered", err)
	}
	stored(t, s, asReleased(rec))

	rec = Held()
	mustPut(t, s, rec)
	first := mustAnnounce(t, s, rec, start.Add(time.Minute))
	if err := free(rec, rec.PaymentID, "lapsed", releasedAt(rec)); !errors.Is(err, booking.ErrAnnounced) {
		t.Errorf("Release of a record seen before its announcement: got %v, want ErrAnnounced", err)
	}
	stored(t, s, first)
	second := mustAnnounce(t, s, rec, start.Add(2*time.Minute))
	if err := free(first, rec.PaymentID, "lapsed", releasedAt(rec)); !errors.Is(err, booking.ErrAnnounced) {
		t.Errorf("Release of a record seen between two announcements: got %v, want ErrAnnounced", err)
	}
	stored(t, s, second)
	mustRelease(t, s, second)
	stored(t, s, asReleased(second))
	if err := free(rec, rec.PaymentID, "again", releasedAt(rec)); err != nil {
		t.Errorf("Release of a released record seen before its announcement: got %v, want none: it is over", err)
	}

	rec = Held()
	mustPay(t, s, rec)
	if err := free(rec, rec.PaymentID, "lapsed", releasedAt(rec)); !errors.Is(err, booking.ErrAlreadyPaid) {
		t.Errorf("Release of a paid record: got %v, want ErrAlreadyPaid", err)
	}
	stored(t, s, asPaid(rec))
}

func mail(t *testing.T, s Store) {
	ctx := t.Context()
	rec := Held()
	now := releasedAt(rec)
	until := now.Add(time.Minute)
	claim := func(claim string, now, until time.Time, want bool) {
		t.Helper()
		got, err := s.ClaimMail(ctx, rec.CandidateHash, rec.Attempt, claim, now, until)
		if err != nil || got != want {
			t.Errorf("ClaimMail by %q at %s: got %t, %v, want %t", claim, now.Format(time.TimeOnly), got, err, want)
		}
	}
	claim("a", now, until, false) // no record
	absent(t, s, rec)
	mustPut(t, s, rec)
	claim("a", now, until, false) // not paid
	if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "a"); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("MailSent of a held record: got %v, want ErrNotOwner", err)
	}
	stored(t, s, rec)
	mustPay(t, s, rec)
	if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "a"); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("MailSent without a claim: got %v, want ErrNotOwner", err)
	}
	if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, ""); err == nil {
		t.Error("MailSent by an empty claim: got no error, want one")
	}

	claim("a", now, until, true)
	stored(t, s, asClaimed(asPaid(rec), "a", until))
	claim("b", until.Add(-time.Millisecond), until.Add(time.Minute), false) // a's
	claim("a", now, until.Add(time.Second), true)                           // renewed
	stored(t, s, asClaimed(asPaid(rec), "a", until.Add(time.Second)))
	claim("b", until.Add(time.Second), until.Add(time.Minute), true) // a's time is over
	if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "a"); !errors.Is(err, booking.ErrNotOwner) {
		t.Errorf("MailSent by a claim that was taken over: got %v, want ErrNotOwner", err)
	}
	stored(t, s, asClaimed(asPaid(rec), "b", until.Add(time.Minute)))
	for range 2 {
		if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "b"); err != nil {
			t.Errorf("MailSent by the holder: got %v, want none", err)
		}
		stored(t, s, asSent(asPaid(rec)))
	}
	if err := s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "a"); err != nil {
		t.Errorf("MailSent of a mail that was sent: got %v, want none", err)
	}
	claim("c", until.Add(time.Hour), until.Add(2*time.Hour), false) // sent
	stored(t, s, asSent(asPaid(rec)))

	missing := Held()
	if err := s.MailSent(ctx, missing.CandidateHash, missing.Attempt, "a"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("MailSent without a record: got %v, want ErrNotFound", err)
	}
	absent(t, s, missing)
}

func reads(t *testing.T, s Store) {
	ctx := t.Context()
	empty := func(want bool) {
		t.Helper()
		if got, err := s.Empty(ctx); err != nil || got != want {
			t.Errorf("Empty: got %t, %v, want %t", got, err, want)
		}
	}
	empty(true)
	if err := s.Ping(ctx); err != nil {
		t.Errorf("Ping: %v", err)
	}
	empty(true)
	rec := Held()
	absent(t, s, rec)
	if _, err := s.RecordByPayment(ctx, rec.PaymentID); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("RecordByPayment without a record: got %v, want ErrNotFound", err)
	}
	recordsOf(t, s, rec.CandidateHash)

	// Times may come from any zone and clock; they are kept as instants.
	odd := rec
	odd.AdmittedAt = odd.AdmittedAt.In(time.FixedZone("far", 6*3600))
	mustPut(t, s, odd)
	empty(false)
	stored(t, s, rec)
	second, stranger := again(rec), Held()
	mustPay(t, s, second)
	mustPut(t, s, stranger)
	recordsOf(t, s, rec.CandidateHash, rec, asPaid(second))

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, want := range []booking.Record{rec, asPaid(second)} {
		got, err := s.RecordByPayment(ctx, want.PaymentID)
		for errors.Is(err, booking.ErrNotFound) && pause(ctx) {
			got, err = s.RecordByPayment(ctx, want.PaymentID)
		}
		check(t, "RecordByPayment", got, err, want)
	}
}

func scan(t *testing.T, s Store) {
	ctx := t.Context()
	for _, err := range s.Records(ctx) {
		t.Errorf("scan of an empty store: got a record or error %v, want none", err)
	}
	const n, workers = 1100, 20 // more than two pages
	want := map[string]booking.Record{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range n / workers {
				rec := Held()
				if _, _, err := s.PutHeld(ctx, rec); err != nil {
					t.Errorf("PutHeld: %v", err)
					return
				}
				mu.Lock()
				want[rec.Attempt] = rec
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	got := map[string]booking.Record{}
	for rec, err := range s.Records(ctx) {
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		if _, twice := got[rec.Attempt]; twice {
			t.Errorf("scan: attempt %s came twice", rec.Attempt)
		}
		got[rec.Attempt] = rec
	}
	if diff := cmp.Diff(want, got, toTheSecond()); diff != "" {
		t.Errorf("scan of %d records (-want +got):\n%s", n, diff)
	}
	seen := 0
	for _, err := range s.Records(ctx) {
		if err != nil {
			t.Errorf("scan that is left: %v", err)
		}
		if seen++; seen == 3 {
			break
		}
	}
	if seen != 3 {
		t.Errorf("scan that was left: got %d records, want 3", seen)
	}
}

func unreadable(t *testing.T, s Store) {
	c, ok := s.(Corrupter)
	if !ok {
		t.Skip("this driver's test cannot make a record unreadable")
	}
	ctx := t.Context()
	var recs []booking.Record
	for range 5 {
		recs = append(recs, Held())
	}
	recs = append(recs, again(recs[2]))
	for _, rec := range recs {
		mustPut(t, s, rec)
	}
	bad := recs[2]
	c.Corrupt(t, bad.CandidateHash, bad.Attempt)

	good, complaints := 0, 0
	for rec, err := range s.Records(ctx) {
		switch {
		case err == nil:
			good++
		case !errors.Is(err, booking.ErrUnreadable):
			t.Errorf("scan: got %v, want ErrUnreadable", err)
		default:
			complaints++
			if text := err.Error(); !strings.Contains(text, bad.CandidateHash[:8]+"/"+bad.Attempt) || strings.Contains(text, bad.CandidateHash[:9]) {
				t.Errorf("scan: error %q, want the record named by the start of its hash and its attempt", text)
			}
			if want := (booking.Record{CandidateHash: bad.CandidateHash, Attempt: bad.Attempt}); !cmp.Equal(rec, want) {
				t.Errorf("scan: record beside the error: got %+v, want its key alone", rec)
			}
		}
	}
	if good != len(recs)-1 || complaints != 1 {
		t.Errorf("scan: got %d records and %d unreadable, want %d and 1", good, complaints, len(recs)-1)
	}

	got, err := s.RecordsOf(ctx, bad.CandidateHash)
	if !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("RecordsOf: got error %v, want ErrUnreadable", err)
	}
	if diff := cmp.Diff(recs[5:], got, toTheSecond()); diff != "" {
		t.Errorf("RecordsOf beside an unreadable one (-want +got):\n%s", diff)
	}
	for name, call := range map[string]func() error{
		"Record":   func() error { _, err := s.Record(ctx, bad.CandidateHash, bad.Attempt); return err },
		"PutHeld":  func() error { _, _, err := s.PutHeld(ctx, bad); return err },
		"MarkPaid": func() error { _, err := s.MarkPaid(ctx, paid(bad)); return err },
		"Announce": func() error { _, err := s.Announce(ctx, bad, start); return err },
		"Release": func() error {
			return s.Release(ctx, bad, "lapsed", releasedAt(bad))
		},
		"Record once more": func() error { _, err := s.Record(ctx, bad.CandidateHash, bad.Attempt); return err },
	} {
		if err := call(); !errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("%s of an unreadable record: got %v, want ErrUnreadable", name, err)
		}
	}
	if got, err := s.Empty(ctx); err != nil || got {
		t.Errorf("Empty: got %t, %v, want false", got, err)
	}
}

// Nor is a paid record that cannot be read taken for one whose mail is to be sent.
func unreadablePaid(t *testing.T, s Store) {
	c, ok := s.(Corrupter)
	if !ok {
		t.Skip("this driver's test cannot make a record unreadable")
	}
	ctx, bad := t.Context(), Held()
	mustPay(t, s, bad)
	mustClaim(t, s, bad, "claim-1")
	c.Corrupt(t, bad.CandidateHash, bad.Attempt)
	for range 2 {
		for name, call := range map[string]func() error{
			"MarkPaid": func() error { _, err := s.MarkPaid(ctx, paid(bad)); return err },
			"ClaimMail": func() error {
				_, err := s.ClaimMail(ctx, bad.CandidateHash, bad.Attempt, "claim-1", start, start.Add(time.Hour))
				return err
			},
			"MailSent": func() error { return s.MailSent(ctx, bad.CandidateHash, bad.Attempt, "claim-1") },
			"Record":   func() error { _, err := s.Record(ctx, bad.CandidateHash, bad.Attempt); return err },
		} {
			if err := call(); !errors.Is(err, booking.ErrUnreadable) {
				t.Errorf("%s of an unreadable paid record: got %v, want ErrUnreadable", name, err)
			}
		}
	}
}

func manyAtOnce(t *testing.T, s Store) {
	ctx := t.Context()
	const n = 20
	rec := Held()

	var created, claims, wins atomic.Int32
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if _, ok, err := s.PutHeld(ctx, rec); err != nil {
				t.Errorf("PutHeld: %v", err)
			} else if ok {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	if created.Load() != 1 {
		t.Errorf("PutHeld, %d at once: got created %d times, want 1", n, created.Load())
	}

	for i := range n {
		wg.Go(func() {
			p := paid(rec)
			p.Transaction, p.PaidAt = fmt.Sprint("TX", i), p.PaidAt.Add(time.Duration(i)*time.Second)
			_, err := s.MarkPaid(ctx, p)
			switch {
			case err == nil:
				wins.Add(1)
			case !errors.Is(err, booking.ErrSecondPayment):
				t.Errorf("MarkPaid: got %v, want ErrSecondPayment", err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 {
		t.Errorf("MarkPaid by %d transactions at once: got %d first ones, want 1", n, wins.Load())
	}

	for i := range n {
		wg.Go(func() {
			ok, err := s.ClaimMail(ctx, rec.CandidateHash, rec.Attempt, fmt.Sprint("claim-", i), start, start.Add(time.Hour))
			if err != nil {
				t.Errorf("ClaimMail: %v", err)
			} else if ok {
				claims.Add(1)
			}
		})
	}
	wg.Wait()
	if claims.Load() != 1 {
		t.Errorf("ClaimMail, %d at once: got %d holders, want 1", n, claims.Load())
	}
}

func endedContext(t *testing.T, s Store) {
	rec, unpaid := Held(), Held()
	mustPut(t, s, rec)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"PutHeld":  func() error { _, _, err := s.PutHeld(ctx, unpaid); return err },
		"MarkPaid": func() error { _, err := s.MarkPaid(ctx, paid(rec)); return err },
		"Release": func() error {
			return s.Release(ctx, rec, "lapsed", releasedAt(rec))
		},
		"Record": func() error { _, err := s.Record(ctx, rec.CandidateHash, rec.Attempt); return err },
		"Empty":  func() error { _, err := s.Empty(ctx); return err },
		"Ping":   func() error { return s.Ping(ctx) },
		"Records": func() error {
			var last error
			n := 0
			for _, err := range s.Records(ctx) {
				last = err
				n++
			}
			if n > 1 {
				t.Errorf("scan with an ended context: got %d results, want the error alone", n)
			}
			return last
		},
	} {
		if err := call(); err == nil || errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrUnreadable) {
			t.Errorf("%s with an ended context: got %v, want an error that says nothing of the record", name, err)
		}
	}
	stored(t, s, rec)
	absent(t, s, unpaid)
}

// Race lets two openings of one store race for the same records, as processes
// do: the worker's put, the reconciler's release and the payer's money.
func Race(t *testing.T, a, b Store, rounds int) {
	ctx := t.Context()
	for range rounds {
		rec := Held()
		var wg sync.WaitGroup
		var put, pay, free error
		var created bool
		wg.Go(func() { _, created, put = a.PutHeld(ctx, rec) })
		wg.Go(func() { _, pay = b.MarkPaid(ctx, paid(rec)) })
		wg.Go(func() {
			free = a.Release(ctx, rec, "lapsed", releasedAt(rec))
		})
		wg.Wait()
		if put != nil || pay != nil {
			t.Fatalf("PutHeld: %v; MarkPaid: %v; want no errors", put, pay)
		}
		if free != nil && !errors.Is(free, booking.ErrNotFound) && !errors.Is(free, booking.ErrAlreadyPaid) {
			t.Fatalf("Release: got %v, want none, ErrNotFound or ErrAlreadyPaid", free)
		}
		want := asPaid(rec)
		if free == nil {
			if !created {
				t.Fatal("Release went through although the record was PAID from its first write")
			}
			want.Reason = "lapsed"
		}
		stored(t, a, want)
		stored(t, b, want)
	}
}

// errLost is what a broken store answers.
var errLost = errors.New("connection reset by peer")

// faults are the ways in which a call goes through to the store.
func faults() map[string]func(call func() error) error {
	return map[string]func(call func() error) error{
		"Lost": func(func() error) error { return errLost },
		"Kept": func(call func() error) error {
			if err := call(); err != nil {
				return err
			}
			return errLost
		},
		"Whole": func(call func() error) error { return call() },
	}
}

// brokenWrites runs each write lost, kept but reported lost, and whole, then
// repeats it, and repeats it once more: the end is the same.
func brokenWrites(t *testing.T, open func(t *testing.T) Store) {
	s := open(t)
	writes := []struct {
		name  string
		setup func(t *testing.T, rec booking.Record)
		call  func(ctx context.Context, rec booking.Record) error
		want  func(rec booking.Record) booking.Record
	}{
		{
			name:  "PutHeld",
			setup: func(*testing.T, booking.Record) {},
			call: func(ctx context.Context, rec booking.Record) error {
				_, _, err := s.PutHeld(ctx, rec)
				return err
			},
			want: func(rec booking.Record) booking.Record { return rec },
		},
		{
			name:  "MarkPaidOfHeld",
			setup: func(t *testing.T, rec booking.Record) { mustPut(t, s, rec) },
			call: func(ctx context.Context, rec booking.Record) error {
				_, err := s.MarkPaid(ctx, paid(rec))
				return err
			},
			want: asPaid,
		},
		{
			name:  "MarkPaidOfNone",
			setup: func(*testing.T, booking.Record) {},
			call: func(ctx context.Context, rec booking.Record) error {
				_, err := s.MarkPaid(ctx, paid(rec))
				return err
			},
			want: asPaid,
		},
		{
			name: "MarkPaidOfReleased",
			setup: func(t *testing.T, rec booking.Record) {
				mustPut(t, s, rec)
				mustRelease(t, s, rec)
			},
			call: func(ctx context.Context, rec booking.Record) error {
				_, err := s.MarkPaid(ctx, paid(rec))
				return err
			},
			want: func(rec booking.Record) booking.Record {
				rec = asPaid(rec)
				rec.Reason = "lapsed"
				return rec
			},
		},
		{
			name:  "Announce",
			setup: func(t *testing.T, rec booking.Record) { mustPut(t, s, rec) },
			call: func(ctx context.Context, rec booking.Record) error {
				_, err := s.Announce(ctx, rec, start)
				return err
			},
			want: func(rec booking.Record) booking.Record { rec.ExecuteAt = start; return rec },
		},
		{
			name:  "Release",
			setup: func(t *testing.T, rec booking.Record) { mustPut(t, s, rec) },
			call: func(ctx context.Context, rec booking.Record) error {
				return s.Release(ctx, rec, "lapsed", releasedAt(rec))
			},
			want: asReleased,
		},
		{
			name:  "ClaimMail",
			setup: func(t *testing.T, rec booking.Record) { mustPay(t, s, rec) },
			call: func(ctx context.Context, rec booking.Record) error {
				ok, err := s.ClaimMail(ctx, rec.CandidateHash, rec.Attempt, "claim-1", start, start.Add(time.Minute))
				if err == nil && !ok {
					err = errors.New("claim was refused")
				}
				return err
			},
			want: func(rec booking.Record) booking.Record {
				return asClaimed(asPaid(rec), "claim-1", start.Add(time.Minute))
			},
		},
		{
			name: "MailSent",
			setup: func(t *testing.T, rec booking.Record) {
				mustPay(t, s, rec)
				mustClaim(t, s, rec, "claim-1")
			},
			call: func(ctx context.Context, rec booking.Record) error {
				return s.MailSent(ctx, rec.CandidateHash, rec.Attempt, "claim-1")
			},
			want: func(rec booking.Record) booking.Record { return asSent(asPaid(rec)) },
		},
	}
	for _, w := range writes {
		for fault, through := range faults() {
			t.Run(w.name+"/"+fault, func(t *testing.T) {
				rec := Held()
				w.setup(t, rec)
				call := func() error { return w.call(t.Context(), rec) }
				if err := through(call); err != nil && !errors.Is(err, errLost) {
					t.Fatalf("first call: %v", err)
				}
				for _, which := range []string{"repeat", "repeat of the repeat"} {
					if err := call(); err != nil {
						t.Errorf("%s: got %v, want none", which, err)
					}
					stored(t, s, w.want(rec))
				}
			})
		}
	}
}

func mustPut(t *testing.T, s Store, rec booking.Record) {
	t.Helper()
	if _, _, err := s.PutHeld(t.Context(), rec); err != nil {
		t.Fatalf("PutHeld: %v", err)
	}
}

func mustPay(t *testing.T, s Store, rec booking.Record) {
	t.Helper()
	if _, err := s.MarkPaid(t.Context(), paid(rec)); err != nil {
		t.Fatalf("MarkPaid: %v", err)
	}
}

func mustRelease(t *testing.T, s Store, rec booking.Record) {
	t.Helper()
	if err := s.Release(t.Context(), rec, "lapsed", releasedAt(rec)); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func mustAnnounce(t *testing.T, s Store, rec booking.Record, at time.Time) booking.Record {
	t.Helper()
	noted, err := s.Announce(t.Context(), rec, at)
	if err != nil {
		t.Fatalf("Announce: %v", err)
	}
	return noted
}

func mustClaim(t *testing.T, s Store, rec booking.Record, claim string) {
	t.Helper()
	if ok, err := s.ClaimMail(t.Context(), rec.CandidateHash, rec.Attempt, claim, start, start.Add(time.Minute)); err != nil || !ok {
		t.Fatalf("ClaimMail: got %t, %v, want true", ok, err)
	}
}

// toTheSecond compares TTLs as housekeeping goes by them: in whole seconds, never
// before the time. Everything else is compared as it is.
func toTheSecond() cmp.Option {
	second := func(at time.Time) time.Time { return at.Add(time.Second - time.Nanosecond).Truncate(time.Second) }
	isTTL := func(p cmp.Path) bool { return p.Last().String() == ".TTL" }
	return cmp.FilterPath(isTTL, cmp.Comparer(func(a, b time.Time) bool { return second(a).Equal(second(b)) }))
}

func check(t *testing.T, what string, got booking.Record, err error, want booking.Record) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if diff := cmp.Diff(want, got, toTheSecond()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func stored(t *testing.T, s Store, want booking.Record) {
	t.Helper()
	got, err := s.Record(t.Context(), want.CandidateHash, want.Attempt)
	check(t, "record in the store", got, err, want)
}

func absent(t *testing.T, s Store, rec booking.Record) {
	t.Helper()
	if got, err := s.Record(t.Context(), rec.CandidateHash, rec.Attempt); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("record that was never put: got %+v, %v, want ErrNotFound", got, err)
	}
}

func recordsOf(t *testing.T, s Store, candidateHash string, want ...booking.Record) {
	t.Helper()
	got, err := s.RecordsOf(t.Context(), candidateHash)
	if err != nil {
		t.Errorf("RecordsOf: %v", err)
	}
	if diff := cmp.Diff(want, got, toTheSecond()); diff != "" {
		t.Errorf("RecordsOf (-want +got):\n%s", diff)
	}
}

// pause waits a moment for a look-up that may lag; false when ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(20 * time.Millisecond):
		return true
	}
}
