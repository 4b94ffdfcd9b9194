package web_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/google/go-cmp/cmp"
)

// oldest is the oldest browser that the page is made for: Chrome 64, of 2018.
var oldest = []api.Engine{{Name: api.EngineChrome, Version: "64"}}

// newerSpelling is what esbuild writes in the old way for whichever browser, so that
// its two texts do not differ: digits in groups (Chrome 75), and line ends of Unicode
// inside a text (Chrome 66).
var newerSpelling = regexp.MustCompile(`\b\d+_\d|[\x{2028}\x{2029}]`)

// newerSyntax is what of a file Chrome 64 would not understand: the file as esbuild
// prints it for the newest browsers beside what it makes of it for that one, or why
// it cannot. plain is the former.
func newerSyntax(source string, loader api.Loader) (plain, problem string) {
	now := api.Transform(source, api.TransformOptions{Loader: loader, Target: api.ESNext})
	then := api.Transform(source, api.TransformOptions{Loader: loader, Target: api.ESNext, Engines: oldest})
	for _, m := range slices.Concat(now.Errors, now.Warnings, then.Errors, then.Warnings) {
		problem += fmt.Sprintln(m.Text)
	}
	for _, spelled := range newerSpelling.FindAllString(source, -1) {
		problem += fmt.Sprintf("%q\n", spelled)
	}
	if diff := cmp.Diff(strings.Split(string(then.Code), "\n"), strings.Split(string(now.Code), "\n")); diff != "" {
		problem += "for Chrome 64 (-), as it is (+):\n" + diff
	}
	return string(now.Code), problem
}

// newerNames are interfaces that came after Chrome 64, with the version they came in.
// esbuild knows syntax only. A guarded name may be used where the script asks for it
// first, as window.X or 'X' in window. The list is of what such a page might be
// tempted to use, and not complete: the last word has a real browser of that age.
var newerNames = []struct {
	name    string
	version int
	guarded bool
}{
	{"AbortController", 66, true}, {"queueMicrotask", 71, true}, {"structuredClone", 98, true},
	{"BigInt", 67, true}, {"WeakRef", 84, true},
	{"globalThis", 71, false},
	{"AbortSignal.timeout", 103, false}, {"AbortSignal.any", 116, false},
	{"Intl.RelativeTimeFormat", 71, false}, {"Intl.ListFormat", 72, false}, {"Intl.DisplayNames", 81, false},
	{"dateStyle", 76, false}, {"timeStyle", 76, false},
	{"Object.fromEntries", 73, false}, {"Object.hasOwn", 93, false},
	{"Promise.allSettled", 76, false}, {"Promise.any", 85, false}, {"Promise.withResolvers", 119, false},
	{".flat(", 69, false}, {".flatMap(", 69, false}, {".at(", 92, false}, {".findLast(", 97, false}, {".toSorted(", 110, false},
	{".replaceAll(", 85, false}, {".matchAll(", 73, false}, {".trimStart(", 66, false}, {".trimEnd(", 66, false},
	{".replaceChildren(", 86, false}, {".toggleAttribute(", 69, false}, {".requestSubmit(", 76, false}, {".inert", 102, false},
	{"crypto.randomUUID", 92, false}, {"navigator.clipboard", 66, false}, {"navigator.locks", 69, false},
}

// newerAPIs are the names in a script that Chrome 64 does not know and that the script
// does not ask for first.
func newerAPIs(js string) []string {
	var found []string
	for _, n := range newerNames {
		whole := regexp.QuoteMeta(n.name)
		if first := n.name[0]; first != '.' {
			whole = `\b` + whole
		}
		if !strings.HasSuffix(n.name, "(") {
			whole += `\b`
		}
		if !regexp.MustCompile(whole).MatchString(js) {
			continue
		}
		if n.guarded && regexp.MustCompile(`window\.`+n.name+`\b|["']`+n.name+`["'] in window\b`).MatchString(js) {
			continue
		}
		found = append(found, fmt.Sprintf("%s (Chrome %d)", n.name, n.version))
	}
	return found
}

