// Package adminapi is the back office's way in: PUT /admin/candidates on the admin
// listener replaces the allowlist by a candidates file, the same file and by the same
// rules as `seatctl candidates load`.
//
// Fail mode: closed. Without a token in the settings the route is off; a wrong one
// reads nothing of the body. A file with one wrong line, or a connection that breaks
// before its end, changes nothing. What is not acknowledged is a 503, and may be sent
// again: the route replaces, so the same file twice is the same list. A change that
// the operator's log does not take is not made. Clock: the caller's, for the log; the
// system's, for how long a body may stand still.
package adminapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/salefile"
)

const (
	// mostBody is for the file as it is sent, compressed or not. Two million rows have
	// about 80 MiB as text; salefile bounds what unfolds from it.
	mostBody = 256 << 20
	// idleBody is how long the sender may send nothing while the rest is waited for.
	idleBody = 30 * time.Second
	// loadWithin bounds one load.
	loadWithin = 30 * time.Minute
	// logWithin is for one entry of the operator's log.
	logWithin = 5 * time.Second
)

// What the operator's log says of a change made here.
const (
	logWho  = "back office, token"
	logWhat = "candidates load"
)

// Options are what the request allows.
type Options struct {
	// WhileOpen loads though booking is open.
	WhileOpen bool
	// AllowRemovals drops more candidates than the set share, and those with a live
	// booking, who keep their seats.
	AllowRemovals bool
	// DryRun answers what would be done, and changes nothing that anybody reads.
	DryRun bool
}

// Report is what a load did, or would do.
type Report struct {
	Rows        int `json:"rows"`
	Added       int `json:"added"`
	Removed     int `json:"removed"`
	Changed     int `json:"changed"`
	Unchanged   int `json:"unchanged"`
	LiveRemoved int `json:"live_removed"`
	// LiveAttempts are the first attempts of those removed who have a live booking.
	LiveAttempts []string `json:"live_attempts,omitempty"`
	// Kept are all candidates off the list whose e-mail is kept, for their booking or for
	// late money that may still make one.
	Kept int `json:"kept"`
	// Finished: an earlier load had been cut off with its list in force, and was
	// finished first, whatever became of this one; the figures compare with its list.
	// FinishedOf is whose it was, FinishedSince since when.
	Finished      bool      `json:"finished_earlier"`
	FinishedOf    string    `json:"finished_of,omitempty"`
	FinishedSince time.Time `json:"finished_since,omitzero"`
	// Applied: the list is in force, acknowledged; beside an error, what is left of the
	// old one is not cleared away.
	Applied bool `json:"applied"`
}

// nothingChanged says of a load that was refused what it changed all the same.
func (r Report) nothingChanged() string {
	if !r.Finished {
		return "nothing was changed"
	}
	return fmt.Sprintf("an earlier load, of %s since %s, was finished; of this file nothing was changed", r.FinishedOf, r.FinishedSince.Format(time.RFC3339))
}

// Loader replaces the allowlist. Safe for concurrent use: of two loads at once one is
// refused.
type Loader interface {
	// Load takes the list once, all of it or nothing: an error of the list comes back
	// and nothing was changed, but for what the report says was finished. A *Refusal says
	// that it may not be made, and the same. After any other error it may have been made. It is never repeated here
	// and safe to repeat. The report is filled as far as it is known.
	Load(ctx context.Context, list iter.Seq2[booking.Candidate, error], o Options) (Report, error)
}

