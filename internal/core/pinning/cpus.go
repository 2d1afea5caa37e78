package pinning

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"carob/internal/core/resources"
)

// wholeCPUs returns how many exclusive CPUs a container gets; 0: it runs on the shared ones
// (S10.5).
func wholeCPUs(pod *corev1.Pod, c *corev1.Container) int {
	q := c.Resources.Requests[corev1.ResourceCPU]
	if !pinned(pod) || q.Value()*1000 != q.MilliValue() {
		return 0
	}
	return int(q.Value())
}

// pinned reports whether containers of the pod may get exclusive CPUs or memory: containers of Guaranteed pods do,
// except those that share pod-level resources (S0.18).
func pinned(pod *corev1.Pod) bool {
	return resources.QoS(pod) == corev1.PodQOSGuaranteed && !podresources.IsPodLevelResourcesSet(pod)
}

// wholeOfPod is how many CPUs all containers of a pod need: later containers reuse the CPUs of init
// containers.
func wholeOfPod(pod *corev1.Pod) int {
	most, sidecars := 0, 0
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if n := wholeCPUs(pod, c); resources.IsSidecar(c) {
			sidecars += n
		} else {
			most = max(most, sidecars+n)
		}
	}
	rest := sidecars
	for i := range pod.Spec.Containers {
		rest += wholeCPUs(pod, &pod.Spec.Containers[i])
	}
	return max(most, rest)
}

// choose takes count of the free CPUs according to the options.
func choose(t *Topology, o CPUOptions, free cpuset.CPUSet, count int) (cpuset.CPUSet, error) {
	if o.SpreadNodes {
		group := 1
		if o.FullCores {
			group = t.each(byCore)
		}
		return spread(t, free, count, group)
	}
	return pack(t, free, count, o.Caches)
}

// free returns the CPUs that are neither assigned nor reserved.
func (m *Manager) free(s *State) cpuset.CPUSet { return s.Shared.Difference(m.reserved) }

// cpuHints returns the sets of NUMA nodes that have enough CPUs for a container, of the free ones and those of its pod
// that it may use.
func (m *Manager) cpuHints(free, reusable cpuset.CPUSet, count int) []Hint {
	all, have := map[int]int{}, map[int]int{}
	for _, c := range m.topology.CPUs {
		all[c.Node]++
		if reusable.Contains(c.ID) {
			have[c.Node]++
		}
		if free.Contains(c.ID) {
			have[c.Node]++
		}
	}
	held := MaskOf(m.topology.groups(byNode, reusable)...)
	return HintsFor(m.topology.cpuNodes(), func(mask Mask) (could, can bool) {
		total, here := 0, 0
		for _, n := range mask.Nodes() {
			total += all[n]
			here += have[n]
		}
		return total >= count, held&^mask == 0 && here >= count
	})
}

// HintsFor makes hints from the sets of nodes that can fulfil a request. A set is preferred if it has no more nodes
// than the narrowest set that could fulfil it on an idle machine.
func HintsFor(nodes []int, try func(Mask) (could, can bool)) []Hint {
	least := len(nodes)
	hints := []Hint{}
	subsets(nodes, func(mask Mask) {
		could, can := try(mask)
		if could {
			least = min(least, mask.Count())
		}
		if can {
			hints = append(hints, Hint{Mask: mask})
		}
	})
	prefer(hints, least)
	return hints
}

// prefer marks the hints that are as narrow as possible.
func prefer(hints []Hint, least int) {
	for i := range hints {
		hints[i].Preferred = hints[i].Mask.Count() == least
	}
}

// smtError reports that a container's CPUs would not be whole cores (S10.10).
type smtError struct {
	want, perCore, free int
	multiple            bool // the number is not a multiple
}

// Error implements error.
func (e smtError) Error() string {
	if e.multiple {
		return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.want, e.perCore)
	}
	return fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, "+
		"requested CPUs = %d, CPUs per core = %d", e.free, e.want, e.perCore)
}

// allocateCPUs assigns CPUs to a container, those of the hint's nodes first. reusable are those of ended
// init containers.
func (m *Manager) allocateCPUs(s *State, count int, hint Hint, reusable cpuset.CPUSet) (cpuset.CPUSet, error) {
	if perCore := m.topology.each(byCore); m.options.FullCores {
		free := s.Shared.Difference(m.topology.siblings(m.reserved)).Size()
		switch {
		case count%perCore != 0:
			return cpuset.New(), smtError{want: count, perCore: perCore, multiple: true}
		case count > free+reusable.Size():
			return cpuset.New(), smtError{want: count, perCore: perCore, free: free}
		}
	}
	free := m.free(s).Union(reusable)
	if m.options.FullCores {
		free = m.wholeCores(free)
	}
	got := cpuset.New()
	if !hint.Any {
		near := free.Intersection(m.topology.in(byNode, hint.Mask.Nodes()...))
		var err error
		if got, err = choose(m.topology, m.options, near, min(count, near.Size())); err != nil {
			return cpuset.New(), err
		}
	}
	rest, err := choose(m.topology, m.options, free.Difference(got), count-got.Size())
	if err != nil {
		return cpuset.New(), err
	}
	got = got.Union(rest)
	s.Shared = s.Shared.Difference(got)
	return got, nil
}

// wholeCores returns the CPUs whose whole core is in the set.
func (m *Manager) wholeCores(of cpuset.CPUSet) cpuset.CPUSet {
	return of.Difference(m.topology.siblings(m.topology.siblings(of).Difference(of)))
}
