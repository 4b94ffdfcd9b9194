package salefile

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"holdfast/internal/booking"
)

// maxLine bounds one line of a candidates file. A code and an address have
// less than 300 bytes.
const maxLine = 4096

// Candidate is one row of a candidates file, normalised.
type Candidate struct {
	Code  string
	Email string
	// Line is the row's line in the file, from 1.
	Line int
}

// Candidates reads a candidates file row by row: UTF-8 with or without a byte
// order mark, a header of code and email in any order and case, fields quoted
// or not and separated by commas, semicolons or tabs (spreadsheets choose by
// locale). Spaces around fields, empty rows and empty columns at the right are
// passed over. A row that equals an earlier one is passed over, one with the
// same code and another address is an error.
//
// A row that is wrong comes as a *LineError and the rows after it follow, so
// that a caller can tell all of them; a wrong header, an overlong line or a
// read error is the last thing that comes. A caller that has seen an error
// must not use what it has read. Nothing but the rows' fingerprints (some 40
// bytes each) are kept. The sequence can be ranged over once.
func Candidates(r io.Reader, rule booking.CodeRule) iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, maxLine), maxLine)
		var t table
		seen := fingerprints{seed: maphash.MakeSeed(), rows: map[uint64]fingerprint{}}
		line := 0
		for lines.Scan() {
			line++
			text := lines.Bytes()
			if line == 1 {
				text = bytes.TrimPrefix(text, []byte("\ufeff"))
			}
			if t.comma == 0 {
				if err := t.header(text); err != nil {
					yield(Candidate{}, &LineError{Line: line, Err: err})
					return
				}
				continue
			}
			c, ok, err := t.row(text, rule)
			if err == nil && ok {
				c.Line = line
				ok, err = seen.add(c)
			}
			switch {
			case err != nil:
				if !yield(Candidate{}, &LineError{Line: line, Err: err}) {
					return
				}
			case ok:
				if !yield(c, nil) {
					return
				}
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(Candidate{}, lineErrorf(line+1, "longer than %d bytes", maxLine))
		case err != nil:
			yield(Candidate{}, fmt.Errorf("read candidates file after line %d: %w", line, err))
		case t.comma == 0:
			yield(Candidate{}, lineErrorf(1, "the file is empty: want the header code,email"))
		}
	}
}

// table is how one file is laid out, learnt from its header.
type table struct {
	comma       byte // 0 until the header was read
	code, email int  // columns
}

// header learns the layout from the first line that is not empty. Its error
// does not quote the line: in a file without a header it is a candidate.
func (t *table) header(line []byte) error {
	if bytes.IndexByte(line, 0) >= 0 || bytes.HasPrefix(line, []byte("\xff\xfe")) || bytes.HasPrefix(line, []byte("\xfe\xff")) {
		return errors.New("the file is UTF-16: save it as CSV in UTF-8")
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	for _, comma := range []byte(",;\t") {
		fields, err := split(string(line), comma)
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
	return errors.New("want the header code,email first")
}

// row reads one line; it answers false for an empty one.
func (t *table) row(line []byte, rule booking.CodeRule) (Candidate, bool, error) {
	if !utf8.Valid(line) {
		return Candidate{}, false, errors.New("not UTF-8: save the file as CSV in UTF-8")
	}
	fields, err := split(string(line), t.comma)
	if err != nil {
		return Candidate{}, false, err
	}
	switch len(fields) {
	case 0:
		return Candidate{}, false, nil
	case 2:
	default:
		return Candidate{}, false, fmt.Errorf("want code and email, got %d fields", len(fields))
	}
	code, err := rule.Normalize(fields[t.code])
	if err != nil {
		return Candidate{}, false, errors.New("code: not a candidate code")
	}
	email, err := booking.NormalizeEmail(fields[t.email])
	if err != nil {
		return Candidate{}, false, fmt.Errorf("email of code %s: not an e-mail address", code)
	}
	return Candidate{Code: code, Email: email}, true, nil
}

// split takes one line apart, trims the fields and drops empty ones at the
// right. It works line by line, because no field of ours may hold a line
// break: a stray quotation mark then spoils its own line and not the rest of
// the file.
func split(line string, comma byte) ([]string, error) {
	var fields []string
	if strings.IndexByte(line, '"') < 0 {
		fields = strings.Split(line, string(comma))
	} else {
		r := csv.NewReader(strings.NewReader(line))
		r.Comma = rune(comma)
		r.TrimLeadingSpace = comma != '\t'
		var err error
		fields, err = r.Read()
		var parse *csv.ParseError
		if errors.As(err, &parse) {
			return nil, fmt.Errorf("column %d: %w", parse.Column, parse.Err)
		} else if err != nil {
			return nil, err
		}
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	for len(fields) > 0 && fields[len(fields)-1] == "" {
		fields = fields[:len(fields)-1]
	}
	return fields, nil
}

// fingerprints remembers every row by hashes rather than by text, so that two
// million rows need little memory. Two of two million codes share a
// fingerprint in one load of ten million; that load is refused, and goes
// through when repeated because the seed is another one. Two addresses of one
// code are taken for equal once in four thousand million times.
type fingerprints struct {
	seed maphash.Seed
	rows map[uint64]fingerprint // by code
}

type fingerprint struct{ email, line uint32 }

// add answers false for a row that equals an earlier one.
func (f fingerprints) add(c Candidate) (bool, error) {
	key := maphash.String(f.seed, c.Code)
	email := uint32(maphash.String(f.seed, c.Email)) // half of a hash is meant
	old, ok := f.rows[key]
	switch {
	case !ok:
		f.rows[key] = fingerprint{email: email, line: uint32(c.Line)}
		return true, nil
	case old.email != email:
		return false, fmt.Errorf("code %s is on line %d with another e-mail address", c.Code, old.line)
	}
	return false, nil
}
