package booking_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"holdfast/internal/booking"
)

// docs/states.md draws every move the code allows, and no other.
func TestStates_PageAgreesWithTheCode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/states.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, records := map[[2]string]bool{}, map[[2]string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\S+) \| (\S+) \|`).FindAllStringSubmatch(string(page), -1) {
		from, to := cell(m[1]), cell(m[2])
		if strings.ToUpper(from+to) == from+to {
			records[[2]string{from, to}] = true
		} else {
			rows[[2]string{from, to}] = true
		}
	}
	phases := append(booking.Phases(), "")
	for _, from := range phases {
		for _, to := range phases {
			if drawn := rows[[2]string{string(from), string(to)}]; drawn != from.CanMove(to) {
				t.Errorf("row %q to %q: drawn %v, allowed %v", from, to, drawn, from.CanMove(to))
			}
		}
	}
	states := []booking.RecordState{"", booking.StateHeld, booking.StatePaid, booking.StateReleased}
	for _, from := range states {
		for _, to := range states {
			if drawn := records[[2]string{string(from), string(to)}]; drawn != from.CanMove(to) {
				t.Errorf("record %q to %q: drawn %v, allowed %v", from, to, drawn, from.CanMove(to))
			}
		}
	}
}

// cell is a table cell's text; "-" stands for nothing.
func cell(s string) string {
	if s == "-" {
		return ""
	}
	return strings.Trim(s, "`")
}
