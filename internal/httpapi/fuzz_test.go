package httpapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi"
)

// FuzzBook: whatever is sent to POST /book, the answer is a booking or a refusal
// that says what to change; it is never a 5xx, and what reaches the use case is
// normalised.
func FuzzBook(f *testing.F) {
	for _, body := range []string{
		goodBody, botBody, goodForm, goodForm + "spam", "", "null", "{}", "[]", `{"code":null}`, `{"Code":"AB-1001"}`, goodBody + goodBody,
		`{"code":"AB-1001","code":"AB-1002","email":"a@b","level":"N1"}`, `{"code":"\ud800","email":"a@b","level":"N1"}`,
		"code=a&code=b", "code=%zz", strings.Repeat("[", 8000), "\xff\xfe", "\x00",
	} {
		f.Add(jsonType, body, "")
		f.Add(formType, body, "key")
	}
	f.Add("application/json; charset=utf-8", goodBody, strings.Repeat("k", 129))
	f.Add("text/plain", goodBody, "\x00")
	f.Fuzz(func(t *testing.T, contentType, body, key string) {
		var e *edge
		e = newEdge(t, func(d *httpapi.Deps) {
			d.Booker = booker(func(_ context.Context, r booking.Request) (booking.Held, error) {
				c, errCode := booking.DefaultCodeRule().Normalize(r.Code)
				m, errEmail := booking.NormalizeEmail(r.Email)
				if errCode != nil || errEmail != nil || c != r.Code || m != r.Email || r.Level == "" || len(r.Level) > 16 || len(r.Key) > 128 {
					t.Errorf("booked: got %+v, want it normalised", r)
				}
				return e.held(), nil
			})
		})
		gone, leave := context.WithCancel(t.Context())
		leave() // a bot is answered at once when it has hung up
		r := newRequest(t, http.MethodPost, "/book", body).WithContext(gone)
		r.Header["Content-Type"] = []string{contentType}
		if key != "" {
			r.Header["Idempotency-Key"] = []string{key}
		}
		w := serve(e, r)
		switch {
		case w.Code >= 500:
			t.Errorf("%q as %q: got %d, want no 5xx:\n%s", body, contentType, w.Code, e.log)
		case w.Code >= 400 && strings.HasPrefix(w.Header().Get("Content-Type"), "text/html"):
			wantPage(t, "refused form", w, w.Code, "")
		case w.Code >= 400:
			slug, _ := map[int][]string{400: {"invalid_request", "invalid_code", "invalid_level"}, 413: {"body_too_large"}, 415: {"unsupported_media_type"}}[w.Code]
			m := decode(t, strings.NewReader(w.Body.String()))
			got, _ := m["error"].(string)
			if !strings.Contains(strings.Join(slug, " "), got) {
				t.Errorf("%q as %q: got %d %s, want one of %v", body, contentType, w.Code, got, slug)
			}
			wantRefusal(t, "refused", w, w.Code, got)
		case w.Code == http.StatusAccepted:
			if got := strings.Join(keys(decode(t, w.Body)), " "); got != "booking_url expires_at level payment_id payment_url seconds_left" {
				t.Errorf("%q: got keys %s, want those of a 202", body, got)
			}
		case w.Code != http.StatusSeeOther || w.Header().Get("Location") == "":
			t.Errorf("%q as %q: got %d to %q, want 202, 303 or a 4xx", body, contentType, w.Code, w.Header().Get("Location"))
		}
	})
}
