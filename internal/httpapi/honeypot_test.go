package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

const botBody = `{"website":"https://spam.test",` + `"code":"ab-1001","email":"A.B@example.org","level":"N1"}`

// slowBooker books after that long, once.
func slowBooker(t *testing.T, e **edge, took time.Duration, link string) func(*httpapi.Deps) {
	booked := false
	return func(d *httpapi.Deps) {
		d.Booker = booker(func(context.Context, booking.Request) (booking.Held, error) {
			if booked {
				t.Error("Book: got called for a bot, want no call")
			}
			booked = true
			<-time.After(took)
			h := (*e).held()
			h.PaymentURL = link
			return h, nil
		})
	}
}

func TestHoneypot_LooksLikeARealAnswer(t *testing.T) {
	t.Parallel()
	for name, trained := range map[string]bool{"BeforeTheFirstBooking": false, "AfterARealOne": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var e *edge
				e = newEdge(t, slowBooker(t, &e, 300*time.Millisecond, payURL))
				human := map[string]any{"payment_url": "", "payment_id": "", "booking_url": "", "expires_at": "", "seconds_left": 0.0, "level": ""}
				least, most := 80*time.Millisecond, 100*time.Millisecond
				if trained {
					human = decode(t, e.book(t, goodBody).Body)
					least, most = 300*time.Millisecond, 375*time.Millisecond
				}
				logged, counted := e.log.String(), e.metric(t, "holdfast_honeypot_total", "")[""]

				began := time.Now()
				w := e.book(t, botBody)
				if took := time.Since(began); took < least || took > most {
					t.Errorf("answer: got it after %s, want it after %s to %s", took, least, most)
				}
				bot := decode(t, w.Body)
				if w.Code != http.StatusAccepted || w.Header().Get("Cache-Control") != "no-store" {
					t.Errorf("answer: got %d, %v, want a 202 like a real one", w.Code, w.Header())
				}
				if diff := cmp.Diff(keys(human), keys(bot)); diff != "" {
					t.Errorf("keys (-real +bot):\n%s", diff)
				}
				if left := bot["seconds_left"]; bot["level"] != "N1" || left != 599.0 {
					t.Errorf("answer: got level %v, %v seconds, want N1 and 599", bot["level"], left)
				}
				if at, err := time.Parse(time.RFC3339, bot["expires_at"].(string)); err != nil || at.Sub(began).Round(time.Second) != 10*time.Minute {
					t.Errorf("expires_at: got %v, want ten minutes from now", bot["expires_at"])
				}
				if got := e.log.String(); got != logged {
					t.Errorf("log: got %q for a bot, want nothing", strings.TrimPrefix(got, logged))
				}
				if got := e.metric(t, "holdfast_honeypot_total", "")[""] - counted; got != 1 {
					t.Errorf("holdfast_honeypot_total: got %v more, want 1", got)
				}
				if got := e.metric(t, "holdfast_http_request_seconds", "code")["202"]; got < 1 {
					t.Errorf("holdfast_http_request_seconds of 202: got %v, want the bot's among them", got)
				}
				if trained {
					wantDecoy(t, human, bot)
				}
				// Its link answers like any unknown booking.
				path := bot["booking_url"].(string)
				path = path[strings.Index(path, "/booking/"):]
				answer := e.send(t, http.MethodGet, path, "", "")
				unknown := e.send(t, http.MethodGet, "/booking/"+strings.Repeat("A", 100), "", "")
				a, b := wantRefusal(t, "bot's booking", answer, 404, "not_found"), wantRefusal(t, "unknown booking", unknown, 404, "not_found")
				delete(a, "request_id")
				delete(b, "request_id")
				if diff := cmp.Diff(b, a); diff != "" {
					t.Errorf("bot's booking (-unknown +bot's):\n%s", diff)
				}
			})
		})
	}
}

// wantDecoy checks that a bot's links are shaped like the real ones and open
// nothing of theirs.
func wantDecoy(t *testing.T, human, bot map[string]any) {
	t.Helper()
	text := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	r, errR := url.Parse(text(human, "payment_url"))
	b, errB := url.Parse(text(bot, "payment_url"))
	if errR != nil || errB != nil || r.Host != b.Host || len(r.String()) != len(b.String()) || b.Query().Get("mode") != "0011" {
		t.Errorf("payment_url: got %s, want one shaped like %s", b, r)
	}
	if !strings.Contains(b.String(), text(bot, "payment_id")) || len(text(bot, "payment_id")) != len(payment) {
		t.Errorf("payment_url: got %s for payment %s, want the payment named in it", b, text(bot, "payment_id"))
	}
	for _, secret := range []string{payment, r.Query().Get("hash"), text(human, "booking_url")} {
		if strings.Contains(b.String()+text(bot, "booking_url"), secret) {
			t.Errorf("bot's links: got %q of somebody's booking in them, want nothing of it", secret)
		}
	}
	if got, real := text(bot, "booking_url"), text(human, "booking_url"); !strings.HasPrefix(got, "https://sale.test/booking/") || len(got) != len(real) {
		t.Errorf("booking_url: got %s, want it on the same site and shaped like %s", got, real)
	}
}

