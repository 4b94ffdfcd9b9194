package secretref_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast/internal/secretref"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hidden is in every value, and must be in no error.
const hidden = "s3cret"

// store answers for both services from a table; what is not in it is not there.
type store struct {
	texts map[string]string // by service:id
	asked chan string
}

func newStore(texts map[string]string) store { return store{texts, make(chan string, 100)} }

func (s store) text(ctx context.Context, id string) (string, error) {
	s.asked <- id
	text, ok := s.texts[id]
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case !ok:
		return "", errors.New("no such thing")
	case text == "hangs":
		<-ctx.Done()
		return "", ctx.Err()
	}
	return text, nil
}

func (s store) GetSecretValue(ctx context.Context, in *secretsmanager.GetSecretValueInput, _ ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error) {
	text, err := s.text(ctx, "secretsmanager:"+*in.SecretId)
	out := &secretsmanager.GetSecretValueOutput{SecretString: &text}
	if text == "binary" {
		out = &secretsmanager.GetSecretValueOutput{SecretBinary: []byte(hidden)}
	}
	return out, err
}

func (s store) GetParameter(ctx context.Context, in *ssm.GetParameterInput, _ ...func(*ssm.Options)) (*ssm.GetParameterOutput, error) {
	text, err := s.text(ctx, "ssm:"+*in.Name)
	if !aws.ToBool(in.WithDecryption) {
		text = "ciphertext"
	}
	return &ssm.GetParameterOutput{Parameter: &types.Parameter{Value: &text}}, err
}

func (s store) connect(context.Context) (secretref.Clients, error) {
	return secretref.Clients{SecretsManager: s, ParameterStore: s}, nil
}

var names = []string{"HOLDFAST_A", "HOLDFAST_B", "HOLDFAST_C", "HOLDFAST_D", "HOLDFAST_E"}

func getenv(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func TestResolve_LoadersSeePlainValues(t *testing.T) {
	t.Parallel()
	const arn = "arn:aws:secretsmanager:ap-south-1:123456789012:secret:holdfast/api-AbCdEf"
	s := newStore(map[string]string{
		"secretsmanager:whole":  "s3cret whole\n",
		"secretsmanager:" + arn: `{"a":"s3cret a","b":"s3cret b","port":6379}`,
		"ssm:/holdfast/one":     "s3cret parameter",
	})
	get, err := secretref.Resolve(t.Context(), getenv(map[string]string{
		"HOLDFAST_A_REF": "secretsmanager:whole",
		"HOLDFAST_B_REF": "secretsmanager:" + arn + "#a",
		"HOLDFAST_C_REF": "secretsmanager:" + arn + "#b",
		"HOLDFAST_D_REF": "ssm:/holdfast/one",
		"HOLDFAST_E":     "plain",
		"HOLDFAST_F_REF": "secretsmanager:of another process",
		"PATH":           "/bin",
	}), names, s.connect)
	if err != nil {
		t.Fatalf("Resolve: got %v, want nil", err)
	}
	want := map[string]string{
		"HOLDFAST_A": "s3cret whole", "HOLDFAST_B": "s3cret a", "HOLDFAST_C": "s3cret b",
		"HOLDFAST_D": "s3cret parameter", "HOLDFAST_E": "plain", "HOLDFAST_F": "", "PATH": "/bin",
	}
	got := map[string]string{}
	for name := range want {
		got[name] = get(name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if n := len(s.asked); n != 3 {
		t.Errorf("asked %d times for 3 secrets, want 3", n)
	}
}

func TestResolve_WithoutReferencesConnectsToNothing(t *testing.T) {
	t.Parallel()
	get, err := secretref.Resolve(t.Context(), getenv(map[string]string{"HOLDFAST_A": "plain"}), names,
		func(context.Context) (secretref.Clients, error) {
			t.Error("connect was called, want no call")
			return secretref.Clients{}, nil
		})
	if err != nil || get("HOLDFAST_A") != "plain" {
		t.Errorf("Resolve: got %v, want the environment as it is", err)
	}
}

// wantErrors checks that the error has these lines, in order, and no value.
func wantErrors(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("Resolve: got nil, want %d errors", len(want))
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != len(want) {
		t.Fatalf("Resolve: got %d errors, want %d:\n%v", len(lines), len(want), err)
	}
	for i := range want {
		if !strings.Contains(lines[i], want[i]) {
			t.Errorf("error %d: got %q, want %q in it", i, lines[i], want[i])
		}
	}
	if strings.Contains(err.Error(), hidden) {
		t.Errorf("error %q: got a value in it, want none", err)
	}
}

func TestResolve_TellsEverythingThatIsWrongAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(map[string]string{"secretsmanager:there": hidden})
	get, err := secretref.Resolve(t.Context(), getenv(map[string]string{
		"HOLDFAST_A_REF":  "secretsmanager:absent",
		"HOLDFAST_B_REF":  "secretsmanager:there",
		"HOLDFAST_B":      hidden,
		"HOLDFAST_C_REF":  "secretsmanager:there",
		"HOLDFAST_C_FILE": "/run/secrets/c",
		"HOLDFAST_D_REF":  hidden,
		"HOLDFAST_E_REF":  "ssm:/absent",
	}), names, s.connect)
	if get != nil {
		t.Error("Resolve: got a getenv, want none")
	}
	wantErrors(t, err,
		"HOLDFAST_A_REF: secretsmanager:absent: no such thing",
		"HOLDFAST_B_REF: set as well as HOLDFAST_B:",
		"HOLDFAST_C_REF: set as well as HOLDFAST_C_FILE:",
		"HOLDFAST_D_REF: not a reference: want secretsmanager:",
		"HOLDFAST_E_REF: ssm:/absent: no such thing",
	)
}

func TestResolve_RefusesWhatIsNoValue(t *testing.T) {
	t.Parallel()
	s := newStore(map[string]string{
		"secretsmanager:text": hidden, "secretsmanager:json": `{"n":1,"s":"","a":"s3cret"}`,
		"secretsmanager:binary": "binary", "secretsmanager:empty": "\n", "ssm:/empty": "",
	})
	for ref, want := range map[string]string{
		"secretsmanager:text#a":      `not a JSON object, and key "a"`,
		"secretsmanager:json#n":      `key "n": want text`,
		"secretsmanager:json#absent": `key "absent": want text`,
		"secretsmanager:json#s":      "the value is empty",
		"secretsmanager:binary":      "binary",
		"secretsmanager:empty":       "the value is empty",
		"ssm:/empty":                 "the value is empty",
		"ssm:/json#a":                "not a reference",
		"secretsmanager:":            "not a reference",
		"secretsmanager:#a":          "not a reference",
		"secretsmanager:json#":       "not a reference",
		"vault:x":                    "not a reference",
		hidden + ":" + hidden:        "not a reference",
	} {
		_, err := secretref.Resolve(t.Context(), getenv(map[string]string{"HOLDFAST_A_REF": ref}), names, s.connect)
		wantErrors(t, err, want)
	}
}

func TestResolve_ConnectionThatCannotBeMadeIsToldForEach(t *testing.T) {
	t.Parallel()
	_, err := secretref.Resolve(t.Context(), getenv(map[string]string{
		"HOLDFAST_A_REF": "secretsmanager:a", "HOLDFAST_B_REF": "ssm:b",
	}), names, func(context.Context) (secretref.Clients, error) { return secretref.Clients{}, errors.New("no region") })
	wantErrors(t, err, "HOLDFAST_A_REF: secretsmanager:a: no region", "HOLDFAST_B_REF: ssm:b: no region")
}

func TestResolve_OneThatHangsEndsAtTheDeadlineAndTakesNoOthersTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(map[string]string{"secretsmanager:a": "hangs", "ssm:b": hidden, "ssm:c": "hangs", "ssm:d": hidden})
		began := time.Now()
		_, err := secretref.Resolve(t.Context(), getenv(map[string]string{
			"HOLDFAST_A_REF": "secretsmanager:a", "HOLDFAST_B_REF": "ssm:b",
			"HOLDFAST_C_REF": "ssm:c", "HOLDFAST_D_REF": "ssm:d",
		}), names, s.connect)
		wantErrors(t, err,
			"HOLDFAST_A_REF: secretsmanager:a: context deadline exceeded",
			"HOLDFAST_C_REF: ssm:c: context deadline exceeded")
		if took := time.Since(began); took != secretref.Timeout {
			t.Errorf("Resolve: got an answer after %s, want it after %s", took, secretref.Timeout)
		}
	})
}

