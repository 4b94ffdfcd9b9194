package cloud_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"holdfast/internal/app"
	"holdfast/internal/app/cloud"
	"holdfast/internal/config"
	"holdfast/internal/testenv"
)

func noEnv(string) string { return "" }

// On AWS it is AWS that knows who calls; on one machine nothing is asked of it.
func TestIdentity_IsTheCallersWhereADriverOfAWSIsUsed(t *testing.T) {
	t.Parallel()
	mine := fmt.Sprintf("uid %d", os.Getuid())
	identity := cloud.Platform().Identity
	got, err := identity(t.Context(), noEnv, app.Needs{Drivers: config.Drivers{Store: "sqlite", Queue: "sqlite"}})
	if err != nil || strings.Contains(got, "arn:") || !strings.Contains(got, mine) {
		t.Errorf("on one machine: got %q, %v, want its user alone", got, err)
	}

	server := testenv.AWS(t)
	needs := app.Needs{Drivers: config.Drivers{Store: "dynamodb", Queue: "sqlite", AWSRegion: testenv.Region, AWSEndpoint: server.Endpoint}}
	for range 2 {
		got, err := identity(t.Context(), noEnv, needs)
		if err != nil || !strings.HasPrefix(got, "arn:aws:sts::") || !strings.Contains(got, mine) {
			t.Errorf("on AWS: got %q, %v, want the caller's ARN and the user", got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := identity(ctx, noEnv, needs); err != nil || got == "" {
		t.Errorf("asked again without AWS: got %q, %v, want what is known", got, err)
	}
	if got, err := cloud.Platform().Identity(ctx, noEnv, needs); err == nil {
		t.Errorf("AWS not reached: got %q, want an error, so that nothing is changed", got)
	}
}
