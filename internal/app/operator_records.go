package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/internal/saleops"
)

// Records are the booking store's records, for an export.
func (o *Operator) Records() saleops.ExportRecords { return o.api.Drivers.Store }

// Shower looks at one candidate's bookings, and asks the gateway if it was opened.
func (o *Operator) Shower() *saleops.Shower {
	s := &saleops.Shower{Ledger: o.Gate, Store: o.api.Drivers.Store, Queue: o.api.Drivers.Queue}
	if o.api.Gateway != nil {
		s.Gateway = o.api.Gateway
	}
	return s
}

// DeadLetters are the messages that the worker has given up on.
func (o *Operator) DeadLetters() *saleops.DeadLetters {
	return &saleops.DeadLetters{Queue: o.api.Drivers.Queue, Store: o.api.Drivers.Store}
}

// Resetter begins a sale anew.
func (o *Operator) Resetter() *saleops.Resetter {
	return &saleops.Resetter{Ledger: o.Gate, Store: o.api.Drivers.Store, Queue: o.api.Drivers.Queue}
}

// Purger removes personal data after the event, and with the drivers of one machine
// also the mails in its data folder.
func (o *Operator) Purger() *saleops.Purger {
	p := &saleops.Purger{Ledger: o.Gate, Store: o.api.Drivers.Store, Queue: o.api.Drivers.Queue}
	if o.api.cfg.Store == "sqlite" {
		p.Outbox = Outbox(filepath.Join(o.api.cfg.Data, outboxFolder))
	}
	return p
}

// Outbox is a folder of mails as package outbox writes them; it need not be there.
type Outbox string

// outboxFolder is the outbox in the data folder.
const outboxFolder = "outbox"

// Count counts the mails written before that time.
func (dir Outbox) Count(before time.Time) (int, error) {
	mails, err := dir.mails(before)
	return len(mails), err
}

// Purge removes the mails written before that time, and tells how many. Safe to
// repeat.
func (dir Outbox) Purge(before time.Time) (int, error) {
	mails, err := dir.mails(before)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, name := range mails {
		err := os.Remove(filepath.Join(string(dir), name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, fmt.Errorf("purge outbox: %w", err)
		}
		if err == nil {
			n++
		}
	}
	return n, nil
}

// mails are the files that an outbox has made, finished or not; others are not
// touched.
func (dir Outbox) mails(before time.Time) ([]string, error) {
	entries, err := os.ReadDir(string(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	var names []string
	for _, e := range entries {
		unfinished := strings.HasPrefix(e.Name(), ".mail-") && strings.HasSuffix(e.Name(), ".tmp")
		if !e.Type().IsRegular() || !unfinished && filepath.Ext(e.Name()) != ".eml" {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read outbox: %w", err)
		}
		if info.ModTime().Before(before) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
