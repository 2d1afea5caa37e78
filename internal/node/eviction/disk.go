package eviction

import (
	"os"
	"syscall"
)

// filesUsage is the disk usage of the regular files directly in a directory, without subdirectories.
func filesUsage(dir string) (bytes, inodes int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += st.Blocks * 512
			inodes++
		}
	}
	return bytes, inodes
}
