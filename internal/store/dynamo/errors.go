package dynamo

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"

	"holdfast/internal/booking"
)

// explain adds to an error of the service what its reader can do about it, and
// booking.ErrUnavailable where it says nothing of what was written: limits hold for an
// index or a part of the table, and rights for one operation, so that Ping may go
// through meanwhile. The SDK has repeated by then what may be repeated.
func explain(table string, err error) error {
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return err
	}
	code := answer.ErrorCode()
	if _, throttled := retry.DefaultThrottleErrorCodes[code]; throttled {
		return fmt.Errorf("table %s is throttled: repeat it later, and if it lasts raise the warm throughput of the table and its index: %w: %w", table, booking.ErrUnavailable, err)
	}
	switch code {
	case "ResourceNotFoundException":
		return fmt.Errorf("there is no table %s (or no such index): create it, or correct the table's name or the region: %w: %w", table, booking.ErrUnavailable, err)
	case "AccessDeniedException":
		return fmt.Errorf("this process may not do that to table %s: its role must allow the operation on the table and on table/index/*: %w: %w", table, booking.ErrUnavailable, err)
	case "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException", "MissingAuthenticationTokenException":
		return fmt.Errorf("the credentials are not accepted: check the role of this machine, and its clock: %w: %w", booking.ErrUnavailable, err)
	}
	return err
}
