package bridge

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/network"
)

// wire is a socket that reads and writes complete frames of one device.
type wire struct {
	fd    int
	index int
}

func openWire(t *testing.T, ns, device string) *wire {
	t.Helper()
	w := &wire{}
	open := func() (err error) {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		w.index = link.Index
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		// Without a protocol it receives nothing before it is bound; otherwise, what all devices receive.
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
			unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	}
	err := open
	if ns != "" {
		err = func() error { return netns.Do(ns, open) }
	}
	if err := err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

func (w *wire) send(t *testing.T, frame []byte) {
	t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
		t.Fatalf("send %x: %v", frame, err)
	}
}

// until reads frames until one contains the text.
func (w *wire) until(t *testing.T, marker string) [][]byte {
	t.Helper()
	var got [][]byte
	for {
		buf := make([]byte, 4096)
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			t.Fatalf("the marker %q was not received: %v", marker, err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if bytes.Contains(buf[:n], []byte(marker)) {
			return got
		}
		got = append(got, buf[:n])
	}
}

func ether(dst, src net.HardwareAddr, kind uint16, payload []byte) []byte {
	return slices.Concat(dst, src, []byte{byte(kind >> 8), byte(kind)}, payload, make([]byte, max(0, 46-len(payload))))
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func udp4(src, dst netip.Addr, from, to uint16, text string) []byte {
	b := make([]byte, 28, 28+len(text))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(text)))
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	binary.BigEndian.PutUint16(b[20:], from)
	binary.BigEndian.PutUint16(b[22:], to)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(text)))
	return append(b, text...)
}

func icmp6(src, dst netip.Addr, body []byte) []byte {
	b := make([]byte, 40, 40+len(body))
	b[0], b[6], b[7] = 0x60, unix.IPPROTO_ICMPV6, 255
	binary.BigEndian.PutUint16(b[4:], uint16(len(body)))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	pseudo := slices.Concat(b[8:40], []byte{0, 0, 0, byte(len(body)), 0, 0, 0, unix.IPPROTO_ICMPV6}, body)
	binary.BigEndian.PutUint16(body[2:], checksum(pseudo))
	return append(b, body...)
}

func udp6(src, dst netip.Addr, to uint16, text string) []byte {
	b := make([]byte, 48, 48+len(text))
	b[0], b[6], b[7] = 0x60, unix.IPPROTO_UDP, 64
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(text)))
	copy(b[8:], src.AsSlice())
	copy(b[24:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[40:], 4000)
	binary.BigEndian.PutUint16(b[42:], to)
	binary.BigEndian.PutUint16(b[44:], uint16(8+len(text)))
	if len(text)%2 == 1 {
		text += "."
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(text)))
		binary.BigEndian.PutUint16(b[44:], uint16(8+len(text)))
	}
	b = append(b, text...)
	pseudo := slices.Concat(b[8:40], []byte{0, 0, 0, byte(8 + len(text)), 0, 0, 0, unix.IPPROTO_UDP}, b[40:])
	binary.BigEndian.PutUint16(b[46:], checksum(pseudo))
	return b
}

func arp(op byte, sha net.HardwareAddr, spa netip.Addr, tha net.HardwareAddr, tpa netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, sha, spa.AsSlice(), tha, tpa.AsSlice())
}

// routerAdvertisement makes its sender a router and announces an address prefix.
func routerAdvertisement(mac net.HardwareAddr) []byte {
	ra := make([]byte, 16)
	ra[0], ra[4] = icmp6RouterAdvertisement, 64
	binary.BigEndian.PutUint16(ra[6:], 1800)
	prefix := make([]byte, 32)
	prefix[0], prefix[1], prefix[2], prefix[3] = 3, 4, 64, 0xc0
	binary.BigEndian.PutUint32(prefix[4:], 86400)
	binary.BigEndian.PutUint32(prefix[8:], 14400)
	copy(prefix[16:], netip.MustParseAddr("2001:db8:bad::").AsSlice())
	return slices.Concat(ra, []byte{1, 1}, mac, prefix)
}

