package testenv_test

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/testenv"
)

func TestClock_RingsByRealTimeAndByWhatIsAdded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, began := testenv.NewClock(), time.Now()
		now, hour, day := c.At(began), c.At(began.Add(time.Hour)), c.At(began.Add(24*time.Hour))
		rings := func(at <-chan time.Time) bool {
			synctest.Wait()
			select {
			case <-at:
				return true
			default:
				return false
			}
		}
		if !rings(now) || rings(hour) {
			t.Error("at the beginning: want what is due, and nothing else")
		}
		c.Add(59 * time.Minute)
		if rings(hour) {
			t.Error("an hour was over after 59 minutes")
		}
		time.Sleep(time.Minute)
		if !rings(hour) || rings(day) {
			t.Error("an hour, a minute of it real: want what is due, and nothing else")
		}
		c.Add(48 * time.Hour)
		if !rings(day) || c.Added() != 48*time.Hour+59*time.Minute || c.Now().Sub(began) != 49*time.Hour {
			t.Errorf("two days later: got %s added, %s on the clock, want both days told", c.Added(), c.Now().Sub(began))
		}
	})
}
