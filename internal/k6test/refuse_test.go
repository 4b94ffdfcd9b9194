package k6test_test

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/k6test"
)

func TestScripts_RefuseWhatIsNoRehearsalBeforeABookingIsSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(f *fake, env map[string]string)
		want   string
	}{
		{"AGatewayWithoutTheMarker", func(f *fake, _ map[string]string) { f.marker = "" }, "does not say that it is the mock gateway"},
		{"AnotherMarker", func(f *fake, _ map[string]string) { f.marker = "somebody" }, "does not say that it is the mock gateway"},
		{"NoGateway", func(_ *fake, env map[string]string) { delete(env, "GATEWAY") }, "GATEWAY="},
		{"AGatewayThatIsNotThere", func(_ *fake, env map[string]string) { env["GATEWAY"] = "http://127.0.0.1:1" }, "does not say that it is the mock gateway"},
		{"AGatewayWithAUser", func(f *fake, env map[string]string) {
			env["GATEWAY"] = strings.Replace(f.gateway.URL, "http://", "http://mock@", 1)
		}, "GATEWAY="},
		{"NoTarget", func(_ *fake, env map[string]string) { delete(env, "TARGET") }, "TARGET="},
		{"ATargetWithAPath", func(_ *fake, env map[string]string) { env["TARGET"] += "/book" }, "TARGET="},
		{"NotOpen", func(f *fake, _ map[string]string) { f.closed = true }, "booking is not open"},
	} {
		for _, name := range scripts {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newFake(t)
				env := f.env()
				c.change(f, env)
				_, err := run(t, load(t, name), k6test.Options{Env: env})
				if !errors.Is(err, k6test.ErrAborted) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("run: got %v, want %v with %q", err, k6test.ErrAborted, c.want)
				}
				if bookings, _ := f.counts(); bookings != 0 {
					t.Errorf("bookings sent: got %d, want 0", bookings)
				}
			})
		}
	}
}

// A deployment may have a gateway beside the mock: the first link tells.
func TestScripts_EndAtALinkThatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	for _, name := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
			f := newFake(t)
			f.pays = elsewhere.URL
			_, err := run(t, load(t, name), k6test.Options{Env: f.env()})
			if !errors.Is(err, k6test.ErrAborted) || !strings.Contains(err.Error(), "a payment link leads to "+elsewhere.URL) {
				t.Errorf("run: got %v, want %v with where the link leads", err, k6test.ErrAborted)
			}
			if asked.Load() != 0 {
				t.Errorf("requests there: got %d, want 0", asked.Load())
			}
			if _, pressed := f.counts(); pressed != 0 {
				t.Errorf("payments at the mock: got %d, want 0", pressed)
			}
		})
	}
}

func TestRush_PassesWhereTheContractIsKept(t *testing.T) {
	t.Parallel()
	if _, err := run(t, load(t, "rush.js"), k6test.Options{Env: newFake(t).env()}); err != nil {
		t.Errorf("run: got %v, want nil", err)
	}
}

