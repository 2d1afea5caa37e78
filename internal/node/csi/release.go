package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/base/backoff"
	"carob/internal/base/securepath"
)

// Release unpublishes all volumes of a pod whose containers have ended, and has those unstaged that no other pod uses.
// After an error the caller must call it again. A driver that does not respond delays only its own volumes.
func (m *Manager) Release(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	var mine []*target
	for k, t := range m.targets { // any order: each by itself
		if k.pod == pod {
			mine = append(mine, t)
			if t.timer != nil {
				t.timer.Stop()
			}
			t.use = nil
		}
	}
	damaged := m.damaged[pod]
	m.mu.Unlock()
	if len(mine)+len(damaged) == 0 {
		return nil
	}
	results := make(chan error, len(mine))
	for _, t := range mine {
		go func() { results <- m.unpublish(ctx, t) }()
	}
	var errs []error
	for range mine {
		errs = append(errs, <-results)
	}
	for _, dir := range damaged {
		err := forceClean(dir)
		m.cfg.Meter.ForceCleaned(err)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.damaged, pod)
	m.mu.Unlock()
	dir := m.podDir(pod)
	tidy(filepath.Join(dir, "volumes", escapedPlugin), filepath.Join(dir, "volumes"))
	tidy(filepath.Join(dir, "volumeDevices", escapedPlugin), filepath.Join(dir, "volumeDevices"))
	tidy(dir)
	return nil
}

// forceClean unmounts and removes the directory of an unknown volume (S4.99).
func forceClean(dir string) error {
	mount := filepath.Join(dir, targetDirName)
	if securepath.IsMounted(mount) {
		if err := unix.Unmount(mount, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: mount, Err: err}
		}
	}
	return errors.Join(drop(mount), dropRecord(dir))
}

// unpublish has the driver unpublish a volume of a pod, and unstage it if no other pod uses it.
func (m *Manager) unpublish(ctx context.Context, t *target) error {
	if err := m.queue.Lock(ctx, queueKey(t.handle)); err != nil {
		return fmt.Errorf("unpublish volume %s: the last call of its driver has not ended: %w", t.name, err)
	}
	defer m.queue.Unlock(queueKey(t.handle))
	m.mu.Lock()
	record := t.record
	m.mu.Unlock()
	if record {
		start := time.Now()
		err := m.unpublishNow(ctx, t)
		operation := "volume_unmount"
		if t.block {
			operation = "unmap_volume"
		}
		m.cfg.Meter.Operation(plugin(t.handle), operation, err, time.Since(start))
		if err != nil {
			return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", t.name, err)
		}
	}
	m.mu.Lock()
	delete(m.targets, t.targetKey)
	s := m.volumes[t.handle]
	delete(s.users, t.targetKey)
	m.unused(s)
	m.mu.Unlock()
	return nil
}

func (m *Manager) unpublishNow(ctx context.Context, t *target) error {
	d, err := m.registered(t.handle.Driver)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: %w", err)
	}
	_, err = call(ctx, m, d, "NodeUnpublishVolume", d.node.NodeUnpublishVolume, &csiapi.NodeUnpublishVolumeRequest{
		VolumeId: t.handle.ID, TargetPath: m.targetPath(t)})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed: %w", err)
	}
	return m.dropTarget(t)
}

// dropTarget removes what the agent made for a target that the driver has unpublished.
func (m *Manager) dropTarget(t *target) error {
	if err := drop(m.targetPath(t)); err != nil {
		return err
	}
	if !t.block {
		return dropRecord(m.targetDir(t))
	}
	if err := os.Remove(filepath.Join(m.targetDir(t), t.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the link to a block volume: %w", err)
	}
	tidy(filepath.Dir(m.targetPath(t)))
	return nil
}

// unused has a volume unstaged that no pod uses; m.mu is held.
func (m *Manager) unused(s *staged) {
	if len(s.users) > 0 || s.undo {
		return
	}
	if !s.record {
		m.forget(s)
		return
	}
	if m.ctx == nil || m.closed {
		return // Run unstages it at its start
	}
	s.undo = true
	m.background(func(ctx context.Context) { m.unstage(ctx, s) })
}

// forget removes a volume that has nothing left on the node; m.mu is held.
func (m *Manager) forget(s *staged) {
	delete(m.volumes, s.handle)
	if s.attach != notAttachable {
		m.cfg.InUseChanged()
	}
}

// unstage has the driver unstage a volume, repeatedly until that succeeds or a pod uses the
// volume again. The wait grows with each failure; a driver that registers ends the wait.
func (m *Manager) unstage(ctx context.Context, s *staged) {
	delays := backoff.Exponential{Initial: firstRetry, Max: maxRetry}
	for n := 1; ; n++ {
		moved := m.news()
		err := m.unstageOnce(ctx, s)
		m.mu.Lock()
		if err == nil || len(s.users) > 0 {
			s.undo = false
			if err == nil && len(s.users) == 0 {
				m.forget(s)
			}
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		m.cfg.Logger.Info(
			"Unstaging a CSI volume failed; trying again",
			"driver",
			s.handle.Driver,
			"volume",
			s.handle.ID,
			"err",
			err,
		)
		if !m.pause(ctx, s, moved, delays.Delay(n)) {
			return
		}
	}
}

// pause waits before the next try: for a time, or until a missing driver registers. It returns false if the agent ends.
func (m *Manager) pause(ctx context.Context, s *staged, moved <-chan struct{}, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	_, err := m.registered(s.handle.Driver)
	missing := err != nil
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-moved:
			if _, err := m.registered(s.handle.Driver); missing && err == nil {
				return true
			}
			moved = m.news()
		}
	}
}

// unstageOnce unstages the volume unless a pod uses it again.
func (m *Manager) unstageOnce(ctx context.Context, s *staged) error {
	if err := m.queue.Lock(ctx, queueKey(s.handle)); err != nil {
		return err
	}
	defer m.queue.Unlock(queueKey(s.handle))
	m.mu.Lock()
	needed := len(s.users) > 0
	s.done = s.done && needed
	m.mu.Unlock()
	if needed {
		return nil
	}
	start := time.Now()
	err := m.unstageNow(ctx, s)
	operation := "unmount_device"
	if s.block {
		operation = "unmap_device"
	}
	m.cfg.Meter.Operation(plugin(s.handle), operation, err, time.Since(start))
	return err
}

func (m *Manager) unstageNow(ctx context.Context, s *staged) error {
	d, err := m.registered(s.handle.Driver)
	if err != nil {
		return err
	}
	c, err := m.capabilities(ctx, d)
	if err != nil {
		return err
	}
	if c[canStage] {
		_, err := call(ctx, m, d, "NodeUnstageVolume", d.node.NodeUnstageVolume, &csiapi.NodeUnstageVolumeRequest{
			VolumeId: s.handle.ID, StagingTargetPath: m.stagePath(s)})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("NodeUnstageVolume: %w", err)
		}
	}
	if err := drop(m.stagePath(s)); err != nil {
		return err
	}
	if s.block {
		tidy(filepath.Join(m.blockDir(), "publish", s.pv))
	}
	if err := dropRecord(m.stageDir(s)); err != nil {
		return err
	}
	if s.block {
		tidy(filepath.Join(m.blockDir(), s.pv, "dev"), filepath.Join(m.blockDir(), s.pv))
		tidy(filepath.Join(m.blockDir(), s.pv))
	}
	m.mu.Lock()
	s.record = false
	m.mu.Unlock()
	return nil
}
