package snshook_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/snshook"
)

func TestVerify_AcceptsWhatSNSSignedForOurTopic(t *testing.T) {
	t.Parallel()
	subject, empty := "A payment", ""
	sent := time.Date(2026, 12, 1, 4, 3, 20, 655_000_000, time.UTC)
	plain := snshook.Message{Type: "Notification", ID: "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", TopicARN: topic, Text: payment, SentAt: sent}
	withSubject, withEmpty, withText := plain, plain, plain
	withSubject.Subject, withEmpty.Subject = &subject, &empty
	withText.Text = "two\nlines, \"quotes\", é, \u2028, <&> and a tab\t"
	confirmed := snshook.Message{
		Type: "SubscriptionConfirmation", ID: "165545c9-2a5c-472c-8df2-7ff2be2b3b1b", TopicARN: topic, Text: confirmation("")["Message"].(string),
		SentAt: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC), Token: token, SubscribeURL: confirm,
	}
	unsubscribed := confirmed
	unsubscribed.Type = "UnsubscribeConfirmation"
	for name, c := range map[string]struct {
		d    delivery
		want snshook.Message
	}{
		"without subject":          {note(), plain},
		"with subject":             {note().with("Subject", subject), withSubject},
		"with an empty subject":    {note().with("Subject", ""), withEmpty},
		"any text":                 {note().with("Message", withText.Text), withText},
		"subscription":             {confirmation("SubscriptionConfirmation"), confirmed},
		"unsubscription":           {confirmation("UnsubscribeConfirmation"), unsubscribed},
		"port named":               {note().with("SigningCertURL", strings.Replace(certURL, ".com/", ".com:443/", 1)), plain},
		"unsigned members ignored": {note().with("MessageAttributes", map[string]any{"Type": map[string]any{"Type": "String"}}).with("Token", "x"), plain},
	} {
		for _, version := range []string{"1", "2"} {
			n := &network{}
			d := c.d.signed(version)
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, d.body(), " ", "\t"); err != nil {
				t.Fatal(err)
			}
			v := verifier(t, n)
			for _, body := range [][]byte{d.body(), pretty.Bytes()} {
				got, err := verify(t, v, body)
				if err != nil {
					t.Errorf("%s, version %s: got %v, want a genuine message", name, version, err)
				}
				if diff := cmp.Diff(c.want, got); err == nil && diff != "" {
					t.Errorf("%s, version %s: got another message (-want +got):\n%s", name, version, diff)
				}
			}
			if got, want := n.requests(), []string{certURL}; !slices.Equal(got, want) {
				t.Errorf("%s, version %s: got requests %q, want %q: one fetch, then the cache", name, version, got, want)
			}
		}
	}
}

func TestVerify_NullSubjectIsNone(t *testing.T) {
	t.Parallel()
	if _, err := verify(t, verifier(t, &network{}), note().signed("2").with("Subject", nil).body()); err != nil {
		t.Errorf("null subject: got %v, want it like a missing one", err)
	}
}

func TestTextToSign_IsWhatTheGuideSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		d    delivery
		want string
	}{
		"notification": {note().with("Message", "Hello\nworld").with("Token", "no"),
			"Message\nHello\nworld\nMessageId\n22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324\n" +
				"Timestamp\n2026-12-01T04:03:20.655Z\nTopicArn\n" + topic + "\nType\nNotification\n"},
		"notification with subject": {note().with("Message", "Hello").with("Subject", "S"),
			"Message\nHello\nMessageId\n22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324\nSubject\nS\n" +
				"Timestamp\n2026-12-01T04:03:20.655Z\nTopicArn\n" + topic + "\nType\nNotification\n"},
		"subscription": {confirmation("SubscriptionConfirmation").with("Message", "M").with("Subject", "no"),
			"Message\nM\nMessageId\n165545c9-2a5c-472c-8df2-7ff2be2b3b1b\nSubscribeURL\n" + confirm +
				"\nTimestamp\n2026-12-01T04:00:00.000Z\nToken\n" + token + "\nTopicArn\n" + topic + "\nType\nSubscriptionConfirmation\n"},
	} {
		if got, err := snshook.TextToSign(c.d.body()); err != nil || got != c.want {
			t.Errorf("%s: got\n%q (%v), want\n%q", name, got, err, c.want)
		}
	}
}

