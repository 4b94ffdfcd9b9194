package app_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/testenv"
)

// A round is one hold that ends while its payer pays, more or less. Some are at it
// together, and the next begin when they are through. A slow machine decides later
// than at the deadline, so they aim a step later when most of those before them were
// in time, and else a step earlier.
const (
	rounds   = 500
	together = 20
	apart    = 10 * time.Second // from those to the next
	step     = 20 * time.Millisecond
)

// jitter is a time within 50 ms before or after the one aimed at.
func jitter() time.Duration {
	return time.Duration(rand.Int64N(int64(100*time.Millisecond))) - 50*time.Millisecond
}

// Case 14: the hold ends and the payer pays at the same instant, a thousand times,
// within 50 ms. Both processes sweep all the while, take returns and notifications,
// and sell what comes free to others. Each round ends paid with a seat, or released
// and the money given back, or released and no money moved; never both, never
// neither.
func TestCase14_ExpiryAndPaymentInTheSameInstant(t *testing.T) {
	for _, c := range []struct {
		capture string
		// pressed is when the payer is done on the gateway's page, from the deadline, but
		// for jitter: it is the money that moves at the instant.
		pressed time.Duration
		// ends are what rounds must come to, some to each and none to any other.
		ends []string
	}{
		{mockgateway.CaptureExecute, -100 * time.Millisecond, []string{"paid", "released"}},
		{mockgateway.CapturePayer, 0, []string{"paid", "refunded"}},
	} {
		t.Run("money moves by "+c.capture, func(t *testing.T) {
			b := newTill(t, rounds)
			b.addCandidates(t, 2*rounds)
			b.change(t, func(s *mockgateway.Settings) { s.Capture = c.capture })
			second, _, url := b.start(t)
			b.apis = append(b.apis, url)
			holds := b.everybodyHolds(t)
			b.drained(t)
			ends := b.theInstant(t, holds, c.pressed, b.api, second)
			t.Log(ends)
			if len(ends) != 2 || ends[c.ends[0]] == 0 || ends[c.ends[1]] == 0 {
				t.Errorf("got ends %v, want some %s and nothing else", ends, strings.Join(c.ends, ", some "))
			}
			b.ledger(t)
		})
	}
}

