package app_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mockgateway"
)

// front stands before the gateway: it counts the calls for a token, and can refuse
// a token as what stands before the real one does.
type front struct {
	next http.Handler

	mu      sync.Mutex
	grants  int             // asked for
	atOnce  int             // being answered now
	most    int             // that were being answered at once
	shown   string          // the token of the last call that carried one
	refused map[string]bool // tokens
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "/token/") {
		f.count(+1)
		defer f.count(-1)
	} else if token := r.Header.Get("Authorization"); token != "" {
		f.mu.Lock()
		f.shown = token
		refused := f.refused[token]
		f.mu.Unlock()
		if refused {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"message":"The incoming token has expired"}`)
			return
		}
	}
	f.next.ServeHTTP(w, r)
}

func (f *front) count(d int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grants += max(d, 0)
	f.atOnce += d
	f.most = max(f.most, f.atOnce)
}

// refuse has the token that was shown last answered with 401 from now on.
func (f *front) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused[f.shown] = true
}

// forgive has every token go through again.
func (f *front) forgive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.refused)
}

// asked is nil once so many tokens were asked for.
func (f *front) asked(want int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.grants < want {
		return fmt.Errorf("%d calls for a token, want %d", f.grants, want)
	}
	return nil
}

// wantGrants wants so many calls for a token so far, one at a time.
func (f *front) wantGrants(t *testing.T, when string, want int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.grants != want || f.most > 1 {
		t.Errorf("%s: got %d calls for a token, %d at once, want %d and one at a time", when, f.grants, f.most, want)
	}
}

// snsHost is the only host that a certificate may come from.
const snsHost = "sns.ap-southeast-1.amazonaws.com"

// certificateHost is the network as the webhook sees it: the certificates of one
// host, and a wall around it. It is a transport.
type certificateHost struct {
	mu      sync.Mutex
	files   map[string][]byte // by address
	moved   map[string]string // address to address
	asked   int               // of the host
	foreign []string          // addresses of other hosts that were asked for
}

func newCertificateHost(t *testing.T, mock *mockgateway.Gateway) *certificateHost {
	t.Helper()
	c := &certificateHost{files: map[string][]byte{}, moved: map[string]string{}}
	chain, err := mock.CertificatePEM()
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := pem.Decode(chain)
	c.keep(leaf.Bytes, chain)
	return c
}

// keep puts a certificate there, under the name that SNS would give it.
func (c *certificateHost) keep(leaf, file []byte) (address string) {
	sum := sha256.Sum256(leaf)
	address = "https://" + snsHost + "/SimpleNotificationService-" + hex.EncodeToString(sum[:16]) + ".pem"
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[address] = file
	return address
}

func (c *certificateHost) move(from, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved[from] = to
}

// RoundTrip answers for the host, and lets nothing else out.
func (c *certificateHost) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.URL.Scheme != "https" || r.URL.Host != snsHost {
		c.foreign = append(c.foreign, r.URL.String())
		return nil, errors.New("the test lets nothing out")
	}
	c.asked++
	answer := func(status int, body []byte) *http.Response {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}
	}
	if to, ok := c.moved[r.URL.String()]; ok {
		moved := answer(http.StatusFound, nil)
		moved.Header.Set("Location", to)
		return moved, nil
	}
	if file, ok := c.files[r.URL.String()]; ok {
		return answer(http.StatusOK, file), nil
	}
	return answer(http.StatusNotFound, nil), nil
}

// wantNothingForeign wants that no host but the certificates' was asked, and that
// one not more often than given.
func (c *certificateHost) wantNothingForeign(t *testing.T, asked int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.foreign) > 0 {
		t.Errorf("requests to foreign hosts: got %q, want none", c.foreign)
	}
	if c.asked > asked {
		t.Errorf("requests for certificates: got %d, want %d at most", c.asked, asked)
	}
}

// stamp signs messages of the topic as SNS does, such as the gateway is not known
// to send. Its certificate is trusted as it is.
type stamp struct {
	key     *rsa.PrivateKey
	address string
	sent    time.Time
	n       int
}

func newStamp(t *testing.T, b *till) *stamp {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := b.clock.Now()
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"}, DNSNames: []string{"sns.amazonaws.com"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	b.roots.AddCert(cert) // before anything is delivered: a pool is not safe for concurrent use
	file := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &stamp{key: key, address: b.certs.keep(der, file), sent: now}
}

// signed completes a message and signs it; with SubscribeURL it is a confirmation.
func (s *stamp) signed(t *testing.T, m letter) []byte {
	t.Helper()
	s.n++
	m = m.with("Type", "Notification").with("MessageId", fmt.Sprintf("9d8c7b6a-0000-4000-8000-%012d", s.n)).
		with("TopicArn", mockgateway.DefaultTopic).with("Timestamp", s.sent.UTC().Format("2006-01-02T15:04:05.000Z"))
	names := []string{"Message", "MessageId", "Timestamp", "TopicArn", "Type"}
	if _, asks := m["SubscribeURL"]; asks {
		m["Type"], m["Token"] = "SubscriptionConfirmation", "2336412f37fb687f"
		names = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "%s\n%s\n", name, m[name])
	}
	sum := sha256.Sum256([]byte(text.String()))
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return m.with("SignatureVersion", "2").with("SigningCertURL", s.address).
		with("Signature", base64.StdEncoding.EncodeToString(signature)).body(t)
}

// letter is a message of SNS, member by member.
type letter map[string]string

func opened(t *testing.T, body []byte) letter {
	t.Helper()
	var l letter
	if err := json.Unmarshal(body, &l); err != nil {
		t.Fatalf("notification %s: %v", body, err)
	}
	return l
}

func (l letter) with(name, value string) letter {
	c := letter{name: value}
	for k, v := range l {
		if k != name {
			c[k] = v
		}
	}
	return c
}

func (l letter) body(t *testing.T) []byte {
	t.Helper()
	body, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
