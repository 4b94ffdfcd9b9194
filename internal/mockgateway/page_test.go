package mockgateway_test

import (
	"crypto/sha256"
	"encoding/base64"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mockgateway"
)

// show gets a payer's page that has to be there.
func (m *merchant) show(page string) string {
	m.tb.Helper()
	a := m.must(http.MethodGet, page, nil, "")
	if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
		m.tb.Fatalf("%s: got HTTP %d %s, want 200 text/html", page, a.status, a.header.Get("Content-Type"))
	}
	return string(a.body)
}

// send sends a step's field, and returns the address it leads to.
func (m *merchant) send(page, form string) string {
	m.tb.Helper()
	a := m.press(page, form)
	to := a.header.Get("Location")
	if a.status != http.StatusSeeOther || to == "" {
		m.tb.Fatalf("%s: got HTTP %d to %q, want 303", form, a.status, to)
	}
	here, err := url.Parse(page)
	if err != nil {
		m.tb.Fatal(err)
	}
	u, err := here.Parse(to)
	if err != nil {
		m.tb.Fatal(err)
	}
	return u.String()
}

// confirm goes through the steps with a wallet's number, and returns where the
// last one leads.
func (m *merchant) confirm(page, wallet string) string {
	m.tb.Helper()
	code := m.send(page, "wallet="+wallet)
	pin := m.send(code, "code=123456")
	return m.send(pin, "pin=12345")
}

func TestPage_StepsLeadBackToTheMerchant(t *testing.T) {
	t.Parallel()
	m, g := serveGateway(t, mockgateway.Options{})
	a := m.call("/create", order("inv-1"))
	u, err := url.Parse(a.text("bkashURL"))
	if err != nil {
		t.Fatal(err)
	}
	first := u.RequestURI()
	want := func(step, page string, texts ...string) {
		t.Helper()
		html := m.show(page)
		for _, text := range append(texts, "1500.00 BDT", "shop.example", "inv-1", "Mock wallet", "No money moves", `name="outcome" value="cancel"`) {
			if !strings.Contains(html, text) {
				t.Errorf("%s: page lacks %q", step, text)
			}
		}
		if strings.Contains(html, "Error:") || strings.Contains(html, `aria-invalid="`) {
			t.Errorf("%s: page tells of an error", step)
		}
	}
	want("wallet", first, "Step 1 of 3", `name="wallet"`, "<summary>Test numbers</summary>")
	code := m.send(first, "wallet=01711111111")
	want("code", code, "Step 2 of 3", `name="code"`, "123456", "01711111111")
	pin := m.send(code, "code=123456")
	want("PIN", pin, "Step 3 of 3", `name="pin"`, "Pay 1500.00 BDT", "01711111111")
	wantCode(t, "execute before the PIN", m.execute(a.text("paymentID")), "2060")

	back := a.text("successCallbackURL") + "&apiVersion=1.2.0-beta/"
	for _, press := range []string{"first", "second"} {
		if got := m.send(pin, "pin=12345"); got != back {
			t.Errorf("%s press leads to %q, want %q", press, got, back)
		}
	}
	// The way back, by the browser: every page is still there.
	want("code again", code, `name="code"`)
	wantCode(t, "execute", m.execute(a.text("paymentID")), "0000")
	if got := m.send(pin, "pin=12345"); got != back {
		t.Errorf("press of a payment that is complete leads to %q, want %q", got, back)
	}
	if html := m.show(pin); !strings.Contains(html, "This payment is complete") || strings.Contains(html, `name="pin"`) {
		t.Errorf("page of a payment that is complete: got %q, want no step", html)
	}
	if got, err := g.Payments(""); err != nil || len(got) != 1 || len(got[0].Transactions) != 1 {
		t.Errorf("payments: got %+v (%v), want one with one transaction", got, err)
	}
}

func TestPage_TestNumberDecidesWhatTheMerchantHears(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wallet, code, second string
	}{
		"plain":      {"01700000000", "0000", "2117"},
		"any other":  {"01812345678", "0000", "2117"},
		"balance":    {"01700002023", "2023", "2117"},
		"PIN":        {"01700002014", "2014", "2117"},
		"code":       {"01700002016", "2016", "2117"},
		"blocked":    {"01700002037", "2037", "2117"},
		"unfinished": {"01700002060", "2060", "2060"},
		"slow":       {"01700002003", "2003", "2117"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := serve(t, mockgateway.Options{})
			id, page := m.create("inv-1")
			if html := m.show(page); name != "any other" && !strings.Contains(html, `name="wallet" value="`+tc.wallet+`"`) {
				t.Errorf("first page does not list %s", tc.wallet)
			}
			for range 2 {
				if got := m.confirm(page, tc.wallet); !strings.Contains(got, "&status=success&") {
					t.Errorf("last step leads to %q, want status=success: the gateway's word is execute's", got)
				}
			}
			wantCode(t, "execute", m.execute(id), tc.code)
			wantCode(t, "second execute", m.execute(id), tc.second)
		})
	}
}

