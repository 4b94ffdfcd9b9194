package snshook_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/snshook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic    = "arn:aws:sns:ap-southeast-1:123456789012:payments"
	host     = "sns.ap-southeast-1.amazonaws.com"
	fileName = "f3ecfb7224c7233fe7bb5f59f96de52f"
	certURL  = "https://" + host + "/SimpleNotificationService-" + fileName + ".pem"
	payer    = "8801700000001"
	token    = "2336412f37fb687f5d51e6e241d09c805a5a57b30d712f794cc5f6a988666d92"
	confirm  = "https://" + host + "/?Action=ConfirmSubscription&TopicArn=" + topic + "&Token=" + token
	payment  = `{"dateTime":"20261201100321","debitMSISDN":"` + payer + `","creditOrganizationName":"Org 01","creditShortCode":"01929918***",` +
		`"trxID":"4J420ANOXC","transactionStatus":"Completed","transactionType":"10002294","amount":"1500.00","currency":"BDT",` +
		`"transactionReference":"38a16dd0ed2f7ecb","merchantInvoiceNumber":"` + invoice + `"}`
	invoice = "38a16dd0ed2f7ecbe624b96bee240b0d1ea998b2257e34af628343da5bc480fa-1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd"
)

// noon is when these tests take place.
var noon = time.Date(2026, 12, 1, 4, 3, 21, 250_000_000, time.UTC)

// A test authority: root, intermediate and leaf of SNS, made once.
type authority struct {
	roots                    *x509.CertPool
	root, middle             *x509.Certificate
	rootKey, middleKey       *ecdsa.PrivateKey
	snsKey, otherKey         *rsa.PrivateKey
	leafPEM, middlePEM, file []byte
}

var pki = sync.OnceValue(func() *authority {
	a := &authority{roots: x509.NewCertPool()}
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	var err error
	a.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	a.middleKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	a.snsKey, err = rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	a.otherKey, err = rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	root := authorityTemplate("Test Root")
	a.root = parsed(issue(root, root, &a.rootKey.PublicKey, a.rootKey))
	a.roots.AddCert(a.root)
	a.middlePEM = issue(authorityTemplate("Test Issuer"), a.root, &a.middleKey.PublicKey, a.rootKey)
	a.middle = parsed(a.middlePEM)
	a.leafPEM = issue(leafTemplate(), a.middle, &a.snsKey.PublicKey, a.middleKey)
	a.file = slices.Concat(a.leafPEM, a.middlePEM)
	return a
})

func authorityTemplate(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: noon.AddDate(-1, 0, 0), NotAfter: noon.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
}

func leafTemplate() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "sns.amazonaws.com"}, DNSNames: []string{"sns.amazonaws.com"},
		NotBefore: noon.AddDate(0, -1, 0), NotAfter: noon.AddDate(0, 1, 0),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
}

func issue(template, parent *x509.Certificate, public, parentKey any) []byte {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, parentKey)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func parsed(text []byte) *x509.Certificate {
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		panic(err)
	}
	return cert
}

// delivery is the body of a request of SNS, member by member.
type delivery map[string]any

func (d delivery) with(name string, value any) delivery {
	c := maps.Clone(d)
	c[name] = value
	return c
}

func (d delivery) without(name string) delivery {
	c := maps.Clone(d)
	delete(c, name)
	return c
}

func (d delivery) body() []byte {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// signed signs with the test's SNS key, by the words of the SNS developer guide.
func (d delivery) signed(version string) delivery { return d.signedBy(pki().snsKey, version) }

func (d delivery) signedBy(key *rsa.PrivateKey, version string) delivery {
	names := []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	if d["Type"] == "Notification" {
		names = []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	}
	var text string
	for _, n := range names {
		if v, ok := d[n]; ok {
			text += n + "\n" + v.(string) + "\n"
		}
	}
	hash, sum := crypto.SHA256, sha256.New()
	if version == "1" {
		hash, sum = crypto.SHA1, sha1.New()
	}
	sum.Write([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, hash, sum.Sum(nil))
	if err != nil {
		panic(err)
	}
	return d.with("SignatureVersion", version).with("Signature", base64.StdEncoding.EncodeToString(signature))
}

// note is a notification that is not signed yet.
func note() delivery {
	return delivery{
		"Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", "TopicArn": topic, "Message": payment,
		"Timestamp": "2026-12-01T04:03:20.655Z", "SigningCertURL": certURL,
		"UnsubscribeURL": "https://" + host + "/?Action=Unsubscribe&SubscriptionArn=" + topic + ":1",
	}
}

// confirmation is a confirmation that is not signed yet.
func confirmation(kind string) delivery {
	return delivery{
		"Type": kind, "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b", "TopicArn": topic,
		"Message": "You have chosen to subscribe to the topic " + topic + ".\nTo confirm the subscription, visit the SubscribeURL included in this message.",
		"Token":   token, "SubscribeURL": confirm, "Timestamp": "2026-12-01T04:00:00.000Z", "SigningCertURL": certURL,
	}
}

// network is every request that leaves, answered by the test.
type network struct {
	mu     sync.Mutex
	urls   []string
	answer func(*http.Request) (*http.Response, error)
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.urls = append(n.urls, r.URL.String())
	answer := n.answer
	n.mu.Unlock()
	if answer == nil {
		return response(http.StatusOK, pki().file), nil
	}
	return answer(r)
}

func (n *network) requests() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.urls)
}

// wantOnlyOurHost is the rule: not one request but for a certificate of our host.
func (n *network) wantOnlyOurHost(tb testing.TB) {
	tb.Helper()
	for _, u := range n.requests() {
		if !strings.HasPrefix(u, "https://"+host+"/SimpleNotificationService-") {
			tb.Errorf("outbound request: got %s, want none but for a certificate of %s", u, host)
		}
	}
}

func response(status int, body []byte) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
}

func serving(file []byte) *network {
	return &network{answer: func(*http.Request) (*http.Response, error) { return response(http.StatusOK, file), nil }}
}

func verifier(tb testing.TB, n *network, set ...func(*snshook.Config)) *snshook.Verifier {
	tb.Helper()
	c := snshook.Config{TopicARN: topic, Roots: pki().roots, Fetch: snshook.NewFetch(n), Now: func() time.Time { return noon }}
	for _, f := range set {
		f(&c)
	}
	v, err := snshook.New(c)
	if err != nil {
		tb.Fatalf("New: got %v, want nil", err)
	}
	return v
}

func verify(tb testing.TB, v *snshook.Verifier, body []byte) (snshook.Message, error) {
	tb.Helper()
	return v.Verify(context.WithoutCancel(tb.Context()), body)
}
