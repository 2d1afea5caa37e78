package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/base/removetree"
	"carob/internal/core/podlife"
	"carob/internal/node/csi"
	"carob/internal/node/image"
	"carob/internal/node/remotedisk"
	"carob/internal/node/spec"
)

// objectWait is how long the first Prepare of a pod waits for an object that does not exist yet: in a new namespace the
// controllers may not have created the root certificate's config map yet. A later Prepare waits until the object comes,
// and reports what is missing after this time, then twice this time, and so on, up to longestObjectWait (L3.139).
const (
	objectWait        = 500 * time.Millisecond
	longestObjectWait = 2*time.Minute + 2*time.Second
)

// certificateWait is how long it waits for a signer.
const certificateWait = 5 * time.Second

// Manager implements spec.Disk and owns everything below <root>/pods and <root>/volatile.
// Its methods may be called from any goroutine.
type Manager struct {
	cfg  Config
	wake chan struct{} // holds a token while dirty is not empty or a deadline moved

	mu    sync.Mutex
	pods  map[types.UID]*podVolumes
	dirty map[types.UID]struct{} // contents to render again
	// single are the pods that use ReadWriteOncePod volumes, by volume; nil: not yet read from disk.
	single map[string]types.UID

	devices sync.Mutex // a block device comes or goes
	disks   *remotedisk.Manager
	local   localVolumes

	volatile sync.Mutex // mounting and unmounting of <root>/volatile
}

// podVolumes are the volumes of one pod.
//
//	Prepare ──all set up──▶ ready ──object changed, token due──▶ refresh ──▶ ready
//	   └── some failed: what stands is kept for the next Prepare, which waits for objects that do not exist
type podVolumes struct {
	uid    types.UID
	newest atomic.Pointer[corev1.Pod]
	// granted is the pod with the resources that it may use, which are what files show.
	granted atomic.Pointer[corev1.Pod]
	ready   atomic.Pointer[map[string]spec.Volume]
	poke    chan struct{} // an object changed while Prepare waits for one

	mu           sync.Mutex // one preparation, refresh or removal at a time; guards what follows
	pod          *corev1.Pod
	set          map[string]spec.Volume // what is set up so far
	reports      int                    // how often objects were reported that do not exist
	tokens       map[string]token
	certificates map[string]*certificate
	renew        time.Time // tokens, certificates, or a failed refresh are due; zero: nothing. Guarded by Manager.mu

	// publishing is held while a version of a written volume replaces another. The mutex above may be held for long.
	publishing sync.Mutex
}

// publish shows the content of a written volume. The caller holds p.mu.
func (m *Manager) publish(p *podVolumes, volume string, content payload) error {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	_, err := publish(m.writtenDir(p.uid, volume), content, owner{gid: fsGroup(p.pod)}, time.Now())
	return err
}

var _ spec.Disk = (*Manager)(nil)

// New makes a Manager; nothing happens before Prepare and Run.
func New(cfg Config) *Manager {
	m := &Manager{
		cfg:   cfg,
		wake:  make(chan struct{}, 1),
		pods:  make(map[types.UID]*podVolumes),
		dirty: make(map[types.UID]struct{}),
	}
	m.disks = remotedisk.New(remotedisk.Config{Dirs: m.diskDirs, Logger: cfg.Logger,
		Run: func(ctx context.Context, name string, args ...string) (string, error) {
			return output(ctx, maxAnswer, name, args...)
		}})
	return m
}

func (m *Manager) podsDir() string             { return filepath.Join(m.cfg.Root, "pods") }
func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.podsDir(), string(uid)) }
func (m *Manager) volatileDir() string         { return filepath.Join(m.cfg.Root, "volatile") }
func (m *Manager) writtenPod(uid types.UID) string {
	return filepath.Join(m.volatileDir(), string(uid))
}

func (m *Manager) writtenDir(uid types.UID, volume string) string {
	return filepath.Join(m.writtenPod(uid), volume)
}

func (m *Manager) volumeDir(uid types.UID, name string) string {
	return filepath.Join(m.podDir(uid), "volumes", name)
}

// PodDir is the directory for files of a pod outside its volumes; it need not exist.
func (m *Manager) PodDir(uid types.UID) string { return m.podDir(uid) }

