// Package cloud is the platform of the programs that ship: the drivers of AWS beside
// those of one machine, by configuration, and settings that may be references to
// Secrets Manager and Parameter Store.
//
// Fail mode: closed. What cannot be opened or resolved is an error, and the process
// does not start. Clock: none but what is handed on.
package cloud

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	objectstore "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	messages "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"holdfast/internal/app"
	"holdfast/internal/awsclient"
	"holdfast/internal/mailer/ses"
	"holdfast/internal/objstore/s3"
	"holdfast/internal/queue/sqs"
	"holdfast/internal/secretref"
	"holdfast/internal/store/dynamo"
)

// Platform is AWS and this machine. Who runs the process is asked of AWS where one of
// its drivers is used, once a process.
func Platform() app.Platform {
	return app.Platform{Open: Open, Resolve: Resolve, Identity: new(callers).identity}
}

// Resolve is secretref.Resolve with the clients that HOLDFAST_AWS_REGION and
// HOLDFAST_AWS_ENDPOINT ask for; without the region it is the environment's.
func Resolve(ctx context.Context, getenv func(string) string, names []string) (func(string) string, error) {
	return secretref.Resolve(ctx, getenv, names, func(ctx context.Context) (secretref.Clients, error) {
		cfg, err := awsclient.Load(ctx, awsclient.Options{
			Region: getenv("HOLDFAST_AWS_REGION"), Endpoint: getenv("HOLDFAST_AWS_ENDPOINT"),
		})
		return secretref.Clients{
			SecretsManager: secretsmanager.NewFromConfig(cfg), ParameterStore: ssm.NewFromConfig(cfg),
		}, err
	})
}

// Open is the app.Opener of all drivers: those of AWS by their names, the others as
// app.OpenLocal does.
func Open(ctx context.Context, n app.Needs) (_ *app.Drivers, err error) {
	local, amazon := split(n)
	d, err := app.OpenLocal(ctx, local)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if amazon == (drivers{}) {
		return d, nil
	}
	cfg, err := awsclient.Load(ctx, awsclient.Options{Region: n.AWSRegion, Endpoint: n.AWSEndpoint})
	if err != nil {
		return nil, err
	}
	if err := amazon.open(ctx, cfg, n, d); err != nil {
		return nil, err
	}
	return d, nil
}

// drivers tells which drivers of AWS are wanted.
type drivers struct{ store, queue, objects, mail bool }

// split leaves out of n what is AWS's.
func split(n app.Needs) (local app.Needs, amazon drivers) {
	take := func(driver *string, ours string) bool {
		if *driver != ours {
			return false
		}
		*driver = ""
		return true
	}
	amazon.store, amazon.queue = take(&n.Store, "dynamodb"), take(&n.Queue, "sqs")
	amazon.objects, amazon.mail = take(&n.Objects, "s3"), take(&n.MailDriver, "ses")
	return n, amazon
}

func (w drivers) open(ctx context.Context, cfg aws.Config, n app.Needs, d *app.Drivers) (err error) {
	if w.store {
		d.Store = dynamo.New(dynamodb.NewFromConfig(cfg), n.StoreTable)
	}
	if w.queue {
		if d.Queue, err = sqs.Open(ctx, messages.NewFromConfig(cfg), n.QueueName); err != nil {
			return err
		}
	}
	if w.objects {
		client := objectstore.NewFromConfig(cfg, func(o *objectstore.Options) {
			o.UsePathStyle = n.AWSEndpoint != "" // an emulator has one host name
		})
		if d.Objects, err = s3.New(client, s3.Config{Bucket: n.ObjectsBucket}); err != nil {
			return err
		}
	}
	if w.mail {
		if d.Mailer, err = ses.New(sesv2.NewFromConfig(cfg), ses.Config{
			From: n.MailFrom, ConfigurationSet: n.SESConfigurationSet, Rate: n.SESRate,
		}, n.Now); err != nil {
			return err
		}
	}
	return nil
}
