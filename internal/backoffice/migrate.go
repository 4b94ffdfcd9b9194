package backoffice

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is the advisory lock under which the schema changes; any number that no
// other program of this database uses.
const migrationLock = 0x686f6c6466617374

// Migrate brings the schema of the connection's database to what this program needs, by
// the numbered files beside it, each applied once and noted in schema_migrations. It
// goes forward only: a schema that a newer program has made is left as it is. Several
// processes may call it at once, and a repeat costs two reads and needs no more rights
// than reading. All steps are one transaction: after an error nothing has changed, and
// the caller may repeat it.
func Migrate(ctx context.Context, conn *pgx.Conn) error {
	steps, err := readMigrations()
	if err != nil {
		return err
	}
	if version, err := schemaVersion(ctx, conn); err != nil || version >= len(steps) {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(migrationLock)); err != nil {
			return fmt.Errorf("lock the back office's schema: %w", err)
		}
		const note = `CREATE TABLE IF NOT EXISTS schema_migrations (
			version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`
		if _, err := tx.Exec(ctx, note); err != nil {
			return fmt.Errorf("make the list of migrations: %w", hint(err))
		}
		// Another process may have been faster while this one waited. The table itself tells,
		// to_regclass does not: within a transaction it may answer from before the wait.
		version, err := listedVersion(ctx, tx)
		if err != nil {
			return err
		}
		for i := version; i < len(steps); i++ {
			if _, err := tx.Exec(ctx, steps[i].sql); err != nil { // without arguments: several statements
				return fmt.Errorf("migrate the back office by %s: %w", steps[i].name, hint(err))
			}
			if _, err := tx.Exec(ctx, `INSERT INTO schema_migrations (version, name) VALUES ($1, $2)`, i+1, steps[i].name); err != nil {
				return fmt.Errorf("note migration %s: %w", steps[i].name, err)
			}
		}
		return nil
	})
}

type migration struct{ name, sql string }

// readMigrations gives the embedded files in their order, which has no gap: the i-th is
// version i+1.
func readMigrations() ([]migration, error) {
	files, err := fs.Glob(migrations, "migrations/*.sql") // sorted by name
	if err != nil {
		return nil, err
	}
	steps := make([]migration, len(files))
	for i, file := range files {
		name := path.Base(file)
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s: want its number to be %04d", name, i+1)
		}
		text, err := migrations.ReadFile(file)
		if err != nil {
			return nil, err
		}
		steps[i] = migration{name, string(text)}
	}
	return steps, nil
}

// querier is a connection or a transaction on it.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// schemaVersion is the highest migration that was applied; 0 in an empty database.
func schemaVersion(ctx context.Context, q querier) (version int, err error) {
	var noted bool
	if err := q.QueryRow(ctx, `SELECT to_regclass('schema_migrations') IS NOT NULL`).Scan(&noted); err != nil {
		return 0, fmt.Errorf("look for the back office's schema: %w", hint(err))
	}
	if !noted {
		return 0, nil
	}
	return listedVersion(ctx, q)
}

func listedVersion(ctx context.Context, q querier) (version int, err error) {
	if err := q.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM schema_migrations`).Scan(&version); err != nil {
		return 0, fmt.Errorf("read the back office's schema version: %w", hint(err))
	}
	return version, nil
}
