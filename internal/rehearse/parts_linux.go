package rehearse

import "syscall"

// dieWithParent asks the kernel to kill the child when the thread that made it is gone;
// start keeps that thread for as long as the child lives. The child has a process group
// of its own, so that an interruption at the terminal reaches this process alone, which
// then ends its parts in their order.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
