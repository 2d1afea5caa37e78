package placement

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// state is what a decision knows of the whole cluster for its pod.
type state struct {
	pod      *Pod
	spread   *spreadState
	affinity *affinityState
}

func (c *Cluster) stateFor(p *Pod) *state {
	return &state{pod: p, spread: c.spreadState(p), affinity: c.affinityState(p)}
}

// Decision is where a pod goes, or why it can't go anywhere.
type Decision struct {
	Node     string // empty when no node fits
	Refusals []NodeRefusal
	Conflict string // why the pod fits no node whatever; Refusals is empty then
	Excluded int    // nodes that the pod's affinity doesn't name; they are not among Refusals
	Nodes    int    // how many there are
	Next     int    // where the next decision is to start looking
}

// NodeRefusal is the refusal of one node.
type NodeRefusal struct {
	Node string
	Refusal
}

// Decide finds the best node for a pod. start is Next of the last decision: in a
// large cluster only a part is looked at each time, all in turn (L2.11).
func (c *Cluster) Decide(p *Pod, start int) Decision {
	d := Decision{Nodes: len(c.nodes)}
	if len(c.nodes) == 0 {
		return d
	}
	d.Next = start % len(c.nodes)
	if p.nowhere {
		d.Conflict = reasonConflict
		return d
	}
	s := c.stateFor(p)
	if n := c.Node(p.Object.Status.NominatedNodeName); n != nil && c.refusal(s, n) == nil {
		d.Node = n.Object.Name
		return d
	}
	var feasible []*Node
	look := func(n *Node) {
		if r := c.refusal(s, n); r != nil {
			d.Refusals = append(d.Refusals, NodeRefusal{n.Object.Name, *r})
		} else {
			feasible = append(feasible, n)
		}
	}
	if p.only != nil {
		d.Excluded = len(c.nodes)
		for _, name := range p.only {
			if n := c.Node(name); n != nil {
				d.Excluded--
				look(n)
			}
		}
	} else {
		enough := p.profile.sampleSize(len(c.nodes))
		looked := 0
		for ; looked < len(c.nodes) && len(feasible) < enough; looked++ {
			look(c.nodes[(start+looked)%len(c.nodes)])
		}
		d.Next = (start + looked) % len(c.nodes)
	}
	if len(feasible) > 0 {
		d.Node, d.Refusals, d.Excluded = c.best(p, feasible).Object.Name, nil, 0
	}
	return d
}

// refusal filters one node, with the room that more important pods reserved there
// taken, and also without: what waits for one of them must not count on it.
func (c *Cluster) refusal(s *state, n *Node) *Refusal {
	if ahead := c.reservations(n, s.pod); len(ahead) > 0 {
		if r := s.filter(n.with(ahead)); r != nil {
			return r
		}
	}
	return s.filter(n)
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

// Filters lists what refused the pod anywhere, each once: the pod is worth
// another attempt only after a change that concerns one of them (L2.5).
func (d Decision) Filters() []Filter {
	var filters []Filter
	if d.Conflict != "" || d.Excluded > 0 {
		filters = append(filters, NodeAffinity)
	}
	for i := range d.Refusals {
		if !slices.Contains(filters, d.Refusals[i].Filter) {
			filters = append(filters, d.Refusals[i].Filter)
		}
	}
	return filters
}

// Message says why no node fits, as users see it in the condition and the event
// (L2.40, L2.41). preemption is what Preempt said, empty if it was not tried.
func (d Decision) Message(preemption string) string {
	if d.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	reasons := tally{}
	for i := range d.Refusals {
		reasons.add(1, d.Refusals[i].Reasons...)
	}
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

// unavailable is the text: "0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods."
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

// Gates returns the message of a pod that must not be scheduled yet, empty when it has no gates (L2.2).
func Gates(pod *corev1.Pod) string {
	if len(pod.Spec.SchedulingGates) == 0 {
		return ""
	}
	names := make([]string, 0, len(pod.Spec.SchedulingGates))
	for _, g := range pod.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return fmt.Sprintf("waiting for scheduling gates: %v", names)
}
