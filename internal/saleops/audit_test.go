package saleops_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
)

// running is a sale in which everything there can be is old enough to be told.
func running(t *testing.T) (w *world, held, paid bookingtest.Booking) {
	t.Helper()
	w = open(t)
	paid = w.Held(t, 2, "N1")
	w.pays(t, paid)
	held = w.Held(t, 1, "N1")
	w.Refused(t, 3, "N2")
	w.Clock.Advance(3 * time.Minute)
	return w, held, paid
}

func (w *world) audit(t *testing.T, opts saleops.AuditOptions) saleops.Report {
	t.Helper()
	if opts.Wait == nil {
		opts.Wait = func(context.Context, time.Duration) error { return nil }
	}
	r, err := w.ops.Audit(t.Context(), opts)
	if err != nil {
		t.Fatalf("audit: %v", err)
	}
	return r
}

func withGateway() saleops.AuditOptions {
	return saleops.AuditOptions{Gateway: true, QueriesPerSecond: 10000}
}

func rule(t *testing.T, r saleops.Report, code string) saleops.Rule {
	t.Helper()
	for _, rule := range r.Rules {
		if rule.Code == code {
			return rule
		}
	}
	t.Fatalf("no rule %q in %+v", code, r)
	return saleops.Rule{}
}

// wantBroken wants these rules broken and no others.
func wantBroken(t *testing.T, r saleops.Report, want ...string) {
	t.Helper()
	var got []string
	for _, rule := range r.Rules {
		if rule.Verdict == saleops.VerdictBroken {
			got = append(got, rule.Code)
			t.Logf("%s: %q", rule.Code, rule.Broken)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("broken rules: got %v, want %v", got, want)
	}
	if r.Broken() != (len(want) > 0) {
		t.Errorf("report is broken: got %t, want %t", r.Broken(), len(want) > 0)
	}
}

// status gives status.json as it should be, but for the change.
func (w *world) status(t *testing.T, change func(f *booking.Figures)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		f, err := w.Ledger.ReadStatus(ctx)
		if err != nil {
			return nil, err
		}
		if change != nil {
			change(&f)
		}
		type level struct {
			ID   string `json:"id"`
			Cap  int    `json:"cap"`
			Left int    `json:"left"`
		}
		doc := map[string]any{"version": f.Version, "updated_at": f.At, "open": f.Open, "total": map[string]int{"cap": f.Cap, "left": f.Cap - f.Total}}
		var levels []level
		for _, l := range f.Levels {
			levels = append(levels, level{l.ID, l.Cap, min(l.Cap-l.Admitted, f.Cap-f.Total)})
		}
		doc["levels"] = levels
		return json.Marshal(doc)
	}
}

func TestAudit_CleanSaleBreaksNothing(t *testing.T) {
	w, _, _ := running(t)
	opts := withGateway()
	opts.Status = w.status(t, nil)
	r := w.audit(t, opts)
	wantBroken(t, r)
	for code, want := range map[string]string{
		saleops.RuleCaps:     "rows/cap all 3/20, N1 2/20, N2 1/20",
		saleops.RuleCounters: "counter/rows all 3/3, N1 2/2, N2 1/1",
		saleops.RuleOneLive:  "2 candidates with a live record",
		saleops.RuleRecords:  "1 held records, 1 rows that wait for money",
		saleops.RulePaid:     "1 paid records, 1 paid rows",
		saleops.RuleLookedAt: "2 to be looked at, none late",
		saleops.RuleDoubt:    "0 seats in doubt, 0 of them after more than 3 extensions, 0 not asked about in time",
		saleops.RuleMoney:    "3 payments asked about, 1 completed, 0 without a clear answer; refunds 0 due, 0 sent, 0 done",
		saleops.RuleSignals:  "0 notifications open",
		saleops.RuleQueue:    "0 waiting, 0 in flight, 0 dead, oldest 0s",
	} {
		got := rule(t, r, code)
		if got.Figure != want || got.Verdict != saleops.VerdictHolds {
			t.Errorf("%s: got %q, %s, want %q, holds", code, got.Figure, got.Verdict, want)
		}
	}
	if want := []string{"back office: its table is not compared"}; !cmp.Equal(r.NotSeen, want) {
		t.Errorf("not seen: got %q, want %q", r.NotSeen, want)
	}
	if r.Sale != "demo" || r.Epoch != bookingtest.Epoch || !r.Open {
		t.Errorf("report: got %q %q open %t, want the running sale", r.Sale, r.Epoch, r.Open)
	}
}

