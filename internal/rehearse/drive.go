package rehearse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
)

const (
	// The page's own patience with one request (page.js).
	bookWithin      = 20 * time.Second
	readWithin      = 10 * time.Second
	readsPerBooking = 4
	// handsMost is more than answers can be waited for at the launch's rate.
	handsMost = 8192
	// readersMost is how many reads can be under way on the site, each on a connection of its
	// own. A new connection costs as much as ten reads: without a bound, a machine that is
	// busy for a moment would be kept so by connections that nobody needs a moment later.
	readersMost = 256
)

// errNotTheMock stops a rehearsal before anything is paid at a real gateway.
var errNotTheMock = errors.New("payment link does not lead to the mock gateway: point the deployment at one")

// Drive has the crowd come: the rush from opened on, or from now when that is over, then
// the tail until everybody has paid for a seat, has given up, or has left. All of it ends
// in For + 4.5 Hold and the last answers, and soon after every seat of the sale is paid.
// With ctx it ends at once, with its error; so it does, with an error, when a payment link
// leads elsewhere than to the mock gateway, and nothing is paid there. Whatever the
// deployment answers is measured and is no error. site is an address without a path.
// gateway is that of a gateway that was seen to be the mock, which is not asked again; ""
// is none.
func (c *Crowd) Drive(ctx context.Context, site, gateway string, opened time.Time, m *Measure) error {
	return c.drive(ctx, site, gateway, opened, m, means{(&net.Dialer{Timeout: readWithin}).DialContext, handsMost})
}

// means are what a crowd is driven with.
type means struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// hands is how many requests can be under way, of the even stream and of all others
	// each. One that finds none free waits, and that is in its time.
	hands int
}

// transport keeps its connections, as many as are needed.
func (by means) transport() *http.Transport {
	return &http.Transport{
		DialContext: by.dial, DisableCompression: true, MaxIdleConnsPerHost: handsMost, IdleConnTimeout: lineIdle,
	}
}

func (c *Crowd) drive(ctx context.Context, site, gateway string, opened time.Time, m *Measure, by means) error {
	d, err := c.newDrive(site, gateway, m, by)
	if err != nil {
		return err
	}
	defer d.transport.CloseIdleConnections()
	defer d.reading.close()
	defer d.asking.close()
	if !until(ctx, opened) {
		return ctx.Err()
	}
	ctx, d.stop = context.WithCancelCause(ctx)
	defer d.stop(nil)
	d.began = time.Now()
	m.rush(d.began, c.o.For)
	d.open = 1 // the attack
	for i, b := range c.beside {
		d.put(errand{due: b.at, what: errandBeside, who: int32(i)})
	}
	run := func(e errand, buf *[]byte) { d.run(ctx, e, buf) }
	d.hands = &hands{most: by.hands, work: make(chan errand), do: run}
	readers := &hands{most: min(readersMost, by.hands), work: make(chan errand), do: run}
	var rush sync.WaitGroup
	rush.Go(func() {
		d.attack(ctx)
		d.finished()
	})
	rush.Go(func() { d.readAlong(ctx, readers) })
	d.follow(ctx)
	rush.Wait()
	readers.rest()
	d.hands.rest()
	if err := context.Cause(ctx); err != nil {
		for _, e := range d.agenda {
			d.unsent(e, d.now())
		}
		return err
	}
	return nil
}

// drive is a crowd on its way.
type drive struct {
	*Crowd
	m         *Measure
	transport *http.Transport // of payments, and of connections that are cut
	reading   *wire
	asking    *wire // of bookings and of payers who come back
	hands     *hands
	stop      context.CancelCauseFunc
	site      *url.URL
	book      *url.URL
	status    *url.URL
	bookings  string // path before a token
	pages     [2]pageRead
	began     time.Time     // of the rush
	giveUp    time.Duration // nobody waits longer, since the rush began
	end       time.Duration // nobody stays longer

	shown  atomic.Pointer[shownStatus]
	credit atomic.Int64 // reads that people made by themselves, to be taken off those that the rush has

	mu      sync.Mutex // all below; held for moments
	agenda  agenda
	open    int // errands not done, and the attack while it runs
	wake    chan struct{}
	states  []state
	turns   []uint32 // of the slots' bookings
	tokens  []string // of bookings, to be read
	paid    int
	soldOut bool // every seat is paid: nobody can get one any more
	mocks   map[string]bool
}

