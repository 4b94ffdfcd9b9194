package capacity

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/booking"
)

// unitBytes are what one write request unit of DynamoDB carries.
const unitBytes = 1024

// storedTime is how a record's times are written in the table: nine decimals.
const storedTime = "2006-01-02T15:04:05.000000000Z07:00"

// putIDBytes are the attribute by which a put knows its own item, name and value.
const putIDBytes = len("put_id") + 26

// Sample is a record as the launch has them, held, and as it is once its mail was sent.
// The payment URL is as long as the input says.
func Sample(in Inputs) (held, paid booking.Record) {
	code, epoch := "AB-100001", "1ngtsa07kq3m"
	hash, attempt := booking.CandidateHash(code), epoch+"-01m8qw4tg04f8r2tqz9e6wn1bd"
	at := time.Date(2026, 12, 1, 4, 0, 0, 123456789, time.UTC)
	held = booking.Record{
		Version: booking.RecordVersion, CandidateHash: hash, Attempt: attempt, Epoch: epoch, Code: code, Level: "N1",
		Amount: 150000, Currency: "BDT", PaymentID: "TR0011mqN0nOK1796097600412",
		PaymentURL: "https://payment.example.com/?" + strings.Repeat("x", max(0, int(in.Slow.PaymentURL.Value)-29)),
		Signature:  "k3YOrG8qy6", Invoice: booking.Invoice(hash, attempt), RequestID: "b5m8i5hbpa35q", State: booking.StateHeld,
		AdmittedAt: at, Deadline: at.Add(10 * time.Minute), TTL: at.Add(7 * 24 * time.Hour),
	}
	paid = held
	paid.State, paid.TTL, paid.Mail = booking.StatePaid, time.Time{}, booking.MailSent
	paid.ExecuteAt, paid.PaidAt, paid.Transaction = at.Add(time.Minute), at.Add(61*time.Second), "CK250NROQ5"
	return held, paid
}

// MessageBytes are the queue's message of a record.
func MessageBytes(rec booking.Record) int {
	body, err := json.Marshal(rec)
	if err != nil {
		return 0 // a record always encodes
	}
	return len(body)
}

// ItemBytes are the record's item in DynamoDB, by the rules of the Developer Guide
// ("DynamoDB item sizes and formats"): each attribute's name and value, a number taking
// a byte for two digits and one more.
func ItemBytes(rec booking.Record) int {
	var fields map[string]any
	body, err := json.Marshal(rec)
	if err == nil {
		err = json.Unmarshal(body, &fields)
	}
	if err != nil {
		return 0 // a record always encodes
	}
	size := putIDBytes
	for name, value := range fields {
		size += len(name)
		switch v := value.(type) {
		case float64:
			size += numberBytes(strconv.FormatFloat(v, 'f', -1, 64))
		case string:
			at, err := time.Parse(time.RFC3339Nano, v)
			switch {
			case err != nil:
				size += len(v)
			case name == "ttl":
				size += numberBytes(strconv.FormatInt(at.Add(time.Second-time.Nanosecond).Unix(), 10)) // rounded up
			default:
				size += len(at.Format(storedTime))
			}
		}
	}
	return size
}

// numberBytes is the size of a number that is written so: zeros at its end count
// nothing.
func numberBytes(digits string) int {
	return (len(strings.TrimRight(digits, "0"))+1)/2 + 1
}

// Units are the write request units of one write of that many bytes.
func Units(bytes int) float64 { return math.Ceil(float64(bytes) / unitBytes) }
