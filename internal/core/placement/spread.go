package placement

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// spreadConstraint is one parsed topology spread constraint.
type spreadConstraint struct {
	key          string
	maxSkew      int
	minDomains   int
	selector     labels.Selector
	honourLabels bool // nodes the pod can't go to by selector don't count
	honourTaints bool // nodes the pod can't go to by taint don't count
}

// spreadConstraints parses the constraints of one strictness.
func spreadConstraints(all []corev1.TopologySpreadConstraint, podLabels map[string]string,
	when corev1.UnsatisfiableConstraintAction) []spreadConstraint {
	var parsed []spreadConstraint
	for i := range all {
		t := &all[i]
		if t.WhenUnsatisfiable != when {
			continue
		}
		c := spreadConstraint{
			key:          t.TopologyKey,
			maxSkew:      int(t.MaxSkew),
			minDomains:   1,
			selector:     selectorOf(withMatchLabelKeys(t, podLabels)),
			honourLabels: t.NodeAffinityPolicy == nil || *t.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor,
			honourTaints: t.NodeTaintsPolicy != nil && *t.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor,
		}
		if t.MinDomains != nil {
			c.minDomains = int(*t.MinDomains)
		}
		parsed = append(parsed, c)
	}
	return parsed
}

// withMatchLabelKeys narrows the selector to pods that share the named labels with the incoming one.
func withMatchLabelKeys(t *corev1.TopologySpreadConstraint, podLabels map[string]string) *metav1.LabelSelector {
	if len(t.MatchLabelKeys) == 0 || t.LabelSelector == nil {
		return t.LabelSelector
	}
	s := t.LabelSelector.DeepCopy()
	for _, key := range t.MatchLabelKeys {
		if value, ok := podLabels[key]; ok {
			s.MatchExpressions = append(s.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
		}
	}
	return s
}

// spreading is how a pod is to be spread: its constraints of one strictness.
type spreading struct {
	pod         *Pod
	constraints []spreadConstraint
	allKeys     bool // a node that lacks one of the keys is not considered
}

// spreadOf returns the constraints of a pod that filter, or those that only score:
// its own, or the default ones if it has none at all.
func (c *Cluster) spreadOf(p *Pod, hard bool) spreading {
	own := len(p.Object.Spec.TopologySpreadConstraints) > 0
	switch {
	case hard && !p.profile.enables(PodTopologySpread), !hard && p.profile.Weights.Spread == 0:
		return spreading{pod: p}
	case !own:
		return spreading{p, c.defaultSpread(p, hard), hard || !p.profile.SpreadUnlabelled}
	case hard:
		return spreading{p, p.hardSpread, true}
	default:
		return spreading{p, p.softSpread, true}
	}
}

// spreadState counts, for the constraints of one strictness of one incoming pod, the
// matching pods in every domain.
type spreadState struct {
	spreading
	counts []domainCounts // for each constraint
}

// domainCounts are the counts of one constraint.
type domainCounts struct {
	*counts
	looks   []bool // by Node.index: the node counts for the constraint
	present []bool // by domain: it has such a node
	domains int    // that are present
	least   int64  // of the counts of present domains
	stale   bool   // least is to be computed again
	self    int64  // 1 when the incoming pod counts itself
}

func (c *Cluster) spreadState(p *Pod, hard bool) *spreadState {
	s := &spreadState{spreading: c.spreadOf(p, hard)}
	if len(s.constraints) == 0 {
		return nil
	}
	for i := range s.constraints {
		k := newCounts(c.topology(s.constraints[i].key))
		d := domainCounts{counts: k, looks: make([]bool, len(c.nodes)), present: make([]bool, k.n), stale: true}
		if s.constraints[i].selector.Matches(labels.Set(p.Object.Labels)) {
			d.self = 1
		}
		for _, n := range c.nodes {
			if d.looks[n.index] = s.eligible(i, n); !d.looks[n.index] {
				continue
			}
			if number := k.of[n.index]; number >= 0 && !d.present[number] {
				d.present[number] = true
				d.domains++
			}
		}
		s.counts = append(s.counts, d)
	}
	for i := range s.counts {
		for _, other := range c.selected(p.Object.Namespace, s.constraints[i].selector) {
			s.countIn(i, other, other.node, 1)
		}
	}
	return s
}

// eligible reports whether a node counts for the constraint: it has all topology keys, and
// inclusion policies allow it.
func (s spreading) eligible(i int, n *Node) bool {
	c := &s.constraints[i]
	if s.allKeys && !s.hasKeys(n) || c.honourLabels && !matchesNode(s.pod, n.Object) {
		return false
	}
	return !c.honourTaints || !untolerated(n.Object.Spec.Taints, s.pod.Object, corev1.TaintEffectNoSchedule,
		corev1.TaintEffectNoExecute)
}

// hasKeys reports whether the node has the topology keys of all constraints.
func (s spreading) hasKeys(n *Node) bool {
	for i := range s.constraints {
		if _, ok := n.label(s.constraints[i].key); !ok {
			return false
		}
	}
	return true
}

// count adds another pod on a node to the counts, or removes it. Pods that end don't count.
func (s *spreadState) count(other *Pod, n *Node, by int64) {
	if s == nil || other.Object.Namespace != s.pod.Object.Namespace {
		return
	}
	for i := range s.counts {
		s.countIn(i, other, n, by)
	}
}

// countIn is count for one constraint, and a pod of the namespace.
func (s *spreadState) countIn(i int, other *Pod, n *Node, by int64) {
	if n.Object == nil || other.Object.DeletionTimestamp != nil {
		return
	}
	k := &s.counts[i]
	if k.looks[n.index] && s.constraints[i].selector.Matches(labels.Set(other.Object.Labels)) && k.add(n, by) {
		k.stale = true
	}
}

// minimum is the least count of a domain, 0 while there are fewer domains than minDomains.
func (k *domainCounts) minimum(minDomains int) int64 {
	if k.domains < minDomains || k.domains == 0 {
		return 0
	}
	if k.stale {
		k.least, k.stale = math.MaxInt64, false
		for d, count := range k.in {
			if k.present[d] {
				k.least = min(k.least, count)
			}
		}
	}
	return k.least
}

// filter refuses a node that would make the domains too uneven (L2.26).
func (s *spreadState) filter(node int) denial {
	if s == nil {
		return accepted
	}
	for i := range s.counts {
		c, k := &s.constraints[i], &s.counts[i]
		if k.of[node] < 0 {
			return spreadLabel
		}
		if k.at(node)+k.self-k.minimum(c.minDomains) > int64(c.maxSkew) {
			return spreadSkew
		}
	}
	return accepted
}

// addScores rates each feasible node by how many matching pods its domains hold already, weighted
// so that a key with few domains counts as much as one with many, and gives the emptiest domains
// 100. Nodes that do not count for the constraints get 0.
func (s *spreadState) addScores(total []int64, nodes []int, weight int64) {
	if s == nil {
		return
	}
	rates := make([]float64, len(nodes))
	if s.allKeys {
		for j, n := range nodes {
			for i := range s.counts {
				if s.counts[i].of[n] < 0 {
					rates[j] = -1
				}
			}
		}
	}
	for i := range s.counts {
		k := &s.counts[i]
		seen := make([]bool, k.n+1) // the last one is for nodes without the label
		domains := 0
		for j, n := range nodes {
			d := k.of[n]
			if d < 0 {
				d = k.n
			}
			if rates[j] >= 0 && !seen[d] {
				seen[d] = true
				domains++
			}
		}
		factor := math.Log(float64(domains + 2))
		for j, n := range nodes {
			if rates[j] >= 0 && k.of[n] >= 0 {
				rates[j] += float64(k.at(n))*factor + float64(s.constraints[i].maxSkew-1)
			}
		}
	}
	low, high := math.Inf(1), 0.0
	for j, r := range rates {
		if r >= 0 {
			rates[j] = math.Round(r)
			low, high = min(low, rates[j]), max(high, rates[j])
		}
	}
	for j, r := range rates {
		switch {
		case r < 0:
		case high == 0:
			total[j] += weight * maxScore
		default:
			total[j] += weight * int64(maxScore*(high+low-r)/high)
		}
	}
}
