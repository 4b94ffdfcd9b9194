package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"net/mail"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
	"holdfast/internal/mailer/outbox"
)

const (
	from    = "bookings@example.org"
	attempt = "1hq8xk00aaaa-01kb8z5v00aaaaaaaaaaaaaaaa"
)

func now() time.Time { return time.Date(2026, 12, 1, 4, 6, 0, 0, time.UTC) }

func paid(attempt string) booking.Mail {
	return booking.Mail{
		To: "candidate100001@example.org", Sale: "demo-2026", LevelName: "N1 Advanced",
		BookingURL: "https://seats.example.org/result?booking=dG9rZW4",
		Record: booking.Record{
			Code: "AB-100001", Attempt: attempt, State: booking.StatePaid, Amount: 150000,
			Currency: "BDT", Transaction: "CK250NROQ5", PaidAt: now(),
		},
	}
}

func mustNew(t *testing.T, dir string) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(dir, from, now)
	if err != nil {
		t.Fatalf("New: got error %v, want none", err)
	}
	return o
}

// names lists everything in the folder, hidden files too.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	return got
}

func TestSend_WritesTheMailUnderItsAttempt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data", "outbox")
	if err := mustNew(t, dir).Send(t.Context(), paid(attempt)); err != nil {
		t.Fatalf("Send: got error %v, want none", err)
	}
	got, err := os.ReadFile(filepath.Join(dir, attempt+".eml"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := mailer.Message(paid(attempt), from, now())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("file: got %q, want %q (%v)", got, want, err)
	}
	for path, perm := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, attempt+".eml"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != perm {
			t.Errorf("permissions of %s: got %v (%v), want %v", filepath.Base(path), info.Mode().Perm(), err, perm)
		}
	}
}

func TestSend_RepeatsLeaveOneWholeFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := mustNew(t, dir)
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if err := o.Send(t.Context(), paid(attempt)); err != nil {
				t.Errorf("Send: got error %v, want none", err)
			}
		})
	}
	group.Wait()
	if err := mustNew(t, dir).Send(t.Context(), paid(attempt)); err != nil {
		t.Errorf("Send after a restart: got error %v, want none", err)
	}
	if diff := cmp.Diff([]string{attempt + ".eml"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	f, err := os.Open(filepath.Join(dir, attempt+".eml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := mail.ReadMessage(f); err != nil {
		t.Errorf("file cannot be read as a mail: %v", err)
	}
}

func TestSend_OneFileForEachAttempt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := mustNew(t, dir)
	const other = "1hq8xk00aaaa-01kb8z5v00bbbbbbbbbbbbbbbb"
	for _, a := range []string{attempt, other} {
		if err := o.Send(t.Context(), paid(a)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{attempt + ".eml", other + ".eml"}, names(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestSend_UnsendableLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := mustNew(t, dir)
	for _, a := range []string{"", "../outside", "x/y"} {
		if err := o.Send(t.Context(), paid(a)); !errors.Is(err, mailer.ErrUnsendable) {
			t.Errorf("attempt %q: got error %v, want ErrUnsendable", a, err)
		}
	}
	if got := names(t, dir); got != nil {
		t.Errorf("files: got %q, want none", got)
	}
}

func TestSend_AfterTheDeadlineWritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := mustNew(t, dir).Send(ctx, paid(attempt)); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want context.Canceled", err)
	}
	if got := names(t, dir); got != nil {
		t.Errorf("files: got %q, want none", got)
	}
}

func TestSend_FolderGoneIsToldAndMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "outbox")
	o := mustNew(t, dir)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	err := o.Send(t.Context(), paid(attempt))
	if err == nil || errors.Is(err, mailer.ErrUnsendable) {
		t.Errorf("got error %v, want one that is not ErrUnsendable", err)
	}
}

func TestNew_RefusesASenderOrFolderThatCannotBe(t *testing.T) {
	t.Parallel()
	if _, err := outbox.New(t.TempDir(), "nobody", now); !errors.Is(err, mailer.ErrUnsendable) {
		t.Errorf("sender without @: got error %v, want ErrUnsendable", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.New(file, from, now); err == nil {
		t.Errorf("folder that is a file: got no error, want one")
	}
}
