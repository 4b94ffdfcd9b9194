// Package objstore is what the object stores and their users share: the word
// for a conditional put that was refused. Drivers (memory, sqlite, s3) and their
// consumers may import it; it does no I/O and needs no clock.
//
// A driver gives:
//
//	Get(ctx, key) (body []byte, etag string, err error)
//	Put(ctx, key, body, contentType, ifMatch) (etag string, err error)
//
// Get is a consistent read; its error is booking.ErrNotFound when there is no
// object. Put writes the whole object or nothing: with an empty ifMatch only if
// the object is absent, else only if its ETag is still ifMatch. An ETag names a
// content and need not change when the same content is put again.
//
// Fail mode: closed. A Put whose outcome is unknown is not simply repeated: the
// repeat may find its own effect and be refused. The caller reads and compares,
// as it does after every refusal.
package objstore

import "errors"

// ErrPreconditionFailed says that the object is not what ifMatch named: it was
// changed, it is gone, or, with an empty ifMatch, it is there.
var ErrPreconditionFailed = errors.New("object is not as expected")
