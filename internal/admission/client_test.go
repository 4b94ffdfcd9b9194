package admission_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/redisproc"
	"holdfast/internal/testenv"
)

// stub is a server that answers by a script of the test's.
type stub struct {
	addr   string
	hello  string
	answer func(conn int, args []string) string

	mu    sync.Mutex
	conns int
	seen  []string // the commands' names
	open  []net.Conn
}

const (
	hangUp  = "hang up"
	reset   = "reset"
	silence = "silence"
)

// newStub starts a stub. It knows no HELLO unless the test says what to reply, and
// one time; what answer says to anything else goes out as it is.
func newStub(t *testing.T, answer func(conn int, args []string) string) *stub {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stub{addr: ln.Addr().String(), hello: "-ERR unknown command\r\n", answer: answer}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns++
			n := s.conns
			s.open = append(s.open, c)
			s.mu.Unlock()
			work.Go(func() { s.serve(c, n) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.mu.Lock()
		for _, c := range s.open {
			c.Close()
		}
		s.mu.Unlock()
		work.Wait()
	})
	return s
}

func (s *stub) serve(c net.Conn, n int) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		name := strings.ToUpper(args[0])
		s.mu.Lock()
		s.seen = append(s.seen, name)
		s.mu.Unlock()
		reply := s.hello
		switch name {
		case "HELLO":
		case "TIME":
			reply = "*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n"
		default:
			reply = s.answer(n, args)
		}
		switch reply {
		case hangUp:
			return
		case reset:
			_ = c.(*net.TCPConn).SetLinger(0)
			return
		case silence:
			_, _ = io.Copy(io.Discard, c)
			return
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

func readCommand(in *bufio.Reader) ([]string, error) {
	number := func(mark byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != mark {
			return 0, fmt.Errorf("%q, want %q", line, mark)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		buf := make([]byte, size+2)
		if _, err := io.ReadFull(in, buf); err != nil {
			return nil, err
		}
		args[i] = string(buf[:size])
	}
	return args, nil
}

// count is how many commands of that name came.
func (s *stub) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, got := range s.seen {
		if got == name {
			n++
		}
	}
	return n
}

func (s *stub) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// word is a script's reply.
func word(w string) string {
	return fmt.Sprintf("*3\r\n$%d\r\n%s\r\n$0\r\n\r\n:1800000000000\r\n", len(w), w)
}

// single is a ledger whose client dials only when a call needs it.
func single(t *testing.T, addr string, acks int) *ledger {
	t.Helper()
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, Pool: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	return newLedger(t, rdb, acks)
}

// Guards MaxRetries -1 and the Gate's own verdicts: what a first try met decides
// whether there is a second.
func TestGate_RepeatsWhereAnotherConnectionMayDoBetter(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		first string
		again bool
	}{
		"read only":       {"-READONLY You can't write against a read only replica.\r\n", true},
		"loading":         {"-LOADING Redis is loading the dataset in memory\r\n", true},
		"link is down":    {"-MASTERDOWN Link with MASTER is down\r\n", true},
		"cluster is down": {"-CLUSTERDOWN The cluster is down\r\n", true},
		"slot moves":      {"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", true},
		"no replicas":     {"-NOREPLICAS Not enough good replicas to write.\r\n", true},
		"full house":      {"-ERR max number of clients reached\r\n", true},
		"hung up":         {hangUp, true},
		"reset":           {reset, true},
		"broken off":      {"*3\r\n$4\r\nno", true},
		"no answer":       {silence, true},
		"script's error":  {"-ERR user_script:1: attempt to index a nil value\r\n", false},
		"wrong type":      {"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", false},
		"out of memory":   {"-OOM command not allowed when used memory > 'maxmemory'.\r\n", false},
		"not allowed":     {"-NOPERM this user has no permissions to run the 'evalsha' command\r\n", false},
		"no reply at all": {"+OK\r\n", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tried atomic.Bool
			s := newStub(t, func(int, []string) string {
				if tried.CompareAndSwap(false, true) {
					return tt.first
				}
				return word("none")
			})
			_, _, err := single(t, s.addr, 0).Row(t.Context(), code(1))
			want := 1
			if tt.again {
				want = 2
				wantErr(t, "the second try", err, booking.ErrNotFound)
			} else if err == nil || errors.Is(err, booking.ErrNotFound) {
				t.Errorf("got %v, want the first try's error", err)
			}
			if got := s.count("EVALSHA"); got != want {
				t.Errorf("scripts sent: got %d, want %d", got, want)
			}
		})
	}
}

