// Package k6test runs the load scripts of k6/ in go test, so that a script that is broken
// fails there and not on the day it is needed: the scripts as they are, in the engine that
// k6 itself uses, with the k6 modules that they import mapped onto real HTTP. It judges
// thresholds as k6 does and ends a run at one with abortOnFail. It makes no load: a few VUs
// and a few iterations, as many as the caller says.
//
// Where it differs from k6 it is stricter. A k6 API, an option or a property of a response
// that it does not know is an error, where k6 gives undefined or ignores it; what is missing
// here is added here once a script needs it. An exception ends the run, where k6 begins the
// next iteration. An iteration for which no VU is free begins late, where k6 drops it. How
// long a scenario lasts is how many iterations it has; gracefulStop cuts off none.
//
// Fail mode: a run that could not be judged is an error and never a pass.
//
// Clock: real time paces the iterations and measures requests. Tests make the rates small.
package k6test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/grafana/sobek"
)

// What a run can end with besides nil. All of them are wrapped, with what was the matter.
var (
	// ErrScript: the script does not build, its options are wrong, it threw, or it uses
	// what this package does not know.
	ErrScript = errors.New("broken script")
	// ErrAborted: the script called exec.test.abort; its words follow.
	ErrAborted = errors.New("run aborted by the script")
	// ErrThreshold: thresholds are crossed; which ones follow.
	ErrThreshold = errors.New("threshold crossed")
)

// Script is a script with all that it imports, ready to run. Safe for concurrent use.
type Script struct {
	dir     string
	program *sobek.Program
}

// modules are the k6 modules that scripts may import, and what may be imported from each
// by name. vu.module makes them.
var modules = map[string][]string{
	"k6":           {"sleep"},
	"k6/data":      {"SharedArray"},
	"k6/execution": {"scenario", "test", "vu"},
	"k6/http":      {"batch", "get", "post", "request", "setResponseCallback"},
	"k6/metrics":   {"Counter", "Gauge", "Rate", "Trend"},
}

// moduleVar is the global by which a bundled script reaches the k6 modules.
const moduleVar = "__k6test_module"

// Load bundles the script in that file with what it imports. A file that is not there, a
// syntax error, an import of what does not exist and a warning of the bundler are
// ErrScript.
func Load(path string) (*Script, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrScript, err)
	}
	// Nothing is rewritten for an older engine: what sobek does not understand, k6 does not.
	built := api.Build(api.BuildOptions{
		EntryPoints: []string{path}, Bundle: true, Format: api.FormatCommonJS, Target: api.ESNext,
		Sourcemap: api.SourceMapInline, TreeShaking: api.TreeShakingFalse, Plugins: []api.Plugin{k6Modules()},
	})
	if wrong := slices.Concat(built.Errors, built.Warnings); len(wrong) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrScript, strings.Join(api.FormatMessages(wrong, api.FormatMessagesOptions{}), ""))
	}
	// In a function's body, without a new line, so that the source map's lines hold. What it
	// gives has values and no getters, so that nothing of the script runs when they are read.
	source := "(function (module, exports) {" + string(built.OutputFiles[0].Contents) + "\nreturn Object.assign({}, module.exports);})"
	program, err := sobek.Compile(filepath.Base(path), source, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrScript, err)
	}
	return &Script{dir: filepath.Dir(path), program: program}, nil
}

// k6Modules gives the bundler a module of names for each that k6 has built in, so that a
// name which is not there is an error of the build.
func k6Modules() api.Plugin {
	return api.Plugin{Name: "k6", Setup: func(b api.PluginBuild) {
		b.OnResolve(api.OnResolveOptions{Filter: `^k6(/|$)`}, func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			if _, ok := modules[a.Path]; !ok {
				return api.OnResolveResult{}, fmt.Errorf("k6test does not know the module %s", a.Path)
			}
			return api.OnResolveResult{Path: a.Path, Namespace: "k6"}, nil
		})
		b.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: "k6"}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			var text strings.Builder
			fmt.Fprintf(&text, "const all = %s(%q);\nexport default all;\n", moduleVar, a.Path)
			for _, name := range modules[a.Path] {
				fmt.Fprintf(&text, "export const %s = all.%s;\n", name, name)
			}
			source := text.String()
			return api.OnLoadResult{Contents: &source, Loader: api.LoaderJS}, nil
		})
	}}
}

// read is the script's open(): a path from the script's folder, or an absolute one.
func (s *Script) read(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}
