// Package s3 is the object store in an S3 bucket, which the CDN serves from.
//
// S3 keeps the port's promises by itself: reads see the last write, and a put with
// If-Match or If-None-Match: * is decided by S3. The role needs s3:GetObject and
// s3:PutObject on the objects, and s3:ListBucket on the bucket: without that S3 says
// "access denied" of an object that is not there.
//
// Fail mode: closed. A put goes out once; when its outcome is not known the caller
// reads and compares. Clock: it needs none.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"holdfast/internal/booking"
	"holdfast/internal/objstore"
)

// DefaultCacheControl is for a document that changes every few seconds: each edge of
// the CDN asks S3 once a second at most, whatever the crowd, and goes on with its last
// copy for ten minutes while S3 does not answer. The CDN's own least time must not be
// more than a second.
const DefaultCacheControl = "public, max-age=1, stale-if-error=600"

// Config is where and how objects are put.
type Config struct {
	// Bucket is the bucket's name. Required.
	Bucket string
	// CacheControl goes with every object that is put. Default DefaultCacheControl.
	CacheControl string
}

// Store is one bucket. Safe for concurrent use, also by several processes.
type Store struct {
	client *s3.Client
	cfg    Config
}

// New makes a Store over the caller's client. It does not connect.
func New(client *s3.Client, cfg Config) (*Store, error) {
	if cfg.Bucket == "" {
		return nil, errors.New("s3: want the name of a bucket")
	}
	if cfg.CacheControl == "" {
		cfg.CacheControl = DefaultCacheControl
	}
	return &Store{client, cfg}, nil
}

// Get returns the object's body and ETag as they are now; booking.ErrNotFound when
// there is none. Safe to repeat, and repeated as the client is set to.
func (s *Store) Get(ctx context.Context, key string) (body []byte, etag string, err error) {
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key}, func(o *s3.Options) {
		o.DisableLogOutputChecksumValidationSkipped = true // an object put by another tool may have none
	})
	switch code(err) {
	case "NoSuchKey":
		return nil, "", fmt.Errorf("get object %s: %w", key, booking.ErrNotFound)
	case "AccessDenied":
		return nil, "", fmt.Errorf("get object %s: %w; without s3:ListBucket S3 says so of an absent object too", key, err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("get object %s: %w", key, err)
	}
	defer out.Body.Close()
	if body, err = io.ReadAll(out.Body); err != nil {
		return nil, "", fmt.Errorf("get object %s: %w", key, err)
	}
	return body, aws.ToString(out.ETag), nil
}

// Put writes the object if it is absent (empty ifMatch) or still has the ETag ifMatch,
// and returns its new one; else objstore.ErrPreconditionFailed. After any other error
// the object may have been written: the caller reads and compares.
func (s *Store) Put(ctx context.Context, key string, body []byte, contentType, ifMatch string) (etag string, err error) {
	in := &s3.PutObjectInput{
		Bucket: &s.cfg.Bucket, Key: &key, Body: bytes.NewReader(body),
		ContentType: &contentType, CacheControl: &s.cfg.CacheControl,
	}
	if ifMatch == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &ifMatch
	}
	out, err := s.client.PutObject(ctx, in, func(o *s3.Options) {
		o.Retryer = aws.NopRetryer{} // a repeat would be refused because of its own effect
	})
	switch c := code(err); {
	case err == nil:
		return aws.ToString(out.ETag), nil
	// 412; 409 when another conditional put of the object is at work; and 404 when the
	// object that was to be changed is gone. S3 User Guide, "How to prevent object
	// overwrites with conditional writes".
	case c == "PreconditionFailed", c == "ConditionalRequestConflict", c == "NoSuchKey" && ifMatch != "":
		return "", fmt.Errorf("put object %s: %w", key, objstore.ErrPreconditionFailed)
	}
	return "", fmt.Errorf("put object %s: %w", key, err)
}

// code is S3's word for an error, "" when there is none.
func code(err error) string {
	var answer smithy.APIError
	if errors.As(err, &answer) {
		return answer.ErrorCode()
	}
	return ""
}
