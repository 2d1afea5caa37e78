package policy

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"carob/internal/core/netplan/policies"
)

// checkPause is the time between two passes over all flows.
const checkPause = time.Second

// dumpTries is how often the flows are listed if the kernel reports that the list was interrupted.
const dumpTries = 5

// checkFlows checks the tracked UDP flows after the rules have changed, and deletes those that are no longer allowed: a
// flow that never pauses would otherwise continue forever (N5.26). Established connections of TCP and SCTP continue
// (N5.22).
func (e *Enforcer) checkFlows(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.flowCheck:
		}
		for range 2 { // again: a packet that passed the old rules may be tracked only after the first pass
			if err := e.forget(func(f *flow) bool {
				return f.Protocol == policies.UDP && !f.ofNode && !e.allowed(f.Packet)
			}); err != nil {
				klog.FromContext(ctx).Error(err, "UDP flows that network policies no longer allow may go on")
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(checkPause):
			}
		}
	}
}

func (e *Enforcer) allowed(p policies.Packet) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.plan.Allowed(p)
}

// forgetFlows deletes all flows of addresses that another pod had.
func (e *Enforcer) forgetFlows(ips []netip.Addr) error {
	has := map[netip.Addr]bool{}
	for _, a := range ips {
		has[a] = true
	}
	return e.forget(func(f *flow) bool { return has[f.Src] || has[f.Dst] || has[f.original] })
}

// flow is a tracked connection.
type flow struct {
	policies.Packet            // as it is forwarded
	original        netip.Addr // the destination before it was translated
	ofNode          bool       // this node has one end of it
}

// forget deletes flows from connection tracking.
func (e *Enforcer) forget(which func(*flow) bool) error {
	return e.inNS(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		own := map[netip.Addr]bool{}
		addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				own[ip.Unmap()] = true
			}
		}
		var errs []error
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			var err error = netlink.ErrDumpInterrupted // then it may have missed flows
			for try := 0; try < dumpTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
				_, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter{which, own})
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

type filter struct {
	which func(*flow) bool
	own   map[netip.Addr]bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f filter) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	src, ok1 := netip.AddrFromSlice(c.Forward.SrcIP)
	original, ok2 := netip.AddrFromSlice(c.Forward.DstIP)
	dst, ok3 := netip.AddrFromSlice(c.Reverse.SrcIP)
	if !ok1 || !ok2 || !ok3 {
		return false
	}
	fl := flow{Packet: policies.Packet{Src: src.Unmap(), Dst: dst.Unmap(), Protocol: c.Forward.Protocol,
		Port: c.Reverse.SrcPort}, original: original.Unmap()}
	fl.ofNode = f.own[fl.Src] || f.own[fl.Dst]
	return f.which(&fl)
}
