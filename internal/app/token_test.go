package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/mockgateway"
	"holdfast/internal/testenv"
)

// crowdBudget is a request's, longer than the default: a crowd takes a while to be
// admitted and queued where servers and clients share one machine.
const crowdBudget = 13 * time.Second

// heard is how many candidates were told what in the end, and how often somebody was
// told to try again before.
type heard struct {
	told  map[string]int
	again int
}

// stampede has so many candidates, from one on, book at once through all APIs. Nobody waits for longer than the request's
// budget, and nobody is told to go without being told when to come back. Those who
// are told to try again, as a machine that is too busy to acknowledge tells them, do
// so a while later, in turn; who then hears of the seat they have is one who booked. So
// do those, where a seat is wanted, whose payment such a machine has not made in time.
func (b *till) stampede(t *testing.T, from, n int, want string) heard {
	t.Helper()
	const within = crowdBudget + time.Second // and the way there and back
	h := heard{told: map[string]int{}}
	all := make([]int, n)
	for i := range all {
		all[i] = from + i
	}
	for tries := 1; len(all) > 0; tries++ {
		if tries > 1 {
			b.clock.Add(20 * time.Second) // longer than a first request may be at work
		}
		var mu sync.Mutex
		var again []int
		var crowd errgroup.Group
		if tries > 1 {
			crowd.SetLimit(4)
		}
		for _, i := range all {
			crowd.Go(func() error {
				began := time.Now()
				status, a, header, err := b.book(t.Context(), b.apis[i%len(b.apis)], fmt.Sprintf("P%04d", i), "N1")
				if took := time.Since(began); err != nil || took > within {
					t.Errorf("book: got %d, %v after %s, want an answer within %s", status, err, took, within)
				}
				if status >= http.StatusInternalServerError && header.Get("Retry-After") == "" {
					t.Errorf("got %d %s without Retry-After", status, a.Error)
				}
				what := strings.TrimSpace(fmt.Sprint(status, " ", a.Error))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case (what == tryAgain || what == unavailable && want == booked) && tries < 5:
					again = append(again, i)
				case tries > 1 && a.Error == "duplicate" && a.PaymentURL != "":
					h.told[booked]++
				default:
					h.told[what]++
				}
				return nil
			})
		}
		_ = crowd.Wait()
		all = again
		h.again += len(again)
	}
	return h
}

// wantTold wants that all were told the same, and so many seats taken. A seat that
// could not be given back, since nobody acknowledged that, is the sweep's; its
// candidate was told to try again, and not that it is free.
func (b *till) wantTold(t *testing.T, when string, h heard, want string, n, seats int) {
	t.Helper()
	if len(h.told) != 1 || h.told[want] != n {
		t.Errorf("%s: got answers %v, want %d of %q", when, h.told, n, want)
	}
	taken := func() int {
		t.Helper()
		figures, err := b.gate.ReadStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return figures.Total
	}
	got := taken()
	if left := got - seats; left > 0 && left <= h.again {
		b.after(t, 3*time.Minute)
		got = taken()
	}
	if got != seats {
		t.Errorf("%s: got %d seats taken, %d told to try again, want %d seats", when, got, h.again, seats)
	}
}

// twoAPIs is a till with a second API beside the first, and with the gateway's own
// limit of two tokens an hour, each of which takes a while.
func twoAPIs(t *testing.T, seats, candidates int, grant time.Duration) *till {
	t.Helper()
	budgets := []string{
		"HOLDFAST_REQUEST_BUDGET", crowdBudget.String(),
		"HOLDFAST_REDIS_BUDGET", "4s", "HOLDFAST_CREATE_BUDGET", "4s", "HOLDFAST_ENQUEUE_BUDGET", "4s",
	}
	b := newTill(t, seats, budgets...)
	b.addCandidates(t, candidates)
	_, _, second := b.start(t, budgets...)
	b.apis = append(b.apis, second)
	b.change(t, func(s *mockgateway.Settings) {
		s.GrantsPerHour = 2
		s.LatencyMS = mockgateway.Latencies{mockgateway.CallGrant: {Fixed: grant}}
	})
	return b
}

