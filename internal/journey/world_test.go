package journey_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	objectstore "github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	messages "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/queue/sqs"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/testenv"
)

// The names in the example files of deploy/env, under which everything is made here.
const (
	table     = "holdfast-bookings"
	queueName = "holdfast-records"
	bucket    = "holdfast-page"
	sender    = "no-reply@seats.example.org"
	redisUser = "api"

	redisPassword = "a password of Redis"
)

// world is a deployment's surroundings: AWS, Redis behind TLS with a user of its own, the
// payment gateway, and a sale that is open. Each test has its own.
type world struct {
	cfg    aws.Config
	tables *dynamodb.Client
	store  *dynamo.Store
	queue  *sqs.Queue
	gate   *admission.Gate

	endpoint  string // AWS, directly
	redisAddr string // behind TLS
	roots     string // file with the authority of that
	gateway   string // base URL of the gateway's API
	client    *http.Client
	bin       string
}

// newWorld makes the surroundings and opens the sale for candidates P0000 to P0009.
func newWorld(t *testing.T, bin string, sale booking.Sale) *world {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	w := &world{bin: bin, client: &http.Client{
		Transport: transport, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	t.Cleanup(transport.CloseIdleConnections)
	w.openAWS(t)
	w.openRedis(t, sale)

	gateway, err := mockgateway.New(mockgateway.Options{}) // two token grants an hour, as the real one
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(gateway)
	t.Cleanup(func() { gateway.HangUp(); served.Close(); gateway.Close() })
	w.gateway = served.URL + mockgateway.BasePath
	return w
}

func (w *world) openAWS(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	w.endpoint = testenv.AWS(t).Endpoint
	w.cfg = aws.Config{
		Region: testenv.Region, BaseEndpoint: &w.endpoint, HTTPClient: w.client,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
	w.tables = dynamodb.NewFromConfig(w.cfg)
	w.store = dynamo.New(w.tables, table)
	queues := messages.NewFromConfig(w.cfg)
	errs := []error{
		dynamo.Create(ctx, w.tables, table, dynamo.Options{}),
		sqs.Create(ctx, queues, queueName),
	}
	_, err := w.objects().CreateBucket(ctx, &objectstore.CreateBucketInput{
		Bucket:                    aws.String(bucket),
		CreateBucketConfiguration: &s3types.CreateBucketConfiguration{LocationConstraint: testenv.Region},
	})
	errs = append(errs, err)
	mails := sesv2.NewFromConfig(w.cfg)
	_, err = mails.CreateEmailIdentity(ctx, &sesv2.CreateEmailIdentityInput{EmailIdentity: aws.String(sender)})
	errs = append(errs, err)
	for name, secret := range map[string]map[string]string{
		"holdfast/api":     {"seal_key": strings.Repeat("5a", booking.SealKeySize), "redis_password": redisPassword},
		"holdfast/gateway": {"app_key": "key", "app_secret": "secret", "username": "merchant", "password": "password"},
	} {
		text, err := json.Marshal(secret)
		errs = append(errs, err)
		_, err = secretsmanager.NewFromConfig(w.cfg).CreateSecret(ctx, &secretsmanager.CreateSecretInput{
			Name: &name, SecretString: aws.String(string(text)),
		})
		errs = append(errs, err)
	}
	w.queue, err = sqs.Open(ctx, queues, queueName)
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatalf("prepare AWS: %v", err)
	}
}

func (w *world) objects() *objectstore.Client {
	return objectstore.NewFromConfig(w.cfg, func(o *objectstore.Options) { o.UsePathStyle = true })
}

func (w *world) openRedis(t *testing.T, sale booking.Sale) {
	t.Helper()
	ctx := t.Context()
	pair := testenv.Pair(t)
	rdb := admission.NewClient(admission.ClientConfig{Addr: pair.Primary.Addr(), Pool: 4})
	t.Cleanup(func() { rdb.Close() })
	if err := rdb.Do(ctx, "ACL", "SETUSER", redisUser, "on", ">"+redisPassword, "~*", "&*", "+@all").Err(); err != nil {
		t.Fatalf("make a user of Redis: %v", err)
	}
	w.redisAddr, w.roots = withTLS(t, pair.Primary.Addr())

	keys, err := admission.NewKeys(admission.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	w.gate, err = admission.New(rdb, admission.Options{Keys: keys, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	list := make([]booking.Candidate, 10)
	for i := range list {
		list[i] = booking.Candidate{Code: fmt.Sprintf("P%04d", i), Email: emailOf(fmt.Sprintf("P%04d", i))}
	}
	w.apply(t, sale)
	if err := errors.Join(w.gate.AddCandidates(ctx, list), w.gate.Open(ctx)); err != nil {
		t.Fatalf("open the sale: %v", err)
	}
}

// apply puts the sale into force.
func (w *world) apply(t *testing.T, sale booking.Sale) {
	t.Helper()
	if _, err := w.gate.ApplySale(t.Context(), sale, booking.NewEpoch(time.Now()), false); err != nil {
		t.Fatalf("apply the sale: %v", err)
	}
}

func emailOf(code string) string { return strings.ToLower(code) + "@example.org" }

// withTLS serves what is at upstream over TLS as managed Redis is, and returns the
// address and a file with the authority that signed the certificate.
func withTLS(t *testing.T, upstream string) (addr, roots string) {
	t.Helper()
	lender := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate, which is for 127.0.0.1
	t.Cleanup(lender.Close)
	roots = filepath.Join(t.TempDir(), "roots.pem")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: lender.Certificate().Raw})
	if err := os.WriteFile(roots, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: lender.TLS.Certificates, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	ctx, hangUp := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return // closed with the test
			}
			work.Go(func() { join(ctx, client, upstream) })
		}
	})
	t.Cleanup(func() { ln.Close(); hangUp(); work.Wait() })
	return ln.Addr().String(), roots
}

