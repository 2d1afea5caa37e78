package volume

import (
	"golang.org/x/sys/unix"
)

// inside makes openat2 fail if a path leads out of its directory.
const inside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
