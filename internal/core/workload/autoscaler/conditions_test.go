package autoscaler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// condition formats a condition of a status, as the tables of W7.E have it.
func condition(s autoscalingv2.HorizontalPodAutoscalerStatus,
	kind autoscalingv2.HorizontalPodAutoscalerConditionType) string {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "none"
}

// decided is the output of a pass, with its write of the scale.
func decided(in Input, err error) Output {
	out := Plan(in)
	if out.Rescale != nil {
		out = Rescaled(in, out, err)
	}
	return out
}

// with returns a pass of an autoscaler with a change.
func with(in Input, change func(in *Input)) Input {
	change(&in)
	return in
}

// rules are the rules of one direction.
func rules(window int32, kind autoscalingv2.HPAScalingPolicyType, value int32) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window,
		SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
		Policies:     []autoscalingv2.HPAScalingPolicy{{Type: kind, Value: value, PeriodSeconds: 60}}}
}

func object() autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType,
		Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Ingress", Name: "i"},
			Metric:          autoscalingv2.MetricIdentifier{Name: "hits"},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType,
				Value: new(resource.MustParse("1"))}}}
}

func ofContainer(name string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceCPU, Container: name,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
				AverageUtilization: new(int32(50))}}}
}

// W7.50–W7.65: the status, the reason and the message of each condition.
func TestConditions(t *testing.T) {
	old := History{proposed: []at{{noon.Add(-time.Hour), 1}}}
	behaving := func(h *autoscalingv2.HorizontalPodAutoscaler, up, down *autoscalingv2.HPAScalingRules,
	) *autoscalingv2.HorizontalPodAutoscaler {
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: up, ScaleDown: down}
		return h
	}
	toZero := with(world(hpa(0, 9, external(autoscalingv2.AverageValueMetricType, "1")), 0), func(in *Input) {
		in.History, in.Samples = old, []Sample{{Values: []int64{0}}}
	})
	pods := autoscalingv2.PodsScalingPolicy
	for _, c := range []struct {
		clause string
		in     Input
		err    error // of the write of the scale
		kind   autoscalingv2.HorizontalPodAutoscalerConditionType
		want   string
	}{
		{"W7.50", world(hpa(1, 9, cpu(50))), nil, autoscalingv2.AbleToScale,
			"True SucceededGetScale: the HPA controller was able to get the target's current scale"},
		{"W7.52", world(hpa(1, 9, cpu(50)), 500, 500), nil, autoscalingv2.AbleToScale,
			"True ReadyForNewScale: recommended size matches current size"},
		{"W7.53", world(hpa(1, 9, cpu(50)), 0, 0), nil, autoscalingv2.AbleToScale,
			"True ScaleDownStabilized: recent recommendations were higher than current one, applying the highest " +
				"recent recommendation"},
		{"W7.53, W7.80 with rules", world(behaving(hpa(1, 9, cpu(50)), rules(0, pods, 9), rules(300, pods, 9)), 0, 0),
			nil,
			autoscalingv2.AbleToScale,
			"True ScaleDownStabilized: recent recommendations were higher than current one, applying the highest " +
				"recent recommendation"},
		{"W7.54, W7.80", world(behaving(hpa(1, 9, cpu(50)), rules(300, pods, 9), rules(0, pods, 9)), 1000, 1000), nil,
			autoscalingv2.AbleToScale,
			"True ScaleUpStabilized: recent recommendations were lower than current one, applying the lowest recent " +
				"recommendation"},
		{"W7.55", world(hpa(1, 9, cpu(50)), 1000, 1000), nil, autoscalingv2.AbleToScale,
			"True SucceededRescale: the HPA controller was able to update the target scale to 4"},
		{"W7.56", world(hpa(1, 9, cpu(50)), 1000, 1000), errors.New("quota"), autoscalingv2.AbleToScale,
			"False FailedUpdateScale: the HPA controller was unable to update the target scale: quota"},
		{"W7.57", world(hpa(1, 9, cpu(50)), 500), nil, autoscalingv2.ScalingActive,
			"True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource " +
				"utilization (percentage of request)"},
		{"W7.59", world(hpa(1, 9, cpu(50))), nil, autoscalingv2.ScalingActive,
			"False ScalingDisabled: scaling is disabled since the replica count of the target is zero"},
		{"W7.60", with(world(hpa(1, 9, cpu(50)), 500), func(in *Input) { in.Scale.Selector = "" }), nil,
			autoscalingv2.ScalingActive, "False InvalidSelector: the HPA target's scale is missing a selector"},
		{"W7.60 one that does not parse",
			with(world(hpa(1, 9, cpu(50)), 500), func(in *Input) { in.SelectorErr = errors.New("bad") }), nil,
			autoscalingv2.ScalingActive,
			"False InvalidSelector: couldn't convert selector into a corresponding internal selector object: bad"},
		{"W7.61", with(world(hpa(1, 9, cpu(50)), 500), func(in *Input) {
			in.Rivals = []string{"ns/a", "ns/h", "ns/z"}
		}), nil, autoscalingv2.ScalingActive,
			"False AmbiguousSelector: pods by selector a=b are controlled by more than one HPA (e.g. [ns/a ns/h])"},
		{"W7.62", world(hpa(1, 9, cpu(50)), 500), nil, autoscalingv2.ScalingLimited,
			"False DesiredWithinRange: the desired count is within the acceptable range"},
		{"W7.63 too few", with(world(hpa(2, 9, cpu(50)), 0, 0), func(in *Input) { in.History = old }), nil,
			autoscalingv2.ScalingLimited,
			"True TooFewReplicas: the desired replica count is less than the minimum replica count"},
		{"W7.63 too many", world(hpa(1, 3, cpu(10)), 900, 900), nil, autoscalingv2.ScalingLimited,
			"True TooManyReplicas: the desired replica count is more than the maximum replica count"},
		{"W7.64 up", world(hpa(1, 99, cpu(10)), 900, 900), nil, autoscalingv2.ScalingLimited,
			"True ScaleUpLimit: the desired replica count is increasing faster than the maximum scale rate"},
		{"W7.64 up by rules", world(behaving(hpa(1, 9, cpu(50)), rules(0, pods, 1), rules(0, pods, 9)), 900, 900), nil,
			autoscalingv2.ScalingLimited,
			"True ScaleUpLimit: the desired replica count is increasing faster than the maximum scale rate"},
		{"W7.64 down", with(world(behaving(hpa(1, 9, cpu(50)), rules(0, pods, 9), rules(0, pods, 1)), 0, 0, 0),
			func(in *Input) { in.History = old }), nil, autoscalingv2.ScalingLimited,
			"True ScaleDownLimit: the desired replica count is decreasing faster than the maximum scale rate"},
		{"W7.65", toZero, nil, autoscalingv2.ScaledToZero,
			"True ScaledToZero: the HPA controller scaled the workload to zero"},
		{"W7.65 to another size", world(hpa(1, 9, cpu(50)), 900, 900), nil, autoscalingv2.ScaledToZero,
			"False NotScaledToZero: the HPA controller did not scale the workload to zero"},
		{"W7.65 only after a rescale", world(hpa(1, 9, cpu(50)), 500), nil, autoscalingv2.ScaledToZero, "none"},
		{"W7.65 not after one that failed", toZero, errors.New("quota"), autoscalingv2.ScaledToZero, "none"},
	} {
		if got := condition(decided(c.in, c.err).Status, c.kind); got != c.want {
			t.Errorf("%s: %s is\n%s\nwant\n%s", c.clause, c.kind, got, c.want)
		}
	}
}

