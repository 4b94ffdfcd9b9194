package admission_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// nextEpoch is later than any epoch of these tests.
var nextEpoch = booking.NewEpoch(time.Unix(1_900_000_000, 0))

// exists tells which of the keys are there.
func (l *ledger) exists(t *testing.T, keys ...string) []string {
	t.Helper()
	var there []string
	for _, key := range keys {
		n, err := l.rdb.Exists(t.Context(), l.prefix+key).Result()
		if err != nil {
			t.Fatalf("EXISTS %s: %v", key, err)
		}
		if n > 0 {
			there = append(there, key)
		}
	}
	return there
}

func (l *ledger) mustClose(t *testing.T) {
	t.Helper()
	if err := l.Close(t.Context()); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func TestReset_EndsOneSaleAndBeginsAnother(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		late := l.released(t, 3, "N2")
		paid := l.mustPaid(t, 1, "N1")
		if d := l.mustLate(t, late, "TXlate", booking.MoneyOther); d.Paid {
			t.Fatalf("decision: got %+v, want a refund", d)
		}
		if err := l.NoticeLater(t.Context(), "message", time.Hour); err != nil {
			t.Fatal(err)
		}
		before, err := l.ClaimStatus(t.Context(), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		l.mustClose(t)
		for range 2 { // repeated it finds its own effect
			if err := l.Reset(t.Context(), epoch, nextEpoch, 1); err != nil {
				t.Fatalf("reset: got %v, want nil", err)
			}
		}
		if got, err := l.Epoch(t.Context()); err != nil || got != nextEpoch {
			t.Errorf("epoch: got %q, %v, want %q", got, err, nextEpoch)
		}
		rows, looks, counted, err := l.Count(t.Context())
		if err != nil || rows != 0 || looks != 0 || counted.Total != 0 || len(counted.Levels) != 3 || counted.Levels[0].Admitted != 0 {
			t.Errorf("ledger: got %d rows, %d looks, %+v, %v, want an empty one with its caps", rows, looks, counted, err)
		}
		want := []string{"adm:late", "ntf:due", "candidates:valid", "candidate:email:C001", "hold:attempt:" + paid.Attempt, "sale:config", "status:version"}
		if diff := cmp.Diff(want, l.exists(t, want...)); diff != "" {
			t.Errorf("what stays (-want +got):\n%s", diff)
		}
		after, err := l.ClaimStatus(t.Context(), time.Millisecond)
		if err != nil || after.Version <= before.Version || after.Open || after.Total != 0 {
			t.Errorf("status: got %+v, %v, want it to be published, later than version %d, closed and free", after, err, before.Version)
		}

		// The earlier sale's steps find nothing of theirs, and its money goes back.
		if _, err := l.Settle(t.Context(), code(1), paid.Attempt, paid.Payment, "TX1"); !errors.Is(err, booking.ErrNotOwner) {
			t.Errorf("settle of the earlier sale: got %v, want ErrNotOwner", err)
		}
		if d := l.mustLate(t, late, "TXlater", booking.MoneyLate); d.Paid || d.Reason != "epoch" {
			t.Errorf("money of the earlier sale: got %+v, want a refund, because of its epoch", d)
		}
		if d := l.mustLate(t, late, "TXlate", booking.MoneyLate); d.Paid || d.Reason != "other_than_ordered" {
			t.Errorf("money decided before: got %+v, want the decision that was made", d)
		}
		if err := l.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		row := l.mustAdmit(t, 1, "N1")
		if got := booking.AttemptEpoch(row.Attempt); got != nextEpoch || row.Slot != 1 {
			t.Errorf("first seat: got slot %d of epoch %s, want the first of %s", row.Slot, got, nextEpoch)
		}
		l.check(t)
	})
}

