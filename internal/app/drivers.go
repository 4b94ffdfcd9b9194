package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/checkout"
	"holdfast/internal/config"
	"holdfast/internal/mailer/outbox"
	"holdfast/internal/mailer/smtp"
	"holdfast/internal/notification"
	objects "holdfast/internal/objstore/sqlite"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/reconcile"
	"holdfast/internal/record"
	"holdfast/internal/refund"
	"holdfast/internal/resolve"
	"holdfast/internal/saleops"
	"holdfast/internal/settle"
	"holdfast/internal/statuspage"
	store "holdfast/internal/store/sqlite"
)

// Store is the booking store as all the use cases together see it; what each method
// promises is written where it is used.
type Store interface {
	checkout.Records
	settle.Store
	refund.Store
	notification.Store
	reconcile.Store
	reconcile.Ended
	reconcile.Keeper
	record.Store
	resolve.Store
	resolve.HoldStore
	saleops.Store
	saleops.ShowStore
	saleops.PurgeStore
	saleops.RecordReader
	OperatorLog
}

// OperatorLog is the log of what operators change. It is only added to: no command
// takes an entry out, not the reset of a sale either.
type OperatorLog interface {
	// AppendLog adds an entry. Nil also when this very entry is there, so that it is
	// safe to repeat; booking.ErrLogTaken when another one is under its id.
	AppendLog(ctx context.Context, e booking.LogEntry) error
	// Log reads the entries of the changes that began at that time or later, in the
	// order of their ids. An unreadable one is an error that wraps
	// booking.ErrUnreadable, beside an entry with the id alone, and the list goes on.
	// Any other error ends it.
	Log(ctx context.Context, since time.Time) iter.Seq2[booking.LogEntry, error]
}

// Queue carries records to the worker, as both ends and the operator see it.
type Queue interface {
	checkout.Queue
	record.Queue
	saleops.Queue
	// DeadLetters shows at most that many messages that were received too often, and
	// leaves them where they are.
	DeadLetters(ctx context.Context, most int) ([]booking.Delivery, error)
	// Redrive has dead letters delivered again, those with these deduplication ids or
	// all of them, and returns how many. Safe to repeat.
	Redrive(ctx context.Context, dedupIDs ...string) (int, error)
}

// Objects is where status.json lies.
type Objects interface{ statuspage.Objects }

// Mailer sends confirmations.
type Mailer interface{ settle.Mailer }

// Drivers are the opened drivers behind the ports. One that was not wanted is nil.
type Drivers struct {
	Store   Store
	Queue   Queue
	Objects Objects
	Mailer  Mailer
	// Closers end what was opened, the last one first.
	Closers []func() error
}

// Close closes them. Safe to repeat.
func (d *Drivers) Close() error {
	closers := d.Closers
	d.Closers = nil
	return closeAll(closers)
}

func closeAll(closers []func() error) error {
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	return errors.Join(errs...)
}

// Needs are the drivers that a process wants, by their settings; config has checked
// them. A port whose driver has no name is not wanted.
type Needs struct {
	// Data is the folder of the drivers that keep files.
	Data string
	config.Drivers
	config.Published
	config.Mail
	// Now dates mails.
	Now func() time.Time
}

// Opener opens what a process needs. Several processes may open the same. The
// caller closes it; after an error there is nothing to close.
type Opener func(ctx context.Context, n Needs) (*Drivers, error)

// Platform is what a process runs on.
type Platform struct {
	// Open opens the drivers that the settings name.
	Open Opener
	// Resolve turns those of the named settings that are references, such as to a secret
	// in a vault, into their values, before they are read; nil knows no references.
	// getenv answers as os.Getenv does, and so does what is returned.
	Resolve func(ctx context.Context, getenv func(string) string, names []string) (func(string) string, error)
	// Identity is who runs this process, as the platform of those drivers knows them.
	// getenv is the process's own environment, which proves nothing. An error when
	// nobody can be named: then nothing may be changed. Safe to repeat.
	Identity func(ctx context.Context, getenv func(string) string, n Needs) (string, error)
}

// Local is the platform of one machine: drivers that need no cloud, settings that are
// values, and the system's users.
func Local() Platform { return Platform{Open: OpenLocal, Identity: SystemUser} }

// Settings is the environment with the references of the named settings resolved; the
// error has a line for each that could not be.
func (p Platform) Settings(ctx context.Context, getenv func(string) string, names []string) (func(string) string, error) {
	if p.Resolve == nil {
		return getenv, nil
	}
	getenv, err := p.Resolve(ctx, getenv, names)
	if err != nil {
		return nil, fmt.Errorf("settings:\n%w", err)
	}
	return getenv, nil
}

