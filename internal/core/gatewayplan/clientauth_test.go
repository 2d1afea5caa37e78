package gatewayplan

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// validating is a Gateway that demands certificates of a CA from its clients; ca is empty: none.
func validating(name string, age int, ca string, mode gatewayv1.FrontendValidationModeType) *gatewayv1.Gateway {
	g := gatewayOf(name, age, secure("s", "cert", ""))
	if ca != "" {
		g.Spec.TLS = &gatewayv1.GatewayTLSConfig{Frontend: &gatewayv1.FrontendTLSConfig{
			Default: gatewayv1.TLSConfig{Validation: &gatewayv1.FrontendTLSValidation{Mode: mode,
				CACertificateRefs: []gatewayv1.ObjectReference{{Kind: "ConfigMap", Name: gatewayv1.ObjectName(ca)}}}}}}
	}
	return g
}

// Gateways and Ingresses that share an address: none of them changes which clients are let in at a port that an older
// Gateway has, neither to more nor to less.
func TestSharedClientCertificates(t *testing.T) {
	const strict, open = gatewayv1.AllowValidOnly, gatewayv1.AllowInsecureFallback
	older := func(ca string) *gatewayv1.Gateway { return validating("older", 2, ca, strict) }
	younger := func(ca string) *gatewayv1.Gateway { return validating("younger", 1, ca, strict) }
	through := younger("")
	through.Spec.Listeners[0].Protocol = gatewayv1.TLSProtocolType
	through.Spec.Listeners[0].TLS.Mode = new(gatewayv1.TLSModePassthrough)
	one := &ClientAuth{CA: "one\n"}
	for what, c := range map[string]struct {
		older, younger *gatewayv1.Gateway
		ingress        bool
		want           *ClientAuth
		served         [2]bool
	}{
		"the same":       {older("one"), younger("one"), false, one, [2]bool{true, true}},
		"another CA":     {older("one"), younger("two"), false, one, [2]bool{true, false}},
		"everybody":      {older("one"), validating("younger", 1, "one", open), false, one, [2]bool{true, false}},
		"no certificate": {older("one"), younger(""), false, one, [2]bool{true, false}},
		"a certificate":  {older(""), younger("one"), false, nil, [2]bool{true, false}},
		"passed through": {older("one"), through, false, one, [2]bool{true, true}},
		"with Ingresses": {older("one"), younger(""), true, one, [2]bool{true, false}},
	} {
		w := world()
		w.Pool = nil
		w.Secrets[Name{Namespace: "a", Name: "cert"}] = Material{}
		w.CAs[Name{Namespace: "a", Name: "one"}] = Material{PEM: "one"}
		w.CAs[Name{Namespace: "a", Name: "two"}] = Material{PEM: "two"}
		w.Gateways = []*gatewayv1.Gateway{c.younger, c.older}
		if c.ingress {
			w.Ingresses = []*networkingv1.Ingress{ingressOf("i", "web.com", nil)}
		}
		p := makePlan(w).Plan
		if got := p.Ports[w.HTTPS].Clients; (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v", what, got)
		}
		for i, g := range []*gatewayv1.Gateway{c.older, c.younger} {
			text := textOf(p.Gateways[nameOf(g)].Listeners[0].Conditions)
			if strings.Contains(text, "Accepted=False/PortUnavailable") == c.served[i] ||
				strings.Contains(text, "Programmed=True") != c.served[i] {
				t.Errorf("%s: %s: %s", what, g.Name, text)
			}
		}
	}
}