// join connects the client with upstream until either end goes, or ctx ends.
func join(ctx context.Context, client net.Conn, upstream string) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", upstream)
	if err != nil {
		return // the client sees what it would see of a server that is gone
	}
	closeBoth := func() { client.Close(); server.Close() }
	defer context.AfterFunc(ctx, closeBoth)()
	var requests sync.WaitGroup
	requests.Go(func() {
		defer closeBoth()
		_, _ = io.Copy(server, client) // either end may go at any time
	})
	_, _ = io.Copy(client, server)
	closeBoth()
	requests.Wait()
}

// settings are those of the program's example file, with these replaced. Only an
// address, a port, a name or a secret may be, and only what the file names.
func settings(t *testing.T, program string, replaced map[string]string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "env", program+".env.example"))
	if err != nil {
		t.Fatal(err)
	}
	env, known := map[string]string{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "#"), "=")
		if !ok || strings.ContainsRune(name, ' ') {
			continue // words
		}
		if known[name] = true; !strings.HasPrefix(line, "#") {
			env[name] = value
		}
	}
	for name := range replaced {
		if !known[name] {
			t.Fatalf("%s.env.example does not name %s: got a file that a deployment cannot go by", program, name)
		}
	}
	maps.Copy(env, replaced)
	return env
}

// startAPI starts the API with its example settings; endpoint is AWS as it sees it. The
// base is where requests go.
func (w *world) startAPI(t *testing.T, endpoint string) (p *program, base string) {
	t.Helper()
	addr, admin := testenv.FreeAddr(t), testenv.FreeAddr(t)
	p = w.start(t, "api", admin, settings(t, "api", map[string]string{
		"HOLDFAST_ADDR": addr, "HOLDFAST_ADMIN_ADDR": admin, "HOLDFAST_PUBLIC_URL": "http://" + addr,
		"HOLDFAST_REDIS_ADDR": w.redisAddr, "HOLDFAST_AWS_ENDPOINT": endpoint, "HOLDFAST_GATEWAY_URL": w.gateway,
	}))
	return p, "http://" + addr
}

// startWorker starts the worker with its example settings.
func (w *world) startWorker(t *testing.T, endpoint string) *program {
	t.Helper()
	admin := testenv.FreeAddr(t)
	return w.start(t, "worker", admin, settings(t, "worker", map[string]string{
		"HOLDFAST_ADMIN_ADDR": admin, "HOLDFAST_AWS_ENDPOINT": endpoint,
	}))
}

// program is a running program that ships, with nothing in its environment but its
// settings and what the machine would give it.
type program struct {
	cmd    *exec.Cmd
	admin  string // base URL
	env    []string
	exited chan struct{}
	err    error // of the end, once it has exited
}

func (w *world) start(t *testing.T, name, admin string, env map[string]string) *program {
	t.Helper()
	p := &program{admin: "http://" + admin, exited: make(chan struct{}), env: []string{
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true", "SSL_CERT_FILE=" + w.roots,
	}}
	for name, value := range env {
		p.env = append(p.env, name+"="+value)
	}
	said, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.CommandContext(context.Background(), filepath.Join(w.bin, name)) // the clean-up ends it
	p.cmd.Env, p.cmd.Stderr = p.env, said
	err = p.cmd.Start()
	said.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("%s said:\n%s", name, text)
		}
	})
	testenv.Eventually(t, func() error {
		select {
		case <-p.exited:
			t.Fatalf("%s ended before it was ready: %v", name, p.err)
		default:
		}
		return w.want(t, p.admin+"/ready", http.StatusOK)
	})
	return p
}

