package app_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/saleops"
	"holdfast/internal/testenv"
)

// ways are how late money is heard of: by the notification at once, or by a sweep,
// the gateway having been out when the notification came.
func ways(t *testing.T, test func(t *testing.T, b *till, arrives func(letter []byte))) {
	for _, way := range []string{"notification", "sweep"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := newTill(t, 1)
			test(t, b, func(letter []byte) {
				t.Helper()
				if way == "notification" {
					b.delivers(t, "late money", letter, http.StatusOK)
					return
				}
				b.change(t, func(s *mockgateway.Settings) { s.Down = true })
				b.delivers(t, "late money, the gateway out", letter, http.StatusOK)
				b.after(t, time.Minute)
				if got := b.books(t); !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "open") }) {
					t.Errorf("the gateway out: got books %q, want the notification open", got)
				}
				b.change(t, func(s *mockgateway.Settings) { s.Down = false })
				b.after(t, lapsed) // longer than a look is put off
			})
		})
	}
}

// Case 13: the hold lapses, somebody else books and pays, and then the first
// one's money moves. The seat stays the buyer's, and there is one refund, however
// often and in whatever way it is reported.
func TestCase13_PaidLateAndTheSeatResold(t *testing.T) {
	t.Parallel()
	ways(t, func(t *testing.T, b *till, arrives func([]byte)) {
		first := b.holds(t, 1)
		b.after(t, lapsed)
		second := b.holds(t, 2)
		b.pays(t, second)
		b.wantBooks(t, "P0002 paid")
		b.change(t, payerMoves)
		back := b.press(t, first, "success")
		letters := b.post.letters(t, 2)
		arrives(letters[1])
		b.want(t, "P0001 late", "P0002 paid")
		b.delivers(t, "reported again", letters[1], http.StatusOK)
		b.come(t, back)
		b.after(t, lapsed)
		if _, err := b.api.Reconciler.CrossCheck(t.Context()); err != nil {
			t.Error(err)
		}
		b.want(t, "P0001 late", "P0002 paid")
		b.wantMails(t, 1)
	})
}

// Case 13, the other half: nobody else wanted the seat, and its late payer gets
// it; also when booking has closed meanwhile.
func TestCase13_PaidLateAndTheSeatFree(t *testing.T) {
	t.Parallel()
	ways(t, func(t *testing.T, b *till, arrives func([]byte)) {
		first := b.holds(t, 1)
		b.after(t, lapsed)
		b.wantBooks(t)
		if err := b.gate.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.change(t, payerMoves)
		b.press(t, first, "success")
		letter := b.post.letters(t, 1)[0]
		arrives(letter)
		b.want(t, "P0001 paid")
		b.delivers(t, "reported again", letter, http.StatusOK)
		b.after(t, lapsed)
		b.want(t, "P0001 paid")
		b.wantMails(t, 1)
	})
}

// Money moves in time, the payer closes the tab and no notification ever comes:
// before the seat is given back the gateway is asked, and it stays theirs.
func TestPaidInTimeAndNobodyTold(t *testing.T) {
	t.Parallel()
	b := newTill(t, 1)
	h := b.holds(t, 1)
	b.faults(t, h, mockgateway.Fault{Name: mockgateway.FaultNotificationNever})
	b.change(t, payerMoves)
	b.press(t, h, "success")
	b.after(t, time.Minute)
	b.wantBooks(t, "P0001 held")
	b.after(t, lapsed)
	b.want(t, "P0001 paid")
	b.wantMails(t, 1)
}

// Case 15: money that moves while nobody hears of it is found by a question; and
// where nobody answers the seat is kept, longer and longer, and a human called.
func TestCase15_ExecuteInDoubt(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{mockgateway.FaultAnswerLost, mockgateway.FaultAlreadyExecuted} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newTill(t, 1)
			h := b.holds(t, 1)
			b.faults(t, h, mockgateway.Fault{Name: fault})
			b.pays(t, h)
			b.want(t, "P0001 paid")
			b.wantMails(t, 1)
		})
	}
	t.Run("no answer at all", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, 1)
		h := b.holds(t, 1)
		b.faults(t, h, mockgateway.Fault{Name: mockgateway.FaultCut, Calls: []string{mockgateway.CallExecute, mockgateway.CallStatus}, Times: -1})
		b.pays(t, h)
		const alarm = "its seat is kept until someone decides"
		looks := 0
		for ; b.log.count(alarm) == 0 && looks < 40; looks++ {
			b.after(t, time.Minute)
			b.wantBooks(t, "P0001 paying")
		}
		row, _, err := b.gate.Row(t.Context(), h.code)
		if err != nil || row.Looks != 4 {
			t.Errorf("alarm after %d extensions, %v, want it after three and one more", row.Looks, err)
		}
		if looks < 30 {
			t.Errorf("alarm after %d minutes, want three extensions of ten", looks)
		}
		if status, a, _, err := b.book(t.Context(), b.apis[0], "P0002", "N1"); err != nil || a.Error != "level_full" {
			t.Errorf("somebody else: got %d %+v %v, want level_full", status, a, err)
		}
		b.faults(t, h)
		b.after(t, lapsed)
		b.want(t, "P0001 paid")
	})
}

