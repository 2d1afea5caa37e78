package announce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Neighbour discovery (RFC 4861).
const (
	ndpSolicitation  = 135
	ndpAdvertisement = 136
	ndpSize          = 24   // without options
	ndpSolicited     = 0x40 // an answer
	ndpOverride      = 0x20
	ndpHops          = 255 // only a neighbour can send it
)

var allNodes = netip.MustParseAddr("ff02::1")

// solicitedTarget is the target address of a neighbour solicitation.
func solicitedTarget(b []byte) (netip.Addr, bool) {
	if len(b) < ndpSize || b[0] != ndpSolicitation || b[1] != 0 {
		return netip.Addr{}, false
	}
	a := netip.AddrFrom16([16]byte(b[8:24]))
	return a, !a.IsMulticast() && !a.Is4In6()
}

// advertisement announces that an address is at hw. The kernel fills in the checksum.
func advertisement(a netip.Addr, hw net.HardwareAddr, flags byte) []byte {
	out := append([]byte{ndpAdvertisement, 0, 0, 0, flags, 0, 0, 0}, a.AsSlice()...)
	return append(append(out, 2, 1), hw...) // the option with the link-layer address
}

// group is the multicast address to which solicitations for an address are sent.
func group(a netip.Addr) netip.Addr {
	b, s := netip.MustParseAddr("ff02::1:ff00:0").As16(), a.As16()
	copy(b[13:], s[13:])
	return netip.AddrFrom16(b)
}

// ndp implements neighbour discovery on one link.
type ndp struct {
	conn   *ipv6.PacketConn
	close  func() error
	link   net.Interface
	groups map[netip.Addr]int // addresses may share one
}

func openNDP(i net.Interface) (speaker, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if e := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), i.Name) }); e != nil {
			return e
		}
		return err
	}}
	c, err := config.ListenPacket(context.Background(), "ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("open a socket for NDP: %w", err)
	}
	p := ipv6.NewPacketConn(c)
	var only ipv6.ICMPFilter
	only.SetAll(true)
	only.Accept(ipv6.ICMPTypeNeighborSolicitation)
	for _, set := range []func() error{
		func() error { return p.SetICMPFilter(&only) },
		func() error { return p.SetHopLimit(ndpHops) },
		func() error { return p.SetMulticastHopLimit(ndpHops) },
		func() error { return p.SetMulticastLoopback(false) },
		func() error { return p.SetMulticastInterface(&i) },
		func() error { return p.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagDst, true) },
	} {
		if err := set(); err != nil {
			_ = c.Close()
			return nil, fmt.Errorf("set up a socket for NDP: %w", err)
		}
	}
	return &ndp{conn: p, close: c.Close, link: i, groups: map[netip.Addr]int{}}, nil
}

func (n *ndp) send(b []byte, to netip.Addr) error {
	_, err := n.conn.WriteTo(b, nil, &net.IPAddr{IP: to.AsSlice(), Zone: n.link.Name})
	return err
}

func (n *ndp) announce(a netip.Addr) error {
	if err := n.send(advertisement(a, n.link.HardwareAddr, ndpOverride), allNodes); err != nil {
		return fmt.Errorf("send NDP: %w", err)
	}
	return nil
}

func (n *ndp) join(a netip.Addr) error {
	g := group(a)
	if n.groups[g] == 0 {
		if err := n.conn.JoinGroup(&n.link, &net.IPAddr{IP: g.AsSlice()}); err != nil {
			return fmt.Errorf("join group %s: %w", g, err)
		}
	}
	n.groups[g]++
	return nil
}

func (n *ndp) leave(a netip.Addr) {
	g := group(a)
	if n.groups[g]--; n.groups[g] == 0 {
		delete(n.groups, g)
		_ = n.conn.LeaveGroup(&n.link, &net.IPAddr{IP: g.AsSlice()})
	}
}

func (n *ndp) run(has func(netip.Addr) bool) {
	buf := make([]byte, 1500)
	for {
		size, control, from, err := n.conn.ReadFrom(buf)
		if temporary(err) {
			continue
		}
		if err != nil {
			return
		}
		a, ok := solicitedTarget(buf[:size])
		if !ok || control == nil || control.HopLimit != ndpHops || !has(a) {
			continue
		}
		to, flags := allNodes, byte(ndpOverride)
		if ip, isIP := from.(*net.IPAddr); isIP && !ip.IP.IsUnspecified() { // otherwise a neighbour is about to use it
			if solicitor, ok := netip.AddrFromSlice(ip.IP); ok {
				to, flags = solicitor, ndpSolicited|ndpOverride
			}
		}
		_ = n.send(advertisement(a, n.link.HardwareAddr, flags), to) // the client repeats its request
	}
}

func (n *ndp) Close() error { return n.close() }
