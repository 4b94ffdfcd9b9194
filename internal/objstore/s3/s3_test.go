package s3_test

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/booking"
	"holdfast/internal/objstore"
	"holdfast/internal/objstore/objstoretest"
	"holdfast/internal/objstore/s3"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	bucket = "seats-page"
	key    = "status.json"
)

// client is a client of S3 at an endpoint, with connections of its own.
func client(t *testing.T, endpoint string) *awss3.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return awss3.New(awss3.Options{
		Region: testenv.Region, BaseEndpoint: &endpoint, UsePathStyle: true,
		HTTPClient:  &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})
}

func store(t *testing.T, endpoint, bucket string) *s3.Store {
	t.Helper()
	s, err := s3.New(client(t, endpoint), s3.Config{Bucket: bucket})
	if err != nil {
		t.Fatalf("New: got %v, want nil", err)
	}
	return s
}

// documented is a bucket that answers as AWS documents it: conditions are decided
// together with the write, an ETag is the quoted MD5 of the content, and If-Match on an
// absent object is 404.
type documented struct {
	mu      sync.Mutex
	objects map[string][]byte
	puts    []*http.Request
	// before answers in the bucket's place when it returns a status.
	before func(r *http.Request) (status int, code string)
	// loses breaks the connection off in place of the next put's answer.
	loses bool
}

// seen are the puts that arrived.
func (d *documented) seen() []*http.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.puts
}

func serve(t *testing.T, d *documented) string {
	t.Helper()
	d.objects = map[string][]byte{}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	return server.URL
}

func etag(body []byte) string { return fmt.Sprintf(`"%x"`, md5.Sum(body)) }