func TestVerify_RefusesForgeriesBeforeAnythingIsFetched(t *testing.T) {
	t.Parallel()
	at := func(url string) []byte { return note().with("SigningCertURL", url).signed("1").body() }
	link := func(url string) []byte {
		return confirmation("SubscriptionConfirmation").with("SubscribeURL", url).signed("1").body()
	}
	good := string(note().signed("1").body())
	other := strings.Replace(topic, "payments", "theirs", 1)
	file := "/SimpleNotificationService-" + fileName + ".pem"
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"another host":                   {at("https://sns.evil.example" + file), snshook.ErrForged},
		"look-alike with our host":       {at("https://" + host + ".evil.example" + file), snshook.ErrForged},
		"look-alike before our host":     {at("https://evil-" + host + file), snshook.ErrForged},
		"subdomain of our host":          {at("https://x." + host + file), snshook.ErrForged},
		"S3 host that the regex admits":  {at("https://sns.s3-us-west-2.amazonaws.com" + file), snshook.ErrForged},
		"Beanstalk host":                 {at("https://sns.elasticbeanstalk.amazonaws.com" + file), snshook.ErrForged},
		"S3 path":                        {at("https://s3.amazonaws.com/sns" + file), snshook.ErrForged},
		"another region":                 {at("https://sns.us-east-1.amazonaws.com" + file), snshook.ErrForged},
		"China's host":                   {at("https://" + host + ".cn" + file), snshook.ErrForged},
		"http":                           {at("http://" + host + file), snshook.ErrForged},
		"no scheme":                      {at("//" + host + file), snshook.ErrForged},
		"ftp":                            {at("ftp://" + host + file), snshook.ErrForged},
		"host as user":                   {at("https://" + host + "@evil.example" + file), snshook.ErrForged},
		"user":                           {at("https://evil@" + host + file), snshook.ErrForged},
		"host as user, port as password": {at("https://" + host + ":443@evil.example" + file), snshook.ErrForged},
		"port":                           {at("https://" + host + ":8443" + file), snshook.ErrForged},
		"port that begins with 443":      {at("https://" + host + ":4430" + file), snshook.ErrForged},
		"port twice":                     {at("https://" + host + ":443:443" + file), snshook.ErrForged},
		"query":                          {at("https://" + host + file + "?x=1"), snshook.ErrForged},
		"empty query":                    {at("https://" + host + file + "?"), snshook.ErrForged},
		"fragment":                       {at("https://" + host + file + "#x"), snshook.ErrForged},
		"query that ends in pem":         {at("https://" + host + "/x?" + file), snshook.ErrForged},
		"another path":                   {at("https://" + host + "/x.pem"), snshook.ErrForged},
		"path that climbs":               {at("https://" + host + "/SimpleNotificationService-/../x.pem"), snshook.ErrForged},
		"folder":                         {at("https://" + host + "/x" + file), snshook.ErrForged},
		"two slashes":                    {at("https://" + host + "/" + file), snshook.ErrForged},
		"name that is no hex":            {at("https://" + host + "/SimpleNotificationService-xyz.pem"), snshook.ErrForged},
		"empty name":                     {at("https://" + host + "/SimpleNotificationService-.pem"), snshook.ErrForged},
		"long name":                      {at("https://" + host + "/SimpleNotificationService-" + strings.Repeat("a", 65) + ".pem"), snshook.ErrForged},
		"escaped slash":                  {at("https://" + host + "%2f" + file), snshook.ErrForged},
		"backslash":                      {at("https://" + host + `\@evil.example` + file), snshook.ErrForged},
		"upper-case host":                {at("https://SNS" + host[3:] + file), snshook.ErrForged},
		"trailing dot":                   {at("https://" + host + "." + file), snshook.ErrForged},
		"space before":                   {at(" " + certURL), snshook.ErrForged},
		"line feed in host":              {at("https://" + host + "\n" + file), snshook.ErrMalformed},
		"no certificate":                 {note().without("SigningCertURL").signed("1").body(), snshook.ErrForged},
		"another topic's own signature":  {note().with("TopicArn", other).signed("2").body(), snshook.ErrForged},
		"another topic's subscription":   {confirmation("SubscriptionConfirmation").with("TopicArn", other).signed("2").body(), snshook.ErrForged},
		"our topic with a tail":          {note().with("TopicArn", topic+":1").signed("2").body(), snshook.ErrForged},
		"raw delivery":                   {[]byte(payment), snshook.ErrMalformed},
		"no signature":                   {note().with("SignatureVersion", "1").body(), snshook.ErrForged},
		"empty signature":                {note().signed("1").with("Signature", "").body(), snshook.ErrForged},
		"signature that is no base64":    {note().signed("1").with("Signature", "EXAMPLEpH+..").body(), snshook.ErrForged},
		"short signature":                {note().signed("1").with("Signature", "AAAA").body(), snshook.ErrForged},
		"version 3":                      {note().signed("1").with("SignatureVersion", "3").body(), snshook.ErrForged},
		"version 01":                     {note().signed("1").with("SignatureVersion", "01").body(), snshook.ErrForged},
		"no version":                     {note().signed("1").without("SignatureVersion").body(), snshook.ErrForged},
		"version as a number":            {note().signed("1").with("SignatureVersion", 1).body(), snshook.ErrMalformed},
		"unknown type":                   {note().with("Type", "Notifications").signed("1").body(), snshook.ErrMalformed},
		"no type":                        {note().signed("1").without("Type").body(), snshook.ErrMalformed},
		"no id":                          {note().signed("1").without("MessageId").body(), snshook.ErrMalformed},
		"id that is none":                {note().with("MessageId", "../x").signed("1").body(), snshook.ErrMalformed},
		"long id":                        {note().with("MessageId", strings.Repeat("a", 65)).signed("1").body(), snshook.ErrMalformed},
		"id of two lines":                {note().with("MessageId", "a\nb").signed("1").body(), snshook.ErrMalformed},
		"subject of two lines":           {note().with("Subject", "a\nb").signed("1").body(), snshook.ErrMalformed},
		"no time":                        {note().signed("1").without("Timestamp").body(), snshook.ErrMalformed},
		"time that is none":              {note().with("Timestamp", "yesterday").signed("1").body(), snshook.ErrMalformed},
		"no message":                     {note().signed("1").without("Message").body(), snshook.ErrMalformed},
		"message as an object":           {note().signed("1").with("Message", map[string]string{"trxID": "4J420ANOXC"}).body(), snshook.ErrMalformed},
		"null message":                   {note().signed("1").with("Message", nil).body(), snshook.ErrMalformed},
		"repeated member":                {[]byte(`{"Type":"Notification",` + good[1:]), snshook.ErrMalformed},
		"repeated unsigned member":       {[]byte(`{"UnsubscribeURL":"x",` + good[1:]), snshook.ErrMalformed},
		"member repeated by an escape":   {[]byte(`{"T\u0079pe":"Notification",` + good[1:]), snshook.ErrMalformed},
		"name in another case":           {[]byte(strings.Replace(good, `"Type"`, `"type"`, 1)), snshook.ErrMalformed},
		"invalid UTF-8":                  {[]byte(strings.Replace(good, "Completed", "Compl\xff", 1)), snshook.ErrMalformed},
		"two values":                     {[]byte(good + good), snshook.ErrMalformed},
		"a list":                         {[]byte("[" + good + "]"), snshook.ErrMalformed},
		"a text":                         {[]byte(`"x"`), snshook.ErrMalformed},
		"null":                           {[]byte("null"), snshook.ErrMalformed},
		"nothing":                        {nil, snshook.ErrMalformed},
		"cut off":                        {[]byte(good[:len(good)-1]), snshook.ErrMalformed},
		"byte order mark":                {[]byte("\ufeff" + good), snshook.ErrMalformed},
		"huge":                           {bytes.Repeat([]byte(" "), 256<<10+1), snshook.ErrMalformed},
		"deep":                           {[]byte(`{"a":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`), snshook.ErrMalformed},
		"link to a link-local address":   {link("http://169.254.169.254/latest/meta-data/"), snshook.ErrForged},
		"link to another host":           {link(strings.Replace(confirm, host, "evil.example", 1)), snshook.ErrForged},
		"link over http":                 {link(strings.Replace(confirm, "https", "http", 1)), snshook.ErrForged},
		"link with a user":               {link(strings.Replace(confirm, "https://", "https://"+host+"@", 1)), snshook.ErrForged},
		"link to another port":           {link(strings.Replace(confirm, host, host+":22", 1)), snshook.ErrForged},
		"link to another path":           {link(strings.Replace(confirm, "/?", "/x?", 1)), snshook.ErrForged},
		"link for another topic":         {link(strings.Replace(confirm, topic, other, 1)), snshook.ErrForged},
		"link with another token":        {link(confirm + "0"), snshook.ErrForged},
		"link that does more":            {link(strings.Replace(confirm, "ConfirmSubscription", "DeleteTopic", 1)), snshook.ErrForged},
		"link that says two things":      {link(confirm + "&Action=DeleteTopic"), snshook.ErrForged},
		"link that is none":              {link("://"), snshook.ErrForged},
		"subscription without a token":   {confirmation("SubscriptionConfirmation").signed("1").without("Token").body(), snshook.ErrMalformed},
		"subscription without a link":    {confirmation("SubscriptionConfirmation").signed("1").without("SubscribeURL").body(), snshook.ErrMalformed},
	} {
		n := &network{}
		v := verifier(t, n)
		_, err := verify(t, v, c.body)
		wantRefusal(t, name, err, c.want)
		if got := n.requests(); len(got) != 0 {
			t.Errorf("%s: got requests %q, want none", name, got)
		}
	}
}