// kill ends the program as kill -9 does, and waits. Safe to repeat.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // gone already is fine
	<-p.exited
}

// metric is one figure of the program, by its whole name.
func (p *program) metric(t *testing.T, w *world, name string) string {
	t.Helper()
	_, _, body := w.get(t, p.admin+"/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "0"
}

// audit runs the operator's audit with the API's settings, and has it ask the gateway.
func (w *world) audit(t *testing.T, api *program) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(w.bin, "seatctl"), "audit", "--gateway")
	cmd.Env = api.env
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "every rule that was seen holds") {
		t.Errorf("seatctl audit --gateway: got %v, want exit status 0; it said:\n%s", err, out)
	}
}

func (w *world) do(t *testing.T, r *http.Request) (int, http.Header, string) {
	t.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

func (w *world) get(t *testing.T, target string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return w.do(t, r)
}

// want tells whether a program answers so; not listening yet is an answer too.
func (w *world) want(t *testing.T, target string, status int) error {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := w.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("%s: %d %s, want %d", target, resp.StatusCode, body, status)
	}
	return err
}

func (w *world) post(t *testing.T, target, contentType, body string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	return w.do(t, r)
}

const (
	mediaJSON = "application/json"
	mediaForm = "application/x-www-form-urlencoded"
)

// answer is a JSON answer to POST /book.
type answer struct {
	Status     int
	Retry      string // Retry-After
	Error      string `json:"error"`
	PaymentURL string `json:"payment_url"`
	BookingURL string `json:"booking_url"`
	Paid       bool   `json:"paid"`
}

// ask sends one booking request as JSON.
func (w *world) ask(t *testing.T, base, code, level string) answer {
	t.Helper()
	body := fmt.Sprintf(`{"code":%q,"email":%q,"level":%q}`, code, emailOf(code), level)
	status, header, got := w.post(t, base+"/book", mediaJSON, body)
	a := answer{Status: status, Retry: header.Get("Retry-After")}
	if err := json.Unmarshal([]byte(got), &a); err != nil {
		t.Fatalf("book %s: got %d %s, want JSON: %v", code, status, got, err)
	}
	return a
}

// told is what a candidate hears who has to hear more than to try again: they do, when
// the machine is slow and a budget ran out.
func (w *world) told(t *testing.T, base, code, level string) answer {
	t.Helper()
	var a answer
	testenv.Eventually(t, func() error {
		if a = w.ask(t, base, code, level); a.Status == http.StatusServiceUnavailable {
			return fmt.Errorf("book %s: %+v", code, a)
		}
		return nil
	})
	return a
}

// book is a candidate who gets a seat and a link, be it that of their first request.
func (w *world) book(t *testing.T, base, code, level string) answer {
	t.Helper()
	a := w.told(t, base, code, level)
	if a.Status != http.StatusAccepted && (a.Status != http.StatusConflict || a.PaymentURL == "") {
		t.Fatalf("book %s: got %+v, want a seat", code, a)
	}
	return a
}

// linkOnPage is a payment link on a page of the plain form.
var linkOnPage = regexp.MustCompile(`href="(http[^"]+/pay/[^"]+)"`)

// bookByForm does the same without JavaScript, and returns the payment link.
func (w *world) bookByForm(t *testing.T, base, code, level string) (link string) {
	t.Helper()
	form := url.Values{"code": {code}, "email": {emailOf(code)}, "level": {level}, "website": {""}}.Encode()
	testenv.Eventually(t, func() error {
		status, header, page := w.post(t, base+"/book", mediaForm, form)
		found := linkOnPage.FindStringSubmatch(page)
		switch {
		case status == http.StatusSeeOther:
			link = header.Get("Location")
		case status == http.StatusConflict && found != nil:
			link = html.UnescapeString(found[1])
		case status == http.StatusServiceUnavailable:
			return fmt.Errorf("book %s by form: %d %s", code, status, page)
		default:
			t.Fatalf("book %s by form: got %d %s, want a seat", code, status, page)
		}
		return nil
	})
	return link
}

