package pinning

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// Names of policies, as in configuration and state files.
const (
	NameNone         = "none"
	NameStatic       = "static"
	NameNoneMemory   = "None"
	NameStaticMemory = "Static"
	ScopeContainer   = "container"
	ScopePod         = "pod"
)

// maxNodes is how many NUMA nodes topology policies support, unless an option raises it, because they try each
// subset of the nodes.
const maxNodes = 8

// maxNodesMemory is the same for the memory manager.
const maxNodesMemory = 16

// CPUOptions are the options of the CPU manager's static policy (S10.2).
type CPUOptions struct {
	FullCores   bool // full-pcpus-only
	SpreadNodes bool // distribute-cpus-across-numa
	Strict      bool // strict-cpu-reservation
	Caches      bool // prefer-align-cpus-by-uncorecache
}

// ParseCPUOptions reads the options of a CPU policy; errors have upstream's messages (S10.3).
func ParseCPUOptions(policy string, values map[string]string) (CPUOptions, error) {
	var o CPUOptions
	switch policy {
	case NameNone:
		if len(values) > 0 {
			return o, fmt.Errorf("new none policy error: None policy: received unsupported options=%v", values)
		}
		return o, nil
	case NameStatic:
	default:
		return o, fmt.Errorf("unknown policy: \"%s\"", policy)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		var to *bool
		switch name {
		case "full-pcpus-only":
			to = &o.FullCores
		case "distribute-cpus-across-numa":
			to = &o.SpreadNodes
		case "strict-cpu-reservation":
			to = &o.Strict
		case "prefer-align-cpus-by-uncorecache":
			to = &o.Caches
		case "align-by-socket", "distribute-cpus-across-cores":
			//nolint:staticcheck // upstream's words
			return o, fmt.Errorf("CPU Manager Policy Alpha-level Options not enabled, but option %q provided", name)
		default:
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		}
		value, err := strconv.ParseBool(values[name])
		if err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
		*to = value
	}
	if o.Caches && o.SpreadNodes {
		return o, fmt.Errorf("static policy options %s and %s can not be used at the same time",
			"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa")
	}
	return o, nil
}

// TopologyOptions are the options of the topology manager.
type TopologyOptions struct {
	Closest  bool // prefer-closest-numa-nodes
	MaxNodes int  // max-allowable-numa-nodes
}

// ParseTopologyOptions reads policy, scope, and options of the topology manager (S10.30).
func ParseTopologyOptions(policy TopologyPolicy, scope string, values map[string]string) (TopologyOptions, error) {
	o := TopologyOptions{MaxNodes: maxNodes}
	switch policy {
	case TopologyNone:
		return o, nil
	case TopologyBestEffort, TopologyRestricted, TopologySingleNode:
	default:
		return o, fmt.Errorf("unknown policy: \"%s\"", policy)
	}
	if scope != ScopeContainer && scope != ScopePod {
		return o, fmt.Errorf("unknown scope: \"%s\"", scope)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		var err error
		switch name {
		case "prefer-closest-numa-nodes":
			if o.Closest, err = strconv.ParseBool(value); err != nil {
				return o, fmt.Errorf("bad value for option %q: %w", name, err)
			}
		case "max-allowable-numa-nodes":
			if o.MaxNodes, err = strconv.Atoi(value); err != nil {
				return o, fmt.Errorf("unable to convert policy option to integer %q: %w", name, err)
			}
			if o.MaxNodes < maxNodes {
				return o, fmt.Errorf("the minimum value of %q should not be less than %v", name, maxNodes)
			}
		default:
			return o, fmt.Errorf("unknown Topology Manager Policy option: %q", name)
		}
	}
	return o, nil
}

// Reservation is memory of one NUMA node that is reserved from pods.
type Reservation struct {
	Node   int
	Limits corev1.ResourceList // memory, hugepages-SIZE
}

// Config configures the policies.
type Config struct {
	CPUPolicy      string // NameNone, NameStatic; empty: none
	CPUOptions     map[string]string
	ReservedCPUs   cpuset.CPUSet // empty: the lowest, in the number of Reserved
	MemoryPolicy   string        // NameNoneMemory, NameStaticMemory; empty: none
	ReservedMemory []Reservation
	Policy         TopologyPolicy // of the topology manager; empty: none
	Scope          string         // ScopeContainer, ScopePod; empty: container
	PolicyOptions  map[string]string
	// Reserved is reserved from pods: CPU, memory with the hard eviction threshold, huge pages.
	Reserved corev1.ResourceList
}

