package autoscaler

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func cpu(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
				AverageUtilization: &percent}}}
}

func external(kind autoscalingv2.MetricTargetType, target string) autoscalingv2.MetricSpec {
	q := resource.MustParse(target)
	m := autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{Type: kind}}}
	if kind == autoscalingv2.ValueMetricType {
		m.External.Target.Value = &q
	} else {
		m.External.Target.AverageValue = &q
	}
	return m
}

func perPod(target string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "rps"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: new(resource.MustParse(target))}}}
}

func hpa(low, high int32, metrics ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h",
		Generation: 7},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: &low, MaxReplicas: high, Metrics: metrics}}
}

// world makes pods that each request a core, and a sample of their usage, in millicores. Usages
// below zero mean: -1 not measured, -2 pending, -3 being deleted, -4 not ready for ever,
// -5 just started and measured with a full core.
func world(h *autoscalingv2.HorizontalPodAutoscaler, usages ...int64) Input {
	in := Input{HPA: h, Now: noon,
		Scale: Scale{Wanted: int32(len(usages)), Current: int32(len(usages)), Selector: "a=b"}}
	s := Sample{Pods: map[string]PodValue{}}
	for i, u := range usages {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%d", i)}}
		p.Spec.Containers = []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
		p.Status.Phase = corev1.PodRunning
		p.Status.StartTime = &metav1.Time{Time: noon.Add(-time.Hour)}
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour + 10*time.Second))}
		switch u {
		case -2:
			p.Status.Phase = corev1.PodPending
		case -3:
			p.DeletionTimestamp = &metav1.Time{Time: noon}
		case -4:
			ready.Status = corev1.ConditionFalse
		case -5:
			p.Status.StartTime = &metav1.Time{Time: noon.Add(-20 * time.Second)}
			ready.LastTransitionTime = metav1.NewTime(noon.Add(-10 * time.Second))
		}
		p.Status.Conditions = []corev1.PodCondition{ready}
		in.Pods = append(in.Pods, p)
		switch {
		case u >= 0:
			s.Pods[p.Name] = PodValue{Value: u, At: noon, Window: 15 * time.Second}
		case u <= -3:
			s.Pods[p.Name] = PodValue{Value: 1000, At: noon, Window: 15 * time.Second}
		}
	}
	in.Samples = []Sample{s}
	return in
}

