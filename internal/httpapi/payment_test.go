package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

const goodReturn = "/payment/callback?paymentID=" + payment + "&status=success&signature=" + signature

// again is what the result page is given where the return may have to be made again.
const again = "&paymentID=" + payment + "&status=success&signature=" + signature

// wantSent checks that the browser is sent to the result page with that query.
func wantSent(t testing.TB, what string, w *httptest.ResponseRecorder, query string) {
	t.Helper()
	if got, want := w.Header().Get("Location"), "/result?"+query; w.Code != http.StatusSeeOther || got != want {
		t.Errorf("%s: got %d to %q, want 303 to %q", what, w.Code, got, want)
	}
	if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("%s: got headers %v, want it neither stored nor told to the next site", what, w.Header())
	}
}

// returns is an edge whose Return does that.
func returns(t testing.TB, pay func(ctx context.Context) error) *edge {
	t.Helper()
	return newEdge(t, func(d *httpapi.Deps) {
		s := d.Settler.(settler)
		s.pay = func(ctx context.Context, c, a, p string) error {
			if c != code || a != attempt || p != payment {
				t.Errorf("Return: got %q, %q, %q, want %q, %q, %q", c, a, p, code, attempt, payment)
			}
			return pay(ctx)
		}
		d.Settler = s
	})
}

func TestCallback_WhatIsNotOursChangesNothing(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"nothing":              "",
		"no payment":           "status=success&signature=" + signature,
		"no status":            "paymentID=" + payment + "&signature=" + signature,
		"no signature":         "paymentID=" + payment + "&status=success",
		"empty payment":        "paymentID=&status=success&signature=" + signature,
		"empty status":         "paymentID=" + payment + "&status=&signature=" + signature,
		"empty signature":      "paymentID=" + payment + "&status=success&signature=",
		"payment twice":        "paymentID=" + payment + "&paymentID=TR2&status=success&signature=" + signature,
		"payment twice, equal": "paymentID=" + payment + "&paymentID=" + payment + "&status=success&signature=" + signature,
		"status twice":         "paymentID=" + payment + "&status=failure&status=success&signature=" + signature,
		"signature twice":      "paymentID=" + payment + "&status=success&signature=" + signature + "&signature=x",
		"status of its own":    "paymentID=" + payment + "&status=completed&signature=" + signature,
		"status in capitals":   "paymentID=" + payment + "&status=SUCCESS&signature=" + signature,
		"status with a space":  "paymentID=" + payment + "&status=success+&signature=" + signature,
		"other case":           "paymentid=" + payment + "&Status=success&signature=" + signature,
		"semicolons":           "paymentID=" + payment + ";status=success;signature=" + signature,
		"bad escape":           "paymentID=" + payment + "&status=success&signature=%zz",
		"very long payment":    "paymentID=" + strings.Repeat("T", 257) + "&status=success&signature=" + signature,
		"very long signature":  "paymentID=" + payment + "&status=success&signature=" + strings.Repeat("s", 257),
	} {
		w := untouched(t).send(t, http.MethodGet, "/payment/callback?"+query, "", "")
		wantSent(t, name, w, "error=unknown")
	}
}

func TestCallback_WrongSignatureOrUnknownPaymentCausesNoCall(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"unknown payment":     "paymentID=TR2&status=success&signature=" + signature,
		"wrong signature":     "paymentID=" + payment + "&status=success&signature=x",
		"signature with more": "paymentID=" + payment + "&status=success&signature=" + signature + "%00",
		"other case":          "paymentID=" + strings.ToLower(payment) + "&status=success&signature=" + signature,
	} {
		e := returns(t, func(context.Context) error {
			t.Errorf("%s: got Return called, want no call", name)
			return nil
		})
		wantSent(t, name, e.send(t, http.MethodGet, "/payment/callback?"+query, "", ""), "error=unknown")
	}
}

