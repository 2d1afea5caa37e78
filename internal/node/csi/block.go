package csi

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// mapDevice finds the block device that a driver published (S4.82).
func (m *Manager) mapDevice(t *target) (string, error) {
	path, err := filepath.EvalSymlinks(m.targetPath(t))
	if err != nil {
		return "", fmt.Errorf("find the block device that the driver published: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("inspect the block device that the driver published: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", fmt.Errorf("the driver published no block device at %s", path)
	}
	return path, nil
}

// reportMapped records that a pod has its block device (S4.82). There is no global map, so the
// event names no path.
func (m *Manager) reportMapped(u *use, t *target) {
	m.cfg.Event(u.Pod, corev1.EventTypeNormal, "SuccessfulMountVolume", fmt.Sprintf(
		"MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", u.name(), m.targetDir(t)))
}
