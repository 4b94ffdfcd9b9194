package pagetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"holdfast/internal/testenv"
)

// patience is how long a tab waits for what it is to see.
const patience = 30 * time.Second

// person is somebody with a browser of their own: nobody else's storage, cookies or
// cache.
type person struct {
	t   testing.TB
	w   *world
	ctx context.Context
}

func newPerson(t testing.TB, w *world) *person {
	t.Helper()
	ctx, end := chromedp.NewContext(theBrowser(t), chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a browser context: %v", err)
	}
	return &person{t: t, w: w, ctx: ctx}
}

// tab is one tab of a person's, the size of a small telephone. Its verbs fail the test
// when they cannot be done.
type tab struct {
	t   testing.TB
	w   *world
	ctx context.Context
	end func()
	// mute says that the pages run no scripts.
	mute bool
	// seenDark says that it was looked at in the dark.
	seenDark bool
	mu       sync.Mutex
	bad      []string // what no page may do
	asks     []string // what was requested, method and address
	sights   []string // what stood in the places that watches was told, in its order
}

// visit opens the site's page at that path, in a new tab of a new person's.
func visit(t testing.TB, w *world, path string) *tab {
	t.Helper()
	p := newPerson(t, w).newTab()
	p.open(path)
	return p
}

func (who *person) newTab() *tab {
	who.t.Helper()
	p := &tab{t: who.t, w: who.w}
	// A window each: a tab behind another would be hidden, and its page asleep.
	p.ctx, p.end = chromedp.NewContext(who.ctx, chromedp.WithNewWindow(true), chromedp.WithListener(p.hear))
	p.t.Cleanup(func() {
		p.close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, what := range p.bad {
			p.t.Errorf("the page did what no page may: %s", what)
		}
	})
	if err := chromedp.Do(p.ctx); err != nil {
		p.t.Fatalf("open a tab: %v", err)
	}
	p.size(360, 740)
	return p
}

// close closes the tab as its person does. Safe to repeat.
func (p *tab) close() { p.end() }

// hear notes what a page does wrong: it runs for every event of the tab.
func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bad := func(format string, args ...any) { p.bad = append(p.bad, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		bad("an exception that nothing caught: %v", &chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails})
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			text, _ := json.Marshal(e.Args) // for a person to read
			bad("%s on the console: %s", e.Type, text)
		}
	case *log.EventEntryAdded:
		// Every answer of 400 and more, and every lost connection, is logged as an error
		// of the network. Those are answers that the page has to understand.
		if e.Entry.Source != log.EntrySourceNetwork && (e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning) {
			bad("%s from %s on the console: %s", e.Entry.Level, e.Entry.Source, e.Entry.Text)
		}
	case *network.EventLoadingFailed:
		if e.BlockedReason != "" {
			bad("a request that the browser blocked: %s", e.BlockedReason)
		}
	case *runtime.EventBindingCalled:
		if e.Name == sighted {
			p.sights = append(p.sights, e.Payload)
		}
	case *network.EventRequestWillBeSent:
		p.asks = append(p.asks, e.Request.Method+" "+e.Request.URL)
		u, err := url.Parse(e.Request.URL)
		if err != nil || (u.Scheme != "data" && u.Scheme+"://"+u.Host != p.w.site && u.Scheme+"://"+u.Host != p.w.gateway) {
			bad("a request to somebody else: %s", e.Request.URL)
		}
	}
}

// wrongs are what the page did wrong so far; they are forgotten.
func (p *tab) wrongs() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	bad := p.bad
	p.bad = nil
	return bad
}

// asked is how many requests began so, such as "POST /book", to the site.
func (p *tab) asked(what string) int {
	method, path, _ := strings.Cut(what, " ")
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, a := range p.asks {
		if strings.HasPrefix(a, method+" "+p.w.site+path) {
			n++
		}
	}
	return n
}

// call sends the browser a command.
func call[P, R any](p *tab, c cdp.Command[P, R], params P) R {
	p.t.Helper()
	r, err := tryCall(p, c, params)
	if err != nil {
		p.t.Fatalf("%s: %v", c.Method, err)
	}
	return r
}

