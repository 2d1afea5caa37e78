package gateway

import (
	"context"
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/socketstore"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/httproute"
	"carob/internal/core/immutablemap"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/feed"
)

type name = types.NamespacedName

// poolMap has the pools by their backends. Sites share it: it is replaced, never changed.
type poolMap = immutablemap.Map[httproute.Ref, *pool]

func newPools() poolMap {
	return immutablemap.New[httproute.Ref, *pool](func(r httproute.Ref) uint32 {
		return immutablemap.String(r.Namespace) ^ 31*immutablemap.String(r.Name) ^ uint32(r.Port)*2654435761
	})
}

func nameOf(o metav1.Object) name { return name{Namespace: o.GetNamespace(), Name: o.GetName()} }

func serviceOf(ref httproute.Ref) name { return name{Namespace: ref.Namespace, Name: ref.Name} }

// apply configures everything as the objects specify.
func (g *Gateway) apply(ctx context.Context, w *feed.Snapshot) {
	w.World.HTTP, w.World.HTTPS, w.World.Pool, w.World.Host = g.cfg.HTTP, g.cfg.HTTPS, g.cfg.Pool, g.cfg.Host()
	w.World.Failed, w.World.FailedUDP, w.World.Offered = g.failed, g.failedUDP, g.cfg.Picker.IsValid()
	if g.plan != nil {
		w.World.Assigned = g.plan.Assigned
	}
	plan := gatewayplan.NewLive(&w.World)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.plan, g.certs, g.host = plan, w.Certificates, w.World.Host
	pools := newPools()
	g.refs = map[name]map[httproute.Ref]bool{}
	for ref := range plan.Refs {
		pools.Set(ref, g.pool(ref, w))
	}
	for ref := range plan.Pools {
		p, _ := pools.Get(ref)
		g.serve(ctx, ref, p, w, pools)
	}
	g.announce(plan.Plan, pools)
	g.openPorts(ctx, plan, pools, &gatewayplan.Touched{}) // all statuses are stored
	for ref, p := range g.pools.All() {                   // after no site has it
		if _, stays := pools.Get(ref); !stays {
			g.retired[ref] = p
		}
	}
	g.pools = pools
	g.release()
	g.seen.figures.removeUnserved(servedRoutes(plan.Plan))
	g.reviewUDP()
	g.writer.All(&w.World, plan.Plan)
	w.World.Ingresses, w.World.HTTPRoutes, w.World.GRPCRoutes = nil, nil, nil // the plan has the ones that it needs
}

// openPorts opens the ports of a plan and serves its sites there. If other ports than before cannot be opened, the
// statuses of all Gateways change. The lock is held.
func (g *Gateway) openPorts(ctx context.Context, plan *gatewayplan.Live, pools poolMap, touched *gatewayplan.Touched) {
	failed := map[netip.AddrPort]string{}
	for at, p := range plan.Ports {
		s := g.site(ctx, at, p, pools)
		if running := g.ports[at]; running != nil {
			if was := running.site.Load(); was.tls == s.tls && was.raw == s.raw {
				g.retire(running.site.Swap(s))
				continue
			}
			delete(g.ports, at)
			g.shut(running)
		}
		running, err := listen(ctx, at, s, &g.open, g.mirrors, g.seen, g.cfg.Proxies, g.cfg.Sockets)
		if err != nil {
			failed[at] = err.Error()
			cannotListen(ctx, err, g.failed[at])
			continue
		}
		if g.failed[at] != "" {
			klog.FromContext(ctx).Info("The gateway listens now", "address", at)
		}
		g.ports[at] = running
	}
	for at, running := range g.ports {
		if plan.Ports[at] == nil {
			delete(g.ports, at)
			// If this fails, it listens a little longer.
			_ = g.cfg.Sockets.Forget(socketstore.Name(SocketPrefix, at.String()))
			g.shut(running)
		}
	}
	failedUDP := g.openUDP(ctx, plan.Plan, pools)
	g.cfg.Sockets.Rest()
	if !maps.Equal(failed, g.failed) || !maps.Equal(failedUDP, g.failedUDP) { // the statuses report it
		touched.Gateways, touched.ListenerSets = plan.Fail(failed, failedUDP)
	}
	g.failed, g.failedUDP = failed, failedUDP
	tcp := slices.SortedFunc(maps.Keys(g.ports), netip.AddrPort.Compare)
	udp := slices.SortedFunc(maps.Keys(g.udp), netip.AddrPort.Compare)
	if g.cfg.Listening != nil && (!slices.Equal(tcp, g.openedTCP) || !slices.Equal(udp, g.openedUDP)) {
		g.cfg.Listening(tcp, udp)
	}
	g.openedTCP, g.openedUDP = tcp, udp
}

// cannotListen logs that a port cannot be opened, unless the attempt before, of which before is the error, had the same
// result: an address may be in use for ever.
func cannotListen(ctx context.Context, err error, before string) {
	if err.Error() != before {
		klog.FromContext(ctx).Error(err, "The gateway cannot listen; trying again", "every", retryAfter)
	}
}

