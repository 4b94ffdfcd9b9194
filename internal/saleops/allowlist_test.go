package saleops_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/saleops"
	"holdfast/internal/testenv"
)

// desk is an operator's process that loads the allowlist, over a ledger of its own
// and a client whose commands a test can stop.
type desk struct {
	*saleops.Ops
	gate   *admission.Gate
	faults *bookingtest.Faults
	rdb    *redis.Client
	prefix string
	clock  *bookingtest.Clock
	sold   sold
}

var desks atomic.Int64

// newDesk is a sale in force, closed, without candidates.
func newDesk(t *testing.T, addr string, acks int) *desk {
	t.Helper()
	d := &desk{prefix: fmt.Sprintf("{d%d}:", desks.Add(1)), clock: new(bookingtest.Clock)}
	d.connect(t, addr, acks)
	sale := big()
	sale.Cap, sale.Levels[0].Cap, sale.Levels[1].Cap = 2000, 2000, 2000
	if _, err := d.gate.ApplySale(t.Context(), sale, bookingtest.Epoch, false); err != nil {
		t.Fatal(err)
	}
	return d
}

// another is another process on the same ledger.
func (d *desk) another(t *testing.T, addr string, acks int) *desk {
	t.Helper()
	o := &desk{prefix: d.prefix, clock: d.clock}
	o.connect(t, addr, acks)
	return o
}

func (d *desk) connect(t *testing.T, addr string, acks int) {
	t.Helper()
	d.rdb = admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 16})
	t.Cleanup(func() { _ = d.rdb.Close() })
	keys, err := admission.NewKeys(d.prefix)
	if err != nil {
		t.Fatal(err)
	}
	d.gate, err = admission.New(d.rdb, admission.Options{
		Keys: keys, Acks: acks, ClockOffset: d.clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.faults = new(bookingtest.Faults)
	d.Ops = &saleops.Ops{
		Ledger: bookingtest.Ledger{LedgerDriver: d.gate, Faults: d.faults}, Store: &d.sold, Queue: &d.sold, Log: slog.New(slog.DiscardHandler),
	}
}

// onDesks runs the test in-process and on a replicated server of each engine.
func onDesks(t *testing.T, fn func(t *testing.T, addr string, acks int)) {
	t.Helper()
	t.Parallel()
	t.Run("InProcess", func(t *testing.T) { fn(t, testenv.Mini(t), 0) })
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) { fn(t, e.Pair(t).Primary.Addr(), 1) })
}

func (d *desk) mustLoad(t *testing.T, cs []booking.Candidate, opts saleops.AllowlistOptions) saleops.AllowlistReport {
	t.Helper()
	did, err := d.LoadAllowlist(t.Context(), list(cs), opts)
	if err != nil {
		t.Fatalf("load %d candidates: %v", len(cs), err)
	}
	if !did.Applied {
		t.Fatalf("load %d candidates: got %+v, want it applied", len(cs), did)
	}
	return did
}

func (d *desk) mustOpen(t *testing.T) {
	t.Helper()
	if err := d.gate.Open(t.Context()); err != nil {
		t.Fatalf("open: %v", err)
	}
}

// inForce is the list as admissions read it, and every key there is besides.
func (d *desk) inForce(t *testing.T) (listed map[string]string, others []string) {
	t.Helper()
	keys, err := d.rdb.Keys(t.Context(), d.prefix+"candidate*").Result()
	if err != nil {
		t.Fatal(err)
	}
	members, err := d.rdb.SMembers(t.Context(), d.prefix+"candidates:valid").Result()
	if err != nil {
		t.Fatal(err)
	}
	listed = map[string]string{}
	for _, code := range members {
		listed[code] = ""
	}
	for _, key := range keys {
		code, isEmail := strings.CutPrefix(key, d.prefix+"candidate:email:")
		if _, in := listed[code]; isEmail && in {
			listed[code] = d.rdb.Get(t.Context(), key).Val()
			continue
		}
		if name := strings.TrimPrefix(key, d.prefix); name != "candidates:valid" && name != "candidates:swaps" {
			others = append(others, name)
		}
	}
	sort.Strings(others)
	return listed, others
}

// wantList wants exactly these candidates in force, and nothing else left.
func (d *desk) wantList(t *testing.T, want []booking.Candidate, others ...string) {
	t.Helper()
	got, left := d.inForce(t)
	wanted := map[string]string{}
	for _, c := range want {
		wanted[c.Code] = c.Email
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("list in force (-want +got):\n%.2000s", diff)
	}
	if diff := cmp.Diff(others, left); diff != "" {
		t.Errorf("other keys of candidates (-want +got):\n%.2000s", diff)
	}
}

// check is what an admission would hear.
func (d *desk) check(t *testing.T, code, email string) error {
	t.Helper()
	_, err := d.gate.Admit(t.Context(), booking.Request{Code: code, Email: email, Level: "N1"}, booking.NewAttemptSuffix(time.Now()), true)
	return err
}

