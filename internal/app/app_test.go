package app_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(testenv.Programs{
		"api": func(ctx context.Context, _ []string, _, stderr io.Writer) error {
			return app.RunAPI(ctx, app.Local(), os.Getenv, stderr)
		},
		"worker": func(ctx context.Context, _ []string, _, stderr io.Writer) error {
			return app.RunWorker(ctx, app.Local(), os.Getenv, stderr)
		},
	})
	goleak.VerifyTestMain(m)
}

// fleet is several API processes and a worker over one Redis, one data folder
// and one gateway.
type fleet struct {
	gate    *admission.Gate
	data    string
	gateway string
	apis    []string // base URLs
	procs   []*testenv.Program
	client  *http.Client
}

func newFleet(t *testing.T, redisAddr, acks string, sale booking.Sale, apis int) *fleet {
	t.Helper()
	f := &fleet{data: t.TempDir(), client: &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	t.Cleanup(f.client.CloseIdleConnections)
	gw, err := mockgateway.New(mockgateway.Options{GrantsPerHour: -1})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(gw)
	t.Cleanup(func() { srv.Close(); gw.Close() })
	f.gateway = srv.URL

	rdb := admission.NewClient(admission.ClientConfig{Addr: redisAddr, Pool: 8})
	t.Cleanup(func() { rdb.Close() })
	keys, err := admission.NewKeys(admission.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	f.gate, err = admission.New(rdb, admission.Options{
		Keys: keys, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.gate.ApplySale(t.Context(), sale, booking.NewEpoch(time.Now()), false); err != nil {
		t.Fatal(err)
	}
	if err := f.gate.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range apis {
		addr := testenv.FreeAddr(t)
		f.apis = append(f.apis, "http://"+addr)
		f.procs = append(f.procs, testenv.StartProgram(t, "api", nil, f.env(addr, redisAddr, acks)))
	}
	f.procs = append(f.procs, testenv.StartProgram(t, "worker", nil, map[string]string{
		"HOLDFAST_DATA": f.data, "HOLDFAST_ADMIN_ADDR": "off",
	}))
	for _, base := range f.apis {
		testenv.Eventually(t, func() error {
			status, body, err := f.get(t.Context(), base+"/health")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("health: %d %s", status, body)
			}
			return err
		})
	}
	return f
}

func (f *fleet) env(addr, redisAddr, acks string) map[string]string {
	return map[string]string{
		"HOLDFAST_ADDR": addr, "HOLDFAST_ADMIN_ADDR": "off", "HOLDFAST_PUBLIC_URL": "http://" + addr,
		"HOLDFAST_DATA": f.data, "HOLDFAST_REDIS_ADDR": redisAddr, "HOLDFAST_REDIS_POOL": "64", "HOLDFAST_ACKS": acks,
		"HOLDFAST_SEAL_KEY": strings.Repeat("ab", booking.SealKeySize), "HOLDFAST_GATEWAY_URL": f.gateway + mockgateway.BasePath,
		"HOLDFAST_GATEWAY_APP_KEY": "k", "HOLDFAST_GATEWAY_APP_SECRET": "s", "HOLDFAST_GATEWAY_USERNAME": "u", "HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_RECONCILE_EVERY": "1s", "HOLDFAST_LINGER": "0s",
	}
}

func (f *fleet) do(r *http.Request) (int, []byte, http.Header, error) {
	resp, err := f.client.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, resp.Header, err
}

func (f *fleet) get(ctx context.Context, target string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return 0, nil, err
	}
	status, body, _, err := f.do(r)
	return status, body, err
}

type answer struct {
	Error      string `json:"error"`
	Reason     string `json:"reason"`
	PaymentURL string `json:"payment_url"`
	BookingURL string `json:"booking_url"`
	State      string `json:"state"`
}

func (f *fleet) book(ctx context.Context, base, code, level string) (int, answer, http.Header, error) {
	body := fmt.Sprintf(`{"code":%q,"email":"x@example.org","level":%q}`, code, level)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/book", strings.NewReader(body))
	if err != nil {
		return 0, answer{}, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	status, got, header, err := f.do(r)
	if err != nil {
		return 0, answer{}, nil, err
	}
	var a answer
	return status, a, header, errors.Join(json.Unmarshal(got, &a))
}

// addCandidates loads codes P0000.. with one address.
func (f *fleet) addCandidates(t *testing.T, n int) {
	t.Helper()
	list := make([]booking.Candidate, n)
	for i := range list {
		list[i] = booking.Candidate{Code: fmt.Sprintf("P%04d", i), Email: "x@example.org"}
	}
	for some := range slices.Chunk(list, 500) {
		if err := f.gate.AddCandidates(t.Context(), some); err != nil {
			t.Fatal(err)
		}
	}
}

// onEachRedis runs the test over an in-process Redis, and over a primary whose
// replica must acknowledge.
func onEachRedis(t *testing.T, fn func(t *testing.T, addr, acks string)) {
	t.Run("InProcess", func(t *testing.T) { fn(t, testenv.Mini(t), "0") })
	t.Run("Pair", func(t *testing.T) { fn(t, testenv.Pair(t).Primary.Addr(), "auto") })
}

// 2,000 bookings by 1,000 candidates over a cap of 20 through three processes:
// exactly the cap, nobody twice, everyone else a clean no.
func TestFleet_RushSellsExactlyTheCap(t *testing.T) {
	onEachRedis(t, func(t *testing.T, addr, acks string) {
		const seats, candidates, requests, clients = 20, 1000, 2000, 48
		f := newFleet(t, addr, acks, booking.Sale{Name: "rush", Currency: "BDT", Cap: seats, Hold: 10 * time.Minute, Levels: []booking.Level{
			{ID: "N1", Name: "One", Cap: 12, Fee: 150000}, {ID: "N2", Name: "Two", Cap: 15, Fee: 120000},
		}}, 3)
		f.addCandidates(t, candidates)

		var mu sync.Mutex
		counts := map[string]int{}
		booked := map[string]string{} // code -> payment link
		work := make(chan int)
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for i := range work {
					code := fmt.Sprintf("P%04d", i%candidates)
					status, a, header, err := f.book(t.Context(), f.apis[i%len(f.apis)], code, []string{"N1", "N2"}[i%2])
					mu.Lock()
					switch {
					case err != nil:
						t.Errorf("book %s: %v", code, err)
					case status == http.StatusAccepted:
						if _, twice := booked[code]; twice {
							t.Errorf("%s was answered 202 twice", code)
						}
						booked[code] = a.PaymentURL
					default:
						counts[fmt.Sprintf("%d %s %s", status, a.Error, a.Reason)]++
						if status >= 429 && header.Get("Retry-After") == "" {
							t.Errorf("%d %s without Retry-After", status, a.Error)
						}
					}
					mu.Unlock()
				}
			})
		}
		for i := range requests {
			work <- i
		}
		close(work)
		wg.Wait()

		if len(booked) != seats {
			t.Errorf("%d booked, want exactly %d; the others: %v", len(booked), seats, counts)
		}
		refused := 0
		for what, n := range counts {
			refused += n
			switch what {
			case "409 level_full ", "409 duplicate ", "429 closed sold_out":
			default:
				t.Errorf("%d requests were answered %q", n, what)
			}
		}
		if refused != requests-seats {
			t.Errorf("%d refused, want %d", refused, requests-seats)
		}
		f.wantRecords(t, map[booking.RecordState]int{booking.StateHeld: seats})
		figures, err := f.gate.ReadStatus(t.Context())
		if err != nil || figures.Total != seats || figures.Reason != "sold_out" {
			t.Errorf("figures: %+v, %v, want all %d seats taken", figures, err, seats)
		}

		f.payAll(t, booked)
		f.wantRecords(t, map[booking.RecordState]int{booking.StatePaid: seats})
		f.wantStatus(t)
		if mails, err := filepath.Glob(filepath.Join(f.data, "outbox", "*.eml")); err != nil || len(mails) != seats {
			t.Errorf("%d mails, %v, want %d", len(mails), err, seats)
		}
		for _, p := range f.procs {
			if code := p.Stop(t, syscall.SIGTERM); code != 0 {
				t.Errorf("a process ended with %d after SIGTERM, want 0", code)
			}
		}
	})
}

