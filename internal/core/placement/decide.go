package placement

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Decision is the node for a pod, or the reasons why no node fits.
type Decision struct {
	Node     string        // empty when no node fits
	Refusals []NodeRefusal // shared with other decisions: read only
	Conflict string        // why the pod fits no node at all; Refusals is empty then
	By       Filter        // the filter of Conflict
	Excluded int           // nodes that the pod's affinity excludes; they are not among Refusals
	Nodes    int           // number of nodes
	Next     int           // where the search of the next decision starts
	// Unusable are nodes among Refusals where removing pods does not help, by name: the volumes of the pod can't be
	// used there. Preempt leaves them out.
	Unusable map[string]Refusal
	// InUse are claims of the pod that only one pod may use, and another pod uses. Preempt has to remove that pod
	// (S2.55).
	InUse []string

	summary *summary // of Refusals, if that was made before
}

func (d Decision) summarize() *summary {
	if d.summary != nil {
		return d.summary
	}
	return summaryOf(d.Refusals)
}

// NodeRefusal is the refusal of one node.
type NodeRefusal struct {
	Node string
	Refusal
}

// Decide finds the best node for a pod. start is Next of the last decision: in a large cluster,
// each decision searches only a part of the nodes, in turn (L2.11).
func (c *Cluster) Decide(p *Pod, start int) Decision {
	d, feasible, g := c.fits(p, start, false)
	switch {
	case len(feasible) == 1:
		d.Node = c.nodes[feasible[0]].Object.Name
	case len(feasible) > 1:
		if g == nil {
			g = c.groupOf(p)
		}
		d.Node = c.nodes[g.best(p, feasible)].Object.Name
	}
	return d
}

// fits finds the nodes, by index, that a pod fits on, and why not when there is none. The list is valid until
// the next call; g is the pod's group, if that was needed. all: search all nodes, not only a part of them or
// the nominated node.
func (c *Cluster) fits(p *Pod, start int, all bool) (d Decision, feasible []int, g *group) {
	d = Decision{Nodes: len(c.nodes)}
	if len(c.nodes) == 0 {
		return d, nil, nil
	}
	d.Next = start % len(c.nodes)
	if p.nowhere {
		d.Conflict, d.By = reasonConflict, NodeAffinity
		return d, nil, nil
	}
	if p.only != nil {
		d, feasible = c.fitsAmong(p, d)
		return d, feasible, nil
	}
	g = c.groupOf(p)
	s := state{p, g.hard, g.affinity}
	if n := c.Node(p.Object.Status.NominatedNodeName); n != nil && !all && c.refusal(&s, n) == nil {
		return d, []int{n.index}, g
	}
	enough := p.profile.sampleSize(len(c.nodes))
	if all {
		enough = len(c.nodes)
	}
	own, others := c.ownReservation(g, p)
	local := g.local()
	var ahead map[int][]*Pod
	if !local {
		ahead = c.nominatedAhead(p.Priority, p.Object.UID)
	}
	feasible = c.feasible[:0]
	looked := 0
	if local && own < 0 && g.diagnosis != nil && g.diagnosis.accepting == 0 {
		looked = len(c.nodes) // none, as before
	}
	for ; looked < len(c.nodes) && len(feasible) < enough; looked++ {
		i := start%len(c.nodes) + looked
		if i >= len(c.nodes) {
			i -= len(c.nodes)
		}
		v := &g.verdicts[i]
		if v.refusal == nil && v.features == nil &&
			(len(g.reserved) == 0 || g.reserved[i] == nil || i == own && others == nil) &&
			(local || s.topology(i) == accepted &&
				(ahead[i] == nil || c.beside(&s, c.nodes[i], ahead[i]) == accepted)) {
			feasible = append(feasible, i)
		}
	}
	c.feasible = feasible
	d.Next = (d.Next + looked) % len(c.nodes)
	if len(feasible) > 0 {
		return d, feasible, g
	}
	d.Refusals, d.summary = g.diagnose(c, &s, own)
	return d, nil, g
}

