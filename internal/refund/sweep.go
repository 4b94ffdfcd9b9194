package refund

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/booking"
)

// Report is what a sweep found and did.
type Report struct {
	// Open refunds were there at its begin; each of them is in one of the next six.
	Open int
	// Done have gone back.
	Done int
	// Person: a person must look.
	Person int
	// Doubt: the gateway was not reached, or gave no clear word.
	Doubt int
	// Busy are another process's, or were until a moment ago.
	Busy int
	// Failed met an error of the store.
	Failed int
	// Left were not sent: not automatic, trouble that is not due to be asked about
	// again, no time, or an outage.
	Left int
	// Unreadable are open, too, and cannot be read.
	Unreadable int
	// Outage: the gateway could not be reached, and no more were begun.
	Outage bool
}

// Figures are the report as counts by name, for a log line.
func (r Report) Figures() map[string]int {
	outage := 0
	if r.Outage {
		outage = 1
	}
	return map[string]int{
		"open": r.Open, "done": r.Done, "person": r.Person, "doubt": r.Doubt, "busy": r.Busy,
		"failed": r.Failed, "left": r.Left, "unreadable": r.Unreadable, "outage": outage,
	}
}

// Sweep sends what is open, if that is automatic, oldest decision first since the
// gateway takes refunds for about 15 days. The gauge is set in any case, and shows
// nothing when the list could not be read. A refund with trouble is asked about every 10 minutes. When ctx ends, or the gateway
// cannot be reached, it begins no more and waits for those at work: Outlasts at most
// after the end of ctx. The error says why the sweep could not be made or finished; what
// became of one refund is in the report.
func (s *Service) Sweep(ctx context.Context) (Report, error) {
	open, report, err := s.open(ctx)
	if err != nil {
		s.due.Reset()
		return report, err
	}
	s.due.WithLabelValues().Set(float64(report.Open + report.Unreadable))
	if !s.Automatic {
		report.Left = report.Open
		return report, nil
	}
	var (
		mu    sync.Mutex // of report
		g     errgroup.Group
		leave = func() { mu.Lock(); report.Left++; mu.Unlock() }
		out   = func() bool { mu.Lock(); defer mu.Unlock(); return report.Outage }
	)
	g.SetLimit(s.Width)
	for _, r := range open {
		if s.Now().Before(s.notBefore(r)) || out() || s.limit.Wait(ctx) != nil {
			leave()
			continue
		}
		g.Go(func() error {
			if out() || ctx.Err() != nil {
				leave()
				return nil
			}
			r, err := s.Send(ctx, r.Transaction)
			mu.Lock()
			report.count(err)
			mu.Unlock()
			if r.Trouble != "" && err != nil && !errors.Is(err, ErrBusy) {
				s.putOff(r.Transaction)
			}
			return nil
		})
	}
	_ = g.Wait() // no work returns an error
	s.due.WithLabelValues().Set(float64(report.Open - report.Done + report.Unreadable))
	if report.Outage {
		s.Log.WarnContext(ctx, "gateway cannot be reached, refunds wait for a later sweep", "left", report.Left)
	}
	if err := ctx.Err(); err != nil {
		return report, fmt.Errorf("sweep refunds: %w", err)
	}
	return report, nil
}

func (r *Report) count(err error) {
	switch {
	case err == nil:
		r.Done++
	case errors.Is(err, ErrPerson):
		r.Person++
	case errors.Is(err, ErrBusy):
		r.Busy++
	case errors.Is(err, errEnded):
		r.Left++
	case errors.Is(err, booking.ErrNotSent), errors.Is(err, booking.ErrGatewayOutage):
		r.Doubt++
		r.Outage = true
	case errors.Is(err, booking.ErrInDoubt):
		r.Doubt++
	default:
		r.Failed++
	}
}

// open reads what is open, and forgets what no longer is.
func (s *Service) open(ctx context.Context) ([]booking.Refund, Report, error) {
	var (
		report Report
		open   []booking.Refund
		there  = map[string]bool{}
	)
	for r, err := range s.Store.OpenRefunds(ctx) {
		switch {
		case errors.Is(err, booking.ErrUnreadable):
			report.Unreadable++
			s.Log.ErrorContext(ctx, "refund cannot be read", "transaction", r.Transaction, "error", err)
		case err != nil:
			return nil, report, fmt.Errorf("list open refunds: %w", err)
		default:
			open = append(open, r)
			there[r.Transaction] = true
		}
	}
	report.Open = len(open)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.again, func(transaction string, _ time.Time) bool { return !there[transaction] })
	return open, report, nil
}

// notBefore is when a sweep may ask about a refund. This process's memory counts;
// without one, the record's last call does.
func (s *Service) notBefore(r booking.Refund) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.again[r.Transaction]
	if sent := r.SentAt.Add(troubleAgain); r.Trouble != "" && sent.After(again) {
		again = sent
	}
	return again
}

func (s *Service) putOff(transaction string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again[transaction] = s.Now().Add(troubleAgain)
}
