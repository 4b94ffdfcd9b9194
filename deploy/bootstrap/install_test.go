// Package bootstrap_test runs the installation of a release, and the user data that
// starts it, on a minimal Debian of its own: systemd, dnf, the AWS CLI and the
// CloudWatch agent are stand-ins that note their calls, everything else is real.
package bootstrap_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	apiUnit, workerUnit = "holdfast-api.service", "holdfast-worker.service"
	journalUnit         = "holdfast-journal@.service"
	apiJournal          = "holdfast-journal@api.service"
	workerJournal       = "holdfast-journal@worker.service"
	agentUnit           = "amazon-cloudwatch-agent.service"
	ctlCall             = "ctl -a fetch-config -m ec2 -s -c file:/opt/aws/amazon-cloudwatch-agent/etc/agent.json"
)

// unpack puts a release of that version into the machine's /release.
func (m *machine) unpack(version string) {
	m.t.Helper()
	m.remove("release")
	for _, program := range []string{"api", "worker", "seatctl"} {
		m.write("release/bin/"+program, program+" "+version+"\n", 0o755)
	}
	for _, unit := range []string{apiUnit, workerUnit} {
		m.write("release/systemd/"+unit, m.read("../systemd/"+unit)+"# "+version+"\n", 0o644)
	}
	m.write("release/cloudwatch/agent.json", `{"deployment":"@DEPLOYMENT@","version":"`+version+`"}`, 0o644)
	m.write("release/cloudwatch/prometheus.yaml", "deployment: @DEPLOYMENT@ # "+version+"\n", 0o644)
	m.write("release/cloudwatch/"+journalUnit, m.read("../cloudwatch/"+journalUnit)+"# "+version+"\n", 0o644)
	m.write("release/install", m.read("install"), 0o755)
}

func (m *machine) settings(text string) {
	m.t.Helper()
	m.write("etc/holdfast/api.env", "API="+text+"\n", 0o644)
	m.write("etc/holdfast/worker.env", "WORKER="+text+"\n", 0o644)
	m.write("etc/holdfast/deployment", "demo\n", 0o644)
}

// mustInstall runs the release's own script.
func (m *machine) mustInstall() {
	m.t.Helper()
	if out, err := m.run(nil, "/release/install"); err != nil {
		m.t.Fatalf("install: got %v, want nil:\n%s", err, out)
	}
}

// installed is a machine with version 1 and settings 1, running.
func installed(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.unpack("1")
	m.settings("1")
	m.mustInstall()
	return m
}

// wantRunning checks that the services run on the release in /release and the settings
// as they are, and that nothing unfinished lies about.
func (m *machine) wantRunning() {
	m.t.Helper()
	deployment := strings.TrimSpace(m.read(m.path("etc/holdfast/deployment")))
	all := map[string][]string{
		apiUnit:       {"release/systemd/" + apiUnit, "release/bin/api", "etc/holdfast/api.env"},
		workerUnit:    {"release/systemd/" + workerUnit, "release/bin/worker", "etc/holdfast/worker.env"},
		apiJournal:    {"release/cloudwatch/" + journalUnit},
		workerJournal: {"release/cloudwatch/" + journalUnit},
		agentUnit:     {"release/cloudwatch/agent.json", "release/cloudwatch/prometheus.yaml"},
	}
	for unit, parts := range all {
		want := ""
		for _, part := range parts {
			want += strings.ReplaceAll(m.read(m.path(part)), "@DEPLOYMENT@", deployment)
		}
		got, err := os.ReadFile(m.path("srv/systemd/active/" + unit))
		if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
			m.t.Errorf("%s runs (%v) on (-want +got):\n%s", unit, err, diff)
		}
	}
	for unit := range all {
		if _, err := os.Stat(m.path("srv/systemd/enabled/" + unit)); err != nil && unit != agentUnit { // its control program enables that
			m.t.Errorf("%s: got %v, want it enabled", unit, err)
		}
	}
	for path, f := range m.files("opt", "etc/systemd/system") {
		if strings.HasSuffix(path, ".new") {
			m.t.Errorf("%s lies about", path)
		}
		if strings.HasPrefix(path, "/opt/holdfast/bin/") && f.Mode != 0o755 {
			m.t.Errorf("%s: got mode %v, want 0755", path, f.Mode)
		}
	}
	if got, want := m.read(m.path("opt/holdfast/bin/seatctl")), m.read(m.path("release/bin/seatctl")); got != want {
		m.t.Errorf("seatctl: got %q, want %q", got, want)
	}
}