func TestGate_CallersEndIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(int, []string) string { return silence })
	l := single(t, s.addr, 1)
	for name, call := range map[string]func(ctx context.Context) error{
		"read":  func(ctx context.Context) error { _, _, err := l.Row(ctx, code(1)); return err },
		"write": func(ctx context.Context) error { return l.Queued(ctx, code(1), "a") },
		"admit": func(ctx context.Context) error { _, err := l.Admit(ctx, request(1, "N1"), suffix(), false); return err },
	} {
		before, began := s.count("EVALSHA"), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		err := call(ctx)
		cancel()
		if err == nil || s.count("EVALSHA") != before+1 {
			t.Errorf("%s: got %v after %d scripts, want an error after one", name, err, s.count("EVALSHA")-before)
		}
		if took := time.Since(began); took > 600*time.Millisecond {
			t.Errorf("%s: took %s of its 150ms", name, took)
		}
	}
}

// A server that WAIT finds demoted has said nothing that counts: neither a
// refusal, which only reads, nor a change that the new primary may not have.
func TestGate_WordOfADemotedServerDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, demoted := range map[string]string{
		"Before":    "-ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0\r\n",
		"Meanwhile": "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := func(old, promoted string) *stub {
				return newStub(t, func(conn int, args []string) string {
					isWait := strings.EqualFold(args[0], "WAIT")
					switch {
					case conn == 1 && isWait:
						return demoted
					case conn == 1:
						return word(old)
					case isWait:
						return ":1\r\n"
					default:
						return word(promoted)
					}
				})
			}
			s := server("switched", "switched")
			if err := single(t, s.addr, 1).Open(t.Context()); err != nil || s.connections() != 2 {
				t.Errorf("write: got %v on %d connections, want nil on the second", err, s.connections())
			}
			l := single(t, server("level_full", "sold_out").addr, 1)
			_, err := l.Admit(t.Context(), request(1, "N1"), suffix(), false)
			wantErr(t, "lone refusal", err, booking.ErrSoldOut)
			l = single(t, server("level_full", "sold_out").addr, 1)
			for _, o := range l.together(t, request(1, "N1"), request(2, "N1")) {
				wantErr(t, "refusal in a batch", o.err, booking.ErrSoldOut)
			}
		})
	}
}

// demote makes the server a replica that keeps what it has.
func demote(t *testing.T, s *redisproc.Server) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	if err := rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
}

