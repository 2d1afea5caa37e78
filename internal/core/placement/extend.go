package placement

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// Extender is the filter of HTTP extenders: their results may change with every event.
const Extender Filter = "Extender"

// Answers holds the results of extenders for the nodes that Candidates returned.
type Answers struct {
	Accepted map[string]bool    // by all of them
	Refused  map[string]Refusal // with the reasons; a node in neither list was left out without a reason
	Scores   map[string]int64   // to be added to the nodes' own
}

// Candidates returns the nodes that a pod fits on, before extenders run, and the decision when there are none.
// all: search all nodes. The decision's list is valid until the cluster changes.
func (c *Cluster) Candidates(p *Pod, start int, all bool) ([]*corev1.Node, Decision) {
	d, feasible, _ := c.fits(p, start, all)
	nodes := make([]*corev1.Node, 0, len(feasible))
	for _, i := range feasible {
		nodes = append(nodes, c.nodes[i].Object)
	}
	return nodes, d
}

// Enough is how many nodes that fit are enough for a pod to choose from (L2.11).
func (c *Cluster) Enough(p *Pod) int { return p.profile.sampleSize(len(c.nodes)) }

// Nowhere returns the decision for a pod that fits on no node at all, because a filter of the
// scheduler refuses it.
func (c *Cluster) Nowhere(by Filter, why string) Decision {
	return Decision{Nodes: len(c.nodes), Conflict: why, By: by}
}

// Choose finds the best of the nodes that extenders accepted. The cluster may have changed since they were
// called: again reports that the pod no longer fits on any of these nodes, and that they must be called
// again.
func (c *Cluster) Choose(p *Pod, a Answers) (d Decision, again bool) {
	d = Decision{Nodes: len(c.nodes)}
	s := c.stateFor(p)
	var feasible []int
	for _, n := range c.nodes {
		r := c.refusal(s, n)
		switch refused, known := a.Refused[n.Object.Name]; {
		case a.Accepted[n.Object.Name]:
			if r == nil {
				feasible = append(feasible, n.index)
			}
		case r != nil:
			d.Refusals = append(d.Refusals, NodeRefusal{n.Object.Name, *r})
		case known:
			d.Refusals = append(d.Refusals, NodeRefusal{n.Object.Name, refused})
		default:
			d.Refusals = append(d.Refusals, NodeRefusal{n.Object.Name, Refusal{Filter: Extender}})
		}
	}
	if len(feasible) == 0 {
		return d, len(a.Accepted) > 0
	}
	g := c.groupOf(p)
	total := g.scores(p, feasible)
	best, high := 0, int64(math.MinInt64)
	pod, lowest := hashOf(string(p.Object.UID)), uint64(0)
	for i, n := range feasible {
		score := total[i] + a.Scores[c.nodes[n].Object.Name]
		if l := lot(pod, g.verdicts[n].hash); score > high || score == high && l < lowest {
			best, high, lowest = n, score, l
		}
	}
	return Decision{Nodes: d.Nodes, Node: c.nodes[best].Object.Name}, false
}

// Victims are the pods to remove from a node.
type Victims struct {
	Node      string
	Pods      []*Pod // most important first
	Violating int    // number of violated disruption budgets
}

// VictimsByNode returns the candidates of Preempt, for extenders; none when Preempt finds no node.
func (c *Cluster) VictimsByNode(p *Pod, d Decision, budgets []*policyv1.PodDisruptionBudget) []Victims {
	found, _ := c.candidates(p, d, budgets,
		max(len(d.Refusals)*p.profile.MinCandidatesPercentage/100, p.profile.MinCandidates))
	var list []Victims
	for _, f := range found {
		list = append(list, Victims{f.node, f.pods, f.violating})
	}
	return list
}

// PickVictims chooses among victims; none when the list is empty (L2.51).
func PickVictims(list []Victims) Preemption {
	list = slices.DeleteFunc(slices.Clone(list), func(v Victims) bool { return len(v.Pods) == 0 })
	if len(list) == 0 {
		return Preemption{Message: preemptionNoVictims}
	}
	best := slices.MinFunc(list, func(a, b Victims) int {
		return harm(candidate{a.Node, a.Pods, a.Violating}, candidate{b.Node, b.Pods, b.Violating})
	})
	return Preemption{Node: best.Node, Victims: best.Pods}
}