func TestCallback_FailureAndCancelChangeNothing(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"failure", "cancel"} {
		e := returns(t, func(context.Context) error {
			t.Errorf("%s: got Return called, want no call", status)
			return nil
		})
		w := e.send(t, http.MethodGet, strings.Replace(goodReturn, "success", status, 1), "", "")
		wantSent(t, status, w, "booking="+e.token())
		if lines := e.log.lines(t, "request"); len(lines) != 1 || lines[0]["outcome"] != status {
			t.Errorf("%s: log: got %v, want it as the outcome", status, lines)
		}
	}
}

func TestCallback_SuccessWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		e := returns(t, func(context.Context) error { time.Sleep(7 * time.Second); ended.Store(true); return nil })
		began := time.Now()
		// What else the gateway adds to the address does not matter.
		w := e.send(t, http.MethodGet, goodReturn+"&apiVersion=v1.2.0-beta", "", "")
		wantSent(t, "success", w, "booking="+e.token())
		if took := time.Since(began); took != 7*time.Second || !ended.Load() {
			t.Errorf("answer: got it after %s, payment at its end %v, want it right after the end", took, ended.Load())
		}
		if lines := e.log.lines(t, "request"); len(lines) != 1 || lines[0]["outcome"] != "success" || lines[0]["attempt"] != attempt {
			t.Errorf("log: got %v, want one line, outcome success", lines)
		}
	})
}

func TestCallback_SlowEndDoesNotKeepTheBrowser(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		e := returns(t, func(ctx context.Context) error {
			time.Sleep(40 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("context of Return: got %v, want it to outlive the browser", ctx.Err())
			}
			ended.Store(true)
			return errors.New("gateway gave no answer")
		})
		began := time.Now()
		w := e.send(t, http.MethodGet, goodReturn, "", "")
		wantSent(t, "slow", w, "booking="+e.token()+again)
		if took := time.Since(began); took != 7500*time.Millisecond || ended.Load() {
			t.Errorf("answer: got it after %s, payment at its end %v, want it at the end of the budget, before that of the payment", took, ended.Load())
		}
		if lines := e.log.lines(t, "request"); len(lines) != 1 || lines[0]["outcome"] != "checking" {
			t.Errorf("log: got %v, want outcome checking", lines)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !ended.Load() {
			t.Error("payment: got it given up, want it brought to its end")
		}
		late := e.log.lines(t, "return of a payer ended after the browser had gone on")
		if len(late) != 1 || late[0]["error"] != "gateway gave no answer" || late[0]["attempt"] != attempt {
			t.Errorf("log of the late end: got %v, want one line with attempt and error", late)
		}
	})
}

func TestCallback_ClosedTabDoesNotStopThePayment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		e := returns(t, func(ctx context.Context) error {
			time.Sleep(5 * time.Second)
			ended.Store(ctx.Err() == nil)
			return nil
		})
		ctx, closeTab := context.WithTimeout(t.Context(), time.Second)
		defer closeTab()
		began := time.Now()
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, goodReturn, nil))
		if took := time.Since(began); took != time.Second {
			t.Errorf("handler: got it busy for %s, want it to end with the browser", took)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !ended.Load() {
			t.Error("payment: got it cancelled, want it brought to its end")
		}
	})
}

func TestCallback_AnErrorIsTheLogsNotTheBrowsers(t *testing.T) {
	t.Parallel()
	e := returns(t, func(context.Context) error { return fmt.Errorf("settle payment: %w", booking.ErrNotOwner) })
	wantSent(t, "error of Return", e.send(t, http.MethodGet, goodReturn, "", ""), "booking="+e.token()+again)
	lines := e.log.lines(t, "request")
	if len(lines) != 1 || lines[0]["error"] != "settle payment: "+booking.ErrNotOwner.Error() || lines[0]["code"] != 303.0 {
		t.Errorf("log: got %v, want the cause", lines)
	}
}

func TestCallback_StoreThatDoesNotAnswerIsBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var hang bool
		e := newEdge(t, func(d *httpapi.Deps) {
			s := d.Settler.(settler)
			s.issued = func(ctx context.Context, _, _ string) (string, string, error) {
				if hang {
					<-ctx.Done()
				}
				return "", "", errors.New("connection refused")
			}
			s.pay = func(context.Context, string, string, string) error {
				t.Error("Return: got called, want no call")
				return nil
			}
			d.Settler = s
		})
		wantSent(t, "store down", e.send(t, http.MethodGet, goodReturn, "", ""), "error=busy"+again)
		hang = true
		began := time.Now()
		wantSent(t, "store hangs", e.send(t, http.MethodGet, goodReturn, "", ""), "error=busy"+again)
		if took := time.Since(began); took != 7500*time.Millisecond {
			t.Errorf("store hangs: got the answer after %s, want it at the end of the budget", took)
		}
	})
}

