package paygate

import "regexp"

// Secret is text that does not print itself: fmt, JSON and slog all show
// "[secret]". Convert it to string where it goes on the wire, nowhere else.
type Secret string

const hidden = "[secret]"

func (Secret) String() string { return hidden }

// GoString keeps %#v quiet.
func (Secret) GoString() string { return hidden }

// MarshalText keeps JSON and slog quiet.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

var (
	// An API gateway echoes the Authorization header in some refusals, and a
	// wallet's number can stand in any message: long words and runs of digits
	// are never the part of a text that a reader needs. Digits may be grouped.
	tellTale = regexp.MustCompile(`\S{25,}|\+?\d[\d .()/-]{4,}\d`)
	unseen   = regexp.MustCompile(`[^\x20-\x7e]+`)
	// What a status code, a transaction status and an id look like.
	codeForm = regexp.MustCompile(`^[0-9A-Za-z_-]{1,10}$`)
	wordForm = regexp.MustCompile(`^[A-Za-z]{1,24}$`)
	idForm   = regexp.MustCompile(`^[0-9A-Za-z._~-]{1,128}$`)
)

const (
	maxText = 160
	cut     = "[cut]"
)

// only lets a value pass that has the form it should have.
func only(form *regexp.Regexp, s string) string {
	if s == "" || form.MatchString(s) {
		return s
	}
	return cut
}

// scrub makes the gateway's own words fit for logs and errors: short, in
// printable ASCII, without numbers that could be a wallet's and without tokens.
func scrub(s string) string {
	s = unseen.ReplaceAllString(s[:min(len(s), 4*maxText)], " ")
	s = tellTale.ReplaceAllString(s, cut)
	return s[:min(len(s), maxText)]
}