// W7.20, W7.51, W7.69: a scale that cannot be read.
func TestUnreadableScale(t *testing.T) {
	h := hpa(1, 9, cpu(50))
	h.Status.DesiredReplicas = 5
	status, events := Unreadable(h, noon, errors.New(`deployments.apps "web" not found`))
	const text = `deployments.apps "web" not found`
	if got := condition(status, autoscalingv2.AbleToScale); got != "False FailedGetScale: the HPA controller was unable "+
		"to get the target's current scale: "+text {
		t.Errorf("W7.51: %s", got)
	}
	if !slices.Equal(events, []Event{{corev1.EventTypeWarning, "FailedGetScale", text}}) {
		t.Errorf("W7.69: %v", events)
	}
	if status.DesiredReplicas != 5 || len(h.Status.Conditions) > 0 {
		t.Errorf("desired %d, conditions of the input %v", status.DesiredReplicas, h.Status.Conditions)
	}
}

// W7.44, W7.47, W7.58, W7.69: each kind of metric has its own reason; the event has the error, and a second one
// follows.
func TestMetricsFail(t *testing.T) {
	away := errors.New("away")
	for _, c := range []struct {
		metric autoscalingv2.MetricSpec
		reason string
		text   string // of the condition and of the first event
		outer  string // before the text, in the second event
	}{
		{cpu(50), "FailedGetResourceMetric",
			"failed to get cpu utilization: unable to get metrics for resource cpu: away",
			"failed to get cpu resource metric value: "},
		{ofContainer("c"), "FailedGetContainerResourceMetric",
			"failed to get cpu utilization: unable to get metrics for resource cpu: away",
			"failed to get c container metric value: "},
		{perPod("1"), "FailedGetPodsMetric", "unable to get metric rps: away", "failed to get pods metric value: "},
		{object(), "FailedGetObjectMetric", "unable to get metric hits on Ingress ns/i: away",
			"failed to get object metric value: "},
		{external(autoscalingv2.ValueMetricType, "1"), "FailedGetExternalMetric",
			"failed to get external metric queue: unable to get external metric ns/queue/nil: away",
			"failed to get queue external metric value: "},
	} {
		in := world(hpa(1, 9, c.metric), 500)
		in.Samples = []Sample{{Err: away}}
		out := Plan(in)
		if got, want := condition(out.Status, autoscalingv2.ScalingActive),
			"False "+c.reason+": the HPA was unable to compute the replica count: "+c.text; got != want {
			t.Errorf("W7.58: %s\nwant %s", got, want)
		}
		want := []Event{{corev1.EventTypeWarning, c.reason, c.text},
			{corev1.EventTypeWarning, "FailedComputeMetricsReplicas",
				"invalid metrics (1 invalid out of 1), first error is: " + c.outer + c.text}}
		if !slices.Equal(out.Events, want) {
			t.Errorf("W7.69: %v\nwant %v", out.Events, want)
		}
		if out.Rescale != nil || out.Problem == nil {
			t.Errorf("%s: rescale %v, problem %v", c.reason, out.Rescale, out.Problem)
		}
	}
	for reason, change := range map[string]func(in *Input){
		"SelectorRequired selector is required": func(in *Input) { in.Scale.Selector = "" },
		"InvalidSelector couldn't convert selector into a corresponding internal selector object: bad": func(in *Input) {
			in.SelectorErr = errors.New("bad")
		},
		"AmbiguousSelector pods by selector a=b are controlled by more than one HPA (e.g. [ns/a ns/h])": func(in *Input) {
			in.Rivals = []string{"ns/a", "ns/h"}
		},
	} {
		out := Plan(with(world(hpa(1, 9, cpu(50)), 900), change))
		_, text, _ := strings.Cut(reason, " ")
		if len(out.Events) != 2 || out.Events[0].Reason+" "+out.Events[0].Message != reason ||
			out.Events[1] != (Event{corev1.EventTypeWarning, "FailedComputeMetricsReplicas", text}) ||
			out.Rescale != nil {
			t.Errorf("W7.69: %v, want %s", out.Events, reason)
		}
	}
}

