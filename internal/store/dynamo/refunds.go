package dynamo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/booking"
)

// refunds is the partition of all refunds.
const refunds = otherKind + "refunds"

// body is the attribute that holds a refund or a notification as its JSON; isOpen is
// there while a refund is not done.
const (
	body   = "body"
	isOpen = "open"
)

// PutRefund puts the refund, which must be due and claimed by nobody, if its
// transaction has none, and tells put; else it returns the refund that is there,
// however far it has come, untouched. A second report of the same money, or a
// repeat after a crash, so finds the first one's refund.
func (s *Store) PutRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error) {
	if err := validDue(r); err != nil {
		return booking.Refund{}, false, fmt.Errorf("put refund: %w", err)
	}
	there, put, err := s.putRefund(ctx, r)
	if err != nil {
		return booking.Refund{}, false, fmt.Errorf("put refund of %s: %w", r.Transaction, err)
	}
	return there, put, nil
}

func (s *Store) putRefund(ctx context.Context, r booking.Refund) (booking.Refund, bool, error) {
	it, err := encodeRefund(r)
	if err != nil {
		return booking.Refund{}, false, err
	}
	there, put, err := s.putIfAbsent(ctx, it)
	if err != nil {
		return booking.Refund{}, false, err
	}
	r, err = decodeRefund(there)
	return r, put, err
}

func validDue(r booking.Refund) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if r.State != booking.RefundDue || r.Claim != "" {
		return fmt.Errorf("state is %s, claim %q, want %s and none", r.State, r.Claim, booking.RefundDue)
	}
	return nil
}

// Refund returns the transaction's refund as it is now, or ErrNotFound.
func (s *Store) Refund(ctx context.Context, transaction string) (booking.Refund, error) {
	it, err := s.get(ctx, refunds, booking.RefundKey(transaction))
	if err == nil && it == nil {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Refund{}, fmt.Errorf("refund of %s: %w", transaction, err)
	}
	return decodeRefund(it)
}

// RefundsOf returns every refund of the attempt as it is now, oldest decision
// first; none is no error. Refunds that cannot be read are left out and named by
// the error, which comes beside the others.
func (s *Store) RefundsOf(ctx context.Context, candidateHash, attempt string) ([]booking.Refund, error) {
	in := s.partition(refunds)
	in.IndexName = aws.String(AttemptIndex)
	*in.KeyConditionExpression += " AND #" + ofAttempt + " = :of"
	in.ExpressionAttributeValues[":of"] = textValue(booking.Invoice(candidateHash, attempt))
	var out []booking.Refund
	var errs []error
	for it, err := range s.query(ctx, in) {
		if err != nil {
			return nil, fmt.Errorf("refunds of %s: %w", name(candidateHash, attempt), err)
		}
		r, err := decodeRefund(it)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b booking.Refund) int {
		return cmp.Or(a.DecidedAt.Compare(b.DecidedAt), strings.Compare(a.Transaction, b.Transaction))
	})
	return out, errors.Join(errs...)
}

// Refunds scans every refund, in pages, oldest decision first; a refund put or
// changed meanwhile may be seen as it was before or after. A refund that cannot
// be read comes as an error that wraps booking.ErrUnreadable and names it, beside
// a refund with the transaction alone, and the scan goes on; any other error
// ends it.
func (s *Store) Refunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	in := s.partition(refunds)
	in.IndexName = aws.String(ListedIndex)
	return list("scan refunds", s.query(ctx, in), refundOrKey)
}

// OpenRefunds is Refunds without those that are done.
func (s *Store) OpenRefunds(ctx context.Context) iter.Seq2[booking.Refund, error] {
	in := s.partition(refunds)
	in.IndexName = aws.String(ListedIndex)
	in.FilterExpression = aws.String("attribute_exists(#" + isOpen + ")")
	return list("scan open refunds", s.query(ctx, in), refundOrKey)
}

// ClaimRefund gives the claim the right to work on a refund that is not done
// until the given time, if nobody else's claim is running at now, and returns the
// refund as it is then. False, beside the refund untouched, when it is not to be
// worked on by this claim; ErrNotFound without one. Repeated by the holder it
// renews. A claim is one worker's, used by nobody else: it alone tells two apart.
// State tells the holder what to do: one that is sent may have reached the
// gateway, which is asked before anything is sent again.
func (s *Store) ClaimRefund(ctx context.Context, transaction, claim string, now, until time.Time) (booking.Refund, bool, error) {
	r, claimed, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.ClaimFor(claim, now, until) })
	if err != nil {
		return booking.Refund{}, false, fmt.Errorf("claim refund of %s: %w", transaction, err)
	}
	return r, claimed, nil
}

// RefundSent writes down that the claim's holder is about to send the refund;
// only when it has returned nil may the gateway be called. SentAt becomes at,
// never an earlier time, so a repeat with the same time changes nothing.
// ErrNotFound without a refund; ErrNotOwner when it is done, when the claim is
// another's, and when the claim's time is over at that time, since the next
// holder could then ask the gateway before our call has reached it.
func (s *Store) RefundSent(ctx context.Context, transaction, claim string, at time.Time) error {
	_, _, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.Send(claim, at) })
	if err != nil {
		return fmt.Errorf("mark refund of %s as sent: %w", transaction, err)
	}
	return nil
}

