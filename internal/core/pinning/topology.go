// Package pinning decides which CPUs and which NUMA nodes the containers of a pod get: the static policies of the
// kubelet's CPU manager and memory manager, and the topology manager that aligns them with devices. node/pinning
// drives it. Everything is a function of its arguments; one goroutine at a time may use a State.
//
// Contract: S10 in docs/spec/storage-and-node.md.
package pinning

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"
)

// CPU is one logical CPU of the machine, and what it shares with others.
type CPU struct {
	ID     int
	Core   int // the lowest ID among the CPUs of its core
	Cache  int // its last-level cache, unique on the machine
	Socket int
	Node   int // NUMA node
}

// Node is one NUMA node.
type Node struct {
	ID        int
	Memory    uint64                         // bytes
	HugePages map[corev1.ResourceName]uint64 // bytes set aside, by hugepages-SIZE
	Distances []uint64                       // to each node, in the order of Topology.Nodes; none: unknown
}

// Topology is the machine. Both lists are in ascending order of IDs.
type Topology struct {
	CPUs  []CPU
	Nodes []Node
}

// level is a kind of group of CPUs.
type level func(CPU) int

func byCore(c CPU) int   { return c.Core }
func byCache(c CPU) int  { return c.Cache }
func bySocket(c CPU) int { return c.Socket }
func byNode(c CPU) int   { return c.Node }

// All returns the CPUs of the machine.
func (t *Topology) All() cpuset.CPUSet {
	ids := make([]int, 0, len(t.CPUs))
	for _, c := range t.CPUs {
		ids = append(ids, c.ID)
	}
	return cpuset.New(ids...)
}

// in returns the CPUs of the groups.
func (t *Topology) in(of level, groups ...int) cpuset.CPUSet {
	var ids []int
	for _, c := range t.CPUs {
		if slices.Contains(groups, of(c)) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// groups returns the IDs of the groups that have one of the CPUs, ascending.
func (t *Topology) groups(of level, cpus cpuset.CPUSet) []int {
	var ids []int
	for _, c := range t.CPUs {
		if cpus.Contains(c.ID) {
			ids = append(ids, of(c))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// each returns the average number of CPUs of a group, rounded down; 0 without CPUs.
func (t *Topology) each(of level) int {
	n := len(t.groups(of, t.All()))
	if n == 0 {
		return 0
	}
	return len(t.CPUs) / n
}

// siblings returns the CPUs with all those that share a core with one of them.
func (t *Topology) siblings(cpus cpuset.CPUSet) cpuset.CPUSet {
	return t.in(byCore, t.groups(byCore, cpus)...)
}

// cpuNodes returns the NUMA nodes that have CPUs.
func (t *Topology) cpuNodes() []int { return t.groups(byNode, t.All()) }

// Mask is a set of NUMA nodes, one bit for each.
type Mask uint64

// maxNode is the highest ID of a NUMA node that a Mask holds.
const maxNode = 63

// MaskOf returns the set of these nodes. IDs above maxNode are left out.
func MaskOf(nodes ...int) (m Mask) {
	for _, n := range nodes {
		if n >= 0 && n <= maxNode {
			m |= 1 << n
		}
	}
	return m
}

// Has reports whether the node is in the set.
func (m Mask) Has(node int) bool { return node >= 0 && node <= maxNode && m&(1<<node) != 0 }

// Count is how many nodes there are.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Nodes returns the IDs, ascending.
func (m Mask) Nodes() []int {
	var nodes []int
	for rest := uint64(m); rest != 0; rest &= rest - 1 {
		nodes = append(nodes, bits.TrailingZeros64(rest))
	}
	return nodes
}

// narrower reports whether m has fewer nodes, or as many and lower ones.
func (m Mask) narrower(than Mask) bool {
	if a, b := m.Count(), than.Count(); a != b {
		return a < b
	}
	return m < than
}

// subsets calls visit for each set of the nodes that is not empty, smaller ones first.
func subsets(nodes []int, visit func(Mask)) {
	for size := 1; size <= len(nodes); size++ {
		combinations(nodes, size, func(some []int) bool { visit(MaskOf(some...)); return true })
	}
}

// combinations calls visit for each selection of size of the ids, in their order, until it returns false. visit may
// keep the slice.
func combinations(ids []int, size int, visit func([]int) bool) {
	at := make([]int, size)
	for i := range at {
		at[i] = i
	}
	for size > 0 && size <= len(ids) {
		some := make([]int, size)
		for i, j := range at {
			some[i] = ids[j]
		}
		if !visit(some) {
			return
		}
		i := size - 1
		for i >= 0 && at[i] == len(ids)-size+i {
			i--
		}
		if i < 0 {
			break
		}
		at[i]++
		for j := i + 1; j < size; j++ {
			at[j] = at[j-1] + 1
		}
	}
}

// maxCPU is the highest ID of a CPU: more than any kernel is built for.
const maxCPU = 1<<14 - 1

// ParseCPUs reads a list of CPUs as the kernel writes it: "0-3,7". It refuses IDs above maxCPU before it makes a set.
func ParseCPUs(list string) (cpuset.CPUSet, error) {
	list = strings.TrimSpace(list)
	if list == "" {
		return cpuset.New(), nil
	}
	var ids []int
	for item := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(item, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 31)
		last, err2 := strconv.ParseUint(to, 10, 31)
		if err = cmp.Or(err, err2); err != nil || first > last || last > maxCPU || len(ids) > maxCPU {
			return cpuset.New(), fmt.Errorf("%.64q is not a list of CPUs, such as \"0-3,7\"", list)
		}
		for id := first; id <= last; id++ {
			ids = append(ids, int(id))
		}
	}
	return cpuset.New(ids...), nil
}
