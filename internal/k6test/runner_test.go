package k6test_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/k6test"
)

// broken is a script of the repository with a mistake in it, beside the library.
func broken(t *testing.T, name, old, new string) (*k6test.Script, error) {
	t.Helper()
	dir, entry := t.TempDir(), name
	if name == "lib.js" {
		entry = "steady.js"
	}
	for _, file := range []string{entry, "lib.js"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "k6", file))
		if err != nil {
			t.Fatal(err)
		}
		if file == name {
			if !strings.Contains(string(text), old) {
				t.Fatalf("%s: got no %q in it to break", name, old)
			}
			text = []byte(strings.Replace(string(text), old, new, 1))
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return k6test.Load(filepath.Join(dir, entry))
}

// Whatever somebody breaks in a script or in the library, the run says so.
func TestRun_FailsABrokenScript(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, file, old, new, want string }{
		{"Syntax", "steady.js", "export function visitor(data) {", "export function visitor(data) {{", "Unexpected end of file"},
		{"AnImportThatTheLibraryHasNot", "steady.js", "import {\n  arriving,", "import {\n  ariving, arriving,", "ariving"},
		{"AFileThatIsNotThere", "steady.js", "'./lib.js'", "'./library.js'", "library.js"},
		{"AModuleThatK6HasNot", "steady.js", "'k6/execution'", "'k6/exec'", "k6/exec"},
		{"ANameThatTheModuleHasNot", "abuse.js", "import { Counter,", "import { Countr,", "Countr"},
		{"AFunctionThatTheModuleHasNot", "lib.js", "http.get(target + path", "http.gett(target + path", "k6/http has no gett"},
		{"APropertyThatAResponseHasNot", "lib.js", "if (res.status === 303 && isText", "if (res.state === 303 && isText", "Response has no state"},
		{"AParameterThatARequestHasNot", "lib.js", "redirects: 0, timeout: '20s', tags: { name: 'pay' }", "redirect: 0", "no parameter redirect"},
		{"ATimeoutWithoutAUnit", "lib.js", "timeout: '20s', tags: { name: 'pay' }", "timeout: '20'", "timeout 20"},
		{"AHeaderThatIsNoText", "lib.js", "headers['Idempotency-Key'] = key", "headers['Idempotency-Key'] = 2", "Idempotency-Key is 2"},
		{"AnExecutionPropertyThatIsNone", "steady.js", "exec.scenario.iterationInTest", "exec.scenario.iteration", "exec.scenario has no iteration"},
		{"ANameThatIsNotDeclared", "steady.js", "const p = person(i);", "const q = person(i);", "p is not defined"},
		{"AnException", "steady.js", "readPage();", "throw new Error('tired');", "tired"},
		{"AnExceptionInSetup", "steady.js", "export const setup = prepare;", "export function setup() { throw new Error('tired'); }", "tired"},
		{"AnExceptionInTeardown", "steady.js", "export const teardown = review;", "export function teardown() { throw new Error('tired'); }", "tired"},
		{"AnOptionThatIsNone", "rush.js", "setupTimeout: '60s'", "setuptimeout: '60s'", "setuptimeout"},
		{"AScenarioFieldThatIsNone", "rush.js", "bookings: arriving('candidate', rate, 1, 6, '25s')", "bookings: Object.assign(arriving('candidate', rate, 1, 6, '25s'), { preAlocatedVUs: 3 })", "preAlocatedVUs"},
		{"AnExecutorThatIsNone", "rush.js", "bookings: arriving('candidate', rate, 1, 6, '25s')", "bookings: Object.assign(arriving('candidate', rate, 1, 6, '25s'), { executor: 'constant-arival-rate' })", "constant-arival-rate"},
		{"ARateThatIsNotWhole", "rush.js", "const rate = ratePerSecond(2000);", "const rate = ratePerSecond(2000) + 0.5;", "options"},
		{"TooFewVUs", "rush.js", "rate * readsPerBooking, 0.1, 1, '25s'", "rate * readsPerBooking, 1, 0.1, '25s'", "maxVUs"},
		{"AFunctionThatIsNotExported", "rush.js", "arriving('candidate'", "arriving('candidates'", "exports no such function"},
		{"NoOptions", "rush.js", "export const options", "const options", "exports no options"},
		{"AThresholdOfNoMetric", "rush.js", "seats: ['count>0']", "seat: ['count>0']", "seat: the script has no such metric"},
		{"AThresholdOfAnotherType", "rush.js", "seats: ['count>0']", "seats: ['p(99)>0']", "a Counter has only"},
		{"AThresholdThatIsNone", "rush.js", "seats: ['count>0']", "seats: ['count=>0']", "count=>0"},
		{"AThresholdWithAMemberThatIsNone", "rush.js", "seats: ['count>0']", "seats: [{ threshold: 'count>0', abortOnfail: true }]", "abortOnfail"},
		{"AMetricMadeTwice", "abuse.js", "new Counter('seats_by_abuse')", "new Counter('seat_ms')", "it is a Trend already"},
		{"AMetricOfK6sOwn", "abuse.js", "new Counter('seats_by_abuse')", "new Counter('http_reqs')", "k6 has one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := broken(t, c.file, c.old, c.new)
			if err == nil {
				_, err = run(t, s, k6test.Options{Env: newFake(t).env(), Iterations: 4})
			}
			if !errors.Is(err, k6test.ErrScript) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v with %q", err, k6test.ErrScript, c.want)
			}
		})
	}
}