// format prints a decision.
func format(in Input, out Output) string {
	if out.Rescale != nil {
		out = Rescaled(in, out, nil)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d", out.Status.DesiredReplicas)
	for _, c := range out.Status.Conditions {
		fmt.Fprintf(&b, " %s=%s(%s)", c.Type, c.Status, c.Reason)
	}
	for _, e := range out.Events {
		fmt.Fprintf(&b, "\n%s %s: %s", e.Type, e.Reason, e.Message)
	}
	return b.String()
}

const (
	usual   = "AbleToScale=True(SucceededRescale) ScalingActive=True(ValidMetricFound) ScalingLimited=False(DesiredWithinRange) ScaledToZero=False(NotScaledToZero)"
	stays   = "AbleToScale=True(ReadyForNewScale) ScalingActive=True(ValidMetricFound) ScalingLimited=False(DesiredWithinRange)"
	upEvent = "\nNormal SuccessfulRescale: New size: %d; reason: cpu resource utilization (percentage of request) above target"
)

func TestDecisions(t *testing.T) {
	many := func(n int, usage int64) []int64 {
		out := make([]int64, n)
		for i := range out {
			out[i] = usage
		}
		return out
	}
	for _, c := range []struct {
		clause string
		in     Input
		want   string
	}{
		{"W7.38 within the tolerance", world(hpa(1, 10, cpu(50)), 540, 500), "2 " + stays},
		{"W7.38, W7.35, W12.24 up", world(hpa(1, 10, cpu(50)), 900, 700), "4 " + usual + fmt.Sprintf(upEvent, 4)},
		{"W7.36, W12.23 the percentage is rounded down", world(hpa(1, 10, cpu(50)), 559), "1 " + stays},
		{"W7.24, W7.76 metrics, then limits: at most double", world(hpa(1, 100, cpu(10)), many(4, 900)...),
			"8 AbleToScale=True(SucceededRescale) ScalingActive=True(ValidMetricFound) ScalingLimited=True(ScaleUpLimit) ScaledToZero=False(NotScaledToZero)" + fmt.Sprintf(upEvent, 8)},
		{"W7.63 too many", world(hpa(1, 3, cpu(10)), many(2, 900)...),
			"3 AbleToScale=True(SucceededRescale) ScalingActive=True(ValidMetricFound) ScalingLimited=True(TooManyReplicas) ScaledToZero=False(NotScaledToZero)" + fmt.Sprintf(upEvent, 3)},
		{"W7.75, W7.13 the size it was met with stabilizes, as after a restart", world(hpa(1, 10, cpu(50)), many(4, 0)...),
			"4 AbleToScale=True(ScaleDownStabilized) ScalingActive=True(ValidMetricFound) ScalingLimited=False(DesiredWithinRange)"},
		{"W7.39, W7.33 missing pods use nothing on the way up", world(hpa(1, 10, cpu(50)), 900, -1), "2 " + stays},
		{"W7.39, W7.32 pending pods, too", world(hpa(1, 10, cpu(50)), 900, 900, -2),
			"4 " + usual + fmt.Sprintf(upEvent, 4)},
		{"W7.34 the start of a pod is not a use", world(hpa(1, 10, cpu(50)), 500, -5), "2 " + stays},
		{"W7.34 one that was never ready for long", world(hpa(1, 10, cpu(50)), 500, -4), "2 " + stays},
		{"W7.31 pods that go are left out", world(hpa(1, 10, cpu(50)), 500, -3), "2 " + stays},
		{"W7.22", world(hpa(1, 2, cpu(50)), many(3, 100)...),
			"2 AbleToScale=True(SucceededRescale) ScaledToZero=False(NotScaledToZero)" +
				"\nNormal SuccessfulRescale: New size: 2; reason: Current number of replicas above Spec.MaxReplicas"},
		{"W7.23", world(hpa(3, 9, cpu(50)), 100),
			"3 AbleToScale=True(SucceededRescale) ScaledToZero=False(NotScaledToZero)" +
				"\nNormal SuccessfulRescale: New size: 3; reason: Current number of replicas below Spec.MinReplicas"},
		{"W7.21, W12.25", world(hpa(1, 9, cpu(50))),
			"0 AbleToScale=True(SucceededGetScale) ScalingActive=False(ScalingDisabled)"},
		{"W7.45, W13.61 nothing measured", world(hpa(1, 9, cpu(50)), -1),
			"0 AbleToScale=True(SucceededGetScale) ScalingActive=False(FailedGetResourceMetric)" +
				"\nWarning FailedGetResourceMetric: failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)" +
				"\nWarning FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get cpu resource metric value: " +
				"failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)"},
		{"W7.40 pods metric", world(hpa(1, 10, perPod("500m")), 900, 700),
			"4 " + usual + "\nNormal SuccessfulRescale: New size: 4; reason: pods metric rps above target"},
	} {
		if got := format(c.in, Plan(c.in)); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.clause, got, c.want)
		}
	}
}

