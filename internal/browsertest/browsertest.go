// Package browsertest has what every test in a real browser needs: Chromium and axe-core
// as `make setup` installs them, the word to the browser, and a place for pictures. The
// verbs of a test, and what its pages may not do, are the test's own.
//
// Without one of the two a test is skipped with a message, or fails with CI=true in the
// environment; with -short it is skipped. It has no state and no clock.
package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Chromium gives what chromedp starts the browser with. what is tested in it, such as
// "WALL", stands in the message of a test that is skipped.
func Chromium(t testing.TB, what string) []chromedp.ExecAllocatorOption {
	t.Helper()
	if testing.Short() {
		t.Skipf("%s NOT TESTED IN A BROWSER: it takes a while; run without -short", what)
	}
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} { // as distributions call it
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	need(t, path != "", what, "chromium")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.Flag("no-sandbox", true)) // the sandbox refuses root
	}
	return opts
}

// Axe gives axe-core's source, for Audit or a test's own run of it.
func Axe(t testing.TB, what string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root(), ".cache", "axe", "axe.min.js"))
	need(t, err == nil, what, "axe-core")
	return string(source)
}

func need(t testing.TB, there bool, what, missing string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not installed (`make setup` does it), and with CI=true this test must run", missing)
	default:
		t.Skipf("%s NOT TESTED IN A BROWSER: %s is not installed; `make setup` does it", what, missing)
	}
}

// Call sends the tab of that context a command.
func Call[P, R any](ctx context.Context, c cdp.Command[P, R], params P) (R, error) {
	return chromedp.Run(ctx, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, c, params)
	})
}

// Audit is what axe-core calls serious or critical on the page as it stands, a line for
// each. It runs in a world of its own, for which the page's policy does not count.
func Audit(ctx context.Context, axe string) ([]string, error) {
	tree, err := Call(ctx, page.GetFrameTree, cdp.Empty{})
	if err != nil {
		return nil, fmt.Errorf("axe-core: %w", err)
	}
	own, err := Call(ctx, page.CreateIsolatedWorld, page.CreateIsolatedWorldParams{FrameID: tree.FrameTree.Frame.ID, WorldName: "axe"})
	if err != nil {
		return nil, fmt.Errorf("axe-core: %w", err)
	}
	const run = `; axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'], resultTypes: ['violations']}).then(r =>
		r.violations.filter(v => v.impact === 'serious' || v.impact === 'critical').map(v => v.id + ': ' + v.help + ': ' + v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | ')))`
	yes := true
	r, err := Call(ctx, cdpruntime.Evaluate, cdpruntime.EvaluateParams{Expression: axe + run, ContextID: own.ExecutionContextID, AwaitPromise: &yes, ReturnByValue: &yes})
	if err == nil && r.ExceptionDetails != nil {
		err = &chromedp.ExceptionError{ExceptionDetails: r.ExceptionDetails}
	}
	if err != nil {
		return nil, fmt.Errorf("axe-core: %w", err)
	}
	var found []string
	if err := json.Unmarshal(r.Result.Value, &found); err != nil {
		return nil, fmt.Errorf("axe-core: got %s, want a list: %w", r.Result.Value, err)
	}
	return found, nil
}

// Keep writes a picture, or what else is to be looked at, to artefacts/<room>/<name> in
// the project's folder.
func Keep(t testing.TB, room, name string, content []byte) {
	t.Helper()
	dir := filepath.Join(root(), "artefacts", room)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), content, 0o644)); err != nil {
		t.Fatalf("keep %s: %v", name, err)
	}
}

// root is the project's folder: this file is two below it.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
