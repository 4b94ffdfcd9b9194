package expiry_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/expiry"
	"holdfast/internal/store/storetest"
)

// table is a booking store that holds one attempt's record, or none.
type table struct {
	record *booking.Record
	err    error
}

func (s *table) PutBack(_ context.Context, rec booking.Record) (bool, error) {
	if s.err != nil || s.record != nil {
		return false, s.err
	}
	s.record = &rec
	return true, nil
}

// MarkPaid does as a booking store's does, so far as it is used here.
func (s *table) MarkPaid(_ context.Context, p booking.Paid) (booking.Record, error) {
	rec := p.Record
	if s.record != nil {
		rec = *s.record
	}
	switch {
	case s.err != nil:
		return booking.Record{}, s.err
	case rec.Transaction != "" && rec.Transaction != p.Transaction:
		return rec, booking.ErrSecondPayment
	}
	rec.State, rec.Transaction, rec.PaidAt, rec.TTL = booking.StatePaid, p.Transaction, p.PaidAt, time.Time{}
	s.record = &rec
	return rec, nil
}

func deleted(state booking.RecordState) booking.Record {
	rec := storetest.Held()
	rec.State = state
	rec.TTL = rec.Deadline.Add(7 * 24 * time.Hour)
	if state == booking.StatePaid {
		rec.Transaction, rec.PaidAt, rec.Mail = "TX"+rec.Attempt, rec.AdmittedAt.Add(time.Minute), booking.MailSent
	}
	return rec
}

func logTo(out *bytes.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(out, nil)) }

func TestDeleted_RecordThatWasNeededIsPutBackWithoutTTLAndAlarms(t *testing.T) {
	t.Parallel()
	for state, want := range map[booking.RecordState]expiry.Outcome{
		booking.StateHeld: expiry.RestoredHeld,
		booking.StatePaid: expiry.RestoredPaid,
	} {
		var log bytes.Buffer
		store, rec := &table{}, deleted(state)
		got, err := expiry.New(store, logTo(&log)).Deleted(t.Context(), rec)
		if got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", state, got, err, want)
		}
		back := rec
		back.TTL = time.Time{}
		if diff := cmp.Diff(&back, store.record); diff != "" {
			t.Errorf("%s: record put back (-want +got):\n%s", state, diff)
		}
		if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, rec.Attempt) || strings.Contains(text, rec.Code) {
			t.Errorf("%s: got log %q, want an alarm that names the attempt and no code", state, text)
		}
	}
}

func TestDeleted_ReleasedRecordStaysDeleted(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	store := &table{}
	got, err := expiry.New(store, logTo(&log)).Deleted(t.Context(), deleted(booking.StateReleased))
	if got != expiry.Ended || err != nil || store.record != nil || log.Len() != 0 {
		t.Errorf("released record: got %q, %v, put back %v, log %q; want %q and nothing else",
			got, err, store.record, log.String(), expiry.Ended)
	}
}

func TestDeleted_RecordThatIsThereAgainIsLeftAlone(t *testing.T) {
	t.Parallel()
	paid := deleted(booking.StatePaid)
	paid.TTL = time.Time{}
	held := paid
	held.State, held.Transaction, held.PaidAt, held.Mail = booking.StateHeld, "", time.Time{}, booking.MailNone
	var log bytes.Buffer
	store := &table{record: &paid}
	got, err := expiry.New(store, logTo(&log)).Deleted(t.Context(), held)
	if got != expiry.Present || err != nil || store.record.State != booking.StatePaid {
		t.Errorf("deletion of what is there again: got %q, %v, record %s; want %q, PAID", got, err, store.record.State, expiry.Present)
	}
	if !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("log: got %q, want a warning: it had been deleted while it was needed", log.String())
	}
}

func TestDeleted_PaidRecordIsPaidAgainAlsoWhereItIsHeldSince(t *testing.T) {
	t.Parallel()
	paid := deleted(booking.StatePaid)
	held := paid
	held.State, held.Transaction, held.PaidAt, held.Mail = booking.StateHeld, "", time.Time{}, booking.MailNone
	var log bytes.Buffer
	store := &table{record: &held}
	got, err := expiry.New(store, logTo(&log)).Deleted(t.Context(), paid)
	if got != expiry.RestoredPaid || err != nil || store.record.State != booking.StatePaid || !store.record.TTL.IsZero() {
		t.Errorf("paid record, held since: got %q, %v, record %+v; want %q, PAID without TTL", got, err, store.record, expiry.RestoredPaid)
	}
	other := paid
	other.Transaction = "TX-OTHER"
	store = &table{record: &other}
	if got, err := expiry.New(store, logTo(&log)).Deleted(t.Context(), paid); got != "" || !errors.Is(err, booking.ErrSecondPayment) {
		t.Errorf("paid record, paid by another transaction since: got %q, %v, want ErrSecondPayment", got, err)
	}
}

func TestDeleted_StoreThatDoesNotAnswerIsAnErrorToRepeat(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	away := errors.New("no answer")
	store, rec := &table{err: away}, deleted(booking.StateHeld)
	net := expiry.New(store, logTo(&log))
	if got, err := net.Deleted(t.Context(), rec); got != "" || !errors.Is(err, away) || !strings.Contains(err.Error(), rec.Attempt) {
		t.Errorf("store away: got %q, %v, want its error with the attempt", got, err)
	}
	store.err = nil
	if got, err := net.Deleted(t.Context(), rec); got != expiry.RestoredHeld || err != nil {
		t.Errorf("repeat: got %q, %v, want %q", got, err, expiry.RestoredHeld)
	}
}
