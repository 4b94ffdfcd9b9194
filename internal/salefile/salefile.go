// Package salefile reads the two files an operator writes: the sale (YAML) and
// the candidates (CSV). Both shapes are in docs/shapes.md.
//
// It fails closed: what is ambiguous is refused with the number of its line,
// and nothing is guessed. It keeps no state, opens no files and has no clock.
package salefile

import "fmt"

// LineError is one thing that is wrong with a file, and where.
type LineError struct {
	// Line counts from 1.
	Line int
	// Err says what is wrong. It quotes neither a candidate's code nor an address.
	Err error

	row string
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap gives the reason alone.
func (e *LineError) Unwrap() error { return e.Err }

// Row is the candidates file's line as it stands, for whoever mends the file: it is
// personal and belongs in no log. "" where it was not kept.
func (e *LineError) Row() string { return e.row }

func lineErrorf(line int, format string, args ...any) error {
	return &LineError{Line: line, Err: fmt.Errorf(format, args...)}
}
