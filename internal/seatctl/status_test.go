package seatctl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/alarms"
	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/saleops"
	"holdfast/internal/seatctl"
	"holdfast/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

// rush is a fixed view: four minutes after an opening.
func rush() seatctl.View {
	at := time.Date(2026, 12, 1, 4, 4, 5, 0, time.UTC)
	number := func(n int) *int { return &n }
	float := func(f float64) *float64 { return &f }
	yes, swept := true, at.Add(-14*time.Second)
	phase := func(p booking.Phase, oldest int64, ages ...int) saleops.PhaseCount {
		n := 0
		for _, a := range ages {
			n += a
		}
		return saleops.PhaseCount{Phase: p, Rows: n, ByAge: ages, OldestSeconds: oldest}
	}
	return seatctl.View{
		At: at,
		Sight: saleops.Sight{
			Sale: "demo-2026",
			Seats: &saleops.SeatSight{At: at, Open: true, Cap: 20700, Admitted: number(14210), Levels: []saleops.LevelSight{
				{ID: "N1", Name: "N1 Advanced", Cap: 2400, Admitted: number(2400)},
				{ID: "N2", Name: "N2 Upper intermediate", Cap: 3600, Admitted: number(2933)},
				{ID: "N3", Name: "N3 Intermediate", Cap: 4800, Admitted: number(3411)},
				{ID: "N4", Name: "N4 Elementary", Cap: 5400, Admitted: nil},
				{ID: "N5", Name: "N5 Beginner", Cap: 5200, Admitted: number(0)},
			}},
			Rows: &saleops.RowCount{At: at.Add(-8 * time.Second), Rows: 14208, PastDeadline: 3, InDoubt: 4, ForAPerson: 1, Phases: []saleops.PhaseCount{
				phase(booking.PhaseNew, 2, 41, 0, 0, 0), phase(booking.PhasePayable, 4, 12, 0, 0, 0), phase(booking.PhaseHeld, 245, 5120, 6102, 0, 0),
				phase(booking.PhasePaying, 1931, 87, 13, 0, 1), phase(booking.PhaseRefused, 199, 10, 22, 0, 0), phase(booking.PhasePaid, 240, 300, 2500, 0, 0),
			}},
			Queue:        &saleops.QueueSight{Waiting: 212, InFlight: 30, Dead: 1, OldestSeconds: 1.6},
			Acknowledged: &yes, Published: &yes,
			Unknown: map[string]string{saleops.PartRefunds: "count refunds: the store does not answer", "processes": "not all of them answer"},
		},
		AdmissionsAMinute: float(3817.4), SeatsAMinute: float(3790), OverSeconds: 60,
		LastSweep: &swept, AckFailures: float(2), AckFailuresRecent: float(0),
		Processes: []alarms.Target{
			{URL: "http://10.0.1.10:9090/metrics"}, {URL: "http://10.0.2.10:9090/metrics"},
			{URL: "http://10.0.3.10:9090/metrics", Error: "dial tcp 10.0.3.10:9090: connect: connection refused"},
			{URL: "http://10.0.1.11:9091/metrics"},
		},
		Alarms: []alarms.Alarm{
			{Name: "DeadLetters", Severity: "page", State: alarms.StateFiring, Since: at.Add(-95 * time.Second), Summary: "Dead letters: 1", Runbook: "docs/runbooks/dead-letters.md"},
			{Name: "RowsInDoubt", Severity: "page", State: alarms.StatePending, Since: at.Add(-10 * time.Second), Summary: "1 seat in doubt waits for a person", Runbook: "docs/runbooks/rows-in-doubt.md"},
			{Name: "BookingErrors", State: alarms.StateShort}, {Name: "BookingErrors", State: alarms.StateShort}, {Name: "GatewayFailing", State: alarms.StateShort},
			{Name: "RedisCpuHigh", State: alarms.StateNoData}, {Name: "QueueBehind", State: alarms.StateFine}, {Name: "RefundsDue", State: alarms.StateFine},
		},
	}
}

func TestStatusScreen_LooksLikeThis(t *testing.T) {
	t.Parallel()
	got := seatctl.Draw(rush(), 80, 40)
	golden := filepath.Join("testdata", "status.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("screen (-%s +got), -update writes it anew:\n%s", golden, diff)
	}
}

