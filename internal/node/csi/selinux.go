package csi

import (
	"fmt"

	"carob/internal/base/selinuxlabel"
	corevolume "carob/internal/core/volume"
)

// LabelConflictError means that another pod on this node uses the volume with another SELinux label. All mounts of a
// volume have one label, so that the pod waits until the other one has ended (S4.74).
type LabelConflictError struct {
	Volume         string // name of the persistent volume
	Has, Requested string // labels; "": files keep their own labels
}

func (e *LabelConflictError) Error() string {
	return fmt.Sprintf("conflicting SELinux labels of volume %s: %q and %q", e.Volume, e.Has, e.Requested)
}

// label decides the SELinux label that the volume is mounted with for a pod, and adds it to the mount options. A volume
// that has been published for this pod keeps its label: its containers may be running. The volume's queue is locked.
func (m *Manager) label(u *use, s *staged, t *target) error {
	if !u.rules.SELinuxMount || u.PV == nil || u.Block {
		u.SELinux = ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.record && !t.block {
		u.SELinux = t.label
	}
	for k := range s.users { // any order: all have the same label
		other := m.targets[k]
		if k == t.targetKey || other == nil || !other.record || other.label == u.SELinux {
			continue
		}
		m.cfg.Meter.Labelled(plugin(u.handle), corevolume.AccessMode(u.PV), true)
		return &LabelConflictError{Volume: u.name(), Has: other.label, Requested: u.SELinux}
	}
	if u.SELinux != "" {
		m.cfg.Meter.Labelled(plugin(u.handle), corevolume.AccessMode(u.PV), false)
		u.flags = append(u.flags, selinuxlabel.MountOption(u.SELinux))
	}
	return nil
}
