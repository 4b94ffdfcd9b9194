package app

import (
	"context"
	"fmt"
	"net"
)

// tellStarted tells a service manager that asked for it, by NOTIFY_SOCKET, that the
// process takes work from here on: READY=1 of the protocol in sd_notify(3). An
// abstract socket's name begins with @ there as in package net.
func tellStarted(ctx context.Context, getenv func(string) string) error {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unixgram", path)
	if err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("READY=1")); err != nil {
		return fmt.Errorf("notify service manager: %w", err)
	}
	return nil
}
