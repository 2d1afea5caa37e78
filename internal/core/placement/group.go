package placement

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// state is the cluster-wide state of a decision for its pod.
type state struct {
	pod      *Pod
	hard     *spreadState
	affinity *affinityState
}

// group caches results for pods with the same requirements: the verdict of each node, and the
// counts of each domain. It is updated by the changes since its last decision, so that a decision
// costs little for a node that did not change.
type group struct {
	state
	soft       *spreadState
	attraction *attraction
	verdicts   []verdict // by Node.index

	key    string
	at     uint64 // number of applied changes
	shape  uint64 // Cluster.shape when it was made
	used   uint64 // Cluster.uses at its last decision
	images []string

	diagnosis *diagnosis       // nil: not known for the current state
	reserved  map[int]*Refusal // by Node.index: nodes that refuse because of resources reserved for others
	priority  int32            // of the pods that reserved is for
	victims   *victimCache
}

// verdict is the result of one node for the pods of a group.
type verdict struct {
	refusal  *Refusal // of the filters that depend on the node only
	features *Refusal // of NodeDeclaredFeatures, which runs last
	own      int64    // the part of the score that does not depend on other nodes
	disliked int64
	liked    int64
	hash     uint64 // of the node
}

// change is one entry of the Cluster's log: a pod that was added to a node (by 1) or removed from
// it (by -1), or, without a pod, a node that changed.
type change struct {
	node *Node
	pod  *Pod
	by   int64
}

// The limits of the cache.
const (
	maxGroups   = 128
	maxVerdicts = 2 << 20 // in all groups
	maxChanges  = 1 << 14
	minChanges  = 64
)

// note logs a change.
func (c *Cluster) note(n *Node, p *Pod, by int64) {
	if n.Object == nil {
		return // it is counted when the node is added, which changes the shape
	}
	if most := c.mostChanges(); len(c.changes) >= most {
		c.dropChanges(len(c.changes) - most/2)
	}
	c.changes = append(c.changes, change{n, p, by})
}

// mostChanges limits the length of the log. The log keeps deleted pods in memory, and building a group anew
// costs no more than reading one change per node and pod.
func (c *Cluster) mostChanges() int {
	return min(max(len(c.nodes)+len(c.pods), minChanges), maxChanges)
}

// dropChanges drops the oldest changes of the log. Groups that lack one of them are built anew.
func (c *Cluster) dropChanges(n int) {
	c.changes = slices.Delete(c.changes, 0, n)
	c.dropped += uint64(n)
}

// reshape invalidates all groups: nodes were added or removed, or their labels or taints have changed.
func (c *Cluster) reshape() {
	c.shape++
	clear(c.topologies)
	c.nodeLabels = nil
}

// groupOf returns the group of a pod, up to date.
func (c *Cluster) groupOf(p *Pod) *group {
	key := c.keyOf(p)
	g := c.groups[key]
	if g == nil || g.shape != c.shape || g.at < c.dropped {
		g = c.newGroup(p, key)
		c.groups[key] = g
	}
	c.uses++
	g.used = c.uses
	c.forget() // after use: the group of p is the last to go
	if g.priority != p.Priority {
		g.reserveFor(c, p.Priority)
	}
	if g.at != c.dropped+uint64(len(c.changes)) && !g.local() {
		g.diagnosis = nil
	}
	for _, ch := range c.changes[g.at-c.dropped:] {
		g.hard.countChange(ch)
		g.soft.countChange(ch)
		if ch.pod != nil {
			g.affinity.count(ch.pod, ch.node, ch.by)
			g.attraction.count(ch.pod, ch.node, ch.by)
		}
		g.query(c, ch.node)
	}
	g.at = c.dropped + uint64(len(c.changes))
	return g
}

func (s *spreadState) countChange(ch change) {
	if ch.pod != nil {
		s.count(ch.pod, ch.node, ch.by)
	}
}

func (c *Cluster) newGroup(p *Pod, key string) *group {
	g := &group{state: *c.stateFor(p), soft: c.spreadState(p, false), attraction: c.attraction(p), key: key,
		priority: p.Priority,
		shape:    c.shape,
		at:       c.dropped + uint64(len(c.changes)), verdicts: make([]verdict, len(c.nodes))}
	for _, list := range [][]corev1.Container{p.Object.Spec.InitContainers, p.Object.Spec.Containers} {
		for i := range list {
			g.images = append(g.images, taggedName(list[i].Image))
		}
	}
	for _, n := range c.nodes {
		g.query(c, n)
	}
	return g
}

// query evaluates a node again for the pods of the group.
func (g *group) query(c *Cluster, n *Node) {
	v := &g.verdicts[n.index]
	*v = verdict{refusal: n.refuses(g.pod), features: n.lacksFeatures(g.pod), hash: n.hash}
	if v.refusal == nil && v.features == nil {
		v.own = c.ownScore(g.pod, n)
		v.disliked = disliked(n.Object.Spec.Taints, g.pod.Object)
		v.liked = g.pod.liking(n)
	}
	g.reserve(c, n)
	g.victims.forget(n.index)
	if g.diagnosis != nil {
		g.diagnosis.set(n.index, g.denies(n.index))
	}
}