// gateOn is a ledger whose Gate gets the test's options.
func gateOn(t *testing.T, rdb *redis.Client, o admission.Options) *ledger {
	t.Helper()
	l := &ledger{rdb: rdb, prefix: fmt.Sprintf("{t%d}:", prefixes.Add(1)), offset: new(atomic.Int64), reg: prometheus.NewRegistry()}
	var err error
	if o.Keys == (admission.Keys{}) {
		if o.Keys, err = admission.NewKeys(l.prefix); err != nil {
			t.Fatal(err)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Registerer = l.reg
	if l.Gate, err = admission.New(rdb, o); err != nil {
		t.Fatal(err)
	}
	return l
}

// fill leaves n idle connections in the pool.
func fill(t *testing.T, rdb *redis.Client, n int) {
	t.Helper()
	held := make([]*redis.Conn, n)
	for i := range held {
		held[i] = rdb.Conn()
		if err := held[i].Ping(t.Context()).Err(); err != nil {
			t.Fatalf("connection %d of %d: %v", i+1, n, err)
		}
	}
	for _, c := range held {
		c.Close()
	}
}

// replaced is a full sale whose primary is another from now on, where a seat has
// become free. The pool is full of connections to the old one.
func replaced(t *testing.T, o admission.Options) (l *ledger, replace func(), old *redisproc.Server) {
	t.Helper()
	servers := testenv.Replicated(t, 2)
	promoted := servers.Replicas[0]
	proxy := testenv.Proxy(t, servers.Primary.Addr())
	l = gateOn(t, connect(t, proxy.Addr()), o).open(t)
	keys, err := admission.NewKeys(l.prefix)
	if err != nil {
		t.Fatal(err)
	}
	l.mustAdmit(t, 1, "N1")
	row := l.mustAdmit(t, 2, "N1")
	_, err = l.Admit(t.Context(), request(3, "N1"), suffix(), false)
	wantErr(t, "before", err, booking.ErrLevelFull)
	fill(t, l.rdb, 20)
	return l, func() {
		t.Helper()
		if n, err := l.rdb.Wait(t.Context(), 2, time.Second).Result(); err != nil || n != 2 {
			t.Fatalf("replicas that have everything: %d, %v", n, err)
		}
		if err := promoted.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := servers.Replicas[1].Follow(t.Context(), promoted.Addr()); err != nil {
			t.Fatal(err)
		}
		if err := gateOn(t, connect(t, promoted.Addr()), admission.Options{Keys: keys}).Undo(t.Context(), code(2), row.Attempt); err != nil {
			t.Fatal(err)
		}
		proxy.Retarget(promoted.Addr())
	}, servers.Primary
}

// Guards the WAIT behind every batch and the retirement that follows: an old
// primary that became a replica goes on refusing from what it had.
func TestFailover_DemotedServerRefusesNobody(t *testing.T) {
	t.Parallel()
	l, replace, old := replaced(t, admission.Options{Acks: 1})
	replace()
	demote(t, old)
	l.mustAdmit(t, 3, "N1")
	l.check(t)
}

// Guards Watch's look over a new connection: an old primary that is merely cut
// off still takes itself for one.
func TestFailover_WatchLeavesAReplacedPrimary(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{}, 10)
	l, replace, _ := replaced(t, admission.Options{Acks: admission.AcksAuto, OnPrimaryChanged: func() { changed <- struct{}{} }})
	if err := l.LearnReplicas(t.Context()); err != nil {
		t.Fatal(err)
	}
	replace()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Watch(ctx) }()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("Watch did not tell of the new primary")
	}
	l.mustAdmit(t, 3, "N1")
	stop()
	if err := <-done; err != nil {
		t.Errorf("Watch: got %v, want nil", err)
	}
	if n := len(changed); n != 0 {
		t.Errorf("the change was told %d times more", n)
	}
	l.check(t)
}

// warned calls itself at each warning.
type warned func()

func (w warned) Enabled(context.Context, slog.Level) bool { return true }
func (w warned) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w warned) WithGroup(string) slog.Handler            { return w }
func (w warned) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		w()
	}
	return nil
}

