package services

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/services"
)

// reopener marks the TCP connections to endpoints that have just left the table. Without the mark, a connection that
// its endpoint ends by a reset (its program ended with unread bytes) stays in connection tracking for ten seconds, and
// a client that takes the same source port again is sent to the old endpoint, which refuses it. With the mark
// (IP_CT_TCP_FLAG_CLOSE_INIT, which the kernel sets itself when a connection ends by FIN) the kernel deletes the ended
// entry when the client opens the connection again, and applies the rules. The mark changes nothing while a connection
// is open. A pod counts as routed until its connections are marked: it ends none of them before (N8.13).
type reopener struct {
	wake   chan struct{}
	marked func() // after each pass
	ns     *os.File

	mu      sync.Mutex
	todo    leavers // of the next pass
	current leavers // of the pass that runs
}

// leavers are endpoints that have left the table, and the pods that left with them.
type leavers struct {
	endpoints map[netip.AddrPort]bool
	pods      map[types.UID]bool
}

func newReopener(marked func()) *reopener {
	return &reopener{wake: make(chan struct{}, 1), marked: marked}
}

// left records what has left the table with changes.
func (r *reopener) left(changes []core.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		gone := goneEndpoints(c)
		if len(gone) == 0 {
			continue
		}
		if r.todo.endpoints == nil {
			r.todo = leavers{map[netip.AddrPort]bool{}, map[types.UID]bool{}}
		}
		maps.Copy(r.todo.endpoints, gone)
		for _, pod := range c.Left {
			r.todo.pods[pod] = true
		}
		poke(r.wake)
	}
}

// goneEndpoints are those that a change only deletes: others have another index in their list.
func goneEndpoints(c core.Change) map[netip.AddrPort]bool {
	gone := map[netip.AddrPort]bool{}
	of := func(e core.Element) bool { return e.Set == core.Endpoints || e.Set == core.Members }
	for _, e := range c.Delete {
		if of(e) {
			gone[e.To] = true
		}
	}
	for _, e := range c.Add {
		if of(e) {
			delete(gone, e.To)
		}
	}
	return gone
}

// pending reports whether the connections of a pod that left are not marked yet.
func (r *reopener) pending(pod types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.todo.pods[pod] || r.current.pods[pod]
}

// open remembers the network namespace of the calling thread.
func (r *reopener) open() (err error) {
	if r.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	return nil
}

// run marks connections until ctx is done. A pass that fails is not repeated: the connections end by timeouts.
func (r *reopener) run(ctx context.Context) {
	defer func() { _ = r.ns.Close() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		r.current, r.todo = r.todo, leavers{}
		r.mu.Unlock()
		if err := r.mark(r.current.endpoints); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot mark some connections to endpoints that have left", "err", err)
		}
		r.mu.Lock()
		r.current = leavers{}
		r.mu.Unlock()
		r.marked()
	}
}

const (
	// passTimeout bounds a pass, whose replies the kernel computes at once.
	passTimeout = 5 * time.Second
	// fewEndpoints are listed one by one, which lets the kernel select the connections; for more of them all
	// connections are listed once.
	fewEndpoints = 8
)

// mark marks the TCP connections to endpoints.
func (r *reopener) mark(endpoints map[netip.AddrPort]bool) error {
	if len(endpoints) == 0 {
		return nil
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(r.ns.Fd())})
	if err != nil {
		return fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(passTimeout)); err != nil {
		return fmt.Errorf("open connection tracking: %w", err)
	}
	var families [2]int // IPv4, IPv6
	for e := range endpoints {
		families[family(e.Addr())]++
	}
	var errs []error
	if len(endpoints) > fewEndpoints {
		for i, n := range families {
			if n > 0 {
				errs = append(errs, markListed(conn, i, netip.AddrPort{}, endpoints))
			}
		}
		return errors.Join(errs...)
	}
	for e := range endpoints {
		errs = append(errs, markListed(conn, family(e.Addr()), e, endpoints))
	}
	return errors.Join(errs...)
}

