package admission_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// demo is a sale small enough to fill; its level caps exceed the global cap.
var demo = booking.Sale{
	Name: "demo", Title: "An examination, 2026", Currency: "BDT", Cap: 3, Hold: 10 * time.Minute,
	Levels: []booking.Level{
		{ID: "N1", Name: "N1 Advanced", Cap: 2, Fee: 150000},
		{ID: "N2", Name: "N2 Upper", Cap: 2, Fee: 120000},
		{ID: "N9", Name: "Not sold", Cap: 0, Fee: 100000},
	},
}

var epoch = booking.NewEpoch(time.Unix(1_800_000_000, 0))

// ledger is one seat ledger under test, with a clock that the test moves.
type ledger struct {
	*admission.Gate
	rdb    *redis.Client
	prefix string
	offset *atomic.Int64
	reg    *prometheus.Registry
}

func (l *ledger) advance(d time.Duration) { l.offset.Add(int64(d)) }

func (l *ledger) get(t *testing.T, key string) string {
	t.Helper()
	v, err := l.rdb.Get(t.Context(), l.prefix+key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("GET %s: %v", key, err)
	}
	return v
}

func (l *ledger) set(t *testing.T, key, value string) {
	t.Helper()
	if err := l.rdb.Set(t.Context(), l.prefix+key, value, 0).Err(); err != nil {
		t.Fatalf("SET %s: %v", key, err)
	}
}

func connect(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 128})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

var prefixes atomic.Int64

