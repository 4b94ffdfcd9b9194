package seatctl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mockgateway"
	"holdfast/internal/refund"
	"holdfast/internal/seatctl"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

// refunds are refunds that go as they are told to.
type refunds struct {
	open  []booking.Refund
	errs  map[string]error // of Send, and of what is unreadable
	doubt error
	sent  []string
	by    string
	note  string
	log   oplog
}

func (f *refunds) List(context.Context) iter.Seq2[booking.Refund, error] {
	return func(yield func(booking.Refund, error) bool) {
		for _, r := range f.open {
			var err error
			if errors.Is(f.errs[r.Transaction], booking.ErrUnreadable) {
				err = f.errs[r.Transaction]
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

func (f *refunds) Send(_ context.Context, transaction string) (booking.Refund, error) {
	f.sent = append(f.sent, transaction)
	r := owed(transaction)
	if err := f.errs[transaction]; err != nil {
		r.ClaimUntil = time.Date(2026, 12, 1, 4, 2, 0, 0, time.UTC)
		return r, err
	}
	r.State, r.DoneBy, r.RefundTransaction = booking.RefundDone, refund.ByGateway, "R"+transaction
	return r, nil
}

func (f *refunds) SettleByHand(_ context.Context, transaction, by, note string) (refund.Settled, error) {
	f.by, f.note = by, note
	r := owed(transaction)
	r.State, r.DoneBy = booking.RefundDone, by
	return refund.Settled{Refund: r, Doubt: f.doubt}, f.errs[transaction]
}

func owed(transaction string) booking.Refund {
	return booking.Refund{
		Version: booking.RefundVersion, Transaction: transaction, PaymentID: "TR" + transaction,
		CandidateHash: booking.CandidateHash("AB-100001"), Attempt: "1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd", Level: "N1",
		Amount: 150000, Currency: "BDT", Kind: booking.MoneyLate, Reason: "full", State: booking.RefundDue,
		DecidedAt: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC),
	}
}

func (f *refunds) run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	code, stdout, stderr := seatctl.Refunds(t.Context(), f, &f.log, stdin, args...)
	return result{code, stdout, stderr}
}

func TestRefundsList_ShowsWhatIsOwed(t *testing.T) {
	t.Parallel()
	(&refunds{}).run(t, "", "list").want(t, 0, "no refund is open")
	wait := owed("CK2")
	wait.State, wait.SentAt, wait.Trouble = booking.RefundSent, wait.DecidedAt, "refused with\ncode 2023"
	f := &refunds{open: []booking.Refund{owed("CK1"), wait}}
	f.run(t, "", "list").want(t, 0, "TRANSACTION", "CK1", "1500.00 BDT", "late", "2026-12-01T04:00:00Z", "refused with code 2023", "2 open: 3000.00 BDT")

	var got struct{ Refunds []booking.Refund }
	r := f.run(t, "", "list", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || len(got.Refunds) != 2 || got.Refunds[1].Trouble != wait.Trouble {
		t.Errorf("list --json: got %s, %v, want both refunds", r.stdout, err)
	}
	(&refunds{}).run(t, "", "list", "--json").want(t, 0, `"refunds": []`)

	f.errs = map[string]error{"CK1": fmt.Errorf("refund of CK1: %w", booking.ErrUnreadable)}
	f.run(t, "", "list").want(t, 1, "1 open: 1500.00 BDT", "refund of CK1")
}

func TestRefundsRetry_SaysWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	f := &refunds{open: []booking.Refund{owed("CK1"), owed("CK2"), owed("CK3")}}
	f.run(t, "", "retry", "CK1").want(t, 0, "CK1  done by gateway, 1500.00 BDT, refund transaction RCK1")
	f.run(t, "", "retry", "--all").want(t, 0, "3 refunds are open, 4500.00 BDT", "RCK1", "RCK2", "RCK3")

	f.errs = map[string]error{"CK1": refund.ErrPerson, "CK2": refund.ErrBusy}
	f.run(t, "", "retry", "--all").want(t, 1, "RCK3", "CK1: "+refund.ErrPerson.Error(), "CK2: "+refund.ErrBusy.Error()+", until 2026-12-01T04:02:00Z")
	var got struct {
		Refunds []struct {
			Transaction, Error string
			Done               bool
		}
	}
	r := f.run(t, "", "retry", "--all", "--json")
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != 1 || len(got.Refunds) != 3 || got.Refunds[0].Error == "" || got.Refunds[0].Done || !got.Refunds[2].Done {
		t.Errorf("retry --all --json: got %d %s, %v, want 1 and three refunds, the last one done", r.code, r.stdout, err)
	}
}

func TestRefundsRetry_EndsWhenTheGatewayIsOutOfReach(t *testing.T) {
	t.Parallel()
	f := &refunds{
		open: []booking.Refund{owed("CK1"), owed("CK2"), owed("CK3")},
		errs: map[string]error{"CK1": booking.ErrNotSent},
	}
	f.run(t, "", "retry", "--all").want(t, 1, "CK1: "+booking.ErrNotSent.Error(), "2 more were not begun")
	if len(f.sent) != 1 {
		t.Errorf("sent: got %v, want CK1 alone", f.sent)
	}
}

func TestRefundsSettle_WantsAYes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stdin string
		args  []string
		code  int
	}{
		"yes":     {"y\n", nil, 0},
		"in full": {"Yes\n", nil, 0},
		"no":      {"n\n", nil, 1},
		"return":  {"\n", nil, 1},
		"nobody":  {"", nil, 1},
		"told":    {"", []string{"--yes"}, 0},
	} {
		f := &refunds{}
		r := f.run(t, c.stdin, append([]string{"settle", "CK1", "--reason", " bank transfer "}, c.args...)...)
		if want := c.code == 0; r.code != c.code || (f.note == "bank transfer" && f.by == "alice") != want {
			t.Errorf("%s: got %+v, by %q because %q, want code %d", name, r, f.by, f.note, c.code)
		}
	}
}

