package app_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/obs"
	"holdfast/internal/testenv"
)

// one is an API inside the test, with a clock that the test moves, beside the
// fleet's worker.
func (f *fleet) one(t *testing.T, redisAddr string, offset func() time.Duration) *app.API {
	t.Helper()
	env := f.env(testenv.FreeAddr(t), redisAddr, "auto")
	cfg, err := config.LoadAPI(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	a, err := app.NewAPI(t.Context(), cfg, app.Extras{ClockOffset: offset}, slog.New(slog.DiscardHandler), obs.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(a.Edge)
	t.Cleanup(func() {
		srv.Close()
		if err := a.Close(); err != nil {
			t.Errorf("close the API: %v", err)
		}
	})
	f.apis = append(f.apis, srv.URL)
	return a
}

// Case 1: nobody sweeps for an hour, and the primary is replaced by a replica
// that has its data. One sweep then frees all five seats, and the same candidates
// book again. (A record that cannot be read keeps no seat either: see
// internal/reconcile.)
func TestSweeperLate_OneSweepFreesEverySeat(t *testing.T) {
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		const seats = 5
		s := e.Shard(t, 2)
		f := newFleet(t, s.Front.Addr(), "auto", booking.Sale{Name: "late", Currency: "BDT", Cap: seats, Hold: 10 * time.Minute,
			Levels: []booking.Level{{ID: "N1", Name: "One", Cap: seats, Fee: 150000}}}, 0)
		f.addCandidates(t, 2*seats)
		var offset atomic.Int64
		a := f.one(t, s.Front.Addr(), func() time.Duration { return time.Duration(offset.Load()) })
		everybodyBooks := func(when string) {
			t.Helper()
			for i := range seats {
				if status, got, _, err := f.book(t.Context(), f.apis[0], fmt.Sprintf("P%04d", i), "N1"); err != nil || status != http.StatusAccepted {
					t.Errorf("%s: got %d %+v, %v, want 202", when, status, got, err)
				}
			}
			if status, got, _, err := f.book(t.Context(), f.apis[0], "P0009", "N1"); err != nil || got.Error != "level_full" {
				t.Errorf("%s, one more: got %d %+v, %v, want level_full", when, status, got, err)
			}
		}
		everybodyBooks("at first")
		f.wantRecords(t, map[booking.RecordState]int{booking.StateHeld: seats})

		offset.Store(int64(time.Hour))
		s.Failover(t)
		testenv.Eventually(t, func() error { return a.Gate.LearnReplicas(t.Context()) })
		report, err := a.Reconciler.Sweep(t.Context())
		if err != nil || report["released"] != seats {
			t.Errorf("sweep: got %v, %v, want %d released", report, err, seats)
		}
		figures, err := a.Gate.ReadStatus(t.Context())
		if err != nil || figures.Total != 0 || figures.Levels[0].Admitted != 0 {
			t.Errorf("figures: got %+v, %v, want all seats free", figures, err)
		}
		f.wantRecords(t, map[booking.RecordState]int{booking.StateReleased: seats})
		everybodyBooks("after the sweep")
	})
}

// Case 3: one candidate asks 200 times at once, over five levels and three
// processes, with and without the same Idempotency-Key. One seat, one payment;
// the others get the same booking or a clear conflict.
func TestFleet_OneCandidateOneSeatOnePayment(t *testing.T) {
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		sale := booking.Sale{Name: "one", Currency: "BDT", Cap: 15, Hold: 10 * time.Minute}
		for i := range 5 {
			id := fmt.Sprintf("N%d", i+1)
			sale.Levels = append(sale.Levels, booking.Level{ID: id, Name: id, Cap: 3, Fee: 150000})
		}
		f := newFleet(t, e.Pair(t).Primary.Addr(), "auto", sale, 3)
		f.addCandidates(t, 3)
		for i, key := range []string{"", "the-same"} {
			code := fmt.Sprintf("P%04d", i)
			var mu sync.Mutex
			payments, answers := map[string]bool{}, map[string]int{}
			var wg sync.WaitGroup
			for n := range 200 {
				wg.Go(func() {
					body := fmt.Sprintf(`{"code":%q,"email":"x@example.org","level":%q}`, code, sale.Levels[n%5].ID)
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.apis[n%3]+"/book", strings.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					r.Header.Set("Content-Type", "application/json")
					if key != "" {
						r.Header.Set("Idempotency-Key", key)
					}
					status, got, _, err := f.do(r)
					var a answer
					if err == nil {
						err = json.Unmarshal(got, &a)
					}
					if err != nil {
						t.Errorf("book: %v", err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					answers[fmt.Sprint(status, " ", a.Error)]++
					if a.PaymentURL != "" {
						payments[a.PaymentURL] = true
					}
				})
			}
			wg.Wait()
			if len(payments) != 1 || answers["202 "] == 0 || key == "" && answers["202 "] != 1 {
				t.Errorf("key %q: got payments %v and answers %v, want one payment", key, payments, answers)
			}
			for what, n := range answers {
				switch what {
				case "202 ", "409 duplicate", "422 idempotency_mismatch":
				default:
					t.Errorf("key %q: %d requests were answered %q", key, n, what)
				}
			}
			f.wantRecords(t, map[booking.RecordState]int{booking.StateHeld: i + 1})
			if figures, err := f.gate.ReadStatus(t.Context()); err != nil || figures.Total != i+1 {
				t.Errorf("key %q: got %+v, %v, want %d seats taken", key, figures, err, i+1)
			}
		}
		status, body, err := f.get(t.Context(), f.gateway+"/mock/payments")
		var made []json.RawMessage
		if err == nil {
			err = json.Unmarshal(body, &made)
		}
		if err != nil || status != http.StatusOK || len(made) != 2 {
			t.Errorf("payments at the gateway: got %d, %v, want one for each candidate", len(made), err)
		}
	})
}
