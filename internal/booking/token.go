package booking

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// SealKeySize is the length of the fleet's sealing key in bytes.
const SealKeySize = 32

// Sealer turns an attempt into a booking token and back. The token needs no
// storage and the same attempt always gets the same one: the nonce is a keyed
// hash of the plaintext under a key of its own (a synthetic IV), so it repeats
// only with the plaintext. Safe for concurrent use.
type Sealer struct {
	aead  cipher.AEAD
	nonce []byte
}

// NewSealer derives the token keys from the fleet's sealing key.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) != SealKeySize {
		return nil, fmt.Errorf("sealing key: want %d bytes, got %d", SealKeySize, len(key))
	}
	enc, err := hkdf.Key(sha256.New, key, nil, "holdfast booking token: encryption", 32)
	if err != nil {
		return nil, fmt.Errorf("derive token key: %w", err)
	}
	nonce, err := hkdf.Key(sha256.New, key, nil, "holdfast booking token: nonce", 32)
	if err != nil {
		return nil, fmt.Errorf("derive token key: %w", err)
	}
	block, err := aes.NewCipher(enc)
	if err != nil {
		return nil, fmt.Errorf("token cipher: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("token cipher: %w", err)
	}
	return &Sealer{aead: aead, nonce: nonce}, nil
}

// Seal makes the token of a candidate's attempt; URL-safe text.
func (s *Sealer) Seal(code, attempt string) string {
	plain := []byte(attempt + "\n" + code)
	mac := hmac.New(sha256.New, s.nonce)
	mac.Write(plain)
	nonce := mac.Sum(nil)[:s.aead.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(s.aead.Seal(nonce, nonce, plain, nil))
}

// maxToken bounds what Open will decode.
const maxToken = 512

// Open reads a token made by Seal with the same key. Anything else is
// ErrNotFound, also another spelling of such a token: base64 reads over line
// breaks and unused bits, and a booking has one link.
func (s *Sealer) Open(token string) (code, attempt string, err error) {
	if len(token) > maxToken {
		return "", "", ErrNotFound
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < s.aead.NonceSize() {
		return "", "", ErrNotFound
	}
	nonce, sealed := raw[:s.aead.NonceSize()], raw[s.aead.NonceSize():]
	plain, err := s.aead.Open(nil, nonce, sealed, nil)
	if err != nil {
		return "", "", ErrNotFound
	}
	attempt, code, ok := strings.Cut(string(plain), "\n")
	if !ok || s.Seal(code, attempt) != token {
		return "", "", ErrNotFound
	}
	return code, attempt, nil
}
