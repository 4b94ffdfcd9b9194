package workflowtest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pretend is an aws on the PATH that writes down its arguments, and answers by the shell
// code given.
type pretend struct{ dir string }

func newPretend(t *testing.T, answer string) pretend {
	t.Helper()
	p := pretend{t.TempDir()}
	text := "#!/usr/bin/env bash\nprintf '%s\\n' \"$*\" >>" + filepath.Join(p.dir, "calls") + "\n" + answer
	if err := os.WriteFile(filepath.Join(p.dir, "aws"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a script of .github.
func (p pretend) run(t *testing.T, script string, env []string, args ...string) (string, error) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, ".github", script))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), append(env, "PATH="+p.dir+":"+os.Getenv("PATH"), "ARTIFACT_BUCKET=artifacts", "AWS_REGION=ap-southeast-1")...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p pretend) calls(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// review runs change-sets over all stacks, and gives the summary.
func review(t *testing.T, answer string) (p pretend, summary string, err error) {
	t.Helper()
	p = newPretend(t, answer)
	file := filepath.Join(p.dir, "summary")
	_, err = p.run(t, "change-sets", []string{"GITHUB_STEP_SUMMARY=" + file, "GITHUB_RUN_ID=7", "GITHUB_RUN_ATTEMPT=2", "DEPLOYMENT=spring"})
	b, readErr := os.ReadFile(file)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return p, string(b), err
}

// answers of an account that has all the stacks, with one parameter that is no more.
const account = `
case "$*" in
*describe-stacks*) printf 'Deployment\tOld\n' ;;
*get-template-summary*) printf 'Deployment\tNew\n' ;;
*'Status, StatusReason'*) printf 'CREATE_COMPLETE\tNone\n' ;;
*'Changes[]'*) printf 'Modify\tTable\tAWS::DynamoDB::Table\tTrue\nAdd\tQueue\tAWS::SQS::Queue\tNone\n' ;;
esac
`

func TestChangeSets_TellWhatWouldChangeAndDeleteWhatTheyMade(t *testing.T) {
	t.Parallel()
	p, summary, err := review(t, account)
	if err != nil {
		t.Fatalf("change-sets: got %v, want nil: %s", err, summary)
	}
	for _, want := range []string{"### spring-network\n", "### spring-alarms\n", "| Modify | Table | AWS::DynamoDB::Table | **True** |\n", "| Add | Queue | AWS::SQS::Queue | no |\n"} {
		if !strings.Contains(summary, want) {
			t.Errorf("summary: got %s, want %q in it", summary, want)
		}
	}
	created, deleted := 0, 0
	for _, call := range p.calls(t) {
		at := "--region ap-southeast-1"
		if strings.Contains(call, "spring-edge") {
			at = "--region us-east-1"
		}
		switch {
		case strings.Contains(call, " create-change-set "):
			created++
			if !strings.Contains(call, "--parameters ParameterKey=Deployment,UsePreviousValue=true --") || !strings.Contains(call, "--change-set-name review-7-2 ") {
				t.Errorf("got %q, want the stack's own value of what both have", call)
			}
		case strings.Contains(call, " delete-change-set "):
			deleted++
		}
		if strings.HasPrefix(call, "cloudformation") && strings.Contains(call, "--stack-name") && !strings.HasSuffix(call, at) {
			t.Errorf("got %q, want it %s", call, at)
		}
	}
	if created != 7 || deleted != 7 {
		t.Errorf("change sets: got %d made and %d deleted, want 7 of each", created, deleted)
	}
	// What is too long for a call goes by the bucket.
	if info, err := os.Stat(filepath.Join(root, "cloudformation/alarms.yaml")); err == nil && info.Size() > 51200 {
		if calls := strings.Join(p.calls(t), "\n"); !strings.Contains(calls, "--template-url https://artifacts.s3.ap-southeast-1.amazonaws.com/reviews/review-7-2/alarms.yaml ") {
			t.Errorf("got %s, want the long template by its address", calls)
		}
	}
}

func TestChangeSets_SayWhyThereIsNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer, want string
		ok           bool
	}{
		"NoStack":  {`case "$*" in *describe-stacks*) echo "Stack with id x does not exist" >&2; exit 254 ;; *) exit 1 ;; esac`, "It is not there yet", true},
		"NoChange": {`case "$*" in *StatusReason*) printf "FAILED\tThe submitted information didn't contain changes." ;; *describe-stacks*|*template-summary*) echo Deployment ;; *wait*) exit 255 ;; esac`, "No change.", true},
		"Refused":  {`case "$*" in *describe-stacks*) echo "AccessDenied" >&2; exit 254 ;; esac`, "It could not be told", false},
		"Failed":   {`case "$*" in *StatusReason*) printf "FAILED\tParameters: [New] must have values" ;; *describe-stacks*|*template-summary*) echo Deployment ;; esac`, "It could not be told", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, summary, err := review(t, c.answer)
			if got := strings.Count(summary, c.want); got != 7 || (err == nil) != c.ok {
				t.Errorf("got %v and %s, want %q of each of 7 stacks, and it to go well: %t", err, summary, c.want, c.ok)
			}
			made := func(call string) bool {
				return strings.Contains(call, "create-change-set") && !strings.Contains(call, "wait")
			}
			deleted := func(call string) bool { return strings.Contains(call, "delete-change-set") }
			if calls := p.calls(t); slices.ContainsFunc(calls, made) != slices.ContainsFunc(calls, deleted) {
				t.Errorf("got %q, want every change set deleted", calls)
			}
		})
	}
}

