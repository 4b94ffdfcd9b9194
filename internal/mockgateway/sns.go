package mockgateway

import (
	"bytes"
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
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
)

// signer signs as the notification service does. Its certificate comes from an
// authority of its own, whose key is thrown away.
type signer struct {
	key      *rsa.PrivateKey
	leaf, ca []byte // DER
}

// signerJSON is a signer in the journal, so that a verifier that has learnt the
// authority need not learn another one after a restart.
type signerJSON struct {
	Key  []byte `json:"key"` // PKCS #8
	Leaf []byte `json:"leaf"`
	CA   []byte `json:"ca"`
}

// snsName is whom the certificate is for, in the name and as a DNS name.
const snsName = "sns.amazonaws.com"

func newSigner(now time.Time) (*signer, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make notification signer: %w", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make notification signer: %w", err)
	}
	// Wide, for clocks that tests move.
	from, to := now.AddDate(-1, 0, 0), now.AddDate(10, 0, 0)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Mock gateway notification CA"},
		NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make notification signer: %w", err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: snsName}, DNSNames: []string{snsName},
		NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make notification signer: %w", err)
	}
	return &signer{key: key, leaf: leafDER, ca: caDER}, nil
}

func parseSigner(b []byte) (*signer, error) {
	var in signerJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(in.Key)
	if err != nil {
		return nil, err
	}
	rsaKey, ok := key.(*rsa.PrivateKey)
	if !ok {
		return nil, errors.New("key is no RSA key")
	}
	return &signer{key: rsaKey, leaf: in.Leaf, ca: in.CA}, nil
}

func (s *signer) stored() (signerJSON, error) {
	key, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return signerJSON{}, fmt.Errorf("store notification signer: %w", err)
	}
	return signerJSON{Key: key, Leaf: s.leaf, CA: s.ca}, nil
}

// signature returns the signer, made when it is first needed: making its key
// takes longer than most tests.
func (g *Gateway) signature() (*signer, error) {
	g.signing.Lock()
	defer g.signing.Unlock()
	if g.signer != nil {
		return g.signer, nil
	}
	s, err := newSigner(g.opts.Now())
	if err != nil {
		return nil, err
	}
	stored, err := s.stored()
	if err != nil {
		return nil, err
	}
	if err := g.journal.add(kindSigner, "signer", stored).wait(); err != nil {
		return nil, err
	}
	g.signer = s
	return s, nil
}

// CertificatePEM is what SigningCertURL leads to: the signing certificate,
// followed by its authority's.
func (g *Gateway) CertificatePEM() ([]byte, error) {
	s, err := g.signature()
	if err != nil {
		return nil, err
	}
	return s.chainPEM(), nil
}

// CAPEM is the certificate of the authority that a verifier has to trust.
func (g *Gateway) CAPEM() ([]byte, error) {
	s, err := g.signature()
	if err != nil {
		return nil, err
	}
	return s.caPEM(), nil
}

func (s *signer) caPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca})
}

func (s *signer) chainPEM() []byte {
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.leaf})
	return bytes.Join([][]byte{leaf, s.caPEM()}, nil)
}

// file is the certificate's name in SigningCertURL.
func (s *signer) file() string {
	sum := sha256.Sum256(s.leaf)
	return "SimpleNotificationService-" + hex.EncodeToString(sum[:16]) + ".pem"
}

// The types of messages.
const (
	typeNotification = "Notification"
	typeSubscription = "SubscriptionConfirmation"
)

// envelope is a message as it is posted.
type envelope struct {
	Type             string
	MessageID        string `json:"MessageId"`
	Token            string `json:",omitempty"`
	TopicARN         string `json:"TopicArn"`
	Subject          string `json:",omitempty"`
	Message          string
	SubscribeURL     string `json:",omitempty"`
	Timestamp        string
	SignatureVersion string
	Signature        string
	SigningCertURL   string
	UnsubscribeURL   string `json:",omitempty"`
}

// signed is the text that the signature is made over.
func (e envelope) signed() []byte {
	fields := []string{"Message", e.Message, "MessageId", e.MessageID}
	if e.Type == typeNotification {
		if e.Subject != "" {
			fields = append(fields, "Subject", e.Subject)
		}
		fields = append(fields, "Timestamp", e.Timestamp)
	} else {
		fields = append(fields, "SubscribeURL", e.SubscribeURL, "Timestamp", e.Timestamp, "Token", e.Token)
	}
	fields = append(fields, "TopicArn", e.TopicARN, "Type", e.Type)
	return []byte(strings.Join(fields, "\n") + "\n")
}

// sign completes an envelope. Version 1 is SHA-1, which the real topic uses.
func (s *signer) sign(e *envelope, version string) error {
	e.SignatureVersion = version
	e.SigningCertURL = snsURL(e.TopicARN) + s.file()
	var (
		hash crypto.Hash
		sum  []byte
	)
	switch text := e.signed(); version {
	case "1":
		h := sha1.Sum(text)
		hash, sum = crypto.SHA1, h[:]
	case "2":
		h := sha256.Sum256(text)
		hash, sum = crypto.SHA256, h[:]
	default:
		return fmt.Errorf("sign notification: signature version %q is unknown", version)
	}
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.key, hash, sum)
	if err != nil {
		return fmt.Errorf("sign notification: %w", err)
	}
	e.Signature = base64.StdEncoding.EncodeToString(signature)
	return nil
}

// snsURL is the service's address in the topic's region.
func snsURL(topicARN string) string {
	return "https://sns." + strings.Split(topicARN, ":")[3] + ".amazonaws.com/" // check has seen its form
}

// newMessageID is a random UUID.
func newMessageID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
