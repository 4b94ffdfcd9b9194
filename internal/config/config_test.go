package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/config"
)

const sealKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// required is the least that the API starts with.
func required() map[string]string {
	return map[string]string{
		"HOLDFAST_PUBLIC_URL":         "https://seats.example",
		"HOLDFAST_SEAL_KEY":           sealKey,
		"HOLDFAST_GATEWAY_URL":        "https://gateway.example/v1.2.0",
		"HOLDFAST_GATEWAY_APP_KEY":    "s3cret-app-key",
		"HOLDFAST_GATEWAY_APP_SECRET": "s3cret-app-secret",
		"HOLDFAST_GATEWAY_USERNAME":   "s3cret-username",
		"HOLDFAST_GATEWAY_PASSWORD":   "s3cret-password",
	}
}

// with is the required settings and those of set; "" takes one away.
func with(set map[string]string) func(string) string {
	all := required()
	maps.Copy(all, set)
	return func(name string) string { return all[name] }
}

func none(string) string { return "" }

var revealed = cmp.Comparer(func(a, b config.Secret) bool { return a.Reveal() == b.Reveal() })

func TestLoadAPI_Defaults(t *testing.T) {
	t.Parallel()
	got, err := config.LoadAPI(with(nil))
	if err != nil {
		t.Fatalf("LoadAPI: got %v, want nil", err)
	}
	want := config.API{
		Addr: "127.0.0.1:8080", AdminAddr: "127.0.0.1:9090",
		PublicURL: "https://seats.example", SealKey: config.NewSecret(sealKey),
		CodePattern: booking.DefaultCodePattern, Pages: true, Linger: 5 * time.Second,
		Process: config.Process{Data: "data", LogLevel: slog.LevelInfo, Drain: 35 * time.Second},
		Redis: config.Redis{
			RedisAddr: "127.0.0.1:6379", RedisPool: 300, KeyPrefix: "{sale}:", Acks: config.AcksAuto,
		},
		Gateway: config.Gateway{
			GatewayURL:       "https://gateway.example/v1.2.0",
			GatewayAppKey:    config.NewSecret("s3cret-app-key"),
			GatewayAppSecret: config.NewSecret("s3cret-app-secret"),
			GatewayUsername:  config.NewSecret("s3cret-username"),
			GatewayPassword:  config.NewSecret("s3cret-password"),
			GatewaySlots:     1000,
		},
		Budgets: config.Budgets{
			RequestBudget: 8 * time.Second, RedisBudget: time.Second,
			CreateBudget: 5 * time.Second, EnqueueBudget: time.Second,
			ExecuteTimeout: 30 * time.Second,
		},
		Reconciler: config.Reconciler{QueryRate: 200, ReconcileWidth: 64, ReconcileEvery: 20 * time.Second},
		Drivers:    config.Drivers{Store: "sqlite", Queue: "sqlite"},
		Published:  config.Published{Objects: "sqlite"},
		Mail:       config.Mail{MailDriver: "outbox", MailFrom: "Holdfast <no-reply@localhost>", SMTPEncryption: "starttls"},
		Money:      config.Money{RefundRate: 5},
	}
	if diff := cmp.Diff(want, got, revealed); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	if n := len(got.SealKeyBytes()); n != booking.SealKeySize {
		t.Errorf("sealing key: got %d bytes, want %d", n, booking.SealKeySize)
	}
}