// Case 16: fifty returns and fifty notifications at once, ten reloads, and all of
// it again two days later: one change, one mail, one payment.
func TestCase16_ReturnAndNotificationTogether(t *testing.T) {
	t.Parallel()
	for _, capture := range []string{mockgateway.CaptureExecute, mockgateway.CapturePayer} {
		t.Run(capture, func(t *testing.T) {
			t.Parallel()
			b := newTill(t, 2)
			h := b.holds(t, 1)
			b.change(t, func(s *mockgateway.Settings) { s.Capture = capture })
			var all sync.WaitGroup
			times := func(n int, do func()) {
				for range n {
					all.Go(do)
				}
			}
			delivered := make(chan struct{})
			b.post.arrived = func(letter []byte) {
				times(50, func() { b.delivers(t, "one of fifty", letter, http.StatusOK) })
				close(delivered)
			}
			back := b.press(t, h, "success")
			times(50, func() { b.come(t, back) })
			<-delivered
			all.Wait()
			b.post.arrived = nil
			for range 10 {
				b.come(t, back)
			}
			b.after(t, time.Minute) // a notification leaves the answer to the browser for a moment
			b.wantBooks(t, "P0001 paid")
			b.wantMails(t, 1)
			letter := b.post.letters(t, 1)[0]
			b.after(t, 48*time.Hour)
			times(50, func() { b.come(t, back) })
			times(50, func() { b.delivers(t, "two days later", letter, http.StatusOK) })
			all.Wait()
			b.sweep(t)
			b.want(t, "P0001 paid")
			b.wantMails(t, 1)
			p := b.paymentOf(t, h)
			if len(p.Transactions) != 1 || p.ExecuteCalls > 1 {
				t.Errorf("got %d transactions by %d execute calls, want one by one at most", len(p.Transactions), p.ExecuteCalls)
			}
			if n := len(b.post.letters(t, 1)); n != 1 {
				t.Errorf("%d notifications, want one", n)
			}
		})
	}
}

// Case 17: one hold is paid twice. The second payment is one refund, which
// operators see.
func TestCase17_TwoPaymentsForOneHold(t *testing.T) {
	t.Parallel()
	b := newTill(t, 1)
	h := b.holds(t, 1)
	b.faults(t, h, mockgateway.Fault{Name: mockgateway.FaultTwoPayments})
	b.pays(t, h)
	for _, letter := range append(b.post.letters(t, 2), b.post.letters(t, 2)...) {
		b.delivers(t, "one of two payments", letter, http.StatusOK)
	}
	b.after(t, lapsed)
	b.want(t, "P0001 paid", "P0001 second")
	second := b.paymentOf(t, h).Transactions[1].TrxID
	for r, err := range b.api.Refunds.List(t.Context()) {
		if err != nil || r.Transaction != second || r.State != booking.RefundDue || r.Amount.String() != fee {
			t.Errorf("open refunds: got %+v, %v, want one of transaction %s", r, err, second)
		}
	}
	b.wantMails(t, 1)
}

