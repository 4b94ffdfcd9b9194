package rehearse

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"holdfast/internal/booking"
)

// How many of the candidates do what. A person has one habit at most; the others are
// drawn by themselves.
const (
	doubleClicks = 0.04
	closedTabs   = 0.02
	wrongMails   = 0.03

	comeLate     = 0.10 // after the rush
	reloadReturn = 0.05 // load the callback again on the way home
	takeAnother  = 0.50 // of the levels, when theirs is full
	comeBack     = 0.75 // when refused, for seats that lapse

	// Beside the candidates, and as a share of them.
	strangers = 0.02 // whose code is not on the list
	bots      = 0.01 // who fill in the hidden field
)

// Who got a seat in the rush leaves it more often than who waited for one. Together a
// third of all holds lapses, and the last lapse is early enough to be sold again.
const (
	abandonFirst  = 0.42 // before any hold can have lapsed
	abandonSecond = 0.20 // before a hold that was sold again can have
)

// habit is what somebody does at their first booking.
type habit uint8

const (
	plain       habit = iota
	doubleClick       // sends it twice at once, with one Idempotency-Key
	closedTab         // hangs up before the answer, and comes again with the same key
	wrongMail         // mistypes the address first
)

// person is a candidate of the list, by what was drawn for them. Nothing changes it.
type person struct {
	level   uint8 // wished for, as an index of the sale's levels
	habit   habit
	returns uint8 // how often they load the callback
	late    bool
	another bool // takes any level when theirs is full
	stays   bool // waits for a seat when refused
}

// slot is one booking of the rush's even stream.
type slot struct {
	who   int32
	again bool // has booked before, in the rush
}

// beside is a booking that comes by itself and not in the even stream.
type beside struct {
	at   time.Duration // since the rush began
	kind besideKind
	who  int32 // a person; of strangers and bots their number
}

type besideKind uint8

const (
	besideLate     besideKind = iota // the first booking of somebody late
	besideSecond                     // the second click of two
	besideHangUp                     // a tab that is closed
	besideMistyped                   // the wrong mail
	besideStranger
	besideBot
)

// Crowd is everybody who comes to a sale and what they will do. It is a plan only, the
// same for the same options, sale and program, and is never changed: it may be driven again.
type Crowd struct {
	o      Options
	sale   booking.Sale
	people []person
	slots  []slot
	beside []beside // in the order of their times
}

// NewCrowd draws the crowd from the seed. The rush has Rate times For bookings by
// candidates of the list: each of those who do not come late once, and who has come
// already again and again; or, where the rush is too short for all, the others come
// late. What only costs (strangers, bots, second clicks, mistyped mails, closed tabs)
// comes on top.
func NewCrowd(o Options, sale booking.Sale) *Crowd {
	o = o.Complete()
	rng := rand.New(rand.NewPCG(o.Seed, 0x484f4c4446415354))
	c := &Crowd{o: o, sale: sale, people: make([]person, o.Candidates)}
	wish := wishes(rng, sale.Levels)
	var early, late []int32
	for i := range c.people {
		c.people[i] = newPerson(rng, wish)
		if c.people[i].late {
			late = append(late, int32(i))
		} else {
			early = append(early, int32(i))
		}
	}
	c.fillRush(rng, &early, &late)
	c.fillBeside(rng, late)
	return c
}

func newPerson(rng *rand.Rand, wish []float64) person {
	u := rng.Float64()
	p := person{
		level:   uint8(slices.IndexFunc(wish, func(upTo float64) bool { return u < upTo })),
		returns: 1,
		late:    rng.Float64() < comeLate,
		another: rng.Float64() < takeAnother,
		stays:   rng.Float64() < comeBack,
	}
	switch u = rng.Float64(); {
	case u < doubleClicks:
		p.habit = doubleClick
	case u < doubleClicks+closedTabs:
		p.habit = closedTab
	case u < doubleClicks+closedTabs+wrongMails:
		p.habit = wrongMail
	}
	if rng.Float64() < reloadReturn {
		p.returns += uint8(1 + rng.IntN(2))
	}
	return p
}

// wishes are the levels' shares of the demand, added up: by their caps, and each a
// little more or less in demand than the others. The last is above every draw.
func wishes(rng *rand.Rand, levels []booking.Level) []float64 {
	upTo := make([]float64, len(levels))
	sum := 0.0
	for i, l := range levels {
		sum += float64(l.Cap) * (0.9 + 0.2*rng.Float64())
		upTo[i] = sum
	}
	for i := range upTo {
		upTo[i] /= sum
	}
	upTo[len(upTo)-1] = math.Inf(1)
	return upTo
}

