package dynamo

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/booking"
)

// epochs is the key of the one item that is the epoch's mark.
const epochs = otherKind + "epoch"

// MarkEpoch writes down that the sale of this epoch has begun. A later one that is
// there stays. Safe to repeat.
func (s *Store) MarkEpoch(ctx context.Context, m booking.EpochMark) error {
	err := s.putMark(ctx, m, func(have booking.EpochMark) (bool, error) { return m.NewerThan(have.Epoch), nil })
	if err != nil {
		return fmt.Errorf("mark epoch %.40s: %w", m.Epoch, err)
	}
	return nil
}

// ChooseEpoch writes a mark, also one of an earlier epoch, in place of the one that was
// seen, or the zero one where there was none. Nil also when this very mark is there. An
// error that wraps ErrNotOwner when another is. Safe to repeat.
func (s *Store) ChooseEpoch(ctx context.Context, seen, m booking.EpochMark) error {
	err := s.putMark(ctx, m, func(have booking.EpochMark) (bool, error) { return have.Chooses(seen, m) })
	if err != nil {
		return fmt.Errorf("choose epoch %.40s: %w", m.Epoch, err)
	}
	return nil
}

// putMark puts the mark where there is none, or where replaces says so of the one that
// is there.
func (s *Store) putMark(ctx context.Context, m booking.EpochMark, replaces func(have booking.EpochMark) (bool, error)) error {
	m.At = m.At.Round(0).UTC()
	if err := m.Validate(); err != nil {
		return err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	fresh := func() item {
		it := key(epochs, epochs)
		it[body] = textValue(string(text))
		return it
	}
	if _, put, err := s.putIfAbsent(ctx, fresh()); err != nil || put {
		return err
	}
	_, err = s.changeBody(ctx, epochs, epochs, func(it item) (item, error) {
		have, err := decodeMark(it)
		if err != nil {
			return nil, err
		}
		if put, err := replaces(have); err != nil || !put {
			return nil, err
		}
		return fresh(), nil
	})
	return err
}

// EpochMark returns the mark of the latest epoch as it is now, or ErrNotFound when
// none was ever marked.
func (s *Store) EpochMark(ctx context.Context) (booking.EpochMark, error) {
	it, err := s.get(ctx, epochs, epochs)
	if err == nil && it == nil {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.EpochMark{}, fmt.Errorf("epoch mark: %w", err)
	}
	return decodeMark(it)
}

func decodeMark(it item) (booking.EpochMark, error) {
	var m booking.EpochMark
	err := readBody(it, &m)
	if err == nil {
		err = m.Validate()
	}
	if err != nil {
		return booking.EpochMark{}, fmt.Errorf("epoch mark: %w: %w", booking.ErrUnreadable, err)
	}
	return m, nil
}

// PurgeRecord deletes a record that is over, PAID or RELEASED, if it is in the
// state and of the transaction that were seen. Nil also when it is gone. An error
// that wraps ErrNotOwner when it has changed since; a HELD one is never deleted.
func (s *Store) PurgeRecord(ctx context.Context, seen booking.Record) error {
	if err := s.purgeRecord(ctx, seen); err != nil {
		return fmt.Errorf("purge record %s: %w", name(seen.CandidateHash, seen.Attempt), err)
	}
	return nil
}

func (s *Store) purgeRecord(ctx context.Context, seen booking.Record) error {
	if seen.State == booking.StateHeld {
		return fmt.Errorf("it is %s, which is not over: %w", seen.State, booking.ErrNotOwner)
	}
	condition := "attribute_not_exists(#" + PartitionKey + ") OR (#v = :v AND #state = :state AND "
	values := item{":v": numberValue(booking.RecordVersion), ":state": textValue(string(seen.State))}
	if seen.Transaction == "" {
		condition += "attribute_not_exists(#transaction))"
	} else {
		condition += "#transaction = :transaction)"
		values[":transaction"] = textValue(seen.Transaction)
	}
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: &s.table, Key: key(seen.CandidateHash, seen.Attempt),
		ConditionExpression: aws.String(condition), ExpressionAttributeNames: names(condition), ExpressionAttributeValues: values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	there, unmet := unmetBy(err)
	if !unmet {
		return explain(s.table, err)
	}
	if _, err := decode(there); err != nil {
		return err
	}
	return fmt.Errorf("it has changed since it was read: %w", booking.ErrNotOwner)
}

// PurgeRefund takes out of a refund that is done who it was for (booking.Refund.Purge),
// and tells whether there was anything. Safe to repeat.
func (s *Store) PurgeRefund(ctx context.Context, transaction string) (bool, error) {
	_, changed, err := s.changeRefund(ctx, transaction, (*booking.Refund).Purge)
	if err != nil {
		return false, fmt.Errorf("purge refund of %s: %w", transaction, err)
	}
	return changed, nil
}

// Notifications scans every notification, open and closed, in pages, in no promised
// order; see OpenNotifications.
func (s *Store) Notifications(ctx context.Context) iter.Seq2[booking.Notification, error] {
	all := func(yield func(item, error) bool) {
		for i := range partitions {
			for it, err := range s.query(ctx, s.partition(notifications+strconv.Itoa(i))) {
				if !yield(it, err) || err != nil {
					return
				}
			}
		}
	}
	return list("scan notifications", all, func(it item) (booking.Notification, error) {
		n, err := decodeNotification(it)
		if err != nil {
			n.ID = idOf(it)
		}
		return n, err
	})
}

// PurgeNotification takes out of a closed notification whose payment it was of
// (booking.Notification.Purge), and tells whether there was anything. Safe to repeat.
func (s *Store) PurgeNotification(ctx context.Context, id string) (bool, error) {
	changed, err := s.changeBody(ctx, partitionOf(id), notificationKey+id, func(it item) (item, error) {
		n, err := decodeNotification(it)
		if err != nil {
			return nil, err
		}
		if changed, err := n.Purge(); err != nil || !changed {
			return nil, err
		}
		return encodeNotification(n)
	})
	if err != nil {
		return false, fmt.Errorf("purge notification %s: %w", id, err)
	}
	return changed, nil
}
