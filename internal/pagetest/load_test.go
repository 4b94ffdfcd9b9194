package pagetest_test

import (
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
)

// The telephone and the network of BenchmarkPage: 400 kbit/s each way, 400 ms from a
// request to the head of its answer, and a processor four times as slow as this one.
const (
	bytesPerSecond = 400_000 / 8
	roundTrip      = 400 // ms
	slowdown       = 4
)

// watchLoad notes when the page has learnt where the sale or the booking stands, and the
// tasks that keep it from hearing a person.
const watchLoad = `
window.load = {told: 0, busy: 0};
new PerformanceObserver(l => l.getEntries().forEach(e => { load.busy = Math.max(load.busy, e.startTime + e.duration); }))
	.observe({type: 'longtask', buffered: true});
new MutationObserver(() => {
	const s = document.querySelector('#state[data-phase]'), r = document.querySelector('#result[data-state]');
	const told = s && s.dataset.phase !== 'unknown' || r && r.dataset.state && r.dataset.state !== 'checking';
	if (told && !load.told) load.told = performance.now();
}).observe(document, {subtree: true, childList: true, attributes: true});
`

// loadTimes are one opening of a page, in ms since it was asked for, and the bytes that
// came for it.
type loadTimes struct {
	Interactive float64 `json:"interactive"` // its script has run, and no long task keeps it from hearing a person
	Told        float64 `json:"told"`        // it shows where the sale or the booking stands
	Bytes       float64 `json:"bytes"`       // with the answer's head
}

// BenchmarkPage opens each page for the first time, on a slow telephone on a slow
// network as Chromium emulates them, and gives the medians:
//
//	go test -run '^$' -bench Page -benchtime 9x ./internal/pagetest
//
// The emulation delays every request; the round trips of a new connection, which come
// before it, it does not have.
func BenchmarkPage(b *testing.B) {
	w := newWorld(b, setting{})
	token := w.takes(b, 0, "N1")
	for _, page := range []struct{ name, path string }{{"Booking", "/"}, {"Result", "/result?booking=" + token}} {
		b.Run(page.name, func(b *testing.B) {
			var loads []loadTimes
			for b.Loop() {
				p := newPerson(b, w).newTab()
				p.before(watchLoad)
				call(p, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
					MatchedNetworkConditions: []*network.Conditions{{Latency: roundTrip, DownloadThroughput: bytesPerSecond, UploadThroughput: bytesPerSecond}},
				})
				call(p, emulation.SetCPUThrottlingRate, emulation.SetCPUThrottlingRateParams{Rate: slowdown})
				p.open(page.path)
				p.until("a page that knows", "load.told > 0")
				loads = append(loads, eval[loadTimes](p, `(() => {
					const n = performance.getEntriesByType('navigation')[0];
					return {interactive: Math.max(n.domContentLoadedEventEnd, load.busy), told: load.told, bytes: n.transferSize};
				})()`))
				p.close()
			}
			median := func(of func(loadTimes) float64) float64 {
				all := make([]float64, len(loads))
				for i, l := range loads {
					all[i] = of(l)
				}
				slices.Sort(all)
				return all[len(all)/2]
			}
			b.ReportMetric(0, "ns/op") // what it takes to open a tab is of no interest
			b.ReportMetric(median(func(l loadTimes) float64 { return l.Interactive }), "ms-interactive")
			b.ReportMetric(median(func(l loadTimes) float64 { return l.Told }), "ms-told")
			b.ReportMetric(median(func(l loadTimes) float64 { return l.Bytes }), "bytes")
		})
	}
}
