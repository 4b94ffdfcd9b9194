package httpapi

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi/web"
	"holdfast/internal/obs"
)

// Pages are what the local profile serves itself.
type Pages struct {
	Objects Objects
	Sales   Sales
}

// statusKey is the object's name.
const statusKey = "status.json"

// saleLook is how long a look at the running sale is good for. Readers of the page
// come by the thousand a second, a sale is changed a few times in its life.
const saleLook = time.Second

// builtPages keeps the pages of the running sale.
type builtPages struct {
	looking sync.Mutex
	last    atomic.Pointer[saleLooked]
}

// saleLooked is what a look at the running sale came to.
type saleLooked struct {
	at   time.Time
	sale booking.Sale
	site *web.Site // of the last sale that could be read; nil when none ever was
	err  error     // why there is no site
}

// site gives the pages of the running sale, built anew when the sale is another one
// than a second ago. While the sale cannot be read they are those of the last that
// could be: whoever holds a seat must still find the result page.
func (s *Server) site(ctx context.Context) (*web.Site, error) {
	last := s.built.last.Load()
	switch {
	case last != nil && time.Since(last.at) < saleLook:
		return last.site, last.err
	case last == nil || last.site == nil:
		s.built.looking.Lock() // nothing to show yet: wait for who looks
	case !s.built.looking.TryLock():
		return last.site, nil // somebody looks already
	}
	defer s.built.looking.Unlock()
	if last = s.built.last.Load(); last == nil {
		last = new(saleLooked)
	} else if time.Since(last.at) < saleLook {
		return last.site, last.err
	}
	next := s.look(ctx, *last)
	s.built.last.Store(&next)
	return next.site, next.err
}

// look reads the running sale and builds its pages if they are not those of last.
func (s *Server) look(ctx context.Context, last saleLooked) saleLooked {
	// Not the reader's own context: one that hangs up is no reason to tell the next
	// second's readers to try again. The ledger has its own time limit.
	sale, err := s.Pages.Sales.Sale(context.WithoutCancel(ctx))
	if err == nil && (last.site == nil || !sameOnPage(sale, last.sale)) {
		var site *web.Site
		if site, err = web.Build(sale); err == nil {
			last.sale, last.site = sale, site
		}
	}
	last.at, last.err = time.Now(), nil
	if err != nil {
		obs.EventFrom(ctx).Cause = err // one reader's line tells it, whatever is shown
		if last.site == nil {
			last.err = errors.Join(booking.ErrTryAgain, err)
		}
	}
	return last
}

func sameOnPage(a, b booking.Sale) bool {
	return a.Called() == b.Called() && a.Currency == b.Currency && slices.Equal(a.Levels, b.Levels)
}

// pageHeaders are what every page goes out with.
func pageHeaders(h http.Header) {
	for _, s := range web.SecurityHeaders() {
		h.Set(s.Name, s.Value)
	}
}

func (s *Server) index(w http.ResponseWriter, r *http.Request) error {
	site, err := s.site(r.Context())
	if err != nil {
		return err
	}
	servePage(w, r, site.Index)
	return nil
}

// result is the same page for every booking: its script takes the token from the
// address.
func (s *Server) result(w http.ResponseWriter, r *http.Request) error {
	site, err := s.site(r.Context())
	if err != nil {
		return err
	}
	servePage(w, r, site.Result)
	return nil
}

func servePage(w http.ResponseWriter, r *http.Request, f web.File) {
	h := w.Header()
	pageHeaders(h)
	h.Set("Cache-Control", f.CacheControl)
	h.Set("Vary", "Accept-Encoding")
	body, encoding := f.Body, ""
	if acceptsGzip(r.Header) {
		body, encoding = f.Gzip, "gzip"
	}
	send(w, r, f.ContentType, encoding, f.ETag, body)
}

// status serves status.json as it lies: always asked for again, so that figures are
// never older than they are said to be.
func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	body, etag, err := s.shown.read(r.Context(), statusKey)
	if panicked(err) {
		return err
	}
	if err != nil {
		return errors.Join(booking.ErrTryAgain, err)
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	send(w, r, "application/json; charset=utf-8", "", `"`+etag+`"`, body)
	return nil
}

// newest reads one object for all who ask at the same time. A read that began before
// somebody asked is not for them, so that nobody is shown less than what lay there when
// they asked. Reads begin readGap apart, so that a crowd costs some of them a second
// rather than one after the other; who asks after a pause does not wait.
type newest struct {
	get func(ctx context.Context, key string) (body []byte, etag string, err error)

	mu      sync.Mutex
	reading bool
	next    *reading // that has not begun; nil while nobody waits for one
	began   time.Time
}

type reading struct {
	waiting []chan struct{} // of those whom it is for, in the order in which they came
	body    []byte          // not to be changed
	etag    string
	err     error
}

