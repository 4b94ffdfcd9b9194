// Package outbox is the mail adapter of the local profile: it writes each
// confirmation as a file, <attempt>.eml, which any mail program opens.
//
// It fails closed: Send answers nil only when the file is on the disk. The
// clock, which dates the mails, is passed in.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/mailer"
)

// Outbox is a folder of mails. Safe for concurrent use, also by several
// processes.
type Outbox struct {
	dir, from string
	now       func() time.Time
}

// New makes the folder, readable by its owner only since it holds personal
// data, and checks the sender's address.
func New(dir, from string, now func() time.Time) (*Outbox, error) {
	if _, err := mailer.Sender(from); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return &Outbox{dir: dir, from: from, now: now}, nil
}

// Send writes the mail. It is safe to repeat: an attempt has one file, whole
// at every moment, and a repeat replaces it. mailer.ErrUnsendable is final,
// any other error may be tried again.
func (o *Outbox) Send(ctx context.Context, m booking.Mail) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	message, err := mailer.Message(m, o.from, o.now())
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	// Message has checked the attempt, so it is a plain file name.
	if err := o.write(m.Record.Attempt+".eml", message); err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// write makes the file appear at once and survive a crash: the content is
// synced before it gets its name, the folder after.
func (o *Outbox) write(name string, content []byte) error {
	tmp, err := os.CreateTemp(o.dir, ".mail-*.tmp")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone already when renamed
	_, err = tmp.Write(content)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), filepath.Join(o.dir, name)); err != nil {
		return err
	}
	dir, err := os.Open(o.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
