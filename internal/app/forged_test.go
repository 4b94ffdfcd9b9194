package app_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/mockgateway"
)

// walled lets nothing out by the client that a program has without making one, and
// counts who tries. It is for a test that runs alone.
func walled(t *testing.T) (tried *atomic.Int64) {
	t.Helper()
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		t.Fatalf("the default transport is a %T", http.DefaultTransport)
	}
	before := transport.DialContext
	tried = new(atomic.Int64)
	transport.CloseIdleConnections()
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		tried.Add(1)
		return nil, errors.New("the test lets nothing out")
	}
	t.Cleanup(func() { transport.DialContext = before })
	return tried
}

// Case 21: whatever a forged notification says, it is refused, nothing of it is
// kept, and it leads to no request to a foreign host. It runs alone, because it
// walls the whole process in.
func TestCase21_ForgedNotifications(t *testing.T) {
	tried := walled(t)
	b := newTill(t, 2)
	pen := newStamp(t, b)
	b.change(t, payerMoves)
	mine, other := b.holds(t, 1), b.holds(t, 2)
	b.press(t, mine, "success")
	first := b.post.letters(t, 1)[0]
	genuine := opened(t, first)
	b.change(t, func(s *mockgateway.Settings) {
		s.Notifications.TopicARN = "arn:aws:sns:ap-southeast-1:999999999999:somebody_elses"
	})
	b.press(t, other, "success")
	elsewhere := b.post.letters(t, 2)[1]
	b.change(t, func(s *mockgateway.Settings) { s.Notifications.TopicARN = "" })
	// Each of them asked for would be a certificate that proves it: the signature is
	// genuine.
	file := strings.TrimPrefix(genuine["SigningCertURL"], "https://"+snsHost)
	from := func(address string) []byte { return genuine.with("SigningCertURL", address).body(t) }
	asks := letter{"Message": "You have chosen to subscribe.", "SubscribeURL": "http://169.254.169.254/latest/meta-data/"}
	confirmed := opened(t, pen.signed(t, asks.with("SubscribeURL",
		"https://"+snsHost+"/?Action=ConfirmSubscription&TopicArn="+mockgateway.DefaultTopic+"&Token=2336412f37fb687f")))
	moved := "https://" + snsHost + "/SimpleNotificationService-00000000000000000000000000000001.pem"
	b.certs.move(moved, "https://evil.example"+file)
	const forbidden = http.StatusForbidden
	for what, c := range map[string]struct {
		body []byte
		want int
	}{
		"a look-alike host":               {from("https://" + snsHost + ".evil.example" + file), forbidden},
		"a look-alike with a hyphen":      {from("https://sns-ap-southeast-1.amazonaws.com" + file), forbidden},
		"a look-alike that ends the same": {from("https://evil-" + snsHost + file), forbidden},
		"another region's host":           {from("https://sns.eu-west-1.amazonaws.com" + file), forbidden},
		"a bucket named sns":              {from("https://sns.s3.amazonaws.com" + file), forbidden},
		"a bucket in a region":            {from("https://sns.s3-ap-southeast-1.amazonaws.com" + file), forbidden},
		"a bucket as a folder":            {from("https://s3.ap-southeast-1.amazonaws.com/sns" + file), forbidden},
		"http":                            {from("http://" + snsHost + file), forbidden},
		"the host as user-info":           {from("https://" + snsHost + "@evil.example" + file), forbidden},
		"user-info before the host":       {from("https://evil.example@" + snsHost + file), forbidden},
		"a port":                          {from("https://" + snsHost + ":8443" + file), forbidden},
		"a link-local certificate":        {from("http://169.254.169.254" + file), forbidden},
		"another folder":                  {from("https://" + snsHost + "/evil" + file), forbidden},
		"a redirect in the address":       {from("https://" + snsHost + "/redirect?to=https://evil.example" + file), forbidden},
		// Of the host itself, so a fault of its may be cured; it is not followed.
		"a redirect by the host":             {from(moved), http.StatusServiceUnavailable},
		"no such certificate":                {from("https://" + snsHost + "/SimpleNotificationService-00000000000000000000000000000002.pem"), forbidden},
		"another topic's genuine signature":  {elsewhere, forbidden},
		"it, said to be of our topic":        {opened(t, elsewhere).with("TopicArn", mockgateway.DefaultTopic).body(t), forbidden},
		"a changed id":                       {genuine.with("MessageId", "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324").body(t), forbidden},
		"a changed payment":                  {genuine.with("Message", strings.Replace(genuine["Message"], fee, "1.00", 1)).body(t), forbidden},
		"the other's payment":                {genuine.with("Message", opened(t, elsewhere)["Message"]).body(t), forbidden},
		"no signature":                       {genuine.with("Signature", "").body(t), forbidden},
		"an unknown signature version":       {genuine.with("SignatureVersion", "3").body(t), forbidden},
		"a link-local subscription, signed":  {pen.signed(t, asks), forbidden},
		"a link-local subscription, changed": {confirmed.with("SubscribeURL", asks["SubscribeURL"]).body(t), forbidden},
		"a foreign subscription, signed":     {pen.signed(t, asks.with("SubscribeURL", "https://evil.example/?Action=ConfirmSubscription")), forbidden},
	} {
		for range 2 {
			b.delivers(t, what, c.body, c.want)
		}
	}
	b.wantOpen(t, 0)
	b.wantBooks(t, "P0001 held", "P0002 held")
	asked := 2*2 + 1 // the two that do not give one, and the mock's
	b.certs.wantNothingForeign(t, asked)

	// A genuine subscription is for a person to confirm.
	b.delivers(t, "a genuine subscription", confirmed.body(t), http.StatusOK)
	if n := b.log.count("notification subscription needs an operator"); n != 1 {
		t.Errorf("lines that ask an operator: got %d, want 1", n)
	}
	b.delivers(t, "the genuine one", first, http.StatusOK)
	b.wantBooks(t, "P0001 paid", "P0002 held")
	b.certs.wantNothingForeign(t, asked+1)
	if n := tried.Load(); n > 0 {
		t.Errorf("connections by the default client: got %d, want none", n)
	}
	b.after(t, lapsed)
	b.want(t, "P0001 paid", "P0002 paid")
	b.wantMails(t, 2)
}
