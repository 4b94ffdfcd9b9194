package model_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// view is what a reader sees of the ledger at one moment.
type view struct {
	epoch   string
	rows    map[string]booking.Row
	raw     map[string]string
	looks   map[string]int64
	late    map[string]string // decisions by transaction
	figures booking.Figures
}

// A view is the seats of bookingtest.Books.
func (v *view) Rows(context.Context) (map[string]booking.Row, error) { return v.rows, nil }
func (v *view) Looks(context.Context) (map[string]int64, error)      { return v.looks, nil }
func (v *view) ReadStatus(context.Context) (booking.Figures, error)  { return v.figures, nil }
func (v *view) owner(attempt string) (row booking.Row, code string, _ bool) {
	return find(v.rows, attempt)
}

func find(rows map[string]booking.Row, attempt string) (booking.Row, string, bool) {
	for code, row := range rows {
		if row.Attempt == attempt {
			return row, code, true
		}
	}
	return booking.Row{}, "", false
}

func (m *model) read() (*view, error) {
	v := &view{rows: map[string]booking.Row{}, looks: map[string]int64{}}
	var err error
	text := func(key string) string {
		s, e := m.servers.text(m.ctx, prefix+key)
		if e != nil {
			err = e
		}
		return s
	}
	number := func(s string) int {
		n, e := strconv.Atoi(s)
		if e != nil {
			return -1
		}
		return n
	}
	v.epoch = text("adm:epoch")
	if v.raw, err = m.servers.hash(m.ctx, prefix+"adm:seen"); err != nil {
		return nil, err
	}
	for code, raw := range v.raw {
		if m.prev != nil && m.prev.raw[code] == raw {
			v.rows[code] = m.prev.rows[code]
			continue
		}
		var row booking.Row
		if err := json.Unmarshal([]byte(raw), &row); err != nil {
			return nil, fmt.Errorf("row of %s: %w", code, err)
		}
		v.rows[code] = row
	}
	scores, err := m.servers.scores(m.ctx, prefix+"adm:due")
	if err != nil {
		return nil, err
	}
	for code, at := range scores {
		v.looks[code] = int64(at)
	}
	if v.late, err = m.servers.hash(m.ctx, prefix+"adm:late"); err != nil {
		return nil, err
	}
	config, err := m.servers.hash(m.ctx, prefix+"sale:config")
	if err != nil {
		return nil, err
	}
	v.figures = booking.Figures{Cap: number(config["cap"]), Total: number(text("adm:total"))}
	for id := range strings.SplitSeq(config["levels"], ",") {
		v.figures.Levels = append(v.figures.Levels, booking.LevelFigures{
			ID: id, Cap: number(config["cap:"+id]), Admitted: number(text("adm:level:" + id)),
		})
	}
	return v, err
}

// check holds the rules of the contract against what a reader sees now, and what
// has changed since the last reading against what one call may change.
func (m *model) check() error {
	cur, err := m.read()
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	if m.complaint != nil {
		return m.complaint
	}
	if m.lost {
		if len(cur.raw)+len(cur.late) > 0 || cur.epoch != "" {
			return fmt.Errorf("a ledger without an epoch was changed: %d rows, %d decisions, epoch %q", len(cur.raw), len(cur.late), cur.epoch)
		}
		return m.money(cur)
	}
	now := m.clock.Now()
	if m.prev != nil {
		if err := m.moves(m.prev, cur, now); err != nil {
			return err
		}
	}
	for code, row := range cur.rows {
		m.used[row.Attempt] = true
		if m.attemptOf[row.Payment] != row.Attempt && row.Payment != "" {
			return fmt.Errorf("row of %s: attempt %s has payment %s, made for %q", code, row.Attempt, row.Payment, m.attemptOf[row.Payment])
		}
		if at, looked := cur.looks[code]; looked && at > max(now.UnixMilli()+looksMost.Milliseconds(), row.Deadline) {
			return fmt.Errorf("row of %s is %s: nobody looks at it for %s", code, row.Phase, time.UnixMilli(at).Sub(now))
		}
	}
	m.prev = cur
	if err := m.money(cur); err != nil {
		return err
	}
	return m.outside(cur)
}

// looksMost is the longest that a row may be left alone: a doubt's, or a hold's.
const looksMost = 10*time.Minute + time.Second

