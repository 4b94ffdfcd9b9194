package smoke

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// maxBody is the longest booking that is read, at the edge as in the API.
	maxBody = 8 << 10
	// mostSkew is how far the clocks may be apart: the page counts down by the server's.
	mostSkew = 5 * time.Second
	// pageFor and figuresFor are how long a cache may keep a page and the figures: a
	// corrected page is everywhere within a minute, figures are never 5 s behind.
	pageFor    = time.Minute
	figuresFor = 2 * time.Second
)

// checks are all there are, in the order they are made.
func (r *run) checks() []check {
	plain, edge := "", ""
	if !r.secure() {
		plain = "plain http, on this machine"
	}
	if !r.o.Edge {
		edge = "the edge is not asked about"
	}
	unless := func(given, why string) string {
		if given == "" {
			return cmp.Or(edge, why)
		}
		return ""
	}
	port := plain
	if r.secure() && r.target.Port() != "" && r.target.Port() != "443" {
		port = "the target has a port of its own"
	}
	code := ""
	if r.o.Code == "" {
		code = "no candidate is named"
	}
	return []check{
		{"certificate", plain, "renew the certificate of this name, or put the right one on the CDN; ACM renews by itself while its DNS record is there", r.certificate},
		{"old TLS", plain, "set the CDN's security policy to TLSv1.2_2021 or newer", r.oldTLS},
		{"https only", port, "have the CDN redirect HTTP to HTTPS (viewer protocol policy)", r.redirect},
		{"health", "", "no instance takes traffic: see docs/runbooks/targets-unhealthy.md", r.health},
		{"page", "", "put both pages and their headers as seatctl page export says, from the same version", r.page("/")},
		{"result page", "", "put both pages and their headers as seatctl page export says; the object's key is result, without a suffix", r.page("/result")},
		{"strict transport", plain, "add Strict-Transport-Security to the CDN's response headers policy", r.hsts},
		{"status.json", "", "apply the sale if there is none yet; else see docs/runbooks/status-stale.md", r.statusDocument},
		{"book: malformed", "", "POST /book must reach the API: look at the CDN's behaviour and the firewall's rules for it", r.malformed},
		{"book: no code", "", "the API must refuse it by HOLDFAST_CODE_PATTERN", r.notACode},
		{"book: no level", "", "the API must refuse it: is another version deployed than you think", r.notALevel},
		{"book: unknown code", "", "the API does not reach Redis, or no sale is in force: see docs/runbooks/ledger-unread.md and ledger-unknown.md", r.unknownCode},
		{"book: other address", code, "load the list (seatctl candidates load), or name a candidate who is on it", r.otherAddress},
		{"book: hidden field", "", "HOLDFAST_PUBLIC_URL must be the address that is asked; else is another version deployed than you think", r.hiddenField},
		{"book: too large", "", "the firewall's body size and the API's are both 8 KiB: look at which of them does not hold", r.tooLarge},
		{"book: other type", "", "the CDN must hand on Content-Type to the API", r.otherType},
		{"book: form", "", "the CDN must hand on a form as it is: people without JavaScript book by it", r.form},
		{"booking: unknown", "", "GET /booking/* must reach the API: look at the CDN's behaviour for it", r.unknownBooking},
		{"callback: unknown", "", "payers come back to this path: the CDN must hand on the query string, and HOLDFAST_PUBLIC_URL be the address that is asked", r.unknownPayment},
		{"webhook: unsigned", "", "set HOLDFAST_NOTIFY_TOPIC if there is no webhook; look at the CDN's behaviour for /payment/*", r.unsigned},
		{"methods", "", "let each path have its own methods only: the CDN's behaviours, and the API's version", r.methods},
		{"unknown path", "", "look at what the CDN's default behaviour and the bucket serve", r.unknownPath},
		{"admin port", "", "at once: let nothing but the admin listener serve these, and nobody but the fleet's own network reach it", r.adminPort},
		{"clock", "", "compare this machine's clock with the instances' (chronyc tracking): whichever is wrong, bookings open by Redis's", r.clock},
		{"not cached", "", "switch caching off in the CDN's behaviour for this path: one candidate's answer must not be another's", r.notCached},
		{"AWS headers", edge, "remove them in the CDN's response headers policy", r.awsHeaders},
		{"distribution", unless(r.o.Distribution, "no distribution is named"), "have the CDN refuse every host but the public one: else its firewall's logs and the page's address are not what people know", r.distribution},
		{"balancer", unless(r.o.Balancer, "no balancer is named"), "close it: no public address, its security group from the CDN only, and 403 without the origin's secret", r.balancer},
	}
}