// EmptyDir is the path of an emptyDir of a pod, which need not exist.
func (m *Manager) EmptyDir(uid types.UID, name string) string { return m.volumeDir(uid, name) }

// SetUpError names a volume that could not be set up, and why (L10.24).
type SetUpError struct {
	Volume string
	Err    error
}

func (e *SetUpError) Error() string {
	if isUnprocessed(e.Err) { // L10.23
		return fmt.Sprintf(
			"Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], failed to process volumes=[%s]: %v", e.Volume, e.Volume, e.Err)
	}
	if step, ok := errors.AsType[*stepError](e.Err); ok {
		return step.Error()
	}
	if errors.Is(e.Err, csi.ErrNotAttached) {
		return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], failed to "+
			"process volumes=[]: %v", e.Volume, e.Volume, e.Err)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *SetUpError) Unwrap() error { return e.Err }

// isUnprocessed reports whether an error keeps a volume from being mounted at all: its claim or its label is wrong.
func isUnprocessed(err error) bool {
	_, claim := errors.AsType[*claimError](err)
	_, label := errors.AsType[*labelError](err)
	return claim || label
}

// claimError is why a persistent volume claim can't be used.
type claimError struct{ namespace, name, why string }

func (e *claimError) Error() string {
	return fmt.Sprintf("error processing PVC %s/%s: %s", e.namespace, e.name, e.why)
}

// Prepare makes the pod's directories (0750) and sets up the volumes that its containers use; what is set up already is
// not changed. The error joins a SetUpError for each volume that failed, each recorded as FailedMount.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) error {
	if err := checkName(string(pod.UID)); err != nil {
		return err
	}
	if err := spec.CheckIDs(pod); err != nil { // fsGroup becomes the owner of what is made here
		return err
	}
	p := m.entry(pod)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pod = pod
	if err := os.MkdirAll(m.podDir(pod.UID), 0o750); err != nil {
		return fmt.Errorf("error making pod data directories: %w", err) // L10.22
	}
	m.cfg.Objects.Hold(pod, m.changed)

	patience := time.NewTimer(0)
	defer patience.Stop()
	for waits := false; ; {
		failed := m.setUpAll(ctx, p)
		if len(failed) == 0 {
			p.reports = 0
			ready := maps.Clone(p.set)
			p.ready.Store(&ready)
			m.published(p, false)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait, missing := p.waitFor(failed)
		if wait == 0 {
			return m.report(pod, failed)
		}
		if !waits {
			patience.Reset(wait)
		}
		if waits = await(ctx, p.poke, patience.C); waits {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := m.report(pod, failed)
		if !missing {
			return err
		}
		if p.reports++; p.reports == 1 {
			return err // what the pod waits for from here on
		}
	}
}

func await(ctx context.Context, poke <-chan struct{}, patience <-chan time.Time) bool {
	select {
	case <-poke:
		return true
	case <-patience:
		return false
	case <-ctx.Done():
		return false
	}
}

// waitFor is how long to wait for what the failed volumes lack until it is reported; zero if waiting does not help.
// missing means that they lack objects, whose coming ends the wait.
func (p *podVolumes) waitFor(failed []*SetUpError) (wait time.Duration, missing bool) {
	wait, missing = min(objectWait<<min(p.reports, 10), longestObjectWait), true
	for _, f := range failed {
		switch {
		case errors.Is(f.Err, errNotIssued):
			wait, missing = certificateWait, false
		case !isMissing(f.Err):
			return 0, false
		}
	}
	return wait, missing
}

// Rejection is the error of a pod that must be scheduled to another node (L3.36).
type Rejection struct{ Reason, Message string }

func (e *Rejection) Error() string { return e.Message }

// rejection is the error of a pod for whose volumes the node has no room; nil for others.
func rejection(failed []*SetUpError) *Rejection {
	var full error
	unmounted, unattached, unprocessed := []string{}, []string{}, []string{}
	for _, f := range failed {
		if e, ok := errors.AsType[*csi.FullError](f.Err); ok {
			full = e
		}
		if errors.Is(f.Err, csi.ErrNotAttached) {
			unattached = append(unattached, f.Volume)
		}
		if isUnprocessed(f.Err) {
			unprocessed = append(unprocessed, f.Volume)
		}
		unmounted = append(unmounted, f.Volume)
	}
	if full == nil {
		return nil
	}
	slices.Sort(unmounted)
	slices.Sort(unattached)
	slices.Sort(unprocessed)
	return &Rejection{"VolumeAttachmentLimitExceeded", fmt.Sprintf("Node has reached its volume attachment limit, "+
		"rejecting pod. unmounted volumes=%v, unattached volumes=%v, failed to process volumes=%v: %v",
		unmounted, unattached, unprocessed, full)}
}

// report records each failure and joins them, or returns the Rejection of the pod.
func (m *Manager) report(pod *corev1.Pod, failed []*SetUpError) error {
	if r := rejection(failed); r != nil {
		return r
	}
	errs := make([]error, len(failed))
	for i, f := range failed {
		errs[i] = f
		if m.cfg.Event != nil {
			reason := "FailedMount"
			if step, ok := errors.AsType[*stepError](f.Err); ok && strings.HasPrefix(step.step, "MapVolume.") {
				reason = "FailedMapVolume" // L10.25
			}
			m.cfg.Event(pod, corev1.EventTypeWarning, reason, f.Error())
		}
	}
	return errors.Join(errs...)
}

// entry finds or makes the record of a pod.
func (m *Manager) entry(pod *corev1.Pod) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[pod.UID]
	if p == nil {
		p = &podVolumes{
			uid:          pod.UID,
			poke:         make(chan struct{}, 1),
			set:          make(map[string]spec.Volume),
			tokens:       make(map[string]token),
			certificates: make(map[string]*certificate),
		}
		m.pods[pod.UID] = p
	}
	p.newest.Store(pod)
	p.granted.Store(pod)
	return p
}

