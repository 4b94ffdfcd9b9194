package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// senders is how many requests of a steady load can be under way. One that finds
// no sender free waits for it, and that is in its time.
const senders = 64

// steady posts to url at a fixed rate for d, whatever becomes of the answers, and
// returns each request's time in the order of sending. A time begins when the
// request was to be sent, not when it was: a server that stalls cannot make the
// load wait for it and so look better. Every answer must be a 409.
func steady(ctx context.Context, url string, rate int, d time.Duration, ask func(buf []byte, n int) []byte) ([]time.Duration, error) {
	transport := &http.Transport{MaxIdleConns: senders, MaxIdleConnsPerHost: senders, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	n := int(float64(rate) * d.Seconds())
	took := make([]time.Duration, n)
	start := time.Now()
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Second / time.Duration(rate)) }
	due := make(chan int, n) // holds all, so that the pace is never held up
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(due)
		// A thread of its own: a goroutine's sleep can be a millisecond too long, which
		// is as much as what is measured.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := range n {
			sleepUntil(at(i))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			due <- i
		}
		return nil
	})
	for range senders {
		g.Go(func() error {
			var buf []byte
			for i := range due {
				buf = ask(buf[:0], i)
				if err := post(ctx, client, url, buf, http.StatusConflict); err != nil {
					return err
				}
				took[i] = time.Since(at(i))
			}
			return nil
		})
	}
	return took, g.Wait()
}

// book has people book, as many a second on average and each when it happens, until
// enough is closed, and returns when all have been answered, each with one of the
// statuses. At even times every booking would begin just when one of some seconds
// before is cut off, and each rejection that meets the one would meet the other.
func book(ctx context.Context, enough <-chan struct{}, url string, rate int, statuses []int, next func() int) error {
	transport := &http.Transport{MaxIdleConns: 1000, MaxIdleConnsPerHost: 1000, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	g, ctx := errgroup.WithContext(ctx)
	somebody := time.NewTimer(0)
	defer somebody.Stop()
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-enough:
			return g.Wait()
		case <-somebody.C:
			somebody.Reset(time.Duration(rand.ExpFloat64() * float64(time.Second) / float64(rate)))
		}
		g.Go(func() error {
			status, text, err := answer(ctx, client, url, bookAs(nil, next(), openLevel))
			if err == nil && !slices.Contains(statuses, status) {
				err = fmt.Errorf("a booking was answered %d %s, want one of %v", status, text, statuses)
			}
			return err
		})
	}
}

func answer(ctx context.Context, client *http.Client, url string, body []byte) (status int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	text, err = io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}
