package saleops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// ShowLedger is what a look at one booking needs of the seat ledger. None of it
// changes anything.
type ShowLedger interface {
	Epoch(ctx context.Context) (string, error)
	Now(ctx context.Context) (time.Time, error)
	// Row is booking.ErrNotFound when the candidate has none; so are Email, PaymentOf
	// and Issued when they know nothing.
	Row(ctx context.Context, code string) (booking.Row, time.Time, error)
	Looks(ctx context.Context, codes []string) (map[string]time.Time, error)
	Email(ctx context.Context, code string) (string, error)
	PaymentOf(ctx context.Context, attempt string) (booking.Payment, error)
	Issued(ctx context.Context, payment string) (booking.Issued, error)
}

// ShowStore is what it needs of the booking store.
type ShowStore interface {
	RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error)
	RefundsOf(ctx context.Context, candidateHash, attempt string) ([]booking.Refund, error)
	OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error]
	Log(ctx context.Context, since time.Time) iter.Seq2[booking.LogEntry, error]
}

// Shower looks at one candidate's bookings, everywhere they can be seen.
type Shower struct {
	Ledger ShowLedger
	Store  ShowStore
	Queue  DeadQueue
	// Gateway is nil when it is not to be asked.
	Gateway Gateway
}

// Field is one thing that several places say of an attempt; what a place does not
// say is empty.
type Field struct {
	Name    string `json:"name"`
	Row     string `json:"row"`
	Record  string `json:"record"`
	Stash   string `json:"stash"`
	Gateway string `json:"gateway"`
	// Differs: two places that should say the same do not.
	Differs bool `json:"differs"`
}

// ShownAttempt is one attempt of the candidate.
type ShownAttempt struct {
	Attempt string `json:"attempt"`
	// Owns: the seat is this attempt's. Earlier: it is of another sale.
	Owns    bool `json:"owns"`
	Earlier bool `json:"earlier"`
	// Fields are side by side what row, record, stash and gateway say.
	Fields        []Field                `json:"fields"`
	Mail          booking.MailState      `json:"mail"`
	Refunds       []booking.Refund       `json:"refunds"`
	Notifications []booking.Notification `json:"notifications"`
	// History is the operator's log of it, oldest first.
	History []booking.LogEntry `json:"history"`
	// Unknown are the places that could not be asked about it: what they do not say is
	// not "none".
	Unknown []string `json:"unknown,omitempty"`
}

// ShownBooking is what is known of a candidate's bookings.
type ShownBooking struct {
	// At is when it was read, by the ledger's clock.
	At            time.Time `json:"at"`
	CandidateHash string    `json:"candidate_hash"`
	Epoch         string    `json:"epoch"`
	// Email is the one on file; empty when there is none.
	Email string `json:"email"`
	// Seat is the candidate's row, nil without one; Look is when the reconciler looks
	// at it next, zero for never.
	Seat *booking.Row `json:"seat"`
	Look time.Time    `json:"look,omitzero"`
	// Attempts are newest first.
	Attempts []ShownAttempt `json:"attempts"`
	// Queue are the queue's figures, nil when unknown; Dead are the candidate's dead
	// letters, by attempt.
	Queue *booking.QueueStats `json:"queue"`
	Dead  []string            `json:"dead"`
	// Unknown are the parts that could not be read: nothing in them is not "none".
	Unknown []string `json:"unknown,omitempty"`
	// NotSeen says what could not be read, and why.
	NotSeen []string `json:"not_seen"`
}

// What can be unknown of a booking.
const (
	UnknownEpoch   = "epoch"
	UnknownSeat    = "seat"
	UnknownEmail   = "email"
	UnknownLook    = "look"
	UnknownRecords = "records"
	UnknownQueue   = "queue"
)

// What can be unknown of an attempt.
const (
	UnknownRow     = "row"
	UnknownRecord  = "record"
	UnknownStash   = "stash"
	UnknownGateway = "gateway"
	UnknownRefunds = "refunds"
)

// Differs tells whether any two places do.
func (b ShownBooking) Differs() bool {
	return slices.ContainsFunc(b.Attempts, func(a ShownAttempt) bool {
		return slices.ContainsFunc(a.Fields, func(f Field) bool { return f.Differs })
	})
}

