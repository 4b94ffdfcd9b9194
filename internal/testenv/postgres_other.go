//go:build !linux

package testenv

import "syscall"

// serverProcess says how PostgreSQL's programs run: here as we do (as root they refuse,
// and say so), and a killed parent leaves its server behind.
func serverProcess(string) (*syscall.SysProcAttr, error) { return nil, nil }