func TestLoadWorker_Defaults(t *testing.T) {
	t.Parallel()
	got, err := config.LoadWorker(none)
	if err != nil {
		t.Fatalf("LoadWorker without any variable: got %v, want nil", err)
	}
	want := config.Worker{
		AdminAddr: "127.0.0.1:9091",
		Process:   config.Process{Data: "data", LogLevel: slog.LevelInfo, Drain: 35 * time.Second},
		Drivers:   config.Drivers{Store: "sqlite", Queue: "sqlite"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestLoadAPI_EveryVariableIsRead(t *testing.T) {
	t.Parallel()
	set := map[string]string{
		"HOLDFAST_ADDR": "0.0.0.0:80", "HOLDFAST_ADMIN_ADDR": "10.0.0.7:9100",
		"HOLDFAST_PUBLIC_URL": "http://localhost:8080/", "HOLDFAST_DATA": "/var/lib/holdfast",
		"HOLDFAST_REDIS_ADDR": "redis.internal:6380", "HOLDFAST_REDIS_USERNAME": "api",
		"HOLDFAST_REDIS_PASSWORD": "s3cret-redis", "HOLDFAST_REDIS_TLS": "true",
		"HOLDFAST_REDIS_POOL": "64", "HOLDFAST_KEY_PREFIX": "{n1}:", "HOLDFAST_ACKS": "2",
		"HOLDFAST_CODE_PATTERN": "[0-9]{8}", "HOLDFAST_GATEWAY_URL": "http://gateway:8081/",
		"HOLDFAST_GATEWAY_SLOTS": "10", "HOLDFAST_REQUEST_BUDGET": "9s",
		"HOLDFAST_REDIS_BUDGET": "1500ms", "HOLDFAST_CREATE_BUDGET": "4s",
		"HOLDFAST_ENQUEUE_BUDGET": "2s", "HOLDFAST_EXECUTE_TIMEOUT": "31s",
		"HOLDFAST_QUERY_RATE": "50", "HOLDFAST_RECONCILE_WIDTH": "8",
		"HOLDFAST_RECONCILE_EVERY": "5s", "HOLDFAST_DRAIN": "40s", "HOLDFAST_STORE": "dynamodb",
		"HOLDFAST_STORE_TABLE": "bookings", "HOLDFAST_QUEUE": "sqs", "HOLDFAST_QUEUE_NAME": "records",
		"HOLDFAST_AWS_REGION":   "ap-south-1",
		"HOLDFAST_AWS_ENDPOINT": "http://moto:5000", "HOLDFAST_OBJECTS": "s3", "HOLDFAST_OBJECTS_BUCKET": "seats-page",
		"HOLDFAST_SES_CONFIGURATION_SET": "bounces", "HOLDFAST_PAGES": "false", "HOLDFAST_MAIL": "smtp",
		"HOLDFAST_MAIL_FROM": "exam@example.org", "HOLDFAST_LOG_LEVEL": "debug",
		"HOLDFAST_SMTP_HOST": "mail.example", "HOLDFAST_SMTP_PORT": "2525", "HOLDFAST_SMTP_ENCRYPTION": "implicit",
		"HOLDFAST_SMTP_USERNAME": "seats", "HOLDFAST_SMTP_PASSWORD": "s3cret-smtp", "HOLDFAST_SMTP_HELLO": "api.example",
		"HOLDFAST_NOTIFY_TOPIC": "arn:aws:sns:ap-southeast-1:123456789012:bpt_01929", "HOLDFAST_REFUND_AUTO": "true",
		"HOLDFAST_REFUND_RATE": "2", "HOLDFAST_ADMIN_TOKEN": "s3cret-token-of-the-back-office-1",
	}
	asked := map[string]bool{}
	get := with(set)
	got, err := config.LoadAPI(func(name string) string {
		asked[name] = true
		return get(name)
	})
	if err != nil {
		t.Fatalf("LoadAPI: got %v, want nil", err)
	}
	for name := range set {
		if !asked[name] {
			t.Errorf("%s: never read", name)
		}
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"AdminAddr", got.AdminAddr, "10.0.0.7:9100"},
		{"AdminToken", got.AdminToken.Reveal(), "s3cret-token-of-the-back-office-1"},
		{"PublicURL", got.PublicURL, "http://localhost:8080"},
		{"GatewayURL", got.GatewayURL, "http://gateway:8081"},
		{"RedisPassword", got.RedisPassword.Reveal(), "s3cret-redis"},
		{"RedisTLS", got.RedisTLS, true},
		{"Acks", got.Acks, config.Acks(2)},
		{"RedisBudget", got.RedisBudget, 1500 * time.Millisecond},
		{"LogLevel", got.LogLevel, slog.LevelDebug},
		{"MailFrom", got.MailFrom, "exam@example.org"},
		{"ReconcileWidth", got.ReconcileWidth, 8},
		{"SMTPPassword", got.SMTPPassword.Reveal(), "s3cret-smtp"},
		{"SMTPPort", got.SMTPPort, 2525},
		{"StoreTable", got.StoreTable, "bookings"},
		{"QueueName", got.QueueName, "records"},
		{"AWSRegion", got.AWSRegion, "ap-south-1"},
		{"AWSEndpoint", got.AWSEndpoint, "http://moto:5000"},
		{"ObjectsBucket", got.ObjectsBucket, "seats-page"},
		{"SESConfigurationSet", got.SESConfigurationSet, "bounces"},
		{"Pages", got.Pages, false},
		{"NotifyTopic", got.NotifyTopic, "arn:aws:sns:ap-southeast-1:123456789012:bpt_01929"},
		{"RefundAuto", got.RefundAuto, true},
		{"RefundRate", got.RefundRate, 2},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
}

func TestLoadAPI_AdminListenerCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	got, err := config.LoadAPI(with(map[string]string{"HOLDFAST_ADMIN_ADDR": "off"}))
	if err != nil || got.AdminAddr != "" {
		t.Errorf("ADMIN_ADDR=off: got %q, %v, want no address", got.AdminAddr, err)
	}
}

func TestLoadAPI_TellsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	_, err := config.LoadAPI(with(map[string]string{
		"HOLDFAST_REDIS_POOL":       "many",
		"HOLDFAST_GATEWAY_SLOTS":    "0",
		"HOLDFAST_CREATE_BUDGET":    "6s",
		"HOLDFAST_STORE":            "paper",
		"HOLDFAST_SEAL_KEY":         "",
		"HOLDFAST_GATEWAY_PASSWORD": "",
	}))
	want := strings.Join([]string{
		`HOLDFAST_SEAL_KEY: required`,
		`HOLDFAST_REDIS_POOL: strconv.ParseInt: parsing "many": invalid syntax`,
		`HOLDFAST_GATEWAY_PASSWORD: required`,
		`HOLDFAST_STORE: "paper": want sqlite or dynamodb`,
		`HOLDFAST_GATEWAY_SLOTS: 0: want at least 1`,
		`HOLDFAST_REQUEST_BUDGET: 8s: want more than the 8s of Redis, create and enqueue together`,
	}, "\n")
	if err == nil {
		t.Fatal("LoadAPI with six mistakes: got nil, want all of them")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestLoadAPI_Refuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ variable, value string }{
		{"ADDR", "8080"},
		{"ADDR", "localhost:"},
		{"ADMIN_ADDR", ":9090"},
		{"ADMIN_ADDR", "0.0.0.0:9090"},
		{"ADMIN_ADDR", "203.0.113.7:9090"},
		{"ADMIN_ADDR", "[::]:9090"},
		{"ADMIN_TOKEN", strings.Repeat("t", 31)}, {"ADMIN_TOKEN", strings.Repeat("t", 31) + " t"}, {"ADMIN_TOKEN", strings.Repeat("é", 32)},
		{"PUBLIC_URL", "seats.example"},
		{"PUBLIC_URL", "ftp://seats.example"},
		{"PUBLIC_URL", "https://seats.example/book"},
		{"PUBLIC_URL", "https://seats.example?a=b"},
		{"PUBLIC_URL", "https://u:p@seats.example"},
		{"GATEWAY_URL", "https://"},
		{"GATEWAY_URL", "https://gateway.example/#x"},
		{"SEAL_KEY", "00ff"},
		{"SEAL_KEY", sealKey[:62] + "zz"},
		{"CODE_PATTERN", "[A-"},
		{"REDIS_ADDR", "redis"},
		{"REDIS_POOL", "0"},
		{"REDIS_TLS", "perhaps"},
		{"KEY_PREFIX", "sale:"},
		{"KEY_PREFIX", "{}sale:"},
		{"KEY_PREFIX", "{sale:"},
		{"ACKS", "3"},
		{"ACKS", "-1"},
		{"GATEWAY_SLOTS", "-1"},
		{"REQUEST_BUDGET", "7s"},
		{"REQUEST_BUDGET", "8"},
		{"REDIS_BUDGET", "0s"},
		{"REDIS_BUDGET", "499ms"},
		{"REQUEST_BUDGET", "15s"},
		{"LINGER", "-1s"},
		{"TRUSTED_HOPS", "-1"},
		{"TRUSTED_HOPS", "11"},
		{"CREATE_BUDGET", "-1s"},
		{"ENQUEUE_BUDGET", "soon"},
		{"EXECUTE_TIMEOUT", "0s"}, {"EXECUTE_TIMEOUT", "51s"},
		{"DRAIN", "30s"},
		{"DRAIN", "0s"},
		{"QUERY_RATE", "0"},
		{"RECONCILE_WIDTH", "0"},
		{"RECONCILE_EVERY", "0s"},
		{"STORE", "DynamoDB"},
		{"QUEUE", "kafka"},
		{"QUEUE_NAME", "records.fifo"},
		{"QUEUE_NAME", strings.Repeat("q", 71)},
		{"OBJECTS", "tape"},
		{"AWS_ENDPOINT", "moto:5000"},
		{"PAGES", "perhaps"},
		{"MAIL", "pigeon"},
		{"NOTIFY_TOPIC", "arn:aws:sqs:ap-southeast-1:123456789012:queue"},
		{"REFUND_AUTO", "perhaps"},
		{"REFUND_RATE", "0"},
		{"REFUND_RATE", "0.5"},
		{"MAIL_FROM", "nobody"},
		{"LOG_LEVEL", "loud"},
	} {
		_, err := config.LoadAPI(with(map[string]string{"HOLDFAST_" + c.variable: c.value}))
		if err == nil {
			t.Errorf("%s=%s: got nil, want an error", c.variable, c.value)
			continue
		}
		if !strings.HasPrefix(err.Error(), "HOLDFAST_"+c.variable+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s=%s: got %q, want one line that names the variable", c.variable, c.value, err)
		}
	}
}

func TestLoadAPI_SMTPNeedsItsServer(t *testing.T) {
	t.Parallel()
	for want, set := range map[string]map[string]string{
		"HOLDFAST_SMTP_HOST: required with HOLDFAST_MAIL=smtp": {},
		"HOLDFAST_SMTP_PORT: 70000: want 0 to 65535":           {"HOLDFAST_SMTP_HOST": "mail.example", "HOLDFAST_SMTP_PORT": "70000"},
		`HOLDFAST_SMTP_ENCRYPTION: "none": want starttls or implicit or plain or plain-anywhere`: {
			"HOLDFAST_SMTP_HOST": "mail.example", "HOLDFAST_SMTP_ENCRYPTION": "none",
		},
	} {
		set["HOLDFAST_MAIL"] = "smtp"
		if _, err := config.LoadAPI(with(set)); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestVariables_AreTheOnesThatAreRead(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	if _, err := config.LoadWorker(func(name string) string { asked[name] = true; return "" }); err != nil {
		t.Fatal(err)
	}
	got := config.Variables[config.Worker]() // it has no secrets, and so no files
	slices.Sort(got)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(asked)), got); diff != "" {
		t.Errorf("variables (-read +named):\n%s", diff)
	}
	if !slices.Contains(config.Variables[config.API](), "HOLDFAST_SEAL_KEY") {
		t.Error("variables of the API: got no HOLDFAST_SEAL_KEY, want every setting")
	}
}

// An AWS driver wants all that it needs, told together, and nothing of what the
// others need.
func TestLoad_AWSDriversNeedTheirSettings(t *testing.T) {
	t.Parallel()
	const region = "HOLDFAST_AWS_REGION: required with a driver of AWS"
	queue := "HOLDFAST_QUEUE_NAME: required with HOLDFAST_QUEUE=sqs"
	table := "HOLDFAST_STORE_TABLE: required with HOLDFAST_STORE=dynamodb"
	bucket := "HOLDFAST_OBJECTS_BUCKET: required with HOLDFAST_OBJECTS=s3"
	all := []string{"HOLDFAST_STORE=dynamodb", "HOLDFAST_QUEUE=sqs", "HOLDFAST_OBJECTS=s3", "HOLDFAST_MAIL=ses"}
	api := func(get func(string) string) error { _, err := config.LoadAPI(get); return err }
	worker := func(get func(string) string) error { _, err := config.LoadWorker(get); return err }
	operator := func(get func(string) string) error { _, err := config.LoadOperator(get); return err }
	for _, c := range []struct {
		name string
		load func(func(string) string) error
		set  []string
		want []string
	}{
		{"API/Store", api, all[:1], []string{table, region}},
		{"API/Queue", api, all[1:2], []string{queue, region}},
		{"API/Objects", api, all[2:3], []string{bucket, region}},
		{"API/Mail", api, all[3:], []string{region}},
		{"API/All", api, all, []string{table, queue, bucket, region}},
		{"Worker/All", worker, all, []string{table, queue, region}},
		{"Worker/ObjectsAreTheApis", worker, all[2:], nil},
		{"Operator/All", operator, all, []string{table, queue, bucket, region}},
		{"Operator/Objects", operator, all[2:3], []string{bucket, region}},
	} {
		set := map[string]string{}
		for _, pair := range c.set {
			name, value, _ := strings.Cut(pair, "=")
			set[name] = value
		}
		var got []string
		if err := c.load(with(set)); err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: errors (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestLoadAPI_DrainOutlastsTheLongestCall(t *testing.T) {
	t.Parallel()
	_, err := config.LoadAPI(with(map[string]string{"HOLDFAST_EXECUTE_TIMEOUT": "35s"}))
	want := "HOLDFAST_DRAIN: 35s: want more than 35s, the longest call in flight"
	if err == nil || err.Error() != want {
		t.Errorf("drain as long as an execute: got %v, want %s", err, want)
	}
}

func TestLoadWorker_Refuses(t *testing.T) {
	t.Parallel()
	for variable, value := range map[string]string{
		"HOLDFAST_ADMIN_ADDR": "0.0.0.0:9091", "HOLDFAST_DRAIN": "-1s",
		"HOLDFAST_STORE": "x", "HOLDFAST_QUEUE": "x", "HOLDFAST_LOG_LEVEL": "x",
	} {
		_, err := config.LoadWorker(func(name string) string {
			return map[string]string{variable: value}[name]
		})
		if err == nil || !strings.HasPrefix(err.Error(), variable+": ") {
			t.Errorf("%s=%s: got %v, want an error that names the variable", variable, value, err)
		}
	}
}

func TestSecret_FromAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(sealKey+"\n"), 0o600); err != nil {
		t.Fatalf("write the key: got %v, want nil", err)
	}
	got, err := config.LoadAPI(with(map[string]string{
		"HOLDFAST_SEAL_KEY": "", "HOLDFAST_SEAL_KEY_FILE": path,
	}))
	if err != nil || got.SealKey.Reveal() != sealKey {
		t.Errorf("SEAL_KEY_FILE: got %q, %v, want the file's line", got.SealKey.Reveal(), err)
	}
	for name, set := range map[string]map[string]string{
		"Both":    {"HOLDFAST_SEAL_KEY_FILE": path},
		"Missing": {"HOLDFAST_SEAL_KEY": "", "HOLDFAST_SEAL_KEY_FILE": path + ".not"},
	} {
		_, err := config.LoadAPI(with(set))
		if err == nil || !strings.HasPrefix(err.Error(), "HOLDFAST_SEAL_KEY: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line about HOLDFAST_SEAL_KEY", name, err)
		}
		if err != nil && strings.Contains(err.Error(), sealKey) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
}

func TestSecret_NeverPrints(t *testing.T) {
	t.Parallel()
	const value = "s3cret"
	type inside struct {
		Exported   config.Secret
		unexported config.Secret
		List       []config.Secret
		Map        map[string]*config.Secret
	}
	s := config.NewSecret(value)
	c, err := config.LoadAPI(with(map[string]string{"HOLDFAST_REDIS_PASSWORD": value}))
	if err != nil {
		t.Fatalf("LoadAPI: got %v, want nil", err)
	}
	for name, v := range map[string]any{
		"secret": s, "pointer": &s, "config": c, "config pointer": &c,
		"struct": inside{s, s, []config.Secret{s}, map[string]*config.Secret{"a": &s}},
		"error":  fmt.Errorf("with %v", s),
	} {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		if err := json.NewEncoder(&out).Encode(v); err != nil {
			t.Errorf("%s: JSON: got %v, want nil", name, err)
		}
		slog.New(slog.NewTextHandler(&out, nil)).InfoContext(t.Context(), "text", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).InfoContext(t.Context(), "json", "v", v)
		for _, leak := range []string{value, fmt.Sprintf("%x", value), fmt.Sprintf("%X", value), sealKey} {
			if strings.Contains(out.String(), leak) {
				t.Errorf("%s: %q printed in\n%s", name, leak, out.String())
			}
		}
	}
	if got := s.Reveal(); got != value {
		t.Errorf("Reveal: got %q, want %q", got, value)
	}
	if got := (config.Secret{}).Reveal(); got != "" {
		t.Errorf("Reveal of no secret: got %q, want nothing", got)
	}
}

// Every setting says in its comment which variable it is and what holds without
// it.
func TestFields_AreDocumented(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatalf("parse config.go: got %v, want nil", err)
	}
	var seen int
	ast.Inspect(file, func(n ast.Node) bool {
		f, ok := n.(*ast.Field)
		if !ok || f.Tag == nil {
			return true
		}
		seen++
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
		variable, option, _ := strings.Cut(tag.Get("env"), ",")
		doc := strings.Join(strings.Fields(f.Doc.Text()), " ")
		if !strings.HasPrefix(doc, f.Names[0].Name+" ") {
			t.Errorf("%s: got comment %q, want one that begins with the name", f.Names[0], doc)
		}
		if !strings.Contains(doc, "HOLDFAST_"+variable) {
			t.Errorf("%s: the comment does not name HOLDFAST_%s", f.Names[0], variable)
		}
		value, has := tag.Lookup("envDefault")
		switch {
		case option == "required":
			if !strings.Contains(doc, "required.") {
				t.Errorf("%s: the comment does not say that it is required", f.Names[0])
			}
		case !has:
			value = `""`
			fallthrough
		default:
			if !strings.Contains(doc, "default "+value) {
				t.Errorf("%s: the comment does not say default %s", f.Names[0], value)
			}
		}
		return true
	})
	if seen < 30 {
		t.Errorf("documented settings: got %d, want all of them", seen)
	}
}
