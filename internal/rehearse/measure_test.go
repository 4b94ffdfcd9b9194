package rehearse_test

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/rehearse"
	"holdfast/internal/saleops"
)

func TestHear_OnlyTheContractsAnswersAreAnswers(t *testing.T) {
	t.Parallel()
	const seat = `"payment_url":"http://g/pay/1","payment_id":"TR1","booking_url":"http://s/booking/abc","seconds_left":59`
	for _, c := range []struct {
		status           int
		body, kind, link string
	}{
		{202, "{" + seat + `,"level":"N1"}`, "202", "http://g/pay/1"},
		{202, `{"payment_id":"TR1"}`, "no_answer", ""},
		{202, `<html>`, "no_answer", ""},
		{409, `{"error":"duplicate","message":"m",` + seat + `}`, "duplicate", "http://g/pay/1"},
		{409, `{"error":"duplicate","message":"m","paid":true}`, "duplicate", ""},
		{409, `{"error":"level_full","message":"m","request_id":"1","level":"N1"}`, "level_full", ""},
		{429, `{"error":"closed","message":"m","request_id":"1","reason":"sold_out"}`, "sold_out", ""},
		{503, `{"error":"closed","message":"m","request_id":"1","reason":"not_open"}`, "not_open", ""},
		{503, `{"error":"closed","message":"m"}`, "no_answer", ""},
		{503, `{"error":"try_again"}`, "try_again", ""},
		{200, `{"error":"try_again"}`, "no_answer", ""},
		{503, `{"error":"level_full"}`, "no_answer", ""},
		{502, `{"error":"payment_unavailable"}`, "payment_unavailable", ""},
		{502, `<html>Bad Gateway</html>`, "no_answer", ""},
		{500, `{"error":"internal"}`, "internal", ""},
		{400, `{"error":"sold_out"}`, "no_answer", ""},
	} {
		kind, after, link := rehearse.Hear(c.status, http.Header{"Retry-After": {"3"}}, c.body)
		if kind != c.kind || link != c.link || after != 3*time.Second {
			t.Errorf("%d %s: got %s, %q, again after %s; want %s, %q, 3s", c.status, c.body, kind, link, after, c.kind, c.link)
		}
	}
}

func TestMeasure_TellsWhatWasHeard(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_700_000_000, 0)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	m := rehearse.NewMeasure(began)
	m.Rush(at(2*time.Second), 2*time.Second)
	for _, b := range []struct {
		due, took time.Duration
		kind      string
		status    int
		eligible  bool
	}{
		{time.Second, 10 * time.Millisecond, "not_open", 503, true}, // before the rush
		{2 * time.Second, 40 * time.Millisecond, "202", 202, true},
		{2500 * time.Millisecond, 2 * time.Millisecond, "level_full", 409, true},
		{2600 * time.Millisecond, 9 * time.Second, "level_full", 409, true}, // too long for the rate
		{3 * time.Second, 8 * time.Second, "try_again", 503, true},
		{3 * time.Second, 20 * time.Second, "no_answer", 0, true},
		{3 * time.Second, time.Millisecond, "invalid_code", 400, false}, // not on the list
		{3 * time.Second, time.Millisecond, "hung_up", 0, false},
		{3 * time.Second, 60 * time.Millisecond, "honeypot", 202, false},
		{4 * time.Second, time.Millisecond, "sold_out", 429, true}, // the last one of it
		{5 * time.Second, time.Millisecond, "internal", 500, true}, // after
		{5 * time.Second, time.Millisecond, "no_answer", 502, true},
	} {
		m.Booking(at(b.due), b.took, b.kind, b.status, b.eligible)
	}
	sample := &rehearse.Sample{QueueDepth: 3}
	r := rehearse.Report{Seconds: []rehearse.Second{{At: 2, Sample: sample}, {At: 6, Sample: sample}}}
	m.Into(&r)

	want := map[string]int{"not_open": 1, "202": 1, "level_full": 2, "try_again": 1, "no_answer": 2, "invalid_code": 1,
		"hung_up": 1, "honeypot": 1, "sold_out": 1, "internal": 1}
	if diff := cmp.Diff(want, r.Answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if r.RateAchieved != 2 { // 202, level_full, try_again and sold_out over two seconds
		t.Errorf("rate: got %v, want 2", r.RateAchieved)
	}
	if r.ServerErrors != 2 {
		t.Errorf("server errors: got %d, want 2: an internal one and a 502 that is not ours", r.ServerErrors)
	}
	if p := r.LatencyMS["level_full"]; p.Count != 2 || p.P50 != 2 || p.Max < 8990 || p.Max > 9010 {
		t.Errorf("level_full: got %+v, want two, of 2 ms and 9 s", p)
	}
	if p := m.Rejections(); p.Count != 5 {
		t.Errorf("rejections: got %+v, want 5", p)
	}
	type second struct{ At, Due, Answered, Admitted, Rejected, Other int }
	var got []second
	for _, s := range r.Seconds {
		got = append(got, second{s.At, s.Due, s.Answered, s.Admitted, s.Rejected, s.Other})
	}
	if diff := cmp.Diff([]second{
		{0, 0, 0, 0, 0, 0}, {1, 1, 1, 0, 1, 0}, {2, 3, 3, 1, 2, 0}, {3, 5, 3, 0, 1, 2}, {4, 1, 1, 0, 1, 0}, {5, 2, 1, 0, 0, 2}, {6, 0, 0, 0, 0, 0},
	}, got); diff != "" {
		t.Errorf("seconds (-want +got):\n%s", diff)
	}
	if r.Seconds[2].Sample != sample || r.Seconds[6].Sample != sample || r.Seconds[3].Sample != nil {
		t.Error("samples: got others, want each kept in its second")
	}
}

