package policies

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SetPolicy adds or changes a policy. The error names the part of it that cannot be parsed and
// allows nothing; the rest is in effect.
func (p *Plan) SetPolicy(np *networkingv1.NetworkPolicy) error {
	c, selectors, err := compile(np)
	key := np.Namespace + "/" + np.Name
	n := p.namespace(np.Namespace)
	pol := n.policies[key]
	if pol == nil {
		pol = &policy{key: key, namespace: np.Namespace, selected: map[*pod]struct{}{},
			chain: [2]string{name("policy-in", np.Namespace, np.Name), name("policy-out", np.Namespace, np.Name)}}
		n.policies[key] = pol
		p.policies++
	} else {
		unlink(n.byLabel, anchorsOf("", pol.pods), pol)
	}
	pol.compiled, pol.selectors = c, selectors
	link(n.byLabel, anchorsOf("", pol.pods), pol)
	for _, d := range []Direction{Ingress, Egress} {
		for f := range p.families {
			if pol.users[d][f] > 0 {
				was := pol.uses[d][f]
				p.writeChain(pol, d, f)
				p.release(was, f)
			}
		}
	}
	for pd := range n.pods { // any order: each pod by itself
		_, was := pol.selected[pd]
		now := pd.Here && pol.pods.Matches(labels.Set(pd.Labels))
		switch {
		case now && !was:
			pol.selected[pd], pd.selectedBy[pol] = struct{}{}, struct{}{}
		case was && !now:
			delete(pol.selected, pd)
			delete(pd.selectedBy, pol)
		}
		if now || was { // the directions may have changed
			p.place(pd)
		}
	}
	return err
}

// DeletePolicy removes a policy.
func (p *Plan) DeletePolicy(namespace, name string) {
	n := p.namespaces[namespace]
	if n == nil {
		return
	}
	key := namespace + "/" + name
	pol := n.policies[key]
	if pol == nil {
		return
	}
	for pd := range pol.selected { // any order: each pod by itself
		delete(pd.selectedBy, pol)
		p.place(pd)
	}
	unlink(n.byLabel, anchorsOf("", pol.pods), pol)
	delete(n.policies, key)
	p.policies--
	p.dropNamespace(namespace)
}

// Policies returns the number of policies.
func (p *Plan) Policies() int { return p.policies }

// writeChain writes the chain of a policy for one family, and acquires the sets that it uses.
func (p *Plan) writeChain(pol *policy, d Direction, f int) {
	c := &Chain{Direction: d}
	var u uses
	seen := map[Rule]bool{}
	for i := range pol.rules[d] {
		r := &pol.rules[d][i]
		peers := p.rulePeers(pol, r, f, &u)
		if len(peers) == 0 {
			continue // no peers of this family
		}
		for _, m := range p.matches(d, p.portRules(r, f, &u), len(peers), f, &u) {
			for _, peer := range peers {
				if m.Peer = peer; !seen[m] {
					seen[m] = true
					c.Rules = append(c.Rules, m)
				}
			}
		}
	}
	p.families[f].chain(pol.chain[d], c)
	pol.uses[d][f] = u
}

// rulePeers are the sets of a rule's peers in a family; "" means any peer.
func (p *Plan) rulePeers(pol *policy, r *rule, f int, u *uses) []string {
	var peers []string
	if r.anyPeer {
		peers = append(peers, "")
	}
	for _, k := range r.groups {
		p.useGroup(k, pol, f)
		u.groups = append(u.groups, k)
		peers = append(peers, k.set())
	}
	if set, s := rangesSet(r.ranges[f]); s != nil {
		p.share(set, s, f)
		u.shared = append(u.shared, set)
		peers = append(peers, set)
	}
	return peers
}

// mostPairs is up to how many pairs of a peer and a port of one rule are rules of their own.
const mostPairs = 8

// matches returns what must be combined with each peer: the rules of the ports, or for many pairs a jump to a chain
// of these rules, so that the number of rules is that of peers and ports, not their product.
func (p *Plan) matches(d Direction, ports []Rule, peers, f int, u *uses) []Rule {
	if len(ports) < 2 || peers < 2 || len(ports)*peers <= mostPairs {
		return ports
	}
	texts := make([]string, len(ports))
	for i, r := range ports {
		texts[i] = fmt.Sprintf("%d %d-%d %s %s", r.Protocol, r.From, r.To, r.Ports, r.NamedPort)
	}
	chain := name([]string{"ports-in", "ports-out"}[d], texts...)
	u.chains = append(u.chains, chain)
	if p.shared[f][chain]++; p.shared[f][chain] == 1 {
		p.families[f].chain(chain, &Chain{Direction: d, Rules: ports})
	}
	return []Rule{{Action: Jump, Target: chain}}
}

// portRules are rules that match the ports of a rule, for any peer.
func (p *Plan) portRules(r *rule, f int, u *uses) []Rule {
	if r.anyPort {
		return []Rule{{Action: Accept}}
	}
	var list []Rule
	for _, m := range r.ports {
		base := Rule{Action: Accept, Protocol: m.protocol}
		switch {
		case m.all:
			list = append(list, base)
		case len(m.ranges) == 1:
			one := base
			one.From, one.To = m.ranges[0].from, m.ranges[0].to
			list = append(list, one)
		case len(m.ranges) > 1:
			set, s := portsSet(m.ranges)
			p.share(set, s, f)
			u.shared = append(u.shared, set)
			many := base
			many.Ports = set
			list = append(list, many)
		}
		for _, n := range m.names {
			k := portKey{m.protocol, n}
			p.usePort(k, f)
			u.ports = append(u.ports, k)
			named := base
			named.NamedPort = k.set()
			list = append(list, named)
		}
	}
	return list
}

// release releases the sets of a chain.
func (p *Plan) release(u uses, f int) {
	for _, k := range u.groups {
		p.releaseGroup(k, f)
	}
	for _, k := range u.ports {
		p.releasePort(k, f)
	}
	for _, set := range u.shared {
		if p.shared[f][set]--; p.shared[f][set] == 0 {
			delete(p.shared[f], set)
			p.families[f].delSet(set)
		}
	}
	for _, chain := range u.chains {
		if p.shared[f][chain]--; p.shared[f][chain] == 0 {
			delete(p.shared[f], chain)
			p.families[f].chain(chain, nil)
		}
	}
}

// share acquires an immutable set.
func (p *Plan) share(set string, s *Set, f int) {
	if p.shared[f][set]++; p.shared[f][set] == 1 {
		p.families[f].addSet(set, s)
	}
}
