package redisproc

import "syscall"

// dieWithParent asks the kernel to kill the child when the thread that made it
// is gone; launch keeps that thread for as long as the child lives.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
