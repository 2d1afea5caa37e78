// Package podcgroups creates and limits the cgroups around those of containers: the node's root, one group for each QoS
// class, one for each pod (L3.117d). It works on cgroup v1, hybrid and v2, with the cgroupfs and the systemd driver.
// The executor drives it; containers' own groups below a pod's belong to the runtime. The numbers come from
// core/resources; the package must never compute them.
//
// Contract: docs/spec/pod-lifecycle.md.
package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/resources"
)

// Config has the location and the limits of the groups.
type Config struct {
	Root    string // parent of kubepods: "/", "/carob"
	Systemd bool   // the systemd driver; false: cgroupfs
	PodPids int64  // processes and threads of a pod at most (L3.117m); 0 and less: no limit
	// NoQuota reports whether a pod's CPU time has no limit, because containers have CPUs of their own (S10.7); nil:
	// all have one.
	NoQuota func(types.UID) bool
	// MemoryQoS is which memory is kept for pods (S11.G). It needs cgroup v2.
	MemoryQoS resources.MemoryQoS
}

// Manager makes and removes the groups. It is safe for concurrent use.
type Manager struct {
	systemd bool
	pids    int64 // of Config.PodPids; -1: no limit
	noQuota func(types.UID) bool
	memory  resources.MemoryQoS
	root    resources.CgroupPath
	v2      bool
	// open is the driver of a cgroup.
	open func(*cgroups.Cgroup, map[string]string) (cgroups.Manager, error)

	mu    sync.Mutex
	pods  map[types.UID]*podGroup
	milli map[types.UID]int64                 // cpu that Burstable pods request
	burst uint64                              // cpu shares that burstable has
	tiers map[types.UID]resources.MemoryTiers // memory that is kept for pods
	kept  resources.MemoryTiers               // their sum, as the groups have it
	bases map[string]string                   // of the root's kubepods: directory by controller, "" on v2
}

// podGroup is one pod's group. mu is held while it is made or removed.
type podGroup struct {
	mu     sync.Mutex
	made   bool
	limits *resources.Cgroup // in force; nil when an earlier process set them
}

// New returns a Manager; it creates nothing before Init.
func New(cfg Config) *Manager {
	m := &Manager{systemd: cfg.Systemd, pids: cfg.PodPids, v2: cgroups.IsCgroup2UnifiedMode(),
		memory: cfg.MemoryQoS, open: manager.NewWithPaths,
		pods: map[types.UID]*podGroup{}, milli: map[types.UID]int64{}, tiers: map[types.UID]resources.MemoryTiers{}}
	if m.pids <= 0 {
		m.pids = -1
	}
	if m.noQuota = cfg.NoQuota; m.noQuota == nil {
		m.noQuota = func(types.UID) bool { return false }
	}
	for step := range strings.SplitSeq(strings.Trim(cfg.Root, "/"), "/") {
		if step != "" {
			m.root = append(m.root, step)
		}
	}
	return m
}

// V2 reports whether the host has only the unified hierarchy.
func (m *Manager) V2() bool { return m.v2 }

// Init makes the groups of the node and of the QoS classes.
func (m *Manager) Init() error {
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable,
		corev1.PodQOSBestEffort} {
		cm, err := m.group(resources.QoSCgroup(class), nil)
		if err != nil {
			return err
		}
		if err := cm.Apply(-1); err != nil {
			return fmt.Errorf("create the cgroup of QoS class %s: %w", class, err)
		}
		r := &cgroups.Resources{SkipDevices: true}
		if class != corev1.PodQOSGuaranteed {
			m.cpu(r, resources.MinCPUShares)
		}
		if err := cm.Set(r); err != nil {
			return fmt.Errorf("set up the cgroup of QoS class %s: %w", class, err)
		}
		if class == corev1.PodQOSGuaranteed {
			m.bases = cm.GetPaths()
		}
	}
	m.burst = resources.MinCPUShares
	if !m.v2 || !m.has("memory", "memory.min") {
		return nil
	}
	return m.writeMinimums(resources.MemoryTiers{}) // the memory that an earlier process reserved no longer counts
}