// fillRush draws the order of the even stream. Who finds no place in it comes late.
func (c *Crowd) fillRush(rng *rand.Rand, early, late *[]int32) {
	n := int(math.Round(c.o.Rate * c.o.For.Seconds()))
	rng.Shuffle(len(*early), func(i, j int) { (*early)[i], (*early)[j] = (*early)[j], (*early)[i] })
	if n < len(*early) {
		*late = append(*late, (*early)[n:]...)
		*early = (*early)[:n]
	}
	order := slices.Clone(*early)
	for len(order) < n && len(*early) > 0 {
		order = append(order, (*early)[rng.IntN(len(*early))])
	}
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	came := make([]bool, len(c.people))
	c.slots = make([]slot, len(order))
	for i, who := range order {
		c.slots[i] = slot{who: who, again: came[who]}
		came[who] = true
	}
}

func (c *Crowd) fillBeside(rng *rand.Rand, late []int32) {
	within := func(d time.Duration) time.Duration { return time.Duration(rng.Float64() * float64(d)) }
	first := func(who int32, due time.Duration) {
		switch before := 2*time.Second + within(4*time.Second); c.people[who].habit {
		case doubleClick:
			c.beside = append(c.beside, beside{due, besideSecond, who})
		case closedTab:
			c.beside = append(c.beside, beside{max(0, due-before), besideHangUp, who})
		case wrongMail:
			c.beside = append(c.beside, beside{max(0, due-before), besideMistyped, who})
		}
	}
	for i, s := range c.slots {
		if !s.again {
			first(s.who, c.due(i))
		}
	}
	for _, who := range late {
		at := c.o.For + within(c.o.Hold)
		c.beside = append(c.beside, beside{at, besideLate, who})
		first(who, at)
	}
	for _, k := range []struct {
		kind  besideKind
		share float64
	}{{besideStranger, strangers}, {besideBot, bots}} {
		for i := range int(math.Ceil(k.share * float64(len(c.people)))) {
			c.beside = append(c.beside, beside{within(c.o.For), k.kind, int32(i)})
		}
	}
	slices.SortStableFunc(c.beside, func(a, b beside) int { return cmp.Compare(a.at, b.at) })
}

// interval is between two bookings of the even stream.
func (c *Crowd) interval() time.Duration { return time.Duration(float64(time.Second) / c.o.Rate) }

// due is when a slot's booking is to be sent, since the rush began.
func (c *Crowd) due(i int) time.Duration { return time.Duration(i+1) * c.interval() }

// Candidates is the list that the crowd's candidates are on, in the order of their codes.
func (c *Crowd) Candidates() []booking.Candidate {
	list := make([]booking.Candidate, len(c.people))
	for i := range list {
		list[i] = booking.Candidate{Code: string(appendCode(nil, i)), Email: fmt.Sprintf("candidate%d@example.org", firstCode+i)}
	}
	return list
}

// Codes of the list, and of those who are not on it: more than any list has.
const (
	firstCode    = 100_001
	strangerCode = 900_000_001
	botCode      = 990_000_001
)

func appendCode(b []byte, who int) []byte {
	return strconv.AppendInt(append(b, "AB-"...), int64(firstCode+who), 10)
}

// appendBooking is the body of POST /book.
func appendBooking(b []byte, number int, mail, level, website string) []byte {
	b = strconv.AppendInt(append(b, `{"code":"AB-`...), int64(number), 10)
	b = append(append(b, `","email":"`...), mail...)
	b = strconv.AppendInt(b, int64(number), 10)
	b = append(append(b, `@example.org","level":"`...), level...)
	b = append(append(b, `","website":"`...), website...)
	return append(b, `"}`...)
}

const (
	mailOnFile   = "candidate"
	mailMistyped = "candiadte"
)

// dice are a person's own draws while the sale runs: who it is and how often they drew
// decides, not when others do.
type dice uint64

func (c *Crowd) dice(who int32) dice {
	return dice(c.o.Seed*0x9e3779b97f4a7c15 ^ uint64(who+1)*0xd1342543de82ef95)
}

// roll is even in [0, 1): the generator SplitMix64 (Steele, Lea, Flood 2014).
func (d *dice) roll() float64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

func (d *dice) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.roll()*float64(to-from))
}

// spread stretches a pause by chance, as the page does.
func (d *dice) spread(pause time.Duration) time.Duration { return d.between(pause, pause*3/2) }

// ---- what they do ----

