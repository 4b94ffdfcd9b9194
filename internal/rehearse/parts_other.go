//go:build !linux

package rehearse

import "syscall"

// dieWithParent has no counterpart here: a rehearsal that is killed leaves its parts
// behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
