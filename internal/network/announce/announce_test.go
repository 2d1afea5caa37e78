package announce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
)

// segment is two machines on one Ethernet: here has 192.0.2.1 and 2001:db8::1, there .2 and ::2.
type segment struct {
	*testing.T
	dir  string
	hw   net.HardwareAddr // of here's link
	link int              // index of there's link
}

func newSegment(t *testing.T) *segment {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	s := &segment{T: t, dir: t.TempDir()}
	for _, name := range []string{"here", "there"} {
		s.must(netns.DoNew(func() error { return netns.Pin(netns.Current, filepath.Join(s.dir, name)) }))
		t.Cleanup(func() { _ = netns.Unpin(filepath.Join(s.dir, name)) })
	}
	there, err := os.Open(filepath.Join(s.dir, "there"))
	s.must(err)
	defer there.Close()
	s.in("here", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "eth0"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(there.Fd())})
	})
	for i, name := range []string{"here", "there"} {
		s.in(name, func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			if name == "here" {
				s.hw = l.Attrs().HardwareAddr
			} else {
				s.link = l.Attrs().Index
			}
			add := func(ip string, bits int) error {
				a := net.ParseIP(ip)
				a[len(a)-1] += byte(i + 1)
				if v4 := a.To4(); v4 != nil {
					return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: v4, Mask: net.CIDRMask(bits, 32)}})
				}
				return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: a, Mask: net.CIDRMask(bits, 128)},
					Flags: unix.IFA_F_NODAD})
			}
			for _, family := range []string{"ipv4", "ipv6"} { // waits for a reply are short
				dir := "/proc/sys/net/" + family + "/neigh/eth0/"
				if err := errors.Join(os.WriteFile(dir+"mcast_solicit", []byte("1"), 0),
					os.WriteFile(dir+"retrans_time_ms", []byte("100"), 0)); err != nil {
					return err
				}
			}
			return errors.Join(netlink.LinkSetUp(l), add("192.0.2.0", 24), add("2001:db8::", 64))
		})
	}
	return s
}

func (s *segment) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *segment) in(name string, f func() error) {
	s.Helper()
	s.must(netns.Do(filepath.Join(s.dir, name), f))
}

// neighbour is the neighbour entry for an address; nil: none.
func (s *segment) neighbour(a netip.Addr) (hw net.HardwareAddr) {
	s.Helper()
	s.in("there", func() error {
		list, err := netlink.NeighList(s.link, netlink.FAMILY_ALL)
		for _, n := range list {
			if n.IP.Equal(a.AsSlice()) && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
				hw = n.HardwareAddr
			}
		}
		return err
	})
	return hw
}

// send makes there look for an address.
func (s *segment) send(a netip.Addr) {
	s.Helper()
	s.in("there", func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("x")) // it may be refused
		return c.Close()
	})
}

// A neighbour that requests an announced address gets the link's address; one with another entry gets the new one
// without a request; requests for other addresses get no reply.
func TestAnnounce(t *testing.T) {
	s := newSegment(t)
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	known := []netip.Addr{netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")}
	requested := []netip.Addr{netip.MustParseAddr("192.0.2.101"), netip.MustParseAddr("2001:db8::101")}
	before := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	s.in("there", func() error {
		for _, a := range known {
			if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: s.link, IP: a.AsSlice(), HardwareAddr: before,
				State: netlink.NUD_STALE}); err != nil {
				return err
			}
		}
		return nil
	})
	var a Announcer
	update := func(list []netip.Addr) {
		t.Helper()
		s.in("here", func() error { return a.Update(list, nil, node) })
	}
	t.Cleanup(a.Close)
	update(append(requested, known...))
	for _, addr := range known {
		testwait.For(t, "there learns where "+addr.String()+" is now", func() bool {
			return bytes.Equal(s.neighbour(addr), s.hw)
		})
	}
	for _, addr := range requested {
		if hw := s.neighbour(addr); hw != nil {
			t.Errorf("%s is known before anybody asked: %s", addr, hw)
		}
		testwait.For(t, "there finds "+addr.String(), func() bool {
			s.send(addr)
			return bytes.Equal(s.neighbour(addr), s.hw)
		})
	}
	// One address is removed: requests for it, and for one that was never announced, get no reply.
	gone, never := requested[0], netip.MustParseAddr("2001:db8::dead")
	update(append(known, requested[1]))
	s.in("there", func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: s.link, IP: gone.AsSlice()})
	})
	failed := func(addr netip.Addr) (is bool) {
		s.in("there", func() error {
			list, err := netlink.NeighList(s.link, netlink.FAMILY_ALL)
			for _, n := range list {
				is = is || n.IP.Equal(addr.AsSlice()) && n.State == netlink.NUD_FAILED
			}
			return err
		})
		return is
	}
	for _, addr := range []netip.Addr{gone, never} {
		s.send(addr)
		testwait.For(t, addr.String()+" is not found", func() bool {
			if hw := s.neighbour(addr); hw != nil {
				t.Fatalf("somebody answers for %s: %s", addr, hw)
			}
			return failed(addr)
		})
	}
	update(nil)
	if len(a.links) > 0 {
		t.Error("sockets are open, and nothing is announced")
	}
}