// The settings are checked before anything is sent.
func TestRun_FailsAWrongSetting(t *testing.T) {
	t.Parallel()
	list := func(text string) func(t *testing.T) string {
		return func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "list.csv")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	is := func(text string) func(*testing.T) string { return func(*testing.T) string { return text } }
	for _, c := range []struct {
		name, setting string
		value         func(t *testing.T) string
	}{
		{"NoNumber", "RATE", is("many")}, {"NothingAtAll", "RATE", is("0")}, {"NegativeThought", "THINK", is("-1")},
		{"TighterThanTheObjective", "SLACK", is("0.5")}, {"NoUnit", "FOR", is("25")}, {"NoTime", "FOR", is("0s")},
		{"NoFile", "CODES", is("nobody.csv")}, {"NoHeader", "CODES", list("AB-1,a@example.org\n")},
		{"NoCandidate", "CODES", list("code,email\n")}, {"NoEmail", "CODES", list("code,email\nAB-1\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			env := f.env()
			env[c.setting] = c.value(t)
			_, err := run(t, load(t, "rush.js"), k6test.Options{Env: env})
			if !errors.Is(err, k6test.ErrScript) || !strings.Contains(err.Error(), c.setting) && !strings.Contains(err.Error(), env[c.setting]) {
				t.Errorf("run: got %v, want %v with the setting", err, k6test.ErrScript)
			}
			if bookings, _ := f.counts(); bookings != 0 {
				t.Errorf("bookings sent: got %d, want 0", bookings)
			}
		})
	}
}

