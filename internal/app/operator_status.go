package app

import (
	"context"
	"errors"
	"fmt"

	"holdfast/internal/admission"
	"holdfast/internal/saleops"
)

// Switch opens and closes booking. With a gateway the token is looked at before an
// opening; fleet asks the processes, and may be nil.
func (o *Operator) Switch(fleet func(ctx context.Context) (saleops.FleetSight, error)) *saleops.Switch {
	return &saleops.Switch{
		Ledger: o.Gate, Queue: o.api.Drivers.Queue, Status: o.Status, Fleet: fleet, LoadRunning: o.Gate.LoadUnfinished,
		EpochMark: o.api.Drivers.Store.EpochMark,
		Eviction: func(ctx context.Context) error {
			err := o.Gate.CheckEviction(ctx)
			if errors.Is(err, admission.ErrEviction) {
				return fmt.Errorf("%w: %w", saleops.ErrMayEvict, err)
			}
			return err
		},
		Token: func(ctx context.Context) (saleops.TokenSight, error) {
			if o.api.Token == nil {
				return saleops.TokenSight{}, errors.New("the gateway was not opened")
			}
			st, err := o.TokenState(ctx)
			return saleops.TokenSight{ValidUntil: st.ValidUntil, GrantsLeft: st.GrantsLeft, NextGrant: st.NextGrant}, err
		},
	}
}

// Sighter looks at the running sale, again and again.
func (o *Operator) Sighter() *saleops.Sighter {
	return &saleops.Sighter{Ledger: o.Gate, Queue: o.api.Drivers.Queue, Refunds: o.api.Drivers.Store, Status: o.Status}
}

// MetricsURLs are where the deployment's processes give their metrics; none when no
// setting says so.
func (o *Operator) MetricsURLs() []string { return o.metrics }