// Guards the order in which a new primary is noticed: whoever asks in the middle of
// it must not meet the old primary with the new one's smaller number of replicas.
func TestFailover_OldConnectionsAreRetiredBeforeFewerReplicasCount(t *testing.T) {
	t.Parallel()
	type question struct {
		Conn string // to which primary it was made
		Acks string // how many were asked for
	}
	var mu sync.Mutex
	primary, replicas := "old", 2
	made := map[int]string{} // connections, by the primary at their first command
	var asked []question
	s := newStub(t, func(conn int, args []string) string {
		mu.Lock()
		defer mu.Unlock()
		if _, known := made[conn]; !known {
			made[conn] = primary
		}
		bulk := func(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
		switch strings.ToUpper(args[0]) {
		case "INFO":
			if args[1] == "server" {
				return bulk("# Server\r\nrun_id:" + primary + "\r\n")
			}
			return bulk("role:master\r\n" + strings.Repeat("slave0:ip=127.0.0.1,port=1,state=online,offset=1,lag=0\r\n", replicas))
		case "WAIT":
			asked = append(asked, question{made[conn], args[1]})
			return ":" + args[1] + "\r\n"
		}
		return "+OK\r\n"
	})
	var l *ledger
	probe := func() {
		if err := l.Probe(t.Context()); err != nil {
			t.Errorf("Probe: got %v, want an acknowledgement", err)
		}
	}
	learn := func() {
		if err := l.LearnReplicas(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l = gateOn(t, connect(t, s.addr), admission.Options{Acks: admission.AcksAuto, Log: slog.New(warned(probe))})
	learn()
	probe()
	mu.Lock()
	primary, replicas = "new", 1
	mu.Unlock()
	learn()
	probe()
	mu.Lock()
	defer mu.Unlock()
	want := []question{{"old", "2"}, {"new", "2"}, {"new", "1"}}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("who was asked for how many acknowledgements: -want +got:\n%s", diff)
	}
}

// authority makes certificates that only its own pool trusts.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	raw := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	var err error
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// sign signs with the authority's key, or makes that first.
func (a *authority) sign(t *testing.T, c *x509.Certificate) []byte {
	t.Helper()
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	issuer := a.cert
	if a.key == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		a.key, issuer = key, c
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, issuer, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// secureRedis starts a server that also speaks TLS, with a certificate for
// localhost alone, and returns its TLS address.
func secureRedis(t *testing.T, a *authority) (addr string, plain *redis.Client) {
	t.Helper()
	testenv.NeedServer(t)
	dir := t.TempDir()
	raw := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, body []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: body}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := redisproc.Start(ctx, redisproc.Options{Dir: dir, Args: []string{
		"--tls-port", port, "--tls-auth-clients", "no", "--tls-cert-file", write("cert.pem", "CERTIFICATE", raw),
		"--tls-key-file", write("key.pem", "PRIVATE KEY", key), "--tls-ca-cert-file", write("ca.pem", "CERTIFICATE", a.cert.Raw),
	}})
	if err != nil {
		t.Fatalf("start redis with TLS: %v", err)
	}
	t.Cleanup(s.Stop)
	plain = redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { plain.Close() })
	return net.JoinHostPort("localhost", port), plain
}

// Guards the dialer's SyscallConn: a *tls.Conn alone passes every health check,
// and each call would meet one dead connection per try.
func TestTLS_IdleConnectionsThatTheServerClosedFailNoCall(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	addr, plain := secureRedis(t, a)
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, TLS: &tls.Config{RootCAs: a.pool}, Pool: 64})
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLedger(t, rdb, 0)
	fill(t, rdb, 60)
	killed, err := plain.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Result()
	if err != nil || killed < 60 {
		t.Fatalf("connections closed by the server: got %d, %v, want 60", killed, err)
	}
	for i := range 30 {
		if _, err := l.Epoch(t.Context()); !errors.Is(err, booking.ErrLedgerUnknown) {
			t.Errorf("read %d: got %v, want an answer", i+1, err)
		}
		if err := l.Queued(t.Context(), code(1), "a"); !errors.Is(err, booking.ErrLedgerUnknown) {
			t.Errorf("script %d: got %v, want an answer", i+1, err)
		}
	}
}

