package dynamo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"holdfast/internal/booking"
)

const (
	// pageItems is how many items a scan holds in memory.
	pageItems = 500
	// tries bounds the rounds of one call against others that change the same item.
	tries = 50
	// maxKey is the longest partition key that an index can have, in bytes.
	maxKey = 2048
)

// errAgain is a judge's word: the item may meet the condition now.
var errAgain = errors.New("the item changed under this call too often: repeat it")

// Store is the booking store in one table. Safe for concurrent use; every method
// is safe to repeat, and each of its calls to DynamoDB ends with the context, which
// should have a deadline: the SDK's repeats under throttling take seconds. An error
// does not tell whether a write was carried out: repeat it.
type Store struct {
	client *dynamodb.Client
	table  string
}

// New makes a store of the table, which Create or CloudFormation has made. It asks
// for nothing yet. The client is the caller's: its region, credentials, repeats and
// connections.
func New(client *dynamodb.Client, table string) *Store { return &Store{client: client, table: table} }

// PutHeld puts the HELD record if its attempt has none and tells created; else
// it returns the record that is there, whatever its state, untouched.
func (s *Store) PutHeld(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	if err := validHeld(rec); err != nil {
		return booking.Record{}, false, fmt.Errorf("put held record: %w", err)
	}
	there, created, err := s.putRecord(ctx, rec)
	if err != nil {
		return booking.Record{}, false, fmt.Errorf("put held record %s: %w", name(rec.CandidateHash, rec.Attempt), err)
	}
	return there, created, nil
}

// PutBack puts back a HELD record that housekeeping has deleted, without a TTL, if
// its attempt has none, and tells whether it did. For the expiry function.
func (s *Store) PutBack(ctx context.Context, rec booking.Record) (bool, error) {
	if err := validHeld(rec); err != nil {
		return false, fmt.Errorf("put back record: %w", err)
	}
	rec.TTL = time.Time{}
	_, put, err := s.putRecord(ctx, rec)
	if err != nil {
		return false, fmt.Errorf("put back record %s: %w", name(rec.CandidateHash, rec.Attempt), err)
	}
	return put, nil
}

func validHeld(rec booking.Record) error {
	if err := rec.Validate(); err != nil {
		return err
	}
	if rec.State != booking.StateHeld {
		return fmt.Errorf("state is %s, want %s", rec.State, booking.StateHeld)
	}
	return nil
}

// MarkPaid makes the attempt's record PAID by this payment, from HELD or
// RELEASED, or puts it as PAID if there is none: transaction and paid_at are
// set, the TTL is removed and the mail falls due, unless it was sent, in one
// write; the reason of an earlier release stays. Repeated with the same
// transaction it returns the record as it is. The error is ErrOtherThanOrdered
// when the record carries another payment, and ErrSecondPayment, beside the
// record, when it is PAID by another transaction; the record is untouched then.
func (s *Store) MarkPaid(ctx context.Context, p booking.Paid) (booking.Record, error) {
	hash, attempt := p.Record.CandidateHash, p.Record.Attempt
	if err := p.Record.Validate(); err != nil {
		return booking.Record{}, fmt.Errorf("mark paid: %w", err)
	}
	if p.Transaction == "" || p.PaidAt.IsZero() {
		return booking.Record{}, fmt.Errorf("mark paid %s: transaction or time is missing", name(hash, attempt))
	}
	put := p.Record
	put.State, put.Transaction, put.PaidAt, put.TTL = booking.StatePaid, p.Transaction, p.PaidAt, time.Time{}
	if put.Mail != booking.MailSent {
		put.Mail = booking.MailDue
	}
	rec, err := s.change(ctx, hash, attempt, &change{
		set:       "SET #state = :paid, #transaction = :transaction, #paid_at = :at, #mail = if_not_exists(#mail, :due) REMOVE #ttl",
		condition: "#payment_id = :payment AND #state IN (:held, :released)",
		values: item{
			":paid": textValue(string(booking.StatePaid)), ":transaction": textValue(p.Transaction), ":at": instantValue(p.PaidAt),
			":due": textValue(string(booking.MailDue)), ":payment": textValue(p.Record.PaymentID),
			":held": textValue(string(booking.StateHeld)), ":released": textValue(string(booking.StateReleased)),
		},
		absent: &put,
		judge: func(rec booking.Record) error {
			switch {
			case rec.PaymentID != p.Record.PaymentID:
				return otherPayment(rec, p.Record)
			case rec.State == booking.StatePaid && rec.Transaction != p.Transaction:
				return fmt.Errorf("transaction %s, paid by %s: %w", p.Transaction, rec.Transaction, booking.ErrSecondPayment)
			case rec.State == booking.StatePaid:
				return nil
			}
			return errAgain
		},
	})
	switch {
	case err == nil:
		return rec, nil
	case !errors.Is(err, booking.ErrSecondPayment):
		rec = booking.Record{}
	}
	return rec, fmt.Errorf("mark paid %s: %w", name(hash, attempt), err)
}