func (d *documented) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller left
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Method == http.MethodPut {
		d.puts = append(d.puts, r)
	}
	if d.before != nil {
		if status, code := d.before(r); status != 0 {
			fail(w, status, code)
			return
		}
	}
	have, there := d.objects[r.URL.Path]
	match := r.Header.Get("If-Match")
	switch {
	case r.Method == http.MethodGet && !there, match != "" && !there:
		fail(w, http.StatusNotFound, "NoSuchKey")
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", etag(have))
		_, _ = w.Write(have)
	case r.Header.Get("If-None-Match") == "*" && there, match != "" && match != etag(have):
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
	default:
		d.objects[r.URL.Path] = body
		if d.loses {
			d.loses = false
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("ETag", etag(body))
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>words</Message></Error>`, code)
}

func TestStore_KeepsTheContract(t *testing.T) {
	t.Parallel()
	objstoretest.Run(t, func(t *testing.T) (a, b objstoretest.Store) {
		endpoint := serve(t, &documented{})
		return store(t, endpoint, bucket), store(t, endpoint, bucket)
	})
}

func TestStore_OverAnEmulatorOfAWS(t *testing.T) {
	t.Parallel()
	endpoint := testenv.AWS(t).Endpoint
	// made is a new bucket.
	made := func(t *testing.T) string {
		t.Helper()
		name := strings.ToLower(strings.ReplaceAll(path.Base(t.Name()), "_", "-"))
		_, err := client(t, endpoint).CreateBucket(t.Context(), &awss3.CreateBucketInput{
			Bucket:                    &name,
			CreateBucketConfiguration: &types.CreateBucketConfiguration{LocationConstraint: testenv.Region},
		})
		if err != nil {
			t.Fatalf("create bucket: %v", err)
		}
		return name
	}
	t.Run("KeepsTheContract", func(t *testing.T) {
		objstoretest.Run(t, func(t *testing.T) (a, b objstoretest.Store) {
			bucket := made(t)
			return store(t, endpoint, bucket), store(t, endpoint, bucket)
		}, objstoretest.Skip{
			Test: "ManyWritersLoseNothing", Why: "moto checks a condition first and writes afterwards, so that of two puts at once both may go through",
		})
	})
	// What is put is what the CDN reads: body, type and how long it may be kept.
	t.Run("ServedWithTypeAndCacheControl", func(t *testing.T) {
		bucket := made(t)
		if _, err := store(t, endpoint, bucket).Put(t.Context(), key, []byte("{}"), "application/json", ""); err != nil {
			t.Fatalf("Put: got %v, want nil", err)
		}
		out, err := client(t, endpoint).GetObject(t.Context(), &awss3.GetObjectInput{Bucket: &bucket, Key: aws.String(key)})
		if err != nil {
			t.Fatalf("get what was put: %v", err)
		}
		defer out.Body.Close()
		body, err := io.ReadAll(out.Body)
		if err != nil {
			t.Fatalf("get what was put: %v", err)
		}
		got := []string{string(body), aws.ToString(out.ContentType), aws.ToString(out.CacheControl)}
		if diff := cmp.Diff([]string{"{}", "application/json", s3.DefaultCacheControl}, got); diff != "" {
			t.Errorf("object (-want +got):\n%s", diff)
		}
	})
}

func TestPut_CarriesItsCondition(t *testing.T) {
	t.Parallel()
	d := &documented{}
	s := store(t, serve(t, d), bucket)
	first, err := s.Put(t.Context(), key, []byte("one"), "application/json", "")
	if err != nil {
		t.Fatalf("Put: got %v, want nil", err)
	}
	if _, err := s.Put(t.Context(), key, []byte("two"), "application/json", first); err != nil {
		t.Fatalf("Put: got %v, want nil", err)
	}
	var got [][]string
	for _, r := range d.seen() {
		got = append(got, []string{r.URL.Path, r.Header.Get("If-None-Match"), r.Header.Get("If-Match")})
	}
	want := [][]string{{"/" + bucket + "/" + key, "*", ""}, {"/" + bucket + "/" + key, "", etag([]byte("one"))}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("puts (-want +got):\n%s", diff)
	}
}

func TestPut_TellsARefusalFromWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	const refused, unknown = true, false
	for name, c := range map[string]struct {
		status        int
		code, ifMatch string
		want          bool
	}{
		"there already":                {412, "PreconditionFailed", "", refused},
		"another content":              {412, "PreconditionFailed", `"e"`, refused},
		"another put at work":          {409, "ConditionalRequestConflict", `"e"`, refused},
		"another first put at work":    {409, "ConditionalRequestConflict", "", refused},
		"gone":                         {404, "NoSuchKey", `"e"`, refused},
		"gone, where nothing was":      {404, "NoSuchKey", "", unknown},
		"no such bucket":               {404, "NoSuchBucket", `"e"`, unknown},
		"the bucket is being changed":  {409, "OperationAborted", `"e"`, unknown},
		"not allowed":                  {403, "AccessDenied", "", unknown},
		"slow down":                    {503, "SlowDown", "", unknown},
		"internal error":               {500, "InternalError", "", unknown},
		"throttled in another service": {400, "ThrottlingException", "", unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &documented{before: func(*http.Request) (int, string) { return c.status, c.code }}
			_, err := store(t, serve(t, d), bucket).Put(t.Context(), key, []byte("{}"), "application/json", c.ifMatch)
			if err == nil || errors.Is(err, objstore.ErrPreconditionFailed) != c.want {
				t.Errorf("Put answered %d %s: got %v, ErrPreconditionFailed %v, want %v", c.status, c.code, err, !c.want, c.want)
			}
			if got := len(d.seen()); got != 1 {
				t.Errorf("Put answered %d %s: went out %d times, want once", c.status, c.code, got)
			}
		})
	}
}

// A put whose answer was lost is not repeated behind the caller's back.
func TestPut_AnswerLostGoesOutOnce(t *testing.T) {
	t.Parallel()
	d := &documented{loses: true}
	s := store(t, serve(t, d), bucket)
	if _, err := s.Put(t.Context(), key, []byte("mine"), "application/json", ""); err == nil || errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Errorf("Put: got %v, want an error that says nothing of the object", err)
	}
	if got := len(d.seen()); got != 1 {
		t.Errorf("puts: got %d, want 1", got)
	}
	if body, _, err := s.Get(t.Context(), key); err != nil || string(body) != "mine" {
		t.Errorf("Get: got %q, %v, want what was put", body, err)
	}
}

func TestGet_SaysNotFoundOfAnAbsentObjectOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status     int
		code, want string
		absent     bool
	}{
		"absent object": {404, "NoSuchKey", "get object status.json", true},
		"absent bucket": {404, "NoSuchBucket", "NoSuchBucket", false},
		"not allowed":   {403, "AccessDenied", "without s3:ListBucket S3 says so of an absent object too", false},
		"other trouble": {400, "InvalidRequest", "InvalidRequest", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &documented{before: func(*http.Request) (int, string) { return c.status, c.code }}
			_, _, err := store(t, serve(t, d), bucket).Get(t.Context(), key)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, booking.ErrNotFound) != c.absent {
				t.Errorf("Get answered %d %s: got %v, want %q, and ErrNotFound %v", c.status, c.code, err, c.want, c.absent)
			}
		})
	}
}

func TestGet_BodyThatBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Header().Set("ETag", `"e"`)
		_, _ = w.Write([]byte("half"))
	}))
	t.Cleanup(server.Close)
	if body, _, err := store(t, server.URL, bucket).Get(t.Context(), key); err == nil {
		t.Errorf("Get: got %q and no error, want one", body)
	}
}

// Asleep, S3 costs the caller what it was ready to wait, and no more.
func TestStore_CallerDoesNotWaitForAStoreThatSleeps(t *testing.T) {
	t.Parallel()
	arrived, wake := make(chan struct{}, 2), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-wake
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(wake) })
	s := store(t, server.URL, bucket)
	for name, call := range map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error { _, _, err := s.Get(ctx, key); return err },
		"Put": func(ctx context.Context) error {
			_, err := s.Put(ctx, key, []byte("{}"), "application/json", "")
			return err
		},
	} {
		ctx, leave := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { got <- call(ctx) }()
		<-arrived
		leave()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want the end of the caller's context", name, err)
		}
	}
}

func TestNew_WantsABucket(t *testing.T) {
	t.Parallel()
	if _, err := s3.New(client(t, "http://127.0.0.1:1"), s3.Config{}); err == nil {
		t.Error("New without a bucket: got nil, want an error")
	}
}