func TestMetricsOfOthers(t *testing.T) {
	with := func(h *autoscalingv2.HorizontalPodAutoscaler, samples []Sample, usages ...int64) Input {
		in := world(h, usages...)
		in.Samples = samples
		return in
	}
	values := func(v ...int64) []Sample { return []Sample{{Values: v}} }
	queue := "external metric queue(nil)"
	up := func(n int) string {
		return fmt.Sprintf("%d %s\nNormal SuccessfulRescale: New size: %d; reason: %s above target", n, usual, n, queue)
	}
	for _, c := range []struct {
		clause string
		in     Input
		want   string
	}{
		{"W7.41 value", with(hpa(1, 10, external(autoscalingv2.ValueMetricType, "1")), values(1500, 500), 0, 0), up(4)},
		{"W7.42 average", with(hpa(1, 10, external(autoscalingv2.AverageValueMetricType, "1")), values(2500), 0, 0),
			up(3)},
		{"W7.42 values that overflow",
			with(hpa(1, 10, external(autoscalingv2.AverageValueMetricType, "1m")), values(1<<62, 1<<62, 1<<62), 0, 0),
			strings.Replace(up(4), "ScalingLimited=False(DesiredWithinRange)", "ScalingLimited=True(ScaleUpLimit)", 1)},
		{"W7.41 object", with(hpa(1, 10, object()), values(2000), 0, 0),
			fmt.Sprintf("4 %s\nNormal SuccessfulRescale: New size: 4; reason: Ingress metric hits above target",
				usual)},
		{"W8.21 one object, one value", with(hpa(1, 10, object()), values(1, 2), 0),
			"0 AbleToScale=True(SucceededGetScale) ScalingActive=False(FailedGetObjectMetric)" +
				"\nWarning FailedGetObjectMetric: unable to get metric hits on Ingress ns/i: unable to fetch metrics from custom metrics API: the custom metrics API server returned 2 results when we asked for exactly one" +
				"\nWarning FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: failed to get object metric value: " +
				"unable to get metric hits on Ingress ns/i: unable to fetch metrics from custom metrics API: the custom metrics API server returned 2 results when we asked for exactly one"},
		{"W7.26 one metric fails, the other asks for more",
			with(hpa(1, 10, external(autoscalingv2.ValueMetricType, "1"), cpu(50)),
				[]Sample{{Err: errors.New("away")}, world(hpa(1, 1), 900, 700).Samples[0]}, 0, 0), "4 " + usual +
				"\nWarning FailedGetExternalMetric: failed to get external metric queue: unable to get external metric ns/queue/nil: away" + fmt.Sprintf(upEvent, 4)},
		{"W7.26 one metric fails, the other asks for less",
			with(hpa(1, 10, external(autoscalingv2.ValueMetricType, "1"), cpu(50)),
				[]Sample{{Err: errors.New("away")}, world(hpa(1, 1), 10, 10).Samples[0]}, 0, 0),
			"0 AbleToScale=True(SucceededGetScale) ScalingActive=False(FailedGetExternalMetric)" +
				"\nWarning FailedGetExternalMetric: failed to get external metric queue: unable to get external metric ns/queue/nil: away" +
				"\nWarning FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 2), first error is: failed to get queue external metric value: " +
				"failed to get external metric queue: unable to get external metric ns/queue/nil: away"},
	} {
		if got := format(c.in, Plan(c.in)); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.clause, got, c.want)
		}
	}
	ambiguous := world(hpa(1, 3, cpu(50)), 900)
	ambiguous.Rivals = []string{"ns/a", "ns/h", "ns/z"}
	if got := format(ambiguous, Plan(ambiguous)); !strings.Contains(got, "ScalingActive=False(AmbiguousSelector)") ||
		!strings.Contains(got,
			"Warning AmbiguousSelector: pods by selector a=b are controlled by more than one HPA (e.g. [ns/a ns/h])") {
		t.Errorf("W7.27: %s", got)
	}
}

// W7.25: to zero by an external metric and back; W7.21: a target that a user scaled to zero stays
// there.
func TestToZeroAndBack(t *testing.T) {
	h := hpa(0, 10, external(autoscalingv2.AverageValueMetricType, "1"))
	in := world(h, 0)
	in.History = History{proposed: []at{{noon.Add(-time.Hour), 1}}}
	in.Samples = []Sample{{Values: []int64{0}}}
	out := Rescaled(in, Plan(in), nil)
	if *out.Rescale != 0 || !strings.Contains(format(in, Plan(in)), "ScaledToZero=True(ScaledToZero)") {
		t.Fatalf("not to zero: %s", format(in, Plan(in)))
	}
	h.Status = out.Status
	in = world(h)
	in.History, in.Samples = out.History, []Sample{{Values: []int64{3000}}}
	if !NeedsMetrics(h, in.Scale) {
		t.Fatal("it is not checked whether it may grow again")
	}
	if got := Plan(in); got.Rescale == nil || *got.Rescale != 3 {
		t.Errorf("not back: %s", format(in, got))
	}
	h.Status.Conditions = nil // scaled by a user
	if NeedsMetrics(h, in.Scale) || Plan(in).Rescale != nil {
		t.Error("a target that a user scaled to zero grows")
	}
}

