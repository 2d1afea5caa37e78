// Package services decides what a node does with packets to Services: which addresses and ports it
// answers, and to which endpoints. internal/network/services writes the decision to the kernel. The
// package must never look at a clock or at the API.
//
// A State holds the decision for one address family. Update takes Services and their EndpointSlices
// as they are now and returns the difference as elements of sets to add and delete. A Table holds
// these elements, and Table.Decide evaluates a packet like the kernel's chains. An element depends
// on one Service, except where several claim the same address and port: then the first one gets it
// (State.Update).
//
//	set           key → data
//	dispatch      address, protocol, port → list, number of its endpoints, affinity time-out
//	inside        the same for sources on this node, where others use local endpoints only (N2.33)
//	endpoints     list, index → address, port of an endpoint
//	slots         list, index → member: of lists with affinity, where a client keeps its member
//	members       member → address, port of an endpoint
//	masquerades   address, protocol, port: the source becomes the node's address (N2.32)
//	rejects,      address, protocol, port without endpoints,
//	drops         or without local ones (N2.B)
//	cluster-ips   address: its other ports are rejected, sources outside are masqueraded
//	hairpin       address: local endpoints, which may reach themselves (N2.39)
//	guarded       address, protocol, port with allowed sources (N2.F)
//	sources       address, protocol, port, range of sources; ranges of one port do not overlap
//	node-ips      address that answers on node ports; there a port has the unspecified address as key
//
// Lists and members have numbers: a hash of their identity, or the next free number. So a new
// process nearly always computes the same numbers, and clients keep their endpoints. No string of a
// user reaches the kernel.
//
// Contract: N2 in docs/spec/network.md.
package services

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node holds the facts of the node that decisions depend on.
type Node struct {
	Name string
	Zone string // the label topology.kubernetes.io/zone
	// Addresses answer on node ports (N2.25).
	Addresses []netip.Addr
	// Pods are the addresses of this node's pods: sources that are "local" (N0.16).
	Pods []netip.Prefix
	// Own lists the TCP addresses at which carob itself listens; an unspecified address means all
	// addresses of the node. External addresses and node ports of Services never take them. OwnUDP lists those of UDP.
	Own, OwnUDP []netip.AddrPort
}

// Input is a Service as stored, and its EndpointSlices; a nil Service was deleted.
type Input struct {
	Name    types.NamespacedName
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
}

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols of Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

func protocolOf(p *corev1.Protocol) Protocol {
	if p == nil {
		return TCP
	}
	switch *p {
	case corev1.ProtocolUDP:
		return UDP
	case corev1.ProtocolSCTP:
		return SCTP
	case corev1.ProtocolTCP, "":
		return TCP
	}
	return 0 // refused by the API, so no Service has it
}

// Port is where packets are sent to. The unspecified address means the node's own: node ports.
type Port struct {
	Addr  netip.Addr
	Proto Protocol
	Port  uint16
}

func (p Port) String() string {
	if p.Addr.IsUnspecified() {
		return fmt.Sprintf("node port %d/%s", p.Port, p.Proto)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Addr, p.Port), p.Proto)
}

// List names the endpoints among which connections to a Service port are distributed, by an
// identity that is unique in the cluster.
type List struct {
	Port       // of the cluster IP
	Local bool // only endpoints on this node
}

// commonClasses is up to how many endpoints the chains that choose among them, without affinity, always exist: a new
// chain makes the kernel check the whole table, which takes ten times as long as a change of elements.
const commonClasses = 16

// Class holds what the choice of an endpoint depends on, apart from the list: one chain serves all
// lists with the same number of endpoints and time-out.
type Class struct {
	N       uint32 // endpoints, at least 1
	Timeout uint32 // seconds for which a client keeps its endpoint; 0: no affinity
}

// Target is where connections to a Port go.
type Target struct {
	List uint32 // its number
	Class
}

// MaxEndpoints is how many endpoints of a list are used: a class is one number of the kernel.
const MaxEndpoints = 1<<15 - 1

// Number is the class as one number: affinity has at most a day (N0.30), which needs 17 bits.
func (c Class) Number() uint32 { return c.N<<17 | c.Timeout }

// verdict is the handling of connections without an endpoint.
type verdict uint8

const (
	pass verdict = iota
	reject
	drop
)

// family is the address family of a State.
type family struct {
	v6 bool
}

func (f family) is(a netip.Addr) bool { return a.Is6() == f.v6 }

func (f family) unspecified() netip.Addr {
	if f.v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func (f family) sliceType() discoveryv1.AddressType {
	if f.v6 {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// parse parses addresses in all forms that the API accepts in old objects: with leading zeros, and
// IPv4 addresses in the form of IPv6.
func parse(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(strings.TrimSpace(s))
	if err != nil {
		if a, err = netip.ParseAddr(withoutZeros(s)); err != nil {
			return netip.Addr{}, false
		}
	}
	if a = a.Unmap(); a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a, true
}

func withoutZeros(s string) string {
	parts := strings.Split(s, ".")
	for i, p := range parts {
		if p = strings.TrimLeft(p, "0"); p == "" {
			p = "0"
		}
		parts[i] = p
	}
	return strings.Join(parts, ".")
}

func parsePrefix(s string) (netip.Prefix, bool) {
	s = strings.TrimSpace(s)
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, bits, ok := strings.Cut(s, "/")
		if !ok {
			return netip.Prefix{}, false
		}
		if p, err = netip.ParsePrefix(withoutZeros(addr) + "/" + bits); err != nil {
			return netip.Prefix{}, false
		}
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}
