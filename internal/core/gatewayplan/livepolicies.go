package gatewayplan

import (
	"maps"
	"slices"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// policies takes over policies and CAs, and adds the routes to the Services that changed policies name. gateways:
// listeners name a CA.
func (n *changing) policies(c *Changes, again map[routeID]bool) (gateways bool) {
	changed := map[Name]*gatewayv1.BackendTLSPolicy{}
	for name, after := range c.Policies { // any order: into maps
		pol := n.byPolicy[name]
		if pol != nil && after != nil && SamePolicy(pol.BackendTLSPolicy, after) {
			pol.BackendTLSPolicy = after
			n.touched[pol] = true
			continue
		}
		changed[name] = after
	}
	gateways = n.cas(c.CAs, changed)
	for name, after := range changed { // any order: each by itself
		if before := n.byPolicy[name]; before != nil {
			n.removePolicy(before)
			n.notePolicy(before, again)
		}
		if after != nil {
			n.notePolicy(n.addPolicy(after), again)
		}
	}
	return gateways
}

// cas takes over CAs, and adds the policies that name them. It reports whether a listener names one.
func (n *changing) cas(all map[Name]*Material, changed map[Name]*gatewayv1.BackendTLSPolicy) (gateways bool) {
	others := map[Name]bool{}
	for name, after := range all { // any order: into maps
		before, there := n.CAs[name]
		if there == (after != nil) && (after == nil || *after == before) {
			continue
		}
		gateways = gateways || n.clients[name]
		others[name] = true
		if after == nil {
			delete(n.CAs, name)
		} else {
			n.CAs[name] = *after
		}
	}
	if len(others) == 0 {
		return gateways
	}
	for name, pol := range n.byPolicy { // any order: into a map
		if _, newer := changed[name]; newer {
			continue
		}
		if slices.ContainsFunc(pol.Spec.Validation.CACertificateRefs, func(r gatewayv1.LocalObjectReference) bool {
			return others[Name{Namespace: pol.Namespace, Name: string(r.Name)}]
		}) {
			changed[name] = pol.BackendTLSPolicy
		}
	}
	return gateways
}

// notePolicy records a policy that comes or goes, and the routes to the Services that it names.
func (n *changing) notePolicy(pol *policy, again map[routeID]bool) {
	n.touched[pol] = true
	for t := range pol.targets() {
		n.repool = n.repool || n.pickers[t.service]
		maps.Copy(again, n.naming[t.service])
	}
}

// policyStatuses plans the statuses of policies: of those that were touched, and of those with the same targets.
func (n *changing) policyStatuses() {
	all := map[*policy]bool{}
	for pol := range n.touched { // any order: into a set
		if n.byPolicy[nameOf(pol)] == pol {
			all[pol] = true
		} else {
			delete(n.used, pol) // it has gone, or another is in its place
		}
		for t := range pol.targets() {
			for _, other := range n.claims[t] {
				all[other] = true
			}
		}
	}
	for pol := range all { // any order: into a list of different objects
		n.policyStatus(pol)
		n.out.Policies = append(n.out.Policies, pol.BackendTLSPolicy)
	}
}