func TestAudit_SaysWhatItWasNotAskedToSee(t *testing.T) {
	w, held, _ := running(t)
	r := w.audit(t, saleops.AuditOptions{})
	wantBroken(t, r)
	for _, code := range []string{saleops.RuleMoney, saleops.RuleStatus} {
		if got := rule(t, r, code); got.Verdict != saleops.VerdictNotAsked {
			t.Errorf("%s: got %s, want not asked", code, got.Verdict)
		}
	}
	if r.Unseen() {
		t.Error("unseen: got true, want false: it was not asked")
	}
	if n := w.Gateway.Calls(bookingtest.Query, held.Payment.ID); n != 0 {
		t.Errorf("queries: got %d, want 0", n)
	}
	if all := strings.Join(r.NotSeen, "\n"); !strings.Contains(all, "gateway: not asked") || !strings.Contains(all, "status.json: not given") {
		t.Errorf("not seen: got %q, want gateway and status.json in it", all)
	}
}

// What gives no answer proves nothing: its rule does not hold.
func TestAudit_NoAnswerIsNotSeen(t *testing.T) {
	for name, c := range map[string]struct {
		answer bookingtest.Answer
		all    bool
		figure string
	}{
		"one call lost":         {bookingtest.LostCall(), false, "3 payments asked about, 1 completed, 1 without a clear answer"},
		"one answer in doubt":   {bookingtest.Garbled(), false, "3 payments asked about, 1 completed, 1 without a clear answer"},
		"the gateway is silent": {bookingtest.NotSent(), true, "3 payments asked about, 0 completed, 3 without a clear answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w, held, _ := running(t)
			payment := held.Payment.ID
			if c.all {
				payment = ""
			}
			w.Gateway.Always(bookingtest.Query, payment, c.answer)
			r := w.audit(t, withGateway())
			wantBroken(t, r)
			if got := rule(t, r, saleops.RuleMoney); got.Verdict != saleops.VerdictNotSeen || !strings.HasPrefix(got.Figure, c.figure+"; ") || !r.Unseen() {
				t.Errorf("money: got %s, %q, report unseen %t, want NOT SEEN, %q, true", got.Verdict, got.Figure, r.Unseen(), c.figure)
			}
			if all := strings.Join(r.NotSeen, "\n"); !strings.Contains(all, "no clear answer about") {
				t.Errorf("not seen: got %q, want the payments", all)
			}
		})
	}
	t.Run("status.json", func(t *testing.T) {
		w, _, _ := running(t)
		r := w.audit(t, saleops.AuditOptions{Status: func(context.Context) ([]byte, error) { return nil, errors.New("no route to host") }})
		wantBroken(t, r)
		if got := rule(t, r, saleops.RuleStatus); got.Verdict != saleops.VerdictNotSeen || !r.Unseen() {
			t.Errorf("status: got %s, report unseen %t, want NOT SEEN, true", got.Verdict, r.Unseen())
		}
		if all := strings.Join(r.NotSeen, "\n"); !strings.Contains(all, "no route to host") {
			t.Errorf("not seen: got %q, want why", all)
		}
	})
	t.Run("a rule that is broken stays so", func(t *testing.T) {
		w, held, paid := running(t)
		w.Gateway.Always(bookingtest.Query, held.Payment.ID, bookingtest.LostCall())
		w.Gateway.Always(bookingtest.Query, paid.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Amount++ }))
		wantBroken(t, w.audit(t, withGateway()), saleops.RuleMoney)
	})
}

