package pinning

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"carob/internal/core/resources"
)

// State holds the CPUs and the memory that are assigned to containers.
type State struct {
	Shared cpuset.CPUSet // CPUs of all containers without exclusive CPUs
	CPUs   map[types.UID]map[string]cpuset.CPUSet
	Memory map[types.UID]map[string][]Block
	Nodes  map[int]*NodeMemory
}

func (s *State) clone() *State {
	c := &State{Shared: s.Shared, CPUs: make(map[types.UID]map[string]cpuset.CPUSet, len(s.CPUs)),
		Memory: make(map[types.UID]map[string][]Block, len(s.Memory)), Nodes: make(map[int]*NodeMemory, len(s.Nodes))}
	for uid, of := range s.CPUs { // any order: a map becomes a map
		c.CPUs[uid] = maps.Clone(of)
	}
	for uid, of := range s.Memory { // any order: a map becomes a map
		c.Memory[uid] = make(map[string][]Block, len(of))
		for name, blocks := range of { // any order: a map becomes a map
			c.Memory[uid][name] = slices.Clone(blocks)
		}
	}
	for id, n := range s.Nodes { // any order: a map becomes a map
		c.Nodes[id] = n.clone()
	}
	return c
}

func (s *State) setCPUs(uid types.UID, container string, cpus cpuset.CPUSet) {
	if s.CPUs[uid] == nil {
		s.CPUs[uid] = map[string]cpuset.CPUSet{}
	}
	s.CPUs[uid][container] = cpus
}

func (s *State) setMemory(uid types.UID, container string, blocks []Block) {
	if s.Memory[uid] == nil {
		s.Memory[uid] = map[string][]Block{}
	}
	s.Memory[uid][container] = blocks
}

// Manager holds the policies of one machine and their state.
type Manager struct {
	cfg      Config
	topology *Topology
	options  CPUOptions
	reserved cpuset.CPUSet                          // CPUs that no container gets exclusively
	kept     map[int]map[corev1.ResourceName]uint64 // memory of nodes that no container gets
	merger   merger
	state    *State
	// hints holds the preferred NUMA nodes of a pod's devices, by container.
	hints map[types.UID]map[string]Hint
}

// New returns a Manager without assignments. The error, with upstream's message, is the reason why the policies
// cannot work on this machine.
func New(t *Topology, cfg Config) (*Manager, error) {
	cfg.setDefaults()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, topology: t, hints: map[types.UID]map[string]Hint{}, reserved: cpuset.New()}
	var err error
	if m.options, err = ParseCPUOptions(cfg.CPUPolicy, cfg.CPUOptions); err != nil {
		return nil, err
	}
	o, err := ParseTopologyOptions(cfg.Policy, cfg.Scope, cfg.PolicyOptions)
	if err != nil {
		return nil, err
	}
	m.merger = merger{policy: cfg.Policy, closest: o.Closest, nodes: t.Nodes}
	if err := m.checkNodes(o); err != nil {
		return nil, err
	}
	m.state = &State{Shared: t.All(), CPUs: map[types.UID]map[string]cpuset.CPUSet{},
		Memory: map[types.UID]map[string][]Block{}, Nodes: map[int]*NodeMemory{}}
	if m.pinsCPUs() {
		if m.reserved, err = cfg.reservedCPUs(t, m.options); err != nil {
			return nil, err
		}
		m.state.Shared = m.usable()
	}
	if m.pinsMemory() {
		if m.kept, err = cfg.reservedMemory(t); err != nil {
			return nil, err
		}
		m.state.Nodes = m.idle()
	}
	return m, nil
}

// checkNodes refuses machines with too many NUMA nodes, because each subset of them is tried.
func (m *Manager) checkNodes(o TopologyOptions) error {
	most := len(m.topology.Nodes)
	switch {
	case m.cfg.Policy != TopologyNone:
		most = o.MaxNodes
	case m.pinsMemory() || m.pinsCPUs():
		most = maxNodesMemory
	}
	if len(m.topology.Nodes) > most {
		return fmt.Errorf("unsupported on machines with more than %v NUMA Nodes", most)
	}
	for _, n := range m.topology.Nodes {
		if n.ID > maxNode {
			return fmt.Errorf("NUMA node %d: bit number must be in range 0-63", n.ID)
		}
		if o.Closest && len(n.Distances) != len(m.topology.Nodes) {
			return errors.New("cannot discover NUMA topology: the distances between NUMA nodes are not known")
		}
	}
	return nil
}

