package salefile

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"holdfast/internal/booking"
)

// Every row is met again, at its line, however often its table grew in between, and
// the tables stay as full as their size in memory is said to need.
func TestFingerprints_RememberEveryRow(t *testing.T) {
	t.Parallel()
	const rows = 100_000
	f := newFingerprints()
	row := func(i int, email string) Candidate {
		return Candidate{Code: fmt.Sprintf("AB-%06d", i), Email: email, Line: i + 2}
	}
	for i := range rows {
		if line, m := f.add(row(i, "a@example.org")); m != fresh || line != 0 {
			t.Fatalf("row %d: got meeting %d of line %d, want a fresh one", i, m, line)
		}
	}
	for i := range rows {
		if line, m := f.add(row(i, "a@example.org")); m != same || line != i+2 {
			t.Fatalf("row %d again: got meeting %d of line %d, want the same of line %d", i, m, line, i+2)
		}
		if line, m := f.add(row(i, "b@example.org")); m != another || line != i+2 {
			t.Fatalf("row %d with another address: got meeting %d of line %d, want that of line %d", i, m, line, i+2)
		}
	}
	slots := 0
	for i := range f.shards {
		slots += len(f.shards[i].slots)
	}
	if bytes := slots * 16; bytes > rows*21 { // a shard has more or fewer rows than the others
		t.Errorf("memory: got %d bytes a row, want at most 21", bytes/rows)
	}
}

// Codes whose slots are the same one are told apart, also around the table's end.
func TestShard_FullRunsWrapAround(t *testing.T) {
	t.Parallel()
	var s shard
	s.grow()
	for i := range uint64(50) {
		code := uint64(1<<56-1)&^0xff | i // the last slot of every size
		*s.find(code) = fingerprint{code: code, line: uint32(i + 1)}
	}
	s.grow()
	for i := range uint64(50) {
		code := uint64(1<<56-1)&^0xff | i
		if got := s.find(code); got.line != uint32(i+1) {
			t.Errorf("code %x: got line %d, want %d", code, got.line, i+1)
		}
	}
}

func TestBounded_MoreThanItsBytesAreTooLarge(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]error{5: nil, 4: ErrTooLarge} {
		_, err := io.ReadAll(&bounded{r: strings.NewReader("12345"), left: n})
		if !errors.Is(err, want) {
			t.Errorf("5 bytes of at most %d: got %v, want %v", n, err, want)
		}
	}
}

// Lines without end, as a few bytes of gzip can unfold to, end at the bound.
func TestReader_TooManyLinesEndTheReading(t *testing.T) {
	t.Parallel()
	r := NewReader(io.MultiReader(strings.NewReader("code,email\nAB-0001,a@example.org\n"), endlessLines{}), booking.DefaultCodeRule())
	r.line = maxLines - 1000 // as if so many had been read
	rows := 0
	var last error
	for _, err := range r.Rows() {
		if last = err; err == nil {
			rows++
		}
	}
	if rows != 1 || !errors.Is(last, ErrTooLarge) || r.line != maxLines+1 {
		t.Errorf("got %d rows, line %d, %v, want 1 row and ErrTooLarge on line %d", rows, r.line, last, maxLines+1)
	}
}

type endlessLines struct{}

func (endlessLines) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}
