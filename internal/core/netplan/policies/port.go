package policies

func (p *Plan) usePort(k portKey, f int) {
	n := p.port(k)
	if n.refs[f]++; n.refs[f] > 1 {
		return
	}
	if n.refs[1-f] == 0 {
		for pd := range n.pods { // any order: sets of members
			n.count(pd, k, func(Element) {})
		}
	}
	s := &Set{Kind: AddressPorts, Elements: map[Element]struct{}{}}
	for e := range n.members { // any order: sets of members
		if familyOf(e.Addr) == f {
			s.Elements[e] = struct{}{}
		}
	}
	p.families[f].addSet(n.set, s)
}

func (p *Plan) releasePort(k portKey, f int) {
	n := p.ports[k]
	if n.refs[f]--; n.refs[f] > 0 {
		return
	}
	p.families[f].delSet(n.set)
	if n.refs[1-f] == 0 {
		clear(n.members)
		p.dropPort(k)
	}
}

func (p *Plan) port(k portKey) *namedPort {
	n := p.ports[k]
	if n == nil {
		n = &namedPort{set: k.set(), members: map[Element]int{}, pods: map[*pod]struct{}{}}
		p.ports[k] = n
	}
	return n
}

func (p *Plan) dropPort(k portKey) {
	if n := p.ports[k]; len(n.pods)+n.refs[0]+n.refs[1] == 0 {
		delete(p.ports, k)
	}
}

// count adds where a pod has a port, and returns the new elements.
func (n *namedPort) count(pd *pod, k portKey, added func(Element)) {
	for _, port := range pd.Ports {
		if port.Name != k.name || port.Protocol != k.protocol {
			continue
		}
		for _, a := range pd.Addresses {
			e := Element{Addr: a, Port: port.Port}
			if n.members[e]++; n.members[e] == 1 {
				added(e)
			}
		}
	}
}

// listPorts adds the named ports of a peer.
func (p *Plan) listPorts(pd *pod) {
	if !pd.peer() {
		return
	}
	for k := range portKeys(pd) { // any order: sets of members
		n := p.port(k)
		n.pods[pd] = struct{}{}
		if n.refs[0]+n.refs[1] > 0 {
			n.count(pd, k, func(e Element) { p.portElement(n, e, true) })
		}
	}
}

func (p *Plan) unlistPorts(pd *pod) {
	for k := range portKeys(pd) { // any order: sets of members
		n := p.ports[k]
		if n == nil {
			continue
		}
		if _, listed := n.pods[pd]; !listed {
			continue
		}
		delete(n.pods, pd)
		if n.refs[0]+n.refs[1] > 0 {
			for _, port := range pd.Ports {
				if port.Name != k.name || port.Protocol != k.protocol {
					continue
				}
				for _, a := range pd.Addresses {
					e := Element{Addr: a, Port: port.Port}
					if n.members[e]--; n.members[e] == 0 {
						delete(n.members, e)
						p.portElement(n, e, false)
					}
				}
			}
		}
		p.dropPort(k)
	}
}

func (p *Plan) portElement(n *namedPort, e Element, there bool) {
	if f := familyOf(e.Addr); n.refs[f] > 0 {
		p.families[f].element(n.set, e, there)
	}
}

func portKeys(pd *pod) map[portKey]struct{} {
	keys := make(map[portKey]struct{}, len(pd.Ports))
	for _, port := range pd.Ports {
		keys[portKey{port.Protocol, port.Name}] = struct{}{}
	}
	return keys
}
