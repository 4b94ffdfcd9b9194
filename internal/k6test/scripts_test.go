package k6test_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/k6test"
)

// scripts are all that there are in k6/.
var scripts = []string{"abuse.js", "rush.js", "steady.js"}

func TestScripts_AreAllTested(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob("../../k6/*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	found = slices.DeleteFunc(found, func(name string) bool { return name == "lib.js" })
	if diff := cmp.Diff(scripts, found); diff != "" {
		t.Errorf("k6/ (-want +got):\n%s", diff)
	}
}

// The scripts against the real thing: what they hold it to is true, and they do what they
// say. The rush has fewer seats than people.
func TestScripts_OnTheLocalProfile(t *testing.T) {
	t.Parallel()
	scarce, roomy := theLocalProfile(t, 30), theLocalProfile(t, 300)
	for _, c := range []struct {
		name       string
		env        map[string]string
		iterations map[string]int
	}{
		{"rush.js", scarce.env(40, "2s", 0), map[string]int{"bookings": 80, "readers": 320}},
		{"steady.js", roomy.env(20, "1s", 0), map[string]int{"people": 20}},
		{"abuse.js", roomy.env(40, "2s", 1), map[string]int{"abusers": 80, "insistent": 8, "neighbours": 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := run(t, load(t, c.name), k6test.Options{Env: c.env})
			if err != nil {
				t.Fatalf("run: got %v, want nil", err)
			}
			if diff := cmp.Diff(c.iterations, got.Iterations); diff != "" {
				t.Errorf("iterations (-want +got):\n%s", diff)
			}
			for _, metric := range []string{"seats", "seat_ms", "refusal_ms", "return_answered", "read_answered", "payment_pressed", "paid", "payments_reviewed"} {
				if got.Count(metric) == 0 {
					t.Errorf("%s: got no sample: the script did not come so far", metric)
				}
			}
			if len(got.Console) > 0 {
				t.Errorf("console: got %q, want nothing", got.Console)
			}
		})
	}
	t.Run("AbuseEndsWithWhatIsWrong", func(t *testing.T) { abuseEndsWithWhatIsWrong(t, roomy) })
}

// The thresholds without SLACK are the figures of docs/objectives.md, and whatever is wrong
// ends the run.
func TestThresholds_AreTheObjectives(t *testing.T) {
	t.Parallel()
	ends := func(expressions ...string) []k6test.Threshold {
		var all []k6test.Threshold
		for _, e := range expressions {
			all = append(all, k6test.Threshold{Expression: e, Aborts: true})
		}
		return all
	}
	want := map[string]map[string][]k6test.Threshold{}
	for _, name := range scripts {
		want[name] = map[string][]k6test.Threshold{
			"booking_answered": ends("rate>=0.999"), "booking_decided": ends("rate>=0.99"),
			"refusal_ms": ends("p(50)<10", "p(99)<250"), "return_answered": ends("rate>=0.99"),
			"read_answered": ends("rate>=0.999"), "payment_pressed": ends("rate>=0.99"),
			"server_errors": ends("count==0"), "unexpected_answers": ends("count==0"), "admitted_twice": ends("count==0"),
			"charged_twice": ends("count==0"), "paid_unconfirmed": ends("count==0"),
			"seats": {{Expression: "count>0"}}, "paid": {{Expression: "count>0"}}, "payments_reviewed": {{Expression: "count>0"}},
			"dropped_iterations": ends("count==0"),
		}
	}
	want["steady.js"]["booking_answered"] = ends("rate==1")
	want["steady.js"]["refusal_ms"] = ends("p(50)<10", "p(99)<100")
	want["steady.js"]["seat_ms"] = ends("p(99)<300")
	delete(want["abuse.js"], "seats")
	want["abuse.js"]["seats{scenario:insistent}"] = want["rush.js"]["seats"]
	want["abuse.js"]["seats{scenario:neighbours}"] = want["rush.js"]["seats"]
	want["abuse.js"]["seats_by_abuse"] = ends("count==0")
	want["abuse.js"]["abuse_answered"] = ends("rate>=0.99")
	want["abuse.js"]["booking_answered{scenario:neighbours}"] = ends("rate>=0.999")
	want["abuse.js"]["booking_decided{scenario:neighbours}"] = ends("rate>=0.99")
	want["abuse.js"]["seat_ms{scenario:neighbours}"] = ends("p(99)<300")
	for _, name := range scripts {
		got, err := load(t, name).Thresholds(t.Context(), nil)
		if err != nil {
			t.Fatalf("%s: got %v, want nil", name, err)
		}
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
