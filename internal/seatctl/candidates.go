package seatctl

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"holdfast/internal/app"
	"holdfast/internal/booking"
	"holdfast/internal/salefile"
	"holdfast/internal/saleops"
)

type candidatesCommand struct {
	Load   candidatesLoadCommand   `cmd:"" help:"Put a candidates file in force as the allowlist."`
	Show   candidatesShowCommand   `cmd:"" help:"Is this code on the allowlist, and where does its seat stand?"`
	Export candidatesExportCommand `cmd:"" help:"Write the allowlist out as a file that loads again."`
}

type candidatesLoadCommand struct {
	File          string `arg:"" help:"Candidates file, or - for stdin."`
	DryRun        bool   `help:"Check the file and tell the difference; change nothing."`
	WhileOpen     bool   `help:"Load it though booking is open."`
	AllowRemovals bool   `help:"Drop more than 5 % of the candidates, or any who has a live booking; seats are kept."`
	Rejects       string `help:"Write the lines that are wrong into this new file: line, reason, row. It holds personal data." placeholder:"FILE"`
	Reason        string `help:"Why, for the operator's log. Name no person." placeholder:"TEXT"`
	Yes           bool   `help:"Do it without asking."`
	JSON          bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*candidatesLoadCommand) Help() string {
	return `The file takes the place of the whole allowlist, or nothing is changed. It is CSV
with the header code,email and no other column: UTF-8, or UTF-16 with a byte order
mark; commas, semicolons or tabs; compressed by gzip or not. Every wrong line is
told with its number; equal rows are one candidate, a code with two addresses is
wrong on both lines.

First it compares: how many are added, removed, have another e-mail, stay. With
removals or changes it asks, then reads the file once more and loads it. With --yes
it reads it once. From stdin nothing can be asked: give --yes or --dry-run.

Refused, with nothing changed: a wrong file; while booking is open, unless
--while-open; dropping more than 5 % or anybody with a live booking, unless
--allow-removals; while another load runs. A load that was cut off with its list in
force is finished by the next one: that is said and logged, whatever becomes of the
file. A dry run finishes none, and is refused while there is one.

Exit status: 0 in force, or compared; 1 refused, not agreed, or not known to be in
force; 2 it could not be run.

Example:
  seatctl candidates load candidates.csv --rejects rejects.csv --data data/local
  gzip -dc list.gz | seatctl candidates load - --yes --json`
}

// loadedCandidates is what the command tells.
type loadedCandidates struct {
	Sale   string `json:"sale"`
	File   string `json:"file"`
	DryRun bool   `json:"dry_run"`
	saleops.AllowlistReport
	// Repeated rows equalled an earlier one.
	Repeated int `json:"repeated"`
	// Wrong lines, and the first of them.
	Wrong  int         `json:"wrong"`
	Errors []wrongLine `json:"errors,omitempty"`
	// Rejects is the file that they were written into, the first RejectsRows of them.
	Rejects       string  `json:"rejects,omitempty"`
	RejectsRows   int     `json:"rejects_rows,omitempty"`
	Seconds       float64 `json:"seconds"`
	RowsPerSecond float64 `json:"rows_per_second"`
	// PeakRSS is the most memory that this process had so far, in bytes; 0 where the
	// system does not tell.
	PeakRSS int64  `json:"peak_rss_bytes"`
	Error   string `json:"error,omitempty"`
}

type wrongLine struct {
	Line   int    `json:"line"`
	Reason string `json:"reason"`
}

// allowlistLoader is LoadAllowlist, or DryRunAllowlist in its place.
type allowlistLoader func(context.Context, iter.Seq2[booking.Candidate, error], saleops.AllowlistOptions) (saleops.AllowlistReport, error)

// gcPercentLoad keeps a load small: what it keeps is a table with no pointers in it, which
// the collector need not look through, and what it throws away is a few hundred bytes a row.
const gcPercentLoad = 4

// rowsToTrim is after how many rows the holes are given back that growing tables leave:
// a larger one never fits into them.
const rowsToTrim = 100_000

