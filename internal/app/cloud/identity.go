package cloud

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"holdfast/internal/app"
	"holdfast/internal/awsclient"
)

// identityTimeout is for one question to AWS who is calling.
const identityTimeout = 5 * time.Second

// callers remembers who AWS says is calling: that does not change while a process
// runs, and a command may make many changes.
type callers struct {
	mu  sync.Mutex
	arn string
}

// identity is the app.Platform's Identity: where a driver of AWS is wanted, the ARN by
// which AWS knows the caller, with the system's user beside it; else that user alone.
//
// What is still trusted: the credentials, which say who calls, whoever has them; and
// the roots by which STS is known. Who runs this can set their own (AWS_CA_BUNDLE,
// SSL_CERT_FILE) and a proxy, as they can run another program: the ARN is good against
// a mistake and a shared account, and no proof against the owner of the machine.
func (c *callers) identity(ctx context.Context, getenv func(string) string, n app.Needs) (string, error) {
	who, err := app.SystemUser(ctx, getenv, n)
	if _, amazon := split(n); err != nil || amazon == (drivers{}) {
		return who, err
	}
	arn, err := c.caller(ctx, n)
	if err != nil {
		return "", fmt.Errorf("who runs this, by AWS: %w: check the role of this machine, and the way to STS", err)
	}
	return arn + ", " + who, nil
}

func (c *callers) caller(ctx context.Context, n app.Needs) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.arn != "" {
		return c.arn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	cfg, err := awsclient.Load(ctx, awsclient.Options{Region: n.AWSRegion, Endpoint: n.AWSEndpoint})
	if err != nil {
		return "", err
	}
	// Needs no right: whoever has credentials may ask whose they are.
	out, err := sts.NewFromConfig(cfg).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", err
	}
	if c.arn = aws.ToString(out.Arn); c.arn == "" {
		return "", errors.New("it named nobody")
	}
	return c.arn, nil
}
