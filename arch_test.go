// Package holdfast_test holds the house to its own plan: which room may import
// which, and a few habits that the compiler does not know. It reads the source
// as it lies on the disk.
package holdfast_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "holdfast/"

// anything lets a room import every room but those for tests.
const anything = "*"

// plan says of each room which of our rooms its own code may import, and why. A
// package without a row fails; so does an import that its row does not name.
// Test files may import what they like. A room that is not built yet may have
// its row already.
var plan = []struct {
	why   string
	rooms map[string][]string
}{
	{"the domain is everybody's vocabulary and knows no technology", map[string][]string{
		"internal/booking": {},
	}},
	{"a use case knows the domain and declares what else it needs; internal/app hands it over", map[string][]string{
		"internal/checkout":     {"internal/booking"},
		"internal/settle":       {"internal/booking"},
		"internal/refund":       {"internal/booking"},
		"internal/notification": {"internal/booking"},
		"internal/resolve":      {"internal/booking"},
		"internal/record":       {"internal/booking"},
		"internal/reconcile":    {"internal/booking"},
		"internal/ledgerstats":  {"internal/booking"},
		"internal/saleops":      {"internal/booking"},
		"internal/statuspage":   {"internal/booking", "internal/objstore"},
	}},
	{"an adapter knows the domain and one outside system, never another adapter", map[string][]string{
		"internal/admission":          {"internal/booking", "scripts/lua"},
		"internal/lease":              {},
		"internal/paygate":            {"internal/booking"},
		"internal/paygate/redistoken": {"internal/booking", "internal/paygate"},
		"internal/sqlitedb":           {},
		"internal/store/sqlite":       {"internal/booking", "internal/sqlitedb"},
		"internal/store/dynamo":       {"internal/booking"},
		"internal/queue/sqlite":       {"internal/booking", "internal/sqlitedb"},
		"internal/queue/sqs":          {"internal/booking"},
		"internal/objstore":           {},
		"internal/objstore/sqlite":    {"internal/booking", "internal/objstore", "internal/sqlitedb"},
		"internal/objstore/memory":    {"internal/booking", "internal/objstore"},
		"internal/objstore/s3":        {"internal/booking", "internal/objstore"},
		"internal/mailer":             {"internal/booking"},
		"internal/mailer/outbox":      {"internal/booking", "internal/mailer"},
		"internal/mailer/smtp":        {"internal/booking", "internal/mailer"},
		"internal/mailer/ses":         {"internal/booking", "internal/mailer"},
		"internal/awsclient":          {},
		"internal/secretref":          {},
		"internal/backoffice":         {"internal/booking"},
		"internal/expiry":             {"internal/booking"},
		"internal/snshook":            {"internal/booking"},
		"internal/salefile":           {"internal/booking"},
		"internal/alarms":             {},
	}},
	{"a folder of embedded files is files and nothing more", map[string][]string{
		"deploy/prometheus": {},
		"examples":          {},
		"scripts/lua":       {},
	}},
	{"the edge sees use cases through interfaces of its own", map[string][]string{
		"internal/httpapi":     {"internal/booking", "internal/flight", "internal/httpapi/web", "internal/obs"},
		"internal/httpapi/web": {"internal/booking"},
		"internal/adminapi":    {"internal/booking", "internal/salefile"},
		"internal/wall":        {"internal/booking"},
	}},
	{"what every process uses is handed values and knows nothing of ours", map[string][]string{
		"internal/config":    {},
		"internal/flight":    {},
		"internal/obs":       {},
		"internal/overload":  {},
		"internal/redisproc": {},
	}},
	{"wiring ties everything together; only commands import it", map[string][]string{
		"internal/app":           {anything},
		"internal/app/cloud":     {anything, "internal/app"},
		"internal/app/functions": {anything},
		"internal/app/local":     {anything, "internal/app", "internal/mockgateway", "internal/redisproc"},
		"cmd/api":                {"internal/app", "internal/app/cloud"},
		"cmd/worker":             {"internal/app", "internal/app/cloud"},
		"cmd/expiry-lambda":      {"internal/app/functions"},
		"cmd/sync-lambda":        {"internal/app/functions"},
		"internal/seatctl":       {anything, "internal/app"},
		"cmd/seatctl":            {"internal/app/cloud", "internal/seatctl"},
		"cmd/local":              {"internal/app", "internal/app/local"},
		"cmd/mockgateway":        {"internal/mockgateway"},
	}},
	{"what the images of the middle profile need besides the programs", map[string][]string{
		"build/probe": {},
		"build/setup": {anything, "internal/app", "internal/app/cloud"},
	}},
	{"a benchmark measures the real rooms, on servers that it starts", map[string][]string{
		"internal/bench": {anything, "internal/app", "internal/mockgateway", "internal/redisproc"},
	}},
	{"a model of the launch is arithmetic over the domain's records", map[string][]string{
		"internal/capacity": {"internal/booking"},
	}},
	{"what is asked of a deployment from outside, and of its templates, needs no room of ours", map[string][]string{
		"internal/smoke":      {},
		"internal/stackcheck": {},
	}},
	{"a rehearsal runs the real programs, the operator's commands and the mock gateway", map[string][]string{
		"internal/rehearse": {anything, "internal/app", "internal/mockgateway", "internal/redisproc"},
	}},
	{"a stand-in or a contract suite speaks the domain's words only", map[string][]string{
		"internal/mockgateway":           {"internal/booking"},
		"internal/model":                 {},
		"internal/testenv":               {"internal/redisproc"},
		"internal/pagetest":              {},
		"internal/browsertest":           {},
		"internal/k6test":                {},
		"internal/booking/bookingtest":   {"internal/booking"},
		"internal/store/storetest":       {"internal/booking"},
		"internal/queue/queuetest":       {"internal/booking"},
		"internal/objstore/objstoretest": {"internal/booking", "internal/objstore"},
	}},
}

