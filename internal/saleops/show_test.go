package saleops_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
	store "holdfast/internal/store/sqlite"
)

func (w *world) shower(t *testing.T) *saleops.Shower {
	t.Helper()
	return &saleops.Shower{Ledger: w.gate(t), Store: w.records(t), Queue: w.queue, Gateway: w.Gateway}
}

func mustShow(t *testing.T, s *saleops.Shower, code string) saleops.ShownBooking {
	t.Helper()
	b, err := s.Show(t.Context(), code, "")
	if err != nil || len(b.NotSeen) > 0 {
		t.Fatalf("show: got %v, not seen %q, want everything seen", err, b.NotSeen)
	}
	return b
}

// field picks what the places say of one thing.
func field(a saleops.ShownAttempt, name string) saleops.Field {
	for _, f := range a.Fields {
		if f.Name == name {
			return f
		}
	}
	return saleops.Field{Name: name}
}

func TestShow_EveryPlaceSideBySide(t *testing.T) {
	w := open(t)
	first, second := w.Refused(t, 1, "N1"), w.Held(t, 1, "N1")
	w.pays(t, second)
	w.Gateway.Complete(w.Held(t, 2, "N2").Payment.ID) // another's
	_, err := w.Store.PutNotification(t.Context(), booking.Notification{
		Version: booking.NotificationVersion, ID: "m1", ReceivedAt: w.Clock.Now(), SentAt: w.Clock.Now(),
		Transaction: "TXn", Currency: "BDT", Invoice: second.Record.Invoice, Reference: "payer's words",
	})
	must(t, err)
	s := w.shower(t)
	for _, subject := range []string{first.Attempt, "another"} {
		now := time.Now()
		must(t, w.records(t).AppendLog(t.Context(), booking.LogEntry{
			Version: booking.LogEntryVersion, ID: booking.NewLogID(now), At: now, Who: "alice", From: "host", What: "bookings resolve",
			Subject: subject, Before: json.RawMessage(`{}`), Outcome: booking.LogBegun,
		}))
	}
	b := mustShow(t, s, bookingtest.Code(1))
	if b.Seat == nil || b.Seat.Attempt != second.Attempt || b.Email != bookingtest.Email(1) || len(b.Attempts) != 2 || b.Differs() {
		t.Fatalf("show: got %+v, want the seat, the e-mail and two attempts that agree everywhere", b)
	}
	now, before := b.Attempts[0], b.Attempts[1]
	if now.Attempt != second.Attempt || !now.Owns || before.Attempt != first.Attempt || before.Owns || now.Mail != booking.MailSent {
		t.Errorf("attempts: got %+v, want the newest first, and the seat its", b.Attempts)
	}
	if got, want := field(now, "state"), (saleops.Field{Name: "state", Row: "paid", Record: "PAID", Gateway: "completed"}); got != want {
		t.Errorf("state: got %+v, want %+v", got, want)
	}
	if got := field(now, "payment"); got.Row != second.Payment.ID || got.Record != got.Row || got.Stash != got.Row || got.Gateway != got.Row {
		t.Errorf("payment: got %+v, want %s everywhere", got, second.Payment.ID)
	}
	if got := field(before, "state"); got.Row != "" || got.Record != "RELEASED" {
		t.Errorf("state before: got %+v, want the record alone", got)
	}
	if len(now.Notifications) != 1 || now.Notifications[0].ID != "m1" || now.Notifications[0].Reference != "" || len(before.Notifications) != 0 {
		t.Errorf("notifications: got %+v, want the one, without the payer's words", now.Notifications)
	}
	if len(before.History) != 1 || before.History[0].Subject != first.Attempt || len(now.History) != 0 {
		t.Errorf("history: got %+v, want the entry of the first attempt", before.History)
	}
	one, err := s.Show(t.Context(), bookingtest.Code(1), first.Attempt)
	if err != nil || len(one.Attempts) != 1 || one.Attempts[0].Attempt != first.Attempt {
		t.Errorf("one attempt: got %+v, %v, want the first alone", one.Attempts, err)
	}
	if _, err := s.Show(t.Context(), bookingtest.Code(1), "none"); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("an attempt that is not there: got %v, want ErrNotFound", err)
	}
	if _, err := s.Show(t.Context(), bookingtest.Code(3), ""); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("a candidate without a booking: got %v, want ErrNotFound", err)
	}
}

