package paygate_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/paygate"
)

// words says in one line what a client made of an answer with this code, for
// every call: what the caller hears, "!" when the log calls for a person, and
// for create whether the breaker counts it.
func words(t *testing.T, body string) map[string]string {
	t.Helper()
	got := map[string]string{}
	say := func(call string, do func(*bench) string) {
		b := answering(t, 200, body)
		got[call] = do(b)
		if log := b.log.String(); strings.Contains(log, `"level":"ERROR"`) {
			got[call] += "!"
		}
	}
	err := func(err error) string {
		if errors.Is(err, booking.ErrInDoubt) && !errors.Is(err, booking.ErrNotSent) {
			return "ask"
		}
		return fmt.Sprint(err)
	}
	charge := func(c booking.Charge, e error) string {
		if e != nil {
			return err(e)
		}
		if c.Status == booking.ChargeUnknown {
			return "ask"
		}
		return string(c.Status)
	}
	refund := func(a booking.RefundAnswer, e error) string {
		if e != nil || a.Done {
			return err(e)
		}
		return "not done"
	}
	say("execute", func(b *bench) string { return charge(b.client.Execute(t.Context(), "TR1")) })
	say("query", func(b *bench) string { return charge(b.client.Query(t.Context(), "TR1")) })
	say("refund", func(b *bench) string { return refund(b.client.Refund(t.Context(), refundOrder)) })
	say("status", func(b *bench) string { return refund(b.client.RefundStatus(t.Context(), "TR1", "CK250NROQ5")) })
	say("search", func(b *bench) string {
		a, e := b.client.Search(t.Context(), "CK250NROQ5")
		if e != nil || a.Found {
			return err(e)
		}
		return "none"
	})
	say("create", func(b *bench) string {
		_, e := b.client.Create(t.Context(), seat)
		return err(e)
	})
	b := newBenchAnswering(t, body, func(c *paygate.Config) { c.BreakerFailures = 1 })
	_, _ = b.client.Create(t.Context(), seat)
	if _, e := b.client.Ready(); e != nil {
		got["create"] += " counted"
	}
	return got
}

func TestEveryCode_HasItsMeaningForEveryCall(t *testing.T) {
	t.Parallel()
	row := func(create, execute, query, refund, status, search string) map[string]string {
		return map[string]string{"create": create, "execute": execute, "query": query, "refund": refund, "status": status, "search": search}
	}
	var (
		doubt   = row("ask counted", "ask", "ask", "ask", "ask", "ask")
		ourBug  = row("ask!", "ask!", "ask!", "not done!", "ask!", "ask!")
		setup   = row("ask! counted", "ask!", "ask!", "not done!", "ask!", "ask!")
		payer   = row("ask", "refused", "refused", "ask", "ask", "ask")
		state   = row("ask! counted", "refused", "refused", "not done!", "ask", "ask")
		ours    = row("ask! counted", "refused!", "refused!", "not done!", "ask", "ask")
		account = row("ask", "refused", "refused", "not done", "ask", "ask")
	)
	// Every code of the gateway's table, in its order.
	want := map[string]map[string]string{
		"2001": setup,
		"2002": ourBug,
		"2003": doubt,
		"2006": ourBug, "2007": ourBug, "2008": ourBug,
		"2014": payer, "2015": payer, "2016": payer, "2017": payer, "2018": payer, "2019": payer,
		"2020": doubt, "2024": doubt,
		"2023": row("ask", "refused", "refused", "not done!", "ask", "ask"),
		"2025": ourBug, "2065": ourBug,
		"2026": row("ask counted", "ask", "ask", "not done", "ask", "ask"),
		"2028": row("ask counted", "ask", "ask", "not done!", "ask!", "none"),
		"2033": row("ask counted", "ask", "ask", "not done!", "not done", "none"),
		"2034": doubt,
		"2029": row("ask", "ask", "ask", "ask", "ask", "ask"),
		"2031": ourBug,
		"2037": state, "2038": state, "2039": ours, "2040": ours, "2041": ours,
		"2048": ourBug, "2049": ourBug,
		"2056": doubt,
		"2057": account, "2058": account,
		"2060": row("ask counted", "unfinished", "open", "ask", "ask", "ask"),
		"2062": doubt,
		"2063": setup, "2064": setup,
		"2068": doubt, "2069": doubt,
		"2116": doubt, "2117": doubt,
		"2119": doubt,
		"9999": doubt,
	}
	var codes []string
	for code := range want {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	if diff := cmp.Diff(codes, paygate.Codes()); diff != "" {
		t.Errorf("codes in the table: -want +got:\n%s", diff)
	}
	want["503"] = doubt // not in it: maintenance is no answer at all
	for _, code := range []string{"2036", "2042", "2059", "2061", "0", "000", "1", "-1", "abc", "20230", "02023"} {
		want[code] = doubt // and what nobody knows
	}
	for code, row := range want {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			for _, body := range []string{
				fmt.Sprintf(`{"statusCode":%q,"statusMessage":"words"}`, code),
				fmt.Sprintf(`{"errorCode":%q,"errorMessage":"words"}`, code),
				fmt.Sprintf(`{"statusCode":%q,"statusMessage":"words","transactionStatus":"Initiated"}`, code),
			} {
				if diff := cmp.Diff(row, words(t, body)); diff != "" {
					t.Errorf("%s: -want +got:\n%s", body, diff)
				}
			}
		})
	}
}

