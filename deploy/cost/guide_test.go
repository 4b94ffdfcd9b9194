package cost_test

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/app"
	"holdfast/internal/seatctl"
)

// Pages that are held to the tree, by their path from the root.
const (
	guide    = "deploy/README.md"
	security = "docs/security.md"
	costs    = "deploy/cost/README.md"
)

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(root + name)
	if err != nil {
		t.Fatalf("read: got %v, want nil", err)
	}
	return string(text)
}

var (
	fence  = regexp.MustCompile("(?ms)^```sh[^\n]*\n(.*?)^```$")
	block  = regexp.MustCompile("(?ms)^```sh ([a-z-]+)\n(.*?)^```$")
	ticked = regexp.MustCompile("`([^`\n]+)`")
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// blocks are a page's commands, one block a text, continued lines joined.
func blocks(text string) []string {
	var out []string
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		out = append(out, strings.ReplaceAll(m[1], "\\\n", " "))
	}
	return out
}

// anchors are the names under which a page's headings are reached.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out[strings.ReplaceAll(name, " ", "-")] = true
	}
	return out
}

func TestPages_LinksLeadToWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{guide, security, costs} {
		text := page(t, name)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file, to := name, text
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
				if _, err := os.Stat(root + file); err != nil {
					t.Errorf("%s: link %s: got no such file, want one", name, m[1])
					continue
				}
				if anchor != "" {
					to = page(t, file)
				}
			}
			if anchor != "" && !anchors(to)[anchor] {
				t.Errorf("%s: link %s: got no heading of that name in %s, want one", name, m[1], file)
			}
		}
		for _, m := range ticked.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`^(cmd|cloudformation|deploy|docs|examples|internal|k6|scripts)/[\w./-]+$`).MatchString(m[1]) {
				continue
			}
			if _, err := os.Stat(root + m[1]); err != nil {
				t.Errorf("%s: got %s and no such file, want one", name, m[1])
			}
		}
	}
}

func TestPages_CommandsAreBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatalf("look for bash: got %v, want one", err)
	}
	for _, block := range blocks(page(t, guide)) {
		cmd := exec.CommandContext(t.Context(), bash, "-n")
		cmd.Stdin = strings.NewReader(block)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: got %v: %s, want commands that bash can read:\n%s", guide, err, said, block)
		}
	}
}

func TestPages_MakeTargetsAreThere(t *testing.T) {
	t.Parallel()
	makefile := page(t, "Makefile")
	for _, name := range []string{guide, security, costs} {
		for _, m := range regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z-]*)").FindAllStringSubmatch(page(t, name), -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
				t.Errorf("%s: got make %s and no such target, want one", name, m[1])
			}
		}
	}
}

// help is what seatctl says of a command line, and whether it knows the command.
func help(t *testing.T, words ...string) (text string, ok bool) {
	t.Helper()
	var out, errs bytes.Buffer
	code := seatctl.Run(t.Context(), app.Platform{}, append(words, "--help"), func(string) string { return "" }, strings.NewReader(""), &out, &errs)
	return out.String(), code == 0
}

// commandLines are the seatctl commands of a page, in blocks and between ticks.
func commandLines(text string) []string {
	var out []string
	for _, block := range blocks(text) {
		for line := range strings.Lines(block) {
			if _, line, found := strings.Cut(" "+line, " seatctl "); found && !strings.HasPrefix(strings.TrimSpace(line), "#") {
				out = append(out, strings.TrimSpace(regexp.MustCompile(`\s+#.*`).ReplaceAllString(line, "")))
			}
		}
	}
	for _, m := range ticked.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		if line, found := strings.CutPrefix(m[1], "seatctl "); found {
			out = append(out, line)
		}
	}
	return out
}