// outside holds store, gateway and mails against the ledger.
func (m *model) outside(cur *view) error {
	m.books.Seats = cur
	problems, err := m.books.Problems(m.ctx, false)
	if err != nil {
		return fmt.Errorf("read the books: %w", err)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s", strings.Join(problems, "; "))
	}
	for _, rec := range m.records.all {
		if rec.State != booking.StateReleased {
			continue
		}
		if row, _, owns := cur.owner(rec.Attempt); owns && row.Phase != booking.PhaseRefused && row.Phase != booking.PhasePaid {
			return fmt.Errorf("record of %s is RELEASED, its row is %s", rec.Attempt, row.Phase)
		}
	}
	return nil
}

// decision is what the ledger said, acknowledged, of a transaction.
type decision struct {
	booking.Decision
	kept bool // by the ledger, which has not been lost since
}

// decides notes what the ledger says of a transaction; it must say the same for
// ever.
func (m *model) decides(transaction string, d booking.Decision, err error) {
	if err != nil {
		return
	}
	first, again := m.decided[transaction]
	if again && (first.Paid != d.Paid || first.Reason != d.Reason || !first.At.Equal(d.At)) {
		m.complaint = fmt.Errorf("transaction %s: decided %+v, and before %+v", transaction, d, first.Decision)
	}
	m.decided[transaction] = decision{d, true}
	if d.Paid {
		m.seen.add(lateSeat)
	} else {
		m.seen.add(goesBack(d.Reason))
	}
}

// money holds refunds and paid seats against what has moved and what was decided.
// That no transaction is both is the books' own rule.
func (m *model) money(cur *view) error {
	moved := map[string]booking.Charge{}
	for _, c := range m.charges() {
		moved[c.Transaction] = c
	}
	for transaction, back := range m.records.refunds {
		c, d := moved[transaction], m.decided[transaction]
		switch {
		case c.PaymentID == "" || back.PaymentID != c.PaymentID || back.Attempt != m.attemptOf[c.PaymentID] || back.Amount != c.Amount || back.Currency != c.Currency:
			return fmt.Errorf("refund %+v is not of what moved: %+v", back, c)
		case d.Paid || d.Reason == "" || d.Reason != back.Reason || !d.At.Equal(back.DecidedAt):
			return fmt.Errorf("refund %+v rests on no acknowledged decision: %+v", back, d.Decision)
		}
	}
	for code, row := range cur.rows {
		if row.Phase != booking.PhasePaid {
			continue
		}
		c := moved[row.Transaction]
		if c.PaymentID != row.Payment || c.Amount != row.Amount || c.Currency != row.Currency {
			return fmt.Errorf("row of %s is paid by %s: %+v", code, row.Transaction, c)
		}
	}
	return m.stand(cur)
}

// stand holds the ledger to what it has decided.
func (m *model) stand(cur *view) error {
	for transaction, text := range cur.late {
		var d struct {
			Decision string
			Reason   string
			Attempt  string
			At       int64
		}
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			return fmt.Errorf("decision of %s: %w", transaction, err)
		}
		row, _, owns := cur.owner(d.Attempt)
		if paid := owns && row.Phase == booking.PhasePaid && row.Transaction == transaction; paid != (d.Decision == "paid") {
			return fmt.Errorf("transaction %s was decided as %s, its attempt %s is paid by it: %t", transaction, text, d.Attempt, paid)
		}
		first, said := m.decided[transaction]
		// A rebuild knows that money goes back, and neither why nor since when.
		same := first.Reason == d.Reason && first.At.UnixMilli() == d.At || !first.kept
		if said && (first.Paid != (d.Decision == "paid") || !same) {
			return fmt.Errorf("transaction %s was decided %+v and is now %s", transaction, first.Decision, text)
		}
	}
	for transaction, d := range m.decided {
		if _, there := cur.late[transaction]; d.kept && !d.Paid && !there {
			return fmt.Errorf("the ledger has forgotten that %s goes back", transaction)
		}
		if row, _, _ := cur.owner(d.Row.Attempt); d.kept && d.Paid && row.Transaction != transaction {
			return fmt.Errorf("the ledger has forgotten that %s is a seat", transaction)
		}
	}
	return nil
}

