package cloud_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	objectstore "github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	messages "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	ssmtypes "github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"holdfast/internal/app"
	"holdfast/internal/app/cloud"
	"holdfast/internal/awsclient"
	"holdfast/internal/booking"
	"holdfast/internal/config"
	"holdfast/internal/queue/sqs"
	"holdfast/internal/store/dynamo"
	"holdfast/internal/testenv"
)

// The account of a test's emulator.
const (
	table, queueName, bucket = "bookings", "records", "page"
	from                     = "Seats <no-reply@seats.example>"
)

// TestMain gives all AWS clients here, those of programs too, credentials that the
// emulator takes.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// account starts an emulator with everything that a deployment has there.
func account(t *testing.T) (endpoint string) {
	t.Helper()
	endpoint = testenv.AWS(t).Endpoint
	ctx := t.Context()
	cfg, err := awsclient.Load(ctx, awsclient.Options{Region: testenv.Region, Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	_, bucketErr := objectstore.NewFromConfig(cfg, func(o *objectstore.Options) { o.UsePathStyle = true }).CreateBucket(ctx, &objectstore.CreateBucketInput{
		Bucket:                    aws.String(bucket),
		CreateBucketConfiguration: &s3types.CreateBucketConfiguration{LocationConstraint: testenv.Region},
	})
	_, sender := sesv2.NewFromConfig(cfg).CreateEmailIdentity(ctx, &sesv2.CreateEmailIdentityInput{EmailIdentity: aws.String("no-reply@seats.example")})
	_, secret := secretsmanager.NewFromConfig(cfg).CreateSecret(ctx, &secretsmanager.CreateSecretInput{
		Name: aws.String("holdfast/gateway"), SecretString: aws.String(`{"password":"p","app_secret":"s"}`),
	})
	_, parameter := ssm.NewFromConfig(cfg).PutParameter(ctx, &ssm.PutParameterInput{
		Name: aws.String("/holdfast/seal-key"), Value: aws.String(strings.Repeat("ab", booking.SealKeySize)), Type: ssmtypes.ParameterTypeSecureString,
	})
	if err := errors.Join(
		dynamo.Create(ctx, dynamodb.NewFromConfig(cfg), table, dynamo.Options{}),
		sqs.Create(ctx, messages.NewFromConfig(cfg), queueName),
		bucketErr, sender, secret, parameter,
	); err != nil {
		t.Fatal(err)
	}
	return endpoint
}

// needs are a process's with every driver of AWS.
func needs(endpoint string) app.Needs {
	return app.Needs{
		Drivers: config.Drivers{
			Store: "dynamodb", StoreTable: table, Queue: "sqs", QueueName: queueName,
			AWSRegion: testenv.Region, AWSEndpoint: endpoint,
		},
		Published: config.Published{Objects: "s3", ObjectsBucket: bucket},
		Mail:      config.Mail{MailDriver: "ses", MailFrom: from},
		Now:       time.Now,
	}
}

// use has each driver that was opened do something.
func use(t *testing.T, d *app.Drivers) {
	t.Helper()
	ctx := t.Context()
	if d.Store != nil {
		empty, err := d.Store.Empty(ctx)
		if err != nil || !empty {
			t.Errorf("store: got empty %v, %v, want true", empty, err)
		}
	}
	if d.Queue != nil {
		sent := d.Queue.Send(ctx, "0000", "d1", []byte("body"))
		got, err := d.Queue.Receive(ctx, 1, time.Second)
		if err := errors.Join(sent, err); err != nil || len(got) != 1 || string(got[0].Body) != "body" {
			t.Errorf("queue: got %v, %v, want the message", got, err)
		}
	}
	if d.Objects != nil {
		_, put := d.Objects.Put(ctx, "status.json", []byte("{}"), "application/json", "")
		body, _, err := d.Objects.Get(ctx, "status.json")
		if err := errors.Join(put, err); err != nil || !bytes.Equal(body, []byte("{}")) {
			t.Errorf("objects: got %q, %v, want what was put", body, err)
		}
	}
	if d.Mailer != nil {
		if err := d.Mailer.Send(ctx, mail()); err != nil {
			t.Errorf("mail: got %v, want it sent", err)
		}
	}
}

func mail() booking.Mail {
	return booking.Mail{
		To: "candidate@example.org", Sale: "demo", LevelName: "One", BookingURL: "https://seats.example/result?booking=x",
		Record: booking.Record{
			CandidateHash: strings.Repeat("0", 64), Attempt: booking.AttemptID(booking.NewEpoch(time.Now()), booking.NewAttemptSuffix(time.Now())), Code: "P0001", Level: "N1", Amount: 150000, Currency: "BDT",
			State: booking.StatePaid, PaidAt: time.Now(), Transaction: "T1",
		},
	}
}

func TestOpen_EveryDriverByItsName(t *testing.T) {
	t.Parallel()
	endpoint := account(t)
	all := needs(endpoint)
	for name, change := range map[string]func(n *app.Needs){
		"AWS": func(*app.Needs) {},
		"Local": func(n *app.Needs) {
			n.Store, n.Queue, n.Objects, n.MailDriver, n.AWSRegion = "sqlite", "sqlite", "sqlite", "outbox", ""
		},
		"Middle":   func(n *app.Needs) { n.Objects, n.MailDriver = "sqlite", "outbox" },
		"Worker":   func(n *app.Needs) { n.Published, n.Mail = config.Published{}, config.Mail{} },
		"Operator": func(n *app.Needs) { n.Mail = config.Mail{} },
	} {
		n := all
		n.Data = t.TempDir()
		change(&n)
		d, err := cloud.Open(t.Context(), n)
		if err != nil {
			t.Fatalf("%s: got %v, want nil", name, err)
		}
		if (d.Objects != nil) != (n.Objects != "") || (d.Mailer != nil) != (n.MailDriver != "") {
			t.Errorf("%s: got objects %v and mail %v, want what was named", name, d.Objects != nil, d.Mailer != nil)
		}
		if name == "AWS" || name == "Local" { // the others share what AWS has used
			use(t, d)
		}
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Errorf("%s: close, twice: got %v, want nil", name, err)
		}
	}
}

func TestOpen_SaysWhatItCannotOpen(t *testing.T) {
	t.Parallel()
	endpoint := account(t)
	for want, change := range map[string]func(n *app.Needs){
		"records-of-another": func(n *app.Needs) { n.QueueName = "records-of-another" },
		"no region":          func(n *app.Needs) { n.AWSRegion = "" },
		"sender":             func(n *app.Needs) { n.MailFrom = "nobody" },
		"HOLDFAST_STORE=tape": func(n *app.Needs) {
			n.Store = "tape"
		},
	} {
		n := needs(endpoint)
		n.Data = t.TempDir()
		change(&n)
		if d, err := cloud.Open(t.Context(), n); d != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v, want an error that says %q", d, err, want)
		}
	}
}

