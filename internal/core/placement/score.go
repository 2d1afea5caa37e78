package placement

import (
	"hash/fnv"
	"math"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

const maxScore = 100

// best picks the node with the highest score among those, by index, that the pod fits on. A hash of
// pod and node breaks ties: evenly distributed, but deterministic.
func (g *group) best(p *Pod, nodes []int) int {
	if len(nodes) == 1 {
		return nodes[0]
	}
	total := g.scores(p, nodes)
	pod := hashOf(string(p.Object.UID))
	winner, high, lowest := 0, int64(math.MinInt64), uint64(0)
	for i, score := range total {
		if score < high {
			continue
		}
		if l := lot(pod, g.verdicts[nodes[i]].hash); score > high || l < lowest {
			winner, high, lowest = i, score, l
		}
	}
	return nodes[winner]
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// lot mixes two hashes.
func lot(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// scores rates the nodes of a group that the pod fits on.
func (g *group) scores(p *Pod, nodes []int) []int64 {
	total := make([]int64, len(nodes))
	disliked, liked := false, false
	for i, n := range nodes {
		v := &g.verdicts[n]
		total[i] = v.own
		disliked, liked = disliked || v.disliked != 0, liked || v.liked != 0
	}
	w := &p.profile.Weights
	if disliked && w.Taints != 0 {
		addNormalized(total, w.Taints, true, func(i int) int64 { return g.verdicts[nodes[i]].disliked })
	}
	if liked && w.NodeAffinity != 0 {
		addNormalized(total, w.NodeAffinity, false, func(i int) int64 { return g.verdicts[nodes[i]].liked })
	}
	g.attraction.addScores(total, nodes, w.PodAffinity)
	g.soft.addScores(total, nodes, w.Spread)
	return total
}

// ownScore is the part of the score that does not depend on other nodes.
func (c *Cluster) ownScore(p *Pod, n *Node) int64 {
	var score int64
	w, f := &p.profile.Weights, p.profile
	if w.Fit != 0 {
		score = w.Fit * f.Fit.score(&n.Ledger, p.Demand)
	}
	if w.Images != 0 {
		score += w.Images * c.imageLocality(p, n)
	}
	if w.Balanced != 0 && !p.Demand.IsZero() { // a pod without requests does not change the balance
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

// addNormalized scales raw scores so that the highest one counts 100, or 0 when reversed.
func addNormalized(total []int64, weight int64, reverse bool, raw func(i int) int64) {
	var high int64
	for i := range total {
		high = max(high, raw(i))
	}
	for i := range total {
		score := int64(0)
		if high > 0 {
			score = maxScore * raw(i) / high
		}
		if reverse {
			score = maxScore - score
		}
		total[i] += weight * score
	}
}
