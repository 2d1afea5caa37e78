package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"carob/internal/base/fdstore"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
)

// Config is what the gateway needs.
type Config struct {
	Client kubernetes.Interface
	REST   *rest.Config // for the objects of the Gateway API, with the same rights
	Events record.EventRecorder
	// HTTP and HTTPS are where Ingresses are served, and Gateways without an address of their own; not valid: nowhere.
	HTTP, HTTPS netip.AddrPort
	Pool        []netip.Addr        // each Gateway without addresses gets one of these
	Host        func() []netip.Addr // addresses of this host
	Now         func() time.Time
	Proxies     []netip.Prefix        // who begins its connections with a PROXY header, which is believed; nobody else
	Register    prometheus.Registerer // of the metrics; nil: nowhere
	Sockets     *fdstore.Store        // keeps listening sockets while the process is replaced; nil: none
	AccessLog   string                // path of the access log, or Stdout; empty: none
	Picker      netip.AddrPort        // where other gateways ask carob's picker; not valid: nowhere
	PickerTLS   *tls.Config           // of Picker; nil: without TLS
}

// Gateway is the data plane. Its methods may be called at any time.
type Gateway struct {
	cfg     Config
	feed    *feed
	traffic *traffic
	writer  *writer
	mirrors *mirrors
	seen    *telemetry
	open    atomic.Int64
	bodies  atomic.Int64 // bytes of inference requests

	mu     sync.Mutex // covers what follows, for Routes
	plan   *gatewayplan.Plan
	ports  map[netip.AddrPort]*port
	failed map[netip.AddrPort]string
	pools  map[httproute.Ref]*pool
	// retired are pools that no route names any more; requests in old sites may use them.
	retired map[httproute.Ref]*pool
	old     []*site
	offers  atomic.Pointer[offers] // pools about which other gateways ask; nil: not known yet
	emptied chan struct{}          // capacity 1: an old site has lost its last request

	fallback *tls.Certificate // made when it is first needed
	closed   sync.WaitGroup   // ports that drain
}

// New returns a gateway that does nothing before Run.
func New(cfg Config) *Gateway {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sockets == nil {
		cfg.Sockets = &fdstore.Store{}
	}
	g := &Gateway{cfg: cfg, feed: newFeed(), traffic: newTraffic(), writer: newWriter(cfg), mirrors: newMirrors(),
		ports: map[netip.AddrPort]*port{}, failed: map[netip.AddrPort]string{}, pools: map[httproute.Ref]*pool{},
		retired: map[httproute.Ref]*pool{}, emptied: make(chan struct{}, 1)}
	f := newFigures(&g.open)
	g.feed.offers = cfg.Picker.IsValid()
	g.seen = &telemetry{figures: f, log: newAccessLog(cfg.AccessLog, f)}
	return g
}

// Routed implements node.Traffic: whether the pod gets requests as one that goes on, or has requests in flight.
func (g *Gateway) Routed(pod types.UID) bool { return g.traffic.routed(pod) }

// Follow implements node.Traffic.
func (g *Gateway) Follow(ctx context.Context, released func(pod types.UID)) {
	g.traffic.follow(ctx, released)
}

// SetGatewayAPI says whether the kinds of the Gateway API are served by the API server.
func (g *Gateway) SetGatewayAPI(on bool) { g.feed.setGatewayAPI(on) }

// retryAfter is the wait before a port that could not be opened is tried again.
const retryAfter = 5 * time.Second

// Run serves until ctx is done. Requests in flight get a moment to end.
func (g *Gateway) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() { g.feed.run(ctx, g.cfg) })
	group.Go(func() { g.writer.run(ctx) })
	if g.cfg.Picker.IsValid() {
		group.Go(func() { g.offer(ctx) })
	}
	if r := g.cfg.Register; r != nil {
		if err := r.Register(g.seen.figures); err != nil {
			return fmt.Errorf("register the gateway's metrics: %w", err)
		}
		defer r.Unregister(g.seen.figures)
	}
	if g.seen.log != nil {
		logging, end := context.WithCancel(context.WithoutCancel(ctx))
		group.Go(func() { g.seen.log.run(logging) })
		defer end() // after the last requests
	}
	defer g.stop()
	retry := time.NewTimer(retryAfter)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		case <-g.emptied:
			g.mu.Lock()
			g.release()
			g.mu.Unlock()
			continue
		case <-g.feed.wake:
		}
		world, services, ok := g.feed.take()
		if !ok {
			continue // the first lists are not complete
		}
		began := time.Now()
		if world != nil {
			g.apply(ctx, world)
		} else {
			g.update(ctx, services)
		}
		if g.anyFailed() {
			retry.Reset(retryAfter)
		}
		// A storm of changes takes at most half of a processor.
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Since(began), time.Second)):
		}
	}
}