// fitsAmong is fits for a pod whose affinity names its only possible nodes.
func (c *Cluster) fitsAmong(p *Pod, d Decision) (Decision, []int) {
	s := c.stateFor(p)
	var feasible []int
	d.Excluded = len(c.nodes)
	for _, name := range p.only {
		n := c.Node(name)
		if n == nil {
			continue
		}
		d.Excluded--
		if r := c.refusal(s, n); r != nil {
			d.Refusals = append(d.Refusals, NodeRefusal{name, *r})
		} else {
			feasible = append(feasible, n.index)
		}
	}
	if len(feasible) == 0 {
		return d, nil
	}
	if n := c.Node(p.Object.Status.NominatedNodeName); n != nil && slices.Contains(feasible, n.index) {
		feasible = []int{n.index}
	}
	d.Refusals, d.Excluded = nil, 0
	return d, feasible
}

// refusal filters one node, both with the pods that are nominated to it and without (L2.55): a pod must not depend on
// one that is not there yet.
func (c *Cluster) refusal(s *state, n *Node) *Refusal {
	if ahead := c.reservations(n, s.pod); len(ahead) > 0 {
		if r := n.with(ahead).refuses(s.pod); r != nil {
			return r
		}
		if d := c.beside(s, n, ahead); d != accepted {
			return d.refusal()
		}
	}
	return s.filter(n)
}

// beside runs the filters that also look at other nodes as if the pods ahead were on the node.
func (c *Cluster) beside(s *state, n *Node, ahead []*Pod) denial {
	for _, o := range ahead {
		s.hard.count(o, n, 1)
		s.affinity.count(o, n, 1)
	}
	d := s.topology(n.index)
	for _, o := range ahead {
		s.hard.count(o, n, -1)
		s.affinity.count(o, n, -1)
	}
	if d == accepted && s.affinity == nil && c.repelled(s.pod, n, ahead) {
		return othersAntiAffinity
	}
	return d
}

// repelled reports whether a required anti-affinity of the pods ahead, if they were on the node, keeps p from it.
func (c *Cluster) repelled(p *Pod, n *Node, ahead []*Pod) bool {
	return p.profile.enables(InterPodAffinity) && slices.ContainsFunc(ahead, func(o *Pod) bool {
		return slices.ContainsFunc(o.antiAffinity, func(t podTerm) bool {
			_, there := n.label(t.topologyKey)
			return there && t.matches(c, p.Object)
		})
	})
}

// sampleSize is how many fitting nodes are enough to choose from (L2.11).
func (f *Profile) sampleSize(nodes int) int {
	const least = 100
	percentage := f.PercentageOfNodes
	if percentage == 0 {
		percentage = max(50-nodes/125, 5)
	}
	if nodes < least {
		return nodes
	}
	return max(nodes*percentage/100, least)
}

// Filters lists the filters that refused the pod on any node, each once: the pod is worth another
// attempt only after a change that concerns one of them (L2.5).
func (d Decision) Filters() []Filter {
	var filters []Filter
	if d.Conflict != "" {
		filters = append(filters, d.By)
	}
	if d.Excluded > 0 {
		filters = append(filters, NodeAffinity)
	}
	for _, f := range slices.Sorted(maps.Keys(d.summarize().filters)) {
		if !slices.Contains(filters, f) {
			filters = append(filters, f)
		}
	}
	return filters
}

// Message returns why no node fits, for the condition and the event (L2.40, L2.41). preemption is
// the message of Preempt, empty if it was not tried.
func (d Decision) Message(preemption string) string {
	if d.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	reasons := maps.Clone(d.summarize().reasons)
	reasons.add(d.Excluded, reasonExcluded)
	message := reasons.unavailable(d.Nodes)
	if d.Conflict != "" {
		message += " " + d.Conflict + "."
	}
	if preemption != "" {
		message += " preemption: " + preemption
	}
	return message
}

// tally counts the nodes that gave each reason.
type tally map[string]int

func (t tally) add(nodes int, reasons ...string) {
	if nodes == 0 {
		return
	}
	for _, r := range reasons {
		t[r] += nodes
	}
}

// unavailable formats the message: "0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods."
func (t tally) unavailable(nodes int) string {
	counted := make([]string, 0, len(t))
	for reason, n := range t { // any order: sorted below
		counted = append(counted, strconv.Itoa(n)+" "+reason)
	}
	slices.Sort(counted)
	message := fmt.Sprintf("0/%d nodes are available:", nodes)
	if len(counted) > 0 {
		message += " " + strings.Join(counted, ", ") + "."
	}
	return message
}