// Run is the command.
func (c *candidatesLoadCommand) Run(s *session) (err error) {
	if c.File == "-" && !c.Yes && !c.DryRun {
		return errors.New("-: what comes on stdin cannot be compared first and asked about: give --yes, or --dry-run")
	}
	if err := absent(c.Rejects); err != nil {
		return fmt.Errorf("--rejects: %w", err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercentLoad))
	debug.FreeOSMemory() // what the program's beginning has left
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	in, size, closeIn, err := c.input(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeIn()) }()
	sale, err := saleName(s.ctx, o)
	if err != nil {
		return err
	}
	rule, err := o.Codes()
	if err != nil {
		return err
	}
	l := &candidatesLoad{candidatesLoadCommand: c, session: s, sale: sale, rule: rule, in: in, size: size}
	fmt.Fprintf(s.stderr, "%s takes the place of the allowlist of sale %s%s.\n", l.source(), sale, c.allowed())
	if c.DryRun {
		out, err := l.run(s.ctx, o.Ops.DryRunAllowlist, "")
		return l.tell(out, err)
	}
	if !c.Yes {
		if done, err := l.compare(o); done {
			return err
		}
	}
	out := loadedCandidates{Sale: sale, File: c.File}
	who, err := s.who(o)
	if err != nil {
		return err
	}
	err = s.logged(o.Log(), who, mutation{
		What: "candidates load", Subject: sale, Reason: c.Reason,
		Before: map[string]bool{"while_open": c.WhileOpen, "allow_removals": c.AllowRemovals},
	}, func(ctx context.Context) (any, error) {
		out, err = l.run(ctx, o.Ops.LoadAllowlist, who)
		return out.AllowlistReport, err
	})
	return l.tell(out, err)
}

func (c *candidatesLoadCommand) allowed() string {
	text := ""
	if c.WhileOpen {
		text += ", though booking is open"
	}
	if c.AllowRemovals {
		text += ", whoever is left out"
	}
	if c.DryRun {
		text += "; a dry run: nothing is changed"
	}
	return text
}

// input is the file and its size in bytes; -1 when nobody knows.
func (c *candidatesLoadCommand) input(s *session) (in io.Reader, size int64, closeIn func() error, err error) {
	if c.File == "-" {
		return s.stdin, -1, func() error { return nil }, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("candidates file: %w", err)
	}
	size = -1
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	if size < 0 && !c.Yes && !c.DryRun {
		return nil, 0, nil, errors.Join(fmt.Errorf("%s can be read only once: give --yes, or --dry-run", c.File), f.Close())
	}
	return f, size, f.Close, nil
}

// saleName is the sale in force.
func saleName(ctx context.Context, o *app.Operator) (string, error) {
	sale, err := o.Gate.Sale(ctx)
	if errors.Is(err, booking.ErrNotFound) {
		err = wrong(errors.New("no sale is in force: nothing was changed; apply one first with seatctl sale apply"))
	}
	return sale.Name, err
}

// candidatesLoad is one run of the command.
type candidatesLoad struct {
	*candidatesLoadCommand
	*session
	sale string
	rule booking.CodeRule
	in   io.Reader
	size int64
	// earlier tells of a load that this command has finished before it read the file.
	earlier saleops.AllowlistReport
}

func (l *candidatesLoad) source() string {
	switch {
	case l.File == "-":
		return "What comes on stdin"
	case l.size < 0:
		return l.File
	}
	return fmt.Sprintf("%s (%.1f MB)", l.File, float64(l.size)/1e6)
}

// compare tells the difference and asks; done with the error to end with when it is
// not to be loaded. A load that was cut off must be finished first, so that there is
// one list to compare with: that is asked, too.
func (l *candidatesLoad) compare(o *app.Operator) (done bool, err error) {
	out, err := l.run(l.ctx, o.Ops.DryRunAllowlist, "")
	if errors.Is(err, saleops.ErrLoadUnfinished) {
		fmt.Fprintln(l.stderr, err)
		if err := l.agreed(false, "This finishes it, and then compares."); err != nil {
			return true, err
		}
		if err := l.finish(o); err != nil {
			return true, err
		}
		if err := l.rewind(); err != nil {
			return true, err
		}
		out, err = l.run(l.ctx, o.Ops.DryRunAllowlist, "")
	}
	if err != nil {
		return true, l.tell(out, err)
	}
	fmt.Fprint(l.stderr, out.difference())
	if out.Removed+out.Changed > 0 {
		if err := l.agreed(false, "It removes candidates, or changes their e-mail."); err != nil {
			if l.earlier.Finished {
				err = wrong(fmt.Errorf("not agreed: %s", l.earlier.NothingChanged()))
			}
			return true, err
		}
	}
	err = l.rewind()
	return err != nil, err
}

// rewind goes back to the file's beginning, for another reading.
func (l *candidatesLoad) rewind() error {
	debug.FreeOSMemory()                                              // it needs a table of its own
	if _, err := l.in.(io.Seeker).Seek(0, io.SeekStart); err != nil { // input has seen to it
		return fmt.Errorf("read the candidates file again: %w", err)
	}
	return nil
}