// Packets that are not questions do not end the answers.
func TestHostilePackets(t *testing.T) {
	s := newSegment(t)
	addr := netip.MustParseAddr("192.0.2.100")
	var a Announcer
	s.in("here", func() error { return a.Update([]netip.Addr{addr}, []string{"eth0"}, nil) })
	t.Cleanup(a.Close)
	s.in("there", func() error {
		proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Ifindex: s.link, Halen: 6, Protocol: proto,
			Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
		for _, packet := range [][]byte{{}, {0}, bytes.Repeat([]byte{0xff}, 200),
			arpPacket{op: 9, from: addr, target: addr}.encode()} {
			if err := unix.Sendto(fd, packet, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	testwait.For(t, "there finds it", func() bool {
		s.send(addr)
		return bytes.Equal(s.neighbour(addr), s.hw)
	})
}

// Links that do not exist are reported; the others are used.
func TestLinks(t *testing.T) {
	s := newSegment(t)
	var a Announcer
	t.Cleanup(a.Close)
	list := []netip.Addr{netip.MustParseAddr("192.0.2.100")}
	s.in("here", func() error {
		if err := a.Update(list, []string{"eth0", "eth9"}, nil); err == nil || len(a.links) != 1 {
			t.Errorf("%v, %d links", err, len(a.links))
		}
		if err := a.Update(list, nil, nil); err == nil || len(a.links) != 0 {
			t.Errorf("no link of the node: %v, %d links", err, len(a.links))
		}
		return a.Update(nil, []string{"eth9"}, nil) // nothing is announced: nothing is wrong
	})
}

func TestAnswerToARP(t *testing.T) {
	me, other := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	request := arpPacket{op: arpRequest, sender: other, from: netip.MustParseAddr("192.0.2.2"),
		target: netip.MustParseAddr("192.0.2.9")}
	back, ok := decodeARP(request.encode())
	if !ok || back != request {
		t.Fatalf("%+v", back)
	}
	if reply, ok := request.answer(me); !ok || reply != (arpPacket{op: arpReply, sender: me, from: request.target,
		to:     other,
		target: request.from}) {
		t.Errorf("%+v", reply)
	}
	for what, change := range map[string]func(*arpPacket){
		"a reply":      func(p *arpPacket) { p.op = arpReply },
		"from a group": func(p *arpPacket) { p.sender = ethernetBroadcast },
		"from itself":  func(p *arpPacket) { p.sender = me },
	} {
		p := request
		change(&p)
		if _, ok := p.answer(me); ok {
			t.Errorf("%s is answered", what)
		}
	}
}

func FuzzPackets(f *testing.F) {
	f.Add(arpPacket{op: 1, from: netip.MustParseAddr("192.0.2.1"), target: netip.MustParseAddr("192.0.2.2")}.encode())
	f.Add(append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8::1").AsSlice()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := decodeARP(b); ok && !bytes.Equal(p.encode(), b[:arpSize]) {
			t.Errorf("%x is read as %+v", b, p)
		}
		if a, ok := solicitedTarget(b); ok && (!a.Is6() || a.IsMulticast()) {
			t.Errorf("%x is about %s", b, a)
		}
	})
}