// W7.28: what a status has: a metric that fails has an empty entry, lastScaleTime is that of the last change of the
// size, and a pass that decides the same changes nothing.
func TestStatus(t *testing.T) {
	before := metav1.NewTime(noon.Add(-time.Hour))
	in := world(hpa(1, 9, cpu(50), external(autoscalingv2.AverageValueMetricType, "1")), 500, 500)
	in.HPA.Status.LastScaleTime = &before
	in.Samples = []Sample{{Err: errors.New("away")}, {Values: []int64{2000}}}
	out := Plan(in)
	if out.Rescale != nil {
		t.Fatalf("rescaled to %d", *out.Rescale)
	}
	s := out.Status
	if len(s.CurrentMetrics) != 2 || s.CurrentMetrics[0] != (autoscalingv2.MetricStatus{}) ||
		s.CurrentMetrics[1].External.Current.AverageValue.Value() != 1 {
		t.Errorf("current metrics %+v", s.CurrentMetrics)
	}
	if s.CurrentReplicas != 2 || s.DesiredReplicas != 2 || *s.ObservedGeneration != 7 ||
		!s.LastScaleTime.Equal(&before) {
		t.Errorf("status %+v", s)
	}
	in.HPA.Status, in.History, in.Now = s, out.History, noon.Add(Period)
	if again := Plan(in).Status; !equality.Semantic.DeepEqual(again, s) {
		t.Errorf("the next pass changes the status from\n%+v\nto\n%+v", s, again)
	}
	in.Samples[1].Values[0] = 4000
	out = Plan(in)
	if out.Rescale == nil || *out.Rescale != 4 {
		t.Fatalf("rescale %v", out.Rescale)
	}
	if failed := Rescaled(in, out, errors.New("no")).Status; !failed.LastScaleTime.Equal(&before) ||
		failed.DesiredReplicas != 2 {
		t.Errorf("after a change that failed: %+v", failed)
	}
	if done := Rescaled(in, out, nil).Status; !done.LastScaleTime.Time.Equal(in.Now) || done.DesiredReplicas != 4 ||
		done.CurrentReplicas != 2 {
		t.Errorf("after a change: %+v", done)
	}
}

