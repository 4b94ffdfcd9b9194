package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// What no line may hold, in the forms it is sent in.
const (
	privateCode  = "PRIVATE-7731"
	privateEmail = "private.person@secret.example"
	privatePhone = "01712345678"
	privateCard  = "4111111111111111"
	spacedCard   = "4111 1111 1111 1111"
	privateKey   = "private-idempotency-key"
	privateText  = "private-text-of-a-stranger"
	appSecret    = "private-app-secret-5b1f"
	appPassword  = "private-password-9c2e"
)

// privates is all of that in one text.
const privates = privateCode + " " + privateEmail + " " + privatePhone + " " + privateCard + " " + spacedCard + " " + privateText

// parrot stands before the gateway and, while it is told to, answers with what is
// private in one of several ways.
type parrot struct {
	next http.Handler
	how  atomic.Int32
}

// answers are the ways; each is an answer that a gateway, or what stands before it,
// may give. The token that was shown is quoted in all.
var answers = []func(w http.ResponseWriter, quoted string){
	func(w http.ResponseWriter, quoted string) {
		_, _ = fmt.Fprintf(w, `{"statusCode":"2001","statusMessage":%q}`, "Wrong: "+quoted)
	},
	func(w http.ResponseWriter, quoted string) {
		_, _ = fmt.Fprintf(w, `{"errorCode":"2029","errorMessage":%q,"transactionStatus":%q,"payerReference":%q}`, quoted, privateEmail, privatePhone)
	},
	func(w http.ResponseWriter, quoted string) { _, _ = fmt.Fprintf(w, `{"message":%q}`, quoted) },
	func(w http.ResponseWriter, quoted string) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"message":%q}`, "bad token "+quoted)
	},
	func(w http.ResponseWriter, quoted string) { _, _ = io.WriteString(w, "<html>"+quoted) },
	func(w http.ResponseWriter, quoted string) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, quoted)
	},
	func(w http.ResponseWriter, quoted string) {
		w.Header().Set("Location", "https://elsewhere.example/?q="+url.QueryEscape(quoted))
		w.WriteHeader(http.StatusFound)
	},
	func(http.ResponseWriter, string) { panic(http.ErrAbortHandler) },
}

func (p *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	how := p.how.Load()
	if how == 0 || strings.Contains(r.URL.Path, "/token/") {
		p.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	answers[how-1](w, privatePhone+" "+spacedCard+" "+privateCard+" "+privateEmail+" "+r.Header.Get("Authorization"))
}

// story drives an API and a worker through everything that has a line, with what is
// private wherever somebody can put it, and returns what must not be in the log
// beside the constants.
func story(t *testing.T, b *till) (secrets map[string]string) {
	t.Helper()
	parrot := &parrot{next: b.mock}
	b.front.next = parrot
	pen := newStamp(t, b)
	people := []booking.Candidate{{Code: privateCode, Email: privateEmail}}
	for i := range 20 {
		people = append(people, booking.Candidate{Code: fmt.Sprintf("%s-%d", privateCode, i), Email: privateEmail})
	}
	if err := b.gate.AddCandidates(t.Context(), people); err != nil {
		t.Fatal(err)
	}
	body := func(code, email, level string) string {
		return fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, code, email, level)
	}
	const jsonType, formType = "application/json", "application/x-www-form-urlencoded"
	send := func(method, target, contentType, body string, want int) answer {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, b.apis[0]+target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", contentType)
		for _, name := range []string{"X-Request-Id", "X-Amz-Cf-Id", "X-Forwarded-For", "User-Agent", "Referer", "Cookie", "Authorization", "X-Amzn-Trace-Id"} {
			r.Header.Set(name, privates)
		}
		if target == "/book" {
			r.Header.Set("Idempotency-Key", privateKey)
		}
		status, got, _, err := b.do(r)
		if err != nil || status != want {
			t.Errorf("%s %s %s: got %d %s, %v, want %d", method, target, body, status, got, err, want)
		}
		var a answer
		if contentType == jsonType {
			_ = json.Unmarshal(got, &a) // a redirect has none
		}
		return a
	}

	// What is refused before anything is asked.
	send("POST", "/book", jsonType, `{"`+privates+`":1}`, 400)
	send("POST", "/book", jsonType, `{"code":{"`+privates+`":1}}`, 400)
	send("POST", "/book", jsonType, `{"code":"`+privates, 400)
	send("POST", "/book", jsonType, body(privateCode, privates, "N1"), 400)
	send("POST", "/book", jsonType, body(privates, privateEmail, "N1"), 400)
	send("POST", "/book", jsonType, body(privateCode, privateEmail, privatePhone), 400)
	send("POST", "/book", jsonType, body(privateCode, privateEmail, privateCode), 400)
	send("POST", "/book", formType, "code=%zz"+url.QueryEscape(privates), 400)
	send("POST", "/book", formType, url.QueryEscape(privates)+"=1", 400)
	send("POST", "/book", "text/"+privateText, privates, 415)
	send(privateCode, "/book", jsonType, "", 405)
	send("GET", "/"+privateText+"?"+url.QueryEscape(privates), jsonType, "", 404)
	send("GET", "/booking/"+privateText, jsonType, "", 404)
	send("GET", "/payment/callback?status=success&signature="+privateText+"&paymentID="+privatePhone, jsonType, "", 303)
	send("GET", "/payment/callback?"+url.QueryEscape(privates)+"=%zz", jsonType, "", 303)
	// What the ledger refuses.
	send("POST", "/book", jsonType, body("NOT-ON-THE-LIST", privateEmail, "N1"), 400)
	send("POST", "/book", jsonType, body(privateCode, "other."+privateEmail, "N1"), 400)

	// A gateway that quotes, to all that asks it.
	for how := range answers {
		parrot.how.Store(int32(how) + 1)
		code := fmt.Sprintf("%s-%d", privateCode, how)
		r := body(code, privateEmail, "N1")
		testenv.Eventually(t, func() error { // a 503 while its breaker pauses
			status, a, _, err := b.bookWith(t.Context(), r)
			if err != nil || status < 500 || a.PaymentURL != "" {
				return fmt.Errorf("book while the gateway quotes: %d %+v %w", status, a, err)
			}
			return nil
		})
	}
	parrot.how.Store(0)
	var a answer
	testenv.Eventually(t, func() error {
		var status int
		var err error
		if status, a, _, err = b.bookWith(t.Context(), body(privateCode, privateEmail, "N1")); err != nil || status != http.StatusAccepted {
			b.clock.Add(time.Minute) // the breaker's pause
			return fmt.Errorf("book: %d %+v %w", status, a, err)
		}
		return nil
	})
	link, err := url.Parse(a.PaymentURL)
	if err != nil {
		t.Fatal(err)
	}
	mine := hold{code: privateCode, link: a.PaymentURL, page: a.BookingURL, payment: link.Path[strings.LastIndex(link.Path, "/")+1:]}
	token := mine.page[strings.LastIndex(mine.page, "/")+1:]
	send("GET", "/booking/"+token, jsonType, "", 200)
	again := send("POST", "/book", jsonType, body(privateCode, privateEmail, "N1"), 409)
	if again.Error != "duplicate" {
		t.Errorf("again: got %+v, want duplicate", again)
	}
	b.drained(t)

	// The gateway's own account of things, and what is said to be it.
	b.delivers(t, "no message", []byte(privates), http.StatusBadRequest)
	for _, name := range []string{"Type", "MessageId", "TopicArn", "Timestamp", "SignatureVersion", "Signature", "SigningCertURL", "Subject"} {
		letter := opened(t, pen.signed(t, letter{"Message": "x"})).with(name, privates)
		if status := b.deliver(t, letter.body(t)); status < 400 {
			t.Errorf("notification with a strange %s: got %d, want it refused", name, status)
		}
	}
	for _, text := range []string{privateEmail, privatePhone, privateCard, spacedCard, privateText} {
		message, err := json.Marshal(map[string]string{
			"trxID": "TRX0000001", "amount": fee, "currency": text, "transactionType": text, "transactionStatus": text,
			"transactionReference": text, "merchantInvoiceNumber": text, "debitMSISDN": privatePhone, "saleAmount": fee,
			"dateTime": text, "creditOrganizationName": text, privateText: privates,
		})
		if err != nil {
			t.Fatal(err)
		}
		b.delivers(t, "genuine, of strange money", pen.signed(t, letter{"Message": string(message)}), http.StatusOK)
	}
	back := b.press(t, mine, "success")
	b.come(t, strings.Replace(back, "status=success", "status=failure", 1))
	for how := range answers {
		parrot.how.Store(int32(how) + 1)
		b.come(t, back)
		b.clock.Add(time.Minute)
	}
	parrot.how.Store(0)
	b.come(t, back)
	for range 8 {
		b.after(t, lapsed)
	}

	// The worker, and a message that is none of ours.
	row, _, err := b.gate.Row(t.Context(), privateCode)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := b.api.Drivers.Store.Record(t.Context(), booking.CandidateHash(privateCode), row.Attempt)
	if err != nil || rec.State != booking.StatePaid || rec.RequestID == "" {
		t.Errorf("record: got %s of request %q, %v, want it paid, with the request's id", rec.State, rec.RequestID, err)
	}
	rec.State = privateText
	spoilt, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range [][]byte{
		[]byte(`{"v":1,"` + privateText + `":"` + privates + `"}`), []byte(privates), []byte(`{"v":1,"code":"` + privates), spoilt,
		[]byte(`{"v":1,"amount":"` + privates + `"}`), []byte(`{"v":1,"paid_at":"` + privates + `"}`),
	} {
		if err := b.api.Drivers.Queue.Send(t.Context(), fmt.Sprintf("%04x", i), fmt.Sprintf("%s-%d", privateText, i), m); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, func() error {
		if n := b.log.count(`"outcome":"unreadable","candidate"`); n < 6 {
			return fmt.Errorf("%d messages found unreadable, want 6", n)
		}
		return nil
	})

	// Redis holding what no script left there, and no Redis.
	rdb := admission.NewClient(admission.ClientConfig{Addr: b.pair.Addr(), Pool: 1})
	defer func() { _ = rdb.Close() }()
	if err := rdb.HSet(t.Context(), "{sale}:adm:seen", privateCode+"-19", "{"+privates).Err(); err != nil {
		t.Fatal(err)
	}
	send("POST", "/book", jsonType, body(privateCode+"-19", privateEmail, "N1"), 503)
	if _, err := b.api.Reconciler.CrossCheck(t.Context()); err != nil {
		t.Logf("cross-check: %v", err)
	}
	if err := b.api.Publisher.Publish(t.Context()); err != nil {
		t.Errorf("publish: %v", err)
	}
	// The runner's own lines.
	run, end := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- b.api.Reconciler.Run(run) }()
	testenv.Eventually(t, func() error {
		for _, what := range []string{"sweep", "cross-check", "notification sweep", "refund sweep"} {
			if b.log.count(`"msg":"`+what+`"`) == 0 {
				return errors.New("no line of a " + what)
			}
		}
		return nil
	})
	end()
	if err := <-ran; err != nil {
		t.Errorf("run: %v", err)
	}

	b.front.mu.Lock()
	defer b.front.mu.Unlock()
	signature := ""
	if u, err := url.Parse(back); err == nil {
		signature = u.Query().Get("signature")
	}
	return map[string]string{
		"the booking token": token, "the gateway's token": b.front.shown, "the payment's signature": signature,
		"the candidate's hash": booking.CandidateHash(privateCode), "the payment link": mine.link,
		"the seal key": strings.Repeat("ab", booking.SealKeySize),
	}
}

