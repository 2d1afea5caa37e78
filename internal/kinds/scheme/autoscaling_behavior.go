package scheme

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// v1Behavior is the content of behaviorAnnotation: upstream encodes types there that have no names of JSON fields. To
// read it, those of v2 do: encoding/json ignores the case of names.
type v1Behavior struct{ ScaleUp, ScaleDown *scalingRules }

type scalingRules struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []scalingPolicy
	Tolerance                  *resource.Quantity
}

type scalingPolicy struct {
	Type                 autoscalingv2.HPAScalingPolicyType
	Value, PeriodSeconds int32
}

func behaviorToV1(b *autoscalingv2.HorizontalPodAutoscalerBehavior) *v1Behavior {
	if b == nil {
		return nil
	}
	return &v1Behavior{ScaleUp: rulesToV1(b.ScaleUp), ScaleDown: rulesToV1(b.ScaleDown)}
}

func rulesToV1(r *autoscalingv2.HPAScalingRules) *scalingRules {
	if r == nil {
		return nil
	}
	out := &scalingRules{StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy,
		Tolerance: r.Tolerance}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, scalingPolicy(p))
	}
	return out
}
