package rehearse

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// What became of a booking beside the slugs of the contract.
const (
	kindAdmitted = "202"
	kindNoAnswer = "no_answer"
	// kindHungUp is a tab that was closed: nobody was there to hear.
	kindHungUp = "hung_up"
	// kindBot is the 202 of somebody who has filled in the hidden field.
	kindBot = "honeypot"
)

const (
	slowestTold = 2 * time.Minute // longer counts as this
	// answeredWithin is what an answer counts in the rate for.
	answeredWithin = 8 * time.Second
	// onTime is how much later than due a request may be sent before it is counted.
	onTime = 100 * time.Millisecond
)

// Measure counts and times what a crowd heard. Every time is from when a request was due
// and not from when it was sent, so that a deployment that stalls cannot make the crowd
// wait and so look better. Safe for concurrent use.
type Measure struct {
	mu           sync.Mutex
	began        time.Time
	rushFrom     time.Time
	rushFor      time.Duration
	inRush       int // answers that count in the rate
	answers      map[string]*hdrhistogram.Histogram
	rejections   *hdrhistogram.Histogram
	reads        map[string]*hdrhistogram.Histogram
	seconds      []*secondHeard
	told         map[Told]struct{}
	secondSeats  []Twice
	serverErrors int
	unanswered   int
	excused      int    // bookings of the even stream while the API was away
	cut          []span // when the rehearsal itself had the API away
	late         int
	latest       time.Duration
}

// secondHeard is a second of the run, by when bookings were due.
type secondHeard struct {
	due, answered, admitted, rejected, other int
	took                                     *hdrhistogram.Histogram
}

// Told is a seat that a candidate was told of by a 202.
type Told struct{ PaymentID, Code, Level string }

// Twice is a candidate who was told of another seat while the first one's time had not run
// out.
type Twice struct{ Code, First, Second string } // by payment id

type span struct {
	from, to time.Time     // to is zero while it lasts
	hides    time.Duration // since from, what was there before to, if longer
}

// NewMeasure starts from nothing; seconds count from began.
func NewMeasure(began time.Time) *Measure {
	return &Measure{
		began: began, rejections: newTimes(3), told: map[Told]struct{}{},
		answers: map[string]*hdrhistogram.Histogram{}, reads: map[string]*hdrhistogram.Histogram{},
	}
}

func newTimes(digits int) *hdrhistogram.Histogram {
	return hdrhistogram.New(1, slowestTold.Microseconds(), digits)
}

func record(h *hdrhistogram.Histogram, took time.Duration) {
	// In range, so that there is no error.
	_ = h.RecordValue(min(max(took, time.Microsecond), slowestTold).Microseconds())
}

func recordIn(m map[string]*hdrhistogram.Histogram, kind string, took time.Duration) {
	h := m[kind]
	if h == nil {
		h = newTimes(3)
		m[kind] = h
	}
	record(h, took)
}

// rush says when the rate is measured.
func (m *Measure) rush(from time.Time, lasts time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rushFrom, m.rushFor = from, lasts
}

// sent notes a request that was sent too long after it was due.
func (m *Measure) sent(after time.Duration) {
	if after <= onTime {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late++
	m.latest = max(m.latest, after)
}

// booking notes what a booking came to, which was due then and took so long. The rate
// counts those of the even stream: with second clicks and repeats among them, of which
// there are as many as the server makes necessary, one that left bookings without an
// answer could still reach it.
func (m *Measure) booking(due time.Time, took time.Duration, a answer, counts bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	recordIn(m.answers, a.kind, took)
	if a.broken() {
		m.serverErrors++
	}
	s := m.second(due)
	s.due++
	if a.kind == kindHungUp {
		return
	}
	record(s.took, took)
	switch {
	case a.kind != kindNoAnswer:
		s.answered++
	case m.wasAway(due, due.Add(took)):
		// The rehearsal's own doing, and nobody's answer was due.
		if counts && m.isRush(due) {
			m.excused++
		}
	default:
		m.unanswered++
	}
	switch a.sort() {
	case sortAdmitted:
		s.admitted++
	case sortRejected:
		s.rejected++
		record(m.rejections, took)
	case sortOther:
		s.other++
	}
	if counts && a.kind != kindNoAnswer && took <= answeredWithin && m.isRush(due) {
		m.inRush++
	}
}

func (m *Measure) isRush(due time.Time) bool {
	since := due.Sub(m.rushFrom)
	return since >= 0 && since <= m.rushFor
}

// away says when the rehearsal has killed the API, and back when it serves again: who
// asked meanwhile, or was being answered, says nothing about it.
func (m *Measure) away(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = append(m.cut, span{from: at})
}

func (m *Measure) back(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[len(m.cut)-1].to = at
}

// cutOff tells whether the server broke a connection that was under way between them, and
// not the rehearsal itself.
func (m *Measure) cutOff(from, to time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.wasAway(from, to)
}

// Excused is how many bookings of the even stream had no answer because the rehearsal had
// the API away.
func (m *Measure) Excused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.excused
}

