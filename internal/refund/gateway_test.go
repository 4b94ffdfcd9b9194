package refund_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/booking"
	"holdfast/internal/mockgateway"
	"holdfast/internal/paygate"
	"holdfast/internal/refund"
)

type token string

func (t token) Token(context.Context) (string, error) { return string(t), nil }
func (t token) Rejected(context.Context, string)      {}

// paid is a payment of the mock gateway that has moved money, and a client of it.
type paid struct {
	mock   *mockgateway.Gateway
	client *paygate.Client
	order  booking.Order
	charge booking.Charge
}

func pay(t *testing.T) paid {
	t.Helper()
	mock, err := mockgateway.New(mockgateway.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(mock)
	hc := paygate.NewHTTPClient(4)
	t.Cleanup(func() {
		hc.CloseIdleConnections()
		srv.Close()
		if err := mock.Close(); err != nil {
			t.Error(err)
		}
	})
	base := srv.URL + mockgateway.BasePath
	g, err := paygate.NewGranter(base, paygate.Credentials{AppKey: "key", AppSecret: "secret", Username: "user", Password: "password"}, hc)
	if err != nil {
		t.Fatal(err)
	}
	grant, err := g.Grant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := paygate.New(paygate.Config{BaseURL: base, AppKey: "key"}, token(grant.IDToken), hc, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p := paid{mock: mock, client: client, order: booking.Order{
		Invoice: booking.Invoice(booking.CandidateHash(code), "1ngtsa07kq3m-01m8qw4tg04f8r2tqz9e6wn1bd"), Amount: amount, Currency: "BDT",
		CallbackURL: "https://seats.example/payment/callback", Reference: "seat",
	}}
	made, err := client.Create(t.Context(), p.order)
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"outcome": {"success"}}.Encode()
	press, err := http.NewRequestWithContext(t.Context(), http.MethodPost, made.URL, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	press.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := hc.Transport.RoundTrip(press) // follows no redirect
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if p.charge, err = client.Execute(t.Context(), made.ID); err != nil || p.charge.Status != booking.ChargeCompleted {
		t.Fatalf("execute: got %+v, %v, want it completed", p.charge, err)
	}
	return p
}

// Through the real client: the money is back once, and the record knows by which
// transaction, whatever the wire made of the answers.
func TestSend_ThroughTheGatewaysClientTheMoneyIsBackOnce(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]mockgateway.Fault{
		"clear":            {},
		"answer lost":      {Name: mockgateway.FaultAnswerLost, Calls: []string{mockgateway.CallRefund}},
		"cut":              {Name: mockgateway.FaultCut, Calls: []string{mockgateway.CallRefund}},
		"maintenance":      {Name: mockgateway.FaultMaintenance, Calls: []string{mockgateway.CallRefund}},
		"unavailable":      {Name: mockgateway.FaultUnavailable, Calls: []string{mockgateway.CallRefund}, Times: 2},
		"refused":          {Name: mockgateway.FaultRefundRefused},
		"already refunded": {Name: mockgateway.FaultAlreadyRefunded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pay(t)
			w := newWorld(t, func(d *refund.Deps) { d.Gateway = p.client })
			r := due(p.charge.Transaction, start)
			r.PaymentID = p.charge.PaymentID
			w.put(t, r)
			if fault.Name != "" {
				if err := p.mock.SetFaults(p.charge.PaymentID, fault); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Send(t.Context(), r.Transaction); err == nil {
					t.Error("Send with the fault: got nil, want an error")
				}
			}
			for range 3 {
				w.clock.advance(10 * time.Minute)
				if _, err := w.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r, err := w.store.Refund(t.Context(), r.Transaction)
			if err != nil || r.State != booking.RefundDone || r.DoneBy != refund.ByGateway {
				t.Errorf("refund: got %+v, %v, want it done by the gateway", r, err)
			}
			list, err := p.mock.Payments("")
			if err != nil || len(list) != 1 || len(list[0].Transactions) != 1 {
				t.Fatalf("payments of the mock: got %+v, %v, want one with one transaction", list, err)
			}
			back := list[0].Transactions[0].Refunds
			if len(back) != 1 || back[0].RefundTrxID != r.RefundTransaction || back[0].Amount != amount.String() {
				t.Errorf("the mock's refunds: got %+v, want one of %s, %s", back, amount, r.RefundTransaction)
			}
		})
	}
}