func TestShow_MarksWhatDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, w *world, b bookingtest.Booking)
		want   []string
	}{
		"NoRow": {func(t *testing.T, w *world, b bookingtest.Booking) {
			must(t, w.rdb.HDel(t.Context(), prefix+"adm:seen", b.Code).Err())
		}, []string{"state"}},
		"Completed": {func(_ *testing.T, w *world, b bookingtest.Booking) { w.Gateway.Complete(b.Payment.ID) }, []string{"state"}},
		"Order": {func(t *testing.T, w *world, b bookingtest.Booking) {
			w.spoilRow(t, b.Code, func(r *booking.Row) { r.Level, r.Amount = "N2", 7 })
		}, []string{"level", "amount"}},
		"Payment": {func(t *testing.T, w *world, b bookingtest.Booking) {
			w.spoilRow(t, b.Code, func(r *booking.Row) { r.Payment = "TRother" })
		}, []string{"payment"}},
		"Stash": {func(t *testing.T, w *world, b bookingtest.Booking) {
			must(t, w.rdb.Set(t.Context(), prefix+"hold:payment:"+b.Payment.ID, `{"v":1,"code":"C0002","attempt":"x"}`, 0).Err())
		}, []string{"owner of "}},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			b := w.Held(t, 1, "N1")
			if b := mustShow(t, w.shower(t), b.Code); b.Differs() {
				t.Fatalf("before: got %+v, want that nothing differs", b.Attempts)
			}
			c.damage(t, w, b)
			shown, err := w.shower(t).Show(t.Context(), b.Code, "")
			must(t, err)
			var got []string
			for _, f := range shown.Attempts[0].Fields {
				if f.Differs {
					got = append(got, strings.TrimSuffix(f.Name, b.Payment.ID))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("what differs (-want +got):\n%s", diff)
			}
		})
	}
}

// spoilRow changes a row past the scripts.
func (w *world) spoilRow(t *testing.T, code string, change func(*booking.Row)) {
	t.Helper()
	row := w.Row(t, code)
	change(&row)
	text, err := jsonText(row)
	must(t, err)
	must(t, w.rdb.HSet(t.Context(), prefix+"adm:seen", code, text).Err())
}

func TestShow_MoneyThatWentBackIsNoDifference(t *testing.T) {
	w, p := past(t)
	b := mustShow(t, w.shower(t), bookingtest.Code(3))
	i := slices.IndexFunc(b.Attempts, func(a saleops.ShownAttempt) bool { return len(a.Refunds) > 0 })
	if i < 0 || field(b.Attempts[i], "state").Differs {
		t.Errorf("show: got %+v, want a refund, and no difference in state", b.Attempts)
	}
	_ = p
}

// mute is a store of which some parts do not answer.
type mute struct{ *store.Store }

var errMute = errors.New("the store is away")

func (mute) RefundsOf(context.Context, string, string) ([]booking.Refund, error) { return nil, errMute }

func (mute) Log(context.Context, time.Time) iter.Seq2[booking.LogEntry, error] {
	return func(yield func(booking.LogEntry, error) bool) { yield(booking.LogEntry{}, errMute) }
}

func TestShow_SaysWhatItCouldNotSee(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	w.Gateway.Always(bookingtest.Query, b.Payment.ID, bookingtest.LostCall())
	s := w.shower(t)
	s.Store = mute{w.records(t)}
	shown, err := s.Show(t.Context(), b.Code, "")
	if err != nil || len(shown.NotSeen) != 3 || len(shown.Attempts) != 1 {
		t.Errorf("show: got %+v, %v, want the attempt, and refunds, log and gateway not seen", shown, err)
	}
	if a := shown.Attempts[0]; !slices.Equal(a.Unknown, []string{saleops.UnknownGateway, saleops.UnknownRefunds}) || shown.Differs() {
		t.Errorf("attempt: got %+v, want gateway and refunds unknown, and no difference", a)
	}
}

