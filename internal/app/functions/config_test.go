package functions_test

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/app/functions"
	"holdfast/internal/config"
)

const officeURL = "postgres://sync@db.internal:5432/holdfast?sslmode=verify-full"

// from answers as os.Getenv does, from base and set together.
func from(base, set map[string]string) func(string) string {
	all := map[string]string{}
	maps.Copy(all, base)
	maps.Copy(all, set)
	return func(name string) string { return all[name] }
}

var syncLeast = map[string]string{"HOLDFAST_SALE": sale, "HOLDFAST_BACKOFFICE_URL": officeURL}

var revealed = cmp.Comparer(func(a, b config.Secret) bool { return a.Reveal() == b.Reveal() })

func TestLoadSync_DefaultsAndAll(t *testing.T) {
	t.Parallel()
	got, err := functions.LoadSync(from(syncLeast, nil))
	want := functions.SyncSettings{Sale: sale, OfficeURL: officeURL}
	if diff := cmp.Diff(want, got, revealed); diff != "" || err != nil {
		t.Errorf("least: got %v (-want +got):\n%s", err, diff)
	}
	got, err = functions.LoadSync(from(syncLeast, map[string]string{
		"HOLDFAST_BACKOFFICE_PASSWORD": "s3cret", "HOLDFAST_AWS_REGION": "eu-west-1", "HOLDFAST_AWS_ENDPOINT": "http://aws:4566",
		"HOLDFAST_LOG_LEVEL": "warn",
	}))
	want.OfficePassword = config.NewSecret("s3cret")
	want.Common = functions.Common{Region: "eu-west-1", Endpoint: "http://aws:4566", LogLevel: slog.LevelWarn}
	if diff := cmp.Diff(want, got, revealed); diff != "" || err != nil {
		t.Errorf("all: got %v (-want +got):\n%s", err, diff)
	}
}

func TestLoadExpiry_DefaultsAndAll(t *testing.T) {
	t.Parallel()
	got, err := functions.LoadExpiry(from(map[string]string{"HOLDFAST_STORE_TABLE": "bookings", "HOLDFAST_LOG_LEVEL": "debug"}, nil))
	want := functions.ExpirySettings{Table: "bookings", Common: functions.Common{LogLevel: slog.LevelDebug}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("settings: got %v (-want +got):\n%s", err, diff)
	}
}

func TestLoad_TellsEverythingThatIsWrongByTheVariablesName(t *testing.T) {
	t.Parallel()
	_, err := functions.LoadSync(from(nil, map[string]string{"HOLDFAST_LOG_LEVEL": "loud"}))
	for _, want := range []string{"HOLDFAST_SALE: required", "HOLDFAST_BACKOFFICE_URL: required", "HOLDFAST_LOG_LEVEL: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("nothing set: got %v, want %q in it", err, want)
		}
	}
	if _, err := functions.LoadExpiry(from(nil, nil)); err == nil || !strings.Contains(err.Error(), "HOLDFAST_STORE_TABLE: required") {
		t.Errorf("nothing set: got %v, want HOLDFAST_STORE_TABLE in it", err)
	}
}

func TestLoadSync_RefusesAConnectionThatAnybodyCouldAnswer(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://sync@db/holdfast":                                 "sslmode",
		"postgres://sync@db/holdfast?sslmode=require":                 "sslmode",
		"postgres://sync@db/holdfast?sslmode=prefer":                  "sslmode",
		"postgres://sync@db/holdfast?sslmode=verify-ca":               "sslmode",
		"postgres://sync:s3cret@db/holdfast?sslmode=verify-full":      "HOLDFAST_BACKOFFICE_PASSWORD",
		"postgres://db/x?sslmode=verify-full&password=s3cret":         "HOLDFAST_BACKOFFICE_PASSWORD",
		"host=db user=sync password=s3cret sslmode=verify-full":       "postgres://",
		"mysql://sync:s3cret@db/holdfast?sslmode=verify-full":         "postgres://",
		"postgres://sync:s3cret@db:port/holdfast?sslmode=verify-full": "postgres://",
	} {
		_, err := functions.LoadSync(from(syncLeast, map[string]string{"HOLDFAST_BACKOFFICE_URL": url}))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: got %v, want an error with %s and without the password", url, err, want)
		}
	}
	for _, url := range []string{officeURL, "postgresql://db/x?sslmode=disable"} {
		if _, err := functions.LoadSync(from(syncLeast, map[string]string{"HOLDFAST_BACKOFFICE_URL": url})); err != nil {
			t.Errorf("%s: got %v, want nil", url, err)
		}
	}
}

func TestWiring_BadSettingsAreToldBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if _, err := functions.Sync(t.Context(), from(nil, nil), &out); err == nil || !strings.Contains(err.Error(), "HOLDFAST_SALE") {
		t.Errorf("Sync without settings: got %v, want them named", err)
	}
	missing := map[string]string{"HOLDFAST_BACKOFFICE_URL": officeURL + "&sslrootcert=/no/such/file.pem"}
	if _, err := functions.Sync(t.Context(), from(syncLeast, missing), &out); err == nil || !strings.Contains(err.Error(), "HOLDFAST_BACKOFFICE_URL") {
		t.Errorf("Sync with certificates that are not there: got %v, want the variable named", err)
	}
	bad := map[string]string{"HOLDFAST_BACKOFFICE_PASSWORD_REF": "s3cret"}
	if _, err := functions.Sync(t.Context(), from(syncLeast, bad), &out); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("Sync with a reference that is none: got %v, want an error that does not quote it", err)
	}
	if _, err := functions.Expiry(t.Context(), from(nil, nil), &out); err == nil || !strings.Contains(err.Error(), "HOLDFAST_STORE_TABLE") {
		t.Errorf("Expiry without settings: got %v, want them named", err)
	}
}