// moves compares each candidate's row before and after one call.
func (m *model) moves(before, after *view, now time.Time) error {
	for transaction, text := range before.late {
		if now := after.late[transaction]; now != text {
			return fmt.Errorf("transaction %s is decided again: was %s, is %q", transaction, text, now)
		}
	}
	for code, prev := range before.rows {
		if before.raw[code] == after.raw[code] {
			continue
		}
		cur, there := after.rows[code]
		var err error
		switch {
		case !there:
			err = m.gone(prev, now)
		case cur.Attempt != prev.Attempt:
			err = m.passedOn(prev, cur, now)
		default:
			err = m.moved(prev, cur, now)
		}
		if err == nil && !m.last.about(code) {
			err = fmt.Errorf("changed by %s for %q", m.last.op, m.last.code)
		}
		// Admission alone names no attempt: it makes one.
		if err == nil && m.last.op != opAdmit && m.last.attempt != prev.Attempt {
			err = fmt.Errorf("attempt %s changed by %s for attempt %s", prev.Attempt, m.last.op, m.last.attempt)
		}
		m.count(prev, cur)
		if err != nil {
			return fmt.Errorf("row of %s: %w\n  was %s\n  is  %s", code, err, before.raw[code], after.raw[code])
		}
	}
	for code, cur := range after.rows {
		if _, there := before.rows[code]; there {
			continue
		}
		switch {
		case m.last.op == opLate && m.last.code == code && m.last.attempt == cur.Attempt:
			if err := m.seatAfterAll(cur, after.epoch); err != nil {
				return fmt.Errorf("seat of %s: %w", code, err)
			}
		case m.last.op != opAdmit || !m.last.about(code):
			return fmt.Errorf("seat of %s taken by %s for %q", code, m.last.op, m.last.code)
		case cur.Phase != booking.PhaseNew:
			return fmt.Errorf("seat of %s begins as %s", code, cur.Phase)
		case m.used[cur.Attempt]:
			return fmt.Errorf("seat of %s: attempt %s is used again", code, cur.Attempt)
		case !m.mayBeOpen(now):
			return fmt.Errorf("seat of %s taken while booking is not open", code)
		}
		m.seen.add(move("", cur.Phase))
	}
	return nil
}

// seatAfterAll: a seat that late money has got.
func (m *model) seatAfterAll(cur booking.Row, epoch string) error {
	switch {
	case cur.Phase != booking.PhasePaid:
		return fmt.Errorf("late money left it %s", cur.Phase)
	case booking.AttemptEpoch(cur.Attempt) != epoch:
		return fmt.Errorf("attempt %s is of another sale than %s", cur.Attempt, epoch)
	}
	return nil
}

// count counts a move.
func (m *model) count(prev, cur booking.Row) {
	if prev.Phase != cur.Phase {
		m.seen.add(move(prev.Phase, cur.Phase))
	}
	switch {
	case !prev.TakenOver && cur.TakenOver:
		m.seen.add(taken)
	case prev.Attempt != cur.Attempt && cur.Phase == booking.PhaseRefused:
		m.seen.add(restored)
	case prev.Attempt != cur.Attempt && cur.Phase == booking.PhaseNew:
		m.seen.add(passed)
	}
}

// gone: a seat given back.
func (m *model) gone(prev booking.Row, now time.Time) error {
	switch {
	case !prev.Phase.CanMove(""):
		return fmt.Errorf("a seat that was %s is gone", prev.Phase)
	case prev.Phase == booking.PhaseNew && prev.Back != nil:
		return fmt.Errorf("a seat taken over from a refused attempt is gone")
	case prev.Phase == booking.PhaseNew:
		return nil
	case m.last.op != opRelease:
		return fmt.Errorf("a seat with a payment is gone by %s", m.last.op)
	case now.UnixMilli() < prev.Deadline:
		return fmt.Errorf("a seat is gone before its deadline")
	case m.mayMove(prev.Payment, now):
		return fmt.Errorf("a seat is gone while an execute call is in flight")
	}
	return nil
}

