package alarms

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// point is one sample, in Unix ms.
type point struct {
	t int64
	v float64
}

// A point is a chunks.Sample that is always a plain number.

func (p point) T() int64                      { return p.t }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

type points []point

func (p points) Get(i int) chunks.Sample { return p[i] }
func (p points) Len() int                { return len(p) }

type series struct {
	labels labels.Labels
	points points
}

// stale tells whether its last sample says that it has ended.
func (s *series) stale() bool {
	return len(s.points) == 0 || value.IsStaleNaN(s.points[len(s.points)-1].v)
}

// store keeps the samples of the last minutes, as a storage.Queryable.
type store struct {
	keep   time.Duration
	series map[uint64]*series
	names  map[string][]*series
}

func newStore(keep time.Duration) *store {
	return &store{keep: keep + lookback, series: map[uint64]*series{}, names: map[string][]*series{}}
}

// has tells whether a metric is being given now.
func (s *store) has(name string) bool {
	return slices.ContainsFunc(s.names[name], func(one *series) bool { return !one.stale() })
}

// add appends a sample; one that is not later than the series' last is passed over.
func (s *store) add(l labels.Labels, at time.Time, v float64) {
	h, t := l.Hash(), at.UnixMilli()
	one := s.series[h]
	if one == nil {
		one = &series{labels: l}
		s.series[h] = one
		name := l.Get(model.MetricNameLabel)
		s.names[name] = append(s.names[name], one)
	}
	if n := len(one.points); n == 0 || one.points[n-1].t < t {
		one.points = append(one.points, point{t, v})
	}
}

// gone marks as ended what was there before and is not now.
func (s *store) gone(before, now map[uint64]bool, at time.Time) {
	for h := range before {
		if one := s.series[h]; !now[h] && one != nil && !one.stale() {
			one.points = append(one.points, point{at.UnixMilli(), math.Float64frombits(value.StaleNaN)})
		}
	}
}

// trim forgets what is too old to be looked at.
func (s *store) trim(now time.Time) {
	oldest := now.Add(-s.keep).UnixMilli()
	for h, one := range s.series {
		n, _ := slices.BinarySearchFunc(one.points, oldest, func(p point, t int64) int { return cmp.Compare(p.t, t) })
		switch {
		case n == len(one.points):
			delete(s.series, h)
			name := one.labels.Get(model.MetricNameLabel)
			s.names[name] = slices.DeleteFunc(s.names[name], func(other *series) bool { return other == one })
		case n > len(one.points)/2: // not at each scrape: the rest is copied
			one.points = slices.Clone(one.points[n:])
		}
	}
}

// Querier is storage.Queryable's.
func (s *store) Querier(mint, maxt int64) (storage.Querier, error) {
	return &querier{s, mint, maxt}, nil
}

type querier struct {
	store      *store
	mint, maxt int64
}

// Select is storage.Querier's.
func (q *querier) Select(_ context.Context, sorted bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, one := range q.candidates(matchers) {
		if !matches(one.labels, matchers) {
			continue
		}
		from, _ := slices.BinarySearchFunc(one.points, q.mint, func(p point, t int64) int { return cmp.Compare(p.t, t) })
		to, _ := slices.BinarySearchFunc(one.points, q.maxt+1, func(p point, t int64) int { return cmp.Compare(p.t, t) })
		if from < to {
			part := one.points[from:to]
			set.list = append(set.list, &storage.SeriesEntry{Lset: one.labels, SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
				return storage.NewListSeriesIterator(part)
			}})
		}
	}
	if sorted {
		slices.SortFunc(set.list, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	}
	return set
}

func (q *querier) candidates(matchers []*labels.Matcher) []*series {
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return q.store.names[m.Value]
		}
	}
	var all []*series
	for _, one := range q.store.series {
		all = append(all, one)
	}
	return all
}

func matches(l labels.Labels, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(l.Get(m.Name)) {
			return false
		}
	}
	return true
}

// LabelValues is storage.Querier's; expressions do not ask for it.
func (q *querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames is storage.Querier's; expressions do not ask for it.
func (q *querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Close is storage.Querier's.
func (q *querier) Close() error { return nil }

type seriesSet struct {
	list []storage.Series
	at   int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.list) }
func (s *seriesSet) At() storage.Series                { return s.list[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
