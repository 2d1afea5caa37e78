package bridge

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/base/errkind"
	"carob/internal/network"
)

// checkListeners rejects a host port on which a process of the host listens, because its packets,
// even those for the API server, would go to the pod.
func checkListeners(ctx context.Context, pod network.Pod) error {
	list := listening{ports: map[uint8]int{}, all: map[uint8]map[uint16][]listener{}}
	for _, p := range pod.Ports {
		if p.HostPort != 0 {
			list.ports[protocols[strings.ToLower(p.Protocol)]]++
		}
	}
	for _, p := range pod.Ports {
		if p.HostPort == 0 {
			continue
		}
		taken, err := list.on(protocols[strings.ToLower(p.Protocol)], p.HostPort)
		if err != nil {
			// The kernel has no inet_diag; the rules still protect carob's own ports.
			klog.FromContext(ctx).V(2).Info("Cannot check whether a process listens on a host port", "port", p.HostPort,
				"err", err)
			continue
		}
		for _, at := range taken {
			if !at.takes(p.HostIP) {
				continue
			}
			hint := ""
			if at.addr.IsLoopback() && !p.HostIP.IsValid() {
				hint = "; set hostIP to use another address"
			}
			return errkind.Errorf(errkind.InUse, "host port %d/%s is taken: a process of the host listens on %s%s",
				p.HostPort, strings.ToLower(p.Protocol), netip.AddrPortFrom(at.addr, p.HostPort), hint)
		}
	}
	return nil
}

// listening finds the listeners of a pod's host ports. The kernel walks all of its sockets for each list, so those of a
// protocol are listed once, and all if the pod wants more than one port.
type listening struct {
	ports map[uint8]int // how many of each protocol are wanted
	all   map[uint8]map[uint16][]listener
}

func (l listening) on(proto uint8, port uint16) ([]listener, error) {
	if l.all[proto] == nil {
		only := port
		if l.ports[proto] > 1 {
			only = 0
		}
		list, err := listeners(proto, only)
		if err != nil {
			return nil, err
		}
		l.all[proto] = list
	}
	return l.all[proto][port], nil
}

// listener is the address on which a process listens.
type listener struct {
	addr netip.Addr
	only bool // an IPv6 socket that takes no packets of IPv4, even if its address is unspecified
}

// takes reports whether a listener receives packets for an address of a host port.
func (l listener) takes(hostIP netip.Addr) bool {
	if !hostIP.IsValid() || l.addr == hostIP {
		return true
	}
	sameFamily := l.addr.Is4() == hostIP.Is4()
	if l.addr.IsUnspecified() {
		return sameFamily || l.addr.Is6() && !l.only
	}
	return sameFamily && hostIP.IsUnspecified() // which means all addresses of its family
}

const (
	sockDiagByFamily = 20 // SOCK_DIAG_BY_FAMILY of linux/sock_diag.h
	tcpListen        = 10 // TCP_LISTEN of net/tcp_states.h
	udpUnconnected   = 7  // TCP_CLOSE: an unconnected UDP socket, which receives packets from any sender
	diagRequestLen   = 56 // struct inet_diag_req_v2 of linux/inet_diag.h
	diagMessageLen   = 72 // struct inet_diag_msg
	diagOnlyIPv6     = 11 // INET_DIAG_SKV6ONLY
)

// diagRequest is struct inet_diag_req_v2.
type diagRequest [diagRequestLen]byte

func (d *diagRequest) Len() int          { return len(d) }
func (d *diagRequest) Serialize() []byte { return d[:] }

// listeners returns the addresses on which processes of this network namespace listen, by port. only is the port that
// is listed; 0: all.
func listeners(proto uint8, only uint16) (map[uint16][]listener, error) {
	state := uint32(1) << tcpListen
	if proto == unix.IPPROTO_UDP {
		state = 1 << udpUnconnected
	}
	list := map[uint16][]listener{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var request diagRequest
		request[0], request[1] = family, proto
		binary.NativeEndian.PutUint32(request[4:], state)
		binary.BigEndian.PutUint16(request[8:], only)
		req := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		req.AddData(&request)
		sockets, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		for _, s := range sockets {
			if l, at := parseListener(s); l.addr.IsValid() && (only == 0 || at == only) {
				list[at] = append(list[at], l)
			}
		}
	}
	return list, nil
}

// parseListener parses the source of struct inet_diag_msg (family, three bytes, port, the peer's port, address), and
// the attribute that follows it if the socket is one of IPv6 only.
func parseListener(msg []byte) (listener, uint16) {
	if len(msg) < diagMessageLen {
		return listener{}, 0
	}
	port := binary.BigEndian.Uint16(msg[4:])
	switch msg[0] {
	case unix.AF_INET:
		return listener{addr: netip.AddrFrom4([4]byte(msg[8:12]))}, port
	case unix.AF_INET6:
		attrs, err := nl.ParseRouteAttr(msg[diagMessageLen:])
		only := err == nil && slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
			return a.Attr.Type == diagOnlyIPv6 && len(a.Value) > 0 && a.Value[0] != 0
		})
		return listener{addr: netip.AddrFrom16([16]byte(msg[8:24])).Unmap(), only: only}, port
	}
	return listener{}, 0
}
