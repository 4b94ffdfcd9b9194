package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
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
		sale := booking.Sale{Name: "last", Currency: "BDT", Cap: 6, Hold: 10 * time.Minute}
		for i := range 5 {
			id := fmt.Sprintf("N%d", i+1)
			sale.Levels = append(sale.Levels, booking.Level{ID: id, Name: id, Cap: 1, Fee: 150000})
		}
		levels := sale.Levels
		sale.Levels = append(slices.Clone(levels), booking.Level{ID: "W", Name: "Warm", Cap: 1, Fee: 150000})
		f := newFleet(t, addr, "auto", sale, 3)
		f.addCandidates(t, buyers+1)
		// The gateway's token is there: whoever dies while granting one has the others
		// wait for its lock, which is another story.
		if status, a, _, err := f.book(t.Context(), f.apis[0], fmt.Sprintf("P%04d", buyers), "W"); err != nil || status != http.StatusAccepted {
			t.Fatalf("first booking: got %d %+v, %v", status, a, err)
		}
		forget := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = forget.Close() }()

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
