package seatctl_test

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestGatewayCheck_AgainstTheMockGateway(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	check := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"gateway", "check", "--data", d.data}, args...)...)
	}
	grants := func() int64 {
		t.Helper()
		n := int64(0)
		keys, err := d.rdb.Keys(t.Context(), "token:*:grants").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			n += d.rdb.ZCard(t.Context(), key).Val()
		}
		return n
	}

	check("").want(t, 1, "uses 1 of the 2 grants left", "using a grant was not agreed to", "FAILED")
	if got := grants(); got != 0 {
		t.Fatalf("grants without an agreement: got %d, want 0", got)
	}
	check("y\n").want(t, 0, "granted, valid until", "1 of 2 grants left", "payment TR", "is open", "by hand:", "CHECK-", "error=unknown", "/payment/webhook", "refund",
		`"what":"gateway check: grant token"`, `"what":"gateway check: create payment"`)
	got := check("", "--json", "--callback", "https://sale.example/payment/callback")
	var out struct {
		Callback, Invoice, Payment string
		GrantsLeft                 int    `json:"grants_left"`
		Granted                    bool   `json:"granted"`
		PaymentURL                 string `json:"payment_url"`
		Steps                      []struct {
			Step string
			OK   bool
		}
		ByHand []string `json:"by_hand"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || got.code != 0 || out.Granted || out.GrantsLeft != 1 || len(out.Steps) != 3 || len(out.ByHand) == 0 ||
		!strings.HasPrefix(out.Invoice, "CHECK-") || out.PaymentURL == "" || out.Callback != "https://sale.example/payment/callback" {
		t.Fatalf("--json: got %d %+v, %v, want three steps and no grant", got.code, got, err)
	}
	if got := grants(); got != 1 {
		t.Errorf("grants: got %d, want 1: a valid token is used", got)
	}
	keys, err := d.rdb.Keys(t.Context(), "token:*:current").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("token: got %v, %v, want one", keys, err)
	}
	token, err := d.rdb.HGet(t.Context(), keys[0], "token").Result()
	if err != nil || token == "" || strings.Contains(got.stdout+got.stderr, token) {
		t.Errorf("token %q, %v: got it printed, want it kept", token, err)
	}
	// A token that the gateway refuses is not replaced by the way.
	if err := d.rdb.HSet(t.Context(), keys[0], "token", "stale").Err(); err != nil {
		t.Fatal(err)
	}
	check("", "--yes").want(t, 1, "create", "FAILED", "token refused")
	if got := grants(); got != 1 {
		t.Errorf("grants after a refused token: got %d, want 1", got)
	}
	// With the hour's two used up, nothing is asked for.
	ledger := strings.Replace(keys[0], ":current", ":grants", 1)
	now, err := d.rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.rdb.Do(t.Context(), "ZADD", ledger, now.UnixMilli(), "another").Err(); err != nil {
		t.Fatal(err)
	}
	if err := d.rdb.Del(t.Context(), keys[0]).Err(); err != nil {
		t.Fatal(err)
	}
	check("", "--yes").want(t, 1, "two grants are used up: next at")
	check("", "--callback", "sale.example").want(t, 2, "want http(s)://host/path")
	run(t, "", "gateway", "check").want(t, 2, "--callback")
}
