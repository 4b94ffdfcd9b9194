package capacity

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
)

// Little is how many are inside on average when rate come and each stays that long:
// Little's law.
func Little(rate, stay float64) float64 { return rate * stay }

// MD1 is the mean wait for one server that takes the same time for everybody, when they
// come by chance (Pollaczek and Khinchine). +Inf when it cannot keep up.
func MD1(rate, service float64) float64 {
	use := rate * service
	if use >= 1 {
		return math.Inf(1)
	}
	return use * service / (2 * (1 - use))
}

// Waits is what a queue was seen to do.
type Waits struct {
	Use       float64 // of all servers
	Mean, P99 float64 // wait before the service
	Inside    float64 // waiting or served, on average over the time
}

// Queue has n come by chance at a rate to servers that take them in order, and tells how
// they waited. The first tenth is left out, while the queue fills.
func Queue(seed uint64, servers int, rate float64, service func(*rand.Rand) float64, n int) Waits {
	rng := rand.New(rand.NewPCG(seed, 0x63617061636974))
	free := make(times, servers) // when each is free, all from the start
	var busy, inside, now, from float64
	var waits []float64
	for i := range n {
		now += rng.ExpFloat64() / rate
		if i == n/10 {
			from = now
		}
		begin := max(now, free[0])
		took := service(rng)
		free[0] = begin + took
		heap.Fix(&free, 0)
		if i < n/10 {
			continue
		}
		waits = append(waits, begin-now)
		busy += took
		inside += begin + took - now
	}
	slices.Sort(waits)
	sum := 0.0
	for _, w := range waits {
		sum += w
	}
	span := now - from
	return Waits{
		Use: busy / span / float64(servers), Mean: sum / float64(len(waits)),
		P99: waits[len(waits)*99/100], Inside: inside / span,
	}
}

// times is a heap with the earliest first.
type times []float64

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return cmp.Less(t[i], t[j]) }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *times) Push(x any)        { *t = append(*t, x.(float64)) }
func (t *times) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// z99 is the standard normal distribution's 99th percentile.
const z99 = 2.3263478740408408

// logNormal is a log-normal distribution by its median and its 99th percentile.
type logNormal struct{ mu, sigma float64 }

func newLogNormal(median, p99 float64) logNormal {
	return logNormal{mu: math.Log(median), sigma: math.Log(p99/median) / z99}
}

// below is the share that is at most x.
func (l logNormal) below(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return 0.5 * math.Erfc(-(math.Log(x)-l.mu)/(l.sigma*math.Sqrt2))
}
