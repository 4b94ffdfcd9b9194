package redisproc_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"holdfast/internal/redisproc"
)

// orphanDir tells the re-executed test program to start a server there and to
// wait to be killed.
const orphanDir = "REDISPROC_TEST_ORPHAN_DIR"

// beOrphaned prints the address of a server and never stops it.
func beOrphaned(dir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := redisproc.Start(ctx, redisproc.Options{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.Addr())
	<-ctx.Done()
	return 1
}

func TestStart_ServerDiesWithAKilledParent(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	needServer(t)
	ctx := budget(t)
	parent := exec.CommandContext(ctx, os.Args[0])
	parent.Env = append(os.Environ(), orphanDir+"="+t.TempDir())
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatalf("pipe: got %v, want nil", err)
	}
	if err := parent.Start(); err != nil {
		t.Fatalf("start the parent: got %v, want nil", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the parent's address line: got %q, %v", line, err)
	}
	addr := strings.TrimSpace(line)
	if err := dialOnce(ctx, addr); err != nil {
		t.Fatalf("connect while the parent lives: got %v, want nil", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatalf("kill the parent: got %v, want nil", err)
	}
	_ = parent.Wait() // it was killed
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for dialOnce(ctx, addr) == nil {
		select {
		case <-ctx.Done():
			t.Fatal("the server outlived its parent by the whole budget")
		case <-tick.C:
		}
	}
}

func dialOnce(ctx context.Context, addr string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}
