package seatctl_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/testenv"
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

	// The fleet has a token ready by itself, and leaves the hour's last grant to others.
	token := func() (key string) {
		t.Helper()
		testenv.Eventually(t, func() error {
			keys, err := d.rdb.Keys(t.Context(), "token:*:current").Result()
			if err == nil && len(keys) != 1 {
				err = fmt.Errorf("got tokens %q, want one", keys)
			}
			if err == nil {
				key = keys[0]
			}
			return err
		})
		return key
	}
	current := token()
	check("").want(t, 0, "valid until", "1 of 2 grants left this hour, none used", "is created at", "nothing executes it")
	if err := d.rdb.Del(t.Context(), current).Err(); err != nil {
		t.Fatal(err)
	}
	check("").want(t, 1, "uses 1 of the 1 grants left of this hour's 2", "using a grant was not agreed to", "FAILED")
	if got := grants(); got != 1 {
		t.Fatalf("grants without an agreement: got %d, want the fleet's own", got)
	}
	check("y\n").want(t, 0, "granted, valid until", "0 of 2 grants left", "payment TR", "is open", "by hand:", "CHECK-", "error=unknown", "/payment/webhook", "refund")
	wantLogged(t, d.data, `: gateway check: grant token  begun {"grants_left":1}`, `done {"grants_left":0}`,
		": gateway check: create payment CHECK-", `done {"payment":"TR`)
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
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil || got.code != 0 || out.Granted || out.GrantsLeft != 0 || len(out.Steps) != 3 || len(out.ByHand) == 0 ||
		!strings.HasPrefix(out.Invoice, "CHECK-") || out.PaymentURL == "" || out.Callback != "https://sale.example/payment/callback" {
		t.Fatalf("--json: got %d %+v, %v, want three steps and no grant", got.code, got, err)
	}
	if got := grants(); got != 2 {
		t.Errorf("grants: got %d, want 2: a valid token is used", got)
	}
	secret, err := d.rdb.HGet(t.Context(), token(), "token").Result()
	if err != nil || secret == "" || strings.Contains(got.stdout+got.stderr, secret) {
		t.Errorf("token %q, %v: got it printed, want it kept", secret, err)
	}
	// A token that the gateway refuses is not replaced by the way.
	if err := d.rdb.HSet(t.Context(), current, "token", "stale").Err(); err != nil {
		t.Fatal(err)
	}
	check("", "--yes").want(t, 1, "create", "FAILED", "token refused")
	wantLogged(t, d.data, "create payment CHECK-", "create payment CHECK-")
	if got := grants(); got != 2 {
		t.Errorf("grants after a refused token: got %d, want 2", got)
	}
	// With the hour's two used up, nothing is asked for.
	if err := d.rdb.Del(t.Context(), current).Err(); err != nil {
		t.Fatal(err)
	}
	check("", "--yes").want(t, 1, "2 grants are used up: next at")
	check("", "--callback", "sale.example").want(t, 2, "want http(s)://host/path")
	run(t, "", "gateway", "check").want(t, 2, "--callback")
}

// A token that was got with the former password says nothing of the new one.
func TestGatewayCheck_GrantProvesTheCredentials(t *testing.T) {
	t.Parallel()
	d := start(t, map[string]string{"PATH": t.TempDir()})
	var current string
	testenv.Eventually(t, func() error {
		keys, err := d.rdb.Keys(t.Context(), "token:*:current").Result()
		if err == nil && len(keys) != 1 {
			err = fmt.Errorf("got tokens %q, want one", keys)
		}
		if err == nil {
			current = keys[0]
		}
		return err
	})
	held := func() string {
		t.Helper()
		token, err := d.rdb.HGet(t.Context(), current, "token").Result()
		if err != nil || token == "" {
			t.Fatalf("the fleet's token: got %q, %v, want one", token, err)
		}
		return token
	}
	before := held()
	check := func(stdin string) result {
		return run(t, stdin, "gateway", "check", "--grant", "--data", d.data)
	}
	check("").want(t, 1, "A new token was asked for (--grant). A new one uses 1 of the 1 grants left", "using a grant was not agreed to")
	if got := held(); got != before {
		t.Error("token without an agreement: got another one, want it left alone")
	}
	check("y\n").want(t, 0, "granted, valid until", "0 of 2 grants left", "payment TR", "is open")
	if got := held(); got == before {
		t.Error("token: got the old one, want the new one in place for the fleet")
	}
	check("y\n").want(t, 1, "2 grants are used up: next at")
}
