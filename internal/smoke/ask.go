package smoke

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
)

// longest is more than any answer has bytes.
const longest = 1 << 20

const (
	mediaJSON = "application/json"
	mediaForm = "application/x-www-form-urlencoded"
	mediaHTML = "text/html"
)

// answer is what came back.
type answer struct {
	asked  string // method and path
	status int
	header http.Header
	body   []byte
	// began and ended are when it was asked and when it was there.
	began, ended time.Time
}

func (r *run) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: r.o.Dial, ForceAttemptHTTP2: true,
		TLSClientConfig: r.tlsConfig(""),
	}
}

func (r *run) newClient(t *http.Transport) *http.Client {
	return &http.Client{
		Transport: t, Timeout: r.o.Timeout,
		// Where an answer leads is looked at, not followed.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask asks the target for a path.
func (r *run) ask(ctx context.Context, method, path, kind, body string) (answer, error) {
	a, err := r.askAt(ctx, r.client, method, r.target.String()+path, kind, body)
	if err != nil {
		return a, err
	}
	for name := range a.header {
		// CloudFront adds its own X-Amz-Cf-* behind every policy, and lets nobody remove
		// them (CloudFront Developer Guide, "Understand response headers policies").
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz") && !strings.HasPrefix(lower, "x-amz-cf-") {
			r.foreign = append(r.foreign, fmt.Sprintf("%s of %s", name, a.asked))
		}
	}
	return a, nil
}

func (r *run) askAt(ctx context.Context, client *http.Client, method, address, kind, body string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("User-Agent", UserAgent)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	a := answer{asked: method + " " + shortened(req.URL.Path), began: r.o.Now()}
	r.report.Requests++
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.status, a.header, a.ended = resp.StatusCode, resp.Header, r.o.Now()
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, longest+1)); err != nil {
		return a, fmt.Errorf("%s: read the answer: %w", a.asked, err)
	}
	if len(a.body) > longest {
		return a, fmt.Errorf("%s: got more than %d bytes, want a page", a.asked, longest)
	}
	return a, nil
}

// shortened is a path to print: a token in it would fill the line.
func shortened(path string) string {
	if len(path) > 40 {
		return path[:37] + "..."
	}
	return path
}

// book sends a booking.
func (r *run) book(ctx context.Context, kind, body string) (answer, error) {
	return r.ask(ctx, http.MethodPost, "/book", kind, body)
}

// bookAs sends a well-formed booking for a level of the sale, whose address is nobody's:
// the domain is reserved (RFC 2606).
func (r *run) bookAs(ctx context.Context, code, level, website string) (answer, error) {
	body, err := json.Marshal(struct {
		Code    string `json:"code"`
		Email   string `json:"email"`
		Level   string `json:"level"`
		Website string `json:"website,omitempty"`
	}{code, "smoke@smoke.invalid", level, website})
	if err != nil {
		return answer{}, err
	}
	return r.book(ctx, mediaJSON, string(body))
}

// level is one of the sale's.
func (r *run) level() string {
	if len(r.status.Levels) > 0 {
		return r.status.Levels[0].ID
	}
	return "N1"
}

// want is nil when the answer has one of those statuses.
func (a answer) want(statuses ...int) error {
	if slices.Contains(statuses, a.status) {
		return nil
	}
	wanted := fmt.Sprint(statuses[0])
	for _, s := range statuses[1:] {
		wanted += fmt.Sprintf(" or %d", s)
	}
	return fmt.Errorf("%s: got %d%s, want %s", a.asked, a.status, a.slug(), wanted)
}

// slug is the error of a refusal of ours, to print; "" of anything else.
func (a answer) slug() string {
	if p, err := a.problem(); err == nil {
		return " " + p.Error
	}
	return ""
}

func (a answer) media() string {
	m, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return m
}

// problem is the body of a refusal.
type problem struct {
	Error     string `json:"error"`
	Message   string `json:"message"`
	RequestID string `json:"request_id"`
}

var errNotOurs = errors.New("it is no answer of the API")

func (a answer) problem() (problem, error) {
	var p problem
	if a.media() != mediaJSON || json.Unmarshal(a.body, &p) != nil || p.Error == "" || p.Message == "" || p.RequestID == "" {
		return problem{}, fmt.Errorf("%s: got %d of type %q, want JSON with error, message and request_id: %w", a.asked, a.status, a.header.Get("Content-Type"), errNotOurs)
	}
	return p, nil
}

// refused wants a refusal of the API's with that status and error, and keeps it for the
// check of what may be stored.
func (r *run) refused(a answer, status int, slug string) error {
	if err := a.want(status); err != nil {
		return err
	}
	p, err := a.problem()
	if err != nil {
		return err
	}
	r.served = append(r.served, a)
	if p.Error != slug {
		return fmt.Errorf("%s: got %d %s, want %d %s", a.asked, a.status, p.Error, status, slug)
	}
	return nil
}

// wanted wants another answer of the API's with that status, and keeps it, too.
func (r *run) wanted(a answer, status int) error {
	if err := a.want(status); err != nil {
		return err
	}
	r.served = append(r.served, a)
	return nil
}

// storable says why a cache might keep the answer, or give it from one; "" when none
// might.
func (a answer) storable() string {
	switch cache := strings.ToLower(a.header.Get("Cache-Control")); {
	case !strings.Contains(cache, "no-store"):
		return fmt.Sprintf("%s has Cache-Control %q, want no-store", a.asked, cache)
	case a.fromCache() != "":
		return a.asked + " " + a.fromCache()
	}
	return ""
}

// fromCache says how an answer shows that it comes out of a cache; "" when it does not.
func (a answer) fromCache() string {
	if age := a.header.Get("Age"); age != "" && age != "0" {
		return "came from a cache, " + age + " s old"
	}
	if x := a.header.Get("X-Cache"); strings.HasPrefix(strings.ToLower(x), "hit") {
		return "came from a cache: " + x
	}
	return ""
}
