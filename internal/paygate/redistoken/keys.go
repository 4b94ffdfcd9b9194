package redistoken

import (
	"crypto/sha256"
	"encoding/hex"
)

// keys names the account's four keys, in the order that every script takes.
// What stands for the account is their hash tag, so that they share a slot. It is
// a hash because an account's name can be a phone number or an application's key,
// and keys turn up in slow logs.
func keys(account string) []string {
	sum := sha256.Sum256([]byte(account))
	tag := "token:{" + hex.EncodeToString(sum[:8]) + "}:"
	return []string{
		tag + "current", // hash: the token
		tag + "lock",    // string with TTL: who asks for the next one
		tag + "grants",  // sorted set with TTL: the ledger of grant calls
		tag + "pause",   // string with TTL: a grant has failed
	}
}

// The places of keys that are used outside scripts.
const (
	keyCurrent = 0
	keyGrants  = 2
)
