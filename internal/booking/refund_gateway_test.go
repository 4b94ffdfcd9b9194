package booking_test

import (
	"strings"
	"testing"

	"holdfast/internal/booking"
)

func refundOrder() booking.RefundOrder {
	return booking.RefundOrder{PaymentID: "TR1", Transaction: "CK250NROQ5", Amount: 10000, Currency: "BDT", SKU: "N5", Reason: "second payment"}
}

func TestRefundOrder_IsSentOnlyWhole(t *testing.T) {
	t.Parallel()
	if err := refundOrder().Validate(); err != nil {
		t.Errorf("a whole order: got %v, want none", err)
	}
	for name, change := range map[string]func(*booking.RefundOrder){
		"no payment":      func(o *booking.RefundOrder) { o.PaymentID = "" },
		"no transaction":  func(o *booking.RefundOrder) { o.Transaction = "" },
		"nothing":         func(o *booking.RefundOrder) { o.Amount = 0 },
		"negative":        func(o *booking.RefundOrder) { o.Amount = -10000 },
		"no currency":     func(o *booking.RefundOrder) { o.Currency = "" },
		"no SKU":          func(o *booking.RefundOrder) { o.SKU = "" },
		"no reason":       func(o *booking.RefundOrder) { o.Reason = "" },
		"long SKU":        func(o *booking.RefundOrder) { o.SKU = strings.Repeat("x", 256) },
		"long reason":     func(o *booking.RefundOrder) { o.Reason = strings.Repeat("x", 256) },
		"reason not text": func(o *booking.RefundOrder) { o.Reason = "\xff" },
	} {
		o := refundOrder()
		change(&o)
		if err := o.Validate(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

func TestRefundAnswer_IsComparedInMinorUnits(t *testing.T) {
	t.Parallel()
	done := booking.RefundAnswer{Done: true, Transaction: "CR1", Original: "CK250NROQ5", Amount: 10000, Currency: "BDT"}
	if err := done.Check(refundOrder()); err != nil {
		t.Errorf("as ordered: got %v, want none", err)
	}
	unnamed := done
	unnamed.Original = ""
	if err := unnamed.Check(refundOrder()); err != nil {
		t.Errorf("an answer that does not name the original: got %v, want none", err)
	}
	for name, change := range map[string]func(*booking.RefundAnswer){
		"not done":       func(a *booking.RefundAnswer) { a.Done = false },
		"no transaction": func(a *booking.RefundAnswer) { a.Transaction = "" },
		"another's":      func(a *booking.RefundAnswer) { a.Original = "CK250NROQ6" },
		"less":           func(a *booking.RefundAnswer) { a.Amount = 9999 },
		"a hundredth":    func(a *booking.RefundAnswer) { a.Amount = 100 },
		"negative":       func(a *booking.RefundAnswer) { a.Amount = -10000 },
		"other currency": func(a *booking.RefundAnswer) { a.Currency = "USD" },
	} {
		a := done
		change(&a)
		if err := a.Check(refundOrder()); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}