func (d *desk) mustBook(t *testing.T, c booking.Candidate) booking.Row {
	t.Helper()
	seat, err := d.gate.Admit(t.Context(), booking.Request{Code: c.Code, Email: c.Email, Level: "N1"}, booking.NewAttemptSuffix(time.Now()), false)
	if err != nil {
		t.Fatalf("admit %s: %v", c.Code, err)
	}
	return seat.Row
}

// people are candidates from to to, the e-mails of those in changed being new ones.
func people(from, to int, changed ...int) []booking.Candidate {
	var cs []booking.Candidate
	for i := from; i <= to; i++ {
		c := booking.Candidate{Code: bookingtest.Code(i), Email: bookingtest.Email(i)}
		if len(changed) == 2 && changed[0] <= i && i <= changed[1] {
			c.Email = "new-" + c.Email
		}
		cs = append(cs, c)
	}
	return cs
}

// The lists of most of these tests: 620 candidates, of whom 10 are removed, 10 get
// another e-mail, and 10 are added.
func before() []booking.Candidate { return people(1, 620) }
func after() []booking.Candidate  { return append(people(1, 610, 21, 30), people(701, 710)...) }

// seen is what admissions say of one of each kind: removed, changed, added and
// unchanged, with the old e-mail and with the new one. Booking is open.
func (d *desk) seen(t *testing.T) string {
	t.Helper()
	var words []string
	for _, i := range []int{1, 25, 615, 705} {
		for _, email := range []string{bookingtest.Email(i), "new-" + bookingtest.Email(i)} {
			switch err := d.check(t, bookingtest.Code(i), email); {
			case errors.Is(err, booking.ErrWouldAdmit):
				words = append(words, "yes")
			case errors.Is(err, booking.ErrInvalidCode):
				words = append(words, "no")
			case errors.Is(err, booking.ErrEmailMismatch):
				words = append(words, "mail")
			default:
				t.Fatalf("check %s: %v", bookingtest.Code(i), err)
			}
		}
	}
	return strings.Join(words, " ")
}

const (
	seenBefore = "yes mail yes mail yes mail no no"
	seenAfter  = "yes mail mail yes no no yes mail"
)

func TestLoadAllowlist_TellsTheDiff(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		first := saleops.AllowlistReport{Rows: 620, Added: 620, Applied: true}
		if diff := cmp.Diff(first, d.mustLoad(t, before(), saleops.AllowlistOptions{})); diff != "" {
			t.Errorf("first load (-want +got):\n%s", diff)
		}
		d.wantList(t, before())

		want := saleops.AllowlistReport{Rows: 620, Added: 10, Removed: 10, Changed: 10, Unchanged: 600}
		dry, err := d.DryRunAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
		if diff := cmp.Diff(want, dry); diff != "" || err != nil {
			t.Errorf("dry run: %v (-want +got):\n%s", err, diff)
		}
		d.wantList(t, before())

		var told []int
		want.Applied = true
		did := d.mustLoad(t, after(), saleops.AllowlistOptions{Progress: func(done int) { told = append(told, done) }})
		if diff := cmp.Diff(want, did); diff != "" {
			t.Errorf("second load (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int{250, 500, 620}, told); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
		d.wantList(t, after())

		same := saleops.AllowlistReport{Rows: 620, Unchanged: 620, Applied: true}
		if diff := cmp.Diff(same, d.mustLoad(t, after(), saleops.AllowlistOptions{})); diff != "" {
			t.Errorf("the same once more (-want +got):\n%s", diff)
		}
		none := saleops.AllowlistReport{Removed: 620, Applied: true}
		if diff := cmp.Diff(none, d.mustLoad(t, nil, saleops.AllowlistOptions{AllowRemovals: true})); diff != "" {
			t.Errorf("an empty list (-want +got):\n%s", diff)
		}
		d.wantList(t, nil)
	})
}

func TestLoadAllowlist_RowsTwiceCountOnceAndMustAgree(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, people(1, 20), saleops.AllowlistOptions{})
		all := people(1, 620, 1, 5)
		twice := append(slices.Concat(all[:3], all), all...)
		want := saleops.AllowlistReport{Rows: 620, Added: 600, Changed: 5, Unchanged: 15, Applied: true}
		if diff := cmp.Diff(want, d.mustLoad(t, twice, saleops.AllowlistOptions{})); diff != "" {
			t.Errorf("rows twice (-want +got):\n%s", diff)
		}
		d.wantList(t, all)
		for name, i := range map[string]int{"in one chunk": 499, "in an earlier one": 610, "of a new one": 700} {
			cs := append(people(1, 800), booking.Candidate{Code: bookingtest.Code(i), Email: "other@example.org"})
			_, err := d.LoadAllowlist(t.Context(), list(cs), saleops.AllowlistOptions{})
			wantErr(t, name, err, booking.ErrAllowlistRow)
			d.wantList(t, all)
		}
	})
}