// health is the first question of a plain target.
func (r *run) health(ctx context.Context) (string, error) {
	a, err := r.ask(ctx, http.MethodGet, "/health", "", "")
	if err != nil && !r.secure() && a.status == 0 {
		return "", &unreachableError{r.target.Host, err}
	}
	if err != nil {
		return "", err
	}
	if err := r.wanted(a, http.StatusOK); err != nil {
		return "", err
	}
	var h struct {
		Status  string `json:"status"`
		Version string `json:"version"`
	}
	if err := json.Unmarshal(a.body, &h); err != nil || h.Status != "ok" {
		return "", fmt.Errorf("%s: got %.80q, want the status ok", a.asked, a.body)
	}
	r.report.Version = h.Version
	return fmt.Sprintf("ok in %s, version %s", a.ended.Sub(a.began).Round(time.Millisecond), cmp.Or(h.Version, "not told")), nil
}

// clock wants the time of the answer that no cache has kept.
func (r *run) clock(context.Context) (string, error) {
	if len(r.served) == 0 {
		return "", errors.New("nothing answered that has the time")
	}
	a := r.served[0]
	told, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		return "", fmt.Errorf("%s: got Date %q, want a time", a.asked, a.header.Get("Date"))
	}
	skew := time.Duration(0)
	// The header has whole seconds, cut off.
	switch last := told.Add(time.Second); {
	case told.After(a.ended):
		skew = told.Sub(a.ended)
	case last.Before(a.began):
		skew = last.Sub(a.began)
	}
	if skew.Abs() > mostSkew {
		return "", fmt.Errorf("the deployment's clock is %s from this machine's, want %s at most", skew.Round(time.Second), mostSkew)
	}
	return "within " + (skew.Abs() + time.Second).Round(time.Second).String(), nil
}

var (
	inlineScript = regexp.MustCompile(`(?s)<script>(.*?)</script>`)
	inlineStyle  = regexp.MustCompile(`(?s)<style>(.*?)</style>`)
)

// page wants one of the two pages, whose header lets its own script and style run and no
// others: pages and headers are put in different places, and may be of two versions.
func (r *run) page(path string) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		a, err := r.ask(ctx, http.MethodGet, path, "", "")
		if err != nil {
			return "", err
		}
		if err := a.want(http.StatusOK); err != nil {
			return "", err
		}
		r.pages = append(r.pages, a)
		if a.media() != mediaHTML || !strings.Contains(string(a.body), ` id="sale">`) {
			return "", fmt.Errorf("%s: got %d bytes of type %q, want the page that seatctl page export writes", a.asked, len(a.body), a.header.Get("Content-Type"))
		}
		for name := range r.o.PageHeaders {
			want := r.o.PageHeaders.Get(name)
			if got := a.header.Get(name); got != want && name != policyHeader {
				return "", fmt.Errorf("%s: got %s %q, want %q", a.asked, name, got, want)
			}
		}
		if err := allows(a.header.Get(policyHeader), string(a.body)); err != nil {
			return "", fmt.Errorf("%s: %w", a.asked, err)
		}
		if age := maxAge(a.header.Get("Cache-Control")); age < 0 || age > pageFor {
			return "", fmt.Errorf("%s: got Cache-Control %q, want a max-age of %.0f at most", a.asked, a.header.Get("Cache-Control"), pageFor.Seconds())
		}
		return fmt.Sprintf("%d bytes, its headers fit it", len(a.body)), nil
	}
}

const policyHeader = "Content-Security-Policy"

// allows wants a policy that lets a page run what it has in it, and nothing else.
func allows(policy, page string) error {
	directives := map[string][]string{}
	for d := range strings.SplitSeq(policy, ";") {
		if words := strings.Fields(d); len(words) > 0 {
			directives[strings.ToLower(words[0])] = words[1:]
		}
	}
	for name, want := range map[string][]string{
		"default-src": {"'none'"}, "frame-ancestors": {"'none'"}, "connect-src": {"'self'"}, "base-uri": {"'none'"},
		"script-src": hashes(inlineScript, page), "style-src": hashes(inlineStyle, page),
	} {
		if got := directives[name]; !slices.Equal(got, want) {
			return fmt.Errorf("got %s with %s %q, want %q", policyHeader, name, got, want)
		}
	}
	return nil
}

