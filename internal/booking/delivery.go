package booking

import (
	"errors"
	"time"
)

// Delivery is one message handed out by the queue. Its visibility time-out
// runs from when it was received.
type Delivery struct {
	// Receipt is what Delete and Delay want; good for this delivery only.
	Receipt string
	// Group is the message group; within one, messages come in order and only
	// one delivery's messages are out at a time.
	Group string
	// DedupID is the deduplication id it was sent with.
	DedupID string
	// Body is the message as it was sent.
	Body []byte
	// Receives counts deliveries of this message, this one included.
	Receives int
	// SentAt is when the queue accepted it.
	SentAt time.Time
}

// QueueStats is what an operator wants to know of the queue.
type QueueStats struct {
	Waiting  int // may be received now, or when their group is free
	InFlight int // received, not deleted, visibility time-out running
	Dead     int // in the dead-letter queue
	// OldestAge is the age of the oldest message that is not deleted; 0 when
	// there is none.
	OldestAge time.Duration
}

// ErrUnreadable marks a record or message that is there but cannot be read. A
// scan that meets one reports it and goes on.
var ErrUnreadable = errors.New("stored item cannot be read")

// ErrUnavailable marks a write that the store refuses for now, whatever is written:
// it is throttled, or this process may not. The same write may be taken later, while
// another, of another kind, is taken all along.
var ErrUnavailable = errors.New("the store does not take this write now")

// ErrUnsendable says of a mail that no repeat will send it as it is: there is no
// usable address, or no message can be made of it. A person must act.
var ErrUnsendable = errors.New("mail cannot be sent as it is")

// Mail is the confirmation of a paid booking. The address is in no other
// shape.
type Mail struct {
	To         string
	Sale       string // as people call it; see Sale.Called
	LevelName  string
	BookingURL string
	Record     Record
}
