package backoffice_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/store/storetest"
	"holdfast/internal/testenv"
)

const sale = "demo-2026"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connector connects to a database and brings its schema up to date, as the wiring does.
func connector(url string) backoffice.Connect {
	return func(ctx context.Context) (*pgx.Conn, error) {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return nil, err
		}
		return c, backoffice.Migrate(ctx, c)
	}
}

func open(t *testing.T, url, sale string) *backoffice.Office {
	t.Helper()
	o := backoffice.New(connector(url), sale)
	t.Cleanup(func() {
		if err := o.Close(context.Background()); err != nil {
			t.Errorf("close: got %v, want nil", err)
		}
	})
	return o
}

// paid is a paid record of a candidate of its own; its time has milliseconds, as the
// ledger's clock has.
func paid() booking.Record {
	return pay(storetest.Held(), 3*time.Minute+250*time.Millisecond)
}

func pay(rec booking.Record, after time.Duration) booking.Record {
	rec.State, rec.Transaction, rec.PaidAt = booking.StatePaid, "TX"+rec.Attempt, rec.AdmittedAt.Add(after)
	rec.Mail, rec.TTL = booking.MailDue, time.Time{}
	return rec
}

// again is a further attempt of the candidate, admitted later and paid.
func again(rec booking.Record, after time.Duration) booking.Record {
	rec.AdmittedAt = rec.AdmittedAt.Add(after)
	rec.Attempt = booking.AttemptID(rec.Epoch, booking.NewAttemptSuffix(rec.AdmittedAt))
	rec.Invoice, rec.PaymentID = booking.Invoice(rec.CandidateHash, rec.Attempt), "TR"+rec.Attempt
	return pay(rec, 3*time.Minute)
}

func row(rec booking.Record, sale string) backoffice.Booking {
	return backoffice.Booking{
		Sale: sale, CandidateHash: rec.CandidateHash, Code: rec.Code, Attempt: rec.Attempt, Level: rec.Level,
		Amount: rec.Amount, Currency: rec.Currency, PaymentID: rec.PaymentID, Transaction: rec.Transaction, PaidAt: rec.PaidAt,
	}
}

func rows(t *testing.T, o *backoffice.Office) []backoffice.Booking {
	t.Helper()
	var all []backoffice.Booking
	for b, err := range o.Paid(t.Context()) {
		if err != nil {
			t.Fatalf("Paid: got %v, want nil", err)
		}
		all = append(all, b)
	}
	return all
}

func mustPut(t *testing.T, o *backoffice.Office, rec booking.Record, want backoffice.Outcome) {
	t.Helper()
	if got, err := o.Put(t.Context(), rec); got != want || err != nil {
		t.Errorf("Put %s: got %q, %v, want %q", rec.Attempt, got, err, want)
	}
}

var ignoreUpdated = cmpopts.IgnoreFields(backoffice.Booking{}, "UpdatedAt")

