package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"holdfast/internal/booking"
	"holdfast/internal/obs"
)

// callback is a browser coming back from the gateway. What its query says is a
// hint: a payment we did not issue, a wrong signature or a repeated parameter
// causes no call, and failure and cancel change nothing. With success the payment
// is brought to its end in the background, for as long as the browser may wait;
// after that the result page says "checking". Where an outage was in the way the
// result page is given the return itself, so that it can be made again: until it is, a
// payer who has done their part has not paid.
func (s *Server) callback(w http.ResponseWriter, r *http.Request) error {
	deadline := time.Now().Add(s.ReturnBudget)
	ev := obs.EventFrom(r.Context())
	payment, signature, status, ok := callbackQuery(r.URL.RawQuery)
	if !ok {
		ev.Outcome = "unknown"
		return s.seeResult(w, r, "error=unknown")
	}
	look, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	code, attempt, err := s.Settler.Issued(look, payment, signature)
	if err != nil {
		ev.Outcome, ev.Cause = "unknown", err
		if !errors.Is(err, booking.ErrNotFound) {
			ev.Outcome = "busy"
			return s.seeResult(w, r, "error=busy&"+returnQuery(payment, status, signature))
		}
		return s.seeResult(w, r, "error=unknown")
	}
	ev.Attempt, ev.Outcome = attempt, status
	query := "booking=" + url.QueryEscape(s.Sealer.Seal(code, attempt))
	if status == "success" {
		done := make(chan error)
		ctx, requestID := context.WithoutCancel(r.Context()), ev.RequestID
		if s.Background.Go(func() {
			err := s.settle(ctx, code, attempt, payment)
			select {
			case done <- err:
			case <-look.Done():
				s.tellLate(ctx, requestID, attempt, err)
			}
		}) {
			select {
			case ev.Cause = <-done:
			case <-look.Done():
				ev.Outcome = "checking"
			}
		} else {
			ev.Outcome = "draining"
		}
		if ev.Cause != nil || ev.Outcome != status {
			query += "&" + returnQuery(payment, status, signature)
		}
	}
	return s.seeResult(w, r, query)
}

// returnQuery is a payer's return, to be made again.
func returnQuery(payment, status, signature string) string {
	return "paymentID=" + url.QueryEscape(payment) + "&status=" + url.QueryEscape(status) + "&signature=" + url.QueryEscape(signature)
}

// tellLate writes what became of a payer's return whose request has its line already.
func (s *Server) tellLate(ctx context.Context, requestID, attempt string, err error) {
	attrs := []slog.Attr{slog.String("request_id", requestID), slog.String("attempt", attempt)}
	level := slog.LevelInfo
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	var p *obs.PanicError
	if errors.As(err, &p) {
		level = slog.LevelError
		attrs = append(attrs, slog.String("stack", p.Stack))
	}
	s.Log.LogAttrs(ctx, level, "return of a payer ended after the browser had gone on", attrs...)
}

// settle is Settler.Return with a panic turned into an error: on a goroutine of
// its own it would take every request of the process along.
func (s *Server) settle(ctx context.Context, code, attempt, payment string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("return of a payer: %w", obs.Panicked(p))
		}
	}()
	return s.Settler.Return(ctx, code, attempt, payment)
}

// callbackQuery reads the three parameters, each of which must be there once.
func callbackQuery(raw string) (payment, signature, status string, ok bool) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return "", "", "", false
	}
	one := func(name string) string {
		if v := q[name]; len(v) == 1 && len(v[0]) <= 256 {
			return v[0]
		}
		return ""
	}
	payment, signature, status = one("paymentID"), one("signature"), one("status")
	switch status {
	case "success", "failure", "cancel":
	default:
		return "", "", "", false
	}
	return payment, signature, status, payment != "" && signature != ""
}

func (s *Server) seeResult(w http.ResponseWriter, r *http.Request, query string) error {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, s.ResultURL+"?"+query, http.StatusSeeOther)
	return nil
}

// view is the result page asking for its own booking.
func (s *Server) view(w http.ResponseWriter, r *http.Request) error {
	v, err := s.lookup(r.Context(), chi.URLParam(r, "token"))
	if err != nil {
		return err
	}
	obs.EventFrom(r.Context()).Outcome = string(v.State)
	w.Header().Set("Referrer-Policy", "no-referrer")
	return reply(w, http.StatusOK, struct {
		State       string `json:"state"`
		Level       string `json:"level"`
		SecondsLeft int    `json:"seconds_left"`
		PaymentURL  string `json:"payment_url,omitempty"`
		Reason      string `json:"reason,omitempty"` // of a refused payment
	}{string(v.State), v.Level, v.SecondsLeft, v.PaymentURL, string(v.Refusal)})
}

func (s *Server) lookup(ctx context.Context, token string) (booking.View, error) {
	code, attempt, err := s.Sealer.Open(token)
	if err != nil {
		return booking.View{}, err
	}
	obs.EventFrom(ctx).Attempt = attempt
	return s.Viewer.View(ctx, code, attempt)
}
