// Package policies decides which connections network policies allow: policies, namespaces and pods
// become one table of maps, chains and sets, and each change of them becomes a change of the table. The
// driver writes the table to the kernel; the package does not depend on the kernel. It assumes only
// that lookups in maps and sets take constant time.
//
//	Isolated[Egress], Isolated[Ingress]    address of a pod → chain in-… or out-… of its policies
//	chain in-…, out-…    of all pods that the same policies select: jump to each policy; drop
//	chain of a policy    a rule for each peer and port: accept; or for each peer: jump to
//	chain of ports       of one rule of a policy, if it has many peers and ports: accept
//	sets                 pods of a selector (shared by all policies with this selector), blocks,
//	                     ports, and where pods have a named port
//
// The cost of a packet depends on the policies that select its two pods, and on nothing else. Unused
// parts do not exist: there are no chains for policies that select no pod of this node, and no sets for
// them. The cost of a change depends on what it affects: policies and groups of pods are indexed by the
// labels that they require.
//
// Contract: N5 in docs/spec/network.md.
package policies

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Pod holds the facts of a pod that policies use.
type Pod struct {
	UID, Namespace, Name string
	Labels               map[string]string
	Addresses            []netip.Addr // in use now
	Ports                []Port       // that have a name
	HostNetwork          bool         // it is a part of its node: policies do not apply (N5.17)
	Here                 bool         // it runs on this node, which isolates it
	// Gone is a pod that has finished, or whose object has been deleted: no rule allows it as a peer
	// any more (N5.25). While it has an address, it stays isolated.
	Gone bool
}

// Port is a named port of a container.
type Port struct {
	Name     string
	Protocol uint8
	Port     uint16
}

// Plan maintains the table for a set of policies, namespaces and pods. The zero value is not
// usable: see New.
type Plan struct {
	families   [2]writer
	namespaces map[string]*namespace
	pods       map[string]*pod
	groups     map[groupKey]*group
	ports      map[portKey]*namedPort
	profiles   map[string]*profile
	shared     [2]map[string]int // how many chains use a set of blocks or ports, or a chain of ports
	own        [2]int            // how many addresses are isolated
	policies   int

	groupsOfPods       map[anchor]map[*group]struct{} // by labels of the pods they select
	groupsOfNamespaces map[anchor]map[*group]struct{} // by labels of the namespaces they select
}

type namespace struct {
	labels   labels.Set
	known    bool // false: only its pods or policies were observed; no selector matches it
	pods     map[*pod]struct{}
	policies map[string]*policy
	byLabel  map[anchor]map[*policy]struct{} // policies, by labels of the pods they select
}

type pod struct {
	Pod
	selectedBy map[*policy]struct{}
	placed     [2]map[netip.Addr]*profile
	groups     map[*group]struct{}
}

type policy struct {
	key, namespace string
	compiled
	selectors map[string]labels.Selector
	selected  map[*pod]struct{}
	chain     [2]string
	users     [2][2]int // by direction and family: how many profiles jump to the chain
	uses      [2][2]uses
}

// uses are the sets and chains that a chain refers to.
type uses struct {
	groups []groupKey
	ports  []portKey
	shared []string // sets
	chains []string
}

// profile is the list of policies that select a pod for one direction.
type profile struct {
	direction Direction
	name      string
	policies  []*policy
	users     [2]int // addresses by family
}

// group is the pods that a selector matches, by address.
type group struct {
	key              groupKey
	set              string
	pods, namespaces labels.Selector
	members          map[netip.Addr]int // how many pods claim an address
	matched          map[*pod]struct{}
	refs             [2]int // chains that use its set, by family
}

type namedPort struct {
	set     string
	members map[Element]int
	pods    map[*pod]struct{}
	refs    [2]int
}

// New returns a plan without policies, namespaces and pods.
func New() *Plan {
	return &Plan{
		families:   [2]writer{{Family: newFamily()}, {Family: newFamily()}},
		namespaces: map[string]*namespace{}, pods: map[string]*pod{}, groups: map[groupKey]*group{},
		ports: map[portKey]*namedPort{}, profiles: map[string]*profile{}, shared: [2]map[string]int{{}, {}},
		groupsOfPods: map[anchor]map[*group]struct{}{}, groupsOfNamespaces: map[anchor]map[*group]struct{}{},
	}
}

// Take returns what has changed in the table since the last call.
func (p *Plan) Take() Change {
	return Change{V4: p.families[0].take(), V6: p.families[1].take()}
}

// Table returns a copy of the table.
func (p *Plan) Table() Table {
	return Table{V4: p.families[0].clone(), V6: p.families[1].clone()}
}

// Empty reports for each family whether nothing is isolated.
func (p *Plan) Empty() (v4, v6 bool) { return p.own[0] == 0, p.own[1] == 0 }

// Allowed reports whether the first packet of a connection may pass.
func (p *Plan) Allowed(packet Packet) bool {
	t := Table{V4: p.families[0].Family, V6: p.families[1].Family}
	return t.Allowed(packet)
}