// Announce notes on the attempt's HELD record that an execute call is about to
// be sent, putting the record if there is none, and returns the record as it is
// then. The time noted is never an earlier one, and is another for each
// announcement, since Release tells them apart by it; a repeat with the time that
// is noted changes nothing. The error is ErrAlreadyPaid, ErrNotOwner (the record
// is RELEASED) or ErrOtherThanOrdered (another payment), and the call must not be
// sent.
func (s *Store) Announce(ctx context.Context, rec booking.Record, at time.Time) (booking.Record, error) {
	if err := validHeld(rec); err != nil {
		return booking.Record{}, fmt.Errorf("announce execute: %w", err)
	}
	put := rec
	put.ExecuteAt = at
	c := &change{
		set:       "SET #execute_at = :at",
		condition: "#payment_id = :payment AND #state = :held AND (attribute_not_exists(#execute_at) OR #execute_at <= :at)",
		values: item{
			":at": instantValue(at), ":payment": textValue(rec.PaymentID), ":held": textValue(string(booking.StateHeld)),
		},
		absent: &put,
	}
	c.judge = func(have booking.Record) error {
		switch {
		case have.PaymentID != rec.PaymentID:
			return otherPayment(have, rec)
		case have.State == booking.StatePaid:
			return booking.ErrAlreadyPaid
		case have.State == booking.StateReleased:
			return booking.ErrNotOwner
		case at.Before(have.ExecuteAt): // by a clock that is behind
			c.values[":at"] = instantValue(have.ExecuteAt.Add(time.Millisecond))
		}
		return errAgain
	}
	noted, err := s.change(ctx, rec.CandidateHash, rec.Attempt, c)
	if err != nil {
		return booking.Record{}, fmt.Errorf("announce execute of %s: %w", name(rec.CandidateHash, rec.Attempt), err)
	}
	return noted, nil
}

// Release moves a record from HELD to RELEASED, with the reason and with
// ReleasedTTL counted from at, if it still carries the payment and the execute_at
// that were seen. Nil also when it is RELEASED already, and then reason and TTL
// stay. Otherwise ErrNotFound, ErrOtherThanOrdered (another payment),
// ErrAlreadyPaid or ErrAnnounced (an execute call was announced since), and
// nothing changes.
func (s *Store) Release(ctx context.Context, seen booking.Record, reason string, at time.Time) error {
	c := &change{
		set:       "SET #state = :released, #reason = :reason, #ttl = :ttl",
		condition: "#payment_id = :payment AND #state = :held AND ",
		values: item{
			":released": textValue(string(booking.StateReleased)), ":reason": textValue(reason), ":ttl": ttlValue(booking.ReleasedTTL(at)),
			":payment": textValue(seen.PaymentID), ":held": textValue(string(booking.StateHeld)),
		},
		judge: func(rec booking.Record) error {
			switch {
			case rec.PaymentID != seen.PaymentID:
				return otherPayment(rec, seen)
			case rec.State == booking.StatePaid:
				return booking.ErrAlreadyPaid
			case rec.State == booking.StateReleased:
				return nil
			case !rec.ExecuteAt.Equal(seen.ExecuteAt):
				return booking.ErrAnnounced
			}
			return errAgain
		},
	}
	c.asSeen("execute_at", seen.ExecuteAt)
	if _, err := s.change(ctx, seen.CandidateHash, seen.Attempt, c); err != nil {
		return fmt.Errorf("release record %s: %w", name(seen.CandidateHash, seen.Attempt), err)
	}
	return nil
}

