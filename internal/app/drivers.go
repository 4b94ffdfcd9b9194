package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/mailer/outbox"
	"holdfast/internal/mailer/smtp"
	objects "holdfast/internal/objstore/sqlite"
	queue "holdfast/internal/queue/sqlite"
	"holdfast/internal/settle"
	store "holdfast/internal/store/sqlite"
)

// Drivers are the opened stores behind the ports.
type Drivers struct {
	Store *store.Store
	Queue *queue.Queue
}

// storeFile is the booking store in the data folder.
const storeFile = "store.db"

// OpenDrivers opens what the configuration names; config has checked the names.
// Several processes may open the same folder.
func OpenDrivers(ctx context.Context, data string) (*Drivers, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	st, err := store.Open(ctx, filepath.Join(data, storeFile))
	if err != nil {
		return nil, err
	}
	q, err := queue.Open(ctx, filepath.Join(data, "queue.db"), queue.Options{})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return &Drivers{Store: st, Queue: q}, nil
}

// Close closes them.
func (d *Drivers) Close() error { return errors.Join(d.Queue.Close(), d.Store.Close()) }

// paymentTerms are the real gateway's: money moves by our execute call alone, and
// within a day of the payment's creation.
func paymentTerms() booking.PaymentTerms {
	return booking.PaymentTerms{MovesAlone: false, Lapse: 24 * time.Hour}
}

func openObjects(ctx context.Context, data string) (*objects.Store, error) {
	return objects.Open(ctx, filepath.Join(data, "objects.db"))
}

func openMailer(cfg config.API, now func() time.Time) (settle.Mailer, error) {
	if cfg.MailDriver == "smtp" {
		return smtp.New(smtp.Config{
			Host: cfg.SMTPHost, Port: cfg.SMTPPort, Encryption: smtp.Encryption(cfg.SMTPEncryption),
			Username: cfg.SMTPUsername, Password: smtp.NewSecret(cfg.SMTPPassword.Reveal()),
			From: cfg.MailFrom, Hello: cfg.SMTPHello,
		}, now)
	}
	return outbox.New(filepath.Join(cfg.Data, "outbox"), cfg.MailFrom, now)
}
