//go:build !linux

package bench

import "time"

// sleepUntil sleeps as well as the runtime can.
func sleepUntil(t time.Time) { time.Sleep(time.Until(t)) }
