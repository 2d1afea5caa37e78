package services

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// State is the decision about all Services, in one address family. It is not safe for concurrent
// use.
type State struct {
	family   family
	node     Node
	services map[types.NamespacedName]*compiled
	// owners lists the Services that claim a cluster IP, ports those that claim an address and port; the
	// first one gets it.
	owners  map[netip.Addr][]types.NamespacedName
	ports   map[Port][]types.NamespacedName
	lists   map[List]list
	hairpin map[netip.Addr]int
	classes map[Class]int
	ids     ids[List]
	members ids[memberOf]
	pods    map[types.UID]uses
	total   struct{ endpoints, noLocalIn, noLocalOut int }
}

// list is the endpoints of a list, each at its index.
type list struct {
	at     []placed
	sticky bool
}

// placed is an endpoint at its index of a list.
type placed struct {
	at              netip.AddrPort
	pod             types.UID
	local, fallback bool
}

// uses counts in how many places of lists a pod is.
type uses struct{ ready, fallback int }

// New returns a state without Services. v6 selects the address family.
func New(v6 bool, n Node) *State {
	s := &State{family: family{v6}, services: map[types.NamespacedName]*compiled{},
		owners: map[netip.Addr][]types.NamespacedName{}, ports: map[Port][]types.NamespacedName{},
		lists: map[List]list{}, hairpin: map[netip.Addr]int{}, classes: map[Class]int{},
		pods: map[types.UID]uses{}}
	for n := range uint32(commonClasses) {
		s.classes[Class{N: n + 1}] = 1
	}
	s.node = s.ofFamily(n)
	return s
}

// ofFamily returns a node with the addresses of this family only.
func (s *State) ofFamily(n Node) Node {
	n.Addresses = slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool {
		return !s.family.is(a) || a.IsLoopback() || a.IsUnspecified()
	})
	slices.SortFunc(n.Addresses, netip.Addr.Compare)
	n.Addresses = slices.Compact(n.Addresses)
	n.Pods = slices.DeleteFunc(slices.Clone(n.Pods), func(p netip.Prefix) bool { return !s.family.is(p.Addr()) })
	return n
}

// Node returns the node's facts for the state's family.
func (s *State) Node() Node { return s.node }

// SetNode changes facts of the node. Update must follow with all Services, because their results
// may depend on the node.
func (s *State) SetNode(n Node) Change {
	var c Change
	n = s.ofFamily(n)
	for _, a := range s.node.Addresses {
		c.remove(nodeIP(a))
	}
	for _, a := range n.Addresses {
		c.add(nodeIP(a))
	}
	c.cancel()
	s.node = n
	return c
}

func nodeIP(a netip.Addr) Element { return Element{Set: NodeIPs, Key: addrKey(a)} }

func addrKey(a netip.Addr) Key { return Key{Port: Port{Addr: a}} }

func portKey(p Port) Key { return Key{Port: p} }

// Update applies changed Services. Its cost depends on these Services and their endpoints, not on
// the number of others. Where two Services claim the same cluster IP, or the same external address
// or node port, the first one gets it: a cluster IP before a node port, a balancer's address and an
// external IP, then the older Service, then the name. The other one gets it when the first one is
// deleted.
func (s *State) Update(in []Input) Change {
	c := Change{Flows: map[Port][]netip.AddrPort{}}
	// The owner of a cluster IP decides whether a Service exists at all.
	affected := map[types.NamespacedName]*compiled{} // as they were
	touch := func(name types.NamespacedName) {
		if _, known := affected[name]; !known {
			affected[name] = s.active(name)
		}
	}
	next := map[types.NamespacedName]*compiled{}
	for _, i := range in {
		now := compile(s.family, s.node, i.Service, i.Slices)
		next[i.Name] = now
		touch(i.Name)
		for _, of := range []*compiled{s.services[i.Name], now} {
			if of != nil {
				for _, other := range s.owners[of.ip] {
					touch(other)
				}
			}
		}
	}
	// any order: each Service by itself
	for name, now := range next {
		if old := s.services[name]; old != nil {
			s.disown(old.ip, name)
		}
		if now == nil {
			delete(s.services, name)
			continue
		}
		s.services[name] = now
		s.owners[now.ip] = append(s.owners[now.ip], name)
	}
	// any order: each Service by itself
	for name := range affected {
		if now := s.services[name]; now != nil {
			slices.SortFunc(s.owners[now.ip], s.older)
		}
	}
	s.claim(affected, &c)
	// any order: each Service by itself
	for name := range affected {
		if now := s.services[name]; now != nil {
			c.Problems = append(c.Problems, s.problems(name, now)...)
		}
	}
	slices.SortFunc(c.Problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Service.String(), b.Service.String()), strings.Compare(a.Text, b.Text))
	})
	c.cancel()
	s.release(&c)
	return c
}

