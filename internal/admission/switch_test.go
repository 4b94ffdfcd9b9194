package admission_test

import (
	"testing"

	"holdfast/internal/booking"
)

func TestSwitchReads_TellWhatIsThereBeforeAnOpening(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		want := func(when string, size int, elected, loading bool) {
			t.Helper()
			gotSize, errSize := l.AllowlistSize(t.Context())
			gotElected, errElected := l.Elected(t.Context())
			load, errLoading := l.LoadUnfinished(t.Context())
			gotLoading := load != (booking.AllowlistLoad{})
			if errSize != nil || errElected != nil || errLoading != nil {
				t.Fatalf("%s: got %v, %v, %v, want nil", when, errSize, errElected, errLoading)
			}
			if gotSize != size || gotElected != elected || gotLoading != loading {
				t.Errorf("%s: got %d candidates, elected %v, loading %v, want %d, %v, %v", when, gotSize, gotElected, gotLoading, size, elected, loading)
			}
		}
		want("an empty Redis", 0, false, false)
		l.open(t)
		want("a sale", 20, false, false)
		if err := l.rdb.Set(t.Context(), l.prefix+"lock:reconciler", "token", 0).Err(); err != nil {
			t.Fatal(err)
		}
		want("with a lock", 20, true, false)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.BeginAllowlist(t.Context(), "A", "a test"); err != nil {
			t.Fatal(err)
		}
		want("while a list is loaded", 20, true, true)
		if err := l.EndAllowlist(t.Context(), "A", false); err != nil {
			t.Fatal(err)
		}
		want("after the load", 20, true, false)
	})
}