func check(t *testing.T, o *backoffice.Office, want ...backoffice.Booking) {
	t.Helper()
	byHash := cmpopts.SortSlices(func(a, b backoffice.Booking) bool { return a.CandidateHash < b.CandidateHash })
	if diff := cmp.Diff(want, rows(t, o), ignoreUpdated, byHash, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

func TestOffice(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	// Not parallel with one another: they share a small server, and each has a database.
	for name, test := range map[string]func(t *testing.T, url string){
		"PaidBookingIsOneRowHoweverOftenItComes":   repeats,
		"UpdatedAtStaysWhenNothingChanges":         updated,
		"EarlierPaymentNeverOverwritesALater":      older,
		"LaterPaymentReplacesInAnyOrder":           replaces,
		"SamePaidAtTheLaterAttemptStays":           sameTime,
		"TransactionOfAnotherCandidateIsAnAnomaly": taken,
		"TransactionOfAnotherAttemptIsAnAnomaly":   takenOnReplace,
		"SalesAreKeptApart":                        sales,
		"RenamedSaleDoesNotAlarm":                  renamed,
		"OnlyPaidRecordsAreTaken":                  notPaid,
		"ManyWritersOfOneBookingMakeOneRow":        concurrent,
		"ReadMayStopEarlyAndWriteMeanwhile":        reading,
		"MigrationsRunOnceForAllWhoCome":           migrations,
		"NewerSchemaIsLeftAlone":                   newer,
		"UserWithoutRightsIsToldWhatToDo":          rights,
	} {
		t.Run(name, func(t *testing.T) { test(t, server.Database(t)) })
	}
	t.Run("ConnectionThatBrokeIsReplacedAtTheNextCall", func(t *testing.T) { reconnects(t, server) })
}

func repeats(t *testing.T, url string) {
	o, rec := open(t, url, sale), paid()
	mustPut(t, o, rec, backoffice.Inserted)
	mustPut(t, o, rec, backoffice.Unchanged)
	rec.Mail, rec.MailClaim = booking.MailSent, "sender"
	mustPut(t, o, rec, backoffice.Unchanged)
	other := paid()
	mustPut(t, o, other, backoffice.Inserted)
	check(t, o, row(rec, sale), row(other, sale))
}

func updated(t *testing.T, url string) {
	o, rec := open(t, url, sale), paid()
	mustPut(t, o, rec, backoffice.Inserted)
	first := rows(t, o)[0].UpdatedAt
	if first.IsZero() {
		t.Error("updated_at of a new row: got none, want the time of the write")
	}
	mustPut(t, o, rec, backoffice.Unchanged)
	if got := rows(t, o)[0].UpdatedAt; !got.Equal(first) {
		t.Errorf("updated_at after a repeat: got %s, want %s", got, first)
	}
	mustPut(t, o, again(rec, time.Minute), backoffice.Replaced)
	if got := rows(t, o)[0].UpdatedAt; !got.After(first) {
		t.Errorf("updated_at after a change: got %s, want later than %s", got, first)
	}
}

func older(t *testing.T, url string) {
	o, rec := open(t, url, sale), paid()
	later := again(rec, time.Hour)
	mustPut(t, o, later, backoffice.Inserted)
	mustPut(t, o, rec, backoffice.Older)
	mustPut(t, o, later, backoffice.Unchanged)
	check(t, o, row(later, sale))
}

func replaces(t *testing.T, url string) {
	o, rec := open(t, url, sale), paid()
	second, third := again(rec, time.Hour), again(rec, 2*time.Hour)
	mustPut(t, o, rec, backoffice.Inserted)
	mustPut(t, o, third, backoffice.Replaced)
	mustPut(t, o, second, backoffice.Older)
	mustPut(t, o, rec, backoffice.Older)
	check(t, o, row(third, sale))
}

func sameTime(t *testing.T, url string) {
	o, rec := open(t, url, sale), paid()
	later := again(rec, time.Minute)
	later.PaidAt = rec.PaidAt
	mustPut(t, o, later, backoffice.Inserted)
	mustPut(t, o, rec, backoffice.Older)
	check(t, o, row(later, sale))

	o, rec = open(t, url, "other"), paid()
	later = again(rec, time.Minute)
	later.PaidAt = rec.PaidAt
	mustPut(t, o, rec, backoffice.Inserted)
	mustPut(t, o, later, backoffice.Replaced)
	check(t, o, row(later, "other"))
}

func taken(t *testing.T, url string) {
	o, first, second := open(t, url, sale), paid(), paid()
	second.Transaction = first.Transaction
	mustPut(t, o, first, backoffice.Inserted)
	got, err := o.Put(t.Context(), second)
	if got != "" || !errors.Is(err, backoffice.ErrTransactionTaken) {
		t.Fatalf("same transaction, another candidate: got %q, %v, want ErrTransactionTaken", got, err)
	}
	for _, want := range []string{first.Attempt, second.Attempt, first.Transaction, sale} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error: got %q, want %s in it", err, want)
		}
	}
	for _, code := range []string{first.Code, second.Code} {
		if strings.Contains(err.Error(), code) {
			t.Errorf("error: got %q, want no candidate code in it", err)
		}
	}
	check(t, o, row(first, sale))
}

