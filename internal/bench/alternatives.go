package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Names of the alternatives, in the order of AlternativesResult.
const (
	OurScript            = "script"
	RedisWatch           = "redis_watch"
	RedisLock            = "redis_lock"
	RedisIncrDecr        = "redis_incr_decr"
	SQLForUpdate         = "sql_for_update"
	SQLConditionalUpdate = "sql_conditional_update"
)

// AlternativesResult compares ways to sell the seats of one hot level.
type AlternativesResult struct {
	// OursOverBestSQLRejections and OursOverBestSQLAdmissions are our script's
	// rate over the better of the two SQL ways; 0 without PostgreSQL.
	OursOverBestSQLRejections float64 `json:"ours_over_best_sql_rejections"`
	OursOverBestSQLAdmissions float64 `json:"ours_over_best_sql_admissions"`

	Cores   int `json:"cores"`
	Clients int `json:"clients"`
	// Rounds is how often every alternative had its turn, one after another; fewer
	// where the disk is slow.
	Rounds int `json:"rounds"`
	// RejectSeconds is how long a round rejects once the level is full.
	RejectSeconds float64 `json:"reject_seconds"`
	// Redis and PostgreSQL are the servers, their versions and what makes a seat durable
	// there, as the servers themselves tell.
	Redis      string `json:"redis"`
	PostgreSQL string `json:"postgresql,omitempty"`
	// PostgreSQLMissing says why there are no SQL rows, and what to install.
	PostgreSQLMissing string `json:"postgresql_missing,omitempty"`

	Alternatives []Alternative `json:"alternatives"`
}

// Alternative is one way to sell seats. Rates are the median of the rounds,
// times are over all requests of all rounds, counts are sums over the rounds;
// in every round, sold was the cap.
type Alternative struct {
	Name string `json:"name"`
	// Writes is what one admitted seat writes, and when it counts.
	Writes string `json:"writes"`
	// AdmissionsPerSecond is the cap over the time to the last admission.
	AdmissionsPerSecond float64 `json:"admissions_per_second"`
	RejectionsPerSecond float64 `json:"rejections_per_second"`
	// P99 is of admissions, RejectionP99 of requests that found the level full.
	P99          float64 `json:"p99_ms"`
	RejectionP99 float64 `json:"rejection_p99_ms"`
	// Retries is how often a request had to begin again before it was answered.
	Retries int `json:"retries"`
	Sold    int `json:"sold"`
	Cap     int `json:"cap"`
	// OverCapSightings of CounterReads are how often somebody who read the level's
	// counter meanwhile saw more seats taken than there are.
	OverCapSightings int `json:"over_cap_sightings"`
	CounterReads     int `json:"counter_reads"`
}

// seller is one way to sell the seats of a level.
type seller interface {
	// reset forgets everything and puts the cap in force; codes are who may ask.
	reset(ctx context.Context, seats int, codes []string) error
	// buyer makes one client, connected and ready. The caller closes it.
	buyer(ctx context.Context) (buyer, error)
	// taken reads the level's counter as anybody may see it at this moment; one
	// call at a time.
	taken(ctx context.Context) (int, error)
	// sold counts the booking records.
	sold(ctx context.Context) (int, error)
}

// buyer is one client; one call at a time.
type buyer interface {
	// buy asks for a seat until there is an answer: won, or the level is full.
	buy(ctx context.Context, code string) (won bool, retries int, err error)
	close(ctx context.Context)
}

// contender is a seller with its name and its figures so far.
type contender struct {
	seller
	name, writes string
	rounds       []roundFigures
}

// alternativesPlan bounds a run in count and time.
type alternativesPlan struct {
	clients     int
	seats       int           // the level's cap
	rounds      int           // of every alternative
	admitWithin time.Duration // a round's admissions; more is an error
	rejectFor   time.Duration // a round's rejections
	rejectMost  int           // rejections of one client in a round
	within      time.Duration // everything
}

func fullAlternatives() alternativesPlan {
	return alternativesPlan{
		clients: 64, seats: 2400, rounds: 3,
		admitWithin: 40 * time.Second, rejectFor: 3 * time.Second, rejectMost: 10_000, within: 170 * time.Second,
	}
}

// Alternatives sells one hot level of 2,400 seats to 64 clients, three times by
// our script and three times by each of five other ways, in turn, and then has
// the clients told "full" for three seconds each time. It takes under three
// minutes, or ends with an error; so it does when an alternative did not sell
// exactly its cap. It needs redis-server (redisproc.ErrNotInstalled); without
// PostgreSQL the SQL ways are left out and the result says so. Its servers end
// with it. progress gets a line a round. Safe to repeat, not to run beside
// another load: what it measures is the machine.
func Alternatives(ctx context.Context, progress io.Writer) (AlternativesResult, error) {
	return compareAlternatives(ctx, fullAlternatives(), progress)
}

