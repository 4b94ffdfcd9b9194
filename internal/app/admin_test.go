package app_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
	store "holdfast/internal/store/sqlite"
	"holdfast/internal/testenv"
)

const backOfficeToken = "0123456789abcdef0123456789abcdef"

// office is the back office before one API process, with its admin listener on, over a
// Redis whose replica must acknowledge.
type office struct {
	*fleet
	admin string
}

func newOffice(t *testing.T) *office {
	t.Helper()
	addr := testenv.Pair(t).Primary.Addr()
	f := newFleet(t, addr, "auto", booking.Sale{Name: "office", Currency: "BDT", Cap: 9, Hold: 10 * time.Minute, Levels: []booking.Level{
		{ID: "N1", Name: "One", Cap: 9, Fee: 150000},
	}}, 0)
	o := &office{fleet: f, admin: testenv.FreeAddr(t)}
	listen := testenv.FreeAddr(t)
	env := f.env(listen, addr, "auto")
	env["HOLDFAST_ADMIN_ADDR"], env["HOLDFAST_ADMIN_TOKEN"] = o.admin, backOfficeToken
	f.apis = []string{"http://" + listen}
	f.procs = append(f.procs, testenv.StartProgram(t, "api", nil, env))
	testenv.Eventually(t, func() error {
		status, body, err := f.get(t.Context(), f.apis[0]+"/health")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("health: %d %s", status, body)
		}
		return err
	})
	return o
}

func (o *office) put(t *testing.T, query string, body io.Reader) (int, map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+o.admin+"/admin/candidates"+query, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+backOfficeToken)
	r.Header.Set("Content-Type", "text/csv")
	status, text, _, err := o.do(r)
	var answer map[string]any
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil {
		t.Fatalf("PUT %s: got %d %s, %v, want JSON", query, status, text, err)
	}
	return status, answer
}

// list reads the list in force.
func (o *office) list(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for c, err := range o.gate.Candidates(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all[c.Code] = c.Email
	}
	return all
}

func (o *office) wantList(t *testing.T, when string, n int, sample booking.Candidate) {
	t.Helper()
	if all := o.list(t); len(all) != n || all[sample.Code] != sample.Email {
		t.Fatalf("the list %s: got %d candidates, %s with %q, want %d and %q", when, len(all), sample.Code, all[sample.Code], n, sample.Email)
	}
}

func rows(from, to int) string {
	var b strings.Builder
	b.WriteString("code,email\n")
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%05d,c%d@example.org\n", i, i)
	}
	return b.String()
}

// The back office's file, in the shapes of the candidates file, by the rules of the
// command line, over a real pair: the list is the old one or the new one, never part
// of one, and the operator's log says who.
func TestBackOffice_ReplacesTheAllowlist(t *testing.T) {
	o := newOffice(t)
	first := booking.Candidate{Code: "00001", Email: "c1@example.org"} // leading zeros are kept
	status, answer := o.put(t, "", strings.NewReader(rows(0, 2000)))
	if status != http.StatusConflict || answer["error"] != "booking_open" {
		t.Fatalf("while open: got %d %v, want 409 booking_open", status, answer)
	}
	if err := o.gate.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, answer = o.put(t, "?dry_run=true", strings.NewReader(rows(0, 2000))); status != http.StatusOK || answer["added"] != 2000.0 || answer["applied"] != false {
		t.Fatalf("dry run: got %d %v, want 200, 2000 added, not applied", status, answer)
	}
	if n := len(o.list(t)); n != 0 {
		t.Fatalf("the list after a dry run: got %d, want none", n)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, "\ufeff"+strings.ReplaceAll(strings.ReplaceAll(rows(0, 2000), ",", ";"), "\n", ";;\r\n"))
	_ = z.Close()
	for i, want := range []string{"added", "unchanged"} { // the same file twice is the same list
		if status, answer = o.put(t, "", bytes.NewReader(zipped.Bytes())); status != http.StatusOK || answer[want] != 2000.0 || answer["applied"] != true {
			t.Fatalf("load %d: got %d %v, want 2000 %s", i+1, status, answer, want)
		}
		o.wantList(t, "after it", 2000, first)
	}

	if status, answer = o.put(t, "", strings.NewReader(rows(0, 2100)+"00001,other@example.org\n")); status != http.StatusBadRequest ||
		fmt.Sprint(answer["errors"]) != "[map[line:2102 reason:its code is on line 3 with another e-mail address]]" {
		t.Errorf("a wrong file: got %d %v, want 400 and its line", status, answer)
	}
	o.wantList(t, "after a wrong file", 2000, first)
	if status, answer = o.put(t, "", strings.NewReader(rows(1000, 2000))); status != http.StatusConflict || answer["error"] != "removals" || answer["removed"] != 1000.0 {
		t.Errorf("half of it gone: got %d %v, want 409 removals", status, answer)
	}
	o.wantList(t, "after a refusal", 2000, first)
	o.hangUp(t, rows(0, 5000))
	o.wantList(t, "after a broken connection", 2000, first)
	if status, answer = o.put(t, "?allow_removals=true", strings.NewReader(rows(1, 1001))); status != http.StatusOK || answer["removed"] != 1000.0 {
		t.Errorf("removals allowed: got %d %v, want 200", status, answer)
	}
	o.wantList(t, "after removals", 1000, first)

	records, err := store.Open(t.Context(), filepath.Join(o.data, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	outcomes := map[booking.LogOutcome]int{}
	for e, err := range records.Log(t.Context(), time.Time{}) {
		if err != nil || e.Who != "back office, token" || e.From != "127.0.0.1" || e.What != "candidates load" {
			t.Errorf("operator's log: got %+v, %v, want the back office's loads", e, err)
		}
		outcomes[e.Outcome]++
	}
	if outcomes["begun"] != 7 || outcomes["done"] != 3 || outcomes["refused"] != 4 {
		t.Errorf("operator's log: got %v, want 7 begun, 3 done, 4 refused", outcomes)
	}
}

// hangUp sends all of the file but the end of the body, and leaves.
func (o *office) hangUp(t *testing.T, file string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", o.admin)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "PUT /admin/candidates?allow_removals=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: text/csv\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",
		backOfficeToken, len(file), file); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn) // until the server has seen it and ended the request
	conn.Close()
}
