package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

// event is something that is said of a payment: how it is signed and posted, and
// how its payer comes back.
type event struct {
	name string
	// status is what the notification says; it names the payment's own transaction.
	status string
	// returns is the status of the browser's return; "" is no return.
	returns string
}

var events = []event{
	{"created", "Initiated", "cancel"},
	{"failed", "Failed", "failure"},
	{"paid", "Completed", "success"},
	{"refunded", "Refunded", ""},
}

// orders is every order of n things.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, order := range orders(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(order), at, n-1))
		}
	}
	return all
}

// teller says every event of some payments, each of them in an order of its own.
type teller struct {
	pen   *stamp
	holds []hold
	backs []string          // where the browser is sent after a success, by hold
	said  map[string]letter // the notification of each payment's money, by payment
}

// told has everybody's money moved by their own press.
func (b *till) told(t *testing.T, pen *stamp, holds []hold) *teller {
	t.Helper()
	b.change(t, payerMoves)
	r := &teller{pen: pen, holds: holds, said: map[string]letter{}}
	before := len(b.post.letters(t, 0))
	for _, h := range holds {
		r.backs = append(r.backs, b.press(t, h, "success"))
	}
	byTransaction := map[string]letter{}
	for _, body := range b.post.letters(t, before+len(holds))[before:] {
		l := opened(t, body)
		var m struct{ TrxID string }
		if err := json.Unmarshal([]byte(l["Message"]), &m); err != nil {
			t.Fatal(err)
		}
		byTransaction[m.TrxID] = l
	}
	payments, err := b.mock.Payments("")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range payments {
		for _, m := range p.Transactions {
			if l, ok := byTransaction[m.TrxID]; ok {
				r.said[p.PaymentID] = l
			}
		}
	}
	if len(r.said) != len(holds) {
		t.Fatalf("payments notified: got %d, want %d", len(r.said), len(holds))
	}
	return r
}

// says delivers an event twice, by notification and return.
func (r *teller) says(t *testing.T, b *till, i int, e event) {
	t.Helper()
	note := r.said[r.holds[i].payment]
	body := note.body(t) // the gateway's own
	if e.status != "Completed" {
		body = r.pen.signed(t, letter{"Message": strings.Replace(note["Message"], `"Completed"`, fmt.Sprintf("%q", e.status), 1)})
	}
	back, err := url.Parse(r.backs[i])
	if err != nil {
		t.Fatal(err)
	}
	q := back.Query()
	q.Set("status", e.returns)
	back.RawQuery = q.Encode()
	for range 2 {
		b.delivers(t, e.name, body, http.StatusOK)
		if e.returns != "" {
			b.come(t, back.String())
		}
	}
}

// Case 18: what is said of a payment comes in every order, each of it twice, by
// signed notification and by the browser. The end is the same: it is what the
// gateway answers when it is asked. Paid beats failed, and a failed attempt frees
// no seat.
func TestCase18_EveryOrderOfEvents(t *testing.T) {
	t.Parallel()
	all := orders(len(events))
	people := func(b *till, t *testing.T) (holds []hold) {
		t.Helper()
		b.addCandidates(t, 2*len(all))
		for i := range all {
			holds = append(holds, b.holds(t, i))
		}
		b.drained(t) // what has no record yet is looked at later
		return holds
	}
	// everything says it all, one event of each order at a time, and after each looks
	// at the books.
	everything := func(t *testing.T, b *till, r *teller, look func(after int)) {
		t.Helper()
		for at := range events {
			for i, order := range all {
				r.says(t, b, i, events[order[at]])
			}
			b.after(t, 30*time.Second)
			look(at)
		}
	}

	t.Run("money for a seat that is held", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, len(all))
		pen := newStamp(t, b)
		r := b.told(t, pen, people(b, t))
		everything(t, b, r, func(after int) {
			figures, err := b.gate.ReadStatus(t.Context())
			if err != nil || figures.Total != len(all) {
				t.Errorf("after event %d: got %d seats taken, %v, want all %d", after, figures.Total, err, len(all))
			}
		})
		b.after(t, lapsed)
		var want []string
		for _, h := range r.holds {
			want = append(want, h.code+" paid")
		}
		b.want(t, want...)
		b.wantMails(t, len(all))
	})

	t.Run("nothing but failures, and then the money", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, 1)
		pen := newStamp(t, b)
		h := b.holds(t, 1)
		b.drained(t)
		back := b.press(t, h, "cancel")
		b.change(t, payerMoves)
		failed := pen.signed(t, letter{"Message": fmt.Sprintf(
			`{"trxID":"CK250NROQ5","transactionStatus":"Failed","amount":%q,"currency":"BDT","merchantInvoiceNumber":%q}`, fee, b.paymentOf(t, h).Invoice)})
		for range 2 {
			b.delivers(t, "failed", failed, http.StatusOK)
			b.come(t, strings.Replace(back, "status=cancel", "status=failure", 1))
			b.after(t, time.Minute)
			b.want(t, "P0001 held")
		}
		if status, a, _, err := b.book(t.Context(), b.apis[0], "P0002", "N1"); err != nil || a.Error != "level_full" {
			t.Errorf("somebody else: got %d %+v %v, want level_full", status, a, err)
		}
		b.press(t, h, "success")
		b.delivers(t, "paid", b.post.letters(t, 1)[0], http.StatusOK)
		b.want(t, "P0001 paid")
		b.delivers(t, "failed once more", failed, http.StatusOK)
		b.after(t, lapsed)
		b.want(t, "P0001 paid")
		b.wantMails(t, 1)
	})

	t.Run("money for a seat that was sold again", func(t *testing.T) {
		t.Parallel()
		b := newTill(t, len(all), "HOLDFAST_REFUND_AUTO", "true")
		pen := newStamp(t, b)
		holds := people(b, t)
		b.after(t, lapsed)
		var want []string
		for i := range all {
			h := b.holds(t, len(all)+i)
			b.pays(t, h)
			want = append(want, h.code+" paid")
		}
		b.want(t, want...)
		r := b.told(t, pen, holds)
		everything(t, b, r, func(after int) {
			for _, code := range want {
				if got := b.books(t); !slices.Contains(got, code) {
					t.Errorf("after event %d: got books %q, want %s", after, got, code)
				}
			}
		})
		b.after(t, lapsed)
		for _, h := range holds {
			want = append(want, h.code+" late")
		}
		b.want(t, want...)
		for refund, err := range b.api.Drivers.Store.Refunds(t.Context()) {
			if err != nil || refund.State != booking.RefundDone {
				t.Errorf("refund %+v, %v, want it done", refund, err)
			}
		}
		b.wantMails(t, len(all))
	})
}