// wantRefusal also holds that an error is one of the three only.
func wantRefusal(t *testing.T, name string, err, want error) {
	t.Helper()
	for _, e := range []error{snshook.ErrMalformed, snshook.ErrForged, snshook.ErrUnavailable} {
		if errors.Is(err, e) != errors.Is(want, e) {
			t.Errorf("%s: got %v, want %q only", name, err, want)
			return
		}
	}
	if err != nil && strings.Contains(err.Error(), payer) {
		t.Errorf("%s: got %v, want no error to hold the payer's number", name, err)
	}
}

func TestVerify_RefusesAnySignedValueThatChanged(t *testing.T) {
	t.Parallel()
	n := &network{}
	v := verifier(t, n)
	for _, version := range []string{"1", "2"} {
		d := note().with("Subject", "S").signed(version)
		s := confirmation("SubscriptionConfirmation").signed(version)
		for name, changed := range map[string]delivery{
			"id":                     d.with("MessageId", "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf325"),
			"text":                   d.with("Message", strings.Replace(payment, "1500.00", "1.00", 1)),
			"subject":                d.with("Subject", "s"),
			"subject gone":           d.without("Subject"),
			"subject added":          note().signed(version).with("Subject", ""),
			"time":                   d.with("Timestamp", "2026-12-01T04:03:20.656Z"),
			"time, the same instant": d.with("Timestamp", "2026-12-01T10:03:20.655+06:00"),
			"the other version":      d.with("SignatureVersion", map[string]string{"1": "2", "2": "1"}[version]),
			"another key":            note().signedBy(pki().otherKey, version),
			"another message's":      d.with("Signature", s["Signature"]),
			"subscription's type":    s.with("Type", "UnsubscribeConfirmation"),
			"subscription's text":    s.with("Message", "x"),
			"token and link":         s.with("Token", "0").with("SubscribeURL", strings.Replace(confirm, token, "0", 1)),
		} {
			_, err := verify(t, v, changed.body())
			wantRefusal(t, name+", version "+version, err, snshook.ErrForged)
		}
	}
	n.wantOnlyOurHost(t)
}