func TestPage_SlowNumberPaysLate(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := serve(t, mockgateway.Options{Now: c.Now, At: c.At})
	id, page := m.create("inv-1")
	m.confirm(page, "01700002003")
	wantCode(t, "execute", m.execute(id), "2003")
	for _, tc := range []struct {
		after time.Duration
		want  string
	}{{19 * time.Second, "Initiated"}, {time.Second, "Completed"}} {
		c.Advance(tc.after)
		if _, got := m.paidBy(id); got != tc.want {
			t.Errorf("status %s later: got %q, want %q", tc.after, got, tc.want)
		}
	}
}

func TestPage_AnotherNumberAfterARefusalCounts(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	m.confirm(page, "01700002023")
	m.confirm(page, "01700000000")
	wantCode(t, "execute", m.execute(id), "0000")

	id, page = m.create("inv-2")
	m.confirm(page, "01700000000")
	m.confirm(page, "01700002060")
	wantCode(t, "execute of a payer who began anew", m.execute(id), "2060")
}

func TestPage_ErrorIsTiedToItsField(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	code := m.send(page, "wallet=01700000000")
	pin := m.send(code, "code=123456")
	for form, tc := range map[string]struct{ page, text, step string }{
		"wallet=":             {page, "Type a wallet number.", "wallet"},
		"wallet=+-+":          {page, "Type a wallet number.", "wallet"},
		"wallet=0170000000":   {page, "11 digits and begins with 01", "wallet"},
		"wallet=017000000000": {page, "11 digits and begins with 01", "wallet"},
		"wallet=0170000000x":  {page, "11 digits and begins with 01", "wallet"},
		"code=":               {code, "Type the code from the text message.", "code"},
		"code=123457":         {code, "This is not the code in the text message.", "code"},
		"pin=":                {pin, "Type a PIN.", "pin"},
		"pin=1234":            {pin, "A PIN has 5 digits.", "pin"},
		"pin=abcde":           {pin, "A PIN has 5 digits.", "pin"},
	} {
		at := m.send(tc.page, form)
		html := m.show(at)
		for _, want := range []string{
			tc.text, "<title>Error: ", `name="` + tc.step + `"`, `id="error"`, `aria-describedby="error hint"`, `aria-invalid="true"`, `name="outcome" value="cancel"`,
		} {
			if !strings.Contains(html, want) {
				t.Errorf("%s: page lacks %q", form, want)
			}
		}
		if strings.Contains(at, "1234&") || strings.Contains(at, "abcde") {
			t.Errorf("%s: the address %q holds the PIN", form, at)
		}
		// Right the next time, on the page that told of the error.
		right := map[string]string{"wallet": "wallet=01700000000", "code": "code=123456", "pin": "pin=12345"}[tc.step]
		if to := m.send(at, right); strings.Contains(to, "error=") {
			t.Errorf("%s then %s: leads to %q, want no error", form, right, to)
		}
	}
	if html := m.show(m.send(page, "wallet=0170000000")); !strings.Contains(html, `value="0170000000"`) {
		t.Error("a number of the wrong shape is not there to be corrected")
	}
	m.press(page, "outcome=cancel")
	if got := m.status(id).text("transactionStatus"); got != "Initiated" {
		t.Errorf("status = %q, want Initiated", got)
	}
}

func TestPage_CancelAtEveryStep(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	code := m.send(page, "wallet=01700000000")
	pin := m.send(code, "code=123456")
	for _, at := range []string{page, code, pin} {
		if got := m.send(at, "outcome=cancel"); !strings.Contains(got, "&status=cancel&") {
			t.Errorf("cancel at %s leads to %q, want status=cancel", at, got)
		}
	}
	wantCode(t, "execute", m.execute(id), "2060")
}

func TestPage_TakesNumbersAsPeopleTypeThem(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	for _, typed := range []string{"01700002023", "+88 01700-002023", "8801700002023", " 017 0000 2023 ", "০১৭০০০০২০২৩", "+৮৮০১৭০০০০২০২৩"} {
		at := m.send(page, "wallet="+url.QueryEscape(typed))
		if html := m.show(at); !strings.Contains(html, "Step 2 of 3") || !strings.Contains(html, "message to 01700002023 ") {
			t.Errorf("%q: got %s, want the second step for 01700002023", typed, at)
		}
		m.send(m.send(at, "code="+url.QueryEscape("১২৩ ৪৫৬")), "pin="+url.QueryEscape("১২৩৪৫"))
	}
	wantCode(t, "execute", m.execute(id), "2023")
}

