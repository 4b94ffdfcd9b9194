package sqs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/smithy-go"
)

// explain puts before SQS's own words what a person can do about them. Codes are
// compared by their ends: SQS answers with today's and with those of its old
// protocol, which have a prefix. nil stays nil.
func explain(err error) error {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return err
	}
	code := api.ErrorCode()
	is := func(ends ...string) bool {
		for _, e := range ends {
			if strings.HasSuffix(code, e) {
				return true
			}
		}
		return false
	}
	var advice string
	switch {
	case strings.Contains(code, "Throttl"): // the key service's too
		advice = "SQS throttles this account: try again later; if it stays, ask for a higher quota of FIFO calls in this region"
	case is("OverLimit"):
		advice = "too many messages are in flight: let workers delete what they have received"
	case strings.HasPrefix(strings.ToUpper(code), "KMS"):
		advice = "SQS cannot use the queue's key: enable it, and allow this role kms:Decrypt and kms:GenerateDataKey"
	case is("AccessDenied", "AccessDeniedException"):
		advice = "this process may not do that: allow its role " + action(err) + " on this queue"
	case is("QueueDoesNotExist", "NonExistentQueue"):
		advice = "there is no such queue in this account and region: check both, or create it"
	case is("QueueDeletedRecently"):
		advice = "a queue of this name was deleted less than a minute ago: try again in a minute"
	case is("QueueNameExists", "QueueAlreadyExists"):
		advice = "it is there with other attributes: correct them, or delete the queue if it is empty"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", advice, err)
}

// action is the permission that the call wants; batches need the single call's.
func action(err error) string {
	var op *smithy.OperationError
	if !errors.As(err, &op) {
		return "the action"
	}
	return "sqs:" + strings.TrimSuffix(op.OperationName, "Batch")
}
