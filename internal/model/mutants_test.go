package model_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"holdfast/scripts/lua"
)

// scripts are those that the mutants are made of: every one that changes a seat,
// or who may have one. Left out are those that only read, the status page's, extend,
// which no sequence calls, and notices, which is an index of the store's
// notifications; package admission has their tests.
var scripts = map[string]string{
	"admit": lua.Admit, "attach": lua.Attach, "queued": lua.Queued, "undo": lua.Undo,
	"begin_pay": lua.BeginPay, "end_pay": lua.EndPay, "settle": lua.Settle, "release": lua.Release, "late": lua.Late,
	"done": lua.Done, "postpone": lua.Postpone, "apply_sale": lua.ApplySale, "switch": lua.Switch,
	"candidates": lua.Candidates, "restore": lua.Restore,
}

// mutant is a script broken in one place.
type mutant struct {
	name, script, source string
	seed                 int
}

// mutants reads testdata/mutants. A file is named after its script and what is
// broken, and says what text to replace with what, and which seed caught it when
// it was written: that one is tried first. The script is the prelude and the file
// of its name, as it is sent.
func mutants(t *testing.T) []mutant {
	t.Helper()
	files, err := filepath.Glob("testdata/mutants/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("mutants: got %d files, %v", len(files), err)
	}
	var all []mutant
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		script, _, _ := strings.Cut(name, "-")
		source, known := scripts[script]
		_, hint, _ := strings.Cut(string(raw), "seed: ")
		hint, _, _ = strings.Cut(hint, "\n")
		seed, err := strconv.Atoi(hint)
		if err != nil {
			t.Fatalf("%s: seed %q: %v", file, hint, err)
		}
		_, rest, ok1 := strings.Cut(string(raw), "replace:\n")
		from, to, ok2 := strings.Cut(rest, "\nwith:\n")
		to = strings.TrimSuffix(to, "\n")
		if !known || !ok1 || !ok2 || from == "" || from == to {
			t.Fatalf("%s: want a known script, and a text to replace: with: another", file)
		}
		if n := strings.Count(source, from); n != 1 {
			t.Fatalf("%s: got the text to replace %d times in the script, want once:\n%s", file, n, from)
		}
		all = append(all, mutant{name, script, strings.Replace(source, from, to, 1), seed})
	}
	return all
}

// swaps send the mutant wherever the script is sent.
func (m mutant) swaps() map[string]string {
	source := scripts[m.script]
	return map[string]string{source: m.source, redis.NewScript(source).Hash(): redis.NewScript(m.source).Hash()}
}

// caughtWithin is how many sequences the model has to catch a mutant.
const caughtWithin = 1500

// caught plays the sequence of the seed, then others, until one breaks a rule.
func caught(t *testing.T, s servers, seed int) {
	t.Helper()
	sequences := steps(60, 90)
	for i := range caughtWithin + 1 {
		if i > 0 {
			seed = i
		}
		if err := play(t.Context(), s, sequences.Example(seed), newTally()); err != nil {
			rule, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("caught by sequence %d: %s", seed, rule)
			return
		}
	}
	t.Errorf("got no broken rule in %d sequences, want one", caughtWithin)
}

// A model that no broken script disturbs says nothing about the real ones.
func TestModel_CatchesEveryMutant(t *testing.T) {
	t.Parallel()
	of := map[string]bool{}
	for _, m := range mutants(t) {
		of[m.script] = true
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			caught(t, newInProcess(t, m.swaps()), m.seed)
		})
	}
	for script := range scripts {
		if !of[script] {
			t.Errorf("script %s: got no mutant, want one", script)
		}
	}
}

// The same of an acknowledgement that is none: what rests on it is taken back by
// a failover, and the model must see that.
func TestModel_CatchesFalseAcknowledgements(t *testing.T) {
	t.Parallel()
	s := newInProcess(t, nil)
	s.lies.Store(true)
	caught(t, s, 1)
}
