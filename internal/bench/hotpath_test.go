package bench_test

import (
	"io"
	"testing"
	"time"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
)

// The benchmark runs, in small: every path answers as it should and every figure
// is there. What the figures are is for the benchmark itself to say.
func TestHotpath_EveryFigureIsThere(t *testing.T) {
	testenv.NeedServer(t)
	r, err := bench.RunHotpath(t.Context(), bench.HotpathOptions{
		Rounds: 1, Connections: 8, Each: 100 * time.Millisecond, Candidates: 8000, LowLoadRuns: 1, LowLoadEach: 20,
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]float64{
		"null_rps": r.NullRPS, "ping_rps": r.PingRPS, "one_pipeline_rps": r.OnePipelineRPS, "reject_full_rps": r.RejectFullRPS,
		"reject_duplicate_rps": r.RejectDuplicateRPS, "admit_rps": r.AdmitRPS, "redis_ceiling_rps": r.RedisCeilingRPS,
		"reject_over_null": r.RejectOverNull, "reject_over_one_pipeline": r.RejectOverOnePipeline,
		"allocs_per_rejection": r.AllocsPerRejection, "low_load.ratio": r.LowLoad.Ratio,
	} {
		if v <= 0 {
			t.Errorf("%s: got %v, want a figure", name, v)
		}
	}
	if len(r.P99MS) != 6 || r.Engine == "" || r.GOMAXPROCS < 1 {
		t.Errorf("got %+v, want six p99 figures, an engine and GOMAXPROCS", r)
	}
}
