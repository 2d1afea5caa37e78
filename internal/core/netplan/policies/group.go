package policies

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

func (p *Plan) useGroup(k groupKey, pol *policy, f int) {
	g := p.groups[k]
	if g == nil {
		g = &group{key: k, set: k.set(), pods: pol.selectors[k.pods],
			namespaces: pol.selectors[k.namespaces]}
		if k.namespace != "" {
			g.namespaces = nil
		}
		p.startGroup(g)
	}
	if g.refs[f]++; g.refs[f] == 1 {
		s := &Set{Kind: Addresses, Elements: map[Element]struct{}{}}
		for a := range g.members { // any order: sets of members
			if familyOf(a) == f {
				s.Elements[Element{Addr: a}] = struct{}{}
			}
		}
		p.families[f].addSet(g.set, s)
	}
}

func (p *Plan) releaseGroup(k groupKey, f int) {
	g := p.groups[k]
	if g.refs[f]--; g.refs[f] > 0 {
		return
	}
	p.families[f].delSet(g.set)
	if g.refs[0]+g.refs[1] == 0 {
		p.stopGroup(g)
	}
}

// startGroup finds the members of a group when a chain begins to use it.
func (p *Plan) startGroup(g *group) {
	g.members, g.matched = map[netip.Addr]int{}, map[*pod]struct{}{}
	p.groups[g.key] = g
	link(p.groupsOfPods, g.podAnchors(), g)
	if g.namespaces != nil {
		link(p.groupsOfNamespaces, anchorsOf("", g.namespaces), g)
	}
	if g.namespaces == nil {
		if n := p.namespaces[g.key.namespace]; n != nil {
			p.joinAll(g, n)
		}
		return
	}
	for _, n := range p.namespaces { // any order: sets of members
		if n.known && g.namespaces.Matches(n.labels) {
			p.joinAll(g, n)
		}
	}
}

func (p *Plan) joinAll(g *group, n *namespace) {
	for pd := range n.pods { // any order: sets of members
		p.join(g, pd)
	}
}

func (p *Plan) stopGroup(g *group) {
	for pd := range g.matched { // any order: sets of members
		delete(pd.groups, g)
	}
	delete(p.groups, g.key)
	unlink(p.groupsOfPods, g.podAnchors(), g)
	if g.namespaces != nil {
		unlink(p.groupsOfNamespaces, anchorsOf("", g.namespaces), g)
	}
}

// join adds a pod to a groupwhose namespace matches, if the pod matches, too.
func (p *Plan) join(g *group, pd *pod) {
	if _, in := g.matched[pd]; in || !pd.peer() || !g.pods.Matches(labels.Set(pd.Labels)) {
		return
	}
	g.matched[pd], pd.groups[g] = struct{}{}, struct{}{}
	for _, a := range pd.Addresses {
		if g.members[a]++; g.members[a] == 1 && g.refs[familyOf(a)] > 0 {
			p.families[familyOf(a)].element(g.set, Element{Addr: a}, true)
		}
	}
}

func (p *Plan) leave(g *group, pd *pod) {
	if _, in := g.matched[pd]; !in {
		return
	}
	delete(g.matched, pd)
	delete(pd.groups, g)
	for _, a := range pd.Addresses {
		if g.members[a]--; g.members[a] > 0 {
			continue
		}
		delete(g.members, a)
		if g.refs[familyOf(a)] > 0 {
			p.families[familyOf(a)].element(g.set, Element{Addr: a}, false)
		}
	}
}

// groupsOf finds the groups in use that a pod belongs to.
func (p *Plan) groupsOf(n *namespace, pd *Pod) map[*group]struct{} {
	found := map[*group]struct{}{}
	consider := func(list map[*group]struct{}) {
		for g := range list { // any order: sets of members
			inNamespace := g.namespaces == nil || n.known && g.namespaces.Matches(n.labels)
			if inNamespace && g.pods.Matches(labels.Set(pd.Labels)) {
				found[g] = struct{}{}
			}
		}
	}
	for a := range lookups(pd.Namespace, pd.Labels) { // any order: groups of this namespace
		consider(p.groupsOfPods[a])
	}
	// Groups of many namespaces that select by a label of the pod.
	for a := range lookups("", pd.Labels) { // any order: sets of members
		if a != (anchor{}) {
			consider(p.groupsOfPods[a])
		}
	}
	for a := range lookups(ofNamespaces, n.labels) { // any order: the others of many namespaces
		consider(p.groupsOfPods[a])
	}
	return found
}

// ofNamespaces is the scope of groups that are found by the labels of namespaces. No namespace has
// this name.
const ofNamespaces = "*"

// podAnchors are the keys by which groupsOf finds a group.
func (g *group) podAnchors() []anchor {
	if g.namespaces == nil {
		return anchorsOf(g.key.namespace, g.pods)
	}
	if list := anchorsOf("", g.pods); list[0] != (anchor{}) {
		return list
	}
	return anchorsOf(ofNamespaces, g.namespaces)
}