// Isolated reports whether some policy selects a pod of this node that has an address.
func (p *Plan) Isolated(uid string) bool {
	pod := p.pods[uid]
	return pod != nil && len(pod.placed[Ingress])+len(pod.placed[Egress]) > 0
}

// Compute returns the table for all given objects.
func Compute(policies []*networkingv1.NetworkPolicy, namespaces map[string]map[string]string, pods []Pod) Table {
	p := New()
	for name, l := range namespaces { // any order: sets and counts
		p.SetNamespace(name, l)
	}
	for _, pod := range pods {
		p.SetPod(pod)
	}
	for _, np := range policies {
		_ = p.SetPolicy(np) // unreadable parts allow nothing
	}
	return p.Table()
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func (p *Plan) namespace(name string) *namespace {
	n := p.namespaces[name]
	if n == nil {
		n = &namespace{pods: map[*pod]struct{}{}, policies: map[string]*policy{},
			byLabel: map[anchor]map[*policy]struct{}{}}
		p.namespaces[name] = n
	}
	return n
}

func (p *Plan) dropNamespace(name string) {
	if n := p.namespaces[name]; n != nil && !n.known && len(n.pods)+len(n.policies) == 0 {
		delete(p.namespaces, name)
	}
}

// SetNamespace adds a namespace or changes its labels.
func (p *Plan) SetNamespace(name string, l map[string]string) {
	n := p.namespace(name)
	p.relabel(n, labels.Set(maps.Clone(l)), true)
}

// DeleteNamespace removes a namespace. Its pods and policies are removed one by one, by the caller.
func (p *Plan) DeleteNamespace(name string) {
	if n := p.namespaces[name]; n != nil {
		p.relabel(n, nil, false)
		p.dropNamespace(name)
	}
}

func (p *Plan) relabel(n *namespace, to labels.Set, known bool) {
	if n.known == known && maps.Equal(n.labels, to) {
		return
	}
	seen := map[*group]struct{}{}
	for _, l := range []labels.Set{n.labels, to} {
		for a := range lookups("", l) { // any order: sets and counts
			maps.Copy(seen, p.groupsOfNamespaces[a])
		}
	}
	wasKnown, was := n.known, n.labels
	n.known, n.labels = known, to
	for g := range seen { // any order: sets and counts
		before, after := wasKnown && g.namespaces.Matches(was), known && g.namespaces.Matches(to)
		if before == after {
			continue
		}
		for pod := range n.pods { // any order: sets and counts
			if after {
				p.join(g, pod)
			} else {
				p.leave(g, pod)
			}
		}
	}
}

// SetPod adds or changes a pod.
func (p *Plan) SetPod(to Pod) {
	to.Labels, to.Addresses = maps.Clone(to.Labels), slices.Clone(to.Addresses)
	to.Ports = slices.Clone(to.Ports)
	if to.HostNetwork {
		to.Addresses = nil
	}
	pd := p.pods[to.UID]
	if pd != nil && pd.Namespace != to.Namespace { // of another API server; a UID has one namespace
		p.DeletePod(to.UID)
		pd = nil
	}
	n := p.namespace(to.Namespace)
	if pd == nil {
		pd = &pod{Pod: Pod{UID: to.UID, Namespace: to.Namespace}, selectedBy: map[*policy]struct{}{},
			groups: map[*group]struct{}{}, placed: [2]map[netip.Addr]*profile{{}, {}}}
		p.pods[to.UID] = pd
		n.pods[pd] = struct{}{}
	}
	was := pd.Pod
	if samePod(&was, &to) {
		pd.Pod = to
		return
	}
	// As a peer: leave groups that no longer match with the old addresses, join with the new ones.
	samePeer := was.peer() == to.peer() && slices.Equal(was.Addresses, to.Addresses)
	var fits map[*group]struct{}
	if to.peer() {
		fits = p.groupsOf(n, &to)
	}
	for g := range pd.groups { // any order: sets and counts
		if _, still := fits[g]; !still || !samePeer {
			p.leave(g, pd)
		}
	}
	if !samePeer || !slices.Equal(was.Ports, to.Ports) {
		p.unlistPorts(pd)
	}
	pd.Pod = to
	for g := range fits { // any order: sets and counts
		p.join(g, pd)
	}
	if !samePeer || !slices.Equal(was.Ports, to.Ports) {
		p.listPorts(pd)
	}
	if !maps.Equal(was.Labels, to.Labels) || was.Here != to.Here {
		p.reselect(n, pd)
	}
	p.place(pd)
}

// DeletePod removes a pod and its addresses.
func (p *Plan) DeletePod(uid string) {
	pd := p.pods[uid]
	if pd == nil {
		return
	}
	gone := pd.Pod
	gone.Addresses, gone.Here = nil, false
	p.SetPod(gone)
	delete(p.pods, uid)
	delete(p.namespaces[pd.Namespace].pods, pd)
	p.dropNamespace(pd.Namespace)
}

func (a *Pod) peer() bool { return !a.Gone && len(a.Addresses) > 0 }

func samePod(a, b *Pod) bool {
	return a.Here == b.Here && a.Gone == b.Gone && slices.Equal(a.Addresses, b.Addresses) &&
		slices.Equal(a.Ports, b.Ports) && maps.Equal(a.Labels, b.Labels)
}

// reselect finds the policies that select a pod.
func (p *Plan) reselect(n *namespace, pd *pod) {
	now := map[*policy]struct{}{}
	if pd.Here {
		for a := range lookups("", pd.Labels) { // any order: sets and counts
			for pol := range n.byLabel[a] { // any order: sets and counts
				if pol.pods.Matches(labels.Set(pd.Labels)) {
					now[pol] = struct{}{}
				}
			}
		}
	}
	for pol := range pd.selectedBy { // any order: sets and counts
		if _, still := now[pol]; !still {
			delete(pol.selected, pd)
		}
	}
	for pol := range now { // any order: sets and counts
		pol.selected[pd] = struct{}{}
	}
	pd.selectedBy = now
}

// place assigns the pod's addresses to the chains of the policies that select it.
func (p *Plan) place(pd *pod) {
	had := p.placedAddresses(pd)
	for _, d := range []Direction{Ingress, Egress} {
		now := map[netip.Addr]*profile{}
		if pr := p.profile(d, pd); pr != nil {
			for _, a := range pd.Addresses {
				now[a] = pr
				if pr.users[familyOf(a)]++; pr.users[familyOf(a)] == 1 {
					p.openProfile(pr, familyOf(a))
				}
				p.families[familyOf(a)].isolate(d, a, pr.name)
			}
		}
		was := pd.placed[d]
		pd.placed[d] = now
		for a, pr := range was { // any order: sets and counts
			if now[a] == nil {
				p.families[familyOf(a)].isolate(d, a, "")
			}
			p.releaseProfile(pr, familyOf(a))
		}
	}
	p.ownAddresses(had, p.placedAddresses(pd))
}

func (p *Plan) placedAddresses(pd *pod) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, m := range pd.placed {
		for a := range m { // any order: sets and counts
			all[a] = true
		}
	}
	return all
}