var errLine = errors.New("line 700: a code is missing")

// broken is a list that ends with an error.
func broken(cs []booking.Candidate) iter.Seq2[booking.Candidate, error] {
	return func(yield func(booking.Candidate, error) bool) {
		for _, c := range cs {
			if !yield(c, nil) {
				return
			}
		}
		yield(booking.Candidate{}, errLine)
	}
}

// Each guard alone refuses, says so in a dry run too, and leaves nothing behind.
func TestLoadAllowlist_RefusalChangesNothing(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		nothing := func(*testing.T, *desk) {}
		open := func(t *testing.T, d *desk) { d.mustOpen(t) }
		for name, c := range map[string]struct {
			before, list []booking.Candidate
			make         func(t *testing.T, d *desk)
			seq          iter.Seq2[booking.Candidate, error]
			opts         saleops.AllowlistOptions
			want         error
			removed      int
			live         int
		}{
			"Open":      {before: before(), list: after(), make: open, want: saleops.ErrBookingOpen},
			"AnError":   {before: before(), seq: broken(after()), make: nothing, want: errLine},
			"Removals":  {before: people(1, 200), list: people(1, 189), make: nothing, want: saleops.ErrRemovals, removed: 11},
			"EmptyList": {before: people(1, 3), make: nothing, want: saleops.ErrRemovals, removed: 3},
			"LiveBooking": {
				before: people(1, 200), list: people(1, 199), want: saleops.ErrRemovals, removed: 1, live: 1,
				make: func(t *testing.T, d *desk) {
					d.mustOpen(t)
					d.mustBook(t, people(200, 200)[0])
					if err := d.gate.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				},
			},
			"ManyChangedWhileOpen": {
				before: people(1, 501), list: people(1, 501, 1, 501), make: open,
				opts: saleops.AllowlistOptions{WhileOpen: true}, want: booking.ErrAllowlistMany,
			},
			"ManyChangedWhileScheduled": {
				before: people(1, 501), list: people(1, 501, 1, 501), want: booking.ErrAllowlistMany,
				make: func(t *testing.T, d *desk) {
					if err := d.gate.OpenAt(t.Context(), time.Now().Add(time.Hour)); err != nil {
						t.Fatal(err)
					}
				},
			},
			"OpenedBySchedule": {
				before: before(), list: after(), want: saleops.ErrBookingOpen,
				make: func(t *testing.T, d *desk) {
					if err := d.gate.OpenAt(t.Context(), time.Now().Add(time.Minute)); err != nil {
						t.Fatal(err)
					}
					d.clock.Advance(time.Hour)
				},
			},
		} {
			t.Run(name, func(t *testing.T) {
				d := newDesk(t, addr, acks)
				d.mustLoad(t, c.before, saleops.AllowlistOptions{})
				c.make(t, d)
				seq := func() iter.Seq2[booking.Candidate, error] {
					if c.seq != nil {
						return c.seq
					}
					return list(c.list)
				}
				did, err := d.LoadAllowlist(t.Context(), seq(), c.opts)
				wantErr(t, "load", err, c.want)
				if did.Applied || (c.removed > 0 && did.Removed != c.removed) || did.LiveRemoved != c.live || len(did.LiveAttempts) != c.live {
					t.Errorf("report: got %+v, want %d removed, %d with a booking, not applied", did, c.removed, c.live)
				}
				if left := d.others(t); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
				d.clock.Advance(time.Minute)
				dry, err := d.DryRunAllowlist(t.Context(), seq(), c.opts)
				// What only the swap can refuse, a dry run does not see.
				if !errors.Is(c.want, booking.ErrAllowlistMany) {
					wantErr(t, "dry run", err, c.want)
				}
				if diff := cmp.Diff(did, dry); diff != "" {
					t.Errorf("figures of the dry run (-load +dry run):\n%s", diff)
				}
				got, _ := d.inForce(t)
				if len(got) != len(c.before) || got[c.before[0].Code] != c.before[0].Email {
					t.Errorf("list in force: got %d candidates, want the %d there were", len(got), len(c.before))
				}
			})
		}
	})
}

func (d *desk) others(t *testing.T) []string {
	t.Helper()
	_, others := d.inForce(t)
	return others
}

func TestLoadAllowlist_FivePerCentGoUnasked(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, people(1, 200), saleops.AllowlistOptions{})
		if did := d.mustLoad(t, people(1, 190), saleops.AllowlistOptions{}); did.Removed != 10 {
			t.Errorf("removed: got %d, want 10", did.Removed)
		}
		d.wantList(t, people(1, 190))
		d.mustLoad(t, people(1, 2), saleops.AllowlistOptions{AllowRemovals: true})
		d.wantList(t, people(1, 2))
	})
}

