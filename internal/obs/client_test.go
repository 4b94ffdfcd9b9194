package obs_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast/internal/obs"
)

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// name is what a request from that connection is called, with these header lines.
func name(t *testing.T, key byte, hops int, at time.Time, remote string, forwarded ...string) string {
	t.Helper()
	c, err := obs.NewClients(bytes.Repeat([]byte{key}, 32), hops, func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	for _, f := range forwarded {
		r.Header.Add("X-Forwarded-For", f)
	}
	return c.Name(r)
}

func TestClients_OneNameForAnAddressWithinADay(t *testing.T) {
	t.Parallel()
	got := name(t, 1, 0, noon, "203.0.113.9:4711")
	if !regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(got) {
		t.Fatalf("name: got %q, want 12 hex characters", got)
	}
	for what, same := range map[string]string{
		"another port":             name(t, 1, 0, noon, "203.0.113.9:80"),
		"an hour later":            name(t, 1, 0, noon.Add(time.Hour), "203.0.113.9:4711"),
		"by a clock elsewhere":     name(t, 1, 0, noon.In(time.FixedZone("far", 13*3600)), "203.0.113.9:4711"),
		"as IPv6 writes it":        name(t, 1, 0, noon, "[::ffff:203.0.113.9]:4711"),
		"behind one proxy":         name(t, 1, 1, noon, "10.0.0.1:1", "203.0.113.9"),
		"behind one, with a port":  name(t, 1, 1, noon, "10.0.0.1:1", "203.0.113.9:4711"),
		"behind two":               name(t, 1, 2, noon, "10.0.0.1:1", "203.0.113.9, 10.0.0.2"),
		"behind two, in two lines": name(t, 1, 2, noon, "10.0.0.1:1", "203.0.113.9", "10.0.0.2"),
		"behind two, with a lie":   name(t, 1, 2, noon, "10.0.0.1:1", "198.51.100.1, 203.0.113.9, 10.0.0.2"),
		"with a header nobody set": name(t, 1, 0, noon, "203.0.113.9:4711", "198.51.100.1"),
	} {
		if same != got {
			t.Errorf("%s: got %q, want the same name, %q", what, same, got)
		}
	}
	for what, other := range map[string]string{
		"another address": name(t, 1, 0, noon, "203.0.113.8:4711"),
		"the day after":   name(t, 1, 0, noon.Add(12*time.Hour), "203.0.113.9:4711"),
		"another key":     name(t, 2, 0, noon, "203.0.113.9:4711"),
	} {
		if other == got || other == "" {
			t.Errorf("%s: got %q, want another name than %q", what, other, got)
		}
	}
}

func TestClients_AnIPv6SubscriberHasOneName(t *testing.T) {
	t.Parallel()
	got := name(t, 1, 0, noon, "[2001:db8:1:2::1]:80")
	if same := name(t, 1, 0, noon, "[2001:db8:1:2:ffff::9]:80"); same != got || got == "" {
		t.Errorf("another address of the same /64: got %q, want %q", same, got)
	}
	if other := name(t, 1, 0, noon, "[2001:db8:1:3::1]:80"); other == got {
		t.Errorf("another /64: got the same name, %q", got)
	}
}

func TestClients_AnUnknownAddressHasNone(t *testing.T) {
	t.Parallel()
	for what, got := range map[string]string{
		"no header":           name(t, 1, 1, noon, "10.0.0.1:1"),
		"past a proxy":        name(t, 1, 2, noon, "10.0.0.1:1", "203.0.113.9"),
		"no address":          name(t, 1, 1, noon, "10.0.0.1:1", "01712345678"),
		"a socket of a file":  name(t, 1, 0, noon, "@"),
		"an empty last entry": name(t, 1, 1, noon, "10.0.0.1:1", "203.0.113.9,"),
	} {
		if got != "" {
			t.Errorf("%s: got %q, want no name", what, got)
		}
	}
}

func TestNewClients_ChecksItsArguments(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{1}, 32)
	for what, err := range map[string]error{
		"no key":        second(obs.NewClients(nil, 0, time.Now)),
		"a short key":   second(obs.NewClients(key[:15], 0, time.Now)),
		"negative hops": second(obs.NewClients(key, -1, time.Now)),
		"no clock":      second(obs.NewClients(key, 0, nil)),
	} {
		if err == nil {
			t.Errorf("%s: got nil, want an error", what)
		}
	}
}

func second(_ *obs.Clients, err error) error { return err }

func TestNewLogger_DurationsAreMillisecondsAndMailAddressesAreCutOut(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := obs.NewLogger(&out, slog.LevelInfo)
	log.InfoContext(t.Context(), "mail", "took", 1500*time.Microsecond, "error",
		errors.New("550 5.1.1 <a.b@example.org>: no such user"), "text", "to a.b@example.org, twice",
		slog.Group("group", "wait", time.Second, "who", `"a b"@example.org`))
	for _, want := range []string{
		`"took_ms":1.5`, `"error":"550 5.1.1 <[e-mail]>: no such user"`, `"text":"to [e-mail], twice"`, `"wait_ms":1000`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("line: got no %s in %s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "a.b@") {
		t.Errorf("line: got an address in %s", out.String())
	}
}

func TestPanicked_SaysNothingOfTheValue(t *testing.T) {
	t.Parallel()
	recovered := func(f func()) (p *obs.PanicError) {
		defer func() { p = obs.Panicked(recover()) }()
		f()
		return nil
	}
	var none map[string]int
	for want, f := range map[string]func(){
		"panic: a string":                       func() { panic("PRIVATE") },
		"panic: a *errors.errorString":          func() { panic(errors.New("PRIVATE")) },
		"panic: assignment to entry in nil map": func() { none["PRIVATE"] = 1 },
	} {
		p := recovered(f)
		if p.Error() != want || !strings.Contains(p.Stack, "client_test.go") || strings.Contains(p.Stack, "PRIVATE") {
			t.Errorf("got %q with the stack\n%s\nwant %q and where it was", p.Error(), p.Stack, want)
		}
	}
}
