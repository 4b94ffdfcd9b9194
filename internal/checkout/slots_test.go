package checkout_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/checkout"
)

// occupied has one booking after another wait inside the gateway until it is let
// go; entered tells when one is there.
func occupied(b *bench) (entered chan struct{}, leave chan error) {
	entered, leave = make(chan struct{}, 64), make(chan error)
	b.stays("create", func(_ context.Context, call func() error) error {
		entered <- struct{}{}
		if err := <-leave; err != nil {
			return err
		}
		return call()
	})
	return entered, leave
}

// start books in the background.
func start(t *testing.T, b *bench, r booking.Request) chan error {
	t.Helper()
	done := make(chan error, 1)
	ctx := t.Context()
	go func() {
		_, err := b.Book(ctx, r)
		done <- err
	}()
	return done
}

func TestBook_RejectionsDoNotWaitForTheGateway(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		keyed := request(2)
		keyed.Key = "intent-1"
		if _, err := b.Book(t.Context(), keyed); err != nil {
			t.Fatal(err)
		}
		entered, leave := occupied(b)
		first := start(t, b, request(1))
		<-entered
		if n := slotsInUse(t, b.reg); n != 1 {
			t.Errorf("slots in use: got %v, want 1", n)
		}
		b.steps()

		stranger, wrongMail, full, nowhere := request(3), request(3), request(3), request(3)
		stranger.Code, wrongMail.Email, full.Level, nowhere.Level = "NOBODY", "x@example.org", "N9", "N7"
		began := time.Now()
		b.mustRefuse(t, stranger, booking.ErrInvalidCode)
		b.mustRefuse(t, wrongMail, booking.ErrEmailMismatch)
		b.mustRefuse(t, full, booking.ErrLevelFull)
		b.mustRefuse(t, nowhere, booking.ErrInvalidLevel)
		b.mustRefuse(t, request(1), booking.ErrDuplicate) // its own first request is at work
		b.wantLink(t, 2)
		if _, err := b.Book(t.Context(), keyed); err != nil {
			t.Errorf("repeat of a key: got %v, want the same answer, which needs no slot", err)
		}
		if took := time.Since(began); took > 5*time.Second { // 0 in a bubble; one that waits takes a second
			t.Errorf("seven answers: got them after %s, want at once", took)
		}
		if got := b.steps(); got != "check check check check check check payment check payment" {
			t.Errorf("steps: got %s, want checks and look-ups only", got)
		}
		leave <- nil
		if err := <-first; err != nil {
			t.Errorf("first booking: got %v, want a seat", err)
		}
	})
}

func TestBook_OutOfBudgetTouchesNoSeat(t *testing.T) {
	onEach(t, 1, func(t *testing.T, b *bench) {
		entered, leave := occupied(b)
		first := start(t, b, request(1))
		<-entered
		b.steps()
		began := time.Now()
		b.mustRefuse(t, request(2), booking.ErrTryAgain)
		if took := time.Since(began); took < time.Second || took > checkout.DefaultBudgets().Request {
			t.Errorf("answer: got it after %s, want it once the second is over that is left for waiting", took)
		}
		if got := b.steps(); got != "check" {
			t.Errorf("steps: got %s, want a check alone", got)
		}
		b.wantSeat(t, 2, "")
		leave <- nil
		if err := <-first; err != nil {
			t.Errorf("first booking: got %v, want a seat", err)
		}
		if n := b.taken("N1"); n != 1 {
			t.Errorf("seats taken: got %d, want 1", n)
		}
	})
}

func TestBook_WhoWaitsIsServedInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		entered, leave := occupied(b)
		var all []chan error
		var want []string
		for i := range 6 {
			all = append(all, start(t, b, request(i)))
			want = append(want, code(i))
			synctest.Wait() // it has its slot, or its place in the line
		}
		for range all {
			<-entered
			leave <- nil
		}
		for i, done := range all {
			if err := <-done; err != nil {
				t.Errorf("%s: got %v, want a seat", code(i), err)
			}
		}
		if diff := cmp.Diff(want, b.gateway.ordered(t)); diff != "" {
			t.Errorf("order of payments (-want +got):\n%s", diff)
		}
		slots := map[int64]bool{}
		for i := range all {
			slots[b.wantSeat(t, i, booking.PhaseHeld).Slot] = true
		}
		if len(slots) != len(all) {
			t.Errorf("seats: got %d different ones, want %d", len(slots), len(all))
		}
	})
}

