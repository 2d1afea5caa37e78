package gatewayplan

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// secrets takes over Secrets, and adds the Ingresses that name them. gateways: Gateways depend on one, other than by
// its certificates.
func (n *changing) secrets(c *Changes, again map[routeID]bool) (gateways bool) {
	for name, after := range c.Secrets { // any order: into maps
		before, there := n.Secrets[name]
		if there == (after != nil) && (after == nil || *after == before) {
			continue
		}
		gateways = gateways || n.named[name]
		for id := range n.certifying[name] { // any order: into a map
			again[id] = true
		}
		if after == nil {
			delete(n.Secrets, name)
		} else {
			n.Secrets[name] = *after
		}
	}
	return gateways
}

// certify serves the certificates of Ingresses, when they are others: they precede those of Gateways at the same port.
func (n *changing) certify() {
	if !n.recertified {
		return
	}
	var all []*networkingv1.Ingress
	for _, r := range n.routes { // any order: sorted below
		if in, ok := r.meta.(*networkingv1.Ingress); ok && len(r.certificates()) > 0 {
			all = append(all, in)
		}
	}
	var now []Certificate
	for _, in := range byAge(all) {
		now = append(now, n.routes[routeID{"Ingress", nameOf(in)}].certificates()...)
	}
	if slices.EqualFunc(n.certified, now, sameCertificate) {
		return
	}
	before := len(n.certified)
	n.certified = now
	if port := n.Ports[n.HTTPS]; n.hosting > 0 && port != nil {
		port.Certificates = append(slices.Clip(now), port.Certificates[before:]...)
		n.out.Certificates[n.HTTPS] = true
	}
}

func sameCertificate(a, b Certificate) bool {
	return a.Host == b.Host && slices.Equal(a.Secrets, b.Secrets)
}
