package paygate

import (
	"maps"
	"slices"
)

// Codes lists the table of status codes, for the test that holds it complete.
func Codes() []string { return slices.Sorted(maps.Keys(meanings)) }