// Asked notes on a RELEASED record when the gateway was asked about its payment, if
// it still carries the payment and the asked_at that were seen. Nil also when
// another time was noted since: that question counts, and is not moved, so that a
// repeat or a second runner changes nothing. Otherwise ErrNotFound,
// ErrOtherThanOrdered (another payment) or ErrAlreadyPaid, and nothing changes; a
// HELD record is an error, too.
func (s *Store) Asked(ctx context.Context, seen booking.Record, at time.Time) error {
	if at.IsZero() {
		return fmt.Errorf("note question about %s: time is missing", name(seen.CandidateHash, seen.Attempt))
	}
	c := &change{
		set:       "SET #asked_at = :at",
		condition: "#payment_id = :payment AND #state = :released AND ",
		values: item{
			":at": instantValue(at), ":payment": textValue(seen.PaymentID), ":released": textValue(string(booking.StateReleased)),
		},
		judge: func(rec booking.Record) error {
			switch {
			case rec.PaymentID != seen.PaymentID:
				return otherPayment(rec, seen)
			case rec.State == booking.StatePaid:
				return booking.ErrAlreadyPaid
			case rec.State != booking.StateReleased:
				return fmt.Errorf("record is %s, want %s", rec.State, booking.StateReleased)
			case !rec.AskedAt.Equal(seen.AskedAt):
				return nil
			}
			return errAgain
		},
	}
	c.asSeen("asked_at", seen.AskedAt)
	if _, err := s.change(ctx, seen.CandidateHash, seen.Attempt, c); err != nil {
		return fmt.Errorf("note question about %s: %w", name(seen.CandidateHash, seen.Attempt), err)
	}
	return nil
}

// KeepHeld takes the TTL of a HELD record away. Nil also without a record, and when it
// is no longer HELD, which then stays as it is.
func (s *Store) KeepHeld(ctx context.Context, candidateHash, attempt string) error {
	c := &change{
		set: "REMOVE #ttl", condition: "#state = :held", values: item{":held": textValue(string(booking.StateHeld))},
		judge: func(booking.Record) error { return nil },
	}
	if _, err := s.change(ctx, candidateHash, attempt, c); err != nil && !errors.Is(err, booking.ErrNotFound) {
		return fmt.Errorf("keep record %s: %w", name(candidateHash, attempt), err)
	}
	return nil
}

// Extend moves the deadline of a HELD record later, and its TTL, if it has one,
// with it. A deadline that is not later than the record's changes nothing, so
// that neither a repeat nor a delay takes time back. Nil also when there is no
// record yet, which is then put with the deadline it was queued with and extended
// by a repeat, and when the attempt has ended.
func (s *Store) Extend(ctx context.Context, candidateHash, attempt string, deadline time.Time) error {
	if err := s.extend(ctx, candidateHash, attempt, deadline); err != nil {
		return fmt.Errorf("extend record %s: %w", name(candidateHash, attempt), err)
	}
	return nil
}

// extend reads first, because what becomes of the TTL depends on whether there is
// one; the deadline that was read is the condition.
func (s *Store) extend(ctx context.Context, hash, attempt string, deadline time.Time) error {
	it, err := s.get(ctx, hash, attempt)
	if err != nil || it == nil {
		return err
	}
	rec, err := decode(it)
	if err != nil {
		return err
	}
	c := &change{condition: "#state = :held AND #deadline = :seen", values: item{":held": textValue(string(booking.StateHeld))}}
	// aim makes the change that leads on from the record; false when there is none.
	aim := func(rec booking.Record) bool {
		c.set = "SET #deadline = :deadline"
		c.values[":deadline"], c.values[":seen"] = instantValue(deadline), instantValue(rec.Deadline)
		delete(c.values, ":ttl")
		if ttl := booking.HeldTTL(deadline); !rec.TTL.IsZero() && ttl.After(rec.TTL) {
			c.set += ", #ttl = :ttl"
			c.values[":ttl"] = ttlValue(ttl)
		}
		return rec.State == booking.StateHeld && deadline.After(rec.Deadline)
	}
	if !aim(rec) {
		return nil
	}
	c.judge = func(rec booking.Record) error {
		if !aim(rec) {
			return nil
		}
		return errAgain
	}
	if _, err := s.change(ctx, hash, attempt, c); !errors.Is(err, booking.ErrNotFound) {
		return err
	}
	return nil // deleted since it was read
}

