//go:build !linux

package redisproc

import "syscall"

// dieWithParent has no counterpart here: a killed parent leaves its servers
// behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
