package rollout_test

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testenv"
)

// needHAProxy finds the balancer's program. Without it the test is skipped, or fails
// with CI=true.
func needHAProxy(t *testing.T) string {
	t.Helper()
	// Debian puts it where only root looks.
	for _, name := range []string{"haproxy", "/usr/sbin/haproxy", "/usr/local/sbin/haproxy"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("haproxy is not installed (`make setup` does it), and with CI=true this test must run")
	}
	t.Skip("ROLL-OUT NOT TESTED: haproxy is not installed; `make setup` does it")
	return ""
}

const (
	checkEvery   = 500 * time.Millisecond
	checkAgain   = 100 * time.Millisecond // after one that said otherwise than before
	checksToFall = 2
)

// The balancer is as hard on a server as one can be: it keeps its connections and
// puts anybody's request on any of them, sends most to whoever answers fastest, and
// sends a request to another server only if it could not connect, so that none is
// ever sent twice. Nothing that a client holds open is closed by it within the test.
// A check may take long, because a busy machine is not an ended process; one that is
// answered by 503 counts at once.
const configuration = `global
	maxconn 1500
	nbthread 1
	stats socket ipv4@%[1]s level user

defaults
	mode http
	option http-keep-alive
	http-reuse always
	retry-on conn-failure
	retries 3
	option redispatch 1
	timeout connect 5s
	timeout client 5m
	timeout http-keep-alive 5m
	timeout server 30s
	timeout check 5s

frontend site
	bind %[2]s
	default_backend apis

backend apis
	balance leastconn
	option httpchk GET /health
	http-check expect status 200
	default-server check inter %[3]dms fastinter %[4]dms downinter %[4]dms fall %[5]d rise 1
`

// balancer is a running HAProxy.
type balancer struct {
	site, stats string // addresses
	servers     int
}

// startBalancer serves at site what the servers answer.
func startBalancer(t *testing.T, program, site string, servers []string) *balancer {
	t.Helper()
	b := &balancer{site: site, stats: testenv.FreeAddr(t), servers: len(servers)}
	text := fmt.Sprintf(configuration, b.stats, site, checkEvery.Milliseconds(), checkAgain.Milliseconds(), checksToFall)
	for i, addr := range servers {
		text += fmt.Sprintf("\tserver api%d %s\n", i, addr)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.StartProgram(t, "haproxy", []string{program, "-db", "-f", file}, nil) // -db: in the foreground, one process
	return b
}

// waitUp waits until every server has passed its check.
func (b *balancer) waitUp(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		servers, err := b.show(t)
		for _, s := range servers {
			if s["status"] != "UP" || s["check_status"] != "L7OK" {
				err = errors.Join(err, fmt.Errorf("balancer: %s is %s (%s), want UP", s["svname"], s["status"], s["check_status"]))
			}
		}
		return err
	})
}

// status is what the balancer holds of a server: UP, DOWN, or one on its way to the
// other.
func (b *balancer) status(t *testing.T, server int) string {
	t.Helper()
	servers, err := b.show(t)
	if err != nil {
		t.Fatal(err)
	}
	return servers[server]["status"]
}

// show asks what the balancer knows of its servers, by the field names of its
// management guide, section 9.1.
func (b *balancer) show(t *testing.T) ([]map[string]string, error) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", b.stats)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	const everyProxy, onlyServers, everyServer = -1, 4, -1
	if _, err := fmt.Fprintf(conn, "show stat %d %d %d\n", everyProxy, onlyServers, everyServer); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	lines, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(string(text), "# "))).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("show stat: %q: %w", text, err)
	}
	if len(lines) != 1+b.servers {
		return nil, fmt.Errorf("show stat: got %q, want a line of names and %d servers", text, b.servers)
	}
	var servers []map[string]string
	for _, line := range lines[1:] {
		s := map[string]string{}
		for i, name := range lines[0] {
			s[name] = line[i]
		}
		servers = append(servers, s)
	}
	return servers, nil
}
