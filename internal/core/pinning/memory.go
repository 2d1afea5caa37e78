package pinning

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Block is memory of one type that a container has of a set of NUMA nodes.
type Block struct {
	Nodes []int               `json:"numaAffinity"` // ascending
	Type  corev1.ResourceName `json:"type"`         // memory, hugepages-SIZE
	Size  uint64              `json:"size"`         // bytes
}

// Table holds the amounts of one type of memory of one NUMA node, in bytes.
type Table struct {
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"` // by containers
	Free           uint64 `json:"free"`
}

// NodeMemory is the memory of one NUMA node.
type NodeMemory struct {
	Assignments int                            `json:"numberOfAssignments"`
	Memory      map[corev1.ResourceName]*Table `json:"memoryMap"`
	// Cells are the node and those that it forms a group with: a container has memory of all of them. A node of a
	// group serves no container by itself, and the reverse (S10.22).
	Cells []int `json:"cells"`
}

func (n *NodeMemory) clone() *NodeMemory {
	c := &NodeMemory{Assignments: n.Assignments, Cells: slices.Clone(n.Cells),
		Memory: make(map[corev1.ResourceName]*Table, len(n.Memory))}
	for name, t := range n.Memory { // any order: a map becomes a map
		c.Memory[name] = new(*t)
	}
	return c
}