// shut frees an address at once, and has the requests of its port end. The lock is held.
func (g *Gateway) shut(p *port) {
	_ = p.ln.Close() // stop fails, too
	g.retire(p.site.Load())
	g.closed.Go(p.stop)
}

// reopen tries again to open ports. It returns false if there must be a new plan: the host has other addresses.
func (g *Gateway) reopen(ctx context.Context) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.plan == nil || !slices.Equal(g.host, g.cfg.Host()) {
		return false
	}
	touched := &gatewayplan.Touched{}
	g.openPorts(ctx, g.plan, g.pools, touched)
	g.release()
	g.writer.Some(touched, g.plan)
	return true
}

// pool returns the pool of a backend, which has its endpoints. The lock is held.
func (g *Gateway) pool(ref httproute.Ref, s *feed.Snapshot) *pool {
	p := g.known(ref)
	if p == nil {
		p = newPool()
		p.infers = ref.Pool != ""
	}
	g.traffic.set(p, g.endpointsOf(s, g.plan, ref))
	of := serviceOf(ref)
	if g.refs[of] == nil {
		g.refs[of] = map[httproute.Ref]bool{}
	}
	g.refs[of][ref] = true
	return p
}

// follow applies changed objects to what the gateway serves. It returns false if it needs all objects.
func (g *Gateway) follow(ctx context.Context, s *feed.Snapshot) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.plan == nil {
		return false
	}
	touched, ok := g.plan.Change(&s.Changes)
	if !ok {
		return false
	}
	missing := map[name]bool{}
	for _, ref := range touched.New {
		missing[serviceOf(ref)] = true
	}
	for of := range touched.Services { // any order: into maps
		missing[of], s.Changed[of] = true, true
	}
	g.fill(s, missing, touched.Pools)
	for _, ref := range touched.New {
		g.pools = g.pools.With(ref, g.pool(ref, s))
	}
	for ref := range touched.Pools { // any order: each by itself
		if g.plan.Pools[ref] != nil {
			p, _ := g.pools.Get(ref)
			g.updatePool(ctx, ref, p, s)
		}
	}
	if len(touched.Pools) > 0 {
		g.announce(g.plan.Plan, g.pools)
	}
	before := g.pools
	for _, ref := range touched.Gone {
		g.pools = g.pools.Without(ref)
		of := serviceOf(ref)
		if delete(g.refs[of], ref); len(g.refs[of]) == 0 {
			delete(g.refs, of)
		}
	}
	for of, cert := range s.Certificates { // any order: into a map
		if g.certs[of] = cert; cert == nil {
			delete(g.certs, of)
		}
	}
	if touched.Listeners {
		g.openPorts(ctx, g.plan, g.pools, touched)
	} else {
		g.changePorts(s, touched)
	}
	for _, ref := range touched.Gone {
		g.retired[ref], _ = before.Get(ref)
	}
	g.release()
	for _, r := range touched.HTTPRoutes { // also those whose Gateway is gone
		g.forget("HTTPRoute", nameOf(r), g.plan.HTTPRoutes[nameOf(r)] == nil)
	}
	for _, r := range touched.GRPCRoutes {
		g.forget("GRPCRoute", nameOf(r), g.plan.GRPCRoutes[nameOf(r)] == nil)
	}
	forgetGone(g, "HTTPRoute", s.Changes.HTTPRoutes, g.plan.HTTPRoutes)
	forgetGone(g, "GRPCRoute", s.Changes.GRPCRoutes, g.plan.GRPCRoutes)
	forgetGone(g, "TLSRoute", s.Changes.TLSRoutes, g.plan.TLSRoutes)
	forgetGone(g, "TCPRoute", s.Changes.TCPRoutes, g.plan.TCPRoutes)
	forgetGone(g, "UDPRoute", s.Changes.UDPRoutes, g.plan.UDPRoutes)
	for of := range s.Changes.Ingresses {
		_, planned := g.plan.Ingresses[of]
		g.forget("Ingress", of, !planned)
	}
	g.writer.Some(touched, g.plan)
	return true
}

// changePorts serves other routes, streams, or certificates at open ports. The lock is held.
func (g *Gateway) changePorts(s *feed.Snapshot, touched *gatewayplan.Touched) {
	for at, p := range g.plan.Ports { // any order: each by itself
		running, renewed, others := g.ports[at], names(p, s.Certificates), touched.Certificates[at]
		if running == nil || !renewed && !others && !touched.Ports[at] {
			continue
		}
		now := running.site.Load().with(p.Table, g.pools)
		now.lead(p)
		switch {
		case others:
			now.certs = g.certificates(p, now.certs.Fallback)
		case renewed:
			now.certs = g.renewed(now.certs, p, s.Certificates)
		}
		g.retire(running.site.Swap(now))
	}
	for at := range touched.UDP { // any order: each by itself
		if running := g.udp[at]; running != nil {
			now := running.site.Load().with(nil, g.pools)
			now.lead(g.plan.UDP[at])
			g.retire(running.site.Swap(now))
		}
	}
}