// newerCSS are words in a style sheet that make Chrome 64 drop a whole rule, or read a
// length wrongly, and that esbuild passes. What it merely passes over, such as a query
// for the colour scheme, is none.
var newerCSS = regexp.MustCompile(`:is\(|:where\(|:has\(|\b(?:clamp|min|max)\(|\baspect-ratio:|(?:^|[\s;{])(?:row-|column-)?gap:|,\s*[^{},]*:focus-visible|:focus-visible[^{},]*,|:focus-within\s*,|\d(?:dvh|svh|lvh)\b`)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestScript_RunsInChrome64(t *testing.T) {
	t.Parallel()
	js, problem := newerSyntax(read(t, "page.js"), api.LoaderJS)
	if problem != "" {
		t.Errorf("page.js: syntax: got newer than Chrome 64:\n%s", problem)
	}
	if got := newerAPIs(js); got != nil {
		t.Errorf("page.js: got %v, want none of them, or behind a question whether it is there", got)
	}
	for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", ".style."} {
		if strings.Contains(js, bad) {
			t.Errorf("page.js: got %s, want text set as text and looks set by class", bad)
		}
	}
}

func TestStyle_IsUnderstoodByChrome64(t *testing.T) {
	t.Parallel()
	css, problem := newerSyntax(read(t, "page.css"), api.LoaderCSS)
	if problem != "" {
		t.Errorf("page.css: got newer than Chrome 64:\n%s", problem)
	}
	if got := newerCSS.FindAllString(css, -1); got != nil {
		t.Errorf("page.css: got %q, want nothing newer than Chrome 64", got)
	}
}

// The checks above are worth what they find.
func TestChrome64_ChecksFindWhatTheyLookFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		source string
		loader api.Loader
		bad    bool
	}{
		{"async function f(a) { const { b, ...c } = a; try { await b(); } catch (e) { return c ** 2; } }", api.LoaderJS, false},
		{"let a = b?.c;", api.LoaderJS, true},
		{"let a = b ?? c;", api.LoaderJS, true},
		{"a ||= b;", api.LoaderJS, true},
		{"try { f(); } catch { g(); }", api.LoaderJS, true},
		{"class A { #b = 1; }", api.LoaderJS, true},
		{"let n = 1_000;", api.LoaderJS, true},
		{"let n = 1n;", api.LoaderJS, true},
		{"let a = /b/v;", api.LoaderJS, true},
		{"let a = ;", api.LoaderJS, true},
		{"p { top: 0; color: #123456; }", api.LoaderCSS, false},
		{"p { inset: 0; }", api.LoaderCSS, true},
		{"p { & b { top: 0; } }", api.LoaderCSS, true},
		{"p { color: rgb(0 0 0 / 50%); }", api.LoaderCSS, true},
		{"p { top: 0", api.LoaderCSS, true},
	} {
		if _, problem := newerSyntax(c.source, c.loader); (problem != "") != c.bad {
			t.Errorf("%s: got problem %q, want one: %t", c.source, problem, c.bad)
		}
	}
	for _, c := range []struct {
		js   string
		want []string
	}{
		{"var a = window.AbortController ? new AbortController() : null; res.json(); [1].includes(1);", nil},
		{"if ('AbortController' in window) { new AbortController(); }", nil},
		{"new AbortController();", []string{"AbortController (Chrome 66)"}},
		{"a.flat(); b.flatten(); c.that();", []string{".flat( (Chrome 69)"}},
		{"window.globalThis;", []string{"globalThis (Chrome 71)"}},
		{"crypto.randomUUID(); el.replaceChildren();", []string{".replaceChildren( (Chrome 86)", "crypto.randomUUID (Chrome 92)"}},
	} {
		if diff := cmp.Diff(c.want, newerAPIs(c.js)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.js, diff)
		}
	}
	for css, bad := range map[string]bool{
		"p { grid-gap: 1rem; max-width: 3rem; }":       false,
		"a:focus-visible { outline: 1px solid red; }":  false,
		"p { gap: 1rem; }":                             true,
		"p { width: clamp(1rem, 2vw, 3rem); }":         true,
		"a:focus, a:focus-visible { outline: 0; }":     true,
		"a:focus-visible, b { outline: 0; }":           true,
		":is(a, b) { top: 0; }":                        true,
		"p { min-height: 100dvh; aspect-ratio: 1/1; }": true,
	} {
		if got := newerCSS.MatchString(css); got != bad {
			t.Errorf("%s: got %t, want %t", css, got, bad)
		}
	}
}