// Enforce gives all pods together the CPU weight of the machine: with the kernel's default
// weight, all of them would get only as much as one process outside (S11.122). The groups of the
// root get it, too: each competes with what runs beside it. Only with systemd they keep the weight
// that it gives their slices, which an administrator may set. Enforce limits the memory and
// processes of the pods to limit (S11.121); a resource that limit lacks is unlimited.
func (m *Manager) Enforce(capacity, limit corev1.ResourceList) error {
	group := resources.QoSCgroup(corev1.PodQOSGuaranteed)
	cm, err := m.group(group, nil)
	if err != nil {
		return err
	}
	r := &cgroups.Resources{SkipDevices: true, Memory: -1}
	cpu := capacity.Cpu()
	if limit != nil {
		r.Memory, cpu = limit.Memory().Value(), limit.Cpu()
	}
	pids := int64(-1)
	if q, ok := limit["pid"]; ok {
		pids = q.Value()
	}
	r.PidsLimit = &pids
	shares := resources.CPUShares(cpu.MilliValue())
	m.cpu(r, shares)
	if err := cm.Set(r); err != nil {
		//nolint:staticcheck // upstream's words, shown in an event
		return fmt.Errorf("Failed to update Node Allocatable Limits %q: %w", m.name(group), err)
	}
	if m.systemd {
		return nil
	}
	for i := range m.root {
		above := m.root[:i+1]
		if cm, err = m.driver(above, nil); err != nil {
			return err
		}
		r = &cgroups.Resources{SkipDevices: true}
		m.cpu(r, shares)
		if err := cm.Set(r); err != nil {
			return fmt.Errorf("set the CPU weight of cgroup %s: %w", m.spelled(above), err)
		}
	}
	return nil
}

// Parent returns the cgroup of the pod in the form that CRI requires.
func (m *Manager) Parent(pod *corev1.Pod) string {
	return m.name(resources.PodCgroupPath(resources.QoS(pod), pod.UID))
}

func (m *Manager) name(p resources.CgroupPath) string { return m.spelled(slices.Concat(m.root, p)) }

// spelled is a path from the root of the hierarchies as the cgroup driver spells it.
func (m *Manager) spelled(p resources.CgroupPath) string {
	if m.systemd {
		return p.Systemd()
	}
	return p.Cgroupfs()
}

// group is the driver of one group of carob; paths are its directories when they are known.
func (m *Manager) group(p resources.CgroupPath, paths map[string]string) (cgroups.Manager, error) {
	return m.driver(slices.Concat(m.root, p), paths)
}

// driver is the driver of the group with a path from the root of the hierarchies.
func (m *Manager) driver(p resources.CgroupPath, paths map[string]string) (cgroups.Manager, error) {
	cg := &cgroups.Cgroup{Resources: &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}}
	name := m.spelled(p)
	if m.systemd {
		cg.Systemd = true
		cg.Name = name
		cg.Parent = strings.TrimSuffix(m.spelled(p[:len(p)-1]), "/")
		if len(p) == 1 {
			cg.Parent = "-.slice"
		}
	} else {
		cg.Path = name
	}
	cm, err := m.open(cg, paths)
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: %w", name, err)
	}
	return cm, nil
}

func (m *Manager) cpu(r *cgroups.Resources, shares uint64) {
	if m.v2 {
		r.CpuWeight = resources.CPUWeight(shares)
	} else {
		r.CpuShares = shares
	}
}

func (m *Manager) pod(uid types.UID) *podGroup {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.pods[uid]
	if g == nil {
		g = &podGroup{}
		m.pods[uid] = g
	}
	return g
}

// Ensure makes the group of the pod with its limits, unless this process has done so.
func (m *Manager) Ensure(pod *corev1.Pod) error {
	g := m.pod(pod.UID)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.made {
		return nil
	}
	class := resources.QoS(pod)
	path := resources.PodCgroupPath(class, pod.UID)
	dirs := m.paths(path)
	cm, err := m.group(path, dirs)
	if err != nil {
		return err
	}
	if m.systemd || m.v2 || !makeAll(dirs) {
		if err := cm.Apply(-1); err != nil {
			return fmt.Errorf("create cgroup %s: %w", m.name(path), err)
		}
	}
	if err := cm.Set(m.limits(pod)); err != nil {
		return fmt.Errorf("set the limits of cgroup %s: %w", m.name(path), err)
	}
	g.made = true
	limits := m.want(pod)
	g.limits = &limits
	if err := m.protect(pod.UID, m.memory.Tiers(pod)); err != nil {
		return err
	}
	if class == corev1.PodQOSBurstable {
		requests := resources.Requests(pod)
		return m.share(pod.UID, requests.Cpu().MilliValue())
	}
	return nil
}

// unlimited removes a limit; 0 would leave it as it is.
const unlimited = -1

