package functions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/jackc/pgx/v5"

	"holdfast/internal/awsclient"
	"holdfast/internal/backoffice"
	"holdfast/internal/booking"
	"holdfast/internal/expiry"
	"holdfast/internal/obs"
	"holdfast/internal/secretref"
	"holdfast/internal/store/dynamo"
)

// secretsTimeout ends before Lambda ends a function's start, after 10 s, without a
// word of why.
const secretsTimeout = 8 * time.Second

// Sync wires the sync function by the settings of getenv; log and metric go to out. It
// connects to nothing yet: the first paid record does, and brings the back office's
// schema up to date. The caller closes the handler.
func Sync(ctx context.Context, getenv func(string) string, out io.Writer) (*Handler, error) {
	cfg, err := settings(ctx, getenv, LoadSync)
	if err != nil {
		return nil, err
	}
	if _, err := pgx.ParseConfig(cfg.OfficeURL); err != nil { // it names no password: there is none in it
		return nil, fmt.Errorf("settings:\n%sBACKOFFICE_URL: %w", prefix, err)
	}
	connect := func(ctx context.Context) (*pgx.Conn, error) {
		cfg, err := settings(ctx, getenv, LoadSync) // the password may be another by now
		if err != nil {
			return nil, err
		}
		db, err := pgx.ParseConfig(cfg.OfficeURL)
		if err != nil {
			return nil, err
		}
		db.Password = cfg.OfficePassword.Reveal()
		conn, err := pgx.ConnectConfig(ctx, db)
		if err != nil {
			return nil, err
		}
		if err := backoffice.Migrate(ctx, conn); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
		return conn, nil
	}
	office := backoffice.New(connect, cfg.Sale)
	h := NewSync(office, tools(cfg.Common, out))
	h.close = office.Close
	return h, nil
}

// Expiry wires the expiry function by the settings of getenv; log and metric go to out.
// It connects to nothing yet.
func Expiry(ctx context.Context, getenv func(string) string, out io.Writer) (*Handler, error) {
	cfg, err := settings(ctx, getenv, LoadExpiry)
	if err != nil {
		return nil, err
	}
	aws, err := awsclient.Load(ctx, awsclient.Options{Region: cfg.Region, Endpoint: cfg.Endpoint})
	if err != nil {
		return nil, err
	}
	t := tools(cfg.Common, out)
	return NewExpiry(expiry.New(dynamo.New(dynamodb.NewFromConfig(aws), cfg.Table), t.Log), t), nil
}

func tools(c Common, out io.Writer) Tools {
	return Tools{Decode: decodeRecord, Log: obs.NewLogger(out, c.LogLevel), Out: out, Now: time.Now}
}

func decodeRecord(image map[string]events.DynamoDBAttributeValue) (booking.Record, error) {
	rec, err := dynamo.RecordFromImage(image)
	if errors.Is(err, dynamo.ErrNotRecord) {
		err = ErrOtherKind
	}
	return rec, err
}

// settings loads settings of which some may be given by reference.
func settings[T any](ctx context.Context, getenv func(string) string, load func(func(string) string) (T, error)) (T, error) {
	var none T
	names, err := variables(&none)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, secretsTimeout)
	defer cancel()
	resolved, err := secretref.Resolve(ctx, getenv, names, func(ctx context.Context) (secretref.Clients, error) {
		aws, err := awsclient.Load(ctx, awsclient.Options{Region: getenv(prefix + "AWS_REGION"), Endpoint: getenv(prefix + "AWS_ENDPOINT")})
		if err != nil {
			return secretref.Clients{}, err
		}
		return secretref.Clients{SecretsManager: secretsmanager.NewFromConfig(aws), ParameterStore: ssm.NewFromConfig(aws)}, nil
	})
	if err != nil {
		return none, fmt.Errorf("settings:\n%w", err)
	}
	cfg, err := load(resolved)
	if err != nil {
		return none, fmt.Errorf("settings:\n%w", err)
	}
	return cfg, nil
}