func (s *State) disown(ip netip.Addr, name types.NamespacedName) {
	left := slices.DeleteFunc(s.owners[ip], func(n types.NamespacedName) bool { return n == name })
	if s.owners[ip] = left; len(left) == 0 {
		delete(s.owners, ip)
	}
}

func (s *State) older(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(s.services[a].age, s.services[b].age), strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name))
}

// active returns a Service if it owns its cluster IP, else nil.
func (s *State) active(name types.NamespacedName) *compiled {
	if now := s.services[name]; now != nil && s.owners[now.ip][0] == name {
		return now
	}
	return nil
}

// claim replaces the former entries of Services by their new ones.
func (s *State) claim(before map[types.NamespacedName]*compiled, c *Change) {
	had := s.holders(before) // before any claim changes
	s.replaceLists(before, c)
	s.updateHairpins(c)
	s.updateClaims(before)
	// any order: each port by itself, the elements of a change are a set
	for p, h := range had {
		if h.ok {
			s.vipElements(p, h.v, -1, c.remove, c)
		}
		if list := s.ports[p]; len(list) > 0 {
			s.sortClaims(p, list)
			s.vipElements(p, s.services[list[0]].vips[p], 1, c.add, c)
		}
		s.flow(p, c)
	}
	// any order: each Service by itself, the elements of a change are a set
	for name, old := range before {
		now := s.active(name)
		clusterIPs(old, now, c)
		// any order: sums
		for sign, of := range map[int]*compiled{-1: old, 1: now} {
			if of != nil {
				s.total.noLocalIn += sign * of.noLocalIn
				s.total.noLocalOut += sign * of.noLocalOut
			}
		}
	}
}

// holder is what an address and port led to, if a Service had it.
type holder struct {
	v  vip
	ok bool
}

// holders returns what the addresses and ports lead to that the Services had or will have.
func (s *State) holders(before map[types.NamespacedName]*compiled) map[Port]holder {
	had := map[Port]holder{}
	// any order: each Service by itself, the elements of a change are a set
	for name, old := range before {
		for _, of := range []*compiled{old, s.active(name)} {
			if of == nil {
				continue
			}
			// any order: each port by itself
			for p := range of.vips {
				if _, known := had[p]; known {
					continue
				}
				h := holder{}
				if list := s.ports[p]; len(list) > 0 {
					of, changed := before[list[0]]
					if !changed {
						of = s.services[list[0]]
					}
					h = holder{of.vips[p], true}
				}
				had[p] = h
			}
		}
	}
	return had
}

// updateHairpins adds and removes the addresses for which connections to themselves are masqueraded.
func (s *State) updateHairpins(c *Change) {
	// any order: each port by itself, the elements of a change are a set
	for a, had := range c.self {
		self := Element{Set: Hairpin, Key: addrKey(a)}
		switch has := s.hairpin[a] > 0; {
		case has && !had:
			c.add(self)
		case had && !has:
			c.remove(self)
		}
	}
	c.self = nil
}

// updateClaims replaces which addresses and ports the Services claim.
func (s *State) updateClaims(before map[types.NamespacedName]*compiled) {
	// any order: each Service by itself
	for name, old := range before {
		if old != nil {
			// any order: each port by itself
			for p := range old.vips {
				left := slices.DeleteFunc(s.ports[p], func(n types.NamespacedName) bool { return n == name })
				if s.ports[p] = left; len(left) == 0 {
					delete(s.ports, p)
				}
			}
		}
	}
	// any order: each Service by itself
	for name := range before {
		if now := s.active(name); now != nil {
			// any order: each port by itself
			for p := range now.vips {
				s.ports[p] = append(s.ports[p], name)
			}
		}
	}
}

// sortClaims puts the Service that gets an address and port first.
func (s *State) sortClaims(p Port, names []types.NamespacedName) {
	slices.SortFunc(names, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(s.services[a].vips[p].rank, s.services[b].vips[p].rank), s.older(a, b))
	})
}

func clusterIPs(old, now *compiled, c *Change) {
	if old != nil {
		c.remove(Element{Set: ClusterIPs, Key: addrKey(old.ip)})
	}
	if now != nil {
		c.add(Element{Set: ClusterIPs, Key: addrKey(now.ip)})
	}
}

