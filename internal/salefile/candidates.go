package salefile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"holdfast/internal/booking"
)

// Bounds of a candidates file, so that one made to do harm, such as a few kilobytes
// of gzip that unfold to terabytes, fills neither memory nor disk. The text bound is
// what so many rows of the longest address have.
const (
	// maxLine is for one line, in bytes of UTF-8. A code and an address have less
	// than 300.
	maxLine = 4096
	// maxLines is for all lines, empty ones too: each that holds a candidate is
	// remembered.
	maxLines = 5_000_000
	// maxText is for the file as text, in bytes, after decompression.
	maxText = 2 << 30
)

// ErrTooLarge says that a file is over one of the bounds, and ends the reading.
var ErrTooLarge = fmt.Errorf("a candidates file has at most %d lines and %d MiB of text", maxLines, maxText>>20)

// Candidate is one row of a candidates file, normalised.
type Candidate struct {
	Code  string
	Email string
	// Line is the row's line in the file, from 1.
	Line int
}

// Candidates reads a candidates file row by row; see Reader.Rows.
func Candidates(r io.Reader, rule booking.CodeRule) iter.Seq2[Candidate, error] {
	return NewReader(r, rule).Rows()
}

// Reader reads one candidates file, once: a header of code and email in any order
// and case and no other column, then a row for each candidate. It takes what
// programs save: UTF-8 with or without a byte order mark, UTF-16 with one, all of
// it compressed by gzip or not; fields separated by commas, semicolons or tabs
// (spreadsheets choose by locale), quoted or not; line ends of either kind. Spaces
// around fields, empty rows, and empty columns at the right are passed over, and a
// row that equals an earlier one is passed over and counted. Everything else is
// refused with its line: nothing is guessed.
//
// Its memory does not grow with the file but for 20 bytes a row, in which it
// remembers that it has met the code. Not safe for concurrent use.
type Reader struct {
	rule       booking.CodeRule
	src        io.Reader
	met        *fingerprints
	lines      *bufio.Reader
	line       int
	table      table
	candidates int
	repeated   int
}

// NewReader reads r, which its caller closes, by that rule for codes.
func NewReader(r io.Reader, rule booking.CodeRule) *Reader {
	return &Reader{rule: rule, src: r, met: newFingerprints()}
}

// Candidates is how many were read so far, each counted once.
func (r *Reader) Candidates() int { return r.candidates }

// Repeated is how many rows equalled an earlier one so far.
func (r *Reader) Repeated() int { return r.repeated }

// Rows gives each candidate once, in the file's order. A row that is wrong comes as
// a *LineError and the rows after it follow, so that a caller can tell all of them;
// a wrong header, ErrTooLarge, a file without a candidate or a read error is the last
// thing that comes. A caller that has seen an error must not use what it has read:
// see Checked. The sequence can be ranged over once.
func (r *Reader) Rows() iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		text, err := decode(r.src)
		if err != nil {
			yield(Candidate{}, fmt.Errorf("read candidates file: %w", err))
			return
		}
		r.lines = bufio.NewReaderSize(text, maxLine)
		wrong := false
		for {
			line, err := r.next()
			var at *LineError
			switch {
			case errors.Is(err, io.EOF):
				if err := r.end(wrong); err != nil {
					yield(Candidate{}, err)
				}
				return
			case err != nil && (!errors.As(err, &at) || r.table.comma == 0):
				yield(Candidate{}, err)
				return
			}
			if err == nil && r.table.comma == 0 {
				if err := r.table.header(line); err != nil {
					yield(Candidate{}, &LineError{Line: r.line, Err: err})
					return
				}
				continue
			}
			c, ok := Candidate{}, false
			if err == nil {
				c, ok, err = r.row(line)
			}
			wrong = wrong || err != nil
			if (ok || err != nil) && !yield(c, err) {
				return
			}
		}
	}
}

// next is the next line without its end. A line that is too long is an error and is
// passed over; any other error is the end.
func (r *Reader) next() ([]byte, error) {
	line, err := r.lines.ReadSlice('\n')
	if len(line) == 0 && errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	r.line++
	if r.line > maxLines {
		return nil, fmt.Errorf("line %d: %w", r.line, ErrTooLarge)
	}
	long := false
	for errors.Is(err, bufio.ErrBufferFull) {
		long = true
		_, err = r.lines.ReadSlice('\n')
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read candidates file, line %d: %w", r.line, err)
	case long:
		return nil, lineErrorf(r.line, "longer than %d bytes", maxLine)
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), nil
}

// end is what is wrong with a file as a whole.
func (r *Reader) end(wrong bool) error {
	switch {
	case r.table.comma == 0:
		return lineErrorf(1, "the file is empty: want the header code,email")
	case r.candidates == 0 && !wrong:
		return lineErrorf(r.line, "the file ends without a candidate")
	}
	return nil
}

