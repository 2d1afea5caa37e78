package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/securepath"
)

// Run keeps volume contents and tokens current until ctx ends. It sleeps until an
// object changes or a token is due.
func (m *Manager) Run(ctx context.Context) error {
	defer m.unmountVolatile()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		pods, next := m.due(time.Now(), true)
		busy := false
		for _, p := range pods {
			busy = !m.refresh(ctx, p) || busy
		}
		if len(pods) > 0 {
			now := time.Now()
			if _, next = m.due(now, false); busy && !next.IsZero() && next.Before(now.Add(busyRetry)) {
				next = now.Add(busyRetry)
			}
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(pause(time.Now(), next))
		}
	}
}

// longestPause is how late tokens and certificates are renewed that came due while the machine was suspended, which
// timers do not count, or because its clock was set.
const longestPause = time.Minute

// pause is how long to wait before checking again what is due at next.
func pause(now, next time.Time) time.Duration { return min(next.Sub(now), longestPause) }

// busyRetry is how long to wait before trying a pod again whose volumes are being changed.
const busyRetry = 100 * time.Millisecond

// due returns the pods whose volumes must be rendered again, and when to check next. take means that the caller renders
// them.
func (m *Manager) due(now time.Time, take bool) (pods []*podVolumes, next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, p := range m.pods {
		_, dirty := m.dirty[uid]
		switch {
		case p.ready.Load() == nil: // stays dirty; Prepare wakes us at its end
		case dirty, !p.renew.IsZero() && !now.Before(p.renew):
			pods = append(pods, p)
			if take {
				delete(m.dirty, uid)
			} else {
				next = now
			}
		case !p.renew.IsZero() && (next.IsZero() || p.renew.Before(next)):
			next = p.renew
		}
	}
	return pods, next
}

// refresh renders the written volumes of a running pod. After a failure the old content stays. It returns false if it
// must be called again, because the volumes are being set up or removed: this may take a while, and other pods must not
// wait for it.
func (m *Manager) refresh(ctx context.Context, p *podVolumes) bool {
	if !p.mu.TryLock() {
		m.mu.Lock()
		m.dirty[p.uid] = struct{}{}
		m.mu.Unlock()
		return false
	}
	defer p.mu.Unlock()
	if p.ready.Load() == nil {
		return true // removed meanwhile
	}
	p.pod = granted(p.newest.Load(), p.granted.Load())
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	var failed []*SetUpError
	again := false
	for i := range p.pod.Spec.Volumes {
		v := &p.pod.Spec.Volumes[i]
		if _, ok := p.set[v.Name]; !ok || !isWritten(v) {
			continue
		}
		content, err := m.render(ctx, p, v)
		if err == nil {
			err = m.publish(p, v.Name, content)
		}
		if err != nil {
			failed = append(failed, &SetUpError{Volume: v.Name, Err: err})
			again = again || !isMissing(err) // of what is missing, the coming is announced
		}
	}
	if len(failed) > 0 && ctx.Err() == nil {
		err := m.report(p.pod, failed)
		m.cfg.Logger.V(2).Info("Refreshing volumes failed", "pod", p.pod.Name, "namespace", p.pod.Namespace, "err", err)
	}
	m.published(p, again)
	return true
}

// published plans the next renewal of the pod's tokens and certificates, or soon, if the content must be rendered again
// after a failure that nothing announces the end of. The caller holds p.mu.
func (m *Manager) published(p *podVolumes, again bool) {
	var renew time.Time
	if again {
		renew = time.Now().Add(tokenRetry)
	}
	for _, t := range p.tokens {
		if renew.IsZero() || t.renew.Before(renew) {
			renew = t.renew
		}
	}
	for _, c := range p.certificates {
		if due := c.due(); !due.IsZero() && (renew.IsZero() || due.Before(renew)) {
			renew = due
		}
	}
	if !renew.IsZero() && !time.Now().Before(renew) {
		renew = time.Now().Add(tokenRetry)
	}
	m.mu.Lock()
	p.renew = renew
	_, dirty := m.dirty[p.uid]
	m.mu.Unlock()
	if dirty || !renew.IsZero() {
		m.signal()
	}
}

