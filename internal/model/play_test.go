package model_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/checkout"
	"holdfast/internal/reconcile"
	"holdfast/internal/saleops"
	"holdfast/internal/settle"
	"holdfast/scripts/lua"
)

const (
	prefix         = "{sale}:"
	executeTimeout = 20 * time.Second
	takeOver       = 15 * time.Second
	// flightMost is how long an execute call that gave no answer may still arrive:
	// longer than 'paying' lasts, shorter than two final "not finished" are apart.
	flightMost = 2 * time.Minute
	candidates = 4
)

// kind is what a step does.
type kind string

// kinds and how often they come.
var kinds = []struct {
	kind  kind
	times int
}{
	{"go on", 12}, {"book", 10}, {"crowd", 2}, {"pay", 8}, {"sweep", 6}, {"wait", 6}, {"stray", 5}, {"again", 3}, {"deliver", 3},
	{"arrive", 3}, {"notify", 3}, {"drop", 2}, {"cut", 3}, {"mend", 3}, {"switch", 1}, {"apply", 2}, {"forget", 1}, {"lose", 1},
}

// step is one drawn step. Its numbers choose among what there is by then.
type step struct {
	Do    kind
	Who   int
	How   int
	Calls int  // how many calls the actor makes before it waits
	Fate  fate // of one of them
	At    int  // of which
}

// steps draws a sequence.
func steps(from, to int) *rapid.Generator[[]step] {
	var all []kind
	for _, k := range kinds {
		for range k.times {
			all = append(all, k.kind)
		}
	}
	fates := []fate{pass, pass, pass, pass, pass, pass, pass, pass, lost, kept, kept, late, late, garbled, outage, unsent}
	calls := []int{1, 2, 3, 4, 5, 6, 50, 50}
	// With equal chances: rapid's own choices fall on the first ones mostly.
	bit := rapid.Bool()
	word := func(t *rapid.T, bits int) (n int) {
		for range bits {
			if n <<= 1; bit.Draw(t, "bit") {
				n++
			}
		}
		return n
	}
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			Do: all[word(t, 10)%len(all)], Who: word(t, 6), How: word(t, 6),
			Calls: calls[word(t, 3)], Fate: fates[word(t, 4)], At: word(t, 3),
		}
	})
	return rapid.SliceOfN(one, from, to)
}

// issued is a payment that the gateway has made.
type issued struct{ id, code, attempt string }

// model is a sale, those who are at work on it, and what is known of both.
type model struct {
	ctx     context.Context
	servers servers
	clock   *bookingtest.Clock
	gates   []*admission.Gate // of two servers
	records *records
	queue   [][]byte
	gateway *bookingtest.Gateway
	mailer  *bookingtest.Mailer
	books   bookingtest.Books

	booker   *checkout.Service
	settler  *settle.Service
	sweepers []*reconcile.Reconciler
	sweeps   map[*actor]int // by sweeper
	ops      *saleops.Ops
	sale     booking.Sale // last put into force, acknowledged

	actors []*actor
	trace  []string

	before time.Time // the last call
	last   call
	prev   *view // the last reading; nil after what no call does

	codes     map[string]string // by candidate hash
	emails    map[string]string // by code
	payments  []issued
	attemptOf map[string]string    // payments
	used      map[string]bool      // attempts
	promised  map[string]bool      // attempts that were answered 202
	second    map[string]bool      // payments that moved money twice
	unseated  map[string]bool      // payments otherwise than ordered, and late money
	decided   map[string]decision  // by transaction
	epoch     string               // the sale's
	copies    []copied             // calls of the ledger, to come once more
	inFlight  map[string]time.Time // execute calls without an answer, and until when they may arrive
	opens     []time.Time          // since when booking may be open; the zero time is closed
	away      bool                 // the replicas
	lost      bool                 // Redis came back empty
	complaint error                // of a caller
	seen      *tally
}

// tally counts what sequences came to. Safe for concurrent use.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func newTally() *tally { return &tally{n: map[string]int{}} }

func (t *tally) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[what]++
}

// unmet lists what was never met of every move that a row can make, and of what
// can befall a sale.
func (t *tally) unmet() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(kindsOfEvent(), func(what string) bool { return t.n[what] > 0 })
}

// String tells how often each was met, the rarest first.
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := kindsOfEvent()
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(t.n[a], t.n[b]) })
	for i, what := range all {
		all[i] = fmt.Sprintf("%6d  %s", t.n[what], what)
	}
	return strings.Join(all, "\n")
}

// kindsOfEvent are those that a long run must have met.
func kindsOfEvent() []string {
	all := slices.Clone(befalls)
	phases := append(booking.Phases(), "")
	for _, from := range phases {
		for _, to := range phases {
			if from.CanMove(to) {
				all = append(all, move(from, to))
			}
		}
	}
	return all
}

const (
	tookBack  = "a failover took a row back"
	rebuilt   = "a rebuild brought rows back"
	doubtful  = "a rebuild kept a doubt"
	lateMoney = "late money"
	lateSeat  = "late money got its seat"
	twice     = "a payment moved money twice"
	arrived   = "an execute call without an answer arrived"
	taken     = "a payment was taken over"
	passed    = "a seat was taken over"
	refused   = "a server refused to write a seat"
	restored  = "a seat was given back to a refused attempt"
)

