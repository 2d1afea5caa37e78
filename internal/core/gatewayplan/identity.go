package gatewayplan

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/httproute"
)

// identity is the certificate that a Gateway presents to backends (spec.tls.backend). A nil identity has
// none.
type identity struct {
	pem     string // certificate and key
	reason  gatewayv1.GatewayConditionReason
	message string
}

// Identity is the Secret with the certificate that a Gateway presents to backends; false: it has none.
func Identity(g *gatewayv1.Gateway) (Name, bool) {
	if g.Spec.TLS == nil || g.Spec.TLS.Backend == nil || g.Spec.TLS.Backend.ClientCertificateRef == nil {
		return Name{}, false
	}
	ref := g.Spec.TLS.Backend.ClientCertificateRef
	return Name{Namespace: string(or(ref.Namespace, gatewayv1.Namespace(g.Namespace))), Name: string(ref.Name)}, true
}

// clientIdentity resolves the certificate of a Gateway for backends.
func (p *planner) clientIdentity(gw *gateway) {
	name, ok := Identity(gw.Gateway)
	if !ok {
		return
	}
	ref := gw.Spec.TLS.Backend.ClientCertificateRef
	secret, there := p.secret(name)
	id := &identity{reason: gatewayv1.GatewayReasonInvalidClientCertificateRef}
	gw.identity = id
	switch {
	case or(ref.Group, "") != "" || or(ref.Kind, "Secret") != "Secret":
		id.message = "the certificate for backends must be in a Secret"
	case !p.granted("Gateway", gw.Namespace, "", "Secret", name):
		id.reason = gatewayv1.GatewayReasonRefNotPermitted
		id.message = fmt.Sprintf("no ReferenceGrant permits the use of Secret %s", name)
	case !there:
		id.message = fmt.Sprintf("Secret %s of type kubernetes.io/tls does not exist", name)
	case secret.PEM == "":
		id.message = fmt.Sprintf("Secret %s: %s", name, cmp.Or(secret.Problem, "it cannot be read"))
	default:
		id.reason, id.message, id.pem = gatewayv1.GatewayReasonResolvedRefs, "all references are resolved", secret.PEM
	}
}

func (id *identity) condition(generation int64) metav1.Condition {
	return condition(gatewayv1.GatewayConditionResolvedRefs, id.pem != "", id.reason, id.message, generation)
}

// certificate is that which backends see; empty: none.
func (id *identity) certificate() string {
	if id == nil {
		return ""
	}
	return id.pem
}

// show returns the rules with the certificate set for all backends that use TLS.
func (id *identity) show(rules []httproute.Rule) []httproute.Rule {
	if id == nil || id.pem == "" {
		return rules
	}
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Filters.Mirrors = id.mirrors(rules[i].Filters.Mirrors)
		rules[i].Backends = slices.Clone(rules[i].Backends)
		for j := range rules[i].Backends {
			b := &rules[i].Backends[j]
			b.TLS = id.tls(b.TLS)
			b.Filters.Mirrors = id.mirrors(b.Filters.Mirrors)
		}
	}
	return rules
}

func (id *identity) mirrors(all []httproute.Mirror) []httproute.Mirror {
	all = slices.Clone(all)
	for i := range all {
		all[i].Backend.TLS = id.tls(all[i].Backend.TLS)
	}
	return all
}

func (id *identity) tls(t *httproute.BackendTLS) *httproute.BackendTLS {
	if t == nil {
		return nil
	}
	with := *t
	with.Cert = id.pem
	return &with
}