func newLedger(t *testing.T, rdb *redis.Client, acks int) *ledger {
	t.Helper()
	l := &ledger{rdb: rdb, prefix: fmt.Sprintf("{t%d}:", prefixes.Add(1)), offset: new(atomic.Int64), reg: prometheus.NewRegistry()}
	keys, err := admission.NewKeys(l.prefix)
	if err != nil {
		t.Fatal(err)
	}
	l.Gate, err = admission.New(rdb, admission.Options{
		Keys: keys, Acks: acks, Log: slog.New(slog.DiscardHandler), Registerer: l.reg,
		ClockOffset: func() time.Duration { return time.Duration(l.offset.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// open puts the demo sale into force, with candidates C001 to C020, and opens.
func (l *ledger) open(t *testing.T) *ledger {
	t.Helper()
	if _, err := l.ApplySale(t.Context(), demo, epoch, false); err != nil {
		t.Fatalf("apply sale: %v", err)
	}
	var list []booking.Candidate
	for i := range 20 {
		list = append(list, booking.Candidate{Code: code(i + 1), Email: mail(i + 1)})
	}
	if err := l.AddCandidates(t.Context(), list); err != nil {
		t.Fatalf("add candidates: %v", err)
	}
	if err := l.Open(t.Context()); err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func code(i int) string { return fmt.Sprintf("C%03d", i) }
func mail(i int) string { return fmt.Sprintf("c%03d@example.org", i) }

func request(i int, level string) booking.Request {
	return booking.Request{Code: code(i), Email: mail(i), Level: level}
}

func suffix() string { return booking.NewAttemptSuffix(time.Now()) }

// onEach runs the test in-process and, on each engine, on a primary with a
// replica that must acknowledge. Each run gets one server; each ledger on it its
// own keys.
func onEach(t *testing.T, fn func(t *testing.T, fresh func(t *testing.T) *ledger)) {
	t.Helper()
	t.Parallel()
	t.Run("InProcess", func(t *testing.T) {
		rdb := connect(t, testenv.Mini(t))
		fn(t, func(t *testing.T) *ledger { return newLedger(t, rdb, 0) })
	})
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		rdb := connect(t, e.Pair(t).Primary.Addr())
		fn(t, func(t *testing.T) *ledger { return newLedger(t, rdb, 1) })
	})
}

func (l *ledger) mustAdmit(t *testing.T, i int, level string) booking.Row {
	t.Helper()
	seat, err := l.Admit(t.Context(), request(i, level), suffix(), false)
	if err != nil {
		t.Fatalf("admit %s to %s: %v", code(i), level, err)
	}
	return seat.Row
}

var payments atomic.Int64

func payment() booking.Payment {
	id := fmt.Sprintf("TR%06d", payments.Add(1))
	return booking.Payment{ID: id, URL: "http://gateway.test/pay/" + id, Signature: "sig-" + id}
}

// mustPayable admits and attaches.
func (l *ledger) mustPayable(t *testing.T, i int, level string) booking.Row {
	t.Helper()
	row := l.mustAdmit(t, i, level)
	row, _, err := l.Attach(t.Context(), code(i), row.Attempt, payment())
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	return row
}

func (l *ledger) mustHeld(t *testing.T, i int, level string) booking.Row {
	t.Helper()
	row := l.mustPayable(t, i, level)
	if err := l.Queued(t.Context(), code(i), row.Attempt); err != nil {
		t.Fatalf("queued: %v", err)
	}
	return l.mustRow(t, i)
}

func (l *ledger) mustPaying(t *testing.T, i int, level, token string) booking.Row {
	t.Helper()
	row := l.mustHeld(t, i, level)
	row, _, err := l.BeginPay(t.Context(), code(i), row.Attempt, row.Payment, token, 35*time.Second)
	if err != nil {
		t.Fatalf("begin pay: %v", err)
	}
	return row
}

func (l *ledger) mustRefused(t *testing.T, i int, level string) booking.Row {
	t.Helper()
	row := l.mustPaying(t, i, level, "tok")
	if err := l.EndPay(t.Context(), code(i), row.Attempt, "tok", booking.PhaseRefused); err != nil {
		t.Fatalf("end pay: %v", err)
	}
	if err := l.RecordReleased(t.Context(), code(i), row.Attempt); err != nil {
		t.Fatalf("record released: %v", err)
	}
	return l.mustRow(t, i)
}

func (l *ledger) mustPaid(t *testing.T, i int, level string) booking.Row {
	t.Helper()
	row := l.mustHeld(t, i, level)
	row, err := l.Settle(t.Context(), code(i), row.Attempt, row.Payment, "TRX1")
	if err != nil {
		t.Fatalf("settle: %v", err)
	}
	return row
}

func (l *ledger) mustRow(t *testing.T, i int) booking.Row {
	t.Helper()
	row, _, err := l.Row(t.Context(), code(i))
	if err != nil {
		t.Fatalf("row of %s: %v", code(i), err)
	}
	return row
}

// wantLook checks when adm:due wants the row looked at; zero means never.
func (l *ledger) wantLook(t *testing.T, i int, want int64) {
	t.Helper()
	score, err := l.rdb.ZScore(t.Context(), l.prefix+"adm:due", code(i)).Result()
	if errors.Is(err, redis.Nil) {
		score, err = 0, nil
	}
	if err != nil {
		t.Fatalf("ZSCORE adm:due: %v", err)
	}
	if int64(score) != want {
		t.Errorf("look at %s: got %d, want %d", code(i), int64(score), want)
	}
}

// check holds the rules that must be true at any moment: counters equal the
// rows, caps hold, every row that is not finished is in adm:due.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	rows, err := l.rdb.HGetAll(t.Context(), l.prefix+"adm:seen").Result()
	if err != nil {
		t.Fatal(err)
	}
	byLevel := map[string]int{}
	for c := range rows {
		row, _, err := l.Row(t.Context(), c)
		if err != nil {
			t.Fatalf("row of %s: %v", c, err)
		}
		byLevel[row.Level]++
		finished := row.Phase == booking.PhasePaid && row.RecordDone && row.MailDone
		_, err = l.rdb.ZScore(t.Context(), l.prefix+"adm:due", c).Result()
		if due := err == nil; due == finished {
			t.Errorf("row of %s (%s): in adm:due %v, finished %v", c, row.Phase, due, finished)
		}
	}
	for _, level := range demo.Levels {
		if got := l.get(t, "adm:level:"+level.ID); got != fmt.Sprint(byLevel[level.ID]) {
			t.Errorf("adm:level:%s is %s, rows say %d", level.ID, got, byLevel[level.ID])
		}
		if byLevel[level.ID] > level.Cap {
			t.Errorf("level %s: %d admitted, cap %d", level.ID, byLevel[level.ID], level.Cap)
		}
	}
	if got := l.get(t, "adm:total"); got != fmt.Sprint(len(rows)) {
		t.Errorf("adm:total is %s, rows say %d", got, len(rows))
	}
	if len(rows) > demo.Cap {
		t.Errorf("%d admitted, global cap %d", len(rows), demo.Cap)
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestAdmit_EveryRefusal(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		admit := func(r booking.Request) error {
			_, err := l.Admit(t.Context(), r, suffix(), false)
			return err
		}
		wantErr(t, "unknown level", admit(request(1, "N7")), booking.ErrInvalidLevel)
		wantErr(t, "cap 0 sells nothing", admit(request(1, "N9")), booking.ErrLevelFull)
		wantErr(t, "not on the list", admit(booking.Request{Code: "X999", Email: mail(1), Level: "N1"}), booking.ErrInvalidCode)
		wantErr(t, "another's mail", admit(booking.Request{Code: code(1), Email: mail(2), Level: "N1"}), booking.ErrEmailMismatch)
		l.mustAdmit(t, 1, "N1")
		l.mustAdmit(t, 2, "N1")
		wantErr(t, "level full", admit(request(3, "N1")), booking.ErrLevelFull)
		l.mustAdmit(t, 3, "N2")
		wantErr(t, "all full, its level not", admit(request(4, "N2")), booking.ErrSoldOut)
		wantErr(t, "second seat", admit(request(1, "N2")), booking.ErrDuplicate)
		wantErr(t, "a seat and another mail", admit(booking.Request{Code: code(1), Email: mail(2), Level: "N1"}), booking.ErrEmailMismatch)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "closed", admit(request(5, "N2")), booking.ErrNotOpen)
		wantErr(t, "closed comes before the list", admit(booking.Request{Code: "X999", Email: mail(1), Level: "N1"}), booking.ErrNotOpen)
		wantErr(t, "duplicate comes before closed", admit(request(1, "N1")), booking.ErrDuplicate)
		l.check(t)
	})
}

func TestAdmit_RefusalWritesNothing(t *testing.T) {
	t.Parallel()
	rdb := connect(t, testenv.Pair(t).Primary.Addr())
	quiet(t, rdb)
	l := newLedger(t, rdb, 0).open(t)
	l.mustAdmit(t, 1, "N1")
	l.mustAdmit(t, 2, "N1")
	before := replicationOffset(t, rdb)
	for _, r := range []booking.Request{
		request(1, "N1"), request(3, "N1"), request(3, "N7"), {Code: "X999", Email: mail(1), Level: "N2"},
		{Code: code(3), Email: mail(1), Level: "N2"}, {Code: code(3), Email: mail(3), Level: "N1", Key: "k"},
	} {
		if _, err := l.Admit(t.Context(), r, suffix(), false); err == nil {
			t.Fatalf("%+v was admitted", r)
		}
	}
	if _, err := l.Admit(t.Context(), request(3, "N2"), suffix(), true); !errors.Is(err, booking.ErrWouldAdmit) {
		t.Fatalf("check: got %v, want ErrWouldAdmit", err)
	}
	if after := replicationOffset(t, rdb); after != before {
		t.Errorf("refusals wrote: replication offset went from %d to %d", before, after)
	}
}

// quiet keeps everything but writes out of the replication stream: the primary's
// pings here, and WAIT's own requests by a ledger that asks for no acknowledgement.
func quiet(t *testing.T, rdb *redis.Client) {
	t.Helper()
	if err := rdb.ConfigSet(t.Context(), "repl-ping-replica-period", "3600").Err(); err != nil {
		t.Fatal(err)
	}
}

// replicationOffset reads how much the primary has written for its replicas.
func replicationOffset(t *testing.T, rdb *redis.Client) int64 {
	t.Helper()
	info, err := rdb.InfoMap(t.Context(), "replication").Result()
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	if _, err := fmt.Sscan(info["Replication"]["master_repl_offset"], &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAdmit_RowAndNextLook(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		seat, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
		if err != nil {
			t.Fatal(err)
		}
		row := seat.Row
		if row.Phase != booking.PhaseNew || row.Level != "N1" || row.Slot != 1 || row.Amount != 150000 || row.Currency != "BDT" ||
			row.Hold != demo.Hold.Milliseconds() || booking.AttemptEpoch(row.Attempt) != epoch || row.AdmittedAt != seat.Now.UnixMilli() {
			t.Errorf("row is %+v", row)
		}
		l.wantLook(t, 1, row.AdmittedAt+120_000)
		l.check(t)
	})
}

func TestAdmit_SameSuffixFindsItsOwnRow(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		s := suffix()
		first, err := l.Admit(t.Context(), request(1, "N1"), s, false)
		if err != nil {
			t.Fatal(err)
		}
		again, err := l.Admit(t.Context(), request(1, "N1"), s, false)
		if err != nil || again.Row != first.Row || again.Replay {
			t.Errorf("repeat: got %+v, %v, want the row %+v", again, err, first.Row)
		}
		l.check(t)
	})
}

func TestAdmit_Schedule(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		now, err := l.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at := now.Add(time.Hour).Truncate(time.Millisecond)
		if err := l.OpenAt(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		_, err = l.Admit(t.Context(), request(1, "N1"), suffix(), false)
		var notOpen *booking.NotOpenError
		if !errors.As(err, &notOpen) || !notOpen.OpensAt.Equal(at) {
			t.Errorf("before the time: got %v, want not open until %s", err, at)
		}
		l.advance(time.Hour)
		l.mustAdmit(t, 1, "N1")
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = l.Admit(t.Context(), request(2, "N1"), suffix(), false)
		if !errors.As(err, &notOpen) || !notOpen.OpensAt.IsZero() {
			t.Errorf("closed after a scheduled opening: got %v, want not open, no time", err)
		}
		l.check(t)
	})
}

