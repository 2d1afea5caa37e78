package pinning

import (
	"maps"
	"slices"
)

// Hint is one set of NUMA nodes that can fulfil the request of a container.
type Hint struct {
	Mask      Mask
	Any       bool // no preference; Mask has no meaning
	Preferred bool // no narrower set could fulfil the request on an idle machine
}

// Hints holds the hints of one provider for each resource (S10.31): nil without a preference, empty if no set of
// nodes can fulfil the request.
type Hints map[string][]Hint

// TopologyPolicy is a policy of the topology manager (S10.30).
type TopologyPolicy string

// The policies.
const (
	TopologyNone       TopologyPolicy = "none"
	TopologyBestEffort TopologyPolicy = "best-effort"
	TopologyRestricted TopologyPolicy = "restricted"
	TopologySingleNode TopologyPolicy = "single-numa-node"
)

// merger finds the hint that serves all providers best (S10.32).
type merger struct {
	policy  TopologyPolicy
	closest bool // of sets of the same size, the one with shorter distances
	nodes   []Node
}

// merge returns the best hint, and whether the policy admits it.
func (m *merger) merge(providers []Hints) (Hint, bool) {
	lists := m.lists(providers)
	widest := 0 // the least number of nodes that the most demanding resource needs
	for _, list := range lists {
		least := 0
		for _, h := range list {
			if n := h.Mask.Count(); !h.Any && (least == 0 || n < least) {
				least = n
			}
		}
		widest = max(widest, least)
	}
	all := m.all()
	best := Hint{Mask: all}
	found := false
	for _, c := range combined(all, lists) {
		if h := (Hint{Mask: c.and, Preferred: c.preferred}); h.Mask != 0 && (!found || m.better(h, best, widest)) {
			best, found = h, true
		}
	}
	if m.policy == TopologySingleNode && best.Mask == all {
		best = Hint{Any: true, Preferred: best.Preferred}
	}
	return best, m.policy == TopologyBestEffort || best.Preferred
}

func (m *merger) all() (all Mask) {
	for _, n := range m.nodes {
		all |= MaskOf(n.ID)
	}
	return all
}

// lists returns the hints of all resources; a resource without a preference has one hint for all
// nodes.
func (m *merger) lists(providers []Hints) [][]Hint {
	var lists [][]Hint
	for _, hints := range providers {
		if len(hints) == 0 {
			lists = append(lists, []Hint{{Any: true, Preferred: true}})
		}
		for _, resource := range slices.Sorted(maps.Keys(hints)) {
			switch list := hints[resource]; {
			case list == nil:
				lists = append(lists, []Hint{{Any: true, Preferred: true}})
			case len(list) == 0:
				lists = append(lists, []Hint{{Any: true}})
			default:
				lists = append(lists, list)
			}
		}
	}
	if m.policy == TopologySingleNode {
		for i := range lists {
			lists[i] = slices.DeleteFunc(slices.Clone(lists[i]),
				func(h Hint) bool { return !h.Preferred || !h.Any && h.Mask.Count() != 1 })
		}
	}
	return lists
}

// combination is one hint of each list, together.
type combination struct {
	and       Mask // what all have in common
	first     Mask // the set of the first that names one; 0: none does
	preferred bool // all are preferred and name the same set
}

// combined returns the results of all selections of one hint per list. Many selections have the same result: only
// distinct results are kept, so that their number stays small.
func combined(all Mask, lists [][]Hint) []combination {
	now := []combination{{and: all, preferred: true}}
	for _, list := range lists {
		next := map[combination]bool{}
		for _, c := range now {
			for _, h := range list {
				n := c
				if !h.Any {
					n.and &= h.Mask
					if n.first == 0 {
						n.first = h.Mask
					}
					n.preferred = n.preferred && h.Mask == n.first
				}
				if n.preferred = n.preferred && h.Preferred; !n.preferred {
					n.first = ^Mask(0) // it has no more effect
				}
				next[n] = true
			}
		}
		now = now[:0:0]
		for n := range next { // any order: better is a total order
			now = append(now, n)
		}
	}
	return now
}

// better reports whether a is a better result than b: preferred ones first, then those that are as wide as the most
// demanding resource needs, then narrower ones by width, then wider ones.
func (m *merger) better(a, b Hint, widest int) bool {
	if a.Preferred != b.Preferred {
		return a.Preferred
	}
	if !a.Preferred {
		rank := func(h Hint) int {
			switch n := h.Mask.Count(); {
			case n == widest:
				return 0
			case n < widest:
				return 1 + widest - n
			default:
				return 1 + widest
			}
		}
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra < rb
		}
	}
	return m.before(a.Mask, b.Mask)
}

// before orders sets of nodes.
func (m *merger) before(a, b Mask) bool {
	if m.closest && m.policy != TopologySingleNode && a.Count() == b.Count() {
		if da, db := m.distance(a), m.distance(b); da != db {
			return da < db
		}
	}
	return a.narrower(b)
}

// distance is the average distance between the nodes of a set.
func (m *merger) distance(of Mask) float64 {
	var sum, count float64
	for _, n := range m.nodes {
		for j, d := range n.Distances {
			if of.Has(n.ID) && of.Has(m.nodes[j].ID) {
				sum += float64(d)
				count++
			}
		}
	}
	return sum / max(count, 1)
}
