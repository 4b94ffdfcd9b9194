package admission_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// outcome is what one caller of a batch heard.
type outcome struct {
	seat booking.Seat
	err  error
}

// together sends the requests as one batch, in this order, and returns what each
// heard.
func (l *ledger) together(t *testing.T, requests ...booking.Request) []outcome {
	t.Helper()
	return l.queue(t, t.Context(), requests...)()
}

// queue lines the requests up behind a held turn; the returned function lets the
// batch go and waits for it.
func (l *ledger) queue(t *testing.T, ctx context.Context, requests ...booking.Request) func() []outcome {
	t.Helper()
	release := l.HoldTurn()
	heard := make([]chan outcome, len(requests))
	for i, r := range requests {
		heard[i] = make(chan outcome, 1)
		go func() {
			seat, err := l.Admit(ctx, r, suffix(), false)
			heard[i] <- outcome{seat, err}
		}()
		testenv.Eventually(t, func() error {
			if n := l.Waiting(); n != i+1 {
				return fmt.Errorf("%d wait, want %d", n, i+1)
			}
			return nil
		})
	}
	return func() []outcome {
		t.Helper()
		release()
		out := make([]outcome, len(requests))
		for i := range heard {
			out[i] = <-heard[i]
		}
		return out
	}
}

func TestBatch_KeepsOrderOfArrivalAndAnswersEachItsOwn(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		twin := request(1, "N1")
		twin.Key = "k"
		got := l.together(t, twin, request(2, "N1"), request(3, "N1"), request(4, "N2"), request(5, "N2"), twin,
			request(6, "N7"), booking.Request{Code: "X999", Email: mail(1), Level: "N1"}, request(6, "N9"))
		wants := []error{nil, nil, booking.ErrLevelFull, nil, booking.ErrSoldOut, booking.ErrDuplicate,
			booking.ErrInvalidLevel, booking.ErrInvalidCode, booking.ErrLevelFull}
		for i, want := range wants {
			if !errors.Is(got[i].err, want) {
				t.Errorf("request %d: got %v, want %v", i+1, got[i].err, want)
			}
		}
		for i, slot := range map[int]int64{0: 1, 1: 2, 3: 3} {
			if got[i].seat.Row.Slot != slot {
				t.Errorf("request %d got slot %d, want %d: order of arrival", i+1, got[i].seat.Row.Slot, slot)
			}
		}
		l.check(t)
	})
}

func TestBatch_ScriptsForgottenBeforeIt(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		if err := l.rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for i, o := range l.together(t, request(1, "N1"), request(2, "N1"), request(3, "N2")) {
			if o.err != nil || o.seat.Row.Slot != int64(i+1) {
				t.Errorf("request %d: slot %d, %v", i+1, o.seat.Row.Slot, o.err)
			}
		}
		l.check(t)
	})
}

func TestBatch_UnacknowledgedIsUndoneAndItsFullIsTryAgain(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	held := l.mustHeld(t, 9, "N2")
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	got := l.together(t, request(1, "N1"), request(2, "N1"), request(3, "N1"), request(9, "N2"), request(4, "N7"))
	for i, want := range []error{booking.ErrTryAgain, booking.ErrTryAgain, booking.ErrTryAgain, booking.ErrDuplicate, booking.ErrInvalidLevel} {
		if !errors.Is(got[i].err, want) {
			t.Errorf("request %d: got %v, want %v", i+1, got[i].err, want)
		}
	}
	// No seat of the batch was undone here, so a "full" stands.
	full := l.together(t, request(3, "N9"), request(4, "N9"))
	for i, o := range full {
		if !errors.Is(o.err, booking.ErrLevelFull) {
			t.Errorf("full request %d: got %v, want level full", i+1, o.err)
		}
	}
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	l.check(t)
	if row := l.mustRow(t, 9); row != held {
		t.Errorf("a seat of an earlier batch became %+v", row)
	}
	for _, i := range []int{1, 2, 3} {
		if _, _, err := l.Row(t.Context(), code(i)); !errors.Is(err, booking.ErrNotFound) {
			t.Errorf("%s has a row: %v", code(i), err)
		}
	}
}

