package salefile_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/salefile"
)

// read ranges over a file and keeps what came, errors as text.
func read(r io.Reader) (got []salefile.Candidate, problems []string) {
	for c, err := range salefile.Candidates(r, booking.DefaultCodeRule()) {
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		got = append(got, c)
	}
	return got, problems
}

func TestCandidates_SameRowsHoweverSaved(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"plain":                 "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org\n",
		"no last line break":    "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org",
		"byte order mark":       "\ufeffcode,email\nAB-0001,a@example.org\nAB-0002,b@example.org\n",
		"CRLF":                  "code,email\r\nAB-0001,a@example.org\r\nAB-0002,b@example.org\r\n",
		"semicolons":            "code;email\nAB-0001;a@example.org\nAB-0002;b@example.org\n",
		"tabs":                  "code\temail\nAB-0001\ta@example.org\nAB-0002\tb@example.org\n",
		"quoted":                "\"code\",\"email\"\n\"AB-0001\",\"a@example.org\"\nAB-0002,\"b@example.org\"\n",
		"quoted after a space":  "code,email\n \"AB-0001\", \"a@example.org\"\nAB-0002,b@example.org\n",
		"other order and case":  "Email , CODE\na@example.org,AB-0001\nb@example.org,AB-0002\n",
		"spaces and small case": "code,email\n ab-0001 , A@Example.org \n\u00a0AB-0002\t, b@example.ORG\n",
		"empty columns":         "code,email,,\nAB-0001,a@example.org,,\nAB-0002,b@example.org,,\n",
		"equal rows again":      "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org\nab-0001, A@example.org\n",
		"UTF-16 little endian":  utf16(binary.LittleEndian, "code,email\r\nAB-0001,a@example.org\r\nAB-0002,b@example.org\r\n"),
		"UTF-16 big endian":     utf16(binary.BigEndian, "code;email\nAB-0001;a@example.org\nAB-0002;b@example.org"),
		"gzip":                  zipped("code,email\nAB-0001,a@example.org\nAB-0002,b@example.org\n"),
		"gzip of UTF-16":        zipped(utf16(binary.LittleEndian, "code\temail\nAB-0001\ta@example.org\nAB-0002\tb@example.org\n")),
		"gzip in two members":   zipped("code,email\nAB-0001,a@ex") + zipped("ample.org\nAB-0002,b@example.org\n"),
		"a late empty column":   "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org, ,\"\"\n",
		"empty tail":            "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org\n\n,\n  \n\"\",\"\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, problems := read(strings.NewReader(in))
			if problems != nil {
				t.Fatalf("errors: got %q, want none", problems)
			}
			want := []salefile.Candidate{
				{Code: "AB-0001", Email: "a@example.org", Line: 2},
				{Code: "AB-0002", Email: "b@example.org", Line: 3},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("candidates (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCandidates_EveryWrongRowIsTold(t *testing.T) {
	t.Parallel()
	in := "code,email\n" +
		"AB-0001,a@example.org\n" +
		"x,b@example.org\n" + // 3: too short for a code
		"AB-0003\n" + // 4: one column
		"AB-0004,c@example.org,extra\n" + // 5
		"AB-0005,nobody\n" + // 6
		"AB-0001,other@example.org\n" + // 7: differs from line 2
		"AB-0006,\"d@example.org\n" + // 8: quotation mark left open
		"AB-0007,\xff@example.org\n" + // 9
		"AB-0008,e@example.org\n" +
		"AB-0009," + strings.Repeat("f", 5000) + "\n" + // 11
		"\"AB-0010\nAB-0010\",g@example.org\n" + // 12 and 13: a line break inside quotes
		"AB\"0011,h@example.org\n" + // 14
		"\"AB-0012\"x,i@example.org\n" + // 15
		"AB-0013,j@exam\ufffdple.org\n" + // 16: what a conversion leaves
		"AB-0014,k@example.org\n"
	got, problems := read(strings.NewReader(in))
	wantProblems := []string{
		"line 3: code: not a candidate code",
		"line 4: want code and email, got 1 fields",
		"line 5: want code and email, got 3 fields",
		"line 6: email: not an e-mail address",
		"line 7: its code is on line 2 with another e-mail address",
		"line 8: column 9: the quotation mark is not closed on its line, and no field may hold a line break",
		"line 9: a character cannot be read: save the file as CSV in UTF-8",
		"line 11: longer than 4096 bytes",
		"line 12: column 1: the quotation mark is not closed on its line, and no field may hold a line break",
		"line 13: column 8: a quotation mark inside a field",
		"line 14: column 3: a quotation mark inside a field",
		"line 15: column 10: text after the closing quotation mark",
		"line 16: a character cannot be read: save the file as CSV in UTF-8",
	}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	want := []salefile.Candidate{
		{Code: "AB-0001", Email: "a@example.org", Line: 2},
		{Code: "AB-0008", Email: "e@example.org", Line: 10},
		{Code: "AB-0014", Email: "k@example.org", Line: 17},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("candidates (-want +got):\n%s", diff)
	}
}

func TestCandidates_RefusesTheFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"empty", "", "line 1: the file is empty: want the header code,email"},
		{"blank lines only", "\n\n", "line 1: the file is empty: want the header code,email"},
		{"no header", "AB-0001,a@example.org\n", "line 1: want the header code,email first, and no other column"},
		{"a column of another name", "code,email,name\n", "line 1: want the header code,email first, and no other column"},
		{"one column", "\ncode\n", "line 2: want the header code,email first, and no other column"},
		{"the same column twice", "code,code\n", "line 1: want the header code,email first, and no other column"},
		{"a header alone", "code,email\n\n", "line 2: the file ends without a candidate"},
		{"a workbook", "PK\x03\x04...", "line 1: the file is a workbook or an archive: save it as CSV"},
		{"gzip inside gzip", zipped(zipped("code,email\nAB-0001,a@example.org\n")), "line 1: the file is UTF-16 without a byte order mark, or no text: save it as CSV in UTF-8"},
		{"gzip cut short", zipped("code,email\n")[:20], "read candidates file, line 1: unexpected EOF"},
		{"gzip of nothing", "\x1f\x8b", "read candidates file: unexpected EOF"},
		{"a header too long", strings.Repeat("c", 5000) + "\n", "line 1: longer than 4096 bytes"},
		{"UTF-16 without mark", "\x00c\x00o\x00d\x00e", "line 1: the file is UTF-16 without a byte order mark, or no text: save it as CSV in UTF-8"},
		{"carriage returns alone", "code,email\rAB-0001,a@example.org\r", "line 1: want the header code,email first, and no other column"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, problems := read(strings.NewReader(tt.in))
			if diff := cmp.Diff([]string{tt.want}, problems); diff != "" || got != nil {
				t.Errorf("got candidates %v, want none; errors (-want +got):\n%s", got, diff)
			}
		})
	}
}

