package pagetest_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"go.uber.org/goleak"

	"holdfast/internal/browsertest"
	"holdfast/internal/redisproc"
	"holdfast/internal/testenv"
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
	// what is tested in a browser, for who reads that it was not.
	what = "PAGE"
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

// theBrowser starts the one browser, or returns it.
func theBrowser(t testing.TB) context.Context {
	t.Helper()
	opts := browsertest.Chromium(t, what)
	browsertest.Axe(t, what) // before anything is started for nothing
	stage.browser.Do(func() {
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
	testenv.NeedServer(t)
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