func TestPages_OperatorsCommandsAndFlagsAreThere(t *testing.T) {
	all, ok := help(t)
	if !ok {
		t.Fatal("seatctl --help: got an error, want its commands")
	}
	flag := regexp.MustCompile(`--[a-z][a-z-]*`)
	for _, name := range []string{guide, security, costs} {
		for _, line := range commandLines(page(t, name)) {
			words := strings.Fields(line)
			command := words[:1]
			if len(words) > 1 && regexp.MustCompile(`(?m)^  `+regexp.QuoteMeta(words[0]+" "+words[1])+`\b`).MatchString(all) {
				command = words[:2]
			} else if !regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(words[0]) + `\b`).MatchString(all) {
				t.Errorf("%s: seatctl %s: got no such command, want one", name, line)
				continue
			}
			said, ok := help(t, command...)
			if !ok {
				t.Errorf("%s: seatctl %s: got no help for %q, want some", name, line, command)
			}
			known := flag.FindAllString(said, -1)
			for _, f := range flag.FindAllString(line, -1) {
				if !slices.Contains(known, f) {
					t.Errorf("%s: seatctl %s: got no flag %s of that command, want it", name, line, f)
				}
			}
		}
	}
}

func TestPages_StacksHaveTheParametersThatAreGiven(t *testing.T) {
	t.Parallel()
	created := map[string]bool{}
	for _, block := range blocks(page(t, guide)) {
		for line := range strings.Lines(block) {
			m := regexp.MustCompile(`^\s*(?:FLAGS=\S+ )?stack ([a-z]+)(.*)$`).FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil {
				continue
			}
			tpl, given := read(t, m[1]), map[string]bool{"Deployment": true}
			named := regexp.MustCompile(`\$\([^()]*\)`).ReplaceAllString(m[2], "") // other commands have names of their own
			for _, p := range regexp.MustCompile(`(?:^|\s)([A-Z][A-Za-z0-9]*)=`).FindAllStringSubmatch(named, -1) {
				given[p[1]] = true
				if _, known := tpl.Parameters[p[1]]; !known {
					t.Errorf("%s: stack %s: got parameter %s, which the template has not", guide, m[1], p[1])
				}
			}
			if created[m[1]] {
				continue
			}
			created[m[1]] = true
			for p, node := range tpl.Parameters {
				if find(&node, "Default") == nil && !given[p] {
					t.Errorf("%s: stack %s is created without %s, want it: it has no default", guide, m[1], p)
				}
			}
		}
	}
	for _, part := range stacks() {
		if !created[part] {
			t.Errorf("%s: got no command that creates the stack %s, want one", guide, part)
		}
	}
}

func TestPages_ExportsAndOutputsAreThere(t *testing.T) {
	t.Parallel()
	exports := map[string]bool{}
	for _, part := range stacks() {
		for _, output := range read(t, part).Outputs {
			if name := find(&output, "Export", "Name"); name != nil {
				exports[strings.TrimPrefix(name.Value, "${Deployment}:")] = true
			}
		}
	}
	edge := read(t, "edge").Outputs
	text := strings.Join(blocks(page(t, guide)), "\n")
	for _, m := range regexp.MustCompile(`(?:export_of|secret_of|put_secret) ([A-Z][A-Za-z]+)`).FindAllStringSubmatch(text, -1) {
		if m[1] != "NAME" && !exports[m[1]] {
			t.Errorf("%s: got export %s, want one of %q", guide, m[1], slices.Sorted(maps.Keys(exports)))
		}
	}
	for _, m := range regexp.MustCompile(`edge_of ([A-Z][A-Za-z]+)`).FindAllStringSubmatch(text, -1) {
		if _, found := edge[m[1]]; m[1] != "NAME" && !found {
			t.Errorf("%s: got output %s of the edge, want one of %q", guide, m[1], slices.Sorted(maps.Keys(edge)))
		}
	}
}

