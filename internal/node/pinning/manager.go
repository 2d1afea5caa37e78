// Package pinning gives containers exclusive CPUs and NUMA nodes: it reads the topology of the machine, stores the
// assignments in files, and keeps the cpusets of running containers as decided. The node agent drives it; core/pinning
// decides. A nil *Manager is a node without static policies: it assigns nothing and costs nothing.
//
// Contract: S10 in docs/spec/storage-and-node.md.
package pinning

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"carob/internal/core/pinning"
)

// DefaultReconcile is how often the cpusets of containers are compared with the decided ones (S10.8).
const DefaultReconcile = 10 * time.Second

// Runtime is the part of a runtime that changes a container's cpuset.
type Runtime interface {
	UpdateContainerResources(ctx context.Context, req *cri.UpdateContainerResourcesRequest) (
		*cri.UpdateContainerResourcesResponse, error)
}

// Config is what a Manager works with.
type Config struct {
	Dir       string // of the state files
	Sys       string // where sysfs is; empty: /sys
	Memory    uint64 // of the machine, bytes
	Policies  pinning.Config
	Reconcile time.Duration // 0: DefaultReconcile
	Runtime   Runtime
	Devices   pinning.DeviceHints // nil: there are no devices
	Meter     Meter               // nil: not counted
	Logger    klog.Logger
}

// Meter counts admissions.
type Meter interface {
	// PinningAdmitted counts the admission of a pod: what it requested, why it was refused, and how long that took.
	PinningAdmitted(cpus, memory, topology bool, refused string, took time.Duration)
}

type noMeter struct{}

func (noMeter) PinningAdmitted(bool, bool, bool, string, time.Duration) {}

// Running is a container that runs.
type Running struct {
	Pod       types.UID
	Container string // its name
	ID        string // in the runtime
}

// Manager is safe for concurrent use.
type Manager struct {
	cfg  Config
	wake chan struct{}

	mu      sync.Mutex
	core    *pinning.Manager
	unsaved bool
	applied map[string]string // the cpuset of each container by ID, as it was last set
}

// Open reads the topology of the machine and the state files. Without static policies it returns nil. It fails if the
// state files are of another policy: then containers have CPUs that nothing would manage (S10.12).
func Open(cfg Config) (*Manager, error) {
	p := &cfg.Policies
	if p.CPUPolicy == "" {
		p.CPUPolicy = pinning.NameNone
	}
	if p.MemoryPolicy == "" {
		p.MemoryPolicy = pinning.NameNoneMemory
	}
	var core *pinning.Manager
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	if err := checkReserved(cfg.Sys, p.ReservedCPUs); err != nil {
		return nil, err
	}
	if p.Pins() {
		topology, err := Discover(cfg.Sys, cfg.Memory)
		if err != nil {
			return nil, err
		}
		if core, err = pinning.New(topology, *p); err != nil {
			return nil, err
		}
	}
	if err := readCPUs(cfg.Dir, p.CPUPolicy, core); err != nil {
		return nil, err
	}
	if err := readMemory(cfg.Dir, p.MemoryPolicy, core); err != nil {
		return nil, err
	}
	if core == nil {
		return nil, nil
	}
	if cfg.Meter == nil {
		cfg.Meter = noMeter{}
	}
	if cfg.Reconcile <= 0 {
		cfg.Reconcile = DefaultReconcile
	}
	m := &Manager{cfg: cfg, core: core, wake: make(chan struct{}, 1), applied: map[string]string{}}
	m.save()
	return m, nil
}

// Admit assigns a pod its CPUs and memory, or returns why it can't run here.
func (m *Manager) Admit(pod *corev1.Pod) *pinning.Refusal {
	if m == nil {
		return nil
	}
	began := time.Now()
	m.mu.Lock()
	changed, refused := m.core.Admit(pod, m.cfg.Devices)
	if changed {
		m.save()
	}
	m.mu.Unlock()
	if changed {
		m.notify()
	}
	reason := ""
	if refused != nil {
		reason = refused.Reason
	}
	requestsCPUs, requestsMemory := m.core.Requests(pod)
	m.cfg.Meter.PinningAdmitted(requestsCPUs, requestsMemory, m.cfg.Policies.Policy != "" &&
		m.cfg.Policies.Policy != pinning.TopologyNone, reason, time.Since(began))
	return refused
}

// save writes the state; m.mu is held. A failed write is repeated later: after a restart before that, the pod gets
// other CPUs, and its containers move to them.
func (m *Manager) save() {
	err := writeAll(m.cfg.Dir, &m.cfg.Policies, m.core.State())
	if err != nil && !m.unsaved { // a full disk may last
		m.cfg.Logger.Error(err, "These CPUs are not in the state file yet: a restart of carob would assign others")
	}
	m.unsaved = err != nil
}

func (m *Manager) notify() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Held reports whether a pod has CPUs or memory that must be released.
func (m *Manager) Held(pod types.UID) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Holds(pod)
}

// Pods are the pods that have CPUs or memory, including those that no longer exist.
func (m *Manager) Pods() []types.UID {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Pods()
}

// Release takes everything from a pod whose containers have ended.
func (m *Manager) Release(pod types.UID) {
	if m == nil {
		return
	}
	m.mu.Lock()
	changed := m.core.Release(pod)
	if changed {
		m.save()
	}
	m.mu.Unlock()
	if changed {
		m.notify()
	}
}

