package k6test_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/app/local"
	"holdfast/internal/k6test"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.BeProgram(testenv.Programs{"local": local.Run})
	goleak.VerifyTestMain(m)
}

// deployment is where a script is sent.
type deployment struct{ site, gateway string }

// candidates are as many people as one run of a script has: few, so that some come again.
// Each run at one deployment has its own of the crowds that are on the list there.
const (
	firstCode  = 100_001
	candidates = 61
	crowds     = 16
)

// theLocalProfile starts the real thing: page, API, worker, reconciler and mock gateway, with a
// sale of so many seats that is open. Redis is the one inside the process: a replica that a
// busy machine keeps waiting would have the server say try_again, and be right.
func theLocalProfile(t *testing.T, seats int) deployment {
	t.Helper()
	dir := t.TempDir()
	sale := fmt.Sprintf(`{name: demo-2026, currency: BDT, cap: %d, levels: [{id: N1, name: N1, cap: %d, fee: "1500.00"}, {id: N2, name: N2, cap: %d, fee: "1400.00"}]}`,
		seats, seats*2/3, seats*2/5)
	list := "code,email\n"
	for i := range candidates * crowds {
		list += fmt.Sprintf("AB-%d,candidate%d@example.org\n", firstCode+i, firstCode+i)
	}
	for name, text := range map[string]string{"sale.yaml": sale, "candidates.csv": list} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := testenv.StartProgram(t, "local", []string{
		"-addr", "127.0.0.1:0", "-data", filepath.Join(dir, "data"),
		"-sale", filepath.Join(dir, "sale.yaml"), "-candidates", filepath.Join(dir, "candidates.csv"),
	}, map[string]string{"PATH": t.TempDir()})
	lines := p.Lines(t, 3)
	d := deployment{site: strings.TrimSuffix(lines[0], "/"), gateway: strings.TrimSuffix(lines[2], "/mock/payments")}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	testenv.Eventually(t, func() error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.site+"/status.json", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status.json: %s", resp.Status)
		}
		return nil
	})
	return d
}

// env is a script's environment for so many bookings a second, over so many seconds, by a
// crowd. The limits of time are stretched: the machine of a test is no deployment.
func (d deployment) env(rate int, lasting string, crowd int) map[string]string {
	return map[string]string{
		"TARGET": d.site, "GATEWAY": d.gateway, "RATE": fmt.Sprint(rate), "FOR": lasting, "FIRST": fmt.Sprint(firstCode + crowd*candidates),
		"CANDIDATES": fmt.Sprint(candidates), "THINK": "0", "SLACK": "40",
	}
}

// bundled are the scripts of the repository, each bundled once.
var bundled = func() map[string]func() (*k6test.Script, error) {
	all := map[string]func() (*k6test.Script, error){}
	for _, name := range scripts {
		all[name] = sync.OnceValues(func() (*k6test.Script, error) {
			return k6test.Load(filepath.Join("..", "..", "k6", name))
		})
	}
	return all
}()

func load(t *testing.T, name string) *k6test.Script {
	t.Helper()
	s, err := bundled[name]()
	if err != nil {
		t.Fatalf("load %s: got %v, want nil", name, err)
	}
	return s
}

// run runs it; what it printed is shown when the test fails.
func run(t *testing.T, s *k6test.Script, o k6test.Options) (*k6test.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := s.Run(ctx, o)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s ended with %v and printed:\n%s", t.Name(), err, strings.Join(r.Console, "\n"))
		}
	})
	return r, err
}