// RefundDone ends the refund, whoever has claimed it: by is "gateway", or the
// operator who settled it by hand; the gateway's transaction of the money going
// back, or a note, must be there. Lease and trouble end with it. Nil also when it
// is done by the same hand with the same transaction, and then time and note
// stay. ErrNotFound without a refund; ErrRefundedOtherwise when it is done by
// another hand or with another transaction: the money may have gone back twice,
// and a person must look.
func (s *Store) RefundDone(ctx context.Context, transaction, by, refundTransaction, note string, at time.Time) error {
	_, _, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.Finish(by, refundTransaction, note, at) })
	if err != nil {
		return fmt.Errorf("mark refund of %s as done: %w", transaction, err)
	}
	return nil
}

// RefundTrouble writes down what stands against the refund and ends the claim's
// lease, also after its time; the state stays. Nil also when this trouble is
// there and nobody holds the refund. ErrNotFound without a refund, ErrNotOwner
// when it is done or the claim is another's.
func (s *Store) RefundTrouble(ctx context.Context, transaction, claim, trouble string) error {
	_, _, err := s.changeRefund(ctx, transaction, func(r *booking.Refund) (bool, error) { return r.Hinder(claim, trouble) })
	if err != nil {
		return fmt.Errorf("mark trouble with refund of %s: %w", transaction, err)
	}
	return nil
}

// changeRefund shows fn the refund as it is, and writes what it has made of it when
// it answers true. It returns the refund as it is then.
func (s *Store) changeRefund(ctx context.Context, transaction string, fn func(r *booking.Refund) (bool, error)) (booking.Refund, bool, error) {
	var r booking.Refund
	changed, err := s.changeBody(ctx, refunds, booking.RefundKey(transaction), func(it item) (next item, err error) {
		if r, err = decodeRefund(it); err != nil {
			return nil, err
		}
		if change, err := fn(&r); err != nil || !change {
			return nil, err
		}
		if next, err = encodeRefund(r); err != nil {
			return nil, err
		}
		r, err = decodeRefund(next) // as a later read will find it
		return next, err
	})
	return r, changed, err
}

// changeBody shows fn an item as it is and puts the one it answers in its place, if
// the body is still the one that fn saw, else fn is asked again; false when fn
// answers none. ErrNotFound without an item.
func (s *Store) changeBody(ctx context.Context, partition, sort string, fn func(item) (item, error)) (bool, error) {
	it, err := s.get(ctx, partition, sort)
	if err != nil {
		return false, err
	}
	for range tries {
		if it == nil {
			return false, booking.ErrNotFound
		}
		next, err := fn(it)
		if err != nil || next == nil {
			return false, err
		}
		there, put, err := s.put(ctx, next, "#"+body+" = :seen", item{":seen": it[body]})
		if err != nil || put {
			return put, err
		}
		it = there
	}
	return false, errAgain
}

// encodeRefund makes a refund's item, times in UTC.
func encodeRefund(r booking.Refund) (item, error) {
	for _, t := range []*time.Time{&r.DecidedAt, &r.SentAt, &r.ClaimUntil, &r.DoneAt} {
		*t = t.Round(0).UTC()
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	it := key(refunds, booking.RefundKey(r.Transaction))
	it[body] = textValue(string(text))
	it[ofAttempt] = textValue(booking.Invoice(r.CandidateHash, r.Attempt))
	it[listedAt] = textValue(r.DecidedAt.Format(instantForm) + " " + r.Transaction)
	if r.State != booking.RefundDone {
		it[isOpen] = &types.AttributeValueMemberBOOL{Value: true}
	}
	return it, nil
}

// decodeRefund reads a refund's item and holds it against its key.
func decodeRefund(it item) (booking.Refund, error) {
	var r booking.Refund
	_, sort := keyOf(it)
	err := readBody(it, &r)
	if err == nil {
		err = r.Validate()
	}
	if err == nil && booking.RefundKey(r.Transaction) != sort {
		err = errors.New("refund is another's")
	}
	if err != nil {
		return booking.Refund{}, fmt.Errorf("refund of %s: %w: %w", transactionOf(sort), booking.ErrUnreadable, err)
	}
	return r, nil
}

// refundOrKey is decodeRefund for a scan, which names what it could not read.
func refundOrKey(it item) (booking.Refund, error) {
	r, err := decodeRefund(it)
	if err != nil {
		_, sort := keyOf(it)
		r.Transaction = transactionOf(sort)
	}
	return r, err
}

// transactionOf is the transaction that a refund's sort key is of.
func transactionOf(sort string) string { return strings.TrimPrefix(sort, booking.RefundKey("")) }

// readBody reads the JSON in an item's body.
func readBody(it item, into any) error {
	text, ok := it[body].(*types.AttributeValueMemberS)
	if !ok {
		return errors.New("its body is not a text")
	}
	return json.Unmarshal([]byte(text.Value), into)
}