func (g *Gateway) anyFailed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.failed) > 0
}

// apply makes everything as the objects want it.
func (g *Gateway) apply(ctx context.Context, w *snapshot) {
	w.World.HTTP, w.World.HTTPS, w.World.Pool, w.World.Host = g.cfg.HTTP, g.cfg.HTTPS, g.cfg.Pool, g.cfg.Host()
	w.World.Failed, w.World.Offered = g.failed, g.cfg.Picker.IsValid()
	if g.plan != nil {
		w.World.Assigned = g.plan.Assigned
	}
	plan := gatewayplan.Make(&w.World)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.plan = plan
	pools := map[httproute.Ref]*pool{}
	for ref := range plan.Refs {
		if pools[ref] = g.known(ref); pools[ref] == nil {
			pools[ref] = newPool()
		}
		g.traffic.set(pools[ref], g.endpointsOf(w, plan, ref))
	}
	for ref := range plan.Pools {
		g.serve(ctx, ref, pools[ref], w, pools)
	}
	if w.World.Offered {
		g.offers.Store(newOffers(plan, pools))
	}
	failed := map[netip.AddrPort]string{}
	for at, p := range plan.Ports {
		s := g.site(ctx, at, p, pools, w)
		if running := g.ports[at]; running != nil {
			if running.site.Load().tls == s.tls {
				g.retire(running.site.Swap(s))
				continue
			}
			running.stop()
			g.retire(running.site.Load())
			delete(g.ports, at)
		}
		running, err := listen(ctx, at, s, &g.open, g.mirrors, g.seen, g.cfg.Proxies, g.cfg.Sockets)
		if err != nil {
			failed[at] = err.Error()
			klog.FromContext(ctx).Error(err, "The gateway cannot listen; trying again", "after", retryAfter)
			continue
		}
		g.ports[at] = running
	}
	for at, running := range g.ports {
		if plan.Ports[at] == nil {
			delete(g.ports, at)
			_ = g.cfg.Sockets.Forget(fdstore.Name(SocketPrefix, at.String())) // it listens a little longer else
			g.retire(running.site.Load())
			g.closed.Go(func() { running.stop() })
		}
	}
	g.cfg.Sockets.Rest()
	for ref, p := range g.pools { // after no site has it
		if pools[ref] == nil {
			g.retired[ref] = p
		}
	}
	g.pools = pools
	g.release()
	g.seen.figures.keep(servedRoutes(plan))
	changed := len(failed) != len(g.failed)
	for at, why := range failed {
		changed = changed || g.failed[at] != why
	}
	g.failed = failed
	if changed { // the statuses tell
		w.World.Failed, w.World.Assigned = failed, plan.Assigned
		plan = gatewayplan.Make(&w.World)
		g.plan = plan
	}
	g.writer.write(w, plan)
}

// site compiles what a port serves.
func (g *Gateway) site(ctx context.Context, at netip.AddrPort, p *gatewayplan.Port, pools map[httproute.Ref]*pool,
	w *snapshot) *site {
	s := &site{port: int32(at.Port()), tls: p.TLS, certs: newCertificates(), clients: p.Clients, pools: pools,
		emptied: g.emptied}
	s.table, s.problems = httproute.Compile(p.Listeners)
	for _, c := range p.Certificates {
		for _, name := range c.Secrets {
			if cert := w.certificates[name]; cert != nil {
				s.certs.add(c.Host, cert)
			}
		}
	}
	for _, st := range p.Streams {
		s.streams = append(s.streams, stream{st})
	}
	if p.Default {
		if g.fallback == nil {
			var err error
			if g.fallback, err = selfSigned(g.cfg.Now()); err != nil {
				klog.FromContext(ctx).Error(err, "Connections for unknown names will fail")
			}
		}
		s.certs.fallback = g.fallback
	}
	return s
}

// update gives pools new endpoints.
func (g *Gateway) update(ctx context.Context, changes *snapshot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for ref, p := range g.everyPool() {
		if ref.Pool == "" && changes.changed[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}] {
			g.traffic.set(p, changes.endpoints(ref))
		}
		if changes.touched[ref] {
			g.traffic.set(p, g.endpointsOf(changes, g.plan, ref))
			g.serve(ctx, ref, p, changes, g.pools)
		}
	}
}

// stop drains all ports.
func (g *Gateway) stop() {
	g.mu.Lock()
	for at, p := range g.ports {
		delete(g.ports, at)
		g.closed.Go(func() { p.stop() })
	}
	g.mu.Unlock()
	g.closed.Wait()
	g.mirrors.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.everyPool() {
		g.traffic.set(p, nil)
		p.served.Load().close(nil)
	}
}
