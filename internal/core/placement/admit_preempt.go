package placement

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Victims returns the pods that have to end so that the node has the resources that a critical pod
// lacks (L3.40): as few and as small as possible, BestEffort pods before Burstable ones, and these
// before Guaranteed ones. Nil when this cannot help.
func (n *Node) Victims(p *Pod, short []resources.Shortage) []*corev1.Pod {
	if !resources.IsCritical(p.Object) {
		return nil
	}
	groups := map[corev1.PodQOSClass][]*Pod{}
	for _, other := range n.pods {
		if yields(other, p) {
			class := resources.QoS(other.Object)
			groups[class] = append(groups[class], other)
		}
	}
	bestEffort, burstable, guaranteed := groups[corev1.PodQOSBestEffort], groups[corev1.PodQOSBurstable],
		groups[corev1.PodQOSGuaranteed]
	need := lacking(short)
	if !need.without(slices.Concat(bestEffort, burstable, guaranteed)).met() {
		return nil
	}
	// From the highest class: of each class only what the lower classes cannot free.
	fromGuaranteed := need.without(slices.Concat(bestEffort, burstable)).choose(guaranteed)
	fromBurstable := need.without(slices.Concat(bestEffort, fromGuaranteed)).choose(burstable)
	fromBestEffort := need.without(slices.Concat(fromBurstable, fromGuaranteed)).choose(bestEffort)
	var victims []*corev1.Pod
	for _, v := range slices.Concat(fromBestEffort, fromBurstable, fromGuaranteed) {
		victims = append(victims, v.Object)
	}
	return victims
}

// yields reports whether a pod may be ended for a critical one.
func yields(pod, critical *Pod) bool {
	return !resources.IsCritical(pod.Object) || !resources.IsStatic(pod.Object) && pod.Priority < critical.Priority
}

// lack holds the missing amount of each resource.
type lack []resources.Scalar

func lacking(short []resources.Shortage) lack {
	var l lack
	for _, s := range short {
		l = append(l, resources.Scalar{Name: s.Name, Value: s.Requested + s.Used - s.Capacity})
	}
	return l
}

func (l lack) met() bool {
	return !slices.ContainsFunc(l, func(s resources.Scalar) bool { return s.Value > 0 })
}

// without returns what is still missing after these pods have ended.
func (l lack) without(pods []*Pod) lack {
	rest := slices.Clone(l)
	for i := range rest {
		for _, p := range pods {
			rest[i].Value -= held(p, rest[i].Name)
		}
		rest[i].Value = max(rest[i].Value, 0)
	}
	return rest
}

func held(p *Pod, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourcePods:
		return 1
	case corev1.ResourceCPU:
		return p.Demand.MilliCPU
	case corev1.ResourceMemory:
		return p.Demand.Memory
	case corev1.ResourceEphemeralStorage:
		return p.Demand.EphemeralStorage
	}
	v, _ := p.Demand.Scalar(name)
	return v
}

// choose picks pods until nothing is missing: each time the one that comes closest,
// of equal ones the smallest.
func (l lack) choose(pods []*Pod) []*Pod {
	pods = slices.Clone(pods)
	var chosen []*Pod
	for !l.met() && len(pods) > 0 {
		best := slices.MinFunc(pods, func(a, b *Pod) int {
			return cmp.Or(cmp.Compare(l.distance(a), l.distance(b)), cmp.Compare(l.size(a), l.size(b)),
				cmp.Compare(a.Object.UID, b.Object.UID))
		})
		chosen = append(chosen, best)
		l = l.without([]*Pod{best})
		pods = slices.DeleteFunc(pods, func(p *Pod) bool { return p == best })
	}
	return chosen
}

// distance is the share of the needs that stays unmet, squared and summed up.
func (l lack) distance(p *Pod) float64 {
	d := 0.0
	for _, s := range l {
		if s.Value > 0 {
			rest := float64(max(s.Value-held(p, s.Name), 0)) / float64(s.Value)
			d += rest * rest
		}
	}
	return d
}

// size is the amount of the missing resources that a pod holds.
func (l lack) size(p *Pod) float64 {
	sum := 0.0
	for _, s := range l {
		if s.Value > 0 {
			sum += float64(held(p, s.Name)) / float64(s.Value)
		}
	}
	return sum
}
