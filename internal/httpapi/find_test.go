package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

// finds is an edge where nobody may book and a look ends like that.
func finds(t *testing.T, answer error) *edge {
	return newEdge(t, func(d *httpapi.Deps) {
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) {
			t.Error("find: a seat was asked for")
			return booking.Held{}, booking.ErrTryAgain
		})
		d.Finder = finder(func(_ context.Context, c, e string) error {
			if c != code || e != email {
				t.Errorf("find: got %q %q, want %q %q", c, e, code, email)
			}
			return answer
		})
	})
}

func TestFind_LeadsToTheBookingInWhateverPhase(t *testing.T) {
	t.Parallel()
	const url = "https://sale.test/booking/tok"
	row := booking.Row{Attempt: attempt, Level: "N1", Payment: payment, Deadline: started.Add(time.Minute).UnixMilli()}
	for phase, want := range map[booking.Phase]map[string]any{
		booking.PhaseHeld:    {"payment_url": payURL, "seconds_left": 60.0},
		booking.PhasePaying:  {},
		booking.PhaseRefused: {},
		booking.PhasePaid:    {"paid": true},
	} {
		row := row
		row.Phase, row.Released = phase, true
		dup := &booking.DuplicateError{Row: row, Now: started, BookingURL: url}
		if phase == booking.PhaseHeld {
			dup.PaymentURL = payURL
		}
		w := finds(t, dup).book(t, `{"code":"ab-1001","email":"A.B@example.org","find":true}`)
		m := wantProblem(t, string(phase), w.Code, w.Header(), w.Body, http.StatusConflict, "duplicate")
		want["booking_url"], want["level"] = url, "N1"
		for _, field := range []string{"booking_url", "level", "payment_url", "seconds_left", "paid"} {
			if got := m[field]; got != want[field] {
				t.Errorf("%s: %s: got %v, want %v", phase, field, got, want[field])
			}
		}
	}
}

func TestFind_WithoutASeat(t *testing.T) {
	t.Parallel()
	missing := fmt.Errorf("find: %w", booking.ErrNotFound)
	w := finds(t, missing).book(t, `{"code":"ab-1001","email":"A.B@example.org","level":"N1","find":true}`)
	m := wantProblem(t, "find", w.Code, w.Header(), w.Body, http.StatusNotFound, "not_found")
	if m["message"] != "No seat is held or paid for this candidate." {
		t.Errorf("message: got %v, want that there is no seat", m["message"])
	}
	form := finds(t, missing).send(t, http.MethodPost, "/book", formType, "code=ab-1001&email=A.B%40example.org&website=&find=1")
	if form.Code != http.StatusNotFound || !strings.Contains(form.Body.String(), "No booking with this code and address") {
		t.Errorf("form: got %d %s, want a page that says so", form.Code, form.Body)
	}
}

func TestFind_NeedsCodeAndEmail(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"find":true}`, `{"find":true,"code":"ab-1001"}`, `{"find":true,"email":"a.b@example.org"}`, `{"find":"yes","code":"ab-1001","email":"a.b@example.org"}`} {
		w := untouched(t).book(t, body)
		wantProblem(t, body, w.Code, w.Header(), w.Body, http.StatusBadRequest, "invalid_request")
	}
	w := untouched(t).book(t, `{"find":true,"code":"?","email":"a.b@example.org"}`)
	wantProblem(t, "malformed code", w.Code, w.Header(), w.Body, http.StatusBadRequest, "invalid_code")
}

// Without JavaScript the answer is all that a person has.
func TestFind_FormSaysWhereTheBookingStands(t *testing.T) {
	t.Parallel()
	late := started.Add(time.Hour)
	for name, c := range map[string]struct {
		row  booking.Row
		now  time.Time
		want string
	}{
		"refused": {booking.Row{Phase: booking.PhaseRefused, Released: true}, started, "send the booking form again with the same code, address and level"},
		"paying":  {booking.Row{Phase: booking.PhasePaying}, started, "Do not pay again"},
		"over":    {booking.Row{Phase: booking.PhaseHeld}, late, "The time to pay is over"},
		"lapsed":  {booking.Row{Phase: booking.PhaseRefused, Released: true}, late, "The time to pay is over"},
		"paid":    {booking.Row{Phase: booking.PhasePaid}, late, "Your seat is paid"},
	} {
		c.row.Attempt, c.row.Level, c.row.Deadline = attempt, "N1", started.Add(time.Minute).UnixMilli()
		e := finds(t, &booking.DuplicateError{Row: c.row, Now: c.now, BookingURL: "https://sale.test/booking/tok"})
		w := e.send(t, http.MethodPost, "/book", formType, "code=ab-1001&email=A.B%40example.org&website=&find=1")
		if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: got %d %s, want a page with %q", name, w.Code, w.Body, c.want)
		}
	}
}
