package rollout_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/testenv"
)

const (
	email = "x@example.org"
	// crowded is how many may wait for an answer at a time. Beyond it nobody arrives,
	// which shows in the offered rate.
	crowded = 1000
	// patience is longer than a process may take for a request.
	patience = 20 * time.Second
)

func code(i int) string { return fmt.Sprintf("P%05d", i) }

// crowd is people who ask for seats over connections that they keep, arriving at
// their own rate and not at that of the answers. Of ten, one is a newcomer who wants
// a seat of the open level (or somebody who was told to try again and does), one has a
// seat and asks again, and the rest want the full level. It speaks HTTP/1.1 on plain
// connections, because net/http's client would repeat a request behind our back when a
// connection breaks.
type crowd struct {
	site string
	dial func() (net.Conn, error) // to the site
	sold atomic.Int64             // answers 202

	mu       sync.Mutex
	idle     []*connection
	next     int               // the next newcomer
	again    []returning       // told to try again
	links    map[string]string // code -> payment link of its seat, as it was told
	booked   []string          // the keys of links
	heard    map[string]int    // answers, by what they say
	improper []string          // what nobody should hear; the first of them
}

type returning struct {
	code string
	at   time.Time
}

type connection struct {
	net.Conn
	r *bufio.Reader
}

func newCrowd(t *testing.T, site string) *crowd {
	t.Helper()
	c := &crowd{site: site, links: map[string]string{}, heard: map[string]int{}, dial: func() (net.Conn, error) {
		return (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", site)
	}}
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, conn := range c.idle {
			conn.Close()
		}
	})
	return c
}

// arrive has people arrive at that rate a second until it is stopped; stop waits for
// every answer and returns the rate at which they really came.
func (c *crowd) arrive(t *testing.T, rate int) (stop func() float64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var arriving, asking sync.WaitGroup
	var came float64
	arriving.Go(func() {
		room := make(chan struct{}, crowded)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		began, n := time.Now(), 0
		defer func() { came = float64(n) / time.Since(began).Seconds() }()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			for due := int(time.Since(began).Seconds() * float64(rate)); n < due; n++ {
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				who, level := c.pick(n)
				asking.Go(func() {
					c.ask(who, level)
					<-room
				})
			}
		}
	})
	stop = func() float64 {
		cancel()
		arriving.Wait()
		asking.Wait()
		return came
	}
	t.Cleanup(func() { stop() })
	return stop
}

// pick says who comes nth and what they want.
func (c *crowd) pick(n int) (who, level string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case n%10 == 0 && len(c.again) > 0 && time.Now().After(c.again[0].at):
		who = c.again[0].code
		c.again = c.again[1:]
		return who, open
	case n%10 == 0 && c.next < newcomers:
		c.next++
		return code(c.next - 1), open
	case n%10 == 5 && len(c.booked) > 0:
		return c.booked[rand.IntN(len(c.booked))], open
	}
	return code(newcomers + n%onlookers), full
}

// answer is what a request heard.
type answer struct {
	status     int
	retryAfter time.Duration
	raw        []byte

	Error      string `json:"error"`
	PaymentURL string `json:"payment_url"`
}

// ask books once and keeps what was heard.
func (c *crowd) ask(who, level string) {
	a, err := c.post(who, level)
	c.mu.Lock()
	defer c.mu.Unlock()
	link, seated := c.links[who]
	switch {
	case err != nil:
		c.hear("no answer")
		c.complain("%s, who wants %s: got no answer (%v), want one", who, level, err)
	case a.status == http.StatusAccepted && level == open && !seated && a.PaymentURL != "":
		c.hear("202")
		c.sold.Add(1)
		c.seat(who, a.PaymentURL)
	case a.status == http.StatusConflict && a.Error == "duplicate" && level == open && seated && a.PaymentURL == link:
		c.hear("409 duplicate")
	case a.status == http.StatusConflict && a.Error == "duplicate" && level == open && !seated && a.PaymentURL != "":
		c.hear("409 duplicate, of a seat that is news")
		c.seat(who, a.PaymentURL)
	case a.status == http.StatusConflict && a.Error == "duplicate" && level == open && !seated && a.retryAfter > 0:
		c.hear("409 duplicate, still at work")
		c.again = append(c.again, returning{who, time.Now().Add(a.retryAfter)})
	case a.status == http.StatusConflict && a.Error == "level_full" && level == full:
		c.hear("409 level_full")
	case a.status == http.StatusServiceUnavailable && a.Error == "try_again" && a.retryAfter > 0:
		c.hear("503 try_again")
		if level == open && !seated {
			c.again = append(c.again, returning{who, time.Now().Add(a.retryAfter)})
		}
	default:
		c.hear(strconv.Itoa(a.status) + " improper")
		c.complain("%s, who wants %s and has the link %q: got %d %s", who, level, link, a.status, a.raw)
	}
}

func (c *crowd) hear(what string) { c.heard[what]++ }

func (c *crowd) seat(who, link string) {
	c.links[who] = link
	c.booked = append(c.booked, who)
}

func (c *crowd) complain(format string, args ...any) {
	if len(c.improper) < 20 {
		c.improper = append(c.improper, fmt.Sprintf(format, args...))
	}
}

// askAgain has those who were told to try again do so until each has a clear answer.
func (c *crowd) askAgain(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		c.mu.Lock()
		waiting := c.again
		c.again = nil
		c.mu.Unlock()
		for _, r := range waiting {
			c.ask(r.code, open)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if n := len(c.again); n > 0 {
			return fmt.Errorf("%d candidates are still told to try again", n)
		}
		return nil
	})
}

// post sends one request, once, on a connection that is kept if there is one.
func (c *crowd) post(who, level string) (answer, error) {
	conn, err := c.connection()
	if err != nil {
		return answer{}, err
	}
	a, keep, err := conn.post(c.site, fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, who, email, level))
	if !keep {
		conn.Close()
		return a, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, conn)
	return a, err
}

func (c *crowd) connection() (*connection, error) {
	c.mu.Lock()
	if last := len(c.idle) - 1; last >= 0 {
		conn := c.idle[last]
		c.idle = c.idle[:last]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	return &connection{conn, bufio.NewReader(conn)}, nil
}

// post is one exchange; keep tells whether the connection can take another.
func (c *connection) post(host, body string) (a answer, keep bool, err error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, false, err
	}
	if _, err := fmt.Fprintf(c, "POST /book HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", host, len(body), body); err != nil {
		return a, false, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return a, false, err
	}
	defer resp.Body.Close()
	if a.raw, err = io.ReadAll(resp.Body); err != nil {
		return a, false, err
	}
	a.status = resp.StatusCode
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		a.retryAfter = time.Duration(s) * time.Second
	}
	if resp.Header.Get("Content-Type") == "application/json; charset=utf-8" { // not the balancer's own words
		err = json.Unmarshal(a.raw, &a)
	}
	return a, !resp.Close, err
}
