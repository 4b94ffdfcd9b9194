package booking

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Money is an amount in minor units (1/100 of the sale's currency). The
// currency travels beside it, never inside it.
type Money int64

// maxMajorDigits keeps every parsed amount far below the range of int64.
const maxMajorDigits = 12

// ErrBadAmount says that a text is not an amount as the gateway writes it.
var ErrBadAmount = errors.New("not an amount: want digits with at most two decimals, such as 1500 or 1500.00")

// ParseMoney reads an amount as the gateway and the sale file write it:
// "100", "100.5" and "100.00" are accepted; a sign, an exponent, grouping,
// spaces and a third decimal are not. The error is ErrBadAmount.
func ParseMoney(s string) (Money, error) {
	major, minor, dotted := strings.Cut(s, ".")
	if !digits(major) || len(major) > maxMajorDigits {
		return 0, fmt.Errorf("%q: %w", s, ErrBadAmount)
	}
	if dotted && (!digits(minor) || len(minor) > 2) {
		return 0, fmt.Errorf("%q: %w", s, ErrBadAmount)
	}
	for len(minor) < 2 {
		minor += "0"
	}
	v, err := strconv.ParseInt(major+minor, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", s, ErrBadAmount)
	}
	return Money(v), nil
}

// String writes the amount as the gateway wants it: "1500.00".
func (m Money) String() string {
	sign, v := "", int64(m)
	if v < 0 {
		sign, v = "-", -v
	}
	return fmt.Sprintf("%s%d.%02d", sign, v/100, v%100)
}

func digits(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}