// In the table of the contract, what stands behind `part`: is in that template.
func TestPages_ResourcesOfTheContractAreThere(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(page(t, guide), "\n## Each sentence of the contract")
	if !found {
		t.Fatalf("%s: got no table of the contract, want one", guide)
	}
	part := regexp.MustCompile("`(" + strings.Join(stacks(), "|") + ")`:")
	seen := 0
	for line := range strings.Lines(table) {
		for segment := range strings.SplitSeq(line, ";") {
			m := part.FindStringSubmatch(segment)
			if m == nil {
				continue
			}
			tpl := read(t, m[1])
			_, names, _ := strings.Cut(segment, m[0])
			for _, n := range ticked.FindAllStringSubmatch(names, -1) {
				if !regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`).MatchString(n[1]) {
					continue
				}
				seen++
				_, resource := tpl.Resources[n[1]]
				if _, parameter := tpl.Parameters[n[1]]; !resource && !parameter && n[1] != "Sizes" && !strings.Contains(page(t, "cloudformation/"+m[1]+".yaml"), "Sid: "+n[1]+"\n") {
					t.Errorf("%s: got %s of the stack %s, which has no such resource, parameter or statement", guide, n[1], m[1])
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("%s: got %d resources in the table of the contract, want all of it", guide, seen)
	}
}

// changes are commands after which something is another than before.
var changes = regexp.MustCompile(`\bstack [a-z]|\bdown \$?[a-z]|\b(?:roll|halt_fleet|free_fleet|on_all|stopped|seed|set_value|put_secret|passwords)\b` +
	`|aws [a-z0-9]+ (?:put|update|delete|create|modify|restore|request|suspend|resume|start|send|cp)\b` +
	`|seatctl (?:sale apply|candidates load|close|open|rebuild|purge|rehearse|gateway check)`)

// A block that is pasted goes on after a failure, line by line, unless it is one command
// that does not.
func TestGuide_WhatChangesSomethingStopsAtItsFirstFailure(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, m := range block.FindAllStringSubmatch(page(t, guide), -1) {
		name, text := m[1], m[2]
		if name == "settings" || name == "functions" || name == "forward" { // they only define
			continue
		}
		if lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "\\\n", " ")), "\n"); len(lines) < 2 || !changes.MatchString(text) {
			continue
		}
		seen++
		body := regexp.MustCompile(`(?m)\s+#.*$`).ReplaceAllString(text, "")
		if !strings.HasPrefix(body, "( set -euo pipefail") || !regexp.MustCompile(`(?s)\)\s*$`).MatchString(body) || strings.Count(text, "( set -e") != 1 {
			t.Errorf("%s: block %s: want it to be ( set -euo pipefail ... ), one command that ends at its first failure:\n%s", guide, name, text)
		}
	}
	if seen < 20 {
		t.Errorf("%s: got %d blocks that change something, want 20 at least", guide, seen)
	}
}

// Every user of a machine reads the arguments of every process on it.
func TestGuide_NoSecretStandsInAnArgument(t *testing.T) {
	t.Parallel()
	commands := strings.Join(blocks(page(t, guide)), "\n")
	for option, only := range map[string]string{
		`--secret-string`:       `file:///dev/stdin`,
		`--cli-input-json`:      `file:///dev/stdin`,
		`--parameter-overrides`: `file:///dev/stdin`,
		`--arg`:                 `c "$1"|t "$TABLE"`, // a command for the instances, a table's name
	} {
		got := regexp.MustCompile(regexp.QuoteMeta(option)+`\s+(.*)`).FindAllStringSubmatch(commands, -1)
		if len(got) == 0 {
			t.Errorf("%s: got no %s, want one at least", guide, option)
		}
		for _, m := range got {
			if !slices.ContainsFunc(strings.Split(only, "|"), func(want string) bool { return strings.HasPrefix(m[1], want) }) {
				t.Errorf("%s: got %s %s, want %s", guide, option, m[1], only)
			}
		}
	}
	for _, option := range []string{"--passwords", "--item ", "--argjson"} {
		if strings.Contains(commands, option) {
			t.Errorf("%s: got %s, whose value the list of processes shows", guide, option)
		}
	}
}

// What was suspended for another reason stays suspended.
func TestGuide_ProcessesOfTheFleetAreNamed(t *testing.T) {
	t.Parallel()
	commands := strings.Join(blocks(page(t, guide)), "\n")
	calls := regexp.MustCompile(`(?:suspend|resume)-processes[^\n]*`).FindAllString(commands, -1)
	if len(calls) < 3 {
		t.Errorf("%s: got %q, want three at least", guide, calls)
	}
	for _, call := range calls {
		if !strings.Contains(call, "--scaling-processes ") {
			t.Errorf("%s: got %s, want it to say which", guide, call)
		}
	}
	halted := regexp.MustCompile(`HALTED='([^']+)'`).FindStringSubmatch(commands)
	if halted == nil {
		t.Fatalf("%s: got no HALTED, want it", guide)
	}
	for _, process := range []string{"ReplaceUnhealthy", "AZRebalance"} {
		if slices.Contains(strings.Fields(halted[1]), process) {
			t.Errorf("%s: got %s in HALTED, which is the day before's", guide, process)
		}
	}
}

// A job that names an environment has it as its subject on any branch.
func TestGuide_ReleaseRoleIsForTags(t *testing.T) {
	t.Parallel()
	for _, name := range []string{guide, ".github/workflows/release.yml"} {
		text := page(t, name)
		for _, want := range []string{"repo:OWNER/REPOSITORY:environment:release", "tags `?v\\*", "ruleset"} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("%s: want it to say %s", name, want)
			}
		}
	}
}

