package dynamo

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/booking"
)

// Where the operator's log is: the entries of the changes that began in one month
// share a partition, and another one tells which months there are, so that no reader
// has to know when the log began or what time it is.
const (
	logMonths   = otherKind + "log"
	logOfMonth  = logMonths + "#"
	logMonthKey = "2006-01"
)

// AppendLog adds an entry to the operator's log. Nil also when this very entry is
// there already, so that it is safe to repeat; ErrLogTaken when another one is under
// its id, which stays. Entries are never changed and have no TTL.
func (s *Store) AppendLog(ctx context.Context, e booking.LogEntry) error {
	text, err := e.Encode()
	if err != nil {
		return fmt.Errorf("append to the operator's log: %w", err)
	}
	if err := s.appendLog(ctx, e.ID, text); err != nil {
		return fmt.Errorf("append %s to the operator's log: %w", e.ID, err)
	}
	return nil
}

func (s *Store) appendLog(ctx context.Context, id, text string) error {
	month := monthOf(id)
	// The month first: an entry that no list finds would be lost.
	if _, _, err := s.putIfAbsent(ctx, key(logMonths, month)); err != nil {
		return err
	}
	it := key(logOfMonth+month, id)
	it[body] = textValue(text)
	there, put, err := s.putIfAbsent(ctx, it)
	if err != nil || put {
		return err
	}
	if have, ok := there[body].(*types.AttributeValueMemberS); !ok || have.Value != text {
		return booking.ErrLogTaken
	}
	return nil
}

// monthOf is the month in which the change of an id began.
func monthOf(id string) string {
	at, _ := booking.LogIDTime(id) // of an entry that is valid
	return at.Format(logMonthKey)
}

// Log reads the entries of the changes that began at that time or later, by
// consistent reads, in pages, in the order of their ids: oldest change first, and its
// second entry behind its first one. An entry that cannot be read comes as an error
// that wraps booking.ErrUnreadable and names it, beside an entry with the id alone,
// and the list goes on; any other error ends it.
func (s *Store) Log(ctx context.Context, since time.Time) iter.Seq2[booking.LogEntry, error] {
	from := booking.LogIDsFrom(since)
	items := func(yield func(item, error) bool) {
		first := time.UnixMilli(max(0, since.UnixMilli())).UTC().Format(logMonthKey)
		for month, err := range s.query(ctx, s.behind(logMonths, first)) {
			if err != nil {
				yield(nil, err)
				return
			}
			_, name := keyOf(month)
			for it, err := range s.query(ctx, s.behind(logOfMonth+name, from)) {
				if !yield(it, err) || err != nil {
					return
				}
			}
		}
	}
	return list("read the operator's log", items, func(it item) (booking.LogEntry, error) {
		_, id := keyOf(it)
		text, _ := it[body].(*types.AttributeValueMemberS)
		if text == nil {
			text = new(types.AttributeValueMemberS) // which cannot be read either
		}
		return booking.DecodeLogEntry(id, text.Value)
	})
}

// behind asks for the items under a partition key from a sort key on.
func (s *Store) behind(partition, from string) *dynamodb.QueryInput {
	in := s.partition(partition)
	*in.KeyConditionExpression += " AND #" + SortKey + " >= :from"
	in.ExpressionAttributeValues[":from"] = textValue(from)
	return in
}