func TestLoadAllowlist_UnknownEpochStagesNothing(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		if err := d.rdb.Del(t.Context(), d.prefix+"adm:epoch").Err(); err != nil {
			t.Fatal(err)
		}
		for name, load := range map[string]func(context.Context, iter.Seq2[booking.Candidate, error], saleops.AllowlistOptions) (saleops.AllowlistReport, error){
			"load": d.LoadAllowlist, "dry run": d.DryRunAllowlist,
		} {
			read := 0
			_, err := load(t.Context(), func(yield func(booking.Candidate, error) bool) { read++ }, saleops.AllowlistOptions{})
			wantErr(t, name, err, booking.ErrLedgerUnknown)
			if read > 0 {
				t.Errorf("%s: the list was read", name)
			}
		}
		if got, left := d.inForce(t); len(got)+len(left) > 0 {
			t.Errorf("keys of candidates: got %v and %v, want none", got, left)
		}
	})
}

// killed is a client that is stopped at its nth command: it is not sent, or sent and
// its reply never seen. Nothing is sent after it.
type killed struct {
	at   int
	kept bool
	end  func() // ends the process's context: the dead repeat nothing

	mu   sync.Mutex
	sent int
}

var errKilled = errors.New("this process was killed")

// gone is what its calls end with: as if there were no server any more, which nobody
// waits for.
var gone = &net.OpError{Op: "dial", Net: "tcp", Err: errKilled}

func (k *killed) DialHook(next redis.DialHook) redis.DialHook { return next }

func (k *killed) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return k.pass(func() error { return next(ctx, cmd) }, cmd)
	}
}

func (k *killed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return k.pass(func() error { return next(ctx, cmds) }, cmds...)
	}
}

func (k *killed) pass(send func() error, cmds ...redis.Cmder) error {
	k.mu.Lock()
	k.sent++
	n := k.sent
	k.mu.Unlock()
	if n < k.at {
		return send()
	}
	if n == k.at && k.kept {
		_ = send()
	}
	k.end()
	for _, cmd := range cmds {
		cmd.SetErr(gone)
	}
	return gone
}

// persists makes a call again that a busy machine's replica was too slow for: there
// are hundreds.
func persists(t *testing.T, what string, call func() error) {
	t.Helper()
	for try := 1; ; try++ {
		err := call()
		if err == nil {
			return
		}
		if try == 5 || !errors.Is(err, booking.ErrNotAcknowledged) && !errors.Is(err, admission.ErrExpired) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// onEngines runs the test on a replicated server of each engine.
func onEngines(t *testing.T, fn func(t *testing.T, addr string)) {
	t.Helper()
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) { fn(t, e.Pair(t).Primary.Addr()) })
}

// atEveryStep loads a list again and again, by processes that are killed at their
// first command from one on, the next, and so on until one comes through.
func atEveryStep(t *testing.T, first int, fresh func(t *testing.T) (d, victim *desk), cs []booking.Candidate, opts saleops.AllowlistOptions, look func(t *testing.T, d *desk)) {
	t.Helper()
	for _, kept := range []bool{false, true} {
		for at := first; ; at++ {
			d, victim := fresh(t)
			ctx, end := context.WithCancel(t.Context())
			victim.rdb.AddHook(&killed{at: at, kept: kept, end: end})
			_, err := victim.LoadAllowlist(ctx, list(cs), opts)
			end()
			what := fmt.Sprintf("killed at command %d, sent %t", at, kept)
			if err == nil {
				if at < first+15 {
					t.Fatalf("%s: it came through", what)
				}
				break
			}
			if !errors.Is(err, errKilled) && !errors.Is(err, booking.ErrNotAcknowledged) {
				t.Fatalf("%s: got %v, want it killed", what, err)
			}
			look(t, d)
			d.clock.Advance(31 * time.Second) // its turn lapses
			persists(t, what+", run again", func() error {
				_, err := d.LoadAllowlist(t.Context(), list(cs), opts)
				return err
			})
			d.wantList(t, cs)
			if t.Failed() {
				t.Fatal(what)
			}
		}
	}
}

func TestLoadAllowlist_KilledAtAnyStepLeavesOneListAndIsCompletedByTheNext(t *testing.T) {
	onEngines(t, func(t *testing.T, addr string) {
		saw := map[string]int{}
		atEveryStep(t, 1, func(t *testing.T) (*desk, *desk) {
			d := newDesk(t, addr, 1)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			d.mustOpen(t)
			return d, d.another(t, addr, 1)
		}, after(), saleops.AllowlistOptions{WhileOpen: true}, func(t *testing.T, d *desk) {
			got := d.seen(t)
			if got != seenBefore && got != seenAfter {
				t.Errorf("admissions: got %q, want the list before %q or after %q", got, seenBefore, seenAfter)
			}
			saw[got]++
		})
		if saw[seenBefore] < 10 || saw[seenAfter] < 10 {
			t.Errorf("seen: got %v, want some steps before and some after", saw)
		}
	})
}

