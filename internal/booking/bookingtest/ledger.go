package bookingtest

import (
	"context"
	"iter"
	"time"

	"holdfast/internal/booking"
)

// LedgerDriver is the seat ledger as tests drive it; admission.Gate is one, and
// its comments say what each method promises.
type LedgerDriver interface {
	Epoch(ctx context.Context) (string, error)
	ApplySale(ctx context.Context, sale booking.Sale, epoch string, checkOnly bool) (booking.Applied, error)
	Sale(ctx context.Context) (booking.Sale, error)
	BeginRebuild(ctx context.Context) (token string, err error)
	Restore(ctx context.Context, token string, rows []booking.RestoredRow) error
	FinishRebuild(ctx context.Context, sale booking.Sale, epoch, token string) (booking.Applied, error)
	ForgetRebuild(ctx context.Context, token string) error
	UnfinishedRebuild(ctx context.Context) (token string, err error)
	AddCandidates(ctx context.Context, list []booking.Candidate) error
	BeginAllowlist(ctx context.Context, token, who string) (booking.AllowlistLoad, error)
	ClearAllowlist(ctx context.Context, token string, keep bool) (booking.AllowlistLoad, error)
	StageAllowlist(ctx context.Context, token string, number int, chunk []booking.Candidate) (booking.AllowlistLoad, error)
	SwapAllowlist(ctx context.Context, token string, chunks int, whileOpen bool) (booking.AllowlistLoad, error)
	EndAllowlist(ctx context.Context, token string, keep bool) error
	LeaveAllowlist(ctx context.Context, token string) error
	LeavingRows(ctx context.Context, swapped bool) iter.Seq2[booking.DueRow, error]
	KeptEmails(ctx context.Context) (int, error)
	Open(ctx context.Context) error
	OpenAt(ctx context.Context, at time.Time) error
	Close(ctx context.Context) error
	Now(ctx context.Context) (time.Time, error)

	Admit(ctx context.Context, r booking.Request, suffix string, check bool) (booking.Seat, error)
	Attach(ctx context.Context, code, attempt string, p booking.Payment) (booking.Row, time.Time, error)
	Queued(ctx context.Context, code, attempt string) error
	Undo(ctx context.Context, code, attempt string) error

	BeginPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error)
	TakeOverPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error)
	EndPay(ctx context.Context, code, attempt, token string, as booking.Phase) error
	Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error)
	Late(ctx context.Context, rec booking.Record, transaction string, kind booking.MoneyKind) (booking.Decision, error)
	Release(ctx context.Context, code, attempt string) error
	RecordDone(ctx context.Context, code, attempt string) error
	MailDone(ctx context.Context, code, attempt string) error
	RecordReleased(ctx context.Context, code, attempt string) error
	Postpone(ctx context.Context, code, attempt string, seen booking.Phase, d time.Duration, count booking.Count) error

	Due(ctx context.Context, skip, limit int) ([]booking.DueRow, time.Time, error)
	Row(ctx context.Context, code string) (booking.Row, time.Time, error)
	Issued(ctx context.Context, payment string) (booking.Issued, error)
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
	Email(ctx context.Context, code string) (string, error)
	NoticeLater(ctx context.Context, id string, in time.Duration) error
	NoticeDone(ctx context.Context, id string) error
	DueNotices(ctx context.Context, limit int) ([]string, error)
	ReadStatus(ctx context.Context) (booking.Figures, error)
	ReleasesPutOff() bool
	Acknowledges(ctx context.Context) error

	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
	RowsOf(ctx context.Context, codes []string) (map[string]booking.DueRow, error)
	Looks(ctx context.Context, codes []string) (map[string]time.Time, error)
	Count(ctx context.Context) (rows, looks int, f booking.Figures, err error)
}

// Ledger is a seat ledger whose calls can be broken.
type Ledger struct {
	LedgerDriver
	Faults *Faults
}

// rowAt is a row and the ledger's clock.
type rowAt struct {
	row booking.Row
	now time.Time
}

func rowCall(f *Faults, op Op, call func() (booking.Row, time.Time, error)) (booking.Row, time.Time, error) {
	r, err := ledgerCall(f, op, func() (rowAt, error) {
		row, now, err := call()
		return rowAt{row, now}, err
	})
	return r.row, r.now, err
}

