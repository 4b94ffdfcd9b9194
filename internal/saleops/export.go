package saleops

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// ExportVersion is the version written into every line of an export.
const ExportVersion = "1"

// Exported is one booking as an export tells it (docs/shapes.md): who has which
// seat, by which payment. It has no e-mail address, no payer's page and no lease.
type Exported struct {
	Code          string
	CandidateHash string
	Level         string
	State         booking.RecordState
	Amount        booking.Money
	Currency      string
	PaymentID     string
	Transaction   string
	Invoice       string
	Attempt       string
	Epoch         string
	AdmittedAt    time.Time
	Deadline      time.Time
	PaidAt        time.Time
	Reason        string
	Mail          booking.MailState
}

// ExportOf is what an export tells of a record.
func ExportOf(rec booking.Record) Exported {
	return Exported{
		Code: rec.Code, CandidateHash: rec.CandidateHash, Level: rec.Level, State: rec.State, Amount: rec.Amount, Currency: rec.Currency,
		PaymentID: rec.PaymentID, Transaction: rec.Transaction, Invoice: rec.Invoice, Attempt: rec.Attempt, Epoch: rec.Epoch,
		AdmittedAt: rec.AdmittedAt.UTC(), Deadline: rec.Deadline.UTC(), PaidAt: rec.PaidAt.UTC(), Reason: rec.Reason, Mail: rec.Mail,
	}
}

// column is one column of an export: how a value is written, and read again.
type column struct {
	name string
	get  func(Exported) string
	set  func(*Exported, string) error
}

func textColumn[T ~string](name string, at func(*Exported) *T) column {
	return column{
		name,
		func(e Exported) string { return string(*at(&e)) },
		func(e *Exported, s string) error { *at(e) = T(s); return nil },
	}
}

func timeColumn(name string, at func(*Exported) *time.Time) column {
	return column{
		name,
		func(e Exported) string {
			if t := *at(&e); !t.IsZero() {
				return t.UTC().Format(time.RFC3339Nano)
			}
			return ""
		},
		func(e *Exported, s string) error {
			if s == "" {
				return nil
			}
			t, err := time.Parse(time.RFC3339Nano, s)
			*at(e) = t.UTC()
			return err
		},
	}
}

// columns in their order.
func columns() []column {
	return []column{
		{"v", func(Exported) string { return ExportVersion }, func(_ *Exported, s string) error {
			if s != ExportVersion {
				return fmt.Errorf("this program reads version %s", ExportVersion)
			}
			return nil
		}},
		textColumn("code", func(e *Exported) *string { return &e.Code }),
		textColumn("candidate_hash", func(e *Exported) *string { return &e.CandidateHash }),
		textColumn("level", func(e *Exported) *string { return &e.Level }),
		textColumn("state", func(e *Exported) *booking.RecordState { return &e.State }),
		{"amount", func(e Exported) string { return e.Amount.String() }, func(e *Exported, s string) (err error) {
			e.Amount, err = booking.ParseMoney(s)
			return err
		}},
		textColumn("currency", func(e *Exported) *string { return &e.Currency }),
		textColumn("payment_id", func(e *Exported) *string { return &e.PaymentID }),
		textColumn("transaction", func(e *Exported) *string { return &e.Transaction }),
		textColumn("invoice", func(e *Exported) *string { return &e.Invoice }),
		textColumn("attempt", func(e *Exported) *string { return &e.Attempt }),
		textColumn("epoch", func(e *Exported) *string { return &e.Epoch }),
		timeColumn("admitted_at", func(e *Exported) *time.Time { return &e.AdmittedAt }),
		timeColumn("deadline", func(e *Exported) *time.Time { return &e.Deadline }),
		timeColumn("paid_at", func(e *Exported) *time.Time { return &e.PaidAt }),
		textColumn("reason", func(e *Exported) *string { return &e.Reason }),
		textColumn("mail", func(e *Exported) *booking.MailState { return &e.Mail }),
	}
}

// ExportColumns names the columns of an export, in their order.
func ExportColumns() []string {
	var names []string
	for _, c := range columns() {
		names = append(names, c.name)
	}
	return names
}

// A spreadsheet takes a cell that begins with one of these for a formula, or skips
// what goes before one; the apostrophe, which it takes as "text follows" and does
// not show, is in the list so that a reader can take off exactly one.
const startsFormula = "=+-@\t\r\n'\uff1d\uff0b\uff0d\uff20"

// A cell is one line, whatever its value: programs that read lines see each booking
// whole, and no reader of CSV changes a line's end inside a value.
var (
	oneLine   = strings.NewReplacer(`\`, `\\`, "\r", `\r`, "\n", `\n`)
	manyLines = strings.NewReplacer(`\\`, `\`, `\r`, "\r", `\n`, "\n")
)

// safeCell writes a value so that no spreadsheet computes it.
func safeCell(v string) string {
	if v != "" && strings.ContainsRune(startsFormula, []rune(v)[0]) {
		return "'" + oneLine.Replace(v)
	}
	return oneLine.Replace(v)
}

// cellValue is what safeCell was given.
func cellValue(cell string) string { return manyLines.Replace(strings.TrimPrefix(cell, "'")) }

// ExportRecords is what an export reads.
type ExportRecords interface {
	Records(ctx context.Context) iter.Seq2[booking.Record, error]
}

// ExportDone is what an export has written.
type ExportDone struct {
	Bookings int
	// Unreadable are the attempts whose records could not be read: they are not in it.
	Unreadable []string
}

// Export writes the records in that state, or all of them for "", as CSV, one after
// the other as the store's scan tells them, in no promised order: it holds none of
// them. A record that is written meanwhile may be told as it was before or after. An
// error ends it, and what was written is not whole.
func Export(ctx context.Context, store ExportRecords, state booking.RecordState, w io.Writer) (ExportDone, error) {
	var done ExportDone
	out, all := csv.NewWriter(w), columns()
	if err := out.Write(ExportColumns()); err != nil {
		return done, fmt.Errorf("write export: %w", err)
	}
	line := make([]string, len(all))
	for rec, err := range store.Records(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			done.Unreadable = append(done.Unreadable, rec.Attempt)
			continue
		case err != nil:
			return done, err
		case state != "" && rec.State != state:
			continue
		}
		e := ExportOf(rec)
		for i, c := range all {
			line[i] = safeCell(c.get(e))
		}
		if err := out.Write(line); err != nil {
			return done, fmt.Errorf("write export: %w", err)
		}
		done.Bookings++
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return done, fmt.Errorf("write export: %w", err)
	}
	return done, nil
}

// ReadExport reads an export again, one booking after the other. The first error
// ends it and names the line.
func ReadExport(r io.Reader) iter.Seq2[Exported, error] {
	return func(yield func(Exported, error) bool) {
		in, all := csv.NewReader(r), columns()
		in.ReuseRecord = true
		header, err := in.Read()
		if err == nil && !slices.Equal(header, ExportColumns()) {
			err = fmt.Errorf("its first line is %q, want the columns %q", header, ExportColumns())
		}
		if err != nil {
			yield(Exported{}, fmt.Errorf("read export: %w", err))
			return
		}
		for {
			cells, err := in.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			var e Exported
			for i := range cells {
				if err != nil {
					break
				}
				if err = all[i].set(&e, cellValue(cells[i])); err != nil {
					n, _ := in.FieldPos(i)
					err = fmt.Errorf("line %d, %s: %w", n, all[i].name, err)
				}
			}
			if err != nil {
				yield(Exported{}, fmt.Errorf("read export: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}