func TestCandidates_ErrorsQuoteNoAddress(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"secret@example.org,AB-0001\n",
		"code,email\nsecret@example.org,AB-0001\n",
		"code,email\nAB-0001,\"secret@example.org\n",
		"code,email\nAB-0001,secret@example.org@\n",
		"code,email\nAB-0001,secret@example.org\nAB-0001,secret2@example.org\n",
	} {
		_, problems := read(strings.NewReader(in))
		if len(problems) == 0 || strings.Contains(strings.Join(problems, "\n"), "secret") {
			t.Errorf("errors for %q: got %q, want at least one and no address", in, problems)
		}
	}
}

func TestCandidates_ReadErrorIsTheLastThingThatComes(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk gone")
	r := io.MultiReader(strings.NewReader("code,email\nAB-0001,a@example.org\n"), brokenReader{broken})
	var last error
	rows := 0
	for _, err := range salefile.Candidates(r, booking.DefaultCodeRule()) {
		if last = err; err == nil {
			rows++
		}
	}
	if rows != 1 || !errors.Is(last, broken) {
		t.Errorf("got %d rows and then %v, want 1 and %v", rows, last, broken)
	}
}

func TestCandidates_StopsWhenTheCallerStops(t *testing.T) {
	t.Parallel()
	rows, wrong := 0, 0
	for _, err := range salefile.Candidates(strings.NewReader("code,email\nAB-0001,a@example.org\nbad\nAB-0002,b@example.org\n"), booking.DefaultCodeRule()) {
		if err != nil {
			wrong++
			break // after a row and an error
		}
		rows++
	}
	if rows != 1 || wrong != 1 {
		t.Errorf("got %d rows and %d errors before the stop, want one of each", rows, wrong)
	}
}

func TestCandidates_ErrorIsALineError(t *testing.T) {
	t.Parallel()
	for _, err := range salefile.Candidates(strings.NewReader("code,email\nx,y\n"), booking.DefaultCodeRule()) {
		var at *salefile.LineError
		if !errors.As(err, &at) || at.Line != 2 {
			t.Errorf("error: got %v, want a LineError of line 2", err)
		}
	}
}

func TestCandidates_ExampleHasTwoThousand(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../../examples/candidates.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	got, problems := read(f)
	if len(got) != 2000 || problems != nil {
		t.Fatalf("examples/candidates.csv: got %d candidates and errors %q, want 2000 and none", len(got), problems)
	}
	want := salefile.Candidate{Code: "AB-100001", Email: "candidate100001@example.org", Line: 2}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("first candidate (-want +got):\n%s", diff)
	}
	for _, c := range got {
		if !strings.HasSuffix(c.Email, "@example.org") {
			t.Errorf("line %d: got an address outside example.org", c.Line)
		}
	}
}

// Not parallel: it looks at the heap.
func TestCandidates_MemoryStaysFlat(t *testing.T) {
	const rows = 100_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	n, before, after := 0, heap(), uint64(0)
	for _, err := range salefile.Candidates(&endless{rows: rows}, booking.DefaultCodeRule()) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == rows {
			after = heap()
		}
	}
	if n != rows {
		t.Fatalf("rows: got %d, want %d", n, rows)
	}
	if perRow := (int64(after) - int64(before)) / rows; perRow > 22 {
		t.Errorf("kept per row: got %d bytes, want at most 22", perRow)
	}
}

// endless writes a candidates file as it is read.
type endless struct {
	rows, next int
	left       string
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == "" {
		if e.next > e.rows {
			return 0, io.EOF
		}
		e.left = "code,email\n"
		if e.next > 0 {
			e.left = fmt.Sprintf("AB-%d,candidate%d@a-rather-long-domain.example.org\n", e.next+1000, e.next)
		}
		e.next++
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}