// ApplySale can be broken.
func (l Ledger) ApplySale(ctx context.Context, sale booking.Sale, epoch string, checkOnly bool) (booking.Applied, error) {
	return ledgerCall(l.Faults, OpApplySale, func() (booking.Applied, error) {
		return l.LedgerDriver.ApplySale(ctx, sale, epoch, checkOnly)
	})
}

// BeginRebuild can be broken.
func (l Ledger) BeginRebuild(ctx context.Context) (string, error) {
	return ledgerCall(l.Faults, OpBeginRebuild, func() (string, error) { return l.LedgerDriver.BeginRebuild(ctx) })
}

// Restore can be broken.
func (l Ledger) Restore(ctx context.Context, token string, rows []booking.RestoredRow) error {
	_, err := ledgerCall(l.Faults, OpRestore, nothing(func() error { return l.LedgerDriver.Restore(ctx, token, rows) }))
	return err
}

// FinishRebuild can be broken.
func (l Ledger) FinishRebuild(ctx context.Context, sale booking.Sale, epoch, token string) (booking.Applied, error) {
	return ledgerCall(l.Faults, OpFinishRebuild, func() (booking.Applied, error) {
		return l.LedgerDriver.FinishRebuild(ctx, sale, epoch, token)
	})
}

// ForgetRebuild can be broken.
func (l Ledger) ForgetRebuild(ctx context.Context, token string) error {
	_, err := ledgerCall(l.Faults, OpForgetRebuild, nothing(func() error { return l.LedgerDriver.ForgetRebuild(ctx, token) }))
	return err
}

// BeginAllowlist can be broken.
func (l Ledger) BeginAllowlist(ctx context.Context, token, who string) (booking.AllowlistLoad, error) {
	return ledgerCall(l.Faults, OpBeginAllowlist, func() (booking.AllowlistLoad, error) {
		return l.LedgerDriver.BeginAllowlist(ctx, token, who)
	})
}

// ClearAllowlist can be broken.
func (l Ledger) ClearAllowlist(ctx context.Context, token string, keep bool) (booking.AllowlistLoad, error) {
	return ledgerCall(l.Faults, OpClearAllowlist, func() (booking.AllowlistLoad, error) {
		return l.LedgerDriver.ClearAllowlist(ctx, token, keep)
	})
}

// StageAllowlist can be broken.
func (l Ledger) StageAllowlist(ctx context.Context, token string, number int, chunk []booking.Candidate) (booking.AllowlistLoad, error) {
	return ledgerCall(l.Faults, OpStageAllowlist, func() (booking.AllowlistLoad, error) {
		return l.LedgerDriver.StageAllowlist(ctx, token, number, chunk)
	})
}

// SwapAllowlist can be broken.
func (l Ledger) SwapAllowlist(ctx context.Context, token string, chunks int, whileOpen bool) (booking.AllowlistLoad, error) {
	return ledgerCall(l.Faults, OpSwapAllowlist, func() (booking.AllowlistLoad, error) {
		return l.LedgerDriver.SwapAllowlist(ctx, token, chunks, whileOpen)
	})
}

// EndAllowlist can be broken.
func (l Ledger) EndAllowlist(ctx context.Context, token string, keep bool) error {
	_, err := ledgerCall(l.Faults, OpEndAllowlist, nothing(func() error { return l.LedgerDriver.EndAllowlist(ctx, token, keep) }))
	return err
}

// LeaveAllowlist can be broken.
func (l Ledger) LeaveAllowlist(ctx context.Context, token string) error {
	_, err := ledgerCall(l.Faults, OpLeaveAllowlist, nothing(func() error { return l.LedgerDriver.LeaveAllowlist(ctx, token) }))
	return err
}

// Queued can be broken.
func (l Ledger) Queued(ctx context.Context, code, attempt string) error {
	_, err := ledgerCall(l.Faults, OpQueued, nothing(func() error { return l.LedgerDriver.Queued(ctx, code, attempt) }))
	return err
}

// Undo can be broken.
func (l Ledger) Undo(ctx context.Context, code, attempt string) error {
	_, err := ledgerCall(l.Faults, OpUndo, nothing(func() error { return l.LedgerDriver.Undo(ctx, code, attempt) }))
	return err
}

