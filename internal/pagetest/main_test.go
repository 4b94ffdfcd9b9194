package pagetest_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"go.uber.org/goleak"

	"holdfast/internal/redisproc"
)

// stage is what all the tests of this binary share, each part started by the first
// test that needs it.
var stage struct {
	browser, pair sync.Once
	// ctx is the browser's; cancel ends it.
	ctx    context.Context
	cancel func()
	// seats is the Redis of every world that does not break its own.
	seats *redisproc.Pair
	dir   string
	err   error
}

const (
	// atOnce is how many tests run at a time: a browser is heavy, and yet they wait
	// more than they compute.
	atOnce      = "3"
	startWithin = 30 * time.Second
)

// cleared runs the tests and then ends what they shared, before anybody looks for
// leaks.
type cleared struct{ m *testing.M }

func (c cleared) Run() int {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // there is no such flag any more
	}
	code := c.m.Run()
	if stage.cancel != nil {
		stage.cancel()
	}
	if stage.seats != nil {
		stage.seats.Stop()
	}
	if stage.dir != "" {
		_ = os.RemoveAll(stage.dir) // at worst a folder stays among the temporary ones
	}
	return code
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(cleared{m}) }

// need skips or fails the test where something is missing.
func need(t testing.TB, there bool, what string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not installed (`make setup` does it), and with CI=true this test must run", what)
	default:
		t.Skipf("PAGE NOT TESTED IN A BROWSER: %s is not installed; `make setup` does it", what)
	}
}

// chromium is the browser's program, under the names that distributions give it.
func chromium() (path string, ok bool) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

// theBrowser starts the one browser, or returns it.
func theBrowser(t testing.TB) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("PAGE NOT TESTED IN A BROWSER: it takes a minute; run without -short")
	}
	path, ok := chromium()
	need(t, ok, "chromium")
	_, err := os.Stat(axeFile(t))
	need(t, err == nil, "axe-core")
	stage.browser.Do(func() {
		opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path))
		if os.Getuid() == 0 {
			opts = append(opts, chromedp.Flag("no-sandbox", true)) // the sandbox refuses root
		}
		all, endAll := chromedp.NewExecAllocator(context.Background(), opts...)
		ctx, end := chromedp.NewContext(all, chromedp.WithErrorf(func(string, ...any) {}))
		stage.cancel = func() { end(); endAll() }
		stage.ctx, stage.err = ctx, chromedp.Do(ctx)
	})
	if stage.err != nil {
		t.Fatalf("start chromium: %v", stage.err)
	}
	return stage.ctx
}

// thePair starts the one Redis pair, or returns it.
func thePair(t testing.TB) *redisproc.Pair {
	t.Helper()
	_, ok := redisproc.Find()
	need(t, ok, "redis-server")
	var err error
	stage.pair.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startWithin)
		defer cancel()
		//nolint:usetesting // it outlives the test that starts it
		if stage.dir, err = os.MkdirTemp("", "holdfast-page-"); err == nil {
			stage.seats, err = redisproc.StartPair(ctx, stage.dir, 1)
		}
	})
	if err == nil && stage.seats == nil {
		err = errors.New("an earlier test could not start it")
	}
	if err != nil {
		t.Fatalf("start a Redis pair: %v", err)
	}
	return stage.seats
}

// root is the project's folder.
func root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
