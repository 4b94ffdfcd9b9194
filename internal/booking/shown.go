package booking

import (
	"errors"
	"time"
)

// Shown is how a sale stood when an operator was shown it and asked. A change that they
// agree to is made over that, or not at all.
type Shown struct {
	// Epoch is the sale's identity; "" when Redis was empty.
	Epoch string
	// Open and OpensAt are the switch, as Figures tell it.
	Open    bool
	OpensAt time.Time
	// Sale is sale:config, field by field as it is stored; empty when there was none.
	Sale map[string]string
}

// ErrNotAsShown refuses a change over something else than its operator was shown:
// nothing was changed.
var ErrNotAsShown = errors.New("not as shown: somebody else has changed it since: look again")
