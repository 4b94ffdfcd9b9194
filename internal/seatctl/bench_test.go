package seatctl_test

import (
	"encoding/json"
	"strings"
	"testing"

	"holdfast/internal/bench"
	"holdfast/internal/testenv"
)

func TestBench_HelpHasAnExampleAndExitCodes(t *testing.T) {
	t.Parallel()
	run(t, "", "bench", "gateway", "--help").want(t, 0, "Example:", "Exit status:", "seatctl bench gateway")
	run(t, "", "bench", "wave", "--help").want(t, 0, "Example:", "Exit status:", "1 not so", "--holds=20000", "--latency=100ms")
	run(t, "", "bench", "worker", "--help").want(t, 0, "Example:", "Exit status:", "2 not so", "--records=10000", "--emulator=URL", "not that of AWS")
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
	if strings.Contains(r.stdout, "emulator") {
		t.Errorf("got %s, want no figure of an emulator that nobody asked for", r.stdout)
	}
}

func TestBenchWorker_EmulatorsFigureIsInTheSameDocument(t *testing.T) {
	r := run(t, "", "bench", "worker", "--records", "20", "--emulator", testenv.AWS(t).Endpoint, "--json")
	r.want(t, 0)
	var got struct {
		Here  float64 `json:"records_per_s"`
		There float64 `json:"emulator_records_per_s"`
		Of    int     `json:"emulator_records"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || got.Here <= 0 || got.There <= 0 || got.Of != 20 {
		t.Errorf("got %+v, %v, want both rates, for 20 records", got, err)
	}
}

func TestBenchWorker_WithoutItsEmulatorItCannotBeRun(t *testing.T) {
	t.Parallel()
	run(t, "", "bench", "worker", "--emulator", "http://127.0.0.1:1").want(t, 2, "no AWS emulator answers at http://127.0.0.1:1", "docs/benchmarks.md")
}
