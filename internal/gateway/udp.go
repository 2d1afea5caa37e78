package gateway

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"

	"k8s.io/klog/v2"

	"carob/internal/base/filelimit"
	"carob/internal/base/socketstore"
	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/forward"
)

// udpPort is a port of UDP; it is a forward.Route. What it serves is replaced without an effect on sessions that stay.
type udpPort struct {
	*forward.UDP
	site atomic.Pointer[site]
	seen *telemetry
}

// Dropped implements forward.Route.
func (p *udpPort) Dropped(reason string) { p.seen.figures.dropped.WithLabelValues(reason).Inc() }

// Choose implements forward.Route.
func (p *udpPort) Choose(ctx context.Context) (*forward.Session, string) {
	at := enter(&p.site)
	defer at.leave()
	if len(at.streams) == 0 {
		return nil, forward.NoRoute
	}
	to := &at.streams[0]
	b := to.Rule.Choose(randomBelow(to.Rule.TotalWeight()))
	if b == nil {
		return nil, forward.NoBackend
	}
	s := &forward.Session{Rule: to.Rule, Backend: b.Ref}
	if b.Invalid != "" {
		return s, ""
	}
	s.Seen = p.seen.stream("UDP", to)
	target, conn := at.connect(ctx, "udp", b, "", s.Seen)
	if conn == nil {
		return nil, forward.NoBackend
	}
	s.Conn, _ = conn.(*net.UDPConn)
	s.Gone, s.Release = target.gone.Load, target.end
	return s, ""
}

// Stays implements forward.Route.
func (p *udpPort) Stays(s *forward.Session) bool {
	at := p.site.Load()
	switch {
	case len(at.streams) == 0:
		return false
	case s.Conn == nil:
		return at.streams[0].Rule == s.Rule
	case s.Gone():
		return false
	}
	for i := range at.streams[0].Rule.Backends {
		if b := &at.streams[0].Rule.Backends[i]; b.Ref == s.Backend && b.Invalid == "" && b.Weight > 0 {
			return true
		}
	}
	return false
}

// openUDP opens and closes UDP ports as the plan specifies. The lock is held.
func (g *Gateway) openUDP(ctx context.Context, plan *gatewayplan.Plan,
	pools poolMap) (failed map[netip.AddrPort]string) {
	failed = map[netip.AddrPort]string{}
	for at, p := range plan.UDP { // any order: each by itself
		s := &site{raw: true, port: int32(at.Port()), pools: pools, emptied: g.emptied}
		s.lead(p)
		if running := g.udp[at]; running != nil {
			g.retire(running.site.Swap(s))
			continue
		}
		running := &udpPort{seen: g.seen}
		running.site.Store(s)
		var err error
		if running.UDP, err = g.serveUDP(ctx, at, running); err != nil {
			failed[at] = err.Error()
			cannotListen(ctx, err, g.failedUDP[at])
			continue
		}
		g.udp[at] = running
	}
	for at, running := range g.udp { // any order: each by itself
		if plan.UDP[at] == nil {
			delete(g.udp, at)
			_ = g.cfg.Sockets.Forget(udpSocket(at)) // otherwise it listens a little longer
			g.retire(running.site.Load())
			running.Stop()
		}
	}
	return failed
}

// udpSocket is the name of a port's socket that a service manager keeps.
func udpSocket(at netip.AddrPort) string { return socketstore.Name(SocketPrefix, "udp-"+at.String()) }

// serveUDP opens a port, or takes over the socket that the previous process left.
func (g *Gateway) serveUDP(ctx context.Context, at netip.AddrPort, route forward.Route) (*forward.UDP, error) {
	conn := g.cfg.Sockets.UDP(udpSocket(at), at.String())
	if conn == nil {
		var err error
		if conn, err = forward.ListenUDP(ctx, at); err != nil {
			return nil, err
		}
		if err := g.cfg.Sockets.Keep(udpSocket(at), conn); err != nil {
			klog.FromContext(ctx).Error(err, "Datagrams may be lost while carob is restarted", "address", at)
		}
	}
	return forward.ServeUDP(ctx, conn, at, route, &g.sessions, filelimit.Share(shareSessions), g.leaving)
}

// reviewUDP checks the sessions after endpoints or routes have changed. The lock is held.
func (g *Gateway) reviewUDP() {
	for _, p := range g.udp { // any order: each by itself
		p.Review()
	}
}
