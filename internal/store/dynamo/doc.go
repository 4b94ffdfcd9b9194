// Package dynamo keeps booking records in a DynamoDB table, one item per attempt:
// production's booking store. Beside them are the refunds, one per transaction,
// the gateway's notifications, and the operator's log. Table is the table's one
// definition.
//
// # Items
//
// A record's attributes have the names of its JSON (docs/shapes.md), so that
// conditions can name them, under the partition key candidate_hash and the sort
// key attempt. Times are RFC 3339 in UTC with all nine decimals, so that they
// compare as text as they do as times; ttl alone is a number, Unix seconds,
// because the TTL service reads nothing else, and is rounded up to the second.
//
// A partition key that begins with "#" is no record's, and the scan of records
// passes over it. A refund is put if absent under the sort key
// "refund#<transaction>". All refunds share one partition, because they are few
// and are asked for together: the local index "listed" has them by decision and
// "by_attempt" by whose they are, and unlike a global index a local one answers
// consistent reads. Notifications come with every payment, so their partitions are
// several, chosen by message id, and "listed" has only the open ones, first
// received first. So a list of what is open reads no record and nothing that is
// over. The operator's log has a partition a month, and one that tells the months; its
// ids sort by time, so it needs no index. All keep their JSON whole in the attribute
// body; every change is on the condition that the body is the one it was made from.
//
// # Writes
//
// Every write is one conditional call that answers, when its condition is not met,
// with the item as it is: that decides what the caller hears, without a second
// read. A repeat finds its own effect, also one that the SDK makes by itself because
// a reply was lost; a put then knows its own item by the attribute put_id.
// Updates name the attributes that they change and the version that they know, so
// none touches an item of a later program. There are no batches and no transactions,
// hence no unprocessed items: a scan hands on each page's last key until there is
// none.
//
// TTL is removed by the very update that makes a record PAID. An item whose time is
// over but that is still there, which may be so for days, is judged as any other.
//
// # Cost
//
// A record takes about 700 bytes, under the 1 KB of one write unit; its first write
// takes another of the index by payment, later ones do not. A consistent scan of
// 100,000 records is 70 MB: 17,200 read units of 4 KB in 200 pages of 500 items, a few
// seconds; refunds, notifications and log are read and paid for with it, and left out
// by the table. One page follows another, so a scan asks the one partition it is at for
// some 2,000 units a second (reckoned, not measured) of the 3,000 there are, and needs
// no segments: they would only ask for more at once.
//
// Fail mode: closed. What cannot be written or read is an error and changes
// nothing, or, when only the reply was lost, has been done: repeat it. An item that
// is there but cannot be read is booking.ErrUnreadable and is never overwritten.
// Clock: none of its own; times come with the calls.
package dynamo
