package model_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// checks is how many sequences run in-process: -model.checks.
var checks = flag.Int("model.checks", 0, "sequences of the model in-process; 0 chooses (HOLDFAST_MODEL=full: more)")

// seed is where the sequences on real servers begin: -model.seed.
var seed = flag.Int("model.seed", 0, "seed of the first sequence on real servers; 0 chooses one")

// full tells whether the long run is wanted.
func full() bool { return os.Getenv("HOLDFAST_MODEL") == "full" }

// shards of the in-process run go side by side.
const shards = 2

func TestMain(m *testing.M) {
	flag.Parse()
	n := *checks
	switch {
	case n > 0:
	case full():
		n = 2000
	default:
		n = 200
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", strconv.Itoa((n+shards-1)/shards)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	goleak.VerifyTestMain(m)
}

func TestModel_RulesHoldInAnyOrder(t *testing.T) {
	t.Parallel()
	seen := newTally()
	t.Run("sequences", func(t *testing.T) {
		for i := range shards {
			t.Run(strconv.Itoa(i+1), func(t *testing.T) {
				t.Parallel()
				s := newInProcess(t, nil)
				rapid.Check(t, func(r *rapid.T) {
					if err := play(t.Context(), s, steps(60, 90).Draw(r, "steps"), seen); err != nil {
						r.Fatal(err)
					}
				})
			})
		}
	})
	t.Logf("met, the rarest first:\n%s", seen)
	if unmet := seen.unmet(); len(unmet) > 0 && deep() && !t.Failed() {
		t.Errorf("sequences: got none with %q, want each at least once: have their steps come more often", unmet)
	}
}

// deep tells whether so many sequences ran that each kind of event must have been
// among them.
func deep() bool {
	value := func(name string) string { return flag.Lookup("rapid." + name).Value.String() }
	n, err := strconv.Atoi(value("checks"))
	return err == nil && n*shards >= 2000 && value("seed") == "0" && value("failfile") == ""
}

// The same on real servers, with real failovers. Nothing is shrunk: each sequence
// takes seconds.
func TestModel_RulesHoldAcrossFailovers(t *testing.T) {
	t.Parallel()
	n := 2
	if full() {
		n = 20
	}
	first := *seed
	if first == 0 {
		first = rand.IntN(1 << 30)
	}
	s := newReplicated(t)
	for i := range n {
		if err := play(t.Context(), s, steps(25, 40).Example(first+i), newTally()); err != nil {
			t.Fatalf("sequence %d of %d, repeat it with -model.seed=%d: %v", i+1, n, first+i, err)
		}
	}
}
