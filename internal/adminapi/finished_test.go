package adminapi_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/adminapi"
	"holdfast/internal/booking"
)

// finisher has an earlier load to finish before it reads the list, and then refuses it
// if it is not wrong.
type finisher struct {
	finished bool
	refuse   error
}

func (f *finisher) Load(_ context.Context, list iter.Seq2[booking.Candidate, error], _ adminapi.Options) (adminapi.Report, error) {
	report := adminapi.Report{Finished: f.finished}
	if f.finished {
		report.FinishedOf, report.FinishedSince = "bob", time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC)
	}
	for _, err := range list {
		if err != nil {
			return report, fmt.Errorf("allowlist: %w", err)
		}
		report.Rows++
	}
	return report, f.refuse
}

func TestPut_FinishingAnEarlierLoadIsSaidAndLogged(t *testing.T) {
	t.Parallel()
	const wrong = "code,email\nAB-0001,a@example.org\nAB-0002,nobody\n"
	const said = "an earlier load, of bob since 2026-12-01T04:00:00Z, was finished; of this file nothing was changed"
	removals := &adminapi.Refusal{Slug: "removals", Err: errors.New("as the loader words it")}
	for name, c := range map[string]struct {
		finished bool
		body     string
		refuse   error
		status   int
		text     string
		outcome  booking.LogOutcome
	}{
		"WrongFile":             {true, wrong, nil, http.StatusBadRequest, said, booking.LogFailed},
		"NoFile":                {true, "", nil, http.StatusBadRequest, said, booking.LogFailed},
		"Refused":               {true, file, removals, http.StatusConflict, "as the loader words it", booking.LogFailed},
		"WrongFileAndNothing":   {false, wrong, nil, http.StatusBadRequest, ": nothing was changed", booking.LogRefused},
		"RefusedAndNothing":     {false, file, removals, http.StatusConflict, "as the loader words it", booking.LogRefused},
		"InForceAfterAnEarlier": {true, file, nil, http.StatusOK, "", booking.LogDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, func(d *adminapi.Deps) { d.Loader = &finisher{c.finished, c.refuse} })
			a := w.put(t, "", strings.NewReader(c.body), nil)
			if message, _ := a.body["message"].(string); a.status != c.status || !strings.Contains(message, c.text) {
				t.Errorf("got %d %v, want %d, %q", a.status, a.body, c.status, c.text)
			}
			if of, _ := a.body["finished_of"].(string); c.finished && (a.body["finished_earlier"] != true || of != "bob") {
				t.Errorf("report: got %v, want whose load was finished", a.body)
			}
			if diff := cmp.Diff([]booking.LogOutcome{booking.LogBegun, c.outcome}, w.journal.outcomes()); diff != "" {
				t.Errorf("operator's log (-want +got):\n%s", diff)
			}
			if end := string(w.journal.entries[1].After); c.finished != strings.Contains(end, `"finished_of":"bob"`) {
				t.Errorf("operator's log: got %s, want it to say what was finished: %t", end, c.finished)
			}
		})
	}
}
