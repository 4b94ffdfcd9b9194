// Package awsclient makes the configuration from which a process builds its AWS
// service clients: credentials by the SDK's default chain, connections enough for a
// burst, and retries short enough for a caller with a second to spend.
//
// It fails closed: without a region, or with an endpoint that cannot be one, there is
// no configuration. It connects to nothing; credentials that are missing are told by
// the first call. Retries and time-outs run on the wall clock.
package awsclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
)

const (
	// idleConns is how many connections to one service are kept between bursts. With
	// the SDK's 10, each burst makes its TLS handshakes anew.
	idleConns = 256
	// connectTimeout is for one connection and again for its TLS handshake. The SDK
	// waits 30 s and 10 s, longer than any caller here.
	connectTimeout = 2 * time.Second
	// attempts and maxBackoff let a call wait 0.4 s in all. The SDK's back-off after
	// being throttled begins with up to a second, all that an enqueue has.
	attempts   = 3
	maxBackoff = 200 * time.Millisecond
)

// Options say which AWS it is.
type Options struct {
	// Region is the region of every service. "" takes the environment's AWS_REGION, or
	// the profile's.
	Region string
	// Endpoint is the base URL of an emulator, used for every service; "" is AWS. An
	// emulator of S3 also wants path-style addresses, which is the S3 client's option.
	Endpoint string
}

// Load makes the configuration. It reads the environment and the SDK's files, and
// calls nothing, neither AWS nor the instance's metadata. An endpoint that those name
// (AWS_ENDPOINT_URL, endpoint_url) is not used: what it said would pass for AWS's word. A client made from it has no
// time-out for a whole call, so that a long poll can last: the caller's context ends
// it. Each client retries, 3 attempts in all, what the SDK holds for transient;
// where a repeat is not safe, the call's own options must forbid it.
func Load(ctx context.Context, o Options) (aws.Config, error) {
	if o.Endpoint != "" {
		u, err := url.Parse(o.Endpoint)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" ||
			u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return aws.Config{}, errors.New("aws endpoint: want http:// or https://, a host, and no user, query or fragment")
		}
	}
	cfg, err := config.LoadDefaultConfig(ctx,
		config.WithRegion(o.Region),
		config.WithBaseEndpoint(o.Endpoint),
		config.WithHTTPClient(httpClient()),
		config.WithRetryer(func() aws.Retryer { return retryer() }),
		// The mode "auto", which the environment could ask for, calls the instance's
		// metadata.
		config.WithDefaultsMode(aws.DefaultsModeLegacy),
		// What matters comes back as an error; the rest would go to standard error.
		config.WithLogger(logging.Nop{}),
	)
	if err != nil {
		return aws.Config{}, fmt.Errorf("aws configuration: %w", err)
	}
	if cfg.Region == "" {
		return aws.Config{}, errors.New("aws configuration: no region; set AWS_REGION")
	}
	cfg.ConfigSources = append([]any{noOtherEndpoint{}}, cfg.ConfigSources...)
	if cfg.BaseEndpoint = nil; o.Endpoint != "" {
		cfg.BaseEndpoint = &o.Endpoint
	}
	return cfg, nil
}

// noOtherEndpoint is AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true for the clients, and comes
// before the environment's own; the SDK has no option for it. Each client asks its
// configuration's sources, the first that knows (internal/configsources).
type noOtherEndpoint struct{}

// GetIgnoreConfiguredEndpoints says so.
func (noOtherEndpoint) GetIgnoreConfiguredEndpoints(context.Context) (value, found bool, err error) {
	return true, true, nil
}

func retryer() *retry.Standard {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff = attempts, maxBackoff
	})
}

func httpClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = connectTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.TLSHandshakeTimeout = connectTimeout
			t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, idleConns
		}).
		// The SDK's read time-out, which the environment can switch on, goes on running
		// while a connection is idle, and would cut off the answer to the next request.
		WithReadTimeout(0)
}
