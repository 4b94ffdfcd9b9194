package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi/web"
	"holdfast/internal/obs"
)

// Pages are what the local profile serves itself.
type Pages struct {
	Objects Objects
	Sales   Sales
}

// statusKey is the object's name.
const statusKey = "status.json"

func pageHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", web.CSP)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	body, etag, err := s.Pages.Objects.Get(r.Context(), statusKey)
	if err != nil {
		return errors.Join(booking.ErrTryAgain, err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `"`+etag+`"`)
	if r.Header.Get("If-None-Match") == `"`+etag+`"` {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	_, _ = w.Write(body) // the client may have left
	return nil
}

func (s *Server) index(w http.ResponseWriter, r *http.Request) error {
	data, err := s.indexData(r.Context())
	if err != nil {
		return errors.Join(booking.ErrTryAgain, err)
	}
	pageHeaders(w)
	return web.Index(w, data)
}

func (s *Server) indexData(ctx context.Context) (web.IndexData, error) {
	sale, err := s.Pages.Sales.Sale(ctx)
	if err != nil {
		return web.IndexData{}, err
	}
	data := web.IndexData{Left: -1}
	left := map[string]int{}
	var doc struct {
		Open    bool      `json:"open"`
		OpensAt time.Time `json:"opens_at"`
		Total   struct {
			Left int `json:"left"`
		} `json:"total"`
		Levels []struct {
			ID   string `json:"id"`
			Left int    `json:"left"`
		} `json:"levels"`
	}
	// Without a status document the page is still a form; its script looks again.
	if body, _, err := s.Pages.Objects.Get(ctx, statusKey); err == nil && json.Unmarshal(body, &doc) == nil {
		data.Fresh, data.Open, data.OpensAt, data.Left = true, doc.Open, doc.OpensAt, doc.Total.Left
		for _, l := range doc.Levels {
			left[l.ID] = l.Left
		}
	}
	for _, l := range sale.Levels {
		n, known := left[l.ID]
		if !known {
			n = -1
		}
		data.Levels = append(data.Levels, web.Level{ID: l.ID, Name: l.Name, Fee: l.Fee.String() + " " + sale.Currency, Left: n})
	}
	return data, nil
}

func (s *Server) result(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	data := web.ResultData{Token: q.Get("booking")}
	switch {
	case data.Token != "":
		v, err := s.lookup(r.Context(), data.Token)
		switch {
		case err == nil:
			data.State, data.Level, data.SecondsLeft, data.PaymentURL = string(v.State), v.Level, v.SecondsLeft, v.PaymentURL
		case errors.Is(err, booking.ErrNotFound):
			data.State = "unknown"
		default:
			obs.EventFrom(r.Context()).Cause = err // the page says "checking" and asks again
		}
	case q.Get("error") == "unknown" || q.Get("error") == "":
		data.State = "unknown"
	}
	pageHeaders(w)
	return web.Result(w, data)
}