// release lays out what make release makes.
func release(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"holdfast-v1.2.3-linux-arm64.tar.gz", "holdfast-v1.2.3-linux-amd64.tar.gz", "sync-lambda.zip", "expiry-lambda.zip"} {
		lay(t, dir, name, name)
		if strings.HasPrefix(name, "holdfast-") {
			lay(t, dir, name+".sha256", fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(name)), name))
		}
	}
	return dir
}

func lay(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyRelease_WantsAllOfItAndEachAsItsChecksumSays(t *testing.T) {
	t.Parallel()
	const arm = "holdfast-v1.2.3-linux-arm64.tar.gz"
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string // "" is a release without fault
	}{
		"Whole":         {func(*testing.T, string) {}, ""},
		"OtherBytes":    {func(t *testing.T, dir string) { lay(t, dir, arm, "other") }, arm + ": FAILED"},
		"Empty":         {func(t *testing.T, dir string) { lay(t, dir, "sync-lambda.zip", "") }, "sync-lambda.zip is not there"},
		"NoChecksum":    {func(t *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, arm+".sha256")) }, arm + ".sha256 is not there"},
		"OfAnotherFile": {func(t *testing.T, dir string) { lay(t, dir, arm+".sha256", "00  sync-lambda.zip\n") }, arm + ".sha256 is of sync-lambda.zip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := release(t)
			c.spoil(t, dir)
			out, err := newPretend(t, "").run(t, "verify-release", nil, dir, "v1.2.3")
			if (err == nil) != (c.want == "") || !strings.Contains(out, c.want) {
				t.Errorf("got %v %s, want %q", err, out, c.want)
			}
		})
	}
}

func TestUploadRelease_ReplacesNothing(t *testing.T) {
	t.Parallel()
	dir := release(t)
	sum := sha256.Sum256([]byte("sync-lambda.zip"))
	same := base64.StdEncoding.EncodeToString(sum[:])
	put := newPretend(t, "")
	if out, err := put.run(t, "upload-release", nil, dir, "v1.2.3"); err != nil {
		t.Fatalf("upload: got %v %s, want nil", err, out)
	}
	calls := put.calls(t)
	want := "s3api put-object --bucket artifacts --key releases/v1.2.3/sync-lambda.zip --body " + dir + "/sync-lambda.zip --if-none-match * --checksum-sha256 " + same + " --output text"
	if len(calls) != 6 || !slices.Contains(calls, want) {
		t.Errorf("calls: got %q, want six, %q one of them", calls, want)
	}

	// It is there already: the same once more is done, another is refused.
	for _, name := range []string{"expiry-lambda.zip", "holdfast-v1.2.3-linux-arm64.tar.gz", "holdfast-v1.2.3-linux-amd64.tar.gz", "holdfast-v1.2.3-linux-arm64.tar.gz.sha256", "holdfast-v1.2.3-linux-amd64.tar.gz.sha256"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	there := func(digest string) pretend {
		return newPretend(t, `case "$*" in *put-object*) echo PreconditionFailed >&2; exit 254 ;; *head-object*) echo `+digest+` ;; esac`)
	}
	if out, err := there(same).run(t, "upload-release", nil, dir, "v1.2.3"); err != nil {
		t.Errorf("the same once more: got %v %s, want nil", err, out)
	}
	if out, err := there("other").run(t, "upload-release", nil, dir, "v1.2.3"); err == nil || !strings.Contains(out, "another sync-lambda.zip lies in the bucket") {
		t.Errorf("another: got %v %s, want it refused", err, out)
	}
}
