package snshook_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/snshook"
)

// FuzzVerify cuts a piece out of a genuine delivery and puts another in. What is
// then accepted must say the same, word for word, in all that is signed: only
// spacing and unsigned members may have changed. The keys are made anew in each
// process, so an input describes the change and not the delivery.
func FuzzVerify(f *testing.F) {
	genuine := []delivery{
		note(), note().with("Subject", "S"), confirmation("SubscriptionConfirmation"), confirmation("UnsubscribeConfirmation"),
		note().with("Message", "first\nMessageId\nmine\nSubject\nlast"),
	}
	var bodies [][]byte
	var messages []snshook.Message
	v := verifier(f, &network{})
	for _, d := range genuine {
		for _, version := range []string{"1", "2"} {
			body := d.signed(version).body()
			m, err := verify(f, v, body)
			if err != nil {
				f.Fatalf("genuine delivery: got %v, want nil", err)
			}
			bodies, messages = append(bodies, body), append(messages, m)
		}
	}
	for kind := range bodies {
		f.Add(uint8(kind), uint16(0), uint16(0), []byte{})
		f.Add(uint8(kind), uint16(0), uint16(0), []byte(" "))
		f.Add(uint8(kind), uint16(1), uint16(0), []byte(`"X":1,`))
		f.Add(uint8(kind), uint16(1), uint16(0), []byte(`"Type":"Notification",`))
		f.Add(uint8(kind), uint16(40), uint16(1), []byte(`\u0061`))
		f.Add(uint8(kind), uint16(40), uint16(1), []byte("\xff"))
		f.Add(uint8(kind), uint16(300), uint16(20), []byte("https://evil.example/x.pem"))
		f.Add(uint8(kind), uint16(0), uint16(65535), []byte(payment))
		f.Add(uint8(kind), uint16(0), uint16(65535), []byte(`{"Type":"Notification","Message":{}}`))
	}
	f.Fuzz(func(t *testing.T, kind uint8, at, cut uint16, put []byte) {
		i := int(kind) % len(bodies)
		from := min(int(at), len(bodies[i]))
		to := min(from+int(cut), len(bodies[i]))
		body := append(append(append([]byte{}, bodies[i][:from]...), put...), bodies[i][to:]...)
		n := &network{}
		got, err := verify(t, verifier(t, n), body)
		n.wantOnlyOurHost(t)
		if err != nil {
			if !errors.Is(err, snshook.ErrMalformed) && !errors.Is(err, snshook.ErrForged) && !errors.Is(err, snshook.ErrUnavailable) {
				t.Errorf("changed delivery: got %v, want one of the three errors", err)
			}
			return
		}
		if diff := cmp.Diff(messages[i], got); diff != "" {
			t.Errorf("accepted a message that was not signed (-signed +accepted):\n%s\n%s", diff, body)
		}
	})
}