// Update announces a change of the pod object: labels and annotations are shown in downward API
// volumes.
func (m *Manager) Update(pod *corev1.Pod) {
	p := m.find(pod.UID)
	if p == nil {
		return
	}
	old := p.newest.Swap(pod)
	if maps.Equal(old.Labels, pod.Labels) && maps.Equal(old.Annotations, pod.Annotations) || !showsFields(pod) {
		return
	}
	m.changed(pod.UID)
}

// Resized announces that the pod may use other resources than before, which its spec contains: files that show them are
// updated.
func (m *Manager) Resized(pod *corev1.Pod) {
	p := m.find(pod.UID)
	if p == nil {
		return
	}
	p.granted.Store(pod)
	if showsFile(pod, func(f *corev1.DownwardAPIVolumeFile) bool { return f.ResourceFieldRef != nil }) {
		m.changed(pod.UID)
	}
}

// granted is the newest version of a pod with the resources that it may use instead of those
// that it requests.
func granted(newest, uses *corev1.Pod) *corev1.Pod {
	if newest.Generation == uses.Generation {
		return newest
	}
	pod := newest.DeepCopy()
	pod.Spec.Resources = uses.Spec.Resources
	for _, list := range [...]struct{ to, from []corev1.Container }{{pod.Spec.InitContainers, uses.Spec.InitContainers},
		{pod.Spec.Containers, uses.Spec.Containers}} {
		for i := range list.to {
			if i < len(list.from) && list.from[i].Name == list.to[i].Name {
				list.to[i].Resources = list.from[i].Resources
			}
		}
	}
	return pod
}

func showsFields(pod *corev1.Pod) bool {
	return showsFile(pod, func(*corev1.DownwardAPIVolumeFile) bool { return true })
}

// showsFile reports whether the pod has a downward API file of a kind.
func showsFile(pod *corev1.Pod, kind func(*corev1.DownwardAPIVolumeFile) bool) bool {
	some := func(files []corev1.DownwardAPIVolumeFile) bool {
		for i := range files {
			if kind(&files[i]) {
				return true
			}
		}
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.DownwardAPI != nil && some(v.DownwardAPI.Items) {
			return true
		}
		if v.Projected != nil {
			for _, src := range v.Projected.Sources {
				if src.DownwardAPI != nil && some(src.DownwardAPI.Items) {
					return true
				}
			}
		}
	}
	return false
}

// changed records that contents of the pod must be rendered again.
func (m *Manager) changed(uid types.UID) {
	m.mu.Lock()
	p := m.pods[uid]
	if p != nil {
		m.dirty[uid] = struct{}{}
	}
	m.mu.Unlock()
	if p == nil {
		return
	}
	select {
	case p.poke <- struct{}{}:
	default:
	}
	m.signal()
}

func (m *Manager) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// mountVolatile mounts one tmpfs for all contents that the agent writes: secrets are never written to a disk, and pods
// need no mounts of their own.
func (m *Manager) mountVolatile() error {
	m.volatile.Lock()
	defer m.volatile.Unlock()
	dir := m.volatileDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Type == unix.TMPFS_MAGIC && securepath.IsMounted(dir) {
		return nil
	}
	const flags = unix.MS_NODEV | unix.MS_NOSUID
	err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=0700,noswap")
	if errors.Is(err, unix.EINVAL) { // before Linux 6.4
		err = unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=0700")
	}
	if err != nil {
		return fmt.Errorf("mounting memory for secrets at %s: %w", dir, err)
	}
	return nil
}

// unmountVolatile unmounts it when no pod is left.
func (m *Manager) unmountVolatile() {
	m.volatile.Lock()
	defer m.volatile.Unlock()
	dir := m.volatileDir()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.cfg.Logger.Error(err, "Listing the memory for secrets failed", "path", dir)
		}
		return
	}
	if securepath.IsMounted(dir) {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			m.cfg.Logger.Error(err, "Unmounting the memory for secrets failed", "path", dir)
			return
		}
	}
	if err := os.Remove(dir); err != nil {
		m.cfg.Logger.Error(err, "Removing the memory for secrets failed", "path", dir)
	}
}
