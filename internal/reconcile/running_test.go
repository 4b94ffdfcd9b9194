package reconcile_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/reconcile"
	"holdfast/internal/testenv"
)

// What an old runner shows of its last sweep must not be taken for the sale's.
func TestRun_SaysThatItRunsForAsLongAsItDoes(t *testing.T) {
	w := inProcess(t)
	d := w.deps
	reg := prometheus.NewRegistry()
	d.Registerer = reg
	r, err := reconcile.New(d)
	if err != nil {
		t.Fatalf("New: got %v, want nil", err)
	}
	running := func() float64 {
		families, err := reg.Gather()
		if err != nil {
			t.Errorf("Gather: got %v, want nil", err)
		}
		for _, f := range families {
			if f.GetName() == "holdfast_reconciler_running" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	if got := running(); got != 0 {
		t.Errorf("before: got %v, want 0", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	testenv.Eventually(t, func() error {
		if got := running(); got != 1 {
			return fmt.Errorf("while it runs: got %v, want 1", got)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: got %v, want nil", err)
	}
	if got := running(); got != 0 {
		t.Errorf("afterwards: got %v, want 0", got)
	}
}
