package redistoken

import (
	"testing"
	"time"
)

// Every sets how often the lock is renewed and how often Keep looks.
func Every(extend, keep time.Duration) Option {
	return func(s *Source) { s.extendEvery, s.keepEvery = extend, keep }
}

// Wait lets a test wait until no flight is under way.
func (s *Source) Wait(tb testing.TB) {
	tb.Helper()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		tb.Fatal("a flight has not landed within ten seconds")
	}
}