// pageRead is a page, and the tag with which it was seen last.
type pageRead struct {
	url  *url.URL
	etag atomic.Pointer[string]
}

type phase uint8

const (
	phaseAway    phase = iota // has not booked yet
	phaseAsking               // a booking is under way, or will be repeated
	phaseWaiting              // looks at status.json
	phasePaying               // has a seat, and pays or will
	phaseHome                 // has paid, has given up or has closed the tab
)

// state is how a person stands. What they will do next is one errand; turn tells it from
// errands of a time before.
type state struct {
	dice    dice
	turn    uint32
	phase   phase
	level   uint8
	tries   uint8 // of this booking
	failed  uint8 // looks at status.json, one after the other
	asks    uint8
	pays    uint8
	returns uint8
	refused uint8
	looks   uint8
	devices uint8 // other than their own
	gen     uint16
	paid    bool
	asked   time.Duration
	lost    bool   // a connection broke under the last booking
	link    string // of the payment
	payment string // of the last 202
	until   time.Duration
	token   string // of the booking
	back    string // the callback
}

func (c *Crowd) newDrive(site, gateway string, m *Measure, by means) (*drive, error) {
	base, err := url.Parse(site)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("site %q: want http(s)://host", site)
	}
	if base.Path == "" {
		base.Path = "/" // else what is joined to it would not begin at the root
	}
	d := &drive{
		Crowd: c, m: m, site: base, book: base.JoinPath("book"), status: base.JoinPath("status.json"),
		bookings: base.JoinPath("booking").Path + "/",
		giveUp:   c.o.For + c.o.Hold*7/2, end: c.o.For + c.o.Hold*9/2,
		wake: make(chan struct{}, 1), states: make([]state, len(c.people)),
		turns: make([]uint32, len(c.slots)), mocks: map[string]bool{},
		transport: by.transport(), reading: newWire(base, readersMost, by.dial),
		asking: newWire(base, 2*by.hands, by.dial), // the even stream's and all others
	}
	d.pages[0].url, d.pages[1].url = base.JoinPath("/"), base.JoinPath("result")
	if u, err := url.Parse(gateway); err == nil && u.Host != "" {
		d.mocks[u.Host] = true
	}
	for i := range d.states {
		d.states[i] = state{dice: c.dice(int32(i)), level: c.people[i].level}
	}
	return d, nil
}

func (d *drive) now() time.Duration { return time.Since(d.began) }

// ---- who does what when ----

// errand is one request that is to be sent, and what it is about.
type errand struct {
	due  time.Duration // since the rush began
	who  int32
	turn uint32
	what errandKind
}

type errandKind uint8

const (
	errandBeside errandKind = iota // who is the index in Crowd.beside
	errandBook
	errandPay
	errandReturn
	errandReload // the callback again; changes nothing
	errandLook   // at the own booking
	errandWatch  // status.json
	errandRead   // of the rush's readers; turn counts them
)

// agenda is a heap: the next errand comes first.
type agenda []errand

func (a *agenda) push(e errand) {
	h := append(*a, e)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].due <= h[i].due {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	*a = h
}

func (a *agenda) pop() errand {
	h := *a
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		next := 2*i + 1
		if next >= last {
			break
		}
		if next+1 < last && h[next+1].due < h[next].due {
			next++
		}
		if h[i].due <= h[next].due {
			break
		}
		h[i], h[next] = h[next], h[i]
		i = next
	}
	*a = h
	return first
}

// put adds an errand, none of them after the end; the lock is held, or nothing runs yet.
func (d *drive) put(e errand) {
	e.due = min(e.due, d.end)
	d.open++
	d.agenda.push(e)
	if d.agenda[0] == e {
		d.nudge()
	}
}