// Who asked while the rehearsal itself had the API away is told and not held against it.
func TestMeasure_ExcusesItsOwnOutage(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	m := rehearse.NewMeasure(began)
	m.Rush(at(0), 4*time.Second)
	m.Away(at(1000), at(3000))
	m.Lost(at(500), 600*time.Millisecond, true)  // was being answered
	m.Lost(at(2000), time.Millisecond, true)     // refused
	m.Lost(at(2000), time.Millisecond, false)    // not of the stream
	m.Lost(at(3001), 8*time.Second, true)        // it was back
	m.Lost(at(500), 400*time.Millisecond, false) // it was there
	m.Booking(at(2500), time.Second, "level_full", 409, true)
	var r rehearse.Report
	m.Into(&r)
	if m.Excused() != 2 || m.Unanswered() != 2 || r.RateAchieved != 0.25 {
		t.Errorf("got %d excused, %d unanswered, rate %v, want 2, 2 and 0.25", m.Excused(), m.Unanswered(), r.RateAchieved)
	}
}

func TestMeasure_OnePaymentToldToTwo(t *testing.T) {
	t.Parallel()
	m := rehearse.NewMeasure(time.Now())
	for _, who := range []string{"AB-1", "AB-2", "AB-1"} {
		m.Held(rehearse.Told{PaymentID: "TR1", Code: who, Level: "N1"})
	}
	if got := m.Told(); len(got) != 2 {
		t.Errorf("told: got %v, want both of them once", got)
	}
}

// What was not seen is no proof: an audit without rules, no sample, no rejection.
func TestJudge_WhatWasNotSeenDoesNotHold(t *testing.T) {
	t.Parallel()
	held := saleops.Report{}
	for _, code := range rehearse.Looked() {
		held.Rules = append(held.Rules, saleops.Rule{Code: code, Verdict: saleops.VerdictHolds})
	}
	young := saleops.Report{Rules: slices.Clone(held.Rules)}
	for i := range young.Rules {
		if young.Rules[i].Code == saleops.RuleMoney {
			young.Rules[i].InFlight = 400
		}
	}
	for name, c := range map[string]struct {
		audit     saleops.Report
		looks     int
		rejection bool
		broken    []string
	}{
		"everything":         {held, 60, true, nil},
		"no audit":           {saleops.Report{}, 60, true, rehearse.Looked()},
		"no sample":          {held, 0, true, []string{"queue"}},
		"no rejection":       {held, 60, false, []string{"rejections"}},
		"still on their way": {young, 60, true, []string{saleops.RuleMoney, "unaccounted payments"}},
	} {
		m := rehearse.NewMeasure(time.Now())
		r := rehearse.Report{Sold: 7, Cap: 7, RateTarget: 0, For: time.Second}
		if c.rejection {
			r.Rejections = rehearse.Percentiles{Count: 1, P50: 1}
		}
		rehearse.Judge(&r, c.audit, c.looks, m)
		var broken []string
		for _, rule := range r.Rules {
			if !rule.Holds {
				broken = append(broken, rule.Name)
			}
		}
		if diff := cmp.Diff(c.broken, broken); diff != "" {
			t.Errorf("%s: broken rules (-want +got):\n%s", name, diff)
		}
		if want := map[bool]string{true: rehearse.VerdictHolds, false: rehearse.VerdictBroken}[len(c.broken) == 0]; r.Verdict != want {
			t.Errorf("%s: verdict: got %s, want %s", name, r.Verdict, want)
		}
	}
	if rehearse.Watched(9, 40*time.Second).Holds || !rehearse.Watched(10, 40*time.Second).Holds {
		t.Error("samples: want one in four seconds at least")
	}
}