func compareAlternatives(ctx context.Context, p alternativesPlan, progress io.Writer) (AlternativesResult, error) {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	result := AlternativesResult{
		Cores: runtime.GOMAXPROCS(0), Clients: p.clients, RejectSeconds: p.rejectFor.Seconds(),
	}
	began := time.Now()

	ways, about, stop, err := redisWays(ctx, p.clients)
	if err != nil {
		return AlternativesResult{}, err
	}
	defer stop()
	result.Redis = about

	sqlWays, about, stop, err := postgresWays(ctx, p.clients)
	switch {
	case errors.Is(err, errNoPostgres):
		result.PostgreSQLMissing = err.Error()
		fmt.Fprintf(progress, "the SQL alternatives are left out: %v\n", err)
	case err != nil:
		return AlternativesResult{}, err
	default:
		defer stop()
		result.PostgreSQL = about
		ways = append(ways, sqlWays...)
	}

	// In turn, so that a disturbance of the machine meets all of them.
	for round := range p.rounds {
		if time.Since(began) > p.within/2 {
			break // another round might not end in time
		}
		result.Rounds++
		for _, c := range ways {
			r, err := p.round(ctx, c)
			if err != nil {
				return AlternativesResult{}, fmt.Errorf("%s, round %d: %w", c.name, round+1, err)
			}
			c.rounds = append(c.rounds, r)
			fmt.Fprintf(progress, "round %d of %d  %-22s  %7.0f admissions/s  %7.0f rejections/s\n",
				round+1, p.rounds, c.name, r.admissionsPerSecond(), r.rejectionsPerSecond())
		}
	}
	for _, c := range ways {
		result.Alternatives = append(result.Alternatives, c.figures())
	}
	result.compare()
	return result, nil
}

// compare sets the ratios; they stay 0 without SQL rows.
func (r *AlternativesResult) compare() {
	var ours, best Alternative
	for _, a := range r.Alternatives {
		switch a.Name {
		case OurScript:
			ours = a
		case SQLForUpdate, SQLConditionalUpdate:
			best.RejectionsPerSecond = max(best.RejectionsPerSecond, a.RejectionsPerSecond)
			best.AdmissionsPerSecond = max(best.AdmissionsPerSecond, a.AdmissionsPerSecond)
		}
	}
	if best.RejectionsPerSecond > 0 && best.AdmissionsPerSecond > 0 {
		r.OursOverBestSQLRejections = rounded(ours.RejectionsPerSecond/best.RejectionsPerSecond, 2)
		r.OursOverBestSQLAdmissions = rounded(ours.AdmissionsPerSecond/best.AdmissionsPerSecond, 2)
	}
}

// roundFigures are what one round of one alternative measured.
type roundFigures struct {
	seats, sold  int
	toLastSeat   time.Duration
	rejections   int
	rejecting    time.Duration
	retries      int
	overCap      int
	counterReads int

	admissionTimes, rejectionTimes []time.Duration
}

func (r roundFigures) admissionsPerSecond() float64 { return float64(r.sold) / r.toLastSeat.Seconds() }
func (r roundFigures) rejectionsPerSecond() float64 {
	return float64(r.rejections) / r.rejecting.Seconds()
}

func (c *contender) figures() Alternative {
	a := Alternative{Name: c.name, Writes: c.writes}
	var admissions, rejections []float64
	var admissionTimes, rejectionTimes []time.Duration
	for _, r := range c.rounds {
		admissions = append(admissions, r.admissionsPerSecond())
		rejections = append(rejections, r.rejectionsPerSecond())
		admissionTimes = append(admissionTimes, r.admissionTimes...)
		rejectionTimes = append(rejectionTimes, r.rejectionTimes...)
		a.Retries += r.retries
		a.Sold += r.sold
		a.Cap += r.seats
		a.OverCapSightings += r.overCap
		a.CounterReads += r.counterReads
	}
	a.AdmissionsPerSecond = rounded(middle(admissions), 0)
	a.RejectionsPerSecond = rounded(middle(rejections), 0)
	a.P99 = rounded(milliseconds99(admissionTimes), 2)
	a.RejectionP99 = rounded(milliseconds99(rejectionTimes), 2)
	return a
}

// buying is one client's share of a round.
type buying struct {
	buyer
	retries, rejections            int
	lastSeat                       time.Duration // since the start
	admissionTimes, rejectionTimes []time.Duration
}

// losers is how many codes a client takes turns with once the level is full.
const losers = 16