// A value of more than one line could move into its neighbour: the text below is
// signed as a whole, and cut again as if its end were an id and a subject.
func TestVerify_SignedTextCannotBeCutInAnotherWay(t *testing.T) {
	t.Parallel()
	genuine := note().with("Message", "first\nMessageId\nmine\nSubject\nlast").signed("2")
	moved := genuine.with("Message", "first").with("MessageId", "mine").with("Subject", "last\nMessageId\n"+genuine["MessageId"].(string))
	v := verifier(t, &network{})
	if _, err := verify(t, v, genuine.body()); err != nil {
		t.Errorf("as it was signed: got %v, want a genuine message", err)
	}
	_, err := verify(t, v, moved.body())
	wantRefusal(t, "cut in another way", err, snshook.ErrMalformed)
}

func TestVerify_VersionsAreThoseConfigured(t *testing.T) {
	t.Parallel()
	v := verifier(t, &network{}, func(c *snshook.Config) { c.SignatureVersions = []string{"2"} })
	if _, err := verify(t, v, note().signed("2").body()); err != nil {
		t.Errorf("version 2: got %v, want a genuine message", err)
	}
	_, err := verify(t, v, note().signed("1").body())
	wantRefusal(t, "version 1", err, snshook.ErrForged)
}

func TestVerify_BodyAtTheLimitIsRead(t *testing.T) {
	t.Parallel()
	body := note().signed("2").body()
	v := verifier(t, &network{}, func(c *snshook.Config) { c.MaxBody = len(body) })
	if _, err := verify(t, v, body); err != nil {
		t.Errorf("at the limit: got %v, want a genuine message", err)
	}
	_, err := verify(t, v, append(body, ' '))
	wantRefusal(t, "one byte over", err, snshook.ErrMalformed)
}