// Pins reports whether anything is configured that assigns exclusive CPUs or NUMA nodes to
// containers.
func (c *Config) Pins() bool {
	return c.CPUPolicy == NameStatic || c.MemoryPolicy == NameStaticMemory || c.Policy != TopologyNone && c.Policy != ""
}

func (c *Config) setDefaults() {
	if c.CPUPolicy == "" {
		c.CPUPolicy = NameNone
	}
	if c.MemoryPolicy == "" {
		c.MemoryPolicy = NameNoneMemory
	}
	if c.Policy == "" {
		c.Policy = TopologyNone
	}
	if c.Scope == "" {
		c.Scope = ScopeContainer
	}
}

// Check returns errors of the policies and options that do not depend on the machine.
func (c Config) Check() error {
	c.setDefaults()
	if _, err := ParseCPUOptions(c.CPUPolicy, c.CPUOptions); err != nil {
		return err
	}
	if p := c.MemoryPolicy; p != NameNoneMemory && p != NameStaticMemory {
		if p == "BestEffort" {
			return fmt.Errorf("policy %q is not available for platform %q", p, "linux")
		}
		return fmt.Errorf("unknown policy: %q", p)
	}
	_, err := ParseTopologyOptions(c.Policy, c.Scope, c.PolicyOptions)
	return err
}

// reservedCPUs returns the CPUs that no container gets exclusively (S10.4).
func (c *Config) reservedCPUs(t *Topology, o CPUOptions) (cpuset.CPUSet, error) {
	q, ok := c.Reserved[corev1.ResourceCPU]
	if c.ReservedCPUs.Size() > 0 {
		q, ok = *resource.NewQuantity(int64(c.ReservedCPUs.Size()), resource.DecimalSI), true
	}
	switch {
	case !ok:
		return cpuset.New(), fmt.Errorf("[cpumanager] unable to determine reserved CPU resources for static policy")
	case q.IsZero():
		return cpuset.New(), fmt.Errorf(
			"[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")
	}
	count := int((q.MilliValue() + 999) / 1000)
	reserved := c.ReservedCPUs
	if reserved.IsEmpty() {
		// A machine with fewer CPUs gives none, which is reported below.
		reserved, _ = choose(t, o, t.All(), count)
	}
	if reserved.Size() != count {
		return reserved, fmt.Errorf("new static policy error: [cpumanager] unable to reserve the required amount of CPUs "+
			"(size of %s did not equal %d)", reserved, count)
	}
	if unknown := reserved.Difference(t.All()); !unknown.IsEmpty() {
		return reserved, fmt.Errorf("new static policy error: [cpumanager] unable to build the reserved physical CPUs "+
			"from the reserved set: unknown CPU ID: %d", unknown.List()[0])
	}
	return reserved, nil
}

// reservedMemory returns the reserved memory and huge pages of each node, in bytes (S10.21).
func (c *Config) reservedMemory(t *Topology) (map[int]map[corev1.ResourceName]uint64, error) {
	kept := map[int]map[corev1.ResourceName]uint64{}
	for _, n := range t.Nodes {
		kept[n.ID] = map[corev1.ResourceName]uint64{}
	}
	total := corev1.ResourceList{}
	for _, r := range c.ReservedMemory {
		node := kept[r.Node]
		if node == nil {
			return nil, fmt.Errorf(
				"the reserved memory configuration references a NUMA node %d that does not exist on this machine", r.Node)
		}
		for name, q := range r.Limits { // any order: sums
			node[name] += uint64(max(q.Value(), 0))
			q.Add(total[name])
			total[name] = q
		}
	}
	names := map[corev1.ResourceName]bool{}
	for name := range total { // any order: a set
		names[name] = true
	}
	for name := range c.Reserved { // any order: a set
		if pinsMemory(name) {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		want, have := c.Reserved[name], total[name]
		if want.Cmp(have) != 0 {
			return nil, fmt.Errorf(
				"the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature",
				have.String(), name, want.String())
		}
	}
	if sum := total[corev1.ResourceMemory]; sum.Sign() <= 0 {
		return nil, fmt.Errorf("[memorymanager] you should specify the system reserved memory")
	}
	return kept, nil
}