// pretendAWS answers as an account in which everything goes well.
const pretendAWS = `
case "$*" in
*list-exports*) echo exported ;;
*describe-stacks*) echo output ;;
*describe-auto-scaling-groups*) printf 'i-1\ti-2\n' ;;
*send-command*) echo command ;;
*list-command-invocations*) echo Success ;;
*get-secret-value*) echo '{"current": "of-the-secret", "previous": "p", "redis_password": "newpassword"}' ;;
*put-secret-value*) echo version ;;
*get-distribution-config*) echo '{"DistributionConfig": {"Origins": {"Items": [{"CustomHeaders": {"Quantity": 0}}, {"CustomHeaders": {"Items": [{"HeaderName": "X-Holdfast-Origin", "HeaderValue": "sent-by-the-edge"}]}}]}}}' ;;
*start-instance-refresh*) echo refresh ;;
*describe-instance-refreshes*) echo Successful ;;
*describe-users*) echo active ;;
*describe-target-groups*) echo group ;;
*"dynamodb scan"*) echo '{"Items": [{"candidate_hash": {"S": "h1"}}, {"candidate_hash": {"S": "h2"}}]}' ;;
esac
`

// worked is what became of blocks that were pasted one after another.
type worked struct {
	ok    bool   // each ended with 0
	calls string // of aws and seatctl, a line each
	stdin string // what aws was given there
	said  string
}

// work runs blocks of the guide, after its settings and functions. A case in aws is asked
// before the account above; seatctl fails where its arguments match.
func work(t *testing.T, names []string, aws, seatctl string) worked {
	t.Helper()
	for _, program := range []string{"bash", "jq", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("the guide's blocks need %s (`make setup` installs it), and with CI=true this test must run: %v", program, err)
			}
			t.Skipf("the guide's blocks need %s: %v", program, err)
		}
	}
	text := map[string]string{}
	for _, m := range block.FindAllStringSubmatch(page(t, guide), -1) {
		text[m[1]] = m[2]
	}
	dir := t.TempDir()
	for name, body := range map[string]string{
		"aws": "case \"$*\" in *file:///dev/stdin*) given=$(cat); printf '%s\\n' \"$given\" >>\"$GUIDE/stdin\" ;; esac\n" +
			"case \"$*\" in\n" + aws + "\n*) ;;\nesac\n" + pretendAWS,
		"seatctl": "case \"$*\" in\n" + seatctl + "\n*) ;;\nesac\n",
	} {
		body = "#!/usr/bin/env bash\nprintf '%s\\n' \"" + name + " $*\" >>\"$GUIDE/calls\"\n" + body
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	script := "cd " + root + "\n"
	for _, name := range append([]string{"settings", "functions"}, names...) {
		if text[name] == "" {
			t.Fatalf("%s: got no block %s, want it", guide, name)
		}
		script += text[name] + "\n[ $? -eq 0 ] || echo " + name + " >>\"$GUIDE/failed\"\n"
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Env = append(os.Environ(), "GUIDE="+dir, "HOME="+dir, "EVERY=0", "PATH="+dir+":"+os.Getenv("PATH"))
	said, err := cmd.CombinedOutput()
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name)) // not there: nothing was written
		return string(b)
	}
	return worked{ok: err == nil && read("failed") == "", calls: read("calls"), stdin: read("stdin"), said: string(said)}
}

