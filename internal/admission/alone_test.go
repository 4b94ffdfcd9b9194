package admission_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// inOneBatch sends the requests as one batch, in that order, and returns their
// errors in the same order.
func inOneBatch(t *testing.T, l *ledger, ctx func(i int) context.Context, requests ...booking.Request) []error {
	t.Helper()
	release, errs := l.HoldTurn(), make([]error, len(requests))
	done := make(chan struct{})
	for i, r := range requests {
		go func() {
			_, errs[i] = l.Admit(ctx(i), r, suffix(), false)
			done <- struct{}{}
		}()
		testenv.Eventually(t, func() error {
			if n := l.Waiting(); n != i+1 {
				return fmt.Errorf("%d wait, want %d", n, i+1)
			}
			return nil
		})
	}
	release()
	for range requests {
		<-done
	}
	return errs
}

func patient(t *testing.T) func(int) context.Context {
	return func(int) context.Context { return t.Context() }
}

// A row that no decision can be made of is its own candidate's trouble: those who
// arrive together with it are served, and refused ones leave nothing behind.
func TestAdmit_UnreadableRowFailsAlone(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"FieldMissing":   `{"attempt":"x","level":"N1","phase":"new"}`,
		"NumberAsText":   `{"attempt":"x","level":"N1","slot":1,"phase":"held","admitted_at":1,"hold":1,"amount":1,"currency":"BDT","deadline":"soon"}`,
		"Null":           `{"attempt":"x","level":"N1","slot":1,"phase":"held","admitted_at":1,"hold":1,"amount":1,"currency":"BDT","deadline":null}`,
		"PhaseOfNoRow":   `{"attempt":"x","level":"N1","slot":1,"phase":"hold","admitted_at":1,"hold":1,"amount":1,"currency":"BDT"}`,
		"NotEvenAnArray": `"x"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(t, connect(t, testenv.Redis(t).Addr()), 0).open(t)
			if err := l.rdb.HSet(t.Context(), l.prefix+"adm:seen", code(1), raw).Err(); err != nil {
				t.Fatal(err)
			}
			errs := inOneBatch(t, l, patient(t), request(2, "N2"), request(1, "N1"), request(3, "N2"))
			if err := errors.Join(errs[0], errs[2]); err != nil {
				t.Errorf("those beside the unreadable row: %v, want seats", err)
			}
			wantErr(t, "the unreadable row's own", errs[1], booking.ErrTryAgain)
			wantErr(t, "the unreadable row's own", errs[1], booking.ErrLedgerDamaged)
			if got := l.get(t, "adm:level:N2"); got != "2" {
				t.Errorf("seats of N2: got %s, want 2", got)
			}
		})
	}
}

// A server that counts too few replicas itself refuses the write of a seat and
// nothing else: rejections in the same batch are final.
func TestAdmit_RefusedWriteFailsAlone(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 1)
		l := newLedger(t, connect(t, s.Primary.Addr()), 1).open(t)
		s.Links[0].Cut()
		if err := l.rdb.ConfigSet(t.Context(), "min-replicas-to-write", "2").Err(); err != nil {
			t.Fatal(err)
		}
		errs := inOneBatch(t, l, patient(t), request(1, "N1"), booking.Request{Code: "NOBODY", Email: "x@example.org", Level: "N1"}, request(2, "N9"))
		wantErr(t, "a seat that cannot be written", errs[0], booking.ErrTryAgain)
		wantErr(t, "an unknown code beside it", errs[1], booking.ErrInvalidCode)
		wantErr(t, "a full level beside it", errs[2], booking.ErrLevelFull)
		for range 5 {
			_, err := l.Admit(t.Context(), request(4, "N1"), suffix(), false)
			wantErr(t, "again", err, booking.ErrTryAgain)
		}
		if !l.BreakerOpen() {
			t.Error("the breaker is closed, want it open: the server counts too few replicas")
		}
		if got := l.get(t, "adm:total"); got != "0" {
			t.Errorf("seats taken: got %s, want 0", got)
		}
	})
}

// Case 7 of a sold-out sale: nobody takes a seat, and still the breaker hears that
// no replica acknowledges, so that lone rejections do not wait for one for ever.
func TestReplicaGone_LoneRejectionsGoFastAgain(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 1)
		l := newLedger(t, connect(t, s.Front.Addr()), 1).open(t)
		s.Links[0].Cut()
		testenv.Eventually(t, func() error {
			_, err := l.Admit(t.Context(), request(5, "N9"), suffix(), false)
			wantErr(t, "a rejection", err, booking.ErrLevelFull)
			if !l.BreakerOpen() {
				return errors.New("the breaker is closed")
			}
			return nil
		})
		// No WAIT from here on: it alone would cost 200 ms.
		before, err := l.rdb.InfoMap(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Admit(t.Context(), request(6, "N9"), suffix(), false)
		wantErr(t, "a rejection", err, booking.ErrLevelFull)
		after, err := l.rdb.InfoMap(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := waits(after), waits(before)+1; got != want { // of none, to know that it is the primary
			t.Errorf("WAITs of one rejection: got %d more, want 1", got-want+1)
		}
		s.Links[0].Forward()
		testenv.Eventually(t, func() error {
			if err := l.Probe(t.Context()); err != nil {
				return err
			}
			if l.BreakerOpen() {
				return errors.New("the breaker is open")
			}
			return nil
		})
		l.mustAdmit(t, 1, "N1")
	})
}

func waits(info map[string]map[string]string) int {
	var n int
	_, _ = fmt.Sscanf(info["Commandstats"]["cmdstat_wait"], "calls=%d", &n)
	return n
}

// Payments go on when nothing is sold any more: what they hear of the replicas
// counts, or seats whose payers could not pay would be released.
func TestReplicaGone_PaymentsAlonePutReleasesOff(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 1)
		l := newLedger(t, connect(t, s.Front.Addr()), 1).open(t)
		held := l.mustHeld(t, 1, "N1")
		s.Links[0].Cut()
		for i := range 3 {
			_, _, err := l.BeginPay(t.Context(), code(1), held.Attempt, held.Payment, fmt.Sprintf("token%d", i), 30*time.Second)
			wantErr(t, "begin-pay without a replica", err, booking.ErrNotAcknowledged)
			wantErr(t, "end-pay without a replica", l.EndPay(t.Context(), code(1), held.Attempt, fmt.Sprintf("token%d", i), booking.PhaseHeld), booking.ErrNotAcknowledged)
		}
		if !l.ReleasesPutOff() {
			t.Error("releases go on, want them put off: nobody could pay")
		}
	})
}

// A seat whose caller has left is given back, so "full" beside it is no final word.
func TestAdmit_FullOfASeatThatGoesBackIsTryAgain(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		s := e.Shard(t, 1)
		wire := &haltingWire{halted: make(chan struct{}), goOn: make(chan struct{})}
		o := *connect(t, s.Front.Addr()).Options()
		o.Dialer = wire.dial
		rdb := redis.NewClient(&o)
		t.Cleanup(func() { _ = rdb.Close() })
		l := newLedger(t, rdb, 1)
		l.sell(t, 10, 1, 5)
		leaving, leave := context.WithCancel(t.Context())
		defer leave()
		left, heard := make(chan error, 1), make(chan error, 2)
		admit := func(ctx context.Context, r booking.Request, to chan error) {
			n := l.Waiting()
			go func() {
				_, err := l.Admit(ctx, r, suffix(), false)
				to <- err
			}()
			testenv.Eventually(t, func() error {
				if l.Waiting() != n+1 {
					return errors.New("it does not wait yet")
				}
				return nil
			})
		}
		release := l.HoldTurn()
		admit(t.Context(), request(0, "N2"), heard) // leads the batch
		admit(leaving, request(1, "N1"), left)
		admit(t.Context(), request(2, "N1"), heard)
		wire.armed.Store(true)
		release()
		<-wire.halted // after the script, before its acknowledgement is asked for
		leave()
		wantErr(t, "who left", <-left, context.Canceled)
		close(wire.goOn)
		var errs []error
		for range 2 {
			if err := <-heard; err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) != 1 || !errors.Is(errs[0], booking.ErrTryAgain) {
			t.Errorf("beside the seat that goes back: got %v, want one try again", errs)
		}
		if _, _, err := l.Row(t.Context(), code(1)); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("row of who left: got %v, want none", err)
		}
		l.mustAdmit(t, 3, "N1")
	})
}