// Each threshold is crossed by the deployment that it is about.
func TestRush_EndsWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	on := func(path string, h http.HandlerFunc) func(f *fake, o *k6test.Options) {
		return func(f *fake, _ *k6test.Options) {
			f.instead = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != path {
					return false
				}
				h(w, r)
				return true
			}
		}
	}
	book := func(h http.HandlerFunc) func(f *fake, o *k6test.Options) { return on("/book", h) }
	for _, c := range []struct {
		name   string
		change func(f *fake, o *k6test.Options)
		want   string // metric
	}{
		{"InternalErrors", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 500, "internal") }), "server_errors"},
		{"ABalancersError", book(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "gateway timeout", http.StatusGatewayTimeout)
		}), "server_errors"},
		{"AWrongSlug", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 409, "taken") }), "unexpected_answers"},
		{"ASlugWithAnotherStatus", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 400, "duplicate") }), "unexpected_answers"},
		{"ClosedWithoutAReason", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 429, "closed") }), "unexpected_answers"},
		{"AnAnswerWithoutARequestID", book(func(w http.ResponseWriter, _ *http.Request) {
			say(w, 409, map[string]any{"error": "duplicate", "message": "no"})
		}), "unexpected_answers"},
		{"AnAnswerThatMayBeStored", book(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "public")
			w.WriteHeader(409)
			_, _ = w.Write([]byte(`{"error":"duplicate","message":"no","request_id":"r1"}`))
		}), "unexpected_answers"},
		{"APage", book(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<p>hello")) }), "unexpected_answers"},
		{"A202WithoutALink", book(func(w http.ResponseWriter, _ *http.Request) {
			say(w, 202, map[string]any{"payment_id": "TR1", "level": "N1", "seconds_left": 1})
		}), "unexpected_answers"},
		{"TryAgainWithoutAPause", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "try_again") }), "server_errors"},
		{"ANoThatNobodyEarned", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 400, "invalid_code") }), "unexpected_answers"},
		{"AnotherLevelIsFull", book(func(w http.ResponseWriter, _ *http.Request) { refuse(w, 409, "level_full", "level", "N9") }), "unexpected_answers"},
		{"NobodyIsToldYesOrNo", func(f *fake, o *k6test.Options) {
			o.Iterations = 4
			book(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "1")
				refuse(w, 503, "try_again")
			})(f, o)
		}, "booking_decided"},
		{"NobodyAnswers", book(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "booking_answered"},
		{"ASlowNo", func(f *fake, o *k6test.Options) {
			o.Env["SLACK"], f.perLevel = "1", 1
			f.instead = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/book" {
					<-time.After(20 * time.Millisecond)
				}
				return false
			}
		}, "refusal_ms"},
		{"ASeatTwice", func(f *fake, _ *k6test.Options) { f.again = true }, "admitted_twice"},
		{"MoneyTwice", func(f *fake, _ *k6test.Options) { f.charges = 2 }, "charged_twice"},
		{"NoSeatForAnybody", func(f *fake, _ *k6test.Options) { f.perLevel = 0 }, "seats"},
		{"AReturnThatBreaks", on("/payment/callback", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }), "server_errors"},
		{"AReturnToNowhere", on("/payment/callback", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusSeeOther)
		}), "unexpected_answers"},
		{"AReturnThatIsBusy", func(f *fake, o *k6test.Options) {
			on("/payment/callback", func(w http.ResponseWriter, r *http.Request) {
				seatOf(f, r).paid = true // by somebody else's doing
				http.Redirect(w, r, "/result?error=busy&"+r.URL.RawQuery, http.StatusSeeOther)
			})(f, o)
		}, "return_answered"},
		{"APaidSeatThatNobodyConfirms", func(f *fake, o *k6test.Options) {
			on("/payment/callback", func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/result?booking="+seatOf(f, r).code, http.StatusSeeOther)
			})(f, o)
			// The two minutes, and SLACK times as long, pass at once.
			var asked atomic.Int64
			o.Now = func() time.Time { return time.Now().Add(time.Duration(asked.Add(1)) * time.Hour) }
		}, "paid_unconfirmed"},
		{"AFigureBelowZero", on("/status.json", func() http.HandlerFunc {
			var asked atomic.Int64
			return func(w http.ResponseWriter, _ *http.Request) {
				left := 5
				if asked.Add(1) > 1 {
					left = -1
				}
				say(w, 200, map[string]any{"version": 1, "open": true, "total": map[string]any{"cap": 10, "left": left},
					"levels": []map[string]any{{"id": "N1", "cap": 10, "left": 5}, {"id": "N2", "cap": 10, "left": 5}}})
			}
		}()), "unexpected_answers"},
		{"ABrokenPage", on("/", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 500) }), "server_errors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			o := k6test.Options{Env: f.env(), Iterations: 12}
			c.change(f, &o)
			_, err := run(t, load(t, "rush.js"), o)
			if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " "+c.want+" is ") {
				t.Errorf("run: got %v, want %v of %s", err, k6test.ErrThreshold, c.want)
			}
		})
	}
}