// ClaimMail gives the claim the right to send the mail of a PAID record until
// the given time, if the mail is due and nobody else's claim is running at now.
// False when it is not to be sent by this claim, or there is no such record.
func (s *Store) ClaimMail(ctx context.Context, candidateHash, attempt, claim string, now, until time.Time) (bool, error) {
	if claim == "" {
		return false, errors.New("claim mail: claim is empty")
	}
	_, err := s.change(ctx, candidateHash, attempt, &change{
		set: "SET #mail_claim = :claim, #mail_claim_until = :until",
		condition: "#state = :paid AND #mail = :due AND " +
			"(attribute_not_exists(#mail_claim) OR #mail_claim = :claim OR #mail_claim_until <= :now)",
		values: item{
			":claim": textValue(claim), ":until": instantValue(until), ":now": instantValue(now),
			":paid": textValue(string(booking.StatePaid)), ":due": textValue(string(booking.MailDue)),
		},
		judge: func(booking.Record) error { return booking.ErrNotOwner },
	})
	if errors.Is(err, booking.ErrNotFound) || errors.Is(err, booking.ErrNotOwner) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("claim mail of %s: %w", name(candidateHash, attempt), err)
	}
	return true, nil
}

// MailSent writes down that the claim's holder has sent the mail, also after
// the claim's time. Nil also when it is marked as sent already. ErrNotFound
// without a record, ErrNotOwner when the claim is another's.
func (s *Store) MailSent(ctx context.Context, candidateHash, attempt, claim string) error {
	_, err := s.change(ctx, candidateHash, attempt, &change{
		set:       "SET #mail = :sent REMOVE #mail_claim, #mail_claim_until",
		condition: "#mail = :due AND #mail_claim = :claim", // which is never empty in the table
		values: item{
			":sent": textValue(string(booking.MailSent)), ":due": textValue(string(booking.MailDue)), ":claim": textValue(claim),
		},
		judge: func(rec booking.Record) error {
			if rec.Mail == booking.MailSent {
				return nil
			}
			return booking.ErrNotOwner
		},
	})
	if err != nil {
		return fmt.Errorf("mark mail of %s as sent: %w", name(candidateHash, attempt), err)
	}
	return nil
}

// Record returns the attempt's record as it is now, or ErrNotFound.
func (s *Store) Record(ctx context.Context, candidateHash, attempt string) (booking.Record, error) {
	it, err := s.get(ctx, candidateHash, attempt)
	if err == nil && it == nil {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, fmt.Errorf("record %s: %w", name(candidateHash, attempt), err)
	}
	return decode(it)
}

// RecordByPayment returns the record that carries the payment, or ErrNotFound,
// also for a moment after the record was put: the index lags. What it returns is
// the record as it is now.
func (s *Store) RecordByPayment(ctx context.Context, payment string) (booking.Record, error) {
	rec, err := s.recordByPayment(ctx, payment)
	if err != nil {
		return booking.Record{}, fmt.Errorf("record of a payment: %w", err) // whose id may be a stranger's text
	}
	return rec, nil
}

func (s *Store) recordByPayment(ctx context.Context, payment string) (booking.Record, error) {
	if n := len(payment); n == 0 || n > maxKey { // a browser may bring anything
		return booking.Record{}, booking.ErrNotFound
	}
	in := &dynamodb.QueryInput{
		IndexName: aws.String(PaymentIndex), KeyConditionExpression: aws.String("#payment_id = :payment"),
		ExpressionAttributeValues: item{":payment": textValue(payment)},
	}
	found, err := first(s.query(ctx, in))
	if err == nil && found == nil {
		err = booking.ErrNotFound
	}
	if err != nil {
		return booking.Record{}, err
	}
	hash, attempt := keyOf(found)
	rec, err := s.Record(ctx, hash, attempt)
	if err == nil && rec.PaymentID != payment {
		err = booking.ErrNotFound
	}
	return rec, err
}

// RecordsOf returns every record of the candidate as it is now, oldest attempt
// first; none is no error. Records that cannot be read are left out and named
// by the error, which comes beside the others.
func (s *Store) RecordsOf(ctx context.Context, candidateHash string) ([]booking.Record, error) {
	var out []booking.Record
	var errs []error
	for it, err := range s.query(ctx, s.partition(candidateHash)) {
		if err != nil {
			return nil, fmt.Errorf("records of candidate %.8s: %w", candidateHash, err)
		}
		rec, err := decode(it)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, rec)
	}
	return out, errors.Join(errs...)
}

// Records scans every record by consistent reads, in pages, in no promised order; a
// record put or changed meanwhile may be seen as it was before or after. A record
// that cannot be read comes as an error that wraps booking.ErrUnreadable and names
// its key, beside a record with the key alone, and the scan goes on; any other
// error ends it. The package comment tells the cost.
func (s *Store) Records(ctx context.Context) iter.Seq2[booking.Record, error] {
	return list("scan records", s.scan(ctx), recordOrKey)
}

