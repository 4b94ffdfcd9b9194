package main_test

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

// Who interrupts twice means it: a command that the first interruption ends, and that
// still waits to write so into its log, ends at once, by the signal.
func TestSeatctl_ASecondInterruptionEndsTheProcess(t *testing.T) {
	t.Parallel()
	need(t)
	bin, data := build(t, "seatctl"), t.TempDir()
	path := filepath.Join(data, "store.db")
	st, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	away := testenv.FreeAddr(t) // nobody listens there
	env := "HOLDFAST_ACKS=0\nHOLDFAST_DATA=" + data + "\nHOLDFAST_REDIS_ADDR=" + away + "\nHOLDFAST_STATUS_URL=http://" + away + "/status.json\n"
	if err := os.WriteFile(filepath.Join(data, "holdfast.env"), []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "seatctl"), "close", "--reason", "drill", "--wait", "5m", "--data", data)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	testenv.Eventually(t, func() error {
		for _, err := range st.Log(t.Context(), time.Time{}) {
			return err
		}
		return errors.New("the log has nothing: the command is not at work")
	})
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	lock, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if _, err := lock.ExecContext(t.Context(), "BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case err := <-exited:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("got %v, want it ended by the signal\n%s", err, said.String())
			}
			if status, ok := exit.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
				t.Errorf("got %v, want it ended by the signal\n%s", exit, said.String())
			}
			return
		case <-again.C:
			_ = cmd.Process.Signal(syscall.SIGINT) // gone already is fine
		}
	}
}