// family is the index of an address family: 0 for IPv4, 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// markListed marks the connections to endpoints of one family. The kernel lists only those to `only`, if that is valid;
// kernels before 5.8 list all.
func markListed(conn *netlink.Conn, family int, only netip.AddrPort, endpoints map[netip.AddrPort]bool) error {
	request, err := conntrackList(family, only)
	if err != nil {
		return err
	}
	list, err := conn.Execute(request)
	if err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	var errs []error
	for _, m := range list {
		flow, err := parseFlow(m.Data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if flow.marked || !endpoints[flow.endpoint] {
			continue
		}
		request, err := flow.closing(family)
		if err == nil {
			_, err = conn.Execute(request)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it has ended meanwhile
			errs = append(errs, fmt.Errorf("mark a tracked connection: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h. Those of tuples have the same numbers everywhere.
const (
	ctNew, ctGet = 0, 1 // IPCTNL_MSG_CT_…

	ctaTupleOrig, ctaTupleReply, ctaProtoInfo, ctaZone, ctaFilter = 1, 2, 4, 18, 25

	ctaTupleIP, ctaTupleProto               = 1, 2
	ctaIPv4Source, ctaIPv6Source            = 1, 3
	ctaProtoNumber, ctaProtoSource          = 1, 2
	ctaFilterReplyFlags                     = 2
	ctaProtoInfoTCP                         = 1
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

// conntrackList lists the TCP connections to an endpoint, or all connections if it is not valid. Of IPv6, it lists
// those to the endpoint's port: kernels (6.18, too) compare IPv6 addresses wrongly here, and omit the ones that match.
func conntrackList(family int, only netip.AddrPort) (netlink.Message, error) {
	return conntrackMessage(ctGet, netlink.Dump, family, func(e *netlink.AttributeEncoder) {
		if !only.IsValid() {
			return
		}
		flags := uint32(filterNumber | filterPorts)
		nested := func(e *netlink.AttributeEncoder, kind uint16, fill func(*netlink.AttributeEncoder)) {
			e.Nested(kind, func(n *netlink.AttributeEncoder) error { fill(n); return nil })
		}
		nested(e, ctaTupleReply, func(e *netlink.AttributeEncoder) {
			if family == 0 {
				flags |= filterSource
				nested(e, ctaTupleIP, func(e *netlink.AttributeEncoder) {
					e.Bytes(ctaIPv4Source, only.Addr().AsSlice())
				})
			}
			nested(e, ctaTupleProto, func(e *netlink.AttributeEncoder) {
				e.Uint8(ctaProtoNumber, unix.IPPROTO_TCP)
				e.Bytes(ctaProtoSource, binary.BigEndian.AppendUint16(nil, only.Port()))
			})
		})
		nested(e, ctaFilter, func(e *netlink.AttributeEncoder) { e.Uint32(ctaFilterReplyFlags, flags) })
	})
}

// flow is a tracked TCP connection.
type flow struct {
	original []byte // its tuple, as the kernel sent it
	zone     []byte
	endpoint netip.AddrPort // that it leads to; invalid for other protocols
	marked   bool           // by this program, or by the kernel when it ended
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
		case ctaZone:
			f.zone = d.Bytes()
		case ctaTupleReply:
			d.Nested(f.parseReply)
		case ctaProtoInfo:
			d.Nested(f.parseState)
		}
	}
	if err := d.Err(); err != nil {
		return f, fmt.Errorf("decode a tracked connection: %w", err)
	}
	return f, nil
}

// parseReply reads the source of the replies, which is the endpoint.
func (f *flow) parseReply(d *netlink.AttributeDecoder) error {
	var addr netip.Addr
	var port uint16
	tcp := false
	for d.Next() {
		switch d.Type() {
		case ctaTupleIP:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					if d.Type() == ctaIPv4Source || d.Type() == ctaIPv6Source {
						addr, _ = netip.AddrFromSlice(d.Bytes())
					}
				}
				return d.Err()
			})
		case ctaTupleProto:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch b := d.Bytes(); {
					case d.Type() == ctaProtoNumber && len(b) == 1:
						tcp = b[0] == unix.IPPROTO_TCP
					case d.Type() == ctaProtoSource && len(b) == 2:
						port = binary.BigEndian.Uint16(b)
					}
				}
				return d.Err()
			})
		}
	}
	if tcp {
		f.endpoint = netip.AddrPortFrom(addr, port)
	}
	return d.Err()
}

// parseState reads whether one of the directions has the mark.
func (f *flow) parseState(d *netlink.AttributeDecoder) error {
	for d.Next() {
		if d.Type() != ctaProtoInfoTCP {
			continue
		}
		d.Nested(func(d *netlink.AttributeDecoder) error {
			for d.Next() {
				b := d.Bytes() // of the flags: the flags, and their mask
				if (d.Type() == ctaTCPFlagsOriginal || d.Type() == ctaTCPFlagsReply) && len(b) == 2 {
					f.marked = f.marked || b[0]&tcpFlagCloseInit != 0
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
		e.Bytes(unix.NLA_F_NESTED|ctaTupleOrig, f.original)
		if f.zone != nil {
			e.Bytes(ctaZone, f.zone)
		}
		e.Nested(ctaProtoInfo, func(e *netlink.AttributeEncoder) error {
			e.Nested(ctaProtoInfoTCP, func(e *netlink.AttributeEncoder) error {
				e.Bytes(ctaTCPFlagsOriginal, []byte{tcpFlagCloseInit, tcpFlagCloseInit}) // the flags, and their mask
				return nil
			})
			return nil
		})
	})
}