// Empty tells whether the store has no record and no refund at all, readable or
// not: whether nothing was ever sold. Notifications, which come for payments that
// are not ours too, do not count.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	for _, items := range []iter.Seq2[item, error]{s.query(ctx, s.partition(refunds)), s.scan(ctx)} {
		one, err := first(items)
		if err != nil {
			return false, fmt.Errorf("look for records: %w", err)
		}
		if one != nil {
			return false, nil
		}
	}
	return true, nil
}

// Ping tells whether the store takes writes now, by making one of its own: the same
// each time, so that the stream tells nobody.
func (s *Store) Ping(ctx context.Context) error {
	// Without a condition: it is no booking, and every repeat is the same.
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.table, Key: key(probe, probe),
		UpdateExpression:          aws.String("SET #probed = :yes"),
		ExpressionAttributeNames:  names("#probed"),
		ExpressionAttributeValues: item{":yes": numberValue(1)},
	})
	if err != nil {
		return fmt.Errorf("booking store: ping: %w", explain(s.table, err))
	}
	return nil
}

// probe is the key of the item that Ping writes.
const probe = otherKind + "probe"

func otherPayment(have, want booking.Record) error {
	return fmt.Errorf("record carries payment %s, not %s: %w", have.PaymentID, want.PaymentID, booking.ErrOtherThanOrdered)
}

// change is one conditional update of a record, and what becomes of the call when
// the record does not meet the condition.
type change struct {
	set, condition string
	values         item
	// absent is put when there is no record; nil makes that ErrNotFound.
	absent *booking.Record
	// judge sees a record that did not meet the condition. Nil ends the call well,
	// errAgain asks for another round with the change as it is then.
	judge func(rec booking.Record) error
}

// asSeen adds to the condition that a time is the one that was seen, or none.
func (c *change) asSeen(attribute string, seen time.Time) {
	if seen.IsZero() {
		c.condition += "attribute_not_exists(#" + attribute + ")"
		return
	}
	c.condition += "#" + attribute + " = :seen"
	c.values[":seen"] = instantValue(seen)
}

// change carries a change out and returns the record as it is then, or as the
// judge saw it.
func (s *Store) change(ctx context.Context, hash, attempt string, c *change) (booking.Record, error) {
	c.values[":v"] = numberValue(booking.RecordVersion)
	for range tries {
		out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
			TableName: &s.table, Key: key(hash, attempt),
			UpdateExpression:                    &c.set,
			ConditionExpression:                 aws.String("#v = :v AND " + c.condition),
			ExpressionAttributeNames:            names("#v", c.set, c.condition),
			ExpressionAttributeValues:           c.values,
			ReturnValues:                        types.ReturnValueAllNew,
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		})
		if err == nil {
			return decode(out.Attributes)
		}
		there, unmet := unmetBy(err)
		switch {
		case !unmet:
			return booking.Record{}, explain(s.table, err)
		case there == nil && c.absent == nil:
			return booking.Record{}, booking.ErrNotFound
		case there == nil:
			rec, put, err := s.putRecord(ctx, *c.absent)
			if err != nil || put {
				return rec, err
			}
			continue // somebody was faster
		}
		rec, err := decode(there)
		if err == nil {
			err = c.judge(rec)
		}
		if !errors.Is(err, errAgain) {
			return rec, err
		}
	}
	return booking.Record{}, errAgain
}

// putRecord puts the record if its attempt has none, and tells; else it returns the
// one that is there.
func (s *Store) putRecord(ctx context.Context, rec booking.Record) (booking.Record, bool, error) {
	there, put, err := s.putIfAbsent(ctx, encode(rec))
	if err != nil {
		return booking.Record{}, false, err
	}
	rec, err = decode(there)
	return rec, put, err
}

// putID is the attribute by which a put knows its own item: random, one a call. When
// the reply to a put was lost, the SDK's repeat finds an item there, and only this
// tells whether it is its own.
const putID = "put_id"

// putIfAbsent puts the item if there is none under its key, and tells; it returns the
// item that is there then.
func (s *Store) putIfAbsent(ctx context.Context, it item) (item, bool, error) {
	mine := rand.Text()
	it[putID] = textValue(mine)
	there, put, err := s.put(ctx, it, "attribute_not_exists(#"+PartitionKey+")", nil)
	if err != nil {
		return nil, false, err
	}
	if put {
		return it, true, nil
	}
	by, ok := there[putID].(*types.AttributeValueMemberS)
	return there, ok && by.Value == mine, nil
}