func TestAdmit_IdempotencyKey(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		r := request(1, "N1")
		r.Key = "any text, even \r\n {braces}"
		seat, err := l.Admit(t.Context(), r, suffix(), false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Admit(t.Context(), r, suffix(), false)
		wantErr(t, "while the first request is at work", err, booking.ErrDuplicate)
		p := payment()
		row, _, err := l.Attach(t.Context(), r.Code, seat.Row.Attempt, p)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Admit(t.Context(), r, suffix(), false)
		wantErr(t, "same key, its record not known to be queued", err, booking.ErrDuplicate)
		if err := l.Queued(t.Context(), r.Code, row.Attempt); err != nil {
			t.Fatal(err)
		}
		row = l.mustRow(t, 1)
		again, err := l.Admit(t.Context(), r, suffix(), false)
		if err != nil || !again.Replay || again.Row != row {
			t.Errorf("same key, held: got %+v, %v, want a replay of %+v", again, err, row)
		}
		other := r
		other.Level = "N2"
		_, err = l.Admit(t.Context(), other, suffix(), false)
		wantErr(t, "same key, other body", err, booking.ErrIdempotencyMismatch)
		other.Key = "another"
		_, err = l.Admit(t.Context(), other, suffix(), false)
		wantErr(t, "other key", err, booking.ErrDuplicate)
		if _, err := l.Settle(t.Context(), r.Code, row.Attempt, p.ID, "TRX"); err != nil {
			t.Fatal(err)
		}
		_, err = l.Admit(t.Context(), r, suffix(), false)
		wantErr(t, "same key, paid", err, booking.ErrDuplicate)
		l.check(t)
	})
}

func TestAdmit_KeyOfAnEndedAttemptStartsANewOne(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		r := request(1, "N1")
		r.Key = "k"
		seat, err := l.Admit(t.Context(), r, suffix(), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Undo(t.Context(), r.Code, seat.Row.Attempt); err != nil {
			t.Fatal(err)
		}
		r.Level = "N2" // even with another body
		second, err := l.Admit(t.Context(), r, suffix(), false)
		if err != nil || second.Replay || second.Row.Attempt == seat.Row.Attempt {
			t.Errorf("got %+v, %v, want a new attempt", second, err)
		}
		l.check(t)
	})
}

func TestAdmit_TakesOverALostRequest(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		first := l.mustAdmit(t, 1, "N1")
		l.advance(14 * time.Second)
		_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
		wantErr(t, "within 15 s", err, booking.ErrDuplicate)
		l.advance(2 * time.Second)
		_, err = l.Admit(t.Context(), request(1, "N2"), suffix(), false)
		wantErr(t, "for another level", err, booking.ErrDuplicate)
		_, err = l.Admit(t.Context(), request(1, "N1"), suffix(), true)
		wantErr(t, "checked only", err, booking.ErrWouldAdmit)
		second := l.mustAdmit(t, 1, "N1")
		if second.Attempt == first.Attempt || second.Slot != first.Slot || second.Phase != booking.PhaseNew || second.AdmittedAt <= first.AdmittedAt {
			t.Errorf("take-over made %+v of %+v", second, first)
		}
		l.wantLook(t, 1, second.AdmittedAt+120_000)
		l.check(t)
		_, _, err = l.Attach(t.Context(), code(1), first.Attempt, payment())
		wantErr(t, "the old request attaches", err, booking.ErrNotOwner)
		wantErr(t, "the old request undoes", l.Undo(t.Context(), code(1), first.Attempt), booking.ErrNotOwner)
		l.check(t)
	})
}

func TestAdmit_RefusedPaymentMayBeTriedAgain(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		refused := l.mustRefused(t, 1, "N1")
		if err := l.Close(t.Context()); err != nil { // the seat is theirs, closed or not
			t.Fatal(err)
		}
		fresh1 := l.mustAdmit(t, 1, "N1")
		if fresh1.Deadline != refused.Deadline || fresh1.Payment != "" || fresh1.Back == nil || fresh1.Back.Attempt != refused.Attempt {
			t.Errorf("take-over made %+v of %+v", fresh1, refused)
		}
		l.check(t)
		if err := l.Undo(t.Context(), code(1), fresh1.Attempt); err != nil {
			t.Fatal(err)
		}
		back := l.mustRow(t, 1)
		if back.Attempt != refused.Attempt || back.Payment != refused.Payment || back.Phase != booking.PhaseRefused || back.Deadline != refused.Deadline {
			t.Errorf("undo left %+v, want the refused row %+v", back, refused)
		}
		l.wantLook(t, 1, refused.Deadline)
		l.check(t)

		fresh2 := l.mustAdmit(t, 1, "N1")
		row, _, err := l.Attach(t.Context(), code(1), fresh2.Attempt, payment())
		if err != nil || row.Deadline != refused.Deadline || row.Back != nil {
			t.Errorf("attach after the take-over: %+v, %v, want deadline %d", row, err, refused.Deadline)
		}
		l.advance(demo.Hold)
		wantErr(t, "release of the old attempt", l.Release(t.Context(), code(1), refused.Attempt), booking.ErrNotOwner)
		if err := l.Release(t.Context(), code(1), row.Attempt); err != nil {
			t.Errorf("release: %v", err)
		}
		l.check(t)
	})
}

func TestAdmit_RefusedPastItsDeadlineIsNotTakenOver(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		l.mustRefused(t, 1, "N1")
		l.advance(demo.Hold)
		_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
		wantErr(t, "past the deadline", err, booking.ErrDuplicate)
		l.check(t)
	})
}

func TestAdmit_DamagedCounterClosesItsLevel(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for name, value := range map[string]string{"Missing": "", "NotANumber": "many", "Negative": "-1", "LeadingZero": "007", "TooLong": "99999999999999999999"} {
			t.Run(name, func(t *testing.T) {
				l := fresh(t).open(t)
				damage := func(key string) {
					l.set(t, key, value)
					if value == "" {
						l.rdb.Del(t.Context(), l.prefix+key)
					}
				}
				damage("adm:level:N1")
				_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
				wantErr(t, "damaged level", err, booking.ErrLedgerDamaged)
				wantErr(t, "damaged level", err, booking.ErrTryAgain)
				l.mustAdmit(t, 1, "N2")
				damage("adm:total")
				_, err = l.Admit(t.Context(), request(2, "N2"), suffix(), false)
				wantErr(t, "damaged total", err, booking.ErrLedgerDamaged)
				if _, err := l.ApplySale(t.Context(), demo, "", false); err != nil {
					t.Fatalf("sale apply counts again: %v", err)
				}
				l.mustAdmit(t, 2, "N1")
				l.check(t)
			})
		}
	})
}

