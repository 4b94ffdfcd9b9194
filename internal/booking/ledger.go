package booking

import "time"

// Request is a booking request, normalised by CodeRule and NormalizeEmail.
type Request struct {
	Code, Email, Level string
	// Key is the client's idempotency key, or "".
	Key string
	// RequestID is the HTTP request's, for the record; it decides nothing.
	RequestID string
	// Until is when its caller stops waiting; zero: at its context's deadline. An
	// admission that is decided later takes no seat.
	Until time.Time
}

// Seat is an acknowledged admission.
type Seat struct {
	Row Row
	// Now is the ledger's clock.
	Now time.Time
	// Replay: the idempotency key's own attempt, which another call made and
	// brings to its end; this call goes no further.
	Replay bool
}

// Issued is a payment that we issued, and whose it is.
type Issued struct {
	Code, Attempt string
	Payment       Payment
}

// DueRow is a row that must be looked at now. Err is set when there is a code
// without a readable row.
type DueRow struct {
	Code string
	Row  Row
	Err  error
}

// Count says what a postponed look at a row counts.
type Count string

// What can be counted.
const (
	CountNothing    Count = "nothing"    // an outage: it says nothing of this row
	CountLook       Count = "look"       // an extension in doubt
	CountMiss       Count = "miss"       // the gateway gave no answer
	CountUnfinished Count = "unfinished" // the payer had not finished
)

// Figures are the seats as status.json tells them, from one script.
type Figures struct {
	// Version only grows, also over an emptied Redis.
	Version int64
	At      time.Time
	Open    bool
	OpensAt time.Time // zero when no opening is scheduled
	Reason  string    // "", "not_open" or "sold_out"
	Cap     int
	Total   int // admitted; -1 when the counter is damaged
	Levels  []LevelFigures
	// Fingerprint tells figures that differ apart.
	Fingerprint string
}

// LevelFigures are one level's seats.
type LevelFigures struct {
	ID, Name string
	Cap      int
	Admitted int // -1 when the counter is damaged
}

// Candidate is one line of the allowlist, normalised.
type Candidate struct{ Code, Email string }

// Applied is what putting a sale into force found.
type Applied struct {
	Epoch    string
	Total    int
	Admitted map[string]int // by level
}

// RestoredRow is a seat that a rebuild puts back.
type RestoredRow struct {
	Code string
	Row  Row
	// Look is when someone must look at it; zero means never.
	Look    time.Time
	Payment Payment
}