// forget ends the metrics of a route that was removed.
func (g *Gateway) forget(kind string, of name, gone bool) {
	if gone {
		g.seen.figures.forget(routeKey{kind, of.Namespace, of.Name})
	}
}

// forgetGone ends the metrics of those changed routes of a kind that the plan does not serve.
func forgetGone[T any](g *Gateway, kind string, changed map[name]T, served map[name][]gatewayv1.RouteParentStatus) {
	for of := range changed { // any order: each by itself
		g.forget(kind, of, served[of] == nil)
	}
}

// with is the site with other routes.
func (s *site) with(table *httproute.Table, pools poolMap) *site {
	return &site{table: table, port: s.port, tls: s.tls, raw: s.raw, certs: s.certs, clients: s.clients,
		streams: s.streams, names: s.names, pools: pools, emptied: s.emptied}
}

// site is what a port serves.
func (g *Gateway) site(ctx context.Context, at netip.AddrPort, p *gatewayplan.Port, pools poolMap) *site {
	s := &site{port: int32(at.Port()), tls: p.TLS, raw: p.Raw, certs: g.certificates(p, nil), clients: p.Clients,
		pools: pools, emptied: g.emptied, table: p.Table}
	s.lead(p)
	if p.Default {
		if g.fallback == nil {
			var err error
			if g.fallback, err = certs.SelfSigned(g.cfg.Now()); err != nil {
				klog.FromContext(ctx).Error(err, "Connections for unknown names will fail")
			}
		}
		s.certs.Fallback = g.fallback
	}
	return s
}

// names reports whether a port uses one of some Secrets.
func names(p *gatewayplan.Port, secrets map[name]*tls.Certificate) bool {
	return len(secrets) > 0 && slices.ContainsFunc(p.Certificates, func(c gatewayplan.Certificate) bool {
		return namesOne(&c, secrets)
	})
}

func namesOne(c *gatewayplan.Certificate, secrets map[name]*tls.Certificate) bool {
	return slices.ContainsFunc(c.Secrets, func(of name) bool { _, has := secrets[of]; return has })
}

// certificates are those of a port.
func (g *Gateway) certificates(p *gatewayplan.Port, fallback *tls.Certificate) *certs.Set {
	out := certs.New()
	out.Fallback = fallback
	for i := range p.Certificates {
		for _, cert := range g.read(&p.Certificates[i]) {
			out.Add(p.Certificates[i].Host, cert)
		}
	}
	return out
}

// renewed are the certificates of a port when some Secrets have changed: those of the other hosts stay.
func (g *Gateway) renewed(all *certs.Set, p *gatewayplan.Port, secrets map[name]*tls.Certificate) *certs.Set {
	hosts := map[string][]*tls.Certificate{}
	for i := range p.Certificates {
		if c := &p.Certificates[i]; namesOne(c, secrets) {
			hosts[c.Host] = nil
		}
	}
	for i := range p.Certificates {
		c := &p.Certificates[i]
		if before, concerned := hosts[c.Host]; concerned {
			hosts[c.Host] = append(before, g.read(c)...)
		}
	}
	for host, now := range hosts { // any order: each by itself
		all = all.With(host, now)
	}
	return all
}

// read returns the certificates in Secrets, without those that have none.
func (g *Gateway) read(c *gatewayplan.Certificate) (out []*tls.Certificate) {
	for _, of := range c.Secrets {
		if cert := g.certs[of]; cert != nil {
			out = append(out, cert)
		}
	}
	return out
}

// update gives pools new endpoints.
func (g *Gateway) update(ctx context.Context, changes *feed.Snapshot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for of := range changes.Changed { // any order: each pool by itself
		for ref := range g.refs[of] {
			if p, known := g.pools.Get(ref); known && ref.Pool == "" {
				g.traffic.set(p, changes.Endpoints(ref))
			}
		}
	}
	for ref := range changes.Touched {
		if p, known := g.pools.Get(ref); known {
			g.updatePool(ctx, ref, p, changes)
		}
	}
	for ref, p := range g.retired {
		if ref.Pool == "" && changes.Changed[serviceOf(ref)] {
			g.traffic.set(p, changes.Endpoints(ref))
		}
		if changes.Touched[ref] {
			g.updatePool(ctx, ref, p, changes)
		}
	}
	g.reviewPickers(ctx, changes)
	g.reviewUDP()
}

func (g *Gateway) updatePool(ctx context.Context, ref httproute.Ref, p *pool, changes *feed.Snapshot) {
	g.traffic.set(p, g.endpointsOf(changes, g.plan, ref))
	g.serve(ctx, ref, p, changes, g.pools)
}

// endpointsOf are those of a backend.
func (g *Gateway) endpointsOf(s *feed.Snapshot, plan *gatewayplan.Live, ref httproute.Ref) []endpoints.Endpoint {
	if ref.Pool == "" {
		return s.Endpoints(ref)
	}
	if pool := plan.Pools[ref]; pool != nil {
		return endpoints.OfPool(ref.Namespace, pool.Selector, pool.Ports, s.Pods[ref.Namespace])
	}
	return nil
}
