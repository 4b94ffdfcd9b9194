package bench

import (
	"syscall"
	"time"
)

// sleepUntil blocks the thread, to within some ten microseconds.
func sleepUntil(t time.Time) {
	for left := time.Until(t); left > 0; left = time.Until(t) {
		ts := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // interrupted by a signal, it goes on above
	}
}