func TestResolve_ReadsSecretsAndParameters(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"HOLDFAST_AWS_REGION": testenv.Region, "HOLDFAST_AWS_ENDPOINT": account(t),
		"HOLDFAST_SEAL_KEY_REF": "ssm:/holdfast/seal-key", "HOLDFAST_GATEWAY_PASSWORD_REF": "secretsmanager:holdfast/gateway#password",
		"HOLDFAST_REDIS_ADDR": "redis:6379",
	}
	getenv, err := cloud.Resolve(t.Context(), func(name string) string { return env[name] }, config.Variables[config.API]())
	if err != nil {
		t.Fatalf("Resolve: got %v, want nil", err)
	}
	for name, want := range map[string]string{
		"HOLDFAST_SEAL_KEY":         strings.Repeat("ab", booking.SealKeySize),
		"HOLDFAST_GATEWAY_PASSWORD": "p",
		"HOLDFAST_REDIS_ADDR":       "redis:6379",
		"HOLDFAST_REDIS_PASSWORD":   "",
	} {
		if got := getenv(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	env["HOLDFAST_SEAL_KEY_REF"] = "ssm:/holdfast/none"
	if _, err := cloud.Resolve(t.Context(), func(name string) string { return env[name] }, config.Variables[config.API]()); err == nil || !strings.HasPrefix(err.Error(), "HOLDFAST_SEAL_KEY_REF: ") {
		t.Errorf("a parameter that is not there: got %v, want an error that names the variable", err)
	}
}

// Settings without a reference need nothing of AWS.
func TestResolve_WithoutReferencesCallsNobody(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	getenv, err := cloud.Resolve(ctx, func(string) string { return "" }, config.Variables[config.API]())
	if err != nil || getenv("HOLDFAST_SEAL_KEY") != "" {
		t.Errorf("got %v, want the environment as it is", err)
	}
}
