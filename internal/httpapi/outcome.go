package httpapi

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	json "github.com/go-json-experiment/json"

	"holdfast/internal/booking"
)

// outcome is how an error is told over HTTP.
type outcome struct {
	err    error
	status int
	slug   string
	reason string
	text   string
	// retry is the least Retry-After in seconds, and how many are spread over; 0
	// says nothing.
	retry, spread int
}

// outcomes is the one table; a test holds it complete. The first row that an
// error is counts: try_again goes before what may have caused it, such as a
// payment link that was not found.
var outcomes = []outcome{
	{err: booking.ErrTryAgain, status: http.StatusServiceUnavailable, slug: "try_again", text: "No answer can be given now: try again, nobody gets two seats.", retry: 1, spread: 4},
	{err: booking.ErrPaymentUnavailable, status: http.StatusBadGateway, slug: "payment_unavailable", text: "The payment could not be created: try again, nobody gets two seats.", retry: 3, spread: 5},
	{err: booking.ErrInvalidRequest, status: http.StatusBadRequest, slug: "invalid_request", text: "The request is malformed: send one JSON object with the texts code, email and level, each once."},
	{err: booking.ErrInvalidLevel, status: http.StatusBadRequest, slug: "invalid_level", text: "There is no such level: choose one of those in status.json."},
	{err: booking.ErrInvalidCode, status: http.StatusBadRequest, slug: "invalid_code", text: "This candidate code is not on the list: check it against your registration."},
	{err: booking.ErrEmailMismatch, status: http.StatusBadRequest, slug: "email_mismatch", text: "This is not the e-mail address registered with the code: use the registered one."},
	{err: booking.ErrDuplicate, status: http.StatusConflict, slug: "duplicate", text: "This candidate already has a seat."},
	{err: booking.ErrLevelFull, status: http.StatusConflict, slug: "level_full", text: "This level is full: choose another, or try later, when unpaid seats come back."},
	{err: booking.ErrIdempotencyMismatch, status: http.StatusUnprocessableEntity, slug: "idempotency_mismatch", text: "This Idempotency-Key was used with another body: use a new key for a new intent."},
	{err: booking.ErrNotFound, status: http.StatusNotFound, slug: "not_found", text: "There is nothing here."},
	{err: booking.ErrMethodNotAllowed, status: http.StatusMethodNotAllowed, slug: "method_not_allowed", text: "This method is not allowed here."},
	{err: booking.ErrBodyTooLarge, status: http.StatusRequestEntityTooLarge, slug: "body_too_large", text: "The body is larger than 8 KiB."},
	{err: booking.ErrUnsupportedMediaType, status: http.StatusUnsupportedMediaType, slug: "unsupported_media_type", text: "Send application/json, or a form as application/x-www-form-urlencoded."},
	{err: booking.ErrSoldOut, status: http.StatusTooManyRequests, slug: "closed", reason: "sold_out", text: "No seat is left. Seats that are not paid in time come back.", retry: 30, spread: 30},
	{err: booking.ErrNotOpen, status: http.StatusServiceUnavailable, slug: "closed", reason: "not_open", text: "Booking is not open.", retry: 10, spread: 20},
}

var internal = outcome{status: http.StatusInternalServerError, slug: "internal", text: "Something is wrong on our side: tell the operators the request id."}

// classify finds the outcome of an error; an opaque 500 for one it does not know.
func classify(err error) outcome {
	for i := range outcomes {
		if err == outcomes[i].err { //nolint:errorlint // the quick way for a bare sentinel; the loop below unwraps
			return outcomes[i]
		}
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o
		}
	}
	return internal
}

// retryAfter is jittered: the same number for everyone only moves the spike.
func (o outcome) retryAfter() int {
	if o.retry == 0 {
		return 0
	}
	return o.retry + rand.IntN(o.spread)
}

