package paygate_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
)

func granter(t *testing.T, h http.HandlerFunc) *paygate.Granter {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	g, err := paygate.NewGranter(srv.URL, credentials, httpClient(t))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGrant_SendsCredentialsWhereTheGatewayWantsThem(t *testing.T) {
	t.Parallel()
	g := granter(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]string
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("grant body: %v", err)
		}
		got := []string{r.Method, r.URL.Path, r.Header.Get("username"), r.Header.Get("password"), r.Header.Get("Authorization")}
		want := []string{"POST", "/tokenized/checkout/token/grant", username, password, ""}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("grant request: -want +got:\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"app_key": appKey, "app_secret": appSecret}, body); diff != "" {
			t.Errorf("grant body: -want +got:\n%s", diff)
		}
		_, _ = io.WriteString(w, `{"statusCode":"0000","id_token":"`+tokenOne+`","token_type":"Bearer","expires_in":3600,"refresh_token":"`+tokenTwo+`"}`)
	})
	got, err := g.Grant(t.Context())
	if want := (paygate.Grant{IDToken: tokenOne, RefreshToken: tokenTwo, ExpiresIn: time.Hour}); err != nil || got != want {
		t.Errorf("Grant: got lifetime %s, %v; want both tokens and %s", got.ExpiresIn, err, want.ExpiresIn)
	}
}

func TestGrant_LifetimeIsNumberOrText(t *testing.T) {
	t.Parallel()
	for lifetime, want := range map[string]time.Duration{`3600`: time.Hour, `"3600"`: time.Hour, `1`: time.Second, `86400`: 24 * time.Hour} {
		g := granter(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"statusCode":"0000","id_token":"x","expires_in":`+lifetime+`}`)
		})
		if got, err := g.Grant(t.Context()); err != nil || got.ExpiresIn != want {
			t.Errorf("expires_in %s: got %s, %v; want %s", lifetime, got.ExpiresIn, err, want)
		}
	}
}

func TestGrant_UnusableAnswerIsInDoubtAndNotRepeated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
	}{
		"401":                   {401, `{"message":"Unauthorized"}`},
		"429":                   {429, `{"message":"Too many requests"}`},
		"500":                   {500, ``},
		"302":                   {302, ``},
		"page":                  {200, `<html>`},
		"refused":               {200, `{"statusCode":"2001","statusMessage":"Invalid App Key"}`},
		"refused, with a token": {200, `{"statusCode":"2001","id_token":"x","expires_in":3600}`},
		"no code":               {200, `{"id_token":"x","expires_in":3600}`},
		"no token":              {200, `{"statusCode":"0000","expires_in":3600}`},
		"no lifetime":           {200, `{"statusCode":"0000","id_token":"x"}`},
		"lifetime zero":         {200, `{"statusCode":"0000","id_token":"x","expires_in":0}`},
		"lifetime negative":     {200, `{"statusCode":"0000","id_token":"x","expires_in":-3600}`},
		"lifetime a date":       {200, `{"statusCode":"0000","id_token":"x","expires_in":"2026-12-01"}`},
		"lifetime too long":     {200, `{"statusCode":"0000","id_token":"x","expires_in":1762072142}`},
		"lifetime beyond int":   {200, `{"statusCode":"0000","id_token":"x","expires_in":99999999999999999999}`},
		"message":               {200, `{"message":"x","statusCode":"0000","id_token":"x","expires_in":3600}`},
	} {
		var calls atomic.Int32
		g := granter(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			w.WriteHeader(tc.status)
			_, _ = io.WriteString(w, tc.body)
		})
		got, err := g.Grant(t.Context())
		wantErr(t, name, err, booking.ErrInDoubt)
		if got != (paygate.Grant{}) || calls.Load() != 1 {
			t.Errorf("%s: %d calls and a grant of %s, want one call and nothing", name, calls.Load(), got.ExpiresIn)
		}
	}
}

func TestGrant_WithoutAConnectionIsNotSent(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	g, err := paygate.NewGranter(srv.URL, credentials, httpClient(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Grant(t.Context())
	wantErr(t, "Grant", err, booking.ErrNotSent)
}

func TestGrant_LockedOutAccountIsInDoubt(t *testing.T) {
	t.Parallel()
	base, _ := mock(t, mockgateway.Options{})
	g, err := paygate.NewGranter(base, credentials, httpClient(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := g.Grant(t.Context()); err != nil {
			t.Errorf("Grant: %v", err)
		}
	}
	_, err = g.Grant(t.Context())
	wantErr(t, "third grant", err, booking.ErrInDoubt)
}

func TestNewGranter_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(*paygate.Credentials){
		"app key":    func(c *paygate.Credentials) { c.AppKey = "" },
		"app secret": func(c *paygate.Credentials) { c.AppSecret = "" },
		"username":   func(c *paygate.Credentials) { c.Username = "" },
		"password":   func(c *paygate.Credentials) { c.Password = "" },
	} {
		c := credentials
		f(&c)
		if _, err := paygate.NewGranter("https://pay.example", c, httpClient(t)); err == nil {
			t.Errorf("without %s: got no error, want one", name)
		}
	}
	if _, err := paygate.NewGranter("pay.example", credentials, httpClient(t)); err == nil {
		t.Error("without a scheme: got no error, want one")
	}
}
