package seatctl

import (
	"bytes"
	"fmt"
	"iter"
	"strings"
	"testing"

	"holdfast/internal/booking"
)

// A list that is empty is told as none only when all of it was seen.
func TestLists_WhatWasNotSeenIsNotNone(t *testing.T) {
	t.Parallel()
	if got := tellDead(nil, booking.QueueStats{Dead: 3}); strings.Contains(got, "there are no") || !strings.Contains(got, "none of the 3 dead letters can be seen now") {
		t.Errorf("dead letters that another look has: got %q, want that none can be seen", got)
	}
	if got := tellDead(nil, booking.QueueStats{}); got != "there are no dead letters\n" {
		t.Errorf("no dead letters: got %q, want that there are none", got)
	}
	for name, list := range map[string]iter.Seq2[booking.Refund, error]{
		"no refund is open": func(func(booking.Refund, error) bool) {},
		"": func(yield func(booking.Refund, error) bool) {
			yield(booking.Refund{}, fmt.Errorf("refund of TX7: %w", booking.ErrUnreadable))
		},
	} {
		var out, errs bytes.Buffer
		code := end(&errs, (&session{ctx: t.Context(), stdout: &out, stderr: &errs}).listRefunds(list, false))
		if strings.TrimSpace(out.String()) != name || (code == exitDone) != (name != "") {
			t.Errorf("refunds: got exit status %d, %q, %q, want %q", code, &out, &errs, name)
		}
	}
}
