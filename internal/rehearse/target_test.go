package rehearse_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/rehearse"
	"holdfast/internal/testenv"
)

// somebodys starts a deployment that a rehearsal is then run on: by its address and its
// operator's settings, as it knows any other.
func somebodys(t *testing.T) (w *world, o rehearse.Options) {
	t.Helper()
	w = newWorld(t)
	return w, rehearse.Options{
		Seed: 7, Scale: 0.01, Rate: 150, For: 3 * time.Second, Hold: 3 * time.Second,
		RushLatency: 50 * time.Millisecond, TailLatency: 20 * time.Millisecond,
		Dir: t.TempDir(), Log: io.Discard, Ctl: runSeatctl,
		Target: w.URL, Platform: app.Local(), Getenv: w.operator(t),
	}
}

// operator is its operator's environment.
func (w *world) operator(t *testing.T) func(string) string {
	t.Helper()
	getenv, err := config.ReadEnv(filepath.Join(filepath.Dir(w.Logs), config.EnvFile))
	if err != nil {
		t.Fatal(err)
	}
	return getenv
}

// standing is all that a rehearsal could change there.
func (w *world) standing(t *testing.T) string {
	t.Helper()
	sale, said, _ := w.Ctl(t.Context(), "", "sale", "show", "--json")
	log, _, _ := w.Ctl(t.Context(), "", "log", "--json")
	return fmt.Sprintf("%s%s%s%v", sale, said, log, w.settings(t))
}

// wantRefused wants the rehearsal refused in these words, and nothing changed there.
func (w *world) wantRefused(t *testing.T, o rehearse.Options, words ...string) {
	t.Helper()
	before := w.standing(t)
	r, err := rehearse.Run(t.Context(), o)
	if err == nil || r.Verdict != "" {
		t.Errorf("rehearse: got %v and verdict %q, want it refused", err, r.Verdict)
		return
	}
	for _, word := range append(words, "nothing was changed") {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("rehearse: got %q, want it to say %q", err, word)
		}
	}
	if diff := cmp.Diff(before, w.standing(t)); diff != "" {
		t.Errorf("what was refused changed something (-before +after):\n%s", diff)
	}
}

// overridden is the operator's environment with one variable of another value.
func overridden(getenv func(string) string, name, value string) func(string) string {
	return func(n string) string {
		if n == name {
			return value
		}
		return getenv(n)
	}
}

func TestRun_TargetIsRehearsedOn(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes and takes half a minute")
	}
	t.Parallel()
	w, o := somebodys(t)

	t.Run("Refused", func(t *testing.T) {
		faults := o
		faults.Faults = []rehearse.Fault{rehearse.FaultAPI}
		w.wantRefused(t, faults, "kills nothing")

		// It answers as a gateway does, and is not the mock.
		other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			io.WriteString(rw, `{"statusCode":"0000","statusMessage":"Successful"}`)
		}))
		defer other.Close()
		gateway := o
		gateway.Getenv = overridden(o.Getenv, "HOLDFAST_GATEWAY_URL", other.URL+mockgateway.BasePath)
		w.wantRefused(t, gateway, other.URL, "does not say that it is the mock")

		nobody := o
		nobody.Target = "http://" + testenv.FreeAddr(t)
		w.wantRefused(t, nobody, nobody.Target, "refused")

		path := o
		path.Target = w.URL + "/status.json"
		w.wantRefused(t, path, "http(s)://host")

		unset := o
		unset.Getenv = overridden(o.Getenv, "HOLDFAST_GATEWAY_USERNAME", "")
		w.wantRefused(t, unset, "HOLDFAST_GATEWAY_USERNAME: required")
	})
	t.Run("Held", func(t *testing.T) {
		// Over an earlier one, which had more seats, a longer list, and somebody who has paid.
		w.openAs(t, "rehearsal")
		paid := w.wantSeat(t)
		w.pay(t, paid)
		w.wantState(t, paid, "paid")
		if out, said, code := w.Ctl(t.Context(), "", "close", "--reason", "test"); code != 0 {
			t.Fatalf("seatctl close: got exit status %d, want 0:\n%s%s", code, out, said)
		}
		w.wantOver(t)
		shut := httptest.NewServer(w.withSettingsShut(t))
		defer shut.Close()
		at := o
		at.Getenv = overridden(o.Getenv, "HOLDFAST_GATEWAY_URL", shut.URL+mockgateway.BasePath)
		w.rehearsed(t, at)
	})
}

