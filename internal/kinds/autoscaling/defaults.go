package autoscaling

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

// defaultCPUUtilization is the target in percent of an autoscaler without metrics.
const defaultCPUUtilization = 80

func defaultHorizontalPodAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	defaulting.OrNew(&a.Spec.MinReplicas, 1)
	if len(a.Spec.Metrics) == 0 {
		a.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
					AverageUtilization: new(int32(defaultCPUUtilization))}}}}
	}
	b := a.Spec.Behavior
	if b == nil {
		return
	}
	const period = 15
	all := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: period}
	// Up: at once, by 4 pods or doubling, whichever is more. Down: by any number, after the controller's window.
	defaulting.OrNew(&b.ScaleUp, autoscalingv2.HPAScalingRules{})
	defaultScalingRules(b.ScaleUp,
		autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: period}, all)
	defaulting.OrNew(&b.ScaleUp.StabilizationWindowSeconds, 0)
	defaulting.OrNew(&b.ScaleDown, autoscalingv2.HPAScalingRules{})
	defaultScalingRules(b.ScaleDown, all)
}

func defaultScalingRules(r *autoscalingv2.HPAScalingRules, policies ...autoscalingv2.HPAScalingPolicy) {
	defaulting.OrNew(&r.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if r.Policies == nil {
		r.Policies = policies
	}
}

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, func(o *autoscalingv1.HorizontalPodAutoscaler) { defaulting.OrNew(&o.Spec.MinReplicas, 1) })
	defaulting.Add(s, defaultHorizontalPodAutoscaler)
}
