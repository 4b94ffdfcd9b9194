package saleops_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
)

// sold is a booking store and a queue that say whether anybody may have had an attempt;
// at first nobody has.
type sold struct {
	saleops.Store
	some  bool
	err   error
	stats booking.QueueStats
}

func (s *sold) Empty(context.Context) (bool, error)               { return !s.some, s.err }
func (s *sold) Stats(context.Context) (booking.QueueStats, error) { return s.stats, nil }
func (s *sold) EpochMark(context.Context) (booking.EpochMark, error) {
	return booking.EpochMark{}, booking.ErrNotFound
}

// wantEmail wants this address on file, or none.
func (d *desk) wantEmail(t *testing.T, when, code, want string) {
	t.Helper()
	got, err := d.gate.Email(t.Context(), code)
	if errors.Is(err, booking.ErrNotFound) {
		err = nil
	}
	if got != want || err != nil {
		t.Errorf("e-mail on file, %s: got %q, %v, want %q", when, got, err, want)
	}
}

// wantLate has late money come for an attempt whose seat was given back, and wants a
// paid seat for it, with the address that its mail goes to.
func (d *desk) wantLate(t *testing.T, c booking.Candidate, row booking.Row) {
	t.Helper()
	rec := booking.Record{Code: c.Code, Attempt: row.Attempt, PaymentID: "PAY1", Level: "N1", Amount: row.Amount, Currency: row.Currency}
	got, err := d.gate.Late(t.Context(), rec, "TX1", booking.MoneyLate)
	if err != nil || got.Row.Phase != booking.PhasePaid {
		t.Fatalf("late money: got %+v, %v, want a paid seat", got, err)
	}
	d.wantEmail(t, "with a paid seat", c.Code, c.Email)
}

var allowed = saleops.AllowlistOptions{WhileOpen: true, AllowRemovals: true}

// Money may come for days after a hold has lapsed, and its mail needs an address.
func TestLoadAllowlist_RemovedCandidateWithLateMoneyCanBeMailed(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		lapsed := people(20, 20)[0]
		for name, c := range map[string]struct {
			first bool // removed while the seat was still held
			harm  func(d *desk)
		}{
			"RemovedAfterTheLapse":  {false, func(d *desk) { d.sold.some = true }},
			"RemovedBeforeTheLapse": {true, func(d *desk) { d.sold.some = true }},
			"StoreIsAway":           {false, func(d *desk) { d.sold.err = errors.New("no answer") }},
			"RecordIsOnItsWay":      {false, func(d *desk) { d.sold.stats.InFlight = 1 }},
			"RecordIsDead":          {true, func(d *desk) { d.sold.stats.Dead = 1 }},
		} {
			t.Run(name, func(t *testing.T) {
				d := newDesk(t, addr, acks)
				d.mustLoad(t, people(1, 20), saleops.AllowlistOptions{})
				d.mustOpen(t)
				row := d.mustBook(t, lapsed)
				c.harm(d)
				if c.first {
					d.mustLoad(t, people(1, 19), allowed)
				}
				if err := d.gate.Undo(t.Context(), lapsed.Code, row.Attempt); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if did := d.mustLoad(t, people(1, 19), allowed); did.Kept != 1 {
						t.Errorf("report: got %+v, want one e-mail kept", did)
					}
				}
				if err := d.check(t, lapsed.Code, lapsed.Email); !errors.Is(err, booking.ErrInvalidCode) {
					t.Errorf("the removed one again: got %v, want no seat", err)
				}
				d.wantLate(t, lapsed, row)
				if did := d.mustLoad(t, people(1, 20), allowed); did.Kept != 0 || did.Added != 1 {
					t.Errorf("back on the list: got %+v, want nothing kept any more", did)
				}
				d.wantList(t, people(1, 20))
			})
		}
	})
}

// lost takes the allowlist and its e-mails away, as a loss of Redis and a rebuild do,
// which brings rows back and no addresses.
func (d *desk) lost(t *testing.T) {
	t.Helper()
	keys, err := d.rdb.Keys(t.Context(), d.prefix+"candidate*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.rdb.Del(t.Context(), keys...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := d.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Whoever is asked for the address of a seat must not hear one of a list that nobody
// put in force.
func TestLoadAllowlist_OnlyAListInForceGivesASeatItsAddress(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		owner, others := people(20, 20)[0], people(1, 19)
		wrong := append(people(1, 19), booking.Candidate{Code: owner.Code, Email: "another@example.org"})
		for _, some := range []bool{false, true} {
			d := newDesk(t, addr, acks)
			d.mustLoad(t, people(1, 20), saleops.AllowlistOptions{})
			d.mustOpen(t)
			row := d.mustBook(t, owner)
			gone := d.mustBook(t, others[0]) // whose seat comes back with late money
			if err := d.gate.Undo(t.Context(), others[0].Code, gone.Attempt); err != nil {
				t.Fatal(err)
			}
			d.lost(t)
			d.sold.some = some
			d.faults.Before(bookingtest.OpEndAllowlist, func() {
				d.wantEmail(t, "while it is staged", owner.Code, "")
				d.wantEmail(t, "while it is staged, of who has no seat", others[5].Code, others[5].Email)
			})
			if _, err := d.DryRunAllowlist(t.Context(), list(wrong), saleops.AllowlistOptions{}); err != nil {
				t.Fatal(err)
			}
			d.wantEmail(t, "after a dry run", owner.Code, "")
			_, err := d.LoadAllowlist(t.Context(), broken(wrong), saleops.AllowlistOptions{})
			wantErr(t, "a wrong file", err, errLine)
			d.wantList(t, nil)
			d.wantEmail(t, "after a wrong file", owner.Code, "")

			late := booking.Record{Code: others[0].Code, Attempt: gone.Attempt, PaymentID: "PAY1", Level: "N1", Amount: gone.Amount, Currency: gone.Currency}
			d.faults.Before(bookingtest.OpEndAllowlist, func() {
				if got, err := d.gate.Late(t.Context(), late, "TX1", booking.MoneyLate); err != nil || got.Row.Phase != booking.PhasePaid {
					t.Errorf("late money: got %+v, %v, want a paid seat", got, err)
				}
			})
			if _, err := d.DryRunAllowlist(t.Context(), list(wrong), saleops.AllowlistOptions{}); err != nil {
				t.Fatal(err)
			}
			d.wantEmail(t, "with a seat since it was staged", others[0].Code, "")
			d.wantList(t, nil)

			d.mustLoad(t, people(1, 20), saleops.AllowlistOptions{})
			d.wantList(t, people(1, 20))
			if got, _, err := d.gate.Row(t.Context(), owner.Code); got != row || err != nil {
				t.Errorf("seat: got %+v, %v, want %+v", got, err, row)
			}
		}
	})
}

