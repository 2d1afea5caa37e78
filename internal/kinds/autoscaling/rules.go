package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(autoscalingv2.GroupName, "HorizontalPodAutoscaler"): func() rules.Rules {
		r := rules.Of(nil, validateAutoscaler, validateAutoscalerUpdate)
		r.StatusUpdate = rules.TypedUpdate(validateAutoscalerStatusUpdate)
		return r
	},
}
