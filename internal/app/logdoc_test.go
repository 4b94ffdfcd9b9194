package app_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logged are the rooms whose lines docs/logs.md is about: those of the API and the
// worker.
var logged = []string{
	"admission", "adminapi", "app", "checkout", "httpapi", "lease", "ledgerstats", "mailer", "notification", "obs", "objstore",
	"paygate", "queue", "reconcile", "record", "refund", "resolve", "settle", "snshook", "statuspage", "store",
}

// fieldsInSource are the names of every field that a line of these rooms can have.
func fieldsInSource(t *testing.T) map[string]bool {
	t.Helper()
	fields := map[string]bool{}
	name := func(e ast.Expr) {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return
		}
		if s, err := strconv.Unquote(lit.Value); err == nil {
			fields[s] = true
		}
	}
	look := func(call *ast.CallExpr) {
		if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "figures" {
			name(call.Args[0])
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		on, _ := f.X.(*ast.Ident)
		switch f.Sel.Name {
		case "String", "Int", "Int64", "Bool", "Any", "Time", "Duration", "Float64", "Group":
			if on != nil && on.Name == "slog" {
				name(call.Args[0])
			}
		case "InfoContext", "WarnContext", "ErrorContext":
			for i := 2; i < len(call.Args); i += 2 {
				name(call.Args[i])
			}
		}
	}
	for _, room := range logged {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "local" || d.Name() == "functions"):
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					look(call)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return fields
}

// logsPage reads docs/logs.md: the fields of each wide line, by its message, and the
// list of all fields.
func logsPage(t *testing.T) (wide map[string][]string, all map[string]bool) {
	t.Helper()
	page, err := os.ReadFile("../../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	names := func(cell string) (out []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			out = append(out, m[1])
		}
		return out
	}
	wide, all = map[string][]string{}, map[string]bool{}
	section := ""
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(name)
		}
		cells := strings.Split(line, "|")
		switch {
		case section == "Wide lines" && len(cells) == 5:
			for _, msg := range names(cells[1]) {
				wide[msg] = names(cells[3])
			}
		case section == "Fields" && len(cells) == 4:
			for _, field := range names(cells[1]) {
				all[field] = true
			}
		}
	}
	if len(wide) < 10 || len(all) < 50 {
		t.Fatalf("docs/logs.md: got %d wide lines and %d fields, want it read", len(wide), len(all))
	}
	return wide, all
}

// The page names every field that the source can write, and no other.
func TestLogs_PageNamesEveryField(t *testing.T) {
	t.Parallel()
	wide, all := logsPage(t)
	source := fieldsInSource(t)
	for field := range source {
		if !all[field] && !all[field+"_ms"] {
			t.Errorf("docs/logs.md: got no field %q, which the source writes", field)
		}
	}
	for field := range all {
		if !source[field] && !source[strings.TrimSuffix(field, "_ms")] {
			t.Errorf("docs/logs.md: got a field %q, which the source never writes", field)
		}
	}
	for msg, fields := range wide {
		for _, field := range fields {
			if !all[field] {
				t.Errorf("docs/logs.md: got no explanation of %q of a line %q", field, msg)
			}
		}
	}
}

// Each wide line is written, with no field that the page does not give it.
func TestLogs_WideLinesAreAsThePageShows(t *testing.T) {
	t.Parallel()
	wide, _ := logsPage(t)
	b := newTill(t, 30)
	story(t, b)
	seen := map[string]bool{}
	for text := range strings.Lines(b.log.all()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("line %s: %v, want JSON", text, err)
		}
		msg, _ := line["msg"].(string)
		fields, ok := wide[msg]
		if !ok {
			continue
		}
		seen[msg] = true
		for field := range line {
			if field != "time" && field != "level" && field != "msg" && !slices.Contains(fields, field) {
				t.Errorf("line %q: got a field %q, which docs/logs.md does not give it", msg, field)
			}
		}
		if _, ok := line["took_ms"]; !ok && !strings.HasPrefix(msg, "notification") {
			t.Errorf("line %q: got no took_ms: %s", msg, text)
		}
	}
	for msg := range wide {
		if !seen[msg] {
			t.Errorf("line %q: got none, want one", msg)
		}
	}
}