func TestGuide_OperationsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		blocks       []string
		aws, seatctl string
		ok           bool
		want         string // of the calls, in this order
		never        string
	}{
		"Rebuild": {
			blocks: []string{"rebuild-stop", "rebuild", "rebuild-start"}, ok: true,
			want: `(?s)suspend-processes .*HealthCheck Launch Terminate.*stop holdfast-api.*i-1.*i-2.*stop holdfast-worker.*seatctl rebuild.*seatctl audit --gateway.*` +
				`start holdfast-worker holdfast-api.*wait target-in-service.*resume-processes .*HealthCheck Launch Terminate.*seatctl open`,
		},
		"RebuildWithAnAPIThatRuns": {
			blocks: []string{"rebuild"}, aws: `*list-command-invocations*i-1*) echo Failed; exit ;;`,
			want: `i-2`, never: `seatctl rebuild`,
		},
		"RebuildWithAnInstanceThatNobodyReaches": {
			blocks: []string{"rebuild"}, aws: `*list-command-invocations*i-2*) echo DeliveryTimedOut; exit ;;`,
			want: `i-1`, never: `seatctl rebuild`,
		},
		"RebuildThatFailed": {
			blocks: []string{"rebuild"}, seatctl: `rebuild*) exit 1 ;;`, want: `seatctl rebuild`, never: `seatctl audit`,
		},
		"RebuildWithoutAnyTargetInService": {
			blocks: []string{"rebuild-start"}, aws: `*target-in-service*) exit 255 ;;`,
			want: `start holdfast-worker`, never: `resume-processes|seatctl open`,
		},
		"OriginSecret": {
			blocks: []string{"origin-secret"}, ok: true,
			want: `(?s)wait distribution-deployed.*get-distribution-config.*put-secret-value.*-compute.*-edge .*wait distribution-deployed.*` +
				`seatctl smoke.*put-secret-value.*-compute.*seed/origin-current.*seed/origin-previous.*seatctl smoke`,
		},
		"OriginSecretThatTheBalancerDidNotTake": {
			blocks: []string{"origin-secret"}, aws: `*deploy*-compute*) exit 1 ;;`, want: `-compute`, never: `deploy [^\n]*-edge|/seed/`,
		},
		"OriginSecretThatTheEdgeDoesNotSend": {
			blocks: []string{"origin-secret"}, aws: `*deploy*-edge*) exit 1 ;;`, want: `-edge`, never: `(?s)deploy [^\n]*-edge .*-compute|/seed/`,
		},
		"OriginSecretThatTheWorldDoesNotPass": {
			blocks: []string{"origin-secret"}, seatctl: `smoke*) exit 1 ;;`, want: `-edge`, never: `(?s)seatctl smoke.*-compute`,
		},
		"RedisPassword": {
			blocks: []string{"redis-password", "redis-password-end"}, ok: true,
			want: `(?s)modify-user.*describe-users.*seed/api-redis-password.*put-secret-value.*start-instance-refresh.*describe-instance-refreshes.*modify-user`,
		},
		"RedisPasswordThatIsNotReady": {
			blocks: []string{"redis-password"}, aws: `*describe-users*) echo deleting; exit ;;`, want: `describe-users`, never: `put-secret-value`,
		},
		"RedisPasswordWithProcessesOfTheOldOne": {
			blocks: []string{"redis-password-end"}, aws: `*describe-instance-refreshes*) echo Failed; exit ;;`,
			want: `describe-instance-refreshes`, never: `modify-user`,
		},
		"RollIsWaitedFor": {
			blocks: []string{"redis-password-end"}, ok: true,
			aws:  `*describe-instance-refreshes*) [ -e "$GUIDE/2" ] || { [ -e "$GUIDE/1" ] && touch "$GUIDE/2"; touch "$GUIDE/1"; echo InProgress; exit; } ;;`,
			want: `(?s)describe-instance-refreshes.*describe-instance-refreshes.*describe-instance-refreshes.*modify-user`,
		},
		"GatewayThatDoesNotGrant": {
			blocks: []string{"gateway-rotation"}, seatctl: `gateway*) exit 1 ;;`, want: `gateway check --grant`, never: `start-instance-refresh`,
		},
		"SealKey": {
			blocks: []string{"seal-key"}, ok: true,
			want: `(?s)suspend-processes.*put-secret-value.*restart holdfast-api.*target-in-service.*resume-processes`,
		},
		"SealKeyOfOneInstanceOnly": {
			blocks: []string{"seal-key"}, aws: `*list-command-invocations*i-2*) echo Failed; exit ;;`,
			want: `restart holdfast-api`, never: `resume-processes`,
		},
		"RestoreGoesOnWhereAnItemIsThere": {
			blocks: []string{"restore-put"}, ok: true, aws: `*put-item*) echo ConditionalCheckFailedException >&2; exit 254 ;;`,
			want: `(?s)put-item.*put-item.*seatctl audit --gateway.*delete-table`,
		},
		"RestoreStopsAtAnyOtherAnswer": {
			blocks: []string{"restore-put"}, aws: `*put-item*) echo AccessDenied >&2; exit 254 ;;`,
			want: `put-item`, never: `(?s)put-item.*put-item|seatctl audit|delete-table`,
		},
		"PurgeWithoutAnExport": {
			blocks: []string{"teardown-purge"}, seatctl: `*export*) exit 1 ;;`,
			want: `seatctl bookings export`, never: `seatctl purge`,
		},
		"DeletedTable": {
			blocks: []string{"restore-deleted", "restore-deleted-functions"}, ok: true,
			aws: `*list-backups*) echo backup; exit ;; *LatestStreamArn*) echo exported; exit ;; *describe-table*) echo ACTIVE; exit ;;`,
			want: `(?s)delete-stack [^\n]*-alarms.*delete-stack [^\n]*-functions.*restore-table-from-backup.*deletion-protection-enabled.*` +
				`stream-specification.*update-time-to-live.*update-continuous-backups.*deploy [^\n]*-functions.*deploy [^\n]*-alarms`,
		},
		"DeletedTableWhoseStreamTheStackDoesNotKnow": {
			blocks: []string{"restore-deleted-functions"}, aws: `*LatestStreamArn*) echo another; exit ;;`,
			want: `LatestStreamArn`, never: `deploy`,
		},
		"Stacks": {
			blocks: []string{"stacks"}, ok: true,
			want: `(?s)deploy [^\n]*-backoffice [^\n]*--disable-rollback.*-compute.*-functions.*us-east-1 --stack-name [^\n]*-edge .*-data.*-alarms`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := work(t, c.blocks, c.aws, c.seatctl)
			if got.ok != c.ok {
				t.Errorf("%v: got well: %t, want %t; it said:\n%s", c.blocks, got.ok, c.ok, got.said)
			}
			if !regexp.MustCompile(c.want).MatchString(got.calls) {
				t.Errorf("%v: got calls\n%swant %s", c.blocks, got.calls, c.want)
			}
			if c.never != "" && regexp.MustCompile(c.never).MatchString(got.calls) {
				t.Errorf("%v: got calls\n%swant none of %s", c.blocks, got.calls, c.never)
			}
			// What is given on stdin is there because it may be a secret.
			for _, secret := range regexp.MustCompile(`"([0-9a-f]{64}|newpassword|sent-by-the-edge)"`).FindAllStringSubmatch(got.stdin, -1) {
				if strings.Contains(got.calls, secret[1]) {
					t.Errorf("%v: got %s in an argument, want it on stdin alone:\n%s", c.blocks, secret[1], got.calls)
				}
			}
		})
	}
}

// A rotation that was broken off begins again from the top: what the edge sends is asked of
// the edge, and stays accepted.
func TestGuide_OriginSecretThatIsSentStaysAccepted(t *testing.T) {
	t.Parallel()
	got := work(t, []string{"origin-secret"}, "", "")
	first, _, _ := strings.Cut(got.stdin, "\n")
	if !regexp.MustCompile(`^\{"current":"[0-9a-f]{64}","previous":"sent-by-the-edge"\}$`).MatchString(first) {
		t.Errorf("first put: got %s, want a new secret and sent-by-the-edge; it said:\n%s", first, got.said)
	}
}
