package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"holdfast/internal/awsclient"
	"holdfast/internal/config"
	queue "holdfast/internal/queue/sqs"
	store "holdfast/internal/store/dynamo"
)

// createResources makes queues, table and bucket as the drivers define them, under the
// names that every program of the profile is told.
func createResources(ctx context.Context, cfg config.Operator) error {
	if cfg.AWSEndpoint == "" {
		return errors.New("HOLDFAST_AWS_ENDPOINT: required: this creates resources in an emulator, never in AWS")
	}
	if cfg.Store != "dynamodb" || cfg.Queue != "sqs" || cfg.Objects != "s3" {
		return errors.New("want HOLDFAST_STORE=dynamodb, HOLDFAST_QUEUE=sqs and HOLDFAST_OBJECTS=s3: this creates what they need")
	}
	c, err := awsclient.Load(ctx, awsclient.Options{Region: cfg.AWSRegion, Endpoint: cfg.AWSEndpoint})
	if err != nil {
		return err
	}
	if err := queue.Create(ctx, sqs.NewFromConfig(c), cfg.QueueName); err != nil {
		return err
	}
	if err := store.Create(ctx, dynamodb.NewFromConfig(c), cfg.StoreTable, store.Options{}); err != nil {
		return err
	}
	return createBucket(ctx, c, cfg.ObjectsBucket)
}

// createBucket makes a bucket, or finds it made already.
func createBucket(ctx context.Context, c aws.Config, name string) error {
	client := s3.NewFromConfig(c, func(o *s3.Options) { o.UsePathStyle = true }) // an emulator has no name for each bucket
	_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{
		Bucket:                    &name,
		CreateBucketConfiguration: &s3types.CreateBucketConfiguration{LocationConstraint: s3types.BucketLocationConstraint(c.Region)},
	})
	var made *s3types.BucketAlreadyOwnedByYou
	if err != nil && !errors.As(err, &made) {
		return fmt.Errorf("create bucket %s: %w", name, err)
	}
	return nil
}
