// Package bench measures Holdfast against itself: every figure of one result
// comes from one run on one machine, so that their ratios mean something where
// single figures do not. It starts the servers it needs on free loopback ports,
// bounds its load in count and time, and stops by itself.
package bench
