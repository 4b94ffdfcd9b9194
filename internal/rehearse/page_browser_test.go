package rehearse_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
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

	"holdfast/internal/browsertest"
	"holdfast/internal/rehearse"
)

// pageReader is Chromium with one tab. Its verbs fail the test when they cannot be done.
type pageReader struct {
	t   *testing.T
	ctx context.Context
	axe string
	mu  sync.Mutex
	own string // the address of what it reads
	bad []string
}

func newReader(t *testing.T) *pageReader {
	t.Helper()
	const what = "REPORT"
	opts := browsertest.Chromium(t, what)
	b := &pageReader{t: t, axe: browsertest.Axe(t, what)}
	all, endAll := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, end := chromedp.NewContext(all, chromedp.WithErrorf(func(string, ...any) {}), chromedp.WithListener(b.hear))
	t.Cleanup(func() { end(); endAll() })
	limited, cancel := context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	b.ctx = limited
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return b
}

// hear notes what a page may not do: it runs for every event of the tab.
func (b *pageReader) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bad := func(format string, args ...any) { b.bad = append(b.bad, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventExceptionThrown, *runtime.EventConsoleAPICalled:
		bad("a script that runs: %T", e)
	case *log.EventEntryAdded:
		bad("%s from %s: %s", e.Entry.Level, e.Entry.Source, e.Entry.Text)
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; u != b.own && u != "data:," {
			bad("a request: %s", u)
		}
	}
}

// read opens a report's page from the disk.
func (b *pageReader) read(r rehearse.Report) {
	b.t.Helper()
	var out bytes.Buffer
	path := filepath.Join(b.t.TempDir(), "report.html")
	if err := errors.Join(rehearse.Page(&out, r), os.WriteFile(path, out.Bytes(), 0o600)); err != nil {
		b.t.Fatalf("page: %v", err)
	}
	u := url.URL{Scheme: "file", Path: path}
	b.mu.Lock()
	b.own = u.String()
	b.mu.Unlock()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(u.String())); err != nil {
		b.t.Fatalf("open %s: %v", path, err)
	}
}

func (b *pageReader) is(what, expression string) {
	b.t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
	if err != nil || !got {
		b.t.Errorf("%s: got %t, %v, want true of %s", what, got, err, expression)
	}
}

func (b *pageReader) size(width, height int64) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, height)); err != nil {
		b.t.Fatalf("size %d by %d: %v", width, height, err)
	}
}

func protocol[P, R any](b *pageReader, c cdp.Command[P, R], params P) R {
	b.t.Helper()
	r, err := browsertest.Call(b.ctx, c, params)
	if err != nil {
		b.t.Fatalf("%s: %v", c.Method, err)
	}
	return r
}

// look has axe-core look at the page, light and dark, and keeps pictures of it in
// artefacts/rehearse.
func (b *pageReader) look(state string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		protocol(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
		if err != nil {
			b.t.Fatalf("picture of %s: %v", state, err)
		}
		b.keep(state+"-"+scheme+".png", png)
		b.audit(state + ", " + scheme)
	}
}

func (b *pageReader) keep(name string, content []byte) {
	b.t.Helper()
	browsertest.Keep(b.t, "rehearse", name, content)
}

// audit fails the test for what axe-core calls serious or critical. It runs in a world
// of its own, for which the page's policy does not count.
func (b *pageReader) audit(state string) {
	b.t.Helper()
	found, err := browsertest.Audit(b.ctx, b.axe)
	if err != nil {
		b.t.Fatalf("%s: %v", state, err)
	}
	for _, f := range found {
		b.t.Errorf("%s: axe-core: %.600s", state, f)
	}
}

// Pictures of it lie in artefacts/rehearse afterwards.
func TestPage_InABrowserFromTheDisk(t *testing.T) {
	t.Parallel()
	b := newReader(t)
	short := broke()
	short.Seconds = short.Seconds[:45]
	for name, r := range map[string]rehearse.Report{"holds": played(), "broken": short} {
		b.read(r)
		b.size(1280, 900)
		b.is("its style", "getComputedStyle(document.querySelector('#state')).color !== getComputedStyle(document.body).color")
		b.is("charts with something in them", "[...document.querySelectorAll('.plot .line, .plot .area')].every(p => p.getBoundingClientRect().width > 0) && document.querySelectorAll('.plot').length >= 9")
		b.is("a second that can be pointed at", "(h => (h.scrollIntoView({block: 'center'}), document.elementFromPoint(...(r => [r.x + r.width / 2, r.y + 90])(h.getBoundingClientRect())) === h))(document.querySelector('.hit'))")
		for _, width := range []int64{1280, 400, 320} {
			b.size(width, 900)
			b.is(fmt.Sprintf("no scrolling to the side at %d", width), fmt.Sprintf("document.documentElement.scrollWidth <= %d", width))
			if width == 1280 || width == 400 && name == "holds" {
				b.look(fmt.Sprintf("%s-%d", name, width))
			}
		}
	}
	b.read(played())
	protocol(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
	b.size(720, 900)
	b.is("no print beyond the paper", "document.documentElement.scrollWidth <= 720")
	yes := true
	b.keep("print.pdf", protocol(b, page.PrintToPDF, page.PrintToPDFParams{PrintBackground: &yes}).Data)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bad := range b.bad {
		t.Errorf("the page did what it may not: %s", bad)
	}
}
