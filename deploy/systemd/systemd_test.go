// Package systemd_test checks the units and the settings beside them: that systemd
// takes them, how much of the machine they leave open, and that they fit the programs.
package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/config"
)

// programs are the commands that have a unit, and what must end between SIGTERM and
// the unit's stop time-out, by settings.
var programs = map[string]func(getenv func(string) string) (time.Duration, error){
	"api": func(getenv func(string) string) (time.Duration, error) {
		c, err := config.LoadAPI(getenv)
		return c.Linger + c.Drain, err
	},
	"worker": func(getenv func(string) string) (time.Duration, error) {
		c, err := config.LoadWorker(getenv)
		return c.Drain + tellQueue, err
	},
}

// tellQueue is what a worker takes after its drain to delete and give back.
const tellQueue = 5 * time.Second

func unitFile(program string) string { return "holdfast-" + program + ".service" }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unit is a unit's settings by their names, each with its values in order.
type unit map[string][]string

func readUnit(t *testing.T, program string) unit {
	t.Helper()
	u := unit{}
	for line := range strings.Lines(read(t, unitFile(program))) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(name, "#") {
			u[name] = append(u[name], value)
		}
	}
	return u
}

func (u unit) one(t *testing.T, name string) string {
	t.Helper()
	if len(u[name]) != 1 {
		t.Fatalf("%s: got %q, want it once", name, u[name])
	}
	return u[name][0]
}

// analyze runs systemd-analyze. Without it the test is skipped, or fails with CI=true.
func analyze(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("systemd-analyze is not installed (Debian's package systemd has it), and with CI=true this test must run")
		}
		t.Skip("UNITS NOT VERIFIED: systemd-analyze is not installed; Debian's package systemd has it")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze %s: got %v, want nil:\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestUnits_AreWhatSystemdTakes(t *testing.T) {
	t.Parallel()
	for program := range programs {
		// The program need not be installed where this runs.
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/true\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, unitFile(program))
		text := strings.Replace(read(t, unitFile(program)), "ExecStart=/opt/holdfast/bin", "ExecStart="+dir, 1)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		// It ends well with a setting that it does not know, and says so.
		if said := analyze(t, "verify", "--man=no", path); strings.TrimSpace(said) != "" {
			t.Errorf("verify %s: got %q, want nothing said", unitFile(program), said)
		}
	}
}