// Resize changes the limits of an existing pod group: with widen to the larger of the current
// limits and the pod's, so that containers can change below it in any order; without widen to
// exactly the pod's (L3.125). A memory limit below what the pod uses is refused.
func (m *Manager) Resize(pod *corev1.Pod, widen bool) error {
	g := m.pod(pod.UID)
	g.mu.Lock()
	defer g.mu.Unlock()
	class := resources.QoS(pod)
	path := resources.PodCgroupPath(class, pod.UID)
	cm, err := m.group(path, m.paths(path))
	if err != nil {
		return err
	}
	want := m.want(pod)
	if shrinks := g.limits == nil || want.Memory < g.limits.Memory; want.Memory > 0 && shrinks {
		stats, err := cm.GetStats()
		if err != nil {
			return fmt.Errorf("read the memory usage of cgroup %s: %w", m.name(path), err)
		}
		if used := stats.MemoryStats.Usage.Usage; used > uint64(want.Memory) {
			return fmt.Errorf(
				"cannot decrease memory limits: attempting to set pod memory limit (%d) below current usage (%d)",
				want.Memory, used)
		}
	}
	if widen {
		want = wider(g.limits, want)
	}
	r := m.resources(want)
	r.Unified = m.unified(pod)
	if err := cm.Set(r); err != nil {
		return fmt.Errorf("set the limits of cgroup %s: %w", m.name(path), err)
	}
	if err := m.protect(pod.UID, m.memory.Tiers(pod)); err != nil {
		return err
	}
	if widen || class != corev1.PodQOSBurstable {
		g.limits = &want
		return nil
	}
	g.limits = &want
	requests := resources.SpecRequests(pod)
	return m.share(pod.UID, requests.Cpu().MilliValue())
}

// wider is the larger of both limits for each resource. What is not known to be
// limited is lifted.
func wider(have *resources.Cgroup, want resources.Cgroup) resources.Cgroup {
	if have == nil {
		want.CPUQuota, want.Memory = unlimited, unlimited
		return want
	}
	larger := func(have, want int64) int64 {
		if have <= 0 {
			return have // no limit now: narrowing sets it
		}
		return max(have, want)
	}
	want.CPUShares = max(have.CPUShares, want.CPUShares)
	want.CPUQuota = larger(have.CPUQuota, want.CPUQuota)
	want.Memory = larger(have.Memory, want.Memory)
	return want
}

func (m *Manager) limits(pod *corev1.Pod) *cgroups.Resources {
	r := m.resources(m.want(pod))
	r.Unified = m.unified(pod)
	return r
}

// want are the limits that a pod's group should have.
func (m *Manager) want(pod *corev1.Pod) resources.Cgroup {
	w := resources.PodCgroup(pod)
	if m.noQuota(pod.UID) {
		w.CPUQuota = unlimited
	}
	return w
}

func (m *Manager) resources(want resources.Cgroup) *cgroups.Resources {
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, Memory: want.Memory, PidsLimit: &m.pids}
	m.cpu(r, want.CPUShares)
	if want.CPUQuota != 0 {
		r.CpuQuota, r.CpuPeriod = want.CPUQuota, resources.CPUPeriod
	}
	if m.has("hugetlb", "hugetlb.") {
		for _, size := range m.PageSizes() { // sizes that are not requested get the limit 0 (L3.117n)
			limit := &cgroups.HugepageLimit{Pagesize: size}
			for _, h := range want.HugePages {
				if kernelPageSize(h.Size) == size {
					limit.Limit = uint64(h.Limit)
				}
			}
			r.HugetlbLimit = append(r.HugetlbLimit, limit)
		}
	}
	return r
}

// PageSizes are the sizes of huge pages of this machine, as cgroups spell them.
func (m *Manager) PageSizes() []string { return cgroups.HugePageSizes() }

// SwapController reports whether the groups can limit swap. It is known after Init.
func (m *Manager) SwapController() bool {
	return m.has("memory", map[bool]string{false: "memory.memsw.limit_in_bytes", true: "memory.swap.max"}[m.v2])
}

// has reports whether the node's group has a file of a controller whose name begins with a
// prefix.
func (m *Manager) has(controller, file string) bool {
	if m.v2 {
		controller = ""
	}
	dir := m.bases[controller]
	if dir == "" {
		return false
	}
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries,
		func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), file) })
}

// kernelPageSize turns "2Mi" into the kernel's "2MB".
func kernelPageSize(size string) string { return strings.TrimSuffix(size, "i") + "B" }

// share gives the Burstable class the cpu that its pods request (L3.117h), after
// the pod's request became milli; 0 takes the pod out.
func (m *Manager) share(uid types.UID, milli int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.milli[uid] == milli {
		return nil
	}
	m.milli[uid] = milli
	if milli == 0 {
		delete(m.milli, uid)
	}
	sum := int64(0)
	for _, v := range m.milli {
		sum += v
	}
	shares := resources.CPUShares(sum)
	if shares == m.burst {
		return nil
	}
	path := resources.QoSCgroup(corev1.PodQOSBurstable)
	cm, err := m.group(path, m.paths(path))
	if err != nil {
		return err
	}
	r := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}
	m.cpu(r, shares)
	if err := cm.Set(r); err != nil {
		return fmt.Errorf("set the shares of cgroup %s: %w", m.name(path), err)
	}
	m.burst = shares
	return nil
}