// passedOn: a seat that another attempt owns now.
func (m *model) passedOn(prev, cur booking.Row, now time.Time) error {
	if cur.Level != prev.Level || cur.Slot != prev.Slot || cur.Amount != prev.Amount || cur.Currency != prev.Currency || cur.Deadline != prev.Deadline {
		return fmt.Errorf("the seat itself has changed with its attempt")
	}
	if b := prev.Back; b != nil && cur.Attempt == b.Attempt {
		if prev.Phase != booking.PhaseNew || cur.Phase != booking.PhaseRefused || cur.Payment != b.Payment {
			return fmt.Errorf("given back to a refused attempt from %s as %s", prev.Phase, cur.Phase)
		}
		return nil
	}
	switch {
	case cur.Phase != booking.PhaseNew:
		return fmt.Errorf("taken over as %s", cur.Phase)
	case m.used[cur.Attempt]:
		return fmt.Errorf("attempt %s is used again", cur.Attempt)
	case prev.Phase == booking.PhaseNew && now.UnixMilli()-prev.AdmittedAt < takeOver.Milliseconds():
		return fmt.Errorf("taken over while its request is at work")
	case prev.Phase == booking.PhaseNew:
		return nil
	case prev.Phase != booking.PhaseRefused:
		return fmt.Errorf("a seat that was %s is taken over", prev.Phase)
	case m.before.UnixMilli() > prev.Deadline:
		return fmt.Errorf("taken over past its deadline")
	}
	for _, rec := range m.records.all {
		if rec.Attempt == prev.Attempt && rec.State == booking.StateHeld {
			return fmt.Errorf("taken over while the refused attempt's record is HELD")
		}
	}
	return nil
}

// moved: the same attempt's row.
func (m *model) moved(prev, cur booking.Row, now time.Time) error {
	switch {
	case cur.Phase != prev.Phase && !prev.Phase.CanMove(cur.Phase):
		return fmt.Errorf("moved from %s to %s", prev.Phase, cur.Phase)
	case cur.Level != prev.Level || cur.Slot != prev.Slot || cur.Amount != prev.Amount || cur.Currency != prev.Currency:
		return fmt.Errorf("the seat itself has changed")
	case prev.Payment != "" && cur.Payment != prev.Payment:
		return fmt.Errorf("payment %s became %q", prev.Payment, cur.Payment)
	case prev.Deadline != 0 && cur.Deadline != prev.Deadline:
		return fmt.Errorf("the time to pay has changed")
	case cur.Phase != booking.PhaseNew && cur.Deadline != cur.AdmittedAt+cur.Hold && prev.Deadline == 0:
		return fmt.Errorf("the time to pay is not the hold")
	case prev.Phase == booking.PhasePaid && (cur.Transaction != prev.Transaction || cur.PaidAt != prev.PaidAt ||
		prev.RecordDone && !cur.RecordDone || prev.MailDone && !cur.MailDone):
		return fmt.Errorf("a paid seat has changed")
	case cur.Doubt && !prev.Doubt:
		return fmt.Errorf("in doubt without a rebuild")
	}
	wasPaying, isPaying := prev.Phase == booking.PhasePaying, cur.Phase == booking.PhasePaying
	switch {
	case isPaying && cur.Owner != prev.Owner && cur.Owner != m.last.token:
		return fmt.Errorf("paying under the token of nobody's call")
	case isPaying && !wasPaying && m.last.op == opBeginPay && m.before.UnixMilli() > prev.Deadline:
		return fmt.Errorf("a payer begins past the deadline")
	case isPaying && wasPaying && cur.Owner != prev.Owner && now.UnixMilli() < prev.Ends:
		return fmt.Errorf("taken over before the end of paying")
	case isPaying && wasPaying && cur.Owner != prev.Owner && (m.last.op != opTakeOver || !cur.TakenOver):
		return fmt.Errorf("taken over by %s, noted %t", m.last.op, cur.TakenOver)
	case isPaying && wasPaying && prev.TakenOver && !cur.TakenOver:
		return fmt.Errorf("that it was taken over is forgotten")
	case wasPaying && !isPaying && cur.Phase != booking.PhasePaid && prev.Owner != m.last.token:
		return fmt.Errorf("paying is ended by the token of another")
	case wasPaying && cur.Phase == booking.PhaseHeld && prev.TakenOver:
		return fmt.Errorf("taken over by the reconciler and ends as held")
	case wasPaying && !isPaying && cur.Phase != booking.PhasePaid && m.mayMove(prev.Payment, now):
		return fmt.Errorf("paying ends as %s while an execute call is in flight", cur.Phase)
	}
	return nil
}

// mayMove tells whether an execute call that gave no answer may still arrive.
func (m *model) mayMove(payment string, now time.Time) bool { return now.Before(m.inFlight[payment]) }

// mayBeOpen tells whether any state that booking may be in admits now: a change
// that was not acknowledged may count or not.
func (m *model) mayBeOpen(now time.Time) bool {
	for _, at := range m.opens {
		if !at.IsZero() && !now.Before(at) {
			return true
		}
	}
	return false
}
