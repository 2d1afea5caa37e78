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
	hard         bool // DoNotSchedule
	selector     labels.Selector
	honourLabels bool // nodes the pod can't go to by selector don't count
	honourTaints bool // nodes the pod can't go to by taint don't count
}

func spreadConstraints(pod *corev1.Pod) []spreadConstraint {
	var parsed []spreadConstraint
	for i := range pod.Spec.TopologySpreadConstraints {
		t := &pod.Spec.TopologySpreadConstraints[i]
		c := spreadConstraint{
			key:          t.TopologyKey,
			maxSkew:      int(t.MaxSkew),
			minDomains:   1,
			hard:         t.WhenUnsatisfiable == corev1.DoNotSchedule,
			selector:     selectorOf(withMatchLabelKeys(t, pod.Labels)),
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

// spreadState counts matching pods in every domain of each constraint that
// filters, for one incoming pod.
type spreadState struct {
	pod    *Pod
	counts []map[string]int // for each constraint of the pod: domain to matching pods; nil for soft ones
}

func (c *Cluster) spreadState(p *Pod) *spreadState {
	hard := false
	for i := range p.spread {
		hard = hard || p.spread[i].hard
	}
	if !hard {
		return nil
	}
	s := &spreadState{pod: p, counts: make([]map[string]int, len(p.spread))}
	for i := range p.spread {
		if p.spread[i].hard {
			s.counts[i] = c.domains(p, i)
		}
	}
	return s
}

// domains counts the matching pods in every domain that eligible nodes form;
// domains without such pods stand with 0.
func (c *Cluster) domains(p *Pod, i int) map[string]int {
	counts := map[string]int{}
	for _, n := range c.nodes {
		if value, ok := n.label(p.spread[i].key); ok && p.eligible(i, n) {
			counts[value] += 0
		}
	}
	for _, other := range c.byNamespace[p.Object.Namespace] {
		if domain, ok := p.counted(i, other, other.node); ok {
			counts[domain]++
		}
	}
	return counts
}

// eligible reports whether the constraint looks at the node: it has all
// topology keys of constraints of the same strictness, and inclusion policies allow it.
func (p *Pod) eligible(i int, n *Node) bool {
	c := &p.spread[i]
	for j := range p.spread {
		if p.spread[j].hard == c.hard {
			if _, ok := n.label(p.spread[j].key); !ok {
				return false
			}
		}
	}
	if c.honourLabels && !matchesNode(p, n.Object) {
		return false
	}
	return !c.honourTaints || !untolerated(n.Object.Spec.Taints, p.Object, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
}

// counted reports whether constraint i counts the other pod, and in which domain. Pods that end don't count.
func (p *Pod) counted(i int, other *Pod, n *Node) (string, bool) {
	if n.Object == nil || other.Object.Namespace != p.Object.Namespace || other.Object.DeletionTimestamp != nil ||
		!p.spread[i].selector.Matches(labels.Set(other.Object.Labels)) {
		return "", false
	}
	domain, ok := n.label(p.spread[i].key)
	return domain, ok && p.eligible(i, n)
}

// count takes another pod on a node in or out of the counts.
func (s *spreadState) count(other *Pod, n *Node, by int) {
	if s == nil {
		return
	}
	for i := range s.counts {
		if s.counts[i] == nil {
			continue
		}
		if domain, ok := s.pod.counted(i, other, n); ok {
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
		c := &s.pod.spread[i]
		if !c.hard {
			continue
		}
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
// many; nil when the pod has no soft constraint. A node without a key is rated -1.
func (c *Cluster) unevenness(p *Pod, nodes []*Node) []float64 {
	var rates []float64
	for i := range p.spread {
		if p.spread[i].hard {
			continue
		}
		if rates == nil {
			rates = make([]float64, len(nodes))
		}
		counts := c.domains(p, i)
		weight := math.Log(float64(len(counts) + 2))
		for j, n := range nodes {
			domain, ok := n.label(p.spread[i].key)
			if !ok || rates[j] < 0 {
				rates[j] = -1
				continue
			}
			rates[j] += float64(counts[domain])*weight + float64(p.spread[i].maxSkew-1)
		}
	}
	return rates
}
