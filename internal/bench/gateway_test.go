package bench_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"holdfast/internal/bench"
	"holdfast/internal/checkout"
	"holdfast/internal/testenv"
)

// quickGateway is the run in small: creates are cut off as in the real one.
func quickGateway() bench.GatewayOptions {
	return bench.GatewayOptions{
		Rounds: 1, Rate: 200, BookingRate: 40, Each: 300 * time.Millisecond, Warm: 100 * time.Millisecond,
		Latency: time.Second, Slots: 100, FewSlots: 4,
		Budgets: checkout.Budgets{Request: 8 * time.Second, Redis: 3 * time.Second, Create: 300 * time.Millisecond, Enqueue: time.Second},
	}
}

func TestGateway_EveryFigureIsThere(t *testing.T) {
	testenv.NeedServer(t)
	r, err := bench.Gateway(t.Context(), quickGateway(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{bench.FastGateway, bench.SlowGateway, bench.SlowGatewayNoSlot} {
		if p50, p99 := r.P50MS[name], r.P99MS[name]; p50 <= 0 || p99 < p50 {
			t.Errorf("%s: got p50 %v and p99 %v ms, want both, in this order", name, p50, p99)
		}
	}
	if r.SlowOverFastP99 <= 0 || r.NoSlotOverFastP99 <= 0 || r.Engine == "" || r.GOMAXPROCS < 1 || r.Rounds != 1 || r.Rate != 200 {
		t.Errorf("got %+v, want two ratios, engine, GOMAXPROCS, rounds and rate", r)
	}
	if calls := r.CallsInFlight[bench.SlowGateway]; calls < 1 || calls >= 100 {
		t.Errorf("slow, slots free: got %d calls at the gateway, want some of 100 slots", calls)
	}
	if calls := r.CallsInFlight[bench.SlowGatewayNoSlot]; calls != 4 {
		t.Errorf("slow, no slot free: got %d calls at the gateway, want all 4 slots taken", calls)
	}
}

// A measurement that was not what its name says is an error, not a figure.
func TestGateway_SlotsThatAreNotTakenAreAnError(t *testing.T) {
	testenv.NeedServer(t)
	o := quickGateway()
	o.FewSlots = o.Slots
	_, err := bench.Gateway(t.Context(), o, io.Discard)
	if err == nil || !strings.Contains(err.Error(), bench.SlowGatewayNoSlot) {
		t.Errorf("got %v, want an error that names %s", err, bench.SlowGatewayNoSlot)
	}
}