// A candidates file takes the place of the made-up candidates.
func TestScripts_TakeCandidatesFromAFile(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	env := f.env()
	env["CODES"] = filepath.Join("..", "examples", "candidates.csv") // from the script's folder
	env["CANDIDATES"] = ""
	env["FIRST"] = "900001" // of nobody who is made up
	if _, err := run(t, load(t, "steady.js"), k6test.Options{Env: env, Iterations: 3}); err != nil {
		t.Fatalf("run: got %v, want nil", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for code := range f.seats {
		if !strings.HasPrefix(code, "AB-10") {
			t.Errorf("seat of %s, want one of the file's codes", code)
		}
	}
}

// small is a script of a test's own: these options and this text.
func small(t *testing.T, thresholds, text string) *k6test.Script {
	t.Helper()
	source := `import { sleep } from 'k6';
import { SharedArray } from 'k6/data';
import exec from 'k6/execution';
import http from 'k6/http';
import { Counter, Gauge, Rate, Trend } from 'k6/metrics';
export const options = {
  scenarios: { one: { executor: 'constant-arrival-rate', exec: 'one', rate: 200, duration: '1s', preAllocatedVUs: 2 } },
  thresholds: {` + thresholds + `},
};
const counted = new Counter('counted'), level = new Gauge('level'), share = new Rate('share'), times = new Trend('times', true);
const used = [sleep, SharedArray, exec, http, counted, level, share, times];
` + text
	path := filepath.Join(t.TempDir(), "small.js")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := k6test.Load(path)
	if err != nil {
		t.Fatalf("load: got %v, want nil", err)
	}
	return s
}

func TestRun_JudgesThresholdsAsK6Does(t *testing.T) {
	t.Parallel()
	// 20 samples: 0 to 19.
	const text = `export function one() {
  const i = exec.scenario.iterationInTest;
  counted.add(i, { half: i < 10 ? 'first' : 'second' });
  level.add(7);
  share.add(i % 4 === 0);
  times.add(i);
}`
	holding := []string{
		"counted: ['count==190', 'count===190', 'count<=190', 'rate<100000']", "level: ['value>=7', 'value!=8']",
		"share: ['rate==0.25']", "times: ['avg==9.5', 'med==9.5', 'min==0', 'max == 19', 'p(50)==9.5', 'p(100)==19', 'p(0)==0', 'p(95)<=18.05']",
		"'counted{half:first}': ['count==45']", "'counted{half:second, scenario:one}': ['count==145']",
		"'counted{half:third}': ['count==0']", "'share{half:third}': ['rate==1']", "'times{half:third}': ['p(99)<1']",
		"iterations: ['count==20']", "iteration_duration: ['min>=0']", "dropped_iterations: ['count==0']",
	}
	t.Run("Holding", func(t *testing.T) {
		t.Parallel()
		if _, err := run(t, small(t, strings.Join(holding, ","), text), k6test.Options{VUs: 1, Iterations: 20}); err != nil {
			t.Errorf("run: got %v, want nil", err)
		}
	})
	for _, crossed := range []string{
		"counted: ['count<190']", "counted: ['rate>100000']", "level: ['value!=7']", "share: ['rate>0.25']",
		"times: ['p(95)<18']", "times: ['max < 19']", "times: ['min==0', 'max==18']", "'counted{half:third}': ['count>0']",
	} {
		t.Run(crossed, func(t *testing.T) {
			t.Parallel()
			_, err := run(t, small(t, crossed, text), k6test.Options{VUs: 1, Iterations: 20})
			if !errors.Is(err, k6test.ErrThreshold) {
				t.Errorf("run: got %v, want %v", err, k6test.ErrThreshold)
			}
		})
	}
}

func TestRun_EndsAtAThresholdThatIsToEndIt(t *testing.T) {
	t.Parallel()
	const text = `
export function setup() { return { from: 'setup' }; }
export function one(data) { counted.add(1); sleep(100); }
export function teardown(data) { console.log('teardown', data.from); }`
	for _, c := range []struct {
		name, threshold string
		ends            bool
	}{
		{"AtOnce", "counted: [{ threshold: 'count==0', abortOnFail: true }]", true},
		{"NotBeforeItsTime", "counted: [{ threshold: 'count==0', abortOnFail: true, delayAbortEval: '1h' }]", false},
		{"NotWithoutBeingTold", "counted: ['count==0']", false},
		{"NotWithoutASample", "times: [{ threshold: 'p(99)>5', abortOnFail: true }]", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := small(t, c.threshold, text)
			if !c.ends { // then the iterations end the run
				s = small(t, c.threshold, strings.Replace(text, "sleep(100)", "sleep(0.1)", 1))
			}
			got, err := s.Run(ctx, k6test.Options{Iterations: 2})
			if !errors.Is(err, k6test.ErrThreshold) || strings.Contains(err.Error(), "run ended") != c.ends {
				t.Errorf("run: got %v, want %v, before its end: %t", err, k6test.ErrThreshold, c.ends)
			}
			if diff := cmp.Diff([]string{"log: teardown setup"}, got.Console); diff != "" {
				t.Errorf("console (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRun_EndsWhenTheScriptAborts(t *testing.T) {
	t.Parallel()
	s := small(t, "counted: ['count>=0']", `
export function one() {
  if (exec.scenario.iterationInTest > 0) { sleep(100); }
  try { exec.test.abort('enough'); } catch (e) { counted.add(1); }
  counted.add(1);
}`)
	got, err := run(t, s, k6test.Options{})
	if !errors.Is(err, k6test.ErrAborted) || !strings.Contains(err.Error(), "enough") {
		t.Errorf("run: got %v, want %v with the script's words", err, k6test.ErrAborted)
	}
	if got.Count("counted") != 0 {
		t.Errorf("lines after the abort: got %g, want none run", got.Count("counted"))
	}
}

// A script that catches everything hides nothing.
func TestRun_FailsWhatAScriptCatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line, want string }{
		{"AnUnknownFunction", "http.pots('http://127.0.0.1/')", "k6/http has no pots"},
		{"NoNumber", "times.add('fast')", "times.add(fast)"},
		{"NaN", "times.add(0 / 0)", "times.add(NaN)"},
		{"APauseThatIsNone", "sleep(undefined)", "sleep(undefined)"},
		{"AMetricTooLate", "new Counter('late')", "metric late"},
		{"AFileTooLate", "open('x.csv')", "open(x.csv)"},
		{"ABodyThatIsNoText", "http.post('http://127.0.0.1/', { a: 1 })", "a body"},
		{"NoAddress", "http.get()", "a request's address"},
		{"AConsoleThatIsNone", "console.shout('x')", "console has no shout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := small(t, "counted: ['count>=0']", "export function one() { try { "+c.line+"; } catch (e) { counted.add(1); } }")
			_, err := run(t, s, k6test.Options{Iterations: 1})
			if !errors.Is(err, k6test.ErrScript) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("run: got %v, want %v with %q", err, k6test.ErrScript, c.want)
			}
		})
	}
}

func TestRun_SendsWhatTheScriptSays(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[string]
	site := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		body := make([]byte, 64)
		n, _ := r.Body.Read(body)
		text := r.Method + " " + r.Header.Get("X-Asked") + " " + string(body[:n])
		got.Store(&text)
		w.Header().Add("X-Said", "a")
		w.Header().Add("X-Said", "b")
		_, _ = w.Write([]byte(`{"list":[1,2]}`))
	})
	s := small(t, "counted: ['count==9'], 'http_reqs{name:asked,status:200}': ['count==1'], http_reqs: ['count==6']", `
function is(got, want) {
  if (JSON.stringify(got) !== JSON.stringify(want)) { throw new Error('got ' + JSON.stringify(got) + ', want ' + JSON.stringify(want)); }
  counted.add(1);
}
const shared = new SharedArray('shared', () => [{ n: 1 }, { n: 2 }]);
export function setup() { return { when: 1 }; }
export function one(data) {
  const res = http.request('PUT', __ENV.SITE + '/', 'hello', { headers: { 'X-Asked': 'yes' }, tags: { name: 'asked' } });
  is([res.status, res.headers['X-Said'], res.json().list[1], res.error], [200, 'a, b', 2, '']);
  is(http.get(__ENV.SITE + '/moved', { redirects: 0 }).headers.Location, '/');
  is(http.get(__ENV.SITE + '/moved').status, 200);
  is(http.get(__ENV.SITE + '/', { responseType: 'none' }).body, null);
  is(http.batch([['GET', __ENV.SITE + '/'], ['POST', __ENV.SITE + '/moved', null, { redirects: 0 }]]).map((r) => r.status), [200, 303]);
  is(data, { when: 1 });
  is([shared.length, shared[1].n], [2, 2]);
  is(exec.scenario.name, 'one');
  is(exec.vu.idInTest > 0, true);
}`)
	if _, err := run(t, s, k6test.Options{Env: map[string]string{"SITE": site.URL}, Iterations: 1}); err != nil {
		t.Fatalf("run: got %v, want nil", err)
	}
	if got.Load() == nil {
		t.Error("request: got none")
	}
}