func neighbor(kind byte, target netip.Addr, mac net.HardwareAddr) []byte {
	body := make([]byte, 8)
	body[0] = kind
	option := byte(1)
	if kind == icmp6NeighborAdvertisement {
		body[4], option = 0x60, 2 // solicited, override
	}
	return slices.Concat(body, target.AsSlice(), []byte{option, 1}, mac)
}

// spoofers is an attacker, its neighbour, and the host, with their listeners.
type spoofers struct {
	n                *Network
	evil, victim     network.Attachment
	evilMAC, victMAC net.HardwareAddr
	gw               netip.Addr
	bridgeMAC        net.HardwareAddr
	evilPort         int
	victimPort       int

	wire, victimWire, bridgeWire *wire
	host                         *net.UDPConn
}

func newSpoofers(t *testing.T, change func(*Config)) *spoofers {
	t.Helper()
	cfg := testConfig(t)
	change(&cfg)
	s := &spoofers{n: open(t, cfg)}
	for _, p := range []struct {
		name string
		at   *network.Attachment
		mac  *net.HardwareAddr
	}{{"evil", &s.evil, &s.evilMAC}, {"victim", &s.victim, &s.victMAC}} {
		at, err := s.n.Attach(t.Context(),
			network.Pod{UID: p.name, Namespace: "default", Name: p.name, SandboxID: p.name})
		if err != nil {
			t.Fatal(err)
		}
		*p.at, *p.mac = at, s.n.attached[p.name].mac()
	}
	s.evilPort, s.victimPort = s.n.attached["evil"].Port, s.n.attached["victim"].Port
	s.gw, s.bridgeMAC = s.n.v4.gateway(), s.n.bridgeMAC()
	s.wire, s.victimWire, s.bridgeWire = openWire(t, s.evil.NetNS, "eth0"), openWire(t, s.victim.NetNS, "eth0"),
		openWire(t, "", cfg.Bridge)
	var err error
	if s.host, err = net.ListenUDP("udp", &net.UDPAddr{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.host.Close() })
	return s
}

// hostsOwn reports whether the host sent a frame to an IPv6 group by itself: it reports its groups and asks for its own
// address at random times. No attack has the bridge's MAC address as its source and a group as its destination.
func (s *spoofers) hostsOwn(frame []byte) bool {
	return bytes.HasPrefix(frame, []byte{0x33, 0x33}) && bytes.Equal(frame[6:12], s.bridgeMAC)
}

func (s *spoofers) hostPort() uint16 { return uint16(s.host.LocalAddr().(*net.UDPAddr).Port) }