// W7.75, W13.60: down after five minutes of less, in one step; up at once, doubling.
func TestStabilization(t *testing.T) {
	h := hpa(1, 20, cpu(50))
	size, now := 2, noon
	var history History
	pass := func(usage int64) int {
		usages := make([]int64, size)
		for i := range usages {
			usages[i] = usage
		}
		in := world(h, usages...)
		in.History = history
		shift := now.Sub(noon)
		in.Now = now
		for _, p := range in.Pods {
			p.Status.StartTime.Time = p.Status.StartTime.Add(shift)
		}
		out := Plan(in)
		if out.Rescale != nil {
			out = Rescaled(in, out, nil)
			size = int(*out.Rescale)
		}
		history, h.Status, now = out.History, out.Status, now.Add(Period)
		return size
	}
	for _, want := range []int{4, 8, 16, 20} {
		if got := pass(2000); got != want {
			t.Fatalf("up to %d, want %d", got, want)
		}
	}
	for i := range 20 {
		if got := pass(10); got != 20 {
			t.Fatalf("down to %d after %d passes without usage", got, i)
		}
	}
	if got := pass(10); got != 1 {
		t.Errorf("after five minutes it is %d", got)
	}
	if len(history.proposed) > 22 {
		t.Errorf("%d proposals are remembered", len(history.proposed))
	}
}

// W7.81, W12.58: 50 % up a minute from 2: 3, then 5; 25 % down a minute from 7: 5, then 3.
func TestRates(t *testing.T) {
	for _, c := range []struct {
		from  int
		usage int64
		up    int32
		down  int32
		want  []int
	}{{2, 5000, 50, 100, []int{3, 3, 3, 3, 5, 5}}, {7, 1, 100, 25, []int{5, 5, 5, 5, 3, 3}}} {
		rules := func(percent int32) *autoscalingv2.HPAScalingRules {
			return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0)),
				SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
				Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: percent,
					PeriodSeconds: 60}}}
		}
		h := hpa(1, 20, cpu(50))
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(c.up), ScaleDown: rules(c.down)}
		size := c.from
		var history History
		for i, want := range c.want {
			usages := make([]int64, size)
			for j := range usages {
				usages[j] = c.usage
			}
			in := world(h, usages...)
			in.Now, in.History = noon.Add(time.Duration(i)*Period), history
			out := Plan(in)
			if out.Rescale != nil {
				out = Rescaled(in, out, nil)
				size = int(*out.Rescale)
			}
			history = out.History
			if size != want {
				t.Errorf("from %d, pass %d: %d, want %d", c.from, i, size, want)
			}
		}
	}
	disabled := hpa(1, 20, cpu(50))
	disabled.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{
		SelectPolicy: new(autoscalingv2.DisabledPolicySelect),
		Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 4,
			PeriodSeconds: 15}}}, ScaleDown: &autoscalingv2.HPAScalingRules{}}
	if out := Plan(world(disabled, 5000)); out.Rescale != nil {
		t.Errorf("scaling up is disabled, and it goes to %d", *out.Rescale)
	}
}

// A rescale that fails is reported, and is not a scale event (W7.56, W7.68).
func TestRescaleFails(t *testing.T) {
	in := world(hpa(1, 10, cpu(50)), 900)
	out := Rescaled(in, Plan(in), errors.New("quota"))
	last := out.Events[len(out.Events)-1]
	if last.Message != "New size: 2; reason: cpu resource utilization (percentage of request) above target; error: quota" || out.Status.LastScaleTime != nil {
		t.Errorf("%+v %+v", last, out.Status)
	}
}

