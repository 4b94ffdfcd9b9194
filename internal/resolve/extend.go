package resolve

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
)

// HoldLedger is what giving lost time back needs of the seat ledger. Rows, Now,
// Epoch and PaymentOf only read; Extend is acknowledged or an error, and safe to
// repeat: it extends a row once for each run.
type HoldLedger interface {
	Epoch(ctx context.Context) (string, error)
	Now(ctx context.Context) (time.Time, error)
	Rows(ctx context.Context) iter.Seq2[booking.DueRow, error]
	// Extend's word is one of the Outcomes here; the row comes with all but "moved".
	Extend(ctx context.Context, code, attempt, run string, by time.Duration, missed, after time.Time) (booking.Row, string, error)
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
}

// HoldStore keeps the records. Both are safe to repeat.
type HoldStore interface {
	PutHeld(ctx context.Context, r booking.Record) (booking.Record, bool, error)
	// Extend moves a HELD record's deadline later, never earlier.
	Extend(ctx context.Context, candidateHash, attempt string, deadline time.Time) error
}

// Holds gives lost time back.
type Holds struct {
	Ledger HoldLedger
	Store  HoldStore
}

// The outcomes of a row.
const (
	extended = "extended"
	already  = "already" // by this run before it broke off, or by a later one
	missed   = "missed"  // its time was over before time was lost
	after    = "after"   // admitted when the run had begun
	moved    = "moved"   // nobody waits for its payer
)

const (
	extendWidth    = 16 // rows at a time
	extendHopeless = 64 // failures in a row, after which something that all need is down
	extendStep     = 5 * time.Second
	// MaxBy is the longest that can be given: a payment lives no longer.
	MaxBy = 24 * time.Hour
)

// Run is one operation that gives lost time back, whole or broken off. Its id says
// all of it, so that a repeat is the same operation: who has lost time was decided
// when it began.
type Run struct {
	ID    string
	Epoch string
	// Start is by the ledger's clock.
	Start time.Time
	// By is how much time each hold gets; Since is how long before Start a deadline
	// may have passed.
	By, Since time.Duration
}

// ErrOtherLedger refuses to go on with a run that began in another ledger, whose
// rows remembered whom it had extended.
var ErrOtherLedger = errors.New("the run began in a ledger that is gone: nobody knows whom it extended")

// NewRun begins a run; since 0 is by.
func (h *Holds) NewRun(ctx context.Context, by, since time.Duration) (Run, error) {
	since = cmp.Or(since, by)
	if by < time.Second || by > MaxBy || by%time.Second != 0 || since < time.Second || since > MaxBy || since%time.Second != 0 {
		return Run{}, fmt.Errorf("extend holds by %s, since %s: want whole seconds, up to %s", by, since, MaxBy)
	}
	epoch, err := h.Ledger.Epoch(ctx)
	if err != nil {
		return Run{}, fmt.Errorf("extend holds: %w", err)
	}
	now, err := h.Ledger.Now(ctx)
	if err != nil {
		return Run{}, fmt.Errorf("extend holds: %w", err)
	}
	// Ids of one ledger sort by the time of their runs: a row knows which came last.
	id := fmt.Sprintf("%s-%013d-%s-%s-%s", epoch, now.UnixMilli(), by, since, rand.Text()[:6])
	return Run{ID: id, Epoch: epoch, Start: time.UnixMilli(now.UnixMilli()).UTC(), By: by, Since: since}, nil
}

// Resume goes on with a run that broke off. The error is ErrOtherLedger when the
// ledger is not the one it began in.
func (h *Holds) Resume(ctx context.Context, id string) (Run, error) {
	part := strings.Split(id, "-")
	if len(part) != 5 {
		return Run{}, fmt.Errorf("run %.80q is not one of ours", id)
	}
	ms, err1 := strconv.ParseInt(part[1], 10, 64)
	by, err2 := time.ParseDuration(part[2])
	since, err3 := time.ParseDuration(part[3])
	run := Run{ID: id, Epoch: part[0], Start: time.UnixMilli(ms).UTC(), By: by, Since: since}
	if errors.Join(err1, err2, err3) != nil || by <= 0 || by > MaxBy || since <= 0 || since > MaxBy {
		return Run{}, fmt.Errorf("run %.80q is not one of ours", id)
	}
	epoch, err := h.Ledger.Epoch(ctx)
	if err != nil {
		return Run{}, fmt.Errorf("extend holds: %w", err)
	}
	if epoch != run.Epoch {
		return Run{}, fmt.Errorf("run %s: %w", id, ErrOtherLedger)
	}
	return run, nil
}

// Extended is how far a run is.
type Extended struct {
	// Rows were looked at; the others say what became of them.
	Rows     int `json:"rows"`
	Extended int `json:"extended"`
	Already  int `json:"already"`
	Missed   int `json:"missed"`
	After    int `json:"after"`
	Moved    int `json:"moved"`
	// Failed rows could not be read, or were perhaps extended and nothing rests on it:
	// repeat the run.
	Failed int `json:"failed"`
	// Failure is the first of them.
	Failure string `json:"failure,omitempty"`
	// Doubt is the error of the first that was perhaps extended; nil when none was.
	Doubt error `json:"-"`
}