// More e-mails than one step can change: booking cannot be opened on half of them.
func TestLoadAllowlist_KilledWithHalfOfTheEmailsKeepsBookingClosed(t *testing.T) {
	onEngines(t, func(t *testing.T, addr string) {
		const halfway = 17 // commands that a load sends before its e-mails begin to change, or fewer
		half, changed := 0, people(1, 600, 1, 560)
		first, last := changed[0], changed[559]
		atEveryStep(t, halfway, func(t *testing.T) (*desk, *desk) {
			d := newDesk(t, addr, 1)
			persists(t, "the list before", func() error { return d.gate.AddCandidates(t.Context(), people(1, 600)) })
			return d, d.another(t, addr, 1)
		}, changed, saleops.AllowlistOptions{}, func(t *testing.T, d *desk) {
			refused := false
			persists(t, "open", func() error {
				err := d.gate.Open(t.Context())
				if refused = errors.Is(err, booking.ErrAllowlistHalf); refused {
					return nil
				}
				return err
			})
			if refused {
				half++
				wantErr(t, "schedule", d.gate.OpenAt(t.Context(), time.Now().Add(time.Second)), booking.ErrAllowlistHalf)
				wantErr(t, "check", d.check(t, first.Code, first.Email), booking.ErrNotOpen)
			} else if a, b := d.check(t, first.Code, first.Email), d.check(t, last.Code, last.Email); !errors.Is(a, b) {
				t.Errorf("the first and the last of the changed: got %v and %v, want the same", a, b)
			}
			persists(t, "close", func() error { return d.gate.Close(t.Context()) })
		})
		if half < 6 {
			t.Errorf("steps with half of the e-mails: got %d, want several", half)
		}
	})
}

func TestLoadAllowlist_AContextThatEndsLetsTheNextBeginAtOnce(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		for _, op := range []bookingtest.Op{
			bookingtest.OpClearAllowlist, bookingtest.OpStageAllowlist, bookingtest.OpSwapAllowlist, bookingtest.OpEndAllowlist,
		} {
			d := newDesk(t, addr, acks)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			d.faults.Before(op, cancel)
			_, err := d.LoadAllowlist(ctx, list(after()), saleops.AllowlistOptions{})
			wantErr(t, string(op), err, context.Canceled)
			did := d.mustLoad(t, after(), saleops.AllowlistOptions{})
			if did.Finished != (op == bookingtest.OpEndAllowlist) {
				t.Errorf("%s: finished an earlier one: got %t", op, did.Finished)
			}
			d.wantList(t, after())
		}
	})
}

func TestLoadAllowlist_TheSecondOfTwoIsRefused(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		other, n := d.another(t, addr, acks), 0
		began := time.Now()
		second := func(opts saleops.AllowlistOptions) {
			n++
			_, err := other.LoadAllowlist(t.Context(), list(after()), opts)
			wantErr(t, "load beside another", err, saleops.ErrLoadRunning)
			if text := fmt.Sprint(err); !strings.Contains(text, "by the first") || !strings.Contains(text, "since "+began.UTC().Format("2006-01-02T15:")) {
				t.Errorf("load beside another: got %q, want whose and since when", text)
			}
			_, err = other.DryRunAllowlist(t.Context(), list(after()), opts)
			wantErr(t, "dry run beside another", err, saleops.ErrLoadRunning)
		}
		for _, op := range []bookingtest.Op{
			bookingtest.OpClearAllowlist, bookingtest.OpStageAllowlist, bookingtest.OpSwapAllowlist, bookingtest.OpEndAllowlist,
		} {
			d.faults.Before(op, func() { second(saleops.AllowlistOptions{Who: "the second"}) })
		}
		d.mustLoad(t, before(), saleops.AllowlistOptions{Who: "the first"})
		if n != 4 {
			t.Errorf("loads beside it: got %d, want 4", n)
		}
		d.wantList(t, before())
		if did, err := other.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{}); err != nil || !did.Applied {
			t.Errorf("after its end: got %+v, %v, want it applied", did, err)
		}
	})
}

// A load that was silent for longer than its lease, and finds that another took its
// turn, changes nothing, wherever it stopped.
func TestLoadAllowlist_OneThatLapsedAndWakesChangesNothing(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		for _, op := range []bookingtest.Op{
			bookingtest.OpClearAllowlist, bookingtest.OpStageAllowlist, bookingtest.OpSwapAllowlist, bookingtest.OpEndAllowlist,
		} {
			d := newDesk(t, addr, acks)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			other, theirs := d.another(t, addr, acks), people(1, 700, 600, 605)
			d.faults.Before(op, func() {
				d.clock.Advance(31 * time.Second)
				other.mustLoad(t, theirs, saleops.AllowlistOptions{AllowRemovals: true})
			})
			_, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
			if op != bookingtest.OpEndAllowlist { // its list was in force, and the other one's came after it
				wantErr(t, string(op), err, booking.ErrAllowlistTurn)
			} else if err != nil {
				t.Errorf("%s: %v", op, err)
			}
			d.wantList(t, theirs)
		}
	})
}

