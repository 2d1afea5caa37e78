package defaults

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// defaultCPUUtilization is the target of an autoscaler that names no metric, in percent.
const defaultCPUUtilization = 80

func horizontalPodAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	orNew(&a.Spec.MinReplicas, 1)
	if len(a.Spec.Metrics) == 0 {
		a.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(defaultCPUUtilization))}}}}
	}
	b := a.Spec.Behavior
	if b == nil {
		return
	}
	const period = 15
	all := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: period}
	// Up: at once, by 4 pods or doubling, whichever is more. Down: by any number, after the controller's window.
	orNew(&b.ScaleUp, autoscalingv2.HPAScalingRules{})
	scalingRules(b.ScaleUp, autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: period}, all)
	orNew(&b.ScaleUp.StabilizationWindowSeconds, 0)
	orNew(&b.ScaleDown, autoscalingv2.HPAScalingRules{})
	scalingRules(b.ScaleDown, all)
}

func scalingRules(r *autoscalingv2.HPAScalingRules, policies ...autoscalingv2.HPAScalingPolicy) {
	orNew(&r.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if r.Policies == nil {
		r.Policies = policies
	}
}
