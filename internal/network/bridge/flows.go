package bridge

import (
	"errors"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// flows has connection tracking forget everything about addresses whose pods are gone, in whatever state it is: a
// client that takes a source port again, or goes on sending, would be led to an address where nobody is, or to the
// next pod that gets it (N10.21). With many flows one look at them is not cheap, so those who come while one goes on
// share the next one. The zero value is ready.
type flows struct {
	mu   sync.Mutex
	next *sweep // collects addresses until it begins; nil: none waits
	turn sync.Mutex
}

// sweep is one look at all flows.
type sweep struct {
	gone map[netip.Addr]bool
	done chan struct{}
}

// forget returns when no flow to or from the addresses is left of those that were there when it was called.
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
		<-s.done // ended by whoever began the sweep
		return
	}
	defer close(s.done)
	f.turn.Lock()
	defer f.turn.Unlock()
	f.mu.Lock()
	f.next = nil
	f.mu.Unlock()
	if err := s.run(); err != nil {
		// They time out by themselves.
		klog.Background().V(2).Info("Flows of pods that are gone could not be forgotten", "err", err)
	}
}

func (s *sweep) run() error {
	families := map[netlink.InetFamily]bool{}
	for ip := range s.gone {
		if ip.Is4() {
			families[unix.AF_INET] = true
		} else {
			families[unix.AF_INET6] = true
		}
	}
	var errs []error
	for family := range families {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, s); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter: who asked, or who answers, is gone.
func (s *sweep) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range [][]byte{flow.Forward.SrcIP, flow.Forward.DstIP, flow.Reverse.SrcIP} {
		if a, ok := netip.AddrFromSlice(ip); ok && s.gone[a.Unmap()] {
			return true
		}
	}
	return false
}
