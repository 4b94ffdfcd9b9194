package booking_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/booking"
)

// others are the sentinels that are neither an outcome of a request nor an
// acknowledged answer of the ledger, with who meets them.
var others = map[string]string{
	"ErrWouldAdmit":        "checkout: a check that took nothing",
	"ErrNotAcknowledged":   "every user of the ledger: nothing may rest on the call",
	"ErrLedgerUnknown":     "every user of the ledger: this Redis is empty",
	"ErrLedgerDamaged":     "every user of the ledger: run the audit",
	"ErrCapBelowAdmitted":  "sale apply",
	"ErrLevelHasSeats":     "sale apply",
	"ErrNotAsShown":        "operators who were shown something else",
	"ErrNothingToPublish":  "status page",
	"ErrNotSent":           "users of the gateway",
	"ErrInDoubt":           "users of the gateway",
	"ErrOtherThanOrdered":  "users of gateway and store",
	"ErrBadAmount":         "readers of amounts",
	"ErrUnreadable":        "readers of store and queue",
	"ErrUnavailable":       "the worker",
	"ErrGatewayOutage":     "callers of the gateway",
	"ErrAnnounced":         "those who end a record",
	"ErrRefunded":          "callers of Confirm",
	"ErrRefundedOtherwise": "those who end a refund",
	"ErrUnsendable":        "senders of mail",
	"ErrLogTaken":          "writers of the operator's log",
	"ErrNotEnded":          "reset and purge",
	"ErrAllowlistOpen":     "loads of the allowlist",
	"ErrAllowlistMany":     "loads of the allowlist",
	"ErrAllowlistTurn":     "loads of the allowlist",
	"ErrAllowlistTorn":     "loads of the allowlist",
	"ErrAllowlistRow":      "loads of the allowlist",
	"ErrAllowlistHalf":     "loads of the allowlist, and who opens booking",
	"ErrAllowlistMoved":    "readers of the allowlist",
	"ErrAllowlistBroken":   "readers of the allowlist",
}

// A new sentinel must be placed: into Outcomes, into LedgerAnswered, or, knowing
// that it is neither, into the table above.
func TestSentinels_EachBelongsToOneGroup(t *testing.T) {
	t.Parallel()
	declared, listed := map[string]int{}, map[string][]string{}
	sources, err := filepath.Glob("*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("sources: got %v, %v, want the package's files", sources, err)
	}
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR && strings.HasPrefix(v.Names[0].Name, "Err") {
						declared[v.Names[0].Name]++
					}
				}
			case *ast.FuncDecl:
				if d.Name.Name == "Outcomes" || d.Name.Name == "LedgerAnswered" {
					ast.Inspect(d.Body, func(n ast.Node) bool {
						if id, ok := n.(*ast.Ident); ok && strings.HasPrefix(id.Name, "Err") {
							listed[id.Name] = append(listed[id.Name], d.Name.Name)
						}
						return true
					})
				}
			}
		}
	}
	for name := range others {
		listed[name] = append(listed[name], "others")
	}
	for name := range declared {
		if len(listed[name]) != 1 {
			t.Errorf("%s: got it in groups %v, want it in one of Outcomes, LedgerAnswered and this test's others", name, listed[name])
		}
	}
	for name := range listed {
		if declared[name] == 0 {
			t.Errorf("%s: got it in groups %v, want a sentinel of this package", name, listed[name])
		}
	}
}

func TestLedgerAnswered_OnlyWhatAnEffectMayRestOn(t *testing.T) {
	t.Parallel()
	for _, err := range []error{booking.ErrNotOwner, booking.ErrSecondPayment, fmt.Errorf("settle: %w", booking.ErrAlreadyPaid)} {
		if !booking.LedgerAnswered(err) {
			t.Errorf("%v: got no answer, want an acknowledged one", err)
		}
	}
	for _, err := range []error{nil, booking.ErrNotAcknowledged, booking.ErrLedgerUnknown, booking.ErrLedgerDamaged, booking.ErrTryAgain, errors.New("i/o timeout")} {
		if booking.LedgerAnswered(err) {
			t.Errorf("%v: got an acknowledged answer, want none", err)
		}
	}
}

func TestTypedOutcomes_AreTheirSentinels(t *testing.T) {
	t.Parallel()
	for want, err := range map[error]error{
		booking.ErrNotOpen:   fmt.Errorf("admit: %w", &booking.NotOpenError{OpensAt: time.Unix(1, 0)}),
		booking.ErrDuplicate: fmt.Errorf("admit: %w", &booking.DuplicateError{}),
	} {
		if !errors.Is(err, want) {
			t.Errorf("%T: got %v, want it to be %v", err, err, want)
		}
		if strings.TrimPrefix(err.Error(), "admit: ") != want.Error() {
			t.Errorf("text: got %q, want that of %q", err, want)
		}
	}
}
