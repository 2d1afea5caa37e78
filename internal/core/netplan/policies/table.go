package policies

import (
	"maps"
	"net/netip"
	"slices"
)

// Direction is that of a connection, from the isolated pod's point of view.
type Direction uint8

// A packet is judged twice: as egress of its source, and as ingress of its destination.
const (
	Ingress Direction = iota
	Egress
)

// String returns the name in the API.
func (d Direction) String() string {
	if d == Ingress {
		return "Ingress"
	}
	return "Egress"
}

// Protocol numbers in policies (IANA).
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
)

// Table is the whole decision as data, with independent parts for the address families. A packet is
// first judged by the chain that Isolated[Egress] has for its source, then by the one that
// Isolated[Ingress] has for its destination. An address without a chain is not isolated in that
// direction.
type Table struct {
	V4, V6 Family
}

// Family is the table of one address family. It is empty as long as no pod is isolated.
type Family struct {
	Sets   map[string]*Set
	Chains map[string]*Chain
	// Isolated has a chain for each address of each isolated pod of this node.
	Isolated [2]map[netip.Addr]string
}

// Kind is what the elements of a set are.
type Kind uint8

// The fields of Element that each kind uses are in parentheses.
const (
	Addresses     Kind = iota // of pods that a selector matches (Addr)
	AddressPorts              // where pods have a port of one name (Addr, Port)
	AddressRanges             // of one rule's blocks, without exceptions; disjoint and never changed (Addr to To)
	PortRanges                // of one rule's ports; disjoint and never changed (Port to EndPort)
	Own                       // pods that may reach themselves: source and destination are this one (Addr)
)

// OwnSet is the name of the set of kind Own.
const OwnSet = "own"

// Set is a set of a family.
type Set struct {
	Kind     Kind
	Elements map[Element]struct{}
}

// Element is an element of a set; its kind determines which fields are used. Ranges include both
// ends.
type Element struct {
	Addr, To      netip.Addr
	Port, EndPort uint16
}

// Chain is a list of rules for one direction. The first rule that matches and whose action ends the
// judgement decides; after the last one the calling chain continues.
type Chain struct {
	Direction Direction
	Rules     []Rule
}

// Action is what a rule does with packets that match.
type Action uint8

// Accept and Drop end the judgement in this direction.
const (
	Accept Action = iota
	Drop
	Jump // to Rule.Target, and continue here if the target has no verdict
)

// Rule matches a packet if all conditions that are set match.
type Rule struct {
	Action Action
	Target string // of Jump
	// Policy is "namespace/name" of the policy that Target belongs to, as a comment for readers of
	// the rules. It is a user's string, which the driver must check.
	Policy string

	Own       bool   // only a packet from a pod to itself, which is in OwnSet
	Peer      string // set of the other end: Addresses or AddressRanges
	Protocol  uint8  // 0: any
	From, To  uint16 // destination ports, both ends included; 0, 0: any
	Ports     string // set of destination ports: PortRanges
	NamedPort string // set of destinations: AddressPorts
}

// Packet is the first packet of a connection as it is forwarded: after the address of a service was
// translated, before the source is masqueraded (N5.19, N5.21). Packets of a pod to and from its own
// node are not forwarded, and never judged (N5.15).
type Packet struct {
	Src, Dst netip.Addr
	Protocol uint8
	Port     uint16 // destination port; 0 for protocols without ports
}

// Allowed reports whether the table allows a packet.
func (t *Table) Allowed(p Packet) bool {
	f := t.Of(p.Dst)
	return f.allowed(Egress, p.Src, p) && f.allowed(Ingress, p.Dst, p)
}

// Of returns the part of an address's family.
func (t *Table) Of(a netip.Addr) *Family {
	if a.Is4() {
		return &t.V4
	}
	return &t.V6
}

func (f *Family) allowed(d Direction, pod netip.Addr, p Packet) bool {
	chain, isolated := f.Isolated[d][pod]
	if !isolated {
		return true
	}
	accepted, decided := f.run(chain, p)
	return accepted || !decided
}

func (f *Family) run(name string, p Packet) (accepted, decided bool) {
	c := f.Chains[name]
	for _, r := range c.Rules {
		if !f.matches(c.Direction, r, p) {
			continue
		}
		switch r.Action {
		case Accept:
			return true, true
		case Drop:
			return false, true
		case Jump:
			if accepted, decided = f.run(r.Target, p); decided {
				return accepted, true
			}
		}
	}
	return false, false
}

func (f *Family) matches(d Direction, r Rule, p Packet) bool {
	peer := p.Src
	if d == Egress {
		peer = p.Dst
	}
	hasPorts := p.Protocol == TCP || p.Protocol == UDP || p.Protocol == SCTP
	switch {
	case r.Own && (p.Src != p.Dst || !f.Sets[OwnSet].has(Element{Addr: p.Dst})),
		r.Peer != "" && !f.Sets[r.Peer].hasAddr(peer),
		r.Protocol != 0 && r.Protocol != p.Protocol,
		r.To != 0 && (!hasPorts || p.Port < r.From || p.Port > r.To),
		r.Ports != "" && (!hasPorts || !f.Sets[r.Ports].hasPort(p.Port)),
		r.NamedPort != "" && (!hasPorts || !f.Sets[r.NamedPort].has(Element{Addr: p.Dst, Port: p.Port})):
		return false
	}
	return true
}

func (s *Set) has(e Element) bool {
	if s == nil {
		return false
	}
	_, ok := s.Elements[e]
	return ok
}

func (s *Set) hasAddr(a netip.Addr) bool {
	if s.Kind == Addresses {
		return s.has(Element{Addr: a})
	}
	for e := range s.Elements { // any order: one entry does not depend on another
		if e.Addr.Compare(a) <= 0 && a.Compare(e.To) <= 0 {
			return true
		}
	}
	return false
}

func (s *Set) hasPort(port uint16) bool {
	for e := range s.Elements { // any order: one entry does not depend on another
		if e.Port <= port && port <= e.EndPort {
			return true
		}
	}
	return false
}

// Empty reports whether nothing is isolated: then no kernel table is needed.
func (f *Family) Empty() bool { return len(f.Isolated[Ingress])+len(f.Isolated[Egress]) == 0 }

func newFamily() Family {
	return Family{Sets: map[string]*Set{}, Chains: map[string]*Chain{},
		Isolated: [2]map[netip.Addr]string{{}, {}}}
}

// NewTable returns a table that isolates no pod.
func NewTable() Table { return Table{V4: newFamily(), V6: newFamily()} }

// Clone copies a table.
func (t *Table) Clone() Table { return Table{V4: t.V4.clone(), V6: t.V6.clone()} }

func (f *Family) clone() Family {
	c := Family{Sets: make(map[string]*Set, len(f.Sets)), Chains: make(map[string]*Chain, len(f.Chains)),
		Isolated: [2]map[netip.Addr]string{maps.Clone(f.Isolated[0]), maps.Clone(f.Isolated[1])}}
	for name, s := range f.Sets { // any order: one entry does not depend on another
		c.Sets[name] = s.clone()
	}
	for name, chain := range f.Chains { // any order: one entry does not depend on another
		c.Chains[name] = chain.clone()
	}
	return c
}

func (s *Set) clone() *Set { return &Set{Kind: s.Kind, Elements: maps.Clone(s.Elements)} }

func (c *Chain) clone() *Chain { return &Chain{Direction: c.Direction, Rules: slices.Clone(c.Rules)} }

func (c *Chain) equal(o *Chain) bool {
	return c.Direction == o.Direction && slices.Equal(c.Rules, o.Rules)
}