func tryCall[P, R any](p *tab, c cdp.Command[P, R], params P) (R, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, c, params)
	})
}

// words are what expressions may use: $ finds, and seen tells whether a person sees
// it.
const words = `
const $ = s => document.querySelector(s);
const seen = e => { if (typeof e === 'string') e = $(e);
  return !!e && e.getClientRects().length > 0 && getComputedStyle(e).visibility !== 'hidden'; };
const text = e => { if (typeof e === 'string') e = $(e); return e ? e.innerText.replace(/\s+/g, ' ').trim() : ''; };
`

// try evaluates an expression in the page.
func try[T any](p *tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T]("(() => {"+words+"return ("+expression+");})()"))
}

func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	v, err := try[T](p, expression)
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// until waits for an expression to be true, over any change of page.
func (p *tab) until(what, expression string) {
	p.t.Helper()
	p.untilWithin(patience, what, expression)
}

func (p *tab) untilWithin(d time.Duration, what, expression string) {
	p.t.Helper()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	end := time.After(d)
	for {
		so, err := try[bool](p, "!!("+expression+")")
		if err == nil && so {
			return
		}
		var wrong *chromedp.ExceptionError
		if errors.As(err, &wrong) {
			p.t.Fatalf("%s: %v", expression, err)
		}
		select {
		case <-tick.C:
		case <-end:
			shows, _ := try[string](p, "location.href + '\\n' + document.body.innerText")
			p.t.Fatalf("after %s no sight of %s; the tab shows\n%s", d, what, shows)
		}
	}
}

// waitText waits until what a person reads at the selector has all these texts.
func (p *tab) waitText(selector string, texts ...string) {
	p.t.Helper()
	for _, want := range texts {
		p.until(fmt.Sprintf("%q in %s", want, selector), fmt.Sprintf("seen(%q) && text(%q).includes(%q)", selector, selector, want))
	}
}

// waitFor waits until the selector's first element is there to be seen.
func (p *tab) waitFor(selector string) {
	p.t.Helper()
	p.until(selector, fmt.Sprintf("seen(%q)", selector))
}

// waitGone waits until no person sees it.
func (p *tab) waitGone(selector string) {
	p.t.Helper()
	p.until("the end of "+selector, fmt.Sprintf("!seen(%q)", selector))
}

// waitAt waits until the tab is at an address that begins so.
func (p *tab) waitAt(prefix string) {
	p.t.Helper()
	p.until("the address "+prefix, fmt.Sprintf("location.href.startsWith(%q) && document.readyState === 'complete'", prefix))
}

// open goes to a path of the site, or to a whole address.
func (p *tab) open(address string) {
	p.t.Helper()
	if strings.HasPrefix(address, "/") {
		address = p.w.site + address
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(address)); err != nil {
		p.t.Fatalf("open %s: %v", address, err)
	}
}

// reload loads the page again, without waiting for it.
func (p *tab) reload() {
	p.t.Helper()
	call(p, page.Reload, page.ReloadParams{})
}

// back is the browser's own button, without waiting for the page.
func (p *tab) back() {
	p.t.Helper()
	h := call(p, page.GetNavigationHistory, cdp.Empty{})
	if h.CurrentIndex == 0 {
		p.t.Fatal("go back: this is the tab's first page")
	}
	call(p, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: h.Entries[h.CurrentIndex-1].ID})
}

// point waits until an element can be hit by a finger, and tells where.
func (p *tab) point(selector string) (x, y float64) {
	p.t.Helper()
	where := fmt.Sprintf(`(() => {
		const e = $(%q);
		if (!seen(e) || e.disabled || e.matches(':disabled')) return null;
		e.scrollIntoView({block: 'center', behavior: 'instant'});
		const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
		const hit = document.elementFromPoint(x, y);
		return hit && (e.contains(hit) || hit.contains(e)) ? [x, y] : null;
	})()`, selector)
	p.until(selector+" that can be pressed", where)
	at := eval[[]float64](p, where)
	if len(at) != 2 {
		p.t.Fatalf("press %s: it has gone again", selector)
	}
	return at[0], at[1]
}