func TestCallback_DrainingStartsNoPayment(t *testing.T) {
	t.Parallel()
	e := returns(t, func(context.Context) error {
		t.Error("Return: got called while draining, want no call")
		return nil
	})
	e.flights.Close()
	wantSent(t, "draining", e.send(t, http.MethodGet, goodReturn, "", ""), "booking="+e.token()+again)
	if lines := e.log.lines(t, "request"); len(lines) != 1 || lines[0]["outcome"] != "draining" {
		t.Errorf("log: got %v, want outcome draining", lines)
	}
}

// Return runs on a goroutine of its own, where a panic would end the process.
func TestCallback_PanicInThePaymentIsNotTheProcesss(t *testing.T) {
	t.Parallel()
	e := returns(t, func(context.Context) error { panic("a bug") })
	wantSent(t, "panic in Return", e.send(t, http.MethodGet, goodReturn, "", ""), "booking="+e.token()+again)
	lines := e.log.lines(t, "request")
	if len(lines) != 1 || lines[0]["error"] != "return of a payer: panic: a string" || lines[0]["level"] != "ERROR" || !strings.Contains(fmt.Sprint(lines[0]["stack"]), "payment_test.go") {
		t.Errorf("log: got %v, want the panic with its stack", lines)
	}
}

func TestView_EveryState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		view booking.View
		want map[string]any
	}{
		{booking.View{State: booking.ViewHeld, Level: "N1", SecondsLeft: 599, PaymentURL: payURL}, map[string]any{"state": "held", "level": "N1", "seconds_left": 599.0, "payment_url": payURL}},
		{booking.View{State: booking.ViewHeld, Level: "N1"}, map[string]any{"state": "held", "level": "N1", "seconds_left": 0.0}},
		{booking.View{State: booking.ViewPaying, Level: "N1", SecondsLeft: 5}, map[string]any{"state": "paying", "level": "N1", "seconds_left": 5.0}},
		{booking.View{State: booking.ViewRefused, Level: "N1", SecondsLeft: 5}, map[string]any{"state": "refused", "level": "N1", "seconds_left": 5.0}},
		{booking.View{State: booking.ViewRefused, Refusal: booking.RefusalBalance, Level: "N1", SecondsLeft: 5}, map[string]any{"state": "refused", "reason": "balance", "level": "N1", "seconds_left": 5.0}},
		{booking.View{State: booking.ViewPaid, Level: "N1"}, map[string]any{"state": "paid", "level": "N1", "seconds_left": 0.0}},
		{booking.View{State: booking.ViewReleased, Level: "N1"}, map[string]any{"state": "released", "level": "N1", "seconds_left": 0.0}},
		{booking.View{State: booking.ViewRefundDue, Level: "N1"}, map[string]any{"state": "refund_due", "level": "N1", "seconds_left": 0.0}},
	} {
		e := newEdge(t, func(d *httpapi.Deps) {
			d.Viewer = viewer(func(_ context.Context, gotCode, gotAttempt string) (booking.View, error) {
				if gotCode != code || gotAttempt != attempt {
					t.Errorf("View: got %q, %q, want %q, %q", gotCode, gotAttempt, code, attempt)
				}
				return c.view, nil
			})
		})
		w := e.send(t, http.MethodGet, "/booking/"+e.token(), "", "")
		if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: got %d, %v, want a 200 that nobody stores", c.view.State, w.Code, w.Header())
		}
		if diff := cmp.Diff(c.want, decode(t, w.Body)); diff != "" {
			t.Errorf("%s: body (-want +got):\n%s", c.view.State, diff)
		}
	}
}

