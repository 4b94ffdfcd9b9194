package seatctl

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/booking"
)

func TestProgress_ALineEachTenSecondsWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	p := newProgress(&out, 1000, func() time.Time { return now })
	for i := range 25 {
		now = now.Add(time.Second)
		p.at(500*(i+1), int64(40*(i+1)))
	}
	p.end()
	want := "5000 rows, 500 rows/s, 40 % of the file\n10000 rows, 500 rows/s, 80 % of the file\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestMasked_KeepsTheFirstCharacterAndTheDomain(t *testing.T) {
	t.Parallel()
	for email, want := range map[string]string{
		"candidate@example.org": "c***@example.org", "c@example.org": "c***@example.org", "é.x@example.org": "é***@example.org",
		"": "", "@example.org": "", "nobody": "",
	} {
		if got := masked(email); got != want {
			t.Errorf("%q: got %q, want %q", email, got, want)
		}
	}
}

// A list that breaks off leaves nothing behind that looks like the list.
func TestExport_ABrokenListLeavesNoFile(t *testing.T) {
	t.Parallel()
	for want, broken := range map[int]error{exitWrong: booking.ErrAllowlistMoved, exitNotRun: errors.New("connection refused")} {
		list := iter.Seq2[booking.Candidate, error](func(yield func(booking.Candidate, error) bool) {
			_ = yield(booking.Candidate{Code: "AB-0001", Email: "a@example.org"}, nil) && yield(booking.Candidate{}, broken)
		})
		path := filepath.Join(t.TempDir(), "out.csv")
		c := &candidatesExportCommand{Out: path}
		var errs bytes.Buffer
		if got := end(&errs, c.export(&session{ctx: t.Context(), stdout: new(bytes.Buffer), stderr: &errs}, list)); got != want {
			t.Errorf("%v: got exit status %d (%s), want %d", broken, got, &errs, want)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%v: the file: got %v, want none", broken, err)
		}
	}
}

// lostLater is a list of one candidate whose sale is another after it, or none.
type lostLater struct {
	after error
	epoch string
	asked bool
}

func (l *lostLater) Epoch(context.Context) (string, error) {
	if l.asked {
		return l.epoch, l.after
	}
	l.asked = true
	return "e1", nil
}

func (*lostLater) Candidates(context.Context) iter.Seq2[booking.Candidate, error] {
	return func(yield func(booking.Candidate, error) bool) {
		yield(booking.Candidate{Code: "AB-0001", Email: "a@example.org"}, nil)
	}
}

func TestExport_AListThatIsLostAmidItIsNotTheList(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ledger lostLater
		want   error
	}{
		"Lost":    {lostLater{after: booking.ErrLedgerUnknown}, booking.ErrLedgerUnknown},
		"Another": {lostLater{epoch: "e2"}, booking.ErrAllowlistMoved},
		"There":   {lostLater{epoch: "e1"}, nil},
	} {
		list, err := listOf(t.Context(), &c.ledger)
		if err != nil {
			t.Fatal(err)
		}
		if rows, err := writeCandidates(io.Discard, list); !errors.Is(err, c.want) || rows != 1 {
			t.Errorf("%s: got %d rows, %v, want the one, and %v", name, rows, err, c.want)
		}
	}
}