// finish finishes a load that was cut off, as a change of its own.
func (l *candidatesLoad) finish(o *app.Operator) error {
	who, err := l.who(o)
	if err != nil {
		return err
	}
	return l.logged(o.Log(), who, mutation{What: "candidates load", Subject: l.sale, Reason: l.Reason, Before: map[string]bool{"finish_earlier": true}},
		func(ctx context.Context) (any, error) {
			var err error
			l.earlier, err = o.Ops.FinishAllowlist(ctx, saleops.AllowlistOptions{WhileOpen: l.WhileOpen, Who: who})
			if err != nil {
				err = wrong(err)
			}
			return l.earlier, err
		})
}

// run reads the file once into the loader. Its error is the command's, and tells
// whether anything was changed.
func (l *candidatesLoad) run(ctx context.Context, load allowlistLoader, who string) (loadedCandidates, error) {
	out := loadedCandidates{Sale: l.sale, File: l.File, DryRun: l.DryRun}
	counted := &countingReader{r: l.in}
	file := salefile.NewReader(counted, l.rule)
	rejects := &rejectsFile{path: l.Rejects}
	var reject func(*salefile.LineError) error
	if l.Rejects != "" {
		reject = rejects.add
	}
	var listErr error
	list := func(yield func(booking.Candidate, error) bool) {
		for c, err := range file.Checked(reject) {
			listErr = err
			if !yield(c, err) {
				return
			}
		}
	}
	began := time.Now()
	bar, trimmed := newProgress(l.stderr, l.size, time.Now), 0
	var err error
	out.AllowlistReport, err = load(ctx, list, saleops.AllowlistOptions{
		WhileOpen: l.WhileOpen, AllowRemovals: l.AllowRemovals, Who: who,
		Progress: func(done int) {
			bar.at(done, counted.n)
			if done-trimmed >= rowsToTrim {
				trimmed = done
				debug.FreeOSMemory()
			}
		},
	})
	bar.end()
	if !out.Finished {
		out.Finished, out.FinishedOf, out.FinishedSince = l.earlier.Finished, l.earlier.FinishedOf, l.earlier.FinishedSince
	}
	if written, rejectsErr := rejects.close(); rejectsErr != nil {
		err = errors.Join(err, rejectsErr)
	} else if written {
		out.Rejects, out.RejectsRows = l.Rejects, min(rejects.rows, maxRejects)
	}
	out.Repeated, out.Seconds, out.PeakRSS = file.Repeated(), time.Since(began).Seconds(), peakRSS()
	if out.Seconds > 0 {
		out.RowsPerSecond = float64(file.Candidates()) / out.Seconds
	}
	var wrongFile *salefile.FileError
	if errors.As(listErr, &wrongFile) {
		out.Wrong = wrongFile.Wrong
		for _, line := range wrongFile.Told {
			out.Errors = append(out.Errors, wrongLine{line.Line, line.Err.Error()})
		}
	}
	switch {
	case err == nil:
		return out, nil
	case wrongFile != nil:
		out.AllowlistReport = out.EarlierOnly() // the figures are of part of a file
		err = out.refused(fmt.Errorf("the file is wrong: %s", out.NothingChanged()))
	case listErr != nil:
		out.AllowlistReport = out.EarlierOnly()
		err = out.refused(fmt.Errorf("%s: %w", out.NothingChanged(), listErr))
	case isRefusal(err):
		err = out.refused(err)
	default:
		err = wrong(err)
	}
	return out, err
}

// refused is refused, unless an earlier load was finished first, which is a change.
func (r loadedCandidates) refused(err error) error {
	if r.Finished {
		return wrong(err)
	}
	return refused(err)
}

