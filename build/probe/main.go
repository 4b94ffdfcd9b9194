// Command probe is a health check for images without a shell: it ends with 0 when
// every URL that it is given answers 200 within two seconds.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	err := probe(ctx, os.Args[1:])
	cancel() // os.Exit would skip a defer
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func probe(ctx context.Context, urls []string) error {
	if len(urls) == 0 {
		return fmt.Errorf("want one URL or more")
	}
	for _, url := range urls {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := new(http.Client).Do(r)
		if err != nil {
			return err
		}
		_ = resp.Body.Close() // the status is all that is asked for
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
	}
	return nil
}