func TestVerify_RefusesCertificatesThatProveNothingAndKeepsNone(t *testing.T) {
	t.Parallel()
	a := pki()
	leaf := func(set func(*x509.Certificate)) []byte {
		l := leafTemplate()
		set(l)
		return slices.Concat(issue(l, a.middle, &a.snsKey.PublicKey, a.middleKey), a.middlePEM)
	}
	expired := authorityTemplate("Test Issuer")
	expired.NotAfter = noon.Add(-time.Hour)
	notAuthority := authorityTemplate("Test Issuer")
	notAuthority.IsCA, notAuthority.KeyUsage = false, x509.KeyUsageDigitalSignature
	below := leafTemplate()
	smallKey, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	self := leafTemplate()
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"expired leaf":             {leaf(func(l *x509.Certificate) { l.NotAfter = noon.Add(-time.Second) }), snshook.ErrForged},
		"leaf of the future":       {leaf(func(l *x509.Certificate) { l.NotBefore = noon.Add(time.Second) }), snshook.ErrForged},
		"leaf for another name":    {leaf(func(l *x509.Certificate) { l.DNSNames, l.Subject.CommonName = []string{"evil.example"}, "evil.example" }), snshook.ErrForged},
		"common name alone":        {leaf(func(l *x509.Certificate) { l.DNSNames = nil }), snshook.ErrForged},
		"another common name":      {leaf(func(l *x509.Certificate) { l.Subject.CommonName = "evil.example" }), snshook.ErrForged},
		"wildcard":                 {leaf(func(l *x509.Certificate) { l.DNSNames = []string{"*.amazonaws.com"} }), snshook.ErrForged},
		"region's host":            {leaf(func(l *x509.Certificate) { l.DNSNames = []string{host} }), snshook.ErrForged},
		"subdomain":                {leaf(func(l *x509.Certificate) { l.DNSNames = []string{"x.sns.amazonaws.com"} }), snshook.ErrForged},
		"leaf that is a CA":        {leaf(func(l *x509.Certificate) { l.IsCA, l.KeyUsage = true, x509.KeyUsageCertSign }), snshook.ErrForged},
		"for clients only":         {leaf(func(l *x509.Certificate) { l.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), snshook.ErrForged},
		"small key":                {slices.Concat(issue(leafTemplate(), a.middle, &smallKey.PublicKey, a.middleKey), a.middlePEM), snshook.ErrForged},
		"key that is not RSA":      {slices.Concat(issue(leafTemplate(), a.middle, &a.rootKey.PublicKey, a.middleKey), a.middlePEM), snshook.ErrForged},
		"signed by itself":         {issue(self, self, &a.snsKey.PublicKey, a.snsKey), snshook.ErrUnavailable},
		"issuer missing":           {a.leafPEM, snshook.ErrUnavailable},
		"issuer before the leaf":   {slices.Concat(a.middlePEM, a.leafPEM), snshook.ErrForged},
		"expired issuer":           {slices.Concat(a.leafPEM, issue(expired, a.root, &a.middleKey.PublicKey, a.rootKey)), snshook.ErrForged},
		"issuer that is no CA":     {slices.Concat(a.leafPEM, issue(notAuthority, a.root, &a.middleKey.PublicKey, a.rootKey)), snshook.ErrUnavailable},
		"issued by a genuine leaf": {slices.Concat(issue(below, parsed(a.leafPEM), &a.otherKey.PublicKey, a.snsKey), a.leafPEM, a.middlePEM), snshook.ErrUnavailable},
		"no PEM":                   {[]byte("<html>maintenance</html>"), snshook.ErrUnavailable},
		"empty":                    {nil, snshook.ErrUnavailable},
		"PEM of something else":    {keyPEM, snshook.ErrUnavailable},
		"PEM of no certificate":    {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), snshook.ErrUnavailable},
		"text behind":              {slices.Concat(a.file, []byte("x")), snshook.ErrUnavailable},
		"many certificates":        {slices.Concat(a.file, bytes.Repeat(a.middlePEM, 3)), snshook.ErrUnavailable},
		"huge":                     {slices.Concat(a.file, bytes.Repeat([]byte("\n"), 64<<10)), snshook.ErrUnavailable},
	} {
		n := serving(c.file)
		v := verifier(t, n)
		// Signed by the key of the certificate where there is one: only the certificate is bad.
		for range 2 {
			_, err := verify(t, v, note().signed("2").body())
			wantRefusal(t, name, err, c.want)
		}
		if got := v.Cached(); got != 0 {
			t.Errorf("%s: got %d certificates kept, want none", name, got)
		}
		if got := len(n.requests()); got != 2 {
			t.Errorf("%s: got %d fetches, want one for each delivery", name, got)
		}
		n.wantOnlyOurHost(t)
	}
}

