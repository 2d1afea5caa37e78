package volume

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// inside makes openat2 fail if a path leads out of its directory.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// isMounted reports whether something is mounted on path itself.
func isMounted(path string) bool {
	var own, above unix.Statx_t
	mask := unix.STATX_MNT_ID
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, mask, &own) != nil ||
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), unix.AT_SYMLINK_NOFOLLOW, mask, &above) != nil {
		return false
	}
	return own.Mnt_id != above.Mnt_id
}