// A batch that waits 200 ms for a replica that is gone holds up nobody: a
// rejection that comes later is answered first. On a busy machine those 200 ms may
// pass before the rejection is even sent, so it has several chances; if batches
// blocked each other it would have none.
func TestBatch_SlowOneBlocksNoOther(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	l.SetBreakerRun(1000) // this is not about the breaker
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	first := ""
	for range 10 {
		order := make(chan string, 2)
		go func() {
			_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
			order <- fmt.Sprint("admission: ", errors.Is(err, booking.ErrTryAgain))
		}()
		testenv.Eventually(t, func() error { // its script has run
			_, _, err := l.Row(t.Context(), code(1))
			if errors.Is(err, booking.ErrNotFound) && len(order) == 1 {
				return nil // and been undone
			}
			return err
		})
		if _, err := l.Admit(t.Context(), request(2, "N9"), suffix(), false); !errors.Is(err, booking.ErrLevelFull) {
			t.Errorf("rejection: %v", err)
		}
		order <- "rejection"
		var second string
		if first, second = <-order, <-order; first == "rejection" {
			if second != "admission: true" {
				t.Errorf("the slow one heard %q", second)
			}
			break
		}
	}
	if first != "rejection" {
		t.Error("a rejection was never answered before the batch that waits for a replica")
	}
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	l.check(t)
}

// Turns handed on early and late, callers who give up, and many at once: everybody
// is answered.
func TestBatch_EverybodyIsAnswered(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	proxy := testenv.Proxy(t, pair.Primary.Addr())
	l := newLedger(t, connect(t, proxy.Addr()), 1).open(t)
	l.mustAdmit(t, 1, "N1")
	proxy.Delay(3 * time.Millisecond) // longer than a lone request keeps its turn
	const callers, each = 40, 50
	heard := make(chan error, callers*each)
	for c := range callers {
		go func() {
			for n := range each {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(c*n)%40)*500*time.Microsecond)
				if c%2 == 0 {
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
				}
				_, err := l.Admit(ctx, request(2, "N9"), suffix(), false)
				cancel()
				if c%2 == 0 && !errors.Is(err, booking.ErrLevelFull) {
					heard <- fmt.Errorf("caller %d: %w", c, err)
					continue
				}
				heard <- nil
			}
		}()
	}
	for range callers * each {
		select {
		case err := <-heard:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("somebody is not answered")
		}
	}
	testenv.Eventually(t, func() error { // a leader has its answer before it has tidied up
		if !l.AtRest() {
			return errors.New("everybody is answered, and something is kept of them")
		}
		return nil
	})
	proxy.Forward()
	l.check(t)
}

func TestBatch_CallerWhoGaveUpIsNotSent(t *testing.T) {
	onEach(t, func(t *testing.T, fresh func(t *testing.T) *ledger) {
		l := fresh(t).open(t)
		ctx, cancel := context.WithCancel(t.Context())
		first := l.queue(t, ctx, request(1, "N1"), request(2, "N1"))
		cancel()
		for i, o := range first() {
			if !errors.Is(o.err, context.Canceled) {
				t.Errorf("caller %d: got %v, want cancelled", i+1, o.err)
			}
		}
		// Nobody led them, and the turn is free.
		l.mustAdmit(t, 3, "N1")
		if n := l.get(t, "adm:total"); n != "1" {
			t.Errorf("%s seats taken, want the one", n)
		}
		l.check(t)
	})
}

// A caller who gives up while the batch is under way has been told no: its seat
// is given back, and the others' stand.
func TestBatch_SeatOfACallerWhoGaveUpIsUndone(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.Proxy(t, server.Addr())
	rdb := admission.NewClient(admission.ClientConfig{Addr: proxy.Addr(), Pool: 1}) // one connection, shaken hands on
	t.Cleanup(func() { rdb.Close() })
	l := newLedger(t, rdb, 0).open(t)
	direct := newLedger(t, connect(t, server.Addr()), 0)
	direct.prefix = l.prefix
	wantTotal := func(want string) {
		t.Helper()
		testenv.Eventually(t, func() error {
			if n := direct.get(t, "adm:total"); n != want {
				return fmt.Errorf("%s seats are taken, want %s", n, want)
			}
			return nil
		})
	}
	l.mustAdmit(t, 3, "N2") // and the server knows the script
	ctx, giveUp := context.WithCancel(t.Context())
	release := l.HoldTurn()
	admit := func(ctx context.Context, i int) chan outcome {
		heard := make(chan outcome, 1)
		waiting := l.Waiting()
		go func() {
			seat, err := l.Admit(ctx, request(i, "N1"), suffix(), false)
			heard <- outcome{seat, err}
		}()
		testenv.Eventually(t, func() error {
			if l.Waiting() == waiting {
				return errors.New("not in line yet")
			}
			return nil
		})
		return heard
	}
	leader, follower := admit(t.Context(), 1), admit(ctx, 2)
	proxy.Delay(time.Hour)
	release()
	wantTotal("3") // the batch has run; its answers are on their way
	giveUp()
	if o := <-follower; !errors.Is(o.err, context.Canceled) {
		t.Errorf("who gave up heard %v, want cancelled", o.err)
	}
	proxy.Forward()
	if o := <-leader; o.err != nil {
		t.Errorf("the other in the batch: %v", o.err)
	}
	wantTotal("2")
	if direct.rdb.HExists(t.Context(), l.prefix+"adm:seen", code(2)).Val() {
		t.Error("who gave up still has a row")
	}
	l.check(t)
}