// systemUsers is the system's list of users, passwd(5).
const systemUsers = "/etc/passwd"

// SystemUser is the Identity of one machine: the account, by the number that the kernel
// has for it, and by its name in the system's list of users; one that is not in it has
// no name. Under sudo the account that it was called from is shown beside root, which
// whoever is root can make up.
func SystemUser(_ context.Context, getenv func(string) string, _ Needs) (string, error) {
	list, err := os.ReadFile(systemUsers)
	if err != nil {
		list = nil // nobody has a name, as in an image without the file
	}
	return describeUser(bytes.NewReader(list), os.Getuid(), getenv("SUDO_USER")), nil
}

func describeUser(list io.Reader, uid int, sudo string) string {
	name := accountName(list, uid)
	if name == "" {
		return fmt.Sprintf("uid %d", uid)
	}
	who := fmt.Sprintf("%s (uid %d)", name, uid)
	if uid == 0 && sudo != "" && sudo != name {
		who += fmt.Sprintf(", by sudo from %.64q as its environment says", sudo)
	}
	return who
}

// accountName is the first name that the list has for that number; "" without one.
// Package os/user is not asked: built without cgo it gives a number that is not on the
// list the name in $USER, by Current and by LookupId.
func accountName(list io.Reader, uid int) string {
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 3 || fields[2] != strconv.Itoa(uid) {
			continue
		}
		if name := fields[0]; name != "" && !strings.ContainsRune("#+-", rune(name[0])) {
			return name
		}
	}
	return ""
}

// storeFile is the booking store in the data folder.
const storeFile = "store.db"

// OpenLocal is the Opener of the drivers that need no cloud: SQLite files in the data
// folder, and mails as files or by SMTP. Another name is an error.
func OpenLocal(ctx context.Context, n Needs) (_ *Drivers, err error) {
	d := new(Drivers)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if n.Store == "sqlite" || n.Queue == "sqlite" || n.Objects == "sqlite" {
		if err := os.MkdirAll(n.Data, 0o700); err != nil {
			return nil, fmt.Errorf("data folder: %w", err)
		}
	}
	switch n.Store {
	case "":
	case "sqlite":
		st, err := store.Open(ctx, filepath.Join(n.Data, storeFile))
		if err != nil {
			return nil, err
		}
		d.Store, d.Closers = st, append(d.Closers, st.Close)
	default:
		return nil, notHere("STORE", n.Store)
	}
	switch n.Queue {
	case "":
	case "sqlite":
		q, err := queue.Open(ctx, filepath.Join(n.Data, "queue.db"), queue.Options{})
		if err != nil {
			return nil, err
		}
		d.Queue, d.Closers = q, append(d.Closers, q.Close)
	default:
		return nil, notHere("QUEUE", n.Queue)
	}
	switch n.Objects {
	case "":
	case "sqlite":
		o, err := objects.Open(ctx, filepath.Join(n.Data, "objects.db"))
		if err != nil {
			return nil, err
		}
		d.Objects, d.Closers = o, append(d.Closers, o.Close)
	default:
		return nil, notHere("OBJECTS", n.Objects)
	}
	switch n.MailDriver {
	case "":
	case "outbox":
		if d.Mailer, err = outbox.New(filepath.Join(n.Data, "outbox"), n.MailFrom, n.Now); err != nil {
			return nil, err
		}
	case "smtp":
		if d.Mailer, err = smtp.New(smtp.Config{
			Host: n.SMTPHost, Port: n.SMTPPort, Encryption: smtp.Encryption(n.SMTPEncryption),
			Username: n.SMTPUsername, Password: smtp.NewSecret(n.SMTPPassword.Reveal()),
			From: n.MailFrom, Hello: n.SMTPHello,
		}, n.Now); err != nil {
			return nil, err
		}
	default:
		return nil, notHere("MAIL", n.MailDriver)
	}
	return d, nil
}

func notHere(port, driver string) error {
	return fmt.Errorf("HOLDFAST_%s=%s: this program has no such driver; cmd/api, cmd/worker and cmd/seatctl have", port, driver)
}

// paymentTerms are the real gateway's: money moves by our execute call alone, and
// within a day of the payment's creation.
func paymentTerms() booking.PaymentTerms {
	return booking.PaymentTerms{MovesAlone: false, Lapse: 24 * time.Hour}
}
