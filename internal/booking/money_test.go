package booking_test

import (
	"errors"
	"strings"
	"testing"

	"holdfast/internal/booking"
)

func TestParseMoney_ReadsAmountsAsTheGatewayWritesThem(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]booking.Money{
		"0": 0, "100": 10000, "100.5": 10050, "100.50": 10050, "100.00": 10000, "1500.01": 150001,
		"0.01": 1, "007.10": 710, "999999999999.99": 99999999999999,
	} {
		if got, err := booking.ParseMoney(in); err != nil || got != want {
			t.Errorf("amount %q: got %d, %v, want %d", in, got, err, want)
		}
	}
}

func TestParseMoney_RefusesWhatCouldBeReadInTwoWays(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", " ", " 1", "1 ", "1\n", "+1", "-1", "-0", "1e2", "1E2", "0x10", "1_000", "1,000", "1,00", "1.", ".5", ".", "1.234",
		"1.2.3", "1.-2", "1.+2", "1. 2", "NaN", "Inf", "\uff11\uff10\uff10", "\u0663", "1\x00", "1500.00 BDT", "1000000000000", "9223372036854775808",
		strings.Repeat("9", 4000),
	} {
		if got, err := booking.ParseMoney(in); !errors.Is(err, booking.ErrBadAmount) {
			t.Errorf("amount %.40q: got %d, %v, want ErrBadAmount", in, got, err)
		}
	}
}

func TestMoney_IsWrittenWithTwoDecimals(t *testing.T) {
	t.Parallel()
	for m, want := range map[booking.Money]string{0: "0.00", 5: "0.05", 150000: "1500.00", 150001: "1500.01", -5: "-0.05", -150001: "-1500.01"} {
		if got := m.String(); got != want {
			t.Errorf("%d: got %s, want %s", int64(m), got, want)
		}
	}
}

func FuzzParseMoney(f *testing.F) {
	for _, s := range []string{"100", "100.00", "100.5", "1e2", "-1", "+1", "", " 1", "1.234", "999999999999.99", "00.00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		m, err := booking.ParseMoney(in)
		if err != nil {
			if !errors.Is(err, booking.ErrBadAmount) {
				t.Errorf("amount %q: got %v, want ErrBadAmount", in, err)
			}
			return
		}
		if m < 0 {
			t.Errorf("amount %q: got %d, want no less than 0", in, m)
		}
		if again, err := booking.ParseMoney(m.String()); err != nil || again != m {
			t.Errorf("amount %q written as %s: got %d, %v, want %d", in, m, again, err, m)
		}
	})
}