// Each damage breaks the rule that names it, and is told with the candidate's
// code where it is a candidate's: C0001 holds, C0002 has paid, C0003 was refused.
func TestAudit_DamageBreaksItsRule(t *testing.T) {
	type damage func(t *testing.T, w *world, held, paid bookingtest.Booking)
	set := func(key, value string) damage {
		return func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			if err := w.rdb.Set(t.Context(), prefix+key, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const held, paid, refused = 1, 2, 3
	row := func(of int, change func(*booking.Row)) damage {
		return func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			row := w.Row(t, bookingtest.Code(of))
			change(&row)
			w.setRow(t, bookingtest.Code(of), row)
		}
	}
	look := func(of int, at float64) damage {
		return func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			if err := w.rdb.ZAdd(t.Context(), prefix+"adm:due", redis.Z{Score: at, Member: bookingtest.Code(of)}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	record := func(of int, path string, value any) damage {
		return func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.exec(t, `UPDATE records SET body = json_set(body, ?, ?) WHERE candidate_hash = ?`, path, value, booking.CandidateHash(bookingtest.Code(of)))
		}
	}
	all := func(list ...damage) damage {
		return func(t *testing.T, w *world, held, paid bookingtest.Booking) {
			for _, do := range list {
				do(t, w, held, paid)
			}
		}
	}
	const year2100 = 4102444800000
	lose := func(t *testing.T, w *world, b bookingtest.Booking) {
		if _, err := w.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.HDel(t.Context(), prefix+"adm:seen", b.Code)
			p.ZRem(t.Context(), prefix+"adm:due", b.Code)
			p.Decr(t.Context(), prefix+"adm:total")
			p.Decr(t.Context(), prefix+"adm:level:"+b.Record.Level)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		damage damage
		want   []string
		text   string
	}{
		{"total one too many", set("adm:total", "4"), []string{saleops.RuleCounters}, "all levels: the counter says 4, there are 3 rows"},
		{"total one too few", set("adm:total", "2"), []string{saleops.RuleCounters}, "all levels: the counter says 2"},
		{"total missing", func(t *testing.T, w *world, _, _ bookingtest.Booking) { w.rdb.Del(t.Context(), prefix+"adm:total") }, []string{saleops.RuleCounters}, "nothing that is a number"},
		{"level one too many", set("adm:level:N1", "3"), []string{saleops.RuleCounters}, "level N1: the counter says 3, there are 2 rows"},
		{"level one too few", set("adm:level:N1", "1"), []string{saleops.RuleCounters}, "level N1: the counter says 1"},
		{"level missing", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.rdb.Del(t.Context(), prefix+"adm:level:N1")
		}, []string{saleops.RuleCounters}, "level N1: the counter says nothing that is a number"},
		{"counter above the cap", set("adm:level:N1", "21"), []string{saleops.RuleCounters, saleops.RuleCaps}, "level N1: 21 seats, the cap is 20"},
		{"total above the cap", set("adm:total", "21"), []string{saleops.RuleCounters, saleops.RuleCaps}, "all levels: 21 seats, the cap is 20"},
		{"rows above the cap", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.rdb.HSet(t.Context(), prefix+"sale:config", "cap:N1", 1)
		}, []string{saleops.RuleCaps}, "level N1: 2 seats, the cap is 1"},
		{"row of a level that is not sold", row(held, func(r *booking.Row) { r.Level = "N9" }), []string{saleops.RuleCaps, saleops.RuleCounters, saleops.RuleRecords}, `"N9"`},
		{"row without record", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			w.exec(t, `DELETE FROM records WHERE attempt = ?`, held.Attempt)
		}, []string{saleops.RuleRecords}, "of C0001 is held, and has no record"},
		{"held record without row", func(t *testing.T, w *world, held, _ bookingtest.Booking) { lose(t, w, held) },
			[]string{saleops.RuleRecords}, "of C0001 is HELD, and its attempt owns no row"},
		{"released record of a live row", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			r := held.Record
			if err := w.Store.Release(t.Context(), r, "test", w.Clock.Now()); err != nil {
				t.Fatal(err)
			}
		}, []string{saleops.RuleRecords}, "of C0001 is RELEASED, and its row is held"},
		{"two live records", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			lose(t, w, held)
			w.Held(t, 1, "N2")
			w.Clock.Advance(3 * time.Minute)
		}, []string{saleops.RuleOneLive, saleops.RuleRecords}, "C0001 has 2 live records: HELD"},
		{"paid record without row", func(t *testing.T, w *world, _, paid bookingtest.Booking) { lose(t, w, paid) },
			[]string{saleops.RulePaid, saleops.RuleMoney}, "of C0002 is PAID by TXTR000001, and its row is not there"},
		{"paid record whose row is held", row(paid, func(r *booking.Row) {
			r.Phase, r.Transaction, r.RecordDone, r.MailDone = booking.PhaseHeld, "", false, false
		}),
			[]string{saleops.RulePaid, saleops.RuleLookedAt, saleops.RuleMoney}, "of C0002 is PAID by TXTR000001, and its row is held"},
		{"row paid by another transaction", row(paid, func(r *booking.Row) { r.Transaction = "TXother" }), []string{saleops.RulePaid, saleops.RuleMoney}, "and its row is paid by TXother"},
		{"paid row whose record is held", row(held, func(r *booking.Row) { r.Phase, r.PaidAt, r.Transaction = booking.PhasePaid, 1, "TX1" }),
			[]string{saleops.RulePaid, saleops.RuleMoney}, `of C0001 is paid by TX1, and its record is "HELD"`},
		{"row that nobody looks at", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			w.rdb.ZRem(t.Context(), prefix+"adm:due", held.Code)
		}, []string{saleops.RuleLookedAt}, "of C0001 is held, and nobody will look at it"},
		{"look without a row", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.rdb.ZAdd(t.Context(), prefix+"adm:due", redis.Z{Score: 1e15, Member: "NOBODY"})
		}, []string{saleops.RuleLookedAt}, "3 codes will be looked at, 2 of them have a row"},
		{"row that cannot be read", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			w.rdb.HSet(t.Context(), prefix+"adm:seen", held.Code, "{")
		}, []string{saleops.RuleUnreadable, saleops.RuleCounters, saleops.RuleRecords, saleops.RuleLookedAt}, "row of C0001"},
		{"record that cannot be read", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			w.exec(t, `UPDATE records SET body = '{"v":2}' WHERE attempt = ?`, held.Attempt)
		}, []string{saleops.RuleUnreadable, saleops.RuleRecords}, "version 2"},
		{"dead letter", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			if err := w.queue.Send(t.Context(), "0000", "id", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			w.receive(t)
			w.Clock.Advance(2 * time.Minute)
			w.receive(t)
		}, []string{saleops.RuleQueue}, "1 dead letters"},
		{"old message", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			if err := w.queue.Send(t.Context(), "0000", "id", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			w.Clock.Advance(3 * time.Minute)
		}, []string{saleops.RuleQueue}, "the worker does not write"},
		{"money without a seat", func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			w.Clock.Advance(booking.DefaultHold)
			w.sweep(t, 0)
			w.Gateway.Complete(held.Payment.ID)
		}, []string{saleops.RuleMoney}, "and its row is not there"},
		{"money of long ago, row refused", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.Gateway.Complete(w.Row(t, bookingtest.Code(refused)).Payment)
		}, []string{saleops.RuleMoney}, "of C0003, there is no refund of it, and its row is refused"},
		{"another amount", func(t *testing.T, w *world, _, paid bookingtest.Booking) {
			w.Gateway.Always(bookingtest.Query, paid.Payment.ID, bookingtest.Altered(func(c *booking.Charge) { c.Amount++ }))
		}, []string{saleops.RuleMoney}, "of C0002: payment TR000001: ordered 1500.00 BDT, paid 1500.01 BDT"},
		{"look in the year 2286", look(held, 1e13), []string{saleops.RuleLookedAt}, "of C0001 is held, and nobody will look at it before 2286-11-20"},
		{"look of a refused row in the year 2286", look(refused, 1e13), []string{saleops.RuleLookedAt}, "of C0003 is refused, and nobody will look at it before 2286-11-20"},
		{"look that is no time", look(held, math.Inf(1)), []string{saleops.RuleLookedAt}, "of C0001 is held, and"},
		{"deadline that its record will follow to", row(held, func(r *booking.Row) { r.Deadline += time.Hour.Milliseconds() }), nil, ""},
		{"deadline before its record's", row(held, func(r *booking.Row) { r.Deadline-- }), []string{saleops.RuleRecords}, "of C0001 is not what its row says: deadline: "},
		{"extended hold", all(row(held, func(r *booking.Row) {
			r.Deadline, r.Hold = r.Deadline+time.Hour.Milliseconds(), r.Hold+time.Hour.Milliseconds()
		}), func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			later := held.Record.Deadline.Add(time.Hour)
			if err := w.Store.Extend(t.Context(), held.Record.CandidateHash, held.Attempt, later); err != nil {
				t.Fatal(err)
			}
			look(1, float64(later.UnixMilli()))(t, w, held, held)
		}), nil, ""},
		{"admitted at another time than its record", row(held, func(r *booking.Row) { r.AdmittedAt += 1000 }), []string{saleops.RuleRecords}, "of C0001 is not what its row says: admitted: "},
		{"deadline and look in the year 2100", all(row(held, func(r *booking.Row) { r.Deadline = year2100 }), look(held, year2100)),
			[]string{saleops.RuleLookedAt}, "of C0001 is held, and nobody will look at it before 2100-01-01"},
		{"paying until the year 2100", all(row(held, func(r *booking.Row) { r.Phase, r.Owner, r.Ends = booking.PhasePaying, "p", year2100 }), look(held, year2100)),
			[]string{saleops.RuleLookedAt}, "of C0001 is paying, and nobody will look at it before 2100-01-01"},
		{"another payment than its record's", row(held, func(r *booking.Row) { r.Payment = "TR9" }), []string{saleops.RuleRecords}, "payment: TR000002, the ledger says TR9"},
		{"another level than its record's", func(t *testing.T, w *world, a, b bookingtest.Booking) {
			row(held, func(r *booking.Row) { r.Level = "N2" })(t, w, a, b)
			w.rdb.Decr(t.Context(), prefix+"adm:level:N1")
			w.rdb.Incr(t.Context(), prefix+"adm:level:N2")
		}, []string{saleops.RuleRecords}, "of C0001 is not what its row says: level: N1, the ledger says N2"},
		{"paid, with another amount and currency than its record's", row(paid, func(r *booking.Row) { r.Amount, r.Currency = 1, "XXX" }),
			[]string{saleops.RuleRecords}, "of C0002 is not what its row says: amount: 1500.00, the ledger says 0.01; currency: BDT, the ledger says XXX"},
		{"refused, with another amount than its record's", row(refused, func(r *booking.Row) { r.Amount = 1 }), []string{saleops.RuleRecords}, "of C0003 is not what its row says: amount"},
		{"refused row without record", func(t *testing.T, w *world, _, _ bookingtest.Booking) {
			w.exec(t, `DELETE FROM records WHERE candidate_hash = ?`, booking.CandidateHash(bookingtest.Code(refused)))
		}, []string{saleops.RuleRecords}, "of C0003 is refused, and has no record"},
		{"held record of a refused row that says it is ended", record(refused, "$.state", "HELD"), []string{saleops.RuleRecords}, "of C0003 is HELD, and its refused row says that it is ended"},
		{"row without record from the year 2100", func(t *testing.T, w *world, a, b bookingtest.Booking) {
			row(held, func(r *booking.Row) { r.AdmittedAt = year2100 })(t, w, a, b)
			w.exec(t, `DELETE FROM records WHERE attempt = ?`, a.Attempt)
		}, []string{saleops.RuleRecords}, "of C0001 is held, and has no record"},
		{"one attempt under two codes", func(t *testing.T, w *world, a, _ bookingtest.Booking) {
			w.setRow(t, "C0009", w.Row(t, a.Code))
			w.rdb.Incr(t.Context(), prefix+"adm:total")
			w.rdb.Incr(t.Context(), prefix+"adm:level:N1")
			w.rdb.ZAdd(t.Context(), prefix+"adm:due", redis.Z{Score: float64(a.Record.Deadline.UnixMilli()), Member: "C0009"})
		}, []string{saleops.RuleRecords}, "of C0009 is held, and has no record"},
		{"mail that the record does not know of", record(paid, "$.mail", "due"), []string{saleops.RuleLookedAt}, `of C0002 says that its mail is sent, and its record says "due"`},
		{"phase that is none", row(held, func(r *booking.Row) { r.Phase = "hold" }), []string{saleops.RuleUnreadable}, `row of C0001: phase "hold" is unknown`},
		{"attempt of another sale", row(held, func(r *booking.Row) { r.Attempt = "0000000aaaaa-0000000000aaaaaaaaaaaaaaaa" }),
			[]string{saleops.RuleUnreadable, saleops.RuleRecords}, "row of C0001: attempt"},
		{"held row without a payment", row(held, func(r *booking.Row) { r.Payment = "" }), []string{saleops.RuleUnreadable, saleops.RuleRecords}, "row of C0001: it is held, and its payment"},
		{"held row without a deadline", row(held, func(r *booking.Row) { r.Deadline = 0 }), []string{saleops.RuleUnreadable, saleops.RuleRecords}, "row of C0001: it is held, and has no deadline"},
		{"held row with a transaction", row(held, func(r *booking.Row) { r.Transaction = "TX1" }), []string{saleops.RuleUnreadable}, "row of C0001: it is held, and its transaction"},
		{"money of long ago, row held", func(t *testing.T, w *world, held, _ bookingtest.Booking) { w.Gateway.Complete(held.Payment.ID) },
			[]string{saleops.RuleMoney}, "of C0001, there is no refund of it, and its row is held"},
		{"doubt whose look is late", all(row(held, func(r *booking.Row) { r.Looks = 4 }), look(held, 1)),
			[]string{saleops.RuleDoubt, saleops.RuleLookedAt}, "of C0001 is in doubt after 4 extensions, and its look is"},
		{"doubt without a look", all(row(held, func(r *booking.Row) { r.Doubt = true }), func(t *testing.T, w *world, held, _ bookingtest.Booking) {
			w.rdb.ZRem(t.Context(), prefix+"adm:due", held.Code)
		}), []string{saleops.RuleDoubt, saleops.RuleLookedAt}, "of C0001 is in doubt after 0 extensions, and nobody will look at it"},
		{"doubt whose look is far off", all(row(held, func(r *booking.Row) { r.Looks = 1 }), look(held, year2100)),
			[]string{saleops.RuleDoubt, saleops.RuleLookedAt}, "in doubt after 1 extensions, and nobody will look at it before 2100-01-01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, held, paid := running(t)
			c.damage(t, w, held, paid)
			r := w.audit(t, withGateway())
			wantBroken(t, r, c.want...)
			var all []string
			for _, rule := range r.Rules {
				all = append(all, rule.Broken...)
			}
			if text := strings.Join(all, "\n"); !strings.Contains(text, c.text) {
				t.Errorf("told: got %q, want %q in it", text, c.text)
			}
		})
	}
}

