// Package sqlite is an object store in a SQLite file that several processes of
// one machine share.
//
// Fail mode: closed. What cannot be written or read is an error and changes
// nothing. Clock: it needs none.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"holdfast/internal/booking"
	"holdfast/internal/objstore"
	"holdfast/internal/sqlitedb"
)

// Store is the object store in one file. Safe for concurrent use.
type Store struct{ db *sqlitedb.DB }

// Open opens or creates the file, whose folder must exist. A file written by a
// newer program is refused. The caller closes the store.
func Open(ctx context.Context, path string) (*Store, error) {
	db, err := sqlitedb.Open(ctx, path, schema())
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	return &Store{db: db}, nil
}

// schema: an object's version is its ETag, and no version is used twice.
func schema() sqlitedb.Schema {
	return sqlitedb.Schema{Name: "object store", Steps: []string{`
		CREATE TABLE objects (
			key     TEXT    PRIMARY KEY,
			version INTEGER NOT NULL,
			body    BLOB    NOT NULL
		) STRICT;
	`}}
}

// Close closes the file when the writes at work are finished. Safe to repeat.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("object store: close: %w", err)
	}
	return nil
}

// Get returns the object's body and ETag as they are now; booking.ErrNotFound
// when there is none.
func (s *Store) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	err = s.db.Reader().QueryRowContext(ctx, `SELECT body, version FROM objects WHERE key = ?`, key).Scan(&body, &etag)
	if errors.Is(err, sql.ErrNoRows) {
		err = booking.ErrNotFound
	}
	if err != nil {
		return nil, "", fmt.Errorf("get object %s: %w", key, err)
	}
	return body, etag, nil
}

// Put writes the object if it is absent (empty ifMatch) or still has the ETag
// ifMatch, and returns its new one; else objstore.ErrPreconditionFailed. The
// content type is for drivers that serve their objects.
func (s *Store) Put(ctx context.Context, key string, body []byte, _, ifMatch string) (etag string, err error) {
	if body == nil {
		body = []byte{} // nil would be NULL
	}
	version, err := sqlitedb.Write(ctx, s.db, func(tx *sqlitedb.Tx) (int64, error) {
		var have string
		var next int64
		err := tx.QueryRow(`SELECT coalesce((SELECT version FROM objects WHERE key = ?1), ''),
			(SELECT coalesce(max(version), 0) + 1 FROM objects)`, []any{key}, &have, &next)
		if err != nil {
			return 0, err
		}
		if have != ifMatch {
			return 0, objstore.ErrPreconditionFailed
		}
		_, err = tx.Exec(`INSERT INTO objects (key, version, body) VALUES (?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET version = excluded.version, body = excluded.body`, key, next, body)
		return next, err
	})
	if err != nil {
		return "", fmt.Errorf("put object %s: %w", key, err)
	}
	return strconv.FormatInt(version, 10), nil
}