// wantNoLockout wants that the gateway has blocked nobody for asking too often.
func (b *till) wantNoLockout(t *testing.T) {
	t.Helper()
	if n := b.mock.FaultCounts()[mockgateway.FaultLockout].Times; n > 0 {
		t.Errorf("token calls too many: got %d, want none", n)
	}
}

const (
	booked      = "202"
	unavailable = "502 payment_unavailable"
	tryAgain    = "503 try_again"
)

// Case 24: five hundred come while there is no token and its grant is slow. One is
// asked for, and all wait for it. When the gateway refuses it, there is one more;
// when it refuses that, too, there is no third within the hour: those who come are
// told so, and no seat stays taken.
func TestCase24_TokenStampede(t *testing.T) {
	const crowd, few = 500, 50
	b := twoAPIs(t, 3*crowd, 3*crowd, 1500*time.Millisecond)
	b.wantTold(t, "no token, a slow grant", b.stampede(t, 0, crowd, booked), booked, crowd, crowd)
	b.front.wantGrants(t, "a slow grant", 1)

	b.front.refuse()
	b.wantTold(t, "the token refused", b.stampede(t, crowd, few, booked), booked, few, crowd+few)
	b.front.wantGrants(t, "the token refused", 2)

	b.front.refuse()
	b.wantTold(t, "the second refused", b.stampede(t, 2*crowd, crowd, unavailable), unavailable, crowd, crowd+few)
	b.front.wantGrants(t, "the second refused", 2)
	b.wantNoLockout(t)
	b.front.forgive() // so that the audit can ask
	b.ledger(t)
}

// Case 24, the grant failing: it is asked for once and then not for a minute, and
// twice an hour at most. Everybody hears 502 in time, and no seat stays taken.
func TestCase24_GrantFails(t *testing.T) {
	const crowd = 500
	b := twoAPIs(t, crowd, crowd, 500*time.Millisecond)
	account := b.env("")["HOLDFAST_GATEWAY_USERNAME"]
	if err := b.mock.SetAccountFaults(account, mockgateway.Fault{
		Name: mockgateway.FaultUnavailable, Calls: []string{mockgateway.CallGrant}, Times: -1,
	}); err != nil {
		t.Fatal(err)
	}
	failing := func(when string, grants int) {
		t.Helper()
		b.wantTold(t, when, b.stampede(t, 0, crowd, unavailable), unavailable, crowd, 0)
		b.front.wantGrants(t, when, grants)
	}
	// tried has one after the other book until the condition holds: a process that
	// has seen the gateway fail lets one through after a while.
	tried := func(until func() error) {
		t.Helper()
		testenv.Eventually(t, func() error {
			b.wantTold(t, "one after the other", b.stampede(t, 0, 1, unavailable), unavailable, 1, 0)
			return until()
		})
	}
	failing("a failing grant", 1)
	b.minuteEnds(t)
	tried(func() error { return b.front.asked(2) })
	failing("a minute later", 2)
	b.minuteEnds(t)
	tried(func() error {
		if b.metric(t, "holdfast_gateway_token_grants_total", "limited") == 0 {
			return errors.New("nobody has wanted a third grant")
		}
		return nil
	})
	failing("two minutes later", 2)
	b.wantNoLockout(t)
	b.want(t)
}

// minuteEnds ends the time in which nobody asks for a token again. Redis's own
// clock counts it; the hour's count of grants stays.
func (b *till) minuteEnds(t *testing.T) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: b.pair.Addr()})
	defer rdb.Close()
	pauses, err := rdb.Keys(t.Context(), "token:*:pause").Result()
	if err == nil && len(pauses) == 1 {
		err = rdb.Del(t.Context(), pauses...).Err()
	}
	if err != nil || len(pauses) != 1 {
		t.Fatalf("pauses after a failed grant: got %q, %v, want one", pauses, err)
	}
}