// People's pauses, and how often they do something. The page's own are from page.js.
const (
	pageRetry      = 1500 * time.Millisecond // times 1.5 each time
	pageRetryMost  = 20 * time.Second
	pagePatience   = 4 * time.Minute
	pageWatch      = 4 * time.Second // twice as long after each failure, up to four times
	pageWatchFails = 4
	pageLook       = 1500 * time.Millisecond // times 1.4 each time
	pageLookMost   = 8 * time.Second

	// Somebody presses again after an error that the page does not repeat by itself.
	pressAgain = 3
	// Half of those who see a seat that came back ask for it, each so often at most.
	seesChance = 0.5
	asksMost   = 20
	// Tries at the gateway, ways home, and payments after a refused one.
	paysMost    = 6
	returnsMost = 6
	refusedMost = 2
	// Of those who book again before the first answer or later, half do on another device
	// or in another tab, with another Idempotency-Key.
	otherDevice = 0.5
)

// turnAside is of a booking beside a person's own course: its refusal is no news to them.
const turnAside = math.MaxUint32

// key is an Idempotency-Key.
func (c *Crowd) key(who int32, device string, gen uint16) string {
	b := make([]byte, 0, 48)
	b = append(strconv.AppendUint(b, c.o.Seed, 36), '-')
	b = append(strconv.AppendInt(b, int64(who), 36), '-')
	b = append(append(b, device...), '-')
	return string(strconv.AppendUint(b, uint64(gen), 10))
}

// A person's own requests. The lock is held.
func (d *drive) body(who int32) []byte {
	return appendBooking(make([]byte, 0, 128), firstCode+int(who), mailOnFile, d.sale.Levels[d.states[who].level].ID, "")
}

// ownKey is the same for the same wish, so that a repeat is the same request.
func (d *drive) ownKey(who int32) string { return d.key(who, "own", d.states[who].gen) }

// then gives a person their next errand, and takes the one before from them; the lock is
// held.
func (d *drive) then(who int32, what errandKind, pause time.Duration) {
	s := &d.states[who]
	s.turn++
	d.put(errand{due: d.now() + pause, what: what, who: who, turn: s.turn})
}

// goHome is the end of a person's course; the lock is held.
func (d *drive) goHome(s *state) {
	s.turn++
	s.phase = phaseHome
}

// begin is a person's first booking of their own.
func (d *drive) begin(who int32) (body []byte, key string, turn uint32, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if s.phase != phaseAway {
		return nil, "", 0, false // a booking aside has brought them further
	}
	s.phase, s.asked = phaseAsking, d.now()
	s.turn++
	return d.body(who), d.ownKey(who), s.turn, true
}

// compose is a booking that a person makes anew, or that the page repeats.
func (d *drive) compose(who int32, turn uint32) (body []byte, key string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if s.turn != turn || s.phase != phaseAsking {
		return nil, "", false
	}
	return d.body(who), d.ownKey(who), true
}

// composeAside is a booking beside a person's own course: the same again, or from
// another device.
func (d *drive) composeAside(who int32, other bool) (body []byte, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !other {
		return d.body(who), d.ownKey(who)
	}
	s := &d.states[who]
	s.devices++
	return d.body(who), d.key(who, "other", uint16(s.devices))
}

// heard is what a booking's answer means to the person who sent it.
func (d *drive) heard(who int32, turn uint32, a answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	d.wasCutOff(s, a)
	if a.kind == kindAdmitted {
		// The answer's level: the person may wish for another one by now.
		code, now := string(appendCode(nil, int(who))), d.now()
		d.m.held(Told{PaymentID: a.payment, Code: code, Level: a.level})
		// Its seconds are whole ones: the first may have ended a second earlier.
		if s.payment != "" && s.payment != a.payment && now-a.took < s.until-2*time.Second {
			d.m.twice(Twice{Code: code, First: s.payment, Second: a.payment})
		}
		s.payment, s.until = a.payment, now+a.left
	}
	switch {
	case a.link != "" && a.link != s.link: // a seat that is news
		d.seated(who, a)
		return
	case a.paid:
		d.hasPaid(s)
		return
	}
	if s.turn != turn || s.phase != phaseAsking {
		return
	}
	switch a.kind {
	case "level_full":
		d.isFull(who)
	case "sold_out", "not_open":
		d.waits(who)
	case "idempotency_mismatch":
		s.gen++
		d.asksAgain(who, pageRetry)
	case kindNoAnswer, "try_again", "payment_unavailable", "duplicate":
		pause := time.Duration(float64(pageRetry) * math.Pow(1.5, float64(s.tries)))
		d.asksAgain(who, max(min(pause, pageRetryMost), a.after))
	case "internal":
		if s.tries >= pressAgain {
			d.goHome(s)
			return
		}
		d.asksAgain(who, 5*time.Second)
	default: // a clear no
		d.goHome(s)
	}
}

