package redistoken

import (
	"testing"
	"time"
)

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
