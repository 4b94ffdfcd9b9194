package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/obs"
	"holdfast/internal/paygate"
	"holdfast/internal/paygate/redistoken"
	"holdfast/internal/resolve"
	"holdfast/internal/saleops"
	"holdfast/internal/settle"
)

// Resolver ends doubts; the gateway must have been opened. The mail of a seat that it
// makes paid is a sweep's.
func (o *Operator) Resolver() (*resolve.Resolver, error) {
	settler, err := settle.New(settle.Deps{
		Ledger: o.Gate, Gateway: o.api.Gateway, Store: o.api.Drivers.Store, Mailer: sweepMails{}, Sale: o.Gate, Background: sweepMails{},
		BookingURL:     func(string, string) string { return "" },
		ExecuteTimeout: operatorExecute, Log: o.api.log, Registerer: obs.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	return &resolve.Resolver{Ledger: o.Gate, Store: o.api.Drivers.Store, Gateway: o.api.Gateway, Settler: settler}, nil
}

// sweepMails leaves every mail to the fleet, which has the settings for it.
type sweepMails struct{}

// Go refuses, as in a drain.
func (sweepMails) Go(func()) bool { return false }

// Send sends nothing.
func (sweepMails) Send(context.Context, booking.Mail) error {
	return errors.New("an operator's command sends no mail")
}

// Notices closes notifications by hand; the gateway must have been opened to close
// one.
func (o *Operator) Notices() *saleops.Notices {
	n := &saleops.Notices{Store: o.api.Drivers.Store, Ledger: o.Gate}
	if o.api.Gateway != nil {
		n.Gateway = o.api.Gateway
	}
	return n
}

// Holds gives lost time back.
func (o *Operator) Holds() *resolve.Holds {
	return &resolve.Holds{Ledger: o.Gate, Store: o.api.Drivers.Store}
}

// The gateway's limit, and how long the ledger of grants counts a call. Package
// redistoken alone decides about a grant; here they are only told, and a test holds
// them to what it decides.
const (
	tokenGrants = 2
	tokenWindow = time.Hour + time.Minute
	// grantWithin is more than a grant takes, or another process's at work.
	grantWithin = 60 * time.Second
)

// TokenState is what an operator may know of the fleet's gateway token.
type TokenState struct {
	// ValidUntil is zero when there is no valid token.
	ValidUntil time.Time
	// GrantsAnHour is the gateway's limit.
	GrantsAnHour int
	// GrantsLeft may be made now; with none left the next may be made at NextGrant.
	GrantsLeft int
	NextGrant  time.Time
}

// tokenCopy is what is read of gateway-token.json (docs/shapes.md).
type tokenCopy struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
	Grants    []struct {
		At time.Time `json:"at"`
	} `json:"grants"`
}

func readToken(ctx context.Context, source *redistoken.Source) (tokenCopy, error) {
	var c tokenCopy
	raw, err := source.Export(ctx)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, errors.New("gateway token: its copy cannot be read") // the cause may quote the token
	}
	return c, nil
}

// TokenState reads the token's times and the ledger of grants. It grants nothing;
// the gateway must have been opened.
func (o *Operator) TokenState(ctx context.Context) (TokenState, error) {
	c, err := readToken(ctx, o.api.Token)
	if err != nil {
		return TokenState{}, err
	}
	now, err := o.Gate.Now(ctx)
	if err != nil {
		return TokenState{}, err
	}
	return c.state(now), nil
}

func (c tokenCopy) state(now time.Time) TokenState {
	st := TokenState{GrantsAnHour: tokenGrants}
	if c.Token != "" && now.Before(c.ExpiresAt) {
		st.ValidUntil = c.ExpiresAt
	}
	var counted []time.Time
	for _, g := range c.Grants {
		if until := g.At.Add(tokenWindow); now.Before(until) {
			counted = append(counted, until)
		}
	}
	slices.SortFunc(counted, time.Time.Compare)
	st.GrantsLeft = max(0, tokenGrants-len(counted))
	if st.GrantsLeft == 0 {
		st.NextGrant = counted[len(counted)-tokenGrants]
	}
	return st
}

// GrantToken has a token in place for the fleet, by a grant of its own if there is
// none that is fresh; the ledger of grants counts it.
func (o *Operator) GrantToken(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, grantWithin)
	defer cancel()
	_, err := o.api.Token.Token(ctx)
	return err
}

// GrantTokenAnew asks for a token although there may be a good one, which stays in use when
// none comes: proof of the credentials that the operator was given. Counted as any.
func (o *Operator) GrantTokenAnew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, grantWithin)
	defer cancel()
	return o.api.Token.Anew(ctx)
}

// heldToken is the fleet's token as it is, and never asks for another.
type heldToken struct{ source *redistoken.Source }

func (h heldToken) Token(ctx context.Context) (string, error) {
	c, err := readToken(ctx, h.source)
	if err == nil && c.Token == "" {
		err = errors.New("gateway token: there is none")
	}
	return c.Token, err
}

// Rejected leaves it to the fleet, which meets the same refusal.
func (heldToken) Rejected(context.Context, string) {}

// GatewayClient is a client of the gateway with the fleet's token that grants none,
// whatever the gateway says; the gateway must have been opened.
func (o *Operator) GatewayClient() (*paygate.Client, error) {
	c := o.api.cfg
	hc := paygate.NewHTTPClient(1)
	o.api.closers = append(o.api.closers, func() error { hc.CloseIdleConnections(); return nil })
	client, err := paygate.New(paygate.Config{
		BaseURL: c.GatewayURL, AppKey: paygate.Secret(c.GatewayAppKey.Reveal()),
		CreateTimeout: c.CreateBudget, ExecuteTimeout: c.ExecuteTimeout,
	}, heldToken{o.api.Token}, hc, o.api.log, obs.NewRegistry()) // o.api.reg has the fleet client's metrics
	if err != nil {
		return nil, fmt.Errorf("gateway client: %w", err)
	}
	return client, nil
}
