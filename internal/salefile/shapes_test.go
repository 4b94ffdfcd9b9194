package salefile_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	stdutf16 "unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"holdfast/internal/booking"
	"holdfast/internal/salefile"
)

func zipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text) // a buffer takes all
	_ = w.Close()
	return b.String()
}

// utf16 is the text with a byte order mark.
func utf16(order binary.AppendByteOrder, text string) string {
	var b []byte
	for _, unit := range stdutf16.Encode([]rune("\ufeff" + text)) {
		b = order.AppendUint16(b, unit)
	}
	return string(b)
}

// saved writes candidates as one of the programs does that people have.
type saved struct {
	comma, end     string
	emailFirst     bool
	encode         func(string) string
	field          func(t *rapid.T, s string) string
	repeat, blanks bool
}

func drawShape(t *rapid.T) saved {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	plain := func(s string) string { return s }
	encode := map[string]func(string) string{
		"utf-8":     plain,
		"mark":      func(s string) string { return "\ufeff" + s },
		"utf-16 le": func(s string) string { return utf16(binary.LittleEndian, s) },
		"utf-16 be": func(s string) string { return utf16(binary.BigEndian, s) },
	}[pick("encoding", "utf-8", "mark", "utf-16 le", "utf-16 be")]
	s := saved{
		comma: pick("comma", ",", ";", "\t"), end: pick("end", "\n", "\r\n"), emailFirst: rapid.Bool().Draw(t, "email first"),
		encode: encode, repeat: rapid.Bool().Draw(t, "repeat"), blanks: rapid.Bool().Draw(t, "blanks"),
		field: func(t *rapid.T, s string) string {
			space := rapid.SampledFrom([]string{"", " ", "\u00a0", "  "})
			if rapid.Bool().Draw(t, "quoted") {
				return space.Draw(t, "before") + `"` + space.Draw(t, "in") + strings.ReplaceAll(s, `"`, `""`) + `"` + space.Draw(t, "after")
			}
			return space.Draw(t, "before") + s + space.Draw(t, "after")
		},
	}
	if rapid.Bool().Draw(t, "gzip") {
		s.encode = func(text string) string { return zipped(encode(text)) }
	}
	return s
}

func (s saved) write(t *rapid.T, list []booking.Candidate) string {
	var b strings.Builder
	row := func(code, email string) {
		fields := []string{s.field(t, code), s.field(t, email)}
		if s.emailFirst {
			fields[0], fields[1] = fields[1], fields[0]
		}
		b.WriteString(strings.Join(fields, s.comma) + rapid.SampledFrom([]string{"", s.comma, s.comma + " " + s.comma}).Draw(t, "tail") + s.end)
		if s.blanks && rapid.Bool().Draw(t, "blank") {
			b.WriteString(rapid.SampledFrom([]string{"", " ", s.comma, `""` + s.comma + `""`}).Draw(t, "empty") + s.end)
		}
	}
	row(rapid.SampledFrom([]string{"code", "CODE", "Code"}).Draw(t, "code"), rapid.SampledFrom([]string{"email", "Email"}).Draw(t, "email"))
	for _, c := range list {
		row(c.Code, c.Email)
		if s.repeat && rapid.Bool().Draw(t, "again") {
			row(strings.ToLower(c.Code), strings.TrimSuffix(c.Email, ".org")+".ORG")
		}
	}
	text := b.String()
	if rapid.Bool().Draw(t, "no last end") {
		text = strings.TrimSuffix(text, s.end)
	}
	return s.encode(text)
}

func drawCandidates(t *rapid.T) []booking.Candidate {
	codes := rapid.SliceOfNDistinct(rapid.StringMatching(`[0-9A-Z][0-9A-Z-]{3,12}`), 1, 12, rapid.ID[string]).Draw(t, "codes")
	list := make([]booking.Candidate, len(codes))
	for i, code := range codes {
		list[i] = booking.Candidate{Code: code, Email: rapid.StringMatching(`[a-z0-9à]{1,6}@[a-z0-9]{1,6}\.org`).Draw(t, "email")}
	}
	return list
}

// The same candidates are read from whatever program saved them, leading zeros and
// all.
func TestCandidates_AnyShapeReadsTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawCandidates(t)
		file := drawShape(t).write(t, want)
		var got []booking.Candidate
		for c, err := range salefile.NewReader(strings.NewReader(file), booking.DefaultCodeRule()).Checked(nil) {
			if err != nil {
				t.Fatalf("%q: got %v, want no error", file, err)
			}
			got = append(got, c)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q: candidates (-want +got):\n%s", file, diff)
		}
	})
}

