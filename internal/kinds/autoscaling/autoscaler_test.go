package autoscaling

import (
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// W7.90, W13.61: TARGETS of each kind of metric, with values that are known, unknown, and of another kind.
func TestTargets(t *testing.T) {
	quantity := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	percent := func(n int32) autoscalingv2.MetricTarget {
		return autoscalingv2.MetricTarget{AverageUtilization: &n}
	}
	average := func(text string) autoscalingv2.MetricTarget {
		return autoscalingv2.MetricTarget{AverageValue: quantity(text)}
	}
	value := func(text string) autoscalingv2.MetricTarget {
		return autoscalingv2.MetricTarget{Value: quantity(text)}
	}
	byResource := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: target}}
	}
	byContainer := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
			ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceMemory, Container: "c",
				Target: target}}
	}
	byPods := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{Target: target}}
	}
	byObject := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType,
			Object: &autoscalingv2.ObjectMetricSource{Target: target}}
	}
	byExternal := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{Target: target}}
	}
	ofResource := func(v autoscalingv2.MetricValueStatus) autoscalingv2.MetricStatus {
		return autoscalingv2.MetricStatus{Resource: &autoscalingv2.ResourceMetricStatus{Current: v}}
	}
	type specs []autoscalingv2.MetricSpec
	type statuses []autoscalingv2.MetricStatus
	for name, c := range map[string]struct {
		specs    specs
		statuses statuses
		want     string
	}{
		"no metrics": {nil, nil, "<none>"},
		"resource": {specs{byResource(percent(50))},
			statuses{ofResource(autoscalingv2.MetricValueStatus{AverageUtilization: new(int32(10))})}, "cpu: 10%/50%"},
		"average of a resource": {specs{byResource(average("100m"))},
			statuses{ofResource(autoscalingv2.MetricValueStatus{AverageValue: quantity("20m")})}, "cpu: 20m/100m"},
		"nothing measured yet": {specs{byResource(percent(50))}, nil, "cpu: <unknown>/50%"},
		"no target":            {specs{byResource(autoscalingv2.MetricTarget{})}, nil, "cpu: <unknown>/<auto>"},
		"container": {specs{byContainer(percent(50))}, statuses{{
			ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{
				Current: autoscalingv2.MetricValueStatus{AverageUtilization: new(int32(7))}}}}, "memory: 7%/50%"},
		"pods": {specs{byPods(average("5"))}, statuses{{Pods: &autoscalingv2.PodsMetricStatus{
			Current: autoscalingv2.MetricValueStatus{AverageValue: quantity("3")}}}}, "3/5"},
		"object": {specs{byObject(value("5"))}, statuses{{Object: &autoscalingv2.ObjectMetricStatus{
			Current: autoscalingv2.MetricValueStatus{Value: quantity("4")}}}}, "4/5"},
		"average of an object": {specs{byObject(average("5"))}, statuses{{Object: &autoscalingv2.ObjectMetricStatus{
			Current: autoscalingv2.MetricValueStatus{AverageValue: quantity("4")}}}}, "4/5 (avg)"},
		"external": {specs{byExternal(value("5"))}, statuses{{External: &autoscalingv2.ExternalMetricStatus{
			Current: autoscalingv2.MetricValueStatus{Value: quantity("2")}}}}, "2/5"},
		"average of an external metric, unknown": {specs{byExternal(average("5"))}, nil, "<unknown>/5 (avg)"},
		"a status of another kind": {specs{byPods(average("5"))},
			statuses{ofResource(autoscalingv2.MetricValueStatus{AverageValue: quantity("20m")})}, "<unknown>/5"},
		"two": {specs{byResource(percent(50)), byPods(average("5"))}, nil, "cpu: <unknown>/50%, <unknown>/5"},
		"four": {specs{byResource(percent(50)), byPods(average("5")), byObject(value("1")), byExternal(value("1"))},
			nil, "cpu: <unknown>/50%, <unknown>/5 + 2 more..."},
	} {
		row := Kinds()[0].Table.Row(&autoscalingv2.HorizontalPodAutoscaler{
			Spec:   autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: c.specs},
			Status: autoscalingv2.HorizontalPodAutoscalerStatus{CurrentMetrics: c.statuses}}, time.Time{})
		if row[2] != c.want {
			t.Errorf("%s: %v, want %s", name, row[2], c.want)
		}
	}
}