// deadSeen is how many dead letters are looked through for one candidate's.
const deadSeen = 1000

// showing is one look under way.
type showing struct {
	*ShownBooking
	code string
	recs []booking.Record
	// lost: Redis is empty, and what it does not have says nothing.
	lost bool
}

// miss notes what could not be read, and what is unknown by that. Nil and
// booking.ErrNotFound are answers.
func (w *showing) miss(what string, err error, unknown ...string) {
	if err != nil && !errors.Is(err, booking.ErrNotFound) {
		w.NotSeen = append(w.NotSeen, fmt.Sprintf("%s: %v", what, err))
		w.Unknown = append(w.Unknown, unknown...)
	}
}

// Show reads everything that is known of a candidate's bookings, or of the one
// attempt that is named, and changes nothing. What could not be read is told in
// NotSeen and Unknown. booking.ErrNotFound when there is neither row nor record, both
// having been read; any other error says that nothing could be read.
func (s *Shower) Show(ctx context.Context, code, attempt string) (ShownBooking, error) {
	out := ShownBooking{CandidateHash: booking.CandidateHash(code)}
	w := &showing{ShownBooking: &out, code: code}
	var recErr error
	w.recs, recErr = s.Store.RecordsOf(ctx, out.CandidateHash)
	w.miss("records", recErr, UnknownRecords)
	now, rowErr := s.ledger(ctx, w)
	if recErr != nil && len(w.recs) == 0 && rowErr != nil && !errors.Is(rowErr, booking.ErrNotFound) {
		return out, errors.Join(recErr, rowErr)
	}
	if out.At = now.UTC(); now.IsZero() {
		now, err := s.Ledger.Now(ctx)
		w.miss("the ledger's clock", err)
		out.At = now.UTC()
	}
	s.queue(ctx, w)

	for _, id := range attemptsOf(out.Seat, w.recs) {
		if attempt != "" && id != attempt {
			continue
		}
		out.Attempts = append(out.Attempts, s.attempt(ctx, w, id))
	}
	if len(out.Attempts) == 0 && recErr == nil && !slices.Contains(out.Unknown, UnknownSeat) && (out.Seat == nil || attempt != "") {
		return out, booking.ErrNotFound
	}
	s.notifications(ctx, w)
	s.history(ctx, w)
	return out, nil
}

// ledger reads what Redis has of the candidate; the error is the row's.
func (s *Shower) ledger(ctx context.Context, w *showing) (now time.Time, rowErr error) {
	epoch, epochErr := s.Ledger.Epoch(ctx)
	row, now, rowErr := s.Ledger.Row(ctx, w.code)
	if errors.Is(rowErr, booking.ErrLedgerUnknown) {
		epochErr = rowErr
	}
	if w.lost = errors.Is(epochErr, booking.ErrLedgerUnknown); w.lost {
		w.miss("row, e-mail on file, next look and stash", epochErr, UnknownEpoch, UnknownSeat, UnknownEmail, UnknownLook)
		return now, epochErr
	}
	w.Epoch = epoch
	w.miss("epoch", epochErr, UnknownEpoch)
	w.miss("row", rowErr, UnknownSeat)
	if rowErr == nil {
		w.Seat = &row
	}
	var err error
	w.Email, err = s.Ledger.Email(ctx, w.code)
	w.miss("e-mail on file", err, UnknownEmail)
	looks, err := s.Ledger.Looks(ctx, []string{w.code})
	w.miss("next look", err, UnknownLook)
	w.Look = looks[w.code]
	return now, rowErr
}