// put writes an item whole if the condition is met, and tells; else it returns the
// item that did not meet it, nil when there is none.
func (s *Store) put(ctx context.Context, it item, condition string, values item) (item, bool, error) {
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.table, Item: it,
		ConditionExpression:                 &condition,
		ExpressionAttributeNames:            names(condition),
		ExpressionAttributeValues:           values,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err == nil {
		return nil, true, nil
	}
	there, unmet := unmetBy(err)
	if !unmet {
		return nil, false, explain(s.table, err)
	}
	return there, false, nil
}

// unmetBy tells whether the error says that a condition was not met, and by which
// item, nil when there is none.
func unmetBy(err error) (item, bool) {
	var unmet *types.ConditionalCheckFailedException
	if !errors.As(err, &unmet) {
		return nil, false
	}
	if len(unmet.Item) == 0 {
		return nil, true
	}
	return unmet.Item, true
}

// get reads an item as it is now; nil when there is none.
func (s *Store) get(ctx context.Context, partition, sort string) (item, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: &s.table, Key: key(partition, sort), ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return nil, explain(s.table, err)
	}
	if len(out.Item) == 0 {
		return nil, nil
	}
	return out.Item, nil
}

// partition asks for the items under a partition key, as they are now.
func (s *Store) partition(key string) *dynamodb.QueryInput {
	return &dynamodb.QueryInput{
		KeyConditionExpression: aws.String("#" + PartitionKey + " = :partition"), ConsistentRead: aws.Bool(true),
		ExpressionAttributeValues: item{":partition": textValue(key)},
	}
}

// query asks page by page. An error ends it.
func (s *Store) query(ctx context.Context, in *dynamodb.QueryInput) iter.Seq2[item, error] {
	in.TableName, in.Limit = &s.table, aws.Int32(pageItems)
	in.ExpressionAttributeNames = names(aws.ToString(in.KeyConditionExpression), aws.ToString(in.FilterExpression))
	return func(yield func(item, error) bool) {
		for p := dynamodb.NewQueryPaginator(s.client, in); p.HasMorePages(); {
			out, err := p.NextPage(ctx)
			if err != nil {
				yield(nil, explain(s.table, err))
				return
			}
			for _, it := range out.Items {
				if !yield(it, nil) {
					return
				}
			}
		}
	}
}

// scan reads every record's item page by page, as it is then. An error ends it.
func (s *Store) scan(ctx context.Context) iter.Seq2[item, error] {
	in := &dynamodb.ScanInput{
		TableName: &s.table, Limit: aws.Int32(pageItems), ConsistentRead: aws.Bool(true),
		FilterExpression:          aws.String("NOT begins_with(#" + PartitionKey + ", :other)"),
		ExpressionAttributeNames:  names("#" + PartitionKey),
		ExpressionAttributeValues: item{":other": textValue(otherKind)},
	}
	return func(yield func(item, error) bool) {
		for p := dynamodb.NewScanPaginator(s.client, in); p.HasMorePages(); {
			out, err := p.NextPage(ctx)
			if err != nil {
				yield(nil, explain(s.table, err))
				return
			}
			for _, it := range out.Items {
				if !yield(it, nil) {
					return
				}
			}
		}
	}
}

// first is the first of some items; nil when there are none.
func first(items iter.Seq2[item, error]) (item, error) {
	next, stop := iter.Pull2(items)
	defer stop()
	it, err, _ := next()
	return it, err
}

// list reads items one by one. What decode answers is handed on, its errors too; an
// error of the table ends it.
func list[T any](what string, items iter.Seq2[item, error], decode func(item) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for it, err := range items {
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s: %w", what, err))
				return
			}
			if !yield(decode(it)) {
				return
			}
		}
	}
}

func key(partition, sort string) item {
	return item{PartitionKey: textValue(partition), SortKey: textValue(sort)}
}

// named are the attributes in an expression. Each has a placeholder, because many of
// a record's names are reserved words.
var named = regexp.MustCompile(`#(\w+)`)

// names resolves the placeholders of expressions: #state is the attribute state.
func names(expressions ...string) map[string]string {
	out := map[string]string{}
	for _, e := range expressions {
		for _, m := range named.FindAllStringSubmatch(e, -1) {
			out[m[0]] = m[1]
		}
	}
	return out
}