// isTestRoom tells whether a room is for tests and for the local profile, so
// that "anything" does not include it.
func isTestRoom(room string) bool {
	switch room {
	case "internal/mockgateway", "internal/redisproc", "internal/testenv":
		return true
	}
	return strings.HasSuffix(room, "test")
}

// isWiring tells whether "anything" does not include a room because only
// commands import it.
func isWiring(room string) bool {
	return room == "internal/app" || strings.HasPrefix(room, "internal/app/") || strings.HasPrefix(room, "cmd/")
}

// shipped are the commands that run in production.
var shipped = []string{"cmd/api", "cmd/worker", "cmd/expiry-lambda", "cmd/sync-lambda"}

// unlinked are packages that commands must not link, also indirectly. A prefix ends
// at the end of a path's element.
var unlinked = []struct {
	commands    []string
	prefix, why string
}{
	{shipped, module + "internal/mockgateway", "production cannot be its own gateway"},
	{shipped, module + "internal/redisproc", "production starts no servers"},
	{shipped, module + "internal/testenv", "test rooms are not shipped"},
	{shipped, module + "internal/bench", "a benchmark is not shipped"},
	{shipped, "github.com/prometheus/prometheus", "who judges the rules is not among those that are judged"},
	{shipped, "github.com/alicebob/miniredis", "seats live in a real Redis"},
	{shipped, "github.com/testcontainers", "test rooms are not shipped"},
	{shipped, "testing", "test rooms are not shipped"},
	{[]string{"cmd/local"}, "github.com/aws", "the laptop's profile starts and builds fast"},
	{[]string{"cmd/expiry-lambda", "cmd/sync-lambda"}, "github.com/redis", "a function has no Redis"},
}

// mainLines bounds a command's main.go: it is a shell around internal/app, which
// can be tested.
const mainLines = 30

// sleepsAllowed are test files that may sleep outside a synctest bubble, and
// why.
var sleepsAllowed = map[string]string{}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Name, Dir, Doc               string
	GoFiles, IgnoredGoFiles                  []string
	TestGoFiles, XTestGoFiles, Imports, Deps []string
}

// room is the package's path inside the module.
func (p listed) room() string { return strings.TrimPrefix(p.ImportPath, module) }

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e",
		"-json=ImportPath,Name,Dir,Doc,GoFiles,IgnoredGoFiles,TestGoFiles,XTestGoFiles,Imports,Deps", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: got %v, want nil", err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("decode go list: got %v, want nil", err)
		}
		all = append(all, p)
	}
	if len(all) < 2 {
		t.Fatalf("go list: got %d packages, want the whole house", len(all))
	}
	return all
}