// attacks are frames that a pod with CAP_NET_RAW and CAP_NET_ADMIN can write.
func (s *spoofers) attacks() map[string][]byte {
	evil, victim, port := s.evil.IPs[0], s.victim.IPs[0], s.hostPort()
	any4, all := netip.MustParseAddr("255.255.255.255"), net.HardwareAddr(broadcastMAC)
	mac := func(text string) net.HardwareAddr { m, _ := net.ParseMAC(text); return m }
	strange := mac("02:00:00:00:be:ef")
	good := udp4(evil, s.gw, 4000, port, "attack")
	from := func(src string) []byte { return udp4(netip.MustParseAddr(src), s.gw, 4000, port, "attack") }
	list := map[string][]byte{
		"neighbour's address": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
			udp4(victim, s.gw, 4000, port, "attack")),
		"host's address": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
			udp4(s.gw, s.gw, 4000, port, "attack")),
		"loopback address":     ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP, from("127.0.0.1")),
		"address of the world": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP, from("8.8.8.8")),
		"no address":           ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP, from("0.0.0.0")),
		"neighbour's address to it": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
			udp4(s.gw, victim, 53, 53, "attack")),
		"neighbour's MAC": ether(s.bridgeMAC, s.victMAC, unix.ETH_P_IP, good),
		"bridge's MAC":    ether(s.bridgeMAC, s.bridgeMAC, unix.ETH_P_IP, good),
		"any MAC":         ether(s.bridgeMAC, strange, unix.ETH_P_IP, good),
		"past the host": ether(s.victMAC, s.evilMAC, unix.ETH_P_IP,
			udp4(evil, victim, 4000, 4000, "attack")),
		"broadcast":               ether(all, s.evilMAC, unix.ETH_P_IP, udp4(evil, any4, 4000, port, "attack")),
		"DHCP server":             ether(all, s.evilMAC, unix.ETH_P_IP, udp4(evil, any4, 67, 68, "attack")),
		"DHCP server as the host": ether(all, s.evilMAC, unix.ETH_P_IP, udp4(s.gw, any4, 67, 68, "attack")),
		"multicast": ether(mac("01:00:5e:00:00:fb"), s.evilMAC, unix.ETH_P_IP,
			udp4(evil, netip.MustParseAddr("224.0.0.251"), 5353, 5353, "attack")),
		"ARP: who am I": ether(all, s.evilMAC, unix.ETH_P_ARP,
			arp(1, s.evilMAC, victim, make([]byte, 6), s.gw)),
		"ARP: I am your neighbour": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_ARP,
			arp(2, s.evilMAC, victim, s.bridgeMAC, s.gw)),
		"ARP: I am the host": ether(all, s.evilMAC, unix.ETH_P_ARP,
			arp(2, s.evilMAC, s.gw, s.victMAC, victim)),
		"ARP: to the neighbour": ether(s.victMAC, s.evilMAC, unix.ETH_P_ARP,
			arp(2, s.evilMAC, s.gw, s.victMAC, victim)),
		"ARP: another MAC inside": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_ARP,
			arp(2, s.victMAC, evil, s.bridgeMAC, s.gw)),
		"ARP: another MAC outside": ether(s.bridgeMAC, s.victMAC, unix.ETH_P_ARP,
			arp(2, s.evilMAC, evil, s.bridgeMAC, s.gw)),
		"ARP: gratuitous of neighbour": ether(all, s.evilMAC, unix.ETH_P_ARP,
			arp(1, s.evilMAC, victim, make([]byte, 6), victim)),
		"ARP: other lengths": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_ARP,
			append([]byte{0, 1, 8, 0, 6, 16, 0, 2}, arp(2, s.evilMAC, evil, s.bridgeMAC, victim)[8:]...)),
		"ARP: other operation": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_ARP,
			arp(8, s.evilMAC, evil, s.bridgeMAC, victim)),
		"RARP": ether(all, s.evilMAC, 0x8035, arp(3, s.evilMAC, evil, s.evilMAC, evil)),
		"VLAN 5": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_8021Q,
			slices.Concat([]byte{0, 5, 8, 0}, good)),
		"VLAN 0": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_8021Q,
			slices.Concat([]byte{0, 0, 8, 0}, good)),
		"VLAN of a provider": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_8021AD,
			slices.Concat([]byte{0, 5, 8, 0}, good)),
		"VLAN twice": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_8021AD,
			slices.Concat([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, good)),
		"VLAN to the neighbour": ether(s.victMAC, s.evilMAC, unix.ETH_P_8021Q,
			slices.Concat([]byte{0, 0, 8, 0}, udp4(evil, victim, 1, 1, "attack"))),
		"BPDU": ether(mac("01:80:c2:00:00:00"), s.evilMAC, 38,
			append([]byte{0x42, 0x42, 3}, make([]byte, 35)...)),
		"LLDP": ether(mac("01:80:c2:00:00:0e"), s.evilMAC, 0x88cc,
			[]byte{2, 7, 4, 1, 2, 3, 4, 5, 6, 0, 0}),
		"to the host as LLDP": ether(mac("01:80:c2:00:00:0e"), s.evilMAC, unix.ETH_P_IP,
			udp4(evil, s.gw, 4000, port, "attack")),
		"to the host as 802.1X": ether(mac("01:80:c2:00:00:03"), s.evilMAC, unix.ETH_P_IP,
			udp4(victim, s.gw, 4000, port, "attack")),
		"to the host as a BPDU": ether(mac("01:80:c2:00:00:00"), s.evilMAC, unix.ETH_P_IP,
			udp4(evil, s.gw, 4000, port, "attack")),
		"a protocol of its own":  ether(s.bridgeMAC, s.evilMAC, 0x88b5, []byte("attack")),
		"IPv4 that is too short": slices.Concat(s.bridgeMAC, s.evilMAC, []byte{8, 0}, good[:11]),
		"IPv6 called IPv4": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
			icmp6(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1"), routerAdvertisement(s.evilMAC))),
		"IPv4 called IPv6": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IPV6, good),
		"IPv6: router for all": ether(mac("33:33:00:00:00:01"), s.evilMAC, unix.ETH_P_IPV6,
			icmp6(netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1"), routerAdvertisement(s.evilMAC))),
		"IPv6: router for the host": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IPV6,
			icmp6(netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1"), routerAdvertisement(s.evilMAC))),
		"IPv6: router as LLDP": ether(mac("01:80:c2:00:00:0e"), s.evilMAC, unix.ETH_P_IPV6,
			icmp6(netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1"), routerAdvertisement(s.evilMAC))),
		"IPv6: the world's address": ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IPV6,
			udp6(netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), port, "attack")),
		"IPv6: link-local to neighbour": ether(s.victMAC, s.evilMAC, unix.ETH_P_IPV6,
			udp6(netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1"), port, "attack")),
		"IPv6: mDNS": ether(mac("33:33:00:00:00:fb"), s.evilMAC, unix.ETH_P_IPV6,
			udp6(netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::fb"), 5353, "attack")),
	}
	if s.n.v6 == nil {
		return list
	}
	e6, v6, gw6 := s.evil.IPs[1], s.victim.IPs[1], s.n.v6.gateway()
	ll := netip.MustParseAddr("fe80::bad")
	extended := func(body []byte) []byte { // behind a hop-by-hop header
		p := icmp6(ll, netip.MustParseAddr("ff02::1"), body)
		p[6] = 0
		binary.BigEndian.PutUint16(p[4:], uint16(len(body)+8))
		return slices.Concat(p[:40], []byte{unix.IPPROTO_ICMPV6, 0, 1, 4, 0, 0, 0, 0}, p[40:])
	}
	for name, payload := range map[string][]byte{
		"router from its address": icmp6(e6, gw6, routerAdvertisement(s.evilMAC)),
		"router behind a header":  extended(routerAdvertisement(s.evilMAC)),
		"redirect": icmp6(e6, gw6,
			slices.Concat([]byte{icmp6Redirect, 0, 0, 0, 0, 0, 0, 0}, e6.AsSlice(), v6.AsSlice())),
		"I am your neighbour": icmp6(e6, gw6, neighbor(icmp6NeighborAdvertisement, v6, s.evilMAC)),
		"neighbour asks":      icmp6(v6, gw6, neighbor(icmp6NeighborSolicitation, gw6, s.evilMAC)),
		"I am the host":       icmp6(gw6, v6, neighbor(icmp6NeighborAdvertisement, gw6, s.evilMAC)),
		"neighbour's address": udp6(v6, gw6, port, "attack"),
		"loopback address":    udp6(netip.IPv6Loopback(), gw6, port, "attack"),
	} {
		list["IPv6: "+name] = ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IPV6, payload)
		list["IPv6 to the neighbour: "+name] = ether(s.victMAC, s.evilMAC, unix.ETH_P_IPV6, payload)
		list["IPv6 to all: "+name] = ether(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, s.evilMAC, unix.ETH_P_IPV6,
			payload)
	}
	return list
}

// hostState is the state of the host that an attack could change.
func (s *spoofers) hostState(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	index := s.n.bridge.Load().index
	for _, ip := range slices.Concat(s.evil.IPs, s.victim.IPs) {
		all, err := netlink.NeighList(index, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			if x.IP.Equal(ip.AsSlice()) {
				fmt.Fprintln(&out, "neighbour", ip, x.HardwareAddr, x.State)
			}
		}
	}
	fdb, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range fdb {
		// The pool makes other ports meanwhile. The bridge learns an address only on the port of its sender.
		if x.MasterIndex == index && slices.Contains([]int{index, s.evilPort, s.victimPort}, x.LinkIndex) {
			fmt.Fprintln(&out, "forwarding", x.LinkIndex, x.HardwareAddr, x.State, x.Flags)
		}
	}
	for _, link := range []int{index, s.evilPort} {
		l, err := netlink.LinkByIndex(link)
		if err != nil {
			t.Fatal(err)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if !a.IP.IsLinkLocalUnicast() { // that of the port comes after a while
				fmt.Fprintln(&out, "address", l.Attrs().Name, a.IPNet)
			}
		}
	}
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V6) })
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Gw != nil && (r.LinkIndex == index || r.LinkIndex == s.evilPort) {
			fmt.Fprintln(&out, "route", r)
		}
	}
	return out.String()
}

