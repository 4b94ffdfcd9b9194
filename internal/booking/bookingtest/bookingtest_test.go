package bookingtest_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sale is a set of books that the test writes by hand.
type sale struct {
	rows    map[string]booking.Row
	looks   map[string]int64
	figures booking.Figures
	records map[string]booking.Record // by attempt
	charges []booking.Charge
	mails   []booking.Mail
	refunds []booking.Refund
}

func (s *sale) Rows(context.Context) (map[string]booking.Row, error) { return s.rows, nil }
func (s *sale) Looks(context.Context) (map[string]int64, error)      { return s.looks, nil }
func (s *sale) ReadStatus(context.Context) (booking.Figures, error)  { return s.figures, nil }
func (s *sale) Records(context.Context) iter.Seq2[booking.Record, error] {
	return func(yield func(booking.Record, error) bool) {
		for _, rec := range s.records {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

func (s *sale) Refunds(context.Context) iter.Seq2[booking.Refund, error] {
	return func(yield func(booking.Refund, error) bool) {
		for _, r := range s.refunds {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (s *sale) books() bookingtest.Books {
	return bookingtest.Books{
		Seats: s, Records: s, Refunds: s, Unseated: map[string]bool{},
		Completed: func() []booking.Charge { return s.charges },
		Sent:      func() []booking.Mail { return s.mails },
	}
}

// inOrder is one seat that is paid and finished, and one that is held.
func inOrder() *sale {
	paid := booking.Row{Attempt: "a1", Level: "N1", Phase: booking.PhasePaid, Payment: "TR1", Transaction: "TX1", RecordDone: true, MailDone: true}
	held := booking.Row{Attempt: "a2", Level: "N1", Phase: booking.PhaseHeld, Payment: "TR2"}
	return &sale{
		rows:  map[string]booking.Row{"C1": paid, "C2": held},
		looks: map[string]int64{"C2": 1},
		figures: booking.Figures{Cap: 2, Total: 2, Levels: []booking.LevelFigures{
			{ID: "N1", Cap: 2, Admitted: 2}, {ID: "N2", Cap: 1},
		}},
		records: map[string]booking.Record{
			"a1": {Attempt: "a1", State: booking.StatePaid, PaymentID: "TR1", Transaction: "TX1", Mail: booking.MailSent},
			"a2": {Attempt: "a2", State: booking.StateHeld, PaymentID: "TR2"},
			"a0": {Attempt: "a0", State: booking.StateReleased, PaymentID: "TR0"},
		},
		charges: []booking.Charge{{PaymentID: "TR1", Transaction: "TX1"}},
		mails:   []booking.Mail{{Record: booking.Record{Attempt: "a1"}}},
	}
}

func (s *sale) row(code string, change func(*booking.Row)) {
	row := s.rows[code]
	change(&row)
	s.rows[code] = row
}

func (s *sale) record(attempt string, change func(*booking.Record)) {
	rec := s.records[attempt]
	change(&rec)
	s.records[attempt] = rec
}

// late is money that goes back.
func (s *sale) late(payment, transaction string) {
	s.charges = append(s.charges, booking.Charge{PaymentID: payment, Transaction: transaction})
	s.refunds = append(s.refunds, booking.Refund{PaymentID: payment, Transaction: transaction})
}

// The check is worth what it finds.
func TestBooks_FindWhatIsBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		spoil  func(s *sale)
		moment string // found at any moment; "" when it may pass
		rest   string // found at rest; "" when it may stay
	}{
		{"in order", func(*sale) {}, "", ""},
		{"level's counter", func(s *sale) { s.figures.Levels[0].Admitted = 1 }, "the counter says 1", "the counter says 1"},
		{"damaged counter", func(s *sale) { s.figures.Levels[1].Admitted = -1 }, "the counter says -1", "the counter says -1"},
		{"total", func(s *sale) { s.figures.Total = 3 }, "all levels: the counter says 3", "all levels: the counter says 3"},
		{"level's cap", func(s *sale) { s.figures.Levels[0].Cap = 1 }, "2 admitted, cap 1", "2 admitted, cap 1"},
		{"global cap", func(s *sale) { s.figures.Cap = 1 }, "all levels: 2 admitted", "all levels: 2 admitted"},
		{"level that is not sold", func(s *sale) { s.row("C2", func(r *booking.Row) { r.Level = "N7" }) }, "it is not sold", "it is not sold"},
		{"two rows of one attempt", func(s *sale) { s.row("C2", func(r *booking.Row) { r.Attempt = "a1" }) }, "has two rows", "has two rows"},
		{"nobody will look", func(s *sale) { delete(s.looks, "C2") }, "will be looked at false", "will be looked at false"},
		{"looked at for ever", func(s *sale) { s.looks["C1"] = 1 }, "will be looked at true", "will be looked at true"},
		{"look without a row", func(s *sale) { s.looks["C3"] = 1 }, "has no row", "has no row"},
		{"paid record without its row", func(s *sale) { s.record("a0", func(r *booking.Record) { r.State = booking.StatePaid }) }, "record of a0 is PAID", "record of a0 is PAID"},
		{"paid record of another transaction", func(s *sale) { s.record("a1", func(r *booking.Record) { r.Transaction = "TX9" }) }, "is PAID by TX9", "is PAID by TX9"},
		{"record said to be written", func(s *sale) { s.record("a1", func(r *booking.Record) { r.State = booking.StateHeld }) }, "record and all", "record and all"},
		{"mail said to be sent", func(s *sale) { s.record("a1", func(r *booking.Record) { r.Mail = booking.MailDue }) }, "says that the mail was sent", "says that the mail was sent"},
		{"paid and no seat", func(s *sale) { s.charges = append(s.charges, booking.Charge{PaymentID: "TR0", Transaction: "TX0"}) }, "its seat is gone", "its seat is gone"},
		{"paid and not settled", func(s *sale) { s.charges = append(s.charges, booking.Charge{PaymentID: "TR2", Transaction: "TX2"}) }, "", "payment TR2 is completed"},
		{"paid and goes back", func(s *sale) { s.late("TR0", "TX0") }, "", ""},
		{"paid by a second transaction, which goes back", func(s *sale) { s.late("TR1", "TX9") }, "", ""},
		{"second transaction", func(s *sale) { s.charges = append(s.charges, booking.Charge{PaymentID: "TR1", Transaction: "TX9"}) }, "", "completed by TX9"},
		{"seat and refund", func(s *sale) { s.refunds = append(s.refunds, booking.Refund{PaymentID: "TR1", Transaction: "TX1"}) }, "is a paid seat and goes back", "is a paid seat and goes back"},
		{"paid record and refund", func(s *sale) {
			s.late("TR0", "TX0")
			s.record("a0", func(r *booking.Record) { r.State, r.Transaction = booking.StatePaid, "TX0" })
		}, "is PAID by TX0, which goes back", "is PAID by TX0, which goes back"},
		{"refund of another amount", func(s *sale) { s.late("TR0", "TX0"); s.refunds[0].Amount = 1 }, "its refund is 0.01", "its refund is 0.01"},
		{"two refunds", func(s *sale) { s.late("TR0", "TX0"); s.refunds = append(s.refunds, s.refunds...) }, "has two refunds", "has two refunds"},
		{"refund for nothing", func(s *sale) { s.refunds = []booking.Refund{{Transaction: "TX7"}} }, "refund of TX7, of which", "refund of TX7, of which"},
		{"seat for nothing", func(s *sale) { s.charges = nil }, "the gateway knows nothing", "the gateway knows nothing"},
		{"mail twice", func(s *sale) { s.mails = append(s.mails, s.mails...) }, "got 2 mails", "got 2 mails"},
		{"mail to one who has not paid", func(s *sale) { s.mails = append(s.mails, booking.Mail{Record: booking.Record{Attempt: "a2"}}) }, "is not paid and got a mail", "is not paid and got a mail"},
		{"no mail", func(s *sale) { s.mails = nil }, "got no mail", "got no mail"},
		{"no mail yet", func(s *sale) {
			s.mails, s.looks["C1"] = nil, 1
			s.row("C1", func(r *booking.Row) { r.MailDone = false })
		}, "", "got no mail"},
		{"record not written yet", func(s *sale) { delete(s.records, "a2") }, "", `its record is ""`},
		{"paid record not written yet", func(s *sale) {
			delete(s.records, "a1")
			s.looks["C1"] = 1
			s.row("C1", func(r *booking.Row) { r.RecordDone, r.MailDone = false, false })
		}, "", "record written false"},
		{"record of a seat that is gone", func(s *sale) { s.record("a0", func(r *booking.Record) { r.State = booking.StateHeld }) }, "", "has no live seat"},
		{"record of a refused payment", func(s *sale) { s.row("C2", func(r *booking.Row) { r.Phase = booking.PhaseRefused }) }, "", "has no live seat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := inOrder()
			c.spoil(s)
			for atRest, want := range map[bool]string{false: c.moment, true: c.rest} {
				got, err := s.books().Problems(t.Context(), atRest)
				if err != nil {
					t.Fatalf("problems: %v", err)
				}
				all := strings.Join(got, "\n")
				if (want == "") != (len(got) == 0) || !strings.Contains(all, want) {
					t.Errorf("at rest %t: got %q, want %q", atRest, got, want)
				}
			}
		})
	}
}

func TestBooks_AllowWhatTheTestIsAbout(t *testing.T) {
	t.Parallel()
	s := inOrder()
	s.charges = append(s.charges, booking.Charge{PaymentID: "TR0", Transaction: "TX0"})
	s.mails = append(s.mails, s.mails...)
	b := s.books()
	b.Unseated["TR0"], b.MailTwice = true, true
	got, err := b.Problems(t.Context(), true)
	if err != nil || len(got) > 0 {
		t.Errorf("problems: got %q, %v, want none", got, err)
	}
}

func TestGateway_KeepsTheRealOnesRules(t *testing.T) {
	t.Parallel()
	clock := new(bookingtest.Clock)
	g := bookingtest.NewGateway(clock.Now)
	order := booking.Order{Invoice: "inv", Amount: 150000, Currency: "BDT"}
	create := func() string {
		p, err := g.Create(t.Context(), order)
		if err != nil || p.ID == "" || p.URL == "" || p.Signature == "" {
			t.Fatalf("create: got %+v, %v, want a whole payment", p, err)
		}
		return p.ID
	}
	call := func(what string, got booking.Charge, err error, want booking.ChargeStatus, code string) {
		t.Helper()
		if err != nil || got.Status != want || got.Code != code {
			t.Errorf("%s: got %s %s, %v, want %s %s", what, got.Status, got.Code, err, want, code)
		}
	}
	execute := func(what, id string, want booking.ChargeStatus, code string) {
		t.Helper()
		c, err := g.Execute(t.Context(), id)
		call("execute "+what, c, err, want, code)
	}
	query := func(what, id string, want booking.ChargeStatus) {
		t.Helper()
		c, err := g.Query(t.Context(), id)
		call("query "+what, c, err, want, "0000")
	}
	paid, refused, lapsed := create(), create(), create()
	execute("unfinished", paid, booking.ChargeUnfinished, "2060")
	query("unfinished", paid, booking.ChargeOpen)
	g.Finish(paid)
	query("finished", paid, booking.ChargeOpen)
	execute("finished", paid, booking.ChargeCompleted, "0000")
	execute("again", paid, booking.ChargeUnknown, "2117")
	query("completed", paid, booking.ChargeCompleted)
	g.Refuse(refused, "2023")
	execute("refused", refused, booking.ChargeRefused, "2023")
	execute("refused again", refused, booking.ChargeUnknown, "2117")
	query("refused", refused, booking.ChargeOpen)
	g.Finish(lapsed)
	clock.Advance(24 * time.Hour)
	execute("lapsed", lapsed, booking.ChargeUnknown, "2056")
	execute("unknown", "TR9", booking.ChargeUnknown, "2002")
	want := []booking.Charge{{
		Status: booking.ChargeCompleted, PaymentID: paid, Invoice: "inv", Transaction: "TX" + paid, Amount: 150000, Currency: "BDT", Code: "0000",
	}}
	if diff := cmp.Diff(want, g.Completed()); diff != "" {
		t.Errorf("completed (-want +got):\n%s", diff)
	}
	if n := g.Calls(bookingtest.Execute, paid); n != 3 {
		t.Errorf("execute calls: got %d, want 3", n)
	}
	if n := g.Calls(bookingtest.Query, ""); n != 4 {
		t.Errorf("queries of all: got %d, want 4", n)
	}
}

func TestGateway_ScriptedAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		answer bookingtest.Answer
		err    error
		status booking.ChargeStatus
		moved  bool
	}{
		{"not sent", bookingtest.NotSent(), booking.ErrNotSent, "", false},
		{"lost", bookingtest.LostCall(), booking.ErrInDoubt, "", false},
		{"kept", bookingtest.KeptCall(), booking.ErrInDoubt, "", true},
		{"garbled", bookingtest.Garbled(), nil, booking.ChargeUnknown, false},
		{"altered", bookingtest.Altered(func(c *booking.Charge) { c.Status = booking.ChargeOpen }), nil, booking.ChargeOpen, true},
		{"obeyed", bookingtest.Obey(), nil, booking.ChargeCompleted, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := bookingtest.NewGateway(time.Now)
			p, err := g.Create(t.Context(), booking.Order{Invoice: "inv"})
			if err != nil {
				t.Fatal(err)
			}
			g.Finish(p.ID)
			g.Always(bookingtest.Execute, "", bookingtest.NotSent()) // what Next says goes first
			g.Next(bookingtest.Execute, p.ID, c.answer)
			got, err := g.Execute(t.Context(), p.ID)
			if got.Status != c.status || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("execute: got %q, %v, want %q, %v", got.Status, err, c.status, c.err)
			}
			if moved := len(g.Completed()) == 1; moved != c.moved {
				t.Errorf("money moved: got %t, want %t", moved, c.moved)
			}
			if _, err := g.Execute(t.Context(), p.ID); !errors.Is(err, booking.ErrNotSent) {
				t.Errorf("execute after the script: got %v, want what Always says", err)
			}
		})
	}
}

