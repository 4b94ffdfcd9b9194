package bookingtest

import (
	"errors"
	"fmt"
	"sync"

	"holdfast/internal/booking"
)

// Fault is what becomes of a call of the ledger, the store or the mailer.
type Fault int

// The faults.
const (
	None Fault = iota
	// Lost: the call was not made.
	Lost
	// Kept: the call was made and its reply lost. Of the ledger, it was made and
	// not acknowledged.
	Kept
)

// The errors that such calls end with.
var (
	ErrLost = errors.New("connection refused")
	ErrKept = errors.New("connection reset before the reply")
)

// Op names a call that can be broken.
type Op string

// The calls that can be broken.
const (
	OpDue         Op = "due"
	OpUndo        Op = "undo"
	OpQueued      Op = "queued"
	OpBeginPay    Op = "begin pay"
	OpTakeOverPay Op = "take over pay"
	OpEndPay      Op = "end pay"
	OpSettle      Op = "settle"
	OpLate        Op = "late"
	OpRelease     Op = "release"
	OpPostpone    Op = "postpone"
	OpRecordDone  Op = "record done"
	OpMailDone    Op = "mail done"

	OpRecordReleased Op = "record released"

	OpClose Op = "close booking"
	OpRows  Op = "scan rows"

	OpBeginRebuild  Op = "begin rebuild"
	OpRestore       Op = "restore"
	OpFinishRebuild Op = "finish rebuild"
	OpForgetRebuild Op = "forget rebuild"
	OpApplySale     Op = "apply sale"

	OpBeginAllowlist Op = "begin allowlist"
	OpClearAllowlist Op = "clear allowlist"
	OpStageAllowlist Op = "stage allowlist"
	OpSwapAllowlist  Op = "swap allowlist"
	OpEndAllowlist   Op = "end allowlist"
	OpLeaveAllowlist Op = "leave allowlist"

	OpPutHeld       Op = "put held record"
	OpMarkPaid      Op = "mark record paid"
	OpAnnounce      Op = "announce execute"
	OpReleaseRecord Op = "release record"
	OpAsked         Op = "note question"
	OpClaimMail     Op = "claim mail"
	OpMailSent      Op = "mark mail sent"
	OpExtendRecord  Op = "extend record"
	OpScan          Op = "scan records"

	OpPutRefund     Op = "put refund"
	OpClaimRefund   Op = "claim refund"
	OpRefundSent    Op = "mark refund sent"
	OpRefundDone    Op = "mark refund done"
	OpRefundTrouble Op = "mark refund trouble"
	OpScanRefunds   Op = "scan refunds" // all, or the open ones

	OpPutNotification   Op = "put notification"
	OpCloseNotification Op = "close notification"
	OpScanNotifications Op = "scan notifications"

	OpMail Op = "send mail"
)

// Faults says what becomes of calls. The zero value breaks none. Safe for
// concurrent use.
type Faults struct {
	mu     sync.Mutex
	next   map[Op][]Fault
	always map[Op]Fault
	before map[Op][]func()
	calls  map[Op]int
}

// Next breaks the next calls, one fault each; None lets a call pass.
func (f *Faults) Next(op Op, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next = map[Op][]Fault{}
	}
	f.next[op] = append(f.next[op], faults...)
}

// Always breaks every call that Next says nothing of; None heals it.
func (f *Faults) Always(op Op, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.always == nil {
		f.always = map[Op]Fault{}
	}
	f.always[op] = fault
}

// Before runs fn when the next call comes, before it is made: what others do
// while the caller is between two steps. Several are run by one call each.
func (f *Faults) Before(op Op, fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before == nil {
		f.before = map[Op][]func(){}
	}
	f.before[op] = append(f.before[op], fn)
}

// Calls counts the calls, broken ones too.
func (f *Faults) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *Faults) take(op Op) (Fault, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[Op]int{}
	}
	f.calls[op]++
	before := func() {}
	if list := f.before[op]; len(list) > 0 {
		before, f.before[op] = list[0], list[1:]
	}
	if list := f.next[op]; len(list) > 0 {
		f.next[op] = list[1:]
		return list[0], before
	}
	return f.always[op], before
}

// do makes a call under the faults of the moment; kept is what a kept one ends
// with.
func do[T any](f *Faults, op Op, kept error, call func() (T, error)) (T, error) {
	fault, before := f.take(op)
	before()
	var none T
	if fault == Lost {
		return none, fmt.Errorf("%s: %w", op, ErrLost)
	}
	v, err := call()
	if fault == Kept {
		return none, fmt.Errorf("%s: %w", op, kept)
	}
	return v, err
}

// ledgerCall is do for the seat ledger, whose kept calls are not acknowledged.
func ledgerCall[T any](f *Faults, op Op, call func() (T, error)) (T, error) {
	return do(f, op, booking.ErrNotAcknowledged, call)
}

// nothing makes a call that only has an error fit for do.
func nothing(call func() error) func() (struct{}, error) {
	return func() (struct{}, error) { return struct{}{}, call() }
}
