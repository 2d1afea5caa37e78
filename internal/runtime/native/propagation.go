package native

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkPropagation rejects mounts whose propagation is not possible: mounts of the host reach a
// container only from a shared or slave mount, and those of the container reach the host only
// through a shared one. The messages are containerd's.
func checkPropagation(mounts []*cri.Mount) error {
	var mountinfo []byte
	for _, m := range mounts {
		if m.GetPropagation() == cri.MountPropagation_PROPAGATION_PRIVATE || m.GetImage() != nil || m.HostPath == "" {
			continue
		}
		if mountinfo == nil {
			var err error
			if mountinfo, err = os.ReadFile("/proc/self/mountinfo"); err != nil {
				return fmt.Errorf("finding how the host's mounts propagate: %w", err)
			}
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, m.HostPath, 0, unix.STATX_MNT_ID, &st); err != nil {
			return fmt.Errorf("finding the mount of %q: %w", m.HostPath, err)
		}
		point, shared, slave := propagationOf(mountinfo, st.Mnt_id)
		switch {
		case m.Propagation == cri.MountPropagation_PROPAGATION_BIDIRECTIONAL && !shared:
			return fmt.Errorf("path %q is mounted on %q but it is not a shared mount", m.HostPath, point)
		case m.Propagation == cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER && !shared && !slave:
			return fmt.Errorf("path %q is mounted on %q but it is not a shared or slave mount", m.HostPath, point)
		}
	}
	return nil
}

// propagationOf finds a mount in a mountinfo file: its mount point, and whether it is shared or a
// slave.
func propagationOf(mountinfo []byte, id uint64) (point string, shared, slave bool) {
	for line := range strings.Lines(string(mountinfo)) { // an overlay of many layers has a line over 64 KiB
		f := strings.Fields(line)
		if len(f) < 7 || f[0] != strconv.FormatUint(id, 10) {
			continue
		}
		for _, tag := range f[6 : 6+max(0, slices.Index(f[6:], "-"))] {
			shared = shared || strings.HasPrefix(tag, "shared:")
			slave = slave || strings.HasPrefix(tag, "master:")
		}
		return f[4], shared, slave
	}
	return "", false, false
}
