package admission

import (
	"context"
	"fmt"
)

// Opens tells whether booking is open or will open by itself, as switch and scheduled
// opening stand in this Redis, also while it has no epoch: then nobody can change the
// two, and a ledger that is given an epoch sells by them. It only reads; an opening
// whose time has passed counts.
func (g *Gate) Opens(ctx context.Context) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	values, err := g.rdb.MGet(ctx, g.keys.open(), g.keys.opensAt()).Result()
	if err != nil {
		return false, fmt.Errorf("read the switch: %w", err)
	}
	return values[0] == "1" || values[0] == nil && values[1] != nil, nil
}