func (w *world) setRow(t *testing.T, code string, row booking.Row) {
	t.Helper()
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.rdb.HSet(t.Context(), prefix+"adm:seen", code, raw).Err(); err != nil {
		t.Fatal(err)
	}
}

func (w *world) receive(t *testing.T) {
	t.Helper()
	if _, err := w.queue.Receive(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
}

func TestAudit_OverdueRowIsNamedByItsPhase(t *testing.T) {
	for phase, prepare := range map[booking.Phase]func(*testing.T, *world) string{
		booking.PhaseNew:     func(t *testing.T, w *world) string { return w.Admit(t, 5, "N1").Attempt },
		booking.PhasePayable: func(t *testing.T, w *world) string { b := w.Payable(t, 5, "N1"); w.Write(t, b); return b.Attempt },
		booking.PhaseHeld:    func(t *testing.T, w *world) string { return w.Held(t, 5, "N1").Attempt },
		booking.PhasePaying:  func(t *testing.T, w *world) string { return w.Paying(t, 5, "N1", "p", time.Minute).Attempt },
		booking.PhaseRefused: func(t *testing.T, w *world) string { return w.Refused(t, 5, "N1").Attempt },
		booking.PhasePaid: func(t *testing.T, w *world) string {
			b := w.Held(t, 5, "N1")
			w.Faults.Always(bookingtest.OpMail, bookingtest.Lost)
			w.pays(t, b)
			return b.Attempt
		},
	} {
		t.Run(string(phase), func(t *testing.T) {
			w := open(t)
			attempt := prepare(t, w)
			w.Clock.Advance(time.Minute)
			wantBroken(t, w.audit(t, saleops.AuditOptions{}))
			w.Clock.Advance(booking.DefaultHold + 2*time.Minute)
			r := w.audit(t, saleops.AuditOptions{})
			wantBroken(t, r, saleops.RuleLookedAt)
			got := rule(t, r, saleops.RuleLookedAt)
			if want := fmt.Sprintf("1 to be looked at, %s 1 late", phase); got.Figure != want || !strings.Contains(got.Broken[0], attempt+" of C0005 is "+string(phase)) {
				t.Errorf("looked-at: got %q, %q, want %q, the attempt and the code", got.Figure, got.Broken, want)
			}
		})
	}
}

func TestAudit_YoungDifferencesAreInFlight(t *testing.T) {
	w := open(t)
	w.Unwritten(t, 1, "N1")
	b := w.Held(t, 2, "N1")
	w.Faults.Next(bookingtest.OpMarkPaid, bookingtest.Lost)
	w.Gateway.Finish(b.Payment.ID)
	if err := w.settler.Return(t.Context(), b.Code, b.Attempt, b.Payment.ID); err == nil {
		t.Fatal("return whose record could not be written: got nil, want an error")
	}
	r := w.audit(t, withGateway())
	wantBroken(t, r)
	for _, code := range []string{saleops.RuleRecords, saleops.RulePaid} {
		if got := rule(t, r, code); got.InFlight != 1 {
			t.Errorf("%s: got %d in flight, want 1", code, got.InFlight)
		}
	}
	w.Clock.Advance(3 * time.Minute)
	wantBroken(t, w.audit(t, withGateway()), saleops.RuleRecords, saleops.RulePaid, saleops.RuleLookedAt)
}

// What the scripts leave of a row at every step breaks nothing, however young.
func TestAudit_EveryStepOfASeatIsClean(t *testing.T) {
	w := open(t)
	w.Admit(t, 1, "N1")
	w.Payable(t, 2, "N1")
	w.Unwritten(t, 3, "N1")
	w.Held(t, 4, "N1")
	w.Paying(t, 5, "N1", "p", time.Minute)
	w.Refused(t, 6, "N1")
	w.Refused(t, 7, "N2")
	w.Admit(t, 7, "N2") // takes the refused seat over
	w.Refused(t, 8, "N2")
	undone := w.Admit(t, 8, "N2")
	if err := w.Ledger.Undo(t.Context(), bookingtest.Code(8), undone.Attempt); err != nil {
		t.Fatal(err)
	}
	w.Refused(t, 9, "N2")
	w.Clock.Advance(20 * time.Second)
	w.Held(t, 9, "N2")
	broken := w.Paying(t, 10, "N1", "p", time.Minute)
	if err := w.Ledger.EndPay(t.Context(), broken.Code, broken.Attempt, "p", booking.PhaseRefused); err != nil {
		t.Fatal(err)
	}
	w.pays(t, w.Held(t, 11, "N1"))
	w.Faults.Always(bookingtest.OpMail, bookingtest.Lost)
	w.pays(t, w.Held(t, 12, "N1"))
	opts := withGateway()
	opts.Status = w.status(t, nil)
	for range 2 {
		r := w.audit(t, opts)
		wantBroken(t, r)
		if got := rule(t, r, saleops.RuleUnreadable).Figure; !strings.HasPrefix(got, "12 rows") {
			t.Errorf("unreadable: got %q, want 12 rows", got)
		}
		w.Clock.Advance(time.Minute)
	}
}

// Where people have long to pay, a row is looked at as late as that.
func TestAudit_LongHoldIsClean(t *testing.T) {
	w := empty(t)
	sale := big()
	sale.Hold = 2 * time.Hour
	w.Open(t, sale, 20)
	w.Held(t, 1, "N1")
	w.Refused(t, 2, "N1")
	w.Clock.Advance(3 * time.Minute)
	wantBroken(t, w.audit(t, withGateway()))
}

// Money that moved a moment ago waits for its seat; for more than two minutes it
// may not.
func TestAudit_MoneyWithoutItsSeatHasAnAge(t *testing.T) {
	w, held, _ := running(t)
	w.Faults.Always(bookingtest.OpSettle, bookingtest.Lost)
	w.Gateway.Finish(held.Payment.ID)
	if err := w.settler.Return(t.Context(), held.Code, held.Attempt, held.Payment.ID); err == nil {
		t.Fatal("return whose payment could not be settled: got nil, want an error")
	}
	r := w.audit(t, withGateway())
	wantBroken(t, r)
	if got := rule(t, r, saleops.RuleMoney); got.InFlight != 1 || got.Verdict != saleops.VerdictHolds {
		t.Errorf("money: got %s, %d in flight, want holds, 1", got.Verdict, got.InFlight)
	}
	w.Clock.Advance(3 * time.Minute)
	wantBroken(t, w.audit(t, withGateway()), saleops.RuleMoney, saleops.RuleLookedAt)
}

// A difference that is gone when it is looked at again was in flight.
func TestAudit_DifferenceThatGoesIsInFlight(t *testing.T) {
	w, held, _ := running(t)
	w.exec(t, `DELETE FROM records WHERE attempt = ?`, held.Attempt)
	waited := 0
	r := w.audit(t, saleops.AuditOptions{Wait: func(_ context.Context, d time.Duration) error {
		if waited++; waited == 2 {
			w.Write(t, held)
		}
		return nil
	}})
	wantBroken(t, r)
	if got := rule(t, r, saleops.RuleRecords); got.InFlight != 1 || waited != 2 {
		t.Errorf("records-and-rows: got %d in flight after %d pauses, want 1 after 2", got.InFlight, waited)
	}
}

// A payment that completes while the gateway is asked is no broken rule.
func TestAudit_PaymentWhileAskingIsInFlight(t *testing.T) {
	w, held, _ := running(t)
	hold := bookingtest.NewHold()
	w.Gateway.Next(bookingtest.Query, held.Payment.ID, bookingtest.Late(hold)) // says: open
	go func() {
		<-hold.Arrived()
		w.pays(t, held)
		hold.LetGo()
	}()
	wantBroken(t, w.audit(t, withGateway()))
	w.Want(t, held, booking.PhasePaid, booking.StatePaid)
}

func TestAudit_StatusDocument(t *testing.T) {
	for _, c := range []struct {
		name   string
		status func(t *testing.T, w *world) func(context.Context) ([]byte, error)
		want   []string
		text   string
	}{
		{"right", func(t *testing.T, w *world) func(context.Context) ([]byte, error) { return w.status(t, nil) }, nil, ""},
		{"stale", func(t *testing.T, w *world) func(context.Context) ([]byte, error) {
			return w.status(t, func(f *booking.Figures) { f.Version, f.Total, f.Levels[0].Admitted = 1, 2, 1 })
		}, []string{saleops.RuleStatus}, "left: 18, the ledger says 16"},
		{"says open", func(t *testing.T, w *world) func(context.Context) ([]byte, error) {
			return w.status(t, func(f *booking.Figures) { f.Version, f.Open = 1, false })
		}, []string{saleops.RuleStatus}, "open: false, the ledger says true"},
		{"published meanwhile", func(t *testing.T, w *world) func(context.Context) ([]byte, error) {
			n := 0
			return w.status(t, func(f *booking.Figures) {
				if n++; n < 3 {
					f.Total, f.Levels[0].Admitted = 2, 1
				}
			})
		}, nil, ""},
		{"none", func(*testing.T, *world) func(context.Context) ([]byte, error) {
			return func(context.Context) ([]byte, error) { return nil, booking.ErrNotFound }
		}, []string{saleops.RuleStatus}, "there is no status.json"},
		{"not readable", func(*testing.T, *world) func(context.Context) ([]byte, error) {
			return func(context.Context) ([]byte, error) { return []byte("<html>"), nil }
		}, []string{saleops.RuleStatus}, "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, _, _ := running(t)
			w.Held(t, 6, "N1")
			r := w.audit(t, saleops.AuditOptions{Status: c.status(t, w)})
			wantBroken(t, r, c.want...)
			if got := strings.Join(rule(t, r, saleops.RuleStatus).Broken, "\n"); !strings.Contains(got, c.text) {
				t.Errorf("told: got %q, want %q in it", got, c.text)
			}
		})
	}
}

