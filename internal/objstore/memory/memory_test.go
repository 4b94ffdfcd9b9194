package memory_test

import (
	"testing"

	"holdfast/internal/objstore/memory"
	"holdfast/internal/objstore/objstoretest"
)

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	objstoretest.Run(t, func(*testing.T) (a, b objstoretest.Store) {
		s := memory.New()
		return s, s
	})
}