// everybodyHolds books every seat, through all APIs, those of one group at a time.
func (b *till) everybodyHolds(t *testing.T) []hold {
	t.Helper()
	holds := make([]hold, rounds)
	for from := 0; from < rounds; from += together {
		var group sync.WaitGroup
		for i := from; i < from+together; i++ {
			group.Go(func() {
				var err error
				if holds[i], err = b.held(t.Context(), b.apis[i%len(b.apis)], i); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if t.Failed() {
			t.FailNow()
		}
		b.clock.Add(apart)
	}
	return holds
}

// theInstant has every hold end while its payer pays, and counts the ends.
func (b *till) theInstant(t *testing.T, holds []hold, pressed time.Duration, sweepers ...*app.API) map[string]int {
	t.Helper()
	deadlines := map[string]time.Time{}
	for d, err := range b.gate.Rows(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		deadlines[d.Code] = time.UnixMilli(d.Row.Deadline)
	}
	over := make(chan struct{})
	var sweeps sync.WaitGroup
	for _, a := range sweepers {
		sweeps.Go(func() {
			for {
				if _, err := a.Reconciler.Sweep(t.Context()); err != nil {
					t.Errorf("sweep: %v", err)
				}
				select {
				case <-over:
					return
				case <-b.clock.At(b.clock.Now().Add(10 * time.Millisecond)):
				}
			}
		})
	}
	rest := sync.OnceFunc(func() {
		close(over)
		sweeps.Wait()
	})
	defer rest()
	somewhere := func() string { return b.apis[rand.IntN(len(b.apis))] }
	b.post.arrived = func(letter []byte) { b.deliverTo(t, somewhere(), letter) }
	aim, rival := time.Duration(0), rounds
	for from := 0; from < rounds; from += together {
		var payers, others sync.WaitGroup
		group := holds[from : from+together]
		first := deadlines[group[0].code]
		for _, h := range group {
			until := deadlines[h.code]
			if until.Before(first) {
				first = until
			}
			until = until.Add(aim)
			pays, returns := b.clock.At(until.Add(pressed+jitter())), b.clock.At(until.Add(jitter()))
			payers.Go(func() {
				<-pays
				back, err := b.pressed(t.Context(), h, "success")
				if err != nil {
					t.Error(err)
					return
				}
				<-returns
				b.come(t, somewhere()+back[strings.Index(back, "/payment/callback"):])
			})
		}
		through := make(chan struct{})
		others.Go(func() { // those who want what comes free ask again and again
			for {
				status, _, _, err := b.book(t.Context(), somewhere(), fmt.Sprintf("P%04d", rival), "N1")
				if err != nil {
					t.Error(err)
				}
				if status == http.StatusAccepted {
					rival++
				}
				select {
				case <-through:
					return
				case <-b.clock.At(b.clock.Now().Add(5 * time.Millisecond)):
				}
			}
		})
		b.clock.Add(first.Sub(b.clock.Now()) - 200*time.Millisecond)
		payers.Wait()
		close(through)
		others.Wait()
		if aim -= step; 2*b.paid(t, group) > len(group) {
			aim += 2 * step
		}
	}
	rest()
	testenv.Eventually(t, func() error { return b.everythingSaid() })
	for range 4 { // what is looked at again is looked at in a while
		b.after(t, time.Minute)
	}
	return b.ends(t, holds)
}

// paid counts those of the holds that have their seat.
func (b *till) paid(t *testing.T, holds []hold) (n int) {
	t.Helper()
	for _, h := range holds {
		row, _, err := b.gate.Row(t.Context(), h.code)
		if err != nil && !errors.Is(err, booking.ErrNotFound) {
			t.Fatal(err)
		}
		if row.Payment == h.payment && row.Phase == booking.PhasePaid {
			n++
		}
	}
	return n
}

// everythingSaid is nil once the gateway has no notification left to deliver.
func (b *till) everythingSaid() error {
	payments, err := b.mock.Payments("")
	if err != nil {
		return err
	}
	for _, p := range payments {
		for _, m := range p.Transactions {
			if !m.Notification.Done {
				return fmt.Errorf("transaction %s is still to be notified", m.TrxID)
			}
		}
	}
	return nil
}

// ends is what became of each hold: paid, refunded or released. Whatever is none of
// them, or two, is an error.
func (b *till) ends(t *testing.T, holds []hold) map[string]int {
	t.Helper()
	seats := map[string]booking.Row{} // by payment
	for d, err := range b.gate.Rows(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		seats[d.Row.Payment] = d.Row
	}
	payments, err := b.mock.Payments("")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]mockgateway.Listed{}
	for _, p := range payments {
		made[p.PaymentID] = p
	}
	ends := map[string]int{}
	for _, h := range holds {
		row, seat := seats[h.payment]
		moved := made[h.payment].Transactions
		refunds := 0
		for _, m := range moved {
			switch _, err := b.api.Drivers.Store.Refund(t.Context(), m.TrxID); {
			case err == nil:
				refunds++
			case !errors.Is(err, booking.ErrNotFound):
				t.Fatal(err)
			}
		}
		switch paid := seat && row.Phase == booking.PhasePaid; {
		case paid && len(moved) == 1 && refunds == 0:
			ends["paid"]++
		case !seat && len(moved) == 1 && refunds == 1:
			ends["refunded"]++
		case !seat && len(moved) == 0:
			ends["released"]++
		default:
			t.Errorf("%s: got row %+v (there: %v), %d transactions, %d refunds, want a paid seat or its money back", h.code, row, seat, len(moved), refunds)
		}
	}
	return ends
}