// bookWith posts a booking.
func (b *till) bookWith(ctx context.Context, body string) (int, answer, http.Header, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.apis[0]+"/book", strings.NewReader(body))
	if err != nil {
		return 0, answer{}, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	status, got, header, err := b.do(r)
	if err != nil {
		return 0, answer{}, nil, err
	}
	var a answer
	return status, a, header, json.Unmarshal(got, &a)
}

func (l *lines) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Whatever is put wherever somebody can put it, no line of API, worker or gateway
// client has it.
func TestLog_HoldsNothingPrivate(t *testing.T) {
	t.Parallel()
	b := newTill(t, 30, "HOLDFAST_GATEWAY_APP_SECRET", appSecret, "HOLDFAST_GATEWAY_PASSWORD", appPassword)
	secrets := story(t, b)
	for what, text := range map[string]string{
		"a code": privateCode, "a code in small letters": strings.ToLower(privateCode), "a mail address": privateEmail,
		"a mail address's name": "private.person", "a wallet's number": privatePhone, "a wallet's number without its 0": privatePhone[1:],
		"a card's number": privateCard, "a card's number in groups": spacedCard, "an idempotency key": privateKey, "a stranger's text": privateText,
		"the application's secret": appSecret, "the account's password": appPassword,
	} {
		secrets[what] = text
	}
	log := b.log.all()
	for what, text := range secrets {
		if text == "" {
			t.Errorf("%s: got none to look for", what)
			continue
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, text) {
				t.Errorf("%s: got it in a line, want it in none:\n%.600s", what, line)
				break
			}
		}
	}
}
