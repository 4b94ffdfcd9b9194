package k6test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	json "github.com/go-json-experiment/json"
)

// options are what a script exports under that name; k6 documents them under "Options
// reference". Only these are known.
type options struct {
	Scenarios         map[string]scenario    `json:"scenarios"`
	Thresholds        map[string][]threshold `json:"thresholds"`
	SetupTimeout      span                   `json:"setupTimeout"`
	TeardownTimeout   span                   `json:"teardownTimeout"`
	SummaryTrendStats []string               `json:"summaryTrendStats"`
}

// scenario is one of the executor constant-arrival-rate, the only one that is known: Rate
// iterations begin in each TimeUnit for Duration, whatever became of those before.
type scenario struct {
	Executor        string `json:"executor"`
	Exec            string `json:"exec"`
	StartTime       span   `json:"startTime"`
	GracefulStop    span   `json:"gracefulStop"`
	Rate            int    `json:"rate"`
	TimeUnit        span   `json:"timeUnit"`
	Duration        span   `json:"duration"`
	PreAllocatedVUs int    `json:"preAllocatedVUs"`
	MaxVUs          int    `json:"maxVUs"`
}

const arrivalRate = "constant-arrival-rate"

// span is a length of time, in JSON a text such as "1m30s".
type span time.Duration

// UnmarshalJSON refuses what k6 would read as milliseconds: a number says no unit.
func (s *span) UnmarshalJSON(b []byte) error {
	text, err := strconv.Unquote(string(b))
	if err != nil {
		return fmt.Errorf("time %s: want a text such as \"30s\"", b)
	}
	d, err := time.ParseDuration(text)
	*s = span(d)
	return err
}

// UnmarshalJSON takes an expression alone, or an object.
func (t *threshold) UnmarshalJSON(b []byte) error {
	var o struct {
		Threshold      string `json:"threshold"`
		AbortOnFail    bool   `json:"abortOnFail"`
		DelayAbortEval span   `json:"delayAbortEval"`
	}
	var err error
	if b[0] == '"' {
		err = json.Unmarshal(b, &o.Threshold)
	} else {
		err = json.Unmarshal(b, &o, json.RejectUnknownMembers(true))
	}
	if err != nil {
		return err
	}
	*t, err = parseThreshold(o.Threshold)
	t.abort, t.delay = o.AbortOnFail, time.Duration(o.DelayAbortEval)
	return err
}

// parseOptions is strict: names are compared exactly, and each scenario must be able to run.
// isFunction tells what the script exports.
func parseOptions(text []byte, isFunction func(name string) bool) (options, error) {
	var o options
	if err := json.Unmarshal(text, &o, json.RejectUnknownMembers(true)); err != nil {
		return o, fmt.Errorf("options: %w", err)
	}
	if len(o.Scenarios) == 0 {
		return o, errors.New("options: want scenarios")
	}
	if len(o.Thresholds) == 0 {
		return o, errors.New("options: want thresholds: without one a run cannot fail")
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.Scenarios)) {
		s := o.Scenarios[name]
		s.TimeUnit = cmp.Or(s.TimeUnit, span(time.Second))
		s.Exec = cmp.Or(s.Exec, "default")
		s.MaxVUs = cmp.Or(s.MaxVUs, s.PreAllocatedVUs)
		o.Scenarios[name] = s
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("options: scenario %s: "+format, append([]any{name}, args...)...))
		}
		if s.Executor != arrivalRate {
			wrong("executor %q: this package knows %s only", s.Executor, arrivalRate)
		}
		if !isFunction(s.Exec) {
			wrong("exec %q: the script exports no such function", s.Exec)
		}
		if s.Rate <= 0 || s.TimeUnit <= 0 || s.Duration < span(time.Second) {
			wrong("want a rate and a timeUnit above 0, and a duration of 1s at least")
		}
		if s.PreAllocatedVUs <= 0 || s.MaxVUs < s.PreAllocatedVUs {
			wrong("want preAllocatedVUs above 0, and maxVUs not below it")
		}
		if s.StartTime < 0 || s.GracefulStop < 0 {
			wrong("want startTime and gracefulStop of 0 or more")
		}
	}
	return o, errors.Join(errs...)
}

// iterations is how many begin in all.
func (s scenario) iterations() int { return int(int64(s.Rate) * int64(s.Duration) / int64(s.TimeUnit)) }

// due is when one begins, since the scenario's start.
func (s scenario) due(i int) time.Duration {
	return time.Duration(int64(i) * int64(s.TimeUnit) / int64(s.Rate))
}