// Refusal says that a load may not be made as things are, and what to do.
type Refusal struct {
	// Slug is for programs: booking_open, load_running, load_unfinished, removals,
	// too_many_changes or no_sale.
	Slug string
	// Err says why, and that nothing was changed.
	Err error
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap gives the reason.
func (r *Refusal) Unwrap() error { return r.Err }

// Journal is the operator's log. An error means that the entry is not there, or
// nobody knows.
type Journal interface {
	AppendLog(ctx context.Context, e booking.LogEntry) error
}

// Deps are what the handler needs.
type Deps struct {
	// Token is what the caller must show; "" turns the route off.
	Token string
	// Codes is the rule for candidate codes, the one that bookings are held to.
	Codes   booking.CodeRule
	Loader  Loader
	Journal Journal
	// Now dates the log's entries; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger
	// MostBody bounds the body in bytes; 0 is 256 MiB.
	MostBody int64
}

// NewCandidates is the handler of /admin/candidates. Safe for concurrent use.
func NewCandidates(d Deps) http.Handler {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.MostBody == 0 {
		d.MostBody = mostBody
	}
	return &candidates{Deps: d, token: sha256.Sum256([]byte(d.Token))}
}

type candidates struct {
	Deps
	token [sha256.Size]byte
}

// reply is every body of this route.
type reply struct {
	Error     string `json:"error,omitempty"`
	Message   string `json:"message,omitempty"`
	RequestID string `json:"request_id"`
	DryRun    bool   `json:"dry_run"`
	*Report
	// Repeated rows equalled an earlier one.
	Repeated int `json:"repeated,omitempty"`
	// Wrong lines, and the first of them.
	Wrong  int         `json:"wrong,omitempty"`
	Errors []lineError `json:"errors,omitempty"`

	status int
	cause  error // for the log
}

type lineError struct {
	Line   int    `json:"line"`
	Reason string `json:"reason"`
}

func refuse(status int, slug, format string, args ...any) reply {
	return reply{status: status, Error: slug, Message: fmt.Sprintf(format, args...)}
}

// ServeHTTP answers one request, always in JSON.
func (h *candidates) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := h.Now()
	id := strconv.FormatUint(rand.Uint64()|1<<63, 32) // tells requests apart, no secret
	a := h.serve(w, r)
	a.RequestID = id
	head := w.Header()
	head.Set("Content-Type", "application/json; charset=utf-8")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Request-Id", id)
	switch a.status {
	case http.StatusUnauthorized:
		head.Set("WWW-Authenticate", `Bearer realm="holdfast"`)
	case http.StatusMethodNotAllowed:
		head.Set("Allow", http.MethodPut)
	case http.StatusServiceUnavailable:
		head.Set("Retry-After", strconv.Itoa(5+rand.IntN(10))) // no two come back together
	}
	w.WriteHeader(a.status)
	_ = json.NewEncoder(w).Encode(a) // the caller has left
	attrs := []slog.Attr{
		slog.String("request_id", id), slog.Int("code", a.status), slog.String("outcome", a.Error), slog.String("from", from(r)),
		slog.Bool("dry_run", a.DryRun), slog.Duration("took", h.Now().Sub(began)), slog.Int("wrong", a.Wrong),
	}
	if a.Report != nil {
		attrs = append(attrs, slog.Any("report", a.Report))
	}
	level := slog.LevelInfo
	if a.cause != nil {
		level, attrs = slog.LevelError, append(attrs, slog.Any("error", a.cause))
	}
	h.Log.LogAttrs(r.Context(), level, "allowlist by the back office", attrs...)
}

func (h *candidates) serve(w http.ResponseWriter, r *http.Request) reply {
	switch {
	case h.Token == "":
		return refuse(http.StatusNotFound, "not_found", "this route is off: HOLDFAST_ADMIN_TOKEN is not set")
	case !h.authorized(r):
		return refuse(http.StatusUnauthorized, "unauthorized", "want Authorization: Bearer and the token of HOLDFAST_ADMIN_TOKEN")
	case r.Method != http.MethodPut:
		return refuse(http.StatusMethodNotAllowed, "method_not_allowed", "want PUT with a candidates file")
	case !isFile(r.Header):
		return refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "want a candidates file as text/csv, or as application/gzip when it is compressed")
	case r.ContentLength > h.MostBody:
		return refuse(http.StatusRequestEntityTooLarge, "body_too_large", "want at most %d bytes", h.MostBody)
	}
	o, err := options(r.URL.Query())
	if err != nil {
		return refuse(http.StatusBadRequest, "invalid_request", "%v", err)
	}
	// Neither the body nor the answer is bound to the server's time-outs, which are for
	// requests of a few kilobytes. The recorder of a test has none.
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Time{})
	body := &patient{r: http.MaxBytesReader(w, r.Body, h.MostBody), rc: rc}
	ctx, cancel := context.WithTimeout(r.Context(), loadWithin)
	defer cancel()
	return h.load(ctx, body, o, from(r))
}