// payAll presses pay on every payment; the callback goes to the process that
// made the payment, the result is asked of another.
func (f *fleet) payAll(t *testing.T, booked map[string]string) {
	t.Helper()
	for code, link := range booked {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, link, strings.NewReader(url.Values{"outcome": {"success"}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		status, body, header, err := f.do(r)
		if err != nil || status != http.StatusSeeOther {
			t.Fatalf("pay for %s: %d %s %v", code, status, body, err)
		}
		if status, body, err := f.get(t.Context(), header.Get("Location")); err != nil || status != http.StatusSeeOther {
			t.Fatalf("callback for %s: %d %s %v", code, status, body, err)
		}
	}
	for code := range booked {
		for i, level := range []string{"N1", "N2"} {
			if status, a, _, err := f.book(t.Context(), f.apis[i], code, level); err != nil || status != http.StatusConflict || a.Error != "duplicate" {
				t.Errorf("%s again at another process: %d %+v %v, want duplicate", code, status, a, err)
			}
		}
	}
}

// wantRecords waits for the worker and settling to leave these records, and no
// others.
func (f *fleet) wantRecords(t *testing.T, want map[booking.RecordState]int) {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(f.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	testenv.Eventually(t, func() error {
		got := map[booking.RecordState]int{}
		candidates := map[string]bool{}
		for rec, err := range st.Records(t.Context()) {
			if err != nil {
				return err
			}
			got[rec.State]++
			if candidates[rec.CandidateHash] {
				t.Errorf("candidate %.8s has two records", rec.CandidateHash)
			}
			candidates[rec.CandidateHash] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("records are %v, want %v", got, want)
		}
		return nil
	})
}

// wantStatus waits for every process to serve the same sold-out status.json.
func (f *fleet) wantStatus(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		seen := map[string]bool{}
		for _, base := range f.apis {
			status, body, err := f.get(t.Context(), base+"/status.json")
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("status.json: %d %s %w", status, body, err)
			}
			var doc struct {
				Reason string
				Total  struct{ Left int }
			}
			if err := json.Unmarshal(body, &doc); err != nil {
				return err
			}
			if doc.Reason != "sold_out" || doc.Total.Left != 0 {
				return fmt.Errorf("status.json says %s", body)
			}
			seen[string(body)] = true
		}
		if len(seen) != 1 {
			return fmt.Errorf("processes serve %d different documents", len(seen))
		}
		return nil
	})
}