// Nor does it while the other one is still at work.
func TestLoadAllowlist_OneThatLapsedDoesNotDisturbTheOther(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, before(), saleops.AllowlistOptions{})
		other, theirs := d.another(t, addr, acks), people(1, 700, 600, 605)
		next, stop := iter.Pull2(list(after()))
		defer stop()
		slow := func(yield func(booking.Candidate, error) bool) {
			for n := 0; ; n++ {
				c, err, ok := next()
				if !ok || !yield(c, err) {
					return
				}
				if n != 510 {
					continue
				}
				d.clock.Advance(31 * time.Second)
				other.faults.Before(bookingtest.OpSwapAllowlist, func() {
					for range 110 {
						c, _, _ := next()
						yield(c, nil)
					}
					stop()
				})
				other.mustLoad(t, theirs, saleops.AllowlistOptions{})
			}
		}
		_, err := d.LoadAllowlist(t.Context(), slow, saleops.AllowlistOptions{})
		wantErr(t, "the first", err, booking.ErrAllowlistTurn)
		d.wantList(t, theirs)
	})
}

func TestLoadAllowlist_NotAcknowledgedSaysSoAndARepeatCompletes(t *testing.T) {
	t.Parallel()
	for op, says := range map[bookingtest.Op]string{
		bookingtest.OpBeginAllowlist: "nothing was changed",
		bookingtest.OpStageAllowlist: "nothing was changed",
		bookingtest.OpSwapAllowlist:  "nobody knows",
		bookingtest.OpEndAllowlist:   "the list is in force",
	} {
		t.Run(strings.ReplaceAll(string(op), " ", "_"), func(t *testing.T) {
			t.Parallel()
			pair := testenv.Pair(t)
			d := newDesk(t, pair.Primary.Addr(), 1)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			var frozen time.Time
			d.faults.Before(op, func() {
				if err := pair.Replicas[0].Freeze(); err != nil {
					t.Error(err)
				}
				frozen = time.Now()
			})
			did, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
			took := time.Since(frozen)
			wantErr(t, string(op), err, booking.ErrNotAcknowledged)
			if !strings.Contains(fmt.Sprint(err), says) || did.Applied != (op == bookingtest.OpEndAllowlist) {
				t.Errorf("got %v, applied %t, want it to say %q", err, did.Applied, says)
			}
			// Its patience, the last try, and a word to give the turn up.
			if took < 3*time.Second || took > 8*time.Second {
				t.Errorf("it gave up after %s, want it to try for some seconds and no longer", took)
			}
			if err := pair.Replicas[0].Thaw(); err != nil {
				t.Fatal(err)
			}
			persists(t, "run again", func() error {
				_, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
				return err
			})
			d.wantList(t, after())
		})
	}
}

// ledgerSteps are the steps of a load, in their order.
var ledgerSteps = []bookingtest.Op{
	bookingtest.OpBeginAllowlist, bookingtest.OpClearAllowlist, bookingtest.OpStageAllowlist, bookingtest.OpSwapAllowlist, bookingtest.OpEndAllowlist,
}

// wantAfter wants the load to have gone through with the figures of after() over
// before().
func (d *desk) wantAfter(t *testing.T, did saleops.AllowlistReport, err error) {
	t.Helper()
	want := saleops.AllowlistReport{Rows: 620, Added: 10, Removed: 10, Changed: 10, Unchanged: 600, Applied: true}
	if diff := cmp.Diff(want, did); diff != "" || err != nil {
		t.Errorf("load: %v, report (-want +got):\n%s", err, diff)
	}
	d.wantList(t, after())
}

func TestLoadAllowlist_ReplicaThatComesBackIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, op := range ledgerSteps {
		t.Run(strings.ReplaceAll(string(op), " ", "_"), func(t *testing.T) {
			t.Parallel()
			pair := testenv.Pair(t)
			d := newDesk(t, pair.Primary.Addr(), 1)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			if op == bookingtest.OpStageAllowlist {
				d.faults.Before(op, func() {}) // at the second chunk
			}
			thawed := make(chan error, 1)
			d.faults.Before(op, func() {
				if err := pair.Replicas[0].Freeze(); err != nil {
					t.Error(err)
				}
				time.AfterFunc(2*time.Second, func() { thawed <- pair.Replicas[0].Thaw() })
			})
			did, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
			select {
			case err := <-thawed:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error("the load ended before the replica was back")
			}
			d.wantAfter(t, did, err)
		})
	}
}

