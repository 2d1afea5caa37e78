package services

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tracking is connection tracking in one network namespace.
type tracking struct{ ns *os.File }

// open opens the network namespace of the calling thread.
func (t *tracking) open() (err error) {
	if t.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	return nil
}

func (t *tracking) close() { _ = t.ns.Close() }

// dial opens a connection to the kernel for one pass, which takes at most so long.
func (t *tracking) dial(limit time.Duration) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(t.ns.Fd())})
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, errors.Join(fmt.Errorf("open connection tracking: %w", err), conn.Close())
	}
	return conn, nil
}

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h. Those of tuples have the same numbers everywhere.
const (
	ctNew, ctGet, ctDelete = 0, 1, 2 // IPCTNL_MSG_CT_…

	ctaTupleOrig, ctaTupleReply, ctaProtoInfo, ctaID, ctaZone, ctaFilter = 1, 2, 4, 12, 18, 25

	ctaTupleIP, ctaTupleProto               = 1, 2
	ctaIPv4Source, ctaIPv4Destination       = 1, 2
	ctaIPv6Source, ctaIPv6Destination       = 3, 4
	ctaProtoNumber                          = 1
	ctaProtoSource, ctaProtoDestination     = 2, 3
	ctaFilterOrigFlags, ctaFilterReplyFlags = 1, 2
	ctaProtoInfoTCP, ctaTCPState            = 1, 1
	ctaTCPFlagsOriginal, ctaTCPFlagsReply   = 4, 5
	filterSource, filterNumber, filterPorts = 1 << 0, 1 << 3, 1 << 4

	tcpFlagCloseInit = 0x04 // IP_CT_TCP_FLAG_CLOSE_INIT
	nfgenmsgSize     = 4
)

// conntrackMessage is a request about tracked connections of a family.
func conntrackMessage(kind uint16, flags netlink.HeaderFlags, family int,
	fill func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	fill(e)
	data, err := e.Encode()
	if err != nil {
		return netlink.Message{}, fmt.Errorf("encode a request of connection tracking: %w", err)
	}
	header := []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}
	if family == 1 {
		header[0] = unix.AF_INET6
	}
	return netlink.Message{Header: netlink.Header{
		Type:  netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | kind),
		Flags: netlink.Request | flags}, Data: append(header, data...)}, nil
}

// nested encodes attributes within one.
func nested(e *netlink.AttributeEncoder, kind uint16, fill func(*netlink.AttributeEncoder)) {
	e.Nested(kind, func(n *netlink.AttributeEncoder) error { fill(n); return nil })
}

// listTo lists the TCP connections to an endpoint. Of IPv6, it lists those to the endpoint's port: kernels (6.18, too)
// compare IPv6 addresses wrongly here, and omit the ones that match.
func listTo(family int, endpoint netip.AddrPort) (netlink.Message, error) {
	return conntrackMessage(ctGet, netlink.Dump, family, func(e *netlink.AttributeEncoder) {
		flags := uint32(filterNumber | filterPorts)
		nested(e, ctaTupleReply, func(e *netlink.AttributeEncoder) {
			if family == 0 {
				flags |= filterSource
				nested(e, ctaTupleIP, func(e *netlink.AttributeEncoder) {
					e.Bytes(ctaIPv4Source, endpoint.Addr().AsSlice())
				})
			}
			nested(e, ctaTupleProto, func(e *netlink.AttributeEncoder) {
				e.Uint8(ctaProtoNumber, unix.IPPROTO_TCP)
				e.Bytes(ctaProtoSource, binary.BigEndian.AppendUint16(nil, endpoint.Port()))
			})
		})
		nested(e, ctaFilter, func(e *netlink.AttributeEncoder) { e.Uint32(ctaFilterReplyFlags, flags) })
	})
}

// listAll lists the connections of a protocol.
func listAll(family int, protocol uint8) (netlink.Message, error) {
	return conntrackMessage(ctGet, netlink.Dump, family, func(e *netlink.AttributeEncoder) {
		nested(e, ctaTupleOrig, func(e *netlink.AttributeEncoder) {
			nested(e, ctaTupleProto, func(e *netlink.AttributeEncoder) { e.Uint8(ctaProtoNumber, protocol) })
		})
		nested(e, ctaFilter, func(e *netlink.AttributeEncoder) { e.Uint32(ctaFilterOrigFlags, filterNumber) })
	})
}

