package mockgateway

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	allCalls   = "all"
	maxLatency = 10 * time.Minute
)

// Latencies is how long answers are kept back, by call, or under "all" for the
// calls that are not named.
type Latencies map[string]Latency

// Latency is a distribution: always Fixed; or evenly from Min to Max; or
// log-normal, with a median of P50 and one in a hundred above P99. In JSON it is
// a number of milliseconds, {"min":5,"max":20} or {"p50":80,"p99":3000}.
type Latency struct {
	Fixed    time.Duration
	Min, Max time.Duration
	P50, P99 time.Duration
}

type latencyJSON struct {
	Min *int64 `json:"min,omitempty"`
	Max *int64 `json:"max,omitempty"`
	P50 *int64 `json:"p50,omitempty"`
	P99 *int64 `json:"p99,omitempty"`
}

// MarshalJSON writes whole milliseconds.
func (l Latency) MarshalJSON() ([]byte, error) {
	ms := func(d time.Duration) *int64 { n := d.Milliseconds(); return &n }
	switch {
	case l.P99 != 0:
		return json.Marshal(latencyJSON{P50: ms(l.P50), P99: ms(l.P99)})
	case l.Max != 0:
		return json.Marshal(latencyJSON{Min: ms(l.Min), Max: ms(l.Max)})
	}
	return json.Marshal(l.Fixed.Milliseconds())
}

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Latency) UnmarshalJSON(b []byte) error {
	var fixed int64
	if json.Unmarshal(b, &fixed) == nil {
		*l = Latency{Fixed: milliseconds(fixed)}
		return nil
	}
	var in latencyJSON
	if err := decodeStrictly(b, &in); err != nil {
		return err
	}
	switch {
	case in.Min != nil && in.Max != nil && in.P50 == nil && in.P99 == nil:
		*l = Latency{Min: milliseconds(*in.Min), Max: milliseconds(*in.Max)}
	case in.P50 != nil && in.P99 != nil && in.Min == nil && in.Max == nil:
		*l = Latency{P50: milliseconds(*in.P50), P99: milliseconds(*in.P99)}
	default:
		return fmt.Errorf("latency: want a number of milliseconds, min and max, or p50 and p99")
	}
	return nil
}

// milliseconds keeps numbers that overflow out of range, for check to find.
func milliseconds(n int64) time.Duration {
	limit := maxLatency.Milliseconds() + 1
	return time.Duration(min(max(n, -1), limit)) * time.Millisecond
}

// UnmarshalJSON also takes one number, for all calls.
func (l *Latencies) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var all int64
	if json.Unmarshal(b, &all) == nil {
		*l = Latencies{allCalls: {Fixed: milliseconds(all)}}
		return nil
	}
	m := map[string]Latency{}
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	*l = m
	return nil
}

func (l Latencies) check() error {
	known := append(Calls(), allCalls)
	for call, d := range l {
		if !slices.Contains(known, call) {
			return fmt.Errorf("latency_ms: unknown call %q; want one of %s", call, strings.Join(known, ", "))
		}
		for _, v := range []time.Duration{d.Fixed, d.Min, d.Max, d.P50, d.P99} {
			if v < 0 || v > maxLatency {
				return fmt.Errorf("latency_ms: %s: want 0 to %d", call, maxLatency.Milliseconds())
			}
		}
		forms := 0
		for _, is := range []bool{d.Fixed != 0, d.Min != 0 || d.Max != 0, d.P50 != 0 || d.P99 != 0} {
			if is {
				forms++
			}
		}
		switch {
		case forms > 1:
			return fmt.Errorf("latency_ms: %s: more than one distribution", call)
		case d.Min > d.Max:
			return fmt.Errorf("latency_ms: %s: min is above max", call)
		case d.P99 < d.P50 || d.P99 > 0 && d.P50 == 0:
			return fmt.Errorf("latency_ms: %s: want 0 < p50 <= p99", call)
		}
	}
	return nil
}

// at is the value below which a part u of all values lie; u is from 0 to below 1.
func (l Latency) at(u float64) time.Duration {
	switch {
	case l.P99 != 0:
		const z99 = 2.3263478740408408 // of the standard normal distribution
		sigma := math.Log(float64(l.P99)/float64(l.P50)) / z99
		d := float64(l.P50) * math.Exp(sigma*math.Sqrt2*math.Erfinv(2*u-1))
		return time.Duration(min(d, float64(maxLatency)))
	case l.Max != 0:
		return l.Min + time.Duration(u*float64(l.Max-l.Min))
	}
	return l.Fixed
}

// latency is how long to keep back the answer to a call. The draw rests on the
// seed, the call, the invoice or account, and how often it was made for that.
func (g *Gateway) latency(s Settings, call string, drawKey []string) time.Duration {
	for _, name := range []string{call, allCalls} {
		if l, ok := s.LatencyMS[name]; ok {
			return l.at(draw(s.Seed, append([]string{"latency", call}, drawKey...)...))
		}
	}
	if g.opts.Latency == nil {
		return 0
	}
	return g.opts.Latency(call)
}