func TestRefundsSettle_SaysWhatIsLeftOpen(t *testing.T) {
	t.Parallel()
	f := &refunds{doubt: errors.New("the gateway could not be asked")}
	f.run(t, "", "settle", "CK1", "--reason", "cash", "--yes").want(t, 1, "CK1  done by alice", "it is settled, but the gateway could not be asked")
	f.run(t, "", "settle", "CK1", "--reason", "cash", "--yes", "--json").want(t, 1, `"doubt": "the gateway could not be asked"`)
	f = &refunds{errs: map[string]error{"CK1": refund.ErrDone, "CK2": refund.ErrBusy}}
	f.run(t, "", "settle", "CK1", "--reason", "cash", "--yes").want(t, 1, "done already, by alice", "nothing was changed")
	f.run(t, "", "settle", "CK2", "--reason", "cash", "--yes").want(t, 1, "not settled", refund.ErrBusy.Error())
}

func TestRefundsRetry_LogsEach(t *testing.T) {
	t.Parallel()
	f := &refunds{
		open: []booking.Refund{owed("CK1"), owed("CK2"), owed("CK3"), owed("CK4")},
		errs: map[string]error{"CK2": refund.ErrBusy, "CK3": booking.ErrInDoubt, "CK4": refund.ErrPerson},
	}
	f.run(t, "", "retry", "--all").want(t, 1, "RCK1")
	f.log.want(t,
		`alice: refunds retry CK1 begun {"state":"due","attempt":"1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd","amount":"1500.00 BDT"}`,
		`alice: refunds retry CK1 done {"state":"done","attempt":"1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd","amount":"1500.00 BDT","done_by":"gateway","refund_transaction":"RCK1"}`,
		`CK2 begun`, `CK2 refused`, `CK3 begun`, `CK3 unknown`, `CK4 begun`, `CK4 failed`)

	// Without the log nothing goes back: not the first, and none after one whose end is
	// not logged.
	f = &refunds{open: f.open, log: oplog{room: 0, full: true}}
	f.run(t, "", "retry", "--all").want(t, 2, "nothing was changed", "log is full")
	f.run(t, "", "retry", "CK1").want(t, 2, "nothing was changed")
	if len(f.sent) != 0 {
		t.Errorf("sent without a log: got %v, want none", f.sent)
	}
	f = &refunds{open: f.open, log: oplog{room: 1, full: true}}
	f.run(t, "", "retry", "--all").want(t, 1, "CK1  done by gateway", "CK1: it was done, but the operator's log does not have its end", "3 were not begun")
	if len(f.sent) != 1 {
		t.Errorf("sent while the log has room for one entry: got %v, want CK1 alone", f.sent)
	}
}

