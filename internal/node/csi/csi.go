// Package csi makes volumes of CSI drivers usable on the node: it takes drivers that register, keeps the CSINode
// object, stages, publishes and enlarges volumes, and undoes that when no pod uses them. node/volume drives it;
// core/volume decides. It must never start or end a pod, and never delete what is below a mount.
//
// The state is on disk, as with the kubelet: vol_data.json is written before a driver is called and removed after the
// driver has undone its work, so that the next start finds whatever a crash leaves. Work on one volume runs one after
// the other, on different volumes in parallel; each call of a driver has a deadline.
//
// While no volume is used nothing runs. Goroutines: one for each volume that could not be unstaged yet or is checked
// while it is used, and one for each driver that sets how often its limit is read.
//
// Contract: S4 and S5.B in docs/spec/storage-and-node.md.
package csi

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"carob/internal/base/keylock"
	"carob/internal/core/volume"
)

// Limits of calls and waits (S0.35, S0.36).
const (
	callTimeout    = 2 * time.Minute
	attachTimeout  = 2*time.Minute + 3*time.Second
	firstRetry     = 500 * time.Millisecond
	maxRetry       = 2*time.Minute + 2*time.Second
	lookPeriod     = time.Minute // at a volume that is used: its size, its tokens
	statsPeriod    = time.Minute
	statsPatience  = 2 * time.Second // of a reader of volume statistics
	maxDriverName  = 63
	maxHandle      = 4096 // bytes
	permDir        = 0o750
	stagedDirName  = "globalmount"
	targetDirName  = "mount"
	recordName     = "vol_data.json"
	escapedPlugin  = "kubernetes.io~csi"
	blockDirectory = "volumeDevices"
)

// Tokens requests service account tokens.
type Tokens interface {
	Token(ctx context.Context, namespace, serviceAccount string,
		req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Meter counts what is done, for the metrics of S4.L.
type Meter interface {
	// Called is one call of a driver; code is the text of its status.
	Called(driver, method, code string, took time.Duration)
	// Operation is one step of work on a volume, by upstream's name of it.
	Operation(plugin, name string, err error, took time.Duration)
	// Reconstructed is a volume of a pod that was found on disk at the start; an error: its record cannot be used.
	Reconstructed(err error)
	// ForceCleaned is the removal of such a volume without a record.
	ForceCleaned(err error)
	// Labelled is a volume that a pod needs with an SELinux label; conflict: another pod uses it with another label.
	Labelled(plugin, accessMode string, conflict bool)
}

// Config is what a Manager works with.
type Config struct {
	Root   string // the kubelet's directory
	Node   string // name of the Node object
	Client kubernetes.Interface
	Tokens Tokens
	Object func() *corev1.Node // the Node as the API last showed it; nil: unknown
	// InUseChanged is called when the result of InUse changes.
	InUseChanged func()
	Event        func(pod *corev1.Pod, eventType, reason, message string)
	ClaimEvent   func(claim *corev1.PersistentVolumeClaim, eventType, reason, message string)
	Meter        Meter // nil: not counted
	Logger       klog.Logger
}

// Manager owns the volumes of CSI drivers on this node. It is safe for concurrent use.
type Manager struct {
	cfg   Config
	queue keylock.Locks // by volume

	mu      sync.Mutex
	drivers map[string][]*driver // by name, the one in use last
	volumes map[volume.Handle]*staged
	targets map[targetKey]*target
	damaged map[types.UID][]string // directories of pods without a record, to be unmounted and removed
	moved   chan struct{}          // closed, and made anew, when the Node object or a driver changes
	closed  bool
	stats   figures
	ctx     context.Context //nolint:containedctx // of Run: what begins by a timer ends with it
	work    sync.WaitGroup
}

// staged is a volume that is known on this node. Its record is on disk from before it is staged until it is unstaged.
type staged struct {
	handle volume.Handle
	pv     string // name of the volume; only of block volumes, whose directories it names
	block  bool
	done   bool // this process of the agent staged it; false: unknown
	record bool // it is on disk
	attach attachment
	users  map[targetKey]bool
	undo   bool // an unstage is being tried
}

// attachment is whether a volume needs a VolumeAttachment.
type attachment int

const (
	unknown attachment = iota // found on disk: the Node object decides
	attachable
	notAttachable
)

// targetKey names a volume of a pod: by the persistent volume, or the name in the pod for an ephemeral one.
type targetKey struct {
	pod  types.UID
	name string
}

// target is a volume that is, or may be, published for a pod.
type target struct {
	targetKey
	handle volume.Handle
	block  bool
	record bool   // it is on disk
	before bool   // it was published once, by this process of the agent or an earlier one
	label  string // the SELinux label that it is mounted with, once there is a record; "": none
	use    *use   // nil: found on disk, not requested since the start
	timer  *time.Timer
	size   knownSize
	tokens map[string]issued
}

// New reads what is on disk (S4.J). Nothing is started before Run.
func New(cfg Config) (*Manager, error) {
	if cfg.InUseChanged == nil {
		cfg.InUseChanged = func() {}
	}
	if cfg.Event == nil {
		cfg.Event = func(*corev1.Pod, string, string, string) {}
	}
	if cfg.ClaimEvent == nil {
		cfg.ClaimEvent = func(*corev1.PersistentVolumeClaim, string, string, string) {}
	}
	if cfg.Meter == nil {
		cfg.Meter = noMeter{}
	}
	m := &Manager{cfg: cfg, drivers: map[string][]*driver{}, volumes: map[volume.Handle]*staged{},
		targets: map[targetKey]*target{}, damaged: map[types.UID][]string{}, moved: make(chan struct{}),
		stats: figures{known: map[targetKey]Stats{}}}
	if err := m.load(); err != nil {
		return nil, fmt.Errorf("find volumes of CSI drivers on disk: %w", err)
	}
	// Pods of drivers mount both, often as host paths of type Directory, before there is a volume.
	for _, dir := range []string{"pods", "plugins"} {
		if err := os.MkdirAll(filepath.Join(cfg.Root, dir), permDir); err != nil {
			cfg.Logger.Error(err, "The pods of CSI drivers may not start")
		}
	}
	return m, nil
}

type noMeter struct{}

func (noMeter) Called(string, string, string, time.Duration)   {}
func (noMeter) Operation(string, string, error, time.Duration) {}
func (noMeter) Reconstructed(error)                            {}
func (noMeter) ForceCleaned(error)                             {}
func (noMeter) Labelled(string, string, bool)                  {}

// Run maintains the CSINode object, and begins to unpublish volumes that no pod uses; known
// reports whether a pod is on this node. It is called once, when the pods of the node are known,
// and returns when ctx is done and all its work has ended.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ctx = ctx
	for _, s := range m.volumes { // any order: each by itself
		m.unused(s)
	}
	m.mu.Unlock()
	m.keepCSINode(ctx)
	<-ctx.Done()
	m.mu.Lock()
	m.closed = true
	for _, t := range m.targets {
		if t.timer != nil {
			t.timer.Stop()
		}
	}
	m.mu.Unlock()
	m.work.Wait()
	return nil
}

// background runs f until the Manager ends; m.mu is held.
func (m *Manager) background(f func(ctx context.Context)) {
	if m.closed || m.ctx == nil {
		return
	}
	ctx := m.ctx
	m.work.Go(func() { f(ctx) })
}

// NodeSeen announces a change of the Node object: waits for an attachment check it again.
func (m *Manager) NodeSeen() { m.stir() }

func (m *Manager) stir() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.moved)
	m.moved = make(chan struct{})
}

