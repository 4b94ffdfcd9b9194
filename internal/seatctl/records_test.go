package seatctl_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/saleops"
	"holdfast/internal/testenv"
)

func TestBookingsShow_SaysWhatDiffersAndHidesTheAddress(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	held, paid := s.two(t)
	s.serve(t, 0)
	show := func(args ...string) result {
		return run(t, "", append([]string{"bookings", "show", "--data", s.data}, args...)...)
	}
	// The gateway has no mock behind it here: its word is missing, and said to be.
	show(paid.Code).want(t, 1, "NOT SEEN  gateway about payment "+paid.Payment.ID, "PAID")
	show(paid.Code, "--no-gateway").want(t, 0, "GATEWAY (not asked)", "attempt "+paid.Attempt+", which owns the seat", "paid", "PAID", "TX1")
	got := show(strings.ToLower(held.Code), "--no-gateway", "--json")
	got.want(t, 0, `"email": "c***@`)
	if strings.Contains(got.stdout, bookingtest.Email(1)) {
		t.Errorf("--json: got the whole address in %s, want it masked", got.stdout)
	}
	show(held.Code, "--no-gateway", "--email").want(t, 0, bookingtest.Email(1))
	if err := s.rdb.HDel(t.Context(), "{sale}:adm:seen", held.Code).Err(); err != nil {
		t.Fatal(err)
	}
	show(held.Code, "--no-gateway").want(t, 1, "! state", "HELD", "seat    none")
	show(held.Code, "--no-gateway", "--attempt", "other").want(t, 1, "has no such booking")
	show("C0005", "--no-gateway").want(t, 1, "has no such booking")
}

func TestBookingsExport_WritesAWholeFileOrNone(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	_, paid := s.two(t)
	s.serve(t, 0)
	out := filepath.Join(t.TempDir(), "paid.csv")
	export := func(args ...string) result {
		return run(t, "", append([]string{"bookings", "export", "--data", s.data}, args...)...)
	}
	export("--out", out).want(t, 0, "1 bookings are in "+out)
	info, err := os.Stat(out)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("file: got %v, %v, want mode 0600", info, err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for e, err := range saleops.ReadExport(f) {
		if err != nil || e.Code != paid.Code || e.State != booking.StatePaid || e.Transaction != "TX1" {
			t.Errorf("export: got %+v, %v, want the paid booking", e, err)
		}
	}
	export("--out", out).want(t, 2, "file exists")
	export("--state", "all", "--json").want(t, 2, "give --out FILE")
	all := filepath.Join(t.TempDir(), "all.csv")
	export("--state", "all", "--out", all, "--json").want(t, 0, `"bookings": 2`)
	if got := export("--state", "HELD"); got.code != 0 || strings.Count(got.stdout, "\n") != 2 {
		t.Errorf("to stdout: got %+v, want a header and one line", got)
	}
}

func TestDLQ_ListsShowsAndRedrives(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	held, _ := s.two(t)
	s.serve(t, 0)
	q, err := queue.Open(t.Context(), filepath.Join(s.data, "queue.db"), queue.Options{MaxReceives: 1, Visibility: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	dlq := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"dlq", "--data", s.data}, args...)...)
	}
	dlq("", "list").want(t, 0, "there are no dead letters", "0 dead")
	body, err := json.Marshal(held.Record)
	if err != nil {
		t.Fatal(err)
	}
	for id, body := range map[string][]byte{held.Record.Invoice: body, "odd": []byte(`{"code":"C0001`)} {
		if err := q.Send(t.Context(), "g-"+id, id, body); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, func() error {
		_, err := q.Receive(t.Context(), 10, 0)
		if stats, serr := q.Stats(t.Context()); err == nil && (serr != nil || stats.Dead != 2) {
			return os.ErrNotExist
		}
		return err
	})
	list := dlq("", "list")
	list.want(t, 0, held.Attempt, "HELD: redriven, it changes nothing", "cannot be read (14 bytes, SHA-256", "2 dead")
	if strings.Contains(list.stdout, held.Code) {
		t.Errorf("list: got a candidate's code in %s, want none", list.stdout)
	}
	dlq("", "show", held.Attempt).want(t, 0, "delivered 1 times", "level     N1", "payment   "+held.Payment.ID)
	dlq("", "show", "none").want(t, 1, "no dead letter that can be seen")
	dlq("", "redrive").want(t, 2, "name each ID, or give --all")
	dlq("", "redrive", "none", "--yes").want(t, 1, "nothing was changed")
	dlq("n\n", "redrive", held.Attempt).want(t, 1, "This has 1 of 2 dead letters delivered again", "not agreed")
	dlq("y\n", "redrive", held.Attempt).want(t, 0, "1 redriven", "1 dead")
	dlq("", "redrive", "--all", "--yes", "--json").want(t, 0, `"redriven": 1`, `"dead": 0`)
	dlq("", "redrive", "--all", "--yes").want(t, 0, "0 redriven")
	run(t, "", "log", "--data", s.data).want(t, 0, "dlq redrive")
}