func TestRefundsSettle_LogsWhoAndWhy(t *testing.T) {
	t.Parallel()
	f := &refunds{open: []booking.Refund{owed("CK1")}, errs: map[string]error{"CK2": refund.ErrDone, "CK3": refund.ErrBusy, "CK4": context.Canceled}}
	for _, transaction := range []string{"CK1", "CK2", "CK3", "CK4"} {
		f.run(t, "", "settle", transaction, "--reason", " bank transfer ", "--yes")
	}
	f.run(t, "n\n", "settle", "CK5", "--reason", "cash")
	f.log.want(t, `alice: refunds settle CK1 (bank transfer) begun {"state":"due"`, `alice: refunds settle CK1 (bank transfer) done {"state":"done"`,
		`CK2 (bank transfer) begun`, `CK2 (bank transfer) refused`, `CK3 (bank transfer) begun`, `CK3 (bank transfer) refused`,
		`CK4 (bank transfer) begun`, `CK4 (bank transfer) unknown`)

	f = &refunds{log: oplog{room: 1, full: true}}
	f.run(t, "", "settle", "CK1", "--reason", "cash", "--yes").want(t, 1, "CK1  done by alice", "it was done, but the operator's log does not have its end")
}

func TestRefunds_SayWhyTheyCannotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no command":    {nil, "list"},
		"nothing named": {[]string{"retry"}, "name one TRANSACTION"},
		"both named":    {[]string{"retry", "CK1", "--all"}, "name one TRANSACTION"},
		"no reason":     {[]string{"settle", "CK1"}, "--reason"},
		"blank reason":  {[]string{"settle", "CK1", "--reason", " "}, "say how and why"},
		"no deployment": {[]string{"list"}, "data folder"},
	} {
		code, stdout, stderr := seatctl.RunRefunds(t.Context(), "", "", c.args...)
		if code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: got %d %s%s, want 2 and %q", name, code, stdout, stderr, c.want)
		}
	}
	for _, name := range []string{"list", "retry", "settle"} {
		code, stdout, stderr := seatctl.RunRefunds(t.Context(), "", "", name, "--help")
		(result{code, stdout, stderr}).want(t, 0, "Example:", "Exit status:", "seatctl refunds "+name)
	}
}

// Through a running deployment the money is back at its gateway.
func TestRefunds_AgainstARunningSale(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	d.pay(t, d.book(t, 100001))
	d.pay(t, d.book(t, 100002))
	st, err := store.Open(t.Context(), filepath.Join(d.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	owe := func(code string) booking.Refund {
		var rec booking.Record
		testenv.Eventually(t, func() error {
			recs, err := st.RecordsOf(t.Context(), booking.CandidateHash(code))
			if err == nil && (len(recs) != 1 || recs[0].State != booking.StatePaid) {
				err = fmt.Errorf("records of %s: %+v", code, recs)
			}
			if err == nil {
				rec = recs[0]
			}
			return err
		})
		r := booking.NewRefund(rec, booking.Charge{
			PaymentID: rec.PaymentID, Transaction: rec.Transaction, Amount: rec.Amount, Currency: rec.Currency,
		}, booking.MoneyLate, booking.Decision{Reason: "full", At: time.Now()})
		if _, _, err := st.PutRefund(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	one, two := owe("AB-100001"), owe("AB-100002")
	refunds := func(args ...string) result {
		code, stdout, stderr := seatctl.RunRefunds(t.Context(), d.data, "", args...)
		return result{code, stdout, stderr}
	}
	refunds("list").want(t, 0, one.Transaction, two.Transaction, "2 open: ")
	refunds("retry", one.Transaction).want(t, 0, one.Transaction+"  done by gateway")
	refunds("settle", two.Transaction, "--reason", "bank transfer", "--yes").want(t, 0, two.Transaction+"  done by ")
	if r, err := st.Refund(t.Context(), two.Transaction); err != nil || r.Note != "bank transfer" || r.DoneBy == refund.ByGateway {
		t.Errorf("settled refund: got %+v, %v, want it done by a person", r, err)
	}
	refunds("settle", one.Transaction, "--reason", "cash", "--yes").want(t, 1, "done already, by gateway")
	refunds("retry", "--all").want(t, 0, "0 refunds are open")
	refunds("list", "--json").want(t, 0, `"refunds": []`)
	getenv, err := config.ReadEnv(filepath.Join(d.data, config.EnvFile))
	if err != nil {
		t.Fatal(err)
	}
	mock := strings.TrimSuffix(getenv("HOLDFAST_GATEWAY_URL"), mockgateway.BasePath)
	_, got := d.do(t, http.MethodGet, mock+"/mock/payments", "", "", http.StatusOK)
	if n := strings.Count(string(got), `"refundTrxID"`); n != 1 {
		t.Errorf("the gateway made %d refunds, want 1: %s", n, got)
	}
}