// What does not answer makes a clear no with Retry-After, and nothing is left
// behind: the gateway down, the queue refusing, Redis stopped.
func TestFleet_OutagesAreCleanNoes(t *testing.T) {
	pair := testenv.Pair(t)
	f := newFleet(t, pair.Primary.Addr(), "auto", booking.Sale{Name: "outage", Currency: "BDT", Cap: 5, Hold: 10 * time.Minute,
		Levels: []booking.Level{{ID: "N1", Name: "One", Cap: 5, Fee: 150000}}}, 1)
	f.addCandidates(t, 10)
	want := func(what, code string, status int, slug string) {
		t.Helper()
		began := time.Now()
		got, a, header, err := f.book(t.Context(), f.apis[0], code, "N1")
		if err != nil || got != status || a.Error != slug {
			t.Errorf("%s: %d %+v %v, want %d %s", what, got, a, err, status, slug)
		}
		if status >= 500 && header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", what)
		}
		if took := time.Since(began); took > 9*time.Second {
			t.Errorf("%s: took %s, past the request's budget", what, took)
		}
	}
	want("all is well", "P0001", http.StatusAccepted, "") // and the gateway's token is had
	f.settings(t, `{"down":true}`)
	want("gateway down", "P0007", http.StatusBadGateway, "payment_unavailable")
	if n, err := f.gate.ReadStatus(t.Context()); err != nil || n.Total != 1 {
		t.Errorf("after a payment that could not be made: %+v, %v, want no seat taken for it", n, err)
	}
	f.settings(t, `{"down":false}`)
	want("gateway back", "P0007", http.StatusAccepted, "")

	free := f.lockFile(t, "queue.db")
	want("queue refuses", "P0008", http.StatusServiceUnavailable, "try_again")
	status, a, _, err := f.book(t.Context(), f.apis[0], "P0008", "N1")
	if err != nil || status != http.StatusConflict || a.PaymentURL == "" {
		t.Errorf("its candidate again: %d %+v %v, want duplicate with the payment link", status, a, err)
	}
	free()

	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	want("replica frozen", "P0002", http.StatusServiceUnavailable, "try_again")
	want("replica frozen, a duplicate", "P0001", http.StatusConflict, "duplicate")
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error {
		status, a, _, err := f.book(t.Context(), f.apis[0], "P0003", "N1")
		if err == nil && status != http.StatusAccepted {
			err = fmt.Errorf("replica back: %d %+v", status, a)
		}
		return err
	})
	if err := pair.Primary.Freeze(); err != nil {
		t.Fatal(err)
	}
	want("redis hangs", "P0004", http.StatusServiceUnavailable, "try_again")
	if err := pair.Primary.Thaw(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, func() error {
		status, a, _, err := f.book(t.Context(), f.apis[0], "P0005", "N1")
		if err == nil && status != http.StatusAccepted {
			err = fmt.Errorf("redis back: %d %+v", status, a)
		}
		return err
	})
	pair.Primary.Kill()
	want("redis gone", "P0006", http.StatusServiceUnavailable, "try_again")
	if status, _, err := f.get(t.Context(), f.apis[0]+"/health"); err != nil || status != http.StatusOK {
		t.Errorf("health without Redis: %d, %v, want 200", status, err)
	}
}