// click presses an element with the mouse.
func (p *tab) click(selector string) {
	p.t.Helper()
	x, y := p.point(selector)
	if err := chromedp.Do(p.ctx, chromedp.MouseClickXY(x, y)); err != nil {
		p.t.Fatalf("click %s: %v", selector, err)
	}
}

// fill replaces what is in a field.
func (p *tab) fill(selector, value string) {
	p.t.Helper()
	p.click(selector)
	eval[bool](p, fmt.Sprintf("($(%q).select(), true)", selector))
	call(p, input.InsertText, input.InsertTextParams{Text: value})
}

// press presses a key.
func (p *tab) press(key string, how ...chromedp.KeyOption) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.KeyEvent(key, how...)); err != nil {
		p.t.Fatalf("press %q: %v", key, err)
	}
}

// size gives the window another size.
func (p *tab) size(width, height int64) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.EmulateViewport(width, height, chromedp.EmulateMobile)); err != nil {
		p.t.Fatalf("size %d by %d: %v", width, height, err)
	}
}

// scripts allows or forbids them from the next page on.
func (p *tab) scripts(on bool) {
	p.t.Helper()
	p.mute = !on
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
}

// speaks sets the languages that the browser asks for.
func (p *tab) speaks(languages string) {
	p.t.Helper()
	agent := eval[string](p, "navigator.userAgent")
	call(p, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: agent, AcceptLanguage: languages})
}

// offline cuts the tab's network, or joins it again.
func (p *tab) offline(on bool) {
	p.t.Helper()
	call(p, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
		MatchedNetworkConditions: []*network.Conditions{{Offline: on, DownloadThroughput: -1, UploadThroughput: -1}},
	})
	call(p, network.OverrideNetworkState, network.OverrideNetworkStateParams{Offline: on, DownloadThroughput: -1, UploadThroughput: -1})
}

// clockOff sets the clock of the pages that are opened from now on wrong by d.
func (p *tab) clockOff(d time.Duration) {
	p.t.Helper()
	p.before(fmt.Sprintf(`(() => {
		const Real = Date, off = %d;
		window.Date = class extends Real {
			constructor(...a) { if (a.length) super(...a); else super(Real.now() + off); }
			static now() { return Real.now() + off; }
		};
	})()`, d.Milliseconds()))
}

// clockMoves lets ahead move the clocks of the pages that are opened from now on.
func (p *tab) clockMoves() {
	p.t.Helper()
	p.before(`(() => {
		const Real = Date, since = performance.now.bind(performance);
		let on = 0;
		window.ahead = ms => { on += ms; return true; };
		performance.now = () => since() + on;
		window.Date = class extends Real {
			constructor(...a) { if (a.length) super(...a); else super(Real.now() + on); }
			static now() { return Real.now() + on; }
		};
	})()`)
}

// ahead moves the page's clocks on by d. What is set for a time by a timer is not.
func (p *tab) ahead(d time.Duration) {
	p.t.Helper()
	eval[bool](p, fmt.Sprintf("ahead(%d)", d.Milliseconds()))
}

// quick is how much shorter napsQuickly makes a nap.
const quick = 40

// napsQuickly has the pages that are opened from now on wait for a fraction of what they
// mean to, where that is a second and more, and note how long that was in naps. The time
// limits of requests, whole seconds, stay.
func (p *tab) napsQuickly() {
	p.t.Helper()
	p.before(fmt.Sprintf(`(() => {
		const set = window.setTimeout.bind(window);
		window.naps = [];
		window.setTimeout = (f, ms) => {
			if (!(ms >= 1000) || ms %% 1000 === 0) return set(f, ms);
			naps.push(ms);
			return set(f, ms / %d);
		};
	})()`, quick))
}