// cutOff is a desk whose load of after() over before() died with its list in force, by
// a process called "the first"; it is when.
func cutOff(t *testing.T, addr string, acks int) (d *desk, when time.Time) {
	t.Helper()
	d = newDesk(t, addr, acks)
	d.mustLoad(t, before(), saleops.AllowlistOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	d.faults.Before(bookingtest.OpEndAllowlist, cancel)
	when = time.Now()
	did, err := d.LoadAllowlist(ctx, list(after()), saleops.AllowlistOptions{Who: "the first"})
	if !errors.Is(err, context.Canceled) || !did.Applied {
		t.Fatalf("the first: got %+v, %v, want its list in force and nothing more", did, err)
	}
	return d, when
}

func wantText(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: got %q, want it to say %q", what, err, text)
		}
	}
}

// A load that changes nothing of its own has changed something when it finished
// another, and must not say otherwise.
func TestLoadAllowlist_FinishingAnEarlierLoadIsSaid(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d, when := cutOff(t, addr, acks)
		did, err := d.LoadAllowlist(t.Context(), broken(after()), saleops.AllowlistOptions{Who: "the second"})
		wantErr(t, "a wrong file", err, errLine)
		wantText(t, "a wrong file", err, "an earlier load, of the first since "+when.UTC().Format("2006-01-02T15:"), "was finished; of this list nothing was changed")
		if !did.Finished || did.FinishedOf != "the first" || did.FinishedSince.IsZero() {
			t.Errorf("report: got %+v, want that the first one's load was finished", did)
		}
		d.wantList(t, after())
		did, err = d.LoadAllowlist(t.Context(), broken(after()), saleops.AllowlistOptions{})
		wantErr(t, "a wrong file once more", err, errLine)
		wantText(t, "a wrong file once more", err, "load the allowlist: nothing was changed")
		if did.Finished || did.FinishedOf != "" {
			t.Errorf("report: got %+v, want nothing finished", did)
		}

		d, _ = cutOff(t, addr, acks)
		d.faults.Before(bookingtest.OpClearAllowlist, func() {
			d.faults.Before(bookingtest.OpSwapAllowlist, func() { d.mustOpen(t) })
		})
		did, err = d.LoadAllowlist(t.Context(), list(before()), saleops.AllowlistOptions{AllowRemovals: true})
		wantErr(t, "opened meanwhile", err, saleops.ErrBookingOpen)
		wantText(t, "opened meanwhile", err, "of the first", "of this list nothing was changed")
		if !did.Finished || did.Applied {
			t.Errorf("report: got %+v, want the first one's finished, and nothing applied", did)
		}
	})
}

// What is refused at once finishes nothing: not a dry run, which changes nothing, and
// not a load that booking is open for.
func TestLoadAllowlist_RefusedAtOnceFinishesNoEarlierLoad(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d, when := cutOff(t, addr, acks)
		was, left := d.inForce(t)
		same := func(what string) {
			t.Helper()
			is, now := d.inForce(t)
			if diff := cmp.Diff(was, is) + cmp.Diff(left, now); diff != "" {
				t.Errorf("%s: keys of candidates (-before +after):\n%.2000s", what, diff)
			}
		}
		for range 2 { // its own turn is not taken for a load
			did, err := d.DryRunAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{Who: "the second"})
			wantErr(t, "dry run", err, saleops.ErrLoadUnfinished)
			wantText(t, "dry run", err, "nothing was changed", "of the first, since "+when.UTC().Format("2006-01-02T15:"))
			if did.Finished {
				t.Errorf("dry run: got %+v, want nothing finished", did)
			}
			same("dry run")
		}
		d.mustOpen(t)
		_, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
		wantErr(t, "while open", err, saleops.ErrBookingOpen)
		same("while open")
		if err := d.gate.Close(t.Context()); err != nil {
			t.Fatal(err)
		}

		did, err := d.FinishAllowlist(t.Context(), saleops.AllowlistOptions{Who: "the third"})
		if err != nil || !did.Finished || did.FinishedOf != "the first" || did.Applied {
			t.Errorf("finish: got %+v, %v, want the first one's finished", did, err)
		}
		d.wantList(t, after())
		if did, err := d.FinishAllowlist(t.Context(), saleops.AllowlistOptions{}); err != nil || did.Finished {
			t.Errorf("finish again: got %+v, %v, want nothing to finish", did, err)
		}
		if _, err := d.DryRunAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{}); err != nil {
			t.Errorf("dry run afterwards: %v", err)
		}
		d.wantList(t, after())
	})
}
