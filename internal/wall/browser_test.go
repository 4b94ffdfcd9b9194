package wall_test

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"holdfast/internal/browsertest"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// what is tested in it, for who reads that it was not.
const what = "WALL"

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

func newBrowser(t *testing.T) *browser {
	t.Helper()
	opts := browsertest.Chromium(t, what)
	// It ends when the test says so, before the server does.
	all, endAll := chromedp.NewExecAllocator(context.Background(), opts...)
	b := &browser{t: t, axe: browsertest.Axe(t, what)}
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
	r, err := browsertest.Call(ctx, c, params)
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
		if err != nil {
			b.t.Fatalf("picture of %s: %v", state, err)
		}
		browsertest.Keep(b.t, "wall", state+"-"+scheme+".png", png)
		b.audit(state + ", " + scheme)
	}
}

// audit fails the test for what axe-core finds.
func (b *browser) audit(state string) {
	b.t.Helper()
	found, err := browsertest.Audit(b.ctx, b.axe)
	if err != nil {
		b.t.Fatalf("%s: %v", state, err)
	}
	for _, f := range found {
		b.t.Errorf("%s: axe-core: %s", state, f)
	}
}
