package placement

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// podTerm is one parsed term of pod affinity or anti-affinity.
type podTerm struct {
	selector    labels.Selector
	namespaces  []string        // by name
	inLabelled  labels.Selector // by label; nil when the term has none
	topologyKey string
	weight      int64 // of a preference; below zero repels
}

func podTerms(pod *corev1.Pod, terms []corev1.PodAffinityTerm) []podTerm {
	parsed := make([]podTerm, 0, len(terms))
	for i := range terms {
		parsed = append(parsed, parseTerm(pod, &terms[i], 0))
	}
	return parsed
}

func weightedTerms(pod *corev1.Pod, terms []corev1.WeightedPodAffinityTerm, sign int64) []podTerm {
	parsed := make([]podTerm, 0, len(terms))
	for i := range terms {
		if terms[i].Weight != 0 {
			parsed = append(parsed, parseTerm(pod, &terms[i].PodAffinityTerm, sign*int64(terms[i].Weight)))
		}
	}
	return parsed
}

func parseTerm(pod *corev1.Pod, term *corev1.PodAffinityTerm, weight int64) podTerm {
	t := podTerm{selector: selectorOf(term.LabelSelector), namespaces: term.Namespaces, topologyKey: term.TopologyKey,
		weight: weight}
	if term.NamespaceSelector != nil {
		t.inLabelled = selectorOf(term.NamespaceSelector)
	} else if len(term.Namespaces) == 0 {
		t.namespaces = []string{pod.Namespace}
	}
	return t
}

// matches reports whether the term selects the pod.
func (t *podTerm) matches(c *Cluster, pod *corev1.Pod) bool {
	in := slices.Contains(t.namespaces, pod.Namespace) ||
		t.inLabelled != nil && t.inLabelled.Matches(labels.Set(c.namespaces[pod.Namespace]))
	return in && t.selector.Matches(labels.Set(pod.Labels))
}

// affinityState counts, for one incoming pod, the pods that attract or repel it in
// each domain.
type affinityState struct {
	cluster  *Cluster
	pod      *Pod
	affine   keyed // pods that meet all required terms of the incoming pod
	anti     keyed // pods that a required anti-affinity term of the incoming pod selects
	repelled keyed // pods whose own anti-affinity selects the incoming pod
	selfMeet bool  // the incoming pod meets its own required terms
}

func (c *Cluster) affinityState(p *Pod) *affinityState {
	none := len(p.affinity) == 0 && len(p.antiAffinity) == 0 && len(c.antiAffine) == 0
	if none || !p.profile.enables(InterPodAffinity) {
		return nil
	}
	s := &affinityState{cluster: c, pod: p, selfMeet: meetsAll(c, p.affinity, p.Object)}
	unknown := false
	for i := range p.affinity {
		key := p.affinity[i].topologyKey
		if known := c.hasDomains(key); known || !unknown { // one key that no node has is enough to refuse all nodes
			s.affine.by(c, key)
			unknown = unknown || !known
		}
	}
	for _, other := range c.antiAffine {
		s.countTheirs(other, other.node, 1)
	}
	if len(p.affinity) > 0 { // a pod that meets all terms meets the first one
		c.eachNamed(&p.affinity[0], func(other *Pod) { s.countAffine(other, other.node, 1) })
	}
	for i := range p.antiAffinity {
		c.eachNamed(&p.antiAffinity[i], func(other *Pod) { s.countAnti(i, other, other.node, 1) })
	}
	return s
}

