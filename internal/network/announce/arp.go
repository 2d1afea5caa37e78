package announce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// arpPacket is an ARP packet for IPv4 on Ethernet (RFC 826).
type arpPacket struct {
	op         uint16
	sender, to [6]byte
	from       netip.Addr // the sender's; unspecified in a probe (RFC 5227)
	target     netip.Addr
}

const (
	arpSize           = 28
	arpRequest uint16 = 1
	arpReply   uint16 = 2
	arpHead           = "\x00\x01\x08\x00\x06\x04" // Ethernet, IPv4, their sizes
	arpMaxRead        = 64
)

var ethernetBroadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func (p arpPacket) encode() []byte {
	out := append(make([]byte, 0, arpSize), arpHead...)
	out = binary.BigEndian.AppendUint16(out, p.op)
	out = append(append(out, p.sender[:]...), p.from.AsSlice()...)
	return append(append(out, p.to[:]...), p.target.AsSlice()...)
}

func decodeARP(b []byte) (p arpPacket, ok bool) {
	if len(b) < arpSize || string(b[:6]) != arpHead {
		return p, false
	}
	p.op = binary.BigEndian.Uint16(b[6:])
	p.sender, p.to = [6]byte(b[8:14]), [6]byte(b[18:24])
	p.from, p.target = netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	return p, true
}

// answer is the reply to a request for an address that is at hw. It is never sent to a multicast or broadcast address.
func (p arpPacket) answer(hw [6]byte) (arpPacket, bool) {
	if p.op != arpRequest || p.sender[0]&1 != 0 || p.sender == hw {
		return arpPacket{}, false
	}
	return arpPacket{op: arpReply, sender: hw, from: p.target, to: p.sender, target: p.from}, true
}

// arp implements ARP on one link.
type arp struct {
	file  *os.File
	index int
	hw    [6]byte
}

func openARP(i net.Interface) (speaker, error) {
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for ARP: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: i.Index}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind a socket for ARP: %w", err)
	}
	return &arp{file: os.NewFile(uintptr(fd), "arp"), index: i.Index, hw: [6]byte(i.HardwareAddr)}, nil
}

func (a *arp) send(p arpPacket, to [6]byte) error {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	at := &unix.SockaddrLinklayer{Ifindex: a.index, Halen: 6,
		Protocol: binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))}
	copy(at.Addr[:], to[:])
	var sent error
	if err := raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), p.encode(), 0, at)
		return sent != unix.EAGAIN
	}); err != nil {
		return err
	}
	return sent
}

// announce sends a gratuitous request and a reply: hosts differ in which of them they accept.
func (a *arp) announce(addr netip.Addr) error {
	for _, op := range []uint16{arpRequest, arpReply} {
		p := arpPacket{op: op, sender: a.hw, from: addr, target: addr}
		if op == arpReply {
			p.to = ethernetBroadcast
		}
		if err := a.send(p, ethernetBroadcast); err != nil {
			return fmt.Errorf("send ARP: %w", err)
		}
	}
	return nil
}

func (a *arp) join(netip.Addr) error { return nil } // requests are broadcasts
func (a *arp) leave(netip.Addr)      {}

func (a *arp) run(has func(netip.Addr) bool) {
	buf := make([]byte, arpMaxRead)
	for {
		n, err := a.file.Read(buf)
		if temporary(err) {
			continue
		}
		if err != nil {
			return
		}
		if p, ok := decodeARP(buf[:n]); ok && has(p.target) {
			if reply, ok := p.answer(a.hw); ok {
				_ = a.send(reply, p.sender) // the client repeats its request
			}
		}
	}
}

func (a *arp) Close() error { return a.file.Close() }

// temporary reports whether a socket can be read again: the link went down, and will come up or
// be replaced by another one, or a packet without content arrived, which looks like an end.
func temporary(err error) bool {
	return err != nil && slices.ContainsFunc([]error{io.EOF, unix.ENETDOWN, unix.ENOBUFS, unix.EINTR},
		func(e error) bool { return errors.Is(err, e) })
}
