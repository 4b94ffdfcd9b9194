package app_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// However many processes there are, one reads the ledger; when it ends another does.
func TestElected_OneProcessShowsTheLedger(t *testing.T) {
	t.Parallel()
	addr := testenv.Mini(t)
	f := newFleet(t, addr, "0", booking.Sale{
		Name: "elected", Currency: "BDT", Cap: 2, Hold: 10 * time.Minute,
		Levels: []booking.Level{{ID: "N1", Name: "One", Cap: 2, Fee: 150000}},
	}, 0)
	type process struct {
		*testenv.Program
		admin string
	}
	start := func() process {
		env := f.env(testenv.FreeAddr(t), addr, "0")
		env["HOLDFAST_ADMIN_ADDR"] = testenv.FreeAddr(t)
		return process{testenv.StartProgram(t, "api", nil, env), "http://" + env["HOLDFAST_ADMIN_ADDR"]}
	}
	shows := func(p process) (bool, error) {
		status, body, err := f.get(t.Context(), p.admin+"/metrics")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("metrics: got %d, want 200", status)
		}
		figures := strings.Contains(string(body), "\nholdfast_sale_open ")
		if running := strings.Contains(string(body), "\nholdfast_reconciler_running 1"); err == nil && figures != running {
			err = fmt.Errorf("%s: got figures %t, elected %t, want both or neither", p.admin, figures, running)
		}
		return figures, err
	}
	processes := []process{start(), start()}
	var elected, other process
	testenv.Eventually(t, func() error {
		n := 0
		for i, p := range processes {
			figures, err := shows(p)
			if err != nil {
				return err
			}
			if figures {
				n++
				elected, other = p, processes[1-i]
			}
		}
		if n != 1 {
			return fmt.Errorf("processes that show the ledger: got %d, want 1", n)
		}
		return nil
	})
	if code := elected.Stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("stop the elected process: got exit status %d, want 0", code)
	}
	testenv.Eventually(t, func() error {
		figures, err := shows(other)
		if err == nil && !figures {
			err = errors.New("the other one: got no figures, want some")
		}
		return err
	})
}
