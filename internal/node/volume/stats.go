package volume

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"carob/internal/node/csi"
)

// statsPatience is how long a reader of statistics waits for the file systems of all local volumes.
const statsPatience = time.Second

// Stats are the figures of the claims that pods use (S12.60): one for each pod and claim, of CSI and of local volumes.
// A volume whose file system does not respond has none.
func (m *Manager) Stats() []csi.Stats {
	m.mu.Lock()
	pods := make([]*podVolumes, 0, len(m.pods))
	for _, p := range m.pods { // any order: the reader sorts
		pods = append(pods, p)
	}
	m.mu.Unlock()
	over := time.NewTimer(statsPatience)
	defer over.Stop()
	var list []csi.Stats
	var wait []*measured
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
			s := csi.Stats{Namespace: pod.Namespace, Claim: v.Claim}
			s.Pod.UID, s.Pod.Volume = string(p.uid), name
			list, wait = append(list, s), append(wait, m.local.begin(v.HostPath))
		}
	}
	known := list[:0]
	late := false
	for i, file := range wait {
		if !late {
			select {
			case <-file.done:
			case <-over.C:
				late = true
			}
		}
		if s := list[i]; file.figures(&s) {
			known = append(known, s)
		}
	}
	if d, ok := m.cfg.CSI.(interface{ VolumeStats() []csi.Stats }); ok {
		known = append(known, d.VolumeStats()...)
	}
	return known
}

// localVolumes measures the file systems of local volumes. Any file system of the machine can be one, also that of a
// server or a program that does not respond.
type localVolumes struct {
	statfs func(path string, st *unix.Statfs_t) error // nil: unix.Statfs

	mu      sync.Mutex
	running map[string]*measured // by path
}

// measured is a measurement. The other fields are set when done is closed.
type measured struct {
	done chan struct{}
	st   unix.Statfs_t
	err  error
	at   time.Time
}

// begin begins a measurement, unless an earlier one of the path has not ended.
func (l *localVolumes) begin(path string) *measured {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.running[path]; f != nil {
		return f
	}
	f := &measured{done: make(chan struct{})}
	if l.running == nil {
		l.running = map[string]*measured{}
	}
	l.running[path] = f
	statfs := l.statfs
	if statfs == nil {
		statfs = unix.Statfs
	}
	go func() {
		f.err = statfs(path, &f.st)
		f.at = time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.running, path)
		close(f.done)
	}()
	return f
}

// figures adds the result to statistics; false: it is not known, or the measurement failed.
func (f *measured) figures(s *csi.Stats) bool {
	select {
	case <-f.done:
	default:
		return false
	}
	block := f.st.Bsize
	s.Capacity, s.Used, s.Available = int64(f.st.Blocks)*block, int64(f.st.Blocks-f.st.Bfree)*block,
		int64(f.st.Bavail)*block
	s.Inodes, s.InodesUsed, s.InodesFree = int64(f.st.Files), int64(f.st.Files-f.st.Ffree), int64(f.st.Ffree)
	s.At = f.at
	return f.err == nil
}
