package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// Case 4: the last seat of five levels, 2,000 buyers on three processes, the scripts
// forgotten midway and one process killed midway. One is admitted to each level, and
// everyone whose process lives hears a clean answer.
func TestFleet_LastSeatsWithAProcessKilled(t *testing.T) {
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		const buyers, clients, victim = 2000, 48, 1
		addr := e.Pair(t).Primary.Addr()
		sale := booking.Sale{Name: "last", Currency: "BDT", Cap: 5, Hold: 10 * time.Minute}
		for i := range 5 {
			id := fmt.Sprintf("N%d", i+1)
			sale.Levels = append(sale.Levels, booking.Level{ID: id, Name: id, Cap: 1, Fee: 150000})
		}
		levels := sale.Levels
		f := newFleet(t, addr, "auto", sale, 3)
		f.addCandidates(t, buyers)
		forget := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = forget.Close() }()
		waitForKey(t, forget, "token:*:current") // nobody need have booked for it

		var mu sync.Mutex
		admitted, heard, cut := map[string]int{}, map[string]int{}, 0
		work := make(chan int)
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for i := range work {
					level := levels[i/3%5].ID
					status, a, _, err := f.book(t.Context(), f.apis[i%3], fmt.Sprintf("P%04d", i), level)
					mu.Lock()
					switch {
					case err != nil && i%3 == victim:
						cut++
					case err != nil:
						t.Errorf("a process that lives did not answer: %v", err)
					case status == http.StatusAccepted:
						admitted[level]++
					default:
						heard[fmt.Sprintf("%d %s", status, a.Error)]++
					}
					mu.Unlock()
				}
			})
		}
		for i := range buyers {
			switch i {
			case 3, buyers / 2:
				if err := forget.ScriptFlush(t.Context()).Err(); err != nil {
					t.Errorf("flush the scripts: %v", err)
				}
			case 5: // while the seats are being taken
				f.procs[victim].Kill()
			}
			work <- i
		}
		close(work)
		wg.Wait()

		for what, n := range heard {
			if what != "409 level_full" {
				t.Errorf("%d heard %q, want a clean no", n, what)
			}
		}
		if cut == 0 {
			t.Error("nobody noticed that a process was killed")
		}
		perLevel := map[string]int{}
		for d, err := range f.gate.Rows(t.Context()) {
			if err := errors.Join(err, d.Err); err != nil {
				t.Fatal(err)
			}
			perLevel[d.Row.Level]++
		}
		for _, level := range levels {
			if perLevel[level.ID] != 1 || admitted[level.ID] > 1 {
				t.Errorf("%s: got %d seats taken and %d told so, want one taken", level.ID, perLevel[level.ID], admitted[level.ID])
			}
		}
	})
}

// waitForKey waits until there is one key of that pattern.
func waitForKey(t *testing.T, rdb *redis.Client, pattern string) {
	t.Helper()
	testenv.Eventually(t, func() error {
		keys, err := rdb.Keys(t.Context(), pattern).Result()
		if err == nil && len(keys) != 1 {
			err = fmt.Errorf("keys %s: got %q, want one", pattern, keys)
		}
		return err
	})
}

// startAPI adds an API process, which may not serve yet.
func (f *fleet) startAPI(t *testing.T, redisAddr string) *testenv.Program {
	t.Helper()
	addr := testenv.FreeAddr(t)
	p := testenv.StartProgram(t, "api", nil, f.env(addr, redisAddr, "auto"))
	f.apis, f.procs = append(f.apis, "http://"+addr), append(f.procs, p)
	return p
}

// The process that asks for the gateway's token is killed meanwhile, and buyers are
// waiting for it at another: they hear a clean no or get their seat, and the next
// ones buy as soon as its lock has run out, which is in ten seconds. It has cost the
// hour's other grant.
func TestFleet_ProcessKilledWhileItAsksForTheToken(t *testing.T) {
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		const seats, early = 20, 8
		addr := e.Pair(t).Primary.Addr()
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = rdb.Close() }()
		f := newFleet(t, addr, "auto", booking.Sale{Name: "killed", Currency: "BDT", Cap: seats, Hold: 10 * time.Minute,
			Levels: []booking.Level{{ID: "N1", Name: "One", Cap: seats, Fee: 150000}}}, 0)
		f.addCandidates(t, seats)
		f.settings(t, `{"latency_ms":{"grant":20000}}`)
		victim := f.startAPI(t, addr)
		waitForKey(t, rdb, "token:*:lock")
		f.startAPI(t, addr)
		testenv.Eventually(t, func() error {
			status, body, err := f.get(t.Context(), f.apis[1]+"/health")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("health: got %d %s, want 200", status, body)
			}
			return err
		})
		var wg sync.WaitGroup
		for i := range early {
			wg.Go(func() {
				status, a, _, err := f.book(t.Context(), f.apis[1], fmt.Sprintf("P%04d", i), "N1")
				if err != nil || (status != http.StatusAccepted && a.Error != "payment_unavailable") {
					t.Errorf("%d of those who wait: got %d %+v, %v, want a seat or a clean no", i, status, a, err)
				}
			})
		}
		f.settings(t, `{"latency_ms":{}}`)
		victim.Kill()
		killed := time.Now()
		testenv.Eventually(t, func() error {
			status, a, _, err := f.book(t.Context(), f.apis[1], fmt.Sprintf("P%04d", early), "N1")
			if err == nil && status != http.StatusAccepted {
				err = fmt.Errorf("book: got %d %+v, want 202", status, a)
			}
			return err
		})
		// The rest is for a busy machine; a lock of 45 s would take longer.
		if took := time.Since(killed); took > 25*time.Second {
			t.Errorf("the next seat came %s after the process was killed, want about ten seconds", took)
		}
		wg.Wait()
		ledger, err := rdb.Keys(t.Context(), "token:*:grants").Result()
		if err != nil || len(ledger) != 1 {
			t.Fatalf("ledgers of grants: got %q, %v, want one", ledger, err)
		}
		if n, err := rdb.ZCard(t.Context(), ledger[0]).Result(); err != nil || n != 2 {
			t.Errorf("ledger of grants: got %d entries, %v, want the killed process's and the next one's", n, err)
		}
		taken := 0
		for d, err := range f.gate.Rows(t.Context()) {
			if err := errors.Join(err, d.Err); err != nil {
				t.Fatal(err)
			}
			taken++
			if d.Row.Payment == "" {
				t.Errorf("row of attempt %s: got no payment, want the seat given back", d.Row.Attempt)
			}
		}
		if taken == 0 || taken > early+1 {
			t.Errorf("seats taken: got %d, want 1 to %d", taken, early+1)
		}
	})
}
