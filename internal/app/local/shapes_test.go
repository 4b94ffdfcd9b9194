package local

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/config"
)

func TestTellOperator_WritesWhatTheShapesPageShows(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/shapes.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```sh holdfast.env\n(.*?\n)```").FindSubmatch(page)
	if m == nil {
		t.Fatal("docs/shapes.md: got no ```sh holdfast.env block, want one")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, config.EnvFile)
	sample := regexp.MustCompile(`(?m)^HOLDFAST_DATA=.*$`).ReplaceAllLiteralString(string(m[1]), "HOLDFAST_DATA="+dir)
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	getenv, err := config.ReadEnv(path)
	if err != nil {
		t.Fatalf("sample: got %v, want it to be read", err)
	}
	_, errOperator := config.LoadOperator(getenv)
	_, errGateway := config.LoadGateway(getenv)
	if errOperator != nil || errGateway != nil {
		t.Errorf("sample as settings: got %v, %v, want none missing or wrong", errOperator, errGateway)
	}

	env := map[string]string{"HOLDFAST_PUBLIC_URL": strings.TrimSuffix(getenv("HOLDFAST_STATUS_URL"), "/status.json")}
	for line := range strings.Lines(sample) {
		name, _, _ := strings.Cut(line, "=")
		env[name] = getenv(name)
	}
	forget, err := tellOperator(settings{data: dir}, env)
	if err != nil {
		t.Fatalf("tellOperator: got %v, want nil", err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample, string(got)); diff != "" {
		t.Errorf("written (-shapes page +got):\n%s", diff)
	}
	if err := forget(); err != nil {
		t.Errorf("forget: got %v, want nil", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after the run: got %v, want the file gone", err)
	}
}
