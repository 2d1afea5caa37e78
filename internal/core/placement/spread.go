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
func spreadConstraints(all []corev1.TopologySpreadConstraint, podLabels map[string]string, when corev1.UnsatisfiableConstraintAction) []spreadConstraint {
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
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
		}
	}
	return s
}

// spreading is how a pod is to be spread: its constraints of one strictness.
type spreading struct {
	pod         *Pod
	constraints []spreadConstraint
	allKeys     bool // a node that lacks one of the keys takes no part
}

// spreadOf returns the constraints of a pod that filter, or those that only score:
// its own, or the default ones if it has none at all.
func (c *Cluster) spreadOf(p *Pod, hard bool) spreading {
	own := len(p.Object.Spec.TopologySpreadConstraints) > 0
	switch {
	case hard && !p.profile.asks(PodTopologySpread), !hard && p.profile.Weights.Spread == 0:
		return spreading{pod: p}
	case !own:
		return spreading{p, c.defaultSpread(p, hard), hard || !p.profile.SpreadUnlabelled}
	case hard:
		return spreading{p, p.hardSpread, true}
	default:
		return spreading{p, p.softSpread, true}
	}
}

// spreadState counts matching pods in every domain of each constraint that
// filters, for one incoming pod.
type spreadState struct {
	spreading
	counts []map[string]int // for each constraint: domain to matching pods
}

func (c *Cluster) spreadState(p *Pod) *spreadState {
	s := &spreadState{spreading: c.spreadOf(p, true)}
	if len(s.constraints) == 0 {
		return nil
	}
	for i := range s.constraints {
		s.counts = append(s.counts, c.domains(s.spreading, i))
	}
	return s
}

// domains counts the matching pods in every domain that eligible nodes form;
// domains without such pods stand with 0.
func (c *Cluster) domains(s spreading, i int) map[string]int {
	counts := map[string]int{}
	for _, n := range c.nodes {
		if value, ok := n.label(s.constraints[i].key); ok && s.eligible(i, n) {
			counts[value] += 0
		}
	}
	for _, other := range c.byNamespace[s.pod.Object.Namespace] {
		if domain, ok := s.counted(i, other, other.node); ok {
			counts[domain]++
		}
	}
	return counts
}

// eligible reports whether the constraint looks at the node: it has all topology
// keys, and inclusion policies allow it.
func (s spreading) eligible(i int, n *Node) bool {
	c := &s.constraints[i]
	if s.allKeys && !s.hasKeys(n) || c.honourLabels && !matchesNode(s.pod, n.Object) {
		return false
	}
	return !c.honourTaints || !untolerated(n.Object.Spec.Taints, s.pod.Object, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
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

// counted reports whether constraint i counts the other pod, and in which domain. Pods that end don't count.
func (s spreading) counted(i int, other *Pod, n *Node) (string, bool) {
	if n.Object == nil || other.Object.Namespace != s.pod.Object.Namespace || other.Object.DeletionTimestamp != nil ||
		!s.constraints[i].selector.Matches(labels.Set(other.Object.Labels)) {
		return "", false
	}
	domain, ok := n.label(s.constraints[i].key)
	return domain, ok && s.eligible(i, n)
}

// count takes another pod on a node in or out of the counts.
func (s *spreadState) count(other *Pod, n *Node, by int) {
	if s == nil {
		return
	}
	for i := range s.counts {
		if domain, ok := s.counted(i, other, n); ok {
			s.counts[i][domain] += by
		}
	}
}

// filter refuses a node that would make the domains too uneven (L2.26).
func (s *spreadState) filter(n *Node) *Refusal {
	if s == nil {
		return nil
	}
	for i := range s.counts {
		c := &s.constraints[i]
		domain, ok := n.label(c.key)
		if !ok {
			return &Refusal{Filter: PodTopologySpread, Reasons: []string{reasonSpreadLabel}}
		}
		least := math.MaxInt
		for _, count := range s.counts[i] { // any order: the least of all
			least = min(least, count)
		}
		if len(s.counts[i]) < c.minDomains || len(s.counts[i]) == 0 {
			least = 0
		}
		self := 0
		if c.selector.Matches(labels.Set(s.pod.Object.Labels)) {
			self = 1
		}
		if s.counts[i][domain]+self-least > c.maxSkew {
			return &Refusal{Filter: PodTopologySpread, Reasons: []string{reasonSpread}, Curable: true}
		}
	}
	return nil
}

// unevenness rates each feasible node by how many matching pods its domains hold
// already, weighted so that a key with few domains counts as much as one with
// many; nil when the pod has no soft constraint. A node that the constraints don't
// look at is rated -1.
func (c *Cluster) unevenness(p *Pod, nodes []*Node) []float64 {
	s := c.spreadOf(p, false)
	if len(s.constraints) == 0 {
		return nil
	}
	rates := make([]float64, len(nodes))
	for j, n := range nodes {
		if s.allKeys && !s.hasKeys(n) {
			rates[j] = -1
		}
	}
	for i := range s.constraints {
		counts := c.domains(s, i)
		domains := map[string]bool{} // among the feasible nodes
		for j, n := range nodes {
			if rates[j] >= 0 {
				domain, _ := n.label(s.constraints[i].key)
				domains[domain] = true
			}
		}
		weight := math.Log(float64(len(domains) + 2))
		for j, n := range nodes {
			if domain, ok := n.label(s.constraints[i].key); ok && rates[j] >= 0 {
				rates[j] += float64(counts[domain])*weight + float64(s.constraints[i].maxSkew-1)
			}
		}
	}
	for j := range rates {
		rates[j] = math.Round(rates[j])
	}
	return rates
}