// pinsMemory reports whether a resource is memory for which NUMA nodes are chosen.
func pinsMemory(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// amounts holds bytes by type of memory.
type amounts map[corev1.ResourceName]uint64

func (a amounts) types() []corev1.ResourceName { return slices.Sorted(maps.Keys(a)) }

// memoryOf returns the memory that a container requests.
func memoryOf(pod *corev1.Pod, c *corev1.Container) amounts {
	want := amounts{}
	if pinned(pod) {
		for name, q := range c.Resources.Requests { // any order: a map becomes a map
			if pinsMemory(name) {
				want[name] = uint64(max(q.Value(), 0))
			}
		}
	}
	return want
}

// memoryOfPod returns the memory that all containers of a pod need.
func memoryOfPod(pod *corev1.Pod) amounts {
	most, sidecars, rest := amounts{}, amounts{}, amounts{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		for name, n := range memoryOf(pod, c) { // any order: each by itself
			if resources.IsSidecar(c) {
				sidecars[name] += n
			} else {
				most[name] = max(most[name], sidecars[name]+n)
			}
		}
	}
	for i := range pod.Spec.Containers {
		for name, n := range memoryOf(pod, &pod.Spec.Containers[i]) { // any order: sums
			rest[name] += n
		}
	}
	for name := range rest { // any order: each by itself
		rest[name] = max(rest[name]+sidecars[name], most[name])
	}
	return rest
}

// idle is the memory of the machine while no container has any.
func (m *Manager) idle() map[int]*NodeMemory {
	nodes := map[int]*NodeMemory{}
	for _, n := range m.topology.Nodes {
		node := &NodeMemory{Memory: map[corev1.ResourceName]*Table{}, Cells: []int{n.ID}}
		table := func(name corev1.ResourceName, total, setAside uint64) {
			kept := m.kept[n.ID][name]
			usable := total - min(total, kept+setAside)
			node.Memory[name] = &Table{Total: total, SystemReserved: kept, Allocatable: usable, Free: usable}
		}
		var pages uint64
		for name, total := range n.HugePages { // any order: each by itself
			pages += total
			table(name, total, 0)
		}
		table(corev1.ResourceMemory, n.Memory, pages)
		nodes[n.ID] = node
	}
	return nodes
}

// reusable is memory of ended init containers that a pod may use again, by the set of nodes that it is of.
type reusable map[Mask]amounts

// memoryHints returns the sets of NUMA nodes that have enough memory of each type (S10.22).
func (m *Manager) memoryHints(s *State, want amounts, again reusable) []Hint {
	return HintsFor(slices.Sorted(maps.Keys(s.Nodes)), func(mask Mask) (could, can bool) {
		nodes := mask.Nodes()
		free, usable := amounts{}, amounts{}
		for _, id := range nodes {
			for name := range want { // any order: sums
				if t := s.Nodes[id].Memory[name]; t != nil {
					free[name] += t.Free
					usable[name] += t.Allocatable
				}
			}
		}
		for name, n := range want { // any order: all must fit
			if usable[name] < n {
				return false, false
			}
		}
		if m.divided(s, nodes) || len(nodes) == 1 && len(s.Nodes[nodes[0]].Cells) > 1 {
			return true, false
		}
		for name, n := range want { // any order: all must fit
			if free[name]+again[mask][name] < n {
				return true, false
			}
		}
		return true, true
	})
}

// divided reports whether several nodes can't be used together, because one of them is in use by itself or in another
// group.
func (m *Manager) divided(s *State, nodes []int) bool {
	return len(nodes) > 1 && slices.ContainsFunc(nodes, func(id int) bool {
		n := s.Nodes[id]
		return n.Assignments > 0 && (len(n.Cells) == 1 || !slices.Equal(n.Cells, nodes))
	})
}

// The refusals of memory (S10.23).
var (
	errNoNodes    = errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
	errNoDefault  = errors.New("[memorymanager] failed to find the default preferred hint")
	errNoExtended = errors.New("[memorymanager] failed to find the extended preferred hint")
	errExtend     = errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
	errViolates   = errors.New("[memorymanager] preferred hint violates NUMA node allocation")
)

// nodesFor chooses the nodes of a container's memory: those of the hint, if they have enough.
func (m *Manager) nodesFor(s *State, want amounts, hint Hint, again reusable) (Mask, error) {
	preferred := hint.Preferred
	if hint.Any {
		best, ok := narrowest(m.memoryHints(s, want, again), 0)
		switch {
		case !ok:
			return 0, errNoNodes
		case preferred && !best.Preferred:
			return 0, errNoDefault
		}
		hint = best
	}
	if !enough(s, want, hint.Mask) {
		best, ok := narrowest(m.memoryHints(s, want, again), hint.Mask)
		switch {
		case !ok:
			return 0, errExtend
		case preferred && !best.Preferred:
			return 0, errNoExtended
		}
		hint = best
	}
	if m.divided(s, hint.Mask.Nodes()) {
		return 0, errViolates
	}
	return hint.Mask, nil
}

// narrowest is the narrowest hint with all these nodes, a preferred one if there is one.
func narrowest(hints []Hint, with Mask) (best Hint, ok bool) {
	for _, h := range hints {
		if h.Mask&with == with &&
			(!ok || h.Preferred && !best.Preferred || h.Preferred == best.Preferred && h.Mask.narrower(best.Mask)) {
			best, ok = h, true
		}
	}
	return best, ok
}

// enough reports whether the nodes have this much free memory.
func enough(s *State, want amounts, mask Mask) bool {
	for name, n := range want { // any order: all must fit
		var free uint64
		for _, id := range mask.Nodes() {
			if node := s.Nodes[id]; node != nil && node.Memory[name] != nil {
				free += node.Memory[name].Free
			}
		}
		if free < n {
			return false
		}
	}
	return true
}

// allocateMemory assigns memory to a container.
func (m *Manager) allocateMemory(s *State, pod *corev1.Pod, c *corev1.Container, hint Hint, again reusable) error {
	want := memoryOf(pod, c)
	if len(want) == 0 {
		return nil
	}
	mask, err := m.nodesFor(s, want, hint, again)
	if err != nil {
		return err
	}
	var blocks []Block
	for _, name := range want.types() {
		size := want[name]
		blocks = append(blocks, Block{Nodes: mask.Nodes(), Type: name, Size: size})
		s.use(mask.Nodes(), name, size-min(size, again[mask][name]))
	}
	again.settle(mask, blocks, isInit(pod, c))
	s.setMemory(pod.UID, c.Name, blocks)
	s.inherit(pod, c, blocks)
	return nil
}

// settle removes what a container reuses from the reusable memory, or adds the memory of an init container to
// it.
func (r reusable) settle(mask Mask, blocks []Block, init bool) {
	if r[mask] == nil {
		r[mask] = amounts{}
	}
	for _, b := range blocks {
		if init {
			r[mask][b.Type] = max(r[mask][b.Type], b.Size)
		} else {
			r[mask][b.Type] -= min(r[mask][b.Type], b.Size)
		}
	}
}

// isInit reports whether a container ends before those after it start.
func isInit(pod *corev1.Pod, c *corev1.Container) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return !resources.IsSidecar(&pod.Spec.InitContainers[i])
		}
	}
	return false
}