func (d *drive) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// finished ends an errand whose followers have been put.
func (d *drive) finished() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open--; d.open == 0 {
		d.nudge()
	}
}

// follow hands out what is due until nothing is left to do, or ctx ends.
func (d *drive) follow(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		e, wait, ok := d.next()
		if ok {
			d.hands.take(e)
			continue
		}
		if wait < 0 {
			return
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-d.wake:
		}
	}
}

// next is an errand that is due, or how long there is none; negative for ever.
func (d *drive) next() (errand, time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.open == 0:
		return errand{}, -1, false
	case len(d.agenda) == 0:
		return errand{}, time.Hour, false // until an errand under way ends
	}
	if wait := d.agenda[0].due - d.now(); wait > 0 {
		return errand{}, wait, false
	}
	return d.agenda.pop(), 0, true
}

// unsent counts a booking that was due and was not sent any more.
func (d *drive) unsent(e errand, now time.Duration) {
	if e.due <= now && e.due < d.end && (e.what == errandBook || e.what == errandBeside) {
		d.m.booking(d.began.Add(e.due), now-e.due, noAnswer(), false)
	}
}

// hands are goroutines that run errands, as many as are needed at once and never one a
// person.
type hands struct {
	most int
	work chan errand
	do   func(e errand, buf *[]byte) // buf is the hand's own
	n    atomic.Int64
	all  sync.WaitGroup
}

// take has an errand run. It waits only when all hands that there may be are busy.
func (h *hands) take(e errand) {
	select {
	case h.work <- e:
		return
	default:
	}
	if h.n.Add(1) > int64(h.most) {
		h.n.Add(-1)
		h.work <- e
		return
	}
	h.all.Go(func() {
		var buf []byte
		h.do(e, &buf)
		for e := range h.work {
			h.do(e, &buf)
		}
	})
}

// rest returns when every errand is done; no other may come.
func (h *hands) rest() {
	close(h.work)
	h.all.Wait()
}

// ---- the rush ----

// evenly has vegeta send that many, one an interval, and every one of them however late
// it is.
type evenly struct {
	vegeta.ConstantPacer
	most uint64
}

// Pace is vegeta's question when to send the next.
func (p evenly) Pace(elapsed time.Duration, hits uint64) (time.Duration, bool) {
	if hits >= p.most {
		return 0, true
	}
	return p.ConstantPacer.Pace(elapsed, hits)
}