func (m *Manager) news() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moved
}

// InUse are the volumes that must not be detached from this node, sorted (S4.34, S4.100). stored is the list in the
// Node object: volumes that were found on disk stay in use if it has them.
func (m *Manager) InUse(stored []corev1.UniqueVolumeName) []corev1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []corev1.UniqueVolumeName
	for h, s := range m.volumes { // any order: sorted below
		name := h.UniqueName()
		if s.attach == attachable || s.attach == unknown && slices.Contains(stored, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// Held reports whether a pod has volumes that must be released.
func (m *Manager) Held(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.damaged[pod]) > 0 {
		return true
	}
	for k := range m.targets {
		if k.pod == pod {
			return true
		}
	}
	return false
}

// Pods are the pods that have volumes to release.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := map[types.UID]bool{}
	for k := range m.targets {
		uids[k.pod] = true
	}
	for uid := range m.damaged {
		uids[uid] = true
	}
	return slices.Sorted(maps.Keys(uids))
}

// Paths below the kubelet's directory (S4.F, S4.H).

func (m *Manager) pluginDir() string {
	return filepath.Join(m.cfg.Root, "plugins", "kubernetes.io", "csi")
}
func (m *Manager) blockDir() string { return filepath.Join(m.pluginDir(), blockDirectory) }

// stageDir is the directory of a volume's record.
func (m *Manager) stageDir(s *staged) string {
	if s.block {
		return filepath.Join(m.blockDir(), s.pv, "data")
	}
	return filepath.Join(m.pluginDir(), s.handle.Driver, s.handle.Hash())
}

// stagePath is where a driver stages a volume.
func (m *Manager) stagePath(s *staged) string {
	if s.block {
		return filepath.Join(m.blockDir(), "staging", s.pv)
	}
	return filepath.Join(m.stageDir(s), stagedDirName)
}

func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.cfg.Root, "pods", string(uid)) }

// targetDir is the directory of a target's record, which the driver's mount is in. A block volume has a link instead.
func (m *Manager) targetDir(t *target) string {
	if t.block {
		return filepath.Join(m.podDir(t.pod), "volumeDevices", escapedPlugin)
	}
	return filepath.Join(m.podDir(t.pod), "volumes", escapedPlugin, t.name)
}

// targetPath is where a driver publishes a volume.
func (m *Manager) targetPath(t *target) string {
	if t.block {
		return filepath.Join(m.blockDir(), "publish", t.name, string(t.pod))
	}
	return filepath.Join(m.targetDir(t), targetDirName)
}

// object is the CSIDriver object of a driver, or the rules without one.
func (m *Manager) rules(ctx context.Context, name string) (volume.DriverRules, error) {
	d, err := m.cfg.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if isNotFound(err) {
		return volume.RulesOf(nil), nil
	}
	if err != nil {
		return volume.DriverRules{}, fmt.Errorf("get the CSIDriver object %s: %w", name, err)
	}
	return volume.RulesOf(d), nil
}