var befalls = []string{
	tookBack, rebuilt, doubtful, lateMoney, lateSeat, twice, arrived, taken, passed, restored, refused,
	goesBack("second"), goesBack("other_than_ordered"), goesBack("epoch"), goesBack("candidate"), goesBack("level"), goesBack("full"),
}

func goesBack(reason string) string { return "money went back: " + reason }

func move(from, to booking.Phase) string { return fmt.Sprintf("%q to %q", from, to) }

func sale(level1, level2, total int) booking.Sale {
	s := bookingtest.Sale()
	s.Cap, s.Levels[0].Cap, s.Levels[1].Cap = total, level1, level2
	return s
}

// play runs a sequence; the error is the broken rule and what led there.
func play(ctx context.Context, s servers, list []step, seen *tally) error {
	m, err := newModel(ctx, s, seen)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer m.dropAll()
	for i, st := range list {
		m.note("%d. %s", i+1, st.Do)
		if err := m.step(st); err != nil {
			return m.failed(err)
		}
	}
	m.note("the end")
	if err := m.end(); err != nil {
		return m.failed(err)
	}
	return nil
}

func (m *model) failed(err error) error {
	return fmt.Errorf("%w\nafter:\n%s", err, strings.Join(m.trace, "\n"))
}

func (m *model) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func newModel(ctx context.Context, s servers, seen *tally) (*model, error) {
	if err := s.reset(ctx); err != nil {
		return nil, err
	}
	m := &model{
		ctx: ctx, servers: s, seen: seen, clock: new(bookingtest.Clock), records: newRecords(), sweeps: map[*actor]int{},
		mailer: &bookingtest.Mailer{Faults: new(bookingtest.Faults)}, sale: sale(2, 3, 4),
		codes: map[string]string{}, emails: map[string]string{}, attemptOf: map[string]string{}, used: map[string]bool{}, promised: map[string]bool{},
		second: map[string]bool{}, unseated: map[string]bool{},
		decided: map[string]decision{}, inFlight: map[string]time.Time{}, opens: []time.Time{{}},
	}
	for i := range candidates {
		code := bookingtest.Code(i + 1)
		m.codes[booking.CandidateHash(code)], m.emails[code] = code, bookingtest.Email(i+1)
	}
	m.gateway = bookingtest.NewGateway(m.clock.Now)
	m.books = bookingtest.Books{
		Records: m.records, Refunds: m.records, Completed: m.gateway.Completed, Sent: m.mailer.Sent,
		Unseated: m.unseated, MailTwice: true, // its process may be gone before it has written that down
	}
	log := slog.New(slog.DiscardHandler)
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		return nil, err
	}
	for range 2 {
		g, err := admission.New(s.client(), admission.Options{
			Keys: keys, Acks: s.acks(), ClockOffset: m.clock.Offset, Log: log, Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			return nil, err
		}
		m.gates = append(m.gates, g)
	}
	seats, books, pay := ledger{m.gates[0], m}, store{m.records}, gateway{m}
	link := func(code, attempt string) string { return "https://sale.test/result?booking=" + code + attempt }
	m.booker, err = checkout.New(checkout.Deps{
		Ledger: seats, Gateway: pay, Queue: queue{m}, Slots: 100,
		Budgets:     checkout.Budgets{Request: 14 * time.Second, Redis: 4 * time.Second, Create: 4 * time.Second, Enqueue: 4 * time.Second},
		CallbackURL: "https://sale.test/payment/callback", BookingURL: link,
		Now: m.clock.Now, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	m.settler, err = settle.New(settle.Deps{
		Ledger: seats, Gateway: pay, Store: books, Mailer: mailer{m.mailer}, Sale: m.gates[0], Background: inline{},
		BookingURL: link, ExecuteTimeout: executeTimeout, Now: m.clock.Now, Log: log, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	for range 2 {
		r, err := reconcile.New(reconcile.Deps{
			Ledger: seats, Gateway: pay, Settler: m.settler, Store: books,
			Every: time.Second, Budget: time.Minute, Width: 1, QueriesPerSecond: 1e6,
			ExecuteTimeout: executeTimeout, Lapse: 24 * time.Hour, Log: log, Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			return nil, err
		}
		m.sweepers = append(m.sweepers, r)
	}
	m.ops = &saleops.Ops{Ledger: m.gates[0], Store: m.records, Queue: queue{m}, Gateway: pay, Log: log}
	if err := m.learnReplicas(); err != nil {
		return nil, err
	}
	if err := m.begin(bookingtest.Epoch); err != nil {
		return nil, err
	}
	if err := m.earlier(); err != nil {
		return nil, err
	}
	return m, m.check()
}

// earlier leaves a record of an earlier sale whose payment never completed.
func (m *model) earlier() error {
	code := bookingtest.Code(1)
	row := booking.Row{
		Attempt: booking.AttemptID("0nmkmg0aaaaa", booking.NewAttemptSuffix(m.clock.Now())), Level: "N2",
		Amount: m.sale.Levels[1].Fee, Currency: m.sale.Currency, AdmittedAt: 1, Deadline: 1,
	}
	p, err := gateway{m}.Create(m.ctx, booking.Order{
		Invoice: booking.Invoice(booking.CandidateHash(code), row.Attempt), Amount: row.Amount, Currency: row.Currency,
	})
	if err != nil {
		return err
	}
	row.Payment = p.ID
	rec, _, err := m.records.PutHeld(m.ctx, row.HeldRecord(code, p.URL, p.Signature))
	if err != nil {
		return err
	}
	return m.records.Release(m.ctx, rec, booking.ReasonLapsed, m.clock.Now())
}

// begin puts the sale into force on an empty Redis, or on a rebuilt one, and
// opens it.
func (m *model) begin(epoch string) error {
	if epoch != "" {
		if _, err := m.gates[0].ApplySale(m.ctx, m.sale, epoch, false); err != nil {
			return err
		}
		m.epoch = epoch
	}
	if err := m.gates[0].AddCandidates(m.ctx, bookingtest.Candidates(candidates)); err != nil {
		return err
	}
	m.opens = []time.Time{time.Unix(1, 0)}
	return m.gates[0].Open(m.ctx)
}

func (m *model) learnReplicas() error {
	for _, g := range m.gates {
		if err := g.LearnReplicas(m.ctx); err != nil {
			return err
		}
	}
	return nil
}

// step does one step; what it cannot do now it leaves out.
func (m *model) step(s step) error {
	if m.lost && s.How%8 == 0 {
		return m.rebuild()
	}
	switch s.Do {
	case "go on":
		if len(m.actors) == 0 {
			return nil
		}
		return m.run(m.actors[s.Who%len(m.actors)], s)
	case "book":
		return m.book(s)
	case "crowd":
		return m.crowd(s)
	case "pay":
		return m.pay(s)
	case "sweep":
		return m.sweep(s)
	case "wait":
		d := []time.Duration{
			time.Second, 16 * time.Second, 16 * time.Second, 26 * time.Second, 26 * time.Second, 30 * time.Second, time.Minute,
			time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 10 * time.Minute, 10 * time.Minute, 25 * time.Hour,
		}
		m.wait(d[s.How%len(d)])
		return m.check()
	case "stray":
		return m.stray(s)
	case "again":
		return m.again(s)
	case "notify":
		return m.notify(s)
	case "deliver":
		return m.deliver(s)
	case "arrive":
		return m.arrive(s)
	case "drop":
		if len(m.actors) == 0 {
			return nil
		}
		return m.turn(m.actors[s.Who%len(m.actors)], dropped)
	case "cut":
		if m.away || m.lost {
			return nil
		}
		m.away = true
		return m.servers.cut(m.ctx)
	case "mend":
		if s.How%2 == 0 {
			return m.failover()
		}
		return m.heal()
	case "switch":
		return m.flip(s)
	case "apply":
		return m.apply(s)
	case "forget":
		return m.forget(s)
	case "lose":
		if s.How%3 != 0 || m.away || m.lost {
			return nil
		}
		m.lost, m.prev, m.copies = true, nil, nil
		for transaction, d := range m.decided {
			m.decided[transaction] = decision{d.Decision, false}
		}
		return m.servers.empty(m.ctx)
	}
	return fmt.Errorf("step %q is unknown", s.Do)
}

// run lets an actor make calls, one of them with the step's fate.
func (m *model) run(a *actor, s step) error {
	for i := 0; i < s.Calls && a.at != ""; i++ {
		f := pass
		// Where most depends on it, it befalls more often.
		if i == s.At || (a.at == opExecute && s.At < 4) || (a.at == opCreate && s.At > 5) {
			f = s.Fate
		}
		if f == late && a.at != opExecute {
			f = kept
		}
		if err := m.turn(a, f); err != nil {
			return err
		}
	}
	return m.complaint
}

func (m *model) gate(s step) *admission.Gate { return m.gates[s.Who%len(m.gates)] }

func (m *model) book(s step) error {
	i := s.Who%candidates + 1
	r := booking.Request{
		Code: bookingtest.Code(i), Email: bookingtest.Email(i),
		Level: []string{"N1", "N1", "N2", "N2", "N2", "N9"}[s.How%6], Key: []string{"", "k1", "k2"}[s.How%3],
	}
	if s.At >= 3 && m.prev != nil && len(m.prev.rows) > 0 { // one who has a seat, for the same level
		r.Code = m.mayRetry(s.Who)
		r.Email, r.Level = m.emails[r.Code], m.prev.rows[r.Code].Level
	}
	wrong := s.How == 7
	if wrong {
		r.Email = "someone@else.example.org"
	}
	name := fmt.Sprintf("%s books %s", r.Code, r.Level)
	return m.run(m.start(name, m.gate(s), true, func(ctx context.Context) {
		held, err := m.booker.Book(ctx, r)
		switch {
		case err != nil:
			return
		case wrong:
			m.complaint = fmt.Errorf("%s: a wrong address got a seat", name)
		}
		m.promised[held.Attempt] = true
	}), s)
}

// crowd is requests that arrive together, which one run of the script decides; the
// processes behind them are gone before they hear of it. The gate would put them
// together when they happen to meet, so the script is run as its header says.
func (m *model) crowd(s step) error {
	if m.away || m.lost {
		return nil
	}
	keys := []string{
		"adm:epoch", "adm:seen", "adm:due", "adm:mark", "sale:config", "booking:open", "booking:opens_at", "candidates:valid", "adm:total",
	}
	var levels []string
	var codes, emails, numbers, rests []any
	for i := range 2 + s.At%4 {
		n := (s.Who>>i)%candidates + 1
		code, level := bookingtest.Code(n), (s.How>>i)%2
		keys = append(keys, "candidate:email:"+code)
		codes, emails, numbers = append(codes, code), append(emails, bookingtest.Email(n)), append(numbers, level+1)
		rests = append(rests, "take 0 "+booking.NewAttemptSuffix(m.clock.Now())+" 0 -")
		levels = append(levels, []string{"N1", "N2"}[level])
		m.note("crowd: %s books %s", code, levels[i])
	}
	keys = append(keys, "adm:level:N1", "adm:level:N2")
	args := slices.Concat([]any{m.clock.Offset().Milliseconds(), len(codes), 2, "N1", "N2"}, codes, emails, numbers, rests)
	for i := range keys {
		keys[i] = prefix + keys[i]
	}
	m.before, m.last = m.clock.Now(), call{op: opAdmit}
	full := s.Calls == 1
	if err := m.servers.full(m.ctx, full); err != nil {
		return err
	}
	answer, err := m.servers.client().Eval(m.ctx, lua.Admit, keys, args...).Slice()
	if err := errors.Join(err, m.servers.full(m.ctx, false)); err != nil {
		return fmt.Errorf("crowd: %w", err)
	}
	if err := m.check(); err != nil {
		return err
	}
	text, _ := answer[1].(string)
	return m.told(levels, strings.Split(text, "\x00"))
}

// told holds the answers of a crowd against the ledger as it is after them: a seat
// is there, and a no that is final is true.
func (m *model) told(levels, answers []string) error {
	if len(answers) != len(levels) {
		return fmt.Errorf("crowd: %d answers to %d requests: %q", len(answers), len(levels), answers)
	}
	for i, answer := range answers {
		word, text, _ := strings.Cut(answer, " ")
		isFull := func(l booking.LevelFigures) bool { return l.ID == levels[i] && l.Admitted >= l.Cap }
		switch word {
		case "admitted", "taken_over":
			var row booking.Row
			if err := json.Unmarshal([]byte(text), &row); err != nil {
				return fmt.Errorf("crowd: told %s with the row %q: %w", word, text, err)
			}
			if _, _, owns := m.prev.owner(row.Attempt); !owns {
				return fmt.Errorf("crowd: told %s, and attempt %s has no seat", word, row.Attempt)
			}
		case "level_full":
			if !slices.ContainsFunc(m.prev.figures.Levels, isFull) {
				return fmt.Errorf("crowd: told that %s is full, and it is not: %+v", levels[i], m.prev.figures)
			}
		case "sold_out":
			if m.prev.figures.Total < m.prev.figures.Cap {
				return fmt.Errorf("crowd: told that all is sold, and it is not: %+v", m.prev.figures)
			}
		case "failed":
			m.seen.add(refused)
		case "duplicate", "invalid_level", "not_open":
		default:
			return fmt.Errorf("crowd: told %q", answer)
		}
	}
	return nil
}

// pay is a payer who does one thing or another at the gateway and comes back.
func (m *model) pay(s step) error {
	if len(m.payments) == 0 {
		return nil
	}
	p := m.payments[max(0, len(m.payments)-1-s.Who%8)]
	if now, ok := m.canBePaid(s.Who); ok && s.At < 6 {
		p = now
	}
	switch {
	case s.How < 30:
		m.gateway.Finish(p.id)
	case s.How < 42:
		m.gateway.Refuse(p.id, "2023")
	case s.How < 44 && !m.hasPaid(p.id):
		m.gateway.Finish(p.id)
		m.divert(p.id, s)
	}
	return m.run(m.start(fmt.Sprintf("%s returns with %s", p.code, p.id), m.gate(s), true, func(ctx context.Context) {
		_ = m.settler.Return(ctx, p.code, p.attempt, p.id) // whatever it says, the rules tell
	}), s)
}

// divert has a payment complete otherwise than ordered.
func (m *model) divert(payment string, s step) {
	m.note("%s will be paid otherwise than ordered", payment)
	m.unseated[payment] = true
	m.gateway.Divert(payment, func(c *booking.Charge) {
		if s.Who%2 == 0 {
			c.Amount++
		} else {
			c.Currency = "USD"
		}
	})
}

// sweep starts a sweep of a process that has none at work.
func (m *model) sweep(s step) error {
	for i, r := range m.sweepers {
		if m.sweeping(i) {
			continue
		}
		a := m.start(fmt.Sprintf("sweep %d", i+1), m.gates[i], false, func(ctx context.Context) {
			_, _ = r.Sweep(ctx) // what did not go through is still due
		})
		m.sweeps[a] = i
		return m.run(a, s)
	}
	return nil
}

func (m *model) sweeping(i int) bool {
	for _, a := range m.actors {
		if n, sweeps := m.sweeps[a]; sweeps && n == i {
			return true
		}
	}
	return false
}

func (m *model) wait(d time.Duration) {
	m.note("wait %s", d)
	m.last = call{}
	m.clock.Advance(d)
	for id, until := range m.inFlight {
		if m.clock.Now().After(until) {
			delete(m.inFlight, id)
		}
	}
}

// again is a copy of an earlier call that a stall in the network delivers late.
func (m *model) again(s step) error {
	if len(m.copies) == 0 {
		return nil
	}
	c := m.copies[max(0, len(m.copies)-1-s.Who)]
	m.note("again: %s of %s", c.op, c.code)
	m.before, m.last = m.clock.Now(), c.call
	_ = c.do(m.ctx, m.gate(s)) // whatever it says, the rules tell
	return m.check()
}

// stray is a call that a process with an old idea of the row may make at any
// time, and that changes nothing when the row has moved.
func (m *model) stray(s step) error {
	if m.lost || len(m.prev.rows) == 0 {
		return nil
	}
	code, g := m.anyCode(s.Who), m.gate(s)
	row := m.prev.rows[code]
	attempt, payment := row.Attempt, row.Payment
	if old := m.older(code, attempt); len(old) > 0 && s.At%2 == 0 {
		attempt, payment = old[s.How%len(old)].attempt, old[s.How%len(old)].id
	}
	current, token, length := attempt == row.Attempt, fmt.Sprint("stray", len(m.trace)), executeTimeout+settle.PayingMargin
	waits := row.Phase == booking.PhasePayable || row.Phase == booking.PhaseHeld || row.Phase == booking.PhaseRefused
	endsAs, endsBy := booking.PhaseRefused, token
	if current && row.TakenOver {
		endsAs, endsBy = booking.PhaseHeld, row.Owner
	}
	type try struct {
		op    op
		token string
		do    func() error
	}
	tries := []try{
		{opUndo, "", func() error { return g.Undo(m.ctx, code, attempt) }},
		{opEndPay, endsBy, func() error { return g.EndPay(m.ctx, code, attempt, endsBy, endsAs) }},
	}
	if !current || !waits || (!row.Doubt && !m.hasPaid(payment)) { // else the gateway's word forbids it
		tries = append(tries, try{opRelease, "", func() error { return g.Release(m.ctx, code, attempt) }})
	}
	if !current || row.Phase != booking.PhaseRefused { // else the record may not be ended
		tries = append(tries, try{opDone, "", func() error { return g.RecordReleased(m.ctx, code, attempt) }})
	}
	if !current || row.Phase != booking.PhasePaid { // else it may not be true
		tries = append(tries, try{opDone, "", func() error { return g.RecordDone(m.ctx, code, attempt) }})
	}
	if payment != "" {
		tries = append(tries, try{opBeginPay, token, func() error {
			_, _, err := g.BeginPay(m.ctx, code, attempt, payment, token, length)
			return err
		}}, try{opTakeOver, token, func() error {
			_, _, err := g.TakeOverPay(m.ctx, code, attempt, payment, token, length)
			return err
		}}, try{opAttach, "", func() error {
			_, _, err := g.Attach(m.ctx, code, attempt, booking.Payment{ID: "TRsecond", URL: "-", Signature: "-"})
			return err
		}})
	}
	lapsed := waits && m.clock.Now().UnixMilli() >= row.Deadline
	for _, t := range slices.Clone(tries) { // what nearly fits comes more often
		if (t.op == opRelease && lapsed) || (t.op == opUndo && row.Phase == booking.PhaseNew) || (t.op == opEndPay && row.TakenOver) {
			tries = append(tries, t, t, t, t, t, t)
		}
	}
	t := tries[s.How%len(tries)]
	m.note("stray %s of %s, current %t", t.op, code, current)
	m.before, m.last = m.clock.Now(), call{t.op, code, attempt, t.token}
	_ = t.do() // whatever it says, the rules tell
	return m.check()
}

// older are the payments of a candidate's other attempts.
func (m *model) older(code, attempt string) []issued {
	var out []issued
	for _, p := range m.payments {
		if p.code == code && p.attempt != attempt {
			out = append(out, p)
		}
	}
	return out
}

// anyCode chooses among the candidates that have a row.
func (m *model) anyCode(who int) string {
	var codes []string
	for i := range candidates {
		if code := bookingtest.Code(i + 1); m.prev.raw[code] != "" {
			codes = append(codes, code)
		}
	}
	return codes[who%len(codes)]
}

// mayRetry chooses one whose seat may be taken over, if there is one.
func (m *model) mayRetry(who int) string {
	for _, phase := range []booking.Phase{booking.PhaseRefused, booking.PhaseNew} {
		for i := range candidates {
			if code := bookingtest.Code((who+i)%candidates + 1); m.prev.rows[code].Phase == phase {
				return code
			}
		}
	}
	return m.anyCode(who)
}

// canBePaid chooses a payment that its payer has the time for, if there is one.
func (m *model) canBePaid(who int) (issued, bool) {
	for i := range m.payments {
		p := m.payments[(i+who)%len(m.payments)]
		if m.prev == nil {
			break
		}
		if row, _, owns := m.prev.owner(p.attempt); owns && row.Live(m.clock.Now()) {
			return p, true
		}
	}
	return issued{}, false
}

// seatless is a payment without a seat whose money has not moved, if there is one:
// of a refused attempt whose seat another has for now, or of a candidate who has
// none, sooner where all seats are taken.
func (m *model) seatless(refused bool) (p issued, found bool) {
	for _, q := range m.payments {
		row, has := m.prev.rows[q.code]
		over := row.Back != nil && row.Back.Payment == q.id
		none := !has && booking.AttemptEpoch(q.attempt) == m.prev.epoch
		if m.hasPaid(q.id) || (refused && !over) || (!refused && !none) {
			continue
		}
		if p, found = q, true; refused || m.isFull(q) {
			break
		}
	}
	return p, found
}

// rare is a payment whose money would meet what chance alone seldom leads to, if
// the step wants one and there is one: no such level any more, no seat left, a
// candidate who has another seat, a seat that is payable still, or one that was
// refused. The operator and the worker do what it takes.
func (m *model) rare(s step) (issued, bool, error) {
	const noLevel, noSeat, another, payable, wasRefused, all = 0, 1, 2, 3, 4, 5
	if m.away || s.Who/8 > 4 {
		return issued{}, false, nil // what the operator does while they are away is not acknowledged
	}
	for i := range all {
		want := (s.How/8 + i) % all
		for _, p := range m.payments {
			rec, there := m.records.all[booking.CandidateHash(p.code)+p.attempt]
			row, has := m.prev.rows[p.code]
			owns := has && row.Attempt == p.attempt && row.Payment == p.id
			if m.hasPaid(p.id) || booking.AttemptEpoch(p.attempt) != m.prev.epoch {
				continue
			}
			n1, n2 := m.admitted("N1"), m.admitted("N2")
			switch {
			case want == noLevel && there && !has && m.admitted(rec.Level) == 0:
				next := sale(candidates, candidates, candidates)
				next.Levels = slices.DeleteFunc(next.Levels, func(l booking.Level) bool { return l.ID == rec.Level })
				return p, true, m.force(m.gate(s), next)
			case want == noSeat && there && !has && s.How%2 == 0:
				return p, true, m.force(m.gate(s), sale(n1, n2, candidates))
			case want == noSeat && there && !has:
				return p, true, m.force(m.gate(s), sale(candidates, candidates, n1+n2))
			case want == another && there && has && row.Attempt != p.attempt && row.Back == nil:
				return p, true, nil
			case want == payable && owns && row.Phase == booking.PhasePayable && (there || m.queued(p.attempt)):
				return p, true, m.deliverAll()
			case want == wasRefused && owns && row.Phase == booking.PhaseRefused:
				return p, true, nil
			}
		}
	}
	return issued{}, false, nil
}

// admitted is how many seats of a level are taken.
func (m *model) admitted(level string) int {
	n := 0
	for _, row := range m.prev.rows {
		if row.Level == level {
			n++
		}
	}
	return n
}

// queued tells whether the record of an attempt is on its way.
func (m *model) queued(attempt string) bool {
	return slices.ContainsFunc(m.queue, func(message []byte) bool { return strings.Contains(string(message), attempt) })
}

// isFull tells whether there is no seat for the payment.
func (m *model) isFull(p issued) bool {
	rec := m.records.all[booking.CandidateHash(p.code)+p.attempt]
	f := m.prev.figures
	return f.Total >= f.Cap || slices.ContainsFunc(f.Levels, func(l booking.LevelFigures) bool { return l.ID == rec.Level && l.Admitted >= l.Cap })
}

func (m *model) hasPaid(payment string) bool {
	for _, c := range m.gateway.Completed() {
		if c.PaymentID == payment {
			return true
		}
	}
	return false
}

// notify has money move without our execute, or once more, or otherwise than
// ordered, and somebody hear of it; or somebody hear again of what has moved.
func (m *model) notify(s step) error {
	all := m.charges()
	if s.How%8 < 3 && len(all) > 0 {
		return m.report(all[s.Who%len(all)], s)
	}
	if m.lost || len(m.payments) == 0 {
		return nil
	}
	p := m.payments[max(0, len(m.payments)-1-s.Who%8)]
	if seatless, ok := m.seatless(s.At%2 == 0); ok && s.At < 4 {
		p = seatless
	}
	if rare, ok, err := m.rare(s); err != nil {
		return err
	} else if ok {
		p, s.Calls = rare, 50
	}
	if m.hasPaid(p.id) {
		if m.second[p.id] {
			return nil
		}
		m.note("%s is paid a second time", p.id)
		m.second[p.id] = true
		m.gateway.CompleteAgain(p.id)
		m.seen.add(twice)
	} else {
		row, _, owns := m.prev.owner(p.attempt)
		if _, err := m.records.Record(m.ctx, booking.CandidateHash(p.code), p.attempt); err != nil && row.Phase != booking.PhaseHeld {
			return nil // nobody pays before the record is on its way
		}
		if owns && (row.Payment != p.id || m.away) {
			return nil // nobody has the link of what was not acknowledged
		}
		// A payer who is at work may be told that it is not paid, and a refusal is final.
		alone := len(m.actors) == 0 && row.Phase != booking.PhaseRefused
		if !owns || !alone {
			m.unseated[p.id] = true
		}
		if s.How%8 == 3 {
			m.divert(p.id, s)
		}
		m.note("%s pays %s at the gateway, owns its seat %t", p.code, p.id, owns)
		if !owns {
			m.seen.add(lateMoney)
		}
		m.gateway.Complete(p.id)
		delete(m.inFlight, p.id)
	}
	if err := m.check(); err != nil || s.At == 7 {
		return err // nobody hears of it now
	}
	for _, c := range m.charges() {
		if c.PaymentID == p.id {
			all = append(all, c) // the second one last
		}
	}
	return m.report(all[len(all)-1], s)
}

// report has somebody hear of money that has moved, and ask the gateway.
func (m *model) report(c booking.Charge, s step) error {
	i := slices.IndexFunc(m.payments, func(p issued) bool { return p.id == c.PaymentID })
	code, attempt := m.payments[i].code, m.payments[i].attempt
	return m.run(m.start("notified of "+c.Transaction, m.gate(s), true, func(ctx context.Context) {
		rec, err := m.records.Record(ctx, booking.CandidateHash(code), attempt)
		if errors.Is(err, booking.ErrNotFound) && m.prev != nil {
			row, _, _ := m.prev.owner(attempt)
			rec = row.HeldRecord(code, "", "")
		}
		charge, err := gateway{m}.Query(ctx, c.PaymentID)
		if err != nil || charge.Status != booking.ChargeCompleted || rec.PaymentID != c.PaymentID {
			return
		}
		charge.Transaction = c.Transaction            // the second one, which only a search finds
		_ = m.settler.Confirm(ctx, code, rec, charge) // whatever it says, the rules tell
	}), s)
}

// charges lists the transactions by which money has moved, always in one order.
func (m *model) charges() []booking.Charge {
	all := m.gateway.Completed()
	slices.SortFunc(all, func(a, b booking.Charge) int { return strings.Compare(a.Transaction, b.Transaction) })
	return all
}

// deliver is the worker's work; the message may come again.
func (m *model) deliver(s step) error {
	if len(m.queue) == 0 {
		return nil
	}
	i := s.Who % len(m.queue)
	if err := m.put(m.queue[i]); err != nil {
		return err
	}
	if s.How%3 > 0 {
		m.queue = append(m.queue[:i:i], m.queue[i+1:]...)
	}
	m.last = call{}
	return m.check()
}

func (m *model) put(message []byte) error {
	var rec booking.Record
	if err := json.Unmarshal(message, &rec); err != nil {
		return err
	}
	_, _, err := m.records.PutHeld(m.ctx, rec)
	return err
}

func (m *model) deliverAll() error {
	for _, message := range m.queue {
		if err := m.put(message); err != nil {
			return err
		}
	}
	m.queue = nil
	return nil
}

// arrive brings an execute call that gave no answer to the gateway.
func (m *model) arrive(s step) error {
	for i := range m.payments {
		p := m.payments[(i+s.Who)%len(m.payments)]
		if !m.mayMove(p.id, m.clock.Now()) {
			continue
		}
		m.note("execute of %s arrives", p.id)
		m.last = call{}
		_, err := m.execute(m.ctx, p.id)
		delete(m.inFlight, p.id)
		if err != nil {
			return err
		}
		m.seen.add(arrived)
		return m.check()
	}
	return nil
}

func (m *model) heal() error {
	if !m.away {
		return nil
	}
	if err := m.servers.heal(m.ctx); err != nil {
		return err
	}
	return m.back()
}

// failover makes a replica the primary: what was not acknowledged may be gone,
// and nothing that was.
func (m *model) failover() error {
	if m.lost {
		return nil
	}
	owned := map[string]booking.Row{}
	if m.prev != nil {
		for _, row := range m.prev.rows {
			owned[row.Attempt] = row
		}
	}
	if err := m.servers.failover(m.ctx); err != nil {
		return err
	}
	m.prev = nil
	if err := m.back(); err != nil {
		return err
	}
	for attempt, was := range owned {
		now, _, owns := m.prev.owner(attempt)
		for _, row := range m.prev.rows {
			owns = owns || (row.Back != nil && row.Back.Attempt == attempt) // its undo is repeated
		}
		if !owns || now.Phase != was.Phase {
			m.seen.add(tookBack)
		}
		// A seat that late money took anew is no promise of the 202, as long as nobody
		// heard that decision acknowledged.
		anew := was.Phase == booking.PhasePaid && was.AdmittedAt == was.PaidAt && !m.decided[was.Transaction].kept
		if m.promised[attempt] && !owns && was.Payment != "" && !anew {
			return fmt.Errorf("attempt %s was answered 202 and its seat is gone with the old primary", attempt)
		}
	}
	return nil
}

// back is after the replicas are there again.
func (m *model) back() error {
	m.away, m.last = false, call{}
	if err := m.learnReplicas(); err != nil {
		return err
	}
	for _, g := range m.gates {
		if err := g.Probe(m.ctx); err != nil {
			return err
		}
	}
	return m.check()
}

// flip opens, closes or schedules.
func (m *model) flip(s step) error {
	if m.lost {
		return nil
	}
	g, at := m.gate(s), time.Time{} // closed
	var err error
	switch s.How % 5 {
	case 0, 1, 2:
		m.note("open")
		at, err = time.Unix(1, 0), g.Open(m.ctx)
	case 3:
		m.note("close")
		err = g.Close(m.ctx)
	case 4:
		at = m.clock.Now().Add(time.Minute).Truncate(time.Millisecond)
		m.note("open in a minute")
		err = g.OpenAt(m.ctx, at)
	}
	switch {
	case err == nil:
		m.opens = []time.Time{at}
	case errors.Is(err, booking.ErrNotAcknowledged):
		m.opens = append(m.opens, at)
	default:
		return fmt.Errorf("switch booking: %w", err)
	}
	m.last = call{}
	return m.check()
}

// apply changes the caps.
func (m *model) apply(s step) error {
	if m.lost {
		return nil
	}
	next := sale(1+s.Who%3, 1+s.How%3, 1+(s.Who+s.How)%5)
	if s.At == 0 {
		next = sale(s.Who%2, s.How%2, s.Who%2)
	}
	if s.At == 1 {
		next.Levels = next.Levels[1:]
	}
	return m.force(m.gate(s), next)
}

// force puts a sale into force.
func (m *model) force(g *admission.Gate, next booking.Sale) error {
	m.note("apply %v, %d in all", next.Levels, next.Cap)
	_, err := g.ApplySale(m.ctx, next, "", false)
	switch {
	case err == nil:
		m.sale = next
	case errors.Is(err, booking.ErrCapBelowAdmitted), errors.Is(err, booking.ErrLevelHasSeats), errors.Is(err, booking.ErrNotAcknowledged):
	default:
		return fmt.Errorf("apply sale: %w", err)
	}
	m.last = call{}
	return m.check()
}

// forget loses the stash of a payment, as the end of its TTL does.
func (m *model) forget(s step) error {
	if len(m.payments) == 0 {
		return nil
	}
	p := m.payments[s.Who%len(m.payments)]
	return m.servers.forget(m.ctx, prefix+"hold:payment:"+p.id, prefix+"hold:attempt:"+p.attempt)
}

// rebuild brings an empty Redis back from the store, as the runbook says: nobody
// is at work, the queue is drained, what does not fit waits for its end.
func (m *model) rebuild() error {
	m.note("rebuild")
	m.dropAll()
	if err := m.deliverAll(); err != nil {
		return err
	}
	m.wait(flightMost)
	// What the store has no record of was no effect outside: it may be decided anew.
	for transaction := range m.decided {
		if _, there := m.records.refunds[transaction]; !there {
			delete(m.decided, transaction)
		}
	}
	if !m.records.have(m.epoch) {
		m.lost, m.prev = false, nil
		if err := m.begin(booking.NewEpoch(m.clock.Now())); err != nil {
			return err
		}
		return m.check()
	}
	_, err := m.ops.Rebuild(m.ctx, m.sale)
	if err != nil {
		m.wait(11 * time.Minute)
		_, err = m.ops.Rebuild(m.ctx, m.sale)
	}
	if err != nil {
		// Seats in doubt, or a level that a sale nobody acknowledged has sold.
		m.sale = sale(candidates, candidates, candidates)
		_, err = m.ops.Rebuild(m.ctx, m.sale)
	}
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	m.lost, m.prev, m.last = false, nil, call{}
	if err := m.begin(""); err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return err
	}
	for _, row := range m.prev.rows {
		m.seen.add(rebuilt)
		if row.Doubt {
			m.seen.add(doubtful)
		}
	}
	return nil
}

// end lets everything lapse and sweeps until it is quiet, then reports all money
// that moved: every seat is then paid or free, every transaction a paid seat or a
// refund.
func (m *model) end() error {
	m.dropAll()
	if m.lost {
		if err := m.rebuild(); err != nil {
			return err
		}
	}
	if err := m.heal(); err != nil {
		return err
	}
	if err := m.deliverAll(); err != nil {
		return err
	}
	for _, d := range []time.Duration{11 * time.Minute, 11 * time.Minute, 11 * time.Minute, 25 * time.Hour, 11 * time.Minute, 11 * time.Minute} {
		m.wait(d)
		if err := m.sweep(step{Calls: 10000}); err != nil {
			return err
		}
	}
	// Nobody need have told of money that moved while its seat was there.
	for _, c := range m.gateway.Completed() {
		if m.unseated[c.PaymentID] {
			continue
		}
		if row, _, owns := m.prev.owner(m.attemptOf[c.PaymentID]); !owns || row.Phase != booking.PhasePaid || row.Payment != c.PaymentID {
			return fmt.Errorf("payment %s is completed and its attempt %s has no paid seat", c.PaymentID, m.attemptOf[c.PaymentID])
		}
	}
	for _, c := range m.charges() {
		if err := m.report(c, step{Calls: 100}); err != nil {
			return err
		}
		row, _, _ := m.prev.owner(m.attemptOf[c.PaymentID])
		if _, back := m.records.refunds[c.Transaction]; !back && row.Transaction != c.Transaction {
			return fmt.Errorf("transaction %s is neither a paid seat nor a refund at the end", c.Transaction)
		}
	}
	for code, row := range m.prev.rows {
		if finished := row.Phase == booking.PhasePaid && row.RecordDone && row.MailDone; !finished {
			return fmt.Errorf("row of %s is neither paid nor free at the end: %s", code, m.prev.raw[code])
		}
	}
	return m.sells()
}

// sells: a seat that is free can be had, so that no rule above was kept by
// selling nothing.
func (m *model) sells() error {
	if err := m.flip(step{How: 0}); err != nil {
		return err
	}
	left := m.prev.figures.Cap - m.prev.figures.Total
	for _, l := range m.prev.figures.Levels {
		for i := range candidates {
			code := bookingtest.Code(i + 1)
			if _, has := m.prev.rows[code]; has || left < 1 || l.Admitted >= l.Cap {
				continue
			}
			var err error
			a := m.start(code+" books a free seat", m.gates[0], true, func(ctx context.Context) {
				_, err = m.booker.Book(ctx, booking.Request{Code: code, Email: bookingtest.Email(i + 1), Level: l.ID})
			})
			if rule := m.run(a, step{Calls: 50}); rule != nil {
				return rule
			}
			if err != nil {
				return fmt.Errorf("a free seat of %s cannot be had: %w", l.ID, err)
			}
			return nil
		}
	}
	return nil
}