func TestEveryScript_SaysUnknownWithoutAnEpochAndChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustHeld(t, 1, "N1")
		l.rdb.Del(t.Context(), l.prefix+"adm:epoch")
		before := l.dump(t)
		c, a, p, ctx := code(1), row.Attempt, row.Payment, t.Context()
		second := func(_ any, err error) error { return err }
		third := func(_, _ any, err error) error { return err }
		for name, err := range map[string]error{
			"admit":     second(l.Admit(ctx, request(2, "N1"), suffix(), false)),
			"attach":    third(l.Attach(ctx, c, a, payment())),
			"queued":    l.Queued(ctx, c, a),
			"undo":      l.Undo(ctx, c, a),
			"begin_pay": third(l.BeginPay(ctx, c, a, p, "tok", time.Second)),
			"take over": third(l.TakeOverPay(ctx, c, a, p, "tok", time.Second)),
			"end_pay":   l.EndPay(ctx, c, a, "tok", booking.PhaseHeld),
			"settle":    second(l.Settle(ctx, c, a, p, "TRX")),
			"release":   l.Release(ctx, c, a),
			"record":    l.RecordDone(ctx, c, a),
			"mail":      l.MailDone(ctx, c, a),
			"postpone":  l.Postpone(ctx, c, a, booking.PhaseHeld, time.Second, booking.CountLook),
			"due":       third(l.Due(ctx, 0, 10)),
			"look":      third(l.Row(ctx, c)),
			"switch":    l.Open(ctx),
			"apply":     second(l.ApplySale(ctx, demo, "", false)),
			"candidate": l.AddCandidates(ctx, []booking.Candidate{{Code: code(1), Email: mail(2)}}),
			"snapshot":  second(l.ClaimStatus(ctx, time.Second)),
			"published": l.Published(ctx, booking.Figures{Version: 1}),
			"released":  l.RecordReleased(ctx, c, a),
		} {
			wantErr(t, name, err, booking.ErrLedgerUnknown)
		}
		if after := l.dump(t); after != before {
			t.Errorf("something changed:\n%s\nwas\n%s", after, before)
		}
	})
}

// dump is everything the ledger holds, as text.
func (l *ledger) dump(t *testing.T) string {
	t.Helper()
	keys, err := l.rdb.Keys(t.Context(), l.prefix+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, k := range keys {
		switch l.rdb.Type(t.Context(), k).Val() {
		case "string":
			out[k] = l.rdb.Get(t.Context(), k).Val()
		case "hash":
			out[k] = l.rdb.HGetAll(t.Context(), k).Val()
		case "zset":
			out[k] = l.rdb.ZRangeWithScores(t.Context(), k, 0, -1).Val()
		case "set":
			out[k] = l.rdb.SCard(t.Context(), k).Val()
		}
	}
	return fmt.Sprint(out)
}

func TestAttach(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustAdmit(t, 1, "N1")
		p := payment()
		got, now, err := l.Attach(t.Context(), code(1), row.Attempt, p)
		if err != nil || got.Phase != booking.PhasePayable || got.Payment != p.ID || got.Deadline != row.AdmittedAt+row.Hold {
			t.Fatalf("got %+v, %v", got, err)
		}
		l.wantLook(t, 1, now.UnixMilli()+60_000)
		again, _, err := l.Attach(t.Context(), code(1), row.Attempt, p)
		if err != nil || again != got {
			t.Errorf("repeat: got %+v, %v, want %+v", again, err, got)
		}
		_, _, err = l.Attach(t.Context(), code(1), row.Attempt, payment())
		wantErr(t, "a second payment", err, booking.ErrHasPayment)
		_, _, err = l.Attach(t.Context(), code(2), row.Attempt, payment())
		wantErr(t, "no row", err, booking.ErrNotOwner)
		wantErr(t, "undo of a seat with a payment", l.Undo(t.Context(), code(1), row.Attempt), booking.ErrHasPayment)

		is, err := l.Issued(t.Context(), p.ID)
		if err != nil || is.Code != code(1) || is.Attempt != row.Attempt || is.Payment != p {
			t.Errorf("issued: got %+v, %v", is, err)
		}
		of, err := l.PaymentOf(t.Context(), row.Attempt)
		if err != nil || of != p {
			t.Errorf("payment of the attempt: got %+v, %v, want %+v", of, err, p)
		}
		_, err = l.Issued(t.Context(), "TR-none")
		wantErr(t, "a payment nobody issued", err, booking.ErrNotFound)
		l.check(t)
	})
}

func TestQueued(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustAdmit(t, 1, "N1")
		wantErr(t, "before a payment", l.Queued(t.Context(), code(1), row.Attempt), booking.ErrNoPayment)
		row, _, err := l.Attach(t.Context(), code(1), row.Attempt, payment())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second finds it done
			if err := l.Queued(t.Context(), code(1), row.Attempt); err != nil {
				t.Fatal(err)
			}
			if got := l.mustRow(t, 1).Phase; got != booking.PhaseHeld {
				t.Errorf("phase is %s, want held", got)
			}
			l.wantLook(t, 1, row.Deadline)
		}
		if _, _, err := l.BeginPay(t.Context(), code(1), row.Attempt, row.Payment, "tok", time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := l.Queued(t.Context(), code(1), row.Attempt); err != nil || l.mustRow(t, 1).Phase != booking.PhasePaying {
			t.Errorf("a late 'queued' moved a paying row: %v", err)
		}
		wantErr(t, "another attempt", l.Queued(t.Context(), code(1), row.Attempt+"x"), booking.ErrNotOwner)
		l.check(t)
	})
}

func TestUndo(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustAdmit(t, 1, "N1")
		if err := l.Undo(t.Context(), code(1), row.Attempt); err != nil {
			t.Fatal(err)
		}
		l.wantLook(t, 1, 0)
		l.check(t)
		wantErr(t, "repeat", l.Undo(t.Context(), code(1), row.Attempt), booking.ErrNotOwner)
		next := l.mustAdmit(t, 1, "N1")
		wantErr(t, "a stale undo after the next booking", l.Undo(t.Context(), code(1), row.Attempt), booking.ErrNotOwner)
		if got := l.mustRow(t, 1); got.Attempt != next.Attempt {
			t.Errorf("row is %+v, want the new attempt's", got)
		}
		l.check(t)
	})
}

