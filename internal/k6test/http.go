package k6test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/grafana/sobek"
)

// k6's own defaults.
const (
	defaultTimeout   = 60 * time.Second
	defaultRedirects = 10
)

// k6's error_code. k6 tells more kinds of a cut connection apart than otherCode.
const (
	otherCode   = 1000 // to which a status of 400 or more is added
	timeoutCode = 1050 // the request's own timeout
)

// request is one that a script asks for.
type request struct {
	method, url string
	body        *string
	headers     map[string]string
	tags        map[string]string
	redirects   int
	timeout     time.Duration
	noBody      bool // of the response
}

// response is what came of it; status 0 and err when nothing did.
type response struct {
	status int
	text   string
	header http.Header
	body   string
	err    error
	took   timings
}

func (v *vu) http(m *sobek.Object) {
	v.set(m, "get", func(c sobek.FunctionCall) sobek.Value {
		return v.send(v.read(http.MethodGet, c.Argument(0), sobek.Undefined(), c.Argument(1)))[0]
	})
	v.set(m, "post", func(c sobek.FunctionCall) sobek.Value {
		return v.send(v.read(http.MethodPost, c.Argument(0), c.Argument(1), c.Argument(2)))[0]
	})
	v.set(m, "request", func(c sobek.FunctionCall) sobek.Value {
		return v.send(v.read(c.Argument(0).String(), c.Argument(1), c.Argument(2), c.Argument(3)))[0]
	})
	v.set(m, "batch", func(c sobek.FunctionCall) sobek.Value {
		var all []request
		v.rt.ForOf(c.Argument(0), func(one sobek.Value) bool {
			part := func(i int) sobek.Value {
				if value := one.ToObject(v.rt).Get(strconv.Itoa(i)); value != nil {
					return value
				}
				return sobek.Undefined()
			}
			all = append(all, v.read(part(0).String(), part(1), part(2), part(3)))
			return true
		})
		got := v.send(all...)
		list := make([]any, len(got))
		for i, o := range got {
			list[i] = o
		}
		return v.rt.NewArray(list...)
	})
	v.set(m, "setResponseCallback", func(callback sobek.Value) {
		if !sobek.IsNull(callback) {
			panic(v.fault("setResponseCallback: this package knows null only"))
		}
	})
}

// read takes a request's arguments apart.
func (v *vu) read(method string, url, body, params sobek.Value) request {
	q := request{method: method, timeout: defaultTimeout, redirects: defaultRedirects}
	if v.init {
		panic(v.fault("a request while the script is evaluated"))
	}
	if !sobek.IsString(url) {
		panic(v.fault("a request's address is %v: want a text", url))
	}
	q.url = url.String()
	if !isNothing(body) {
		if !sobek.IsString(body) {
			panic(v.fault("%s %s: a body: want a text or null", method, q.url))
		}
		text := body.String()
		q.body = &text
	}
	if isNothing(params) {
		return q
	}
	o := params.ToObject(v.rt)
	var err error
	for _, name := range o.Keys() {
		value := o.Get(name)
		switch name {
		case "headers":
			q.headers = v.texts(name, value)
		case "tags":
			q.tags = v.texts(name, value)
		case "redirects":
			q.redirects = int(value.ToInteger())
		case "timeout":
			if q.timeout, err = time.ParseDuration(value.String()); err != nil || !sobek.IsString(value) {
				panic(v.fault("timeout %v: want a text such as 20s", value))
			}
		case "responseType":
			if q.noBody = value.String() == "none"; !q.noBody && value.String() != "text" {
				panic(v.fault("responseType %v: want text or none", value))
			}
		default:
			panic(v.fault("a request has no parameter %s here", name))
		}
	}
	return q
}

func isNothing(value sobek.Value) bool {
	return value == nil || sobek.IsUndefined(value) || sobek.IsNull(value)
}

