package services

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/services"
)

// forgetter has connection tracking forget flows of UDP to endpoints that no longer serve: a client
// that goes on sending would reach the old one as long as it sends (N2.J). It runs after the rules
// are written, so that the next datagram finds them (N10.21), and beside the loop that writes them.
type forgetter struct {
	wake   chan struct{}
	handle *netlink.Handle

	mu   sync.Mutex
	todo [2]*stale // IPv4, IPv6
}

// stale says which flows of one family stay: those to a port of flows with one of its endpoints. A
// flow to a node port is known by the addresses of the node.
type stale struct {
	flows map[core.Port][]netip.AddrPort
	node  []netip.Addr
	found uint
}

func newForgetter() *forgetter { return &forgetter{wake: make(chan struct{}, 1)} }

// forget notes ports that have changed; the newest endpoints of a port count.
func (f *forgetter) forget(v6 bool, node []netip.Addr, flows map[core.Port][]netip.AddrPort) {
	if len(flows) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := 0
	if v6 {
		i = 1
	}
	if f.todo[i] == nil {
		f.todo[i] = &stale{flows: map[core.Port][]netip.AddrPort{}}
	}
	maps.Copy(f.todo[i].flows, flows)
	f.todo[i].node = node
	poke(f.wake)
}

// open connects in the network namespace of the calling thread.
func (f *forgetter) open() (err error) {
	if f.handle, err = netlink.NewHandle(unix.NETLINK_NETFILTER); err != nil {
		return fmt.Errorf("open connection tracking: %w", err)
	}
	return nil
}

func (f *forgetter) run(ctx context.Context) {
	defer f.handle.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		f.mu.Lock()
		todo := f.todo
		f.todo = [2]*stale{}
		f.mu.Unlock()
		for i, s := range todo {
			if s == nil {
				continue
			}
			start, family := time.Now(), netlink.InetFamily([]int{unix.AF_INET, unix.AF_INET6}[i])
			if _, err := f.handle.ConntrackDeleteFilters(netlink.ConntrackTable, family, s); err != nil {
				klog.FromContext(ctx).V(2).Info("Some flows of UDP could not be forgotten; they time out by themselves",
					"err", err)
			}
			m, name := newMetrics(), codec{v6: i == 1}.name()
			m.conntrack.WithLabelValues(name).Observe(time.Since(start).Seconds())
			m.forgotten.WithLabelValues(name).Add(float64(s.found))
		}
	}
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter: it reports whether to delete a flow.
func (s *stale) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	to, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	from, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	to, from = to.Unmap(), from.Unmap()
	at := core.Port{Addr: to, Proto: core.UDP, Port: flow.Forward.DstPort}
	serving, known := s.flows[at]
	if !known && slices.Contains(s.node, to) {
		if at.Addr = netip.IPv4Unspecified(); to.Is6() {
			at.Addr = netip.IPv6Unspecified()
		}
		serving, known = s.flows[at]
	}
	if !known || slices.Contains(serving, netip.AddrPortFrom(from, flow.Reverse.SrcPort)) {
		return false
	}
	s.found++
	return true
}
