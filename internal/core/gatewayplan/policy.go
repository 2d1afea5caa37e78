package gatewayplan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

// policyTarget is a Service, or one of its ports.
type policyTarget struct {
	service Name
	port    string // name; empty: all ports
}

// policy is a BackendTLSPolicy while it is planned.
type policy struct {
	*gatewayv1.BackendTLSPolicy
	tls     httproute.BackendTLS
	problem string // why backends cannot be verified
	reason  gatewayv1.PolicyConditionReason
}

// tlsPolicies reads the policies. Of several policies for one target, the oldest is in effect; the others
// are in conflict.
func (p *planner) tlsPolicies() {
	p.claims, p.used, p.byPolicy = map[policyTarget][]*policy{}, map[*policy]counts{}, map[Name]*policy{}
	for _, in := range p.World.Policies {
		p.addPolicy(in)
	}
}

// addPolicy reads a policy, and returns it.
func (p *planner) addPolicy(in *gatewayv1.BackendTLSPolicy) *policy {
	pol := p.tlsPolicy(in)
	p.byPolicy[nameOf(in)] = pol
	for t := range pol.targets() {
		at, _ := slices.BinarySearchFunc(p.claims[t], pol, comparePolicies)
		p.claims[t] = slices.Insert(p.claims[t], at, pol)
	}
	return pol
}

// removePolicy forgets a policy. The routes that use it have to be planned again.
func (p *planner) removePolicy(pol *policy) {
	delete(p.byPolicy, nameOf(pol))
	delete(p.Plan.Policies, nameOf(pol))
	for t := range pol.targets() {
		left := slices.DeleteFunc(p.claims[t], func(other *policy) bool { return other == pol })
		if p.claims[t] = left; len(left) == 0 {
			delete(p.claims, t)
		}
	}
}

func comparePolicies(a, b *policy) int { return compareAge(a.BackendTLSPolicy, b.BackendTLSPolicy) }

// targets are the Services that a policy names, or their ports.
func (pol *policy) targets() iter.Seq[policyTarget] {
	return func(yield func(policyTarget) bool) {
		for _, t := range pol.Spec.TargetRefs {
			if t.Group == "" && t.Kind == "Service" && !yield(policyTarget{Name{Namespace: pol.Namespace,
				Name: string(t.Name)}, string(or(t.SectionName, ""))}) {
				return
			}
		}
	}
}