// Starting adds to r what the container gets, and frees what the init containers before it had.
func (m *Manager) Starting(pod *corev1.Pod, container string, r *cri.LinuxContainerResources) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.core.Starts(pod, container) {
		m.save()
	}
	m.put(pod, container, r)
}

// Resizing adds to r what the container has: only its other resources change.
func (m *Manager) Resizing(pod *corev1.Pod, container string, r *cri.LinuxContainerResources) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(pod, container, r)
}

// noQuota lifts the limit of CPU time: a container's own CPUs are limit enough (S10.7).
const noQuota = -1

func (m *Manager) put(pod *corev1.Pod, container string, r *cri.LinuxContainerResources) {
	cpus, own := m.core.CPUs(pod.UID, container)
	r.CpusetCpus = cpus.String()
	if own {
		r.CpuQuota = noQuota
	}
	var nodes []string
	for _, n := range m.core.MemoryNodes(pod.UID, container) {
		nodes = append(nodes, strconv.Itoa(n))
	}
	r.CpusetMems = strings.Join(nodes, ",")
}

// Started records the cpuset with which a container was made. If another one was decided meanwhile, the container gets
// that one.
func (m *Manager) Started(pod types.UID, container, id, cpus string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	now, _ := m.core.CPUs(pod, container)
	m.applied[id] = cpus
	m.mu.Unlock()
	if now.String() != cpus {
		m.notify()
	}
}

// NoQuota reports whether the group of a pod has no limit of CPU time, because a container has CPUs of its own.
func (m *Manager) NoQuota(pod types.UID) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.OwnCPUs(pod)
}

// AllowsResize returns why a pod can't be resized in place; empty: it can.
func (m *Manager) AllowsResize(pod, held *corev1.Pod) string {
	if m == nil {
		return ""
	}
	return m.core.AllowsResize(pod, held) // of what never changes
}

// Near are the NUMA nodes that the devices of a container should be near to.
func (m *Manager) Near(pod types.UID, container string) (nodes pinning.Mask, ok bool) {
	if m == nil {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.Near(pod, container)
}

// Run keeps the cpusets of running containers as decided, until ctx ends. list returns the running containers.
func (m *Manager) Run(ctx context.Context, list func() []Running) {
	tick := time.NewTicker(m.cfg.Reconcile)
	defer tick.Stop()
	for {
		m.reconcile(ctx, list())
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-tick.C:
		}
	}
}

// reconcile gives each container the cpuset that was decided, if it has another one. Failures are retried in the next
// round.
func (m *Manager) reconcile(ctx context.Context, running []Running) {
	m.mu.Lock()
	if m.unsaved {
		m.save()
	}
	ids := make(map[string]bool, len(running))
	type change struct {
		Running
		cpus string
	}
	var changes []change
	for _, c := range running {
		ids[c.ID] = true
		if cpus, _ := m.core.CPUs(c.Pod, c.Container); !cpus.IsEmpty() && m.applied[c.ID] != cpus.String() {
			changes = append(changes, change{c, cpus.String()})
		}
	}
	m.mu.Unlock()
	for _, c := range changes {
		_, err := m.cfg.Runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: c.ID,
			Linux: &cri.LinuxContainerResources{CpusetCpus: c.cpus}})
		if err != nil {
			m.cfg.Logger.V(2).Info("The CPUs of a container were not changed", "container", c.ID, "cpus", c.cpus, "err", err)
			continue
		}
		m.mu.Lock()
		m.applied[c.ID] = c.cpus
		m.mu.Unlock()
	}
	m.forget(ids)
}

// forget removes containers that no longer run. A container that was just started may not be in the list yet: it stays
// until it was listed once.
func (m *Manager) forget(running map[string]bool) {
	const many = 4096
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.applied) < 2*len(running)+many {
		return
	}
	for id := range m.applied {
		if !running[id] {
			delete(m.applied, id)
		}
	}
}

// OwnCPUs are the CPUs that a container has for itself, and Memory is its memory on NUMA nodes, for the pod resources
// API (S12.91).
func (m *Manager) OwnCPUs(pod types.UID, container string) []int64 {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	cpus, own := m.core.CPUs(pod, container)
	if !own {
		return nil
	}
	return numbers(cpus.List())
}

// Memory is the memory that a container has on NUMA nodes.
func (m *Manager) Memory(pod types.UID, container string) []*podresources.ContainerMemory {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return blocks(m.core.Memory(pod, container))
}

// Allocatable are the CPUs and the memory that containers can get for themselves.
func (m *Manager) Allocatable() ([]int64, []*podresources.ContainerMemory) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	cpus, memory := m.core.Allocatable()
	return numbers(cpus.List()), blocks(memory)
}

// Usage is how many CPUs containers share, how many belong to one of them, and of which NUMA nodes.
type Usage struct {
	Shared, Own int
	ByNode      map[int]int
}

// Usage returns what is in use.
func (m *Manager) Usage() (u Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u.Shared, u.Own, u.ByNode = m.core.Usage()
	return u
}

func numbers(ids []int) []int64 {
	out := make([]int64, 0, len(ids))
	for _, id := range ids {
		out = append(out, int64(id))
	}
	return out
}

func blocks(of []pinning.Block) []*podresources.ContainerMemory {
	var out []*podresources.ContainerMemory
	for _, b := range of {
		t := &podresources.TopologyInfo{}
		for _, n := range b.Nodes {
			t.Nodes = append(t.Nodes, &podresources.NUMANode{ID: int64(n)})
		}
		out = append(out, &podresources.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: t})
	}
	return out
}
