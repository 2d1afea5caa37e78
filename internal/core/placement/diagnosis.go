package placement

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
)

// summary counts the refusals of a list.
type summary struct {
	filters map[Filter]int
	reasons tally
}

func summaryOf(refusals []NodeRefusal) *summary {
	s := &summary{map[Filter]int{}, tally{}}
	for i := range refusals {
		s.count(&refusals[i].Refusal, 1)
	}
	return s
}

// count adds a refusal, or removes it (by -1).
func (s *summary) count(r *Refusal, by int) {
	if s.filters[r.Filter] += by; s.filters[r.Filter] == 0 {
		delete(s.filters, r.Filter)
	}
	for _, reason := range r.Reasons {
		if s.reasons[reason] += by; s.reasons[reason] == 0 {
			delete(s.reasons, reason)
		}
	}
}

func (s *summary) clone() *summary { return &summary{maps.Clone(s.filters), maps.Clone(s.reasons)} }

// diagnosis is why the nodes refuse the pods of a group, with the summary. That of a group that depends on no other
// nodes is kept up to date, so a pod that fits nowhere costs little when few nodes have changed.
type diagnosis struct {
	refusals  []NodeRefusal // by Node.index; without a filter: the node accepts the pods
	summary   *summary
	accepting int // nodes
}

func (d *diagnosis) set(node int, r *Refusal) {
	old := &d.refusals[node].Refusal
	if old.Filter == "" {
		d.accepting--
	} else {
		d.summary.count(old, -1)
	}
	if r == nil {
		d.accepting++
		*old = Refusal{}
		return
	}
	d.summary.count(r, 1)
	*old = *r
}

// local reports whether the verdict of a node depends only on this node, its pods, and its reservations.
func (g *group) local() bool { return g.hard == nil && g.affinity == nil }

// denies returns why a node refuses the pods of a local group; nil if it does not.
func (g *group) denies(node int) *Refusal {
	if r := g.reserved[node]; r != nil {
		return r
	}
	if r := g.verdicts[node].refusal; r != nil {
		return r
	}
	return g.verdicts[node].features
}

// diagnose returns the refusal of each node for a pod that fits nowhere, and their summary, both valid until the next
// call. own is the node that does not count the pod's own reservation; -1 if there is none.
func (g *group) diagnose(c *Cluster, s *state, own int) ([]NodeRefusal, *summary) {
	if g.diagnosis == nil {
		d := &diagnosis{refusals: make([]NodeRefusal, len(c.nodes))}
		var ahead map[int][]*Pod
		if !g.local() {
			ahead = c.nominatedAhead(g.priority, "")
		}
		for i, n := range c.nodes {
			r := g.denies(i)
			if g.reserved[i] == nil && g.verdicts[i].refusal == nil {
				t := s.topology(i)
				if t == accepted && ahead[i] != nil {
					t = c.beside(s, n, ahead[i])
				}
				if t != accepted {
					r = t.refusal()
				}
			}
			if d.refusals[i].Node = n.Object.Name; r == nil {
				d.accepting++
			} else {
				d.refusals[i].Refusal = *r
			}
		}
		d.summary = summaryOf(d.refusals)
		delete(d.summary.filters, "")
		g.diagnosis = d
	}
	d := g.diagnosis
	if own < 0 {
		return d.refusals, d.summary
	}
	mine := &diagnosis{refusals: slices.Clone(d.refusals), summary: d.summary.clone(), accepting: d.accepting}
	mine.set(own, c.refusal(s, c.nodes[own]))
	return mine.refusals, mine.summary
}

// reserveFor makes the reservations those for pods of another priority.
func (g *group) reserveFor(c *Cluster, priority int32) {
	g.priority = priority
	before := len(g.reserved)
	clear(g.reserved)
	for name := range c.nominated { // any order: each node by itself
		if n := c.Node(name); n != nil {
			g.reserve(c, n)
		}
	}
	if before > 0 || len(g.reserved) > 0 || !g.local() && len(c.nominated) > 0 {
		g.diagnosis = nil
	}
}

// reserve evaluates the reservations on a node again.
func (g *group) reserve(c *Cluster, n *Node) {
	var refused *Refusal
	if ahead := c.reservationsFor(n, g.priority, ""); len(ahead) > 0 {
		refused = c.refusesBeside(g, g.pod, n, ahead)
	}
	switch {
	case refused == nil:
		delete(g.reserved, n.index)
	case g.reserved == nil:
		g.reserved = map[int]*Refusal{n.index: refused}
	default:
		g.reserved[n.index] = refused
	}
}

// refusesBeside returns why a node refuses a pod of the group as if the pods ahead were on it. Of a group that depends
// on other nodes, too, what depends on these is evaluated with each decision.
func (c *Cluster) refusesBeside(g *group, p *Pod, n *Node, ahead []*Pod) *Refusal {
	if r := n.with(ahead).refuses(p); r != nil {
		return r
	}
	if g.local() && c.repelled(p, n, ahead) {
		return othersAntiAffinity.refusal()
	}
	return nil
}

// ownReservation returns the node, by index, that refuses the pods of the group because of what is reserved, also for
// this pod itself, and whether it refuses because of what is reserved for others; -1 if there is none. For a group that
// depends on other nodes, it is the node that has the reservation, whether it refuses or not.
func (c *Cluster) ownReservation(g *group, p *Pod) (own int, others *Refusal) {
	name, ok := c.nominatedOn[p.Object.UID]
	if !ok {
		return -1, nil
	}
	n := c.Node(name)
	if n == nil || g.local() && g.reserved[n.index] == nil {
		return -1, nil
	}
	if ahead := c.reservations(n, p); len(ahead) > 0 {
		others = c.refusesBeside(g, p, n, ahead)
	}
	return n.index, others
}

// victimCache keeps the victims on each node for the pods of a local group.
type victimCache struct {
	budgets  string // version of the disruption budgets
	priority int32  // of the pods
	nodes    []*nodeVictims
}

// nodeVictims is the result of Cluster.victims.
type nodeVictims struct {
	found candidate
	why   *Refusal
}

func (v *victimCache) forget(node int) {
	if v != nil {
		v.nodes[node] = nil
	}
}

// knownVictims is victims with the results that are kept: those for a node stay until it changes.
func (c *Cluster) knownVictims(g *group, s *state, n *Node, users []*Pod, budgets []*policyv1.PodDisruptionBudget,
	version string) (candidate, *Refusal) {
	if len(users) > 0 || !g.local() || c.nominatedOn[s.pod.Object.UID] == n.Object.Name {
		return c.victims(s, n, users, budgets)
	}
	if v := g.victims; v == nil || v.budgets != version || v.priority != s.pod.Priority {
		g.victims = &victimCache{version, s.pod.Priority, make([]*nodeVictims, len(c.nodes))}
	}
	known := g.victims.nodes[n.index]
	if known == nil {
		known = &nodeVictims{}
		known.found, known.why = c.victims(s, n, nil, budgets)
		g.victims.nodes[n.index] = known
	}
	return known.found, known.why
}

// versionOf returns a text that differs when the budgets do.
func versionOf(budgets []*policyv1.PodDisruptionBudget) string {
	var b strings.Builder
	for _, budget := range budgets {
		b.WriteString(string(budget.UID))
		b.WriteByte('/')
		b.WriteString(budget.ResourceVersion)
		b.WriteByte('/')
		b.WriteString(strconv.Itoa(int(budget.Status.DisruptionsAllowed)))
		b.WriteByte(' ')
	}
	return b.String()
}