// flow records the endpoints that now serve a port of UDP or TCP.
func (s *State) flow(p Port, c *Change) {
	if p.Proto == SCTP {
		return
	}
	c.Flows[p] = nil
	if list := s.ports[p]; len(list) > 0 {
		c.Flows[p] = s.services[list[0]].flows[p]
	}
}

// vipElements emits the elements of an address and port; n counts shared elements.
func (s *State) vipElements(p Port, v vip, n int, emit func(Element), c *Change) {
	key := portKey(p)
	// any order: two elements of a set of elements
	for set, t := range map[Set]route{Dispatch: v.dispatch, Inside: v.inside} {
		if t.N > 0 {
			emit(Element{Set: set, Key: key, Target: Target{s.ids.of(t.list, t.list.text), t.Class}})
			count(s.classes, t.Class, n, &c.NewClasses, &c.OldClasses)
		}
	}
	if v.masquerade {
		emit(Element{Set: Masquerade, Key: key})
	}
	switch v.verdict {
	case reject:
		emit(Element{Set: Reject, Key: key})
	case drop:
		emit(Element{Set: Drop, Key: key})
	case pass:
	}
	if v.guarded {
		emit(Element{Set: Guarded, Key: key})
		for _, from := range v.sources {
			emit(Element{Set: Sources, Key: Key{Port: p, Source: from}})
		}
	}
}

// count changes a counter by n, which is 1 or -1, and records what becomes used or unused.
func count[K comparable](m map[K]int, k K, n int, come, gone *[]K) {
	was := m[k]
	if m[k] = was + n; m[k] == 0 {
		delete(m, k)
	}
	drop := func(list *[]K) bool {
		i := slices.Index(*list, k)
		if i >= 0 {
			*list = slices.Delete(*list, i, i+1)
		}
		return i >= 0
	}
	switch {
	case was == 0 && n > 0:
		if !drop(gone) {
			*come = append(*come, k)
		}
	case was == 1 && n < 0:
		if !drop(come) {
			*gone = append(*gone, k)
		}
	}
}

// replaceLists changes the lists of Services. Deletions come first: another Service may have had
// the cluster IP.
func (s *State) replaceLists(before map[types.NamespacedName]*compiled, c *Change) {
	// any order: each Service by itself, the elements of a change are a set
	for name, old := range before {
		if old == nil {
			continue
		}
		now := s.active(name)
		// any order: each list by itself
		for l := range old.lists {
			if now == nil || now.lists[l] == nil {
				s.replaceList(l, nil, false, c)
			}
		}
	}
	// any order: each Service by itself, the elements of a change are a set
	for name := range before {
		if now := s.active(name); now != nil {
			// any order: each list by itself
			for l, want := range now.lists {
				s.replaceList(l, want, now.timeout > 0, c)
			}
		}
	}
}

// replaceList changes one list. An endpoint that stays keeps its index if that is still in range, so
// that a change of one endpoint changes few elements.
func (s *State) replaceList(l List, want []endpoint, sticky bool, c *Change) {
	old := s.lists[l]
	next := list{place(old.at, want), sticky}
	s.total.endpoints += len(next.at) - len(old.at)
	c.touched = append(c.touched, l)
	for i, e := range old.at {
		if i >= len(next.at) || next.at[i].at != e.at || old.sticky != sticky {
			s.emitAt(l, i, e.at, old.sticky, c.remove)
		}
		if old.sticky {
			c.remove(s.member(l, e.at))
			c.forget = append(c.forget, memberOf{l, e.at})
		}
		s.use(e, -1, c)
	}
	for i, e := range next.at {
		if i >= len(old.at) || old.at[i].at != e.at || old.sticky != sticky {
			s.emitAt(l, i, e.at, sticky, c.add)
		}
		if sticky {
			c.add(s.member(l, e.at))
		}
		s.use(e, 1, c)
	}
	if s.lists[l] = next; len(next.at) == 0 {
		delete(s.lists, l)
	}
}

// emitAt emits the element for an index of a list.
func (s *State) emitAt(l List, i int, at netip.AddrPort, sticky bool, emit func(Element)) {
	e := Element{Set: Endpoints, Key: Key{ID: s.ids.of(l, l.text), Index: uint32(i)}, To: at}
	if sticky {
		m := memberOf{l, at}
		e.Set, e.To, e.Member = Slots, netip.AddrPort{}, s.members.of(m, m.text)
	}
	emit(e)
}

