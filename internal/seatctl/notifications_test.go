package seatctl_test

import (
	"encoding/json"
	"testing"
	"time"

	"holdfast/internal/booking"
)

func TestNotifications_APersonClosesWhatNobodyCanWorkOff(t *testing.T) {
	t.Parallel()
	s := stopped(t, 5*time.Minute)
	held := s.Held(t, 1, "N1")
	s.serve(t, 0)
	list := func(args ...string) result {
		return run(t, "", append([]string{"notifications", "list", "--data", s.data}, args...)...)
	}
	list().want(t, 0, "no notification is open")
	list("--json").want(t, 0, `"notifications": []`)

	s.notify(t, "m1", 3*time.Hour)
	at := time.Now().Add(-2 * time.Hour)
	if _, err := s.Store.PutNotification(t.Context(), booking.Notification{
		Version: booking.NotificationVersion, ID: "m2", ReceivedAt: at, SentAt: at, Transaction: "TX8", Currency: "BDT", Invoice: held.Record.Invoice,
	}); err != nil {
		t.Fatal(err)
	}
	run(t, "", "audit", "--data", s.data).want(t, 1, "signals", "notification m1", "notification m2")
	list().want(t, 0, "MESSAGE", "m1", at.UTC().Format(time.RFC3339), "TX9", "it names no invoice", held.Record.Invoice, "its record is HELD", "2 open, the oldest for 3h")
	var told struct {
		Notifications []struct {
			ID, Why, Objection string
			Age                int64 `json:"age_seconds"`
		}
	}
	got := list("--json")
	if err := json.Unmarshal([]byte(got.stdout), &told); err != nil || len(told.Notifications) != 2 || told.Notifications[0].ID != "m1" ||
		told.Notifications[0].Age < 3*3600 || told.Notifications[0].Objection != "" || told.Notifications[1].Objection == "" {
		t.Errorf("list --json: got %s, %v, want both, m1 first", got.stdout, err)
	}

	end := func(stdin, id string, args ...string) result {
		return run(t, stdin, append([]string{"notifications", "close", id, "--data", s.data, "--reason", "shop till"}, args...)...)
	}
	end("", "m1").want(t, 1, "message", "it names no invoice", "no clear answer", "Go on?", "not agreed: nothing was changed")
	end("", "m3", "--yes").want(t, 1, "not found: nothing was changed")
	end("", "m2", "--yes").want(t, 1, "OBJECTION", "seatctl bookings resolve C0001 --attempt "+held.Attempt+" --paid TX8", "nothing was changed")
	list().want(t, 0, "2 open")
	end("y\n", "m1").want(t, 0, "m1  closed as anomaly at ", ": shop till")
	wantLogged(t, s.data, `: notifications close m1 (shop till) begun {"transaction":"TX9"}`, `done {"transaction":"TX9","outcome":"anomaly"}`)
	end("", "m1").want(t, 0, "was closed as anomaly at ", "nothing was changed")
	end("", "m2", "--yes", "--force", "--json").want(t, 0, `"outcome": "anomaly"`, `"forced": true`, `"closed": true`, `"reason": "shop till"`)
	wantLogged(t, s.data, "close m2", `done {"transaction":"TX8","outcome":"anomaly","forced":true}`)
	list().want(t, 0, "no notification is open")
	run(t, "", "audit", "--data", s.data).want(t, 0, "0 notifications open", "every rule that was seen holds")

	s.notify(t, "m4", time.Hour)
	if err := s.Store.CloseNotification(t.Context(), "m4", booking.NotifiedPaid, time.Now()); err != nil {
		t.Fatal(err)
	}
	end("", "m4", "--yes").want(t, 1, "it was closed as paid at ", "nothing was changed")
	run(t, "", "notifications", "close", "m1", "--data", s.data).want(t, 2, "--reason")
	run(t, "", "notifications", "close", "m1", "--reason", " ", "--data", s.data).want(t, 2, "say why")
	run(t, "", "notifications", "list").want(t, 2, "data folder")
}