func isRefusal(err error) bool {
	for _, refusal := range []error{
		saleops.ErrBookingOpen, saleops.ErrLoadRunning, saleops.ErrLoadUnfinished, saleops.ErrRemovals, booking.ErrAllowlistMany, booking.ErrLedgerUnknown,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// linesTold is how many wrong lines a person is shown; --json has more.
const linesTold = 20

// tell prints what came of it and passes the error on.
func (l *candidatesLoad) tell(out loadedCandidates, err error) error {
	if err != nil {
		out.Error = err.Error()
	}
	if l.JSON {
		return errors.Join(err, l.printJSON(out))
	}
	for i, line := range out.Errors {
		if i == linesTold {
			break
		}
		fmt.Fprintf(l.stderr, "line %d: %s\n", line.Line, line.Reason)
	}
	if more := out.Wrong - min(linesTold, len(out.Errors)); more > 0 {
		fmt.Fprintf(l.stderr, "and %d more wrong lines\n", more)
	}
	switch {
	case out.Rejects == "":
	case out.Wrong > out.RejectsRows:
		fmt.Fprintf(l.stderr, "the first %s of %s wrong lines are in %s\n", thousands(out.RejectsRows), thousands(out.Wrong), out.Rejects)
	default:
		fmt.Fprintf(l.stderr, "the wrong lines are in %s\n", out.Rejects)
	}
	if out.Rows > 0 {
		fmt.Fprint(l.stdout, out.difference())
	}
	switch {
	case err != nil:
	case l.DryRun:
		fmt.Fprintln(l.stdout, "dry run: nothing was changed")
	default:
		fmt.Fprintf(l.stdout, "in force, %s\n", out.pace())
	}
	return err
}

func (r loadedCandidates) pace() string {
	return fmt.Sprintf("in %.1f s: %.0f rows a second", r.Seconds, r.RowsPerSecond)
}

func (r loadedCandidates) difference() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d candidates\n", r.Rows)
	fmt.Fprintf(&b, "  %-9d added\n  %-9d removed\n  %-9d with another e-mail\n  %-9d as they were\n", r.Added, r.Removed, r.Changed, r.Unchanged)
	if r.Repeated > 0 {
		fmt.Fprintf(&b, "  %-9d rows were repeated\n", r.Repeated)
	}
	if r.LiveRemoved > 0 {
		fmt.Fprintf(&b, "  %d of the removed have a live booking and keep its seat: attempts %s", r.LiveRemoved, strings.Join(r.LiveAttempts, ", "))
		if more := r.LiveRemoved - len(r.LiveAttempts); more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		b.WriteString("\n")
	}
	if r.Finished {
		fmt.Fprintf(&b, "  an earlier load, of %s since %s, had been cut off with its list in force, and was finished first\n", r.FinishedOf, when(r.FinishedSince))
	}
	return b.String()
}

// countingReader counts what was read.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// maxRejects bounds a file of rejects: a file that is wrong on more lines is not what
// was meant.
const maxRejects = 10_000

// rejectsFile is a CSV of wrong lines, a new file that is made when the first comes,
// readable by its owner only.
type rejectsFile struct {
	path string
	f    *os.File
	w    *csv.Writer
	rows int
}

func (r *rejectsFile) add(line *salefile.LineError) error {
	if r.f == nil {
		f, err := newFile(r.path)
		if err != nil {
			return fmt.Errorf("--rejects: %w", err)
		}
		r.f, r.w = f, csv.NewWriter(f)
		if err := r.w.Write([]string{"line", "reason", "row"}); err != nil {
			return err
		}
	}
	if r.rows++; r.rows > maxRejects {
		return nil
	}
	return r.w.Write([]string{strconv.Itoa(line.Line), line.Err.Error(), strings.ToValidUTF8(line.Row(), "\ufffd")})
}

// close ends the file, or removes it; false when there was nothing to write.
func (r *rejectsFile) close() (bool, error) {
	if r.f == nil {
		return false, nil
	}
	r.w.Flush()
	err := errors.Join(r.w.Error(), r.f.Close())
	if err != nil {
		return false, errors.Join(fmt.Errorf("file of rejects: %w", err), os.Remove(r.path))
	}
	return true, nil
}

// peakRSS is the most memory that this process had, in bytes; 0 where there is no
// /proc (proc_pid_status(5), VmHWM, in kB).
func peakRSS() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64) // 0 is "not told"
			return kb << 10
		}
	}
	return 0
}

type candidatesShowCommand struct {
	Code  string `arg:"" help:"Candidate code."`
	Email bool   `help:"Show the e-mail address whole."`
	JSON  bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*candidatesShowCommand) Help() string {
	return `Reads the allowlist and the seat ledger, and changes nothing. The e-mail is shown
as c***@example.org unless --email is given.

Exit status: 0 on the allowlist; 1 not on it; 2 it could not be run.

Example:
  seatctl candidates show AB-1001 --data data/local`
}

// shownCandidate is what the command tells.
type shownCandidate struct {
	Code   string     `json:"code"`
	Listed bool       `json:"on_the_list"`
	Email  string     `json:"email,omitempty"`
	Seat   *shownSeat `json:"seat,omitempty"`
}

type shownSeat struct {
	Phase    booking.Phase `json:"phase"`
	Level    string        `json:"level"`
	Attempt  string        `json:"attempt"`
	Deadline *time.Time    `json:"deadline,omitempty"`
}

