package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/services"
)

// forgetter deletes connection tracking entries to endpoints that no longer serve, in parallel to the loop that writes
// the rules and after each write, so that the next packet uses the new rules (N10.21).
//
//   - UDP: a client that continues to send would reach the old endpoint as long as it sends (N2.J).
//   - TCP: the kernel keeps the endpoint of an ended connection for up to two minutes. A client that uses the
//     same source port again would be sent to a pod that is gone, where the kernel does not forget the connection
//     by itself (reopener). Established connections stay.
//
// Connections to an endpoint may end as long as its pod exists: so a port is checked again until keepFor has passed.
type forgetter struct {
	tracking

	protocol core.Protocol
	wake     chan struct{}

	mu   sync.Mutex
	todo [2]*stale // IPv4, IPv6
}

const (
	keepFor     = 3 * time.Second
	forgetIn    = 250 * time.Millisecond // between two passes; longer when they are slow
	listTimeout = time.Minute            // of a pass
	slowPass    = 20                     // a pass takes at most one part in so many of the time
)

// stale decides which flows of one family are deleted: those to a port of flows whose endpoint is not
// one of the port's. A flow to a node port is recognized by the addresses of the node.
type stale struct {
	flows map[core.Port]serving
	node  []netip.Addr
}

// serving are the endpoints of a port, which is checked until the given time.
type serving struct {
	endpoints []netip.AddrPort
	until     time.Time
}

// newForgetters returns one for UDP and one for TCP: connections of TCP may be so many that a pass takes seconds, which
// must not delay the other.
func newForgetters() []*forgetter {
	var out []*forgetter
	for _, p := range []core.Protocol{core.UDP, core.TCP} {
		out = append(out, &forgetter{protocol: p, wake: make(chan struct{}, 1)})
	}
	return out
}

// forget records the ports of the protocol that have changed, each with its newest endpoints.
func (f *forgetter) forget(v6 bool, node []netip.Addr, flows map[core.Port][]netip.AddrPort) {
	flows = maps.Clone(flows)
	maps.DeleteFunc(flows, func(p core.Port, _ []netip.AddrPort) bool { return p.Proto != f.protocol })
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
		f.todo[i] = &stale{flows: map[core.Port]serving{}}
	}
	until := time.Now().Add(keepFor)
	for port, endpoints := range flows {
		f.todo[i].flows[port] = serving{endpoints, until}
	}
	f.todo[i].node = node
	poke(f.wake)
}

// take returns a copy of the ports to check now, and whether any of them must be checked again.
func (f *forgetter) take(now time.Time) (todo [2]*stale, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, s := range f.todo {
		if s == nil {
			continue
		}
		todo[i] = &stale{flows: maps.Clone(s.flows), node: s.node}
		maps.DeleteFunc(s.flows, func(_ core.Port, p serving) bool { return !now.Before(p.until) })
		if len(s.flows) == 0 {
			f.todo[i] = nil
		} else {
			again = true
		}
	}
	return todo, again
}

func (f *forgetter) run(ctx context.Context) {
	defer f.close()
	next := time.NewTimer(0)
	defer next.Stop()
	next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-next.C:
		}
		start := time.Now()
		todo, again := f.take(start)
		for i, s := range todo {
			if s != nil {
				f.pass(ctx, i == 1, s)
			}
		}
		rest := max(forgetIn, slowPass*time.Since(start))
		if again {
			next.Reset(rest)
		}
		// Changes that arrive meanwhile wait for the next pass: with many connections a pass is expensive.
		if time.Since(start) > forgetIn/slowPass {
			select {
			case <-ctx.Done():
				return
			case <-time.After(rest):
			}
		}
	}
}

// pass deletes the flows of one family that are stale.
func (f *forgetter) pass(ctx context.Context, v6 bool, s *stale) {
	start, family := time.Now(), 0
	if v6 {
		family = 1
	}
	found, err := f.delete(family, s)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot delete some tracked connections; they time out by themselves", "err", err)
	}
	m, name := newMetrics(), codec{v6: v6}.name()
	m.conntrack.WithLabelValues(name).Observe(time.Since(start).Seconds())
	m.forgotten.WithLabelValues(name).Add(float64(found))
}

// delete lists the connections of the protocol, and returns how many it has deleted.
func (f *forgetter) delete(family int, s *stale) (found int, err error) {
	conn, err := f.dial(listTimeout)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	request, err := listAll(family, uint8(f.protocol))
	if err != nil {
		return 0, err
	}
	list, err := conn.Execute(request)
	if err != nil {
		return 0, fmt.Errorf("list tracked connections: %w", err)
	}
	var errs []error
	for _, m := range list {
		flow, err := parseFlow(m.Data)
		if err == nil && !s.has(flow, f.protocol) {
			continue
		}
		if err == nil {
			if request, err = flow.deletion(family); err == nil {
				_, err = conn.Execute(request)
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it has ended meanwhile
			errs = append(errs, err)
			continue
		}
		found++
	}
	return found, errors.Join(errs...)
}

// has reports whether to delete a flow.
func (s *stale) has(flow flow, protocol core.Protocol) bool {
	if flow.client.protocol != uint8(protocol) || protocol == core.TCP && !hasEnded(flow) {
		return false
	}
	to := flow.client.to
	at := core.Port{Addr: to.Addr(), Proto: protocol, Port: to.Port()}
	port, known := s.flows[at]
	if !known && slices.Contains(s.node, to.Addr()) {
		if at.Addr = netip.IPv4Unspecified(); to.Addr().Is6() {
			at.Addr = netip.IPv6Unspecified()
		}
		port, known = s.flows[at]
	}
	return known && !slices.Contains(port.endpoints, flow.reply.from)
}

// States of a connection, as in the kernel's enum tcp_conntrack.
const (
	tcpLastAck = 6 // then time wait, 7
	tcpClose   = 8
)

// hasEnded reports whether a connection is over for both sides, or a last acknowledgement away from it.
func hasEnded(flow flow) bool { return flow.state >= tcpLastAck && flow.state <= tcpClose }