func TestResolve_OverAnEmulatorOfAWS(t *testing.T) {
	t.Parallel()
	emulator := testenv.AWS(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	cfg := aws.Config{
		Region: testenv.Region, BaseEndpoint: &emulator.Endpoint, HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	}
	secrets, parameters := secretsmanager.NewFromConfig(cfg), ssm.NewFromConfig(cfg)
	ctx := t.Context()
	created, err := secrets.CreateSecret(ctx, &secretsmanager.CreateSecretInput{
		Name: aws.String("holdfast/api"), SecretString: aws.String(`{"seal_key":"s3cret seal","redis":"s3cret redis"}`),
	})
	if err != nil {
		t.Fatalf("create secret: %v", err)
	}
	if _, err := secrets.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: aws.String("binary"), SecretBinary: []byte(hidden)}); err != nil {
		t.Fatalf("create secret: %v", err)
	}
	for name, kind := range map[string]types.ParameterType{"/holdfast/secret": types.ParameterTypeSecureString, "/holdfast/plain": types.ParameterTypeString} {
		if _, err := parameters.PutParameter(ctx, &ssm.PutParameterInput{Name: &name, Value: aws.String(hidden + name), Type: kind}); err != nil {
			t.Fatalf("put parameter: %v", err)
		}
	}
	connect := func(context.Context) (secretref.Clients, error) {
		return secretref.Clients{SecretsManager: secrets, ParameterStore: parameters}, nil
	}
	get, err := secretref.Resolve(ctx, getenv(map[string]string{
		"HOLDFAST_A_REF": "secretsmanager:holdfast/api#seal_key",
		"HOLDFAST_B_REF": "secretsmanager:" + *created.ARN + "#redis",
		"HOLDFAST_C_REF": "ssm:/holdfast/secret",
		"HOLDFAST_D_REF": "ssm:/holdfast/plain",
	}), names, connect)
	if err != nil {
		t.Fatalf("Resolve: got %v, want nil", err)
	}
	got := fmt.Sprint(get("HOLDFAST_A"), "|", get("HOLDFAST_B"), "|", get("HOLDFAST_C"), "|", get("HOLDFAST_D"))
	if want := "s3cret seal|s3cret redis|s3cret/holdfast/secret|s3cret/holdfast/plain"; got != want {
		t.Errorf("values: got %q, want %q", got, want)
	}
	_, err = secretref.Resolve(ctx, getenv(map[string]string{
		"HOLDFAST_A_REF": "secretsmanager:absent", "HOLDFAST_B_REF": "ssm:/absent", "HOLDFAST_C_REF": "secretsmanager:binary",
	}), names, connect)
	wantErrors(t, err, "ResourceNotFoundException", "ParameterNotFound", "binary")
}
