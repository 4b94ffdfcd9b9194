package rehearse

import "time"

// Report is what a rehearsal found: what --json prints, and what the page is made of.
// Its names are promised.
type Report struct {
	// What was asked for.
	Seed  uint64        `json:"seed"`
	Scale float64       `json:"scale"`
	Hold  time.Duration `json:"hold_ns"`
	For   time.Duration `json:"for_ns"` // the rush
	// Latency is the gateway's in the rush, p99; 0 where it could not be set and was what
	// it was.
	Latency    time.Duration `json:"gateway_latency_ns"`
	Faults     []string      `json:"faults"`
	Target     string        `json:"target"` // "local", or the deployment's address
	Candidates int           `json:"candidates"`
	// RateTarget is bookings a second in the rush, in an even stream by eligible
	// candidates; RateAchieved is how many of them that were due in a second, on average,
	// got a JSON answer of the contract within 8 s, whatever it said. What comes on top,
	// second clicks and repeats, is not counted.
	RateTarget   float64 `json:"rate_target"`
	RateAchieved float64 `json:"rate_achieved"`

	// Answers counts answers to POST /book by kind: "202", the error's slug, "closed" by
	// its reason ("sold_out", "not_open"), "honeypot" (a bot's 202), "hung_up" (the tab was
	// closed by its person), or "no_answer".
	Answers map[string]int `json:"answers"`
	// LatencyMS is how long an answer of that kind took, in ms from when it was due.
	LatencyMS map[string]Percentiles `json:"latency_ms"`
	// Rejections are the times of every clear no together.
	Rejections Percentiles `json:"rejections_ms"`
	// SentLate is how many requests the rehearsal itself sent more than 100 ms after they
	// were due, and SentLateMost by how much at most. It is in their times.
	SentLate     int     `json:"sent_late"`
	SentLateMost float64 `json:"sent_late_most_ms"`
	// Reads is the same of pages, status.json and bookings, by what was read.
	Reads map[string]Percentiles `json:"reads_ms"`

	HoldsCreated int `json:"holds_created"`
	Sold         int `json:"sold"` // paid seats
	Cap          int `json:"cap"`
	// These must be 0.
	Oversold            int     `json:"oversold"`             // most seats over any cap that a sample or the end has seen
	DoubleBooked        int     `json:"double_booked"`        // candidates with more than one seat held or paid, at the end or by what they were told
	Leaked              int     `json:"leaked"`               // seats neither paid nor released at the end
	UnaccountedPayments int     `json:"unaccounted_payments"` // transactions that are neither a paid seat nor one refund
	StoreThrottles      int     `json:"store_throttles"`      // of a store that throttles, which a local one never does
	ServerErrors        int     `json:"server_errors"`        // 5xx but try_again, closed, payment_unavailable; connections cut after a seat was taken
	QueueAgeMax         float64 `json:"queue_age_max_s"`

	// Verdict is "holds" when every rule does, else "broken".
	Verdict string `json:"verdict"`
	Rules   []Rule `json:"rules"`

	Began   time.Time `json:"began"`
	Seconds []Second  `json:"seconds"`
	Levels  []Level   `json:"levels"`
	// Marks are what happened when: opened, rush over, faults, closed.
	Marks []Mark `json:"marks"`
	// CPU is the processor time of each process over the run, in seconds; "load" is the
	// rehearsal itself.
	CPU     map[string]float64 `json:"cpu_s"`
	Machine string             `json:"machine"` // cores, memory, versions
}

// Percentiles are of one kind of answer, in ms.
type Percentiles struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Rule is a rule of the contract's section 2, or a bound of the rehearsal, with the
// figure that proves or breaks it.
type Rule struct {
	Name   string `json:"name"` // "caps", "one booking", ...
	Text   string `json:"text"`
	Figure string `json:"figure"`
	Holds  bool   `json:"holds"`
}

// Level is one kind of seat.
type Level struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Cap  int    `json:"cap"`
	Sold int    `json:"sold"`
}

// Mark is a moment, in seconds since Began.
type Mark struct {
	At   float64 `json:"at"`
	What string  `json:"what"`
}

// Second is one second of the run. What was not sampled in it is absent.
type Second struct {
	At       int `json:"at"` // since Began
	Due      int `json:"due"`
	Answered int `json:"answered"`
	Admitted int `json:"admitted"`
	Rejected int `json:"rejected"`
	Other    int `json:"other"` // try_again, payment_unavailable, no answer
	// Percentiles of the bookings due in it, ms.
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	*Sample
}

// Sample are a deployment's figures at one moment.
type Sample struct {
	Left        map[string]int     `json:"left"`   // seats by level
	Taken       int                `json:"taken"`  // seats held or paid, at the same moment
	Phases      map[string]int     `json:"phases"` // ledger rows
	QueueAge    float64            `json:"queue_age_s"`
	QueueDepth  int                `json:"queue_depth"`
	CPU         map[string]float64 `json:"cpu"` // cores in use by process since the sample before
	RedisMemory int64              `json:"redis_memory"`

	ageSeen bool      // QueueAge was read
	aged    time.Time // when it was
	counted time.Time // when the count of Phases began
}
