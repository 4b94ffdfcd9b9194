package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// gcPercent trades memory, of which an API process uses little, for time: a rush
// allocates hundreds of megabytes a second and keeps next to nothing.
const gcPercent = 400

// TuneGC sets the collector for a process that answers requests, unless GOGC says
// otherwise. The returned function puts back what was.
func TuneGC(getenv func(string) string) (restore func()) {
	if getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(gcPercent)
	return func() { debug.SetGCPercent(before) }
}

const (
	// trimEvery is how often a process looks whether it is idle.
	trimEvery = 5 * time.Second
	// idleBytes is what an idle process allocates at most in that time: health checks,
	// a scrape, a sweep with nothing due.
	idleBytes = 4 << 20
	// trimBytes is the garbage that is worth a collection.
	trimBytes = 8 << 20
)

// trimmer gives memory back to the machine after a rush. The collector does not do it
// by itself: it waits for as much garbage as gcPercent allows, which an idle process
// does not make for hours.
type trimmer struct {
	allocated func() uint64 // bytes since the process began
	free      func()
	last      uint64 // at the last look
	freed     uint64 // when memory was last given back
}

// look gives memory back if the process has been idle since the last look and has
// allocated enough since it last did so.
func (t *trimmer) look() {
	now := t.allocated()
	idle := now-t.last < idleBytes
	t.last = now
	if !idle || now-t.freed < trimBytes {
		return
	}
	t.free()
	t.freed = now
}

// trim looks again and again until ctx ends.
func trim(ctx context.Context) {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	t := trimmer{
		allocated: func() uint64 {
			metrics.Read(sample)
			return sample[0].Value.Uint64()
		},
		free: debug.FreeOSMemory,
	}
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.look()
		}
	}
}