// W7.67, W7.70: one event with the new size and the reason, for each kind of metric.
func TestRescaleEvents(t *testing.T) {
	average := cpu(50)
	average.Resource.Target = autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
		AverageValue: new(resource.MustParse("500m"))}
	values := func(in *Input) { in.Samples = []Sample{{Values: []int64{2000}}} }
	down := with(world(hpa(1, 9, cpu(50)), 0, 0), func(in *Input) {
		in.History = History{proposed: []at{{noon.Add(-time.Hour), 1}}}
	})
	for _, c := range []struct {
		in   Input
		want string
	}{
		{world(hpa(1, 9, cpu(50)), 900, 900),
			"New size: 4; reason: cpu resource utilization (percentage of request) above target"},
		{world(hpa(1, 9, ofContainer("c")), 900, 900),
			"New size: 4; reason: cpu container resource utilization (percentage of request) above target"},
		{world(hpa(1, 9, average), 900, 900), "New size: 4; reason: cpu resource above target"},
		{world(hpa(1, 9, perPod("500m")), 900, 900), "New size: 4; reason: pods metric rps above target"},
		{with(world(hpa(1, 9, object()), 0), values), "New size: 2; reason: Ingress metric hits above target"},
		{with(world(hpa(1, 9, external(autoscalingv2.ValueMetricType, "1")), 0), values),
			"New size: 2; reason: external metric queue(nil) above target"},
		{down, "New size: 1; reason: All metrics below target"},
		{world(hpa(1, 1, cpu(50)), 0, 0), "New size: 1; reason: Current number of replicas above Spec.MaxReplicas"},
		{world(hpa(3, 9, cpu(50)), 0, 0), "New size: 3; reason: Current number of replicas below Spec.MinReplicas"},
	} {
		if got := decided(c.in, nil).Events; !slices.Equal(got,
			[]Event{{corev1.EventTypeNormal, "SuccessfulRescale", c.want}}) {
			t.Errorf("W7.67: %v, want %s", got, c.want)
		}
	}
}

// W7.66: the time of a condition is that of its last change of status; reason and message are always new.
func TestTransitionTimes(t *testing.T) {
	h := hpa(1, 9, cpu(50))
	before, later := metav1.NewTime(noon.Add(-time.Hour)), noon.Add(time.Minute)
	for _, kind := range []autoscalingv2.HorizontalPodAutoscalerConditionType{autoscalingv2.AbleToScale,
		autoscalingv2.ScalingActive, autoscalingv2.ScalingLimited} {
		h.Status.Conditions = append(h.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind,
			Status: corev1.ConditionTrue, Reason: "Earlier", Message: "earlier", LastTransitionTime: before})
	}
	times := func(now time.Time) map[autoscalingv2.HorizontalPodAutoscalerConditionType]time.Time {
		in := world(h, 500)
		in.Now = now
		h.Status = Plan(in).Status
		out := map[autoscalingv2.HorizontalPodAutoscalerConditionType]time.Time{}
		for _, c := range h.Status.Conditions {
			out[c.Type] = c.LastTransitionTime.Time
			if c.Reason == "Earlier" || c.Message == "earlier" {
				t.Errorf("%s keeps reason %s and message %s", c.Type, c.Reason, c.Message)
			}
		}
		return out
	}
	for _, now := range []time.Time{noon, later} {
		got := times(now)
		for kind, want := range map[autoscalingv2.HorizontalPodAutoscalerConditionType]time.Time{
			autoscalingv2.AbleToScale:    before.Time, // True before and after, with another reason
			autoscalingv2.ScalingActive:  before.Time,
			autoscalingv2.ScalingLimited: noon, // False since the first pass
		} {
			if !got[kind].Equal(want) {
				t.Errorf("%s at %v: %v, want %v", kind, now, got[kind], want)
			}
		}
	}
}
