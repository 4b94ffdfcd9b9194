package bench_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
)

// orphanVar makes TestPostgres_Orphan a program that starts a server and waits
// to be killed.
const orphanVar = "HOLDFAST_TEST_POSTGRES_ORPHAN"

func TestPostgres_Orphan(t *testing.T) {
	if os.Getenv(orphanVar) == "" {
		t.Skip("this is the parent of TestPostgres_DiesWithAKilledParent, which starts it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr, dir, stop, err := bench.StartPostgres(ctx)
	if err != nil {
		t.Fatalf("start postgres: got %v, want nil", err)
	}
	defer stop()
	fmt.Println("server", addr, dir)
	<-ctx.Done()
}

func TestPostgres_DiesWithAKilledParent(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	if _, err := bench.FindPostgres(bench.DebianPostgres); errors.Is(err, bench.PostgresNotInstalled()) {
		needPostgres(t, err.Error())
	}
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPostgres_Orphan$")
	parent.Env = append(os.Environ(), orphanVar+"=1")
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatalf("pipe: got %v, want nil", err)
	}
	if err := parent.Start(); err != nil {
		t.Fatalf("start the parent: got %v, want nil", err)
	}
	var said, words []string
	for s := bufio.NewScanner(out); len(words) != 3 && s.Scan(); {
		said = append(said, s.Text())
		if strings.HasPrefix(s.Text(), "server ") {
			words = strings.Fields(s.Text())
		}
	}
	if len(words) != 3 {
		_ = parent.Process.Kill()
		t.Fatalf("the parent: got %q and %v, want the server's address", said, parent.Wait())
	}
	addr, dir := words[1], words[2]
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := dial(t.Context(), addr); err != nil {
		t.Errorf("connect while the parent lives: got %v, want nil", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatalf("kill the parent: got %v, want nil", err)
	}
	_ = parent.Wait() // it was killed
	testenv.Eventually(t, func() error {
		if dial(t.Context(), addr) == nil {
			return errors.New("the server outlives its parent")
		}
		return nil
	})
}

func dial(ctx context.Context, addr string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}
