package booking

import (
	"errors"
	"time"
)

// AllowlistLoad is the load of the allowlist that has the turn, as the seat ledger
// keeps it.
type AllowlistLoad struct {
	// Token is whose turn it is, Who is what a person is told of it. Since is when it
	// took the turn, Until when others may take it over; the ledger's clock.
	Token, Who   string
	Since, Until time.Time
	// Swapped: its list is in force, and what is left is to be cleared away.
	Swapped bool
	// Left: this load, or one before it, has left something to clear away.
	Left bool
	// Of is who had put the list in force that an earlier load left, "" when none did,
	// and OfSince since when that one had the turn.
	Of      string
	OfSince time.Time
	// Half: e-mails of the list in force are still to be changed, and booking cannot be
	// opened. Read by LoadUnfinished alone.
	Half bool
	// Open: booking is open.
	Open bool
	// Listed is how many were on the list in force when it began to stage.
	Listed int
	// Rows are the candidates staged, each once: Added were not on the list in force,
	// Changed were there with another e-mail, Unchanged as they are.
	Rows, Added, Changed, Unchanged int
}

// Removed is how many are on the list in force and not among those staged.
func (l AllowlistLoad) Removed() int { return l.Listed - l.Changed - l.Unchanged }

// What a load of the allowlist, or someone beside it, is refused for. Nothing was
// changed by the step that was refused.
var (
	ErrAllowlistOpen   = errors.New("booking is open: close it first, or load with --while-open")
	ErrAllowlistMany   = errors.New("booking is open or scheduled, and more e-mails change than can be changed in one step: close it (which takes the schedule off), load, and open or schedule it again; or load fewer changes at a time")
	ErrAllowlistTurn   = errors.New("the turn to load the allowlist is over or another's: run it again")
	ErrAllowlistTorn   = errors.New("what was staged is not all there, or the list in force was changed meanwhile (a failover, or someone else): run it again")
	ErrAllowlistRow    = errors.New("a code came before with another e-mail: correct the list")
	ErrAllowlistHalf   = errors.New("a load of the allowlist was cut off with its list in force and not all of its e-mails: run `seatctl candidates load` again, then open")
	ErrAllowlistMoved  = errors.New("another allowlist was put in force while it was read: read it again")
	ErrAllowlistBroken = errors.New("candidate is on the allowlist without an e-mail: load the allowlist again")
)
