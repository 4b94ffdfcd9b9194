package sqlite_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/sqlitedb"
	"holdfast/internal/store/sqlite"
	"holdfast/internal/store/storetest"
)

func (s store) CorruptRefund(t testing.TB, transaction string) {
	t.Helper()
	s.spoil(t, `UPDATE refunds SET body = json_set(body, '$.v', 2) WHERE key = ?`, booking.RefundKey(transaction))
}

func (s store) CorruptNotification(t testing.TB, id string) {
	t.Helper()
	s.spoil(t, `UPDATE notifications SET body = '{"v":1,' WHERE id = ?`, id)
}

func notification(id string) booking.Notification {
	at := time.Date(2026, 12, 1, 4, 3, 21, 0, time.UTC)
	return booking.Notification{Version: booking.NotificationVersion, ID: id, ReceivedAt: at, SentAt: at, Transaction: "CK250NROQ5", Currency: "BDT"}
}

func TestStore_TwoProcessesGiveMoneyBackOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "records.db")
	storetest.RaceMoney(t, open(t, path), open(t, path), 20)
}

// Every step is on disk before its call returns: whoever opens the file next
// finds it, a step at a time.
func TestStore_RefundGoesOnWhereADeadProcessLeftIt(t *testing.T) {
	t.Parallel()
	path, r := filepath.Join(t.TempDir(), "records.db"), storetest.Due()
	now := r.DecidedAt.Add(time.Minute)
	until := now.Add(time.Minute)
	n := notification("22b80b92")
	for _, step := range []struct {
		name string
		do   func(s *sqlite.Store) error
		want func(r *booking.Refund, n *booking.Notification)
	}{
		{"PutRefund", func(s *sqlite.Store) error { _, _, err := s.PutRefund(t.Context(), r); return err }, nil},
		{"PutNotification", func(s *sqlite.Store) error { _, err := s.PutNotification(t.Context(), n); return err }, nil},
		{
			"ClaimRefund",
			func(s *sqlite.Store) error {
				_, _, err := s.ClaimRefund(t.Context(), r.Transaction, "a", now, until)
				return err
			},
			func(r *booking.Refund, _ *booking.Notification) { r.Claim, r.ClaimUntil = "a", until },
		},
		{
			"RefundSent",
			func(s *sqlite.Store) error { return s.RefundSent(t.Context(), r.Transaction, "a", now) },
			func(r *booking.Refund, _ *booking.Notification) { r.State, r.SentAt = booking.RefundSent, now },
		},
		{
			"RefundTrouble",
			func(s *sqlite.Store) error { return s.RefundTrouble(t.Context(), r.Transaction, "a", "2073") },
			func(r *booking.Refund, _ *booking.Notification) {
				r.Trouble, r.Claim, r.ClaimUntil = "2073", "", time.Time{}
			},
		},
		{
			"RefundDone",
			func(s *sqlite.Store) error {
				return s.RefundDone(t.Context(), r.Transaction, "operator", "", "bank transfer", until)
			},
			func(r *booking.Refund, _ *booking.Notification) {
				r.State, r.DoneAt, r.DoneBy, r.Note, r.Trouble = booking.RefundDone, until, "operator", "bank transfer", ""
			},
		},
		{
			"CloseNotification",
			func(s *sqlite.Store) error {
				return s.CloseNotification(t.Context(), n.ID, booking.NotifiedRefund, until)
			},
			func(_ *booking.Refund, n *booking.Notification) {
				n.Outcome, n.ClosedAt = booking.NotifiedRefund, until
			},
		},
	} {
		s, err := sqlite.Open(t.Context(), path)
		if err != nil {
			t.Fatalf("Open: %v", err)
		}
		if err := step.do(s); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if err := step.do(s); !errors.Is(err, sqlitedb.ErrClosed) {
			t.Errorf("%s after Close: got %v, want ErrClosed", step.name, err)
		}
		if step.want != nil {
			step.want(&r, &n)
		}
		next := open(t, path)
		if got, err := next.Refund(t.Context(), r.Transaction); err != nil || !cmp.Equal(got, r) {
			t.Errorf("refund after %s and a reopening: %v (-want +got):\n%s", step.name, err, cmp.Diff(r, got))
		}
		got, err := next.Notification(t.Context(), n.ID)
		if step.name == "PutRefund" {
			if !errors.Is(err, booking.ErrNotFound) {
				t.Errorf("notification before it came: got %+v, %v, want ErrNotFound", got, err)
			}
			continue
		}
		if err != nil || !cmp.Equal(got, n) {
			t.Errorf("notification after %s and a reopening: %v (-want +got):\n%s", step.name, err, cmp.Diff(n, got))
		}
	}
}