func TestVerify_IssuersGivenByTheOperatorCompleteTheChain(t *testing.T) {
	t.Parallel()
	pool := x509.NewCertPool()
	pool.AddCert(pki().middle)
	v := verifier(t, serving(pki().leafPEM), func(c *snshook.Config) { c.Intermediates = pool })
	if _, err := verify(t, v, note().signed("1").body()); err != nil {
		t.Errorf("leaf alone, as AWS serves it: got %v, want a genuine message", err)
	}
	v = verifier(t, serving(pki().leafPEM), func(c *snshook.Config) { c.Intermediates, c.Roots = pool, x509.NewCertPool() })
	_, err := verify(t, v, note().signed("1").body())
	wantRefusal(t, "an issuer is no root", err, snshook.ErrUnavailable)
}

// What SNS served in 2026: a leaf without its issuer.
func TestNew_KnowsTheIssuersOfAWS(t *testing.T) {
	t.Parallel()
	leaf, err := os.ReadFile("testdata/leaf.pem")
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.ReadFile("testdata/root.pem")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	at := func(when time.Time, set ...func(*snshook.Config)) error {
		return verifier(t, &network{}, append(set, func(c *snshook.Config) {
			c.Roots, c.Now = roots, func() time.Time { return when }
		})...).Vouch(leaf)
	}
	spring := time.Date(2026, 3, 6, 20, 0, 0, 0, time.UTC)
	if err := at(spring); err != nil {
		t.Errorf("AWS's certificate: got %v, want it to pass", err)
	}
	wantRefusal(t, "without the issuers", at(spring, func(c *snshook.Config) { c.Intermediates = x509.NewCertPool() }), snshook.ErrUnavailable)
	wantRefusal(t, "after its end", at(noon), snshook.ErrForged)
}

func TestVerify_CertificateIsFetchedAgainWhenItNoLongerCounts(t *testing.T) {
	t.Parallel()
	n := &network{}
	now := noon
	v := verifier(t, n, func(c *snshook.Config) { c.Now = func() time.Time { return now } })
	body := note().signed("1").body()
	step := func(what string, wantErr error, fetches int) {
		t.Helper()
		_, err := verify(t, v, body)
		wantRefusal(t, what, err, wantErr)
		if got := len(n.requests()); got != fetches {
			t.Errorf("%s: got %d fetches so far, want %d", what, got, fetches)
		}
	}
	step("first", nil, 1)
	now = noon.Add(24 * time.Hour)
	step("a day later", nil, 1)
	now = now.Add(time.Second)
	step("more than a day later: AWS may have withdrawn it", nil, 2)
	now = noon.AddDate(0, 1, 0).Add(time.Second)
	step("after its end", snshook.ErrForged, 3)
	now = noon.AddDate(0, -2, 0)
	step("before its beginning", snshook.ErrForged, 4)
}

