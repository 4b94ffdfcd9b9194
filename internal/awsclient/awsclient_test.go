package awsclient_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"go.uber.org/goleak"

	"holdfast/internal/awsclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const region = "ap-south-1"

// environment is one with an access key and nothing else of AWS's. It returns how many
// calls the instance's metadata got.
func environment(t *testing.T, change map[string]string) *atomic.Int64 {
	t.Helper()
	var calls atomic.Int64
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(metadata.Close)
	none := filepath.Join(t.TempDir(), "none")
	env := map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "",
		"AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none, "AWS_CA_BUNDLE": "",
		"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.URL,
		"AWS_DEFAULTS_MODE": "", "AWS_MAX_ATTEMPTS": "", "AWS_RETRY_MODE": "",
	}
	for name, value := range change {
		env[name] = value
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
	return &calls
}

func load(t *testing.T, o awsclient.Options) aws.Config {
	t.Helper()
	cfg, err := awsclient.Load(t.Context(), o)
	if err != nil {
		t.Fatalf("Load: got %v, want nil", err)
	}
	return cfg
}

// ask is some call of some service.
func ask(ctx context.Context, client *sqs.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("q.fifo")})
	return err
}

func answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_, _ = w.Write([]byte(`{"QueueUrl":"http://127.0.0.1/1/q.fifo"}`))
}

func TestLoad_AsksNoMetadataWhenTheEnvironmentHasCredentials(t *testing.T) {
	for name, c := range map[string]struct {
		change map[string]string
		want   bool // a call to the metadata, and thereby an error
	}{
		"credentials in the environment":           {nil, false},
		"and a mode that would look where it runs": {map[string]string{"AWS_DEFAULTS_MODE": "auto"}, false},
		"no credentials anywhere":                  {map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, true},
	} {
		t.Run(name, func(t *testing.T) {
			calls := environment(t, c.change)
			var signed atomic.Pointer[string]
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				scope := r.Header.Get("Authorization")
				signed.Store(&scope)
				answer(w)
			}))
			defer service.Close()
			cfg := load(t, awsclient.Options{Region: region, Endpoint: service.URL})
			if got := calls.Load(); got != 0 {
				t.Errorf("Load called the instance's metadata %d times, want 0", got)
			}
			err := ask(t.Context(), sqs.NewFromConfig(cfg))
			if (err != nil) != c.want || (calls.Load() > 0) != c.want {
				t.Fatalf("call: got error %v and %d calls of the metadata, want both %v", err, calls.Load(), c.want)
			}
			if c.want {
				return
			}
			if got := signed.Load(); got == nil || !strings.Contains(*got, "Credential=AKIDEXAMPLE/") || !strings.Contains(*got, "/"+region+"/sqs/") {
				t.Errorf("call at the endpoint: got signature %v, want one of the key and region given", got)
			}
		})
	}
}

func TestLoad_RegionOfTheEnvironmentIsTakenWhenNoneIsGiven(t *testing.T) {
	environment(t, map[string]string{"AWS_REGION": "eu-west-1"})
	if got := load(t, awsclient.Options{}).Region; got != "eu-west-1" {
		t.Errorf("region: got %q, want the environment's", got)
	}
	if got := load(t, awsclient.Options{Region: region}).Region; got != region {
		t.Errorf("region: got %q, want the one given", got)
	}
}

func TestLoad_RefusesWhatCannotWork(t *testing.T) {
	environment(t, nil)
	for want, o := range map[string]awsclient.Options{
		"set AWS_REGION": {},
		"aws endpoint":   {Region: region, Endpoint: "localhost:5000"},
		"no user":        {Region: region, Endpoint: "http://user:s3cret@moto:5000"},
	} {
		_, err := awsclient.Load(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Load %+v: got %v, want %q", o, err, want)
		}
	}
}