// forget removes the groups that were not used for the longest time.
func (c *Cluster) forget() {
	for len(c.groups) > 1 && (len(c.groups) > maxGroups || len(c.groups)*len(c.nodes) > maxVerdicts) {
		// any order: no two groups have the same number of use
		oldest := slices.MinFunc(slices.Collect(maps.Values(c.groups)),
			func(a, b *group) int { return cmp.Compare(a.used, b.used) })
		delete(c.groups, oldest.key)
	}
}

func (c *Cluster) stateFor(p *Pod) *state {
	return &state{pod: p, hard: c.spreadState(p, true), affinity: c.affinityState(p)}
}

// keyOf returns the key of a pod's group: everything in the pod that a decision reads.
func (c *Cluster) keyOf(p *Pod) string {
	if p.requirements == "" {
		p.requirements, p.company = requirementsOf(p), companyOf(p)
	}
	named := len(p.affinity)+len(p.antiAffinity)+len(p.attractions)+len(p.hardSpread)+len(p.softSpread) > 0
	company := ""
	if len(c.antiAffine) > 0 {
		company = "|repelled" // a group that was made without such pods counts none
	}
	if len(c.attracting) > 0 {
		company += "|attracted"
	}
	if c.repelling > 0 {
		company += "|reserved"
	}
	if named || company != "" || hasHard(p.profile.DefaultSpread) {
		company += p.company
	}
	return p.requirements + company + c.siblingsKey(p)
}

func hasHard(constraints []corev1.TopologySpreadConstraint) bool {
	return slices.ContainsFunc(constraints,
		func(t corev1.TopologySpreadConstraint) bool { return t.WhenUnsatisfiable == corev1.DoNotSchedule })
}

// siblingsKey is a key for the pods that p is spread from by default.
func (c *Cluster) siblingsKey(p *Pod) string {
	if len(p.Object.Spec.TopologySpreadConstraints) > 0 || len(c.services[p.Object.Namespace]) == 0 &&
		p.controller == (Owner{}) {
		return ""
	}
	if p.siblingsAt != c.owners || p.siblings == nil {
		p.siblingsAt = c.owners
		s := "|" + p.Object.Namespace
		if selector := c.siblings(p); selector != nil {
			s += "|" + selector.String()
		}
		p.siblings = &s
	}
	return *p.siblings
}

// requirementsOf returns the requirements of a pod that depend on a single node.
func requirementsOf(p *Pod) string {
	pod := p.Object
	var b strings.Builder
	text := func(s string) { b.WriteString(strconv.Itoa(len(s))); b.WriteByte(':'); b.WriteString(s) }
	number := func(n int64) { b.WriteString(strconv.FormatInt(n, 10)); b.WriteByte(';') }
	text(p.profile.Name)
	text(pod.Spec.NodeName)
	d := &p.Demand
	for _, n := range []int64{d.MilliCPU, d.Memory, d.EphemeralStorage, d.ScoreMilliCPU, d.ScoreMemory,
		int64(len(d.Scalars))} {
		number(n)
	}
	for _, s := range d.Scalars {
		text(string(s.Name))
		number(s.Value)
	}
	number(int64(len(p.byClass)))
	for _, name := range p.byClass {
		text(string(name))
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		number(int64(len(list)))
		for i := range list {
			text(list[i].Image)
		}
	}
	number(int64(len(p.Ports)))
	for _, h := range p.Ports {
		text(string(h.Protocol))
		text(h.IP)
		number(int64(h.Port))
	}
	text(p.features.String())
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		text(key)
		text(pod.Spec.NodeSelector[key])
	}
	number(int64(len(pod.Spec.Tolerations)))
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		for _, s := range []string{t.Key, string(t.Operator), t.Value, string(t.Effect)} {
			text(s)
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		text(asText(a.NodeAffinity))
	}
	return b.String()
}

// companyOf returns the rules of a pod about other pods, and the facts that rules of others use.
func companyOf(p *Pod) string {
	pod := p.Object
	type company struct {
		Namespace string
		Labels    map[string]string
		Affinity  *corev1.PodAffinity
		Anti      *corev1.PodAntiAffinity
		Spread    []corev1.TopologySpreadConstraint
	}
	c := company{Namespace: pod.Namespace, Labels: pod.Labels, Spread: pod.Spec.TopologySpreadConstraints}
	if a := pod.Spec.Affinity; a != nil {
		c.Affinity, c.Anti = a.PodAffinity, a.PodAntiAffinity
	}
	return "|" + asText(c)
}

func asText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("placement: a value of the API that cannot be encoded: " + err.Error())
	}
	return string(b)
}