func TestVerify_KeepsFewCertificates(t *testing.T) {
	t.Parallel()
	n := &network{}
	v := verifier(t, n)
	for i := range 50 {
		url := strings.Replace(certURL, fileName, fmt.Sprintf("%032x", i), 1)
		if _, err := verify(t, v, note().with("SigningCertURL", url).signed("2").body()); err != nil {
			t.Fatalf("certificate %d: got %v, want a genuine message", i, err)
		}
	}
	if got := v.Cached(); got != 8 {
		t.Errorf("after 50 certificates: got %d kept, want 8", got)
	}
}

func TestVerify_ManyDeliveriesMakeOneFetch(t *testing.T) {
	t.Parallel()
	const deliveries = 1000
	body := note().signed("2").body()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		n := &network{answer: func(*http.Request) (*http.Response, error) {
			<-release
			return response(http.StatusOK, pki().file), nil
		}}
		v := verifier(t, n)
		var wg sync.WaitGroup
		var genuine atomic.Int32
		for range deliveries {
			wg.Go(func() {
				if _, err := verify(t, v, body); err == nil {
					genuine.Add(1)
				}
			})
		}
		synctest.Wait() // all of them wait
		close(release)
		wg.Wait()
		if got := genuine.Load(); got != deliveries {
			t.Errorf("deliveries proved: got %d, want %d", got, deliveries)
		}
		if got := n.requests(); len(got) != 1 {
			t.Errorf("fetches: got %d, want 1", len(got))
		}
	})
}

func TestVerify_StrangersCannotMakeItFetchWithoutBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		n := &network{answer: func(*http.Request) (*http.Response, error) {
			<-release
			return response(http.StatusNotFound, nil), nil
		}}
		v := verifier(t, n)
		var wg sync.WaitGroup
		for i := range 100 {
			url := strings.Replace(certURL, fileName, fmt.Sprintf("%032x", i), 1)
			wg.Go(func() { _, _ = verify(t, v, note().with("SigningCertURL", url).signed("2").body()) })
		}
		synctest.Wait()
		if got := len(n.requests()); got != 4 {
			t.Errorf("fetches under way: got %d, want 4", got)
		}
		close(release)
		wg.Wait()
		n.wantOnlyOurHost(t)
	})
}

func TestVerify_CallerThatLeavesDoesNotEndTheFetchOfOthers(t *testing.T) {
	t.Parallel()
	body := note().signed("2").body()
	synctest.Test(t, func(t *testing.T) {
		n := &network{answer: func(r *http.Request) (*http.Response, error) {
			select {
			case <-time.After(2 * time.Second):
				return response(http.StatusOK, pki().file), nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}}
		v := verifier(t, n)
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := v.Verify(hasty, body)
			wantRefusal(t, "caller that leaves", err, snshook.ErrUnavailable)
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := verify(t, v, body); err != nil {
				t.Errorf("caller that waits: got %v, want a genuine message", err)
			}
		})
		wg.Wait()
		if got := len(n.requests()); got != 1 {
			t.Errorf("fetches: got %d, want 1", got)
		}
	})
}

func TestVerify_FetchThatPanicsIsNoCertificate(t *testing.T) {
	t.Parallel()
	v := verifier(t, nil, func(c *snshook.Config) {
		c.Fetch = func(context.Context, string) ([]byte, error) { panic("x") }
	})
	_, err := verify(t, v, note().signed("2").body())
	wantRefusal(t, "panic", err, snshook.ErrUnavailable)
}