// Guards against a health check that is too strict, as it is of connections made
// ahead (MinIdleConns): session tickets are no reason to throw one away.
func TestTLS_HealthyConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	addr, _ := secureRedis(t, a)
	rdb := admission.NewClient(admission.ClientConfig{Addr: addr, TLS: &tls.Config{RootCAs: a.pool}, Pool: 64})
	t.Cleanup(func() { _ = rdb.Close() })
	for range 3 {
		fill(t, rdb, 8)
	}
	if s := rdb.PoolStats(); s.StaleConns != 0 || s.Misses != 8 || s.Hits != 16 {
		t.Errorf("of 8 connections: made %d, used again %d times, thrown away %d; want 8, 16 and none", s.Misses, s.Hits, s.StaleConns)
	}
}

// Guards ServerName and the check of the chain.
func TestTLS_ServerMustBeWhoItWasCalled(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	addr, _ := secureRedis(t, a)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]admission.ClientConfig{
		"another name":      {Addr: net.JoinHostPort("127.0.0.1", port), TLS: &tls.Config{RootCAs: a.pool}, Pool: 1},
		"another authority": {Addr: addr, TLS: &tls.Config{RootCAs: newAuthority(t).pool}, Pool: 1},
	} {
		rdb := admission.NewClient(c)
		var wrong *tls.CertificateVerificationError
		if err := rdb.Ping(t.Context()).Err(); !errors.As(err, &wrong) {
			t.Errorf("%s: got %v, want the certificate refused", name, err)
		}
		rdb.Close()
	}
	// The name given beats the address.
	rdb := admission.NewClient(admission.ClientConfig{
		Addr: net.JoinHostPort("127.0.0.1", port), TLS: &tls.Config{RootCAs: a.pool, ServerName: "localhost"}, Pool: 1,
	})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("by its name: got %v, want nil", err)
	}
}

// Guards MinVersion, which the configuration may leave out or set too low.
func TestTLS_NothingOlderThan12(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	raw := a.sign(t, &x509.Certificate{SerialNumber: big.NewInt(3), DNSNames: []string{"localhost"}})
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11,
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: a.key}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).HandshakeContext(t.Context()) // refused by the client
			c.Close()
		}
	})
	defer work.Wait()
	defer ln.Close()
	rdb := admission.NewClient(admission.ClientConfig{
		Addr: ln.Addr().String(), Pool: 1,
		TLS: &tls.Config{RootCAs: a.pool, ServerName: "localhost", MinVersion: tls.VersionTLS10}, //nolint:gosec // the test's point
	})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: got %v, want the version refused", err)
	}
}

func TestAuth_OverTLS(t *testing.T) {
	t.Parallel()
	const password, wrong = "open-sesame", "let-me-guess"
	a := newAuthority(t)
	addr, plain := secureRedis(t, a)
	if err := plain.Do(t.Context(), "ACL", "SETUSER", "seats", "on", ">"+password, "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	if err := plain.ConfigSet(t.Context(), "requirepass", password).Err(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	login := func(user, password string) *ledger {
		rdb := admission.NewClient(admission.ClientConfig{
			Addr: addr, Username: user, Password: password, TLS: &tls.Config{RootCAs: a.pool}, Pool: 2,
		})
		t.Cleanup(func() { _ = rdb.Close() })
		return gateOn(t, rdb, admission.Options{Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	}
	for _, user := range []string{"seats", ""} { // "": a password without users
		if err := login(user, password).Open(t.Context()); !errors.Is(err, booking.ErrLedgerUnknown) {
			t.Errorf("user %q: got %v, want to be let in", user, err)
		}
	}
	refused := login("seats", wrong)
	_, err := refused.Admit(t.Context(), request(1, "N1"), suffix(), false)
	if err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("wrong password: got %v, want the server's refusal", err)
	}
	// Watch complains of what it met on its first look.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := refused.Watch(ctx); err != nil || !strings.Contains(said.String(), "WRONGPASS") {
		t.Errorf("Watch: got %v and %q, want nil and the server's refusal in the log", err, said.String())
	}
	for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%+v", err), said.String()} {
		if strings.Contains(text, wrong) || strings.Contains(text, password) {
			t.Errorf("a password in %q", text)
		}
	}
}

