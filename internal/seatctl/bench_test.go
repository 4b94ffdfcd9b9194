package seatctl_test

import (
	"encoding/json"
	"testing"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
)

func TestBench_HelpHasAnExampleAndExitCodes(t *testing.T) {
	t.Parallel()
	run(t, "", "bench", "gateway", "--help").want(t, 0, "Example:", "Exit status:", "seatctl bench gateway")
	run(t, "", "bench", "wave", "--help").want(t, 0, "Example:", "Exit status:", "1 not so", "--holds=20000", "--latency=100ms")
	run(t, "", "bench", "worker", "--help").want(t, 0, "Example:", "Exit status:", "2 not so", "--records=10000")
}

func TestBenchWave_PrintsOneDocument(t *testing.T) {
	testenv.NeedServer(t)
	r := run(t, "", "bench", "wave", "--holds", "100", "--latency", "1ms", "--json")
	r.want(t, 0)
	var got bench.WaveResult
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got.Holds != 100 || got.LatencyMS != 1 || got.Released+got.Paid != 100 {
		t.Errorf("got %+v, %v, want 100 holds settled at 1 ms", got, err)
	}
}

func TestBenchWave_NoHoldsCannotBeRun(t *testing.T) {
	t.Parallel()
	run(t, "", "bench", "wave", "--holds", "0").want(t, 2, "holds")
}

func TestBenchWorker_PrintsOneDocument(t *testing.T) {
	r := run(t, "", "bench", "worker", "--records", "200", "--json")
	r.want(t, 0)
	var got bench.WorkerResult
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got.Records != 200 || got.RecordsPerS <= 0 || got.Synchronous != "FULL" {
		t.Errorf("got %+v, %v, want a rate for 200 durable records", got, err)
	}
}
