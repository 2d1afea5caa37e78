package csi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/volume"
)

// knownSize is the size of a volume on this node, and when the driver refused to change it.
type knownSize struct {
	size    resource.Quantity
	refused bool // the driver can do it only while the volume is not mounted (S5.17)
	failed  bool // the driver has answered an expansion to another size with a final error (S5.18)
}

// watchOver periodically checks a volume while a pod uses it: it may have to be published again (S4.23) or enlarged
// (S5.13).
func (m *Manager) watchOver(u *use, t *target) {
	if u.Claim == nil && !u.rules.Republish {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.targets[t.targetKey] != t {
		return
	}
	t.use = u
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = time.AfterFunc(lookPeriod, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if t.use == u && m.targets[t.targetKey] == t {
			m.background(func(ctx context.Context) { m.look(ctx, u, t) })
		}
	})
}

// look is one check of a volume that a pod uses.
func (m *Manager) look(ctx context.Context, u *use, t *target) {
	if err := m.lookOnce(ctx, u, t); err != nil && ctx.Err() == nil {
		m.cfg.Logger.Info("Looking at a CSI volume in use failed", "volume", t.name, "pod", t.pod, "err", err)
	}
	m.mu.Lock()
	used := t.use == u
	m.mu.Unlock()
	if used {
		m.watchOver(u, t)
	}
}

func (m *Manager) lookOnce(ctx context.Context, u *use, t *target) error {
	if err := m.queue.Lock(ctx, queueKey(u.handle)); err != nil {
		return err
	}
	defer m.queue.Unlock(queueKey(u.handle))
	m.mu.Lock()
	used := t.use == u
	m.mu.Unlock()
	if !used {
		return nil
	}
	d, err := m.registered(u.handle.Driver)
	if err != nil {
		return err
	}
	now := *u // the driver may have been replaced
	now.driver = d
	if now.rules.Republish {
		if now.can, err = m.capabilities(ctx, d); err != nil {
			return err
		}
		if err := m.publish(ctx, &now, t, true); err != nil {
			m.cfg.Event(u.Pod, corev1.EventTypeWarning, "FailedMount", fmt.Sprintf(
				"MountVolume.SetUp failed for volume %q : %v", t.name, err))
			return err
		}
	}
	return m.expand(ctx, &now, t, false)
}

// expand has the driver enlarge a volume on the node when that is due (S5.B). An error while the pod starts keeps it
// from starting.
func (m *Manager) expand(ctx context.Context, u *use, t *target, starting bool) error {
	if u.PV == nil {
		return nil
	}
	c, pv := u.Claim, u.PV
	if !starting {
		var err error
		if c, err = m.cfg.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.Name,
			metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read the claim of a volume: %w", err)
		}
		if pv, err = m.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("inspect a volume: %w", err)
		}
		if c.UID != u.Claim.UID || c.Spec.VolumeName != pv.Name {
			return nil
		}
	}
	m.mu.Lock()
	if t.size.size.IsZero() {
		t.size.size = c.Status.Capacity[corev1.ResourceStorage]
	}
	known, refused := t.size.size, t.size.refused && !starting
	m.mu.Unlock()
	e := volume.ForNode(c, pv, known)
	if e == nil || refused {
		return nil
	}
	if u.ReadOnly {
		m.cfg.Event(u.Pod, corev1.EventTypeWarning, "FileSystemResizeFailed", fmt.Sprintf(
			"MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", pv.Name))
		return nil
	}
	start := time.Now()
	err := m.expandNow(ctx, u, t, pv, e)
	m.cfg.Meter.Operation(plugin(u.handle), "volume_fs_resize", err, time.Since(start))
	switch {
	case err == nil:
		message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", pv.Name, m.cfg.Node)
		m.cfg.Event(u.Pod, corev1.EventTypeNormal, "FileSystemResizeSuccessful", message)
		m.cfg.ClaimEvent(c, corev1.EventTypeNormal, "FileSystemResizeSuccessful", message)
		return nil
	case status.Code(err) == codes.FailedPrecondition: // impossible while it is used: the pod may start (S5.17)
		m.mu.Lock()
		t.size.refused = true
		m.mu.Unlock()
		m.expandFailed(u, pv, err)
		return nil
	case starting && !infeasible(err):
		return &StepError{
			"MountVolume.Setup",
			fmt.Errorf("while expanding volume: Expander.NodeExpand failed to expand "+
				"the volume : %w", err),
		}
	default:
		m.expandFailed(u, pv, err)
		return nil
	}
}