// Case 19: a return says what the payer likes. Nothing changes by it.
func TestCase19_ForgedReturns(t *testing.T) {
	t.Parallel()
	b := newTill(t, 5)
	mine, other := b.holds(t, 1), b.holds(t, 2)
	own, others := b.press(t, mine, "cancel"), b.press(t, other, "failure")
	edit := func(back string, how func(q url.Values)) string {
		u, err := url.Parse(back)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		how(q)
		u.RawQuery = q.Encode()
		return u.String()
	}
	signature := func(back string) string {
		u, _ := url.Parse(back)
		return u.Query().Get("signature")
	}
	unknown := map[string]string{
		"another's signature": edit(own, func(q url.Values) { q.Set("status", "success"); q.Set("signature", signature(others)) }),
		"another's payment":   edit(own, func(q url.Values) { q.Set("status", "success"); q.Set("paymentID", other.payment) }),
		"no signature":        edit(own, func(q url.Values) { q.Set("status", "success"); q.Del("signature") }),
		"empty signature":     edit(own, func(q url.Values) { q.Set("status", "success"); q.Set("signature", "") }),
		"a payment of nobody": edit(own, func(q url.Values) { q.Set("status", "success"); q.Set("paymentID", "TR0011aaaaaaaa1795983530013") }),
		"two statuses":        edit(own, func(q url.Values) { q.Add("status", "success") }),
		"two payments":        edit(own, func(q url.Values) { q.Set("status", "success"); q.Add("paymentID", other.payment) }),
		"two signatures":      edit(own, func(q url.Values) { q.Set("status", "success"); q.Add("signature", signature(others)) }),
		"a status of its own": edit(own, func(q url.Values) { q.Set("status", "Completed") }),
	}
	for what, back := range unknown {
		if to := b.come(t, back); !strings.HasSuffix(to, "/result?error=unknown") {
			t.Errorf("%s: sent to %s, want error=unknown", what, to)
		}
	}
	for _, h := range []hold{mine, other} {
		if p := b.paymentOf(t, h); p.ExecuteCalls != 0 {
			t.Errorf("%d execute calls for %s, want none", p.ExecuteCalls, h.code)
		}
	}
	b.want(t, "P0001 held", "P0002 held")

	// With a signature of their own the gateway is asked, and says no.
	b.come(t, edit(own, func(q url.Values) { q.Set("status", "success") }))
	b.want(t, "P0001 held", "P0002 held")
	b.come(t, edit(others, func(q url.Values) { q.Set("status", "success") }))
	b.want(t, "P0001 held", "P0002 refused")
	for _, h := range []hold{mine, other} {
		if p := b.paymentOf(t, h); len(p.Transactions) != 0 {
			t.Errorf("money moved for %s: %+v", h.code, p.Transactions)
		}
	}
	b.pays(t, mine)
	b.want(t, "P0001 paid", "P0002 refused")
}

// Case 20: what was paid is compared with what was ordered, in minor units. Money
// otherwise than ordered pays for no seat and goes back; what only a notification
// says is said to operators, and decides nothing.
func TestCase20_PaidOtherwiseThanOrdered(t *testing.T) {
	t.Parallel()
	said := []string{mockgateway.CallExecute, mockgateway.CallStatus}
	for _, c := range []struct {
		what  string
		fault mockgateway.Fault
		// seat is what becomes of it, back whether the money goes back.
		seat string
		back bool
	}{
		{"less was paid", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Value: "1.00"}, "refused", true},
		{"more was paid", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Value: "15000.00"}, "refused", true},
		{"another currency was paid", mockgateway.Fault{Name: mockgateway.FaultWrongCurrency}, "refused", true},
		{"for another invoice", mockgateway.Fault{Name: mockgateway.FaultWrongInvoice}, "refused", true},
		{"the gateway says another amount", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: said, Times: -1}, "refused", true},
		{"the gateway says a negative amount", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: said, Times: -1, Value: "-1500.00"}, "paying", false},
		{"the gateway says no number", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: said, Times: -1, Value: "15e2"}, "paying", false},
		{"the gateway says the same without decimals", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: said, Times: -1, Value: "1500"}, "paid", false},
		{"a notification says another amount", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: []string{"notification"}, Value: "1.00"}, "paid", false},
		{"a notification says a negative amount", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: []string{"notification"}, Value: "-1500.00"}, "paid", false},
		{"a notification says no number", mockgateway.Fault{Name: mockgateway.FaultWrongAmount, Calls: []string{"notification"}, Value: "15e2"}, "paid", false},
		{"a notification says another currency", mockgateway.Fault{Name: mockgateway.FaultWrongCurrency, Calls: []string{"notification"}}, "paid", false},
		{"a notification says another invoice", mockgateway.Fault{Name: mockgateway.FaultWrongInvoice, Calls: []string{"notification"}}, "paid", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			b := newTill(t, 1)
			h := b.holds(t, 1)
			b.faults(t, h, c.fault)
			b.pays(t, h)
			b.delivers(t, "its notification", b.post.letters(t, 1)[0], http.StatusOK)
			books := []string{"P0001 " + c.seat}
			if c.back {
				books = append(books, "P0001 other_than_ordered")
			}
			if c.seat == "paying" { // nobody knows, so nobody decides
				b.after(t, time.Minute)
				row, _, err := b.gate.Row(t.Context(), h.code)
				if err != nil || row.Phase != booking.PhasePaying {
					t.Errorf("got row %+v, %v, want it paying", row, err)
				}
				b.faults(t, h)
				b.after(t, lapsed)
				b.after(t, lapsed)
				b.want(t, "P0001 paid")
				return
			}
			b.after(t, 30*time.Second) // a foreign invoice number is asked about
			b.pass(t, 2*time.Hour)     // and given up
			if c.seat == "refused" {
				books = books[1:] // the hold is over, too
			}
			b.sweep(t)
			b.sweep(t)
			b.want(t, books...)
			mails := 0
			if c.seat == "paid" {
				mails = 1
			}
			b.wantMails(t, mails)
		})
	}
}