func TestAudit_DoubtIsToldAndBreaksNothing(t *testing.T) {
	w, held, _ := running(t)
	for range 4 {
		if err := w.Ledger.Postpone(t.Context(), held.Code, held.Attempt, booking.PhaseHeld, 10*time.Minute, booking.CountLook); err != nil {
			t.Fatal(err)
		}
	}
	r := w.audit(t, saleops.AuditOptions{})
	wantBroken(t, r)
	want := "1 seats in doubt, 1 of them after more than 3 extensions, 0 not asked about in time"
	if got := rule(t, r, saleops.RuleDoubt).Figure; got != want {
		t.Errorf("doubt: got %q, want %q", got, want)
	}
}

func TestAudit_RecordsOfOtherSalesAreNotCompared(t *testing.T) {
	w, _, _ := running(t)
	w.lose(t)
	if _, err := w.Ledger.ApplySale(t.Context(), big(), booking.NewEpoch(w.Clock.Now()), false); err != nil {
		t.Fatal(err)
	}
	r := w.audit(t, saleops.AuditOptions{})
	wantBroken(t, r)
	if all := strings.Join(r.NotSeen, "\n"); !strings.Contains(all, "3 records of other sales") {
		t.Errorf("not seen: got %q, want the records of the other sale", all)
	}
}

