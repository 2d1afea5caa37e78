// Package devices gives devices of the node to containers: those of device plugins (v1beta1), which it allocates, and
// those of ResourceClaims, which it has drivers prepare. It also serves the pod resources API. The node agent drives
// it; core/devices decides. It must never start or end a pod.
//
// Goroutines: one for each of the two sockets that it serves; one for each plugin or driver that is connected, and one
// for the health of a driver's devices. There is no timer.
//
// Contract: S8, S9.D to S9.F and S12.H in docs/spec/storage-and-node.md.
package devices

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"carob/internal/base/atomicfile"
	"carob/internal/core/devices"
	"carob/internal/core/pinning"
	"carob/internal/node/plugins"
)

// The limits of waits and calls (S0.37, S0.38).
const (
	dialTimeout     = 10 * time.Second
	preStartTimeout = 30 * time.Second
	prepareTimeout  = 45 * time.Second
	pluginReturn    = 5 * time.Minute  // how long devices of a lost plugin count
	driverReturn    = 30 * time.Second // how long slices of a lost driver stay
)

// Config is what a Manager works with.
type Config struct {
	Root   string // the kubelet's directory: device-plugins, plugins_registry and pod-resources below it
	State  string // file that records which devices pods have
	Node   string // name of the Node object
	Client kubernetes.Interface
	// Handlers take the plugins of other types that register in the same directory.
	Handlers map[string]plugins.Handler
	Pinning  Pinning // nil: containers have no CPUs or memory of their own
	Meter    Meter   // nil: not counted
	Logger   klog.Logger
}

// Pinning returns the CPUs and NUMA nodes that containers have.
type Pinning interface {
	// Near are the NUMA nodes that are preferred for the devices of a container; false: no preference.
	Near(pod types.UID, container string) (pinning.Mask, bool)
	OwnCPUs(pod types.UID, container string) []int64
	Memory(pod types.UID, container string) []*podresources.ContainerMemory
	Allocatable() ([]int64, []*podresources.ContainerMemory)
}

type noPinning struct{}

func (noPinning) Near(types.UID, string) (pinning.Mask, bool)              { return 0, false }
func (noPinning) OwnCPUs(types.UID, string) []int64                        { return nil }
func (noPinning) Memory(types.UID, string) []*podresources.ContainerMemory { return nil }
func (noPinning) Allocatable() ([]int64, []*podresources.ContainerMemory)  { return nil, nil }

// Hooks are what a Manager calls back.
type Hooks struct {
	PodChanged  func(types.UID)      // the status of the pod's devices changed
	NodeChanged func()               // capacities changed
	Pods        func() []*corev1.Pod // the pods of the node that have not ended
}

// Manager owns the devices of a node. It is safe for concurrent use.
type Manager struct {
	cfg   Config
	hooks Hooks

	mu        sync.Mutex
	plugins   devices.Plugins
	claims    devices.Claims
	endpoints map[string][]*endpoint   // of device plugins by resource, the newest last
	drivers   map[string]*driver       // of claims, by name
	expiring  map[string]*time.Timer   // resources that no plugin serves
	preStarts map[string]bool          // resources whose plugin must be called before each start of a container
	health    map[string]*driverHealth // by driver
	closed    bool                     // Run has ended
	registry  error                    // why no device plugin can register; nil: they can
	stored    []byte                   // content of the state file; nil: unknown
}

// New reads the state file. Nothing is started before Run.
func New(cfg Config) (*Manager, error) {
	if cfg.Meter == nil {
		cfg.Meter = noMeter{}
	}
	if cfg.Pinning == nil {
		cfg.Pinning = noPinning{}
	}
	m := &Manager{cfg: cfg, claims: devices.Claims{}, endpoints: map[string][]*endpoint{},
		drivers: map[string]*driver{}, preStarts: map[string]bool{},
		expiring: map[string]*time.Timer{}, health: map[string]*driverHealth{},
		hooks: Hooks{PodChanged: func(types.UID) {}, NodeChanged: func() {}, Pods: func() []*corev1.Pod { return nil }}}
	if err := m.load(); err != nil {
		return nil, err
	}
	return m, nil
}

// Run serves plugins and drivers until ctx ends.
func (m *Manager) Run(ctx context.Context, hooks Hooks) error {
	m.mu.Lock()
	m.hooks = hooks
	for name := range m.plugins.Resources {
		m.expire(name)
	}
	m.mu.Unlock()
	handlers := map[string]plugins.Handler{"DRAPlugin": draHandler{m}, "DevicePlugin": devicePluginHandler{m}}
	maps.Copy(handlers, m.cfg.Handlers)
	watcher, err := plugins.New(plugins.Config{Dir: filepath.Join(m.cfg.Root, "plugins_registry"), Handlers: handlers,
		Logger: m.cfg.Logger})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return watcher.Run(ctx) })
	g.Go(func() error { return m.serveRegistry(ctx) })
	g.Go(func() error { return m.servePodResources(ctx) })
	g.Go(func() error { m.wipe(ctx, ""); return nil })
	err = g.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, t := range m.expiring {
		t.Stop()
	}
	for _, h := range m.health {
		if h.timer != nil {
			h.timer.Stop()
		}
	}
	for _, d := range m.drivers {
		d.stop()
	}
	return err
}