// row reads one line; it answers false for an empty one and for one that equals an
// earlier one.
func (r *Reader) row(line []byte) (c Candidate, ok bool, err error) {
	defer func() {
		if err != nil {
			err = &LineError{Line: r.line, Err: err, row: string(line)}
		}
	}()
	c, ok, err = r.table.row(line, r.rule)
	if err != nil || !ok {
		return Candidate{}, false, err
	}
	c.Line = r.line
	switch first, met := r.met.add(c); met {
	case another:
		return Candidate{}, false, fmt.Errorf("its code is on line %d with another e-mail address", first)
	case same:
		r.repeated++
		return Candidate{}, false, nil
	case fresh:
		r.candidates++
	}
	return c, true, nil
}

// table is how one file is laid out, learnt from its header.
type table struct {
	comma       byte // 0 until the header was read
	code, email int  // columns
	fields      []string
}

// header learns the layout from the first line that is not empty. Its error
// does not quote the line: in a file without a header it is a candidate.
func (t *table) header(line []byte) error {
	switch {
	case bytes.HasPrefix(line, []byte("PK\x03\x04")):
		return errors.New("the file is a workbook or an archive: save it as CSV")
	case bytes.IndexByte(line, 0) >= 0:
		return errors.New("the file is UTF-16 without a byte order mark, or no text: save it as CSV in UTF-8")
	case len(bytes.TrimSpace(line)) == 0:
		return nil
	}
	for _, comma := range []byte(",;\t") {
		fields, err := split(nil, string(line), comma)
		if err != nil {
			continue
		}
		for i := range fields {
			fields[i] = strings.ToLower(fields[i])
		}
		code, email := slices.Index(fields, "code"), slices.Index(fields, "email")
		if len(fields) == 2 && code >= 0 && email >= 0 {
			*t = table{comma: comma, code: code, email: email}
			return nil
		}
	}
	return errors.New("want the header code,email first, and no other column")
}

// row reads one line; it answers false for an empty one.
func (t *table) row(line []byte, rule booking.CodeRule) (Candidate, bool, error) {
	// A character that could not be converted from UTF-16 comes as U+FFFD.
	if !utf8.Valid(line) || bytes.ContainsRune(line, utf8.RuneError) {
		return Candidate{}, false, errors.New("a character cannot be read: save the file as CSV in UTF-8")
	}
	var err error
	if t.fields, err = split(t.fields[:0], string(line), t.comma); err != nil {
		return Candidate{}, false, err
	}
	switch len(t.fields) {
	case 0:
		return Candidate{}, false, nil
	case 2:
	default:
		return Candidate{}, false, fmt.Errorf("want code and email, got %d fields", len(t.fields))
	}
	code, err := rule.Normalize(t.fields[t.code])
	if err != nil {
		return Candidate{}, false, errors.New("code: not a candidate code")
	}
	email, err := booking.NormalizeEmail(t.fields[t.email])
	if err != nil {
		return Candidate{}, false, errors.New("email: not an e-mail address")
	}
	return Candidate{Code: code, Email: email}, true, nil
}

// split takes one line apart into fields, trims them and drops empty ones at the
// right. It works line by line, because no field of ours may hold a line break: a
// stray quotation mark then spoils its own line and not the rest of the file.
func split(fields []string, line string, comma byte) ([]string, error) {
	for at := 0; ; {
		field, next, err := cutField(line, at, comma)
		if err != nil {
			return nil, err
		}
		fields = append(fields, field)
		if next > len(line) {
			break
		}
		at = next
	}
	for len(fields) > 0 && fields[len(fields)-1] == "" {
		fields = fields[:len(fields)-1]
	}
	return fields, nil
}

// cutField is the field that begins at a byte, and where the next one does; beyond
// the line's end there is none.
func cutField(line string, at int, comma byte) (field string, next int, err error) {
	rest := line[at:]
	end := strings.IndexByte(rest, comma)
	if end < 0 {
		end = len(rest)
	}
	field = strings.TrimSpace(rest[:end])
	if !strings.HasPrefix(field, `"`) {
		if i := strings.IndexByte(rest[:end], '"'); i >= 0 {
			return "", 0, fmt.Errorf("column %d: a quotation mark inside a field", at+i+1)
		}
		return field, at + end + 1, nil
	}
	open := at + strings.IndexByte(rest, '"')
	var b strings.Builder
	for i := open + 1; i < len(line); i++ {
		if line[i] != '"' {
			b.WriteByte(line[i])
			continue
		}
		if i+1 < len(line) && line[i+1] == '"' { // two stand for one
			b.WriteByte('"')
			i++
			continue
		}
		after := line[i+1:]
		end := strings.IndexByte(after, comma)
		if end < 0 {
			end = len(after)
		}
		if strings.TrimSpace(after[:end]) != "" {
			return "", 0, fmt.Errorf("column %d: text after the closing quotation mark", i+2)
		}
		return strings.TrimSpace(b.String()), i + 1 + end + 1, nil
	}
	return "", 0, fmt.Errorf("column %d: the quotation mark is not closed on its line, and no field may hold a line break", open+1)
}
