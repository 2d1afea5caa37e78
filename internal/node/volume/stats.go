package volume

import (
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/node/csi"
)

// Stats are the figures of the claims that pods use (S12.60): one for each pod and claim, of CSI and of local volumes.
func (m *Manager) Stats() []csi.Stats {
	m.mu.Lock()
	pods := make([]*podVolumes, 0, len(m.pods))
	for _, p := range m.pods { // any order: the reader sorts
		pods = append(pods, p)
	}
	m.mu.Unlock()
	var list []csi.Stats
	for _, p := range pods {
		ready := p.ready.Load()
		if ready == nil {
			continue
		}
		pod := p.newest.Load()
		for name, v := range *ready { // any order
			if v.Claim == "" || v.Persistent != localPlugin || v.HostPath == "" {
				continue
			}
			var st unix.Statfs_t
			if unix.Statfs(v.HostPath, &st) != nil {
				continue
			}
			block := st.Bsize
			s := csi.Stats{Namespace: pod.Namespace, Claim: v.Claim, Capacity: int64(st.Blocks) * block,
				Used: int64(st.Blocks-st.Bfree) * block, Available: int64(st.Bavail) * block, Inodes: int64(st.Files),
				InodesUsed: int64(st.Files - st.Ffree), InodesFree: int64(st.Ffree), At: time.Now()}
			s.Pod.UID, s.Pod.Volume = string(p.uid), name
			list = append(list, s)
		}
	}
	if d, ok := m.cfg.CSI.(interface{ VolumeStats() []csi.Stats }); ok {
		list = append(list, d.VolumeStats()...)
	}
	return list
}