const (
	// readWithin bounds one read, which is nobody's own.
	readWithin = 5 * time.Second
	// readGap is the least time between the beginnings of two reads.
	readGap = 20 * time.Millisecond
	// letGo is how many hear of a read before others have their turn of the processor; more
	// when there are so many that it would be their turn more than yieldsMost times.
	letGo      = 4
	yieldsMost = 16
)

func (n *newest) read(ctx context.Context, key string) ([]byte, string, error) {
	done := make(chan struct{})
	n.mu.Lock()
	if n.next == nil {
		n.next = &reading{}
	}
	mine := n.next
	mine.waiting = append(mine.waiting, done)
	if !n.reading {
		n.reading = true
		go n.run(key)
	}
	n.mu.Unlock()
	select {
	case <-done:
		return mine.body, mine.etag, mine.err
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
}

// run reads until nobody waits.
func (n *newest) run(key string) {
	for {
		n.mu.Lock()
		r := n.next
		if r == nil {
			n.reading = false
			n.mu.Unlock()
			return
		}
		if gap := readGap - time.Since(n.began); gap > 0 {
			n.mu.Unlock()
			time.Sleep(gap) // more may come to wait for this one
			continue
		}
		n.next, n.began = nil, time.Now()
		n.mu.Unlock()
		r.read(n.get, key)
		go r.tell() // the next read waits for nobody
	}
}

// tell lets those go who wait, a part of them at a time: of hundreds at once each would
// stand before a booking at each of its steps when no processor is to spare. Whoever yields
// comes after all that can run.
func (r *reading) tell() {
	atOnce := max(letGo, len(r.waiting)/yieldsMost)
	for i, done := range r.waiting {
		close(done)
		if i%atOnce == atOnce-1 {
			runtime.Gosched()
		}
	}
}

func (r *reading) read(get func(ctx context.Context, key string) ([]byte, string, error), key string) {
	defer func() {
		if p := recover(); p != nil {
			r.err = obs.Panicked(p)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	r.body, r.etag, r.err = get(ctx, key)
}

// send answers GET and HEAD with that body, or with 304 to whoever has it.
func send(w http.ResponseWriter, r *http.Request, contentType, encoding, etag string, body []byte) {
	h := w.Header()
	h.Set("ETag", etag)
	if has(r.Header, etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", contentType)
	if encoding != "" {
		h.Set("Content-Encoding", encoding)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may have left; of a HEAD the server sends the headers
}

// has tells whether If-None-Match names that tag, by weak comparison (RFC 9110,
// 13.1.2). No tag of ours has a comma in it.
func has(h http.Header, etag string) bool {
	for tag := range list(h, "If-None-Match") {
		if tag == "*" || strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(etag, "W/") {
			return true
		}
	}
	return false
}

// acceptsGzip reads Accept-Encoding (RFC 9110, 12.5.3): a coding with a weight of 0
// is refused, and * stands for those that are not named.
func acceptsGzip(h http.Header) bool {
	others := false
	for coding := range list(h, "Accept-Encoding") {
		name, rest, weighted := strings.Cut(coding, ";")
		accepted := true
		if weighted {
			key, weight, _ := strings.Cut(rest, "=")
			q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
			accepted = strings.EqualFold(strings.TrimSpace(key), "q") && err == nil && q > 0
		}
		switch name = strings.TrimSpace(name); {
		case strings.EqualFold(name, "gzip"):
			return accepted
		case name == "*":
			others = accepted
		}
	}
	return others
}

// list yields the members of a comma-separated header, over all its lines.
func list(h http.Header, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range h.Values(name) {
			for member := range strings.SplitSeq(line, ",") {
				if !yield(strings.TrimSpace(member)) {
					return
				}
			}
		}
	}
}

// page is an error as a page, for the plain form, in the language that its browser
// asks for.
func (s *Server) page(w http.ResponseWriter, r *http.Request, p problem) error {
	h := w.Header()
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retry))
	}
	link := ""
	if i := strings.LastIndexByte(p.BookingURL, '/'); i >= 0 {
		link = s.ResultURL + "?booking=" + url.QueryEscape(p.BookingURL[i+1:])
	}
	pageHeaders(h)
	h.Set("Content-Type", web.ContentType)
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept-Language")
	w.WriteHeader(p.status)
	d := web.AnswerData{Words: p.words, PaymentURL: p.PaymentURL, BookingURL: link, RetryAfter: p.retry}
	if p.SecondsLeft != nil {
		d.SecondsLeft = *p.SecondsLeft
	}
	if p.OpensAt != nil {
		d.OpensIn = int(time.Until(*p.OpensAt) / time.Second) // to read; the ledger's clock decides
	}
	return web.Answer(w, web.Accept(strings.Join(r.Header.Values("Accept-Language"), ",")), d)
}
