// Package mailer writes the confirmation of a paid booking as a MIME message, in
// English and then in Bangla: which of them the candidate reads is not known.
// It sends nothing: the adapters beside it do (outbox writes files).
//
// It fails closed: a booking that is not paid, an address that cannot be one,
// or a text that would break out of its header is ErrUnsendable, which no
// retry cures. It has no clock; the date is passed in.
package mailer

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"net/url"
	"strings"
	texttemplate "text/template"
	"time"
	"unicode"
	"unicode/utf8"

	"holdfast/internal/booking"
)

// ErrUnsendable says that no message can be made of this mail, now or later.
var ErrUnsendable = fmt.Errorf("mail cannot be written: %w", booking.ErrUnsendable)

//go:embed confirmation.txt confirmation.html
var files embed.FS

var (
	textBody = texttemplate.Must(texttemplate.ParseFS(files, "confirmation.txt"))
	htmlBody = htmltemplate.Must(htmltemplate.ParseFS(files, "confirmation.html"))
)

// maxField keeps every header line far below the 998 bytes SMTP allows.
const maxField = 400

// Sender reads the address that mails come from, with or without a display
// name: "Bookings <bookings@example.org>". The error is ErrUnsendable.
func Sender(from string) (*mail.Address, error) {
	addr, err := mail.ParseAddress(from)
	if err != nil || !oneLine(addr.Name) || !oneLine(addr.Address) {
		return nil, fmt.Errorf("sender %.80q is not an address: %w", from, ErrUnsendable)
	}
	return addr, nil
}

// Message writes the confirmation: headers, then text and HTML as
// multipart/alternative, in quoted-printable UTF-8 with CRLF line ends, each in
// both languages. A level without a name is called by its id. Times are in UTC. The
// same arguments give the same bytes, and the same attempt the same
// Message-ID whatever the date, so that a mail sent twice is recognisable. The
// error is ErrUnsendable.
func Message(m booking.Mail, from string, date time.Time) ([]byte, error) {
	sender, err := Sender(from)
	if err != nil {
		return nil, err
	}
	to, err := recipient(m.To)
	if err != nil {
		return nil, err
	}
	m.LevelName = cmp.Or(m.LevelName, m.Record.Level)
	if err := check(m); err != nil {
		return nil, err
	}

	body := struct {
		Words                                                []words
		Level, Amount, Code, Sale, Attempt, Transaction, URL string
		PaidAt                                               time.Time
	}{
		Words:       []words{english, bangla},
		Level:       m.LevelName,
		Amount:      m.Record.Amount.String() + " " + m.Record.Currency,
		PaidAt:      m.Record.PaidAt,
		Code:        m.Record.Code,
		Sale:        m.Sale,
		Attempt:     m.Record.Attempt,
		Transaction: m.Record.Transaction,
		URL:         m.BookingURL,
	}

	var out bytes.Buffer
	parts := multipart.NewWriter(&out)
	// "=_" cannot occur in quoted-printable, so no body can hold the boundary.
	if err := parts.SetBoundary("=_" + m.Record.Attempt); err != nil {
		return nil, fmt.Errorf("mail boundary: %w", errors.Join(err, ErrUnsendable))
	}
	domain := sender.Address[strings.LastIndexByte(sender.Address, '@')+1:]
	for _, h := range [][2]string{
		{"From", sender.String()},
		{"To", to.String()},
		{"Subject", english.Title + " /\r\n " + encode(bangla.Title+": "+m.LevelName)},
		{"Date", date.UTC().Format(time.RFC1123Z)},
		{"Message-ID", "<" + m.Record.Attempt + "@" + domain + ">"},
		{"Auto-Submitted", "auto-generated"},
		{"Content-Language", english.Lang + ", " + bangla.Lang},
		{"MIME-Version", "1.0"},
		{"Content-Type", "multipart/alternative;\r\n boundary=\"" + parts.Boundary() + `"`},
	} {
		_, _ = fmt.Fprintf(&out, "%s: %s\r\n", h[0], h[1])
	}
	out.WriteString("\r\n")
	err = errors.Join(
		part(parts, "text/plain", func(w io.Writer) error { return textBody.Execute(w, body) }),
		part(parts, "text/html", func(w io.Writer) error { return htmlBody.Execute(w, body) }),
		parts.Close(),
	)
	if err != nil {
		return nil, fmt.Errorf("mail body: %w", errors.Join(err, ErrUnsendable))
	}
	return out.Bytes(), nil
}

func part(parts *multipart.Writer, contentType string, write func(io.Writer) error) error {
	w, err := parts.CreatePart(textproto.MIMEHeader{
		"Content-Type":              {contentType + "; charset=utf-8"},
		"Content-Transfer-Encoding": {"quoted-printable"},
	})
	if err != nil {
		return err
	}
	q := quotedprintable.NewWriter(w)
	return errors.Join(write(q), q.Close())
}

// recipient accepts an address only if what goes into the header reads back
// as that address.
func recipient(to string) (*mail.Address, error) {
	email, err := booking.NormalizeEmail(to)
	if err != nil {
		return nil, fmt.Errorf("recipient is not an address: %w", ErrUnsendable)
	}
	addr := &mail.Address{Address: email}
	if back, err := mail.ParseAddress(addr.String()); err != nil || back.Address != email {
		return nil, fmt.Errorf("recipient is not an address: %w", ErrUnsendable)
	}
	return addr, nil
}

func check(m booking.Mail) error {
	u, err := url.Parse(m.BookingURL)
	switch {
	case m.Record.State != booking.StatePaid || m.Record.PaidAt.IsZero():
		return fmt.Errorf("booking is not paid: %w", ErrUnsendable)
	case booking.AttemptEpoch(m.Record.Attempt) == "":
		return fmt.Errorf("attempt %.80q is not one of ours: %w", m.Record.Attempt, ErrUnsendable)
	case m.Record.Amount <= 0 || m.Record.Currency == "":
		return fmt.Errorf("amount or currency is missing: %w", ErrUnsendable)
	case m.LevelName == "":
		return fmt.Errorf("level is missing: %w", ErrUnsendable)
	case err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "":
		return fmt.Errorf("booking URL is not a web address: %w", ErrUnsendable)
	}
	for name, s := range map[string]string{
		"level's name": m.LevelName, "sale": m.Sale, "currency": m.Record.Currency,
		"code": m.Record.Code, "transaction": m.Record.Transaction,
	} {
		if !oneLine(s) {
			return fmt.Errorf("%s is not one short line of text: %w", name, ErrUnsendable)
		}
	}
	return nil
}

// oneLine keeps line breaks, and with them header injection, out. The joiners
// that Indic scripts are written with may stay.
func oneLine(s string) bool {
	return len(s) <= maxField && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsGraphic(r) && r != '\u200c' && r != '\u200d'
	})
}

// encode writes a header text as RFC 2047 words, one a line, in base64: Bangla
// is three times as long in the other encoding.
func encode(s string) string {
	return strings.ReplaceAll(mime.BEncoding.Encode("utf-8", s), "?= =?", "?=\r\n =?")
}
