package autoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// at is a number at a time.
type at struct {
	when time.Time
	n    int32
}

// History holds the data of earlier passes that the limits need. It is not stored (W7.13).
type History struct {
	proposed  []at // sizes that the metrics proposed
	ups, down []at // pods that were added and removed
}

// begin records the size when an autoscaler is first processed.
func (m History) begin(size int32, now time.Time) History {
	if len(m.proposed) == 0 {
		m.proposed = []at{{now, size}}
	}
	return m
}

// noted returns the history with a proposal, without what is older than any window.
func (m History) noted(size int32, now time.Time, longest time.Duration) History {
	m.proposed = append(since(m.proposed, now.Add(-longest)), at{now, size})
	return m
}

// rescaled returns the history with a change of size, if rules need it.
func (m History) rescaled(rules *autoscalingv2.HorizontalPodAutoscalerBehavior, from, to int32, now time.Time) History {
	if rules == nil {
		return m
	}
	longest := time.Duration(0)
	for _, r := range []*autoscalingv2.HPAScalingRules{rules.ScaleUp, rules.ScaleDown} {
		if r == nil {
			continue
		}
		for _, p := range r.Policies {
			longest = max(longest, time.Duration(p.PeriodSeconds)*time.Second)
		}
	}
	m.ups, m.down = since(m.ups, now.Add(-longest)), since(m.down, now.Add(-longest))
	if to > from {
		m.ups = append(m.ups, at{now, to - from})
	} else {
		m.down = append(m.down, at{now, from - to})
	}
	return m
}

// since returns the entries from a time on, in a new slice.
func since(all []at, cut time.Time) []at {
	return slices.DeleteFunc(slices.Clone(all), func(a at) bool { return a.when.Before(cut) })
}

// limit applies the limits without a behavior block (W7.F).
func (p *plan) limit(size int32) int32 {
	stable := size
	for _, r := range since(p.out.History.proposed, p.Now.Add(-downWindow)) {
		stable = max(stable, r.n)
	}
	p.out.History = p.out.History.noted(size, p.Now, downWindow)
	if stable != size {
		p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleDownStabilized",
			"recent recommendations were higher than current one, applying the highest recent recommendation")
	} else {
		p.ready()
	}
	upper, reason, text := p.HPA.Spec.MaxReplicas, "TooManyReplicas", tooMany
	if fast := ceil(max(2*float64(p.Scale.Wanted), 4)); fast < upper {
		upper, reason, text = fast, "ScaleUpLimit", tooFast
	}
	switch {
	case stable < p.min:
		return p.limited(p.min, stable, "TooFewReplicas", tooFew)
	case stable > upper:
		return p.limited(upper, stable, reason, text)
	}
	return p.limited(stable, stable, "", "")
}

const (
	tooMany = "the desired replica count is more than the maximum replica count"
	tooFew  = "the desired replica count is less than the minimum replica count"
	tooFast = "the desired replica count is increasing faster than the maximum scale rate"
	tooSlow = "the desired replica count is decreasing faster than the maximum scale rate"
)

func (p *plan) ready() {
	p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale", "recommended size matches current size")
}

// limited returns the condition ScalingLimited.
func (p *plan) limited(size, wanted int32, reason, text string) int32 {
	switch {
	case reason == "":
		p.set(autoscalingv2.ScalingLimited, corev1.ConditionFalse, "DesiredWithinRange",
			"the desired count is within the acceptable range")
	case size == wanted:
		p.set(autoscalingv2.ScalingLimited, corev1.ConditionFalse, reason, "%s", text)
	default:
		p.set(autoscalingv2.ScalingLimited, corev1.ConditionTrue, reason, "%s", text)
	}
	return size
}