func TestHoneypot_NeverGetsSomebodysPaymentLink(t *testing.T) {
	t.Parallel()
	for _, link := range []string{
		payURL,
		"https://pay.test/?paymentId=" + payment + "&hash=8Zr3kQw1TxYv5Nb7Lm2Pc9Df",
		"https://pay.test?paymentId=" + payment + "&hash=8Zr3kQw1TxYv5Nb7Lm2Pc9Df",
		"https://pay.test/p/short1", // names no payment
		"https://pay.test/p/8Zr3kQw1TxYv5Nb7Lm2Pc9Df",
		"/pay/here", "x", "",
	} {
		synctest.Test(t, func(t *testing.T) {
			var e *edge
			e = newEdge(t, slowBooker(t, &e, time.Millisecond, link))
			e.book(t, goodBody)
			got, _ := decode(t, e.book(t, botBody).Body)["payment_url"].(string)
			if got == link || got == "" || strings.Contains(got, payment) || strings.Contains(got, "8Zr3kQw1TxYv5Nb7Lm2Pc9Df") {
				t.Errorf("real link %q: got %q for a bot, want another without its secrets", link, got)
			}
		})
	}
}

// A real request for a level that does not exist is refused, so a bot must not
// hear its name back.
func TestHoneypot_NamesLevelsOfRealAnswersOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, func(d *httpapi.Deps) {
			d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
				if !strings.HasPrefix(r.Level, "N") {
					return booking.Held{}, booking.ErrInvalidLevel
				}
				h := booking.Held{PaymentID: payment, PaymentURL: payURL, BookingURL: "https://sale.test/booking/x", Level: r.Level, SecondsLeft: 599}
				return h, nil
			})
		})
		ask := func(website, level string) any {
			t.Helper()
			body := `{"website":"` + website + `","code":"ab-1001","email":"a.b@example.org"`
			if level != "" {
				body += `,"level":"` + level + `"`
			}
			return decode(t, e.book(t, body+"}").Body)["level"]
		}
		if got := ask("spam", "N3"); got != "N3" {
			t.Errorf("before any real answer: got level %v, want the one asked for", got)
		}
		for _, real := range []string{"N1", "ZZ", "N2", "N1", "N2"} {
			ask("", real)
		}
		for asked, want := range map[string]string{"N1": "N1", "N2": "N2", "N3": "N2", "ZZ": "N2", "n1": "N2", "no such level": "N2", "": "N2"} {
			if got := ask("spam", asked); got != want {
				t.Errorf("bot that asks for %q: got level %v, want %s", asked, got, want)
			}
		}
	})
}

func TestHoneypot_ComesBeforeTheShape(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"website":"x"}`, `{"website":" ","code":"?","email":"","level":"no such level"}`, `{"website":"x","code":null}`} {
		synctest.Test(t, func(t *testing.T) {
			e := untouched(t)
			if w := e.book(t, body); w.Code != http.StatusAccepted {
				t.Errorf("%s: got %d, want 202", body, w.Code)
			}
			if e.log.String() != "" {
				t.Errorf("%s: log: got %s, want nothing", body, e.log)
			}
		})
	}
}

func TestHoneypot_FormIsSentOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := untouched(t)
		w := e.send(t, http.MethodPost, "/book", formType, goodForm+"spam")
		if w.Code != http.StatusSeeOther || w.Header().Get("Location") == "" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("got %d, %v, want a 303 like a real one", w.Code, w.Header())
		}
		wantRefusal(t, "where it leads", e.send(t, http.MethodGet, w.Header().Get("Location"), "", ""), 404, "not_found")
		if n := len(e.log.lines(t, "request")); n != 1 { // the 404's
			t.Errorf("log: got %d lines, want none for the bot", n)
		}
	})
}

func TestHoneypot_IsNotWorthLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e *edge
		e = newEdge(t, slowBooker(t, &e, time.Minute, payURL))
		e.book(t, goodBody)
		began := time.Now()
		e.book(t, botBody)
		if took := time.Since(began); took < 2*time.Second || took > 2500*time.Millisecond {
			t.Errorf("answer after a slow real one: got it after %s, want it after 2s and a little", took)
		}
		ctx, hangUp := context.WithTimeout(t.Context(), time.Millisecond)
		defer hangUp()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/book", strings.NewReader(botBody))
		r.Header.Set("Content-Type", jsonType)
		began = time.Now()
		e.ServeHTTP(httptest.NewRecorder(), r)
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("bot that hung up: got it served for %s, want 1ms", took)
		}
	})
}
