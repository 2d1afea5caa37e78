package scheme_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A v2 autoscaler that a v1 client reads and writes back loses no data.
func TestAutoscalerRoundTrip(t *testing.T) {
	s := newSet(t)
	q := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	in := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"mine": "kept"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "web",
				APIVersion: "apps/v1"}, MinReplicas: new(int32(2)), MaxReplicas: 9,
			Metrics: []autoscalingv2.MetricSpec{
				{Type: autoscalingv2.PodsMetricSourceType,
					Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "requests"},
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
							AverageValue: q("10")}}},
				{Type: autoscalingv2.ObjectMetricSourceType,
					Object: &autoscalingv2.ObjectMetricSource{
						DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "a"},
						Metric:          autoscalingv2.MetricIdentifier{Name: "depth"},
						Target: autoscalingv2.MetricTarget{
							Type: autoscalingv2.ValueMetricType, Value: q("5")}}},
				{Type: autoscalingv2.ExternalMetricSourceType,
					External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue",
						Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"q": "1"}}},
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
							AverageValue: q("3")}}},
				{Type: autoscalingv2.ContainerResourceMetricSourceType,
					ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceMemory,
						Container: "app",
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
							AverageUtilization: new(int32(70))}}},
				{Type: autoscalingv2.ResourceMetricSourceType,
					Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
							AverageUtilization: new(int32(60))}}},
			},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(7)),
					Tolerance: q("0.2")}},
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 3, DesiredReplicas: 4,
			CurrentMetrics: []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricStatus{Name: corev1.ResourceCPU,
					Current: autoscalingv2.MetricValueStatus{AverageUtilization: new(int32(55)),
						AverageValue: q("100m")}}}},
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.AbleToScale,
				Status: corev1.ConditionTrue, Reason: "r", Message: "m"}}},
	}
	v1, back := &autoscalingv1.HorizontalPodAutoscaler{}, &autoscalingv2.HorizontalPodAutoscaler{}
	if err := s.Scheme.Convert(in, v1, nil); err != nil {
		t.Fatal(err)
	}
	if p := v1.Spec.TargetCPUUtilizationPercentage; p == nil || *p != 60 {
		t.Errorf("the processor's target is %v, want 60", p)
	}
	if p := v1.Status.CurrentCPUUtilizationPercentage; p == nil || *p != 55 {
		t.Errorf("the processor's load is %v, want 55", p)
	}
	if len(v1.Annotations) != 5 {
		t.Errorf("v1 has the annotations %v, want mine and four of the round trip", v1.Annotations)
	}
	// W7.5: upstream's text.
	if got := v1.Annotations["autoscaling.alpha.kubernetes.io/behavior"]; got != `{"ScaleUp":{"StabilizationWindowSeconds"`+
		`:7,"SelectPolicy":null,"Policies":null,"Tolerance":"200m"},"ScaleDown":null}` {
		t.Errorf("behavior: %s", got)
	}
	v1.Annotations["autoscaling.alpha.kubernetes.io/scale-up-tolerance"] = "1"
	if err := s.Scheme.Convert(v1, back, nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, back); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"mine": "kept"}, in.Annotations); d != "" {
		t.Errorf("the source was changed: %s", d)
	}
}

// A missing v1 target becomes the default target; unreadable annotations are dropped.
func TestAutoscalerFromV1(t *testing.T) {
	s := newSet(t)
	out := &autoscalingv2.HorizontalPodAutoscaler{}
	in := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"autoscaling.alpha.kubernetes.io/metrics": "{"}}}
	if err := s.Scheme.Convert(in, out, nil); err != nil {
		t.Fatal(err)
	}
	if len(out.Spec.Metrics) != 1 || ptr.Deref(out.Spec.Metrics[0].Resource.Target.AverageUtilization, 0) != 80 {
		t.Errorf("metrics are %v, want the processor at 80 %%", out.Spec.Metrics)
	}
	if len(out.Annotations) != 0 {
		t.Errorf("annotations are %v, want none", out.Annotations)
	}
}
