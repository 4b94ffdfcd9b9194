package functions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"holdfast/internal/app/functions"
	"holdfast/internal/booking"
	"holdfast/internal/testenv"
)

// programs are the bodies of the commands' mains.
var programs = testenv.Programs{
	"sync-lambda": func(ctx context.Context, _ []string, stdout, _ io.Writer) error {
		h, err := functions.Sync(ctx, os.Getenv, stdout)
		if err != nil {
			return err
		}
		lambda.StartWithOptions(h.Handle, lambda.WithEnableSIGTERM(func() { _ = h.Close(context.Background()) }))
		return nil
	},
	"expiry-lambda": func(ctx context.Context, _ []string, stdout, _ io.Writer) error {
		h, err := functions.Expiry(ctx, os.Getenv, stdout)
		if err != nil {
			return err
		}
		lambda.Start(h.Handle)
		return nil
	},
}

// runtimeAPI is the part of Lambda that a function's process talks to (the runtime and
// extensions APIs of its developer guide): it hands out one event at a time.
type runtimeAPI struct {
	addr    string
	events  chan []byte
	answers chan string
}

func newRuntimeAPI(t *testing.T) *runtimeAPI {
	t.Helper()
	r := &runtimeAPI{events: make(chan []byte), answers: make(chan string)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /2020-01-01/extension/register", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Lambda-Extension-Identifier", "x")
	})
	mux.HandleFunc("GET /2020-01-01/extension/event/next", func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	n := 0
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, req *http.Request) {
		select {
		case event := <-r.events:
			n++
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", strconv.Itoa(n))
			w.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10))
			_, _ = w.Write(event)
		case <-req.Context().Done():
		}
	})
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/{end}", func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		w.WriteHeader(http.StatusAccepted)
		select {
		case r.answers <- req.PathValue("end") + " " + strings.TrimSpace(string(body)):
		case <-t.Context().Done():
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	r.addr = server.Listener.Addr().String()
	return r
}

// call hands the changes to the function and waits for what it says.
func (r *runtimeAPI) call(t *testing.T, changes []change) string {
	t.Helper()
	payload, err := json.Marshal(map[string]any{"Records": changes})
	if err != nil {
		t.Fatal(err)
	}
	limit := time.After(time.Minute)
	select {
	case r.events <- payload:
	case <-limit:
		t.Fatal("the function asked for no event within a minute")
	}
	select {
	case answer := <-r.answers:
		return answer
	case <-limit:
		t.Fatal("the function gave no answer within a minute")
	}
	return ""
}

func environment(b bookings, r *runtimeAPI) map[string]string {
	return map[string]string{
		"AWS_LAMBDA_RUNTIME_API": r.addr, "AWS_REGION": testenv.Region,
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_SESSION_TOKEN": "",
		"HOLDFAST_AWS_ENDPOINT": aws.ToString(b.cfg.BaseEndpoint), "HOLDFAST_STORE_TABLE": tableName,
		"HOLDFAST_SALE": sale,
	}
}

const allDone = `response {"batchItemFailures":null}`

func TestSyncLambda_CopiesWhatIsPaid(t *testing.T) {
	t.Parallel()
	server := testenv.Postgres(t)
	b, r := newBookings(t), newRuntimeAPI(t)
	secrets := secretsmanager.NewFromConfig(b.cfg)
	_, err := secrets.CreateSecret(t.Context(), &secretsmanager.CreateSecretInput{
		Name: aws.String("backoffice"), SecretString: aws.String(`{"username":"postgres","password":"any"}`),
	})
	if err != nil {
		t.Fatalf("create the secret: got %v, want nil", err)
	}
	rec := b.paid(t, b.held(t))
	shard := testenv.Stream(t, b.cfg, tableName)

	url := server.Database(t)
	env := environment(b, r)
	env["HOLDFAST_BACKOFFICE_URL"] = url
	env["HOLDFAST_BACKOFFICE_PASSWORD_REF"] = "secretsmanager:backoffice#password"
	p := testenv.StartProgram(t, "sync-lambda", nil, env)
	for range 2 {
		if got := r.call(t, shard); got != allDone {
			t.Fatalf("answer: got %s, want %s", got, allDone)
		}
	}
	o := openOffice(t, url)
	checkRows(t, "after the calls", o, rec)
	// One line for each outcome of each call, where Lambda reads it: on stdout.
	lines := strings.Join(p.Lines(t, 4), "\n")
	for _, want := range []string{`"outcome":"inserted"`, `"outcome":"unchanged"`, `"outcome":"ignored"`, `"_aws"`} {
		if !strings.Contains(lines, want) {
			t.Errorf("stdout: got %s, want %s in it", lines, want)
		}
	}
	if strings.Contains(lines+p.Output(), rec.Code) {
		t.Errorf("output: got the candidate's code in it, want none:\n%s\n%s", lines, p.Output())
	}
}

func TestExpiryLambda_PutsBackWhatTTLDeleted(t *testing.T) {
	t.Parallel()
	b, r := newBookings(t), newRuntimeAPI(t)
	rec := b.held(t)
	b.remove(t, rec)
	shard := testenv.Stream(t, b.cfg, tableName)
	shard[1] = testenv.ByTTLService(t, shard[1])
	p := testenv.StartProgram(t, "expiry-lambda", nil, environment(b, r))
	if got := r.call(t, shard); got != allDone {
		t.Fatalf("answer: got %s, want %s", got, allDone)
	}
	if got, err := b.store.Record(t.Context(), rec.CandidateHash, rec.Attempt); err != nil || got.State != booking.StateHeld || !got.TTL.IsZero() {
		t.Errorf("record: got %+v, %v, want it back without a TTL", got, err)
	}
	if lines := fmt.Sprint(p.Lines(t, 3)); !strings.Contains(lines, "restored_held") || !strings.Contains(lines, `"level":"ERROR"`) {
		t.Errorf("stdout: got %s, want the metric and the alarm", lines)
	}
}
