//go:build unix

package local

import (
	"fmt"
	"os"
	"syscall"
)

// lock makes the folder ours until the process ends, however it ends.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is locked: Holdfast runs on this data folder already; stop it, or choose another with -data", path)
	}
	return func() { _ = f.Close() }, nil
}