// Case 20, late: money otherwise than ordered for a hold that has lapsed goes
// back, and takes no seat.
func TestCase20_WrongAmountAfterTheHoldLapsed(t *testing.T) {
	t.Parallel()
	b := newTill(t, 1)
	h := b.holds(t, 1)
	b.faults(t, h, mockgateway.Fault{Name: mockgateway.FaultWrongAmount})
	b.after(t, lapsed)
	b.change(t, payerMoves)
	back := b.press(t, h, "success")
	letter := b.post.letters(t, 1)[0]
	for range 2 {
		b.delivers(t, "wrong and late", letter, http.StatusOK)
		b.come(t, back)
		b.after(t, lapsed)
	}
	b.want(t, "P0001 other_than_ordered")
	next := b.holds(t, 2)
	b.pays(t, next)
	b.want(t, "P0001 other_than_ordered", "P0002 paid")
}

// Case 20, the fee: the sale says what a seat costs. A price in the request is no
// field of ours, and such a request takes no seat.
func TestCase20_PriceSentByTheClient(t *testing.T) {
	t.Parallel()
	b := newTill(t, 1)
	for contentType, body := range map[string]string{
		"application/json":                  `{"code":"P0001","email":"x@example.org","level":"N1","amount":"1.00"}`,
		"application/x-www-form-urlencoded": "code=P0001&email=x%40example.org&level=N1&amount=1.00",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.apis[0]+"/book", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", contentType)
		if status, got, _, err := b.do(r); err != nil || status != http.StatusBadRequest {
			t.Errorf("a price in %s: got %d %s, %v, want 400", contentType, status, got, err)
		}
	}
	b.want(t)
	h := b.holds(t, 1)
	if p := b.paymentOf(t, h); p.Amount != fee || p.Currency != "BDT" {
		t.Errorf("the payment is of %s %s, want %s BDT", p.Amount, p.Currency, fee)
	}
	b.want(t, "P0001 held")
}

// Case 22: a notification that cannot be stored, or whose open mark Redis does not
// take, is asked for again, and the redelivery is accepted. Should none come, a
// cross-check finds what is stored.
func TestCase22_StoredOrNot(t *testing.T) {
	t.Parallel()
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, 1)
		b.change(t, payerMoves)
		h := b.holds(t, 1)
		b.press(t, h, "success")
		letter := b.post.letters(t, 1)[0]
		b.drained(t)
		free := b.lockFile(t, "store.db")
		b.delivers(t, "the store is away", letter, http.StatusServiceUnavailable)
		free()
		b.delivers(t, "the store is back", letter, http.StatusOK)
		b.want(t, "P0001 paid")
		b.delivers(t, "once more", letter, http.StatusOK)
		b.want(t, "P0001 paid")
		b.wantMails(t, 1)
	})
	for _, again := range []string{"redelivered", "never redelivered"} {
		t.Run("redis, "+again, func(t *testing.T) {
			t.Parallel()
			b := newTill(t, 1)
			b.change(t, payerMoves)
			h := b.holds(t, 1)
			b.press(t, h, "success")
			letter := b.post.letters(t, 1)[0]
			b.drained(t)
			b.pair.Cut()
			for range 2 {
				b.delivers(t, "redis is away", letter, http.StatusServiceUnavailable)
			}
			b.wantOpen(t, 1) // it is stored all the same
			b.pair.Forward()
			testenv.Eventually(t, func() error { _, err := b.gate.Epoch(t.Context()); return err })
			if again == "redelivered" {
				b.delivers(t, "redis is back", letter, http.StatusOK)
			} else if _, err := b.api.Reconciler.CrossCheck(t.Context()); err != nil {
				t.Error(err)
			}
			b.wantBooks(t, "P0001 held", "open notification of "+b.paymentOf(t, h).Transactions[0].TrxID)
			b.after(t, time.Minute)
			b.want(t, "P0001 paid")
			b.delivers(t, "once more", letter, http.StatusOK)
			b.want(t, "P0001 paid")
			b.wantMails(t, 1)
		})
	}
	t.Run("not ours", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, 1)
		h := b.holds(t, 1)
		b.faults(t, h, mockgateway.Fault{Name: mockgateway.FaultWrongInvoice, Calls: []string{"notification"}, Value: "somebody-elses-1"})
		b.pays(t, h)
		letter := b.post.letters(t, 1)[0]
		for range 2 {
			b.delivers(t, "an invoice number that is not ours", letter, http.StatusOK)
		}
		b.pass(t, 30*24*time.Hour)
		b.delivers(t, "a month late", letter, http.StatusOK)
		b.sweep(t)
		b.want(t, "P0001 paid")
	})
}

