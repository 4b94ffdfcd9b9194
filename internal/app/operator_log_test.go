package app_test

import (
	"fmt"
	"os"
	"os/user"
	"strings"
	"testing"

	"holdfast/internal/app"
)

func TestSystemUser_IsWhoTheSystemSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ uid, name, sudo, want string }{
		{"1000", "alice", "", "alice (uid 1000)"},
		{"0", "root", "", "root (uid 0)"},
		{"0", "root", "alice", `root (uid 0), by sudo from "alice"`},
		{"0", "root", "root", "root (uid 0)"},
		{"1000", "mallory", "alice", "mallory (uid 1000)"}, // anybody can set a variable
	} {
		if got := app.DescribeUser(&user.User{Uid: c.uid, Username: c.name}, c.sudo); got != c.want {
			t.Errorf("uid %s, %s, SUDO_USER %q: got %q, want %q", c.uid, c.name, c.sudo, got, c.want)
		}
	}
	got, err := app.Local().Identity(t.Context(), func(string) string { return "somebody" }, app.Needs{})
	if want := fmt.Sprintf("(uid %d)", os.Getuid()); err != nil || !strings.Contains(got, want) {
		t.Errorf("who runs this test: got %q, %v, want %s in it", got, err, want)
	}
}
