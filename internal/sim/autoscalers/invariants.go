package autoscalers

import (
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload/autoscaler"
	"carob/internal/sim/fakeapi"
)

// change is a change of the size by the autoscaler with a response.
type change struct {
	at     time.Time
	by, to int32
	bounds bool // into the bounds, whatever the load
}

// checker checks each decision about an autoscaler by rules of its own.
type checker struct {
	api     *fakeapi.API
	changes []change // of this process
}

func (c *checker) rescaled(in autoscaler.Input, to int32) {
	from := in.Scale.Wanted
	c.changes = append(c.changes, change{c.api.Now, to - from, to,
		from < *in.HPA.Spec.MinReplicas || from > in.HPA.Spec.MaxReplicas})
}

// pass checks a decision.
func (c *checker) pass(in autoscaler.Input, out *autoscaler.Output) {
	if out.Rescale == nil {
		return
	}
	spec, current, size := &in.HPA.Spec, in.Scale.Wanted, *out.Rescale
	if size < *spec.MinReplicas || size > spec.MaxReplicas {
		fakeapi.Break(Bounds, "from %d to %d, the bounds are %d and %d", current, size, *spec.MinReplicas,
			spec.MaxReplicas)
	}
	if current < *spec.MinReplicas || current > spec.MaxReplicas {
		return // into the bounds at once
	}
	if !slices.ContainsFunc(in.Samples, func(s autoscaler.Sample) bool { return s.Err == nil }) {
		fakeapi.Break(NoMetric, "from %d to %d", current, size)
	}
	least, most := int32(0), max(2*current, 4)
	if b := spec.Behavior; b != nil {
		least = min(current, c.reach(b.ScaleDown, current, false))
		most = max(current, c.reach(b.ScaleUp, current, true))
	}
	if size < least || size > most {
		fakeapi.Break(Rates, "from %d to %d, the policies allow %d to %d", current, size, least, most)
	}
	c.careful(in, size)
	c.steady(spec.Behavior, current, size)
}

// careful checks a decision by one metric of pods: pods without a value count as idle when the size grows, and as busy
// when it shrinks.
func (c *checker) careful(in autoscaler.Input, size int32) {
	if len(in.Samples) != 1 || in.Samples[0].Pods == nil || in.Samples[0].Err != nil {
		return
	}
	sum, missing := int64(0), int32(0)
	for _, v := range in.Samples[0].Pods { // any order: a sum
		sum += v.Value // also of pods that the watch does not show yet
	}
	for _, p := range in.Pods {
		_, ok := in.Samples[0].Pods[p.Name]
		if !ok && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			missing++
		}
	}
	// Without a behaviour, an earlier and higher proposal counts as long as the window for shrinking (W7.75).
	most := int32(sum/Target) + 1 // the ratio is a floating-point number, as upstream's
	if size > in.Scale.Wanted && size > most && in.HPA.Spec.Behavior != nil {
		fakeapi.Break(Careful, "from %d to %d, the known load needs %d", in.Scale.Wanted, size, most)
	}
	if size < in.Scale.Wanted && size < missing {
		fakeapi.Break(Careful, "from %d to %d, %d pods have no metric", in.Scale.Wanted, size, missing)
	}
}

// steady checks that a change does not undo an earlier one within the stabilization window of its direction. Without a
// behaviour, a change may follow an earlier peak (W7.75), and its end undoes it at any time.
func (c *checker) steady(b *autoscalingv2.HorizontalPodAutoscalerBehavior, current, size int32) {
	if b == nil {
		return
	}
	up := time.Duration(*b.ScaleUp.StabilizationWindowSeconds) * time.Second
	down := time.Duration(*b.ScaleDown.StabilizationWindowSeconds) * time.Second
	for _, e := range c.changes {
		age := c.api.Now.Sub(e.at)
		if e.bounds {
			continue
		}
		if size < current && e.by > 0 && size < e.to && age < down ||
			size > current && e.by < 0 && size > e.to && age < up {
			fakeapi.Break(Steady, "from %d to %d, %v after a change to %d", current, size, age, e.to)
		}
	}
}

// reach returns the range of sizes that policies allow.
func (c *checker) reach(r *autoscalingv2.HPAScalingRules, current int32, up bool) int32 {
	var all []int32
	for _, p := range r.Policies {
		base := current
		for _, change := range c.changes {
			if c.api.Now.Sub(change.at) < time.Duration(p.PeriodSeconds)*time.Second {
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

// Right checks that the size of a target is right for a steady load, in thousandths; nil if it is.
func Right(h *autoscalingv2.HorizontalPodAutoscaler, d *appsv1.Deployment, load float64) *fakeapi.Broken {
	size, low, high := *d.Spec.Replicas, *h.Spec.MinReplicas, h.Spec.MaxReplicas
	right := min(max(int32(math.Ceil(load/Target)), low), high)
	ratio := load / (Target * float64(size))
	// Values are whole thousandths, and utilizations whole percents.
	if size != right && (ratio < 0.89 || ratio > 1.11 || size < low || size > high) {
		return broken("size %d for a load of %.0f, it should be %d", size, load, right)
	}
	if d.Status.AvailableReplicas != size {
		return broken("size %d, %d are available", size, d.Status.AvailableReplicas)
	}
	return nil
}