func takenOnReplace(t *testing.T, url string) {
	o, first, other := open(t, url, sale), paid(), paid()
	mustPut(t, o, first, backoffice.Inserted)
	mustPut(t, o, other, backoffice.Inserted)
	later := again(other, time.Hour)
	later.Transaction = first.Transaction
	if got, err := o.Put(t.Context(), later); got != "" || !errors.Is(err, backoffice.ErrTransactionTaken) {
		t.Errorf("later attempt with another's transaction: got %q, %v, want ErrTransactionTaken", got, err)
	}
	check(t, o, row(first, sale), row(other, sale))
}

func sales(t *testing.T, url string) {
	a, b, rec := open(t, url, sale), open(t, url, "demo-2027"), paid()
	next := again(rec, 365*24*time.Hour)
	mustPut(t, a, rec, backoffice.Inserted)
	mustPut(t, b, next, backoffice.Inserted)
	check(t, a, row(rec, sale))
	check(t, b, row(next, "demo-2027"))
}

func renamed(t *testing.T, url string) {
	a, b, rec := open(t, url, sale), open(t, url, "renamed"), paid()
	mustPut(t, a, rec, backoffice.Inserted)
	mustPut(t, b, rec, backoffice.Unchanged)
	check(t, a, row(rec, sale))
	check(t, b)
}

func notPaid(t *testing.T, url string) {
	o := open(t, url, sale)
	for name, spoil := range map[string]func(*booking.Record){
		"held":           func(r *booking.Record) { r.State = booking.StateHeld },
		"released":       func(r *booking.Record) { r.State = booking.StateReleased },
		"no transaction": func(r *booking.Record) { r.Transaction = "" },
		"no paid_at":     func(r *booking.Record) { r.PaidAt = time.Time{} },
		"another hash":   func(r *booking.Record) { r.CandidateHash = booking.CandidateHash("X") },
		"a version":      func(r *booking.Record) { r.Version++ },
	} {
		rec := paid()
		spoil(&rec)
		if got, err := o.Put(t.Context(), rec); got != "" || !errors.Is(err, backoffice.ErrNotPaid) {
			t.Errorf("%s: got %q, %v, want ErrNotPaid", name, got, err)
		}
	}
	check(t, o)
}

func concurrent(t *testing.T, url string) {
	rec := paid()
	later := again(rec, time.Hour)
	var writers sync.WaitGroup
	offices := make([]*backoffice.Office, 8)
	for i := range offices {
		o, mine := open(t, url, sale), []booking.Record{rec, later}[i%2]
		offices[i] = o
		writers.Go(func() {
			for range 5 {
				if _, err := o.Put(t.Context(), mine); err != nil {
					t.Errorf("Put by one of many: got %v, want nil", err)
				}
			}
		})
	}
	writers.Wait()
	check(t, offices[0], row(later, sale))
}