func TestBeginPay(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		ctx := t.Context()
		row := l.mustPayable(t, 1, "N1")
		got, now, err := l.BeginPay(ctx, code(1), row.Attempt, row.Payment, "tok", 35*time.Second)
		if err != nil || got.Phase != booking.PhasePaying || got.Owner != "tok" || got.Ends != now.UnixMilli()+35_000 || got.TakenOver {
			t.Fatalf("got %+v, %v", got, err)
		}
		l.wantLook(t, 1, got.Ends)
		l.advance(time.Second)
		again, _, err := l.BeginPay(ctx, code(1), row.Attempt, row.Payment, "tok", 35*time.Second)
		if err != nil || again != got {
			t.Errorf("repeat with its token: got %+v, %v, want the end unmoved in %+v", again, err, got)
		}
		_, _, err = l.BeginPay(ctx, code(1), row.Attempt, row.Payment, "other", time.Minute)
		wantErr(t, "another token", err, booking.ErrPaying)
		_, _, err = l.TakeOverPay(ctx, code(1), row.Attempt, row.Payment, "sweep", time.Minute)
		wantErr(t, "the reconciler before the end", err, booking.ErrPaying)
		wantErr(t, "release of a paying row", l.Release(ctx, code(1), row.Attempt), booking.ErrPaying)
		l.advance(time.Minute)
		_, _, err = l.BeginPay(ctx, code(1), row.Attempt, row.Payment, "other", time.Minute)
		wantErr(t, "a payer past the end", err, booking.ErrPaying)
		taken, _, err := l.TakeOverPay(ctx, code(1), row.Attempt, row.Payment, "sweep", time.Minute)
		if err != nil || taken.Owner != "sweep" || !taken.TakenOver {
			t.Errorf("the reconciler past the end: got %+v, %v", taken, err)
		}
		_, _, err = l.BeginPay(ctx, code(1), row.Attempt, "TR-other", "x", time.Minute)
		wantErr(t, "another payment", err, booking.ErrNotOwner)
		_, _, err = l.BeginPay(ctx, code(2), row.Attempt, row.Payment, "x", time.Minute)
		wantErr(t, "no row", err, booking.ErrNotOwner)
		l.check(t)
	})
}

func TestBeginPay_RefusedPhases(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		begin := func(i int, row booking.Row) error {
			_, _, err := l.BeginPay(t.Context(), code(i), row.Attempt, row.Payment, "late", time.Minute)
			return err
		}
		wantErr(t, "new", begin(1, l.mustAdmit(t, 1, "N1")), booking.ErrNoPayment)
		wantErr(t, "refused", begin(2, l.mustRefused(t, 2, "N1")), booking.ErrRefused)
		wantErr(t, "paid", begin(3, l.mustPaid(t, 3, "N2")), booking.ErrAlreadyPaid)
		l.check(t)

		l = fresh(t).open(t)
		held := l.mustHeld(t, 1, "N1")
		l.advance(demo.Hold)
		wantErr(t, "past the deadline", begin(1, held), booking.ErrDeadlinePassed)
		if _, _, err := l.TakeOverPay(t.Context(), code(1), held.Attempt, held.Payment, "sweep", time.Minute); err != nil {
			t.Errorf("the reconciler past the deadline: %v", err)
		}
		l.check(t)
	})
}

func TestEndPay(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for _, as := range []booking.Phase{booking.PhaseRefused, booking.PhaseHeld} {
			l := fresh(t).open(t)
			row := l.mustPaying(t, 1, "N1", "tok")
			wantErr(t, "another's token", l.EndPay(t.Context(), code(1), row.Attempt, "other", as), booking.ErrNotOwner)
			for range 2 {
				if err := l.EndPay(t.Context(), code(1), row.Attempt, "tok", as); err != nil {
					t.Fatalf("as %s: %v", as, err)
				}
			}
			got := l.mustRow(t, 1)
			if got.Phase != as || got.Owner != "" || got.Ends != 0 {
				t.Errorf("row is %+v, want %s", got, as)
			}
			_, _, err := l.BeginPay(t.Context(), code(1), row.Attempt, row.Payment, "tok", time.Minute)
			wantErr(t, "a late copy of its begin-pay", err, booking.ErrNotOwner)
			if as == booking.PhaseRefused {
				_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
				wantErr(t, "take-over before the record is ended", err, booking.ErrDuplicate)
				l.advance(time.Minute)
				if due, _, err := l.Due(t.Context(), 0, 1); err != nil || len(due) != 1 {
					t.Errorf("a minute later %d rows are due, %v, want the one whose record is not ended", len(due), err)
				}
				for range 2 {
					if err := l.RecordReleased(t.Context(), code(1), row.Attempt); err != nil {
						t.Fatal(err)
					}
				}
			} else {
				wantErr(t, "record of a held row", l.RecordReleased(t.Context(), code(1), row.Attempt), booking.ErrNotOwner)
			}
			l.wantLook(t, 1, row.Deadline)
			l.check(t)
		}
	})
}

func TestEndPay_TakenOverNeverEndsAsHeld(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustPaying(t, 1, "N1", "payer")
		l.advance(time.Minute)
		if _, _, err := l.TakeOverPay(t.Context(), code(1), row.Attempt, row.Payment, "sweep", 35*time.Second); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "the old owner", l.EndPay(t.Context(), code(1), row.Attempt, "payer", booking.PhaseHeld), booking.ErrNotOwner)
		wantErr(t, "the reconciler", l.EndPay(t.Context(), code(1), row.Attempt, "sweep", booking.PhaseHeld), booking.ErrTakenOver)
		if err := l.EndPay(t.Context(), code(1), row.Attempt, "sweep", booking.PhaseRefused); err != nil {
			t.Errorf("as refused: %v", err)
		}
		l.check(t)
	})
}

func TestSettle(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for name, make := range map[string]func(l *ledger, t *testing.T) booking.Row{
			"payable": func(l *ledger, t *testing.T) booking.Row { return l.mustPayable(t, 1, "N1") },
			"held":    func(l *ledger, t *testing.T) booking.Row { return l.mustHeld(t, 1, "N1") },
			"paying":  func(l *ledger, t *testing.T) booking.Row { return l.mustPaying(t, 1, "N1", "tok") },
			"refused": func(l *ledger, t *testing.T) booking.Row { return l.mustRefused(t, 1, "N1") },
		} {
			t.Run(name, func(t *testing.T) {
				l := fresh(t).open(t)
				row := make(l, t)
				l.advance(demo.Hold) // paid in time or late: the seat is still theirs
				paid, err := l.Settle(t.Context(), code(1), row.Attempt, row.Payment, "TRX1")
				if err != nil || paid.Phase != booking.PhasePaid || paid.Transaction != "TRX1" || paid.PaidAt == 0 || paid.Owner != "" {
					t.Fatalf("got %+v, %v", paid, err)
				}
				l.wantLook(t, 1, paid.PaidAt+60_000)
				l.advance(time.Second)
				again, err := l.Settle(t.Context(), code(1), row.Attempt, row.Payment, "TRX1")
				if err != nil || again != paid {
					t.Errorf("repeat: got %+v, %v, want %+v", again, err, paid)
				}
				_, err = l.Settle(t.Context(), code(1), row.Attempt, row.Payment, "TRX2")
				wantErr(t, "another transaction", err, booking.ErrSecondPayment)
				_, err = l.Settle(t.Context(), code(1), row.Attempt, "TR-other", "TRX2")
				wantErr(t, "another payment", err, booking.ErrSecondPayment)
				wantErr(t, "release of a paid row", l.Release(t.Context(), code(1), row.Attempt), booking.ErrAlreadyPaid)
				wantErr(t, "end of paying a paid row", l.EndPay(t.Context(), code(1), row.Attempt, "tok", booking.PhaseRefused), booking.ErrAlreadyPaid)
				l.check(t)
			})
		}
		l := fresh(t).open(t)
		row := l.mustHeld(t, 1, "N1")
		_, err := l.Settle(t.Context(), code(1), row.Attempt, "TR-other", "TRX")
		wantErr(t, "a payment that is not the row's", err, booking.ErrNotOwner)
		_, err = l.Settle(t.Context(), code(2), row.Attempt, row.Payment, "TRX")
		wantErr(t, "no row", err, booking.ErrNotOwner)
		l.check(t)
	})
}