func TestCode_IsToldAsItCame(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body, code string
		want       booking.ChargeStatus
	}{
		{`{"statusCode":"2023","statusMessage":"words"}`, "2023", booking.ChargeRefused},
		{`{"errorCode":"2023","errorMessage":"words"}`, "2023", booking.ChargeRefused},
		{`{"statusCode":2023,"statusMessage":"words"}`, "2023", booking.ChargeRefused},
		{`{"statusCode":" 2023","statusMessage":"words"}`, "[cut]", booking.ChargeUnknown},
	} {
		b := answering(t, 200, tc.body)
		want := booking.Charge{Status: tc.want, PaymentID: "TR1", Code: tc.code, Text: "words"}
		if got, err := b.client.Execute(t.Context(), "TR1"); err != nil || got != want {
			t.Errorf("execute answered %s: got %+v, %v; want %+v", tc.body, got, err, want)
		}
	}
	b := answering(t, 200, `{"statusCode":"2034","statusMessage":"words"}`)
	if _, err := b.client.Refund(t.Context(), refundOrder); err == nil || !strings.Contains(err.Error(), `2034 "words"`) {
		t.Errorf("refund answered 2034: got %v, want the code and its words in the error", err)
	}
}

// The codes that refuse an execute, by their meaning to the payer.
func TestRefusalOf_TellsThePayerWhatToDo(t *testing.T) {
	t.Parallel()
	want := map[string]booking.Refusal{
		"2023": booking.RefusalBalance,
		"2014": booking.RefusalCredentials, "2015": booking.RefusalCredentials, "2016": booking.RefusalCredentials,
		"2017": booking.RefusalCredentials, "2018": booking.RefusalCredentials, "2019": booking.RefusalCredentials,
		"2037": booking.RefusalAccount, "2038": booking.RefusalAccount, "2057": booking.RefusalAccount, "2058": booking.RefusalAccount,
	}
	for code := range 10000 {
		code := strconv.Itoa(code)
		if got := paygate.RefusalOf(code); got != want[code] {
			t.Errorf("%s: got %q, want %q", code, got, want[code])
		}
	}
	for _, code := range []string{"", "refund", "resolved", "02023"} {
		if got := paygate.RefusalOf(code); got != "" {
			t.Errorf("%q: got %q, want nothing", code, got)
		}
	}
}