func reading(t *testing.T, url string) {
	o := open(t, url, sale)
	first := paid()
	mustPut(t, o, first, backoffice.Inserted)
	mustPut(t, o, paid(), backoffice.Inserted)
	seen := 0
	for b, err := range o.Paid(t.Context()) {
		if err != nil {
			t.Fatalf("Paid: got %v, want nil", err)
		}
		seen++
		mustPut(t, o, first, backoffice.Unchanged)
		_ = b
		break
	}
	if seen != 1 {
		t.Errorf("rows before the break: got %d, want 1", seen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := 0
	for _, err := range o.Paid(ctx) {
		if err != nil {
			errs++
		}
	}
	if errs != 1 {
		t.Errorf("errors of a read that may not begin: got %d, want 1", errs)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: got %v, want nil", err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func applied(t *testing.T, c *pgx.Conn) (n, highest int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), `SELECT count(*), max(version) FROM schema_migrations`).Scan(&n, &highest); err != nil {
		t.Fatalf("read schema_migrations: got %v, want nil", err)
	}
	return n, highest
}

func migrations(t *testing.T, url string) {
	var all sync.WaitGroup
	for range 5 {
		c := connect(t, url)
		all.Go(func() {
			for range 2 {
				if err := backoffice.Migrate(t.Context(), c); err != nil {
					t.Errorf("Migrate by one of many: got %v, want nil", err)
				}
			}
		})
	}
	all.Wait()
	if n, highest := applied(t, connect(t, url)); n == 0 || n != highest {
		t.Errorf("migrations noted: got %d up to %d, want each of them once", n, highest)
	}
}

func newer(t *testing.T, url string) {
	c := connect(t, url)
	if err := backoffice.Migrate(t.Context(), c); err != nil {
		t.Fatalf("Migrate: got %v, want nil", err)
	}
	if _, err := c.Exec(t.Context(), `INSERT INTO schema_migrations (version, name) VALUES (1000, 'of a later program')`); err != nil {
		t.Fatal(err)
	}
	before, _ := applied(t, c)
	if err := backoffice.Migrate(t.Context(), c); err != nil {
		t.Errorf("Migrate on a newer schema: got %v, want nil", err)
	}
	if after, _ := applied(t, c); after != before {
		t.Errorf("migrations noted: got %d, want %d as before", after, before)
	}
	mustPut(t, open(t, url, sale), paid(), backoffice.Inserted)
}

func rights(t *testing.T, url string) {
	admin := connect(t, url)
	const reader = `CREATE ROLE reader LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC`
	if _, err := admin.Exec(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	asReader := strings.Replace(url, "postgres@", "reader@", 1)
	if err := backoffice.Migrate(t.Context(), connect(t, asReader)); err == nil || !strings.Contains(err.Error(), "grant") {
		t.Errorf("Migrate without the right: got %v, want an error that says what to grant", err)
	}
	if err := backoffice.Migrate(t.Context(), admin); err != nil {
		t.Fatalf("Migrate: got %v, want nil", err)
	}
	if _, err := admin.Exec(t.Context(), `GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader`); err != nil {
		t.Fatal(err)
	}
	if err := backoffice.Migrate(t.Context(), connect(t, asReader)); err != nil {
		t.Errorf("Migrate of a current schema by one who may only read: got %v, want nil", err)
	}
	o := open(t, asReader, sale)
	check(t, o)
	if _, err := o.Put(t.Context(), paid()); err == nil || !strings.Contains(err.Error(), "grant") {
		t.Errorf("Put without the right: got %v, want an error that says what to grant", err)
	}
	missing := backoffice.New(func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.Connect(ctx, strings.Replace(url, "/test_", "/no_such_", 1))
	}, sale)
	if _, err := missing.Put(t.Context(), paid()); err == nil || !strings.Contains(err.Error(), "create the database") {
		t.Errorf("Put into no database: got %v, want an error that says to create it", err)
	}
}

func reconnects(t *testing.T, server *testenv.PostgresServer) {
	o, first, second := open(t, server.Database(t), sale), paid(), paid()
	mustPut(t, o, first, backoffice.Inserted)
	server.Stop()
	if got, err := o.Put(t.Context(), second); err == nil {
		t.Errorf("Put while PostgreSQL is away: got %q, want an error", got)
	}
	server.Start(t)
	mustPut(t, o, second, backoffice.Inserted)
	server.Stop()
	server.Start(t)
	// The broken connection shows itself in the call, and the call does not mind.
	mustPut(t, o, second, backoffice.Unchanged)
	check(t, o, row(first, sale), row(second, sale))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.Put(ctx, paid()); !errors.Is(err, context.Canceled) {
		t.Errorf("Put after its caller left: got %v, want context.Canceled", err)
	}
	mustPut(t, o, first, backoffice.Unchanged)
	if got, want := fmt.Sprint(len(rows(t, o))), "2"; got != want {
		t.Errorf("rows: got %s, want %s", got, want)
	}
}