func TestStatusScreen_FitsAnyTerminal(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 40}, {80, 24}, {40, 40}, {20, 10}, {200, 60}, {1, 1}} {
		text := seatctl.Draw(rush(), size[0], size[1])
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) > size[1] {
			t.Errorf("%dx%d: got %d lines, want no more than fit", size[0], size[1], len(lines))
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > size[0] {
				t.Errorf("%dx%d: got a line of %d characters: %s", size[0], size[1], n, l)
			}
		}
		if size[1] == 24 && !strings.HasSuffix(text, " more lines\n") {
			t.Errorf("80x24: got %q at the end, want that there is more", lines[len(lines)-1])
		}
	}
}

func TestStatusScreen_NothingReadIsUnknownAndNotNothing(t *testing.T) {
	t.Parallel()
	got := seatctl.Draw(seatctl.View{At: time.Unix(0, 0), Sight: saleops.Sight{Unknown: map[string]string{saleops.PartSeats: "dial tcp: refused"}}}, 80, 0)
	for _, want := range []string{
		"sale unknown  unknown", "seats       unknown: dial tcp: refused", "rows        unknown: it was not read", "paid        unknown", "refunds     unknown",
		"queue       unknown", "reconciler  unknown", "replicas    unknown; acknowledgement failures unknown", "status.json unknown", "processes   unknown", "alarms      unknown",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if strings.ContainsAny(strings.ReplaceAll(got, "00:00:00Z", ""), "0123456789") {
		t.Error("it has a figure")
	}
	if t.Failed() {
		t.Log(got)
	}
}

// Texts of elsewhere, such as an error's, must not move the cursor.
func TestStatusScreen_DrawsInPlaceAndLetsNoTextMoveTheCursor(t *testing.T) {
	t.Parallel()
	v := rush()
	v.Unknown[saleops.PartRefunds] = "a\x1b[2J\r\nb\u009b1J"
	got := seatctl.DrawInPlace(v, 80, 30)
	if !strings.HasPrefix(got, "\x1b[H") || !strings.HasSuffix(got, "\x1b[K\x1b[J") || strings.Count(got, "\r\n") != 29 {
		t.Errorf("got %q, want 30 lines from the top left corner, each cleared to its end", got)
	}
	if strings.Contains(got, "\x1b[2J") || strings.Contains(got, "\u009b") || !strings.Contains(got, "\x1b[1;31m") {
		t.Errorf("got %q, want colour, and no control code of the text's", got)
	}
}

func TestWhenIn_SaysTheZoneGivenUTCAndHowFar(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 0, 48, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2026-12-01T10:00:00+06:00": "2026-12-01T10:00:00+06:00 (2026-12-01T04:00:00Z), in 3 h 12 min",
		"2026-12-01T00:49:05Z":      "2026-12-01T00:49:05Z, in 1 min 5 s",
		"2026-12-01T00:47:59Z":      "2026-12-01T00:47:59Z, 1 s ago",
		"2026-12-04T01:48:59+00:00": "2026-12-04T01:48:59Z, in 3 d 1 h",
	} {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := seatctl.WhenIn(at, now); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// A running sale is watched, scheduled, opened and closed.
func TestOpenCloseStatus_AgainstARunningSale(t *testing.T) {
	t.Parallel()
	testenv.NeedServer(t)
	d := start(t, nil)
	d.pay(t, d.book(t, 100001))
	d.book(t, 100002)

	var v seatctl.View
	testenv.Eventually(t, func() error {
		got := run(t, "", "status", "--every", "1s", "--json", "--data", d.data)
		if err := json.Unmarshal([]byte(got.stdout), &v); err != nil {
			return err
		}
		if got.code != 0 || v.LastSweep == nil {
			return fmt.Errorf("got code %d, unknown %v, alarms %+v, want all seen and nothing firing", got.code, v.Unknown, v.Alarms[0])
		}
		return nil
	})
	if *v.Seats.Admitted != 2 || v.Rows.Rows != 2 || v.Rows.Paid() != 1 || v.AckFailures == nil || v.AdmissionsAMinute == nil || len(v.Processes) != 1 || v.Processes[0].Error != "" {
		t.Errorf("status: got %+v, want two seats, one of them paid, and what the process says", v)
	}
	if n := alarms.Count(v.Alarms); len(v.Alarms) < 20 || n[alarms.StateFine] == 0 || n[alarms.StateShort] == 0 || n[alarms.StateFailed] > 0 {
		t.Errorf("alarms: got %v, want some fine, some short of history, all evaluated", n)
	}
	run(t, "", "status", "--every", "1s", "--data", d.data).want(t, 0, "sale demo-2026  OPEN", "2 / 20,700", "paid        1", "1 of 1 answer", "not enough history:")

	open := func(stdin string, args ...string) result {
		return run(t, stdin, append([]string{"open", "--data", d.data}, args...)...)
	}
	later := time.Now().Add(3 * time.Hour).In(time.FixedZone("", 6*3600)).Format(time.RFC3339)
	open("", "--at", later, "--yes").want(t, 1, "REFUSED", "close it first", "nothing was changed")
	run(t, "", "close", "--reason", "drill", "--data", d.data).want(t, 0, "closes booking of sale demo-2026, which is open", "acknowledged    yes", "none admitted   yes, 2 seats", "status.json     yes")
	d.refuses(t, "not_open")
	open("", "--at", time.Now().Add(-time.Minute).Format(time.RFC3339), "--yes").want(t, 1, "it is over", "nothing was changed")
	open("no\n", "--at", later).want(t, 1, "Go on?", "not agreed: nothing was changed")
	open("y\n", "--at", later).want(t, 0, "2000 candidates on the allowlist", "opens "+later, "in 2 h 59 min")
	d.refuses(t, "opens_at")
	got := run(t, "", "close", "--reason", "drill", "--data", d.data, "--json")
	var closed struct {
		Forgot                  time.Time `json:"forgot_opening_at"`
		Acknowledged, Published bool
		NoneAdmitted            bool `json:"none_admitted"`
		Admitted                int
		Missing                 []string
	}
	if err := json.Unmarshal([]byte(got.stdout), &closed); err != nil || got.code != 0 || closed.Forgot.Format(time.RFC3339) != mustUTC(t, later) || !closed.Acknowledged || !closed.NoneAdmitted || !closed.Published || closed.Admitted != 2 {
		t.Errorf("close --json: got %d %s, %v, want all there and the opening forgotten", got.code, got.stdout, err)
	}
	open("", "--yes").want(t, 0, "Booking of sale demo-2026 is open")
	open("", "--yes", "--json").want(t, 0, `"published": true`, `"name": "worker"`)
	d.book(t, 100003)
	run(t, "", "log", "--data", d.data).want(t, 0, "open", "close", "drill")

	// What speaks against it, and a switch that no replica has.
	if err := d.rdb.Rename(t.Context(), "{sale}:candidates:valid", "{sale}:away").Err(); err != nil {
		t.Fatal(err)
	}
	open("", "--yes").want(t, 1, "REFUSED  allowlist", "refused: nothing was changed")
	if err := d.rdb.Rename(t.Context(), "{sale}:away", "{sale}:candidates:valid").Err(); err != nil {
		t.Fatal(err)
	}
	d.cutReplica(t)
	run(t, "", "close", "--reason", "drill", "--wait", "1s", "--data", d.data).want(t, 1, "missing: acknowledgement of the switch")
	open("", "--yes").want(t, 1, "REFUSED  replicas", "refused: nothing was changed")
}

// refuses wants a booking refused, with that word in the answer.
func (d *deployment) refuses(t *testing.T, word string) {
	t.Helper()
	_, body := d.do(t, "POST", d.base+"/book", "application/json", `{"code":"AB-100009","email":"candidate100009@example.org","level":"N1"}`, 503)
	if !strings.Contains(string(body), word) {
		t.Errorf("booking: got %s, want %s", body, word)
	}
}

// cutReplica has the primary refuse its replica from now on: it may not ask to follow.
func (d *deployment) cutReplica(t *testing.T) {
	t.Helper()
	if err := d.rdb.Do(t.Context(), "ACL", "SETUSER", "default", "-psync", "-replconf").Err(); err != nil {
		t.Fatal(err)
	}
	if err := d.rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
}

func mustUTC(t *testing.T, text string) string {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC().Format(time.RFC3339)
}

// lines collects what a watching command prints, and ends it after the wanted number
// of documents.
type lines struct {
	bytes.Buffer
	left int
	stop context.CancelFunc
}

func (l *lines) Write(b []byte) (int, error) {
	if l.left--; l.left <= 0 {
		l.stop()
	}
	return l.Buffer.Write(b)
}

// Nobody serves metrics, and status.json tells another figure: what is not known is
// said, and the rest is shown. An interruption is how a watch ends.
func TestStatusWatch_GoesOnUntilInterruptedAndSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.two(t)
	s.serve(t, 0)
	away := "http://" + testenv.FreeAddr(t) + "/metrics"
	addEnv(t, s.data, "HOLDFAST_METRICS_URLS="+away)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &lines{left: 2, stop: cancel}
	var errs bytes.Buffer
	code := seatctl.Run(ctx, app.Local(), []string{"status", "--watch", "--every", "1s", "--json", "--data", s.data}, func(string) string { return "" }, strings.NewReader(""), out, &errs)
	docs := strings.Split(strings.TrimSpace(out.String()), "\n")
	if code != 0 || len(docs) != 2 {
		t.Fatalf("got code %d and %d documents, want 0 and two:\n%s\n%s", code, len(docs), out, &errs)
	}
	var v seatctl.View
	if err := json.Unmarshal([]byte(docs[1]), &v); err != nil {
		t.Fatal(err)
	}
	if *v.Seats.Admitted != 2 || v.SeatsAMinute == nil || v.AdmissionsAMinute != nil || v.AckFailures != nil || v.LastSweep != nil {
		t.Errorf("got %+v, want the ledger's figures, and none of a process", v)
	}
	if v.Unknown["processes"] == "" || v.Unknown["last sweep"] == "" || v.Processes[0].URL != away || v.Processes[0].Error == "" {
		t.Errorf("got unknown %v, processes %+v, want that the process is away", v.Unknown, v.Processes)
	}
	if n := alarms.Count(v.Alarms); n[alarms.StateNoData] == 0 || n[alarms.StateFine] > 0 {
		t.Errorf("alarms: got %v, want no data, and none fine", n)
	}
	run(t, "", "status", "--every", "1s", "--data", s.data).want(t, 1, "2 / ", "processes   0 of 1 answer", "away    "+away, "connection refused", "reconciler  unknown")
}

func addEnv(t *testing.T, data, line string) {
	t.Helper()
	path := filepath.Join(data, config.EnvFile)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, append(text, line+"\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestStatus_JudgesByTheRulesGiven(t *testing.T) {
	t.Parallel()
	s := stopped(t, time.Minute)
	s.serve(t, 0)
	addEnv(t, s.data, "HOLDFAST_METRICS_URLS=http://"+testenv.FreeAddr(t)+"/metrics")
	rules := filepath.Join(t.TempDir(), "rules.yml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`groups: [{name: g, rules: [{alert: NobodyIsUp, expr: "up == 0", labels: {severity: page}, annotations: {summary: "{{ $labels.instance }} is away", runbook: docs/runbooks/away.md}}]}]`)
	run(t, "", "status", "--every", "1s", "--rules", rules, "--data", s.data).want(t, 1, "1 firing, 0 pending, 0 fine", "FIRING  NobodyIsUp, page, for 1 s: 127.0.0.1:", " is away", "docs/runbooks/away.md")
	write("groups: []")
	run(t, "", "status", "--rules", rules, "--data", s.data).want(t, 2, "rules file: it has no rule")
	run(t, "", "status", "--every", "10ms", "--data", s.data).want(t, 2, "--every: want 1s or more")
}

func TestOpen_WantsATimeWithItsZone(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"2026-12-01T10:00:00", "2026-12-01 10:00:00+06:00", "10:00", "tomorrow", "2026-12-01T10:00+06:00"} {
		run(t, "", "open", "--at", at).want(t, 2, "want a time with its zone")
	}
	run(t, "", "close", "--reason", " ").want(t, 2, "say why")
	run(t, "", "close").want(t, 2, "--reason")
	run(t, "", "close", "--reason", "x", "--wait", "-1s").want(t, 2, "--wait")
}
