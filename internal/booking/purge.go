package booking

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// EpochMarkVersion is the version written into the mark of an epoch.
const EpochMarkVersion = 1

// EpochMark says in the booking store which sale's ledger an operator has begun:
// a rebuild takes no earlier one, although its records are still there. The JSON
// names are docs/shapes.md.
type EpochMark struct {
	Version int    `json:"v"`
	Epoch   string `json:"epoch"`
	// At is the ledger's clock when its ledger began, or when it was chosen.
	At time.Time `json:"at"`
	// Chosen: a person has said that this sale runs, and no other that the store knew
	// of at that time, though it be a later one.
	Chosen bool `json:"chosen,omitempty"`
}

// NewerThan tells whether the mark is of a later sale than a ledger of that epoch: then
// Redis has lost an acknowledged reset, if the mark was read first, since a reset
// writes the ledger first.
func (m EpochMark) NewerThan(epoch string) bool { return m.Epoch > epoch }

// Equal tells whether both say the same.
func (m EpochMark) Equal(o EpochMark) bool {
	return m.Version == o.Version && m.Epoch == o.Epoch && m.At.Equal(o.At) && m.Chosen == o.Chosen
}

// Validate tells whether the mark can be one of ours; it says why not.
func (m EpochMark) Validate() error {
	switch {
	case m.Version != EpochMarkVersion:
		return fmt.Errorf("epoch mark version %d: this program reads version %d", m.Version, EpochMarkVersion)
	case !isCrockford(m.Epoch, epochLen):
		return fmt.Errorf("epoch mark: %.40q is no epoch", m.Epoch)
	case m.At.IsZero():
		return errors.New("epoch mark: at is missing")
	}
	return nil
}

// Chooses tells a store whether a person's choice, made over the mark that was seen,
// replaces this one: not when it is there already. ErrNotOwner when neither of the two
// is this one.
func (m EpochMark) Chooses(seen, choice EpochMark) (bool, error) {
	switch {
	case m.Equal(choice):
		return false, nil
	case !m.Equal(seen):
		return false, fmt.Errorf("epoch %s was marked since it was looked at: %w", m.Epoch, ErrNotOwner)
	}
	return true, nil
}

// NextEpoch makes the identity of a sale that follows another: it sorts behind that
// one's, also when the clock has been put back since.
func NextEpoch(epoch string, now time.Time) string {
	if isCrockford(epoch, epochLen) {
		var began int64
		for _, c := range []byte(epoch[:7]) {
			began = began<<5 | int64(strings.IndexByte(crockford, c))
		}
		if after := time.Unix(began+1, 0); after.After(now) {
			now = after
		}
	}
	return NewEpoch(now)
}

// Purged stands in place of a candidate's hash once a purge has taken it out.
const Purged = "purged"

// Purge takes out of a refund that is done who it was for and what a person wrote;
// the money stays told, so that it never goes back twice. It tells whether it has
// changed anything; an error for one that is not done. Like the steps above it is
// one of the store's conditional write.
func (r *Refund) Purge() (bool, error) {
	if r.State != RefundDone {
		return false, fmt.Errorf("refund is %s: one that is not done is not purged", r.State)
	}
	was := *r
	r.CandidateHash, r.Note = Purged, ""
	if r.DoneBy != "gateway" {
		r.DoneBy = "operator"
	}
	return *r != was, nil
}

// Purge takes out of a closed notification whose payment it was of and the payer's
// words; its id stays, so that a redelivery finds it closed. It tells whether it
// has changed anything; an error for one that is open.
func (n *Notification) Purge() (bool, error) {
	if n.Outcome == "" {
		return false, errors.New("notification is open: it is not purged")
	}
	changed := n.Invoice != "" || n.Reference != ""
	n.Invoice, n.Reference = "", ""
	return changed, nil
}

// ErrNotEnded says that the ledger refused to end a sale, or a step of its purge, and
// that nothing was changed by that step.
var ErrNotEnded = errors.New("the ledger has refused, and nothing was changed")

// Ending is what must be quiet in Redis before a sale may end, as it was at one
// moment.
type Ending struct {
	// Open: booking is open; OpensAt is when it is scheduled to, zero when it is not.
	Open    bool
	OpensAt time.Time
	// UnderWay: a rebuild or a load of the allowlist has begun and is not finished.
	UnderWay bool
	// Candidates is how many are on the allowlist.
	Candidates int
}

// PersonalKeys are how many of each kind of key Redis keeps under candidates' names.
type PersonalKeys struct {
	// Lists are the allowlist and what loads of it have left, Emails the e-mails on
	// file, Stashes what is kept for the payments of holds.
	Lists, Emails, Stashes int
}
