package autoscaler

import (
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultRules are the rules that the API server adds to an autoscaler with a behavior.
func defaultRules() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	policy := func(kind autoscalingv2.HPAScalingPolicyType, value int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: 15}
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0)),
			SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
			Policies: []autoscalingv2.HPAScalingPolicy{policy(autoscalingv2.PodsScalingPolicy, 4),
				policy(autoscalingv2.PercentScalingPolicy, 100)}},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0)),
			SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
			Policies:     []autoscalingv2.HPAScalingPolicy{policy(autoscalingv2.PercentScalingPolicy, 100)}}}
}

// sized is the size and the reason of ScalingLimited that a pass decides for so many pods with this usage.
func sized(h *autoscalingv2.HorizontalPodAutoscaler, pods int, usage int64) (int32, string) {
	usages := make([]int64, pods)
	for i := range usages {
		usages[i] = usage
	}
	out := decided(world(h, usages...), nil)
	reason, _, _ := strings.Cut(condition(out.Status, autoscalingv2.ScalingLimited), ":")
	return out.Status.DesiredReplicas, reason
}

// W7.83: by default from n to max(n + 4, 2n) in 15 s. W7.82: a bound that is tighter than the rate is the reason.
func TestDefaultRates(t *testing.T) {
	for _, c := range []struct {
		pods   int
		most   int32
		want   int32
		reason string
	}{
		{1, 100, 5, "True ScaleUpLimit"}, {4, 100, 8, "True ScaleUpLimit"}, {10, 100, 20, "True ScaleUpLimit"},
		{10, 20, 20, "True TooManyReplicas"}, {10, 15, 15, "True TooManyReplicas"},
	} {
		h := hpa(1, c.most, cpu(1))
		h.Spec.Behavior = defaultRules()
		if n, reason := sized(h, c.pods, 1000); n != c.want || reason != c.reason {
			t.Errorf("from %d of at most %d: %d, %s, want %d, %s", c.pods, c.most, n, reason, c.want, c.reason)
		}
	}
}

// W7.82: a limit never scales in the other direction: what was scaled up a moment ago limits no scaling down.
func TestLimitKeepsDirection(t *testing.T) {
	h := hpa(1, 100, cpu(50))
	h.Spec.Behavior = defaultRules()
	h.Spec.Behavior.ScaleUp.Policies[0].Value, h.Spec.Behavior.ScaleUp.Policies[1].Value = 1, 1
	usages := []int64{900, 900}
	in := world(h, usages...)
	out := decided(in, nil) // up by one
	again := world(h, 900, 900, 900)
	again.History = out.History
	if next := decided(again, nil); next.Status.DesiredReplicas != 3 {
		t.Errorf("from %d to %d in the same period", 3, next.Status.DesiredReplicas)
	}
}

// W7.43: the tolerance of each direction, 0.1 by default.
func TestToleranceOfRules(t *testing.T) {
	for _, c := range []struct {
		up, down string // tolerances
		usage    int64  // of each of two pods, whose target is 500
		want     int32
	}{
		{"", "", 540, 2}, {"", "", 560, 3}, {"", "", 460, 2}, {"", "", 240, 1},
		{"0.5", "", 740, 2}, {"0.5", "", 760, 4}, {"0.01", "", 510, 3}, {"0", "", 505, 2},
		{"", "0.6", 240, 2}, {"", "0.01", 250, 1},
	} {
		h := hpa(1, 10, cpu(50))
		h.Spec.Behavior = defaultRules()
		for text, rules := range map[*string]*autoscalingv2.HPAScalingRules{&c.up: h.Spec.Behavior.ScaleUp,
			&c.down: h.Spec.Behavior.ScaleDown} {
			if *text != "" {
				rules.Tolerance = new(resource.MustParse(*text))
			}
		}
		if n, _ := sized(h, 2, c.usage); n != c.want {
			t.Errorf("tolerances %q and %q, usage %d: %d, want %d", c.up, c.down, c.usage, n, c.want)
		}
	}
}

// W7.46: a container without a request, and one that does not exist.
func TestMissingRequest(t *testing.T) {
	for want, in := range map[string]Input{
		"missing request for cpu in container c of Pod p0": with(world(hpa(1, 9, cpu(50)), 500), func(in *Input) {
			in.Pods[0].Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		}),
		"container other not found in Pod p0": world(hpa(1, 9, ofContainer("other")), 500),
	} {
		out := Plan(in)
		if out.Rescale != nil || len(out.Events) == 0 || !strings.HasSuffix(out.Events[0].Message, want) {
			t.Errorf("events %v, rescale %v, want %s", out.Events, out.Rescale, want)
		}
	}
}
