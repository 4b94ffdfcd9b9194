package alarms

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// scrapeMost bounds one process's answer in bytes.
const scrapeMost = 4 << 20

// target is one process.
type target struct {
	url  string
	err  error
	jobs []string        // by what it gave when it last answered
	seen map[uint64]bool // series of its last answer
	// since is when it began to answer without a break; zero while it does not.
	since time.Time
}

// Scrape asks every process once, all at the same time, and keeps what they give. As
// Prometheus does, it adds the series up: 1 for a process that answered, 0 for one that
// did not, whose other series end.
func (w *Watch) Scrape(ctx context.Context) []Target {
	ctx, cancel := context.WithTimeout(ctx, ScrapeTimeout)
	defer cancel()
	got := make([]model.Vector, len(w.targets))
	var asking sync.WaitGroup
	for i, t := range w.targets {
		asking.Go(func() { got[i], t.err = scrape(ctx, w.opts.Client, t.url) })
	}
	asking.Wait()
	now := w.opts.Now()
	for i, t := range w.targets {
		w.keep(t, got[i], now)
	}
	w.store.trim(now)
	return w.Targets()
}

func (w *Watch) keep(t *target, got model.Vector, now time.Time) {
	instance := t.url
	if u, err := url.Parse(t.url); err == nil && u.Host != "" {
		instance = u.Host
	}
	if t.err == nil {
		t.jobs = w.jobs(got)
	}
	jobs := t.jobs
	if len(jobs) == 0 {
		jobs = []string{unknownJob}
	}
	isUp := 1.0
	if t.err != nil {
		isUp = 0
	}
	for _, job := range jobs {
		w.store.add(labels.FromStrings(model.MetricNameLabel, upMetric, "instance", instance, "job", job), now, isUp)
	}
	if t.err != nil {
		w.store.gone(t.seen, nil, now)
		t.seen, t.since = nil, time.Time{}
		return
	}
	if t.since.IsZero() {
		t.since = now
	}
	seen := make(map[uint64]bool, len(got))
	for _, s := range got {
		b := labels.NewBuilder(labels.EmptyLabels())
		for name, value := range s.Metric {
			b.Set(string(name), string(value))
		}
		l := b.Set("instance", instance).Set("job", jobs[0]).Labels()
		seen[l.Hash()] = true
		w.store.add(l, now, float64(s.Value))
	}
	w.store.gone(t.seen, seen, now)
	t.seen = seen
}

// upMetric is what a scrape itself gives.
const upMetric = "up"

// unknownJob is the job label of a process that gives no job's metric, or has not
// answered yet.
const unknownJob = "unknown"

func (w *Watch) jobs(got model.Vector) []string {
	var jobs []string
	for _, job := range w.opts.Jobs {
		if slices.ContainsFunc(got, func(s *model.Sample) bool { return string(s.Metric[model.MetricNameLabel]) == job.Metric }) {
			jobs = append(jobs, job.Name)
		}
	}
	return jobs
}

func scrape(ctx context.Context, hc *http.Client, address string) (model.Vector, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := hc.Do(r)
	if err != nil {
		var told *url.Error
		if errors.As(err, &told) {
			err = told.Err // its text repeats the address
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, scrapeMost+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read its metrics: %w", err)
	case len(body) > scrapeMost:
		return nil, fmt.Errorf("its metrics are too long: over %d bytes", scrapeMost)
	}
	d := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeTextPlain))
	var all model.Vector
	for {
		var family dto.MetricFamily
		err := d.Decode(&family)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read its metrics: %w", err)
		}
		samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, &family)
		if err != nil {
			return nil, fmt.Errorf("read its metrics: %w", err)
		}
		all = append(all, samples...)
	}
}