// lockFile makes store or queue refuse every write until it is freed.
func (f *fleet) lockFile(t *testing.T, name string) (free func()) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(f.data, name)+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(conn.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	}
}

func (f *fleet) settings(t *testing.T, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, f.gateway+"/mock/settings", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if status, got, _, err := f.do(r); err != nil || status >= 300 {
		t.Fatalf("settings: %d %s %v", status, got, err)
	}
}

func TestRun_TellsEveryWrongSettingAtOnce(t *testing.T) {
	t.Parallel()
	env := map[string]string{"HOLDFAST_ACKS": "many", "HOLDFAST_ADDR": "nowhere"}
	err := app.RunAPI(t.Context(), app.Local(), func(k string) string { return env[k] }, io.Discard)
	if err == nil {
		t.Fatal("an API without settings started")
	}
	for _, want := range []string{"HOLDFAST_ACKS", "HOLDFAST_ADDR", "HOLDFAST_SEAL_KEY", "HOLDFAST_GATEWAY_URL", "HOLDFAST_PUBLIC_URL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s:\n%v", want, err)
		}
	}
	if err := app.RunWorker(t.Context(), app.Local(), func(k string) string { return map[string]string{"HOLDFAST_STORE": "none"}[k] }, io.Discard); err == nil || !strings.Contains(err.Error(), "HOLDFAST_STORE") {
		t.Errorf("worker: got %v, want HOLDFAST_STORE named", err)
	}
}

// A Redis that may evict keys must never hold seats.
func TestRunAPI_RefusesARedisThatEvicts(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := admission.NewClient(admission.ClientConfig{Addr: server.Addr(), Pool: 1})
	defer rdb.Close()
	if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	f := &fleet{data: t.TempDir(), gateway: "http://127.0.0.1:1"}
	env := f.env(testenv.FreeAddr(t), server.Addr(), "0")
	err := app.RunAPI(t.Context(), app.Local(), func(k string) string { return env[k] }, io.Discard)
	if !errors.Is(err, admission.ErrEviction) {
		t.Errorf("got %v, want ErrEviction", err)
	}
}