// withSettingsShut is the gateway where nobody may change its settings.
func (w *world) withSettingsShut(t *testing.T) http.Handler {
	t.Helper()
	to, err := url.Parse(w.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			http.Error(rw, "not from here", http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(rw, r)
	})
}

// rehearsed wants a whole rehearsal that holds at a gateway whose settings are shut, and
// the deployment closed behind it.
func (w *world) rehearsed(t *testing.T, o rehearse.Options) {
	t.Helper()
	var said strings.Builder
	o.Log, o.Dir = &said, t.TempDir()
	r, err := rehearse.Run(t.Context(), o)
	if err != nil {
		t.Fatalf("rehearse: %v\n%s", err, said.String())
	}
	if r.Target != w.URL || r.Sold == 0 || r.HoldsCreated < r.Sold {
		t.Errorf("got %d of %d sold at %s over %d holds, want a sale at %s", r.Sold, r.Cap, r.Target, r.HoldsCreated, w.URL)
	}
	testenv.Eventually(t, func() error {
		f := w.status(t)
		if f.Open || f.Total.Cap != r.Cap || f.Total.Left != r.Cap-r.Sold {
			return fmt.Errorf("status.json: got %+v, want it closed with the %d of %d seats sold that the report has", f, r.Sold, r.Cap)
		}
		return nil
	})
	for _, rule := range r.Rules {
		switch {
		case rule.Holds:
		case ofTheMachine[rule.Name]:
			t.Logf("on this machine now: %s: %s", rule.Name, rule.Figure)
		default:
			t.Errorf("%s: got %s, want it to hold: %s", rule.Name, rule.Figure, rule.Text)
		}
	}
	sampled, remembered := 0, 0
	for _, s := range r.Seconds {
		if s.Sample == nil {
			continue
		}
		sampled++
		if len(s.CPU) != 1 {
			t.Errorf("sample at %d s: got processor time of %v, want the rehearsal's own alone", s.At, s.CPU)
		}
		if s.RedisMemory > 0 {
			remembered++
		}
	}
	if remembered < sampled/2 {
		t.Errorf("memory of Redis: got it in %d of %d samples, want it where INFO answers in time", remembered, sampled)
	}
	if sampled < len(r.Seconds)/4 || r.CPU["load"] == 0 || len(r.CPU) != 1 {
		t.Errorf("samples: got %d of %d seconds, and processor time %v, want a run that can be looked at", sampled, len(r.Seconds), r.CPU)
	}
	if !slices.ContainsFunc(r.Marks, func(m rehearse.Mark) bool {
		return strings.Contains(m.What, "the gateway stays as slow as it is") && strings.Contains(m.What, "403")
	}) {
		t.Errorf("marks: got %v, want one that says that the gateway's latency could not be changed", r.Marks)
	}
	if t.Failed() {
		t.Log(said.String())
	}
}

// wantOver waits until nothing stands against a new beginning.
func (w *world) wantOver(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		_, said, code := w.Ctl(t.Context(), "", "reset", "--reason", "test", "--confirm", "nothing")
		if code != 1 || !strings.Contains(string(said), "the sale's name is rehearsal, not") {
			return fmt.Errorf("seatctl reset: got exit status %d, want it to ask:\n%s", code, said)
		}
		return nil
	})
}

// watched is a log that tells when a line of it says so.
type watched struct {
	word string
	once sync.Once
	seen chan struct{}
}

func (w *watched) Write(line []byte) (int, error) {
	if strings.Contains(string(line), w.word) {
		w.once.Do(func() { close(w.seen) })
	}
	return len(line), nil
}

