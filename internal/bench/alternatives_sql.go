package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/booking"
)

// postgresWays starts PostgreSQL and makes the ways that use it; errNoPostgres
// when it is not installed.
func postgresWays(ctx context.Context, clients int) (ways []*contender, about string, stop func(), err error) {
	server, err := startPostgres(ctx, clients)
	if err != nil {
		return nil, "", nil, err
	}
	watcher, err := server.connect(ctx)
	if err != nil {
		server.stop()
		return nil, "", nil, err
	}
	stop = func() {
		_ = watcher.Close(ctx) // the server goes next
		server.stop()
	}
	about, err = durability(ctx, watcher)
	if err != nil {
		stop()
		return nil, "", nil, err
	}
	s := sqlSeller{server: server, watcher: watcher}
	return []*contender{
		{seller: &forUpdateSeller{s}, name: SQLForUpdate,
			writes: "level row and booking row in one transaction; counts once committed to disk"},
		{seller: &conditionalSeller{s}, name: SQLConditionalUpdate,
			writes: "level row and booking row in one statement; counts once committed to disk"},
	}, about, stop, nil
}

// durability asks the server what a commit is worth there, and refuses one that
// would be compared unfairly.
func durability(ctx context.Context, c *pgx.Conn) (string, error) {
	var version, fsync, commit string
	const ask = `SELECT split_part(current_setting('server_version'), ' ', 1), current_setting('fsync'), current_setting('synchronous_commit')`
	if err := c.QueryRow(ctx, ask).Scan(&version, &fsync, &commit); err != nil {
		return "", fmt.Errorf("read the settings of postgres: %w", err)
	}
	if fsync != "on" || commit != "on" {
		return "", fmt.Errorf("postgres has fsync %s and synchronous_commit %s, want both on", fsync, commit)
	}
	return "PostgreSQL " + version + ", fsync on, synchronous_commit on", nil
}

// sqlSeller is what both ways on PostgreSQL share.
type sqlSeller struct {
	server  *postgres
	watcher *pgx.Conn
}

// The booking row's key is what keeps a candidate from a second seat.
const schema = `
DROP TABLE IF EXISTS booking, level;
CREATE TABLE level (id text PRIMARY KEY, cap int NOT NULL, taken int NOT NULL);
CREATE TABLE booking (code text PRIMARY KEY, level text NOT NULL, attempt text NOT NULL)`

func (s *sqlSeller) reset(ctx context.Context, seats int, _ []string) error {
	if _, err := s.watcher.Exec(ctx, schema, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	_, err := s.watcher.Exec(ctx, `INSERT INTO level VALUES ($1, $2, 0)`, hotLevel, seats)
	return err
}

func (s *sqlSeller) taken(ctx context.Context) (n int, err error) {
	err = s.watcher.QueryRow(ctx, `SELECT taken FROM level WHERE id = $1`, hotLevel).Scan(&n)
	return n, err
}

func (s *sqlSeller) sold(ctx context.Context) (n int, err error) {
	err = s.watcher.QueryRow(ctx, `SELECT count(*) FROM booking`).Scan(&n)
	return n, err
}

// prepared gives a client its own connection, with its statements prepared.
func (s *sqlSeller) prepared(ctx context.Context, statements ...string) (sqlConn, error) {
	c, err := s.server.connect(ctx)
	if err != nil {
		return sqlConn{}, err
	}
	for _, sql := range statements {
		if _, err := c.Prepare(ctx, sql, sql); err != nil {
			return sqlConn{}, errors.Join(err, c.Close(ctx))
		}
	}
	return sqlConn{c}, nil
}

type sqlConn struct{ *pgx.Conn }

func (c sqlConn) close(ctx context.Context) { _ = c.Close(ctx) } // nothing is open on it

// forUpdateSeller locks the level's row, decides, writes and commits.
type forUpdateSeller struct{ sqlSeller }

const (
	lockRow       = `SELECT taken < cap FROM level WHERE id = $1 FOR UPDATE`
	countSeat     = `UPDATE level SET taken = taken + 1 WHERE id = $1`
	insertBooking = `INSERT INTO booking (code, level, attempt) VALUES ($1, $2, $3)`
)

func (s *forUpdateSeller) buyer(ctx context.Context) (buyer, error) {
	c, err := s.prepared(ctx, "BEGIN", lockRow, countSeat, insertBooking, "COMMIT", "ROLLBACK")
	return forUpdateBuyer{c}, err
}

type forUpdateBuyer struct{ sqlConn }

// buy needs two round trips, so that the row is locked as short as can be.
func (b forUpdateBuyer) buy(ctx context.Context, code string) (bool, int, error) {
	var free bool
	begin := &pgx.Batch{}
	begin.Queue("BEGIN")
	begin.Queue(lockRow, hotLevel).QueryRow(func(row pgx.Row) error { return row.Scan(&free) })
	if err := b.SendBatch(ctx, begin).Close(); err != nil {
		return false, 0, err
	}
	if !free {
		_, err := b.Exec(ctx, "ROLLBACK")
		return false, 0, err
	}
	end := &pgx.Batch{}
	end.Queue(countSeat, hotLevel)
	end.Queue(insertBooking, code, hotLevel, booking.NewAttemptSuffix(time.Now()))
	end.Queue("COMMIT")
	return true, 0, b.SendBatch(ctx, end).Close()
}

// conditionalSeller lets one statement decide and write.
type conditionalSeller struct{ sqlSeller }

const takeSeat = `
WITH seat AS (UPDATE level SET taken = taken + 1 WHERE id = $1 AND taken < cap RETURNING id)
INSERT INTO booking (code, level, attempt) SELECT $2, id, $3 FROM seat`

func (s *conditionalSeller) buyer(ctx context.Context) (buyer, error) {
	c, err := s.prepared(ctx, takeSeat)
	return conditionalBuyer{c}, err
}

type conditionalBuyer struct{ sqlConn }

func (b conditionalBuyer) buy(ctx context.Context, code string) (bool, int, error) {
	tag, err := b.Exec(ctx, takeSeat, hotLevel, code, booking.NewAttemptSuffix(time.Now()))
	return tag.RowsAffected() == 1, 0, err
}
