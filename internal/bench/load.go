package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// body makes the JSON body of one request; worker and n tell requests apart.
type body func(buf []byte, worker, n int) []byte

// load is what a run of requests showed.
type load struct {
	rps float64
	p99 time.Duration
	n   int
}

// drive posts to url over that many keep-alive connections, each as fast as it is
// answered, for d or until most of them are sent. Every answer must have the
// status. The generator is the standard library's client, on the same cores as
// the server, as it would be on a laptop: it costs about as much as the server's
// own HTTP, in every measurement alike.
func drive(ctx context.Context, url string, conns int, d time.Duration, most, status int, make body) (load, error) {
	transport := &http.Transport{MaxIdleConns: conns, MaxIdleConnsPerHost: conns, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	// Nothing is cut off at the end: a request that is under way is answered.
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	took := make2(conns, most/conns)
	errs := slices.Repeat([]error{nil}, conns)
	began := time.Now()
	for w := range conns {
		wg.Go(func() {
			var buf []byte
			for n := 0; n < most/conns && time.Now().Before(end) && ctx.Err() == nil; n++ {
				buf = make(buf[:0], w, n)
				sent := time.Now()
				if errs[w] = post(ctx, client, url, buf, status); errs[w] != nil {
					return
				}
				took[w] = append(took[w], time.Since(sent))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	all := slices.Concat(took...)
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return load{}, err
	}
	if len(all) == 0 {
		return load{}, errors.New("no request was sent")
	}
	slices.Sort(all)
	return load{rps: float64(len(all)) / elapsed.Seconds(), p99: all[len(all)*99/100], n: len(all)}, nil
}

func make2(rows, capacity int) [][]time.Duration {
	out := make([][]time.Duration, rows)
	for i := range out {
		out[i] = make([]time.Duration, 0, capacity)
	}
	return out
}

func post(ctx context.Context, client *http.Client, url string, body []byte, status int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	if resp.StatusCode != status {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("answered %d %s, want %d, to %s", resp.StatusCode, text, status, body)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
