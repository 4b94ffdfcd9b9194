package admission_test

import (
	"testing"
	"time"
)

// As the scripts read switch and time, and without an epoch, too.
func TestOpens_TellsWhatSellsOrWill(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		want := func(when string, want bool) {
			t.Helper()
			if got, err := l.Opens(t.Context()); err != nil || got != want {
				t.Errorf("%s: got %t, %v, want %t", when, got, err, want)
			}
		}
		want("an empty Redis", false)
		l.open(t)
		want("open", true)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		want("closed", false)
		if err := l.OpenAt(t.Context(), time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		want("scheduled", true)
		if err := l.rdb.Del(t.Context(), l.prefix+"adm:epoch").Err(); err != nil {
			t.Fatal(err)
		}
		want("scheduled, without an epoch", true)
		if err := l.rdb.Set(t.Context(), l.prefix+"booking:open", "0", 0).Err(); err != nil {
			t.Fatal(err)
		}
		want("closed, which wins over the time", false)
	})
}