// round sells the level out, has the clients told "full", and checks that
// exactly the cap was sold.
func (p alternativesPlan) round(ctx context.Context, s seller) (roundFigures, error) {
	codes := make([]string, p.seats+p.clients+p.clients*losers)
	for i := range codes {
		codes[i] = fmt.Sprintf("BENCH-%06d", i)
	}
	if err := s.reset(ctx, p.seats, codes); err != nil {
		return roundFigures{}, fmt.Errorf("reset: %w", err)
	}
	buyers := make([]*buying, 0, p.clients)
	defer func() {
		for _, b := range buyers {
			b.close(ctx)
		}
	}()
	for range p.clients {
		b, err := s.buyer(ctx)
		if err != nil {
			return roundFigures{}, fmt.Errorf("connect a client: %w", err)
		}
		buyers = append(buyers, &buying{buyer: b})
	}

	r := roundFigures{seats: p.seats}
	stopWatching := p.watchCounter(ctx, s, &r)
	fresh, losing := codes[:p.seats+p.clients], codes[p.seats+p.clients:]
	err := p.admit(ctx, buyers, fresh)
	if err == nil {
		r.rejecting, err = p.reject(ctx, buyers, losing)
	}
	if err := errors.Join(err, stopWatching()); err != nil {
		return roundFigures{}, err
	}
	for _, b := range buyers {
		r.toLastSeat = max(r.toLastSeat, b.lastSeat)
		r.rejections += b.rejections
		r.retries += b.retries
		r.admissionTimes = append(r.admissionTimes, b.admissionTimes...)
		r.rejectionTimes = append(r.rejectionTimes, b.rejectionTimes...)
	}
	return r, r.check(ctx, s)
}

// check compares what clients were told, the counter and the records.
func (r *roundFigures) check(ctx context.Context, s seller) error {
	taken, err := s.taken(ctx)
	if err != nil {
		return fmt.Errorf("read the counter: %w", err)
	}
	if r.sold, err = s.sold(ctx); err != nil {
		return fmt.Errorf("count the records: %w", err)
	}
	if told := len(r.admissionTimes); told != r.seats || taken != r.seats || r.sold != r.seats {
		return fmt.Errorf("%d seats: %d clients were told they have one, the counter says %d, there are %d records",
			r.seats, told, taken, r.sold)
	}
	return nil
}

// admit has the clients ask with fresh codes until each is told "full", so that
// the last seats too are wanted by all of them at once.
func (p alternativesPlan) admit(ctx context.Context, buyers []*buying, codes []string) error {
	ctx, cancel := context.WithTimeout(ctx, p.admitWithin)
	defer cancel()
	var next atomic.Int64
	return together(ctx, buyers, func(ctx context.Context, start time.Time, _ int, b *buying) error {
		for {
			i := int(next.Add(1)) - 1
			if i >= len(codes) {
				return errors.New("the level does not become full")
			}
			asked := time.Now()
			won, retries, err := b.buy(ctx, codes[i])
			if err != nil {
				return fmt.Errorf("admit: %w", err)
			}
			b.retries += retries
			if !won {
				return nil
			}
			b.admissionTimes = append(b.admissionTimes, time.Since(asked))
			b.lastSeat = time.Since(start)
		}
	})
}

// reject has the clients ask a full level.
func (p alternativesPlan) reject(ctx context.Context, buyers []*buying, codes []string) (time.Duration, error) {
	// In-flight requests end by themselves; this is for one that hangs.
	ctx, cancel := context.WithTimeout(ctx, p.rejectFor+10*time.Second)
	defer cancel()
	began := time.Now()
	err := together(ctx, buyers, func(ctx context.Context, start time.Time, client int, b *buying) error {
		mine := codes[client*losers : (client+1)*losers]
		for b.rejections < p.rejectMost && time.Since(start) < p.rejectFor {
			asked := time.Now()
			won, retries, err := b.buy(ctx, mine[b.rejections%losers])
			if err != nil {
				return fmt.Errorf("reject: %w", err)
			}
			if won {
				return errors.New("a full level sold a seat")
			}
			b.rejectionTimes = append(b.rejectionTimes, time.Since(asked))
			b.retries += retries
			b.rejections++
		}
		return nil
	})
	return time.Since(began), err
}

// together lets all clients go at once and returns when all have ended; the
// first error stops the others.
func together(ctx context.Context, buyers []*buying, do func(ctx context.Context, start time.Time, client int, b *buying) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var start time.Time
	ready := make(chan struct{})
	for i, b := range buyers {
		g.Go(func() error {
			<-ready
			return do(ctx, start, i, b)
		})
	}
	start = time.Now()
	close(ready)
	return g.Wait()
}

// counterEvery is how often the counter is read: often enough to see what is
// wrong with it, too seldom to be a load.
const counterEvery = 2 * time.Millisecond

// watchCounter reads the level's counter until the returned function is called.
func (p alternativesPlan) watchCounter(ctx context.Context, s seller, r *roundFigures) (stop func() error) {
	var g errgroup.Group
	done := make(chan struct{})
	g.Go(func() error {
		tick := time.NewTicker(counterEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-tick.C:
			}
			taken, err := s.taken(ctx)
			if err != nil {
				return fmt.Errorf("read the counter: %w", err)
			}
			r.counterReads++
			if taken > p.seats {
				r.overCap++
			}
		}
	})
	return func() error {
		close(done)
		return g.Wait()
	}
}

// pause waits, or ends early with the context.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// middle is the median, the lower one of an even number.
func middle[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[(len(v)-1)/2]
}

func milliseconds99(v []time.Duration) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return float64(v[(len(v)*99-1)/100].Nanoseconds()) / 1e6
}

func rounded(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
