//go:build unix

package rehearse_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/rehearse"
)

// BenchmarkDrive_CostOfARequest is the processor time of one request of a crowd against a
// server that only refuses, as a ratio to that of a plain loop of net/http's client in the
// same run. Both have the server's own cost in them.
func BenchmarkDrive_CostOfARequest(b *testing.B) {
	refusal := []byte(`{"error":"level_full","message":"This level is full: choose another, or try later.","request_id":"1","level":"N1"}`)
	status := []byte(`{"version":1,"open":true,"total":{"cap":0,"left":0},"levels":[{"id":"N1","cap":0,"left":0}]}`)
	var mu sync.Mutex
	served := 0
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		served++
		mu.Unlock()
		switch {
		case r.Method == http.MethodPost:
			_, _ = io.Copy(io.Discard, r.Body) // nobody looks at it
			w.WriteHeader(http.StatusConflict)
			w.Write(refusal)
		case r.URL.Path == "/":
			w.Header().Set("ETag", `"1"`)
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Write(status)
		}
	}))
	defer site.Close()
	for b.Loop() {
		b.StopTimer()
		served = 0
		before := cpu(b)
		o := rehearse.Options{Rate: 2000, For: 2 * time.Second, Hold: time.Second, Candidates: 3000}
		if err := rehearse.NewCrowd(o, saleAt(1)).Drive(b.Context(), site.URL, site.URL, time.Now(), rehearse.NewMeasure(time.Now())); err != nil {
			b.Fatal(err)
		}
		crowd, n := (cpu(b) - before).Seconds(), served
		before = cpu(b)
		plainLoop(b, site.URL, n)
		plain := (cpu(b) - before).Seconds()
		b.StartTimer()
		b.ReportMetric(crowd/float64(n)*1e6, "µs/request")
		b.ReportMetric(plain/float64(n)*1e6, "µs/plain")
		b.ReportMetric(crowd/plain, "ratio")
	}
}

// plainLoop sends n requests, one booking to four reads, on a few connections.
func plainLoop(b *testing.B, site string, n int) {
	b.Helper()
	const loops = 16
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: loops, DisableCompression: true}}
	defer client.CloseIdleConnections()
	body := []byte(`{"code":"AB-100001","email":"candidate100001@example.org","level":"N1","website":""}`)
	var work sync.WaitGroup
	for range loops {
		work.Go(func() {
			for i := range n / loops {
				method, url, content := http.MethodGet, site+"/status.json", []byte(nil)
				if i%5 == 0 {
					method, url, content = http.MethodPost, site+"/book", body
				}
				req, err := http.NewRequestWithContext(b.Context(), method, url, bytes.NewReader(content))
				if err != nil {
					b.Error(err)
					return
				}
				resp, err := client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body) // its end frees the connection
				resp.Body.Close()
			}
		})
	}
	work.Wait()
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