func TestGateway_LateReplyEndsWithTheCallersPatience(t *testing.T) {
	t.Parallel()
	g, hold := bookingtest.NewGateway(time.Now), bookingtest.NewHold()
	p, err := g.Create(t.Context(), booking.Order{Invoice: "inv"})
	if err != nil {
		t.Fatal(err)
	}
	g.Finish(p.ID)
	g.Next(bookingtest.Execute, p.ID, bookingtest.Late(hold))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := g.Execute(ctx, p.ID)
		result <- err
	}()
	<-hold.Arrived()
	if n := len(g.Completed()); n != 1 {
		t.Errorf("completed while the reply is late: got %d, want 1", n)
	}
	cancel()
	if err := <-result; !errors.Is(err, booking.ErrInDoubt) || !errors.Is(err, context.Canceled) {
		t.Errorf("execute: got %v, want a doubt for want of patience", err)
	}
	if _, err := g.Execute(ctx, p.ID); !errors.Is(err, booking.ErrNotSent) {
		t.Errorf("execute on an ended context: got %v, want not sent", err)
	}
	hold.LetGo()
	g.Next(bookingtest.Query, p.ID, bookingtest.Late(hold))
	if c, err := g.Query(t.Context(), p.ID); c.Status != booking.ChargeCompleted || err != nil {
		t.Errorf("query once let go: got %s, %v, want completed", c.Status, err)
	}
}

