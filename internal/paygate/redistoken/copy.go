package redistoken

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const copyVersion = 1

// copied is the state as Export writes it. The pause after a failure is not in
// it: the ledger guards what matters.
type copied struct {
	Version   int       `json:"v"`
	Account   string    `json:"account"`
	Token     string    `json:"token,omitempty"`
	CalledAt  time.Time `json:"called_at,omitzero"`
	RenewAt   time.Time `json:"renew_at,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Grants    []call    `json:"grants"`
}

// call is one entry of the ledger.
type call struct {
	Owner string    `json:"owner"`
	At    time.Time `json:"at"`
}

// Export gives the token, its times and the ledger as JSON, for Import into
// another Redis. It holds the token: keep it as a secret.
func (s *Source) Export(ctx context.Context) ([]byte, error) {
	var current *redis.MapStringStringCmd
	var ledger *redis.ZSliceCmd
	_, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		current = p.HGetAll(ctx, s.keys[keyCurrent])
		ledger = p.ZRangeWithScores(ctx, s.keys[keyGrants], 0, -1)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("export gateway token: %w", err)
	}
	c := copied{Version: copyVersion, Account: s.account, Grants: []call{}}
	if cur := current.Val(); len(cur) > 0 {
		c.Token = cur["token"]
		for field, to := range map[string]*time.Time{"called_at": &c.CalledAt, "renew_at": &c.RenewAt, "expires_at": &c.ExpiresAt} {
			ms, err := strconv.ParseInt(cur[field], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("export gateway token: %s: %w", field, err)
			}
			*to = time.UnixMilli(ms).UTC()
		}
	}
	for _, z := range ledger.Val() {
		owner, _ := z.Member.(string)
		c.Grants = append(c.Grants, call{Owner: owner, At: time.UnixMilli(int64(z.Score)).UTC()})
	}
	return json.Marshal(c)
}

// Import adds what Export gave to what Redis has: the ledger's entries of the
// last hour are joined, and the token is taken if it is newer than the one there
// and has not expired. Safe to repeat. State of another account or version is
// refused as a whole.
func (s *Source) Import(ctx context.Context, state []byte) error {
	var c copied
	if err := json.Unmarshal(state, &c); err != nil {
		return errors.New("import gateway token: not what Export gives") // the cause may quote the token
	}
	switch {
	case c.Version != copyVersion:
		return fmt.Errorf("import gateway token: version %d, want %d", c.Version, copyVersion)
	case c.Account != s.account:
		return errors.New("import gateway token: it belongs to another account")
	}
	args := []any{ledgerWindow.Milliseconds(), c.Token, c.CalledAt.UnixMilli(), c.RenewAt.UnixMilli(), c.ExpiresAt.UnixMilli()}
	for _, g := range c.Grants {
		args = append(args, g.Owner, g.At.UnixMilli())
	}
	if err := restore.Run(ctx, s.rdb, s.keys, args...).Err(); err != nil {
		return fmt.Errorf("import gateway token: %w", err)
	}
	s.mu.Lock()
	s.trusted = answer{}
	s.mu.Unlock()
	return nil
}
