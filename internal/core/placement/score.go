package placement

import (
	"hash/fnv"
	"math"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

const maxScore = 100

// best picks the node with the highest score among those the pod fits on. Equal
// nodes are told apart by a hash of pod and node: as good as a die, but the same
// decision gives the same answer.
func (c *Cluster) best(p *Pod, nodes []*Node) *Node {
	if len(nodes) == 1 {
		return nodes[0]
	}
	scores := c.scores(p, nodes)
	winner, high := 0, int64(math.MinInt64)
	for i, score := range scores {
		if score > high || score == high && lot(p, nodes[i]) < lot(p, nodes[winner]) {
			winner, high = i, score
		}
	}
	return nodes[winner]
}

func lot(p *Pod, n *Node) uint64 {
	h := fnv.New64a()
	h.Write([]byte(p.Object.UID))
	h.Write([]byte(n.Object.Name))
	return h.Sum64()
}

func (c *Cluster) scores(p *Pod, nodes []*Node) []int64 {
	total := make([]int64, len(nodes))
	raw := make([]int64, len(nodes))
	w, f := p.profile.Weights, p.profile
	for i, n := range nodes {
		total[i] = c.ownScore(p, n)
		raw[i] = disliked(n.Object.Spec.Taints, p.Object)
	}
	addNormalized(total, raw, w.Taints, true)
	if p.preferred != nil || f.AddedPreferred != nil {
		for i, n := range nodes {
			raw[i] = p.liking(n)
		}
		addNormalized(total, raw, w.NodeAffinity, false)
	}
	if attraction := c.attraction(p); len(attraction) > 0 {
		addAttraction(total, nodes, attraction, w.PodAffinity)
	}
	if rates := c.unevenness(p, nodes); rates != nil {
		addSpread(total, rates, w.Spread)
	}
	return total
}

// ownScore is the part of the score that no other node has a say in.
func (c *Cluster) ownScore(p *Pod, n *Node) int64 {
	var score int64
	w, f := &p.profile.Weights, p.profile
	if w.Fit != 0 {
		score = w.Fit * f.Fit.score(&n.Ledger, p.Demand)
	}
	if w.Images != 0 {
		score += w.Images * c.imageLocality(p, n)
	}
	if w.Balanced != 0 && !p.Demand.IsZero() { // a pod that asks for nothing leaves the balance as it is
		score += w.Balanced * resources.Balanced(&n.Ledger, p.Demand, f.Balanced)
	}
	return score
}

// liking sums up the weights of the preferences that the node meets.
func (p *Pod) liking(n *Node) int64 {
	var sum int64
	if p.preferred != nil {
		sum = p.preferred.Score(n.Object)
	}
	if added := p.profile.AddedPreferred; added != nil {
		sum += added.Score(n.Object)
	}
	return sum
}

// disliked counts the PreferNoSchedule taints that the pod doesn't tolerate.
func disliked(taints []corev1.Taint, pod *corev1.Pod) int64 {
	var count int64
	for i := range taints {
		if taints[i].Effect == corev1.TaintEffectPreferNoSchedule && !Tolerates(pod.Spec.Tolerations, &taints[i]) {
			count++
		}
	}
	return count
}

// addNormalized scales raw so that its highest value counts 100, or 0 when reversed.
func addNormalized(total, raw []int64, weight int64, reverse bool) {
	var high int64
	for _, r := range raw {
		high = max(high, r)
	}
	for i, r := range raw {
		score := int64(0)
		if high > 0 {
			score = maxScore * r / high
		}
		if reverse {
			score = maxScore - score
		}
		total[i] += weight * score
	}
}

func addAttraction(total []int64, nodes []*Node, attraction map[place]int64, weight int64) {
	sums := make([]int64, len(nodes))
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for i, n := range nodes {
		for key, value := range n.Object.Labels { // any order: a sum
			sums[i] += attraction[place{key, value}]
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

// addSpread gives the emptiest domains 100; nodes without the key get nothing.
func addSpread(total []int64, rates []float64, weight int64) {
	low, high := math.Inf(1), 0.0
	for _, r := range rates {
		if r >= 0 {
			low, high = min(low, r), max(high, r)
		}
	}
	for i, r := range rates {
		switch {
		case r < 0:
		case high == 0:
			total[i] += weight * maxScore
		default:
			total[i] += weight * int64(maxScore*(high+low-r)/high)
		}
	}
}
