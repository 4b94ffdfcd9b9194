// Package statuspage composes and publishes status.json: what is open and how
// many seats are left. Every document is built whole from one script's figures,
// never from the previous document, and an older version never replaces a newer
// one.
//
// It fails open: while Redis or the object store does not answer, the last
// document stays. No decision of the server depends on it.
package statuspage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"holdfast/internal/booking"
	"holdfast/internal/objstore"
)

// Key is the object's name.
const Key = "status.json"

// ContentType is what the document is served as.
const ContentType = "application/json"

// Document is status.json; docs/shapes.md describes it.
type Document struct {
	Version   int64      `json:"version"`
	UpdatedAt time.Time  `json:"updated_at"`
	Open      bool       `json:"open"`
	OpensAt   *time.Time `json:"opens_at,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Total     Seats      `json:"total"`
	Levels    []Level    `json:"levels"`
}

// Seats are a cap and what is left of it; left is never negative.
type Seats struct {
	Cap  int `json:"cap"`
	Left int `json:"left"`
}

// Level is one level's seats.
type Level struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Seats
	Full bool `json:"full"`
}

// Compose builds the document. A level has never more left than the whole sale,
// and nothing left when a counter is damaged.
func Compose(f booking.Figures) Document {
	left := func(limit, admitted int) int {
		if admitted < 0 {
			return 0
		}
		return max(0, limit-admitted)
	}
	d := Document{
		Version: f.Version, UpdatedAt: f.At.UTC(), Open: f.Open, Reason: f.Reason,
		Total:  Seats{Cap: f.Cap, Left: left(f.Cap, f.Total)},
		Levels: make([]Level, 0, len(f.Levels)),
	}
	if !f.OpensAt.IsZero() && !f.Open {
		at := f.OpensAt.UTC()
		d.OpensAt = &at
	}
	for _, l := range f.Levels {
		n := min(left(l.Cap, l.Admitted), d.Total.Left)
		d.Levels = append(d.Levels, Level{ID: l.ID, Name: l.Name, Seats: Seats{Cap: l.Cap, Left: n}, Full: n == 0})
	}
	return d
}

// Ledger gives the figures and the right to publish them to one caller of the
// fleet; see admission.Gate. booking.ErrNothingToPublish when there is nothing
// to do. A claim that is not confirmed falls to another caller.
type Ledger interface {
	ClaimStatus(ctx context.Context, throttle time.Duration) (booking.Figures, error)
	Published(ctx context.Context, f booking.Figures) error
}

// Objects keeps the document. Put is conditional: ifMatch "" means only if there
// is none; a refusal is objstore.ErrPreconditionFailed.
type Objects interface {
	Get(ctx context.Context, key string) (body []byte, etag string, err error)
	Put(ctx context.Context, key string, body []byte, contentType, ifMatch string) (etag string, err error)
}

// Throttle is the time between two documents when nothing opened, closed,
// filled or freed.
const Throttle = 2 * time.Second

const (
	poll        = time.Second           // a change that this process did not see
	pause       = 50 * time.Millisecond // at least, between two looks
	stepTimeout = 2 * time.Second
	putTries    = 5
)

// Publisher publishes. One goroutine calls Run; Changed is safe for concurrent
// use.
type Publisher struct {
	ledger  Ledger
	objects Objects
	log     *slog.Logger
	changed chan struct{}
	count   *prometheus.CounterVec
}

// New makes a Publisher.
func New(ledger Ledger, objects Objects, log *slog.Logger, reg prometheus.Registerer) *Publisher {
	p := &Publisher{
		ledger: ledger, objects: objects, log: log, changed: make(chan struct{}, 1),
		count: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_status_publish_total",
			Help: "Publications of status.json, by outcome: published, older, error.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{"published", "older", "error"} {
		p.count.WithLabelValues(outcome) // the first one is seen only over a zero
	}
	return p
}

// Changed hints that the figures may have changed. It never blocks.
func (p *Publisher) Changed() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Run publishes on hints and once a second, until the context ends. It returns
// nil.
func (p *Publisher) Run(ctx context.Context) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		began := time.Now()
		if err := p.Publish(ctx); err != nil && ctx.Err() == nil {
			p.count.WithLabelValues("error").Inc()
			p.log.LogAttrs(ctx, slog.LevelWarn, "status publish", // the last one stays
				slog.String("outcome", "error"), slog.Duration("took", time.Since(began)), slog.Any("error", err))
		}
		// Hints come by the thousand in a rush; one look in a while answers them all.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.changed:
		}
	}
}

// Publish publishes once if it is this caller's turn. Safe to repeat.
func (p *Publisher) Publish(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	f, err := p.ledger.ClaimStatus(ctx, Throttle)
	if errors.Is(err, booking.ErrNothingToPublish) {
		return nil
	}
	if err != nil {
		return err
	}
	doc := Compose(f)
	body, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	for range putTries {
		newer, etag, err := p.newer(ctx, f.Version)
		if err != nil {
			return err
		}
		if newer {
			p.count.WithLabelValues("older").Inc()
			return nil
		}
		_, err = p.objects.Put(ctx, Key, body, ContentType, etag)
		if errors.Is(err, objstore.ErrPreconditionFailed) {
			continue // someone published meanwhile: read and compare again
		}
		if err != nil {
			return fmt.Errorf("put status.json: %w", err)
		}
		p.count.WithLabelValues("published").Inc()
		p.log.LogAttrs(ctx, slog.LevelInfo, "status publish", slog.String("outcome", "published"), slog.Duration("took", time.Since(began)),
			slog.Int64("version", doc.Version), slog.Bool("open", doc.Open), slog.String("reason", doc.Reason), slog.Int("left", doc.Total.Left))
		return p.ledger.Published(ctx, f)
	}
	return errors.New("put status.json: others published all the time")
}

func (p *Publisher) newer(ctx context.Context, version int64) (bool, string, error) {
	body, etag, err := p.objects.Get(ctx, Key)
	if errors.Is(err, booking.ErrNotFound) {
		return false, "", nil
	}
	if err != nil {
		return false, "", fmt.Errorf("get status.json: %w", err)
	}
	var there Document
	if err := json.Unmarshal(body, &there); err != nil {
		p.log.WarnContext(ctx, "status.json that is there cannot be read and is replaced", "error", err)
		return false, etag, nil
	}
	return there.Version > version, etag, nil
}
