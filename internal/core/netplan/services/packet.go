package services

import "net/netip"

// Packet is the first packet of a connection.
type Packet struct {
	Source netip.Addr
	To     Port
	// FromNode: a process of the node sent it, or one in its network namespace.
	FromNode bool
}

// Outcome is what happens to a connection.
type Outcome uint8

// The outcomes.
const (
	Pass     Outcome = iota // it is not for a Service
	Forward                 // to one of the endpoints
	Rejected                // the client is notified at once
	Dropped                 // the client gets no response
)

// Decision is the result of the table for a connection.
type Decision struct {
	Outcome Outcome
	List    []netip.AddrPort // Forward: one of these, each with the same chance
	Timeout uint32           // seconds for which the client keeps its endpoint; 0: not at all
	// Masquerade: at the endpoint, the source is an address of the node instead of the client's. If the client is
	// the endpoint itself, this is always so (Hairpin).
	Masquerade bool
}

// Decide evaluates a packet like the chains of internal/network/services.
func (t *Table) Decide(n Node, p Packet) Decision {
	key := portKey(p.To)
	if _, guarded := t[Guarded][key]; guarded && !t.allows(p) {
		return Decision{Outcome: Dropped}
	}
	keys := []Key{key}
	if _, ok := t[NodeIPs][addrKey(p.To.Addr)]; ok {
		any := p.To
		any.Addr = family{p.To.Addr.Is6()}.unspecified()
		keys = append(keys, portKey(any))
	}
	fromPod := false
	for _, pods := range n.Pods {
		fromPod = fromPod || pods.Contains(p.Source)
	}
	for _, k := range keys {
		e, ok := t[Inside][k]
		inside := ok && (fromPod || p.FromNode)
		if !inside {
			e, ok = t[Dispatch][k]
		}
		if !ok {
			continue
		}
		d := Decision{Outcome: Forward, Timeout: e.Target.Timeout}
		for i := range e.Target.N {
			at := Key{ID: e.Target.List, Index: i}
			if to, ok := t[Endpoints][at]; ok {
				d.List = append(d.List, to.To)
			} else if to, ok := t[Members][Key{ID: t[Slots][at].Member}]; ok {
				d.List = append(d.List, to.To)
			}
		}
		_, masquerade := t[Masquerade][k]
		_, cluster := t[ClusterIPs][addrKey(p.To.Addr)]
		_, local := t[Inside][k]
		d.Masquerade = masquerade || cluster && !fromPod || local && p.FromNode
		return d
	}
	for _, k := range keys {
		if _, ok := t[Reject][k]; ok {
			return Decision{Outcome: Rejected}
		}
		if _, ok := t[Drop][k]; ok {
			return Decision{Outcome: Dropped}
		}
	}
	if _, ok := t[ClusterIPs][addrKey(p.To.Addr)]; ok {
		return Decision{Outcome: Rejected}
	}
	return Decision{}
}

func (t *Table) allows(p Packet) bool {
	for bits := range p.Source.BitLen() + 1 {
		from, err := p.Source.Prefix(bits)
		if err != nil {
			return false
		}
		if _, ok := t[Sources][Key{Port: p.To, Source: from}]; ok {
			return true
		}
	}
	return false
}