// A Redis that was lost has no row, no address and no payment, and says so of none.
func TestShow_ALostLedgerIsUnknownAndNotNone(t *testing.T) {
	w := open(t)
	held, paid := w.Held(t, 1, "N1"), w.Held(t, 2, "N1")
	w.pays(t, paid)
	w.lose(t)
	for _, b := range []bookingtest.Booking{held, paid} {
		shown, err := w.shower(t).Show(t.Context(), b.Code, "")
		if err != nil || len(shown.Attempts) != 1 || len(shown.NotSeen) != 1 || !strings.Contains(shown.NotSeen[0], "no epoch") {
			t.Fatalf("show: got %+v, %v, want the attempt of the record, and that there is no epoch", shown, err)
		}
		want := []string{saleops.UnknownEpoch, saleops.UnknownSeat, saleops.UnknownEmail, saleops.UnknownLook}
		if !slices.Equal(shown.Unknown, want) {
			t.Errorf("unknown: got %q, want %q", shown.Unknown, want)
		}
		a := shown.Attempts[0]
		if a.Earlier || a.Owns || shown.Differs() || !slices.Equal(a.Unknown, []string{saleops.UnknownRow, saleops.UnknownStash}) {
			t.Errorf("attempt: got %+v, want of no other sale, row and stash unknown, and no difference", a)
		}
	}
	for _, attempt := range []string{"", "none"} {
		shown, err := w.shower(t).Show(t.Context(), bookingtest.Code(3), attempt)
		if err != nil || len(shown.NotSeen) == 0 || len(shown.Attempts) > 0 {
			t.Errorf("one without a record, attempt %q: got %+v, %v, want that nobody knows", attempt, shown, err)
		}
	}
	// Money is no difference while nobody knows whether its seat is paid.
	w.Gateway.Complete(held.Payment.ID)
	if shown, err := w.shower(t).Show(t.Context(), held.Code, ""); err != nil || shown.Differs() {
		t.Errorf("held, and completed at the gateway: got %+v, %v, want no difference", shown, err)
	}
	// What record and gateway say against each other is a difference without the row too.
	w.Gateway.Always(bookingtest.Query, paid.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Status = booking.ChargeOpen }))
	if shown, err := w.shower(t).Show(t.Context(), paid.Code, ""); err != nil || !shown.Differs() {
		t.Errorf("a paid record without money: got %+v, %v, want that they differ", shown, err)
	}
}

// noRecords is a store that does not answer about records, noQueue a queue that does
// not answer.
type (
	noRecords struct{ *store.Store }
	noQueue   struct{ saleops.DeadQueue }
)

func (noRecords) RecordsOf(context.Context, string) ([]booking.Record, error) { return nil, errMute }

func (noQueue) Stats(context.Context) (booking.QueueStats, error) {
	return booking.QueueStats{}, errMute
}

func TestShow_RecordsAndQueueThatDoNotAnswerAreUnknown(t *testing.T) {
	w := open(t)
	b := w.Held(t, 1, "N1")
	s := w.shower(t)
	s.Store, s.Queue = noRecords{w.records(t)}, noQueue{}
	shown, err := s.Show(t.Context(), b.Code, "")
	if err != nil || len(shown.Attempts) != 1 || !slices.Equal(shown.Unknown, []string{saleops.UnknownRecords, saleops.UnknownQueue}) {
		t.Fatalf("show: got %+v, %v, want the row's attempt, records and queue unknown", shown, err)
	}
	if a := shown.Attempts[0]; shown.Differs() || !slices.Equal(a.Unknown, []string{saleops.UnknownRecord}) {
		t.Errorf("attempt: got %+v, want the record unknown, and no difference", a)
	}
}
