//go:build containers

package testenv_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"holdfast/internal/testenv"
)

func TestPairInContainers_ReplicaAcknowledges(t *testing.T) {
	pair := testenv.PairInContainers(t)
	rdb := redis.NewClient(&redis.Options{
		Addr: pair.Primary, PoolSize: 1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatalf("set: got %v, want nil", err)
	}
	if n, err := rdb.Wait(t.Context(), 1, 5*time.Second).Result(); err != nil || n != 1 {
		t.Errorf("WAIT: got %d, %v, want 1", n, err)
	}
}

func TestAWSInContainer_Answers(t *testing.T) {
	endpoint := testenv.AWSInContainer(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, endpoint+"/moto-api/data.json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatalf("get: got %v, want nil", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("get: got %s, want 200", resp.Status)
	}
}

func TestPostgresInContainer_Answers(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), testenv.PostgresInContainer(t))
	if err != nil {
		t.Fatalf("connect: got %v, want nil", err)
	}
	defer conn.Close(t.Context())
	var one int
	if err := conn.QueryRow(t.Context(), "SELECT 1").Scan(&one); err != nil || one != 1 {
		t.Errorf("SELECT 1: got %d, %v, want 1", one, err)
	}
}
