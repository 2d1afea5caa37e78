package services

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(corev1.GroupName, "Service"): func() rules.Rules {
		r := rules.Of(apivalidation.NameIsDNSLabel, validateService, validateServiceUpdate)
		r.StatusUpdate, r.Warnings = rules.TypedUpdate(validateServiceStatusUpdate), serviceWarnings
		r.StatusWarnings = func(obj runtime.Object) []string {
			var out []string
			for i, b := range obj.(*corev1.Service).Status.LoadBalancer.Ingress {
				out = append(out, rules.BalancerWarnings(i, b.IP)...)
			}
			return out
		}
		return r
	},
}
