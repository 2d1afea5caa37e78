package pinning

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"k8s.io/utils/cpuset"
)

// picker takes free CPUs until it has the needed number.
type picker struct {
	t    *Topology
	free cpuset.CPUSet
	got  cpuset.CPUSet
	need int
}

func newPicker(t *Topology, free cpuset.CPUSet, count int) *picker {
	return &picker{t: t, free: free.Intersection(t.All()), got: cpuset.New(), need: count}
}

func (p *picker) take(cpus cpuset.CPUSet) {
	p.got, p.free, p.need = p.got.Union(cpus), p.free.Difference(cpus), p.need-cpus.Size()
}

// outer returns the levels NUMA node and socket, the larger group first: if a node has several sockets, the
// node is larger (S10.6).
func (p *picker) outer() []level {
	if p.nodesFirst() {
		return []level{byNode, bySocket}
	}
	return []level{bySocket, byNode}
}

// inNodes returns the levels down to the NUMA node.
func (p *picker) inNodes() []level {
	if p.nodesFirst() {
		return []level{byNode}
	}
	return []level{bySocket, byNode}
}

func (p *picker) nodesFirst() bool {
	all := p.t.All()
	return len(p.t.groups(bySocket, all)) >= len(p.t.groups(byNode, all))
}

// order returns the IDs of the groups at the last level that have free CPUs: by group of the level above, then by
// the number of free CPUs, fewest first.
func (p *picker) order(levels ...level) []int {
	of := levels[len(levels)-1]
	sorted := func(among cpuset.CPUSet) []int {
		ids := p.t.groups(of, among)
		free := make(map[int]int, len(ids))
		for _, id := range ids {
			free[id] = p.free.Intersection(p.t.in(of, id)).Size()
		}
		slices.SortFunc(ids, func(a, b int) int { return cmp.Or(cmp.Compare(free[a], free[b]), cmp.Compare(a, b)) })
		return ids
	}
	if len(levels) == 1 {
		return sorted(p.free)
	}
	above := levels[len(levels)-2]
	var ids []int
	for _, group := range p.order(levels[:len(levels)-1]...) {
		for _, id := range sorted(p.free.Intersection(p.t.in(above, group))) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// takeWhole takes whole groups while at least as many CPUs are needed.
func (p *picker) takeWhole(levels ...level) {
	of := levels[len(levels)-1]
	for _, id := range p.order(levels...) {
		if all := p.t.in(of, id); all.Size() <= p.need && all.IsSubsetOf(p.free) {
			p.take(all)
		}
	}
}

// takeCaches takes whole last-level caches, then the rest from one cache, if one has enough.
func (p *picker) takeCaches() {
	levels := append(p.inNodes(), byCache)
	for _, cache := range p.order(levels...) {
		if p.need >= p.t.each(byCache) {
			p.takeWhole(levels...)
		}
		if p.need == 0 {
			return
		}
		p.takePart(cache)
		if p.need == 0 {
			return
		}
	}
}

// takePart takes the needed cores from one cache, or nothing.
func (p *picker) takePart(cache int) {
	perCore := p.t.each(byCore)
	cores := p.t.groups(byCore, p.free.Intersection(p.t.in(byCache, cache)))
	cores = cores[:min(len(cores), (p.need+perCore-1)/perCore)]
	cpus := p.free.Intersection(p.t.in(byCore, cores...)).List()
	if len(cpus) > p.need && p.need%2 != 0 && perCore > 1 {
		cpus = cpus[:len(cpus)-1]
	}
	if len(cpus) == p.need {
		p.take(cpuset.New(cpus...))
	}
}

// takeRest takes single CPUs, first from cores that are partly in use.
func (p *picker) takeRest() {
	for _, core := range p.order(append(p.outer(), byCore)...) {
		for _, cpu := range p.free.Intersection(p.t.in(byCore, core)).List() {
			if p.need == 0 {
				return
			}
			p.take(cpuset.New(cpu))
		}
	}
}

// pack takes as few sockets, NUMA nodes and cores as possible (S10.6). caches: also as few last-level caches.
func pack(t *Topology, free cpuset.CPUSet, count int, caches bool) (cpuset.CPUSet, error) {
	p := newPicker(t, free, count)
	if count > p.free.Size() {
		return cpuset.New(), notEnough(count, free)
	}
	outer := p.outer()
	p.takeWhole(outer[0])
	p.takeWhole(outer...)
	if caches && p.need > 0 {
		p.takeCaches()
	}
	p.takeWhole(append(outer, byCore)...)
	p.takeRest()
	return p.got, nil
}

func notEnough(count int, free cpuset.CPUSet) error {
	return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", count, free.Size())
}

// spread takes the same number of CPUs of each NUMA node, in units of group CPUs, when one node has not enough: of as
// few nodes as possible, so that what is left is as even as possible. If this is not possible, it packs.
func spread(t *Topology, free cpuset.CPUSet, count, group int) (cpuset.CPUSet, error) {
	if group <= 0 || count%group != 0 {
		return pack(t, free, count, false)
	}
	p := newPicker(t, free, count)
	switch {
	case count == 0:
		return p.got, nil
	case count > p.free.Size():
		return cpuset.New(), notEnough(count, free)
	}
	nodes := p.order(p.inNodes()...)
	left := map[int]int{} // free CPUs by node
	for _, n := range nodes {
		left[n] = p.free.Intersection(t.in(byNode, n)).Size()
	}
	groups := func(cpus int) int { return (cpus-1)/group + 1 }
	perNode := (groups(len(t.CPUs))-1)/len(t.cpuNodes()) + 1
	for size := (groups(count)-1)/perNode + 1; size <= min(groups(count), len(nodes)); size++ {
		best := division{balance: math.MaxFloat64}
		combinations(nodes, size, func(some []int) bool {
			if d := divide(left, some, count, group); d != nil && d.balance < best.balance {
				best = *d
			}
			return best.balance > 0
		})
		if best.nodes != nil {
			return p.divided(best, group)
		}
	}
	return pack(t, free, count, false)
}

// division is the number of CPUs to take from each of several NUMA nodes.
type division struct {
	nodes   []int
	even    int     // CPUs of each of them
	extra   []int   // nodes that give the remainder in turns, a unit at a time
	rest    int     // CPUs that they give
	balance float64 // standard deviation of what is left on each node of the machine
}

// divide distributes count CPUs over the nodes, as many of each as possible; the remainder comes from those of them for
// which the balance is best. Nil: they don't have enough.
func divide(left map[int]int, nodes []int, count, group int) *division {
	d := division{nodes: nodes, even: count / len(nodes) / group * group, balance: math.MaxFloat64}
	d.rest = count - d.even*len(nodes)
	after, units := maps.Clone(left), 0
	var more []int // nodes that can give more
	for _, n := range nodes {
		if left[n] < d.even {
			return nil
		}
		units += left[n] / group
		if after[n] -= d.even; after[n] >= group {
			more = append(more, n)
		}
	}
	if units*group < count {
		return nil
	}
	if d.rest == 0 {
		d.balance = deviation(after)
		return &d
	}
	for size := len(more); size > 0; size-- {
		combinations(more, size, func(some []int) bool {
			then := maps.Clone(after)
			if inTurns(some, d.rest, group, func(n int) bool {
				if then[n] < group {
					return false
				}
				then[n] -= group
				return true
			}) {
				if balance := deviation(then); balance < d.balance {
					d.balance, d.extra = balance, some
				}
			}
			return true
		})
	}
	if d.extra == nil {
		return nil
	}
	return &d
}

// inTurns takes count CPUs of the nodes, one unit at a time in turns; false: the nodes have too few.
func inTurns(nodes []int, count, group int, take func(node int) bool) bool {
	for count > 0 {
		before := count
		for _, n := range nodes {
			if count > 0 && take(n) {
				count -= group
			}
		}
		if count == before {
			return false
		}
	}
	return true
}

// deviation is the standard deviation of the values, to three digits.
func deviation(of map[int]int) float64 {
	digits := func(f float64) float64 { return math.Round(f*1000) / 1000 }
	nodes := slices.Sorted(maps.Keys(of))
	var sum float64
	for _, n := range nodes {
		sum += float64(of[n])
	}
	mean := digits(sum / float64(len(of)))
	sum = 0
	for _, n := range nodes {
		sum += (float64(of[n]) - mean) * (float64(of[n]) - mean)
	}
	return digits(math.Sqrt(sum / float64(len(of))))
}

// divided takes the CPUs of a division.
func (p *picker) divided(d division, group int) (cpuset.CPUSet, error) {
	of := func(node, count int) bool {
		some, err := pack(p.t, p.free.Intersection(p.t.in(byNode, node)), count, false)
		if err == nil {
			p.take(some)
		}
		return err == nil
	}
	whole := true
	for _, n := range d.nodes {
		whole = of(n, d.even) && whole
	}
	whole = inTurns(d.extra, d.rest, group, func(n int) bool { return of(n, group) }) && whole
	if !whole || p.need != 0 {
		return cpuset.New(), fmt.Errorf("accounting error, not enough CPUs allocated, remaining: %v", p.need)
	}
	return p.got, nil
}