func TestMailer_BreaksAsTold(t *testing.T) {
	t.Parallel()
	faults := new(bookingtest.Faults)
	m := &bookingtest.Mailer{Faults: faults}
	mail := booking.Mail{To: "a@example.org", Record: booking.Record{State: booking.StatePaid}}
	faults.Next(bookingtest.OpMail, bookingtest.Lost, bookingtest.None, bookingtest.Kept)
	faults.Always(bookingtest.OpMail, bookingtest.Lost)
	ran := 0
	faults.Before(bookingtest.OpMail, func() { ran++ })
	for i, want := range []struct {
		err  error
		sent int
	}{{bookingtest.ErrLost, 0}, {nil, 1}, {bookingtest.ErrKept, 2}, {bookingtest.ErrLost, 2}} {
		if err := m.Send(t.Context(), mail); !errors.Is(err, want.err) || len(m.Sent()) != want.sent {
			t.Errorf("mail %d: got %v, %d sent, want %v, %d", i, err, len(m.Sent()), want.err, want.sent)
		}
	}
	if ran != 1 || faults.Calls(bookingtest.OpMail) != 4 {
		t.Errorf("got the hook %d times and %d calls, want 1 and 4", ran, faults.Calls(bookingtest.OpMail))
	}
	mail.Record.State = booking.StateHeld
	if err := m.Send(t.Context(), mail); err == nil {
		t.Error("mail about a booking that is not paid: got nil, want an error")
	}
}
