package app_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"holdfast/internal/app"
)

func TestSystemUser_IsWhoTheSystemSays(t *testing.T) {
	t.Parallel()
	const list = `# alice:x:7:7::/:/bin/sh
root:x:0:0:root:/root:/bin/bash

+nis:x:8:8::/:/bin/sh
short:x
alice:x:1000:1000:Alice:/home/alice:/bin/bash
again:x:1000:1000::/:/bin/sh
`
	for _, c := range []struct {
		uid        int
		sudo, want string
	}{
		{1000, "", "alice (uid 1000)"},
		{0, "", "root (uid 0)"},
		{0, "alice", `root (uid 0), by sudo from "alice" as its environment says`},
		{0, "root", "root (uid 0)"},
		{1000, "root", "alice (uid 1000)"},
		{7, "", "uid 7"},
		{8, "", "uid 8"},
		{100, "", "uid 100"}, // not on the list: nothing else may give it a name
	} {
		if got := app.DescribeUser(strings.NewReader(list), c.uid, c.sudo); got != c.want {
			t.Errorf("uid %d, SUDO_USER %q: got %q, want %q", c.uid, c.sudo, got, c.want)
		}
	}
	got, err := app.Local().Identity(t.Context(), func(string) string { return "somebody" }, app.Needs{})
	if want := fmt.Sprintf("uid %d", os.Getuid()); err != nil || !strings.Contains(got, want) {
		t.Errorf("who runs this test: got %q, %v, want %s in it", got, err, want)
	}
}
