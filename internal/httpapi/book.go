package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/booking"
	"holdfast/internal/obs"
)

// maxBody is the same number as at the edge.
const maxBody = 8 << 10

const (
	mediaJSON = "application/json"
	mediaForm = "application/x-www-form-urlencoded"
)

// form is the body of POST /book. A pointer tells "not there" from "empty".
type form struct {
	Code    *string `json:"code"`
	Email   *string `json:"email"`
	Level   *string `json:"level"`
	Find    bool    `json:"find"`    // a seat that is there, instead of taking one; needs no level
	Website string  `json:"website"` // hidden; people leave it empty
}

// held is the body of a 202.
type held struct {
	PaymentURL  string    `json:"payment_url"`
	PaymentID   string    `json:"payment_id"`
	BookingURL  string    `json:"booking_url"`
	ExpiresAt   time.Time `json:"expires_at"`
	SecondsLeft int       `json:"seconds_left"`
	Level       string    `json:"level"`
}

// admitted is the outcome of a request that has a seat.
const admitted = "admitted"

func (s *Server) book(w http.ResponseWriter, r *http.Request) error {
	started := time.Now()
	if s.Entrance != nil {
		leave, ok := s.Entrance.Enter()
		if !ok {
			return fmt.Errorf("more to do than this process can: %w", booking.ErrTryAgain)
		}
		defer leave()
	}
	in, err := readForm(w, r)
	if err != nil {
		return err
	}
	if in.Website != "" {
		return s.honeypot(w, r, in)
	}
	if in.Find {
		return s.find(r, in)
	}
	req, err := s.request(in, r.Header)
	if err != nil {
		return err
	}
	ev := obs.EventFrom(r.Context())
	code := req.Code // captured alone: the whole request would be moved to the heap
	ev.Level, ev.Candidate = req.Level, func() string { return booking.CandidateHash(code) }
	if s.draining.Load() {
		return fmt.Errorf("draining: %w", booking.ErrTryAgain)
	}
	req.RequestID = ev.RequestID
	h, err := s.Booker.Book(r.Context(), req)
	ev.Attempt = h.Attempt
	if err != nil {
		ev.Keep = h.Attempt != ""
		return err
	}
	ev.Outcome = admitted
	s.decoy.learn(h, time.Since(started))
	return s.accept(w, r, held{
		PaymentURL: h.PaymentURL, PaymentID: h.PaymentID, BookingURL: h.BookingURL,
		ExpiresAt: h.ExpiresAt, SecondsLeft: h.SecondsLeft, Level: h.Level,
	})
}

// find answers where the candidate's seat is, and takes none.
func (s *Server) find(r *http.Request, in form) error {
	if in.Code == nil || in.Email == nil {
		return fmt.Errorf("code or email is missing: %w", booking.ErrInvalidRequest)
	}
	code, email, err := s.who(in)
	if err != nil {
		return err
	}
	obs.EventFrom(r.Context()).Candidate = func() string { return booking.CandidateHash(code) }
	err = s.Finder.Find(r.Context(), code, email)
	if errors.Is(err, booking.ErrNotFound) {
		return fmt.Errorf("%w: %w", errNoSeat, err)
	}
	return err
}

// errNoSeat tells somebody who looks for their seat from somebody who is lost.
var errNoSeat = errors.New("the candidate has no seat")

// who reads code and e-mail, which are there.
func (s *Server) who(in form) (code, email string, err error) {
	if code, err = s.Codes.Normalize(*in.Code); err != nil {
		return "", "", err
	}
	email, err = booking.NormalizeEmail(*in.Email)
	return code, email, err
}

func (s *Server) accept(w http.ResponseWriter, r *http.Request, h held) error {
	if isForm(r) {
		w.Header().Set("Cache-Control", "no-store")
		http.Redirect(w, r, h.PaymentURL, http.StatusSeeOther)
		return nil
	}
	return reply(w, http.StatusAccepted, h)
}

