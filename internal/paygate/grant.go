package paygate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"holdfast/internal/booking"
)

const pathGrant = "/tokenized/checkout/token/grant"

// maxLifetime is far above the hour that the gateway gives; beyond it the
// number is not a lifetime in seconds.
const maxLifetime = 24 * time.Hour

// Credentials are what a merchant account asks for tokens with. All four are
// needed.
type Credentials struct {
	AppKey    Secret
	AppSecret Secret
	Username  Secret // often a phone number
	Password  Secret
}

// Grant is a token as the gateway gave it.
type Grant struct {
	IDToken      Secret
	RefreshToken Secret
	// ExpiresIn runs from when the gateway made the token; count it from before
	// the call.
	ExpiresIn time.Duration
}

// Granter asks the gateway for tokens. The gateway blocks an account for an
// hour that asks a third time within an hour: who calls Grant must keep count,
// across processes and restarts. Safe for concurrent use.
type Granter struct {
	wire wire
	cred Credentials
}

// NewGranter checks its arguments; baseURL is as in Config.
func NewGranter(baseURL string, cred Credentials, hc *http.Client) (*Granter, error) {
	if cred.AppKey == "" || cred.AppSecret == "" || cred.Username == "" || cred.Password == "" {
		return nil, errors.New("payment gateway: app key, app secret, username or password is missing")
	}
	w, err := newWire(baseURL, hc)
	if err != nil {
		return nil, err
	}
	return &Granter{wire: w, cred: cred}, nil
}

// Grant asks once, within ctx, and is never repeated by itself. An error that
// wraps booking.ErrNotSent means that the gateway was not asked and counts
// nothing; after one that wraps booking.ErrInDoubt take it as counted.
func (g *Granter) Grant(ctx context.Context) (Grant, error) {
	status, body, err := g.wire.post(ctx, pathGrant, http.Header{
		"Username": {string(g.cred.Username)},
		"Password": {string(g.cred.Password)},
	}, map[string]string{"app_key": string(g.cred.AppKey), "app_secret": string(g.cred.AppSecret)})
	if err != nil {
		return Grant{}, fmt.Errorf("grant token: %w", err)
	}
	a, err := decode(status, body, string(g.cred.Password), string(g.cred.AppSecret), string(g.cred.AppKey), string(g.cred.Username))
	switch {
	case errors.Is(err, errUnauthorized):
		return Grant{}, fmt.Errorf("grant token: %w: %w", booking.ErrInDoubt, err)
	case err != nil:
		return Grant{}, fmt.Errorf("grant token: %w", err)
	case a.code() != codeSuccess || a.IDToken == "":
		return Grant{}, fmt.Errorf("grant token: %w: code %s %q", booking.ErrInDoubt, only(codeForm, a.code()), a.words())
	}
	seconds, err := strconv.ParseInt(string(a.ExpiresIn), 10, 32)
	lifetime := time.Duration(seconds) * time.Second
	if err != nil || lifetime <= 0 || lifetime > maxLifetime {
		return Grant{}, fmt.Errorf("grant token: %w: its lifetime cannot be read", booking.ErrInDoubt)
	}
	return Grant{IDToken: Secret(a.IDToken), RefreshToken: Secret(a.RefreshToken), ExpiresIn: lifetime}, nil
}