// wasAway tells whether the API was, at some moment between; the lock is held.
func (m *Measure) wasAway(from, to time.Time) bool {
	return slices.ContainsFunc(m.cut, func(s span) bool { return !to.Before(s.from) && (s.to.IsZero() || !from.After(s.to)) })
}

// second is the one in which something was due.
func (m *Measure) second(due time.Time) *secondHeard {
	i := int(max(0, due.Sub(m.began)) / time.Second)
	for len(m.seconds) <= i {
		m.seconds = append(m.seconds, &secondHeard{})
	}
	if m.seconds[i].took == nil {
		m.seconds[i].took = newTimes(2) // finer would take much memory over a long run
	}
	return m.seconds[i]
}

// read notes how long it took to read something, which was due then; answered is whether
// there was an answer.
func (m *Measure) read(what string, due time.Time, took time.Duration, answered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if what == readCallback && !answered && !m.wasAway(due, due.Add(took)) {
		m.unanswered++
	}
	if !answered {
		what += " " + kindNoAnswer
	}
	recordIn(m.reads, what, took)
}

// held notes a seat that somebody was told of; a replay is no other seat.
func (m *Measure) held(t Told) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told[t] = struct{}{}
}

// twice notes somebody with two seats, by what they were told.
func (m *Measure) twice(t Twice) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.secondSeats = append(m.secondSeats, t)
}

// Twice is everybody who was told of two seats at one time. It is for the booking store to
// say whether the first had been given back by then, as one is whose payment fails.
func (m *Measure) Twice() []Twice {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.secondSeats)
}

// Unanswered is how many bookings and returns from the gateway had no answer, but while the
// rehearsal itself had the API away.
func (m *Measure) Unanswered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unanswered
}

// serverError notes an answer that was an error of the server's, or somebody who was cut
// off and had a seat.
func (m *Measure) serverError() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serverErrors++
}

// Told are the seats that candidates were told of by a 202, each once and in no order:
// the audit must know every one of them.
func (m *Measure) Told() []Told {
	m.mu.Lock()
	defer m.mu.Unlock()
	told := make([]Told, 0, len(m.told))
	for t := range m.told {
		told = append(told, t)
	}
	return told
}

// Rejections are the times of every clear "no" together.
func (m *Measure) Rejections() Percentiles {
	m.mu.Lock()
	defer m.mu.Unlock()
	return percentilesOf(m.rejections)
}

// Late is how many requests were sent more than 100 ms after they were due, and by how
// much the latest: the generator's own doing. It is in their times, and none was left out.
func (m *Measure) Late() (n int, latest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.late, m.latest
}

// Into writes what was measured into the report: Answers, LatencyMS, Reads, Seconds,
// RateAchieved, HoldsCreated and ServerErrors. Reads has "page", "status.json", "booking"
// and "callback"; one of them that had no answer in time is under its name with
// " no_answer". Samples that a second has already are kept.
func (m *Measure) Into(r *Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Answers, r.LatencyMS, r.Reads = map[string]int{}, map[string]Percentiles{}, map[string]Percentiles{}
	for kind, h := range m.answers {
		p := percentilesOf(h)
		r.Answers[kind], r.LatencyMS[kind] = p.Count, p
	}
	for what, h := range m.reads {
		r.Reads[what] = percentilesOf(h)
	}
	r.HoldsCreated, r.ServerErrors, r.RateAchieved = len(m.told), m.serverErrors, 0
	if m.rushFor > 0 {
		r.RateAchieved = float64(m.inRush) / m.rushFor.Seconds()
	}
	samples := map[int]*Sample{}
	for _, s := range r.Seconds {
		samples[s.At] = s.Sample
	}
	last := len(m.seconds) - 1
	for at := range samples {
		last = max(last, at)
	}
	r.Seconds = make([]Second, 0, last+1)
	for at := range last + 1 {
		s := Second{At: at, Sample: samples[at]}
		if at < len(m.seconds) {
			heard := m.seconds[at]
			s.Due, s.Answered, s.Admitted, s.Rejected, s.Other = heard.due, heard.answered, heard.admitted, heard.rejected, heard.other
			p := percentilesOf(heard.took)
			s.P50, s.P90, s.P99 = p.P50, p.P90, p.P99
		}
		r.Seconds = append(r.Seconds, s)
	}
}