// Case 23: a notification of an attempt that is over says nothing about the
// candidate's next one, however often it comes; as a first word it still counts.
func TestCase23_OldNotificationAndANewBooking(t *testing.T) {
	t.Parallel()
	t.Run("replayed", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, 1)
		old := b.holds(t, 1)
		b.after(t, lapsed)
		b.holds(t, 2)
		b.change(t, payerMoves)
		b.press(t, old, "success")
		letter := b.post.letters(t, 1)[0]
		b.delivers(t, "late money", letter, http.StatusOK)
		b.want(t, "P0001 late", "P0002 held")
		b.after(t, lapsed)
		b.want(t, "P0001 late")
		again := b.holds(t, 1)
		for range 3 {
			b.delivers(t, "replayed", letter, http.StatusOK)
			b.after(t, time.Minute)
		}
		b.want(t, "P0001 held", "P0001 late")
		b.press(t, again, "success")
		b.delivers(t, "the new booking's own", b.post.letters(t, 2)[1], http.StatusOK)
		b.want(t, "P0001 late", "P0001 paid")
		b.wantMails(t, 1)
	})
	t.Run("late first delivery", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, 2)
		old := b.holds(t, 1)
		b.after(t, lapsed)
		b.change(t, payerMoves)
		b.press(t, old, "success") // its money comes while they book again
		again := b.holds(t, 1)
		b.pass(t, 5*time.Minute)
		b.delivers(t, "late money", b.post.letters(t, 1)[0], http.StatusOK)
		b.want(t, "P0001 held", "P0001 late") // one live booking a candidate
		b.press(t, again, "success")
		b.delivers(t, "the new booking's own", b.post.letters(t, 2)[1], http.StatusOK)
		b.want(t, "P0001 late", "P0001 paid")
	})
}

// Case 25: the mail provider is away for ten minutes. The mail is sent once it is
// back, once; to nobody who has not paid.
func TestCase25_MailProviderDown(t *testing.T) {
	t.Parallel()
	b := newTill(t, 2)
	outbox := filepath.Join(b.data, "outbox")
	if err := errors.Join(os.Rename(outbox, outbox+".away"), os.WriteFile(outbox, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	h := b.holds(t, 1)
	b.holds(t, 2) // and does not pay
	b.pays(t, h)
	for range 10 {
		b.after(t, time.Minute)
	}
	if n := b.metric(t, "holdfast_mail_total", "failed"); n < 2 {
		t.Errorf("%d mails failed, want that it was tried again", n)
	}
	b.want(t, "P0001 paid")
	if err := errors.Join(os.Remove(outbox), os.Rename(outbox+".away", outbox)); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		b.after(t, time.Minute)
	}
	b.wantMails(t, 1)
	b.want(t, "P0001 paid")
}

// The process is killed between begin-pay and execute, and between execute and
// settle. Another finds out, and the payer has the seat.
func TestKilledWhilePaying(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		// stops keeps the execute call open, moved tells whether its money has moved.
		stops func(t *testing.T, b *till, h hold)
		moved bool
	}{
		{"before the money moved", func(t *testing.T, b *till, h hold) {
			b.faults(t, h, mockgateway.Fault{Name: mockgateway.FaultNoAnswer})
		}, false},
		{"after the money moved", func(t *testing.T, b *till, _ hold) {
			b.change(t, func(s *mockgateway.Settings) {
				late, err := mockgateway.ParseSettings([]byte(`{"latency_ms":{"execute":20000}}`))
				if err != nil {
					t.Fatal(err)
				}
				s.LatencyMS = late.LatencyMS
			})
		}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			b := newTill(t, 1)
			p := b.process(t)
			h := b.holds(t, 1)
			c.stops(t, b, h)
			b.dies(t, p, b.press(t, h, "success"), func() error {
				listed := b.paymentOf(t, h)
				called := listed.ExecuteCalls > 0 || slices.ContainsFunc(listed.Faults, func(f mockgateway.Fault) bool { return f.Applied > 0 })
				if !called || (len(listed.Transactions) > 0) != c.moved {
					return fmt.Errorf("execute is not on its way: %+v", listed)
				}
				return nil
			})
			b.change(t, func(s *mockgateway.Settings) { s.LatencyMS = mockgateway.Settings{}.LatencyMS })
			b.sweep(t)
			b.wantBooks(t, "P0001 paying") // its call may still be on its way
			b.after(t, time.Minute)
			b.want(t, "P0001 paid")
			b.wantMails(t, 1)
		})
	}
}