// With random metrics and histories: the size stays in bounds, changes in the direction of the
// metrics or not at all, and nothing panics.
func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Int32Range(0, 5).Draw(t, "min")
		high := rapid.Int32Range(max(low, 1), 30).Draw(t, "max")
		specs := []autoscalingv2.MetricSpec{cpu(rapid.Int32Range(1, 300).Draw(t, "target")), perPod("1"),
			external(autoscalingv2.ValueMetricType, "1"), external(autoscalingv2.AverageValueMetricType, "3")}
		h := hpa(low, high, specs[rapid.IntRange(0, len(specs)-1).Draw(t, "metric")])
		if rapid.Bool().Draw(t, "behavior") {
			rules := func() *autoscalingv2.HPAScalingRules {
				r := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(rapid.Int32Range(0, 3600).Draw(t,
					"window")),
					SelectPolicy: new(
						rapid.SampledFrom([]autoscalingv2.ScalingPolicySelect{autoscalingv2.MaxChangePolicySelect,
							autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect}).Draw(t,
							"select"))}
				for range rapid.IntRange(1, 3).Draw(t, "policies") {
					r.Policies = append(r.Policies,
						autoscalingv2.HPAScalingPolicy{Type: rapid.SampledFrom(
							[]autoscalingv2.HPAScalingPolicyType{autoscalingv2.PodsScalingPolicy,
								autoscalingv2.PercentScalingPolicy}).Draw(t, "type"),
							Value:         rapid.Int32Range(1, 2147483647).Draw(t, "value"),
							PeriodSeconds: rapid.Int32Range(1, 1800).Draw(t, "period")})
				}
				return r
			}
			h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(), ScaleDown: rules()}
		}
		size := rapid.IntRange(0, 40).Draw(t, "size")
		var history History
		for i := range rapid.IntRange(1, 20).Draw(t, "passes") {
			usages := make([]int64, size)
			for j := range usages {
				usages[j] = rapid.Int64Range(-5, 5000).Draw(t, "usage")
			}
			in := world(h, usages...)
			in.History, in.Now = history, noon.Add(time.Duration(i)*Period)
			if h.Spec.Metrics[0].External != nil {
				in.Samples[0].Values = []int64{rapid.Int64Range(-1<<62, 1<<62).Draw(t, "value"),
					rapid.Int64Range(0, 9000).Draw(t, "value")}
			}
			out := Plan(in)
			if out.Rescale != nil {
				out = Rescaled(in, out, nil)
				if *out.Rescale < low || *out.Rescale > high {
					t.Fatalf("%d is not in %d…%d: %+v", *out.Rescale, low, high, out.Status.Conditions)
				}
				size = int(*out.Rescale)
			}
			if NeedsMetrics(h, in.Scale) && len(out.History.proposed) == 0 {
				t.Fatal("the history is empty")
			}
			history, h.Status = out.History, out.Status
		}
	})
}

// Values that are as large as numbers can be never make a target smaller, and those that are as small never larger:
// sums and percentages do not overflow.
func TestExtremeValues(t *testing.T) {
	for _, m := range []autoscalingv2.MetricSpec{cpu(50), perPod("1")} {
		h := hpa(1, 10, m)
		for _, c := range []struct {
			value int64
			size  int32
		}{{math.MaxInt64, 6}, {math.MaxInt64 / 50, 6}, {math.MinInt64, 1}, {math.MinInt64 / 50, 1}} {
			in := world(h, 500, 500, 500)
			in.History.proposed = []at{{noon.Add(-time.Hour), 1}}
			for pod, v := range in.Samples[0].Pods {
				v.Value = c.value
				in.Samples[0].Pods[pod] = v
			}
			out := Plan(in)
			if out.Rescale == nil || *out.Rescale != c.size {
				t.Errorf("%s of %d: %+v, want size %d", m.Type, c.value, out.Status, c.size)
			}
		}
	}
}
