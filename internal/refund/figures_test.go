package refund_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/refund"
)

func TestReport_FiguresNameEveryCount(t *testing.T) {
	t.Parallel()
	report := refund.Report{Open: 1, Done: 2, Person: 3, Doubt: 4, Busy: 5, Failed: 6, Left: 7, Unreadable: 8, Outage: true}
	want := map[string]int{"open": 1, "done": 2, "person": 3, "doubt": 4, "busy": 5, "failed": 6, "left": 7, "unreadable": 8, "outage": 1}
	if diff := cmp.Diff(want, report.Figures()); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
}