func (m *Manager) expandFailed(u *use, pv *corev1.PersistentVolume, err error) {
	m.cfg.Event(u.Pod, corev1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume "+
		"failed for volume %q : Expander.NodeExpand failed to expand the volume : %v", pv.Name, err))
}

// expandNow has the driver enlarge the volume, and writes the state to the claim's status before and after the call.
func (m *Manager) expandNow(ctx context.Context, u *use, t *target, pv *corev1.PersistentVolume,
	e *volume.NodeExpansion) error {
	claims := m.cfg.Client.CoreV1().PersistentVolumeClaims(u.Claim.Namespace)
	c := e.Claim
	var err error
	if c != nil {
		if c, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("record in the claim that a volume is being resized: %w", err)
		}
	}
	caps, err := m.capabilities(ctx, u.driver)
	if err != nil {
		return err
	}
	if caps[canExpand] {
		err = m.nodeExpand(ctx, u, t, pv, e.Size, caps)
	}
	if err != nil {
		if c != nil && final(err) {
			m.reportRefused(ctx, t, c, e, err)
		}
		return err
	}
	if c != nil {
		if _, err := claims.UpdateStatus(ctx, volume.Expanded(c, e.Size), metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("record in the claim that a volume was resized: %w", err)
		}
	}
	m.mu.Lock()
	t.size = knownSize{size: e.Size}
	m.mu.Unlock()
	return nil
}

// reportRefused records in a claim that a driver has refused to enlarge its volume on the node.
func (m *Manager) reportRefused(ctx context.Context, t *target, c *corev1.PersistentVolumeClaim,
	e *volume.NodeExpansion, why error) {
	m.mu.Lock()
	forGood := e.GivesUp(infeasible(why), t.size.failed)
	t.size.failed = true
	m.mu.Unlock()
	_, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx,
		volume.NodeResizeFailed(c, forGood, why, metav1.Now()), metav1.UpdateOptions{})
	if err != nil {
		m.cfg.Logger.Info("The status of a claim does not show yet that its volume cannot be resized", "claim", c.Name,
			"err", err)
		return
	}
	m.mu.Lock()
	t.size.failed = !forGood
	m.mu.Unlock()
}

func (m *Manager) nodeExpand(ctx context.Context, u *use, t *target, pv *corev1.PersistentVolume,
	size resource.Quantity, caps can) error {
	secrets, err := m.secret(ctx, pv.Spec.CSI.NodeExpandSecretRef, "NodeExpandSecretRef")
	if err != nil {
		return err
	}
	u.can = caps
	req := &csiapi.NodeExpandVolumeRequest{VolumeId: u.handle.ID, VolumePath: m.targetPath(t),
		CapacityRange: &csiapi.CapacityRange{RequiredBytes: size.Value()}, VolumeCapability: u.capability(),
		Secrets: secrets}
	if caps[canStage] {
		req.StagingTargetPath = m.stagePath(m.stagedOf(u.handle))
	}
	if u.Block {
		if req.VolumePath, err = filepath.EvalSymlinks(m.targetPath(t)); err != nil {
			return fmt.Errorf("find the block device of a volume: %w", err)
		}
	}
	_, err = call(ctx, m, u.driver, "NodeExpandVolume", u.driver.node.NodeExpandVolume, req)
	return err
}

// Stats are the used and available bytes and inodes of the volume of a claim. Negative: the driver does not report it.
type Stats struct {
	Namespace, Claim               string
	Pod                            targetPod
	Capacity, Used, Available      int64 // bytes
	Inodes, InodesUsed, InodesFree int64
	At                             time.Time
}

// targetPod names a pod's volume.
type targetPod struct {
	UID    string
	Volume string // its name in the pod
}

