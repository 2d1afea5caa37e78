package podcgroups

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Usage is what all pods together use, and when their group was made.
func (m *Manager) Usage() (*cgroups.Stats, time.Time, error) {
	cm, err := m.group(resources.QoSCgroup(corev1.PodQOSGuaranteed), nil)
	if err != nil {
		return nil, time.Time{}, err
	}
	st, err := cm.GetStats()
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("measure the cgroup of all pods: %w", err)
	}
	var made time.Time
	for _, dir := range slices.Sorted(maps.Values(cm.GetPaths())) {
		if info, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			made = info.ModTime()
			break
		}
	}
	return st, made, nil
}