// wasCutOff counts somebody whose connection broke although their seat had been taken:
// the next answer says that they have one already. The lock is held.
func (d *drive) wasCutOff(s *state, a answer) {
	if a.lost {
		s.lost = true
		return
	}
	if a.kind == kindNoAnswer || !s.lost {
		return
	}
	// The same 202 again: the seat is older than this request. Its seconds are whole ones,
	// up to one more may be left.
	old := a.kind == "duplicate" || a.kind == kindAdmitted && d.o.Hold-a.left-time.Second > a.took
	if old && s.link == "" && !s.paid {
		d.m.serverError()
	}
	s.lost = false
}

// asksAgain repeats a booking after a pause that is stretched by chance, until the page's
// patience ends; the lock is held.
func (d *drive) asksAgain(who int32, pause time.Duration) {
	s := &d.states[who]
	pause = s.dice.spread(pause)
	if now := d.now(); now+pause > d.giveUp || now-s.asked > pagePatience {
		d.goHome(s)
		return
	}
	s.tries++
	d.then(who, errandBook, pause)
}

// isFull is a full level: some take another one at once where the page shows a seat, the
// others wait. The lock is held.
func (d *drive) isFull(who int32) {
	s := &d.states[who]
	if shown := d.shown.Load(); shown != nil && shown.open && d.people[who].another && s.asks < asksMost {
		for range d.sale.Levels {
			next := uint8(s.dice.roll() * float64(len(d.sale.Levels)))
			if next != s.level && shown.left[next] > 0 {
				s.level = next
				s.gen++
				s.asks++
				d.books(who, s.dice.between(time.Second, 4*time.Second))
				return
			}
		}
	}
	d.waits(who)
}

// books is a new booking; the lock is held.
func (d *drive) books(who int32, pause time.Duration) {
	s := &d.states[who]
	s.phase, s.tries, s.asked = phaseAsking, 0, d.now()+pause
	d.then(who, errandBook, pause)
}

// nobodyWaits tells that there is nothing to wait for any more; the lock is held.
func (d *drive) nobodyWaits() bool {
	shown := d.shown.Load()
	return d.soldOut || d.now() > d.giveUp || shown != nil && shown.over
}

// waits has somebody who was refused wait for a seat that lapses, or go; the lock is held.
func (d *drive) waits(who int32) {
	s := &d.states[who]
	if !d.people[who].stays || s.asks >= asksMost || d.nobodyWaits() {
		d.goHome(s)
		return
	}
	s.phase = phaseWaiting
	d.then(who, errandWatch, s.dice.between(0, pageWatch))
}

// seen is a look at status.json by somebody who waits.
func (d *drive) seen(who int32, turn uint32, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if s.turn != turn || s.phase != phaseWaiting {
		return
	}
	if d.nobodyWaits() {
		d.goHome(s)
		return
	}
	if ok {
		s.failed = 0
	} else {
		s.failed = min(s.failed+1, pageWatchFails)
	}
	if level, left := d.chance(who); left && s.dice.roll() < seesChance {
		if level != s.level {
			s.level = level
			s.gen++
		}
		s.asks++
		d.books(who, s.dice.between(500*time.Millisecond, 3*time.Second))
		return
	}
	d.then(who, errandWatch, s.dice.spread(pageWatch<<s.failed))
}

// chance is a level with a seat left that the person would take; the lock is held.
func (d *drive) chance(who int32) (level uint8, left bool) {
	shown, s := d.shown.Load(), &d.states[who]
	if shown == nil || !shown.open {
		return 0, false
	}
	if shown.left[s.level] > 0 {
		return s.level, true
	}
	if d.people[who].another {
		from := int(s.dice.roll() * float64(len(shown.left)))
		for i := range shown.left {
			if l := (from + i) % len(shown.left); shown.left[l] > 0 {
				return uint8(l), true
			}
		}
	}
	return 0, false
}

// seated is somebody who has a seat, and pays for it after a while or leaves it. The lock
// is held.
func (d *drive) seated(who int32, a answer) {
	s := &d.states[who]
	s.link = a.link
	if a.token != "" {
		s.token = a.token
		d.tokens = append(d.tokens, a.token)
	}
	leave := 0.0
	switch now := d.now(); {
	case now < d.o.Hold:
		leave = abandonFirst
	case now < 2*d.o.Hold:
		leave = abandonSecond
	}
	if s.dice.roll() < leave {
		d.goHome(s)
		return
	}
	s.phase, s.pays, s.returns, s.looks = phasePaying, 0, 0, 0
	most := d.o.Hold / 2
	if a.left > 0 {
		most = min(most, a.left/2)
	}
	d.then(who, errandPay, s.dice.between(most/6, most))
}