// interrupted wants a rehearsal that is ended once seats are taken to put the gateway back
// and to say how it leaves the sale.
func (w *world) interrupted(t *testing.T, o rehearse.Options) {
	t.Helper()
	before := w.settings(t)
	opened := &watched{word: "  open\n", seen: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Log, o.Dir = opened, t.TempDir()
	ended := make(chan error, 1)
	go func() {
		_, err := rehearse.Run(ctx, o)
		ended <- err
	}()
	select {
	case <-opened.seen:
	case err := <-ended:
		t.Fatalf("rehearse: got %v before it opened", err)
	}
	testenv.Eventually(t, func() error {
		if f := w.status(t); f.Total.Left == f.Total.Cap {
			return errors.New("no seat is taken")
		}
		return nil
	})
	if diff := cmp.Diff(before, w.settings(t)); diff == "" {
		t.Error("settings of the gateway in the rush: got those of before, want a slow one")
	}
	cancel()
	err := <-ended
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("rehearse: got %v, want %v", err, context.Canceled)
	}
	for _, word := range []string{"sale rehearsal at " + w.URL + " was left as it is", "booking is OPEN: end it with seatctl close"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("rehearse: got %q, want it to say %q", err, word)
		}
	}
	if diff := cmp.Diff(before, w.settings(t)); diff != "" {
		t.Errorf("settings of the gateway (-before +after):\n%s", diff)
	}
	if f := w.status(t); !f.Open {
		t.Error("booking after an interruption: got closed, want it as it was")
	}
	// The seats that were taken lapse meanwhile, which is nobody's change. One whose record
	// was not known to be queued in time is looked at after a minute.
	testenv.EventuallyWithin(t, 2*time.Minute, func() error {
		s, err := w.Sample(t.Context())
		for phase, n := range s.Phases {
			if phase != string(booking.PhasePaid) {
				err = errors.Join(err, fmt.Errorf("%d rows are %s", n, phase))
			}
		}
		return err
	})
	// And another does not begin over it.
	w.wantRefused(t, o, "an earlier rehearsal", "booking is open: close it (seatctl close)")
}

// published is what status.json says.
type published struct {
	Open    bool      `json:"open"`
	OpensAt time.Time `json:"opens_at"`
	Total   struct {
		Cap  int `json:"cap"`
		Left int `json:"left"`
	} `json:"total"`
}

func (w *world) status(t *testing.T) (p published) {
	t.Helper()
	code, _, body, err := w.do(t, http.MethodGet, w.URL+"/status.json", "", "")
	if err != nil || code != http.StatusOK {
		t.Fatalf("status.json: got %d %s, %v, want 200", code, body, err)
	}
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("status.json: got %s, %v", body, err)
	}
	return p
}

func TestRun_TargetIsLeftAsItSays(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Parallel()
	ours, o := somebodys(t)
	other, _ := somebodys(t)
	t.Run("AnotherSale", func(t *testing.T) {
		other.open(t)
		other.wantSeat(t)
		to := o
		to.Target, to.Getenv = other.URL, other.operator(t)
		other.wantRefused(t, to, "sale stage-test is in force", "1 of them taken", "HOLDFAST_KEY_PREFIX")
	})
	// Settings of one deployment and the address of another: that would reset the one and
	// sell at the other.
	t.Run("AnotherAddress", func(t *testing.T) {
		before := other.standing(t)
		to := o
		to.Target = other.URL
		_, err := rehearse.Run(t.Context(), to)
		for _, word := range []string{"they are of another deployment", "nobody has booked", "booking is closed"} {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("rehearse: got %v, want it to say %q", err, word)
			}
		}
		if diff := cmp.Diff(before, other.standing(t)); diff != "" {
			t.Errorf("the deployment at the address (-before +after):\n%s", diff)
		}
		if f := ours.status(t); f.Open || !f.OpensAt.IsZero() || f.Total.Left != f.Total.Cap {
			t.Errorf("the operator's deployment: got %+v, want it closed, with no opening to come and no seat taken", f)
		}
	})
	t.Run("Interrupted", func(t *testing.T) { ours.interrupted(t, o) })
	// Its Redis is lost, and somebody still has a seat.
	t.Run("AnotherStore", func(t *testing.T) {
		other.wantEmptyQueue(t)
		to := o
		to.Target, to.Getenv = other.URL, other.operator(t)
		rdb := redis.NewClient(&redis.Options{Addr: to.Getenv("HOLDFAST_REDIS_ADDR"), Protocol: 2})
		defer rdb.Close()
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		other.wantRefused(t, to, "no sale is in force and the booking store has records", "HOLDFAST_KEY_PREFIX")
	})
}