// attack sends the even stream of bookings: each vegeta hit is the next slot's.
func (d *drive) attack(ctx context.Context) {
	attacker := vegeta.NewAttacker(
		vegeta.Client(&http.Client{
			Transport: &door{drive: d, ctx: ctx},
			// Nobody's booking is sent again because an answer leads elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
		vegeta.Workers(uint64(min(64, d.hands.most))), vegeta.MaxWorkers(uint64(d.hands.most)),
	)
	defer context.AfterFunc(ctx, func() { attacker.Stop() })()
	target := vegeta.NewStaticTargeter(vegeta.Target{Method: http.MethodPost, URL: d.book.String()})
	pace := evenly{vegeta.ConstantPacer{Freq: 1, Per: d.interval()}, uint64(len(d.slots))}
	sent, buf := 0, []byte(nil)
	for r := range attacker.Attack(target, pace, 0, "") {
		sent++
		due := d.due(int(r.Seq))
		a := noAnswer()
		if r.Code != 0 { // it is set once the answer is read to its end
			a = hear(int(r.Code), r.Headers, r.Body)
		} else if ctx.Err() == nil {
			a.lost = d.m.cutOff(r.Timestamp, r.Timestamp.Add(r.Latency))
		}
		a.took = r.Latency
		began, ended := r.Timestamp.Sub(d.began), r.Timestamp.Add(r.Latency).Sub(d.began)
		d.m.sent(began - due)
		d.m.booking(d.began.Add(due), ended-due, a, true)
		d.leadsToMock(ctx, a, &buf)
		d.heardSlot(int(r.Seq), a)
	}
	for i, now := sent, d.now(); i < len(d.slots) && d.due(i) <= now; i++ {
		d.m.booking(d.began.Add(d.due(i)), now-d.due(i), noAnswer(), true)
	}
}

// door turns vegeta's requests, which are all the same, into those of the people whose
// turn it is.
type door struct {
	*drive
	ctx context.Context
}

// RoundTrip is http.RoundTripper's.
func (d *door) RoundTrip(hit *http.Request) (*http.Response, error) {
	i, err := strconv.Atoi(hit.Header.Get("X-Vegeta-Seq"))
	if err != nil || i >= len(d.slots) {
		return nil, fmt.Errorf("hit %q of the load library: want one below %d", hit.Header.Get("X-Vegeta-Seq"), len(d.slots))
	}
	body, key := d.composeSlot(i)
	var buf []byte // vegeta's from now on
	r := d.sendBooking(d.ctx, body, key, &buf)
	if r.status == 0 {
		return nil, errNoAnswer
	}
	return &http.Response{
		StatusCode: r.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: r.header,
		Body: io.NopCloser(bytes.NewReader(r.body)), ContentLength: int64(len(r.body)), Request: hit,
	}, nil
}

var errNoAnswer = errors.New("no answer to a booking")

// readAlong has the rush's readers read; each errand has its time, and all of them are
// handed out whatever becomes of the answers.
func (d *drive) readAlong(ctx context.Context, readers *hands) {
	every := d.interval() / readsPerBooking
	for i := range len(d.slots) * readsPerBooking {
		due := time.Duration(i+1) * every
		// A millisecond's are handed out at once: to sleep between them costs more than they.
		if wait := due - d.now(); wait > 0 && !until(ctx, time.Now().Add(max(wait, time.Millisecond))) {
			return
		}
		if d.credit.Add(-1) >= 0 {
			continue // somebody has read by themselves
		}
		d.credit.Add(1)
		readers.take(errand{due: due, what: errandRead, turn: uint32(i)})
	}
}

// ---- requests ----

// Header values as the map keeps them: made once.
var (
	typeJSON   = []string{"application/json"}
	typeForm   = []string{"application/x-www-form-urlencoded"}
	acceptGzip = []string{"gzip"}
	acceptJSON = http.Header{"Accept": typeJSON} // not to be changed
	payBody    = []byte("outcome=success")
)

// bookHeader is a booking's.
func bookHeader(key string) http.Header {
	return http.Header{"Content-Type": typeJSON, "Accept": typeJSON, "Idempotency-Key": {key}}
}

// sendBooking sends a booking, once: it has an Idempotency-Key, and a client that repeats it when
// the connection breaks would hide that.
func (d *drive) sendBooking(ctx context.Context, body []byte, key string, buf *[]byte) reply {
	return d.asking.post(ctx, d.book, bookHeader(key), body, bookWithin, buf)
}

// reply is what came to a request; status is 0 when nothing did.
type reply struct {
	status int
	header http.Header
	body   []byte // until the hand's next request
}

// send sends one request and reads its answer into the hand's buffer.
func send(ctx context.Context, over *http.Transport, req *http.Request, within time.Duration, buf *[]byte) reply {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	resp, err := over.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return reply{}
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or broken
	body, err := readAll(resp.Body, *buf)
	if err != nil {
		return reply{}
	}
	*buf = body
	return reply{status: resp.StatusCode, header: resp.Header, body: body}
}

func get(u *url.URL, h http.Header) *http.Request {
	return &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: h}
}

// read reads something of the site at its time, and notes how long it took since it was
// due.
func (d *drive) read(ctx context.Context, what string, due time.Duration, u *url.URL, h http.Header, buf *[]byte) reply {
	var r reply
	switch {
	case what != readCallback:
		r = d.reading.get(ctx, u, h, readWithin, buf)
	case u.Host == d.site.Host && u.Scheme == d.site.Scheme: // it may take seconds, and no script gives up
		r = d.asking.get(ctx, u, h, bookWithin, buf)
	default:
		r = send(ctx, d.transport, get(u, h), bookWithin, buf)
	}
	if ctx.Err() != nil {
		return reply{} // stopped: it says nothing of the deployment
	}
	took := d.now() - due
	if r.status >= http.StatusInternalServerError && string(textOf(r.body, `"error":"`)) != "try_again" {
		d.m.serverError()
	}
	d.m.read(what, d.began.Add(due), took, r.status != 0)
	return r
}

// What is read, as in Report.Reads.
const (
	readPage     = "page"
	readStatus   = "status.json"
	readBooking  = "booking"
	readCallback = "callback"
)

// loadPage loads a page, as a browser that has it does, or as one that has not.
func (d *drive) loadPage(ctx context.Context, p *pageRead, due time.Duration, fresh bool, buf *[]byte) {
	h := http.Header{"Accept-Encoding": acceptGzip}
	if tag := p.etag.Load(); tag != nil && !fresh {
		h["If-None-Match"] = []string{*tag}
	}
	r := d.read(ctx, readPage, due, p.url, h, buf)
	if tag := r.header.Get("ETag"); r.status == http.StatusOK && tag != "" {
		if last := p.etag.Load(); last == nil || *last != tag {
			p.etag.Store(&tag)
		}
	}
}

// watch reads status.json, as the page does: without a cache.
func (d *drive) watch(ctx context.Context, due time.Duration, buf *[]byte) bool {
	r := d.read(ctx, readStatus, due, d.status, acceptJSON, buf)
	return r.status == http.StatusOK && d.learn(r.body)
}

func (d *drive) readBooking(ctx context.Context, token string, due time.Duration, buf *[]byte) reply {
	u := &url.URL{Scheme: d.site.Scheme, Host: d.site.Host, Path: d.bookings + token}
	return d.read(ctx, readBooking, due, u, acceptJSON, buf)
}

// shownStatus is the newest status.json that anybody has seen.
type shownStatus struct {
	raw     []byte
	version int64
	open    bool
	over    bool  // closed, after it was open
	left    []int // by level, in the sale's order
}

// learn takes in a status.json. Nearly always it is the one that is known.
func (d *drive) learn(body []byte) bool {
	for {
		last := d.shown.Load()
		if last != nil && bytes.Equal(last.raw, body) {
			return true
		}
		var doc struct {
			Version int64      `json:"version"`
			Open    bool       `json:"open"`
			OpensAt *time.Time `json:"opens_at"`
			Total   struct {
				Left int `json:"left"`
			} `json:"total"`
			Levels []struct {
				ID   string `json:"id"`
				Left int    `json:"left"`
			} `json:"levels"`
		}
		if json.Unmarshal(body, &doc) != nil {
			return false
		}
		if last != nil && doc.Version < last.version {
			return true // a cache may be behind: an older document is no news
		}
		next := &shownStatus{raw: bytes.Clone(body), version: doc.Version, open: doc.Open, left: make([]int, len(d.sale.Levels))}
		next.over = !doc.Open && doc.OpensAt == nil && last != nil && (last.open || last.over)
		for _, l := range doc.Levels {
			i := slices.IndexFunc(d.sale.Levels, func(of booking.Level) bool { return of.ID == l.ID })
			if i >= 0 {
				next.left[i] = min(l.Left, doc.Total.Left)
			}
		}
		if d.shown.CompareAndSwap(last, next) {
			return true
		}
	}
}

// ---- errands ----

// run runs an errand. Nobody stays beyond the end.
func (d *drive) run(ctx context.Context, e errand, buf *[]byte) {
	started := d.now()
	if e.what != errandRead {
		defer d.finished()
		if started < d.o.For {
			d.credit.Add(e.what.reads())
		}
	}
	if started >= d.end || ctx.Err() != nil {
		d.unsent(e, started)
		return
	}
	d.m.sent(started - e.due)
	switch e.what {
	case errandBeside:
		d.runBeside(ctx, e, buf)
	case errandBook:
		if body, key, ok := d.compose(e.who, e.turn); ok {
			d.heard(e.who, e.turn, d.ask(ctx, e.due, body, key, buf))
		}
	case errandPay:
		d.pay(ctx, e, buf)
	case errandReturn, errandReload:
		d.comeBack(ctx, e, buf)
	case errandLook:
		d.look(ctx, e, buf)
	case errandWatch:
		d.seen(e.who, e.turn, d.watch(ctx, e.due, buf))
	case errandRead:
		d.runRead(ctx, e, buf)
	}
}

// reads is how many reads an errand makes.
func (k errandKind) reads() int64 {
	switch k {
	case errandReturn: // and the page
		return 2
	case errandLook, errandWatch, errandReload:
		return 1
	}
	return 0
}

// ask sends a booking that is not of the even stream, and notes its answer.
func (d *drive) ask(ctx context.Context, due time.Duration, body []byte, key string, buf *[]byte) answer {
	sent := d.now()
	r := d.sendBooking(ctx, body, key, buf)
	a := noAnswer()
	if r.status != 0 {
		a = hear(r.status, r.header, r.body)
	} else if ctx.Err() == nil {
		a.lost = d.m.cutOff(d.began.Add(sent), time.Now())
	}
	a.took = d.now() - sent
	d.m.booking(d.began.Add(due), d.now()-due, a, false)
	d.leadsToMock(ctx, a, buf)
	return a
}

// runBeside sends a booking that is not in the even stream.
func (d *drive) runBeside(ctx context.Context, e errand, buf *[]byte) {
	b := d.beside[e.who]
	switch b.kind {
	case besideLate:
		if body, key, turn, ok := d.begin(b.who); ok {
			d.heard(b.who, turn, d.ask(ctx, e.due, body, key, buf))
		}
	case besideSecond:
		body, key := d.composeAside(b.who, false)
		d.heard(b.who, turnAside, d.ask(ctx, e.due, body, key, buf))
	case besideHangUp:
		body, key := d.composeAside(b.who, false)
		d.hangUp(ctx, e.due, &http.Request{
			Method: http.MethodPost, URL: d.book, Host: d.book.Host, Header: bookHeader(key),
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), // without GetBody nothing is repeated
		}, buf)
	case besideMistyped:
		level := d.sale.Levels[d.people[b.who].level].ID
		d.ask(ctx, e.due, appendBooking(nil, firstCode+int(b.who), mailMistyped, level, ""), d.key(b.who, "typo", 0), buf)
	case besideStranger:
		level := d.sale.Levels[int(b.who)%len(d.sale.Levels)].ID
		d.ask(ctx, e.due, appendBooking(nil, strangerCode+int(b.who), mailOnFile, level, ""), d.key(b.who, "stranger", 0), buf)
	case besideBot:
		level := d.sale.Levels[int(b.who)%len(d.sale.Levels)].ID
		r := d.sendBooking(ctx, appendBooking(nil, botCode+int(b.who), mailOnFile, level, "https://example.org/"), d.key(b.who, "bot", 0), buf)
		a := hear(r.status, r.header, r.body)
		if a.kind == kindAdmitted {
			a.kind = kindBot
		}
		d.m.booking(d.began.Add(e.due), d.now()-e.due, a, false)
	}
}

