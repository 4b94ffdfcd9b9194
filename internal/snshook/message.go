package snshook

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha1" // what signature version 1 is made of
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
)

// The types of message that SNS sends.
const (
	TypeNotification = "Notification"
	TypeSubscription = "SubscriptionConfirmation"
	TypeUnsubscribe  = "UnsubscribeConfirmation"
)

// Message is what SNS signed, and nothing that it did not. Printed or logged it
// shows its type and id only: Text holds the payer's number, Token is a key to the
// subscription.
type Message struct {
	Type     string
	ID       string
	TopicARN string
	Text     string
	// Subject is nil when the notification has none; an empty one is signed.
	Subject *string
	SentAt  time.Time
	// Token and SubscribeURL are set in confirmations. The URL has been held against
	// topic and host.
	Token        string
	SubscribeURL string
}

// String names the message.
func (m Message) String() string { return "SNS " + m.Type + " " + m.ID }

// GoString names the message.
func (m Message) GoString() string { return m.String() }

// LogValue names the message.
func (m Message) LogValue() slog.Value { return slog.StringValue(m.String()) }

// envelope is a message with what proves it.
type envelope struct {
	Message
	sentAt    string // as it was signed
	version   string
	signature string
	certURL   string
}

// parse reads a delivery and checks its shape. Names are compared exactly. Every
// signed value but the text is one line, so that a text to sign can be cut into
// values in one way only.
func parse(body []byte) (envelope, error) {
	all, err := members(body)
	if err != nil {
		return envelope{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var e envelope
	for _, f := range []struct {
		name string
		to   *string
		need bool
	}{
		{"Type", &e.Type, true},
		{"MessageId", &e.ID, true},
		{"TopicArn", &e.TopicARN, true},
		{"Message", &e.Text, true},
		{"Timestamp", &e.sentAt, true},
		{"SignatureVersion", &e.version, false},
		{"Signature", &e.signature, false},
		{"SigningCertURL", &e.certURL, false},
		{"Token", &e.Token, false},
		{"SubscribeURL", &e.SubscribeURL, false},
	} {
		s, err := member(all, f.name)
		if err != nil {
			return envelope{}, err
		}
		if s == nil {
			if f.need {
				return envelope{}, fmt.Errorf("%s is missing: %w", f.name, ErrMalformed)
			}
			continue
		}
		*f.to = *s
		if f.to != &e.Text && strings.ContainsFunc(*s, control) {
			return envelope{}, fmt.Errorf("%s is more than one line: %w", f.name, ErrMalformed)
		}
	}
	if e.Subject, err = member(all, "Subject"); err != nil {
		return envelope{}, err
	}
	if e.Subject != nil && strings.ContainsFunc(*e.Subject, control) {
		return envelope{}, fmt.Errorf("subject is more than one line: %w", ErrMalformed)
	}
	switch e.Type {
	case TypeNotification:
		e.Token, e.SubscribeURL = "", "" // not signed in this type
	case TypeSubscription, TypeUnsubscribe:
		e.Subject = nil
		if e.Token == "" || e.SubscribeURL == "" {
			return envelope{}, fmt.Errorf("token or SubscribeURL is missing: %w", ErrMalformed)
		}
	default:
		return envelope{}, fmt.Errorf("type is none of a message's: %w", ErrMalformed)
	}
	if e.ID == "" || len(e.ID) > 64 || strings.Trim(e.ID, letters+digits+"-") != "" {
		return envelope{}, fmt.Errorf("MessageId: %w", ErrMalformed)
	}
	if e.SentAt, err = time.Parse(time.RFC3339, e.sentAt); err != nil {
		return envelope{}, fmt.Errorf("timestamp: %w", ErrMalformed)
	}
	e.SentAt = e.SentAt.UTC()
	return e, nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 }

var errRepeated = errors.New("a member is repeated")

// members takes a JSON object apart. A member that is repeated is an error: two
// readers could take different ones.
func members(object []byte) (map[string]json.RawMessage, error) {
	if !json.Valid(object) {
		return nil, errors.New("not JSON")
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	all := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errors.New("not a JSON object")
		}
		if _, again := all[name]; again {
			return nil, errRepeated
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errors.New("not a JSON object")
		}
		all[name] = value
	}
	return all, nil
}

// member is a text of an envelope; nil when it is not there, or null.
func member(all map[string]json.RawMessage, name string) (*string, error) {
	raw, ok := all[name]
	if !ok {
		return nil, nil
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("%s is not a text: %w", name, ErrMalformed)
	}
	return s, nil
}

// textToSign is what SNS signs: for each field in order, its name and its value,
// each followed by a line feed.
func (e envelope) textToSign() string {
	var b strings.Builder
	put := func(name, value string) {
		b.WriteString(name)
		b.WriteByte('\n')
		b.WriteString(value)
		b.WriteByte('\n')
	}
	put("Message", e.Text)
	put("MessageId", e.ID)
	if e.Type == TypeNotification {
		if e.Subject != nil {
			put("Subject", *e.Subject)
		}
		put("Timestamp", e.sentAt)
	} else {
		put("SubscribeURL", e.SubscribeURL)
		put("Timestamp", e.sentAt)
		put("Token", e.Token)
	}
	put("TopicArn", e.TopicARN)
	put("Type", e.Type)
	return b.String()
}

// decodeSignature wants what an RSA key of 2,048 to 8,192 bits can have made.
func decodeSignature(text string) ([]byte, error) {
	if text == "" {
		return nil, fmt.Errorf("not signed: %w", ErrForged) // raw message delivery, too
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(sig) < 256 || len(sig) > 1024 {
		return nil, fmt.Errorf("signature is not one of RSA: %w", ErrForged)
	}
	return sig, nil
}

func checkSignature(key *rsa.PublicKey, version, text string, signature []byte) error {
	var hash crypto.Hash
	var sum []byte
	switch version {
	case "1":
		s := sha1.Sum([]byte(text))
		hash, sum = crypto.SHA1, s[:]
	case "2":
		s := sha256.Sum256([]byte(text))
		hash, sum = crypto.SHA256, s[:]
	default:
		return fmt.Errorf("signature version: %w", ErrForged)
	}
	if rsa.VerifyPKCS1v15(key, hash, sum, signature) != nil {
		return fmt.Errorf("signature: %w", ErrForged)
	}
	return nil
}

// checkSubscribeURL holds a confirmation's link against topic and host. Nothing
// here opens it; an operator may.
func (v *Verifier) checkSubscribeURL(m Message) error {
	u, err := url.Parse(m.SubscribeURL)
	if err != nil || u.Scheme != "https" || u.Opaque != "" || u.User != nil || u.Fragment != "" ||
		(u.Host != v.host && u.Host != v.host+":443") || (u.Path != "" && u.Path != "/") {
		return fmt.Errorf("SubscribeURL does not lead to %s: %w", v.host, ErrForged)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("SubscribeURL: %w", ErrForged)
	}
	for name, want := range map[string]string{"Action": "ConfirmSubscription", "TopicArn": v.topic, "Token": m.Token} {
		if got := q[name]; len(got) != 1 || got[0] != want {
			return fmt.Errorf("SubscribeURL asks for something else than this subscription: %w", ErrForged)
		}
	}
	return nil
}