func TestLoadAllowlist_CutConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	for i, op := range ledgerSteps {
		t.Run(strings.ReplaceAll(string(op), " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := testenv.Engines()[0].Shard(t, 1)
			d := newDesk(t, s.Front.Addr(), 1)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			d.faults.Before(op, func() {
				if s.Front.Cut(); i%2 == 0 {
					s.Front.DropReplies() // the step is made, and nobody hears of it
				}
				time.AfterFunc(2*time.Second, func() { s.Front.Forward(); s.Front.Reset() })
			})
			did, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
			d.wantAfter(t, did, err)
		})
	}
}

// A load whose caller stops waiting does not go on to the end of its patience.
func TestLoadAllowlist_CallersEndIsNotWaitedThrough(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	d := newDesk(t, pair.Primary.Addr(), 1)
	d.mustLoad(t, before(), saleops.AllowlistOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var ended atomic.Int64
	d.faults.Before(bookingtest.OpStageAllowlist, func() {
		if err := pair.Replicas[0].Freeze(); err != nil {
			t.Error(err)
		}
		time.AfterFunc(time.Second, func() { ended.Store(time.Now().UnixNano()); cancel() })
	})
	_, err := d.LoadAllowlist(ctx, list(after()), saleops.AllowlistOptions{})
	if took := time.Since(time.Unix(0, ended.Load())); err == nil || took > 2500*time.Millisecond {
		t.Errorf("got %v %s after the caller's end, want an error within 2.5 s", err, took)
	}
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	d.wantAfter(t, d.mustLoad(t, after(), saleops.AllowlistOptions{}), nil)
}

// A replica that has acknowledged takes over, before the swap, after it, or with part
// of the list staged.
func TestLoadAllowlist_FailoverLeavesOneListAndARepeatCompletes(t *testing.T) {
	t.Parallel()
	testenv.OnEngines(t, func(t *testing.T, e testenv.Engine) {
		for _, op := range []bookingtest.Op{bookingtest.OpStageAllowlist, bookingtest.OpSwapAllowlist, bookingtest.OpEndAllowlist} {
			t.Run(strings.ReplaceAll(string(op), " ", "_"), func(t *testing.T) {
				s := e.Shard(t, 2)
				d := newDesk(t, s.Front.Addr(), 1)
				d.mustLoad(t, before(), saleops.AllowlistOptions{})
				d.mustOpen(t)
				if op == bookingtest.OpStageAllowlist {
					d.faults.Before(op, func() {}) // at the second chunk
				}
				d.faults.Before(op, func() { s.Failover(t) })
				did, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{WhileOpen: true})
				t.Logf("over a failover at %q: %+v, %v", op, did, err)
				if got := d.seen(t); got != seenBefore && got != seenAfter || (did.Applied && got != seenAfter) {
					t.Errorf("admissions after the failover: got %q, applied %t", got, did.Applied)
				}
				d.clock.Advance(31 * time.Second)
				d.mustLoad(t, after(), saleops.AllowlistOptions{WhileOpen: true})
				d.wantList(t, after())
			})
		}
	})
}

// While it is loaded, nobody who is on both lists hears a no.
func TestLoadAllowlist_WhileOpenRefusesNobodyWhoStays(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, before(), saleops.AllowlistOptions{})
		d.mustOpen(t)
		loaded := make(chan struct{})
		var work sync.WaitGroup
		var booked atomic.Int64
		for lane := range 4 {
			work.Go(func() {
				buyer := d.another(t, addr, acks)
				for i := 31 + lane; i <= 600; i += 4 {
					_, err := buyer.gate.Admit(t.Context(), booking.Request{Code: bookingtest.Code(i), Email: bookingtest.Email(i), Level: "N1"}, booking.NewAttemptSuffix(time.Now()), false)
					if err != nil {
						t.Errorf("admit %s: %v", bookingtest.Code(i), err)
						return
					}
					booked.Add(1)
					select {
					case <-loaded:
						return
					default:
					}
				}
			})
		}
		did := d.mustLoad(t, after(), saleops.AllowlistOptions{WhileOpen: true})
		close(loaded)
		work.Wait()
		if did.LiveRemoved != 0 || booked.Load() == 0 {
			t.Errorf("%d booked, %d live removed, want some and none", booked.Load(), did.LiveRemoved)
		}
		if got := d.seen(t); !strings.HasSuffix(got, strings.TrimPrefix(seenAfter, "yes mail ")) {
			t.Errorf("admissions: got %q, want %q", got, seenAfter)
		}
	})
}

