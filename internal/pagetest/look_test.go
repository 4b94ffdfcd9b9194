package pagetest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/browsertest"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// look is what every state is put to: at 320 pixels everything must fit and be large
// enough for a finger, in Bangla too, axe-core must find nothing serious, and no
// contrast too low in the dark, and pictures are kept under that name.
func (p *tab) look(state string) {
	p.t.Helper()
	p.glimpse(state)
	axe := p.axeCore()
	p.axe(state, axe, everyRule)
	p.size(1000, 800)
	p.shot(state, 1000, "")
	if !p.seenDark { // colours are the page's, not the state's: once a tab is enough
		p.seenDark = true
		p.dark(true)
		p.shot(state, 1000, "-dark")
		p.axe(state+" in the dark", axe, contrastRule)
		p.dark(false)
	}
	p.size(360, 740)
	p.inBangla(func() { p.glimpse(state) })
}

// glimpse is look without axe-core, for a state that differs in its words only.
func (p *tab) glimpse(state string) {
	p.t.Helper()
	p.size(320, 640)
	p.fits(state)
	p.shot(state, 320, "")
	p.size(360, 740)
}

// glimpses is glimpse in both languages.
func (p *tab) glimpses(state string) {
	p.t.Helper()
	p.glimpse(state)
	p.inBangla(func() { p.glimpse(state) })
}

// inBangla does something while the page is in Bangla, where it has both languages and
// is in English; the focus stays where it is.
func (p *tab) inBangla(do func()) {
	p.t.Helper()
	if p.mute || !eval[bool](p, `seen('#lang') && document.documentElement.lang === 'en'`) {
		return
	}
	eval[bool](p, `($('#lang').click(), document.documentElement.lang === 'bn')`)
	do()
	eval[bool](p, `($('#lang').click(), document.documentElement.lang === 'en')`)
}

func (p *tab) dark(on bool) {
	p.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[on]
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

// shot keeps a picture of the whole page: artefacts/page/<state>-<lang>-<width>.png.
func (p *tab) shot(state string, width int, more string) {
	p.t.Helper()
	yes := true
	png := call(p, page.CaptureScreenshot, page.CaptureScreenshotParams{CaptureBeyondViewport: &yes, OptimizeForSpeed: &yes}).Data
	browsertest.Keep(p.t, "page", fmt.Sprintf("%s-%s-%d%s.png", state, eval[string](p, "document.documentElement.lang"), width, more), png)
}

// finger is the side of the smallest thing to press, in CSS pixels: WCAG 2.5.5.
const finger = 44

// fits wants no scrolling to the side, and nothing too small for a finger. A link in
// the middle of a sentence may be, as the guideline says.
func (p *tab) fits(state string) {
	p.t.Helper()
	if over := eval[float64](p, "document.documentElement.scrollWidth - window.innerWidth"); over > 0 {
		p.t.Errorf("%s at 320 px: got %v px too wide, want no scrolling to the side", state, over)
	}
	small := eval[[]string](p, fmt.Sprintf(`[...document.querySelectorAll('a[href], button, input, select, textarea, summary')].filter(e => {
		if (!seen(e) || e.matches(':disabled')) return false;
		const inSentence = e.tagName === 'A' && text(e.parentElement) !== text(e) && getComputedStyle(e).display === 'inline';
		const r = (e.closest('label') || e).getBoundingClientRect();
		return !inSentence && (r.width < %[1]d || r.height < %[1]d) && r.right > 0 && r.bottom > 0;
	}).map(e => { const r = (e.closest('label') || e).getBoundingClientRect();
		return e.outerHTML.slice(0, 80) + ' is ' + r.width + ' by ' + r.height; })`, finger))
	for _, s := range small {
		p.t.Errorf("%s at 320 px: got %s, want %d px for a finger", state, s, finger)
	}
}

// violation is what axe-core says of a rule.
type violation struct {
	ID     string `json:"id"`
	Impact string `json:"impact"`
	Help   string `json:"help"`
	Nodes  []struct {
		Target  []any  `json:"target"`
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

// What axe-core is asked for.
const (
	everyRule    = `['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']`
	contrastRule = `{type: 'rule', values: ['color-contrast']}`
)

// axe fails the test for what axe-core calls serious or critical.
func (p *tab) axe(state string, in runtime.ExecutionContextID, rules string) {
	p.t.Helper()
	for _, v := range p.violations(in, rules) {
		for _, n := range v.Nodes {
			p.t.Errorf("%s: axe-core rule %s (%s): %s: %v %s; %s", state, v.ID, v.Impact, v.Help, n.Target, n.HTML, strings.ReplaceAll(n.Summary, "\n", " "))
		}
	}
}

// axeCore puts axe-core into a world of its own, which the page's policy and the page's
// script do not see.
func (p *tab) axeCore() runtime.ExecutionContextID {
	p.t.Helper()
	tree := call(p, page.GetFrameTree, cdp.Empty{})
	in := call(p, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: tree.FrameTree.Frame.ID, WorldName: "axe"}).ExecutionContextID
	p.runIn(in, browsertest.Axe(p.t, what)+"; 0")
	return in
}

// runIn evaluates in that world, and waits for what is promised.
func (p *tab) runIn(in runtime.ExecutionContextID, source string) *runtime.RemoteObject {
	p.t.Helper()
	yes := true
	r := call(p, runtime.Evaluate, runtime.EvaluateParams{Expression: source, ContextID: in, AwaitPromise: &yes, ReturnByValue: &yes})
	if r.ExceptionDetails != nil {
		p.t.Fatalf("axe-core: %v", &chromedp.ExceptionError{ExceptionDetails: r.ExceptionDetails})
	}
	return r.Result
}

// violations are what is serious or critical.
func (p *tab) violations(in runtime.ExecutionContextID, rules string) []violation {
	p.t.Helper()
	if p.mute { // a page that is loaded is not woken by this
		p.scripts(true)
		defer p.scripts(false)
	}
	result := p.runIn(in, `axe.run(document, {runOnly: `+rules+`, resultTypes: ['violations']}).then(r =>
		JSON.stringify(r.violations.filter(v => v.impact === 'serious' || v.impact === 'critical')))`)
	var text string
	var found []violation
	if err := errors.Join(json.Unmarshal(result.Value, &text), json.Unmarshal([]byte(text), &found)); err != nil {
		p.t.Fatalf("axe-core: got %s, %v, want a list of violations", result.Value, err)
	}
	return found
}

// A page with faults is found faulty: what looks at every state can see.
func TestLook_FindsWhatItLooksFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setting{})
	p := visit(t, w, "/")
	eval[bool](p, `(document.body.insertAdjacentHTML('beforeend', '<p><img src="data:,x"></p><button></button>'), true)`)
	rules := map[string]bool{}
	for _, v := range p.violations(p.axeCore(), everyRule) {
		rules[v.ID] = true
	}
	if !rules["image-alt"] || !rules["button-name"] {
		t.Errorf("axe-core over an image and a button without words: got rules %v, want image-alt and button-name", rules)
	}
	p.wrongs()
}
