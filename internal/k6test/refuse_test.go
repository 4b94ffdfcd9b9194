package k6test_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
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
		{"AGatewayWithoutAClock", func(f *fake, _ map[string]string) { f.dateless = true }, "says no time"},
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
	for name, ahead := range map[string]time.Duration{"": 0, "AGatewayThatIsAhead": time.Hour, "AGatewayThatIsBehind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.ahead = ahead
			for range 2 { // what was paid before is no business of this run
				f.payments = append(f.payments, &seat{code: "AB-1", payment: "TR", paid: true, created: f.gatewayTime().Add(-time.Minute)})
			}
			if _, err := run(t, load(t, "rush.js"), k6test.Options{Env: f.env()}); err != nil {
				t.Errorf("run: got %v, want nil", err)
			}
		})
	}
}

// A deployment that is asked for a few things only, or a gateway that shows none of what was
// paid, must not pass for want of samples.
func TestScripts_EndWhereNothingWasPaid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(f *fake)
		want   string // metrics
	}{
		{"PaymentPagesThatBreak", func(f *fake) { f.page = 500 }, "paid payment_pressed"},
		{"RefusedPayments", func(f *fake) {
			f.instead = func(w http.ResponseWriter, r *http.Request) bool {
				token, ok := strings.CutPrefix(r.URL.Path, "/booking/")
				if s := f.seats[token]; !ok || s == nil || !s.paid {
					return false
				}
				say(w, 200, map[string]any{"state": "refused", "level": "N1", "seconds_left": 500})
				return true
			}
		}, "paid"},
		{"AGatewayThatShowsNothing", func(f *fake) { f.hides = true }, "payments_reviewed"},
	} {
		for _, name := range []string{"rush.js", "steady.js"} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newFake(t)
				c.change(f)
				_, err := run(t, load(t, name), k6test.Options{Env: f.env(), Iterations: 12})
				for want := range strings.FieldsSeq(c.want) {
					if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " "+want+" is ") {
						t.Errorf("run: got %v, want %v of %s", err, k6test.ErrThreshold, want)
					}
				}
			})
		}
	}
}