func TestView_AnythingElseIsNotFound(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]string{
		"junk":           "junk",
		"a code":         code,
		"an attempt":     attempt,
		"an invoice":     booking.Invoice(booking.CandidateHash(code), attempt),
		"percent":        "%00",
		"very long":      strings.Repeat("A", 8000),
		"other alphabet": "%C3%A9%C3%A9",
	} {
		wantRefusal(t, name, untouched(t).send(t, http.MethodGet, "/booking/"+token, "", ""), 404, "not_found")
	}
	e := untouched(t)
	wantRefusal(t, "a letter changed", e.send(t, http.MethodGet, "/booking/x"+e.token()[1:], "", ""), 404, "not_found")
	wantRefusal(t, "nothing", e.send(t, http.MethodGet, "/booking/", "", ""), 404, "not_found")
	wantRefusal(t, "something behind", e.send(t, http.MethodGet, "/booking/"+e.token()+"/x", "", ""), 404, "not_found")

	e = newEdge(t, nil)
	wantRefusal(t, "nobody's booking", e.send(t, http.MethodGet, "/booking/"+e.sealer.Seal("AB-1002", attempt), "", ""), 404, "not_found")
}

func TestView_NotNowIsTryAgain(t *testing.T) {
	t.Parallel()
	e := newEdge(t, func(d *httpapi.Deps) {
		d.Viewer = viewer(func(context.Context, string, string) (booking.View, error) {
			return booking.View{}, fmt.Errorf("view booking: %w: %w", booking.ErrTryAgain, errors.New("i/o timeout"))
		})
	})
	wantRefusal(t, "ledger down", e.send(t, http.MethodGet, "/booking/"+e.token(), "", ""), 503, "try_again")
}

// A token opens a booking, and a payment link pays for it: neither is for the log.
func TestLog_HoldsNoSecretsOrNames(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	var e *edge
	e = newEdge(t, func(d *httpapi.Deps) {
		view, book := d.Viewer, d.Booker
		d.Viewer = viewer(func(ctx context.Context, c, a string) (booking.View, error) {
			if broken.Load() {
				return booking.View{}, fmt.Errorf("view: %w: %w", booking.ErrTryAgain, errors.New("i/o timeout"))
			}
			return view.View(ctx, c, a)
		})
		d.Booker = booker(func(ctx context.Context, r booking.Request) (booking.Held, error) {
			if broken.Load() {
				return booking.Held{}, &booking.DuplicateError{
					Row: booking.Row{Phase: booking.PhaseHeld, Payment: payment, Deadline: started.UnixMilli()}, PaymentURL: payURL, BookingURL: e.held().BookingURL,
				}
			}
			return book.Book(ctx, r)
		})
	})
	requests := 0
	for _, down := range []bool{false, true} {
		broken.Store(down)
		for _, r := range [][3]string{
			{http.MethodPost, "/book", jsonType}, {http.MethodPost, "/book", formType},
			{http.MethodGet, "/booking/" + e.token()}, {http.MethodPost, "/booking/" + e.token(), jsonType},
			{http.MethodGet, "/booking/" + e.token() + "/x"}, {http.MethodGet, "/nowhere/" + e.token() + "?token=" + e.token()},
			{http.MethodGet, "/result?booking=" + url.QueryEscape(e.token())},
			{http.MethodGet, goodReturn}, {http.MethodGet, goodReturn + "&status=x"}, {http.MethodGet, strings.Replace(goodReturn, "success", "cancel", 1)},
		} {
			body := goodBody
			if r[2] == formType {
				body = goodForm
			}
			e.send(t, r[0], r[1], r[2], body)
			requests++
		}
	}
	if n := len(e.log.lines(t, "request")); n != requests {
		t.Errorf("log: got %d request lines, want %d", n, requests)
	}
	for _, secret := range []string{e.token(), e.token()[:20], signature, payURL, "8Zr3kQw1TxYv5Nb7Lm2Pc9Df", code, strings.ToLower(code), email, "A.B@", booking.CandidateHash(code)} {
		if strings.Contains(e.log.String(), secret) {
			t.Errorf("log: got %q in it, want none of that:\n%s", secret, e.log)
		}
	}
}
