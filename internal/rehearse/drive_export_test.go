package rehearse

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"time"

	"holdfast/internal/mockgateway"
	"holdfast/internal/saleops"
)

// DriveOver is Drive over connections of a test's own, with that many requests under way.
func (c *Crowd) DriveOver(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), hands int, site string, m *Measure) error {
	return c.drive(ctx, site, site, time.Now(), m, means{dial, hands})
}

// DriveTo is the same with a gateway elsewhere.
func (c *Crowd) DriveTo(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), site, gateway string, m *Measure) error {
	return c.drive(ctx, site, gateway, time.Now(), m, means{dial, handsMost})
}

// Ends is when a drive is over at the latest, since it began.
func (c *Crowd) Ends() time.Duration { return c.o.For + c.o.Hold*9/2 }

// IsNotTheMock tells the error of a payment link that leads elsewhere.
func IsNotTheMock(err error) bool { return errors.Is(err, errNotTheMock) }

// Hear reads an answer to a booking: its kind, how long to wait, and the payment link.
func Hear(status int, h map[string][]string, body string) (kind string, after time.Duration, link string) {
	a := hear(status, h, []byte(body))
	return a.kind, a.after, a.link
}

// Booking notes an answer of that kind.
func (m *Measure) Booking(due time.Time, took time.Duration, kind string, status int, eligible bool) {
	m.booking(due, took, answer{kind: kind, status: status}, eligible)
}

// Rush says when the rate is measured.
func (m *Measure) Rush(from time.Time, lasts time.Duration) { m.rush(from, lasts) }

// Judge is judge over that audit, of a rehearsal that looked that often.
func Judge(r *Report, audit saleops.Report, looks int, m *Measure) {
	judge(r, audit, extremes{looks: looks, queueLooks: looks}, m)
}

// Looked are the audit's rules that a rehearsal wants.
func Looked() []string { return slices.Clone(looked) }

// Watched is the rule about the samples.
func Watched(looks int, lasted time.Duration) Rule { return watched(extremes{looks: looks}, lasted) }

// OwnAge is ownAge with spans of seconds before now; one that ends after it still lasts.
func OwnAge(age float64, stopped ...[2]float64) float64 {
	now := time.Now()
	before := func(s float64) time.Time { return now.Add(-time.Duration(s * float64(time.Second))) }
	var spans []span
	for _, s := range stopped {
		sp := span{from: before(s[0])}
		if s[1] >= 0 {
			sp.to = before(s[1])
		}
		spans = append(spans, sp)
	}
	return ownAge(age, now, spans)
}

// OwnAgeKilled is ownAge where a worker was killed so many seconds before now and was back
// two later.
func OwnAgeKilled(age, killed float64) float64 {
	now := time.Now()
	from := now.Add(-time.Duration(killed * float64(time.Second)))
	return ownAge(age, now, []span{{from: from, to: from.Add(2 * time.Second), hides: inHand}})
}

// JudgeQueue is the queue's rule over the oldest message that was seen, whole and without
// what the rehearsal did to it.
func JudgeQueue(age, own float64, m *Measure) Rule {
	var r Report
	judge(&r, saleops.Report{}, extremes{looks: 1, queueLooks: 1, queueAge: age, queueOwn: own}, m)
	for _, rule := range slices.Backward(r.Rules) { // the first of that name is the audit's
		if rule.Name == "queue" {
			return rule
		}
	}
	return Rule{}
}

// Away says when the rehearsal had the API away.
func (m *Measure) Away(from, to time.Time) { m.away(from); m.back(to) }

// Lost notes a booking without an answer, of the even stream or not.
func (m *Measure) Lost(due time.Time, took time.Duration, counts bool) {
	m.booking(due, took, noAnswer(), counts)
}

// Held notes a seat that somebody was told of.
func (m *Measure) Held(t Told) { m.held(t) }

