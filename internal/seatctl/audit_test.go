package seatctl_test

import (
	"database/sql"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/config"
	"holdfast/internal/statuspage"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

// still is a deployment none of whose processes runs, so that nothing mends what
// a test breaks. What is done to it was done some time ago.
type still struct {
	*bookingtest.World
	gate       *admission.Gate
	rdb        *redis.Client
	addr, data string
}

func stopped(t *testing.T, ago time.Duration) *still {
	t.Helper()
	clock := new(bookingtest.Clock)
	clock.Advance(-ago)
	s := &still{addr: testenv.Mini(t), data: t.TempDir()}
	s.rdb = admission.NewClient(admission.ClientConfig{Addr: s.addr, Pool: 4})
	t.Cleanup(func() { _ = s.rdb.Close() })
	keys, err := admission.NewKeys(admission.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	s.gate, err = admission.New(s.rdb, admission.Options{
		Keys: keys, Acks: 0, ClockOffset: clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	s.World = bookingtest.NewWorld(clock, s.gate, nil, records)
	s.Open(t, bookingtest.Sale(), 5)
	return s
}

// two is candidate 1, who holds a seat, and candidate 2, who has paid.
func (s *still) two(t *testing.T) (held, paid bookingtest.Booking) {
	t.Helper()
	held = s.Held(t, 1, "N1")
	paid = s.Held(t, 2, "N1")
	s.settle(t, paid)
	hash := booking.CandidateHash(paid.Code)
	if _, err := s.Store.ClaimMail(t.Context(), hash, paid.Attempt, "claim", time.Now(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := s.Store.MailSent(t.Context(), hash, paid.Attempt, "claim"); err != nil {
		t.Fatal(err)
	}
	if err := s.gate.MailDone(t.Context(), paid.Code, paid.Attempt); err != nil {
		t.Fatal(err)
	}
	return held, paid
}

// settle makes the booking paid, but for its mail.
func (s *still) settle(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	row, err := s.gate.Settle(t.Context(), b.Code, b.Attempt, b.Payment.ID, "TX1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store.MarkPaid(t.Context(), booking.Paid{Record: b.Record, Transaction: "TX1", PaidAt: time.UnixMilli(row.PaidAt).UTC()}); err != nil {
		t.Fatal(err)
	}
	if err := s.gate.RecordDone(t.Context(), b.Code, b.Attempt); err != nil {
		t.Fatal(err)
	}
}

// owe puts a refund of the booking's money.
func (s *still) owe(t *testing.T, b bookingtest.Booking, transaction string) {
	t.Helper()
	charge := booking.Charge{Transaction: transaction, PaymentID: b.Payment.ID, Amount: b.Record.Amount, Currency: b.Record.Currency}
	refund := booking.NewRefund(b.Record, charge, booking.MoneyOther, booking.Decision{Reason: "other_than_ordered", At: s.Clock.Now()})
	if _, _, err := s.Store.PutRefund(t.Context(), refund); err != nil {
		t.Fatal(err)
	}
}

// notify puts a notification that came so long ago.
func (s *still) notify(t *testing.T, id string, ago time.Duration) {
	t.Helper()
	at := time.Now().Add(-ago)
	if _, err := s.Store.PutNotification(t.Context(), booking.Notification{
		Version: booking.NotificationVersion, ID: id, ReceivedAt: at, SentAt: at, Transaction: "TX9", Currency: "BDT",
	}); err != nil {
		t.Fatal(err)
	}
}

// lose takes the booking's seat out of the ledger.
func (s *still) lose(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	bookingtest.NewRedisSeats(s.rdb, admission.DefaultPrefix, s.gate).Lose(t, b)
}

// do runs a command on a key, past the scripts.
func (s *still) do(t *testing.T, verb, key string, args ...any) {
	t.Helper()
	if err := s.rdb.Do(t.Context(), append([]any{verb, admission.DefaultPrefix + key}, args...)...).Err(); err != nil {
		t.Fatalf("%s %s: %v", verb, key, err)
	}
}

func (s *still) forget(t *testing.T, b bookingtest.Booking) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(s.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), `DELETE FROM records WHERE attempt = ?`, b.Attempt); err != nil {
		t.Fatal(err)
	}
}

// serve writes holdfast.env, and publishes status.json as it is now, but for so
// many seats.
func (s *still) serve(t *testing.T, tooMany int) {
	t.Helper()
	status := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := s.gate.ReadStatus(r.Context())
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		f.Total -= tooMany
		_ = json.NewEncoder(w).Encode(statuspage.Compose(f))
	}))
	t.Cleanup(status.Close)
	env := config.FormatEnv(map[string]string{
		"HOLDFAST_DATA": s.data, "HOLDFAST_REDIS_ADDR": s.addr, "HOLDFAST_ACKS": "0", "HOLDFAST_STATUS_URL": status.URL,
		"HOLDFAST_GATEWAY_URL":     "http://" + testenv.FreeAddr(t), // nobody listens there
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD": "p",
	})
	if err := os.WriteFile(filepath.Join(s.data, config.EnvFile), env, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Damage is named by its rule and, where it is a candidate's, by the candidate's
// code, and ends the command with 1. A look at it takes a few seconds, in which it
// must stay, so that all cases are looked at together.
func TestAudit_DamageEndsWithOne(t *testing.T) {
	t.Parallel()
	type bookings struct{ held, paid bookingtest.Booking }
	const recent, long = 3 * time.Minute, 30 * time.Minute
	two := func(damage func(t *testing.T, s *still, b bookings)) func(*testing.T, *still) {
		return func(t *testing.T, s *still) {
			held, paid := s.two(t)
			if damage != nil {
				damage(t, s, bookings{held, paid})
			}
		}
	}
	count := func(verb, key string) func(*testing.T, *still) {
		return two(func(t *testing.T, s *still, _ bookings) { s.do(t, verb, key) })
	}
	cases := []struct {
		name   string
		ago    time.Duration
		damage func(t *testing.T, s *still)
		args   []string
		stale  int // seats
		code   int
		want   []string // it says
	}{
		{"Nothing", recent, two(nil), nil, 0, 0, []string{"all 2/5", "every rule that was seen holds"}},
		{"TotalOneMore", recent, count("INCR", "adm:total"), nil, 0, 1, []string{"\ncounters: ", "all levels: the counter says 3, there are 2 rows"}},
		{"TotalOneLess", recent, count("DECR", "adm:total"), nil, 0, 1, []string{"\ncounters: ", "all levels: the counter says 1, there are 2 rows"}},
		{"TotalMissing", recent, count("DEL", "adm:total"), nil, 0, 1, []string{"\ncounters: ", "all levels: the counter says nothing that is a number, there are 2 rows"}},
		{"LevelOneMore", recent, count("INCR", "adm:level:N1"), nil, 0, 1, []string{"\ncounters: ", "level N1: the counter says 3, there are 2 rows"}},
		{"LevelOneLess", recent, count("DECR", "adm:level:N1"), nil, 0, 1, []string{"\ncounters: ", "level N1: the counter says 1, there are 2 rows"}},
		{"LevelMissing", recent, count("DEL", "adm:level:N1"), nil, 0, 1, []string{"\ncounters: ", "level N1: the counter says nothing that is a number, there are 2 rows"}},
		{"RowWithoutRecord", recent, two(func(t *testing.T, s *still, b bookings) { s.forget(t, b.held) }), nil, 0, 1,
			[]string{"\nrecords-and-rows: ", "of C0001 is held, and has no record"}},
		{"RecordWithoutRow", recent, two(func(t *testing.T, s *still, b bookings) { s.lose(t, b.held) }), nil, 0, 1,
			[]string{"\nrecords-and-rows: ", "of C0001 is HELD, and its attempt owns no row"}},
		{"TwoLiveRecords", recent, two(func(t *testing.T, s *still, b bookings) { s.lose(t, b.held); s.Held(t, 1, "N2") }), nil, 0, 1,
			[]string{"\none-live-booking: ", "C0001 has 2 live records: HELD "}},
		{"PaidRecordWithoutRow", recent, two(func(t *testing.T, s *still, b bookings) { s.lose(t, b.paid) }), nil, 0, 1,
			[]string{"\npaid-records: ", "of C0002 is PAID by TX1, and its row is not there"}},
		{"PaidRowWithoutRecord", recent, two(func(t *testing.T, s *still, b bookings) { s.forget(t, b.paid) }), nil, 0, 1,
			[]string{"\npaid-records: ", `of C0002 is paid by TX1, and its record is ""`}},
		{"LookInTheYear2286", recent, two(func(t *testing.T, s *still, b bookings) { s.do(t, "ZADD", "adm:due", "10000000000000", b.held.Code) }), nil, 0, 1,
			[]string{"\nlooked-at: ", "of C0001 is held, and nobody will look at it before 2286"}},
		{"AnotherPaymentThanTheRecords", recent, two(func(t *testing.T, s *still, b bookings) {
			row, _, err := s.gate.Row(t.Context(), b.held.Code)
			if err != nil {
				t.Fatal(err)
			}
			row.Payment = "TR9"
			raw, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			s.do(t, "HSET", "adm:seen", b.held.Code, raw)
		}), nil, 0, 1, []string{"\nrecords-and-rows: ", "of C0001 is not what its row says: payment: TR000001, the ledger says TR9"}},
		{"StaleStatus", recent, two(nil), nil, 1, 1, []string{"\nstatus: ", "left: 4, the ledger says 3"}},
		{"SilentGateway", recent, two(nil), []string{"--gateway"}, 0, 1, []string{"NOT SEEN: 1 rules", "2 payments asked about, 0 completed, 2 without a clear answer"}},
		{"SeatAndRefund", recent, two(func(t *testing.T, s *still, b bookings) { s.owe(t, b.paid, "TX1") }), nil, 0, 1,
			[]string{"\nmoney: ", "transaction TX1 of attempt ", "has a refund, which is due, and row ", "of C0002 is paid by it"}},
		{"RefundOfNoSeat", recent, two(func(t *testing.T, s *still, b bookings) { s.owe(t, b.held, "TX9") }), nil, 0, 0,
			[]string{"the gateway was not asked; refunds 1 due, 0 sent, 0 done, the oldest open one for 3m"}},
		{"OldNotification", recent, two(func(t *testing.T, s *still, _ bookings) { s.notify(t, "m1", 2*time.Hour) }), nil, 0, 1,
			[]string{"\nsignals: ", "1 notifications open, the oldest for 2h", `notification m1 about transaction "TX9" is open since `}},
		{"YoungNotification", recent, two(func(t *testing.T, s *still, _ bookings) { s.notify(t, "m1", 30*time.Minute) }), nil, 0, 0,
			[]string{"1 notifications open, the oldest for 30m"}},
		{"OverdueNew", long, func(t *testing.T, s *still) { s.Admit(t, 3, "N1") }, nil, 0, 1, []string{"\nlooked-at: ", "of C0003 is new, and its look is 28m"}},
		{"OverduePayable", long, func(t *testing.T, s *still) { s.Write(t, s.Payable(t, 3, "N1")) }, nil, 0, 1, []string{"\nlooked-at: ", "of C0003 is payable, and its look is 29m"}},
		{"OverdueHeld", long, func(t *testing.T, s *still) { s.Held(t, 3, "N1") }, nil, 0, 1, []string{"\nlooked-at: ", "of C0003 is held, and its look is 20m"}},
		{"OverduePaying", long, func(t *testing.T, s *still) { s.Paying(t, 3, "N1", "p", time.Minute) }, nil, 0, 1, []string{"\nlooked-at: ", "of C0003 is paying, and its look is 29m"}},
		{"OverdueRefused", long, func(t *testing.T, s *still) { s.Refused(t, 3, "N1") }, nil, 0, 1, []string{"\nlooked-at: ", "of C0003 is refused, and its look is 20m"}},
		{"OverduePaid", long, func(t *testing.T, s *still) { s.settle(t, s.Held(t, 3, "N1")) }, nil, 0, 1, []string{"\nlooked-at: ", "of C0003 is paid, and its look is 29m"}},
	}
	results := make([]result, len(cases))
	var audits sync.WaitGroup
	for i, c := range cases {
		s := stopped(t, c.ago)
		c.damage(t, s)
		s.serve(t, c.stale)
		audits.Go(func() { results[i] = run(t, "", append([]string{"audit", "--data", s.data}, c.args...)...) })
	}
	audits.Wait()
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) { results[i].want(t, c.code, c.want...) })
	}
}