// BeginPay can be broken.
func (l Ledger) BeginPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error) {
	return rowCall(l.Faults, OpBeginPay, func() (booking.Row, time.Time, error) {
		return l.LedgerDriver.BeginPay(ctx, code, attempt, payment, token, length)
	})
}

// TakeOverPay can be broken.
func (l Ledger) TakeOverPay(ctx context.Context, code, attempt, payment, token string, length time.Duration) (booking.Row, time.Time, error) {
	return rowCall(l.Faults, OpTakeOverPay, func() (booking.Row, time.Time, error) {
		return l.LedgerDriver.TakeOverPay(ctx, code, attempt, payment, token, length)
	})
}

// EndPay can be broken.
func (l Ledger) EndPay(ctx context.Context, code, attempt, token string, as booking.Phase) error {
	_, err := ledgerCall(l.Faults, OpEndPay, nothing(func() error { return l.LedgerDriver.EndPay(ctx, code, attempt, token, as) }))
	return err
}

// Late can be broken.
func (l Ledger) Late(ctx context.Context, rec booking.Record, transaction string, kind booking.MoneyKind) (booking.Decision, error) {
	return ledgerCall(l.Faults, OpLate, func() (booking.Decision, error) {
		return l.LedgerDriver.Late(ctx, rec, transaction, kind)
	})
}

// Settle can be broken.
func (l Ledger) Settle(ctx context.Context, code, attempt, payment, transaction string) (booking.Row, error) {
	return ledgerCall(l.Faults, OpSettle, func() (booking.Row, error) {
		return l.LedgerDriver.Settle(ctx, code, attempt, payment, transaction)
	})
}

// Release can be broken.
func (l Ledger) Release(ctx context.Context, code, attempt string) error {
	_, err := ledgerCall(l.Faults, OpRelease, nothing(func() error { return l.LedgerDriver.Release(ctx, code, attempt) }))
	return err
}

// Close can be broken.
func (l Ledger) Close(ctx context.Context) error {
	_, err := ledgerCall(l.Faults, OpClose, nothing(func() error { return l.LedgerDriver.Close(ctx) }))
	return err
}

// Rows can be broken before its first row; it is then both times the same.
func (l Ledger) Rows(ctx context.Context) iter.Seq2[booking.DueRow, error] {
	return func(yield func(booking.DueRow, error) bool) {
		if _, err := ledgerCall(l.Faults, OpRows, nothing(func() error { return nil })); err != nil {
			yield(booking.DueRow{}, err)
			return
		}
		l.LedgerDriver.Rows(ctx)(yield)
	}
}

// RecordDone can be broken.
func (l Ledger) RecordDone(ctx context.Context, code, attempt string) error {
	_, err := ledgerCall(l.Faults, OpRecordDone, nothing(func() error { return l.LedgerDriver.RecordDone(ctx, code, attempt) }))
	return err
}

// MailDone can be broken.
func (l Ledger) MailDone(ctx context.Context, code, attempt string) error {
	_, err := ledgerCall(l.Faults, OpMailDone, nothing(func() error { return l.LedgerDriver.MailDone(ctx, code, attempt) }))
	return err
}

// RecordReleased can be broken.
func (l Ledger) RecordReleased(ctx context.Context, code, attempt string) error {
	_, err := ledgerCall(l.Faults, OpRecordReleased, nothing(func() error { return l.LedgerDriver.RecordReleased(ctx, code, attempt) }))
	return err
}

// Postpone can be broken.
func (l Ledger) Postpone(ctx context.Context, code, attempt string, seen booking.Phase, d time.Duration, count booking.Count) error {
	_, err := ledgerCall(l.Faults, OpPostpone, nothing(func() error {
		return l.LedgerDriver.Postpone(ctx, code, attempt, seen, d, count)
	}))
	return err
}

// Due can be broken.
func (l Ledger) Due(ctx context.Context, skip, limit int) ([]booking.DueRow, time.Time, error) {
	type due struct {
		rows []booking.DueRow
		now  time.Time
	}
	d, err := ledgerCall(l.Faults, OpDue, func() (due, error) {
		rows, now, err := l.LedgerDriver.Due(ctx, skip, limit)
		return due{rows, now}, err
	})
	return d.rows, d.now, err
}
