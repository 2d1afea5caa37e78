package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// flows deletes all connection tracking entries of addresses whose pods are gone, in any state: packets of a client
// that uses a source port again, or continues to send, would be sent to an unused address, or to the next pod that gets
// it (N10.21). With many entries a pass over them is expensive, so callers that arrive during a pass share the next
// one. The zero value is ready to use.
type flows struct {
	mu   sync.Mutex
	next *sweep // collects addresses until it begins; nil: none waits
	turn sync.Mutex
	sock *nl.SocketHandle // for deletions, held with turn; it stays open as that of transactions; nil: none is open
}

// sweep is one pass over all entries.
type sweep struct {
	gone map[netip.Addr]bool
	done chan struct{}
}

// forget returns when all entries to or from the addresses that existed at the call have been deleted.
func (f *flows) forget(ips []netip.Addr) {
	if len(ips) == 0 {
		return
	}
	f.mu.Lock()
	s, first := f.next, f.next == nil
	if first {
		s = &sweep{gone: map[netip.Addr]bool{}, done: make(chan struct{})}
		f.next = s
	}
	for _, ip := range ips {
		s.gone[ip] = true
	}
	f.mu.Unlock()
	if !first {
		<-s.done // ended by the caller that began the sweep
		return
	}
	defer close(s.done)
	f.turn.Lock()
	defer f.turn.Unlock()
	f.mu.Lock()
	f.next = nil
	f.mu.Unlock()
	if err := s.run(f); err != nil {
		// They time out by themselves.
		klog.Background().V(2).Info("Cannot delete connection tracking entries of pods that are gone", "err", err)
	}
}

func (s *sweep) run(f *flows) error {
	var four, six []netip.Addr
	for ip := range s.gone {
		if ip.Is4() {
			four = append(four, ip)
		} else {
			six = append(six, ip)
		}
	}
	var errs []error
	if len(four) > fewAddresses || f.deleteEach(four) != nil {
		errs = append(errs, s.fromList(unix.AF_INET))
	}
	if len(six) > 0 {
		errs = append(errs, s.fromList(unix.AF_INET6))
	}
	return errors.Join(errs...)
}

// fromList lists the flows of a family and deletes those of the addresses.
func (s *sweep) fromList(family netlink.InetFamily) error {
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, s)
	return err
}

// fewAddresses is the number of addresses up to which each is deleted separately: the kernel needs less than a
// millisecond for each, but 5 to 10 ms to list all entries, even if there are few.
const fewAddresses = 8

// Attributes of a message of connection tracking (linux/netfilter/nfnetlink_conntrack.h and nf_internals.h).
const (
	ctaFilter       = 25
	ctaFilterOrig   = 1 // which parts of the tuple are compared
	ctaFilterReply  = 2
	ctaFilterSource = 1 << 0
	ctaFilterDest   = 1 << 1
)

// deleteEach has the kernel delete the flows of each address of IPv4. Kernels before 6.11 refuse to; with addresses of
// IPv6, 6.18 deletes the flows of all others (ctnetlink_filter_match_tuple).
func (f *flows) deleteEach(addresses []netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	if f.sock == nil {
		s, err := nl.Subscribe(unix.NETLINK_NETFILTER) // to no group
		if err != nil {
			return fmt.Errorf("open connection tracking: %w", err)
		}
		f.sock = &nl.SocketHandle{Socket: s}
		limit := &nl.SocketTimeoutTv
		if err := errors.Join(s.SetSendTimeout(limit), s.SetReceiveTimeout(limit)); err != nil {
			f.closeLocked()
			return fmt.Errorf("open connection tracking: %w", err)
		}
	}
	for _, ip := range addresses {
		for _, end := range []struct{ tuple, flags, which int }{ // as MatchConntrackFlow
			{nl.CTA_TUPLE_ORIG, ctaFilterOrig, ctaFilterSource},
			{nl.CTA_TUPLE_ORIG, ctaFilterOrig, ctaFilterDest},
			{nl.CTA_TUPLE_REPLY, ctaFilterReply, ctaFilterSource},
		} {
			if err := f.deleteFlows(ip, end.tuple, end.flags, end.which); err != nil {
				f.closeLocked() // it may have an answer that was not read
				return err
			}
		}
	}
	return nil
}

// deleteFlows deletes the flows with the address as source or destination of a tuple. The message names a tuple: a
// kernel without support for filters rejects it as an incomplete entry, and never deletes all entries.
func (f *flows) deleteFlows(ip netip.Addr, tuple, flags, which int) error {
	address := nl.CTA_IP_V4_SRC
	if which == ctaFilterDest {
		address = nl.CTA_IP_V4_DST
	}
	of := nl.NewRtAttr(unix.NLA_F_NESTED|tuple, nil)
	of.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(address, ip.AsSlice())
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(flags, nl.Uint32Attr(uint32(which)))
	req := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: f.sock}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(of)
	req.AddData(filter)
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete the flows of %s: %w", ip, err)
	}
	return nil
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter: one side of the connection is gone.
func (s *sweep) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range [][]byte{flow.Forward.SrcIP, flow.Forward.DstIP, flow.Reverse.SrcIP} {
		if a, ok := netip.AddrFromSlice(ip); ok && s.gone[a.Unmap()] {
			return true
		}
	}
	return false
}

func (f *flows) close() {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.closeLocked()
}

func (f *flows) closeLocked() {
	if f.sock != nil {
		f.sock.Close()
		f.sock = nil
	}
}