// authorized compares digests, so that neither a byte nor the length of the token
// shows in the time.
func (h *candidates) authorized(r *http.Request) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	shown := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(shown[:], h.token[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// isFile tells whether the body says that it is a candidates file. What it really is,
// its first bytes tell.
func isFile(head http.Header) bool {
	kind, _, err := mime.ParseMediaType(head.Get("Content-Type"))
	if err != nil {
		return false
	}
	switch strings.ToLower(head.Get("Content-Encoding")) {
	case "", "identity", "gzip":
	default:
		return false
	}
	switch kind {
	case "text/csv", "text/tab-separated-values", "text/plain", "application/csv", "application/vnd.ms-excel",
		"application/gzip", "application/x-gzip", "application/octet-stream":
		return true
	}
	return false
}

// options refuses what it does not know: a flag misspelt must not be a flag left out.
func options(query url.Values) (Options, error) {
	var o Options
	known := map[string]*bool{"while_open": &o.WhileOpen, "allow_removals": &o.AllowRemovals, "dry_run": &o.DryRun}
	for name, values := range query {
		flag, ok := known[name]
		if !ok || len(values) != 1 {
			return o, errors.New("want while_open, allow_removals and dry_run, each once at most")
		}
		on, err := strconv.ParseBool(values[0])
		if err != nil {
			return o, fmt.Errorf("%s: want true or false", name)
		}
		*flag = on
	}
	return o, nil
}

func from(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// patient gives a slow sender time again with every read.
type patient struct {
	r  io.Reader
	rc *http.ResponseController
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.rc.SetReadDeadline(time.Now().Add(idleBody)) // the network's clock is the system's
	n, err := p.r.Read(b)
	if err != nil {
		// The server goes on reading, to see whether the caller leaves, and would take a
		// deadline that passes while the load is at work for its leaving.
		_ = p.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (h *candidates) load(ctx context.Context, body io.Reader, o Options, from string) reply {
	var listErr error
	file := salefile.NewReader(body, h.Codes)
	list := func(yield func(booking.Candidate, error) bool) {
		for c, err := range file.Checked(nil) {
			listErr = err
			if !yield(c, err) {
				return
			}
		}
	}
	var report Report
	work := func() (err error) { report, err = h.Loader.Load(ctx, list, o); return err }
	outcome := func(err error) booking.LogOutcome { return ended(err, listErr, report) }
	var err error
	if o.DryRun {
		err = work()
	} else {
		err = h.logged(ctx, o, from, work, outcome, &report)
	}
	a := answer(err, listErr, report)
	a.DryRun, a.Repeated = o.DryRun, file.Repeated()
	if a.Wrong == 0 && listErr == nil && !errors.Is(err, errNotLogged) {
		a.Report = &report
	} else if report.Finished { // the figures are of part of a file
		a.Report = &Report{Finished: true, FinishedOf: report.FinishedOf, FinishedSince: report.FinishedSince}
	}
	return a
}

var (
	// errNotLogged says that nothing was changed because the log does not take it.
	errNotLogged = errors.New("the operator's log does not take it: nothing was changed")
	// errEndNotLogged says that it was made, but its end is not in the log.
	errEndNotLogged = errors.New("the list was replaced, but the operator's log does not have its end")
)

// logged makes the change between its two entries of the operator's log.
func (h *candidates) logged(ctx context.Context, o Options, from string, work func() error, outcome func(error) booking.LogOutcome, report *Report) error {
	now := h.Now()
	before, err := json.Marshal(map[string]bool{"while_open": o.WhileOpen, "allow_removals": o.AllowRemovals})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotLogged, err)
	}
	entry := booking.LogEntry{
		Version: booking.LogEntryVersion, ID: booking.NewLogID(now), At: now.UTC(), Who: logWho, From: from,
		What: logWhat, Subject: "allowlist", Before: before, Outcome: booking.LogBegun,
	}
	write := func(ctx context.Context, e booking.LogEntry) error {
		ctx, cancel := context.WithTimeout(ctx, logWithin)
		defer cancel()
		return h.Journal.AppendLog(ctx, e)
	}
	if err := write(ctx, entry); err != nil {
		return fmt.Errorf("%w: %w", errNotLogged, err)
	}
	did := work()
	after, err := json.Marshal(report)
	if err == nil {
		// It has ended, whoever waits for it still.
		err = write(context.WithoutCancel(ctx), entry.End(h.Now().UTC(), outcome(did), after))
	}
	if err != nil && did == nil {
		return fmt.Errorf("%w (change %s): %w", errEndNotLogged, entry.ID, err)
	}
	if err != nil {
		h.Log.ErrorContext(ctx, "the operator's log does not have the end of a change", "change", entry.ID, "error", err)
	}
	return did
}

// ended is the log's word for how a load ended. A list that broke off, or is wrong,
// has changed nothing, unless an earlier load was finished first.
func ended(err, listErr error, report Report) booking.LogOutcome {
	var refusal *Refusal
	switch {
	case err == nil:
		return booking.LogDone
	case listErr != nil, errors.As(err, &refusal):
		if report.Finished {
			return booking.LogFailed
		}
		return booking.LogRefused
	case report.Applied:
		return booking.LogFailed
	}
	return booking.LogUnknown
}

// answer is the HTTP of how a load ended.
func answer(err, listErr error, report Report) reply {
	var refusal *Refusal
	var wrong *salefile.FileError
	var tooMany *http.MaxBytesError
	nothing := report.nothingChanged()
	switch {
	case err == nil:
		return reply{status: http.StatusOK}
	case errors.As(listErr, &tooMany):
		return refuse(http.StatusRequestEntityTooLarge, "body_too_large", "want at most %d bytes: %s", tooMany.Limit, nothing)
	case errors.Is(listErr, salefile.ErrTooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "body_too_large", "%v: %s", salefile.ErrTooLarge, nothing)
	case errors.Is(listErr, os.ErrDeadlineExceeded):
		return refuse(http.StatusRequestTimeout, "body_too_slow", "nothing came for %s: %s", idleBody, nothing)
	case errors.As(listErr, &wrong):
		a := refuse(http.StatusBadRequest, "file_wrong", "%d lines are wrong: %s", wrong.Wrong, nothing)
		a.Wrong = wrong.Wrong
		for _, line := range wrong.Told {
			a.Errors = append(a.Errors, lineError{Line: line.Line, Reason: line.Err.Error()})
		}
		return a
	case listErr != nil:
		return refuse(http.StatusBadRequest, "file_wrong", "%v: %s", listErr, nothing)
	case errors.As(err, &refusal):
		return refuse(http.StatusConflict, refusal.Slug, "%v (here: ?while_open=true and ?allow_removals=true)", refusal)
	}
	a := refuse(http.StatusServiceUnavailable, "try_again", "it is not known that the list was replaced: send the same file again")
	switch {
	case errors.Is(err, errNotLogged):
		a.Message = "the operator's log does not take it: nothing was changed"
	case errors.Is(err, errEndNotLogged):
		a.Message = "the list was replaced, but the operator's log does not have its end: send the same file again"
	case report.Applied:
		a.Message = "the list is in force, but what is left of the old one is not cleared away: send the same file again"
	}
	a.cause = err
	return a
}
