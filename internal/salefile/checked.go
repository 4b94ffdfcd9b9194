package salefile

import (
	"errors"
	"fmt"
	"iter"
	"strings"

	"holdfast/internal/booking"
)

// maxTold is how many wrong lines a FileError tells.
const maxTold = 100

// FileError says that a candidates file is wrong and must be mended: none of it may be
// used.
type FileError struct {
	// Wrong is how many lines are.
	Wrong int
	// Told are the first of them, 100 at most.
	Told []*LineError
}

func (e *FileError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "candidates file: %d lines are wrong:", e.Wrong)
	for _, line := range e.Told {
		fmt.Fprintf(&b, "\n%v", line)
	}
	if more := e.Wrong - len(e.Told); more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return b.String()
}

// Checked gives the file's candidates to one who takes all of them or none: after the
// first wrong line no more of them come, the rest of the file is only checked, and
// the last thing that comes is one *FileError for all wrong lines. What ends the
// reading before the file's end comes as that error instead. reject, if not nil, is
// told each wrong line; its error ends the reading. The sequence can be ranged over
// once.
func (r *Reader) Checked(reject func(*LineError) error) iter.Seq2[booking.Candidate, error] {
	return func(yield func(booking.Candidate, error) bool) {
		var wrong FileError
		for c, err := range r.Rows() {
			var line *LineError
			switch {
			case err != nil && !errors.As(err, &line):
				yield(booking.Candidate{}, err)
				return
			case err != nil:
				if wrong.Wrong++; len(wrong.Told) < maxTold {
					wrong.Told = append(wrong.Told, line)
				}
				if reject == nil {
					continue
				}
				if err := reject(line); err != nil {
					yield(booking.Candidate{}, fmt.Errorf("file of rejects: %w", err))
					return
				}
			case wrong.Wrong == 0:
				if !yield(booking.Candidate{Code: c.Code, Email: c.Email}, nil) {
					return
				}
			}
		}
		if wrong.Wrong > 0 {
			yield(booking.Candidate{}, &wrong)
		}
	}
}
