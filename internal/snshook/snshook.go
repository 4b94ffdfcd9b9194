// Package snshook takes the payment gateway's notifications: HTTP deliveries of
// AWS SNS. It proves that one was signed by SNS for our topic and reads the
// payment in it; its handler stores it before it answers. A notification is a hint
// to go and ask the gateway. Nothing here decides about a seat.
//
// What makes a message genuine is fixed by the topic's ARN alone: the topic must
// be ours (anybody may subscribe our address to a topic of their own, and its
// messages are perfectly signed), the certificate must lie on that region's SNS
// host, under the name that SNS gives its certificates, and no other address is
// ever fetched. The certificate must be for sns.amazonaws.com: a DNS name spelled
// exactly so, no wildcard, and a common name, where there is one, that says the
// same. It must be a leaf, valid now, and chain to a root. AWS serves the leaf
// without its issuer, so the issuers are in this package; see Config.Intermediates.
// Other partitions, and regions that sign under a name of their own, are not
// supported.
//
// A subscription is confirmed by an operator, not by this program. It happens once
// in a deployment's life, and a person then knows who asked for it; the program
// keeps its rule that not one request leaves but to the certificate's host, and
// nobody can make it send any by what they write into a message. A genuine
// confirmation whose link leads to our topic on that host is logged with the link,
// and handed to Deps.Confirm; the operator opens it.
//
// Fail mode: closed. What is not proved is refused for good (malformed 400, not
// genuine 403); what a repeat may cure (no certificate now, not stored, not on the
// list of looks) is 503, and SNS delivers it again. Without this room bookings go
// on: the payer's return and the reconciler reach the same end.
//
// Clock: the one that is passed in judges certificates and dates notifications.
// How old a message is decides nothing, since a late one is checked with the
// gateway like any other.
//
// Privacy: a message holds the payer's number. It is in no log line, no error, no
// answer and nothing that is stored.
package snshook

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Why a message is refused. An error of Verify is exactly one of these.
var (
	// ErrMalformed: not a message of SNS at all. A repeat cannot cure it.
	ErrMalformed = errors.New("not an SNS message")
	// ErrForged: another topic, another certificate host, or a signature or
	// certificate that proves nothing. A repeat cannot cure it.
	ErrForged = errors.New("not a genuine message of our topic")
	// ErrUnavailable: the certificate could not be had, or is not known to be
	// trusted. The same message may be proved later.
	ErrUnavailable = errors.New("signing certificate cannot be checked now")
)

// Config says what a genuine message is.
type Config struct {
	// TopicARN is our topic, such as arn:aws:sns:ap-southeast-1:123456789012:payments.
	// Region and certificate host follow from it.
	TopicARN string
	// Roots are trusted to vouch for a signing certificate. Nil: the system's.
	Roots *x509.CertPool
	// Intermediates help from the leaf, which is all that AWS serves, to a root; they
	// are not trusted by themselves. Nil: Amazon's four public issuers, good until
	// August 2030. When AWS takes a new one, every message ends with ErrUnavailable
	// and an error that names the issuer: give it here.
	Intermediates *x509.CertPool
	// Fetch gets the file at an address; see NewFetch, which nil stands for. It must
	// follow no redirect, and say ErrNoCertificate when the host answers that there is
	// no such file. It gets 5 s.
	Fetch func(ctx context.Context, url string) ([]byte, error)
	// Now judges certificates. Nil: time.Now.
	Now func() time.Time
	// SignatureVersions are those accepted: "1" is SHA-1, "2" SHA-256, both RSA PKCS
	// #1 v1.5. Nil: both. The version is not signed, so when the topic is known to use
	// 2 leave out 1.
	SignatureVersions []string
	// MaxBody is the longest message in bytes. Default 256 KiB, which is SNS's own.
	MaxBody int
}

// Verifier proves messages of one topic. Safe for concurrent use.
type Verifier struct {
	topic        string
	host         string
	versions     []string
	maxBody      int
	now          func() time.Time
	certificates *certificates
}