// hangUp sends a booking and closes the connection as soon as it is written.
func (d *drive) hangUp(ctx context.Context, due time.Duration, req *http.Request, buf *[]byte) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { cancel() }})
	send(ctx, d.transport, req, bookWithin, buf)
	d.m.booking(d.began.Add(due), d.now()-due, answer{kind: kindHungUp}, false)
}

// runRead is one of the rush's readers: mostly of status.json, and of a booking where
// there is one.
func (d *drive) runRead(ctx context.Context, e errand, buf *[]byte) {
	switch n := e.turn % 20; {
	case n < 3: // of ten who load the page one has not seen it before
		d.loadPage(ctx, &d.pages[0], e.due, e.turn/20%10 == 0, buf)
		return
	case n < 8:
		if token := d.someToken(e.turn); token != "" {
			d.readBooking(ctx, token, e.due, buf)
			return
		}
	}
	d.watch(ctx, e.due, buf)
}

func (d *drive) someToken(n uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.tokens) == 0 {
		return ""
	}
	roll := dice(n)
	return d.tokens[int(roll.roll()*float64(len(d.tokens)))]
}

// pay presses "pay" at the gateway, and takes the way home that it gives.
func (d *drive) pay(ctx context.Context, e errand, buf *[]byte) {
	link, ok := d.paysAt(e.who, e.turn)
	if !ok {
		return
	}
	u, err := url.Parse(link)
	if err != nil || u.Host == "" {
		d.stop(fmt.Errorf("%q: %w", link, errNotTheMock))
		return
	}
	if !d.isMock(ctx, u, buf) {
		d.paidOff(e.who, e.turn, "")
		return
	}
	r := send(ctx, d.transport, &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: http.Header{"Content-Type": typeForm},
		Body: io.NopCloser(bytes.NewReader(payBody)), ContentLength: int64(len(payBody)),
	}, bookWithin, buf)
	back := ""
	if r.status == http.StatusSeeOther {
		if home, err := u.Parse(r.header.Get("Location")); err == nil {
			back = home.String()
		}
	}
	d.paidOff(e.who, e.turn, back)
}