// use takes memory of nodes, of lower ones first.
func (s *State) use(nodes []int, name corev1.ResourceName, size uint64) {
	for _, id := range nodes {
		n := s.Nodes[id]
		n.Assignments++
		n.Cells = slices.Clone(nodes)
		if t := n.Memory[name]; t != nil {
			some := min(t.Free, size)
			t.Free, t.Reserved, size = t.Free-some, t.Reserved+some, size-some
		}
	}
}

// giveBack is the reverse of use.
func (s *State) giveBack(blocks []Block) {
	for _, b := range blocks {
		size := b.Size
		for _, id := range b.Nodes {
			n := s.Nodes[id]
			if n == nil {
				continue
			}
			if n.Assignments--; n.Assignments == 0 {
				n.Cells = []int{id}
			}
			if t := n.Memory[b.Type]; t != nil {
				some := min(t.Reserved, size)
				t.Free, t.Reserved, size = t.Free+some, t.Reserved-some, size-some
			}
		}
	}
}

// inherit moves memory that c reuses from the init containers before it to c, so that nothing is counted
// twice.
func (s *State) inherit(pod *corev1.Pod, c *corev1.Container, blocks []Block) {
	for _, b := range blocks {
		left := b.Size
		for i := range pod.Spec.InitContainers {
			init := &pod.Spec.InitContainers[i]
			if init.Name == c.Name {
				break
			}
			if resources.IsSidecar(init) {
				continue
			}
			theirs := s.Memory[pod.UID][init.Name]
			for j := range theirs {
				if t := &theirs[j]; t.Type == b.Type && slices.Equal(t.Nodes, b.Nodes) {
					some := min(t.Size, left)
					t.Size, left = t.Size-some, left-some
				}
			}
		}
	}
}

// checkMemory validates memory assignments from a checkpoint file (S10.24).
func (m *Manager) checkMemory(s *State) error {
	if len(s.Nodes) == 0 {
		if len(s.Memory) > 0 {
			return errors.New("[memorymanager] machine state can not be empty when it has memory assignments")
		}
		s.Nodes = m.idle()
		return nil
	}
	should := &State{Nodes: m.idle()}
	for uid, containers := range s.Memory { // any order: sums, and any error will do
		for name, blocks := range containers {
			for _, b := range blocks {
				for _, id := range b.Nodes {
					node := should.Nodes[id]
					if node == nil {
						return fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses the NUMA that "+
							"does not exist", uid, name)
					}
					if node.Memory[b.Type] == nil {
						return fmt.Errorf("[memorymanager] (pod: %s, container: %s) the memory assignment uses memory resource "+
							"that does not exist", uid, name)
					}
				}
				should.use(b.Nodes, b.Type, b.Size)
			}
		}
	}
	if !s.sameMemory(should) {
		return errors.New("[memorymanager] the expected machine state is different from the real one")
	}
	return nil
}

// sameMemory compares the amounts of nodes; of a group, only the sums.
func (s *State) sameMemory(other *State) bool {
	if len(s.Nodes) != len(other.Nodes) {
		return false
	}
	for id, a := range s.Nodes { // any order: all must be equal
		b := other.Nodes[id]
		if a == nil || b == nil || a.Assignments != b.Assignments || !slices.Equal(a.Cells, b.Cells) ||
			len(a.Memory) != len(b.Memory) {
			return false
		}
		for name, ta := range a.Memory { // any order: all must be equal
			tb := b.Memory[name]
			if ta == nil || tb == nil || ta.Total != tb.Total || ta.SystemReserved != tb.SystemReserved ||
				ta.Allocatable != tb.Allocatable {
				return false
			}
			fa, ra := s.together(a.Cells, name)
			if fb, rb := other.together(b.Cells, name); fa != fb || ra != rb {
				return false
			}
		}
	}
	return true
}

func (s *State) together(nodes []int, name corev1.ResourceName) (free, reserved uint64) {
	for _, id := range nodes {
		if n := s.Nodes[id]; n != nil && n.Memory[name] != nil {
			free += n.Memory[name].Free
			reserved += n.Memory[name].Reserved
		}
	}
	return free, reserved
}