// Whatever a pod sends, nothing of it reaches a neighbour, a process of the host, or changes the
// host's state (CVE-2020-13401, ARP and ND spoofing).
func TestSpoofing(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"IPv4": func(*Config) {},
		"IPv6": func(c *Config) {
			c.Pods6 = netip.MustParsePrefix(fmt.Sprintf("fd00:212:%x::/64", os.Getpid()%65536))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpoofers(t, change)
			before := s.hostState(t)
			runtime.LockOSThread() // one CPU's queue keeps the order of packets
			defer runtime.UnlockOSThread()
			var old, one unix.CPUSet
			if err := unix.SchedGetaffinity(0, &old); err != nil {
				t.Fatal(err)
			}
			for cpu := range 1024 {
				if old.IsSet(cpu) {
					one.Set(cpu)
					break
				}
			}
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.SchedSetaffinity(0, &old) }()
			for attack, frame := range s.attacks() {
				s.wire.send(t, frame)
				// Regular traffic gets through, also after the attack.
				marker := "after " + hex.EncodeToString([]byte(attack))
				s.wire.send(t, ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
					udp4(s.evil.IPs[0], s.gw, 4000, s.hostPort(), marker)))
				s.wire.send(t, ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
					udp4(s.evil.IPs[0], s.victim.IPs[0], 4000, 4000, marker)))
				for _, f := range s.bridgeWire.until(t, marker) {
					if !bytes.Contains(f, []byte("after ")) { // the last marker to the neighbour
						t.Errorf("%s: the host received %x", attack, f)
					}
				}
				for _, f := range s.victimWire.until(t, marker) {
					if !s.hostsOwn(f) {
						t.Errorf("%s: the neighbour received %x", attack, f)
					}
				}
				buf := make([]byte, 4096)
				for got := ""; got != marker; got = string(buf[:len(got)]) {
					if err := s.host.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
						t.Fatal(err)
					}
					n, from, err := s.host.ReadFromUDPAddrPort(buf)
					if err != nil {
						t.Fatal(err)
					}
					if got = string(buf[:n]); got == marker {
						break
					}
					t.Errorf("%s: a process of the host received %q from %s", attack, got, from)
				}
			}
			if after := s.hostState(t); after != before {
				t.Errorf("the host's state was\n%sand is\n%s", before, after)
			}
			if !strings.Contains(before, "neighbour "+s.victim.IPs[0].String()) {
				t.Errorf("the host has no neighbour entry for the neighbour:\n%s", before)
			}
		})
	}
}

