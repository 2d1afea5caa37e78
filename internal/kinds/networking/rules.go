package networking

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(networkingv1.GroupName, "Ingress"): func() rules.Rules {
		r := rules.Of(nil, validateIngress, validateIngressUpdate)
		r.StatusUpdate, r.Warnings = rules.TypedUpdate(validateIngressStatusUpdate), ingressWarnings
		r.StatusWarnings = func(obj runtime.Object) []string {
			var out []string
			for i, b := range obj.(*networkingv1.Ingress).Status.LoadBalancer.Ingress {
				out = append(out, rules.BalancerWarnings(i, b.IP)...)
			}
			return out
		}
		return r
	},
	rules.Kind(networkingv1.GroupName,
		"IngressClass"): func() rules.Rules { return rules.Of(nil, validateIngressClass, validateIngressClassUpdate) },
	rules.Kind(networkingv1.GroupName, "NetworkPolicy"): func() rules.Rules {
		r := rules.Of(nil, validateNetworkPolicy, validateNetworkPolicyUpdate)
		r.Warnings = networkPolicyWarnings
		return r
	},
	rules.Kind(networkingv1.GroupName,
		"ServiceCIDR"): func() rules.Rules { return rules.Of(nil, validateServiceCIDR, validateServiceCIDRUpdate) },
	rules.Kind(networkingv1.GroupName,
		"IPAddress"): func() rules.Rules { return rules.Of(ipAddressName, validateIPAddress, validateIPAddressUpdate) },
}
