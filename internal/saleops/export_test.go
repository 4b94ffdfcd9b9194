package saleops_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/saleops"
)

// shelf is a store of records that only tells them.
type shelf []booking.Record

var errShelf = fmt.Errorf("record is broken: %w", booking.ErrUnreadable)

func (s shelf) Records(context.Context) iter.Seq2[booking.Record, error] {
	return func(yield func(booking.Record, error) bool) {
		for _, rec := range s {
			var err error
			if rec.Version == 0 {
				err = errShelf
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

func exportable(reason string) booking.Record {
	at := time.Date(2026, 12, 1, 4, 0, 0, 123456789, time.UTC)
	row := booking.Row{
		Attempt: booking.AttemptID(booking.NewEpoch(at), booking.NewAttemptSuffix(at)), Level: "N1", Amount: 150050, Currency: "BDT",
		Payment: "TR1", AdmittedAt: at.UnixMilli(), Deadline: at.Add(10 * time.Minute).UnixMilli(),
	}
	rec := row.HeldRecord("AB-1001", "https://gateway.example/pay/TR1", "secret")
	rec.Reason = reason
	return rec
}

func export(t *testing.T, s shelf, state booking.RecordState) (string, saleops.ExportDone) {
	t.Helper()
	var b bytes.Buffer
	done, err := saleops.Export(t.Context(), s, state, &b)
	if err != nil {
		t.Fatalf("export: got %v, want nil", err)
	}
	return b.String(), done
}

func reload(t *testing.T, text string) []saleops.Exported {
	t.Helper()
	var out []saleops.Exported
	for e, err := range saleops.ReadExport(strings.NewReader(text)) {
		if err != nil {
			t.Fatalf("read export: got %v, want nil", err)
		}
		out = append(out, e)
	}
	return out
}

// hostile are values that a spreadsheet, a shell or a reader of CSV may take for
// something else.
var hostile = []string{
	"", "plain", "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'", "''", "'=1", `"`, `","`, "a,b", "a\r\nb", "a\nb\r",
	`\`, `\n`, `\\n`, `\r\n`, "\uff1d1", "=cmd|' /C calc'!A0", " =1", "বাংলা", strings.Repeat("=", 300),
}

func TestExport_CanBeLoadedAgainAsItWas(t *testing.T) {
	t.Parallel()
	var s shelf
	var want []saleops.Exported
	for _, text := range hostile {
		rec := exportable(text)
		rec.Code, rec.Transaction, rec.Level = text, text, text // as a store of anything could have it
		s = append(s, rec)
		want = append(want, saleops.ExportOf(rec))
	}
	paid := exportable("")
	paid.State, paid.PaidAt, paid.Mail = booking.StatePaid, paid.AdmittedAt.Add(time.Minute), booking.MailSent
	s, want = append(s, paid), append(want, saleops.ExportOf(paid))
	text, done := export(t, s, "")
	if diff := cmp.Diff(want, reload(t, text)); diff != "" || done.Bookings != len(s) {
		t.Errorf("%d bookings (-written +read):\n%s", done.Bookings, diff)
	}
	if lines := strings.Count(text, "\n"); lines != len(s)+1 {
		t.Errorf("lines: got %d, want one for each of %d bookings and the header", lines, len(s))
	}
}

func FuzzExport_RoundTrip(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rec := exportable(text)
		out, _ := export(t, shelf{rec}, "")
		if got := reload(t, out); len(got) != 1 || got[0] != saleops.ExportOf(rec) {
			t.Errorf("got %+v, want %+v", got, saleops.ExportOf(rec))
		}
	})
}

func TestExport_NoCellIsAFormula(t *testing.T) {
	t.Parallel()
	var s shelf
	for _, text := range hostile {
		rec := exportable(text)
		rec.Code = text
		s = append(s, rec)
	}
	text, _ := export(t, s, "")
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		for _, cell := range line {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n") || strings.HasPrefix(cell, "\uff1d") {
				t.Errorf("cell %q begins a formula", cell)
			}
		}
	}
}

func TestExport_ByState(t *testing.T) {
	t.Parallel()
	held, paid, released := exportable(""), exportable(""), exportable("lapsed")
	paid.State, released.State = booking.StatePaid, booking.StateReleased
	s := shelf{held, paid, {Attempt: "broken"}, released}
	for state, n := range map[booking.RecordState]int{"": 3, booking.StatePaid: 1, booking.StateHeld: 1, booking.StateReleased: 1} {
		text, done := export(t, s, state)
		got := reload(t, text)
		if len(got) != n || done.Bookings != n || len(done.Unreadable) != 1 || done.Unreadable[0] != "broken" {
			t.Errorf("state %q: got %d bookings, %+v, want %d, and the unreadable one named", state, len(got), done, n)
		}
		for _, e := range got {
			if state != "" && e.State != state {
				t.Errorf("state %q: got a booking that is %s", state, e.State)
			}
		}
	}
}

func TestExport_TellsNoSecret(t *testing.T) {
	t.Parallel()
	text, _ := export(t, shelf{exportable("")}, "")
	for _, secret := range []string{"secret", "gateway.example"} {
		if strings.Contains(text, secret) {
			t.Errorf("export has %q: who has it can act as the payer", secret)
		}
	}
}

func TestReadExport_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good, _ := export(t, shelf{exportable("")}, "")
	header, line, _ := strings.Cut(good, "\n")
	for name, c := range map[string]struct{ text, want string }{
		"empty":         {"", "read export"},
		"other columns": {"code,email\n", "want the columns"},
		"version":       {header + "\n" + strings.Replace(line, "1,", "2,", 1), "line 2, v:"},
		"amount":        {header + "\n" + strings.Replace(line, "1500.50", "1.500,50", 1), "wrong number of fields"},
		"money":         {header + "\n" + strings.Replace(line, "1500.50", "15e3", 1), "line 2, amount:"},
		"time":          {header + "\n" + strings.Replace(line, "2026-12-01T04:00", "1 December", 1), "line 2, admitted_at:"},
		"short":         {header + "\n1,AB-1001\n", "wrong number of fields"},
	} {
		var got error
		for _, err := range saleops.ReadExport(strings.NewReader(c.text)) {
			got = errors.Join(got, err)
		}
		if got == nil || !strings.Contains(got.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that says %q", name, got, c.want)
		}
	}
}