// A row that is spoilt anywhere in any shape is refused with its line, and nothing of
// the file passes as whole.
func TestCandidates_ASpoiltRowIsRefusedWithItsLine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := drawCandidates(t)
		s := drawShape(t)
		s.blanks, s.repeat = false, false
		at := rapid.IntRange(0, len(list)-1).Draw(t, "row")
		spoil := rapid.SampledFrom([]booking.Candidate{
			{Code: "", Email: "a@example.org"}, {Code: "x", Email: "a@example.org"}, {Code: "AB-ä1", Email: "a@example.org"},
			{Code: "AB-0001", Email: "nobody"}, {Code: "AB-0001", Email: ""}, {Code: "AB-0001" + s.comma + "AB", Email: "a" + s.comma + "@example.org"},
		}).Draw(t, "spoilt")
		list[at] = spoil
		file := s.write(t, list)
		var wrong *salefile.FileError
		var last error
		for _, err := range salefile.NewReader(strings.NewReader(file), booking.DefaultCodeRule()).Checked(nil) {
			last = err
		}
		if wrong, _ = last.(*salefile.FileError); wrong == nil || wrong.Wrong != 1 || wrong.Told[0].Line != at+2 { //nolint:errorlint // this very error comes
			t.Fatalf("%q: got %v, want line %d alone", file, last, at+2)
		}
	})
}

// Whatever the bytes, reading ends, and says either candidates that are normal and
// distinct or what is wrong.
func FuzzCandidates(f *testing.F) {
	for _, seed := range []string{
		"code,email\nAB-0001,a@example.org\n", "\ufeffcode;email\r\n\"AB-0001\";a@example.org", "code\temail\n\"AB\n", "",
		utf16(binary.LittleEndian, "code,email\nAB-0001,a@example.org\n"), utf16(binary.BigEndian, "code,email\nAB-0001,a@example.org\n") + "x",
		zipped("code,email\nAB-0001,a@example.org\n"), "code,email\n\"AB-0001\" \"x\",\"\"\"\n,\n",
	} {
		f.Add(seed)
	}
	rule := booking.DefaultCodeRule()
	f.Fuzz(func(t *testing.T, file string) {
		seen := map[string]bool{}
		var last error
		for c, err := range salefile.NewReader(strings.NewReader(file), rule).Checked(nil) {
			if last != nil {
				t.Fatalf("got more after the error %v", last)
			}
			if last = err; err != nil {
				continue
			}
			code, errCode := rule.Normalize(c.Code)
			email, errEmail := booking.NormalizeEmail(c.Email)
			if errCode != nil || errEmail != nil || code != c.Code || email != c.Email || seen[code] {
				t.Fatalf("got %+v, want it normalised and once", c)
			}
			seen[code] = true
		}
		if last == nil && len(seen) == 0 {
			t.Fatal("got neither a candidate nor an error")
		}
	})
}

// The same file in UTF-16 that ends inside a character is no shorter list.
func TestCandidates_HalfACharacterIsAnError(t *testing.T) {
	t.Parallel()
	file := utf16(binary.LittleEndian, "code,email\nAB-0001,a@example.org\nAB-0002,b@example.org")
	_, problems := read(strings.NewReader(file[:len(file)-1]))
	if want := []string{"line 3: a character cannot be read: save the file as CSV in UTF-8"}; cmp.Diff(want, problems) != "" {
		t.Errorf("errors: got %q, want %q", problems, want)
	}
}

func TestChecked_NothingMorePassesAfterAWrongLineAndAllAreCounted(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("code,email\nAB-0001,a@example.org\n")
	for i := range 150 {
		fmt.Fprintf(&b, "x,%d\nAB-1%03d,b@example.org\n", i, i)
	}
	r := salefile.NewReader(strings.NewReader(b.String()), booking.DefaultCodeRule())
	passed, rejected, lastRow := 0, 0, ""
	var last error
	for _, err := range r.Checked(func(line *salefile.LineError) error { rejected++; lastRow = line.Row(); return nil }) {
		if last = err; err == nil {
			passed++
		}
	}
	wrong, ok := last.(*salefile.FileError) //nolint:errorlint // this very error comes
	if !ok || passed != 1 || rejected != 150 || wrong.Wrong != 150 || len(wrong.Told) != 100 || lastRow != "x,149" {
		t.Fatalf("got %d passed, %d rejected, the last %q, %v, want 1, 150, x,149 and an error that counts them", passed, rejected, lastRow, last)
	}
	text := wrong.Error()
	if !strings.Contains(text, "150 lines are wrong:\nline 3: code: not a candidate code\nline 5:") || !strings.HasSuffix(text, "and 50 more") {
		t.Errorf("text: got %s", text)
	}
}

func TestChecked_CountsWhatIsRepeated(t *testing.T) {
	t.Parallel()
	r := salefile.NewReader(strings.NewReader("code,email\nAB-0001,a@example.org\nab-0001,A@example.org\nAB-0002,b@example.org\nAB-0001,a@example.org\n"), booking.DefaultCodeRule())
	for _, err := range r.Checked(nil) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if r.Candidates() != 2 || r.Repeated() != 2 {
		t.Errorf("got %d candidates, %d repeated, want 2 and 2", r.Candidates(), r.Repeated())
	}
}
