package bench

import (
	"context"
	"io"
	"time"
)

// QuickAlternatives is Alternatives with few seats and clients, in seconds.
func QuickAlternatives(ctx context.Context, progress io.Writer) (AlternativesResult, error) {
	return compareAlternatives(ctx, quickAlternatives(), progress)
}

func quickAlternatives() alternativesPlan {
	return alternativesPlan{
		clients: 8, seats: 60, rounds: 1,
		admitWithin: 20 * time.Second, rejectFor: 200 * time.Millisecond, rejectMost: 2000, within: 30 * time.Second,
	}
}

// SellAlternative runs one round of any way to sell.
func SellAlternative(ctx context.Context, sell func(code string) bool, taken, sold func() int, seats int) error {
	p := quickAlternatives()
	p.seats, p.rejectFor = seats, 10*time.Millisecond
	_, err := p.round(ctx, madeUp{sell: sell, read: taken, count: sold})
	return err
}

// madeUp sells in memory.
type madeUp struct {
	sell        func(code string) bool
	read, count func() int
}

func (m madeUp) reset(context.Context, int, []string) error { return nil }
func (m madeUp) buyer(context.Context) (buyer, error)       { return m, nil }
func (m madeUp) taken(context.Context) (int, error)         { return m.read(), nil }
func (m madeUp) sold(context.Context) (int, error)          { return m.count(), nil }
func (m madeUp) close(context.Context)                      {}
func (m madeUp) buy(_ context.Context, code string) (bool, int, error) {
	return m.sell(code), 0, nil
}

// PostgresNotInstalled is what a missing server is told by.
func PostgresNotInstalled() error { return errNoPostgres }

// FindPostgres looks for the server's programs.
func FindPostgres(folders string) (string, error) { return findPostgres(folders) }

// DebianPostgres is where it looks.
const DebianPostgres = debianPostgres

// StartPostgres starts a server and returns its folder and process id.
func StartPostgres(ctx context.Context) (addr, dir string, stop func(), err error) {
	p, err := startPostgres(ctx, 1)
	if err != nil {
		return "", "", nil, err
	}
	return p.addr, p.dir, p.stop, nil
}