func TestReset_RefusesWhatItMayNotForget(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for name, c := range map[string]struct {
			prepare func(t *testing.T, l *ledger)
			want    error
		}{
			"open":      {func(t *testing.T, l *ledger) { mustDo(t, l.Open(t.Context())) }, admission.ErrStillOpen},
			"scheduled": {func(t *testing.T, l *ledger) { mustDo(t, l.OpenAt(t.Context(), time.Now().Add(time.Hour))) }, admission.ErrStillOpen},
			"rebuild":   {func(t *testing.T, l *ledger) { l.set(t, "adm:rebuild", "token") }, admission.ErrUnderWay},
			"load": {func(t *testing.T, l *ledger) {
				mustDo(t, l.rdb.HSet(t.Context(), l.prefix+"candidates:load", "until", time.Now().Add(time.Hour).UnixMilli()).Err())
			}, admission.ErrUnderWay},
			"half loaded": {func(t *testing.T, l *ledger) {
				mustDo(t, l.rdb.HSet(t.Context(), l.prefix+"candidates:changed", "C001", "x@example.org").Err())
			}, admission.ErrUnderWay},
			"another seat": {func(t *testing.T, l *ledger) {
				late := l.mustLate(t, booking.Row{
					Attempt: booking.AttemptID(epoch, suffix()), Level: "N2", Amount: 1, Currency: "BDT", Payment: "TRlate",
				}.HeldRecord(code(9), "", ""), "TX9", booking.MoneyLate)
				if !late.Paid {
					t.Fatalf("late money: got %+v, want a seat", late)
				}
			}, admission.ErrMoved},
			"no epoch":      {func(t *testing.T, l *ledger) { mustDo(t, l.rdb.Del(t.Context(), l.prefix+"adm:epoch").Err()) }, booking.ErrLedgerUnknown},
			"another epoch": {func(t *testing.T, l *ledger) { l.set(t, "adm:epoch", booking.NewEpoch(time.Now())) }, admission.ErrMoved},
		} {
			t.Run(name, func(t *testing.T) {
				l := fresh(t).open(t)
				l.mustPaid(t, 1, "N1")
				l.mustClose(t)
				c.prepare(t, l)
				unmarked := func() string { // every answer writes adm:mark
					mustDo(t, l.rdb.Del(t.Context(), l.prefix+"adm:mark").Err())
					return l.dump(t)
				}
				before := unmarked()
				if err := l.Reset(t.Context(), epoch, nextEpoch, 1); !errors.Is(err, c.want) {
					t.Errorf("reset: got %v, want %v", err, c.want)
				}
				if diff := cmp.Diff(before, unmarked()); diff != "" {
					t.Errorf("ledger (-before +after):\n%s", diff)
				}
			})
		}
	})
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReset_WantsALaterEpoch(t *testing.T) {
	t.Parallel()
	l := newLedger(t, connect(t, testenv.Mini(t)), 0).open(t)
	l.mustClose(t)
	for _, next := range []string{"", epoch, "0"} {
		if err := l.Reset(t.Context(), epoch, next, 0); err == nil {
			t.Errorf("reset to epoch %q: got nil, want an error", next)
		}
	}
}

// Whoever resets while late money gets its seat either finds it or is refused.
func TestReset_LateMoneyAtTheSameTimeIsNeverForgotten(t *testing.T) {
	t.Parallel()
	rdb := connect(t, testenv.Pair(t).Primary.Addr())
	for i := range 20 {
		l := newLedger(t, rdb, 1).open(t)
		rec := l.released(t, 2, "N1")
		l.mustClose(t)
		var d booking.Decision
		var late, reset error
		var both sync.WaitGroup
		both.Go(func() { d, late = l.Late(t.Context(), rec, "TX"+strconv.Itoa(i), booking.MoneyLate) })
		both.Go(func() { reset = l.Reset(t.Context(), epoch, nextEpoch, 0) })
		both.Wait()
		if late != nil {
			t.Fatalf("late: got %v, want a decision", late)
		}
		if d.Paid != errors.Is(reset, admission.ErrMoved) || (reset == nil) == d.Paid {
			t.Errorf("round %d: money got a seat: %t, and the reset: %v; want the one or the other", i, d.Paid, reset)
		}
	}
}

// A reset of a full sale must not keep Redis from its other clients.
func TestReset_DoesNotBlockRedisWithAFullSale(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	rdb := connect(t, pair.Primary.Addr())
	l := newLedger(t, rdb, 1).open(t)
	l.mustClose(t)
	const rows = 20700
	fillPaid(t, l, rows)
	mustDo(t, rdb.ConfigResetStat(t.Context()).Err())
	began := time.Now()
	if err := l.Reset(t.Context(), epoch, nextEpoch, rows); err != nil {
		t.Fatalf("reset: got %v, want nil", err)
	}
	took := time.Since(began)
	personal, err := l.PurgePersonal(t.Context(), nextEpoch)
	if err != nil || personal.Emails < rows || personal.Stashes != rows {
		t.Errorf("purge: got %+v, %v, want %d e-mails at least and %d stashes", personal, err, rows, rows)
	}
	// By what was run, and not by how long it took: nothing reads or deletes a whole key
	// that grows with the sale.
	ran, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, whole := range []string{"hgetall", "hkeys", "hvals", "smembers", "zrange", "zrangebyscore", "keys", "flushdb", "flushall"} {
		if strings.Contains(ran, "cmdstat_"+whole+":") {
			t.Errorf("%s was run: got\n%s\nwant steps of a bounded size", whole, ran)
		}
	}
	t.Logf("%d rows: reset acknowledged after %s, then everything purged after %s", rows, took, time.Since(began)-took)
}