func (m *Manager) pinsCPUs() bool   { return m.cfg.CPUPolicy == NameStatic }
func (m *Manager) pinsMemory() bool { return m.cfg.MemoryPolicy == NameStaticMemory }

// usable returns the CPUs that containers may run on.
func (m *Manager) usable() cpuset.CPUSet {
	if m.options.Strict {
		return m.topology.All().Difference(m.reserved)
	}
	return m.topology.All()
}

// State returns the state to checkpoint. It must not be changed, and is valid until the next call of a method that
// changes the state.
func (m *Manager) State() *State { return m.state }

// RestoreCPUs restores the checkpointed CPUs; the error is the reason why they are not valid
// (S10.12).
func (m *Manager) RestoreCPUs(shared cpuset.CPUSet, cpus map[types.UID]map[string]cpuset.CPUSet) error {
	switch {
	case !shared.IsEmpty():
	case len(cpus) == 0:
		return nil
	case !m.options.Strict: // without strict reservation, the reserved CPUs are always shared
		return errors.New("default cpuset cannot be empty")
	}
	if both := m.reserved.Intersection(shared); m.options.Strict && !both.IsEmpty() {
		return fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", both.String(),
			shared.String())
	} else if !m.options.Strict && !both.Equals(m.reserved) {
		return fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", m.reserved.String(),
			shared.String())
	}
	known, owner := shared, map[int]types.UID{}
	for _, uid := range slices.Sorted(maps.Keys(cpus)) {
		for _, container := range slices.Sorted(maps.Keys(cpus[uid])) {
			set := cpus[uid][container]
			if !shared.Intersection(set).IsEmpty() {
				return fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", uid, container,
					set.String(), shared.String())
			}
			for _, cpu := range set.List() {
				if other, taken := owner[cpu]; taken && other != uid {
					return fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with that of pod %s", uid, container,
						set.String(), other)
				}
				owner[cpu] = uid
			}
			known = known.Union(set)
		}
	}
	if all := m.usable(); !known.Equals(all) {
		return fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", all.String(),
			known.String())
	}
	m.state.Shared, m.state.CPUs = shared, cpus
	if m.state.CPUs == nil {
		m.state.CPUs = map[types.UID]map[string]cpuset.CPUSet{}
	}
	return nil
}

// RestoreMemory restores the checkpointed memory.
func (m *Manager) RestoreMemory(nodes map[int]*NodeMemory, memory map[types.UID]map[string][]Block) error {
	s := &State{Nodes: nodes, Memory: memory}
	for _, n := range nodes { // any order: each by itself
		if n != nil {
			slices.Sort(n.Cells)
		}
	}
	for _, containers := range memory { // any order: each by itself
		for _, blocks := range containers {
			for i := range blocks {
				slices.Sort(blocks[i].Nodes)
			}
		}
	}
	if err := m.checkMemory(s); err != nil {
		return err
	}
	if s.Memory == nil {
		s.Memory = map[types.UID]map[string][]Block{}
	}
	m.state.Nodes, m.state.Memory = s.Nodes, s.Memory
	return nil
}

// Refusal is the reason why a pod cannot run on this node.
type Refusal struct{ Reason, Message string }

// The reasons (S10.10, S10.33).
const (
	ReasonSMT        = "SMTAlignmentError"
	ReasonTopology   = "TopologyAffinityError"
	ReasonUnexpected = "UnexpectedAdmissionError"
)

