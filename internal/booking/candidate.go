package booking

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// DefaultCodePattern is what a candidate code looks like unless configured
// otherwise.
const DefaultCodePattern = `^[A-Z0-9-]{4,32}$`

// maxEmail is the longest address SMTP can carry (RFC 5321, 4.5.3.1.3).
const maxEmail = 254

// CodeRule is the one normalising function for candidate codes, used by API,
// loader, operator's tool and webhook alike. Safe for concurrent use.
type CodeRule struct{ pattern *regexp.Regexp }

// NewCodeRule compiles a pattern that a trimmed, upper-cased code must match
// as a whole.
func NewCodeRule(pattern string) (CodeRule, error) {
	re, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
	if err != nil {
		return CodeRule{}, fmt.Errorf("candidate code pattern: %w", err)
	}
	return CodeRule{pattern: re}, nil
}

// DefaultCodeRule is the rule for DefaultCodePattern.
func DefaultCodeRule() CodeRule {
	return CodeRule{pattern: regexp.MustCompile(`\A(?:` + DefaultCodePattern + `)\z`)}
}

// Normalize trims the code and upper-cases its ASCII letters, then holds it
// against the pattern. Only ASCII can come out: letters whose Unicode upper
// case happens to be ASCII (the dotless i, the long s) are not codes. The
// error is ErrInvalidCode.
func (r CodeRule) Normalize(code string) (string, error) {
	c := mapASCII(strings.TrimSpace(code), upper)
	for i := range len(c) {
		if c[i] >= utf8.RuneSelf {
			return "", ErrInvalidCode
		}
	}
	if !r.pattern.MatchString(c) {
		return "", ErrInvalidCode
	}
	return c, nil
}

// NormalizeEmail trims the address and lower-cases its ASCII letters, domain
// and local part alike; every other character is compared as it is, so that no
// look-alike (the Kelvin sign for k) counts as equal. It accepts what can be an
// address: one @ with something on both sides, no spaces or control
// characters, valid UTF-8, at most 254 bytes. The error is ErrInvalidRequest.
func NormalizeEmail(email string) (string, error) {
	e := mapASCII(strings.TrimSpace(email), lower)
	at := strings.LastIndexByte(e, '@')
	if len(e) > maxEmail || !utf8.ValidString(e) || at < 1 || at == len(e)-1 || strings.Count(e, "@") != 1 {
		return "", fmt.Errorf("email: %w", ErrInvalidRequest)
	}
	for i := 0; i < len(e); i++ {
		if plainEmail[e[i]] {
			continue
		}
		if err := checkEmail(e); err != nil {
			return "", err
		}
		break
	}
	return e, nil
}

// plainEmail are the bytes that any address may hold, so that only others are
// looked at closely.
var plainEmail = func() (plain [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789.-_+@") {
		plain[c] = true
	}
	return plain
}()

func checkEmail(e string) error {
	for _, r := range e {
		if unicode.IsSpace(r) || unicode.IsControl(r) || !unicode.IsPrint(r) || strings.ContainsRune(`<>,;"()\`, r) {
			return fmt.Errorf("email: %w", ErrInvalidRequest)
		}
	}
	return nil
}

// CandidateHash is the SHA-256 of a normalised code in lower-case hex: the
// booking store's partition key, so that the store holds no codes in its keys.
func CandidateHash(code string) string {
	sum := sha256.Sum256([]byte(code))
	return hex.EncodeToString(sum[:])
}

// QueueGroup is the queue's message group of a candidate: the first four hex
// characters of the hash, 65,536 groups in all.
func QueueGroup(candidateHash string) string { return candidateHash[:4] }

func upper(b byte) byte {
	if 'a' <= b && b <= 'z' {
		return b - 'a' + 'A'
	}
	return b
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b - 'A' + 'a'
	}
	return b
}

func mapASCII(s string, f func(byte) byte) string {
	for i := range len(s) {
		if f(s[i]) != s[i] {
			b := []byte(s)
			for j := range b {
				b[j] = f(b[j])
			}
			return string(b)
		}
	}
	return s
}