func (e *Extended) count(word string) {
	switch word {
	case extended:
		e.Extended++
	case already:
		e.Already++
	case missed:
		e.Missed++
	case after:
		e.After++
	default:
		e.Moved++
	}
}

// Count says what the run would do now. It changes nothing.
func (h *Holds) Count(ctx context.Context, run Run) (Extended, error) {
	var out Extended
	seen := map[string]bool{}
	for d, err := range h.Ledger.Rows(ctx) {
		if err != nil {
			return out, fmt.Errorf("extend holds: %w", err)
		}
		if seen[d.Code] {
			continue // a scan may tell a row twice
		}
		seen[d.Code] = true
		out.Rows++
		if d.Err != nil {
			out.fail(d.Err)
			continue
		}
		out.count(run.word(d.Row))
	}
	return out, nil
}

// word is what extend.lua says of such a row.
func (r Run) word(row booking.Row) string {
	switch {
	case row.Phase == booking.PhaseNew || row.Phase == booking.PhasePaid || row.Deadline == 0:
		return moved
	case row.Extended >= r.ID:
		return already
	case row.AdmittedAt >= r.Start.UnixMilli():
		return after
	case row.Deadline < r.Start.Add(-r.Since).UnixMilli():
		return missed
	}
	return extended
}

func (e *Extended) fail(err error) {
	if e.Failed++; e.Failure == "" {
		e.Failure = err.Error()
	}
}

// Extend gives every hold that has lost time the run's time, in the ledger,
// acknowledged, and then in its record. progress is told now and then, by one
// goroutine at a time; nil is none. Rows that failed are counted, and hold up no
// other; the error says why the run ended early. Repeated with the same run it
// finishes what is missing and extends nobody twice.
func (h *Holds) Extend(ctx context.Context, run Run, progress func(Extended)) (Extended, error) {
	var (
		mu    sync.Mutex
		out   Extended
		inRow int // failures
	)
	note := func(word string, err, doubt error) {
		mu.Lock()
		defer mu.Unlock()
		out.Rows++
		if err != nil {
			inRow++
			out.fail(err)
			out.Doubt = cmp.Or(out.Doubt, doubt)
		} else {
			inRow = 0
			out.count(word)
		}
		if progress != nil {
			progress(out)
		}
	}
	hopeless := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return inRow >= extendHopeless
	}
	var work errgroup.Group
	work.SetLimit(extendWidth)
	seen := map[string]bool{}
	var ended error
	for d, err := range h.Ledger.Rows(ctx) {
		if err != nil {
			ended = fmt.Errorf("extend holds: %w", err)
			break
		}
		if seen[d.Code] {
			continue
		}
		seen[d.Code] = true
		if hopeless() {
			ended = fmt.Errorf("extend holds: %d rows in a row failed", extendHopeless)
			break
		}
		if d.Err != nil {
			note("", d.Err, nil)
			continue
		}
		if word := run.word(d.Row); word != extended && word != already {
			note(word, nil, nil)
			continue
		}
		work.Go(func() error {
			word, err := h.extend(ctx, run, d)
			note(word, err, err)
			return nil
		})
	}
	_ = work.Wait() // failures are noted
	return out, ended
}

// extend is one row: the ledger first, then the record.
func (h *Holds) extend(ctx context.Context, run Run, d booking.DueRow) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, extendStep)
	defer cancel()
	row, word, err := h.Ledger.Extend(ctx, d.Code, d.Row.Attempt, run.ID, run.By, run.Start.Add(-run.Since), run.Start)
	if err != nil {
		return "", fmt.Errorf("attempt %s: %w", d.Row.Attempt, err)
	}
	if word != extended && word != already {
		return word, nil
	}
	if err := h.record(ctx, d.Code, row); err != nil {
		return "", fmt.Errorf("attempt %s: %w", row.Attempt, err)
	}
	return word, nil
}

// record moves the deadline of the attempt's record. One that the worker has not
// written yet is put, as it is now: the message on its way has the old deadline.
func (h *Holds) record(ctx context.Context, code string, row booking.Row) error {
	if row.Phase != booking.PhaseRefused {
		p, err := h.Ledger.PaymentOf(ctx, row.Attempt)
		if err != nil && !errors.Is(err, booking.ErrNotFound) && !errors.Is(err, booking.ErrUnreadable) {
			return err
		}
		if _, _, err := h.Store.PutHeld(ctx, row.HeldRecord(code, p.URL, p.Signature)); err != nil {
			return fmt.Errorf("put record: %w", err)
		}
	}
	return h.Store.Extend(ctx, booking.CandidateHash(code), row.Attempt, time.UnixMilli(row.Deadline).UTC())
}
