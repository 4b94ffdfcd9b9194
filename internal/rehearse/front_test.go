package rehearse

import (
	"bufio"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// named is a server that tells its name to everybody and then waits for their end.
func named(t *testing.T, name string) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() { ln.Close(); work.Wait() })
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				c.Write([]byte(name + "\n"))
				_, _ = c.Read(make([]byte, 1)) // their end
			})
		}
	})
	return ln.Addr().String()
}

func TestFront_LeadsToWhoeverStandsBehindIt(t *testing.T) {
	t.Parallel()
	first, second := named(t, "first"), named(t, "second")
	f, err := newFront(first)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	connect := func() *bufio.Reader {
		t.Helper()
		var d net.Dialer
		c, err := d.DialContext(t.Context(), "tcp", f.addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return bufio.NewReader(c)
	}
	hear := func(r *bufio.Reader, want string) {
		t.Helper()
		if got, err := r.ReadString('\n'); err != nil || got != want+"\n" {
			t.Errorf("behind the address: got %q, %v, want %s", got, err, want)
		}
	}
	old := connect()
	hear(old, "first")
	f.lead(second)
	if got, err := old.ReadString('\n'); err == nil {
		t.Errorf("a connection to the first after the change: got %q, want its end", got)
	}
	hear(connect(), "second")
	f.lead("")
	if got, err := connect().ReadString('\n'); err == nil {
		t.Errorf("a connection to nobody: got %q, want its end", got)
	}
}

func TestProcessorTime_GrowsWithWork(t *testing.T) {
	t.Parallel()
	before, err := processorTime(os.Getpid())
	if err != nil {
		t.Skip("no /proc on this system")
	}
	// It is told in hundredths of a second.
	for sum, end := 0, time.Now().Add(30*time.Second); ; sum++ {
		after, err := processorTime(os.Getpid())
		if err != nil {
			t.Fatalf("processorTime: got %v, want nil", err)
		}
		if after-before >= 50*time.Millisecond {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("processor time after half a minute's work: got %s after %s, want more", after, before)
		}
	}
}
