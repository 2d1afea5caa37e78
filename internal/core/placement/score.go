package placement

import (
	"hash/fnv"
	"math"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// The weights of the scores, each of which is 0–100 (L2.10).
const (
	weightLeastAllocated = 1
	weightBalanced       = 1
	weightImages         = 1
	weightTaints         = 3
	weightNodeAffinity   = 2
	weightPodAffinity    = 2
	weightSpread         = 2
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
	for i, n := range nodes {
		total[i] = weightLeastAllocated*resources.LeastAllocated(&n.Ledger, p.Demand) + weightImages*c.imageLocality(p, n)
		if !p.Demand.IsZero() { // a pod that asks for nothing leaves the balance as it is
			total[i] += weightBalanced * resources.Balanced(&n.Ledger, p.Demand)
		}
		raw[i] = disliked(n.Object.Spec.Taints, p.Object)
	}
	addNormalized(total, raw, weightTaints, true)
	if p.preferred != nil {
		for i, n := range nodes {
			raw[i] = p.preferred.Score(n.Object)
		}
		addNormalized(total, raw, weightNodeAffinity, false)
	}
	if attraction := c.attraction(p); len(attraction) > 0 {
		c.addAttraction(total, nodes, attraction)
	}
	if rates := c.unevenness(p, nodes); rates != nil {
		addSpread(total, rates)
	}
	return total
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

func (c *Cluster) addAttraction(total []int64, nodes []*Node, attraction map[place]int64) {
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
		total[i] += weightPodAffinity * int64(maxScore*float64(sums[i]-low)/float64(high-low))
	}
}

// addSpread gives the emptiest domains 100; nodes without the key get nothing.
func addSpread(total []int64, rates []float64) {
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
			total[i] += weightSpread * maxScore
		default:
			total[i] += weightSpread * int64(maxScore*(high+low-r)/high)
		}
	}
}