// A candidate who is removed and books before the swap keeps the seat, is told of, and
// keeps the e-mail as long as there is a booking.
func TestLoadAllowlist_RemovedCandidateWhoBooksIsTold(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, before(), saleops.AllowlistOptions{})
		d.mustOpen(t)
		removed := people(615, 615)[0]
		var row booking.Row
		d.faults.Before(bookingtest.OpSwapAllowlist, func() { row = d.mustBook(t, removed) })
		did := d.mustLoad(t, after(), saleops.AllowlistOptions{WhileOpen: true})
		if did.LiveRemoved != 1 || did.Kept != 1 || !slices.Equal(did.LiveAttempts, []string{row.Attempt}) {
			t.Errorf("report: got %+v, want one live booking, %s", did, row.Attempt)
		}
		d.wantList(t, after(), "candidate:email:"+removed.Code, "candidates:kept")
		var dup *booking.DuplicateError
		if err := d.check(t, removed.Code, removed.Email); !errors.As(err, &dup) || dup.Row != row {
			t.Errorf("the removed one again: got %v, want the booking", err)
		}
		if did := d.mustLoad(t, after(), saleops.AllowlistOptions{WhileOpen: true}); did.LiveRemoved != 0 || did.Kept != 1 {
			t.Errorf("loaded again: got %+v, want one kept", did)
		}
		if err := d.gate.Undo(t.Context(), removed.Code, row.Attempt); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "without a seat", d.check(t, removed.Code, removed.Email), booking.ErrInvalidCode)
		if did := d.mustLoad(t, after(), saleops.AllowlistOptions{WhileOpen: true}); did.Kept != 0 {
			t.Errorf("loaded once more: got %+v, want none kept", did)
		}
		d.wantList(t, after())
	})
}

// Who comes back onto the list with another e-mail gets it with the list, not before.
func TestLoadAllowlist_KeptCandidateComesBack(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, people(1, 20), saleops.AllowlistOptions{})
		d.mustOpen(t)
		row := d.mustBook(t, people(20, 20)[0])
		allowed := saleops.AllowlistOptions{WhileOpen: true, AllowRemovals: true}
		if did := d.mustLoad(t, people(1, 19), allowed); did.LiveRemoved != 1 || did.Kept != 1 {
			t.Errorf("removed: got %+v, want one kept", did)
		}
		again := people(1, 20, 20, 20)
		d.faults.Before(bookingtest.OpSwapAllowlist, func() {
			if email, err := d.gate.Email(t.Context(), again[19].Code); email != bookingtest.Email(20) || err != nil {
				t.Errorf("e-mail before the swap: got %q, %v, want the old one", email, err)
			}
		})
		if did := d.mustLoad(t, again, allowed); did.Added != 1 || did.Changed != 0 || did.Kept != 0 {
			t.Errorf("back: got %+v, want one added, none kept", did)
		}
		d.wantList(t, again)
		if got, _, err := d.gate.Row(t.Context(), again[19].Code); got != row || err != nil {
			t.Errorf("seat: got %+v, %v, want %+v", got, err, row)
		}
	})
}

// What is staged and what is sent must be the same, and the list in force the one
// that was compared with.
func TestLoadAllowlist_TornStagingIsNeverPutInForce(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		for name, tear := range map[string]func(d *desk) error{
			"a code is gone": func(d *desk) error {
				return d.rdb.SRem(t.Context(), d.prefix+"candidates:next", bookingtest.Code(5)).Err()
			},
			"an e-mail is gone": func(d *desk) error {
				return d.rdb.HDel(t.Context(), d.prefix+"candidates:next:email", bookingtest.Code(25)).Err()
			},
			"a chunk is gone":    func(d *desk) error { return d.rdb.HSet(t.Context(), d.prefix+"candidates:load", "chunks", 1).Err() },
			"the list was added": func(d *desk) error { return d.gate.AddCandidates(t.Context(), people(900, 900)) },
		} {
			d := newDesk(t, addr, acks)
			d.mustLoad(t, before(), saleops.AllowlistOptions{})
			d.faults.Before(bookingtest.OpSwapAllowlist, func() {
				if err := tear(d); err != nil {
					t.Error(err)
				}
			})
			did, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
			wantErr(t, name, err, booking.ErrAllowlistTorn)
			if got, _ := d.inForce(t); did.Applied || got[bookingtest.Code(25)] != bookingtest.Email(25) {
				t.Errorf("%s: applied %t, the list in force has %q", name, did.Applied, got[bookingtest.Code(25)])
			}
		}
	})
}

// Opened while the list was read: the swap itself looks again.
func TestLoadAllowlist_OpenedMeanwhileIsRefused(t *testing.T) {
	onDesks(t, func(t *testing.T, addr string, acks int) {
		d := newDesk(t, addr, acks)
		d.mustLoad(t, before(), saleops.AllowlistOptions{})
		d.faults.Before(bookingtest.OpSwapAllowlist, func() { d.mustOpen(t) })
		did, err := d.LoadAllowlist(t.Context(), list(after()), saleops.AllowlistOptions{})
		wantErr(t, "load", err, saleops.ErrBookingOpen)
		if got := d.seen(t); got != seenBefore || did.Applied {
			t.Errorf("admissions: got %q, applied %t, want the list before", got, did.Applied)
		}
		d.wantList(t, before())
	})
}