func percentilesOf(h *hdrhistogram.Histogram) Percentiles {
	if h == nil || h.TotalCount() == 0 {
		return Percentiles{}
	}
	ms := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1000 }
	return Percentiles{
		Count: int(h.TotalCount()), P50: ms(50), P90: ms(90), P99: ms(99), P999: ms(99.9), Max: float64(h.Max()) / 1000,
	}
}

// answer is what POST /book was answered.
type answer struct {
	kind   string // as in Report.Answers
	status int    // 0 without one
	after  time.Duration
	// Of a seat, new or had before, while it can be paid.
	payment, link, token, level string
	left                        time.Duration
	paid                        bool
	took                        time.Duration // since it was sent
	lost                        bool          // the connection broke or was silent, and not by our doing
}

// noAnswer is a connection that broke or was silent for too long.
func noAnswer() answer { return answer{kind: kindNoAnswer} }

// contract is the answers of the contract's section 3, by slug; "closed" is known by
// its reason.
var contract = map[string]struct {
	kind   string
	status int
}{
	"invalid_request":        {"invalid_request", http.StatusBadRequest},
	"invalid_level":          {"invalid_level", http.StatusBadRequest},
	"invalid_code":           {"invalid_code", http.StatusBadRequest},
	"email_mismatch":         {"email_mismatch", http.StatusBadRequest},
	"duplicate":              {"duplicate", http.StatusConflict},
	"level_full":             {"level_full", http.StatusConflict},
	"not_found":              {"not_found", http.StatusNotFound},
	"method_not_allowed":     {"method_not_allowed", http.StatusMethodNotAllowed},
	"body_too_large":         {"body_too_large", http.StatusRequestEntityTooLarge},
	"unsupported_media_type": {"unsupported_media_type", http.StatusUnsupportedMediaType},
	"idempotency_mismatch":   {"idempotency_mismatch", http.StatusUnprocessableEntity},
	"internal":               {"internal", http.StatusInternalServerError},
	"sold_out":               {"sold_out", http.StatusTooManyRequests},
	"not_open":               {"not_open", http.StatusServiceUnavailable},
	"try_again":              {"try_again", http.StatusServiceUnavailable},
	"payment_unavailable":    {"payment_unavailable", http.StatusBadGateway},
}

// hear reads an answer. One that is not the contract's decides nothing and counts as
// none, whatever its status. Of a plain refusal, of which there are very many, only the
// slug is read.
func hear(status int, h http.Header, body []byte) answer {
	a := answer{kind: kindNoAnswer, status: status}
	if wait, err := strconv.Atoi(h.Get("Retry-After")); err == nil && wait > 0 {
		a.after = time.Duration(min(wait, 120)) * time.Second
	}
	slug := textOf(body, `"error":"`)
	if string(slug) == "closed" {
		slug = textOf(body, `"reason":"`)
	}
	if known, ok := contract[string(slug)]; ok && known.status == status {
		a.kind = known.kind
	}
	if status != http.StatusAccepted && a.kind != "duplicate" {
		return a
	}
	var seat struct {
		PaymentURL  string `json:"payment_url"`
		PaymentID   string `json:"payment_id"`
		BookingURL  string `json:"booking_url"`
		SecondsLeft int    `json:"seconds_left"`
		Level       string `json:"level"`
		Paid        bool   `json:"paid"`
	}
	if json.Unmarshal(body, &seat) != nil {
		a.kind = kindNoAnswer
		return a
	}
	a.payment, a.link, a.level, a.paid = seat.PaymentID, seat.PaymentURL, seat.Level, seat.Paid
	a.token = seat.BookingURL[strings.LastIndexByte(seat.BookingURL, '/')+1:]
	a.left = time.Duration(seat.SecondsLeft) * time.Second
	if status == http.StatusAccepted && a.payment != "" && a.link != "" && a.token != "" {
		a.kind = kindAdmitted
	}
	return a
}

// textOf is the text after a key, up to its quote.
func textOf(body []byte, key string) []byte {
	i := bytes.Index(body, []byte(key))
	if i < 0 {
		return nil
	}
	text, _, _ := bytes.Cut(body[i+len(key):], []byte{'"'})
	return text
}

type answerSort uint8

const (
	sortRejected answerSort = iota
	sortAdmitted
	sortOther
	sortAside // neither
)

func (a answer) sort() answerSort {
	switch a.kind {
	case kindAdmitted:
		return sortAdmitted
	case kindNoAnswer, "try_again", "payment_unavailable", "internal":
		return sortOther
	case kindBot, kindHungUp:
		return sortAside
	}
	return sortRejected
}

// broken tells an error of the server's from an answer that it may give.
func (a answer) broken() bool {
	return a.kind == "internal" || a.kind == kindNoAnswer && a.status >= http.StatusInternalServerError
}
