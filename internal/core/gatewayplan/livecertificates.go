package gatewayplan

import "slices"

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
	var now []Certificate
	for _, r := range n.certifiers {
		now = append(now, r.certificates()...)
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

// recertify replaces an Ingress among those with certificates, the oldest of which is the first.
func (p *planner) recertify(before, after *route) {
	if len(before.certificates()) > 0 {
		if at, found := p.certifier(before); found {
			p.certifiers = slices.Delete(p.certifiers, at, at+1)
		}
	}
	if len(after.certificates()) > 0 {
		at, _ := p.certifier(after)
		p.certifiers = slices.Insert(p.certifiers, at, after)
	}
}

// certifier is the place of an Ingress among those with certificates.
func (p *planner) certifier(r *route) (int, bool) {
	return slices.BinarySearchFunc(p.certifiers, r, func(a, b *route) int { return compareAge(a.meta, b.meta) })
}

func sameCertificate(a, b Certificate) bool {
	return a.Host == b.Host && slices.Equal(a.Secrets, b.Secrets)
}
