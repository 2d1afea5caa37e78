package placement

import (
	"maps"
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
	t := podTerm{selector: selectorOf(term.LabelSelector), namespaces: term.Namespaces, topologyKey: term.TopologyKey, weight: weight}
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

// place is one value of one topology key: a zone, a host.
type place struct{ key, value string }

// affinityState counts, for one incoming pod, the pods that attract or repel it
// in each place. It is made once for a decision.
type affinityState struct {
	cluster  *Cluster
	affine   map[place]int // pods that meet all required terms of the incoming pod
	anti     map[place]int // pods that a required anti-affinity term of the incoming pod names
	repelled map[place]int // pods whose own anti-affinity names the incoming pod
	selfMeet bool          // the incoming pod meets its own required terms
}

func (c *Cluster) affinityState(p *Pod) *affinityState {
	if len(p.affinity) == 0 && len(p.antiAffinity) == 0 && len(c.antiAffine) == 0 || !p.profile.asks(InterPodAffinity) {
		return nil
	}
	s := &affinityState{cluster: c, affine: map[place]int{}, anti: map[place]int{}, repelled: map[place]int{}}
	s.selfMeet = meetsAll(c, p.affinity, p.Object)
	for _, other := range c.antiAffine {
		s.count(p, other, other.node, 1, true, false)
	}
	if len(p.affinity) > 0 || len(p.antiAffinity) > 0 {
		for _, namespace := range c.namespacesOf(p.affinity, p.antiAffinity) {
			for _, other := range c.byNamespace[namespace] {
				s.count(p, other, other.node, 1, false, true)
			}
		}
	}
	return s
}

// namespacesOf lists the namespaces that any of the terms looks into, each once.
func (c *Cluster) namespacesOf(lists ...[]podTerm) []string {
	var names []string
	for _, terms := range lists {
		for i := range terms {
			names = append(names, terms[i].namespaces...)
			if terms[i].inLabelled == nil {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(c.byNamespace)) {
				if terms[i].inLabelled.Matches(labels.Set(c.namespaces[name])) {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func meetsAll(c *Cluster, terms []podTerm, pod *corev1.Pod) bool {
	for i := range terms {
		if !terms[i].matches(c, pod) {
			return false
		}
	}
	return len(terms) > 0
}

// count takes another pod on a node in or out of the counts.
func (s *affinityState) count(p, other *Pod, n *Node, by int, theirs, ours bool) {
	if s == nil || n.Object == nil {
		return
	}
	add := func(counts map[place]int, key string) {
		if value, ok := n.label(key); ok {
			counts[place{key, value}] += by
			if counts[place{key, value}] == 0 {
				delete(counts, place{key, value})
			}
		}
	}
	if theirs {
		for i := range other.antiAffinity {
			if other.antiAffinity[i].matches(s.cluster, p.Object) {
				add(s.repelled, other.antiAffinity[i].topologyKey)
			}
		}
	}
	if !ours {
		return
	}
	if meetsAll(s.cluster, p.affinity, other.Object) {
		for i := range p.affinity {
			add(s.affine, p.affinity[i].topologyKey)
		}
	}
	for i := range p.antiAffinity {
		if p.antiAffinity[i].matches(s.cluster, other.Object) {
			add(s.anti, p.antiAffinity[i].topologyKey)
		}
	}
}

// filter applies required affinity both ways (L2.27).
func (s *affinityState) filter(p *Pod, n *Node) *Refusal {
	if s == nil {
		return nil
	}
	if !s.attracted(p, n) {
		return &Refusal{Filter: InterPodAffinity, Reasons: []string{reasonAffinity}}
	}
	for i := range p.antiAffinity {
		if value, ok := n.label(p.antiAffinity[i].topologyKey); ok && s.anti[place{p.antiAffinity[i].topologyKey, value}] > 0 {
			return &Refusal{Filter: InterPodAffinity, Reasons: []string{reasonAntiAffinity}, Curable: true}
		}
	}
	if s.repels(n) {
		return &Refusal{Filter: InterPodAffinity, Reasons: []string{reasonOthersAffinity}, Curable: true}
	}
	return nil
}

// repels reports whether a pod in one of the node's places keeps the incoming pod away.
func (s *affinityState) repels(n *Node) bool {
	if len(s.repelled) == 0 {
		return false
	}
	repels := false
	for key, value := range n.Object.Labels { // any order: one is enough
		repels = repels || s.repelled[place{key, value}] > 0
	}
	return repels
}

// attracted reports whether every required term is met in the node's places. The
// first pod of a group that is affine to itself may start anywhere.
func (s *affinityState) attracted(p *Pod, n *Node) bool {
	met := true
	for i := range p.affinity {
		value, ok := n.label(p.affinity[i].topologyKey)
		if !ok {
			return false
		}
		met = met && s.affine[place{p.affinity[i].topologyKey, value}] > 0
	}
	return met || len(s.affine) == 0 && s.selfMeet
}

// attraction sums up the preferences for each place, of the incoming pod and of those that run; nil when nobody cares.
func (c *Cluster) attraction(p *Pod) map[place]int64 {
	f := p.profile
	if len(p.attractions) == 0 && len(c.attracting) == 0 || f.Weights.PodAffinity == 0 {
		return nil
	}
	sum := map[place]int64{}
	add := func(terms []podTerm, named *corev1.Pod, n *Node, fixed int64) {
		for i := range terms {
			if n.Object == nil || !terms[i].matches(c, named) {
				continue
			}
			weight := terms[i].weight
			if fixed != 0 {
				weight = fixed
			}
			if value, ok := n.label(terms[i].topologyKey); ok {
				sum[place{terms[i].topologyKey, value}] += weight
			}
		}
	}
	for _, namespace := range c.namespacesOf(p.attractions) {
		for _, other := range c.byNamespace[namespace] {
			add(p.attractions, other.Object, other.node, 0)
		}
	}
	prefers := len(p.attractions) > 0 || len(p.affinity) > 0 || len(p.antiAffinity) > 0
	for _, other := range c.attracting {
		if prefers || !f.IgnoreOthersPreferences {
			add(other.attractions, p.Object, other.node, 0)
		}
		if f.HardPodAffinityWeight > 0 {
			add(other.affinity, p.Object, other.node, f.HardPodAffinityWeight)
		}
	}
	return sum
}
