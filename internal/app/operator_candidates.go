package app

import "holdfast/internal/booking"

// Codes is the rule for candidate codes, by the same setting as the API's.
func (o *Operator) Codes() (booking.CodeRule, error) {
	return booking.NewCodeRule(o.api.cfg.CodePattern)
}