// ended is a sale that is over for some time, with one paid booking.
func ended(t *testing.T, ago time.Duration) (*still, bookingtest.Booking) {
	t.Helper()
	s := stopped(t, ago)
	held, paid := s.two(t)
	if err := s.Store.Release(t.Context(), held.Record, booking.ReasonLapsed, s.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	s.Clock.Advance(booking.DefaultHold + time.Minute)
	if err := s.gate.Release(t.Context(), held.Code, held.Attempt); err != nil {
		t.Fatal(err)
	}
	if err := s.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.serve(t, 0)
	return s, paid
}

// audit wants every rule of the audit to hold.
func (s *still) audit(t *testing.T) {
	t.Helper()
	run(t, "", "audit", "--data", s.data).want(t, 0, "every rule that was seen holds")
}

func TestReset_AsksTwiceForPaidBookings(t *testing.T) {
	t.Parallel()
	s, _ := ended(t, time.Hour)
	reset := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"reset", "--data", s.data, "--reason", "drill"}, args...)...)
	}
	run(t, "", "reset", "--data", s.data).want(t, 2, "--reason")
	run(t, "", "reset", "--data", s.data, "--reason", " ").want(t, 2, "say why")
	reset("").want(t, 1, "1 paid bookings, 5 candidates", "was not typed: nothing was changed")
	reset("", "--confirm", "other").want(t, 1, "the sale's name is demo", "nothing was changed")
	reset("", "--confirm", "demo").want(t, 1, "1 people have paid", "was not confirmed: nothing was changed")
	reset("demo\n", "--confirm", "demo").want(t, 1, `want "demo 1", got "demo": nothing was changed`)
	reset("", "--confirm", "demo", "--with-paid", "demo 2").want(t, 1, `want "demo 1"`)
	if epoch, err := s.gate.Epoch(t.Context()); err != nil || epoch != bookingtest.Epoch {
		t.Fatalf("epoch after refusals: got %s, %v, want %s", epoch, err, bookingtest.Epoch)
	}
	reset("demo\ndemo 1\n").want(t, 0, "sale demo begins anew", "with 1 paid bookings", "5 candidates, as before", "Booking is closed")
	s.audit(t)
	// Now there is nothing to forget, and one answer is enough.
	reset("", "--confirm", "demo", "--json").want(t, 0, `"forgotten": 0`, `"reason": "drill"`)
	run(t, "", "log", "--data", s.data).want(t, 0, "reset", "demo", "drill", "done")
	if err := s.gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	reset("", "--confirm", "demo").want(t, 1, "AGAINST IT: booking is open: close it", "refused", "nothing was changed")
}

func TestPurge_NamesGoAndTheRestStays(t *testing.T) {
	t.Parallel()
	s, paid := ended(t, 40*24*time.Hour)
	outbox := filepath.Join(s.data, "outbox")
	if err := os.MkdirAll(outbox, 0o700); err != nil {
		t.Fatal(err)
	}
	mail := filepath.Join(outbox, paid.Attempt+".eml")
	if err := os.WriteFile(mail, []byte("To: somebody"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-40 * 24 * time.Hour)
	if err := os.Chtimes(mail, old, old); err != nil {
		t.Fatal(err)
	}
	purge := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"purge", "--data", s.data, "--reason", "event is over"}, args...)...)
	}
	run(t, "", "purge", "--data", s.data, "--reason", " ").want(t, 2, "say why")
	purge("", "--older-than", "47h").want(t, 2, "want 48h0m0s at least")
	purge("", "--older-than", "1200h", "--dry-run").want(t, 1, "it would be refused", "may be purged from")
	purge("", "--dry-run").want(t, 0, "5 would go", "mails                   1 would go", "records                 2 would go")
	purge("", "--dry-run", "--json").want(t, 0, `"dry_run": true`, `"records": 2`, `"against": []`)
	if _, err := os.Stat(mail); err != nil {
		t.Errorf("mail after dry runs: got %v, want it there", err)
	}
	purge("", "--older-than", "1200h", "--confirm", "demo").want(t, 1, "refused", "nothing was changed")
	purge("", "--confirm", "demo").want(t, 1, "was not confirmed: nothing was changed")
	purge("", "--confirm", "demo", "--with-paid", "demo 1", "--json").want(t, 0, `"records": 2`, `"emails": 5`, `"mails": 1`, `"seats": 1`)
	purge("demo\n").want(t, 0, "sale demo is purged", "records                 0 gone")
	if _, err := os.Stat(mail); !os.IsNotExist(err) {
		t.Errorf("mail: got %v, want that it is gone", err)
	}
	keys, err := s.rdb.Keys(t.Context(), "*C000*").Result()
	if err != nil || len(keys) > 0 {
		t.Errorf("keys with a code: got %q, %v, want none", keys, err)
	}
	s.audit(t)
	run(t, "", "bookings", "show", paid.Code, "--no-gateway", "--data", s.data).want(t, 1, "has no such booking")
	run(t, "", "log", "--data", s.data).want(t, 0, "purge", "event is over")
}