// savedState is the state file.
type savedState struct {
	Version     int
	Assignments []devices.Assignment
	// Resources are the ids of the devices of each resource: until their plugin is back they count as unhealthy.
	Resources map[string][]string
	PreStarts []string `json:",omitempty"` // resources whose plugin must be called before each start of a container
	Claims    devices.Claims
}

const stateVersion = 1

// load reads the state file. A damaged file is put aside: the devices in it can't be released,
// and pods that lack devices report that.
func (m *Manager) load() error {
	text, err := os.ReadFile(m.cfg.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which devices pods have: %w", err)
	}
	var r savedState
	if err := json.Unmarshal(text, &r); err != nil || r.Version != stateVersion {
		m.cfg.Logger.Error(err, "The file about the devices of pods is damaged or of another version; it is put aside",
			"file", m.cfg.State, "version", r.Version)
		if err := os.Rename(m.cfg.State, m.cfg.State+".damaged"); err != nil {
			return fmt.Errorf("put a damaged file aside: %w", err)
		}
		return nil
	}
	m.plugins.Assignments = r.Assignments
	for name, ids := range r.Resources {
		known := map[string]devices.Device{}
		for _, id := range ids {
			known[id] = devices.Device{}
		}
		m.plugins.Update(name, known)
		m.plugins.Disconnected(name)
	}
	for _, name := range r.PreStarts {
		m.preStarts[name] = true
	}
	for uid, c := range r.Claims {
		if c != nil && c.UID == uid && c.Drivers != nil {
			m.claims[uid] = c
		}
	}
	return nil
}

// save writes the state file; m.mu is held. Devices that are reserved while their plugin is being called are not
// written.
func (m *Manager) save() error {
	r := savedState{Version: stateVersion, Claims: m.claims, Resources: map[string][]string{}}
	for _, a := range m.plugins.Assignments {
		if a.Response != nil {
			r.Assignments = append(r.Assignments, a)
		}
	}
	for name, known := range m.plugins.Resources {
		if known.Gone {
			continue
		}
		r.Resources[name] = slices.AppendSeq([]string{}, maps.Keys(known.Devices))
		slices.Sort(r.Resources[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.preStarts)) {
		if r.Resources[name] != nil || slices.ContainsFunc(r.Assignments, func(a devices.Assignment) bool {
			return a.Resource == name
		}) {
			r.PreStarts = append(r.PreStarts, name)
		}
	}
	text, err := json.Marshal(r)
	if err == nil && bytes.Equal(text, m.stored) { // the health of devices is not in the file, and may change often
		return nil
	}
	if err == nil {
		err = atomicfile.Write(m.cfg.State, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("store the devices of pods: %w", err)
	}
	m.stored = text
	return nil
}

// Amounts are capacity and allocatable quantity of the resources of device plugins.
func (m *Manager) Amounts() (capacity, allocatable corev1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, free := m.plugins.Amounts()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, n := range all {
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(free[name], resource.DecimalSI)
	}
	return capacity, allocatable
}

// Waits reports whether a pod must only wait for a resource, or has its devices already: then a shortage of the
// resource is no reason to refuse it.
func (m *Manager) Waits(pod *corev1.Pod, name corev1.ResourceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plugins.Away(string(name)) || m.plugins.HasOf(pod.UID, string(name))
}

// Held reports whether a pod has devices that must be released.
func (m *Manager) Held(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plugins.Has(pod) || m.claims.Has(pod)
}

// Pods returns the pods that have devices, including those that no longer exist.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(m.plugins.Pods(), m.claims.Pods()...)
}

// Hints are the NUMA nodes that have enough devices for a container, or for a pod when c is nil.
func (m *Manager) Hints(pod *corev1.Pod, c *corev1.Container, nodes pinning.Mask) pinning.Hints {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plugins.Hints(pod, c, nodes)
}

// UsePinning sets the source of the CPUs and NUMA nodes of containers, before Run.
func (m *Manager) UsePinning(p Pinning) { m.cfg.Pinning = p }

// Release gives back everything that a pod has, when its containers have ended (S9.55). After an error the caller must
// call it again.
func (m *Manager) Release(ctx context.Context, pod types.UID) error {
	m.mu.Lock()
	m.plugins.Release(pod)
	err := m.save()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.unprepare(ctx, pod)
}

// Status is the health of the devices of the regular containers of a pod (S8.60, S9.70); nil: it has none.
func (m *Manager) Status(pod *corev1.Pod) map[string][]corev1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.plugins.Has(pod.UID) && !m.claims.Has(pod.UID) {
		return nil
	}
	status := map[string][]corev1.ResourceStatus{}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		list := append(m.plugins.Health(pod.UID, c.Name), m.claimHealth(pod, c)...)
		if len(list) > 0 {
			status[c.Name] = list
		}
	}
	return status
}
