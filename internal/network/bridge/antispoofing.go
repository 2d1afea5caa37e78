package bridge

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// pin is what one port of the bridge may send: frames from this hardware address to the bridge's,
// with these source addresses.
//
// A pod with CAP_NET_RAW can write any frame. Frames that do not match a pin are dropped in the
// chain prerouting of the table of family bridge, before the host processes them:
//
//	chain prerouting   device of another group            → accept: not ours
//	                   IPv4 and IPv6 to the bridge's hardware address from pinned addresses → accept
//	                   ARP whose sender is pinned         → accept
//	                   the rest (other sources, VLAN tags, multicast, router advertisements, BPDUs) → drop
//	chain forward      from port to port: what br_netfilter redirects (IPv4 and IPv6) → accept, the rest → drop
//
// Ports are recognized by their device group, so a port without a pod passes nothing. The bridge's
// own flag "isolated" is not used: with br_netfilter loaded, packets to a host port return within
// the bridge, and the flag would drop them.
type pin struct {
	port int // index of the veth on the bridge
	mac  net.HardwareAddr
	ips  []netip.Addr
}

// Frame offsets.
const (
	offsetDestination = 0  // hardware addresses are the first twelve bytes
	offsetSource      = 6  //
	offsetType        = 12 // in a tagged frame, this is the tag's
	macLen            = 6

	arpTypes           = 0 // what kind of addresses: six bytes
	arpOperation       = 6
	arpSenderHardware  = 8
	arpSenderAddress   = 14
	icmp6TargetAddress = 8 // of a neighbour solicitation or advertisement

	icmp6RouterAdvertisement   = 134
	icmp6NeighborSolicitation  = 135
	icmp6NeighborAdvertisement = 136
	icmp6Redirect              = 137
)

var (
	arpEthernetIPv4 = []byte{0, 1, 8, 0, 6, 4} // hardware type, protocol type, lengths
	broadcastMAC    = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

// groupOf returns the device group of a network's ports. Other programs do not use such high
// group numbers.
func groupOf(table string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(table))
	return h.Sum32()&0x3fffffff | 0x40000000
}

// pinTable is the table of family bridge with its sets.
type pinTable struct {
	table  *nftables.Table
	v4, v6 *nftables.Set
}

func (r *rules) pinTable() *pinTable {
	t := &pinTable{table: &nftables.Table{Family: nftables.TableFamilyBridge, Name: r.table}}
	set := func(name string, addr nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: t.table, Name: name, Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeEtherAddr, addr)}
	}
	t.v4, t.v6 = set("pins", nftables.TypeIPAddr), set("pins6", nftables.TypeIP6Addr)
	return t
}

// installPins adds the whole table to a transaction.
func (r *rules) installPins(conn *nftables.Conn, pins []pin) error {
	t := r.pinTable()
	conn.AddTable(t.table)
	conn.DelTable(t.table)
	conn.AddTable(t.table)
	for _, s := range []*nftables.Set{t.v4, t.v6} {
		if err := conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("add nftables set %s: %w", s.Name, err)
		}
	}
	chain := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		// Before everything else of this family, including br_netfilter.
		prio := nftables.ChainPriority(-350)
		return conn.AddChain(&nftables.Chain{Table: t.table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: &prio})
	}
	rule := func(c *nftables.Chain, parts ...[]expr.Any) {
		conn.AddRule(&nftables.Rule{Table: t.table, Chain: c, Exprs: slices.Concat(parts...)})
	}
	accept, drop := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}},
		[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	notOurs := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(groupOf(r.table))}}
	frame := func(offset uint32, want []byte) []expr.Any {
		return equal(expr.PayloadBaseLLHeader, offset, want)
	}
	etherType := func(t uint16) []expr.Any { return frame(offsetType, binaryutil.BigEndian.PutUint16(t)) }
	// pinned looks up port, hardware address, and IP address in the registers from 8 on.
	pinned := func(set *nftables.Set, mac, addr *expr.Payload) []expr.Any {
		mac.DestRegister, mac.Len = 9, macLen
		addr.DestRegister, addr.Len = 11, 4
		if set == t.v6 {
			addr.Len = 16
		}
		return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: 8}, mac, addr}, lookup(set, false)...)
	}
	source := func() *expr.Payload { return &expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: offsetSource} }
	network := func(offset uint32) *expr.Payload {
		return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset}
	}

	pre := chain("prerouting", nftables.ChainHookPrerouting)
	toBridge := frame(offsetDestination, r.mac)
	rule(pre, notOurs, accept)
	rule(pre, etherType(unix.ETH_P_IP), toBridge, pinned(t.v4, source(), network(12)), accept)
	for _, to := range [][]byte{r.mac, broadcastMAC} {
		rule(pre, etherType(unix.ETH_P_ARP), frame(offsetDestination, to),
			equal(expr.PayloadBaseNetworkHeader, arpTypes, arpEthernetIPv4),
			[]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: arpOperation,
				Len: 2},
				// request, reply
				&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{0, 1}, ToData: []byte{0, 2}}},
			pinned(t.v4, source(), network(arpSenderAddress)),
			pinned(t.v4, network(arpSenderHardware), network(arpSenderAddress)), accept)
	}
	// Also behind extension headers.
	isICMP6 := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}}}
	if r.pods6.IsValid() {
		icmp := func(kind byte) []expr.Any {
			return slices.Concat(isICMP6, equal(expr.PayloadBaseTransportHeader, 0, []byte{kind}))
		}
		ip6 := etherType(unix.ETH_P_IPV6)
		for _, kind := range []byte{icmp6RouterAdvertisement, icmp6Redirect} {
			rule(pre, ip6, icmp(kind), drop)
		}
		target := &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: icmp6TargetAddress}
		rule(pre, ip6, toBridge, icmp(icmp6NeighborAdvertisement), pinned(t.v6, source(), network(8)),
			pinned(t.v6, source(), target), accept)
		rule(pre, ip6, icmp(icmp6NeighborAdvertisement), drop)
		// Neighbour solicitations for the gateway are multicast.
		rule(pre, ip6, frame(offsetDestination, []byte{0x33, 0x33, 0xff}), icmp(icmp6NeighborSolicitation),
			pinned(t.v6, source(), network(8)), accept)
		rule(pre, ip6, toBridge, pinned(t.v6, source(), network(8)), accept)
	}
	rule(pre, drop)

	fwd := chain("forward", nftables.ChainHookForward)
	rule(fwd, notOurs, accept)
	rule(fwd, etherType(unix.ETH_P_IP), accept)
	if r.pods6.IsValid() {
		rule(fwd, etherType(unix.ETH_P_IPV6), isICMP6, drop)
		rule(fwd, etherType(unix.ETH_P_IPV6), accept)
	}
	rule(fwd, drop)
	return t.add(conn, pins)
}