// fillPaid writes paid rows, e-mails and stashes past the scripts.
func fillPaid(t *testing.T, l *ledger, n int) {
	t.Helper()
	for from := 0; from < n; from += 900 {
		_, err := l.rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for i := from; i < min(from+900, n); i++ {
				code := fmt.Sprintf("AB-%06d", i)
				attempt := booking.AttemptID(epoch, suffix())
				p.HSet(t.Context(), l.prefix+"adm:seen", code, fmt.Sprintf(
					`{"attempt":%q,"level":"N1","slot":%d,"phase":"paid","admitted_at":1,"hold":600000,"amount":150000,"currency":"BDT","deadline":2,"payment":"TR0011mqN0nOK1796097600412","transaction":"CK%d","paid_at":3,"record_done":true}`,
					attempt, i, i))
				p.ZAdd(t.Context(), l.prefix+"adm:due", redis.Z{Score: float64(i), Member: code})
				p.SAdd(t.Context(), l.prefix+"candidates:valid", code)
				p.Set(t.Context(), l.prefix+"candidate:email:"+code, "x@example.org", 0)
				p.Set(t.Context(), l.prefix+"hold:attempt:"+attempt, `{"v":1}`, time.Hour)
			}
			return nil
		})
		mustDo(t, err)
	}
}

func TestPurgePersonal_LeavesTheSaleAndNoName(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l, other := fresh(t).open(t), fresh(t).open(t)
		l.mustPaid(t, 1, "N1")
		l.mustClose(t)
		if _, err := l.PurgePersonal(t.Context(), epoch); !errors.Is(err, admission.ErrMoved) {
			t.Errorf("purge of a ledger with seats: got %v, want ErrMoved", err)
		}
		mustDo(t, l.Reset(t.Context(), epoch, nextEpoch, 1))
		if _, err := l.PurgePersonal(t.Context(), epoch); !errors.Is(err, admission.ErrMoved) {
			t.Errorf("purge of another sale: got %v, want ErrMoved", err)
		}
		mustDo(t, l.Open(t.Context()))
		if _, err := l.PurgePersonal(t.Context(), nextEpoch); !errors.Is(err, admission.ErrStillOpen) {
			t.Errorf("purge of an open sale: got %v, want ErrStillOpen", err)
		}
		l.mustClose(t)
		counted, err := l.CountPersonal(t.Context())
		if want := (booking.PersonalKeys{Lists: 1, Emails: 20, Stashes: 2}); err != nil || counted != want {
			t.Errorf("counted: got %+v, %v, want %+v", counted, err, want)
		}
		if got, err := l.PurgePersonal(t.Context(), nextEpoch); err != nil || got != counted {
			t.Errorf("purged: got %+v, %v, want what was counted, %+v", got, err, counted)
		}
		if got, err := l.PurgePersonal(t.Context(), nextEpoch); err != nil || got != (booking.PersonalKeys{}) {
			t.Errorf("purged again: got %+v, %v, want nothing left", got, err)
		}
		if _, err := l.Sale(t.Context()); err != nil {
			t.Errorf("the sale: got %v, want it to stay", err)
		}
		// Another sale in the same Redis keeps its own.
		if counted, err := other.CountPersonal(t.Context()); err != nil || counted.Emails != 20 {
			t.Errorf("the other sale: got %+v, %v, want its 20 e-mails", counted, err)
		}
	})
}

// behind does something once, behind the first command of that name.
type behind struct {
	name string
	once sync.Once
	do   func()
}

func (b *behind) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *behind) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *behind) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == b.name {
			b.once.Do(b.do)
		}
		return err
	}
}

// load is a whole load of the allowlist.
func (l *ledger) load(ctx context.Context, token string, list []booking.Candidate) error {
	turn, err := l.BeginAllowlist(ctx, token, "a load")
	if err != nil || turn.Token != token {
		return errors.Join(err, fmt.Errorf("it is the turn of %s", turn.Who))
	}
	if _, err := l.ClearAllowlist(ctx, token, false); err != nil {
		return err
	}
	if _, err := l.StageAllowlist(ctx, token, 1, list); err != nil {
		return err
	}
	if _, err := l.SwapAllowlist(ctx, token, 1, false); err != nil {
		return err
	}
	return l.EndAllowlist(ctx, token, false)
}

