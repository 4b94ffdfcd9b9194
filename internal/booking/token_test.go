package booking_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"holdfast/internal/booking"
)

func newSealer(t testing.TB, b byte) *booking.Sealer {
	t.Helper()
	s, err := booking.NewSealer(bytes.Repeat([]byte{b}, booking.SealKeySize))
	if err != nil {
		t.Fatalf("NewSealer: %v", err)
	}
	return s
}

const sealedAttempt = "1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd"

func TestSealer_TokenOpensToItsAttempt(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	for _, code := range []string{"AB-1001", "", strings.Repeat("Z", 32)} {
		token := s.Seal(code, sealedAttempt)
		gotCode, gotAttempt, err := s.Open(token)
		if err != nil || gotCode != code || gotAttempt != sealedAttempt {
			t.Errorf("token of %q: got %q, %q, %v, want %q, %q", code, gotCode, gotAttempt, err, code, sealedAttempt)
		}
		if strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Errorf("token %q: got characters that a URL escapes, want none", token)
		}
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || bytes.Contains(raw, []byte(sealedAttempt)) || code != "" && bytes.Contains(raw, []byte(code)) {
			t.Errorf("token of %q: got its contents in the open (%v), want them sealed", code, err)
		}
	}
}

func TestSealer_SameAttemptSameTokenOnEveryServer(t *testing.T) {
	t.Parallel()
	a, b := newSealer(t, 1), newSealer(t, 1)
	if x, y := a.Seal("AB-1001", sealedAttempt), b.Seal("AB-1001", sealedAttempt); x != y {
		t.Errorf("token from two servers with one key: got %q and %q, want the same", x, y)
	}
	if x, y := a.Seal("AB-1001", sealedAttempt), a.Seal("AB-1002", sealedAttempt); x == y {
		t.Errorf("tokens of two candidates: got %q twice, want two", x)
	}
}

func TestSealer_AnythingElseIsNotFound(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	good := s.Seal("AB-1001", sealedAttempt)
	raw, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]string{
		"empty":                 "",
		"another key":           newSealer(t, 2).Seal("AB-1001", sealedAttempt),
		"cut to the nonce":      base64.RawURLEncoding.EncodeToString(raw[:12]),
		"shorter than a nonce":  base64.RawURLEncoding.EncodeToString(raw[:5]),
		"cut at the end":        base64.RawURLEncoding.EncodeToString(raw[:len(raw)-1]),
		"one byte more":         base64.RawURLEncoding.EncodeToString(append(bytes.Clone(raw), 0)),
		"twice":                 good + good,
		"padded":                good + "=",
		"standard base64":       base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb, 0xff}, 40)),
		"not base64":            strings.Repeat("!", 80),
		"very long":             strings.Repeat("A", 1<<20),
		"the attempt in clear":  sealedAttempt,
		"a letter of the token": good[:1],
	}
	for name, token := range cases {
		if code, attempt, err := s.Open(token); !errors.Is(err, booking.ErrNotFound) || code != "" || attempt != "" {
			t.Errorf("%s: got %q, %q, %v, want ErrNotFound", name, code, attempt, err)
		}
	}
	for at := range len(good) + 1 {
		for _, skipped := range []string{"\r", "\n", "\r\n", " ", "=", "\x00"} {
			if _, _, err := s.Open(good[:at] + skipped + good[at:]); !errors.Is(err, booking.ErrNotFound) {
				t.Fatalf("token with %q at %d: got %v, want ErrNotFound", skipped, at, err)
			}
		}
	}
	for i := range raw {
		bad := bytes.Clone(raw)
		bad[i] ^= 1
		if _, _, err := s.Open(base64.RawURLEncoding.EncodeToString(bad)); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("token with byte %d changed: got %v, want ErrNotFound", i, err)
		}
	}
}

// The last character of a token carries bits that belong to no byte.
func TestSealer_UnusedBitsAreNotFound(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	respelt := 0
	for _, code := range []string{"AB-1001", "AB-10010", "AB-100100"} {
		good := s.Seal(code, sealedAttempt)
		body, last := good[:len(good)-1], good[len(good)-1:]
		raw, err := base64.RawURLEncoding.DecodeString(good)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range strings.Split(alphabet, "") {
			same, err := base64.RawURLEncoding.DecodeString(body + c)
			if c == last || err != nil || !bytes.Equal(same, raw) {
				continue
			}
			respelt++
			if _, _, err := s.Open(body + c); !errors.Is(err, booking.ErrNotFound) {
				t.Errorf("token of %s ending in %s instead of %s: got %v, want ErrNotFound", code, c, last, err)
			}
		}
	}
	if respelt == 0 {
		t.Error("other spellings of the tokens: got none, want some to try")
	}
}

func TestNewSealer_WantsTheWholeKey(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 16, 31, 33} {
		if _, err := booking.NewSealer(make([]byte, n)); err == nil {
			t.Errorf("key of %d bytes: got nil, want an error", n)
		}
	}
}

func FuzzSealer_Open(f *testing.F) {
	s := newSealer(f, 1)
	good := s.Seal("AB-1001", sealedAttempt)
	f.Add(good)
	f.Add(good[1:])
	f.Add(good + "\n")
	f.Add(newSealer(f, 2).Seal("AB-1001", sealedAttempt))
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		code, attempt, err := s.Open(token)
		if err != nil {
			if !errors.Is(err, booking.ErrNotFound) {
				t.Errorf("token %q: got %v, want ErrNotFound", token, err)
			}
			return
		}
		if s.Seal(code, attempt) != token {
			t.Errorf("token %q: got it opened as %q of %q, want only what Seal made", token, attempt, code)
		}
	})
}