// Nobody is there: that is an answer too, of status 0.
func TestRun_TellsTheScriptThatNobodyAnswered(t *testing.T) {
	t.Parallel()
	s := small(t, "counted: ['count==1']", `
export function one() {
  const res = http.get('http://127.0.0.1:1/', { timeout: '1s' });
  if (res.status === 0 && res.error !== '' && res.body === null) { counted.add(1); }
}`)
	if _, err := run(t, s, k6test.Options{Iterations: 1}); err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}

// Whether the server cut the connection or the script gave up is in the error code.
func TestRun_TellsATimeoutFromACutConnection(t *testing.T) {
	t.Parallel()
	site := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cut":
			panic(http.ErrAbortHandler)
		case "/silent":
			<-r.Context().Done()
		case "/no":
			w.WriteHeader(http.StatusTeapot)
		}
	})
	s := small(t, "counted: ['count==4']", `
export function one() {
  for (const [path, status, code] of [['/', 200, 0], ['/no', 418, 1418], ['/cut', 0, 1000], ['/silent', 0, 1050]]) {
    const res = http.get(__ENV.SITE + path, { timeout: path === '/silent' ? '50ms' : '20s' });
    if (res.status !== status || res.error_code !== code) { throw new Error(path + ': got ' + res.status + ' and ' + res.error_code); }
    counted.add(1);
  }
}`)
	if _, err := run(t, s, k6test.Options{Env: map[string]string{"SITE": site.URL}, Iterations: 1}); err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}