func TestRelease(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustHeld(t, 1, "N1")
		wantErr(t, "before the deadline", l.Release(t.Context(), code(1), row.Attempt), booking.ErrTooEarly)
		l.advance(demo.Hold)
		var wg sync.WaitGroup
		var freed atomic.Int64
		for range 100 {
			wg.Go(func() {
				switch err := l.Release(context.WithoutCancel(t.Context()), code(1), row.Attempt); {
				case err == nil:
					freed.Add(1)
				case !errors.Is(err, booking.ErrNotOwner):
					t.Errorf("release: %v", err)
				}
			})
		}
		wg.Wait()
		if freed.Load() != 1 {
			t.Errorf("%d of 100 releases gave the seat back, want 1", freed.Load())
		}
		l.check(t)
		next := l.mustAdmit(t, 1, "N1")
		wantErr(t, "a stale release after the next booking", l.Release(t.Context(), code(1), row.Attempt), booking.ErrNotOwner)
		wantErr(t, "a seat without a payment", l.Release(t.Context(), code(1), next.Attempt), booking.ErrNoPayment)
		l.check(t)
	})
}

func TestDone_NobodyLooksAgainWhenRecordAndMailAreDone(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		held := l.mustHeld(t, 1, "N1")
		wantErr(t, "a held row", l.RecordDone(t.Context(), code(1), held.Attempt), booking.ErrNotOwner)
		row := l.mustPaid(t, 2, "N1")
		for range 2 {
			if err := l.RecordDone(t.Context(), code(2), row.Attempt); err != nil {
				t.Fatal(err)
			}
		}
		l.check(t)
		for range 2 {
			if err := l.MailDone(t.Context(), code(2), row.Attempt); err != nil {
				t.Fatal(err)
			}
		}
		l.wantLook(t, 2, 0)
		if _, err := l.Settle(t.Context(), code(2), row.Attempt, row.Payment, "TRX1"); err != nil {
			t.Fatal(err)
		}
		l.wantLook(t, 2, 0)
		wantErr(t, "another attempt", l.MailDone(t.Context(), code(2), "other"), booking.ErrNotOwner)
		l.check(t)
	})
}

func TestPostpone(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		row := l.mustHeld(t, 1, "N1")
		post := func(c booking.Count) booking.Row {
			t.Helper()
			if err := l.Postpone(t.Context(), code(1), row.Attempt, booking.PhaseHeld, time.Hour, c); err != nil {
				t.Fatal(err)
			}
			return l.mustRow(t, 1)
		}
		if r := post(booking.CountMiss); r.Misses != 1 || r.Looks != 0 {
			t.Errorf("after a miss: %+v", r)
		}
		if r := post(booking.CountNothing); r.Misses != 1 || r.Looks != 0 {
			t.Errorf("after an outage: %+v", r)
		}
		r := post(booking.CountLook)
		if r.Misses != 0 || r.Looks != 1 || r.Deadline != row.Deadline {
			t.Errorf("after an extension: %+v, want one look and the deadline %d", r, row.Deadline)
		}
		first := post(booking.CountUnfinished).UnfinishedAt
		l.advance(time.Minute)
		if again := post(booking.CountUnfinished).UnfinishedAt; first == 0 || again != first {
			t.Errorf("unfinished at %d, then %d: want the first time kept", first, again)
		}
		err := l.Postpone(t.Context(), code(1), row.Attempt, booking.PhasePaying, time.Hour, booking.CountLook)
		wantErr(t, "a phase it is not in", err, booking.ErrNotOwner)
		err = l.Postpone(t.Context(), code(1), "other", booking.PhaseHeld, time.Hour, booking.CountLook)
		wantErr(t, "another attempt", err, booking.ErrNotOwner)
		l.check(t)
	})
}

func TestDue_OldestLookFirst(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		l.mustAdmit(t, 1, "N1") // looked at in two minutes
		l.mustPayable(t, 2, "N1")
		l.mustHeld(t, 3, "N2")
		codes := func(skip, limit int) (out []string) {
			t.Helper()
			due, _, err := l.Due(t.Context(), skip, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range due {
				if d.Err != nil || d.Row.Attempt == "" {
					t.Errorf("due row %+v", d)
				}
				out = append(out, d.Code)
			}
			return out
		}
		if got := codes(0, 10); len(got) != 0 {
			t.Errorf("nothing is due yet, got %v", got)
		}
		l.advance(3 * time.Minute)
		if got := fmt.Sprint(codes(0, 10)); got != "[C002 C001]" {
			t.Errorf("after 3 min: got %s, want the payable row, then the new one", got)
		}
		l.advance(demo.Hold)
		if got := fmt.Sprint(codes(1, 1)); got != "[C001]" {
			t.Errorf("skip 1, limit 1: got %s", got)
		}
		if got := len(codes(0, 10)); got != 3 {
			t.Errorf("after the hold: %d due, want 3", got)
		}
		l.rdb.HSet(t.Context(), l.prefix+"adm:seen", code(1), "not a row")
		due, _, err := l.Due(t.Context(), 0, 10)
		if err != nil || len(due) != 3 {
			t.Fatalf("with an unreadable row: %d due, %v, want all 3", len(due), err)
		}
		for _, d := range due {
			if (d.Code == code(1)) != (d.Err != nil) {
				t.Errorf("row of %s: error %v", d.Code, d.Err)
			}
		}
	})
}