func TestFetch_TakesNothingButTheFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(*http.Request) (*http.Response, error)
		want   error
	}{
		"redirect": {func(*http.Request) (*http.Response, error) {
			r := response(http.StatusFound, pki().file)
			r.Header.Set("Location", "https://evil.example/x.pem")
			return r, nil
		}, snshook.ErrUnavailable},
		"redirect to itself": {func(r *http.Request) (*http.Response, error) {
			a := response(http.StatusPermanentRedirect, nil)
			a.Header.Set("Location", r.URL.String())
			return a, nil
		}, snshook.ErrUnavailable},
		"not there": {func(*http.Request) (*http.Response, error) { return response(http.StatusNotFound, pki().file), nil }, snshook.ErrForged},
		"gone":      {func(*http.Request) (*http.Response, error) { return response(http.StatusGone, nil), nil }, snshook.ErrForged},
		"host in trouble": {func(*http.Request) (*http.Response, error) {
			return response(http.StatusInternalServerError, pki().file), nil
		}, snshook.ErrUnavailable},
		"throttled":     {func(*http.Request) (*http.Response, error) { return response(http.StatusTooManyRequests, nil), nil }, snshook.ErrUnavailable},
		"no connection": {func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }, snshook.ErrUnavailable},
		"endless answer": {func(*http.Request) (*http.Response, error) {
			return response(http.StatusOK, make([]byte, 64<<10+1)), nil
		}, snshook.ErrUnavailable},
	} {
		n := &network{answer: c.answer}
		_, err := verify(t, verifier(t, n), note().signed("2").body())
		wantRefusal(t, name, err, c.want)
		if got, want := n.requests(), []string{certURL}; !slices.Equal(got, want) {
			t.Errorf("%s: got requests %q, want %q", name, got, want)
		}
	}
}

func TestFetch_OwnTransportBelievesOnlyCertificatesOfTheSystem(t *testing.T) {
	t.Parallel()
	var served atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	if _, err := snshook.NewFetch(nil)(t.Context(), srv.URL); err == nil || served.Load() != 0 {
		t.Errorf("server of an unknown authority: got %v and %d requests sent, want its certificate refused first", err, served.Load())
	}
}

func TestNew_RefusesWhatNamesNoTopic(t *testing.T) {
	t.Parallel()
	for _, arn := range []string{
		"", "payments", "arn:aws:sqs:ap-southeast-1:123456789012:payments", "arn:aws:sns::123456789012:payments",
		"arn:aws:sns:ap-southeast-1:1234:payments", "arn:aws:sns:ap-southeast-1:12345678901x:payments", "arn:aws:sns:ap-southeast-1:123456789012:",
		"arn:aws:sns:ap-southeast-1:123456789012:payments:0b71e34e", "arn:aws:sns:evil.example/:123456789012:payments",
		"arn:aws:sns:AP-SOUTHEAST-1:123456789012:payments", "arn:aws:sns:a.b:123456789012:payments", "arn:aws-cn:sns:cn-north-1:123456789012:payments",
		"arn:aws:sns:ap-southeast-1:123456789012:pay ments", "arn:aws:sns:ap-southeast-1@x:123456789012:payments",
	} {
		if _, err := snshook.New(snshook.Config{TopicARN: arn}); err == nil {
			t.Errorf("topic %q: got nil, want an error", arn)
		}
	}
	for name, c := range map[string]snshook.Config{
		"unknown version": {TopicARN: topic, SignatureVersions: []string{"1", "3"}},
		"no version":      {TopicARN: topic, SignatureVersions: []string{}},
		"negative body":   {TopicARN: topic, MaxBody: -1},
	} {
		if _, err := snshook.New(c); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
	if _, err := snshook.New(snshook.Config{TopicARN: topic}); err != nil {
		t.Errorf("topic alone: got %v, want nil", err)
	}
}

func TestMessage_PrintsNeitherTextNorToken(t *testing.T) {
	t.Parallel()
	for _, d := range []delivery{note(), confirmation("SubscriptionConfirmation")} {
		m, err := verify(t, verifier(t, &network{}), d.signed("2").body())
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		slog.New(slog.NewJSONHandler(&b, nil)).InfoContext(t.Context(), "m", "message", m)
		slog.New(slog.NewTextHandler(&b, nil)).InfoContext(t.Context(), "m", "message", m)
		fmt.Fprintf(&b, "%v %+v %#v %s", m, m, m, m)
		for _, secret := range []string{payer, token, "Completed"} {
			if strings.Contains(b.String(), secret) {
				t.Errorf("message printed: got %q in %s, want type and id only", secret, b.String())
			}
		}
	}
}