// A place without a pod and a detached pod pass nothing at all.
func TestUnattachedPortPassesNothing(t *testing.T) {
	s := newSpoofers(t, func(*Config) {})
	frame := ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP, udp4(s.evil.IPs[0], s.victim.IPs[0], 4000, 4000, "attack"))
	at := s.n.attached["evil"]
	if err := s.n.rules.unpublish(nil, at.pin()); err != nil { // the first step of detach
		t.Fatal(err)
	}
	s.wire.send(t, frame)
	if err := s.n.rules.publish(nil, at.pin()); err != nil {
		t.Fatal(err)
	}
	s.wire.send(t, ether(s.bridgeMAC, s.evilMAC, unix.ETH_P_IP,
		udp4(s.evil.IPs[0], s.victim.IPs[0], 4000, 4000, "marker")))
	for _, f := range s.victimWire.until(t, "marker") {
		t.Errorf("the neighbour received %x", f)
	}
}

// After `nft flush ruleset`, with which most firewalls are loaded, pods are still restricted. The
// test runs in its own network namespace, because the command removes everybody's rules.
func TestFlushedRulesAreRestored(t *testing.T) {
	inOwnNamespace(t, func(t *testing.T) {
		n := open(t, testConfig(t))
		if _, err := n.Attach(t.Context(), network.Pod{UID: "u", Namespace: "default", Name: "web", SandboxID: "s",
			Ports: []network.PortMapping{{Protocol: "tcp", ContainerPort: 80, HostPort: 8080}}}); err != nil {
			t.Fatal(err)
		}
		watch, err := subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Close()
		elements := func() (list []string) {
			conn, err := nftables.New()
			if err != nil {
				t.Fatal(err)
			}
			for _, set := range []*nftables.Set{n.rules.pinTable().v4, n.rules.families()[0].anyPort} {
				all, err := conn.GetSetElements(set)
				if err != nil && !errors.Is(err, unix.ENOENT) {
					t.Fatal(err)
				}
				for _, e := range all {
					list = append(list, fmt.Sprintf("%s %x %x", set.Name, e.Key, e.Val))
				}
			}
			return list
		}
		before := elements()
		changed := make(chan struct{}, 100)
		n.OnRulesChanged(func() { changed <- struct{}{} })
		conn, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		conn.FlushRuleset()
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1<<16)
		if err := watch.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for ok := false; !ok; {
			if _, err := watch.Read(buf); err != nil {
				t.Fatalf("the rules are still missing: %v", err)
			}
			if ok, err = n.rules.complete(); err != nil {
				t.Fatal(err)
			}
		}
		if after := elements(); len(before) != 2 || !slices.Equal(before, after) {
			t.Errorf("had %q, has %q", before, after)
		}
		<-changed
	})
}