// New checks the configuration; nothing is fetched before the first message.
func New(c Config) (*Verifier, error) {
	region, err := regionOf(c.TopicARN)
	if err != nil {
		return nil, err
	}
	if c.SignatureVersions == nil {
		c.SignatureVersions = []string{"1", "2"}
	}
	if len(c.SignatureVersions) == 0 {
		return nil, errors.New("notifications: no signature version is accepted")
	}
	for _, v := range c.SignatureVersions {
		if v != "1" && v != "2" {
			return nil, fmt.Errorf("notifications: signature version %q is unknown", v)
		}
	}
	if c.MaxBody < 0 {
		return nil, fmt.Errorf("notifications: longest body of %d bytes is negative", c.MaxBody)
	}
	if c.MaxBody == 0 {
		c.MaxBody = 256 << 10
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	host := "sns." + region + ".amazonaws.com"
	certs, err := newCertificates(host, c)
	if err != nil {
		return nil, err
	}
	return &Verifier{
		topic: c.TopicARN, host: host, versions: slices.Clone(c.SignatureVersions),
		maxBody: c.MaxBody, now: c.Now, certificates: certs,
	}, nil
}

// regionOf takes the region out of a topic's ARN. It becomes part of a host name:
// only letters, digits and hyphens can come out.
func regionOf(arn string) (string, error) {
	p := strings.Split(arn, ":")
	if len(p) != 6 || p[0] != "arn" || p[1] != "aws" || p[2] != "sns" ||
		len(p[4]) != 12 || strings.Trim(p[4], digits) != "" ||
		p[5] == "" || len(p[5]) > 256 || strings.Trim(p[5], letters+digits+"-_.") != "" {
		return "", fmt.Errorf("notifications: topic %.300q is not arn:aws:sns:REGION:ACCOUNT:NAME", arn)
	}
	if region := p[3]; region != "" && len(region) <= 32 && strings.Trim(region, lower+digits+"-") == "" {
		return region, nil
	}
	return "", fmt.Errorf("notifications: region of topic %.300q is not a region's name", arn)
}

const (
	lower   = "abcdefghijklmnopqrstuvwxyz"
	letters = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

// Verify proves that body is a message of SNS to our topic and returns it. All
// that can be checked without the certificate is checked first: nothing is fetched
// for a message that is not addressed to us. It ends within ctx; its error is
// ErrMalformed, ErrForged or ErrUnavailable.
func (v *Verifier) Verify(ctx context.Context, body []byte) (Message, error) {
	if len(body) > v.maxBody {
		return Message{}, fmt.Errorf("%d bytes: %w", len(body), ErrMalformed)
	}
	if !utf8.Valid(body) {
		return Message{}, fmt.Errorf("not UTF-8: %w", ErrMalformed)
	}
	e, err := parse(body)
	if err != nil {
		return Message{}, err
	}
	if e.TopicARN != v.topic {
		return Message{}, fmt.Errorf("it is of another topic: %w", ErrForged) // whose name may be anything
	}
	if !slices.Contains(v.versions, e.version) {
		return Message{}, fmt.Errorf("signature version is not accepted: %w", ErrForged)
	}
	signature, err := decodeSignature(e.signature)
	if err != nil {
		return Message{}, err
	}
	if e.Type != TypeNotification {
		if err := v.checkSubscribeURL(e.Message); err != nil {
			return Message{}, err
		}
	}
	name, ok := certificateName(v.host, e.certURL)
	if !ok {
		return Message{}, fmt.Errorf("certificate is not on %s: %w", v.host, ErrForged)
	}
	key, err := v.certificates.key(ctx, name)
	if err != nil {
		return Message{}, err
	}
	if err := checkSignature(key, e.version, e.textToSign(), signature); err != nil {
		return Message{}, err
	}
	return e.Message, nil
}