// What a paid seat's search says is held to the seat.
func TestSteady_EndsWhereAPaidSeatIsNotFound(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter, booking string){
		"NotFound": func(w http.ResponseWriter, _ string) { refuse(w, http.StatusNotFound, "not_found") },
		"NotPaid": func(w http.ResponseWriter, booking string) {
			refuse(w, http.StatusConflict, "duplicate", "booking_url", booking)
		},
		"SomebodyElses": func(w http.ResponseWriter, booking string) {
			refuse(w, http.StatusConflict, "duplicate", "paid", true, "booking_url", booking+"0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.instead = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/book" {
					return false
				}
				body, err := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				code := regexp.MustCompile(`"code":"([^"]+)".*"find":true`).FindSubmatch(body)
				if err != nil || code == nil {
					return false
				}
				answer(w, f.site.URL+"/booking/"+string(code[1]))
				return true
			}
			_, err := run(t, load(t, "steady.js"), k6test.Options{Env: f.env(), Iterations: 12})
			if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " unexpected_answers is ") {
				t.Errorf("run: got %v, want %v of unexpected_answers", err, k6test.ErrThreshold)
			}
		})
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
	// afterwards spares setup's own request.
	afterwards := func(path string, h http.HandlerFunc) func(f *fake, o *k6test.Options) {
		return func(f *fake, _ *k6test.Options) {
			asked := 0
			f.instead = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != path {
					return false
				}
				if asked++; asked == 1 {
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
		{"ASlowConnection", func(f *fake, o *k6test.Options) {
			// Answers are quick, and every one of them needs a connection that is not.
			o.Env["SLACK"], o.Dial, f.perLevel = "20", slowly(400*time.Millisecond), 1
			f.site.Config.SetKeepAlivesEnabled(false)
		}, "refusal_ms"},
		{"AStatusThatIsCutOff", afterwards("/status.json", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "read_answered"},
		{"AStatusThatIsPutOff", afterwards("/status.json", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusServiceUnavailable, "try_again")
		}), "read_answered"},
		{"APageThatIsCutOff", on("/", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "read_answered"},
		{"ABookingThatIsCutOff", func(f *fake, _ *k6test.Options) {
			// Who asks again and again is told: nobody waits out the two minutes. A transport asks
			// again by itself where the connection was not a new one.
			cut := map[string]int{}
			f.instead = func(_ http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.URL.Path, "/booking/") || cut[r.URL.Path] == 8 {
					return false
				}
				cut[r.URL.Path]++
				panic(http.ErrAbortHandler)
			}
		}, "read_answered"},
		{"AStatusWithoutATotal", afterwards("/status.json", func(w http.ResponseWriter, _ *http.Request) {
			say(w, 200, map[string]any{"version": 1, "open": true, "levels": []any{nil}})
		}), "unexpected_answers"},
		{"AReturnThatIsUnknown", on("/payment/callback", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/result?error=unknown", http.StatusSeeOther)
		}), "unexpected_answers"},
		{"MoneyTwiceAtAGatewayThatIsBehind", func(f *fake, _ *k6test.Options) { f.charges, f.ahead = 2, -time.Hour }, "charged_twice"},
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
		{"AFigureBelowZero", afterwards("/status.json", func(w http.ResponseWriter, _ *http.Request) {
			say(w, 200, map[string]any{"version": 1, "open": true, "total": map[string]any{"cap": 10, "left": -1},
				"levels": []map[string]any{{"id": "N1", "cap": 10, "left": 5}, {"id": "N2", "cap": 10, "left": 5}}})
		}), "unexpected_answers"},
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

// The 8 seconds, made 0.4 here, are those that somebody waits, connecting with them.
func TestSteady_EndsWhereAConnectionTakesTooLong(t *testing.T) {
	t.Parallel()
	s, err := broken(t, "lib.js", "within(8000)", "within(20)")
	if err != nil {
		t.Fatal(err)
	}
	f := newFake(t)
	f.site.Config.SetKeepAlivesEnabled(false)
	o := k6test.Options{Env: f.env(), Iterations: 1, Dial: slowly(600 * time.Millisecond)}
	o.Env["SLACK"] = "20"
	if _, err := run(t, s, o); !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " booking_answered is ") {
		t.Errorf("run: got %v, want %v of booking_answered", err, k6test.ErrThreshold)
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
	cut := func(r *http.Response) {
		_ = r.Body.Close() // it is not wanted
		panic(http.ErrAbortHandler)
	}
	taken := func(r *http.Response) {
		if r.StatusCode == http.StatusNotFound && r.Request.URL.Path == "/book" {
			replace(r, http.StatusConflict, "duplicate")
		}
	}
	for i, c := range []struct {
		name   string
		change func(r *http.Response)
		want   string
	}{
		{"AMistakeThatIsCutOff", func(r *http.Response) {
			if r.StatusCode == http.StatusUnsupportedMediaType {
				cut(r)
			}
		}, "unexpected_answers"},
		{"AForgedReturnThatIsCutOff", func(r *http.Response) {
			if strings.Contains(r.Header.Get("Location"), "error=unknown") {
				cut(r)
			}
		}, "unexpected_answers"},
		{"AForgedNotificationThatIsCutOff", func(r *http.Response) {
			if r.Request.URL.Path == "/payment/webhook" {
				cut(r)
			}
		}, "unexpected_answers"},
		{"MistakesThatArePutOff", func(r *http.Response) {
			if r.StatusCode == http.StatusUnsupportedMediaType {
				replace(r, http.StatusServiceUnavailable, "try_again")
				r.Header.Set("Retry-After", "1")
			}
		}, "abuse_answered"},
		{"ForgedReturnsThatArePutOff", func(r *http.Response) {
			if l := r.Header.Get("Location"); strings.Contains(l, "error=unknown") {
				r.Header.Set("Location", strings.Replace(l, "unknown", "busy", 1))
			}
		}, "abuse_answered"},
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
		{"ASeatTakenByAbuse", taken, "seats_by_abuse"},
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
	// So few that none of them looks for the seat: the teardown does.
	t.Run("ASeatTakenByTheLast", func(t *testing.T) {
		t.Parallel()
		env := front(t, d, taken).env(40, "1s", 12)
		_, err := run(t, load(t, "abuse.js"), k6test.Options{Env: env, Iterations: 1})
		if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " seats_by_abuse is ") {
			t.Errorf("run: got %v, want %v of seats_by_abuse", err, k6test.ErrThreshold)
		}
	})
	// Where it is the script that hangs up, nothing was answered wrongly, and too little in time.
	t.Run("MistakesWithoutAnAnswer", func(t *testing.T) {
		t.Parallel()
		s, err := broken(t, "abuse.js", "timeout: '20s'", "timeout: '500ms'")
		if err != nil {
			t.Fatal(err)
		}
		env := front(t, d, func(r *http.Response) {
			if r.StatusCode == http.StatusUnsupportedMediaType {
				<-r.Request.Context().Done()
			}
		}).env(40, "1s", 13)
		_, err = run(t, s, k6test.Options{Env: env, VUs: 2})
		if !errors.Is(err, k6test.ErrThreshold) || !strings.Contains(err.Error(), " abuse_answered is ") {
			t.Errorf("run: got %v, want %v of abuse_answered", err, k6test.ErrThreshold)
		} else if strings.Contains(err.Error(), " unexpected_answers is ") {
			t.Errorf("run: got %v, want nothing of unexpected_answers", err)
		}
	})
}