// The contract holds with and without br_netfilter, which Docker loads.
func TestContractInOwnNamespace(t *testing.T) {
	for _, value := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+value, func(t *testing.T) {
			if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil && value == "1" {
				t.Skip("br_netfilter is not loaded")
			}
			inOwnNamespace(t, func(t *testing.T) {
				if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(value), 0); err != nil &&
					value == "1" {
					t.Fatal(err)
				}
				TestContract(t)
			})
		})
	}
}

// inOwnNamespace runs a test in a separate process with its own network namespace, which has a
// device with an address and a default route.
func inOwnNamespace(t *testing.T, run func(*testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	const mark = "CAROB_TEST_OWN_NAMESPACE"
	if os.Getenv(mark) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
		cmd.Env = append(os.Environ(), mark+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	// /sys and the pinned namespaces belong to the new namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	uplink := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "world0"}
	uplink.Name = "uplink0"
	if err := netlink.LinkAdd(uplink); err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("192.0.2.2/24")
	if err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	world, err := netlink.LinkByName("world0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetUp(world), netlink.AddrAdd(uplink, addr), netlink.LinkSetUp(uplink),
		netlink.LinkSetUp(lo),
		netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.IPv4(192, 0, 2, 1)})); err != nil {
		t.Fatal(err)
	}
	run(t)
}
