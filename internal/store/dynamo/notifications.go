package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/booking"
)

// Where notifications are.
const (
	notifications   = otherKind + "notifications#"
	notificationKey = "ntf#"
	// partitions is over how many partitions they are spread. One takes 1,000 write
	// units a second, and 20,700 payments in one minute, each put and closed, with the
	// index, would be 1,400. Another number would not find what is stored.
	partitions = 8
)

// PutNotification puts the notification, which must be open, if there is none
// under its id, and tells stored. False when there is one, open or closed, which
// stays as it is: a redelivery changes nothing.
func (s *Store) PutNotification(ctx context.Context, n booking.Notification) (bool, error) {
	if err := validOpen(n); err != nil {
		return false, fmt.Errorf("put notification: %w", err)
	}
	stored, err := s.putNotification(ctx, n)
	if err != nil {
		return false, fmt.Errorf("put notification %s: %w", n.ID, err)
	}
	return stored, nil
}

func (s *Store) putNotification(ctx context.Context, n booking.Notification) (bool, error) {
	it, err := encodeNotification(n)
	if err != nil {
		return false, err
	}
	there, put, err := s.putIfAbsent(ctx, it)
	if err != nil || put {
		return put, err
	}
	_, err = decodeNotification(there)
	return false, err
}

func validOpen(n booking.Notification) error {
	if err := n.Validate(); err != nil {
		return err
	}
	if n.Outcome != "" || !n.ClosedAt.IsZero() {
		return errors.New("it is closed, want it open")
	}
	return nil
}

// Notification returns the notification as it is now, or ErrNotFound.
func (s *Store) Notification(ctx context.Context, id string) (booking.Notification, error) {
	it, err := s.get(ctx, partitionOf(id), notificationKey+id)
	if err == nil && it == nil {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Notification{}, fmt.Errorf("notification %s: %w", id, err)
	}
	return decodeNotification(it)
}

// OpenNotifications scans the notifications that are not closed, in pages, first
// received first; one put or closed meanwhile may be seen or not. One that cannot
// be read comes as an error that wraps booking.ErrUnreadable and names it, beside
// a notification with the id alone, and the scan goes on; any other error ends
// it.
func (s *Store) OpenNotifications(ctx context.Context) iter.Seq2[booking.Notification, error] {
	parts := make([]iter.Seq2[item, error], partitions)
	for i := range parts {
		in := s.partition(notifications + strconv.Itoa(i))
		in.IndexName = aws.String(ListedIndex)
		parts[i] = s.query(ctx, in)
	}
	return list("scan open notifications", merge(parts), func(it item) (booking.Notification, error) {
		n, err := decodeNotification(it)
		if err != nil {
			n.ID = idOf(it)
		}
		return n, err
	})
}

// merge hands on the items of several lists, each in its order, in the order of
// all; an error ends it.
func merge(parts []iter.Seq2[item, error]) iter.Seq2[item, error] {
	type head struct {
		item item
		next func() (item, error, bool)
	}
	return func(yield func(item, error) bool) {
		var heads []*head
		advance := func(h *head) (more bool, err error) {
			h.item, err, more = h.next()
			return more, err
		}
		for _, part := range parts {
			next, stop := iter.Pull2(part)
			defer stop()
			h := &head{next: next}
			more, err := advance(h)
			if err != nil {
				yield(nil, err)
				return
			}
			if more {
				heads = append(heads, h)
			}
		}
		for len(heads) > 0 {
			first := 0
			for i, h := range heads {
				if listed(h.item) < listed(heads[first].item) {
					first = i
				}
			}
			if !yield(heads[first].item, nil) {
				return
			}
			more, err := advance(heads[first])
			if err != nil {
				yield(nil, err)
				return
			}
			if !more {
				heads = append(heads[:first], heads[first+1:]...)
			}
		}
	}
}

// CloseNotification ends the notification's life with what became of its money.
// The first outcome stands: nil also when it is closed already, with whatever
// outcome. ErrNotFound when there is none.
func (s *Store) CloseNotification(ctx context.Context, id string, outcome booking.NotificationOutcome, at time.Time) error {
	switch outcome {
	case booking.NotifiedPaid, booking.NotifiedRefund, booking.NotifiedAnomaly:
	default:
		return fmt.Errorf("close notification %s: outcome %q is unknown", id, outcome)
	}
	if at.IsZero() {
		return fmt.Errorf("close notification %s: time is missing", id)
	}
	_, err := s.changeBody(ctx, partitionOf(id), notificationKey+id, func(it item) (item, error) {
		n, err := decodeNotification(it)
		if err != nil || n.Outcome != "" {
			return nil, err
		}
		n.Outcome, n.ClosedAt = outcome, at
		return encodeNotification(n)
	})
	if err != nil {
		return fmt.Errorf("close notification %s: %w", id, err)
	}
	return nil
}

// partitionOf is the partition of a message.
func partitionOf(id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never an error
	return notifications + strconv.FormatUint(uint64(h.Sum32()%partitions), 10)
}

// encodeNotification makes a notification's item, times in UTC. Only an open one is
// listed.
func encodeNotification(n booking.Notification) (item, error) {
	for _, t := range []*time.Time{&n.ReceivedAt, &n.SentAt, &n.ClosedAt} {
		*t = t.Round(0).UTC()
	}
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	it := key(partitionOf(n.ID), notificationKey+n.ID)
	it[body] = textValue(string(text))
	if n.Outcome == "" {
		it[listedAt] = textValue(n.ReceivedAt.Format(instantForm) + " " + n.ID)
	}
	return it, nil
}

// decodeNotification reads a notification's item and holds it against its key.
func decodeNotification(it item) (booking.Notification, error) {
	var n booking.Notification
	err := readBody(it, &n)
	if err == nil {
		err = n.Validate()
	}
	if err == nil && n.ID != idOf(it) {
		err = errors.New("notification is another's")
	}
	if err != nil {
		return booking.Notification{}, fmt.Errorf("notification %s: %w: %w", idOf(it), booking.ErrUnreadable, err)
	}
	return n, nil
}

func idOf(it item) string {
	_, sort := keyOf(it)
	return strings.TrimPrefix(sort, notificationKey)
}

// listed is by what an item of the index is ordered.
func listed(it item) string {
	if at, ok := it[listedAt].(*types.AttributeValueMemberS); ok {
		return at.Value
	}
	return "" // not in the index
}