// paths are the directories of a group by controller; nil when they must be looked up.
func (m *Manager) paths(p resources.CgroupPath) map[string]string {
	if m.bases == nil {
		return nil
	}
	below := p[1:] // bases are kubepods' own
	dirs := make(map[string]string, len(m.bases))
	for controller, base := range m.bases {
		dir := base
		for i := range below {
			if m.systemd {
				dir = filepath.Join(dir, m.name(p[:i+2]))
			} else {
				dir = filepath.Join(dir, below[i])
			}
		}
		dirs[controller] = dir
	}
	return dirs
}

// classes in which a pod's group may be.
var classes = [...]corev1.PodQOSClass{corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed}

// Exists reports whether any part of the pod's group exists.
func (m *Manager) Exists(uid types.UID) bool {
	for _, class := range classes {
		if len(m.found(resources.PodCgroupPath(class, uid), true)) > 0 {
			return true
		}
	}
	return false
}

// found are the directories of the group that exist; any: one is enough.
func (m *Manager) found(p resources.CgroupPath, one bool) map[string]string {
	dirs := m.paths(p)
	for _, controller := range slices.Sorted(maps.Keys(dirs)) {
		var st unix.Stat_t
		if err := unix.Stat(dirs[controller], &st); err != nil {
			delete(dirs, controller)
		} else if one {
			return dirs
		}
	}
	return dirs
}

// Present reports whether the pod's group exists, and adopts one that an earlier process
// created.
func (m *Manager) Present(pod *corev1.Pod) bool {
	g := m.pod(pod.UID)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.made {
		return true
	}
	class := resources.QoS(pod)
	if len(m.found(resources.PodCgroupPath(class, pod.UID), true)) == 0 {
		return false
	}
	g.made = true
	_ = m.protect(pod.UID, m.memory.Tiers(pod)) // as below
	if class == corev1.PodQOSBurstable {
		requests := resources.Requests(pod)
		// This is not an error: the next pod of the class sets the shares again.
		_ = m.share(pod.UID, requests.Cpu().MilliValue())
	}
	return true
}

// removeTries is how often processes are killed before a group counts as stuck (L7.35).
const removeTries = 5

// Remove kills the remaining processes of the pod's group and removes it. It may be repeated; a
// missing group is not an error.
func (m *Manager) Remove(ctx context.Context, uid types.UID) error {
	g := m.pod(uid)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, class := range classes {
		path := resources.PodCgroupPath(class, uid)
		if err := m.remove(ctx, path); err != nil {
			return err
		}
	}
	g.made = false
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
	return errors.Join(m.share(uid, 0), m.protect(uid, resources.MemoryTiers{}))
}

func (m *Manager) remove(ctx context.Context, p resources.CgroupPath) error {
	dirs := m.found(p, false)
	if len(dirs) == 0 {
		return nil
	}
	if !m.systemd && removeEmpty(dirs) {
		return nil
	}
	var err error
	for try := range removeTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond << try):
			}
		}
		if err = kill(dirs); err != nil {
			continue
		}
		if m.systemd {
			// The slice goes first, or systemd would make the directories again.
			var cm cgroups.Manager
			if cm, err = m.group(p, nil); err == nil {
				err = cm.Destroy()
			}
		} else {
			err = cgroups.RemovePaths(maps.Clone(dirs))
		}
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("remove cgroup %s: %w", m.name(p), err)
}

// List returns the pods that have a group.
func (m *Manager) List() ([]types.UID, error) {
	seen := map[types.UID]bool{}
	for _, class := range classes {
		dirs := m.paths(resources.QoSCgroup(class))
		for _, dir := range dirs {
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("list the cgroups of QoS class %s: %w", class, err)
			}
			for _, e := range entries {
				if uid, ok := m.uidOf(e.Name(), class); ok {
					seen[uid] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

func (m *Manager) uidOf(name string, class corev1.PodQOSClass) (types.UID, bool) {
	if m.systemd {
		rest, ok := strings.CutPrefix(name, strings.TrimSuffix(m.name(resources.QoSCgroup(class)), ".slice")+"-pod")
		uid, slice := strings.CutSuffix(rest, ".slice")
		return types.UID(strings.ReplaceAll(uid, "_", "-")), ok && slice
	}
	uid, ok := strings.CutPrefix(name, "pod")
	return types.UID(uid), ok
}

// DropRoot removes the node's groups when nothing is left in them, for tests and
// for a node that leaves its machine.
func (m *Manager) DropRoot() error {
	var errs []error
	for _, class := range classes {
		cm, err := m.group(resources.QoSCgroup(class), m.paths(resources.QoSCgroup(class)))
		if err == nil {
			err = cm.Destroy()
		}
		errs = append(errs, err)
	}
	for _, base := range m.bases {
		if len(m.root) > 0 {
			errs = append(errs, cgroups.RemovePath(filepath.Dir(base)))
		}
	}
	return errors.Join(errs...)
}