func (m *machine) wantCalls(want ...string) {
	m.t.Helper()
	if want == nil {
		want = []string{""}
	}
	if diff := cmp.Diff(want, m.calls()); diff != "" {
		m.t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestInstall_FromNothingToRunning(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.wantRunning()
	m.wantCalls(
		"systemctl enable "+apiUnit, "systemctl daemon-reload ", "systemctl restart "+apiUnit,
		"systemctl enable "+workerUnit, "systemctl restart "+workerUnit,
		"systemctl enable "+apiJournal, "systemctl restart "+apiJournal,
		"systemctl enable "+workerJournal, "systemctl restart "+workerJournal,
		"dnf install --assumeyes --quiet chrony", "systemctl enable chronyd.service", "systemctl start chronyd.service",
		"dnf install --assumeyes --quiet amazon-cloudwatch-agent", ctlCall,
	)
}

func TestInstall_SecondRunChangesNothing(t *testing.T) {
	t.Parallel()
	m := installed(t)
	before := m.files("opt", "etc")
	m.calls()

	m.mustInstall()

	m.wantCalls()
	if diff := cmp.Diff(before, m.files("opt", "etc")); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

func TestInstall_RestartsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.calls()
	running, err := os.Open(m.path("opt/holdfast/bin/worker"))
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	restart := func(unit string) []string { return []string{"systemctl daemon-reload ", "systemctl restart " + unit} }
	for _, c := range []struct {
		place, text, why string
		want             []string
	}{
		{"release/bin/worker", "worker 2\n", "a program", restart(workerUnit)},
		{"release/systemd/" + apiUnit, "[Service]\n", "a unit", restart(apiUnit)},
		{"etc/holdfast/api.env", "API=2\n", "settings", restart(apiUnit)},
		{"release/cloudwatch/prometheus.yaml", "deployment: @DEPLOYMENT@ # 2\n", "the agent's files", []string{ctlCall}},
		{"release/cloudwatch/" + journalUnit, "[Service]\n", "the journal's unit", []string{"systemctl daemon-reload ", "systemctl restart " + apiJournal, "systemctl restart " + workerJournal}},
		{"release/bin/seatctl", "seatctl 2\n", "the operator's tool", nil},
	} {
		m.write(c.place, c.text, 0o755)
		m.mustInstall()
		m.wantCalls(c.want...)
		if t.Failed() {
			t.Fatalf("%s changed", c.why)
		}
	}
	m.wantRunning()

	// A program that runs keeps its file: the new one took the name, not the place.
	if text, err := io.ReadAll(running); err != nil || string(text) != "worker 1\n" {
		t.Errorf("the old program: got %q, %v, want it whole", text, err)
	}

	// One that somebody stopped is started, on what it had.
	m.remove("srv/systemd/active/" + apiUnit)
	m.mustInstall()
	m.wantCalls(restart(apiUnit)...)
}

// A kill at any command leaves every program whole, the old one or the new one, and the
// next run completes what it began.
func TestInstall_KilledHalfWay(t *testing.T) {
	t.Parallel()
	m := installed(t)
	// Kills the script, and not the stand-ins, before the command of that number.
	m.write("srv/killer", `case $0 in */install)
  n=0
  trap 'n=$((n + 1)); [ "$n" -ne "$KILL_AT" ] || kill -9 $$' DEBUG
  set -T ;;
esac
`, 0o644)
	const step = 11 // each costs a second; over the steps every part of the script is met
	killed := 0
	for at := 1; ; at += step {
		before, now := strconv.Itoa(killed+1), strconv.Itoa(killed+2)
		m.unpack(now)
		m.settings(now)
		out, err := m.run([]string{"BASH_ENV=/srv/killer", "KILL_AT=" + strconv.Itoa(at)}, "/release/install")
		if err == nil {
			break // it had fewer commands
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("killed at command %d: got %v, want its death:\n%s", at, err, out)
		}
		killed++
		for _, program := range []string{"api", "worker", "seatctl"} {
			got := m.read(m.path("opt/holdfast/bin/" + program))
			if got != program+" "+before+"\n" && got != program+" "+now+"\n" {
				t.Errorf("killed at command %d: %s: got %q, want version %s or %s", at, program, got, before, now)
			}
		}
		m.mustInstall()
		m.wantRunning()
		if t.Failed() {
			t.Fatalf("killed at command %d", at)
		}
	}
	if killed < 10 {
		t.Errorf("got %d kills, want the whole script met", killed)
	}
	m.wantRunning()
}

func TestInstall_RefusesWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	m := installed(t)
	before := m.files("opt", "etc/systemd")
	m.calls()
	for place, want := range map[string]string{
		"release/bin/worker":            "install: the release has no bin/worker: unpack it anew",
		"release/systemd/" + apiUnit:    "install: the release has no systemd/holdfast-api.service",
		"release/cloudwatch/agent.json": "install: the release has no cloudwatch/agent.json",
		"etc/holdfast/worker.env":       "install: there is no /etc/holdfast/worker.env: write the settings first",
	} {
		m.unpack("2")
		m.settings("1")
		m.remove(place)
		out, err := m.run(nil, "/release/install")
		if err == nil || !strings.HasPrefix(out, want) {
			t.Errorf("without %s: got %v, %q, want %q", place, err, out, want)
		}
		m.wantCalls()
		if diff := cmp.Diff(before, m.files("opt", "etc/systemd")); diff != "" {
			t.Errorf("without %s: files (-before +after):\n%s", place, diff)
		}
	}
}

func TestInstall_WhatFailsIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	for broken, c := range map[string]struct{ runs, retried string }{
		workerUnit: {runs: "", retried: "systemctl restart " + workerUnit},
		// The services run without packages.
		"dnf": {runs: workerUnit, retried: "dnf install --assumeyes --quiet amazon-cloudwatch-agent"},
		"ctl": {runs: workerUnit, retried: ctlCall},
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.unpack("1")
			m.settings("1")
			m.write("srv/broken/"+broken, "", 0o644)
			if out, err := m.run(nil, "/release/install"); err == nil {
				t.Errorf("got nil, want an error:\n%s", out)
			}
			if _, err := os.Stat(m.path("srv/systemd/active/" + workerUnit)); (err == nil) != (c.runs == workerUnit) {
				t.Errorf("worker: got %v, want it to run: %v", err, c.runs == workerUnit)
			}
			m.calls()

			m.remove("srv/broken")
			m.mustInstall()
			m.wantRunning()
			if got := m.calls(); !strings.Contains(strings.Join(got, "\n"), c.retried) {
				t.Errorf("second run: got calls %q, want %q among them", got, c.retried)
			}
		})
	}
}