// figures are the statistics of volumes that drivers last reported; guarded by Manager.mu.
type figures struct {
	known       map[targetKey]Stats
	requestedAt time.Time
	running     chan struct{} // closed when the calls of drivers have ended; nil: none is in progress
}

// VolumeStats are the figures of the claims that pods use, one for each pod and claim. Drivers are called at most once
// in a minute, in the background; a reader waits briefly for them, then gets the known values.
func (m *Manager) VolumeStats() []Stats {
	m.mu.Lock()
	if m.stats.running == nil && len(m.targets) > 0 && time.Since(m.stats.requestedAt) >= statsPeriod && !m.closed &&
		m.ctx != nil {
		done := make(chan struct{})
		m.stats.running, m.stats.requestedAt = done, time.Now()
		m.background(func(ctx context.Context) { m.requestStats(ctx, done) })
	}
	running := m.stats.running
	m.mu.Unlock()
	if running != nil {
		timer := time.NewTimer(statsPatience)
		defer timer.Stop()
		select {
		case <-running:
		case <-timer.C:
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Stats
	for k, s := range m.stats.known { // any order: the reader sorts
		if t := m.targets[k]; t != nil && t.use != nil {
			list = append(list, s)
		} else {
			delete(m.stats.known, k)
		}
	}
	return list
}

// requestStats calls all drivers in parallel. Statistics that arrive too late are omitted.
func (m *Manager) requestStats(ctx context.Context, done chan struct{}) {
	m.mu.Lock()
	uses := map[*use]*target{}
	for _, t := range m.targets { // any order: each by itself
		if t.use != nil && t.use.Claim != nil {
			uses[t.use] = t
		}
	}
	m.mu.Unlock()
	var all sync.WaitGroup
	for u, t := range uses {
		all.Go(func() {
			s, err := m.statsOf(ctx, u, t)
			m.mu.Lock()
			defer m.mu.Unlock()
			if err != nil {
				delete(m.stats.known, u.key())
				m.cfg.Logger.V(2).Info("A CSI driver does not report the capacity and usage of a volume", "volume", u.name(), "err", err)
				return
			}
			m.stats.known[u.key()] = s
		})
	}
	all.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.running = nil
	close(done)
}

var errNoStats = errors.New("the driver has no GET_VOLUME_STATS")

func (m *Manager) statsOf(ctx context.Context, u *use, t *target) (Stats, error) {
	d, err := m.registered(u.handle.Driver)
	if err != nil {
		return Stats{}, err
	}
	c, err := m.capabilities(ctx, d)
	if err != nil {
		return Stats{}, err
	}
	if !c[canStats] {
		return Stats{}, errNoStats
	}
	req := &csiapi.NodeGetVolumeStatsRequest{VolumeId: u.handle.ID, VolumePath: m.targetPath(t)}
	if s := m.stagedOf(u.handle); c[canStage] && s != nil { // nil: released meanwhile
		req.StagingTargetPath = m.stagePath(s)
	}
	answer, err := call(ctx, m, d, "NodeGetVolumeStats", d.node.NodeGetVolumeStats, req)
	if err != nil {
		return Stats{}, err
	}
	s := Stats{Namespace: u.Claim.Namespace, Claim: u.Claim.Name, Pod: targetPod{string(u.Pod.UID), u.Volume.Name},
		Capacity: -1, Used: -1, Available: -1, Inodes: -1, InodesUsed: -1, InodesFree: -1, At: time.Now()}
	for _, v := range answer.GetUsage() {
		total, used, free := sane(v.GetTotal()), sane(v.GetUsed()), sane(v.GetAvailable())
		switch v.GetUnit() {
		case csiapi.VolumeUsage_BYTES:
			s.Capacity, s.Used, s.Available = total, used, free
		case csiapi.VolumeUsage_INODES:
			s.Inodes, s.InodesUsed, s.InodesFree = total, used, free
		}
	}
	if u.Block { // a block device has only a size (S12.60)
		s.Used, s.Available, s.Inodes, s.InodesUsed, s.InodesFree = -1, -1, -1, -1, -1
	}
	return s, nil
}

// sane is a value that a driver reported, or -1 if it is impossible.
func sane(n int64) int64 { return min(max(n, -1), math.MaxInt64) }