// isPaying tells whether an errand of a payer is still theirs; the lock is held.
func (s *state) isPaying(turn uint32) bool { return s.turn == turn && s.phase == phasePaying }

func (d *drive) paysAt(who int32, turn uint32) (link string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	return s.link, s.isPaying(turn)
}

// paidOff is the gateway's answer to who pressed "pay": the way home, or "".
func (d *drive) paidOff(who int32, turn uint32, back string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if !s.isPaying(turn) {
		return
	}
	s.pays++
	switch {
	case back != "":
		s.back = back
		d.then(who, errandReturn, 0)
		for range d.people[who].returns - 1 {
			d.put(errand{due: d.now() + s.dice.between(0, 2*time.Second), what: errandReload, who: who})
		}
	case s.pays < paysMost:
		d.then(who, errandPay, s.dice.spread(time.Second<<s.pays))
	default:
		d.then(who, errandLook, 0)
	}
}

func (d *drive) comesFrom(who int32, turn uint32) (back string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	return s.back, turn == 0 || s.isPaying(turn) // a reload has no turn
}

// isBack is a payer at home again; their return may have to be made once more.
func (d *drive) isBack(who int32, turn uint32, busy bool, token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if !s.isPaying(turn) {
		return
	}
	if token != "" {
		s.token = token
	}
	s.looks = 0
	if s.returns++; busy && s.returns < returnsMost {
		d.then(who, errandReturn, s.dice.between(3*time.Second, 6*time.Second))
		return
	}
	d.then(who, errandLook, 0)
}

func (d *drive) looksAt(who int32, turn uint32) (token string, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if s.isPaying(turn) && s.token == "" {
		d.goHome(s) // a duplicate without an address, and never back from the gateway
	}
	return s.token, s.isPaying(turn)
}

// told is what a payer's own booking says.
func (d *drive) told(who int32, turn uint32, state booking.ViewState, link string, secondsLeft int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.states[who]
	if !s.isPaying(turn) {
		return
	}
	switch state {
	case booking.ViewPaid:
		d.hasPaid(s)
	case booking.ViewHeld:
		if link != "" && secondsLeft > 0 && s.pays < paysMost {
			s.link = link
			d.then(who, errandPay, s.dice.between(3*time.Second, 8*time.Second))
			return
		}
		d.then(who, errandLook, s.dice.spread(pageLookMost))
	case booking.ViewRefused:
		if s.refused++; s.refused > refusedMost {
			d.goHome(s)
			return
		}
		s.gen++
		d.books(who, s.dice.between(3*time.Second, 8*time.Second))
	case booking.ViewReleased:
		s.gen++
		d.waits(who)
	case booking.ViewRefundDue, viewUnknown:
		d.goHome(s)
	default: // paying, or no clear answer: it may take as long as the gateway is out
		pause := min(time.Duration(float64(pageLook)*math.Pow(1.4, float64(s.looks))), pageLookMost)
		s.looks = min(s.looks+1, 10)
		d.then(who, errandLook, s.dice.spread(pause))
	}
}

// hasPaid is somebody with a paid seat. After the last of them nobody waits any more. The
// lock is held.
func (d *drive) hasPaid(s *state) {
	d.goHome(s)
	if s.paid {
		return
	}
	s.paid = true
	if d.paid++; d.paid < d.sale.Cap {
		return
	}
	d.soldOut = true
	kept := d.agenda
	d.agenda = nil
	for _, e := range kept {
		if e.what == errandWatch {
			d.goHome(&d.states[e.who])
			d.open--
			continue
		}
		d.agenda.push(e)
	}
}

// composeSlot and heardSlot are begin and heard, or a booking aside and its answer, of a
// slot in the rush.
func (d *drive) composeSlot(n int) (body []byte, key string) {
	sl := d.slots[n]
	if !sl.again {
		if body, key, turn, ok := d.begin(sl.who); ok {
			d.mu.Lock()
			d.turns[n] = turn
			d.mu.Unlock()
			return body, key
		}
	}
	d.mu.Lock()
	d.turns[n] = turnAside
	other := sl.again && d.states[sl.who].dice.roll() < otherDevice
	d.mu.Unlock()
	return d.composeAside(sl.who, other)
}

func (d *drive) heardSlot(n int, a answer) {
	d.mu.Lock()
	turn := d.turns[n]
	d.mu.Unlock()
	d.heard(d.slots[n].who, turn, a)
}
