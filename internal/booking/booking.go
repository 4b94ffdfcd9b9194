// Package booking is the vocabulary of the sale: candidates, levels, attempts,
// seats, records, payments and the outcomes a person can meet. It does no I/O
// and imports the standard library only, so that every process (API, worker,
// reconciler, operator's tool, functions) speaks of the same things with the
// same words and the same normalising functions.
package booking