func seatOf(f *fake, r *http.Request) *seat {
	i := slices.IndexFunc(f.payments, func(s *seat) bool { return s.payment == r.URL.Query().Get("paymentID") })
	return f.payments[i]
}

// A pause that was asked for is kept, with the same key, and no seat is taken meanwhile.
func TestScripts_ObeyRetryAfter(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var at []time.Time
	var keys []string
	f.instead = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/book" {
			return false
		}
		at, keys = append(at, time.Now()), append(keys, r.Header.Get("Idempotency-Key"))
		if len(at) > 1 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "try_again")
		return true
	}
	// The one booking that was put off is half of them, and the objective 1 in 100.
	_, err := run(t, load(t, "steady.js"), k6test.Options{Env: f.env(), Iterations: 1})
	if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " booking_decided is ") {
		t.Errorf("run: got %v, want %v of booking_decided", err, k6test.ErrThreshold)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(at) < 2 || at[1].Sub(at[0]) < time.Second || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("bookings at %v with keys %q: want the second a second later at least, with the same key", at, keys)
	}
}

// front is a proxy before the real thing that changes answers.
func front(t *testing.T, d deployment, change func(r *http.Response)) deployment {
	t.Helper()
	to, err := url.Parse(d.site)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	proxy := &httputil.ReverseProxy{
		Transport:      transport,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // who ended a run has left
		ModifyResponse: func(r *http.Response) error { change(r); return nil },
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(func() { s.Close(); transport.CloseIdleConnections() })
	return deployment{s.URL, d.gateway}
}

// abuseEndsWithWhatIsWrong runs abuse.js with answers changed. The first crowd is another's.
func abuseEndsWithWhatIsWrong(t *testing.T, d deployment) {
	replace := func(r *http.Response, status int, slug string) {
		w := httptest.NewRecorder()
		refuse(w, status, slug)
		_ = r.Body.Close() // it is not wanted
		*r = *w.Result()
	}
	for i, c := range []struct {
		name   string
		change func(r *http.Response)
		want   string
	}{
		{"AnErrorForAMistake", func(r *http.Response) {
			if r.StatusCode == http.StatusUnsupportedMediaType {
				replace(r, http.StatusInternalServerError, "internal")
			}
		}, "server_errors"},
		{"AnotherSlug", func(r *http.Response) {
			if r.StatusCode == http.StatusRequestEntityTooLarge {
				replace(r, http.StatusBadRequest, "invalid_request")
			}
		}, "unexpected_answers"},
		{"AForgedReturnThatIsTaken", func(r *http.Response) {
			if strings.Contains(r.Header.Get("Location"), "error=unknown") {
				r.Header.Set("Location", "/result?booking=somebody")
			}
		}, "unexpected_answers"},
		{"AForgedNotificationThatIsTaken", func(r *http.Response) {
			if r.Request.URL.Path == "/payment/webhook" {
				r.StatusCode = http.StatusOK
			}
		}, "unexpected_answers"},
		{"ASeatTakenByAbuse", func(r *http.Response) {
			if r.StatusCode == http.StatusNotFound && r.Request.URL.Path == "/book" {
				replace(r, http.StatusConflict, "duplicate")
			}
		}, "seats_by_abuse"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := front(t, d, c.change).env(40, "1s", 2+i)
			_, err := run(t, load(t, "abuse.js"), k6test.Options{Env: env, VUs: 2})
			if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " "+c.want+" is ") {
				t.Errorf("run: got %v, want %v of %s", err, k6test.ErrThreshold, c.want)
			}
		})
	}
}
