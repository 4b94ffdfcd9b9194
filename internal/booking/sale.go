package booking

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// DefaultHold is how long a seat waits for its payment when the sale file does
// not say otherwise.
const DefaultHold = 10 * time.Minute

// Bounds of a hold. A sale for people takes minutes; a rehearsal's holds are
// seconds. After a day the gateway has forgotten the payment.
const (
	MinHold = time.Second
	MaxHold = 24 * time.Hour
)

// Level is one kind of seat. Its cap and fee are whole: a cap of 0 sells
// nothing.
type Level struct {
	// ID is what a request names ("N1"): 1 to 16 letters, digits, - or _.
	ID string `json:"id"`
	// Name is what a person reads ("N1 Advanced").
	Name string `json:"name"`
	// Cap is how many seats the level may ever have admitted at once.
	Cap int `json:"cap"`
	// Fee is the price of one seat in minor units of the sale's currency.
	Fee Money `json:"fee"`
}

// Sale is what is sold: the levels, their caps and fees, the global cap and
// the length of a hold. The running sale is the copy in Redis (sale:config);
// this type is how it is written, compared and shown.
type Sale struct {
	// Name identifies the sale to operators and in the back office's table.
	Name string `json:"name"`
	// Title is what people read of the sale; "" for its name.
	Title string `json:"title,omitempty"`
	// Currency is the ISO 4217 code every fee is in; it has two decimals.
	Currency string `json:"currency"`
	// Cap is the global cap. Level caps may add up to more than it.
	Cap int `json:"cap"`
	// Hold is how long an admitted candidate has to pay.
	Hold time.Duration `json:"hold"`
	// Levels in the order a person should see them.
	Levels []Level `json:"levels"`
}

var (
	levelID  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,16}$`)
	saleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	currency = regexp.MustCompile(`^[A-Z]{3}$`)
)

// maxCap bounds caps so that sums and Lua's numbers stay exact.
const maxCap = 10_000_000

// Validate reports everything that is wrong with the sale, all at once.
func (s Sale) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !saleName.MatchString(s.Name) {
		bad("name %q: want 1 to 64 letters, digits, dots, dashes or underscores, starting with a letter or digit", s.Name)
	}
	if !currency.MatchString(s.Currency) {
		bad("currency %q: want three capital letters, such as BDT", s.Currency)
	}
	if s.Cap < 0 || s.Cap > maxCap {
		bad("cap %d: want 0 to %d", s.Cap, maxCap)
	}
	if s.Hold < MinHold || s.Hold > MaxHold || s.Hold%time.Millisecond != 0 {
		bad("hold %s: want %s to %s in whole milliseconds", s.Hold, MinHold, MaxHold)
	}
	if len(s.Levels) == 0 {
		bad("levels: want at least one")
	}
	seen := map[string]bool{}
	for _, l := range s.Levels {
		if !levelID.MatchString(l.ID) {
			bad("level %q: want an id of 1 to 16 letters, digits, - or _", l.ID)
		}
		if seen[l.ID] {
			bad("level %q: named twice", l.ID)
		}
		seen[l.ID] = true
		if l.Cap < 0 || l.Cap > maxCap {
			bad("level %q: cap %d: want 0 to %d", l.ID, l.Cap, maxCap)
		}
		if l.Fee <= 0 {
			bad("level %q: fee %s: want more than 0", l.ID, l.Fee)
		}
	}
	return errors.Join(errs...)
}

// Called is the title, or the name of a sale without one.
func (s Sale) Called() string { return cmp.Or(s.Title, s.Name) }

// Level finds a level by id.
func (s Sale) Level(id string) (Level, bool) {
	for _, l := range s.Levels {
		if l.ID == id {
			return l, true
		}
	}
	return Level{}, false
}

// LevelIDs lists the ids in the sale's order.
func (s Sale) LevelIDs() []string {
	ids := make([]string, len(s.Levels))
	for i, l := range s.Levels {
		ids[i] = l.ID
	}
	return ids
}