func TestApplySale(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		ctx := t.Context()
		got, err := l.Sale(ctx)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(demo) {
			t.Errorf("sale read back: %+v, %v, want %+v", got, err, demo)
		}
		l.mustAdmit(t, 1, "N1")
		l.mustAdmit(t, 2, "N1")
		smaller := demo
		smaller.Levels = append([]booking.Level(nil), demo.Levels...)
		smaller.Levels[0].Cap = 1
		_, err = l.ApplySale(ctx, smaller, "", false)
		wantErr(t, "level cap below admitted", err, booking.ErrCapBelowAdmitted)
		smaller.Levels[0].Cap, smaller.Cap = 2, 1
		_, err = l.ApplySale(ctx, smaller, "", false)
		wantErr(t, "global cap below admitted", err, booking.ErrCapBelowAdmitted)
		without := demo
		without.Levels = demo.Levels[1:]
		_, err = l.ApplySale(ctx, without, "", false)
		wantErr(t, "removal of a level with seats", err, booking.ErrLevelHasSeats)

		changed := demo
		changed.Levels = []booking.Level{demo.Levels[0], {ID: "N3", Name: "Three", Cap: 5, Fee: 1}}
		changed.Cap, changed.Title = 2, ""
		did, err := l.ApplySale(ctx, changed, "other-epoch", true)
		if err != nil || did.Total != 2 || did.Admitted["N1"] != 2 || did.Epoch != epoch {
			t.Errorf("checked only: %+v, %v", did, err)
		}
		if now, _ := l.Sale(ctx); now.Cap != demo.Cap {
			t.Errorf("a check changed the sale to %+v", now)
		}
		for range 2 {
			if _, err := l.ApplySale(ctx, changed, "other-epoch", false); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := l.Sale(ctx); err != nil || fmt.Sprint(got) != fmt.Sprint(changed) {
			t.Errorf("changed sale read back: %+v, %v, want %+v", got, err, changed)
		}
		if e, _ := l.Epoch(ctx); e != epoch {
			t.Errorf("epoch became %s, want it kept", e)
		}
		_, err = l.Admit(ctx, request(3, "N2"), suffix(), false)
		wantErr(t, "a removed level", err, booking.ErrInvalidLevel)
		_, err = l.Admit(ctx, request(3, "N3"), suffix(), false)
		wantErr(t, "the new global cap", err, booking.ErrSoldOut)
		if v := l.get(t, "adm:level:N2"); v != "" {
			t.Errorf("counter of a removed level is still there: %s", v)
		}
	})
}

func TestApplySale_CountsWhatTheRowsSay(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		l.mustAdmit(t, 1, "N1")
		l.set(t, "adm:level:N1", "0")
		l.set(t, "adm:total", "77")
		if _, err := l.ApplySale(t.Context(), demo, "", false); err != nil {
			t.Fatal(err)
		}
		l.check(t)
		l.rdb.HSet(t.Context(), l.prefix+"adm:seen", code(9), "not a row")
		_, err := l.ApplySale(t.Context(), demo, "", false)
		wantErr(t, "an unreadable row", err, booking.ErrLedgerDamaged)
	})
}

func TestClaimStatus(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		ctx := t.Context()
		const throttle = time.Hour // longer than the test: only its end by hand counts
		claim := func() (booking.Figures, error) { return l.ClaimStatus(ctx, throttle) }
		must := func(what string) booking.Figures {
			t.Helper()
			f, err := claim()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return f
		}
		wantNone := func(what string) {
			t.Helper()
			if _, err := claim(); !errors.Is(err, booking.ErrNothingToPublish) {
				t.Errorf("%s: got %v, want nothing to publish", what, err)
			}
		}
		endThrottle := func() { l.rdb.Del(ctx, l.prefix+"status:throttle") }

		first := must("opened")
		if !first.Open || first.Cap != 3 || first.Total != 0 || len(first.Levels) != 3 || first.Levels[0].Cap != 2 || first.Levels[0].Name != "N1 Advanced" {
			t.Errorf("figures: %+v", first)
		}
		wantNone("claimed, throttle runs")
		endThrottle()
		if again := must("the claimer died: the throttle's end gives the claim to another"); again.Version <= first.Version {
			t.Errorf("version %d after %d, want it to grow", again.Version, first.Version)
		}
		endThrottle()
		second := must("claimed again")
		if err := l.Published(ctx, second); err != nil {
			t.Fatal(err)
		}
		endThrottle()
		wantNone("published and nothing changed")
		l.mustAdmit(t, 1, "N1")
		third := must("a seat is gone")
		if third.Total != 1 || third.Levels[0].Admitted != 1 {
			t.Errorf("figures: %+v", third)
		}
		row := l.mustAdmit(t, 2, "N1")
		must("full is published at once, within the throttle")
		wantNone("and once")
		if err := l.Undo(ctx, code(2), row.Attempt); err != nil {
			t.Fatal(err)
		}
		must("a release clears the latch")
		l.mustAdmit(t, 2, "N1")
		must("and full again is published at once")
		if err := l.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if f := must("closed, within the throttle"); f.Open || f.Reason != "not_open" {
			t.Errorf("figures: %+v", f)
		}
		now, err := l.Now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.OpenAt(ctx, now.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if f := must("scheduled"); f.Open || f.OpensAt.IsZero() {
			t.Errorf("figures: %+v", f)
		}
		l.advance(time.Minute)
		if f := must("the time has come"); !f.Open {
			t.Errorf("figures: %+v", f)
		}
		l.mustAdmit(t, 3, "N2")
		if f := must("sold out"); f.Reason != "sold_out" {
			t.Errorf("figures: %+v", f)
		}
		last := must2(t, l)
		l.rdb.FlushDB(ctx) // an emptied Redis, rebuilt
		l.advance(time.Second)
		l.open(t)
		if f := must("over a rebuilt Redis"); f.Version <= last.Version {
			t.Errorf("version %d after %d, want it to grow over a rebuilt Redis", f.Version, last.Version)
		}
	})
}

func must2(t *testing.T, l *ledger) booking.Figures {
	t.Helper()
	f, err := l.ReadStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestScriptsForgotten_EachCallEndsOnce(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if err := l.rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		l.mustHeld(t, 1, "N1")
		l.check(t)
	})
}

func TestAdmit_UnacknowledgedSeatIsUndone(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	held := l.mustHeld(t, 5, "N2")
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
	wantErr(t, "no acknowledgement", err, booking.ErrTryAgain)
	wantErr(t, "no acknowledgement", err, booking.ErrNotAcknowledged)
	_, err = l.Settle(t.Context(), code(5), held.Attempt, held.Payment, "TRX1")
	wantErr(t, "settle without an acknowledgement", err, booking.ErrNotAcknowledged)
	_, err = l.Admit(t.Context(), request(2, "N9"), suffix(), false)
	wantErr(t, "a rejection stands", err, booking.ErrLevelFull)
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Row(t.Context(), code(1)); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("row of the undone admission: got %v, want none", err)
	}
	if err := l.Probe(t.Context()); err != nil { // three were not acknowledged: the breaker is open
		t.Fatal(err)
	}
	l.mustAdmit(t, 1, "N1")
	if _, err := l.Settle(t.Context(), code(5), held.Attempt, held.Payment, "TRX1"); err != nil {
		t.Errorf("settle repeated once the replica is back: %v", err)
	}
	l.check(t)
}

