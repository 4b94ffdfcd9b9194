package bookingtest

import (
	"testing"
	"time"

	"holdfast/internal/booking"
)

// World is a sale that is open, with everything around it that a use case is
// made of.
type World struct {
	Clock      *Clock
	Faults     *Faults // of ledger, store and mailer
	Ledger     Ledger
	Store      Store
	Gateway    *Gateway
	Mailer     *Mailer
	Background *Background
	Books      Books
}

// NewWorld puts ledger and store behind lines that can be broken, and checks
// them against each other. The ledger must use the same clock.
func NewWorld(clock *Clock, ledger LedgerDriver, seats Seats, store StoreDriver) *World {
	faults := new(Faults)
	w := &World{
		Clock: clock, Faults: faults,
		Ledger:     Ledger{LedgerDriver: ledger, Faults: faults},
		Store:      Store{StoreDriver: store, Faults: faults},
		Gateway:    NewGateway(clock.Now),
		Mailer:     &Mailer{Faults: faults},
		Background: new(Background),
	}
	w.Books = Books{
		Seats: seats, Records: store, Refunds: store, Completed: w.Gateway.Completed, Sent: w.Mailer.Sent, Unseated: map[string]bool{},
	}
	return w
}

// Open puts the sale into force with candidates 1 to n, and opens it.
func (w *World) Open(t testing.TB, sale booking.Sale, n int) {
	t.Helper()
	if _, err := w.Ledger.LedgerDriver.ApplySale(t.Context(), sale, Epoch, false); err != nil {
		t.Fatalf("apply sale: %v", err)
	}
	if err := w.Ledger.AddCandidates(t.Context(), Candidates(n)); err != nil {
		t.Fatalf("add candidates: %v", err)
	}
	if err := w.Ledger.Open(t.Context()); err != nil {
		t.Fatalf("open: %v", err)
	}
}

// Booking is one attempt of a candidate, as the test knows it.
type Booking struct {
	Code    string
	Attempt string
	Payment booking.Payment
	// Record is the attempt's record as HELD.
	Record booking.Record
}

// Admit gives candidate i a seat; no payment exists.
func (w *World) Admit(t testing.TB, i int, level string) booking.Row {
	t.Helper()
	r := booking.Request{Code: Code(i), Email: Email(i), Level: level}
	seat, err := w.Ledger.Admit(t.Context(), r, booking.NewAttemptSuffix(w.Clock.Now()), false)
	if err != nil {
		t.Fatalf("admit %s to %s: %v", r.Code, level, err)
	}
	return seat.Row
}

// Payable gives candidate i a seat and a payment; the record is nowhere.
func (w *World) Payable(t testing.TB, i int, level string) Booking {
	t.Helper()
	row, code := w.Admit(t, i, level), Code(i)
	p, err := w.Gateway.Create(t.Context(), booking.Order{
		Invoice: booking.Invoice(booking.CandidateHash(code), row.Attempt), Amount: row.Amount, Currency: row.Currency,
	})
	if err != nil {
		t.Fatalf("create payment: %v", err)
	}
	row, _, err = w.Ledger.Attach(t.Context(), code, row.Attempt, p)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	return Booking{Code: code, Attempt: row.Attempt, Payment: p, Record: row.HeldRecord(code, p.URL, p.Signature)}
}

// Unwritten gives candidate i a seat that is held; the worker has not written
// the record.
func (w *World) Unwritten(t testing.TB, i int, level string) Booking {
	t.Helper()
	b := w.Payable(t, i, level)
	if err := w.Ledger.LedgerDriver.Queued(t.Context(), b.Code, b.Attempt); err != nil {
		t.Fatalf("queued: %v", err)
	}
	return b
}

// Held gives candidate i a seat that is held, record and all.
func (w *World) Held(t testing.TB, i int, level string) Booking {
	t.Helper()
	b := w.Unwritten(t, i, level)
	w.Write(t, b)
	return b
}

// Write is the worker's work: it puts the record.
func (w *World) Write(t testing.TB, b Booking) {
	t.Helper()
	if _, _, err := w.Store.StoreDriver.PutHeld(t.Context(), b.Record); err != nil {
		t.Fatalf("put record: %v", err)
	}
}

// Paying gives candidate i a seat that is paying for the length, by a process
// that is not heard of again.
func (w *World) Paying(t testing.TB, i int, level, token string, length time.Duration) Booking {
	t.Helper()
	b := w.Held(t, i, level)
	if _, _, err := w.Ledger.LedgerDriver.BeginPay(t.Context(), b.Code, b.Attempt, b.Payment.ID, token, length); err != nil {
		t.Fatalf("begin pay: %v", err)
	}
	return b
}

// Refused gives candidate i a seat whose payment the gateway has refused.
func (w *World) Refused(t testing.TB, i int, level string) Booking {
	t.Helper()
	b := w.Paying(t, i, level, "refused", time.Minute)
	if err := w.Ledger.LedgerDriver.EndPay(t.Context(), b.Code, b.Attempt, "refused", booking.PhaseRefused); err != nil {
		t.Fatalf("end pay: %v", err)
	}
	if err := w.Store.StoreDriver.Release(t.Context(), b.Record, booking.ReasonRefused, w.Clock.Now()); err != nil {
		t.Fatalf("release record: %v", err)
	}
	if err := w.Ledger.LedgerDriver.RecordReleased(t.Context(), b.Code, b.Attempt); err != nil {
		t.Fatalf("record released: %v", err)
	}
	return b
}

// Row is the candidate's row; the zero row when there is none.
func (w *World) Row(t testing.TB, code string) booking.Row {
	t.Helper()
	rows, err := w.Books.Seats.Rows(t.Context())
	if err != nil {
		t.Fatalf("rows: %v", err)
	}
	return rows[code]
}

// State is the state of the booking's record; "" when there is none.
func (w *World) State(t testing.TB, b Booking) booking.RecordState {
	t.Helper()
	recs, err := w.Store.RecordsOf(t.Context(), b.Record.CandidateHash)
	if err != nil {
		t.Fatalf("records of %s: %v", b.Code, err)
	}
	for _, rec := range recs {
		if rec.Attempt == b.Attempt {
			return rec.State
		}
	}
	return ""
}

// Want compares the booking's row and record with what they should be. phase ""
// means that the attempt owns no seat, state "" that it has no record.
func (w *World) Want(t testing.TB, b Booking, phase booking.Phase, state booking.RecordState) {
	t.Helper()
	row := w.Row(t, b.Code)
	if row.Attempt != b.Attempt {
		row = booking.Row{}
	}
	if row.Phase != phase {
		t.Errorf("row of %s: got phase %q, want %q", b.Code, row.Phase, phase)
	}
	if got := w.State(t, b); got != state {
		t.Errorf("record of %s: got %q, want %q", b.Code, got, state)
	}
}

// WantRefund wants the transaction's money to go back, for that reason, one word of
// the ledger's decision.
func (w *World) WantRefund(t testing.TB, b Booking, transaction string, kind booking.MoneyKind, reason string) {
	t.Helper()
	r, err := w.Store.Refund(t.Context(), transaction)
	if err != nil {
		t.Errorf("refund of %s for %s: got %v, want one", transaction, b.Code, err)
		return
	}
	if r.Attempt != b.Attempt || r.PaymentID != b.Payment.ID || r.Kind != kind || r.Reason != reason || r.State != booking.RefundDue {
		t.Errorf("refund of %s for %s: got %+v, want kind %s, reason %q, due", transaction, b.Code, r, kind, reason)
	}
}
