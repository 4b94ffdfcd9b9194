package rehearse

import (
	"context"
	"io"
	"time"

	"holdfast/internal/app"
)

// Options are how a rehearsal is run. Complete fills in what is left out.
type Options struct {
	// Seed decides who comes and what they do; the same seed, the same crowd.
	Seed uint64
	// Scale is of candidates, seats and rate together: 1 is the launch that the design
	// comes from.
	Scale float64
	// Rate is bookings a second in the rush, which lasts For. 0: 2,000 times Scale, 25 s.
	Rate float64
	For  time.Duration
	// Hold is how long an admitted candidate has to pay. 0: a minute, or 10 s where
	// Scale is below 0.2.
	Hold time.Duration
	// RushLatency and TailLatency are the gateway's at the 99th percentile. 0: 4.1 s and
	// 0.3 s.
	RushLatency, TailLatency time.Duration
	Faults                   []Fault
	// Candidates are on the list. 0: 40,000 times Scale.
	Candidates int
	// Target is a deployment's address, scheme and host; "" starts everything here.
	Target string
	// Platform and Getenv are how an operator reaches the target, as a process of that
	// platform with these settings; not needed without one.
	Platform app.Platform
	Getenv   func(string) string
	// Dir is for what the run leaves: its sale and its list, and without a target settings,
	// stores, logs.
	Dir string
	// Ctl runs one command of the operator's with these settings, as the program does,
	// and returns its exit code.
	Ctl func(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int
	// Profile, if not nil, gets the API's processor profile of the rush, as pprof reads it.
	// Not with a target, whose processes are not ours to look into.
	Profile io.Writer
	// Log is told how far it is, for a person.
	Log io.Writer
}

// Fault is something that breaks during a rehearsal.
type Fault string

// What can break.
const (
	FaultAPI     Fault = "api"     // the API is killed, and started again
	FaultWorker  Fault = "worker"  // the worker is killed, and started again
	FaultRedis   Fault = "redis"   // the primary is killed and the replica promoted
	FaultGateway Fault = "gateway" // out for 30 s
	FaultQueue   Fault = "queue"   // out for 30 s
	FaultReplies Fault = "replies" // the gateway's answers are lost after money moved
)

// Faults are all of them, in the order in which "all" has them happen.
func Faults() []Fault {
	return []Fault{FaultAPI, FaultRedis, FaultQueue, FaultGateway, FaultReplies, FaultWorker}
}

const (
	defaultFor         = 25 * time.Second
	defaultRushLatency = 4100 * time.Millisecond
)

// Complete fills in the defaults.
func (o Options) Complete() Options {
	or := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Scale == 0 {
		o.Scale = 1
	}
	if o.Rate == 0 {
		o.Rate = 2000 * o.Scale
	}
	if o.Candidates == 0 {
		o.Candidates = int(40_000 * o.Scale)
	}
	hold := time.Minute
	if o.Scale < 0.2 {
		hold = 10 * time.Second
	}
	or(&o.Hold, hold)
	or(&o.For, defaultFor)
	or(&o.RushLatency, defaultRushLatency)
	or(&o.TailLatency, 300*time.Millisecond)
	return o
}