// A request that a stall delivers late has been told no: it must take no seat.
func TestAdmit_DeliveredAfterItsDeadlineTakesNoSeat(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	l.mustAdmit(t, 1, "N1") // and Redis's clock is known
	before, err := scriptCalls(t, l.rdb)
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Primary.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	if _, err := l.Admit(ctx, request(2, "N1"), suffix(), false); err == nil || booking.LedgerAnswered(err) {
		t.Errorf("a frozen Redis answered %v", err)
	}
	if err := pair.Primary.Thaw(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error { // the late request has been read
		calls, err := scriptCalls(t, l.rdb)
		if err == nil && calls <= before {
			err = fmt.Errorf("%d script calls, want more than %d", calls, before)
		}
		return err
	})
	if _, _, err := l.Row(t.Context(), code(2)); !errors.Is(err, booking.ErrNotFound) {
		t.Errorf("row of the request that was told no: %v, want none", err)
	}
	l.check(t)
}

// scriptCalls is how many EVALSHA the server has run.
func scriptCalls(t *testing.T, rdb *redis.Client) (n int, err error) {
	info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(info["Commandstats"]["cmdstat_evalsha"], "calls=%d", &n)
	return n, err
}

// A repeat that comes too late for a new seat finds its own and says so.
func TestAdmit_LateRepeatFindsItsOwnSeat(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		l.mustAdmit(t, 2, "N2") // and Redis's clock is known
		s := suffix()
		first, err := l.Admit(t.Context(), request(1, "N1"), s, false)
		if err != nil {
			t.Fatal(err)
		}
		late := func(r booking.Request, suffix string) (booking.Seat, error) {
			// Less than an acknowledgement may take.
			ctx, cancel := context.WithTimeout(t.Context(), 240*time.Millisecond)
			defer cancel()
			return l.Admit(ctx, r, suffix, false)
		}
		again, err := late(request(1, "N1"), s)
		if err != nil || again.Row != first.Row {
			t.Errorf("late repeat: got %+v, %v, want %+v", again, err, first.Row)
		}
		_, err = late(request(3, "N1"), suffix())
		wantErr(t, "too late for a new seat", err, booking.ErrTryAgain)
		_, err = late(request(3, "N9"), suffix())
		wantErr(t, "a rejection is never too late", err, booking.ErrLevelFull)
		l.check(t)
	})
}

// Every script but admit must write whatever it answers, so that WAIT covers the
// effect it found: infra's trap of a repeat that writes nothing.
func TestEveryAnswer_RaisesTheReplicationOffset(t *testing.T) {
	t.Parallel()
	rdb := connect(t, testenv.Pair(t).Primary.Addr())
	quiet(t, rdb)
	l := newLedger(t, rdb, 0).open(t)
	row := l.mustPaid(t, 1, "N1")
	c, a, p, ctx := code(1), row.Attempt, row.Payment, t.Context()
	for _, attempt := range []string{a, "not the owner"} {
		for name, call := range map[string]func() error{
			"attach":    func() error { _, _, err := l.Attach(ctx, c, attempt, booking.Payment{ID: p}); return err },
			"queued":    func() error { return l.Queued(ctx, c, attempt) },
			"undo":      func() error { return l.Undo(ctx, c, attempt) },
			"begin_pay": func() error { _, _, err := l.BeginPay(ctx, c, attempt, p, "tok", time.Second); return err },
			"end_pay":   func() error { return l.EndPay(ctx, c, attempt, "tok", booking.PhaseHeld) },
			"settle":    func() error { _, err := l.Settle(ctx, c, attempt, p, "TRX1"); return err },
			"release":   func() error { return l.Release(ctx, c, attempt) },
			"done":      func() error { return l.RecordDone(ctx, c, attempt) },
			"postpone":  func() error { return l.Postpone(ctx, c, attempt, booking.PhaseHeld, time.Second, booking.CountLook) },
		} {
			before := replicationOffset(t, rdb)
			if err := call(); err != nil && !booking.LedgerAnswered(err) {
				t.Fatalf("%s: %v", name, err)
			}
			if after := replicationOffset(t, rdb); after <= before {
				t.Errorf("%s by %q wrote nothing: its acknowledgement would prove nothing", name, attempt)
			}
		}
	}
}

// 5,000 callers at once over a cap of 100, half of them asking twice.
func TestAdmit_RushAdmitsExactlyTheCap(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t)
		sale := booking.Sale{Name: "rush", Currency: "BDT", Cap: 100, Hold: time.Minute,
			Levels: []booking.Level{{ID: "N1", Name: "One", Cap: 70, Fee: 1}, {ID: "N2", Name: "Two", Cap: 70, Fee: 1}}}
		if _, err := l.ApplySale(t.Context(), sale, epoch, false); err != nil {
			t.Fatal(err)
		}
		const callers, candidates = 5000, 2500
		var list []booking.Candidate
		for i := range candidates {
			list = append(list, booking.Candidate{Code: fmt.Sprintf("R%05d", i), Email: "r@example.org"})
		}
		for some := range slices.Chunk(list, 500) {
			if err := l.AddCandidates(t.Context(), some); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		var admitted, refused atomic.Int64
		var seats sync.Map
		start := make(chan struct{})
		slots := make(chan struct{}, 60) // below the pool's size: this is about seats
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				<-start
				slots <- struct{}{}
				defer func() { <-slots }()
				c := fmt.Sprintf("R%05d", i%candidates)
				r := booking.Request{Code: c, Email: "r@example.org", Level: []string{"N1", "N2"}[i%2]}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				_, err := l.Admit(ctx, r, suffix(), false)
				switch {
				case err == nil:
					admitted.Add(1)
					if _, twice := seats.LoadOrStore(c, true); twice {
						t.Errorf("candidate %s was admitted twice", c)
					}
				case errors.Is(err, booking.ErrDuplicate), errors.Is(err, booking.ErrLevelFull), errors.Is(err, booking.ErrSoldOut):
					refused.Add(1)
				default:
					t.Errorf("admit: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
		if admitted.Load() != 100 || refused.Load() != callers-100 {
			t.Errorf("%d admitted and %d refused, want exactly 100 and %d", admitted.Load(), refused.Load(), callers-100)
		}
		if n := l.rdb.HLen(t.Context(), l.prefix+"adm:seen").Val(); n != 100 || l.get(t, "adm:total") != "100" {
			t.Errorf("%d rows, total %s, want 100 each", n, l.get(t, "adm:total"))
		}
	})
}
