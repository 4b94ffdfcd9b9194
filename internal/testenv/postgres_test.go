package testenv_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"holdfast/internal/testenv"
)

func TestPostgres_KeepsWhatItHeldAndKeepsDatabasesApart(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	one, other := server.Database(t), server.Database(t)
	ask := func(url, sql string) (n int, err error) {
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return 0, err
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		err = c.QueryRow(t.Context(), sql).Scan(&n)
		return n, err
	}
	c, err := pgx.Connect(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	if _, err := c.Exec(t.Context(), `CREATE TABLE kept AS SELECT 7 AS n`); err != nil {
		t.Fatal(err)
	}

	server.Stop()
	server.Stop() // safe to repeat
	if _, err := ask(one, `SELECT n FROM kept`); err == nil {
		t.Error("a stopped server: got an answer, want none")
	}
	if c.Ping(t.Context()) == nil {
		t.Error("a connection of before: got an answer, want it broken")
	}
	server.Start(t)
	if n, err := ask(one, `SELECT n FROM kept`); n != 7 || err != nil {
		t.Errorf("after the start: got %d, %v, want 7", n, err)
	}
	if _, err := ask(other, `SELECT n FROM kept`); err == nil {
		t.Error("another database: got the first one's table, want it empty")
	}
}