// Run is the command.
func (c *candidatesShowCommand) Run(s *session) (err error) {
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	rule, err := o.Codes()
	if err != nil {
		return err
	}
	code, err := rule.Normalize(c.Code)
	if err != nil {
		return fmt.Errorf("CODE: %w", err)
	}
	candidate, listed, err := o.Gate.Candidate(s.ctx, code)
	if err != nil {
		return err
	}
	out := shownCandidate{Code: code, Listed: listed, Email: candidate.Email}
	if !c.Email {
		out.Email = masked(out.Email)
	}
	row, _, err := o.Gate.Row(s.ctx, code)
	switch {
	case err == nil:
		out.Seat = &shownSeat{Phase: row.Phase, Level: row.Level, Attempt: row.Attempt}
		if row.Deadline > 0 {
			at := time.UnixMilli(row.Deadline).UTC()
			out.Seat.Deadline = &at
		}
	case !errors.Is(err, booking.ErrNotFound):
		return err
	}
	if c.JSON {
		err = s.printJSON(out)
	} else {
		err = s.printCandidate(out)
	}
	if err == nil && !listed {
		err = wrong(nil)
	}
	return err
}

func (s *session) printCandidate(c shownCandidate) error {
	var b strings.Builder
	standing := "NOT on the allowlist"
	if c.Listed {
		standing = "on the allowlist"
	}
	fmt.Fprintf(&b, "%s is %s\n  e-mail  %s\n", c.Code, standing, orDash(c.Email))
	switch seat := c.Seat; {
	case seat == nil:
		fmt.Fprintln(&b, "  seat    none")
	case seat.Deadline == nil:
		fmt.Fprintf(&b, "  seat    %s, level %s, attempt %s\n", seat.Phase, seat.Level, seat.Attempt)
	default:
		fmt.Fprintf(&b, "  seat    %s, level %s, attempt %s, deadline %s\n", seat.Phase, seat.Level, seat.Attempt, when(*seat.Deadline))
	}
	_, err := fmt.Fprint(s.stdout, b.String())
	return err
}

// masked keeps the first character and the domain of an address.
func masked(email string) string {
	at := strings.LastIndexByte(email, '@')
	if at < 1 {
		return ""
	}
	_, first := utf8.DecodeRuneInString(email)
	return email[:first] + "***" + email[at:]
}

type candidatesExportCommand struct {
	Out  string `help:"Write it into this new file, readable by its owner only; without it to stdout." placeholder:"FILE"`
	JSON bool   `help:"Print one JSON document about the file; needs --out."`
}

// Help is kong's detailed help.
func (*candidatesExportCommand) Help() string {
	return `Writes every candidate with their e-mail address, in no promised order, as a
candidates file that loads again. It is personal data: keep it no longer than it is
needed. Nothing is left behind under --out unless it is the whole list.

Exit status: 0 written, whole; 1 the list is damaged, or was replaced meanwhile:
what was written is not the list; or it is unknown, Redis being empty; 2 it could not
be run.

Example:
  seatctl candidates export --out candidates.csv --data data/local`
}

// Run is the command.
func (c *candidatesExportCommand) Run(s *session) (err error) {
	if c.JSON && c.Out == "" {
		return errors.New("--json tells of the file: give --out FILE")
	}
	o, err := s.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	list, err := listOf(s.ctx, o.Gate)
	if err != nil {
		return err
	}
	return c.export(s, list)
}

func (c *candidatesExportCommand) export(s *session, list iter.Seq2[booking.Candidate, error]) error {
	if c.Out == "" {
		_, err := writeCandidates(s.stdout, list)
		return err
	}
	f, err := newFile(c.Out)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	n, err := writeCandidates(f, list)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(c.Out))
	}
	if c.JSON {
		return s.printJSON(map[string]any{"file": c.Out, "rows": n})
	}
	_, err = fmt.Fprintf(s.stdout, "%d candidates are in %s\n", n, c.Out)
	return err
}

func writeCandidates(to io.Writer, list iter.Seq2[booking.Candidate, error]) (rows int, err error) {
	w := csv.NewWriter(to)
	if err := w.Write([]string{"code", "email"}); err != nil {
		return 0, err
	}
	for c, err := range list {
		if err != nil {
			w.Flush()
			if errors.Is(err, booking.ErrAllowlistMoved) || errors.Is(err, booking.ErrAllowlistBroken) {
				err = wrong(err)
			}
			return rows, err
		}
		if err := w.Write([]string{c.Code, c.Email}); err != nil {
			return rows, err
		}
		rows++
	}
	w.Flush()
	return rows, w.Error()
}