// Guards DialerRetries 1, and the dialer's own end: an address where nothing
// answers the handshake costs one call at most three dials, and its time at most.
func TestDial_BlackholeIsNoStorm(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	var open []net.Conn
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			open = append(open, c)
		}
	})
	t.Cleanup(func() {
		ln.Close()
		work.Wait()
		for _, c := range open {
			c.Close()
		}
	})
	// go-redis stops dialing after as many failures as the pool has places.
	rdb := admission.NewClient(admission.ClientConfig{Addr: ln.Addr().String(), TLS: &tls.Config{ServerName: "nobody"}, Pool: 16})
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLedger(t, rdb, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := l.Admit(ctx, request(1, "N1"), suffix(), false); err == nil {
		t.Error("admitted by nobody")
	}
	if took := time.Since(began); took > 800*time.Millisecond {
		t.Errorf("a call of 300ms took %s", took)
	}
	before := dials.Load()
	if before != 1 {
		t.Errorf("dials of a call of 300ms: got %d, want one", before)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	if _, _, err := l.Row(ctx, code(1)); err == nil || ctx.Err() != nil {
		t.Errorf("a long call: got %v, context %v, want a dial's error within it", err, ctx.Err())
	}
	if n := dials.Load() - before; n != 3 {
		t.Errorf("dials of a long call: got %d, want its three tries", n)
	}
}

// Guards PipelinePoolSize -1: with a second pool for pipelines there would be up
// to ten connections more.
func TestPool_SizeMeansWhatItSays(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	const size, calls = 4, 16
	rdb := admission.NewClient(admission.ClientConfig{Addr: server.Addr(), Pool: size})
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLedger(t, rdb, 1) // no replica: every call holds its connection 200 ms
	plain := redis.NewClient(&redis.Options{Addr: server.Addr(), PoolSize: 1})
	t.Cleanup(func() { plain.Close() })
	var work sync.WaitGroup
	for i := range calls {
		work.Go(func() {
			switch i % 3 {
			case 0:
				_ = l.Probe(t.Context())
			case 1:
				_, _ = l.Admit(t.Context(), request(1, "N1"), suffix(), true)
			case 2: // whoever else has the client
				_, _ = rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Do(t.Context(), "WAIT", 1, 200).Err() })
			}
		})
	}
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	most := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		list, err := plain.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, strings.Count(list, " addr=")-1)
	}
	if most != size {
		t.Errorf("connections of %d concurrent calls: got up to %d, want the pool's %d", calls, most, size)
	}
}

// Guards PoolTimeout: who finds every connection busy is told soon, and not when
// its whole time is over.
func TestPool_CrowdedIsToldSoon(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(int, []string) string { return silence })
	l := single(t, s.addr, 0)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { _, _ = l.Epoch(t.Context()) })
	testenv.Eventually(t, func() error {
		if s.count("GET") == 0 {
			return errors.New("the connection is not busy yet")
		}
		return nil
	})
	began := time.Now()
	if _, err := l.Epoch(t.Context()); !errors.Is(err, redis.ErrPoolTimeout) {
		t.Errorf("got %v, want the pool's time-out", err)
	}
	if took := time.Since(began); took > 700*time.Millisecond {
		t.Errorf("told after %s", took)
	}
}

// Guards DisableIdentity, and the maintenance notifications' mode should the
// protocol ever be 3: a new connection says hello and nothing else.
func TestHandshake_IsOneRoundTrip(t *testing.T) {
	t.Parallel()
	for protocol, hello := range map[int]string{2: "*0\r\n", 3: "%0\r\n"} {
		s := newStub(t, func(int, []string) string { return "+PONG\r\n" })
		s.hello = hello
		o := *single(t, s.addr, 0).rdb.Options()
		o.Protocol = protocol
		rdb := redis.NewClient(&o)
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Errorf("protocol %d: %v", protocol, err)
		}
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
		if hello, ping := s.count("HELLO"), s.count("PING"); hello != 1 || ping != 1 || s.count("CLIENT") != 0 {
			t.Errorf("protocol %d: got %v, want one HELLO and the PING", protocol, s.seen)
		}
	}
}

