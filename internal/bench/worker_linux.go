package bench

import (
	"fmt"
	"syscall"
)

// inMemory tells whether a folder's file system keeps its files in memory, where a
// flush does nothing (the magic numbers are of statfs(2)).
func inMemory(dir string) (bool, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return false, fmt.Errorf("file system of %s: %w", dir, err)
	}
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	kind := uint32(fs.Type)
	return kind == tmpfs || kind == ramfs, nil
}