func TestHouse(t *testing.T) {
	t.Parallel()
	all := list(t)
	report := func(t *testing.T, problems []string) {
		t.Helper()
		for _, p := range problems {
			t.Error(p)
		}
	}
	t.Run("ImportsFollowThePlan", func(t *testing.T) { report(t, importProblems(all)) })
	t.Run("CommandsLinkNoTestRooms", func(t *testing.T) { report(t, linkProblems(all)) })
	t.Run("PackagesHaveAComment", func(t *testing.T) { report(t, commentProblems(all)) })
	t.Run("MainIsAShell", func(t *testing.T) {
		mains, err := filepath.Glob("cmd/*/main.go")
		if err != nil {
			t.Fatalf("glob: got %v, want nil", err)
		}
		for _, name := range mains {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Errorf("%s: got %v, want nil", name, err)
			}
			if n := bytes.Count(source, []byte("\n")); n >= mainLines {
				t.Errorf("%s: got %d lines, want under %d: main is a shell, the wiring belongs to internal/app", name, n, mainLines)
			}
		}
	})
	t.Run("HabitsOfTheSource", func(t *testing.T) {
		slept := map[string]bool{}
		for name := range files(t, all) {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Errorf("%s: got %v, want nil", name, err)
				continue
			}
			for _, p := range sourceProblems(name, source) {
				if p.kind == sleeping && sleepsAllowed[name] != "" {
					slept[name] = true
					continue
				}
				t.Error(p.text)
			}
		}
		for name := range sleepsAllowed {
			if !slept[name] {
				t.Errorf("%s: allowed to sleep and does not: take it off the list", name)
			}
		}
	})
}

// files lists the module's Go files by their path from the root.
func files(t *testing.T, all []listed) map[string]bool {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatalf("working directory: got %v, want nil", err)
	}
	names := map[string]bool{}
	for _, p := range all {
		for _, f := range slices.Concat(p.GoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			name, err := filepath.Rel(root, filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatalf("path of %s: got %v, want nil", f, err)
			}
			names[filepath.ToSlash(name)] = true
		}
	}
	return names
}

func importProblems(all []listed) []string {
	var problems []string
	for _, p := range all {
		if len(p.GoFiles) == 0 {
			continue // tests only, as here at the root
		}
		allowed, why, planned := row(p.room())
		if !planned {
			problems = append(problems, fmt.Sprintf("%s: has no row in the plan of arch_test.go: say there what it may import", p.room()))
			continue
		}
		for _, path := range p.Imports {
			to, ours := strings.CutPrefix(path, module)
			if !ours || slices.Contains(allowed, to) {
				continue
			}
			if slices.Contains(allowed, anything) && !isTestRoom(to) && !isWiring(to) {
				continue
			}
			reason := why
			if isTestRoom(to) {
				reason = "test rooms are imported by tests and the local profile only"
			}
			problems = append(problems, fmt.Sprintf("%s imports %s: %s (it may import %v)", p.room(), to, reason, allowed))
		}
	}
	return problems
}

func row(room string) (allowed []string, why string, ok bool) {
	for _, g := range plan {
		if allowed, ok := g.rooms[room]; ok {
			return allowed, g.why, true
		}
	}
	return nil, "", false
}

func linkProblems(all []listed) []string {
	var problems []string
	for _, p := range all {
		for _, u := range unlinked {
			if !slices.Contains(u.commands, p.room()) {
				continue
			}
			for _, dep := range p.Deps {
				if dep == u.prefix || strings.HasPrefix(dep, u.prefix+"/") {
					problems = append(problems, fmt.Sprintf("%s links %s: %s", p.room(), dep, u.why))
				}
			}
		}
	}
	return problems
}

func commentProblems(all []listed) []string {
	var problems []string
	for _, p := range all {
		if len(p.GoFiles) == 0 {
			continue
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "" // any words
		}
		if p.Doc == "" || !strings.HasPrefix(p.Doc, want) {
			problems = append(problems, fmt.Sprintf("%s: got package comment %q, want one that begins with %q and says what it is for", p.room(), p.Doc, want))
		}
	}
	return problems
}

type kind int

const (
	habit kind = iota
	sleeping
)

type problem struct {
	kind kind
	text string
}

// forbidden are names that no file may use, and what to do instead.
var forbidden = map[string]string{
	"http.DefaultClient":      "it has no time-out; take an *http.Client",
	"http.Get":                "it uses the default client; take an *http.Client",
	"http.Post":               "it uses the default client; take an *http.Client",
	"slog.SetDefault":         "a logger is passed in",
	"prometheus.MustRegister": "a registry is passed in",
}