// Guards ReadTimeout: an answer that WAIT holds back to its end still comes, and
// nothing is cut and sent again.
func TestReadTimeout_OutlastsWait(t *testing.T) {
	t.Parallel()
	pair := testenv.Pair(t)
	l := newLedger(t, connect(t, pair.Primary.Addr()), 1).open(t)
	row := l.mustPayable(t, 1, "N1")
	if err := pair.Replicas[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := l.rdb.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "queued", l.Queued(t.Context(), code(1), row.Attempt), booking.ErrNotAcknowledged)
	_, err := l.Admit(t.Context(), request(2, "N1"), suffix(), false)
	wantErr(t, "admit", err, booking.ErrNotAcknowledged)
	stats, err := l.rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	// Queued is new to the server, so it came by EVALSHA and then by EVAL; admit
	// came by EVALSHA, its undo by EVAL.
	for _, want := range []string{"cmdstat_wait:calls=3,", "cmdstat_evalsha:calls=2,", "cmdstat_eval:calls=2,"} {
		if !strings.Contains(stats, want) {
			t.Errorf("no %q in\n%s", want, stats)
		}
	}
	if err := pair.Replicas[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	l.check(t)
}

// Guards the lifetimes: connections that a change in DNS left behind end by
// themselves, and a pool filled in one second does not end in one.
func TestPool_LifetimesAreBoundedAndSpread(t *testing.T) {
	t.Parallel()
	rdb := admission.NewClient(admission.ClientConfig{Addr: "127.0.0.1:1", Pool: 1})
	defer rdb.Close()
	o := rdb.Options()
	if o.ConnMaxIdleTime <= 0 || o.ConnMaxIdleTime > o.ConnMaxLifetime || o.ConnMaxLifetime > 15*time.Minute {
		t.Errorf("idle for %s, alive for %s: want idle within alive, within 15 minutes", o.ConnMaxIdleTime, o.ConnMaxLifetime)
	}
	if o.ConnMaxLifetimeJitter < time.Minute || o.ConnMaxLifetimeJitter >= o.ConnMaxLifetime {
		t.Errorf("jitter: got %s of %s, want minutes", o.ConnMaxLifetimeJitter, o.ConnMaxLifetime)
	}
}

func TestLearnReplicas_CountsThoseOnlineInEitherDialect(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{"Redis": "", "Valkey": ",type=replica"} {
		info := "role:master\r\nconnected_slaves:4\r\n"
		for i, state := range []string{"online,offset=9,lag=0", "online,offset=9,lag=1", "wait_bgsave,offset=0,lag=0", "online,offset=3,lag=12"} {
			info += fmt.Sprintf("slave%d:ip=127.0.0.1,port=6380,state=%s%s\r\n", i, state, end)
		}
		var asked atomic.Value
		s := newStub(t, func(_ int, args []string) string {
			switch strings.ToUpper(args[0]) {
			case "INFO":
				return fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
			case "WAIT":
				asked.Store(args[1])
				return ":2\r\n"
			}
			return word("switched")
		})
		l := single(t, s.addr, admission.AcksAuto)
		if err := l.LearnReplicas(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.Open(t.Context()); err != nil || asked.Load() != "2" {
			t.Errorf("%s: got %v after asking %v to acknowledge, want the two that keep up", name, err, asked.Load())
		}
	}
}

// The local profile's in-process server is watched without a complaint.
func TestWatch_InProcessServerIsNoTrouble(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	l := gateOn(t, connect(t, testenv.Mini(t)), admission.Options{Log: slog.New(slog.NewTextHandler(&said, nil))})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := l.Watch(ctx); err != nil || said.Len() > 0 {
		t.Errorf("got %v and %q, want nil and nothing said", err, said.String())
	}
}
