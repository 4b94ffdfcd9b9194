package snshook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
)

// defaultTimeout leaves a wide margin to the 15 s after which SNS gives up.
const defaultTimeout = 8 * time.Second

// Keeper stores notifications. Store puts one if none is there under its message
// id and tells whether it did. It is safe for concurrent use and safe to repeat;
// true, or false without an error, means that it is there durably. It ends with
// ctx; any error means that SNS will deliver again, also when the notification is
// there and not yet where it is worked on.
type Keeper interface {
	Store(ctx context.Context, n booking.Notification) (stored bool, err error)
}

// Deps is what the handler is made of.
type Deps struct {
	Verifier *Verifier
	Keeper   Keeper
	// Arrived is told of a notification that was stored just now, readable or not: a
	// hint to work on it. It must return at once. May be nil.
	Arrived func(n booking.Notification)
	// Confirm is told of a genuine confirmation, for an operator: SNS waits for the
	// subscription to be confirmed, or it has been cancelled (see Message.Type). It
	// comes again when SNS delivers again, and ends with ctx. May be nil; the log has
	// it in any case.
	Confirm func(ctx context.Context, m Message)
	// Timeout bounds one delivery, its body included. Default 8 s, 9 s at most.
	Timeout    time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Handler is the webhook. It answers 200 {} to what is stored, was stored before or
// is a genuine confirmation, and an error of the house's shape to everything else.
type Handler struct {
	Deps
	outcomes *prometheus.CounterVec
}

// NewHandler checks its dependencies and registers holdfast_notifications_total.
func NewHandler(d Deps) (*Handler, error) {
	if d.Verifier == nil || d.Keeper == nil || d.Log == nil || d.Registerer == nil {
		return nil, errors.New("notifications: a dependency is missing")
	}
	if d.Timeout == 0 {
		d.Timeout = defaultTimeout
	}
	if d.Timeout < 0 || d.Timeout > 9*time.Second {
		return nil, fmt.Errorf("notifications: time-out %s is not within 9s", d.Timeout)
	}
	outcomes, err := newCounter(d.Registerer)
	if err != nil {
		return nil, err
	}
	return &Handler{Deps: d, outcomes: outcomes}, nil
}

// ServeHTTP takes one delivery.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), h.Timeout)
	defer cancel()
	outcome, err := h.take(ctx, w, r)
	h.outcomes.WithLabelValues(outcome).Inc()
	requestID := w.Header().Get("X-Request-Id") // set by whoever gives requests an id
	p, refused := problems[outcome]
	if !refused {
		write(w, http.StatusOK, []byte("{}"))
		return
	}
	level := slog.LevelWarn
	if p.status >= http.StatusInternalServerError {
		level = slog.LevelError
		w.Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(4)))
	}
	h.Log.Log(ctx, level, "notification refused", "outcome", outcome, "request_id", requestID, "error", err)
	p.RequestID = requestID
	body, _ := json.Marshal(p) // three texts
	write(w, p.status, body)
}

func (h *Handler) take(ctx context.Context, w http.ResponseWriter, r *http.Request) (outcome string, err error) {
	body, err := h.body(ctx, w, r)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return outcomeTooLarge, err
	case err != nil:
		return outcomeUnproved, fmt.Errorf("read body: %w", unaddressed(err))
	}
	m, err := h.Verifier.Verify(ctx, body)
	switch {
	case errors.Is(err, ErrMalformed):
		return outcomeMalformed, err
	case errors.Is(err, ErrForged):
		return outcomeForged, err
	case err != nil:
		return outcomeUnproved, err
	}
	if m.Type != TypeNotification {
		h.confirm(ctx, m)
		return outcomeConfirmation, nil
	}
	return h.store(ctx, m, w.Header().Get("X-Request-Id"))
}

// unaddressed is the error of a connection without the addresses of its ends.
func unaddressed(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// body reads the request within the deadline: a sender that stalls does not hold
// the answer back.
func (h *Handler) body(ctx context.Context, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	deadline, _ := ctx.Deadline()
	limited := rc.SetReadDeadline(deadline) == nil
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(h.Verifier.maxBody)))
	if limited && err == nil {
		// Left in place it would end the request's context while the answer is made.
		// After an error it stays: the server reads on for a rest that may never come.
		err = rc.SetReadDeadline(time.Time{})
	}
	return body, err
}

func (h *Handler) confirm(ctx context.Context, m Message) {
	text := "the gateway's topic asks for its subscription: if you expect it, open subscribe_url once"
	if m.Type == TypeUnsubscribe {
		text = "the subscription to the gateway's topic was cancelled, and notifications stop: to have it back, open subscribe_url once"
	}
	h.Log.LogAttrs(ctx, slog.LevelWarn, "notification subscription needs an operator",
		slog.String("type", m.Type), slog.String("message_id", m.ID), slog.String("topic", m.TopicARN),
		slog.Time("sent_at", m.SentAt), slog.String("do", text), slog.String("subscribe_url", m.SubscribeURL))
	if h.Confirm != nil {
		h.Confirm(ctx, m)
	}
}

func (h *Handler) store(ctx context.Context, m Message, requestID string) (outcome string, err error) {
	n := notification(m, h.Verifier.now())
	stored, err := h.Keeper.Store(ctx, n)
	if err != nil {
		return outcomeNotStored, fmt.Errorf("keep notification %s: %w", n.ID, err)
	}
	outcome = outcomeStored
	level := slog.LevelInfo
	switch {
	case !stored:
		outcome = outcomeDuplicate
	case n.Unreadable != "":
		outcome, level = outcomeUnreadable, slog.LevelError
	}
	attrs := []slog.Attr{
		slog.String("outcome", outcome), slog.String("request_id", requestID), slog.String("message_id", n.ID),
		slog.String("transaction", word(n.Transaction)), slog.Time("sent_at", n.SentAt),
	}
	if _, attempt, err := booking.ParseInvoice(n.Invoice); err == nil {
		attrs = append(attrs, slog.String("attempt", attempt))
	}
	if n.Unreadable != "" {
		attrs = append(attrs, slog.String("unreadable", n.Unreadable))
	}
	h.Log.LogAttrs(ctx, level, "notification", attrs...)
	if stored && h.Arrived != nil {
		h.Arrived(n)
	}
	return outcome, nil
}

// wordForm is what the gateway's transactions look like.
var wordForm = regexp.MustCompile(`^[0-9A-Za-z]{0,24}$`)

// word lets a text of the gateway into the log if it is a word: it may be anything.
func word(s string) string {
	if wordForm.MatchString(s) {
		return s
	}
	return "[cut]"
}

// problem is an error body.
type problem struct {
	Error     string `json:"error"`
	Message   string `json:"message"`
	RequestID string `json:"request_id"`
	status    int
}

// problems are the answers to what is refused; every other outcome is a 200.
var problems = map[string]problem{
	outcomeMalformed: {status: http.StatusBadRequest, Error: "invalid_request", Message: "This is not a message of SNS."},
	outcomeTooLarge:  {status: http.StatusRequestEntityTooLarge, Error: "body_too_large", Message: "The body is larger than a message of SNS can be."},
	outcomeForged:    {status: http.StatusForbidden, Error: "forbidden", Message: "This is not a genuine message of our topic."},
	outcomeUnproved:  {status: http.StatusServiceUnavailable, Error: "try_again", Message: "The message cannot be checked now: deliver it again."},
	outcomeNotStored: {status: http.StatusServiceUnavailable, Error: "try_again", Message: "The message cannot be taken now: deliver it again."},
}

func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the sender may have left
}