// sourceProblems looks at one file.
func sourceProblems(name string, source []byte) []problem {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
	if err != nil {
		return []problem{{habit, err.Error()}}
	}
	var problems []problem
	add := func(k kind, n ast.Node, text string) {
		problems = append(problems, problem{k, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), text)})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				add(habit, n, "func init: everything is passed in, nothing happens on import")
			}
		case *ast.CallExpr:
			// The time of a bubble does not pass on the wall.
			return selected(n.Fun) != "synctest.Test"
		case *ast.SelectorExpr:
			used := selected(n)
			if why, bad := forbidden[used]; bad {
				add(habit, n, used+": "+why)
			}
			if used == "time.Sleep" && strings.HasSuffix(name, "_test.go") {
				add(sleeping, n, "time.Sleep: a test waits for what it wants, or sleeps in a synctest bubble")
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && strings.Contains(text, "failed"+" to") {
				add(habit, n, "an error names the operation: the reader knows that it went wrong")
			}
		}
		return true
	})
	return problems
}

// selected is "pkg.Name" of such an expression, else "".
func selected(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// The checks above are worth what they find.
func TestChecks_FindWhatTheyLookFor(t *testing.T) {
	t.Parallel()
	pkg := func(room, doc string, imports ...string) listed {
		return listed{ImportPath: module + room, Name: path.Base(room), Doc: doc, GoFiles: []string{"a.go"}, Imports: imports, Deps: imports}
	}
	for _, c := range []struct {
		name string
		got  []string
		want int
	}{
		{"a planned import", importProblems([]listed{pkg("internal/settle", "", module+"internal/booking", "fmt")}), 0},
		{"an adapter in a use case", importProblems([]listed{pkg("internal/settle", "", module+"internal/admission")}), 1},
		{"a room without a row", importProblems([]listed{pkg("internal/util", "")}), 1},
		{"anything for the wiring", importProblems([]listed{pkg("internal/app", "", module+"internal/admission")}), 0},
		{"a stand-in in the wiring", importProblems([]listed{pkg("internal/app", "", module+"internal/mockgateway")}), 1},
		{"a suite in the wiring", importProblems([]listed{pkg("internal/app", "", module+"internal/store/storetest")}), 1},
		{"the local profile's stand-in", importProblems([]listed{pkg("internal/app/local", "", module+"internal/mockgateway")}), 0},
		{"the wiring in a use case", importProblems([]listed{pkg("internal/record", "", module+"internal/app")}), 1},
		{"the wiring in the local profile", importProblems([]listed{pkg("internal/app/local", "", module+"internal/app")}), 0},
		{"a linked stand-in", linkProblems([]listed{pkg("cmd/api", "", module+"internal/mockgateway")}), 1},
		{"a linked fake", linkProblems([]listed{pkg("cmd/worker", "", "github.com/alicebob/miniredis/v2/server")}), 1},
		{"a linked driver of AWS", linkProblems([]listed{pkg("cmd/local", "", "github.com/aws/aws-sdk-go-v2/service/sqs")}), 1},
		{"a linked driver of AWS elsewhere", linkProblems([]listed{pkg("cmd/api", "", "github.com/aws/aws-sdk-go-v2/service/sqs")}), 0},
		{"a linked fake elsewhere", linkProblems([]listed{pkg("cmd/local", "", "github.com/alicebob/miniredis/v2")}), 0},
		{"a package comment", commentProblems([]listed{pkg("internal/obs", "Package obs sees.")}), 0},
		{"no package comment", commentProblems([]listed{pkg("internal/obs", "")}), 1},
	} {
		if len(c.got) != c.want {
			t.Errorf("%s: got problems %q, want %d", c.name, c.got, c.want)
		}
	}
	for _, c := range []struct {
		file, source string
		want         int
	}{
		{"a.go", "func init() {}", 1},
		{"a.go", "type t struct{}\nfunc (t) init() {}", 0},
		{"a.go", "var c = http.DefaultClient", 1},
		{"a.go", "var c = &http.Client{}", 0},
		{"a.go", `var err = errors.New("fai` + `led to open")`, 1},
		{"a_test.go", "func f() { time.Sleep(1) }", 1},
		{"a.go", "func f() { time.Sleep(1) }", 0},
		{"a_test.go", "func f() { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }", 0},
		{"a.go", "func {", 1},
	} {
		if got := sourceProblems(c.file, []byte("package a\n"+c.source)); len(got) != c.want {
			t.Errorf("%s %q: got problems %v, want %d", c.file, c.source, got, c.want)
		}
	}
}