// Second clicks do not stand in for bookings of the stream that nobody answered.
func TestJudge_RateIsOfTheStreamAlone(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_700_000_000, 0)
	m := rehearse.NewMeasure(began)
	m.Rush(began, time.Second)
	for i := range 100 {
		due := began.Add(time.Duration(i) * 10 * time.Millisecond)
		if i == 50 {
			m.Lost(due, 9*time.Second, true)
		} else {
			m.Booking(due, time.Millisecond, "level_full", 409, true)
		}
		m.Booking(due, time.Millisecond, "duplicate", 409, false)
	}
	r := rehearse.Report{RateTarget: 100, For: time.Second}
	m.Into(&r)
	rehearse.Judge(&r, saleops.Report{}, 1, m)
	i := slices.IndexFunc(r.Rules, func(rule rehearse.Rule) bool { return rule.Name == "rate" })
	if got := r.Rules[i]; got.Holds || got.Figure != "99 of 100 a second, 99 of 100" {
		t.Errorf("rate: got %+v, want it broken by the one without an answer", got)
	}
}

func TestRun_FaultsThatFindNobodyAreRefused(t *testing.T) {
	t.Parallel()
	_, err := rehearse.Run(t.Context(), rehearse.Options{Scale: 0.05, Faults: rehearse.Faults()})
	if err == nil || !strings.Contains(err.Error(), "--hold") {
		t.Errorf("all faults in a short run: got %v, want it to name the --hold that they need", err)
	}
}

func TestMeasure_NothingHeardIsNothing(t *testing.T) {
	t.Parallel()
	var r rehearse.Report
	rehearse.NewMeasure(time.Now()).Into(&r)
	if r.RateAchieved != 0 || r.HoldsCreated != 0 || len(r.Seconds) != 0 || r.Answers == nil {
		t.Errorf("got %+v, want zeros", r)
	}
}

// Money that moved for an attempt that neither ledger nor store knows is in the gateway's
// own list alone.
func TestMoney_CountsWhatOnlyTheGatewayKnows(t *testing.T) {
	t.Parallel()
	now := time.Now()
	epoch, earlier := booking.NewEpoch(now), booking.NewEpoch(now.Add(-time.Hour))
	payment := func(epoch string, faults []mockgateway.Fault, of ...mockgateway.ListedTransaction) mockgateway.Listed {
		invoice := booking.Invoice(booking.CandidateHash("AB-100001"), booking.AttemptID(epoch, booking.NewAttemptSuffix(now)))
		return mockgateway.Listed{Invoice: invoice, Faults: faults, Transactions: of}
	}
	moved := func(id string, refunds ...mockgateway.ListedRefund) mockgateway.ListedTransaction {
		return mockgateway.ListedTransaction{TrxID: id, Refunds: refunds}
	}
	p := &rehearse.Pretended{
		Exported: "transaction,epoch\nPAID1," + epoch + "\nOLD1," + earlier + "\n",
		Listed: []mockgateway.Listed{
			payment(epoch, nil, moved("PAID1")),
			payment(epoch, nil, moved("BACK1", mockgateway.ListedRefund{})),
			payment(epoch, nil),
			payment(earlier, nil, moved("EARLIER1")), // another sale's
			payment(epoch, []mockgateway.Fault{{Name: mockgateway.FaultAnswerLost, Applied: 1}}, moved("LOST1")),
			payment(epoch, []mockgateway.Fault{{Name: mockgateway.FaultAnswerLost}}), // it did not come to that
			payment(epoch, nil, moved("OLD1")),                                       // an earlier sale's record is none of this one's
		},
	}
	unaccounted, lost, err := p.Money(t.Context(), epoch)
	if err != nil || lost != 1 {
		t.Errorf("got %d answers lost, %v, want 1", lost, err)
	}
	if diff := cmp.Diff([]string{"LOST1", "OLD1"}, unaccounted); diff != "" {
		t.Errorf("transactions that are nobody's (-want +got):\n%s", diff)
	}
}