// archive packs /release as the release script does, and returns its checksum.
func (m *machine) archive(place string) string {
	m.t.Helper()
	path := m.path(place)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if out, err := exec.CommandContext(m.t.Context(), "tar", "-C", m.path("release"), "-czf", path, ".").CombinedOutput(); err != nil {
		m.t.Fatalf("pack: %v\n%s", err, out)
	}
	out, err := m.run(nil, "/usr/bin/sha256sum", "/"+place)
	if err != nil {
		m.t.Fatal(err)
	}
	sum, _, _ := strings.Cut(out, " ")
	return sum
}

// wantSaid checks the last events that the user data sent to its log group.
func (m *machine) wantSaid(want ...string) {
	m.t.Helper()
	var events []struct {
		Timestamp int64  `json:"timestamp"`
		Message   string `json:"message"`
	}
	if err := json.Unmarshal([]byte(m.read(m.path("srv/events.json"))), &events); err != nil {
		m.t.Fatalf("events: got %v, want JSON", err)
	}
	var got []string
	for _, e := range events {
		if age := time.Since(time.UnixMilli(e.Timestamp)); age < -time.Minute || age > time.Minute {
			m.t.Errorf("event %q: got an age of %s, want it of now", e.Message, age)
		}
		got = append(got, e.Message)
	}
	if diff := cmp.Diff(want, got[max(0, len(got)-len(want)):]); diff != "" {
		m.t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestUserData_InstallsTheReleaseAndSaysSo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.unpack("1")
	const place = "srv/s3/artifacts/releases/v1.0.0/holdfast-v1.0.0-linux-arm64.tar.gz"
	sum := m.archive(place)
	start := func(sum string) (string, error) {
		m.write("var/lib/cloud/instance/scripts/part-001", userData(t, map[string]string{
			"Version": "v1.0.0", "ArtifactSha256": sum, "PublicHost": "seats.example.org",
			"ArtifactBucket": "artifacts", "AWS::Region": "ap-south-1", "AWS::StackName": "holdfast-compute",
			"ApiSecret":    "arn:aws:secretsmanager:ap-south-1:123456789012:secret:holdfast/api-AbCdEf",
			"LoaderSecret": "arn:aws:secretsmanager:ap-south-1:123456789012:secret:holdfast/loader-AbCdEf",
		}), 0o755)
		return m.run(nil, "/var/lib/cloud/instance/scripts/part-001")
	}
	const (
		get    = "aws s3 cp --only-show-errors s3://artifacts/releases/v1.0.0/holdfast-v1.0.0-linux-arm64.tar.gz "
		wait   = "aws elbv2 wait target-in-service --target-group-arn <TargetGroup> --targets Id=i-0123456789abcdef0"
		signal = "aws cloudformation signal-resource --stack-name holdfast-compute --logical-resource-id Fleet --unique-id i-0123456789abcdef0 --status "
	)

	if out, err := start(sum); err != nil {
		t.Fatalf("got %v, want nil:\n%s", err, out)
	}
	m.wantRunning()
	got := m.calls()
	if first, last := got[0], got[len(got)-4:]; !strings.HasPrefix(first, get) || last[0] != wait || last[3] != signal+"SUCCESS" {
		t.Errorf("calls: got %q, want the release, its installation, %q, its log and success", got, wait)
	}
	m.wantSaid("bootstrap of v1.0.0: SUCCESS")
	for _, c := range []struct{ place, line string }{
		{"api.env", "HOLDFAST_PUBLIC_URL=https://seats.example.org"},
		{"api.env", "HOLDFAST_SEAL_KEY_REF=secretsmanager:arn:aws:secretsmanager:ap-south-1:123456789012:secret:holdfast/api-AbCdEf#seal_key"},
		{"api.env", "HOLDFAST_CODE_PATTERN=^[A-Z0-9-]{4,32}$"},
		{"worker.env", "HOLDFAST_AWS_REGION=ap-south-1"},
		{"operator/holdfast.env", "HOLDFAST_REDIS_USERNAME=operator"},
		{"loader/holdfast.env", "HOLDFAST_REDIS_USERNAME=loader"},
		{"loader/holdfast.env", "HOLDFAST_REDIS_PASSWORD_REF=secretsmanager:arn:aws:secretsmanager:ap-south-1:123456789012:secret:holdfast/loader-AbCdEf#redis_password"},
	} {
		if text := m.read(m.path("etc/holdfast/" + c.place)); !strings.Contains("\n"+text, "\n"+c.line+"\n") {
			t.Errorf("%s: got no line %q in:\n%s", c.place, c.line, text)
		}
	}

	// Again: the settings are what they were, and nothing is restarted. That nobody
	// waits for the signal is no failure.
	m.write("srv/broken/signal", "", 0o644)
	if out, err := start(sum); err != nil {
		t.Errorf("again: got %v, want nil:\n%s", err, out)
	}
	if got := m.calls(); len(got) != 5 {
		t.Errorf("again: got calls %q, want the release, the balancer, the log and the signal alone", got)
	}
	m.remove("srv/broken")

	// Another archive than the one that was meant: nothing of it is unpacked.
	before := m.files("opt", "etc/systemd")
	m.unpack("2")
	m.archive(place)
	out, err := start(sum)
	if err == nil || !strings.Contains(out, "the archive of v1.0.0 is not the one with ArtifactSha256: nothing was installed") {
		t.Errorf("another archive: got %v, %q, want it refused", err, out)
	}
	if got := m.calls(); len(got) != 4 || got[3] != signal+"FAILURE" {
		t.Errorf("another archive: got calls %q, want the release, the log and failure", got)
	}
	m.wantSaid("the archive of v1.0.0 is not the one with ArtifactSha256: nothing was installed", "bootstrap of v1.0.0: FAILURE")
	if diff := cmp.Diff(before, m.files("opt", "etc/systemd")); diff != "" {
		t.Errorf("another archive: files (-before +after):\n%s", diff)
	}
	left, err := fs.Glob(os.DirFS(m.path("var/tmp")), "*")
	if err != nil || len(left) != 0 {
		t.Errorf("/var/tmp: got %q (%v), want nothing left", left, err)
	}

	// A new one that never becomes healthy is told as failed, also where it cannot write
	// its log.
	m.write("srv/broken/target", "", 0o644)
	m.write("srv/broken/logs", "", 0o644)
	if out, err := start(m.archive(place)); err == nil {
		t.Errorf("not healthy: got nil, want an error:\n%s", out)
	}
	if got := m.calls(); got[len(got)-1] != signal+"FAILURE" {
		t.Errorf("not healthy: got calls %q, want failure last", got)
	}
}

// What the user data installs runs on the AMI's bash; that it is bash at all, and whole,
// is checked without a root.
func TestScripts_AreWholeBash(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"user data": userData(t, nil), "install": mustRead(t, "install")} {
		cmd := exec.CommandContext(t.Context(), "bash", "-n")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(text, "#!/bin/bash\n") {
			t.Errorf("%s: got %v, want a script of bash:\n%s", name, err, out)
		}
		if size := len(text); size > 12<<10 { // 16 KiB is EC2's limit, and parameters take room
			t.Errorf("%s: got %d bytes, want at most 12 KiB", name, size)
		}
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(fmt.Errorf("read: %w", err))
	}
	return string(text)
}