func TestBatch_BeyondTheBoundIsTryAgain(t *testing.T) {
	t.Parallel()
	l := newLedger(t, connect(t, testenv.Mini(t)), 0).open(t)
	const most = 20
	l.SetWaitingMost(most)
	var crowd []booking.Request
	for range most {
		crowd = append(crowd, request(1, "N9"))
	}
	let := l.queue(t, t.Context(), crowd...)
	began := time.Now()
	_, err := l.Admit(t.Context(), request(2, "N9"), suffix(), false)
	wantErr(t, "one more", err, booking.ErrTryAgain)
	if took := time.Since(began); took > time.Second {
		t.Errorf("the refusal took %s", took)
	}
	for _, o := range let() {
		wantErr(t, "one who waited", o.err, booking.ErrLevelFull)
	}
}

func TestBreaker_OpensProbesAndCloses(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	now := time.Unix(1_800_000_000, 0)
	l.SetBreakerClock(func() time.Time { return now })
	held := l.mustHeld(t, 9, "N2")
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		_, err := l.Admit(t.Context(), request(1+i, "N1"), suffix(), false)
		wantErr(t, "no acknowledgement", err, booking.ErrTryAgain)
	}
	if !l.BreakerOpen() || !l.ReleasesPutOff() {
		t.Fatalf("after three missing acknowledgements: open %v, releases put off %v", l.BreakerOpen(), l.ReleasesPutOff())
	}
	before := l.dump(t)
	_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
	wantErr(t, "would take a seat", err, booking.ErrTryAgain)
	_, err = l.Admit(t.Context(), request(1, "N9"), suffix(), false)
	wantErr(t, "level full", err, booking.ErrLevelFull)
	_, err = l.Admit(t.Context(), request(9, "N2"), suffix(), false)
	wantErr(t, "duplicate", err, booking.ErrDuplicate)
	if after := l.dump(t); after != before {
		t.Errorf("an open breaker wrote:\n%s\nwas\n%s", after, before)
	}
	if err := l.Probe(t.Context()); err != nil || !l.BreakerOpen() {
		t.Errorf("probe with the replica gone: %v, open %v", err, l.BreakerOpen())
	}
	_, err = l.Settle(t.Context(), code(9), held.Attempt, held.Payment, "TRX1")
	wantErr(t, "settle always tries", err, booking.ErrNotAcknowledged)
	if row := l.mustRow(t, 9); row.Phase != booking.PhasePaid {
		t.Errorf("settle did not try: row is %s", row.Phase)
	}

	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error {
		if err := l.Probe(t.Context()); err != nil {
			return err
		}
		if l.BreakerOpen() {
			return errors.New("the breaker is still open")
		}
		return nil
	})
	l.mustAdmit(t, 1, "N1")
	if !l.ReleasesPutOff() {
		t.Error("releases must rest for a minute after the breaker closed")
	}
	now = now.Add(time.Minute)
	if l.ReleasesPutOff() {
		t.Error("releases still rest a minute later")
	}
	l.check(t)
}

func TestBreaker_WatchFindsTheReplicaAgain(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Watch(ctx) }()
	defer func() { stop(); <-done }()
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error {
		_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
		wantErr(t, "replica gone", err, booking.ErrTryAgain)
		if !l.BreakerOpen() {
			return errors.New("closed")
		}
		return nil
	})
	if err := testutil.GatherAndCompare(l.reg, strings.NewReader("# HELP holdfast_breaker_open 1 while replicas do not acknowledge and admissions are refused at once.\n# TYPE holdfast_breaker_open gauge\nholdfast_breaker_open 1\n"), "holdfast_breaker_open"); err != nil {
		t.Error(err)
	}
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error {
		_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
		return err
	})
	l.check(t)
}
