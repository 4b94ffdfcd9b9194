// Package memory is an object store inside one process, for the local profile
// and for tests. What it holds ends with the process.
//
// Fail mode: only an ended context is an error. Clock: it needs none.
package memory

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"

	"holdfast/internal/booking"
	"holdfast/internal/objstore"
)

// Store holds objects in memory. The zero value is ready. Safe for concurrent
// use.
type Store struct {
	mu      sync.Mutex
	version int64
	objects map[string]object
}

type object struct {
	body []byte
	etag string
}

// New makes an empty store.
func New() *Store { return &Store{} }

// Get returns a copy of the object's body and its ETag; booking.ErrNotFound when
// there is none.
func (s *Store) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, "", fmt.Errorf("get object %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[key]
	if !ok {
		return nil, "", fmt.Errorf("get object %s: %w", key, booking.ErrNotFound)
	}
	return bytes.Clone(o.body), o.etag, nil
}

// Put writes the object if it is absent (empty ifMatch) or still has the ETag
// ifMatch, and returns its new one; else objstore.ErrPreconditionFailed. The
// content type is for drivers that serve their objects.
func (s *Store) Put(ctx context.Context, key string, body []byte, _, ifMatch string) (etag string, err error) {
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("put object %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[key].etag != ifMatch { // an absent object's is empty
		return "", fmt.Errorf("put object %s: %w", key, objstore.ErrPreconditionFailed)
	}
	if s.objects == nil {
		s.objects = map[string]object{}
	}
	s.version++
	etag = strconv.FormatInt(s.version, 10)
	s.objects[key] = object{body: append([]byte{}, body...), etag: etag}
	return etag, nil
}