// isMock tells whether a payment link leads to the mock, which is asked once a host by
// loading the payer's page. One that answers otherwise ends everything.
func (d *drive) isMock(ctx context.Context, link *url.URL, buf *[]byte) bool {
	d.mu.Lock()
	known := d.mocks[link.Host]
	d.mu.Unlock()
	if known {
		return true
	}
	r := send(ctx, d.transport, get(link, http.Header{}), readWithin, buf)
	if r.status == 0 {
		return false
	}
	if r.header.Get(mockgateway.Header) != mockgateway.HeaderValue {
		d.stop(fmt.Errorf("%s://%s: %w", link.Scheme, link.Host, errNotTheMock))
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mocks[link.Host] = true
	return true
}

// leadsToMock ends everything at the first payment that waits elsewhere: by the time that
// somebody would pay it there would be thousands.
func (d *drive) leadsToMock(ctx context.Context, a answer, buf *[]byte) {
	if a.link == "" {
		return
	}
	u, err := url.Parse(a.link)
	if err != nil || u.Host == "" {
		d.stop(fmt.Errorf("%q: %w", a.link, errNotTheMock))
		return
	}
	d.isMock(ctx, u, buf)
}

// comeBack is the browser's way home: the callback, the result page, and the booking.
func (d *drive) comeBack(ctx context.Context, e errand, buf *[]byte) {
	back, ok := d.comesFrom(e.who, e.turn)
	if !ok {
		return
	}
	u, err := url.Parse(back)
	if err != nil {
		return // it was made from a parsed one
	}
	r := d.read(ctx, readCallback, e.due, u, http.Header{}, buf)
	if e.what == errandReload {
		return
	}
	var query url.Values
	if r.status == http.StatusSeeOther {
		if to, err := u.Parse(r.header.Get("Location")); err == nil {
			query = to.Query()
			d.loadPage(ctx, &d.pages[1], d.now(), false, buf)
		}
	}
	// An outage was in the way, or nothing came: the page says so, and the return can be
	// made again.
	d.isBack(e.who, e.turn, query == nil || query.Get("error") == "busy", query.Get("booking"))
}

// look is the result page asking for its own booking.
func (d *drive) look(ctx context.Context, e errand, buf *[]byte) {
	token, ok := d.looksAt(e.who, e.turn)
	if !ok {
		return
	}
	r := d.readBooking(ctx, token, e.due, buf)
	var view struct {
		State       string `json:"state"`
		SecondsLeft int    `json:"seconds_left"`
		PaymentURL  string `json:"payment_url"`
	}
	state := viewBusy
	switch {
	case r.status == http.StatusNotFound && string(textOf(r.body, `"error":"`)) == "not_found":
		state = viewUnknown
	case r.status == http.StatusOK && json.Unmarshal(r.body, &view) == nil && view.State != "":
		state = booking.ViewState(view.State)
	}
	d.told(e.who, e.turn, state, view.PaymentURL, view.SecondsLeft)
}

// What the page makes of answers that are no state.
const (
	viewBusy    booking.ViewState = "busy"
	viewUnknown booking.ViewState = "unknown"
)