// Who has paid and was never written to must not be forgotten unsaid.
func TestPurge_SaysWhoWasNeverMailed(t *testing.T) {
	t.Parallel()
	s, paid := ended(t, 40*24*time.Hour)
	row, err := s.rdb.HGet(t.Context(), "{sale}:adm:seen", paid.Code).Result()
	if err != nil {
		t.Fatal(err)
	}
	unsent := strings.Replace(row, `"mail_done":true`, `"mail_done":false`, 1)
	if unsent == row {
		t.Fatalf("row: got %s, want one whose mail is sent", row)
	}
	if err := s.rdb.HSet(t.Context(), "{sale}:adm:seen", paid.Code, unsent).Err(); err != nil {
		t.Fatal(err)
	}
	purge := func(args ...string) result {
		return run(t, "", append([]string{"purge", "--data", s.data, "--reason", "event is over"}, args...)...)
	}
	const says = "1 of the paid bookings have no confirmation mail yet, and would get none"
	purge("--dry-run").want(t, 0, says)
	purge("--dry-run", "--json").want(t, 0, `"unmailed": 1`)
	purge("--confirm", "demo").want(t, 1, says, "was not confirmed: nothing was changed")
	purge("--confirm", "demo", "--with-paid", "demo 1", "--json").want(t, 0, says, `"unmailed": 1`)
	purge("--confirm", "demo", "--json").want(t, 0, `"unmailed": 0`)
}

// A running deployment, whose reconciler looks on: it must not take the reset for
// a loss, and sells the new sale.
func TestReset_OfARunningDeployment(t *testing.T) {
	t.Parallel()
	testenv.NeedServer(t)
	d := start(t, nil)
	d.pay(t, d.book(t, 100001))
	reset := func(args ...string) result {
		return run(t, "", append([]string{"reset", "--data", d.data, "--reason", "rehearsal", "--confirm", "demo-2026"}, args...)...)
	}
	reset().want(t, 1, "AGAINST IT: booking is open")
	run(t, "", "close", "--data", d.data, "--reason", "rehearsal is over").want(t, 0)
	var got result
	testenv.Eventually(t, func() error { // the mail goes out first
		got = reset("--with-paid", "demo-2026 1", "--json")
		if got.code != 0 {
			return errors.New(got.stderr)
		}
		return nil
	})
	var did struct{ Epoch, Ended string }
	if err := json.Unmarshal([]byte(got.stdout), &did); err != nil || did.Epoch <= did.Ended {
		t.Fatalf("reset: got %s, %v, want a later epoch", got.stdout, err)
	}
	run(t, "", "audit", "--data", d.data, "--gateway").want(t, 0, "all 0/20700", "every rule that was seen holds", "1 records of other sales")
	if err := d.rdb.Set(t.Context(), "{sale}:booking:open", "1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	d.pay(t, d.book(t, 100001)) // the same candidate, in the new sale
	testenv.Eventually(t, func() error {
		if r := run(t, "", "bookings", "show", "AB-100001", "--data", d.data); r.code != 0 || !strings.Contains(r.stdout, ", of another sale") {
			return errors.New(r.stdout + r.stderr)
		}
		return nil
	})
	run(t, "", "audit", "--data", d.data, "--gateway").want(t, 0, "all 1/20700", "every rule that was seen holds")
}
