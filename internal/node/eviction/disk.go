package eviction

import (
	"context"
	"io/fs"
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

// diskUsage is the disk usage of a directory with everything in it; what can't be read counts as
// zero. It follows neither links nor mounts, also if containers change the directory meanwhile.
func diskUsage(ctx context.Context, dir string) (bytes, inodes int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, 0
	}
	defer func() { _ = root.Close() }()
	var device uint64
	seen := map[uint64]bool{} // files with several names
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return fs.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // what can't be read now, or has gone, counts nothing
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		switch {
		case device == 0:
			device = st.Dev
		case st.Dev != device && d.IsDir():
			return fs.SkipDir
		case st.Dev != device || st.Nlink > 1 && !d.IsDir() && seen[st.Ino]:
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			seen[st.Ino] = true
		}
		bytes += st.Blocks * 512
		inodes++
		return nil
	})
	return bytes, inodes
}
