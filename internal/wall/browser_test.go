package wall_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience is how long a browser waits for what it is to show.
const patience = 40 * time.Second

// browser is Chromium with one tab. Its verbs fail the test when they cannot be done.
type browser struct {
	t    *testing.T
	ctx  context.Context
	end  func() // ends it; safe to repeat
	axe  string
	mu   sync.Mutex
	host string
	bad  []string
}

// need skips or fails the test where something is missing.
func need(t *testing.T, there bool, what string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not installed (`make setup` does it), and with CI=true this test must run", what)
	default:
		t.Skipf("WALL NOT TESTED IN A BROWSER: %s is not installed; `make setup` does it", what)
	}
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("WALL NOT TESTED IN A BROWSER: it takes half a minute; run without -short")
	}
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil && path == "" {
			path = p
		}
	}
	need(t, path != "", "chromium")
	axe, err := os.ReadFile(filepath.Join("..", "..", ".cache", "axe", "axe.min.js"))
	need(t, err == nil, "axe-core")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.Flag("no-sandbox", true)) // the sandbox refuses root
	}
	// It ends when the test says so, before the server does.
	all, endAll := chromedp.NewExecAllocator(context.Background(), opts...)
	b := &browser{t: t, axe: string(axe)}
	ctx, end := chromedp.NewContext(all, chromedp.WithErrorf(func(string, ...any) {}), chromedp.WithListener(b.hear))
	b.ctx, b.end = ctx, func() { end(); endAll() }
	t.Cleanup(b.end)
	if err := chromedp.Do(b.ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return b
}

// hear notes what a page may not do: it runs for every event of the tab.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bad := func(format string, args ...any) { b.bad = append(b.bad, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		bad("an exception that nothing caught: %v", &chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails})
	case *runtime.EventConsoleAPICalled:
		bad("%s on the console", e.Type)
	case *log.EventEntryAdded:
		bad("%s from %s: %s", e.Entry.Level, e.Entry.Source, e.Entry.Text)
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && u.Host != b.host {
			bad("a request to somebody else: %s", e.Request.URL)
		}
	}
}

// wrongs are what the page did wrong so far.
func (b *browser) wrongs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bad
}

func call[P, R any](b *browser, c cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	r, err := chromedp.Run(ctx, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, c, params)
	})
	if err != nil {
		b.t.Fatalf("%s: %v", c.Method, err)
	}
	return r
}

func (b *browser) open(address string) {
	b.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	b.host = u.Host
	b.mu.Unlock()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(address)); err != nil {
		b.t.Fatalf("open %s: %v", address, err)
	}
}

func (b *browser) size(width, height int64) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, height)); err != nil {
		b.t.Fatalf("size %d by %d: %v", width, height, err)
	}
}

// press presses an element as a keyboard does.
func (b *browser) press(selector string) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](fmt.Sprintf("(document.querySelector(%q).focus(), true)", selector))); err != nil {
		b.t.Fatalf("focus %s: %v", selector, err)
	}
	if err := chromedp.Do(b.ctx, chromedp.KeyEvent("\r")); err != nil {
		b.t.Fatalf("press %s: %v", selector, err)
	}
}

// words are what expressions may use.
const words = `
const $ = s => document.querySelector(s);
const seen = s => $(s).getClientRects().length > 0;
const text = s => $(s).innerText.replace(/\s+/g, ' ').trim();
`

// until waits for an expression to be true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for {
		so, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("(() => {"+words+"return !!("+expression+");})()"))
		if err != nil {
			b.t.Fatalf("%s: %v", expression, err)
		}
		if so {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			shows, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			b.t.Fatalf("after %s no sight of %s; the page shows\n%s", patience, what, shows)
		}
	}
}

// look has axe-core look at the page, light and dark, and keeps pictures of it in
// artefacts/wall.
func (b *browser) look(state string, width, height int64) {
	b.t.Helper()
	b.size(width, height)
	for _, scheme := range []string{"light", "dark"} {
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		dir := filepath.Join("..", "..", "artefacts", "wall")
		if err = errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, state+"-"+scheme+".png"), png, 0o644)); err != nil {
			b.t.Fatalf("picture of %s: %v", state, err)
		}
		b.audit(state + ", " + scheme)
	}
}

// audit fails the test for what axe-core calls serious or critical. It runs in a world
// of its own, for which the page's policy does not count.
func (b *browser) audit(state string) {
	b.t.Helper()
	tree := call(b, page.GetFrameTree, cdp.Empty{})
	own := call(b, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: tree.FrameTree.Frame.ID, WorldName: "axe"})
	const run = `; axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'], resultTypes: ['violations']}).then(r =>
		r.violations.filter(v => v.impact === 'serious' || v.impact === 'critical').map(v => v.id + ': ' + v.help + ': ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | ')))`
	yes := true
	r := call(b, runtime.Evaluate, runtime.EvaluateParams{Expression: b.axe + run, ContextID: own.ExecutionContextID, AwaitPromise: &yes, ReturnByValue: &yes})
	if r.ExceptionDetails != nil {
		b.t.Fatalf("axe-core: %v", &chromedp.ExceptionError{ExceptionDetails: r.ExceptionDetails})
	}
	var found []string
	if err := json.Unmarshal(r.Result.Value, &found); err != nil {
		b.t.Fatalf("axe-core: got %s, %v, want a list", r.Result.Value, err)
	}
	for _, f := range found {
		b.t.Errorf("%s: axe-core: %s", state, f)
	}
}