// ownAddresses keeps the set of addresses that may reach themselves (N5.16).
func (p *Plan) ownAddresses(had, have map[netip.Addr]bool) {
	for a := range have { // any order: sets and counts
		f := familyOf(a)
		if had[a] {
			continue
		}
		if p.own[f]++; p.own[f] == 1 {
			p.families[f].addSet(OwnSet, &Set{Kind: Own, Elements: map[Element]struct{}{}})
		}
		p.families[f].element(OwnSet, Element{Addr: a}, true)
	}
	for a := range had { // any order: sets and counts
		f := familyOf(a)
		if have[a] {
			continue
		}
		p.families[f].element(OwnSet, Element{Addr: a}, false)
		if p.own[f]--; p.own[f] == 0 {
			p.families[f].delSet(OwnSet)
		}
	}
}

// profile returns the one of the policies that select the pod now; nil if there are none.
func (p *Plan) profile(d Direction, pd *pod) *profile {
	var list []*policy
	for pol := range pd.selectedBy { // any order: sets and counts
		if pol.applies[d] {
			list = append(list, pol)
		}
	}
	if len(list) == 0 || len(pd.Addresses) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b *policy) int { return strings.Compare(a.key, b.key) })
	names := make([]string, len(list))
	for i, pol := range list {
		names[i] = pol.chain[d]
	}
	id := name([]string{"in", "out"}[d], names...)
	if p.profiles[id] == nil {
		p.profiles[id] = &profile{direction: d, name: id, policies: list}
	}
	return p.profiles[id]
}

func (p *Plan) openProfile(pr *profile, f int) {
	c := &Chain{Direction: pr.direction}
	for _, pol := range pr.policies {
		if pol.users[pr.direction][f]++; pol.users[pr.direction][f] == 1 {
			p.writeChain(pol, pr.direction, f)
		}
		c.Rules = append(c.Rules, Rule{Action: Jump, Target: pol.chain[pr.direction], Policy: pol.key})
	}
	c.Rules = append(c.Rules, Rule{Action: Accept, Own: true}, Rule{Action: Drop})
	p.families[f].chain(pr.name, c)
}

func (p *Plan) releaseProfile(pr *profile, f int) {
	if pr.users[f]--; pr.users[f] > 0 {
		return
	}
	p.families[f].chain(pr.name, nil)
	for _, pol := range pr.policies {
		if pol.users[pr.direction][f]--; pol.users[pr.direction][f] == 0 {
			p.families[f].chain(pol.chain[pr.direction], nil)
			p.release(pol.uses[pr.direction][f], f)
			pol.uses[pr.direction][f] = uses{}
		}
	}
	if pr.users[0]+pr.users[1] == 0 {
		delete(p.profiles, pr.name)
	}
}
