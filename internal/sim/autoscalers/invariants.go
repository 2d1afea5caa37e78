package autoscalers

import (
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"carob/internal/core/workload/autoscaler"
	"carob/internal/sim/cluster"
)

// change is a change of the size by the autoscaler with a response.
type change struct {
	at time.Time
	by int32
}

// checker checks each decision by rules of its own.
type checker struct {
	w       *world
	passes  int
	changes []change // of this process
}

func (c *checker) rescaled(from, to int32) { c.changes = append(c.changes, change{c.w.Now, to - from}) }

// pass checks a decision.
func (c *checker) pass(in autoscaler.Input, out *autoscaler.Output) {
	c.passes++
	if out.Rescale == nil {
		return
	}
	spec, current, size := &in.HPA.Spec, in.Scale.Wanted, *out.Rescale
	if size < *spec.MinReplicas || size > spec.MaxReplicas {
		cluster.Break(Bounds, "from %d to %d, the bounds are %d and %d", current, size, *spec.MinReplicas,
			spec.MaxReplicas)
	}
	if current < *spec.MinReplicas || current > spec.MaxReplicas {
		return // into the bounds at once
	}
	if !slices.ContainsFunc(in.Samples, func(s autoscaler.Sample) bool { return s.Err == nil }) {
		cluster.Break(Blind, "from %d to %d", current, size)
	}
	least, most := int32(0), max(2*current, 4)
	if b := spec.Behavior; b != nil {
		least = min(current, c.reach(b.ScaleDown, current, false))
		most = max(current, c.reach(b.ScaleUp, current, true))
	}
	if size < least || size > most {
		cluster.Break(Rates, "from %d to %d, the policies allow %d to %d", current, size, least, most)
	}
}

// reach returns the range of sizes that policies allow.
func (c *checker) reach(r *autoscalingv2.HPAScalingRules, current int32, up bool) int32 {
	var all []int32
	for _, p := range r.Policies {
		base := current
		for _, change := range c.changes {
			if c.w.Now.Sub(change.at) < time.Duration(p.PeriodSeconds)*time.Second {
				base -= change.by
			}
		}
		by := p.Value
		if p.Type == autoscalingv2.PercentScalingPolicy {
			part := float64(base) * float64(p.Value) / 100
			by = int32(math.Ceil(part - 1e-9)) // up to the next pod, in both directions
		}
		if !up {
			by = -by
		}
		all = append(all, base+by)
	}
	if furthest := *r.SelectPolicy == autoscalingv2.MaxChangePolicySelect; furthest == up {
		return slices.Max(all)
	}
	return slices.Min(all)
}

// end checks that the size is right for the load, and returns it.
func (c *checker) end() int32 {
	h, ok := c.w.Get(c.w.hpa).(*autoscalingv2.HorizontalPodAutoscaler)
	d, also := c.w.Get(c.w.deployment).(*appsv1.Deployment)
	if !ok || !also {
		cluster.Break(Settles, "the autoscaler or its target is gone")
	}
	size, low, high := *d.Spec.Replicas, *h.Spec.MinReplicas, h.Spec.MaxReplicas
	right := min(max(int32(math.Ceil(c.w.load/target)), low), high)
	ratio := c.w.load / (target * float64(size))
	// Values are whole thousandths, and utilizations whole percents.
	if size != right && (ratio < 0.89 || ratio > 1.11) {
		cluster.Break(Settles, "size %d for a load of %.0f, it should be %d", size, c.w.load, right)
	}
	if d.Status.AvailableReplicas != size {
		cluster.Break(Settles, "size %d, %d are available", size, d.Status.AvailableReplicas)
	}
	return size
}