func TestUnits_LeaveLittleOpen(t *testing.T) {
	t.Parallel()
	const most = 3.0
	exposure := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+) `)
	for program := range programs {
		said := analyze(t, "security", "--offline=true", "--no-pager", unitFile(program))
		m := exposure.FindStringSubmatch(said)
		if m == nil {
			t.Fatalf("%s: got no exposure level in:\n%s", unitFile(program), said)
		}
		if got, err := strconv.ParseFloat(m[1], 64); err != nil || got >= most {
			t.Errorf("%s: got exposure %s (%v), want less than %.1f:\n%s", unitFile(program), m[1], err, most, said)
		}
	}
}

func TestUnits_FitTheProgramsAndTheirSettings(t *testing.T) {
	t.Parallel()
	for program, end := range programs {
		u := readUnit(t, program)
		for name, want := range map[string]string{
			"ExecStart": "/opt/holdfast/bin/" + program, "EnvironmentFile": "/etc/holdfast/" + program + ".env",
			"Type": "notify", "Restart": "always", "StartLimitIntervalSec": "0", // in [Unit]: verify looks
			"LogRateLimitIntervalSec": "0", // the journal keeps every line of a rush
		} {
			if got := u.one(t, name); got != want {
				t.Errorf("%s: %s: got %s, want %s", unitFile(program), name, got, want)
			}
		}
		if _, err := os.Stat(filepath.Join("../../cmd", program, "main.go")); err != nil {
			t.Errorf("%s: its program: got %v, want it to exist", unitFile(program), err)
		}
		needs, err := end(resolved(example(t, program)))
		if err != nil {
			t.Errorf("%s.env.example as settings: got %v, want nil", program, err)
		}
		stop, err := strconv.Atoi(u.one(t, "TimeoutStopSec"))
		if got := time.Duration(stop) * time.Second; err != nil || got <= needs {
			t.Errorf("%s: TimeoutStopSec: got %s (%v), want more than the %s that the example's settings ask for", unitFile(program), got, err, needs)
		}
		limit, most := bytes(t, strings.TrimPrefix(u.one(t, "Environment"), "GOMEMLIMIT=")), bytes(t, u.one(t, "MemoryMax"))
		if share := float64(limit) / float64(most); share < 0.8 || share > 0.9 {
			t.Errorf("%s: GOMEMLIMIT: got %.2f of MemoryMax, want 0.8 to 0.9", unitFile(program), share)
		}
	}
}

// bytes reads a size as the Go runtime and as systemd write it.
func bytes(t *testing.T, text string) int {
	t.Helper()
	text = strings.TrimSuffix(text, "iB")
	n, err := strconv.Atoi(text[:len(text)-1])
	shift, ok := map[byte]int{'M': 20, 'G': 30}[text[len(text)-1]]
	if err != nil || !ok {
		t.Fatalf("%q: want a whole number of MiB or GiB", text)
	}
	return n << shift
}

// Every secret can come as a credential, and nothing else does.
func TestUnits_CredentialsAreTheSecrets(t *testing.T) {
	t.Parallel()
	for program, settings := range map[string]reflect.Type{
		"api": reflect.TypeFor[config.API](), "worker": reflect.TypeFor[config.Worker](),
	} {
		var want []string
		for _, s := range settingsOf(settings) {
			if s.secret {
				want = append(want, "holdfast."+strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.variable, "HOLDFAST_"), "_", "-")))
			}
		}
		got := readUnit(t, program)["LoadCredential"]
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: credentials (-secrets +got):\n%s", unitFile(program), diff)
		}
	}
}

// setting is one variable of a program.
type setting struct {
	variable, standard string
	secret             bool
}

func settingsOf(t reflect.Type) []setting {
	var all []setting
	for f := range t.Fields() {
		if f.Anonymous {
			all = append(all, settingsOf(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		all = append(all, setting{"HOLDFAST_" + name, f.Tag.Get("envDefault"), f.Type == reflect.TypeFor[config.Secret]()})
	}
	return all
}

// line is a setting in an example.
type line struct {
	name, value string
	set         bool // not commented out
}

// example reads an example's settings. Prose has a space after its #.
func example(t *testing.T, program string) []line {
	t.Helper()
	var all []line
	for text := range strings.Lines(read(t, filepath.Join("../env", program+".env.example"))) {
		text = strings.TrimSuffix(text, "\n")
		if text == "" || text == "#" || strings.HasPrefix(text, "# ") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(text, "#"), "=")
		if !ok {
			t.Fatalf("%s.env.example: %q: want NAME=value", program, text)
		}
		all = append(all, line{name, value, !strings.HasPrefix(text, "#")})
	}
	return all
}

// resolved answers as os.Getenv does where the example is the environment and every
// reference leads to 64 hex digits.
func resolved(lines []line) func(string) string {
	env := map[string]string{}
	for _, l := range lines {
		if l.set {
			env[l.name] = l.value
		}
		if name, ok := strings.CutSuffix(l.name, "_REF"); ok && l.set {
			env[name] = strings.Repeat("5e", 32)
		}
	}
	return func(name string) string { return env[name] }
}

// The examples show every setting that there is, and each default that they state is
// the program's.
func TestExamples_ShowEverySettingAndNoOther(t *testing.T) {
	t.Parallel()
	for program, settings := range map[string]reflect.Type{
		"api": reflect.TypeFor[config.API](), "worker": reflect.TypeFor[config.Worker](),
	} {
		if err := complete(example(t, program), settingsOf(settings)); err != nil {
			t.Errorf("%s.env.example:\n%v", program, err)
		}
	}
}

func complete(lines []line, settings []setting) error {
	var errs []error
	shown := map[string]int{}
	for _, l := range lines {
		name := strings.TrimSuffix(strings.TrimSuffix(l.name, "_REF"), "_FILE")
		shown[name]++
		i := slices.IndexFunc(settings, func(s setting) bool { return s.variable == name })
		switch {
		case i < 0:
			errs = append(errs, fmt.Errorf("%s: the program has no such setting", l.name))
		case !l.set && l.value != settings[i].standard:
			errs = append(errs, fmt.Errorf("%s: got %q as its default, want %q", l.name, l.value, settings[i].standard))
		case l.set && settings[i].secret && l.name == name:
			errs = append(errs, fmt.Errorf("%s: a secret is written out, want a reference or a file", l.name))
		}
	}
	for _, s := range settings {
		if shown[s.variable] != 1 {
			errs = append(errs, fmt.Errorf("%s: got it %d times, want it shown once", s.variable, shown[s.variable]))
		}
	}
	return errors.Join(errs...)
}

func TestComplete_FindsWhatItLooksFor(t *testing.T) {
	t.Parallel()
	settings := []setting{{"HOLDFAST_A", "1", false}, {"HOLDFAST_KEY", "", true}}
	a, key := line{"HOLDFAST_A", "1", false}, line{"HOLDFAST_KEY_REF", "ssm:x", true}
	for name, c := range map[string]struct {
		lines []line
		want  string
	}{
		"Whole":         {[]line{a, key}, ""},
		"Missing":       {[]line{key}, "HOLDFAST_A: got it 0 times"},
		"Twice":         {[]line{a, key, {"HOLDFAST_KEY_FILE", "/x", true}}, "HOLDFAST_KEY: got it 2 times"},
		"Unknown":       {[]line{a, key, {"HOLDFAST_B", "", false}}, "HOLDFAST_B: the program has no such"},
		"OtherDefault":  {[]line{{"HOLDFAST_A", "2", false}, key}, `HOLDFAST_A: got "2"`},
		"SecretWritten": {[]line{a, {"HOLDFAST_KEY", "x", true}}, "HOLDFAST_KEY: a secret"},
	} {
		err := complete(c.lines, settings)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