func (m *Manager) find(uid types.UID) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid]
}

func (m *Manager) setUpAll(ctx context.Context, p *podVolumes) []*SetUpError {
	var failed []*SetUpError
	for i := range p.pod.Spec.Volumes {
		v := &p.pod.Spec.Volumes[i]
		if _, ok := p.set[v.Name]; ok || !used(p.pod, v.Name) {
			continue
		}
		stands, err := m.setUp(ctx, p, v)
		if err != nil {
			failed = append(failed, &SetUpError{Volume: v.Name, Err: err})
			continue
		}
		p.set[v.Name] = stands
	}
	return failed
}

func (m *Manager) setUp(ctx context.Context, p *podVolumes, v *corev1.Volume) (spec.Volume, error) {
	if err := checkName(v.Name); err != nil {
		return spec.Volume{}, err
	}
	switch {
	case v.EmptyDir != nil:
		return m.emptyDir(p.pod, v.Name, v.EmptyDir)
	case v.HostPath != nil:
		return hostPath(v.HostPath)
	case isWritten(v):
		return m.write(ctx, p, v)
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return m.persistent(ctx, p, v)
	case v.CSI != nil:
		return m.driven(ctx, v.Name, csi.Request{Pod: p.pod, Volume: v})
	case v.Image != nil:
		return imageVolume(v.Image)
	}
	if r := inlineRemote(p.pod, v); r != nil {
		return m.inline(ctx, p, v, r)
	}
	return spec.Volume{},
		errors.New(
			"no volume plugin matched: this node supports emptyDir, hostPath, configMap, secret, downwardAPI, projected, " +
				"image, nfs, iscsi, fc, csi and persistentVolumeClaim")
}

// imageVolume is an image volume, which the runtime mounts; the image was pulled before (L3.115).
func imageVolume(v *corev1.ImageVolumeSource) (spec.Volume, error) {
	if v.Reference == "" {
		return spec.Volume{}, errors.New("the image volume names no image")
	}
	name, err := image.Normalize(v.Reference)
	if err != nil {
		return spec.Volume{}, err
	}
	return spec.Volume{Image: &cri.ImageSpec{Image: name, UserSpecifiedImage: v.Reference}, ReadOnly: true}, nil
}

