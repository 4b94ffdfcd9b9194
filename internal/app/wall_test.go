package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/testenv"
	"holdfast/internal/wall"
)

// Whichever process is asked, its wall shows what the ledger of the fleet has; and when
// Redis is gone it shows that still, and says so.
func TestWall_ShowsWhatTheLedgerHasInEveryProcess(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	addr := pair.Primary.Addr()
	f := newFleet(t, addr, "auto", booking.Sale{Name: "wall", Currency: "BDT", Cap: 9, Hold: 10 * time.Minute, Levels: []booking.Level{
		{ID: "N1", Name: "One", Cap: 6, Fee: 150000}, {ID: "N2", Name: "Two", Cap: 5, Fee: 120000},
	}}, 0)
	f.addCandidates(t, 9)
	var admins []string
	for range 2 {
		listen, admin := testenv.FreeAddr(t), testenv.FreeAddr(t)
		env := f.env(listen, addr, "auto")
		env["HOLDFAST_ADMIN_ADDR"] = admin
		f.apis, admins = append(f.apis, "http://"+listen), append(admins, "http://"+admin)
		f.procs = append(f.procs, testenv.StartProgram(t, "api", nil, env))
		testenv.Eventually(t, func() error {
			status, body, err := f.get(t.Context(), "http://"+listen+"/health")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("health: %d %s", status, body)
			}
			return err
		})
	}
	look := func(admin string) (v wall.View, err error) {
		status, body, err := f.get(t.Context(), admin+"/wall.json")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("wall.json: got %d %s, want 200", status, body)
		}
		if err == nil {
			err = json.Unmarshal(body, &v)
		}
		return v, err
	}
	links := map[string]string{}
	for i := range 7 {
		code := fmt.Sprintf("P%04d", i)
		status, a, _, err := f.book(t.Context(), f.apis[i%2], code, []string{"N1", "N2"}[i%2])
		if err != nil || status != http.StatusAccepted {
			t.Fatalf("book %s: got %d %+v, %v, want 202", code, status, a, err)
		}
		if i < 3 {
			links[code] = a.PaymentURL
		}
	}
	f.payAll(t, links)

	figures, err := f.gate.ReadStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	phases, paid := map[booking.Phase]int{}, map[string]int{}
	for _, p := range booking.Phases() {
		phases[p] = 0
	}
	for d, err := range f.gate.Rows(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		phases[d.Row.Phase]++
		if d.Row.Phase == booking.PhasePaid {
			paid[d.Row.Level]++
		}
	}
	seats := func(limit, admitted, paid, left int) wall.Seats {
		held := admitted - paid
		return wall.Seats{Cap: limit, Admitted: &admitted, Paid: &paid, Held: &held, Left: &left}
	}
	want := wall.View{
		Open: true, Total: seats(9, figures.Total, phases[booking.PhasePaid], 2),
		Levels: []wall.Level{
			{ID: "N1", Name: "One", Seats: seats(6, figures.Levels[0].Admitted, paid["N1"], 2)},
			{ID: "N2", Name: "Two", Seats: seats(5, figures.Levels[1].Admitted, paid["N2"], 2)},
		},
		Counts: &wall.Counts{Sale: "wall", Phases: phases},
	}
	if figures.Total != 7 || phases[booking.PhasePaid] != 3 {
		t.Fatalf("the ledger: got %d admitted, %d paid, want 7 and 3", figures.Total, phases[booking.PhasePaid])
	}
	for _, admin := range admins {
		var admitted, sold int
		testenv.Eventually(t, func() error {
			v, err := look(admin)
			if err == nil && v.Counts == nil {
				err = fmt.Errorf("%s: got %+v, want counts", admin, v)
			}
			if err != nil {
				return err
			}
			admitted, sold = 0, v.Series[len(v.Series)-1].Paid
			for _, m := range v.Series {
				admitted += m.Admitted
			}
			got := wall.View{Open: v.Open, Total: v.Total, Levels: v.Levels, Counts: &wall.Counts{Sale: v.Sale, Phases: v.Phases}}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("%s against the ledger (-ledger +wall):\n%s", admin, diff)
			}
			return nil
		})
		if admitted != 7 || sold != 3 {
			t.Errorf("%s: the last hour: got %d admitted, %d paid, want 7 and 3", admin, admitted, sold)
		}
		status, body, err := f.get(t.Context(), admin+"/wall")
		if err != nil || status != http.StatusOK || !strings.Contains(string(body), "<title>") {
			t.Errorf("%s/wall: got %d, %v, want the page", admin, status, err)
		}
	}
	for _, base := range f.apis {
		for _, path := range []string{"/wall", "/wall.json"} {
			if status, _, err := f.get(t.Context(), base+path); err != nil || status != http.StatusNotFound {
				t.Errorf("%s%s on the public listener: got %d, %v, want 404", base, path, status, err)
			}
		}
	}

	pair.Stop()
	for _, admin := range admins {
		testenv.Eventually(t, func() error {
			v, err := look(admin)
			if err == nil && (v.Trouble != wall.TroubleSeats || v.AgeSeconds < 1 || *v.Total.Admitted != 7) {
				err = fmt.Errorf("without Redis: got trouble %q, %v s old, %d admitted, want %q, older, 7", v.Trouble, v.AgeSeconds, *v.Total.Admitted, wall.TroubleSeats)
			}
			return err
		})
	}
	for _, p := range f.procs {
		if code := p.Stop(t, syscall.SIGTERM); code != 0 {
			t.Errorf("a process that somebody looked at: got exit status %d after SIGTERM, want 0", code)
		}
	}
}