// pay presses the button on the gateway's page and comes back as a browser does; the
// token is what the result page asks by.
func (w *world) pay(t *testing.T, base, link string) (token string) {
	t.Helper()
	if !strings.HasPrefix(link, strings.TrimSuffix(w.gateway, mockgateway.BasePath)+"/pay/") {
		t.Fatalf("payment link: got %q, want one of the gateway's", link)
	}
	status, header, page := w.post(t, link, mediaForm, "outcome=success")
	back := header.Get("Location")
	if status != http.StatusSeeOther || !strings.HasPrefix(back, base+"/payment/callback?") {
		t.Fatalf("pay: got %d to %q %s, want 303 to the callback", status, back, page)
	}
	testenv.Eventually(t, func() error {
		status, header, page := w.get(t, back)
		result := header.Get("Location")
		if status == http.StatusSeeOther && result == base+"/result?error=busy" {
			return errors.New("callback: busy") // and the payer reloads
		}
		sealed, ok := strings.CutPrefix(result, base+"/result?booking=")
		if status != http.StatusSeeOther || !ok {
			t.Fatalf("callback: got %d to %q %s, want 303 to the result", status, result, page)
		}
		var err error
		token, err = url.QueryUnescape(sealed)
		return err
	})
	return token
}

// awaitState waits until the result page would show that.
func (w *world) awaitState(t *testing.T, base, token, want string) {
	t.Helper()
	testenv.Eventually(t, func() error {
		var view struct{ State string }
		status, _, body := w.get(t, base+"/booking/"+token)
		err := json.Unmarshal([]byte(body), &view)
		if err == nil && (status != http.StatusOK || view.State != want) {
			err = fmt.Errorf("booking: %d %s, want state %s", status, body, want)
		}
		return err
	})
}

// awaitRecord waits until the candidate's one record is in that state.
func (w *world) awaitRecord(t *testing.T, code string, state booking.RecordState) booking.Record {
	t.Helper()
	var rec booking.Record
	testenv.Eventually(t, func() error {
		got := w.records(t, code)
		if len(got) != 1 || got[0].State != state {
			return fmt.Errorf("records of %s: %+v, want one that is %s", code, got, state)
		}
		rec = got[0]
		return nil
	})
	return rec
}

// awaitMailed waits for the last write on the candidate's one record, paid.
func (w *world) awaitMailed(t *testing.T, code string) booking.Record {
	t.Helper()
	var rec booking.Record
	testenv.Eventually(t, func() error {
		got := w.records(t, code)
		if len(got) != 1 || got[0].State != booking.StatePaid || got[0].Mail != booking.MailSent {
			return fmt.Errorf("records of %s: %+v, want one that is PAID and mailed", code, got)
		}
		rec = got[0]
		return nil
	})
	return rec
}

func (w *world) records(t *testing.T, code string) []booking.Record {
	t.Helper()
	got, err := w.store.RecordsOf(t.Context(), booking.CandidateHash(code))
	if err != nil {
		t.Fatalf("records of %s: %v", code, err)
	}
	return got
}

// awaitEmptyQueue waits until every message is done; none may be a dead letter.
func (w *world) awaitEmptyQueue(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, func() error {
		s, err := w.queue.Stats(t.Context())
		if err == nil && s != (booking.QueueStats{}) {
			err = fmt.Errorf("queue: %+v, want it empty", s)
		}
		return err
	})
}

// left are the free seats that status.json tells: of all levels together, then each.
func (w *world) left(t *testing.T) map[string]int {
	t.Helper()
	var doc struct {
		Total  struct{ Left int }
		Levels []struct {
			ID   string
			Left int
		}
	}
	out, err := w.objects().GetObject(t.Context(), &objectstore.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("status.json")})
	if err != nil {
		return nil // not published yet
	}
	defer out.Body.Close()
	if err := json.NewDecoder(out.Body).Decode(&doc); err != nil {
		t.Fatalf("status.json: %v", err)
	}
	left := map[string]int{"": doc.Total.Left}
	for _, l := range doc.Levels {
		left[l.ID] = l.Left
	}
	return left
}

// awaitLeft waits until status.json tells these free seats.
func (w *world) awaitLeft(t *testing.T, want map[string]int) {
	t.Helper()
	testenv.Eventually(t, func() error {
		if got := w.left(t); !maps.Equal(got, want) {
			return fmt.Errorf("status.json: seats left %v, want %v", got, want)
		}
		return nil
	})
}

// mailsTo is how many mails to the candidate SES took.
func (w *world) mailsTo(t *testing.T, code string) int {
	t.Helper()
	_, _, body := w.get(t, w.endpoint+"/moto-api/data.json")
	var data struct {
		SES struct {
			RawMessage []struct {
				Data string `json:"raw_data"`
			}
		} `json:"ses"`
	}
	if err := json.Unmarshal([]byte(body), &data); err != nil {
		t.Fatalf("mails kept: %v", err)
	}
	n := 0
	for _, m := range data.SES.RawMessage {
		if strings.Contains(m.Data, emailOf(code)) {
			n++
		}
	}
	return n
}