// What was free at the check may be gone when the turn comes.
func TestBook_TheCheckPromisesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		for i := 20; i < 29; i++ {
			b.mustBook(t, i) // one seat of N1 is left
		}
		entered, leave := occupied(b)
		first := start(t, b, request(1)) // takes it
		<-entered
		b.ledger.seats.(*memory).set("GHOST", func(r *booking.Row) { r.Level = "N2" })
		second := request(2)
		second.Level = "N2"
		waits := start(t, b, second)
		synctest.Wait()
		b.ledger.seats.(*memory).set("GHOST2", func(r *booking.Row) { r.Level = "N2" }) // total: 12
		leave <- nil
		if err := <-first; err != nil {
			t.Errorf("first: got %v, want a seat", err)
		}
		if err := <-waits; !errors.Is(err, booking.ErrSoldOut) {
			t.Errorf("who waited: got %v, want ErrSoldOut", err)
		}
		b.wantSeat(t, 2, "")
	})
}

func TestBook_ClosedTabKeepsItsPlaceInTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		entered, leave := occupied(b)
		first := start(t, b, request(1))
		<-entered
		ctx, closeTab := context.WithCancel(t.Context())
		second := make(chan error, 1)
		go func() {
			_, err := b.Book(ctx, request(2))
			second <- err
		}()
		synctest.Wait()
		closeTab()
		leave <- nil
		<-entered
		leave <- nil
		if err := errors.Join(<-first, <-second); err != nil {
			t.Errorf("both bookings: got %v, want seats", err)
		}
	})
}

func TestBook_SlotIsFreeAgainWhateverHappens(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*bench){
		"a seat":                  func(*bench) {},
		"refused":                 func(b *bench) { b.breaks("admit", answers(booking.ErrLevelFull)) },
		"ledger down":             func(b *bench) { b.breaks("admit", lost) },
		"ledger hangs":            func(b *bench) { b.breaks("admit", hangs) },
		"gateway down":            func(b *bench) { b.breaks("create", lost) },
		"gateway hangs":           func(b *bench) { b.breaks("create", hangs) },
		"gateway and undo down":   func(b *bench) { b.breaks("create", lost); b.breaks("undo", hangs) },
		"attach down":             func(b *bench) { b.breaks("attach", lost, lost) },
		"queue down":              func(b *bench) { b.stays("send", lost) },
		"row does not move on":    func(b *bench) { b.breaks("queued", hangs) },
		"payment is not complete": func(b *bench) { b.gateway.instead = &booking.Payment{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := inMemory(t, 1)
				spoil(b)
				_, _ = b.Book(t.Context(), request(1))
				if n := slotsInUse(t, b.reg); n != 0 {
					t.Errorf("slots in use: got %v, want 0", n)
				}
				b.gateway.instead = nil
				b.stays("send", nil)
				began := time.Now()
				b.mustBook(t, 2)
				if took := time.Since(began); took != 0 {
					t.Errorf("next booking: got it after %s, want it without waiting", took)
				}
			})
		})
	}
}

// The gateway alone needs a slot: a slow queue keeps nobody out.
func TestBook_SlotIsHeldForTheGatewayOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := inMemory(t, 1)
		b.stays("send", hangs)
		first := start(t, b, request(1))
		synctest.Wait()
		if n := slotsInUse(t, b.reg); n != 0 {
			t.Errorf("slots in use while the queue is slow: got %v, want 0", n)
		}
		if err := <-first; !errors.Is(err, booking.ErrTryAgain) {
			t.Errorf("first: got %v, want ErrTryAgain", err)
		}
	})
}