// Whatever a purge and a load do at the same time: who is on the list has an e-mail.
func TestPurgePersonal_BesideALoad(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lapses time.Duration // before the load
		loads  bool
		purge  error
	}{
		"keeps the load out":              {0, false, nil},
		"stops when its turn was another": {31 * time.Second, true, admission.ErrUnderWay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testenv.Mini(t)
			l := newLedger(t, connect(t, addr), 0).open(t)
			l.mustClose(t)
			loader := l.another(t, connect(t, addr), 0)
			var loaded error
			l.rdb.AddHook(&behind{name: "scan", do: func() {
				l.advance(c.lapses)
				loaded = loader.load(t.Context(), "L", candidates(12))
			}})
			_, err := l.PurgePersonal(t.Context(), epoch)
			if !errors.Is(err, c.purge) {
				t.Errorf("purge: got %v, want %v", err, c.purge)
			}
			if (loaded == nil) != c.loads {
				t.Errorf("load beside it: got %v, want that it loads: %t", loaded, c.loads)
			}
			listed := 0
			for who, err := range l.Candidates(t.Context()) {
				if listed++; err != nil {
					t.Errorf("%s is on the list: got %v, want an e-mail", who.Code, err)
				}
			}
			if want := map[bool]int{true: 12}[c.loads]; listed != want {
				t.Errorf("allowlist: got %d candidates, want %d", listed, want)
			}
			// Nobody waits for a purge that has ended.
			if err := loader.load(t.Context(), "M", candidates(3)); err != nil {
				t.Errorf("load after it: got %v, want nil", err)
			}
		})
	}
}

func TestPurgePersonal_RefusesWhatIsUnderWay(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		for name, c := range map[string]struct {
			prepare func(t *testing.T, l *ledger)
			says    string
		}{
			"rebuild": {func(t *testing.T, l *ledger) { l.set(t, "adm:rebuild", "token") }, "finish it first"},
			"half loaded": {func(t *testing.T, l *ledger) {
				mustDo(t, l.rdb.HSet(t.Context(), l.prefix+"candidates:changed", "C001", "x@example.org").Err())
			}, "finish it first"},
			"load": {func(t *testing.T, l *ledger) {
				_, err := l.BeginAllowlist(t.Context(), "L", "alice")
				mustDo(t, err)
			}, "by alice since 20"},
		} {
			t.Run(name, func(t *testing.T) {
				l := fresh(t).open(t)
				l.mustClose(t)
				c.prepare(t, l)
				if got, err := l.PurgePersonal(t.Context(), epoch); !errors.Is(err, admission.ErrUnderWay) || !strings.Contains(fmt.Sprint(err), c.says) || got != (booking.PersonalKeys{}) {
					t.Errorf("purge: got %+v, %v, want ErrUnderWay that says %q, and nothing gone", got, err, c.says)
				}
				want := []string{"candidates:valid", "candidate:email:C001"}
				if diff := cmp.Diff(want, l.exists(t, want...)); diff != "" {
					t.Errorf("what stays (-want +got):\n%s", diff)
				}
			})
		}
	})
}

func TestEnding_SaysWhatStandsAgainstIt(t *testing.T) {
	t.Parallel()
	l := newLedger(t, connect(t, testenv.Mini(t)), 0).open(t)
	want := func(what string, e booking.Ending) {
		t.Helper()
		got, err := l.Ending(t.Context())
		if err != nil || got != e {
			t.Errorf("%s: got %+v, %v, want %+v", what, got, err, e)
		}
	}
	want("open", booking.Ending{Open: true, Candidates: 20})
	at := time.UnixMilli(time.Now().Add(time.Hour).UnixMilli()).UTC()
	mustDo(t, l.OpenAt(t.Context(), at))
	want("scheduled", booking.Ending{OpensAt: at, Candidates: 20})
	l.mustClose(t)
	want("closed", booking.Ending{Candidates: 20})
	mustDo(t, l.rdb.HSet(t.Context(), l.prefix+"candidates:load", "until", at.UnixMilli()).Err())
	want("loading", booking.Ending{UnderWay: true, Candidates: 20})
	l.advance(2 * time.Hour) // its lease is over
	want("a dead load", booking.Ending{Candidates: 20})
	l.set(t, "adm:rebuild", "token")
	want("a rebuild", booking.Ending{UnderWay: true, Candidates: 20})
}
