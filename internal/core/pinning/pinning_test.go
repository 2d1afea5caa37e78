package pinning

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// machine returns a symmetric machine: each unit has the same number of subunits. Threads of a core are
// numbered as most firmware does: all first threads before the second ones.
func machine(sockets, nodesPerSocket, cachesPerNode, coresPerCache, threads int) *Topology {
	t := &Topology{}
	cores := sockets * nodesPerSocket * cachesPerNode * coresPerCache
	for core := range cores {
		cache := core / coresPerCache
		node := cache / cachesPerNode
		for thread := range threads {
			t.CPUs = append(t.CPUs, CPU{ID: thread*cores + core, Core: core, Cache: cache, Node: node,
				Socket: node / nodesPerSocket})
		}
	}
	slices.SortFunc(t.CPUs, func(a, b CPU) int { return cmp.Compare(a.ID, b.ID) })
	nodes := sockets * nodesPerSocket
	for n := range nodes {
		node := Node{ID: n, Memory: 4 << 30, HugePages: map[corev1.ResourceName]uint64{"hugepages-2Mi": 64 << 20}}
		for other := range nodes {
			node.Distances = append(node.Distances, uint64(10+10*(max(n, other)-min(n, other))))
		}
		t.Nodes = append(t.Nodes, node)
	}
	return t
}

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// guaranteed is a pod whose containers, named c0, c1, …, get these CPUs and memory: "2/1Gi"; "i:…" is an init
// container, "s:…" a sidecar.
func guaranteed(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for i, text := range containers {
		kind, amounts, special := strings.Cut(text, ":")
		if !special {
			kind, amounts = "", text
		}
		cpu, memory, _ := strings.Cut(amounts, "/")
		if memory == "" {
			memory = "1Mi"
		}
		r := list("cpu", cpu, "memory", memory)
		c := corev1.Container{Name: fmt.Sprintf("c%d", i)}
		c.Resources = corev1.ResourceRequirements{Requests: r, Limits: r}
		switch kind {
		case "":
			pod.Spec.Containers = append(pod.Spec.Containers, c)
			continue
		case "s":
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	return pod
}

func manager(t testing.TB, topology *Topology, cfg Config) *Manager {
	t.Helper()
	m, err := New(topology, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func static(options ...string) Config {
	cfg := Config{CPUPolicy: NameStatic, Reserved: list("cpu", "500m"), CPUOptions: map[string]string{}}
	for _, o := range options {
		cfg.CPUOptions[o] = "true"
	}
	return cfg
}

// Which containers get which CPUs (S10.4 to S10.7). The machine has 2 sockets with one node of 4 cores each, 16
// CPUs: core n has CPUs n and n+8; CPU 0 is reserved.
func TestCPUsOfContainers(t *testing.T) {
	for name, c := range map[string]struct {
		options []string
		pods    []*corev1.Pod
		want    string // "pod/container=cpus …", then what is shared, or the refusal of the last pod
	}{
		"whole cores of the node with fewer free": {nil, []*corev1.Pod{guaranteed("a", "2")}, "a/c0=1,9 0,2-8,10-15"},
		"a rest of a core is used first": {nil, []*corev1.Pod{guaranteed("a", "1"), guaranteed("b", "1")},
			"a/c0=8 b/c0=1 0,2-7,9-15"},
		"a whole socket":    {nil, []*corev1.Pod{guaranteed("a", "8")}, "a/c0=4-7,12-15 0-3,8-11"},
		"a part of a CPU":   {nil, []*corev1.Pod{guaranteed("a", "1500m")}, "0-15"},
		"several at a time": {nil, []*corev1.Pod{guaranteed("a", "2", "500m", "2")}, "a/c0=1,9 a/c2=2,10 0,3-8,11-15"},
		"init containers give": {nil, []*corev1.Pod{guaranteed("a", "i:4", "2", "2")},
			"a/c0=1-2,9-10 a/c1=1,9 a/c2=2,10 0,3-8,11-15"},
		"sidecars keep": {nil, []*corev1.Pod{guaranteed("a", "s:2", "2")}, "a/c0=1,9 a/c1=2,10 0,3-8,11-15"},
		"strict":        {[]string{"strict-cpu-reservation"}, []*corev1.Pod{guaranteed("a", "2")}, "a/c0=1,9 2-8,10-15"},
		// L3.28
		"too many": {nil, []*corev1.Pod{guaranteed("a", "15"), guaranteed("b", "1")}, "UnexpectedAdmissionError: " +
			"Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, which is unexpected"},
		"half a core": {[]string{"full-pcpus-only"}, []*corev1.Pod{guaranteed("a", "3")},
			"SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"},
		"no whole core": {[]string{"full-pcpus-only"}, []*corev1.Pod{guaranteed("a", "14"), guaranteed("b", "2")},
			"SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 0, " +
				"requested CPUs = 2, CPUs per core = 2"},
		"as many of each node": {[]string{"distribute-cpus-across-numa"}, []*corev1.Pod{guaranteed("a", "10")},
			"a/c0=1-2,4-6,8-10,12-13 0,3,7,11,14-15"},
		"one node is enough, the emptier one": {[]string{"distribute-cpus-across-numa"},
			[]*corev1.Pod{guaranteed("a", "4")}, "a/c0=4-5,12-13 0-3,6-11,14-15"},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, machine(2, 1, 1, 4, 2), static(c.options...))
			got := ""
			for i, pod := range c.pods {
				_, refused := m.Admit(pod, nil)
				if refused != nil && i == len(c.pods)-1 {
					if got = refused.Reason + ": " + refused.Message; got != c.want {
						t.Errorf("refused: %s", got)
					}
					return
				}
				for container := range containers(pod) {
					if cpus, own := m.CPUs(pod.UID, container.Name); own {
						got += fmt.Sprintf("%s/%s=%s ", pod.Name, container.Name, cpus)
					}
				}
			}
			if got += m.State().Shared.String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A pod whose CPUs no NUMA node has alone is refused by the policy that requires one node (L3.32), and by no other.
func TestTopologyAffinityError(t *testing.T) {
	for _, policy := range policies {
		want := ""
		if policy == TopologySingleNode {
			want = "TopologyAffinityError: Resources cannot be allocated with Topology locality"
		}
		cfg := static()
		cfg.Policy = policy
		m := manager(t, machine(2, 1, 1, 4, 2), cfg)
		got := ""
		if _, refused := m.Admit(guaranteed("a", "10"), nil); refused != nil {
			got = refused.Reason + ": " + refused.Message
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", policy, got, want)
		}
		if _, refused := m.Admit(guaranteed("b", "4"), nil); refused != nil {
			t.Errorf("%s: a pod that fits a node is refused: %+v", policy, refused)
		}
	}
}

// Invalid configurations have upstream's messages (S10.1 to S10.4, S10.21, S10.30).
func TestInvalidConfig(t *testing.T) {
	many := machine(9, 1, 1, 1, 1)
	reservation := []Reservation{{Node: 0, Limits: list("memory", "1Gi")}}
	for want, c := range map[string]struct {
		t   *Topology
		cfg Config
	}{
		`unknown policy: "dynamic"`: {nil,
			Config{CPUPolicy: "dynamic"}},
		"new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]": {nil,
			Config{CPUOptions: map[string]string{"full-pcpus-only": "true"}}},
		`unknown CPU Manager Policy option: "x"`: {nil,
			static("x")},
		`CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided`: {nil,
			static("align-by-socket")},
		`bad value for option "full-pcpus-only": strconv.ParseBool: parsing "maybe": invalid syntax`: {nil,
			Config{CPUPolicy: NameStatic, CPUOptions: map[string]string{"full-pcpus-only": "maybe"}}},
		"static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time": {nil,
			static("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa")},
		"[cpumanager] unable to determine reserved CPU resources for static policy": {nil,
			Config{CPUPolicy: NameStatic}},
		"[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero": {nil,
			Config{CPUPolicy: NameStatic, Reserved: list("cpu", "0")}},
		"new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 40)": {nil,
			Config{CPUPolicy: NameStatic, Reserved: list("cpu", "40")}},
		"new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: 99": {nil,
			Config{CPUPolicy: NameStatic, ReservedCPUs: cpuset.New(0, 99)}},
		`unknown policy: "Greedy"`: {nil,
			Config{MemoryPolicy: "Greedy"}},
		`policy "BestEffort" is not available for platform "linux"`: {nil,
			Config{MemoryPolicy: "BestEffort"}},
		"[memorymanager] you should specify the system reserved memory": {nil,
			Config{MemoryPolicy: NameStaticMemory}},
		`the total amount "1Gi" of type "memory" is not equal to the value "2Gi" determined by Node Allocatable feature`: {nil,
			Config{MemoryPolicy: NameStaticMemory, ReservedMemory: reservation, Reserved: list("memory", "2Gi")}},
		"the reserved memory configuration references a NUMA node 7 that does not exist on this machine": {nil,
			Config{MemoryPolicy: NameStaticMemory, ReservedMemory: []Reservation{{Node: 7}}}},
		`unknown policy: "tight"`: {nil,
			Config{Policy: "tight"}},
		`unknown scope: "node"`: {nil,
			Config{Policy: TopologyRestricted, Scope: "node"}},
		`unknown Topology Manager Policy option: "x"`: {nil,
			Config{Policy: TopologyRestricted, PolicyOptions: map[string]string{"x": ""}}},
		"unsupported on machines with more than 8 NUMA Nodes": {many, Config{Policy: TopologyBestEffort}},
		`the minimum value of "max-allowable-numa-nodes" should not be less than 8`: {nil,
			Config{Policy: TopologyRestricted, PolicyOptions: map[string]string{"max-allowable-numa-nodes": "7"}}},
	} {
		topology := c.t
		if topology == nil {
			topology = machine(2, 1, 1, 4, 2)
		}
		if _, err := New(topology, c.cfg); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := New(many, Config{Policy: TopologyBestEffort,
		PolicyOptions: map[string]string{"max-allowable-numa-nodes": "9"}}); err != nil {
		t.Error(err)
	}
	if _, err := New(many, static()); err != nil {
		t.Errorf("without a topology policy the limit does not apply: %v", err)
	}
}

// random returns a machine of a random shape.
func random(r *rand.Rand) *Topology {
	return machine(1+r.IntN(2), 1+r.IntN(3), 1+r.IntN(2), 1+r.IntN(4), 1+r.IntN(2))
}

// With random pods: no CPU has two owners, reserved CPUs have none, all other CPUs are shared, full cores are not
// split, and a pod that needs one node gets CPUs of one node if the policy requires it.
func TestPropertiesOfCPUs(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		topology := random(r)
		cfg := static()
		for _, o := range [][]string{{"full-pcpus-only"}, {"strict-cpu-reservation"}, {"distribute-cpus-across-numa"},
			{"prefer-align-cpus-by-uncorecache"}} {
			if r.IntN(3) == 0 && (o[0] != "prefer-align-cpus-by-uncorecache" || cfg.CPUOptions["distribute-cpus-across-numa"] == "") {
				cfg.CPUOptions[o[0]] = "true"
			}
		}
		cfg.Policy = policies[r.IntN(4)]
		cfg.Scope = []string{ScopeContainer, ScopePod}[r.IntN(2)]
		if r.IntN(2) == 0 {
			cfg.ReservedCPUs = cpuset.New(topology.CPUs[r.IntN(len(topology.CPUs))].ID)
		}
		m := manager(t, topology, cfg)
		here := map[types.UID]*corev1.Pod{}
		for step := range 30 {
			if r.IntN(3) == 0 {
				for uid := range here {
					m.Release(uid)
					delete(here, uid)
					break
				}
			} else {
				pod := guaranteed(fmt.Sprintf("p%d", step), someContainers(r, len(topology.CPUs))...)
				before := m.State()
				changed, refused := m.Admit(pod, nil)
				if refused != nil && (changed || m.State() != before) {
					t.Fatalf("seed %d: a refused pod changed the state", seed)
				}
				if refused == nil {
					here[pod.UID] = pod
					if again, refused := m.Admit(pod, nil); again || refused != nil {
						t.Fatalf("seed %d: a second admission: %v, %+v", seed, again, refused)
					}
				}
			}
			checkCPUs(t, seed, m, here)
		}
		for uid := range here {
			m.Release(uid)
		}
		if !m.State().Shared.Equals(m.usable()) || len(m.Pods()) > 0 {
			t.Fatalf("seed %d: all pods are gone, and %s of %s is shared", seed, m.State().Shared, m.usable())
		}
	}
}

var policies = []TopologyPolicy{TopologyNone, TopologyBestEffort, TopologyRestricted, TopologySingleNode}

func someContainers(r *rand.Rand, cpus int) []string {
	var all []string
	for range 1 + r.IntN(3) {
		kind := []string{"", "", "i:", "s:"}[r.IntN(4)]
		n := 1 + r.IntN(max(cpus/3, 1))
		all = append(all, fmt.Sprintf("%s%d", kind, n))
	}
	return append(all, "500m")
}

func checkCPUs(t *testing.T, seed uint64, m *Manager, here map[types.UID]*corev1.Pod) {
	t.Helper()
	s, used := m.State(), cpuset.New()
	for uid, of := range s.CPUs {
		if here[uid] == nil {
			t.Fatalf("seed %d: %s was deleted and has CPUs", seed, uid)
		}
		mine := cpuset.New()
		for c := range containers(here[uid]) {
			cpus := of[c.Name]
			if n := wholeCPUs(here[uid], c); cpus.Size() != n {
				t.Fatalf("seed %d: %s/%s asked for %d CPUs and has %s", seed, uid, c.Name, n, cpus)
			}
			if m.options.FullCores && !cpus.IsEmpty() && !m.topology.siblings(cpus).Equals(cpus) {
				t.Fatalf("seed %d: %s/%s has %s, a part of a core", seed, uid, c.Name, cpus)
			}
			if m.cfg.Policy == TopologySingleNode && len(m.topology.groups(byNode, cpus)) > 1 {
				t.Fatalf("seed %d: %s/%s has CPUs of several nodes: %s", seed, uid, c.Name, cpus)
			}
			if !isInit(here[uid], c) {
				if !mine.Intersection(cpus).IsEmpty() {
					t.Fatalf("seed %d: two containers of %s have a CPU of %s", seed, uid, cpus)
				}
				mine = mine.Union(cpus)
			}
		}
		for _, cpus := range of {
			mine = mine.Union(cpus)
		}
		if m.cfg.Policy == TopologySingleNode && m.cfg.Scope == ScopePod && len(m.topology.groups(byNode, mine)) > 1 {
			t.Fatalf("seed %d: %s has CPUs of several nodes: %s", seed, uid, mine)
		}
		if !used.Intersection(mine).IsEmpty() {
			t.Fatalf("seed %d: %s has %s, of which others have %s", seed, uid, mine, used)
		}
		used = used.Union(mine)
	}
	if !used.Intersection(m.reserved).IsEmpty() {
		t.Fatalf("seed %d: reserved CPUs %s were given: %s", seed, m.reserved, used)
	}
	if !s.Shared.Equals(m.usable().Difference(used)) {
		t.Fatalf("seed %d: %s is shared, %s is used", seed, s.Shared, used)
	}
	again := manager(t, m.topology, m.cfg)
	if err := again.RestoreCPUs(s.Shared, s.CPUs); err != nil {
		t.Fatalf("seed %d: the checkpoint is refused: %v", seed, err)
	}
}

// The same for memory: no memory is assigned twice, or beyond the capacity, and all of it is freed
// again.
func TestPropertiesOfMemory(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		topology := machine(1+r.IntN(2), 1+r.IntN(2), 1, 2, 1)
		cfg := Config{MemoryPolicy: NameStaticMemory, Reserved: list("memory", "1Gi"),
			ReservedMemory: []Reservation{{Node: 0, Limits: list("memory", "1Gi")}}}
		cfg.Policy = policies[r.IntN(4)]
		cfg.Scope = []string{ScopeContainer, ScopePod}[r.IntN(2)]
		m := manager(t, topology, cfg)
		here := map[types.UID]*corev1.Pod{}
		for step := range 30 {
			switch r.IntN(3) {
			case 0:
				for uid := range here {
					m.Release(uid)
					delete(here, uid)
					break
				}
			case 1:
				for _, pod := range here {
					last := pod.Spec.Containers[len(pod.Spec.Containers)-1].Name
					if m.Starts(pod, last); m.Starts(pod, last) {
						t.Fatalf("seed %d: a second start changed something", seed)
					}
					break
				}
			default:
				var all []string
				for range 1 + r.IntN(3) {
					all = append(all, fmt.Sprintf("%s1/%dMi", []string{"", "i:", "s:"}[r.IntN(3)], 1+r.IntN(3000)))
				}
				pod := guaranteed(fmt.Sprintf("p%d", step), append(all, "1/1Mi")...)
				if _, refused := m.Admit(pod, nil); refused == nil {
					here[pod.UID] = pod
				} else if m.Holds(pod.UID) {
					t.Fatalf("seed %d: a refused pod holds memory", seed)
				}
			}
			checkMemory(t, seed, m)
		}
		for uid := range here {
			m.Release(uid)
		}
		if !m.State().sameMemory(&State{Nodes: m.idle()}) {
			t.Fatalf("seed %d: all pods are gone, and memory is used: %+v", seed, m.State().Nodes)
		}
	}
}

func checkMemory(t *testing.T, seed uint64, m *Manager) {
	t.Helper()
	s := m.State()
	for id, n := range s.Nodes {
		for name, table := range n.Memory {
			if table.Free+table.Reserved != table.Allocatable {
				t.Fatalf("seed %d: node %d, %s: %+v", seed, id, name, table)
			}
		}
	}
	var used, reserved uint64
	for uid, of := range s.Memory {
		for name, blocks := range of {
			for _, b := range blocks {
				if b.Type == corev1.ResourceMemory {
					used += b.Size
				}
				if m.cfg.Policy == TopologySingleNode && len(b.Nodes) > 1 {
					t.Fatalf("seed %d: %s/%s has memory of several nodes", seed, uid, name)
				}
			}
		}
	}
	for _, n := range s.Nodes {
		reserved += n.Memory[corev1.ResourceMemory].Reserved
	}
	if used != reserved {
		t.Fatalf("seed %d: containers have %d bytes, nodes gave %d", seed, used, reserved)
	}
	again := manager(t, m.topology, m.cfg)
	c := s.clone()
	if err := again.RestoreMemory(c.Nodes, c.Memory); err != nil {
		t.Fatalf("seed %d: the checkpoint is refused: %v", seed, err)
	}
}

// Each hint can be met, and a preferred one is as narrow as any can be on this machine while it is idle.
func TestHintsAreMinimal(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		topology := random(r)
		m := manager(t, topology, static())
		free := cpuset.New()
		for _, c := range topology.CPUs {
			if r.IntN(3) > 0 {
				free = free.Union(cpuset.New(c.ID))
			}
		}
		count := 1 + r.IntN(len(topology.CPUs))
		for _, h := range m.cpuHints(free, cpuset.New(), count) {
			if here := free.Intersection(topology.in(byNode, h.Mask.Nodes()...)); here.Size() < count {
				t.Fatalf("seed %d: %d CPUs of nodes %v, which have %s", seed, count, h.Mask.Nodes(), here)
			}
			narrower := false
			subsets(topology.cpuNodes(), func(mask Mask) {
				narrower = narrower || mask.Count() < h.Mask.Count() &&
					topology.in(byNode, mask.Nodes()...).Size() >= count
			})
			if h.Preferred == narrower {
				t.Fatalf("seed %d: %d CPUs, nodes %v: preferred %v", seed, count, h.Mask.Nodes(), h.Preferred)
			}
		}
	}
}

// merge finds the same hint as an exhaustive search of all selections, for all policies.
func TestMergeIsExhaustive(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		topology := machine(1+r.IntN(4), 1, 1, 1, 1)
		m := merger{nodes: topology.Nodes, closest: r.IntN(2) == 0,
			policy: []TopologyPolicy{TopologyBestEffort, TopologyRestricted, TopologySingleNode}[r.IntN(3)]}
		var providers []Hints
		for p := range r.IntN(4) {
			hints := Hints{}
			for range r.IntN(3) {
				name := fmt.Sprintf("r%d-%d", p, len(hints))
				if r.IntN(5) == 0 {
					hints[name] = [][]Hint{nil, {}}[r.IntN(2)]
					continue
				}
				for range 1 + r.IntN(4) {
					mask := Mask(1+r.IntN(1<<len(topology.Nodes)-1)) & m.all()
					hints[name] = append(hints[name], Hint{Mask: mask, Preferred: r.IntN(2) == 0})
				}
			}
			providers = append(providers, hints)
		}
		got, admitted := m.merge(providers)
		want := exhaustive(&m, providers)
		if got != want || admitted != (m.policy == TopologyBestEffort || want.Preferred) {
			t.Fatalf("seed %d: %s: %+v gave %+v, want %+v", seed, m.policy, providers, got, want)
		}
	}
}

// exhaustive is a literal implementation of S10.32.
func exhaustive(m *merger, providers []Hints) Hint {
	lists := m.lists(providers)
	widest := 0
	for _, list := range lists {
		least := 100
		for _, h := range list {
			if !h.Any {
				least = min(least, h.Mask.Count())
			}
		}
		if least < 100 {
			widest = max(widest, least)
		}
	}
	best, found := Hint{Mask: m.all()}, false
	var try func(i int, picked []Hint)
	try = func(i int, picked []Hint) {
		if i < len(lists) {
			for _, h := range lists[i] {
				try(i+1, append(slices.Clone(picked), h))
			}
			return
		}
		h := Hint{Mask: m.all(), Preferred: true}
		var first *Hint
		for _, p := range picked {
			h.Preferred = h.Preferred && p.Preferred
			if p.Any {
				continue
			}
			if first == nil {
				first = &p
			}
			h.Mask &= p.Mask
			h.Preferred = h.Preferred && p.Mask == first.Mask
		}
		if h.Mask != 0 && (!found || m.better(h, best, widest)) {
			best, found = h, true
		}
	}
	try(0, nil)
	if m.policy == TopologySingleNode && best.Mask == m.all() {
		best = Hint{Any: true, Preferred: best.Preferred}
	}
	return best
}