// equal compares bytes of a frame.
func equal(base expr.PayloadBase, offset uint32, want []byte) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(want))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: want}}
}

func (t *pinTable) set(ip netip.Addr) *nftables.Set {
	if ip.Is4() {
		return t.v4
	}
	return t.v6
}

func (p *pin) element(ip netip.Addr) []nftables.SetElement {
	return []nftables.SetElement{{Key: slices.Concat(binaryutil.NativeEndian.PutUint32(uint32(p.port)), word(p.mac...),
		ip.AsSlice())}}
}

func (t *pinTable) add(conn *nftables.Conn, pins []pin) error {
	all := map[*nftables.Set][]nftables.SetElement{}
	for _, p := range pins {
		for _, ip := range p.ips {
			all[t.set(ip)] = append(all[t.set(ip)], p.element(ip)...)
		}
	}
	return addElements(conn, all)
}

// portSettings are the bridge settings of a pod's port, as one message.
func portSettings(port int) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(port)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	off, on := []byte{0}, []byte{1}
	// With br_netfilter, packets of a pod to its own host port return on its port.
	info.AddRtAttr(nl.IFLA_BRPORT_MODE, on)
	// Only carob adds addresses to the bridge, and the bridge does not flood unknown ones.
	info.AddRtAttr(nl.IFLA_BRPORT_LEARNING, off)
	info.AddRtAttr(nl.IFLA_BRPORT_UNICAST_FLOOD, off)
	info.AddRtAttr(nl.IFLA_BRPORT_PROXYARP, off)
	// Frames for the bridge itself (01:80:c2:00:00:0x) are forwarded like others, and dropped.
	// Otherwise the host would receive them on the port's device, whatever their content.
	info.AddRtAttr(nl.IFLA_BRPORT_GROUP_FWD_MASK, nl.Uint16Attr(0xfffd)) // pause frames are dropped anyway
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// settlePort configures a port as a port of this network. It may be repeated.
func (n *Network) settlePort(port int, mac net.HardwareAddr) error {
	if err := portSettings(port); err != nil {
		return fmt.Errorf("set up a port of bridge %s: %w", n.cfg.Bridge, err)
	}
	// The pod's previous namespace may exist for some more milliseconds and answer for the same addresses; the bridge
	// must not learn its port.
	err := netlink.NeighSet(&netlink.Neigh{LinkIndex: port, Family: unix.AF_BRIDGE, State: unix.NUD_NOARP,
		Flags: unix.NTF_MASTER | sticky, HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("add a forwarding entry for the pod: %w", err)
	}
	return nil
}

// setNeighbours adds permanent neighbour entries for a pod's addresses to the host, so that the host sends no ARP or
// ND requests.
func (n *Network) setNeighbours(ips []netip.Addr, mac net.HardwareAddr) error {
	for _, ip := range ips {
		err := netlink.NeighSet(&netlink.Neigh{LinkIndex: n.bridge.Load().index, State: netlink.NUD_PERMANENT,
			IP: ip.AsSlice(), HardwareAddr: mac})
		if err != nil {
			return fmt.Errorf("add a neighbour entry for %s: %w", ip, err)
		}
	}
	return nil
}

// takeOver configures the ports of pods that a former process attached, possibly of an older
// version.
func (n *Network) takeOver() error {
	group := int(groupOf(n.cfg.Table))
	var errs []error
	for _, at := range n.attached {
		err := netlink.LinkSetGroup(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: at.Port}}, group)
		if err == nil {
			err = errors.Join(n.settlePort(at.Port, at.mac()), n.setNeighbours(at.IPs, at.mac()))
		}
		if err != nil && !errors.Is(err, unix.ENODEV) { // the device was deleted from outside: the pod has no network
			errs = append(errs, fmt.Errorf("take over the network of pod %s: %w", at.Pod, err))
		}
	}
	return errors.Join(errs...)
}

// bridgeMAC is the hardware address of the bridge, whether carob created it or not.
func (n *Network) bridgeMAC() net.HardwareAddr { return n.bridge.Load().mac }