// A connection that is long in coming is in blocked, and not in duration, as in k6.
func TestRun_MeasuresAsK6Does(t *testing.T) {
	t.Parallel()
	site := serve(t, func(http.ResponseWriter, *http.Request) {})
	s := small(t, "counted: ['count==1'], http_req_duration: ['max<600']", `
export function one() {
  const first = http.get(__ENV.SITE).timings, second = http.get(__ENV.SITE).timings;
  const sum = first.sending + first.waiting + first.receiving;
  const ok = first.blocked >= 600 && Math.abs(first.duration - sum) < 0.001 && first.tls_handshaking === 0 &&
    second.blocked < 600 && second.connecting === 0;
  if (!ok) { throw new Error([first.blocked, first.duration, sum, second.blocked, second.connecting].join()); }
  counted.add(1);
}`)
	o := k6test.Options{Env: map[string]string{"SITE": site.URL}, Iterations: 1, Dial: slowly(600 * time.Millisecond)}
	if _, err := run(t, s, o); err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}

// slowly dials as one does where the queue of connections is full.
func slowly(wait time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	site := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(enough)
		<-r.Context().Done()
	})
	s := small(t, "counted: ['count>=0']", `
export function one() { http.get(__ENV.SITE); for (;;) { counted.add(1); } }
export function teardown() { console.log('teardown'); }`)
	got, err := s.Run(ctx, k6test.Options{Env: map[string]string{"SITE": site.URL}})
	if !errors.Is(err, enough) {
		t.Errorf("run: got %v, want the context's own %v", err, enough)
	}
	if len(got.Console) > 0 {
		t.Errorf("console: got %q, want no teardown", got.Console)
	}
}