func TestFaults_OneThatIsCutShortDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			stays time.Duration
			want  int
			held  time.Duration // away, of the queue and the worker
		}{
			{time.Millisecond, 0, time.Millisecond}, {29 * time.Second, 0, 29 * time.Second}, {31 * time.Second, 1, 30 * time.Second},
			{36 * time.Second, 1, 31 * time.Second}, {38 * time.Second, 2, 32 * time.Second},
		} {
			got, held, err := new(rehearse.Pretended).Faulty(t.Context(), c.stays, rehearse.FaultQueue, rehearse.FaultWorker)
			if err != nil || got != c.want || held != c.held {
				t.Errorf("a crowd that stays for %s: got %d faults for %s, %v, want %d for %s", c.stays, got, held, err, c.want, c.held)
			}
		}
	})
}

// What a sample did read is judged, though it is a gap in the curves.
func TestWatch_JudgesWhatAPartOfASampleSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &rehearse.Pretended{Sampled: rehearse.Sample{Left: map[string]int{"N1": 2}, Taken: 105}, Err: errors.New("the queue does not answer")}
		oversold, looks, kept := p.Watch(t.Context(), 10500*time.Millisecond, 100)
		if oversold != 5 || looks != 10 || kept != 0 {
			t.Errorf("seats alone: got %d oversold at %d looks, %d kept, want 5, 10 and none", oversold, looks, kept)
		}
		p.Sampled = rehearse.Sample{}
		if oversold, looks, _ := p.Watch(t.Context(), 10500*time.Millisecond, 100); oversold != 0 || looks != 0 {
			t.Errorf("nothing: got %d oversold at %d looks, want no look", oversold, looks)
		}
	})
}

// What the rehearsal itself held back is not the deployment's, and nothing else is excused.
func TestQueue_IsJudgedWithoutTheTimeThatItWasHeldBack(t *testing.T) {
	t.Parallel()
	const lasts = -1
	for name, c := range map[string]struct {
		age     float64
		stopped [][2]float64
		want    float64
	}{
		"no fault":                      {10, nil, 10},
		"over before it was sent":       {10, [][2]float64{{60, 30}}, 10},
		"sent before, taken after":      {40, [][2]float64{{35, 5}}, 10},
		"sent while it lasted":          {20, [][2]float64{{35, 5}}, 5},
		"it lasts, and it was sent in":  {20, [][2]float64{{35, lasts}}, 0},
		"it lasts, and was sent before": {37, [][2]float64{{35, lasts}}, 2},
		"two of them":                   {40, [][2]float64{{35, 25}, {20, 5}}, 15},
		"two at the same time":          {40, [][2]float64{{35, 15}, {20, 5}}, 10},
		"one within another":            {40, [][2]float64{{35, 5}, {20, 10}}, 10},
	} {
		if got := rehearse.OwnAge(c.age, c.stopped...); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%s: got %.2f s, want %.2f s", name, got, c.want)
		}
	}
	for name, c := range map[string]struct{ age, killed, want float64 }{
		"in hand at the kill":                  {51, 50, 1},
		"in hand, and not taken when it could": {71, 70, 11},
		"sent after the worker was back":       {40, 50, 40},
	} {
		if got := rehearse.OwnAgeKilled(c.age, c.killed); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%s: got %.2f s, want %.2f s", name, got, c.want)
		}
	}
	m := rehearse.NewMeasure(time.Now())
	if r := rehearse.JudgeQueue(31, 1, m); !r.Holds || !strings.Contains(r.Figure, "31.0 s with") {
		t.Errorf("held back for 30 s of 31: got %+v, want it to hold and to say both", r)
	}
	if r := rehearse.JudgeQueue(31, 4.1, m); r.Holds {
		t.Errorf("4.1 s of its own: got %+v, want it broken", r)
	}
	if r := rehearse.JudgeQueue(2, 2, m); !r.Holds || r.Figure != "2.0 s" {
		t.Errorf("nothing held back: got %+v", r)
	}
}