func TestAudit_CouldNotBeMade(t *testing.T) {
	w, _, _ := running(t)
	for name, c := range map[string]struct {
		op   bookingtest.Op
		opts saleops.AuditOptions
	}{
		"records": {op: bookingtest.OpScan}, "rows": {op: bookingtest.OpRows},
		"refunds": {op: bookingtest.OpScanRefunds}, "notifications": {op: bookingtest.OpScanNotifications},
		"no rate for the gateway": {opts: saleops.AuditOptions{Gateway: true}},
	} {
		if c.op != "" {
			w.Faults.Next(c.op, bookingtest.Lost)
		}
		if _, err := w.ops.Audit(t.Context(), c.opts); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	w.lose(t)
	_, err := w.ops.Audit(t.Context(), saleops.AuditOptions{})
	wantErr(t, "audit of an empty ledger", err, booking.ErrLedgerUnknown)
}

// An emptied Redis, rebuilt: the audit is clean again.
func TestAudit_CleanAfterARebuild(t *testing.T) {
	w, held, _ := running(t)
	w.lose(t)
	w.mustRebuild(t)
	wantBroken(t, w.audit(t, withGateway()))
	w.resume(t)
	w.pays(t, held)
	w.Clock.Advance(time.Minute)
	wantBroken(t, w.audit(t, withGateway()))
}