// Whoever writes addresses by hand gets a page, and pays only as a payer would.
func TestPage_NoInputPaysOrBreaks(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	id, page := m.create("inv-1")
	for _, more := range []string{
		"step=pin", "step=code&wallet=", "step=pin&wallet=017&error=wrong", "step=nothing&error=nothing",
		"wallet=%00%ff%fe&step=code", "wallet=" + strings.Repeat("%E0", 3000), "error=empty&error=shape", "step=%3Cscript%3E", ";;%zz",
		"wallet=" + url.QueryEscape(`"><script>alert(1)</script>`),
	} {
		html := m.show(page + "&" + more)
		if !strings.Contains(html, `name="wallet"`) || strings.Contains(html, "<script") {
			t.Errorf("%.60s: got %q, want the first step", more, html)
		}
		if to := m.send(page+"&"+more, "pin=12345"); !strings.Contains(to, "step=wallet") || !strings.Contains(to, "error=empty") {
			t.Errorf("%.60s: a PIN leads to %q, want the first step", more, to)
		}
	}
	if to := m.send(page, "wallet="+strings.Repeat("1", 9000)); len(to) > 400 {
		t.Errorf("endless number: got an address of %d bytes, want at most 400", len(to))
	}
	for form, want := range map[string]int{
		"": 400, "pincode=1": 400, "outcome=success&refuse=0000&pin=12345": 400, "refuse=2023&pin=12345": 400,
		"wallet=" + strings.Repeat("1", 1<<17): 400, "%zz=1": 400,
		"code=123456": 303, "wallet=%ff": 303, "wallet=1&code=2&pin=3": 303,
	} {
		if got := m.press(page, form); got.status != want {
			t.Errorf("form %.60q: got HTTP %d, want %d", form, got.status, want)
		}
	}
	forged := strings.Replace(page, "hash=", "hash=x", 1)
	for _, form := range []string{"wallet=01700000000", "wallet=1", "code=123456", "pin=12345"} {
		if got := m.press(forged+"&wallet=01700000000", form); got.status != http.StatusNotFound {
			t.Errorf("%s with a wrong hash: got HTTP %d, want 404", form, got.status)
		}
	}
	wantCode(t, "execute", m.execute(id), "2060")
}

func TestPage_StyleIsAllowedByItsHashAlone(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	_, page := m.create("inv-1")
	for _, at := range []string{page, page + "&wallet=01700000000&step=code", "/pay/nothing"} {
		a := m.must(http.MethodGet, at, nil, "")
		styles := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(string(a.body), -1)
		if len(styles) != 1 {
			t.Fatalf("%s: got %d styles, want 1", at, len(styles))
		}
		sum := sha256.Sum256([]byte(styles[0][1]))
		want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; frame-ancestors 'none'"
		if got := a.header.Get("Content-Security-Policy"); got != want {
			t.Errorf("%s: policy: got %q, want %q", at, got, want)
		}
		if bad := regexp.MustCompile(`<script|<link|<base| style=| on\w+=|https?:`).FindAllString(string(a.body), -1); bad != nil {
			t.Errorf("%s: page has %q, which the policy forbids", at, bad)
		}
	}
}

// WCAG 2.1 AA: 4.5 to 1 for text, 3 to 1 for the edge of a field.
func TestPage_ContrastInBothColourSchemes(t *testing.T) {
	t.Parallel()
	m := serve(t, mockgateway.Options{})
	_, page := m.create("inv-1")
	roots := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(m.show(page), -1)
	if len(roots) != 2 {
		t.Fatalf("colour schemes: got %d, want 2", len(roots))
	}
	for i, scheme := range []string{"light", "dark"} {
		colours := map[string]float64{}
		for _, c := range regexp.MustCompile(`--(\w+): #(\w+);`).FindAllStringSubmatch(roots[i][1], -1) {
			colours[c[1]] = luminance(t, c[2])
		}
		for _, pair := range []struct {
			on, over string
			want     float64
		}{
			{"ink", "card", 4.5}, {"soft", "card", 4.5}, {"bad", "card", 4.5}, {"ink", "note", 4.5}, {"on", "brand", 4.5},
			{"edge", "card", 3}, {"bad", "card", 3}, {"ink", "card", 3},
		} {
			a, okA := colours[pair.on]
			b, okB := colours[pair.over]
			if got := (max(a, b) + .05) / (min(a, b) + .05); !okA || !okB || got < pair.want {
				t.Errorf("%s: %s on %s: got %.2f to 1, want %.1f", scheme, pair.on, pair.over, got, pair.want)
			}
		}
	}
}

// luminance is a colour's, as WCAG 2.1 defines it.
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatalf("colour %q: %v", hex, err)
		}
		c := float64(n) / 255
		if c <= .04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