// texts is an object of texts.
func (v *vu) texts(what string, value sobek.Value) map[string]string {
	o := value.ToObject(v.rt)
	all := map[string]string{}
	for _, name := range o.Keys() {
		if !sobek.IsString(o.Get(name)) {
			panic(v.fault("%s: %s is %v: want a text", what, name, o.Get(name)))
		}
		all[name] = o.Get(name).String()
	}
	return all
}

// send sends them at the same time and gives the answers in their order. The script's
// engine is used by one goroutine only.
func (v *vu) send(all ...request) []sobek.Value {
	got := make([]response, len(all))
	var under sync.WaitGroup
	for i, q := range all {
		under.Go(func() { got[i] = v.do(v.now, q) })
	}
	under.Wait()
	answers := make([]sobek.Value, len(all))
	for i, r := range got {
		if r.header.Get("Content-Encoding") != "" && !all[i].noBody {
			panic(v.fault("%s: this package unpacks no body", all[i].url))
		}
		tags := map[string]string{"method": all[i].method, "status": strconv.Itoa(r.status), "name": all[i].url}
		for tag, text := range all[i].tags {
			tags[tag] = text
		}
		v.sample("http_reqs", 1, tags)
		v.sample("http_req_duration", ms(r.took.duration()), tags)
		answers[i] = v.answer(all[i], r)
	}
	return answers
}

func (v *vu) do(ctx context.Context, q request) (r response) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	over := &tracer{over: v.over, trail: &trail{}}
	defer func() { r.took = over.trail.timings(time.Now()) }()
	var body io.Reader
	if q.body != nil {
		body = strings.NewReader(*q.body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, q.url, body)
	if err != nil {
		return response{err: err}
	}
	for name, value := range q.headers {
		req.Header.Set(name, value)
	}
	client := &http.Client{Transport: over, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > q.redirects {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		return response{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{err: err}
	}
	return response{status: resp.StatusCode, text: resp.Status, header: resp.Header, body: string(text)}
}

// answer is the Response of k6/http, as far as scripts use it.
func (v *vu) answer(q request, r response) sobek.Value {
	headers := v.rt.NewObject()
	for name, values := range r.header {
		v.set(headers, name, strings.Join(values, ", "))
	}
	took := v.rt.NewObject()
	v.set(took, "blocked", ms(r.took.blocked))
	v.set(took, "connecting", ms(r.took.connecting))
	v.set(took, "tls_handshaking", ms(r.took.handshaking))
	v.set(took, "sending", ms(r.took.sending))
	v.set(took, "waiting", ms(r.took.waiting))
	v.set(took, "receiving", ms(r.took.receiving))
	v.set(took, "duration", ms(r.took.duration()))
	o := v.rt.NewObject()
	v.set(o, "status", r.status)
	v.set(o, "status_text", r.text)
	v.set(o, "headers", headers)
	v.set(o, "timings", v.strict("Response.timings", took))
	v.set(o, "url", q.url)
	v.set(o, "error", "")
	v.set(o, "error_code", 0)
	v.set(o, "body", r.body)
	switch {
	case errors.Is(r.err, context.DeadlineExceeded):
		v.set(o, "error", r.err.Error())
		v.set(o, "error_code", timeoutCode)
	case r.err != nil:
		v.set(o, "error", r.err.Error())
		v.set(o, "error_code", otherCode)
	case r.status >= http.StatusBadRequest:
		v.set(o, "error_code", otherCode+r.status)
	}
	if r.err != nil || q.noBody {
		v.set(o, "body", sobek.Null())
	}
	v.set(o, "json", func(c sobek.FunctionCall) sobek.Value {
		if len(c.Arguments) > 0 {
			panic(v.fault("Response.json: this package knows no selector"))
		}
		if r.err != nil || q.noBody {
			panic(v.rt.NewTypeError("the body is null"))
		}
		value, err := v.fromJSON(r.body)
		if err == nil && r.body == "" {
			err = fmt.Errorf("the body is empty")
		}
		if err != nil {
			panic(v.rt.NewTypeError("%s: %s", q.url, err.Error()))
		}
		return value
	})
	return v.strict("Response", o)
}
