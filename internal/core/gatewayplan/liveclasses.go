package gatewayplan

import (
	"maps"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// ClassOf returns the name of the IngressClass that an Ingress names (N6.6); empty: none.
func ClassOf(in *networkingv1.Ingress) string {
	if in.Spec.IngressClassName != nil {
		return *in.Spec.IngressClassName
	}
	return in.Annotations[legacyClass]
}

// classes takes over IngressClasses and GatewayClasses. gateways: other Gateways than before are carob's.
func (n *changing) classes(c *Changes, _ map[routeID]bool) (gateways bool) {
	if len(c.IngressClasses) > 0 {
		n.World.Classes = slices.Clone(n.World.Classes)
	}
	for name, after := range c.IngressClasses { // any order: each by itself
		takeOver(&n.World.Classes, name, after)
	}
	if len(c.GatewayClasses) == 0 {
		return false
	}
	n.World.GatewayClasses = slices.Clone(n.World.GatewayClasses)
	for name, after := range c.GatewayClasses { // any order: each by itself, and a list of different objects
		takeOver(&n.World.GatewayClasses, name, after)
		if after != nil {
			n.out.GatewayClasses = append(n.out.GatewayClasses, after)
		}
	}
	before := n.ours
	n.gatewayClasses()
	return !maps.Equal(before, n.ours)
}

// gatewayClasses finds the GatewayClasses that carob serves, and plans their conditions.
func (p *planner) gatewayClasses() {
	p.ours = map[string]bool{}
	clear(p.Plan.Classes)
	for _, c := range p.World.GatewayClasses {
		if c.Spec.ControllerName != GatewayController {
			continue
		}
		p.ours[c.Name] = true
		ok, reason, message := true, gatewayv1.GatewayClassReasonAccepted, "carob serves Gateways of this class"
		if c.Spec.ParametersRef != nil {
			ok, reason = false, gatewayv1.GatewayClassReasonInvalidParameters
			message = "carob has no parameters for a class"
			p.ours[c.Name] = false
		}
		p.Plan.Classes[c.Name] = []metav1.Condition{condition(gatewayv1.GatewayClassConditionStatusAccepted, ok, reason,
			message, c.Generation)}
	}
}

// namespaces takes over the labels of namespaces, and adds the routes that listeners may select by them. gateways:
// Gateways may select ListenerSets by them.
func (n *changing) namespaces(c *Changes, again map[routeID]bool) (gateways bool) {
	changed := map[string]bool{}
	for name, set := range c.Namespaces { // any order: into maps
		before, there := n.Namespaces[name]
		if n.Namespaces[name] = set; set == nil {
			delete(n.Namespaces, name)
		}
		if n.selected[name] && (there != (set != nil) || !maps.Equal(before, set)) {
			changed[name] = true
			delete(n.selected, name) // who still selects by them adds it again
		}
	}
	if len(changed) == 0 {
		return false
	}
	for id := range n.routes { // any order: into a map
		if id.kind != "Ingress" && changed[id.Namespace] {
			again[id] = true
		}
	}
	return slices.ContainsFunc(n.World.ListenerSets, func(s *gatewayv1.ListenerSet) bool {
		return changed[s.Namespace]
	})
}
