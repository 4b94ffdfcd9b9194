package booking_test

import (
	"errors"
	"strings"
	"testing"

	"holdfast/internal/booking"
)

func TestCodeRule_OneCodeHoweverItIsTyped(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"AB-1001":                    "AB-1001",
		"ab-1001":                    "AB-1001",
		"  ab-1001\r\n":              "AB-1001",
		"\tAB-1001":                  "AB-1001",
		"\u00a0AB-1001\u00a0":        "AB-1001", // NBSP, as pasted from a mail
		"\u3000ab-1001\u2003":        "AB-1001", // wide spaces
		"0001":                       "0001",    // leading zeros are kept
		"----":                       "----",
		strings.Repeat("z", 32):      strings.Repeat("Z", 32),
		" " + strings.Repeat("9", 4): "9999",
	} {
		if got, err := booking.DefaultCodeRule().Normalize(in); err != nil || got != want {
			t.Errorf("code %q: got %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestCodeRule_RefusesWhatIsNoCode(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"empty":                   "",
		"spaces only":             " \u00a0 ",
		"three":                   "ABC",
		"thirty-three":            strings.Repeat("A", 33),
		"space inside":            "AB 1001",
		"NBSP inside":             "AB\u00a01001",
		"zero-width space around": "\u200bAB-1001",
		"byte-order mark":         "\ufeffAB-1001",
		"dotless i":               "AB-\u0131001", // upper-cases to ASCII I
		"long s":                  "AB-\u017f001", // upper-cases to ASCII S
		"Kelvin sign":             "AB-\u212a001", // lower-cases to ASCII k
		"full-width digits":       "AB-\uff11\uff10\uff10\uff11",
		"Cyrillic A":              "\u0410B-1001",
		"soft hyphen":             "AB\u00ad1001",
		"en dash":                 "AB\u20131001",
		"NUL":                     "AB-1001\x00",
		"line in the middle":      "AB-1001\nAB-1002",
		"not UTF-8":               "AB-1001\xff",
		"underscore":              "AB_1001",
	} {
		if got, err := booking.DefaultCodeRule().Normalize(in); !errors.Is(err, booking.ErrInvalidCode) {
			t.Errorf("%s: got %q, %v, want ErrInvalidCode", name, got, err)
		}
	}
}

func TestNewCodeRule_ThePatternMustMatchTheWholeCode(t *testing.T) {
	t.Parallel()
	rule, err := booking.NewCodeRule(`[0-9]{4}|X`)
	if err != nil {
		t.Fatalf("NewCodeRule: got %v, want nil", err)
	}
	for in, ok := range map[string]bool{"1234": true, "x": true, "12345": false, "X1234": false, "1234\n5678": false} {
		if _, err := rule.Normalize(in); (err == nil) != ok {
			t.Errorf("code %q under an unanchored pattern: got %v, want accepted %v", in, err, ok)
		}
	}
	if _, err := booking.NewCodeRule(`[A-Z`); err == nil {
		t.Error("NewCodeRule of a broken pattern: got nil, want an error")
	}
}

func TestNormalizeEmail_CaseAndSpacesMakeNoDifference(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a@example.org":                 "a@example.org",
		" A.B@Example.ORG\r\n":          "a.b@example.org",
		"\u00a0a@example.org\u00a0":     "a@example.org",
		"A+tag@example.org":             "a+tag@example.org",
		"\u00c4\u00d6@example.org":      "\u00c4\u00d6@example.org", // ASCII alone is folded
		"o'hara@example.org":            "o'hara@example.org",
		"a@" + strings.Repeat("b", 252): "a@" + strings.Repeat("b", 252), // 254 bytes
	} {
		if got, err := booking.NormalizeEmail(in); err != nil || got != want {
			t.Errorf("e-mail %q: got %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestNormalizeEmail_LookAlikesAreNotEqual(t *testing.T) {
	t.Parallel()
	for name, pair := range map[string][2]string{
		"Kelvin sign for k": {"k@example.org", "\u212a@example.org"},
		"long s for s":      {"s@example.org", "\u017f@example.org"},
		"dotless i for i":   {"i@example.org", "\u0131@example.org"},
		"dotted I for i":    {"i@example.org", "\u0130@example.org"},
		"Cyrillic a for a":  {"a@example.org", "\u0430@example.org"},
		"full-width for a":  {"a@example.org", "\uff41@example.org"},
		"composed e acute":  {"\u00e9@example.org", "e\u0301@example.org"},
		"in the domain":     {"a@kiosk.org", "a@kio\u017fk.org"},
	} {
		a, errA := booking.NormalizeEmail(pair[0])
		b, errB := booking.NormalizeEmail(pair[1])
		if errA != nil || (errB == nil && a == b) {
			t.Errorf("%s: got %q (%v) and %q (%v), want two addresses or a refusal of the second", name, a, errA, b, errB)
		}
	}
}

func TestNormalizeEmail_RefusesWhatIsNoAddress(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"empty":                  "",
		"no @":                   "a.example.org",
		"nothing before @":       "@example.org",
		"nothing after @":        "a@",
		"two @":                  "a@b@example.org",
		"full-width @":           "a\uff20example.org",
		"space":                  "a b@example.org",
		"NBSP":                   "a\u00a0b@example.org",
		"tab":                    "a\tb@example.org",
		"header injection":       "a@example.org\r\nBcc: b@example.org",
		"NUL":                    "a\x00@example.org",
		"DEL":                    "a\x7f@example.org",
		"C1 control":             "a\u0085b@example.org",
		"zero-width joiner":      "a\u200d@example.org",
		"right-to-left override": "a\u202e@example.org",
		"not UTF-8":              "a\xff@example.org",
		"angle brackets":         "<a@example.org>",
		"two addresses":          "a@example.org,b",
		"a name before it":       `"A" <a@example.org>`,
		"255 bytes":              "a@" + strings.Repeat("b", 253),
		"255 bytes, not runes":   "a@" + strings.Repeat("\u00e9", 126) + "b",
	} {
		if got, err := booking.NormalizeEmail(in); !errors.Is(err, booking.ErrInvalidRequest) {
			t.Errorf("%s: got %q, %v, want ErrInvalidRequest", name, got, err)
		}
	}
}

func TestCandidateHash_IsSHA256InLowerCaseHex(t *testing.T) {
	t.Parallel()
	const want = "38a16dd0ed2f7ecbe624b96bee240b0d1ea998b2257e34af628343da5bc480fa"
	got := booking.CandidateHash("AB-1001")
	if got != want || booking.QueueGroup(got) != "38a1" {
		t.Errorf("hash and group of AB-1001: got %s and %s, want %s and 38a1", got, booking.QueueGroup(got), want)
	}
}

// FuzzNormalize holds both normalising functions to what rests on them:
// normalising again changes nothing, and nothing comes out that was to be refused.
func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"", "ab-1001", "\u00a0AB-1001 ", "AB-\u0131001", "\u212a@x", "A.B@Example.ORG", "a@b@c", "a\x00@b", "\xff\xfe@x", "a@" + strings.Repeat("b", 252)} {
		f.Add(s)
	}
	rule := booking.DefaultCodeRule()
	f.Fuzz(func(t *testing.T, in string) {
		if code, err := rule.Normalize(in); err == nil {
			if again, err := rule.Normalize(code); err != nil || again != code {
				t.Errorf("code %q again: got %q, %v, want %q", in, again, err, code)
			}
			if len(code) < 4 || len(code) > 32 || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
				t.Errorf("code %q: got %q, want 4 to 32 of A-Z, 0-9 and -", in, code)
			}
		} else if !errors.Is(err, booking.ErrInvalidCode) {
			t.Errorf("code %q: got %v, want ErrInvalidCode", in, err)
		}
		if mail, err := booking.NormalizeEmail(in); err == nil {
			if again, err := booking.NormalizeEmail(mail); err != nil || again != mail {
				t.Errorf("e-mail %q again: got %q, %v, want %q", in, again, err, mail)
			}
			if len(mail) > 254 || strings.ContainsAny(mail, " \r\n\t\x00\x7f<>,;ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
				t.Errorf("e-mail %q: got %q, want at most 254 bytes without capitals, spaces and controls", in, mail)
			}
		} else if !errors.Is(err, booking.ErrInvalidRequest) {
			t.Errorf("e-mail %q: got %v, want ErrInvalidRequest", in, err)
		}
	})
}