// problem is every error body.
type problem struct {
	Error       string     `json:"error"`
	Message     string     `json:"message"`
	RequestID   string     `json:"request_id"`
	Reason      string     `json:"reason,omitempty"`
	Level       string     `json:"level,omitempty"`
	OpensAt     *time.Time `json:"opens_at,omitempty"`
	Paid        bool       `json:"paid,omitzero"`
	PaymentURL  string     `json:"payment_url,omitempty"`
	BookingURL  string     `json:"booking_url,omitempty"`
	SecondsLeft *int       `json:"seconds_left,omitempty"`
	retry       int
	status      int
	words       string // key of the page's texts
}

// describe makes the body of an error.
func describe(err error, level, requestID string) problem {
	o := classify(err)
	p := problem{Error: o.slug, Message: o.text, RequestID: requestID, Reason: o.reason, retry: o.retryAfter(), status: o.status, words: o.slug}
	if o.reason != "" {
		p.words = o.reason
	}
	var dup *booking.DuplicateError
	var notOpen *booking.NotOpenError
	switch {
	case errors.Is(err, booking.ErrLevelFull): // first: nearly all are, and As takes longer
		p.Level = level
	case errors.As(err, &dup):
		p.duplicate(dup)
	case errors.Is(err, errNoSeat):
		p.words, p.Message = "no_seat", "No seat is held or paid for this candidate."
	case errors.As(err, &notOpen) && !notOpen.OpensAt.IsZero():
		at := notOpen.OpensAt.UTC()
		p.OpensAt = &at
	}
	return p
}

func (p *problem) duplicate(dup *booking.DuplicateError) {
	if p.BookingURL = dup.BookingURL; p.BookingURL != "" {
		p.Level = dup.Row.Level // it may be another than was asked for
	}
	over := dup.Row.Deadline > 0 && dup.Now.UnixMilli() >= dup.Row.Deadline
	switch {
	case dup.Row.Phase == booking.PhasePaid:
		p.Paid, p.words = true, "duplicate_paid"
		p.Message = "This candidate's seat is paid."
	case dup.Row.Phase == booking.PhaseNew, dup.Row.Phase == booking.PhaseRefused && !dup.Row.Released:
		p.retry, p.words = 2+rand.IntN(4), "duplicate_working"
		p.Message = "This candidate's first request is still at work: try again in a few seconds."
	case dup.Row.Phase == booking.PhasePaying:
		p.words = "paying"
	case over:
		p.words = "over"
	case dup.Row.Phase == booking.PhaseRefused:
		p.words = "duplicate_refused"
	case dup.PaymentURL != "":
		left := booking.SecondsLeft(dup.Row.Deadline, dup.Now)
		p.PaymentURL, p.SecondsLeft, p.words = dup.PaymentURL, &left, "duplicate_payable"
		p.Message = "This candidate holds a seat that is not paid yet: finish the payment at payment_url."
	}
}

func (p problem) write(w http.ResponseWriter) error {
	if p.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retry))
	}
	if p.OpensAt == nil && !p.Paid && p.PaymentURL == "" && p.BookingURL == "" && p.SecondsLeft == nil {
		// A plain refusal, of which there are very many: its texts are ours, ASCII
		// without quotes, and a level's id holds nothing to escape.
		b := make([]byte, 0, 256)
		b = append(append(append(b, `{"error":"`...), p.Error...), `","message":"`...)
		b = append(append(append(b, p.Message...), `","request_id":"`...), p.RequestID...)
		if p.Reason != "" {
			b = append(append(b, `","reason":"`...), p.Reason...)
		}
		if p.Level != "" {
			b = append(append(b, `","level":"`...), p.Level...)
		}
		writeJSON(w, p.status, append(b, "\"}\n"...))
		return nil
	}
	return reply(w, p.status, p)
}

// reply writes JSON that nobody may store.
func reply(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeJSON(w, status, append(body, '\n'))
	return nil
}

// Header values, in the form that the header map keeps them: made once.
var (
	typeJSON = []string{"application/json; charset=utf-8"}
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
)

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"], h["X-Content-Type-Options"] = typeJSON, noStore, noSniff
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have left
}
