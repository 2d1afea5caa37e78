package podcgroups

import (
	"fmt"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/resources"
)

// unified are files of a pod's group that only cgroup v2 has.
func (m *Manager) unified(pod *corev1.Pod) map[string]string {
	if !m.v2 {
		return nil
	}
	return m.memory.Pod(pod)
}

// protect reserves memory for a pod; with none, it removes the pod's share. It does nothing unless the configuration
// enables it.
func (m *Manager) protect(uid types.UID, tiers resources.MemoryTiers) error {
	if !m.v2 || !m.memory.Tiered {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tiers[uid] = tiers
	if tiers == (resources.MemoryTiers{}) {
		delete(m.tiers, uid)
	}
	sum := resources.MemoryTiers{}
	for _, t := range m.tiers {
		sum.Guaranteed += t.Guaranteed
		sum.Burstable += t.Burstable
	}
	if sum == m.kept {
		return nil
	}
	return m.writeMinimums(sum)
}

// Kept is the memory that is kept for all pods together.
func (m *Manager) Kept() resources.MemoryTiers {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept
}

// writeMinimums writes memory.min and memory.low that protect all pods together, with m.mu held once Init has ended.
func (m *Manager) writeMinimums(sum resources.MemoryTiers) error {
	node, burstable := sum.Files()
	for _, group := range []struct {
		class corev1.PodQOSClass
		files map[string]string
	}{{corev1.PodQOSGuaranteed, node}, {corev1.PodQOSBurstable, burstable}} {
		path := resources.QoSCgroup(group.class)
		cm, err := m.group(path, m.paths(path))
		if err != nil {
			return err
		}
		r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Unified: group.files}
		if err := cm.Set(r); err != nil {
			return fmt.Errorf("keep memory for pods in cgroup %s: %w", m.name(path), err)
		}
	}
	m.kept = sum
	return nil
}
