package reconcile

import "context"

// Wait gives a turn to ask the gateway under the fleet's rate, to other work of the
// runner as well. Its error says that there is none within the context's time.
func (r *Reconciler) Wait(ctx context.Context) error { return r.limit.Wait(ctx) }