// request checks the shape and normalises.
func (s *Server) request(in form, header http.Header) (booking.Request, error) {
	if in.Code == nil || in.Email == nil || in.Level == nil {
		return booking.Request{}, fmt.Errorf("code, email or level is missing: %w", booking.ErrInvalidRequest)
	}
	key, err := idempotencyKey(header)
	if err != nil {
		return booking.Request{}, err
	}
	code, email, err := s.who(in)
	if err != nil {
		return booking.Request{}, err
	}
	if !isLevelID(*in.Level) {
		return booking.Request{}, booking.ErrInvalidLevel
	}
	return booking.Request{Code: code, Email: email, Level: *in.Level, Key: key}, nil
}

// isLevelID tells what a level's id can be; whether there is such a level the
// ledger says, since it alone knows the sale as it runs.
func isLevelID(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 16
}

func idempotencyKey(h http.Header) (string, error) {
	values := h.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	ok := len(values) == 1 && len(key) >= 1 && len(key) <= 128
	for i := 0; ok && i < len(key); i++ {
		ok = key[i] > ' ' && key[i] < 0x7f
	}
	if !ok {
		return "", fmt.Errorf("Idempotency-Key: want one value of 1 to 128 visible ASCII characters: %w", booking.ErrInvalidRequest)
	}
	return key, nil
}

func mediaType(r *http.Request) string {
	if v := r.Header["Content-Type"]; len(v) == 1 && v[0] == mediaJSON {
		return mediaJSON // nearly always, and much cheaper than parsing it
	}
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// isForm tells a browser's plain form from a program.
func isForm(r *http.Request) bool { return r.Method == http.MethodPost && mediaType(r) == mediaForm }

func readForm(w http.ResponseWriter, r *http.Request) (form, error) {
	media := mediaType(r)
	if media != mediaJSON && media != mediaForm {
		return form{}, booking.ErrUnsupportedMediaType
	}
	body, err := readBody(w, r)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return form{}, booking.ErrBodyTooLarge
	case err != nil:
		return form{}, fmt.Errorf("read body: %w: %w", booking.ErrInvalidRequest, unaddressed(err))
	case media == mediaForm:
		return parseForm(string(body))
	}
	var in form
	if err := json.Unmarshal(body, &in, json.RejectUnknownMembers(true)); err != nil {
		return form{}, fmt.Errorf("body: %w: %s", booking.ErrInvalidRequest, fault(err))
	}
	return in, nil
}

// fault says where a body is not as it should be and nothing of what stands there:
// the decoder's own words quote it.
func fault(err error) string {
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not one JSON object, at byte %d", syntax.ByteOffset)
	case errors.As(err, &meaning):
		return fmt.Sprintf("not the members that are asked for, at byte %d", meaning.ByteOffset)
	}
	return "it cannot be read"
}

// readBody reads at most maxBody, into no more room than a body whose length is known
// needs.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength < 0 || r.ContentLength > maxBody {
		return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

// parseForm holds a browser's form to the rules of the JSON body: known fields
// only, each once.
func parseForm(body string) (form, error) {
	values, err := url.ParseQuery(body)
	if err != nil {
		return form{}, fmt.Errorf("form cannot be read: %w", booking.ErrInvalidRequest)
	}
	var in form
	for field, v := range values {
		if len(v) != 1 {
			return form{}, fmt.Errorf("form field given %d times: %w", len(v), booking.ErrInvalidRequest)
		}
		switch field {
		case "code":
			in.Code = &v[0]
		case "email":
			in.Email = &v[0]
		case "level":
			in.Level = &v[0]
		case "website":
			in.Website = v[0]
		case "find":
			in.Find = v[0] == "1"
		default:
			return form{}, fmt.Errorf("unknown form field: %w", booking.ErrInvalidRequest)
		}
	}
	return in, nil
}

// decoy remembers what the last real answer looked like, so that a bot's answer
// looks the same.
type decoy struct {
	last atomic.Pointer[lesson]
}

type lesson struct {
	held booking.Held
	took time.Duration
	// levels are all that a real answer has named.
	levels []string
}

func (d *decoy) learn(h booking.Held, took time.Duration) {
	for {
		last := d.last.Load()
		next := &lesson{held: h, took: took}
		if last != nil {
			next.levels = last.levels
		}
		if !slices.Contains(next.levels, h.Level) {
			next.levels = append(slices.Clip(next.levels), h.Level)
		}
		if d.last.CompareAndSwap(last, next) {
			return
		}
	}
}

