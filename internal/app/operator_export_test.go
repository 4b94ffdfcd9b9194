package app

import (
	"context"
	"time"

	"holdfast/internal/paygate/redistoken"
)

// TokenStateOf is what an operator is told of a token source at that time.
func TokenStateOf(ctx context.Context, source *redistoken.Source, now time.Time) (TokenState, error) {
	c, err := readToken(ctx, source)
	if err != nil {
		return TokenState{}, err
	}
	return c.state(now), nil
}