// Plan counts what a crowd is going to do.
func (c *Crowd) Plan() map[string]int {
	n := map[string]int{"slots": len(c.slots)}
	for _, s := range c.slots {
		if !s.again {
			n["first"]++
		}
	}
	for _, p := range c.people {
		n["wish "+c.sale.Levels[p.level].ID]++
		if p.late {
			n["late"]++
		}
	}
	for _, b := range c.beside {
		n["beside "+[]string{"late", "second", "hang up", "mistyped", "stranger", "bot"}[b.kind]]++
	}
	return n
}

// SameAs tells whether two crowds are the same to the last detail.
func (c *Crowd) SameAs(other *Crowd) bool {
	return slices.Equal(c.people, other.people) && slices.Equal(c.slots, other.slots) && slices.Equal(c.beside, other.beside) &&
		c.dice(7) == other.dice(7) && c.key(7, "own", 0) == other.key(7, "own", 0)
}

// Wire reads from one server.
type Wire struct{ w *wire }

// NewWire is a wire of at most that many connections; roots are those of its certificate.
func NewWire(base *url.URL, most int, roots *x509.CertPool) Wire {
	w := newWire(base, most, (&net.Dialer{}).DialContext)
	if w.tls != nil {
		w.tls.RootCAs = roots
	}
	return Wire{w}
}

// Get asks once; status 0 is no answer.
func (w Wire) Get(ctx context.Context, path string, within time.Duration) (status int, body string) {
	var buf []byte
	u := &url.URL{Scheme: "http", Host: w.w.host, Path: path}
	r := w.w.get(ctx, u, acceptJSON, within, &buf)
	return r.status, string(r.body)
}

// Post sends once; status 0 is no answer.
func (w Wire) Post(ctx context.Context, path, sent string, within time.Duration) (status int, body string) {
	var buf []byte
	u := &url.URL{Scheme: "http", Host: w.w.host, Path: path}
	r := w.w.post(ctx, u, acceptJSON, []byte(sent), within, &buf)
	return r.status, string(r.body)
}

// Close ends it.
func (w Wire) Close() { w.w.close() }

// Pretended is a deployment of which only this is there.
type Pretended struct {
	deployment
	Exported string // what bookings export prints
	Listed   []mockgateway.Listed
	Sampled  Sample
	Err      error // of the sample
}

// Ctl answers every command with the export.
func (p *Pretended) Ctl(context.Context, string, ...string) (stdout, stderr []byte, code int) {
	return []byte(p.Exported), nil, 0
}

func (p *Pretended) payments(context.Context) ([]mockgateway.Listed, error) { return p.Listed, nil }

// Break breaks nothing.
func (p *Pretended) Break(context.Context, Fault) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}

// Sample is a part of one, with an error about the rest.
func (p *Pretended) Sample(context.Context) (Sample, error) { return p.Sampled, p.Err }

// Money is what the gateway's list says of the sale of that epoch.
func (p *Pretended) Money(ctx context.Context, epoch string) (unaccounted []string, lost int, err error) {
	m, err := (&drill{on: p, epoch: epoch}).money(ctx)
	return m.unaccounted, m.lost, err
}

// Faulty counts the faults that lasted, of a crowd that leaves after so long.
// held is how long the queue was kept from being emptied.
func (p *Pretended) Faulty(ctx context.Context, stays time.Duration, faults ...Fault) (broken int, held time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, stays)
	defer cancel()
	d := &drill{Options: Options{Faults: faults, Log: io.Discard}, on: p, began: time.Now()}
	err = d.breakThings(ctx, time.Now(), NewMeasure(time.Now()))
	for _, s := range d.stopped {
		held += s.to.Sub(s.from)
	}
	return d.broken, held, err
}

// Watch samples for so long, of a sale of that cap, and tells the worst.
func (p *Pretended) Watch(ctx context.Context, lasts time.Duration, seats int) (oversold, looks, kept int) {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	d := &drill{Options: Options{Log: io.Discard}, on: p, began: time.Now()}
	d.sale.Cap = seats
	d.watch(ctx)
	return d.most.oversold, d.most.looks, len(d.samples)
}
