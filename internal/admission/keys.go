package admission

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// DefaultPrefix goes before every key of a sale. Its hash tag keeps all keys of
// one script in one slot.
const DefaultPrefix = "{sale}:"

// Keys names every Redis key of one sale; docs/shapes.md describes their values.
type Keys struct{ prefix string }

// NewKeys refuses a prefix without a hash tag: on a cluster the keys of one
// script would fall into different slots.
func NewKeys(prefix string) (Keys, error) {
	open := strings.IndexByte(prefix, '{')
	if open < 0 || strings.IndexByte(prefix[open:], '}') < 2 {
		return Keys{}, fmt.Errorf("key prefix %q: want a hash tag such as {sale}: in it", prefix)
	}
	return Keys{prefix: prefix}, nil
}

func (k Keys) epoch() string   { return k.prefix + "adm:epoch" }        // string
func (k Keys) seen() string    { return k.prefix + "adm:seen" }         // hash code -> row
func (k Keys) due() string     { return k.prefix + "adm:due" }          // sorted set code -> ms
func (k Keys) mark() string    { return k.prefix + "adm:mark" }         // string, TTL: written by every script but admit
func (k Keys) probe() string   { return k.prefix + "adm:probe" }        // string, TTL: written to see replicas acknowledge
func (k Keys) rebuild() string { return k.prefix + "adm:rebuild" }      // string: whose turn it is to rebuild
func (k Keys) late() string    { return k.prefix + "adm:late" }         // hash transaction -> decision
func (k Keys) notices() string { return k.prefix + "ntf:due" }          // sorted set message id -> ms
func (k Keys) total() string   { return k.prefix + "adm:total" }        // integer
func (k Keys) config() string  { return k.prefix + "sale:config" }      // hash
func (k Keys) open() string    { return k.prefix + "booking:open" }     // string 1 or 0
func (k Keys) opensAt() string { return k.prefix + "booking:opens_at" } // string, Unix ms
func (k Keys) valid() string   { return k.prefix + "candidates:valid" } // set of codes

// Of a load of the allowlist; scripts/lua/allowlist.lua says what each is for.
func (k Keys) load() string      { return k.prefix + "candidates:load" }       // hash
func (k Keys) next() string      { return k.prefix + "candidates:next" }       // set of codes
func (k Keys) nextEmail() string { return k.prefix + "candidates:next:email" } // hash code -> e-mail
func (k Keys) old() string       { return k.prefix + "candidates:old" }        // set of codes
func (k Keys) changed() string   { return k.prefix + "candidates:changed" }    // hash code -> e-mail
func (k Keys) kept() string      { return k.prefix + "candidates:kept" }       // set of codes
func (k Keys) swaps() string     { return k.prefix + "candidates:swaps" }      // integer

func (k Keys) version() string   { return k.prefix + "status:version" }   // integer
func (k Keys) published() string { return k.prefix + "status:published" } // hash: version, fingerprint, claimed
func (k Keys) throttle() string  { return k.prefix + "status:throttle" }  // string, TTL

func (k Keys) level(id string) string        { return k.prefix + "adm:level:" + id }         // integer
func (k Keys) email(code string) string      { return k.prefix + "candidate:email:" + code } // string
func (k Keys) attempt(attempt string) string { return k.prefix + "hold:attempt:" + attempt } // string, TTL
func (k Keys) payment(payment string) string { return k.prefix + "hold:payment:" + payment } // string, TTL

// Lock is the key of the reconciler's election.
func (k Keys) Lock() string { return k.prefix + "lock:reconciler" }

// idem is hashed, so that a client's key can hold anything.
func (k Keys) idem(code, key string) string { // string, TTL
	sum := sha256.Sum256([]byte(key))
	return k.prefix + "hold:idem:" + code + ":" + hex.EncodeToString(sum[:])
}

// base is what every script gets first.
func (k Keys) base() []string { return []string{k.epoch(), k.seen(), k.due(), k.mark()} }

func (k Keys) levels(ids []string) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = k.level(id)
	}
	return keys
}

// hold is what every stash's key begins with.
func (k Keys) hold() string { return k.prefix + "hold:" }

// lists are the allowlist and what loads of it leave, but for e-mails that are still
// to be changed.
func (k Keys) lists() []string {
	return []string{k.valid(), k.next(), k.nextEmail(), k.old(), k.kept()}
}