// tuple is one direction of a connection.
type tuple struct {
	protocol uint8
	from, to netip.AddrPort
}

// flow is a tracked connection.
type flow struct {
	original, id, zone []byte // as the kernel sent them; original is the client's direction
	client, reply      tuple  // the source of replies is the endpoint
	state              uint8  // of TCP
	marked             bool   // by this program, or by the kernel when it ended
}

func parseFlow(message []byte) (flow, error) {
	var f flow
	if len(message) < nfgenmsgSize {
		return f, errors.New("a short message of connection tracking")
	}
	d, err := netlink.NewAttributeDecoder(message[nfgenmsgSize:])
	if err != nil {
		return f, fmt.Errorf("decode a tracked connection: %w", err)
	}
	for d.Next() {
		switch d.Type() {
		case ctaTupleOrig:
			f.original = d.Bytes()
			d.Nested(f.client.parse)
		case ctaID:
			f.id = d.Bytes()
		case ctaZone:
			f.zone = d.Bytes()
		case ctaTupleReply:
			d.Nested(f.reply.parse)
		case ctaProtoInfo:
			d.Nested(f.parseState)
		}
	}
	if err := d.Err(); err != nil {
		return f, fmt.Errorf("decode a tracked connection: %w", err)
	}
	return f, nil
}

// parse reads addresses, protocol, and ports; what a message lacks is zero.
func (t *tuple) parse(d *netlink.AttributeDecoder) error {
	var from, to netip.Addr
	var fromPort, toPort uint16
	for d.Next() {
		switch d.Type() {
		case ctaTupleIP:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch d.Type() {
					case ctaIPv4Source, ctaIPv6Source:
						from, _ = netip.AddrFromSlice(d.Bytes())
					case ctaIPv4Destination, ctaIPv6Destination:
						to, _ = netip.AddrFromSlice(d.Bytes())
					}
				}
				return d.Err()
			})
		case ctaTupleProto:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch b := d.Bytes(); {
					case d.Type() == ctaProtoNumber && len(b) == 1:
						t.protocol = b[0]
					case d.Type() == ctaProtoSource && len(b) == 2:
						fromPort = binary.BigEndian.Uint16(b)
					case d.Type() == ctaProtoDestination && len(b) == 2:
						toPort = binary.BigEndian.Uint16(b)
					}
				}
				return d.Err()
			})
		}
	}
	t.from, t.to = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return d.Err()
}

// parseState reads the state of TCP, and whether one of the directions has the mark.
func (f *flow) parseState(d *netlink.AttributeDecoder) error {
	for d.Next() {
		if d.Type() != ctaProtoInfoTCP {
			continue
		}
		d.Nested(func(d *netlink.AttributeDecoder) error {
			for d.Next() {
				switch b := d.Bytes(); {
				case d.Type() == ctaTCPState && len(b) == 1:
					f.state = b[0]
				case (d.Type() == ctaTCPFlagsOriginal || d.Type() == ctaTCPFlagsReply) && len(b) == 2:
					f.marked = f.marked || b[0]&tcpFlagCloseInit != 0 // the flags, and their mask
				}
			}
			return d.Err()
		})
	}
	return d.Err()
}

// closing is the request that sets the mark. It contains neither the state nor the timeout, which the kernel changes
// meanwhile.
func (f flow) closing(family int) (netlink.Message, error) {
	return conntrackMessage(ctNew, netlink.Acknowledge, family, func(e *netlink.AttributeEncoder) {
		f.name(e)
		nested(e, ctaProtoInfo, func(e *netlink.AttributeEncoder) {
			nested(e, ctaProtoInfoTCP, func(e *netlink.AttributeEncoder) {
				e.Bytes(ctaTCPFlagsOriginal, []byte{tcpFlagCloseInit, tcpFlagCloseInit}) // the flags, and their mask
			})
		})
	})
}

// deletion is the request that deletes this connection, not a later one between the same ports.
func (f flow) deletion(family int) (netlink.Message, error) {
	return conntrackMessage(ctDelete, netlink.Acknowledge, family, func(e *netlink.AttributeEncoder) {
		f.name(e)
		if f.id != nil {
			e.Bytes(ctaID, f.id)
		}
	})
}

// name encodes what identifies the connection.
func (f flow) name(e *netlink.AttributeEncoder) {
	e.Bytes(unix.NLA_F_NESTED|ctaTupleOrig, f.original)
	if f.zone != nil {
		e.Bytes(ctaZone, f.zone)
	}
}
