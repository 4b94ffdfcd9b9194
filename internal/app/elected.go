package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
	"holdfast/internal/statuspage"
)

// elected is the work of the one process of the fleet that holds the lease.
func (a *API) elected(ctx context.Context) error {
	reading, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return a.Stats.Run(reading) })
	g.Go(func() error { defer stop(); return a.Reconciler.Run(ctx) })
	return g.Wait()
}

// shown tells when the published status.json was made and whether it says what these
// figures say; the zero time when there is none.
func (a *API) shown(ctx context.Context, f booking.Figures) (made time.Time, same bool, err error) {
	body, _, err := a.Drivers.Objects.Get(ctx, statuspage.Key)
	if errors.Is(err, booking.ErrNotFound) {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read %s: %w", statuspage.Key, err)
	}
	var is statuspage.Document
	if err := json.Unmarshal(body, &is); err != nil {
		return time.Time{}, false, fmt.Errorf("read %s: %w", statuspage.Key, err)
	}
	made = is.UpdatedAt
	want := statuspage.Compose(f)
	is.Version, is.UpdatedAt = want.Version, want.UpdatedAt
	// As they are sent: times that are the same may differ inside.
	got, err := json.Marshal(is)
	if err != nil {
		return made, false, fmt.Errorf("compare %s: %w", statuspage.Key, err)
	}
	text, err := json.Marshal(want)
	if err != nil {
		return made, false, fmt.Errorf("compare %s: %w", statuspage.Key, err)
	}
	return made, bytes.Equal(got, text), nil
}
