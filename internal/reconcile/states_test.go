package reconcile_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/httpapi"
)

// less is money that is not what was ordered.
func less(c *booking.Charge) { c.Amount -= 100 }

// states make a booking of candidate 1 whose seat is in the column's state.
var states = map[string]func(t *testing.T, w *world) bookingtest.Booking{
	"no row": func(t *testing.T, w *world) bookingtest.Booking {
		b := w.Held(t, 1, "N1")
		w.wantSweep(t, booking.DefaultHold, "released")
		return b
	},
	"payable": func(t *testing.T, w *world) bookingtest.Booking { return w.Payable(t, 1, "N1") },
	"held":    func(t *testing.T, w *world) bookingtest.Booking { return w.Held(t, 1, "N1") },
	"paying":  func(t *testing.T, w *world) bookingtest.Booking { return w.Paying(t, 1, "N1", "p", payingLength) },
	"refused": func(t *testing.T, w *world) bookingtest.Booking { return w.Refused(t, 1, "N1") },
	"paid": func(t *testing.T, w *world) bookingtest.Booking {
		b := w.Held(t, 1, "N1")
		w.pays(t, b)
		return b
	},
}

// event happens to a booking.
type event func(t *testing.T, w *world, b bookingtest.Booking)

// returned is a browser that comes back with that status.
func returned(status string, gateway event) event {
	return func(t *testing.T, w *world, b bookingtest.Booking) {
		gateway(t, w, b)
		edge, err := httpapi.New(httpapi.Deps{
			Booker: struct{ httpapi.Booker }{}, Finder: struct{ httpapi.Finder }{}, Viewer: struct{ httpapi.Viewer }{}, Sealer: sealer{}, Settler: w.settler, Background: w.Background,
			Codes: booking.DefaultCodeRule(), ResultURL: "/result", ReturnBudget: 20 * time.Second,
			Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			t.Fatal(err)
		}
		query := url.Values{"paymentID": {b.Payment.ID}, "status": {status}, "signature": {b.Payment.Signature}}
		answer := httptest.NewRecorder()
		edge.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/payment/callback?"+query.Encode(), nil))
		if answer.Code != http.StatusSeeOther {
			t.Errorf("answer: got %d, want 303", answer.Code)
		}
		w.Background.Wait()
	}
}

type sealer struct{}

func (sealer) Seal(_, attempt string) string               { return attempt }
func (sealer) Open(string) (code, attempt string, _ error) { return "", "", booking.ErrNotFound }

func notified(t *testing.T, w *world, b bookingtest.Booking) {
	t.Helper()
	charge, err := w.Gateway.Query(t.Context(), b.Payment.ID)
	if err != nil {
		t.Fatal(err)
	}
	if charge.Status == booking.ChargeCompleted {
		_ = w.settler.Confirm(t.Context(), b.Code, b.Record, charge) // what became of it is what counts
		w.Background.Wait()
	}
}

func finishes(_ *testing.T, w *world, b bookingtest.Booking) { w.Gateway.Finish(b.Payment.ID) }

func completes(_ *testing.T, w *world, b bookingtest.Booking) { w.Gateway.Complete(b.Payment.ID) }

func isOpen(*testing.T, *world, bookingtest.Booking) {}

// anHourLater is the question about what has ended, without the sweep that looks at
// what has not.
func anHourLater(t *testing.T, w *world, _ bookingtest.Booking) {
	w.askAgain(t).check(t, time.Hour)
}

func passed(t *testing.T, w *world, _ bookingtest.Booking) { w.sweep(t, booking.DefaultHold) }

// line is how a line of the table is driven.
type line struct {
	before event // makes things so that the event can happen
	event  event
	// unreported: nobody may have told us of this money.
	unreported bool
}

var events = map[string]line{
	"return with success, the payer has paid": {isOpen, returned("success", finishes), false},
	"return with success, the gateway refuses": {isOpen, returned("success", func(_ *testing.T, w *world, b bookingtest.Booking) {
		w.Gateway.Refuse(b.Payment.ID, "2023")
	}), false},
	"return with success, the payer has not finished": {isOpen, returned("success", isOpen), false},
	"return with success, the wrong amount": {func(_ *testing.T, w *world, b bookingtest.Booking) {
		if w.Gateway.Calls(bookingtest.Execute, b.Payment.ID) == 0 { // what a paid seat was paid with stays
			w.Gateway.Divert(b.Payment.ID, less)
		}
	}, returned("success", finishes), false},
	"return with failure": {isOpen, returned("failure", finishes), false},
	"return with cancel":  {isOpen, returned("cancel", finishes), false},

	"notification, completed":             {completes, notified, false},
	"notification, the gateway says open": {isOpen, func(t *testing.T, w *world, b bookingtest.Booking) { notified(t, w, b) }, false},
	"notification, the wrong amount": {func(t *testing.T, w *world, b bookingtest.Booking) {
		w.Gateway.Divert(b.Payment.ID, less)
		completes(t, w, b)
	}, notified, false},
	"second report of the same money": {func(t *testing.T, w *world, b bookingtest.Booking) {
		completes(t, w, b)
		notified(t, w, b)
	}, notified, false},
	"second payment, after the first": {func(t *testing.T, w *world, b bookingtest.Booking) {
		completes(t, w, b)
		notified(t, w, b)
	}, func(t *testing.T, w *world, b bookingtest.Booking) {
		again := w.Gateway.CompleteAgain(b.Payment.ID)
		wantErr(t, "second payment", w.settler.Confirm(t.Context(), b.Code, b.Record, again), booking.ErrRefunded)
	}, false},

	"sweep's look before the deadline":         {isOpen, func(t *testing.T, w *world, _ bookingtest.Booking) { w.sweep(t, time.Minute) }, false},
	"deadline passed, not completed":           {isOpen, passed, false},
	"deadline passed, completed":               {completes, passed, true}, // of what nobody reports the sweep learns nothing
	"an hour after the release, not completed": {isOpen, anHourLater, false},
	"an hour after the release, completed":     {completes, anHourLater, true},
	"an hour after the release, the wrong amount": {func(t *testing.T, w *world, b bookingtest.Booking) {
		w.Gateway.Divert(b.Payment.ID, less)
		completes(t, w, b)
	}, anHourLater, true},
	"deadline passed, the wrong amount": {func(t *testing.T, w *world, b bookingtest.Booking) {
		w.Gateway.Divert(b.Payment.ID, less)
		completes(t, w, b)
	}, passed, true},
}

// docs/states.md says what every event does in every state: each cell is driven, on
// a sale of its own, and its words are compared with what happened.
func TestStates_EventsDoWhatThePageSays(t *testing.T) {
	t.Parallel()
	columns, lines := table(t)
	for name := range events {
		if _, told := lines[name]; !told {
			t.Errorf("event %q is not in the table", name)
		}
	}
	for name, cells := range lines {
		for i, column := range columns {
			t.Run(name+"/"+column, func(t *testing.T) {
				w := inProcess(t)
				var got string
				if name == "late report, no seat is free" {
					got = w.lateReport(t, column)
				} else {
					drive, known := events[name]
					if !known {
						t.Fatal("the test does not know how to drive this event")
					}
					b := states[column](t, w)
					drive.before(t, w, b)
					w.Books.Unseated[b.Payment.ID] = drive.unreported
					got = w.whatHappens(t, b, drive.event)
				}
				if got != cells[i] {
					t.Errorf("got %q, want %q", got, cells[i])
				}
				w.Books.Check(t)
			})
		}
	}
}

// table reads the page's table of events.
func table(t *testing.T) (columns []string, lines map[string][]string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/states.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n| event |")
	text, _, _ = strings.Cut("| event |"+text, "\n\n")
	lines = map[string][]string{}
	for i, line := range strings.Split(text, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		switch {
		case i == 0:
			columns = cells[1:]
		case i > 1:
			lines[cells[0]] = cells[1:]
		}
		if i != 1 && len(cells) != len(states)+1 {
			t.Fatalf("line %q: got %d cells, want %d", line, len(cells), len(states)+1)
		}
	}
	for _, column := range columns {
		if states[column] == nil {
			t.Fatalf("column %q is no state", column)
		}
	}
	return columns, lines
}

// whatHappens names, in the table's words, what the event does to the booking's
// seat and money.
func (w *world) whatHappens(t *testing.T, b bookingtest.Booking, happens event) string {
	t.Helper()
	before, state, refunds := w.Row(t, b.Code), w.State(t, b), w.refunds(t)
	executed := w.Gateway.Calls(bookingtest.Execute, b.Payment.ID)
	happens(t, w, b)
	after := w.Row(t, b.Code)
	var words []string
	switch {
	case after.Phase == "" && before.Phase != "":
		words = append(words, "released")
		w.Want(t, b, "", booking.StateReleased)
	case after.Phase != before.Phase:
		words = append(words, string(after.Phase))
		want := map[booking.Phase]booking.RecordState{
			booking.PhaseHeld: booking.StateHeld, booking.PhaseRefused: booking.StateReleased, booking.PhasePaid: booking.StatePaid,
		}[after.Phase]
		w.Want(t, b, after.Phase, want)
	case after.Phase == booking.PhasePaying && !cmp.Equal(before, after):
		words = append(words, "kept")
	case !cmp.Equal(before, after):
		words = append(words, string(after.Phase)) // there and back
	case w.State(t, b) != state:
		words = append(words, "record "+string(w.State(t, b)))
	case w.Gateway.Calls(bookingtest.Execute, b.Payment.ID) != executed:
		words = append(words, "executed")
	}
	if n := w.refunds(t) - refunds; n > 0 {
		words = append(words, "refund")
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

func (w *world) refunds(t *testing.T) int {
	t.Helper()
	n := 0
	for _, err := range w.Store.Refunds(context.WithoutCancel(t.Context())) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// lateReport is of an old attempt, when its candidate has what the column says, or
// nothing and the level is full.
func (w *world) lateReport(t *testing.T, column string) string {
	t.Helper()
	old := states["no row"](t, w)
	if column == "no row" {
		for i := range 3 {
			w.pays(t, w.Held(t, 2+i, "N1"))
		}
	} else {
		states[column](t, w)
	}
	w.Gateway.Complete(old.Payment.ID)
	return w.whatHappens(t, old, notified)
}
