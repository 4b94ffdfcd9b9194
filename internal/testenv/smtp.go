package testenv

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

//go:embed smtpd.py
var smtpd string

// SMTPOptions say how a mail server behaves; the zero value takes every mail,
// unencrypted. The steps are CONNECT, MAIL, RCPT, DATA, and DOT, which is the
// answer to a whole mail.
type SMTPOptions struct {
	// TLS is starttls, which the server then insists on, implicit, or "".
	TLS string `json:"tls"`
	// User and Password are asked of every client unless User is "".
	User     string `json:"user"`
	Password string `json:"password"`
	// NotOffered are the AUTH mechanisms, of PLAIN and LOGIN, that it lacks.
	NotOffered []string `json:"not_offered"`
	// Answers replace the usual ones, by step. A mail is kept unless DOT is
	// answered with a refusal.
	Answers map[string]string `json:"answers"`
	// Slow is how long the server takes over a step.
	Slow map[string]time.Duration `json:"slow"`
	// Dies is the step at which it ends instead of answering; at DOT the mail is
	// kept before.
	Dies string `json:"dies"`
	// ASCII has it not offer SMTPUTF8.
	ASCII bool `json:"ascii"`
}

// SMTPMail is one mail as a server took it.
type SMTPMail struct {
	Hello      string   // the name that the client gave itself
	User       string   // who logged in; "" is nobody
	Encrypted  bool     // came over TLS
	Open       int      // connections at that moment
	Sender     string   // of the envelope
	Options    []string // of the MAIL command
	Recipients []string // of the envelope
	Content    []byte   // with the dots that SMTP doubles made single again
}

// SMTPServer is a running mail server, not one of ours: aiosmtpd.
type SMTPServer struct {
	// Addr is host:port.
	Addr string
	// Roots hold the authority that signed its certificate, which is for the name
	// localhost and no other; nil without TLS.
	Roots *x509.CertPool

	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended and every line of it is read

	mu    sync.Mutex
	mails []SMTPMail
}

// SMTP starts a mail server on the loopback interface. It ends with the test,
// which shows what the server complained of if it fails. Without aiosmtpd, which
// `make setup` puts into the project's cache, the test is skipped with a message,
// or fails with CI=true.
func SMTP(t testing.TB, o SMTPOptions) *SMTPServer {
	t.Helper()
	python, packages := needPython(t, "aiosmtpd", "NOT TESTED AGAINST A REAL MAIL SERVER")
	told := struct {
		SMTPOptions
		Packages    string `json:"packages"`
		Certificate string `json:"certificate"`
		Key         string `json:"key"`
	}{SMTPOptions: o, Packages: packages}
	s := &SMTPServer{ended: make(chan struct{})}
	if o.TLS != "" {
		s.Roots, told.Certificate, told.Key = certificate(t)
	}
	if told.Answers == nil {
		told.Answers = map[string]string{}
	}
	if told.Slow == nil {
		told.Slow = map[string]time.Duration{}
	}
	settings, err := json.Marshal(told)
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.CommandContext(t.Context(), python, "-B", "-c", smtpd, string(settings))
	var complaints bytes.Buffer
	s.cmd.Stderr = &complaints
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Its end of this pipe closes with this process, and so it dies with it.
	if _, err := s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("start aiosmtpd: %v", err)
	}
	port := make(chan int, 1)
	go s.read(stdout, port)
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() && complaints.Len() > 0 {
			t.Logf("aiosmtpd said:\n%s", complaints.String())
		}
	})
	select {
	case n := <-port:
		s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
	case <-s.ended:
		t.Fatalf("aiosmtpd ended before it listened:\n%s", complaints.String())
	case <-time.After(startWithin):
		t.Fatalf("aiosmtpd did not listen within %s", startWithin)
	}
	return s
}

func (s *SMTPServer) read(stdout io.Reader, port chan<- int) {
	defer close(s.ended)
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var said struct {
			Port int
			SMTPMail
		}
		switch err := json.Unmarshal(line, &said); {
		case err != nil:
			return // Stop's caller misses what it looks for
		case said.Port != 0:
			port <- said.Port
		default:
			s.mu.Lock()
			s.mails = append(s.mails, said.SMTPMail)
			s.mu.Unlock()
		}
	}
	_ = s.cmd.Wait() // killed, or told to die
}

// Stop ends the server as a crash does and returns the mails that it kept, in
// order. Safe to repeat.
func (s *SMTPServer) Stop() []SMTPMail {
	_ = s.cmd.Process.Kill() // the only error is that it is gone already
	<-s.ended
	return s.kept()
}

// Await waits until the server has kept that many mails; they need not have
// been answered yet.
func (s *SMTPServer) Await(t testing.TB, n int) {
	t.Helper()
	Eventually(t, func() error {
		if got := len(s.kept()); got < n {
			return fmt.Errorf("%d mails kept, want %d", got, n)
		}
		return nil
	})
}

func (s *SMTPServer) kept() []SMTPMail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mails)
}

// certificate makes an authority and writes a server's certificate and key.
func certificate(t testing.TB) (roots *x509.CertPool, certFile, keyFile string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		DNSNames: []string{"localhost"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	must(err)
	leaf, err := x509.CreateCertificate(rand.Reader, server, authority, &key.PublicKey, authorityKey)
	must(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	parsed, err := x509.ParseCertificate(root)
	must(err)
	roots = x509.NewCertPool()
	roots.AddCert(parsed)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	must(os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf}), 0o600))
	must(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return roots, certFile, keyFile
}
