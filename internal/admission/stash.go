package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
)

// stash is what attach keeps beside the row, by attempt and by payment.
type stash struct {
	V         int    `json:"v"`
	Code      string `json:"code"`
	Attempt   string `json:"attempt,omitempty"`
	Payment   string `json:"payment_id,omitempty"`
	URL       string `json:"payment_url"`
	Signature string `json:"signature"`
}

// Issued finds what was issued under a payment id; booking.ErrNotFound
// when the stash has lapsed or never was.
func (g *Gate) Issued(ctx context.Context, payment string) (booking.Issued, error) {
	s, err := g.stash(ctx, g.keys.payment(payment))
	if err != nil {
		return booking.Issued{}, err
	}
	return booking.Issued{
		Code: s.Code, Attempt: s.Attempt,
		Payment: booking.Payment{ID: payment, URL: s.URL, Signature: s.Signature},
	}, nil
}

// PaymentOf finds the payment of an attempt; booking.ErrNotFound when the stash
// has lapsed or never was.
func (g *Gate) PaymentOf(ctx context.Context, attempt string) (booking.Payment, error) {
	s, err := g.stash(ctx, g.keys.attempt(attempt))
	if err != nil {
		return booking.Payment{}, err
	}
	return booking.Payment{ID: s.Payment, URL: s.URL, Signature: s.Signature}, nil
}

func (g *Gate) stash(ctx context.Context, key string) (stash, error) {
	raw, err := g.get(ctx, key)
	if errors.Is(err, redis.Nil) {
		return stash{}, booking.ErrNotFound
	}
	if err != nil {
		return stash{}, fmt.Errorf("read stash: %w", err)
	}
	var s stash
	if err := json.Unmarshal([]byte(raw), &s); err != nil || s.V != 1 {
		return stash{}, fmt.Errorf("stash of version %d: %w", s.V, booking.ErrUnreadable)
	}
	return s, nil
}

// Email reads the candidate's address on file; booking.ErrNotFound when there
// is none.
func (g *Gate) Email(ctx context.Context, code string) (string, error) {
	email, err := g.get(ctx, g.keys.email(code))
	if errors.Is(err, redis.Nil) {
		return "", booking.ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("read e-mail on file: %w", err)
	}
	return email, nil
}