func (s *State) member(l List, at netip.AddrPort) Element {
	m := memberOf{l, at}
	return Element{Set: Members, Key: Key{ID: s.members.of(m, m.text)}, To: at}
}

// release frees unused numbers after an update.
func (s *State) release(c *Change) {
	for _, l := range c.touched {
		if _, kept := s.lists[l]; !kept {
			s.ids.free(l)
		}
	}
	kept := map[memberOf]bool{}
	for _, l := range c.touched {
		if of := s.lists[l]; of.sticky {
			for _, e := range of.at {
				kept[memberOf{l, e.at}] = true
			}
		}
	}
	for _, m := range c.forget {
		if !kept[m] {
			s.members.free(m)
		}
	}
	c.touched, c.forget = nil, nil
}

// use counts an endpoint in a list.
func (s *State) use(e placed, n int, c *Change) {
	if e.local {
		a := e.at.Addr()
		was := s.hairpin[a]
		if _, known := c.self[a]; !known {
			if c.self == nil {
				c.self = map[netip.Addr]bool{}
			}
			c.self[a] = was > 0
		}
		if s.hairpin[a] = was + n; was+n == 0 {
			delete(s.hairpin, a)
		}
	}
	if e.pod == "" {
		return
	}
	u := s.pods[e.pod]
	if n < 0 && !e.fallback && u.ready == 1 {
		c.Left = append(c.Left, e.pod)
	}
	if e.fallback {
		u.fallback += n
	} else {
		u.ready += n
	}
	if s.pods[e.pod] = u; u == (uses{}) {
		delete(s.pods, e.pod)
	}
}

// place orders endpoints so that as few as possible change their index.
func place(old []placed, want []endpoint) []placed {
	left := make(map[netip.AddrPort]placed, len(want))
	for _, e := range want {
		left[e.at] = placed{e.at, e.pod, e.local, e.fallback()}
	}
	next := make([]placed, len(want))
	var holes []int
	for i := range next {
		if i < len(old) {
			if e, ok := left[old[i].at]; ok {
				next[i] = e
				delete(left, e.at)
				continue
			}
		}
		holes = append(holes, i)
	}
	rest := slices.SortedFunc(maps.Values(left), func(a, b placed) int { return a.at.Compare(b.at) })
	for i, hole := range holes {
		next[hole] = rest[i]
	}
	return next
}

// Elements returns all elements of the table.
func (s *State) Elements() iter.Seq[Element] {
	return func(yield func(Element) bool) {
		stopped := false
		emit := func(e Element) { stopped = stopped || !yield(e) }
		for _, a := range s.node.Addresses {
			emit(nodeIP(a))
		}
		scratch := &State{classes: map[Class]int{}, ids: s.ids}
		// any order: the elements are a set
		for p, list := range s.ports {
			if stopped {
				return
			}
			scratch.vipElements(p, s.services[list[0]].vips[p], 1, emit, &Change{})
		}
		// any order: the elements are a set
		for name := range s.services {
			now := s.active(name)
			if stopped {
				return
			}
			if now == nil {
				continue
			}
			emit(Element{Set: ClusterIPs, Key: addrKey(now.ip)})
			// any order: each list by itself
			for l := range now.lists {
				of := s.lists[l]
				for i, e := range of.at {
					s.emitAt(l, i, e.at, of.sticky, emit)
					if of.sticky {
						emit(s.member(l, e.at))
					}
				}
			}
		}
		// any order: the elements are a set
		for a := range s.hairpin {
			emit(Element{Set: Hairpin, Key: addrKey(a)})
		}
	}
}

// Classes returns the classes in use. any order: a set of classes
func (s *State) Classes() []Class { return slices.Collect(maps.Keys(s.classes)) }

// Use defines whether connections can still be sent to a pod.
type Use uint8

// The results of UseOf.
const (
	Out      Use = iota // new connections never reach the pod through a Service
	Fallback            // they do, but only because no other endpoint is ready (N2.3)
	In                  // they do
)

// UseOf returns the Use of the pod with a UID.
func (s *State) UseOf(pod types.UID) Use {
	switch u := s.pods[pod]; {
	case u.ready > 0:
		return In
	case u.fallback > 0:
		return Fallback
	}
	return Out
}

// Len returns how many Services are served, and how many endpoints their lists have.
func (s *State) Len() (services, endpoints int) { return len(s.services), s.total.endpoints }

// NoLocalEndpoints counts Service ports with a Local policy whose endpoints are all elsewhere (N9.4).
func (s *State) NoLocalEndpoints() (in, out int) { return s.total.noLocalIn, s.total.noLocalOut }