// holder is the policy for a target; nil: there is none.
func (p *planner) holder(t policyTarget) *policy {
	if all := p.claims[t]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// conflicted reports whether older policies have all targets of a policy.
func (p *planner) conflicted(pol *policy) bool {
	for t := range pol.targets() {
		if p.holder(t) == pol {
			return false
		}
	}
	return true
}

func (p *planner) tlsPolicy(in *gatewayv1.BackendTLSPolicy) *policy {
	pol := &policy{BackendTLSPolicy: in, tls: httproute.BackendTLS{Name: string(in.Spec.Validation.Hostname)}}
	for _, san := range in.Spec.Validation.SubjectAltNames {
		switch san.Type {
		case gatewayv1.HostnameSubjectAltNameType:
			pol.tls.SANs += "dns:" + string(san.Hostname) + "\x00"
		case gatewayv1.URISubjectAltNameType:
			pol.tls.SANs += "uri:" + string(san.URI) + "\x00"
		}
	}
	v := &in.Spec.Validation
	if v.WellKnownCACertificates != nil && *v.WellKnownCACertificates != "" {
		if *v.WellKnownCACertificates != gatewayv1.WellKnownCACertificatesSystem {
			pol.problem = "wellKnownCACertificates " + string(*v.WellKnownCACertificates) + " is not supported"
			pol.reason = gatewayv1.PolicyReasonInvalid
		}
		return pol
	}
	for _, ref := range v.CACertificateRefs {
		name := Name{Namespace: in.Namespace, Name: string(ref.Name)}
		ca, there := p.CAs[name]
		switch {
		case ref.Group != "" || ref.Kind != "ConfigMap":
			pol.problem, pol.reason = "CAs must be in a ConfigMap", gatewayv1.BackendTLSPolicyReasonInvalidKind
		case !there || ca.Problem != "":
			pol.problem = fmt.Sprintf("ConfigMap %s has no CA: %s", name, cmp.Or(ca.Problem, "it does not exist"))
			pol.reason = gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef
		default:
			pol.tls.CA += strings.TrimSpace(ca.PEM) + "\n"
		}
	}
	if pol.tls.CA != "" {
		pol.problem = "" // the valid ones are used; the status reports the others
	} else if pol.problem == "" {
		pol.problem, pol.reason = "the policy names no CA", gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef
	}
	return pol
}

// policyFor returns the policy of a port of a Service: one that names the port precedes one for all
// ports.
func (p *planner) policyFor(service Name, port string) *policy {
	if port != "" {
		if pol := p.holder(policyTarget{service, port}); pol != nil {
			return pol
		}
	}
	return p.holder(policyTarget{service: service})
}

// encrypt makes requests to a backend use TLS if its Service has a policy, which it adds to those used. With an invalid
// policy, the backend is invalid, too: no request may be sent to it without TLS.
func (p *planner) encrypt(b *httproute.Backend, service Name, port string, used map[*policy]bool) {
	pol := p.policyFor(service, port)
	if pol == nil {
		return
	}
	used[pol] = true
	if pol.problem != "" {
		b.Invalid = pol.problem
		return
	}
	tls := pol.tls
	b.TLS = &tls
}

// policyStatus plans the status of a policy: for each Gateway whose routes use a target of it, whether it is in effect.
func (p *planner) policyStatus(pol *policy) {
	conflicted := p.conflicted(pol)
	through := counts{}
	maps.Copy(through, p.used[pol])
	if conflicted { // reported where the policy in effect is used
		for t := range pol.targets() {
			maps.Copy(through, p.used[p.holder(t)])
		}
	}
	out := []gatewayv1.PolicyAncestorStatus{}
	for _, g := range slices.SortedFunc(maps.Keys(through), func(a, b Name) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		out = append(out, pol.ancestor(g, conflicted))
	}
	if len(out) > 0 || len(pol.Status.Ancestors) > 0 {
		p.Plan.Policies[nameOf(pol)] = out
	} else {
		delete(p.Plan.Policies, nameOf(pol))
	}
}

func (pol *policy) ancestor(g Name, conflicted bool) gatewayv1.PolicyAncestorStatus {
	apiGroup, kind, namespace := gatewayv1.Group(group), gatewayv1.Kind("Gateway"), gatewayv1.Namespace(g.Namespace)
	accepted := condition(gatewayv1.PolicyConditionAccepted, true, gatewayv1.PolicyReasonAccepted,
		"backends are verified", pol.Generation)
	resolved := condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, pol.reason == "",
		cmp.Or(pol.reason, gatewayv1.BackendTLSPolicyReasonResolvedRefs), pol.problem, pol.Generation)
	switch {
	case conflicted:
		accepted = condition(gatewayv1.PolicyConditionAccepted, false, gatewayv1.PolicyReasonConflicted,
			"an older policy has the same target", pol.Generation)
	case pol.problem != "":
		accepted = condition(gatewayv1.PolicyConditionAccepted, false,
			gatewayv1.BackendTLSPolicyReasonNoValidCACertificate, pol.problem, pol.Generation)
	}
	return gatewayv1.PolicyAncestorStatus{ControllerName: GatewayController,
		AncestorRef: gatewayv1.ParentReference{Group: &apiGroup, Kind: &kind, Namespace: &namespace,
			Name: gatewayv1.ObjectName(g.Name)},
		Conditions: []metav1.Condition{accepted, resolved}}
}
