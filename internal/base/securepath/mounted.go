package securepath

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// IsMounted reports whether something is mounted on a path itself. It follows no symbolic link.
func IsMounted(path string) bool {
	var own, above unix.Statx_t
	mask := unix.STATX_MNT_ID
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, mask, &own) != nil ||
		unix.Statx(unix.AT_FDCWD, filepath.Dir(path), unix.AT_SYMLINK_NOFOLLOW, mask, &above) != nil {
		return false
	}
	return own.Mnt_id != above.Mnt_id
}