// listens notes what the pages that are opened from now on say aloud, in heard.
func (p *tab) listens() {
	p.t.Helper()
	p.before(`window.heard = []; document.addEventListener('DOMContentLoaded', () => {
		const live = document.querySelector('#live');
		if (live) new MutationObserver(() => { if (live.textContent) heard.push(live.textContent); }).observe(live, {childList: true, characterData: true, subtree: true});
	})`)
}

// waitHeard waits until these words of an answer were said in one breath, and wants them
// said once.
func (p *tab) waitHeard(slug string) {
	p.t.Helper()
	words := english(p.t).Answers[slug]
	said := fmt.Sprintf("heard.filter(h => h.includes(%q)).length", words.Title+". "+words.Message)
	p.until("the words of "+slug+" aloud", said+" > 0")
	if n := eval[int](p, said); n != 1 {
		p.t.Errorf("the words of %s aloud: got %d times, want 1", slug, n)
	}
}

// sighted is the name by which a page tells the test what stands in a watched place.
const sighted = "sighted"

// watches notes whatever a person could read at the selector in the pages that are opened
// from now on. For words that pass by themselves: until may look too late for them, and
// the page that had them may have gone.
func (p *tab) watches(selector string) {
	p.t.Helper()
	call(p, runtime.AddBinding, runtime.AddBindingParams{Name: sighted})
	p.before(fmt.Sprintf(`document.addEventListener('DOMContentLoaded', () => {
		%s
		let was = '';
		const look = () => {
			const is = seen(%[2]q) ? text(%[2]q) : '';
			if (is && is !== was) sighted(is);
			was = is;
		};
		new MutationObserver(look).observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
		look();
	})`, words, selector))
}

// waitSight waits until these words stood in the watched place since the last sight that
// was waited for.
func (p *tab) waitSight(words string) {
	p.t.Helper()
	testenv.Eventually(p.t, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.IndexFunc(p.sights, func(s string) bool { return strings.Contains(s, words) })
		if i < 0 {
			return fmt.Errorf("no sight of %q; seen since the last one: %q", words, p.sights)
		}
		p.sights = p.sights[i+1:]
		return nil
	})
}

// goesOn moves the page's clocks on by d and waits for the request that this brings: what
// is on show until then is still of the time before.
func (p *tab) goesOn(d time.Duration, request string) {
	p.t.Helper()
	before := p.asked(request)
	p.ahead(d)
	testenv.Eventually(p.t, func() error {
		if p.asked(request) == before {
			return fmt.Errorf("no %s after %s on the page's clock", request, d)
		}
		return nil
	})
}

// glance is the person's eye back on the tab, which wakes its page up.
func (p *tab) glance() {
	p.t.Helper()
	eval[bool](p, "document.dispatchEvent(new Event('visibilitychange'))")
}

// before has every page that is opened from now on run this first.
func (p *tab) before(script string) {
	p.t.Helper()
	call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
}

// Every tab's watch is worth what it hears.
func TestTab_HearsWhatNoPageMayDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	for _, c := range []struct{ does, script, want string }{
		{"throws", `setTimeout(() => { throw new Error('nobody caught it') })`, "nobody caught it"},
		{"complains", `console.error('it complains')`, "it complains"},
		{"asks somebody else", `void fetch('http://127.0.0.1:9/').catch(() => 0)`, "http://127.0.0.1:9/"},
		{"runs what the policy forbids", `document.body.appendChild(Object.assign(document.createElement('script'), {textContent: '1'}))`, "Content Security Policy"},
	} {
		if err := chromedp.Do(p.ctx, chromedp.Evaluate[chromedp.Void](c.script)); err != nil {
			t.Fatalf("%s: %v", c.does, err)
		}
		var heard []string
		testenv.Eventually(t, func() error {
			heard = append(heard, p.wrongs()...)
			if !slices.ContainsFunc(heard, func(s string) bool { return strings.Contains(s, c.want) }) {
				return fmt.Errorf("a page that %s: got %q, want %q heard", c.does, heard, c.want)
			}
			return nil
		})
	}
	p.settle()
	p.wrongs()
}

// settle waits until the browser has told what it had to tell.
func (p *tab) settle() {
	p.t.Helper()
	eval[bool](p, "true")
}
