package vpa

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// margin is the share that is recommended beyond the usage (W9.28).
const margin = 0.15

// The minimum for a pod, divided among its containers (W9.30).
const (
	leastCPU    = 25        // milli-cores
	leastMemory = 250 << 20 // bytes
)

// estimate defines how one figure is computed from usage: the share of samples that it covers, and
// its factor while there are few samples: (1 + spread/confidence)^power (W9.28, W9.29).
type estimate struct {
	share, spread, power float64
}

var (
	targetEstimate = estimate{share: 0.9}
	lowerEstimate  = estimate{share: 0.5, spread: 0.001, power: -2}
	upperEstimate  = estimate{share: 0.95, spread: 1, power: 1}
)

// confidence grows with the days of samples, one per minute (W9.29).
func (u *usage) confidence() float64 {
	return min(float64(u.last.Sub(u.first))/float64(halfLife), float64(u.samples)/halfLife.Minutes())
}

// of applies the estimate to a percentile, in the unit of amounts.
func (e estimate) of(u *usage, below float64, floor int64) int64 {
	x := amount(below)
	x += amount(float64(x) * margin)
	if e.power != 0 {
		x = amount(float64(x) * math.Pow(1+e.spread/u.confidence(), e.power))
	}
	return max(x, floor)
}

// resources are the amounts of an estimate for the resources that the policy scales.
func (e estimate) resources(u *usage, p *ContainerPolicy, containers int) corev1.ResourceList {
	// As upstream, each container gets its part, rounded down.
	part := 1 / float64(containers)
	out := corev1.ResourceList{}
	if p.controls(corev1.ResourceCPU) {
		milli := e.of(u, u.cpu.percentile(e.share)*1000, amount(leastCPU*part))
		out[corev1.ResourceCPU] = *resource.NewScaledQuantity(milli, resource.Milli)
	}
	if p.controls(corev1.ResourceMemory) {
		bytes := e.of(u, u.memory.percentile(e.share), amount(leastMemory*part))
		out[corev1.ResourceMemory] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	return out
}

// recommend returns the requests that containers should have, from their usage (W9.28 to W9.33).
func recommend(used map[string]*usage, policy *ResourcePolicy) *Recommendation {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(used)),
		func(name string) bool { return policy.Policy(name).off() })
	out := &Recommendation{}
	for _, name := range names {
		u, p := used[name], policy.Policy(name)
		c := ContainerRecommendation{
			ContainerName: name,
			Target:        targetEstimate.resources(u, p, len(names)),
			LowerBound:    lowerEstimate.resources(u, p, len(names)),
			UpperBound:    upperEstimate.resources(u, p, len(names)),
		}
		c.UncappedTarget = c.Target.DeepCopy()
		for _, list := range []corev1.ResourceList{c.Target, c.LowerBound, c.UpperBound} {
			p.bound(list)
		}
		out.Containers = append(out.Containers, c)
	}
	return out
}

// bound limits amounts to those of the policy. It returns the adjustments, in order.
func (p *ContainerPolicy) bound(list corev1.ResourceList) (notes []string) {
	if p == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if atLeast(list, name, p.MinAllowed[name]) {
			notes = append(notes, string(name)+" capped to minAllowed")
		}
		if atMost(list, name, p.MaxAllowed[name]) {
			notes = append(notes, string(name)+" capped to maxAllowed")
		}
	}
	return notes
}

// atLeast raises an amount to a bound; zero is not a bound.
func atLeast(list corev1.ResourceList, name corev1.ResourceName, bound resource.Quantity) bool {
	if q := list[name]; bound.IsZero() || q.Cmp(bound) >= 0 {
		return false
	}
	list[name] = bound
	return true
}

func atMost(list corev1.ResourceList, name corev1.ResourceName, bound resource.Quantity) bool {
	if q := list[name]; bound.IsZero() || q.Cmp(bound) <= 0 {
		return false
	}
	list[name] = bound
	return true
}
