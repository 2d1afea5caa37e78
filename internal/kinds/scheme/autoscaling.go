package scheme

import (
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// HorizontalPodAutoscalers are stored as autoscaling/v2. A client of v1, which supports only the
// CPU metric, gets the other fields in annotations and sends them back, so that it can update a v2
// object without data loss.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"

	// Those of a version that had no tolerances: upstream still drops them.
	scaleUpToleranceAnnotation   = "autoscaling.alpha.kubernetes.io/scale-up-tolerance"
	scaleDownToleranceAnnotation = "autoscaling.alpha.kubernetes.io/scale-down-tolerance"
)

// DefaultCPUUtilization is the target in percent of an autoscaler without metrics.
const DefaultCPUUtilization = 80

func addAutoscalerConversions(s *runtime.Scheme) error {
	for _, c := range []struct {
		from, to any
		fn       conversion.ConversionFunc
	}{
		{(*autoscalingv1.HorizontalPodAutoscaler)(nil), (*autoscalingv2.HorizontalPodAutoscaler)(nil),
			func(a, b any, _ conversion.Scope) error {
				autoscalerFromV1(a.(*autoscalingv1.HorizontalPodAutoscaler), b.(*autoscalingv2.HorizontalPodAutoscaler))
				return nil
			}},
		{(*autoscalingv2.HorizontalPodAutoscaler)(nil), (*autoscalingv1.HorizontalPodAutoscaler)(nil),
			func(a, b any, _ conversion.Scope) error {
				return autoscalerToV1(a.(*autoscalingv2.HorizontalPodAutoscaler),
					b.(*autoscalingv1.HorizontalPodAutoscaler))
			}},
		{(*autoscalingv1.HorizontalPodAutoscalerList)(nil), (*autoscalingv2.HorizontalPodAutoscalerList)(nil),
			func(a, b any, _ conversion.Scope) error {
				in, out := a.(*autoscalingv1.HorizontalPodAutoscalerList),
					b.(*autoscalingv2.HorizontalPodAutoscalerList)
				out.ListMeta, out.Items = in.ListMeta, make([]autoscalingv2.HorizontalPodAutoscaler, len(in.Items))
				for i := range in.Items {
					autoscalerFromV1(&in.Items[i], &out.Items[i])
				}
				return nil
			}},
		{(*autoscalingv2.HorizontalPodAutoscalerList)(nil), (*autoscalingv1.HorizontalPodAutoscalerList)(nil),
			func(a, b any, _ conversion.Scope) error {
				in, out := a.(*autoscalingv2.HorizontalPodAutoscalerList),
					b.(*autoscalingv1.HorizontalPodAutoscalerList)
				out.ListMeta, out.Items = in.ListMeta, make([]autoscalingv1.HorizontalPodAutoscaler, len(in.Items))
				for i := range in.Items {
					if err := autoscalerToV1(&in.Items[i], &out.Items[i]); err != nil {
						return err
					}
				}
				return nil
			}},
	} {
		if err := s.AddConversionFunc(c.from, c.to, c.fn); err != nil {
			return err
		}
	}
	return nil
}

// withoutRoundTrip returns the annotations without those of the round trip; it copies them if there
// are any.
func withoutRoundTrip(annotations map[string]string) map[string]string {
	out := annotations
	for _, key := range []string{metricsAnnotation, currentMetricsAnnotation, conditionsAnnotation,
		behaviorAnnotation, scaleUpToleranceAnnotation, scaleDownToleranceAnnotation} {
		if _, ok := annotations[key]; !ok {
			continue
		}
		if len(out) == len(annotations) {
			out = maps.Clone(annotations)
		}
		delete(out, key)
	}
	return out
}

// isCPUUtilization reports whether v1 has a field for the metric.
func isCPUUtilization(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
		m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil
}

func cpuUtilization(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
				AverageUtilization: &percent}}}
}

func autoscalerToV1(in *autoscalingv2.HorizontalPodAutoscaler, out *autoscalingv1.HorizontalPodAutoscaler) error {
	*out = autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(
			in.Spec.ScaleTargetRef),
			MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{ObservedGeneration: in.Status.ObservedGeneration,
			LastScaleTime:   in.Status.LastScaleTime,
			CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas},
	}
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		if !isCPUUtilization(m) {
			others = append(others, metricToV1(m))
		} else if out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = new(*m.Resource.Target.AverageUtilization)
		}
	}
	var current []autoscalingv1.MetricStatus
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
			m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = new(*m.Resource.Current.AverageUtilization)
		}
		current = append(current, metricStatusToV1(m))
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in.Status.Conditions {
		conditions = append(conditions,
			autoscalingv1.HorizontalPodAutoscalerCondition{Type: autoscalingv1.HorizontalPodAutoscalerConditionType(
				c.Type),
				Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
	}
	out.Annotations = withoutRoundTrip(in.Annotations)
	add := map[string]string{}
	for key, value := range map[string]any{metricsAnnotation: others, currentMetricsAnnotation: current,
		conditionsAnnotation: conditions, behaviorAnnotation: behaviorToV1(in.Spec.Behavior)} {
		b, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if string(b) != "null" {
			add[key] = string(b)
		}
	}
	if len(add) > 0 {
		all := maps.Clone(out.Annotations)
		if all == nil {
			all = add
		}
		maps.Copy(all, add)
		out.Annotations = all
	}
	return nil
}

// An annotation that cannot be parsed is ignored, because it is written by the client.
func autoscalerFromV1(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscalingv2.HorizontalPodAutoscaler) {
	*out = autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: in.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(
			in.Spec.ScaleTargetRef),
			MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{ObservedGeneration: in.Status.ObservedGeneration,
			LastScaleTime:   in.Status.LastScaleTime,
			CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas},
	}
	var others []autoscalingv1.MetricSpec
	if read(in.Annotations, metricsAnnotation, &others) {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
		}
	}
	if p := in.Spec.TargetCPUUtilizationPercentage; p != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, cpuUtilization(*p))
	}
	if len(out.Spec.Metrics) == 0 {
		out.Spec.Metrics = []autoscalingv2.MetricSpec{cpuUtilization(DefaultCPUUtilization)}
	}
	var behavior autoscalingv2.HorizontalPodAutoscalerBehavior
	if read(in.Annotations, behaviorAnnotation, &behavior) &&
		behavior != (autoscalingv2.HorizontalPodAutoscalerBehavior{}) {
		out.Spec.Behavior = &behavior
	}
	var current []autoscalingv1.MetricStatus
	switch {
	case read(in.Annotations, currentMetricsAnnotation, &current):
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, metricStatusFromV1(&current[i]))
		}
	case in.Status.CurrentCPUUtilizationPercentage != nil:
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU,
				Current: autoscalingv2.MetricValueStatus{
					AverageUtilization: new(*in.Status.CurrentCPUUtilizationPercentage)}}}}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if read(in.Annotations, conditionsAnnotation, &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions,
				autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.HorizontalPodAutoscalerConditionType(
					c.Type),
					Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message})
		}
	}
	out.Annotations = withoutRoundTrip(in.Annotations)
}

func read(annotations map[string]string, key string, into any) bool {
	text, ok := annotations[key]
	return ok && json.Unmarshal([]byte(text), into) == nil
}