func hashes(inline *regexp.Regexp, page string) (list []string) {
	for _, m := range inline.FindAllStringSubmatch(page, -1) {
		sum := sha256.Sum256([]byte(m[1]))
		list = append(list, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	return list
}

// document is status.json. A pointer tells "not there" from a zero.
type document struct {
	Version   int64     `json:"version"`
	UpdatedAt time.Time `json:"updated_at"`
	Open      *bool     `json:"open"`
	OpensAt   time.Time `json:"opens_at"`
	Reason    string    `json:"reason"`
	Total     seats     `json:"total"`
	Levels    []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
		seats
		Full *bool `json:"full"`
	} `json:"levels"`
}

type seats struct {
	Cap  *int `json:"cap"`
	Left *int `json:"left"`
}

func (s seats) sound() bool {
	return s.Cap != nil && s.Left != nil && *s.Left >= 0 && *s.Left <= *s.Cap
}

// sound is nil when the document is what it must be at that time.
func (d document) sound(now time.Time) error {
	switch {
	case d.Version < 1:
		return fmt.Errorf("version is %d, want 1 or more", d.Version)
	case d.UpdatedAt.IsZero():
		return errors.New("updated_at is not there")
	case d.UpdatedAt.Sub(now) > mostSkew:
		return fmt.Errorf("updated_at is %s ahead of this machine's clock", d.UpdatedAt.Sub(now).Round(time.Second))
	case d.Open == nil:
		return errors.New("open is not there")
	case !d.Total.sound():
		return errors.New("total: want a cap, and left from 0 to the cap")
	case len(d.Levels) == 0:
		return errors.New("there are no levels")
	}
	for _, l := range d.Levels {
		if l.ID == "" || l.Name == "" || !l.sound() || l.Full == nil || *l.Full != (*l.Left == 0) {
			return fmt.Errorf("level %q: want an id, a name, a cap, left from 0 to the cap, and full when none is left", l.ID)
		}
	}
	return nil
}

func (r *run) statusDocument(ctx context.Context) (string, error) {
	a, err := r.ask(ctx, http.MethodGet, "/status.json", "", "")
	if err != nil {
		return "", err
	}
	if err := a.want(http.StatusOK); err != nil {
		return "", err
	}
	var d document
	if err := json.Unmarshal(a.body, &d); err != nil {
		return "", fmt.Errorf("%s: %w, want JSON", a.asked, err)
	}
	if err := d.sound(a.ended); err != nil {
		return "", fmt.Errorf("%s: %w", a.asked, err)
	}
	r.status = d
	// A CDN may share one reading among many for a moment; it tells by Age how long ago.
	cache, age := a.header.Get("Cache-Control"), maxAge("max-age="+a.header.Get("Age"))
	asked := strings.Contains(cache, "no-cache") || strings.Contains(cache, "no-store")
	if keep := maxAge(cache); !asked && (keep < 0 || keep > figuresFor) || age > figuresFor {
		return "", fmt.Errorf("%s: got Cache-Control %q and Age %q, want figures of now: no-cache, or a max-age of %.0f at most, and no older", a.asked, cache, a.header.Get("Age"), figuresFor.Seconds())
	}
	state := "closed"
	switch {
	case *d.Open:
		state = "open"
	case !d.OpensAt.IsZero():
		state = "opens " + d.OpensAt.UTC().Format(time.RFC3339)
	}
	// It is written when something changes: that it is old says nothing by itself.
	return fmt.Sprintf("version %d of %s ago: %s, %d of %d seats left", d.Version, max(0, a.ended.Sub(d.UpdatedAt)).Round(time.Second), state, *d.Total.Left, *d.Total.Cap), nil
}

// bad wants a booking refused.
func (r *run) bad(a answer, err error, status int, slug string) (string, error) {
	if err == nil {
		err = r.refused(a, status, slug)
	}
	return fmt.Sprintf("%d %s", status, slug), err
}

func (r *run) malformed(ctx context.Context) (string, error) {
	a, err := r.book(ctx, mediaJSON, `{"code":`)
	return r.bad(a, err, http.StatusBadRequest, "invalid_request")
}

func (r *run) notACode(ctx context.Context) (string, error) {
	a, err := r.bookAs(ctx, "not a code!", r.level(), "")
	return r.bad(a, err, http.StatusBadRequest, "invalid_code")
}

func (r *run) notALevel(ctx context.Context) (string, error) {
	a, err := r.bookAs(ctx, r.stranger(), "no such level!", "")
	return r.bad(a, err, http.StatusBadRequest, "invalid_level")
}

// stranger is a code that nobody has: of its 24 letters 18 are by chance.
func (r *run) stranger() string { return "SMOKE-" + r.nonce[:18] }

// unknownCode goes all the way to the ledger, which looks first whether booking is open.
func (r *run) unknownCode(ctx context.Context) (string, error) {
	a, err := r.bookAs(ctx, r.stranger(), r.level(), "")
	if err != nil {
		return "", err
	}
	if closed, err := r.notOpen(a); closed || err != nil {
		return "503 closed, before anybody is looked up: ask again when booking is open", err
	}
	return r.bad(a, nil, http.StatusBadRequest, "invalid_code")
}

// notOpen tells whether that is the refusal of a sale that is not open, which it cannot be
// while status.json says that it is.
func (r *run) notOpen(a answer) (bool, error) {
	if a.status != http.StatusServiceUnavailable || a.slug() != " closed" {
		return false, nil
	}
	if err := r.refused(a, http.StatusServiceUnavailable, "closed"); err != nil {
		return true, err
	}
	if a.header.Get("Retry-After") == "" {
		return true, fmt.Errorf("%s: got 503 closed without Retry-After, want one", a.asked)
	}
	if r.status.Open != nil && *r.status.Open {
		return true, fmt.Errorf("%s: got 503 closed, want it open as status.json says", a.asked)
	}
	return true, nil
}

// otherAddress shows that the list is there. The address is not on any, so the
// candidate is refused whether they have a seat or not.
func (r *run) otherAddress(ctx context.Context) (string, error) {
	a, err := r.bookAs(ctx, r.o.Code, r.level(), "")
	if err != nil {
		return "", err
	}
	closed, err := r.notOpen(a)
	if err != nil {
		return "", err
	}
	if closed {
		return "", leftOut("booking is not open, and nobody is looked up")
	}
	return r.bad(a, nil, http.StatusBadRequest, "email_mismatch")
}

// hiddenField fills in what people do not see: the answer must look like a seat, and
// lead to none. Its links show what the deployment believes its own address to be.
func (r *run) hiddenField(ctx context.Context) (string, error) {
	a, err := r.bookAs(ctx, r.stranger(), r.level(), "https://smoke.invalid")
	if err != nil {
		return "", err
	}
	if err := r.wanted(a, http.StatusAccepted); err != nil {
		return "", err
	}
	var h struct {
		PaymentURL  string    `json:"payment_url"`
		PaymentID   string    `json:"payment_id"`
		BookingURL  string    `json:"booking_url"`
		ExpiresAt   time.Time `json:"expires_at"`
		SecondsLeft int       `json:"seconds_left"`
		Level       string    `json:"level"`
	}
	if err := json.Unmarshal(a.body, &h); err != nil || h.PaymentURL == "" || h.PaymentID == "" || h.ExpiresAt.IsZero() || h.SecondsLeft <= 0 || h.Level == "" {
		return "", fmt.Errorf("%s: got %.200q, want what a seat is answered with", a.asked, a.body)
	}
	path, ok := strings.CutPrefix(h.BookingURL, r.target.String())
	if !ok || !strings.HasPrefix(path, "/booking/") {
		return "", fmt.Errorf("%s: got a booking_url of another address, %.60q, want one under %s", a.asked, h.BookingURL, r.target)
	}
	link, err := r.ask(ctx, http.MethodGet, path, "", "")
	if err != nil {
		return "", err
	}
	if err := r.refused(link, http.StatusNotFound, "not_found"); err != nil {
		return "", fmt.Errorf("its link: %w", err)
	}
	return fmt.Sprintf("202 in %s, and its link leads nowhere", a.ended.Sub(a.began).Round(time.Millisecond)), nil
}

func (r *run) tooLarge(ctx context.Context) (string, error) {
	a, err := r.book(ctx, mediaJSON, `{"code":"`+strings.Repeat("A", maxBody)+`"}`)
	if err != nil {
		return "", err
	}
	if r.o.Edge && a.slug() == "" {
		// The firewall refuses it before the API sees it, in words of its own.
		return fmt.Sprintf("%d at the edge", a.status), a.want(http.StatusRequestEntityTooLarge, http.StatusForbidden)
	}
	return r.bad(a, nil, http.StatusRequestEntityTooLarge, "body_too_large")
}

func (r *run) otherType(ctx context.Context) (string, error) {
	a, err := r.book(ctx, "text/plain", "code")
	return r.bad(a, err, http.StatusUnsupportedMediaType, "unsupported_media_type")
}

func (r *run) form(ctx context.Context) (string, error) {
	body := url.Values{"code": {"not a code!"}, "email": {"smoke@smoke.invalid"}, "level": {r.level()}, "website": {""}}
	a, err := r.book(ctx, mediaForm, body.Encode())
	if err != nil {
		return "", err
	}
	if err := r.wanted(a, http.StatusBadRequest); err != nil {
		return "", err
	}
	if a.media() != mediaHTML {
		return "", fmt.Errorf("%s: got 400 of type %q, want a page", a.asked, a.header.Get("Content-Type"))
	}
	return "400, as a page", nil
}

func (r *run) unknownBooking(ctx context.Context) (string, error) {
	a, err := r.ask(ctx, http.MethodGet, "/booking/"+r.nonce, "", "")
	return r.bad(a, err, http.StatusNotFound, "not_found")
}

// unknownPayment comes back as a payer of a payment that nobody has made: it causes no
// call to the gateway.
func (r *run) unknownPayment(ctx context.Context) (string, error) {
	query := url.Values{"paymentID": {"SMOKE" + r.nonce}, "status": {"success"}, "signature": {r.nonce}}
	a, err := r.ask(ctx, http.MethodGet, "/payment/callback?"+query.Encode(), "", "")
	if err != nil {
		return "", err
	}
	if err := r.wanted(a, http.StatusSeeOther); err != nil {
		return "", err
	}
	const unknown = "/result?error=unknown"
	if to := a.header.Get("Location"); to != unknown && to != r.target.String()+unknown {
		return "", fmt.Errorf("%s: got 303 to %.80q, want to %s%s", a.asked, to, r.target, unknown)
	}
	return "303 to " + unknown, nil
}

// unsigned sends a notification that could be one by its shape.
func (r *run) unsigned(ctx context.Context) (string, error) {
	body, err := json.Marshal(map[string]string{
		"Type": "Notification", "MessageId": "smoke-" + r.nonce, "TopicArn": "arn:aws:sns:us-east-1:000000000000:smoke",
		"Message": "{}", "Timestamp": r.o.Now().UTC().Format(time.RFC3339),
	})
	if err != nil {
		return "", err
	}
	a, err := r.ask(ctx, http.MethodPost, "/payment/webhook", "text/plain; charset=UTF-8", string(body))
	return r.bad(a, err, http.StatusForbidden, "forbidden")
}

// methods asks three paths with a method that none of them has.
func (r *run) methods(ctx context.Context) (string, error) {
	var seen []string
	for _, q := range []struct{ method, path string }{
		{http.MethodGet, "/book"}, {http.MethodPost, "/payment/callback"}, {http.MethodPost, "/"},
	} {
		a, err := r.ask(ctx, q.method, q.path, "", "")
		if err != nil {
			return "", err
		}
		wanted := []int{http.StatusMethodNotAllowed}
		if r.o.Edge {
			// CloudFront's own word for it (CloudFront Developer Guide, "HTTP 403 status code
			// (Invalid method)").
			wanted = append(wanted, http.StatusForbidden)
		}
		if err := a.want(wanted...); err != nil {
			return "", err
		}
		if a.status == http.StatusMethodNotAllowed && a.header.Get("Allow") == "" {
			return "", fmt.Errorf("%s: got 405 without Allow, want one (RFC 9110, 15.5.6)", a.asked)
		}
		seen = append(seen, fmt.Sprintf("%s %d", a.asked, a.status))
	}
	return strings.Join(seen, ", "), nil
}

// nothing wants that the path is not there.
func (r *run) nothing(ctx context.Context, path string) (int, error) {
	a, err := r.ask(ctx, http.MethodGet, path, "", "")
	if err != nil {
		return 0, err
	}
	wanted := []int{http.StatusNotFound}
	if r.o.Edge {
		// S3's word to whoever may not list the bucket (GetObject, "Permissions").
		wanted = append(wanted, http.StatusForbidden)
	}
	return a.status, a.want(wanted...)
}

func (r *run) unknownPath(ctx context.Context) (string, error) {
	status, err := r.nothing(ctx, "/smoke-"+strings.ToLower(r.nonce))
	return fmt.Sprint(status), err
}

func (r *run) adminPort(ctx context.Context) (string, error) {
	paths := []string{"/metrics", "/debug/pprof/", "/ready", "/admin/candidates"}
	for _, path := range paths {
		if _, err := r.nothing(ctx, path); err != nil {
			return "", err
		}
	}
	return "none of " + strings.Join(paths, ", "), nil
}

// notCached looks at every answer of the API's that was given.
func (r *run) notCached(context.Context) (string, error) {
	for _, a := range r.served {
		if why := a.storable(); why != "" {
			return "", errors.New(why)
		}
	}
	return fmt.Sprintf("%d answers, all no-store", len(r.served)), nil
}

func (r *run) awsHeaders(context.Context) (string, error) {
	if len(r.foreign) > 0 {
		slices.Sort(r.foreign)
		return "", fmt.Errorf("got %s, want none of x-amz-*", strings.Join(slices.Compact(r.foreign), ", "))
	}
	return "none, but for the CDN's own x-amz-cf-*", nil
}
