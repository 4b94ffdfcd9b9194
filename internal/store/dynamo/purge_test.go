package dynamo_test

import (
	"testing"

	"holdfast/internal/store/storetest"
)

func TestStore_PurgesAsPromised(t *testing.T) {
	t.Parallel()
	e := newEmulator(t)
	storetest.RunPurger(t, func(t *testing.T) storetest.Purger { return e.open(t) })
}