func TestOpen_FileFromBeforeRefundsKeepsItsRecords(t *testing.T) {
	t.Parallel()
	path, rec := filepath.Join(t.TempDir(), "records.db"), storetest.Held()
	old, err := sqlitedb.Open(t.Context(), path, sqlite.SchemaBefore(1))
	if err != nil {
		t.Fatalf("open as before: %v", err)
	}
	body, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitedb.Write(t.Context(), old, func(tx *sqlitedb.Tx) (struct{}, error) {
		_, err := tx.Exec(`INSERT INTO records (candidate_hash, attempt, payment_id, body) VALUES (?, ?, ?, ?)`,
			rec.CandidateHash, rec.Attempt, rec.PaymentID, string(body))
		return struct{}{}, err
	}); err != nil {
		t.Fatalf("write as before: %v", err)
	}
	if err := old.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s := open(t, path)
	if got, err := s.Record(t.Context(), rec.CandidateHash, rec.Attempt); err != nil || got != rec {
		t.Errorf("record of the old file: got %+v, %v, want %+v", got, err, rec)
	}
	if _, put, err := s.PutRefund(t.Context(), storetest.Due()); err != nil || !put {
		t.Errorf("PutRefund into the old file: got %t, %v, want true", put, err)
	}
	if stored, err := s.PutNotification(t.Context(), notification("22b80b92")); err != nil || !stored {
		t.Errorf("PutNotification into the old file: got %t, %v, want true", stored, err)
	}
}

// A row under another's key would give the wrong money back.
func TestStore_RowsOfAnotherAreUnreadable(t *testing.T) {
	t.Parallel()
	s, r, n := open(t, filepath.Join(t.TempDir(), "records.db")), storetest.Due(), notification("22b80b92")
	if _, _, err := s.PutRefund(t.Context(), r); err != nil {
		t.Fatalf("PutRefund: %v", err)
	}
	if _, err := s.PutNotification(t.Context(), n); err != nil {
		t.Fatalf("PutNotification: %v", err)
	}
	s.spoil(t, `UPDATE refunds SET body = json_set(body, '$.transaction', 'TXother') WHERE key = ?`, booking.RefundKey(r.Transaction))
	s.spoil(t, `UPDATE notifications SET body = json_set(body, '$.id', 'other') WHERE id = ?`, n.ID)
	if got, err := s.Refund(t.Context(), r.Transaction); !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("refund of another's transaction: got %+v, %v, want ErrUnreadable", got, err)
	}
	if got, err := s.Notification(t.Context(), n.ID); !errors.Is(err, booking.ErrUnreadable) {
		t.Errorf("notification of another's message: got %+v, %v, want ErrUnreadable", got, err)
	}
}

func TestStore_RefundErrorsDoNotGiveTheCandidateAway(t *testing.T) {
	t.Parallel()
	s, r := open(t, filepath.Join(t.TempDir(), "records.db")), storetest.Due()
	if _, _, err := s.PutRefund(t.Context(), r); err != nil {
		t.Fatalf("PutRefund: %v", err)
	}
	s.CorruptRefund(t, r.Transaction)
	_, one := s.Refund(t.Context(), r.Transaction)
	_, of := s.RefundsOf(t.Context(), r.CandidateHash, r.Attempt)
	for name, err := range map[string]error{
		"Refund": one, "RefundsOf": of, "RefundSent": s.RefundSent(t.Context(), r.Transaction, "a", r.DecidedAt),
	} {
		if err == nil || !strings.Contains(err.Error(), r.Transaction) || strings.Contains(err.Error(), r.CandidateHash) {
			t.Errorf("%s of an unreadable refund: got %v, want the transaction named and no candidate's hash", name, err)
		}
	}
}
