package functions

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"strings"

	"github.com/caarlos0/env/v11"

	"holdfast/internal/config"
)

// Common is what both functions have.
type Common struct {
	// Region is where AWS is asked. HOLDFAST_AWS_REGION, default AWS_REGION, which Lambda
	// sets.
	Region string `env:"AWS_REGION"`
	// Endpoint is an emulator's base URL instead of AWS. HOLDFAST_AWS_ENDPOINT, default
	// "".
	Endpoint string `env:"AWS_ENDPOINT"`
	// LogLevel is the least level that is logged: debug, info, warn or error.
	// HOLDFAST_LOG_LEVEL, default info.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"info"`
}

// SyncSettings is the settings of the sync function.
type SyncSettings struct {
	// Sale is the sale's name, under which its rows are kept. HOLDFAST_SALE, required.
	Sale string `env:"SALE,required"`
	// OfficeURL is the back office's database as a PostgreSQL connection string, without
	// a password, and with sslmode=verify-full, or sslmode=disable within a machine or a
	// network of containers: every other mode would talk to anybody. Managed PostgreSQL
	// has an authority of its own: sslrootcert names the file of its certificates.
	// HOLDFAST_BACKOFFICE_URL, required, such as
	// postgres://sync@db.internal:5432/holdfast?sslmode=verify-full&sslrootcert=rds.pem.
	OfficeURL string `env:"BACKOFFICE_URL,required"`
	// OfficePassword is that user's. HOLDFAST_BACKOFFICE_PASSWORD, default "". By
	// reference (_REF) it is looked up for each new connection, so that it may be
	// changed while functions live.
	OfficePassword config.Secret `env:"BACKOFFICE_PASSWORD"`

	Common
}

// ExpirySettings is the settings of the expiry function.
type ExpirySettings struct {
	// Table is the booking table. HOLDFAST_STORE_TABLE, required.
	Table string `env:"STORE_TABLE,required"`

	Common
}

// LoadSync reads the sync function's settings. getenv answers "" for what is not set, as
// os.Getenv does. The error joins everything that is wrong, one line each.
func LoadSync(getenv func(string) string) (SyncSettings, error) {
	var c SyncSettings
	err := read(&c, getenv)
	if c.OfficeURL != "" {
		err = errors.Join(err, checkOffice(c.OfficeURL))
	}
	return c, err
}

// LoadExpiry reads the expiry function's settings, as LoadSync does.
func LoadExpiry(getenv func(string) string) (ExpirySettings, error) {
	var c ExpirySettings
	err := read(&c, getenv)
	return c, err
}

func checkOffice(text string) error {
	const variable = prefix + "BACKOFFICE_URL"
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		// The parser's own words would repeat the text, which may hold a password.
		return fmt.Errorf("%s: want postgres://user@host:port/database?sslmode=verify-full", variable)
	}
	var errs []error
	if _, has := u.User.Password(); has || u.Query().Has("password") {
		errs = append(errs, fmt.Errorf("%s: want no password in it; give it as %sBACKOFFICE_PASSWORD", variable, prefix))
	}
	if mode := u.Query().Get("sslmode"); mode != "verify-full" && mode != "disable" {
		errs = append(errs, fmt.Errorf("%s: sslmode %q: want verify-full, or disable within a machine", variable, mode))
	}
	return errors.Join(errs...)
}

// prefix stands before the name of every variable.
const prefix = "HOLDFAST_"

// read fills a struct of settings; a variable that is set but empty is not set. The
// error has one line for each variable.
func read(into any, getenv func(string) string) error {
	options := env.Options{Environment: map[string]string{}, Prefix: prefix}
	names, err := variables(into)
	if err != nil {
		return err
	}
	for _, name := range names {
		if value := getenv(name); value != "" {
			options.Environment[name] = value
		}
	}
	err = env.ParseWithOptions(into, options)
	var all env.AggregateError
	if !errors.As(err, &all) {
		return err
	}
	var errs []error
	for _, err := range all.Errors {
		var missing env.VarIsNotSetError
		var parse env.ParseError
		switch {
		case errors.As(err, &missing):
			errs = append(errs, fmt.Errorf("%s: required", missing.Key))
		case errors.As(err, &parse):
			field, _ := reflect.TypeOf(into).Elem().FieldByName(parse.Name)
			name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
			errs = append(errs, fmt.Errorf("%s%s: %w", prefix, name, parse.Err))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// variables names what a struct of settings is read from.
func variables(settings any) ([]string, error) {
	params, err := env.GetFieldParamsWithOptions(settings, env.Options{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.Key
	}
	return names, nil
}