// limitByRules applies a behavior block (W7.G).
func (p *plan) limitByRules(size int32) int32 {
	up, down := p.HPA.Spec.Behavior.ScaleUp, p.HPA.Spec.Behavior.ScaleDown
	stable := p.stabilize(size, window(up, 0), window(down, downWindow))
	switch {
	case stable == size:
		p.ready()
	case size >= p.Scale.Wanted:
		p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleUpStabilized",
			"recent recommendations were lower than current one, applying the lowest recent recommendation")
	default:
		p.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleDownStabilized",
			"recent recommendations were higher than current one, applying the highest recent recommendation")
	}
	current := p.Scale.Wanted
	switch {
	case stable > current:
		upper, reason, text := p.HPA.Spec.MaxReplicas, "TooManyReplicas", tooMany
		// The rate never reduces the existing size (W7.82).
		if fast := max(p.rate(up, true), current); fast < upper {
			upper, reason, text = fast, "ScaleUpLimit", tooFast
		}
		if stable > upper {
			return p.limited(upper, stable, reason, text)
		}
	case stable < current:
		lower, reason, text := p.min, "TooFewReplicas", tooFew
		if slow := min(p.rate(down, false), current); slow > lower {
			lower, reason, text = slow, "ScaleDownLimit", tooSlow
		}
		if stable < lower {
			return p.limited(lower, stable, reason, text)
		}
	}
	return p.limited(stable, stable, "", "")
}

func window(r *autoscalingv2.HPAScalingRules, otherwise time.Duration) time.Duration {
	if r == nil || r.StabilizationWindowSeconds == nil {
		return otherwise
	}
	return time.Duration(*r.StabilizationWindowSeconds) * time.Second
}

// stabilize moves the size no further than every proposal of the windows would (W7.80).
func (p *plan) stabilize(size int32, up, down time.Duration) int32 {
	lowest, highest := size, size
	for _, r := range p.out.History.proposed {
		if r.when.After(p.Now.Add(-up)) {
			lowest = min(lowest, r.n)
		}
		if r.when.After(p.Now.Add(-down)) {
			highest = max(highest, r.n)
		}
	}
	p.out.History = p.out.History.noted(size, p.Now, max(up, down))
	return min(max(p.Scale.Wanted, lowest), highest)
}

// rate returns the size that policies allow now (W7.81).
func (p *plan) rate(r *autoscalingv2.HPAScalingRules, up bool) int32 {
	current := p.Scale.Wanted
	if r == nil || len(r.Policies) == 0 {
		return current
	}
	most := r.SelectPolicy == nil || *r.SelectPolicy == autoscalingv2.MaxChangePolicySelect
	if r.SelectPolicy != nil && *r.SelectPolicy == autoscalingv2.DisabledPolicySelect {
		return current
	}
	var allowed []int32
	for _, policy := range r.Policies {
		cut := p.Now.Add(-time.Duration(policy.PeriodSeconds) * time.Second)
		base := float64(current)
		for _, a := range p.out.History.ups {
			if a.when.After(cut) {
				base -= float64(a.n)
			}
		}
		for _, a := range p.out.History.down {
			if a.when.After(cut) {
				base += float64(a.n)
			}
		}
		value := float64(policy.Value)
		switch {
		case policy.Type == autoscalingv2.PodsScalingPolicy && up:
			allowed = append(allowed, ceil(base+value))
		case policy.Type == autoscalingv2.PodsScalingPolicy:
			allowed = append(allowed, ceil(base-value))
		case up:
			allowed = append(allowed, ceil(base*(1+value/100)))
		default:
			allowed = append(allowed, ceil(math.Trunc(base*(1-value/100))))
		}
	}
	if most == up {
		return slices.Max(allowed)
	}
	return slices.Min(allowed)
}

// ceil rounds up, within the range of a replica count.
func ceil(f float64) int32 {
	switch f = math.Ceil(f); {
	case math.IsNaN(f):
		return 0
	case f >= math.MaxInt32:
		return math.MaxInt32
	case f <= math.MinInt32:
		return math.MinInt32
	}
	return int32(f)
}