// write sets up a volume whose content the agent writes.
func (m *Manager) write(ctx context.Context, p *podVolumes, v *corev1.Volume) (spec.Volume, error) {
	content, err := m.render(ctx, p, v)
	if err != nil {
		return spec.Volume{}, err
	}
	if err := m.mountVolatile(); err != nil {
		return spec.Volume{}, err
	}
	dir := m.writtenDir(p.uid, v.Name)
	own := owner{gid: fsGroup(p.pod)}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return spec.Volume{}, err
	}
	if err := own.apply(dir, 0, 0o755); err != nil {
		return spec.Volume{}, err
	}
	if err := m.publish(p, v.Name, content); err != nil {
		return spec.Volume{}, err
	}
	return spec.Volume{HostPath: dir, ReadOnly: true, Relabel: true}, nil
}

// checkName refuses names that are not one element of a path; the API server does so, too.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return fmt.Errorf("invalid name %q", name)
	}
	return nil
}

// Volumes implements spec.Disk.
func (m *Manager) Volumes(uid types.UID) map[string]spec.Volume {
	if p := m.find(uid); p != nil {
		if ready := p.ready.Load(); ready != nil {
			return *ready
		}
	}
	return nil
}

// State returns which volumes of the pod are set up. After a restart of the agent no volume counts as mounted until
// Prepare has checked it.
func (m *Manager) State(pod *corev1.Pod) podlife.VolumeState {
	if p := m.find(pod.UID); p != nil {
		return podlife.VolumeState{Mounted: p.hasAll(pod), Present: true}
	}
	if m.cfg.CSI != nil && m.cfg.CSI.Held(pod.UID) {
		return podlife.VolumeState{Present: true}
	}
	for _, dir := range []string{m.podDir(pod.UID), m.writtenPod(pod.UID)} {
		if _, err := os.Lstat(dir); err == nil {
			return podlife.VolumeState{Present: true}
		}
	}
	return podlife.VolumeState{}
}

// hasAll reports whether all volumes are set up that containers of the pod use. Ephemeral containers come later.
func (p *podVolumes) hasAll(pod *corev1.Pod) bool {
	ready := p.ready.Load()
	return ready != nil && !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		_, ok := (*ready)[v.Name]
		return !ok && used(pod, v.Name)
	})
}

// Remove unmounts and deletes everything of the pod. It may be repeated, and goes on where it was when ctx ended.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	if err := checkName(string(uid)); err != nil {
		return err
	}
	m.cfg.Objects.Release(uid)
	if p := m.find(uid); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ready.Store(nil)
		p.set = make(map[string]spec.Volume) // readers may still hold the old one
	}
	if err := errors.Join(m.releaseDevices(uid), removetree.While(ctx, m.writtenPod(uid))); err != nil {
		return err
	}
	if err := m.releaseRemote(ctx, uid); err != nil {
		return err
	}
	if m.cfg.CSI != nil {
		// The mounts of sub-paths go first, which are mounts of these volumes. That the pod has a ReadWriteOncePod
		// volume is on record until the driver has released it.
		if err := m.removeAllBut(ctx, uid, singleDir); err != nil {
			return err
		}
		if err := m.cfg.CSI.Release(ctx, uid); err != nil {
			return err
		}
	}
	if err := removetree.While(ctx, m.podDir(uid)); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.pods, uid)
	delete(m.dirty, uid)
	maps.DeleteFunc(m.single, func(_ string, user types.UID) bool { return user == uid })
	m.mu.Unlock()
	return ctx.Err()
}

// removeAllBut deletes what is in the pod's directory, except for one entry.
func (m *Manager) removeAllBut(ctx context.Context, uid types.UID, kept string) error {
	entries, err := os.ReadDir(m.podDir(uid))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the volumes of a pod: %w", err)
	}
	for _, e := range entries {
		if e.Name() != kept {
			if err := removetree.While(ctx, filepath.Join(m.podDir(uid), e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// OnDisk lists the pods that have something on disk, for the clean-up at start.
func (m *Manager) OnDisk() ([]types.UID, error) {
	seen := make(map[string]bool)
	var uids []types.UID
	for _, dir := range []string{m.podsDir(), m.volatileDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("listing the pods on disk: %w", err)
		}
		for _, e := range entries {
			if !seen[e.Name()] {
				seen[e.Name()] = true
				uids = append(uids, types.UID(e.Name()))
			}
		}
	}
	if m.cfg.CSI != nil {
		for _, uid := range m.cfg.CSI.Pods() {
			if !seen[string(uid)] {
				uids = append(uids, uid)
			}
		}
	}
	return uids, nil
}
