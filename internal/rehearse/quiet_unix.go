//go:build unix

package rehearse

import (
	"errors"
	"net"
	"syscall"
)

// quiet tells whether nothing has come over a connection that nobody waits at, not even its
// end. It reads nothing; of a connection that cannot be asked it says yes.
func quiet(c net.Conn) bool {
	asked, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := asked.SyscallConn()
	if err != nil {
		return true
	}
	silent := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN)
		return true // however it stands: do not wait
	})
	return err == nil && silent
}