func TestLoad_BeingThrottledDoesNotEatASecond(t *testing.T) {
	environment(t, map[string]string{"AWS_MAX_ATTEMPTS": "9"})
	var calls atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.Header().Set("X-Amzn-Errortype", "RequestThrottled")
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer(w)
	}))
	defer service.Close()
	cfg := load(t, awsclient.Options{Region: region, Endpoint: service.URL})
	if err := ask(t.Context(), sqs.NewFromConfig(cfg)); err != nil || calls.Load() != 3 {
		t.Errorf("throttled twice: got %v after %d attempts, want nil after 3", err, calls.Load())
	}
	calls.Store(-10)
	if err := ask(t.Context(), sqs.NewFromConfig(cfg)); err == nil || calls.Load() != -7 {
		t.Errorf("throttled for good: got %v after %d attempts, want an error after 3", err, calls.Load()+10)
	}

	retryer := cfg.Retryer()
	throttled := &smithy.GenericAPIError{Code: "ThrottlingException"}
	for range 200 {
		var all time.Duration
		for attempt := 1; attempt < retryer.MaxAttempts(); attempt++ {
			wait, err := retryer.RetryDelay(attempt, throttled)
			if err != nil {
				t.Fatal(err)
			}
			all += wait
		}
		if all > 400*time.Millisecond {
			t.Fatalf("back-off of one call: got %s, want at most 400ms", all)
		}
	}
}

// The second wave of a burst finds the connections of the first.
func TestLoad_ABurstKeepsItsConnections(t *testing.T) {
	environment(t, nil)
	const width, waves = 60, 3
	arrived, leave := make(chan struct{}, width), make(chan struct{})
	var opened atomic.Int64
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-leave:
			answer(w)
		case <-r.Context().Done():
		}
	}))
	service.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	service.Start()
	defer service.Close()
	client := sqs.NewFromConfig(load(t, awsclient.Options{Region: region, Endpoint: service.URL}))
	for range waves {
		var wave sync.WaitGroup
		for range width {
			wave.Go(func() {
				if err := ask(t.Context(), client); err != nil {
					t.Errorf("call: got %v, want nil", err)
				}
			})
		}
		for n := range width {
			select {
			case <-arrived:
			case <-time.After(20 * time.Second):
				t.Fatalf("calls at work at once: got %d, want %d", n, width)
			}
		}
		for range width {
			leave <- struct{}{}
		}
		wave.Wait()
	}
	if got := opened.Load(); got > width+5 { // a connection may be dialled and not needed
		t.Errorf("%d waves of %d calls: got %d connections, want %d", waves, width, got, width)
	}
}

func TestLoad_NothingCutsALongPollShort(t *testing.T) {
	environment(t, map[string]string{"AWS_ENABLE_DEFAULT_SOCKET_TIMEOUT_2026": "true"})
	client, ok := load(t, awsclient.Options{Region: region}).HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		t.Fatal("HTTP client: want the SDK's, to which it can add its roots")
	}
	read, set := client.GetReadTimeout()
	if got := client.GetTransport().ResponseHeaderTimeout; client.GetTimeout() != 0 || got != 0 || !set || read != 0 {
		t.Errorf("time-outs: got %s for a call, %s for its header, %s (%v) for a read, want none", client.GetTimeout(), got, read, set)
	}
}

// called is an HTTP client that notes which host was asked.
type called struct{ host string }

func (c *called) Do(r *http.Request) (*http.Response, error) {
	c.host = r.URL.Host
	w := httptest.NewRecorder()
	_, _ = w.WriteString(`<GetCallerIdentityResponse><GetCallerIdentityResult><Arn>a</Arn></GetCallerIdentityResult></GetCallerIdentityResponse>`)
	return w.Result(), nil
}

// Whoever runs a process sets its environment: an endpoint of the SDK's own settings
// could answer for AWS, also the question who is calling.
func TestLoad_NoEndpointButTheGivenOneAnswersForAWS(t *testing.T) {
	const amazon, emulator, mine = "sts." + region + ".amazonaws.com", "127.0.0.1:5000", "http://127.0.0.1:1"
	file := filepath.Join(t.TempDir(), "config")
	text := "[default]\nendpoint_url = " + mine + "\nservices = mine\n[services mine]\nsts =\n  endpoint_url = " + mine + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]map[string]string{
		"Service":  {"AWS_ENDPOINT_URL_STS": mine},
		"All":      {"AWS_ENDPOINT_URL": mine},
		"File":     {"AWS_CONFIG_FILE": file},
		"Heed":     {"AWS_ENDPOINT_URL_STS": mine, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"},
		"HeedNone": {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, change)
			for given, want := range map[string]string{"": amazon, "http://" + emulator: emulator} {
				asked := new(called)
				client := sts.NewFromConfig(load(t, awsclient.Options{Region: region, Endpoint: given}), func(o *sts.Options) { o.HTTPClient = asked })
				if _, err := client.GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{}); err != nil || asked.host != want {
					t.Errorf("endpoint %q: got a call of %q, %v, want %q", given, asked.host, err, want)
				}
			}
		})
	}
}