// attemptsOf are the candidate's attempts that a record or the row names, newest
// first.
func attemptsOf(row *booking.Row, recs []booking.Record) []string {
	var ids []string
	for _, rec := range recs {
		ids = append(ids, rec.Attempt)
	}
	if row != nil {
		ids = append(ids, row.Attempt)
		if row.Back != nil {
			ids = append(ids, row.Back.Attempt)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	slices.Reverse(ids)
	return ids
}

func (s *Shower) queue(ctx context.Context, w *showing) {
	stats, err := s.Queue.Stats(ctx)
	w.miss("queue", err, UnknownQueue)
	if err != nil {
		return
	}
	if w.Queue = &stats; stats.Dead == 0 {
		return
	}
	dead, err := s.Queue.DeadLetters(ctx, deadSeen)
	if err == nil && len(dead) == deadSeen && stats.Dead > deadSeen {
		err = fmt.Errorf("%d of %d were looked through", deadSeen, stats.Dead)
	}
	w.miss("dead letters", err)
	for _, m := range dead {
		if of, attempt, err := booking.ParseInvoice(m.DedupID); err == nil && of == w.CandidateHash {
			w.Dead = append(w.Dead, attempt)
		}
	}
}

// attempt puts side by side what each place says of one attempt.
func (s *Shower) attempt(ctx context.Context, w *showing, id string) ShownAttempt {
	epochKnown := !slices.Contains(w.Unknown, UnknownEpoch)
	a := ShownAttempt{Attempt: id, Earlier: epochKnown && booking.AttemptEpoch(id) != w.Epoch}
	miss := func(what string, err error, place string) {
		if err != nil && !errors.Is(err, booking.ErrNotFound) {
			a.Unknown = append(a.Unknown, place)
		}
		w.miss(what, err)
	}
	v := voices{}
	if i := slices.IndexFunc(w.recs, func(r booking.Record) bool { return r.Attempt == id }); i >= 0 {
		v.rec, a.Mail = &w.recs[i], w.recs[i].Mail
	} else if slices.Contains(w.Unknown, UnknownRecords) {
		a.Unknown = append(a.Unknown, UnknownRecord)
	}
	if w.Seat != nil && w.Seat.Attempt == id {
		v.row, a.Owns = w.Seat, true
	}
	if slices.Contains(w.Unknown, UnknownSeat) {
		a.Unknown = append(a.Unknown, UnknownRow)
	}
	payment := ""
	switch {
	case v.row != nil && v.row.Payment != "":
		payment = v.row.Payment
	case v.rec != nil:
		payment = v.rec.PaymentID
	case w.Seat != nil && w.Seat.Back != nil && w.Seat.Back.Attempt == id:
		payment = w.Seat.Back.Payment
	}
	payment = s.stash(ctx, w.lost, id, payment, &v, miss)
	if w.lost {
		a.Unknown = append(a.Unknown, UnknownStash)
	}
	switch {
	case s.Gateway == nil:
	case payment != "":
		charge, err := s.Gateway.Query(ctx, payment)
		if err == nil {
			v.charge = &charge
		}
		miss("gateway about payment "+payment, err, UnknownGateway)
	case len(a.Unknown) > 0: // its payment may be where nobody could look
		a.Unknown = append(a.Unknown, UnknownGateway)
	}
	var err error
	a.Refunds, err = s.Store.RefundsOf(ctx, w.CandidateHash, id)
	miss("refunds of attempt "+id, err, UnknownRefunds)
	v.refunds = a.Refunds
	slices.Sort(a.Unknown)
	a.Unknown = slices.Compact(a.Unknown)
	v.unknown = a.Unknown
	a.Fields = v.fields(id, w.code, payment, a.Earlier || !epochKnown)
	return a
}

// stash reads what Redis keeps for an attempt and its payment, and returns that
// payment's id.
func (s *Shower) stash(ctx context.Context, lost bool, id, payment string, v *voices, miss func(what string, err error, place string)) string {
	if lost {
		return payment
	}
	p, err := s.Ledger.PaymentOf(ctx, id)
	miss("stash of attempt "+id, err, UnknownStash)
	if err == nil {
		v.byAttempt, payment = &p, cmp.Or(payment, p.ID)
	}
	if payment == "" {
		return ""
	}
	is, err := s.Ledger.Issued(ctx, payment)
	miss("stash of payment "+payment, err, UnknownStash)
	if err == nil {
		v.byPayment = &is
	}
	return payment
}

// voices are what the places say of one attempt; nil is silence, which says nothing
// where the place is unknown.
type voices struct {
	row       *booking.Row
	rec       *booking.Record
	byAttempt *booking.Payment
	byPayment *booking.Issued
	charge    *booking.Charge
	refunds   []booking.Refund
	unknown   []string
}

func (v voices) knows(places ...string) bool {
	return !slices.ContainsFunc(places, func(p string) bool { return slices.Contains(v.unknown, p) })
}

func (v voices) fields(attempt, code, payment string, earlier bool) []Field {
	row, rec, charge := v.row, v.rec, v.charge
	if row == nil {
		row = &booking.Row{}
	}
	if rec == nil {
		rec = &booking.Record{}
	}
	if charge == nil {
		charge = &booking.Charge{}
	}
	amount := func(there bool, m booking.Money, currency string) string {
		if !there {
			return ""
		}
		return strings.TrimSpace(m.String() + " " + currency)
	}
	ms := func(n int64) string {
		if n == 0 {
			return ""
		}
		return inMillis(time.UnixMilli(n))
	}
	instant := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return inMillis(t)
	}
	completed := charge.Status == booking.ChargeCompleted
	list := []Field{
		{Name: "state", Row: string(row.Phase), Record: string(rec.State), Gateway: string(charge.Status), Differs: v.statesDiffer(earlier)},
		{Name: "level", Row: row.Level, Record: rec.Level},
		{Name: "amount", Row: amount(v.row != nil, row.Amount, row.Currency), Record: amount(v.rec != nil, rec.Amount, rec.Currency),
			Gateway: amount(v.charge != nil && (completed || charge.Amount != 0), charge.Amount, charge.Currency)},
		{Name: "payment", Row: row.Payment, Record: rec.PaymentID, Gateway: charge.PaymentID},
		{Name: "invoice", Record: invoiceOf(rec.Invoice, code, attempt), Gateway: invoiceOf(charge.Invoice, code, attempt)},
		{Name: "transaction", Row: row.Transaction, Record: rec.Transaction, Gateway: charge.Transaction},
		{Name: "admitted at", Row: ms(row.AdmittedAt), Record: instant(rec.AdmittedAt)},
		{Name: "deadline", Row: ms(row.Deadline), Record: instant(rec.Deadline)},
		{Name: "execute announced", Record: instant(rec.ExecuteAt)},
		{Name: "paid at", Row: ms(row.PaidAt), Record: instant(rec.PaidAt)},
		{Name: "reason", Record: rec.Reason},
		{Name: "payment page", Record: rec.PaymentURL},
	}
	if v.byAttempt != nil {
		list = stashed(list, "payment", v.byAttempt.ID)
		list = stashed(list, "payment page", v.byAttempt.URL)
	}
	// A row that late money brought back was admitted anew, when it was paid.
	anew := row.Phase == booking.PhasePaid && row.AdmittedAt == row.PaidAt
	for i := range list {
		f := &list[i]
		if f.Name == "state" || anew && (f.Name == "admitted at" || f.Name == "deadline") {
			continue
		}
		f.Differs = contradict(f.Row, f.Record, f.Stash, f.Gateway)
	}
	if row.Phase == booking.PhasePaid {
		list = append(list, Field{
			Name: "mail", Row: done(row.MailDone, "sent", "due"), Record: string(rec.Mail),
			Differs: row.MailDone && v.rec != nil && rec.Mail != booking.MailSent,
		})
	}
	if row.Looks > 0 || row.Doubt {
		list = append(list, Field{Name: "doubt", Row: fmt.Sprintf("looked at %d times, rebuilt in doubt %t", row.Looks, row.Doubt)})
	}
	if is := v.byPayment; is != nil && (is.Code != code || is.Attempt != attempt) {
		text := "another attempt's: " + is.Attempt
		if is.Code != code {
			text = "another candidate's"
		}
		list = append(list, Field{Name: "owner of " + payment, Stash: text, Differs: true})
	}
	return slices.DeleteFunc(list, func(f Field) bool { return f.Row+f.Record+f.Stash+f.Gateway == "" })
}

// invoiceOf names an invoice number by whose it is: it is long, and the attempt's
// own says nothing new.
func invoiceOf(invoice, code, attempt string) string {
	if invoice == booking.Invoice(booking.CandidateHash(code), attempt) {
		return "this attempt's"
	}
	return invoice
}

func done(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

func stashed(list []Field, name, value string) []Field {
	for i := range list {
		if list[i].Name == name {
			list[i].Stash = value
		}
	}
	return list
}

// contradict tells whether two of the values that are there are not the same.
func contradict(values ...string) bool {
	said := ""
	for _, v := range values {
		switch {
		case v == "":
		case said == "":
			said = v
		case v != said:
			return true
		}
	}
	return false
}

// statesDiffer tells whether row, record and gateway stand where they cannot stand
// together; of an ended sale there is no row. A place that is unknown stands anywhere.
func (v voices) statesDiffer(earlier bool) bool {
	state := booking.RecordState("")
	if v.rec != nil {
		state = v.rec.State
	}
	phase := booking.Phase("")
	if v.row != nil {
		phase = v.row.Phase
	}
	paid := state == booking.StatePaid || phase == booking.PhasePaid
	if v.charge != nil && v.charge.Status != booking.ChargeUnknown {
		completed := v.charge.Status == booking.ChargeCompleted
		back := slices.ContainsFunc(v.refunds, func(r booking.Refund) bool { return r.Transaction == v.charge.Transaction })
		switch {
		case completed && paid && back, !completed && paid:
			return true // its money is both a seat and a refund; or the seat has none
		case completed && !paid && !back && v.knows(UnknownRow, UnknownRecord, UnknownRefunds):
			return true // its money is neither
		}
	}
	if !v.knows(UnknownRow, UnknownRecord) {
		return false
	}
	switch phase {
	case "":
		return !earlier && (state == booking.StatePaid || state == booking.StateHeld)
	case booking.PhaseNew:
		return state != ""
	case booking.PhasePayable:
		return state != "" && state != booking.StateHeld
	case booking.PhaseHeld, booking.PhasePaying:
		return state != booking.StateHeld
	case booking.PhaseRefused:
		return state != booking.StateReleased && v.row.Released
	case booking.PhasePaid:
		return state != booking.StatePaid
	}
	return true
}

// notifications finds the open ones about these attempts.
func (s *Shower) notifications(ctx context.Context, out *showing) {
	for n, err := range s.Store.OpenNotifications(ctx) {
		if err != nil {
			out.miss("open notifications", err)
			if !errors.Is(err, booking.ErrUnreadable) {
				return
			}
			continue
		}
		for i, a := range out.Attempts {
			if n.Invoice == booking.Invoice(out.CandidateHash, a.Attempt) || n.Transaction != "" && slices.ContainsFunc(a.Fields, func(f Field) bool {
				return f.Name == "transaction" && (f.Row == n.Transaction || f.Record == n.Transaction || f.Gateway == n.Transaction)
			}) {
				n.Reference = "" // the payer's words
				out.Attempts[i].Notifications = append(a.Notifications, n)
				break
			}
		}
	}
}

// history finds what operators changed of these attempts. The log is read from the
// first admission on.
func (s *Shower) history(ctx context.Context, out *showing) {
	if len(out.Attempts) == 0 {
		return
	}
	since := out.At
	for _, rec := range out.recs {
		if rec.AdmittedAt.Before(since) {
			since = rec.AdmittedAt
		}
	}
	if out.Seat != nil && time.UnixMilli(out.Seat.AdmittedAt).Before(since) {
		since = time.UnixMilli(out.Seat.AdmittedAt)
	}
	about := map[string]int{} // subjects of the log, by attempt
	for i, a := range out.Attempts {
		about[a.Attempt] = i
		for _, f := range a.Fields {
			if f.Name == "transaction" || f.Name == "payment" {
				for _, subject := range []string{f.Row, f.Record, f.Gateway} {
					about[subject] = i
				}
			}
		}
		for _, r := range a.Refunds {
			about[r.Transaction] = i
		}
		for _, n := range a.Notifications {
			about[n.ID] = i
		}
	}
	delete(about, "")
	for e, err := range s.Store.Log(ctx, since) {
		if err != nil {
			out.miss("operator's log", err)
			if !errors.Is(err, booking.ErrUnreadable) {
				return
			}
			continue
		}
		if i, is := about[e.Subject]; is {
			out.Attempts[i].History = append(out.Attempts[i].History, e)
		}
	}
}
