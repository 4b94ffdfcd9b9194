package testenv_test

import (
	"testing"

	"holdfast/internal/testenv"
)

func TestSMTP_MissingSkipsByHandAndFailsInCI(t *testing.T) {
	t.Chdir(t.TempDir()) // no module, so no cache
	for ci, skipped := range map[string]bool{"": true, "true": false} {
		t.Setenv("CI", ci)
		r := record(t, func(tb testing.TB) { testenv.SMTP(tb, testenv.SMTPOptions{}) })
		if r.skipped != skipped || r.failed == skipped {
			t.Errorf("CI=%q: got skipped %v, failed %v, want skipped %v", ci, r.skipped, r.failed, skipped)
		}
	}
}
