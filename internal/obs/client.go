package obs

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// clientLength is how many characters of the hash a line gets: enough to tell the
// addresses of a rush apart.
const clientLength = 12

// minClientKey is the least a key has: whoever guesses it can try out every address
// there is.
const minClientKey = 16

// Clients names where requests come from, for the log: one name for an address within
// a day of UTC, another the next day, and no way back without the key.
type Clients struct {
	key  []byte
	hops int
	now  func() time.Time
}

// NewClients makes names by a key that the fleet shares, so that all its processes
// call an address the same. hops is how many proxies of ours stand before this
// process, each of which adds the address it was called from to X-Forwarded-For; with
// 0 the header is nobody's word and the connection counts. The error says what is
// wrong with the arguments.
func NewClients(key []byte, hops int, now func() time.Time) (*Clients, error) {
	if len(key) < minClientKey || hops < 0 || now == nil {
		return nil, fmt.Errorf("names of clients: key of %d bytes, %d hops: want at least %d bytes, 0 hops or more, and a clock", len(key), hops, minClientKey)
	}
	return &Clients{key: key, hops: hops, now: now}, nil
}

// Name is 12 hex characters, or "" where the address is not known: the request came
// past the proxies, or it is the balancer's own. An IPv6 address is named by its
// first 64 bits, which is what one subscriber has. Safe for concurrent use.
func (c *Clients) Name(r *http.Request) string {
	addr, err := c.address(r)
	if err != nil {
		return ""
	}
	// A key for each day, so that what is known of one day's tells nothing of another's.
	day, err := hkdf.Key(sha256.New, c.key, nil, "holdfast log client "+c.now().UTC().Format(time.DateOnly), sha256.Size)
	if err != nil {
		return ""
	}
	mac := hmac.New(sha256.New, day)
	mac.Write(addr.AsSlice())
	return hex.EncodeToString(mac.Sum(nil))[:clientLength]
}

var errNoAddress = errors.New("no address")

func (c *Clients) address(r *http.Request) (netip.Addr, error) {
	text := r.RemoteAddr
	if c.hops > 0 {
		// Each proxy appends, so only the last ones are ours.
		all := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		if len(all) < c.hops {
			return netip.Addr{}, errNoAddress
		}
		text = strings.TrimSpace(all[len(all)-c.hops])
	}
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		both, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, errNoAddress
		}
		addr = both.Addr()
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		network, err := addr.Prefix(64)
		if err != nil {
			return netip.Addr{}, errNoAddress
		}
		addr = network.Addr()
	}
	return addr, nil
}