func refusal(err error) *Refusal {
	if smt := (smtError{}); errors.As(err, &smt) {
		return &Refusal{Reason: ReasonSMT, Message: err.Error()}
	}
	return &Refusal{Reason: ReasonUnexpected,
		Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

func affinityRefusal() *Refusal {
	return &Refusal{Reason: ReasonTopology, Message: "Resources cannot be allocated with Topology locality"}
}

// DeviceHints returns the hints for the devices of a container, or of a pod when c is nil. nodes
// are those of the machine.
type DeviceHints func(pod *corev1.Pod, c *corev1.Container, nodes Mask) Hints

// Admit assigns CPUs and memory to the containers of a pod, or refuses the pod (S10.34). A pod that has them
// already keeps them, even if the policy has changed. changed: the state has to be checkpointed.
func (m *Manager) Admit(pod *corev1.Pod, devices DeviceHints) (changed bool, refused *Refusal) {
	if devices == nil {
		devices = func(*corev1.Pod, *corev1.Container, Mask) Hints { return nil }
	}
	a := &admission{Manager: m, pod: pod, devices: devices, state: m.state.clone(), again: reusable{},
		spare: cpuset.New(), hints: map[string]Hint{}}
	a.keepsCPUs = !m.pinsCPUs() || m.hasCPUs(pod)
	a.keepsMemory = !m.pinsMemory() || len(m.state.Memory[pod.UID]) > 0
	if refused := a.run(); refused != nil {
		if !a.placed() {
			return false, refused
		}
	}
	if m.cfg.Policy != TopologyNone {
		m.hints[pod.UID] = a.hints
	}
	if a.changed {
		m.state = a.state
	}
	return a.changed, nil
}

// hasCPUs reports whether each container of the pod has its exclusive CPUs.
func (m *Manager) hasCPUs(pod *corev1.Pod) bool {
	for c := range containers(pod) {
		if _, has := m.state.CPUs[pod.UID][c.Name]; !has && wholeCPUs(pod, c) > 0 {
			return false
		}
	}
	return true
}

// containers returns the containers of a pod that get resources, init containers first.
func containers(pod *corev1.Pod) func(func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// admission is the admission of one pod.
type admission struct {
	*Manager
	pod     *corev1.Pod
	devices DeviceHints
	state   *State        // the new state of the manager
	again   reusable      // memory of ended init containers
	spare   cpuset.CPUSet // CPUs of ended init containers
	hints   map[string]Hint
	// keeps…: the pod already has the resources that it needs.
	keepsCPUs, keepsMemory bool
	changed                bool
}

// placed reports whether the pod already has resources, so that it is not refused.
func (a *admission) placed() bool {
	return a.keepsCPUs && a.keepsMemory && (len(a.state.CPUs[a.pod.UID]) > 0 || len(a.state.Memory[a.pod.UID]) > 0)
}

func (a *admission) run() *Refusal {
	hint := Hint{Any: true} // of the policy none
	if a.cfg.Policy != TopologyNone && a.cfg.Scope == ScopePod {
		var ok bool
		hint, ok = a.merger.merge([]Hints{a.cpus(nil), a.memory(nil), a.devices(a.pod, nil, a.Nodes())})
		if !ok && !a.placed() {
			return affinityRefusal()
		}
	}
	for c := range containers(a.pod) {
		if a.cfg.Policy != TopologyNone && a.cfg.Scope == ScopeContainer {
			var ok bool
			hint, ok = a.merger.merge([]Hints{a.cpus(c), a.memory(c), a.devices(a.pod, c, a.Nodes())})
			if !ok && !a.placed() {
				return affinityRefusal()
			}
		}
		a.hints[c.Name] = hint
		if err := a.allocate(c, hint); err != nil {
			return refusal(err)
		}
	}
	return nil
}

func (a *admission) allocate(c *corev1.Container, hint Hint) error {
	if count := wholeCPUs(a.pod, c); count > 0 && a.pinsCPUs() {
		cpus, has := a.state.CPUs[a.pod.UID][c.Name]
		if !has {
			var err error
			if cpus, err = a.allocateCPUs(a.state, count, hint, a.spare); err != nil {
				return err
			}
			a.state.setCPUs(a.pod.UID, c.Name, cpus)
			a.changed = true
		}
		if isInit(a.pod, c) {
			a.spare = a.spare.Union(cpus)
		} else {
			a.spare = a.spare.Difference(cpus)
		}
	}
	if a.keepsMemory {
		return nil
	}
	a.changed = true
	return a.allocateMemory(a.state, a.pod, c, hint, a.again)
}

// cpus returns the hints for the CPUs of a container; nil: of the pod.
func (a *admission) cpus(c *corev1.Container) Hints {
	if !a.pinsCPUs() {
		return nil
	}
	count, own := wholeOfPod(a.pod), cpuset.New()
	if c != nil {
		count, own = wholeCPUs(a.pod, c), a.state.CPUs[a.pod.UID][c.Name]
	} else {
		for _, cpus := range a.state.CPUs[a.pod.UID] { // any order: a union
			own = own.Union(cpus)
		}
	}
	if count == 0 {
		return nil
	}
	free := a.free(a.state)
	spare := a.spare
	switch {
	case own.Size() == count:
		free, spare = own, cpuset.New()
	case c == nil:
		spare = spare.Union(own)
	}
	if a.options.FullCores && own.IsEmpty() {
		free = a.wholeCores(free.Union(spare)).Difference(spare)
	}
	return Hints{string(corev1.ResourceCPU): a.cpuHints(free, spare, count)}
}

// memory returns the hints for the memory of a container; nil: of the pod.
func (a *admission) memory(c *corev1.Container) Hints {
	if !a.pinsMemory() {
		return nil
	}
	want := memoryOfPod(a.pod)
	if c != nil {
		want = memoryOf(a.pod, c)
	}
	if len(want) == 0 {
		return nil
	}
	hints := Hints{}
	if a.keepsMemory {
		for name, blocks := range a.state.Memory[a.pod.UID] { // any order: mostly they have the same nodes
			for _, b := range blocks {
				if (c == nil || c.Name == name) && hints[string(b.Type)] == nil {
					hints[string(b.Type)] = []Hint{{Mask: MaskOf(b.Nodes...), Preferred: true}}
				}
			}
		}
		return hints
	}
	list := a.memoryHints(a.state, want, a.again)
	for name := range want { // any order: a map
		hints[string(name)] = list
	}
	return hints
}

// Release frees all resources of a pod that has ended; false: it had none.
func (m *Manager) Release(uid types.UID) bool {
	delete(m.hints, uid)
	cpus, memory := m.state.CPUs[uid], m.state.Memory[uid]
	if cpus == nil && memory == nil {
		return false
	}
	s := m.state.clone()
	delete(s.CPUs, uid)
	delete(s.Memory, uid)
	for _, set := range cpus { // any order: a union
		s.Shared = s.Shared.Union(set)
	}
	for _, blocks := range memory { // any order: sums
		s.giveBack(blocks)
	}
	m.state = s
	return true
}

// Starts records that a container starts: the memory of the init containers before it becomes free (S10.6). False:
// nothing changed.
func (m *Manager) Starts(pod *corev1.Pod, container string) bool {
	var ended []string
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			break
		}
		if _, has := m.state.Memory[pod.UID][c.Name]; has && !resources.IsSidecar(c) {
			ended = append(ended, c.Name)
		}
	}
	if ended == nil {
		return false
	}
	s := m.state.clone()
	for _, name := range ended {
		s.giveBack(s.Memory[pod.UID][name])
		delete(s.Memory[pod.UID], name)
	}
	m.state = s
	return true
}

// Holds reports whether a pod has resources to release.
func (m *Manager) Holds(uid types.UID) bool {
	return m.state.CPUs[uid] != nil || m.state.Memory[uid] != nil || m.hints[uid] != nil
}

// Pods returns the pods with resources.
func (m *Manager) Pods() []types.UID {
	uids := slices.Concat(slices.Sorted(maps.Keys(m.state.CPUs)), slices.Sorted(maps.Keys(m.state.Memory)),
		slices.Sorted(maps.Keys(m.hints)))
	slices.Sort(uids)
	return slices.Compact(uids)
}

// CPUs returns the CPUs of a container, and whether they are exclusive. Without a static policy they are empty: all.
func (m *Manager) CPUs(uid types.UID, container string) (cpus cpuset.CPUSet, own bool) {
	if !m.pinsCPUs() {
		return cpuset.New(), false
	}
	if cpus, own = m.state.CPUs[uid][container]; own {
		return cpus, true
	}
	if m.state.Shared.IsEmpty() {
		return m.reserved, false // all others are assigned
	}
	return m.state.Shared, false
}

// OwnCPUs reports whether a container of the pod has exclusive CPUs.
func (m *Manager) OwnCPUs(uid types.UID) bool { return len(m.state.CPUs[uid]) > 0 }

// Memory returns the memory of a container; nil: it may use all nodes.
func (m *Manager) Memory(uid types.UID, container string) []Block {
	return m.state.Memory[uid][container]
}

// MemoryNodes returns the nodes of a container's memory; none: all.
func (m *Manager) MemoryNodes(uid types.UID, container string) []int {
	var mask Mask
	for _, b := range m.Memory(uid, container) {
		mask |= MaskOf(b.Nodes...)
	}
	return mask.Nodes()
}

// Nodes returns all NUMA nodes of the machine.
func (m *Manager) Nodes() Mask { return m.merger.all() }

// Near returns the preferred nodes for the devices of a container; ok is false if it has no preference.
func (m *Manager) Near(uid types.UID, container string) (nodes Mask, ok bool) {
	h, has := m.hints[uid][container]
	return h.Mask, has && !h.Any
}

// Allocatable returns the CPUs that containers can get exclusively, and the memory of each node; none without a
// static policy.
func (m *Manager) Allocatable() (cpus cpuset.CPUSet, memory []Block) {
	if m.pinsCPUs() {
		cpus = m.topology.All().Difference(m.reserved)
	}
	for _, id := range slices.Sorted(maps.Keys(m.state.Nodes)) {
		tables := m.state.Nodes[id].Memory
		for _, name := range slices.Sorted(maps.Keys(tables)) {
			if n := tables[name].Allocatable; n > 0 {
				memory = append(memory, Block{Nodes: []int{id}, Type: name, Size: n})
			}
		}
	}
	return cpus, memory
}

// AllowsResize returns why the CPU or memory of a Guaranteed pod can't be changed in place; empty: it can
// (S10.7).
func (m *Manager) AllowsResize(pod *corev1.Pod, held *corev1.Pod) string {
	if resources.QoS(pod) != corev1.PodQOSGuaranteed {
		return ""
	}
	differs := func(name corev1.ResourceName) bool {
		old := map[string]corev1.Container{}
		for c := range containers(held) {
			old[c.Name] = *c
		}
		for c := range containers(pod) {
			if now, was := c.Resources.Requests[name], old[c.Name].Resources.Requests[name]; now.Cmp(was) != 0 {
				return true
			}
		}
		return false
	}
	switch {
	case m.pinsCPUs() && differs(corev1.ResourceCPU):
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", NameStatic)
	case m.pinsMemory() && differs(corev1.ResourceMemory):
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", NameStaticMemory)
	}
	return ""
}

// Usage returns the number of shared CPUs without the reserved ones, and the number and NUMA nodes of exclusive
// ones.
func (m *Manager) Usage() (shared, own int, byNode map[int]int) {
	owned := cpuset.New()
	for _, of := range m.state.CPUs { // any order: a union
		for _, cpus := range of {
			owned = owned.Union(cpus)
		}
	}
	byNode = map[int]int{}
	for _, c := range m.topology.CPUs {
		if owned.Contains(c.ID) {
			byNode[c.Node]++
		}
	}
	return m.free(m.state).Size(), owned.Size(), byNode
}

// Requests reports whether a container of the pod requests exclusive CPUs or memory that a policy assigns.
func (m *Manager) Requests(pod *corev1.Pod) (cpus, memory bool) {
	for c := range containers(pod) {
		cpus = cpus || m.pinsCPUs() && wholeCPUs(pod, c) > 0
		memory = memory || m.pinsMemory() && len(memoryOf(pod, c)) > 0
	}
	return cpus, memory
}
