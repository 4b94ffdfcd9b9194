package sqlite_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/store/storetest"
)

func TestStore_PurgesAsPromised(t *testing.T) {
	t.Parallel()
	storetest.RunPurger(t, func(t *testing.T) storetest.Purger {
		return open(t, filepath.Join(t.TempDir(), "records.db"))
	})
}

// A mark of a program to come is no reason to take an earlier sale.
func TestEpochMark_OfAnotherVersionIsUnreadable(t *testing.T) {
	t.Parallel()
	s, at := open(t, filepath.Join(t.TempDir(), "records.db")), time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	m := booking.EpochMark{Version: booking.EpochMarkVersion, Epoch: booking.NewEpoch(at), At: at}
	if err := s.MarkEpoch(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	s.spoil(t, `UPDATE epochs SET body = json_set(body, '$.v', 2) WHERE id = ?`, 1)
	if got, err := s.EpochMark(t.Context()); !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("EpochMark: got %+v, %v, want ErrUnreadable", got, err)
	}
	if err := s.MarkEpoch(t.Context(), m); !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("MarkEpoch over it: got %v, want ErrUnreadable", err)
	}
}