// eachNamed calls f once for each pod that the term may select: the candidates of selected in its namespaces.
func (c *Cluster) eachNamed(t *podTerm, f func(other *Pod)) {
	names := slices.Clone(t.namespaces)
	if t.inLabelled != nil {
		for _, name := range slices.Sorted(maps.Keys(c.byNamespace)) {
			if t.inLabelled.Matches(labels.Set(c.namespaces[name])) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	for _, namespace := range slices.Compact(names) {
		for _, other := range c.selected(namespace, t.selector) {
			f(other)
		}
	}
}

func meetsAll(c *Cluster, terms []podTerm, pod *corev1.Pod) bool {
	for i := range terms {
		if !terms[i].matches(c, pod) {
			return false
		}
	}
	return len(terms) > 0
}

// count adds another pod on a node to the counts, or removes it.
func (s *affinityState) count(other *Pod, n *Node, by int64) {
	if s != nil && n.Object != nil {
		s.countTheirs(other, n, by)
		s.countOurs(other, n, by)
	}
}

func (s *affinityState) countTheirs(other *Pod, n *Node, by int64) {
	if n.Object == nil {
		return
	}
	for i := range other.antiAffinity {
		if other.antiAffinity[i].matches(s.cluster, s.pod.Object) {
			s.repelled.add(s.cluster, other.antiAffinity[i].topologyKey, n, by)
		}
	}
}

func (s *affinityState) countOurs(other *Pod, n *Node, by int64) {
	s.countAffine(other, n, by)
	for i := range s.pod.antiAffinity {
		s.countAnti(i, other, n, by)
	}
}

func (s *affinityState) countAffine(other *Pod, n *Node, by int64) {
	terms := s.pod.affinity
	if n.Object == nil || !meetsAll(s.cluster, terms, other.Object) {
		return
	}
	for i := range terms {
		s.affine.add(s.cluster, terms[i].topologyKey, n, by)
	}
}

// countAnti is count for one term of the pod's anti-affinity.
func (s *affinityState) countAnti(i int, other *Pod, n *Node, by int64) {
	if term := &s.pod.antiAffinity[i]; n.Object != nil && term.matches(s.cluster, other.Object) {
		s.anti.add(s.cluster, term.topologyKey, n, by)
	}
}

// filter applies required affinity both ways (L2.27).
func (s *affinityState) filter(node int) denial {
	if s == nil {
		return accepted
	}
	if !s.attracted(node) {
		return affinityUnmet
	}
	for _, k := range s.anti {
		if k.at(node) > 0 {
			return antiAffinityMet
		}
	}
	for _, k := range s.repelled {
		if k.at(node) > 0 {
			return othersAntiAffinity
		}
	}
	return accepted
}

// attracted reports whether every required term is met in the node's domains. The
// first pod of a group that is affine to itself may start anywhere.
func (s *affinityState) attracted(node int) bool {
	met, none := true, true
	for _, k := range s.affine {
		if k.of[node] < 0 {
			return false
		}
		met = met && k.in[k.of[node]] > 0
		none = none && k.nonzero == 0
	}
	return met || none && s.selfMeet
}

// attraction holds the sums of the preferences for each domain: those of one incoming pod and those
// of running pods.
type attraction struct {
	cluster *Cluster
	pod     *Pod
	sums    keyed
}

// attraction returns nil if no pod has a preference.
func (c *Cluster) attraction(p *Pod) *attraction {
	if len(p.attractions) == 0 && len(c.attracting) == 0 || p.profile.Weights.PodAffinity == 0 {
		return nil
	}
	a := &attraction{cluster: c, pod: p}
	for i := range p.attractions {
		c.eachNamed(&p.attractions[i], func(other *Pod) {
			a.add(p.attractions[i:i+1], other.Object, other.node, 0, 1)
		})
	}
	for _, other := range c.attracting {
		a.countTheirs(other, other.node, 1)
	}
	return a
}

// count adds another pod on a node to the sums, or removes it.
func (a *attraction) count(other *Pod, n *Node, by int64) {
	if a != nil {
		a.add(a.pod.attractions, other.Object, n, 0, by)
		a.countTheirs(other, n, by)
	}
}

func (a *attraction) countTheirs(other *Pod, n *Node, by int64) {
	p, f := a.pod, a.pod.profile
	if !f.IgnoreOthersPreferences || len(p.attractions) > 0 || len(p.affinity) > 0 || len(p.antiAffinity) > 0 {
		a.add(other.attractions, p.Object, n, 0, by)
	}
	if f.HardPodAffinityWeight > 0 {
		a.add(other.affinity, p.Object, n, f.HardPodAffinityWeight, by)
	}
}

func (a *attraction) add(terms []podTerm, named *corev1.Pod, n *Node, fixed, by int64) {
	for i := range terms {
		if n.Object == nil || !terms[i].matches(a.cluster, named) {
			continue
		}
		weight := terms[i].weight
		if fixed != 0 {
			weight = fixed
		}
		a.sums.add(a.cluster, terms[i].topologyKey, n, by*weight)
	}
}

// addScores gives the most attractive node 100, the least attractive one 0.
func (a *attraction) addScores(total []int64, nodes []int, weight int64) {
	if a == nil || len(a.sums) == 0 {
		return
	}
	sums := make([]int64, len(nodes))
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for i, n := range nodes {
		for _, k := range a.sums {
			sums[i] += k.at(n)
		}
		low, high = min(low, sums[i]), max(high, sums[i])
	}
	if high == low {
		return
	}
	for i := range sums {
		total[i] += weight * int64(maxScore*float64(sums[i]-low)/float64(high-low))
	}
}