// Case 25: the process is killed between paid and sent. Another sends the mail,
// once.
func TestCase25_KilledBetweenPaidAndSent(t *testing.T) {
	t.Parallel()
	server := testenv.SMTP(t, testenv.SMTPOptions{})
	line := testenv.Proxy(t, server.Addr)
	host, port, err := net.SplitHostPort(line.Addr())
	if err != nil {
		t.Fatal(err)
	}
	smtp := []string{"HOLDFAST_MAIL", "smtp", "HOLDFAST_SMTP_HOST", host, "HOLDFAST_SMTP_PORT", port, "HOLDFAST_SMTP_ENCRYPTION", "plain"}
	b := newTill(t, 1, smtp...)
	p := b.process(t, smtp...)
	h := b.holds(t, 1)
	line.DropReplies() // the server says nothing, so nothing is said to it
	b.come(t, b.press(t, h, "success"))
	testenv.Eventually(t, func() error {
		for rec, err := range b.api.Drivers.Store.Records(t.Context()) {
			if err != nil || rec.MailClaim == "" {
				return fmt.Errorf("nobody sends the mail: %+v, %w", rec, err)
			}
		}
		return nil
	})
	p.Kill()
	line.Forward()
	b.after(t, time.Minute)
	if n := b.metric(t, "holdfast_mail_total", "sent"); n != 0 {
		t.Errorf("%d mails sent under the dead process's lease, want none", n)
	}
	for range 3 {
		b.after(t, 2*time.Minute)
	}
	b.want(t, "P0001 paid")
	server.Await(t, 1)
	if got := server.Stop(); len(got) != 1 || len(got[0].Recipients) != 1 || got[0].Recipients[0] != "x@example.org" {
		t.Errorf("mails: got %+v, want one to the candidate", got)
	}
}

// Redis is lost while a notification is open. The ledger is rebuilt, and what is
// open comes to its end.
func TestOpenNotificationOutlivesRedis(t *testing.T) {
	t.Parallel()
	b := newTill(t, 1)
	paid := b.holds(t, 1)
	b.after(t, lapsed)
	b.change(t, payerMoves)
	b.press(t, paid, "success")
	letter := b.post.letters(t, 1)[0]
	b.change(t, func(s *mockgateway.Settings) { s.Down = true })
	b.delivers(t, "the gateway is out", letter, http.StatusOK)
	b.sweep(t)
	b.wantOpen(t, 1)
	b.drained(t)
	if err := b.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: b.pair.Addr()})
	defer rdb.Close()
	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	b.change(t, func(s *mockgateway.Settings) { s.Down = false })
	ops := saleops.Ops{Ledger: b.gate, Store: b.api.Drivers.Store, Queue: b.api.Drivers.Queue, Gateway: b.api.Gateway, Log: slog.New(slog.DiscardHandler)}
	if _, err := ops.Rebuild(t.Context(), tillSale(1)); err != nil {
		t.Fatal(err)
	}
	list := []booking.Candidate{{Code: paid.code, Email: "x@example.org"}}
	if err := b.gate.AddCandidates(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if _, err := b.api.Reconciler.CrossCheck(t.Context()); err != nil {
		t.Error(err)
	}
	b.after(t, lapsed)
	b.want(t, "P0001 paid")
	b.wantMails(t, 1)
}
