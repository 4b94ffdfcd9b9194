package config_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/config"
)

func TestLoadOperator_DefaultsNeedNoVariable(t *testing.T) {
	t.Parallel()
	got, err := config.LoadOperator(none)
	if err != nil {
		t.Fatalf("LoadOperator without any variable: got %v, want nil", err)
	}
	want := config.Operator{
		CodePattern: booking.DefaultCodePattern,

		Process:   config.Process{Data: "data", LogLevel: slog.LevelInfo, Drain: 35 * time.Second},
		Redis:     config.Redis{RedisAddr: "127.0.0.1:6379", RedisPool: 300, KeyPrefix: "{sale}:", Acks: config.AcksAuto},
		Drivers:   config.Drivers{Store: "sqlite", Queue: "sqlite"},
		Published: config.Published{Objects: "sqlite"},
	}
	if diff := cmp.Diff(want, got, revealed); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestLoadOperator_TellsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := config.LoadOperator(with(map[string]string{
		"HOLDFAST_REDIS_ADDR": "redis", "HOLDFAST_STATUS_URL": "status.json", "HOLDFAST_METRICS_URLS": "http://a/metrics,b", "HOLDFAST_OBJECTS": "tape", "HOLDFAST_STORE": "paper", "HOLDFAST_DRAIN": "0s",
		"HOLDFAST_CODE_PATTERN": "[A-",
	}))
	if err == nil {
		t.Fatal("got nil, want an error")
	}
	for _, name := range []string{"REDIS_ADDR", "STATUS_URL", "METRICS_URLS", "OBJECTS", "STORE", "DRAIN", "CODE_PATTERN"} {
		if !strings.Contains(err.Error(), "HOLDFAST_"+name) {
			t.Errorf("got %v, want that it names HOLDFAST_%s", err, name)
		}
	}
}

func TestLoadOperator_SplitsTheAddressesOfMetrics(t *testing.T) {
	t.Parallel()
	got, err := config.LoadOperator(with(map[string]string{"HOLDFAST_METRICS_URLS": "http://10.0.0.1:9090/metrics, http://10.0.0.2:9091/metrics"}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"http://10.0.0.1:9090/metrics", "http://10.0.0.2:9091/metrics"}, got.MetricsURLs); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestLoadGateway_IsTheApisGateway(t *testing.T) {
	t.Parallel()
	api, err := config.LoadAPI(with(nil))
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.LoadGateway(with(nil))
	if err != nil {
		t.Fatalf("LoadGateway: got %v, want nil", err)
	}
	if diff := cmp.Diff(api.Gateway, got, revealed); diff != "" {
		t.Errorf("gateway (-of the API +alone):\n%s", diff)
	}
	_, err = config.LoadGateway(none)
	for _, name := range []string{"GATEWAY_URL", "GATEWAY_APP_KEY", "GATEWAY_APP_SECRET", "GATEWAY_USERNAME", "GATEWAY_PASSWORD"} {
		if err == nil || !strings.Contains(err.Error(), "HOLDFAST_"+name+": required") {
			t.Errorf("without any variable: got %v, want that HOLDFAST_%s is required", err, name)
		}
	}
}

func TestEnvFile_ReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), config.EnvFile)
	written := config.FormatEnv(map[string]string{"B": "2 = two", "A": "x", "C": ""})
	if want := "A=x\nB=2 = two\nC=\n"; string(written) != want {
		t.Errorf("written: got %q, want %q", written, want)
	}
	if err := os.WriteFile(path, append([]byte("# a comment\r\n\n"), written...), 0o600); err != nil {
		t.Fatal(err)
	}
	getenv, err := config.ReadEnv(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"A": "x", "B": "2 = two", "C": "", "PATH": ""} {
		if got := getenv(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if err := os.WriteFile(path, []byte("A=x\nexport\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.ReadEnv(path); err == nil || !strings.Contains(err.Error(), "want NAME=value") {
		t.Errorf("a line without a value: got %v, want an error that says so", err)
	}
}