// decoyLimit is the longest that a bot's connection is worth.
const decoyLimit = 2 * time.Second

// honeypot answers a bot like a real candidate, in shape and within the usual
// time. It touches nothing; its links lead to an unknown booking. It is counted
// and not logged.
func (s *Server) honeypot(w http.ResponseWriter, r *http.Request, in form) error {
	s.metrics.honeypot.Inc()
	obs.EventFrom(r.Context()).Outcome = unlogged
	now := time.Now()
	h := held{Level: "N1", PaymentID: scramble("TR0011mqN0nOK0000000000000", gatewayPrefix), SecondsLeft: int(booking.DefaultHold/time.Second) - 1}
	hold, took := booking.DefaultHold, 80*time.Millisecond
	attempt := booking.AttemptID(booking.NewEpoch(now), booking.NewAttemptSuffix(now))
	// Sealed like a real one, for an attempt that never was: it is unknown.
	code := "~~~~~~~~~"
	if in.Code != nil {
		if c, err := s.Codes.Normalize(*in.Code); err == nil {
			code = c
		}
	}
	site := strings.TrimSuffix(s.ResultURL, "/result")
	h.BookingURL = site + "/booking/" + s.Sealer.Seal(code, attempt)
	h.PaymentURL = site + "/payment/" + h.PaymentID
	l := s.decoy.last.Load()
	if l != nil {
		h.PaymentID = scramble(l.held.PaymentID, gatewayPrefix)
		h.PaymentURL = l.paymentURL(h.PaymentID)
		h.BookingURL = l.held.BookingURL[:strings.LastIndexByte(l.held.BookingURL, '/')+1] + s.Sealer.Seal(code, attempt)
		h.SecondsLeft, h.Level, took = l.held.SecondsLeft, l.held.Level, l.took
		hold = time.Duration(l.held.SecondsLeft+1) * time.Second
	}
	if in.Level != nil && l.knows(*in.Level) {
		h.Level = *in.Level
	}
	h.ExpiresAt = now.Add(hold).UTC().Truncate(time.Millisecond)
	wait := min(took, decoyLimit)
	wait += time.Duration(rand.Int64N(int64(wait)/4 + 1))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	<-ctx.Done()
	return s.accept(w, r, h)
}

// knows tells whether a level may stand in a bot's answer: to name back one that
// does not exist, which a real request is refused for, would give the trap away.
// Before the first real answer only the shape is known.
func (l *lesson) knows(level string) bool {
	if l == nil {
		return isLevelID(level)
	}
	return slices.Contains(l.levels, level)
}

// secretLike is what names somebody's payment in a link, or opens it.
var secretLike = regexp.MustCompile(`[A-Za-z0-9]{16,}`)

// paymentURL is the last real link for another payment id, with nothing left in
// it that opens a real payment.
func (l *lesson) paymentURL(id string) string {
	link := strings.ReplaceAll(l.held.PaymentURL, l.held.PaymentID, id)
	_, rest, found := strings.Cut(link, "://")
	if end := strings.IndexAny(rest, "/?"); found && end >= 0 {
		path := rest[end:]
		link = strings.TrimSuffix(link, path) + secretLike.ReplaceAllStringFunc(path, func(run string) string {
			if run == id {
				return run
			}
			return scramble(run, 0)
		})
	}
	if link == l.held.PaymentURL {
		return "/payment/" + id
	}
	return link
}

// gatewayPrefix is how much of a payment id is the same in all of them.
const gatewayPrefix = 6

// scramble keeps the shape of an id and its first characters: letters stay
// letters, digits digits.
func scramble(id string, keep int) string {
	b := []byte(id)
	for i, c := range b {
		switch {
		case i < keep:
		case '0' <= c && c <= '9':
			b[i] = byte('0' + rand.IntN(10))
		case 'a' <= c && c <= 'z':
			b[i] = byte('a' + rand.IntN(26))
		case 'A' <= c && c <= 'Z':
			b[i] = byte('A' + rand.IntN(26))
		}
	}
	return string(b)
}
