package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/externalmetrics"
	"carob/internal/base/filelimit"
	"carob/internal/base/socketstore"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/httproute"
	"carob/internal/gateway/bodies"
	"carob/internal/gateway/feed"
	"carob/internal/gateway/forward"
	"carob/internal/gateway/spans"
	"carob/internal/gateway/statuses"
	"carob/internal/gateway/throttle"
)

// Config is the configuration of the gateway.
type Config struct {
	Client kubernetes.Interface
	REST   *rest.Config // for the objects of the Gateway API, with the same rights
	Events record.EventRecorder
	// HTTP and HTTPS are where Ingresses are served, and Gateways without an address of their own; not valid: nowhere.
	HTTP, HTTPS netip.AddrPort
	Pool        []netip.Addr        // each Gateway without addresses gets one of these
	Host        func() []netip.Addr // addresses of this host
	Now         func() time.Time
	Proxies     []netip.Prefix        // load balancers whose connections begin with a PROXY header
	Register    prometheus.Registerer // of the metrics; nil: nowhere
	Sockets     *socketstore.Store    // keeps listening sockets while the process is replaced; nil: none
	AccessLog   string                // path of the access log, or accesslog.Stdout; empty: none
	Traces      trace.TracerProvider  // of the spans of requests; nil: none
	Picker      netip.AddrPort        // where other gateways call carob's picker; not valid: nowhere
	PickerTLS   *tls.Config           // of Picker; nil: without TLS
	// Measured, optional, gets the metrics of the pools that carob's picker serves while there is one, and nil when
	// there is none any more. It must not block.
	Measured func(externalmetrics.Source)
	// Listening, optional, gets the addresses of the open ports, in order, when they have changed. It must not block.
	Listening func(tcp, udp []netip.AddrPort)
}

// Gateway is the data plane. Its methods may be called at any time.
type Gateway struct {
	cfg  Config
	feed *feed.Feed
	// fill adds endpoints to a snapshot: feed.Fill, or what a test has instead.
	fill     func(s *feed.Snapshot, services map[name]bool, pools map[httproute.Ref]bool)
	traffic  *traffic
	writer   *statuses.Writer
	mirrors  *mirrors
	seen     *telemetry
	open     opened
	sessions atomic.Int64   // of UDP
	bodies   *bodies.Budget // of inference requests

	mu     sync.Mutex // covers what follows, for Routes
	plan   *gatewayplan.Live
	host   []netip.Addr // addresses of this host, for the plan
	ports  map[netip.AddrPort]*port
	udp    map[netip.AddrPort]*udpPort
	failed map[netip.AddrPort]string
	// openedTCP and openedUDP are as passed to cfg.Listening.
	openedTCP, openedUDP []netip.AddrPort
	// failedUDP are ports of UDP that could not be opened.
	failedUDP map[netip.AddrPort]string
	certs     map[name]*tls.Certificate // of Secrets
	pools     poolMap
	// refs are the backends of each Service that pools are made for.
	refs map[name]map[httproute.Ref]bool
	// retired are pools that no route refers to any more; requests in old sites may use them.
	retired map[httproute.Ref]*pool
	old     []*site
	offers  atomic.Pointer[offers] // pools for which other gateways call the picker; nil: unknown
	emptied chan struct{}          // capacity 1: an old site has lost its last request

	measured bool             // cfg.Measured has the figures
	fallback *tls.Certificate // made when it is first needed
	closed   sync.WaitGroup   // ports that drain

	retryAfter time.Duration // for tests
	leaving    time.Duration // forward.LeavingTime, for tests
}

// New returns a gateway that does nothing before Run.
func New(cfg Config) *Gateway {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Sockets == nil {
		cfg.Sockets = &socketstore.Store{}
	}
	writer := statuses.New(statuses.Config{Client: cfg.Client, REST: cfg.REST, Events: cfg.Events, Now: cfg.Now})
	objects := feed.New(feed.Config{Client: cfg.Client, REST: cfg.REST, Offers: cfg.Picker.IsValid()})
	g := &Gateway{cfg: cfg, feed: objects, fill: objects.Fill, traffic: newTraffic(), writer: writer,
		mirrors: newMirrors(), ports: map[netip.AddrPort]*port{}, udp: map[netip.AddrPort]*udpPort{},
		certs: map[name]*tls.Certificate{}, failed: map[netip.AddrPort]string{}, pools: newPools(),
		refs: map[name]map[httproute.Ref]bool{}, bodies: bodies.NewBudget(inferenceBodies),
		retired: map[httproute.Ref]*pool{}, emptied: make(chan struct{}, 1),
		retryAfter: retryAfter, leaving: forward.LeavingTime}
	g.open.most = min(connections, filelimit.Share(shareClients))
	f := newFigures(&g.open.Int64, &g.sessions)
	g.seen = &telemetry{figures: f, log: newAccessLog(cfg.AccessLog, f), spans: spans.Tracer(cfg.Traces)}
	return g
}

// Routed implements node.Traffic: it reports whether the pod gets new requests although it is
// being deleted, or has requests in flight.
func (g *Gateway) Routed(pod types.UID) bool { return g.traffic.routed(pod) }

// Follow implements node.Traffic.
func (g *Gateway) Follow(ctx context.Context, released func(pod types.UID)) {
	g.traffic.follow(ctx, released)
}

// SetGatewayAPI sets whether the API server serves the kinds of the Gateway API.
func (g *Gateway) SetGatewayAPI(on bool) { g.feed.SetGatewayAPI(on) }

// SetInference sets which definitions of the inference extension the API server has, by their names.
func (g *Gateway) SetInference(served map[string]bool) { g.feed.SetInference(served) }

// retryAfter is the wait before a port that could not be opened is tried again.
const retryAfter = 5 * time.Second

// Run serves until ctx is done. Requests in flight get a moment to end.
func (g *Gateway) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group.Go(func() { g.feed.Run(ctx) })
	group.Go(func() { g.writer.Run(ctx) })
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
		group.Go(func() { g.seen.log.Run(logging) })
		defer end() // after the last requests
	}
	defer g.stop()
	retry := time.NewTimer(g.retryAfter)
	retry.Stop()
	defer retry.Stop()
	var rounds throttle.Throttle // a burst of changes uses at most half a CPU
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			if !g.reopen(ctx) {
				g.feed.Again() // the ports are opened with the plan
			} else if g.anyFailed() {
				retry.Reset(g.retryAfter)
			}
			continue
		case <-g.emptied:
			g.mu.Lock()
			g.release()
			g.mu.Unlock()
			continue
		case <-g.feed.Wake:
		}
		world, changes, ok := g.feed.Take()
		if !ok {
			continue // the first lists are not complete
		}
		began := time.Now()
		switch {
		case world != nil:
			g.apply(ctx, world)
		case !changes.Changes.Empty() && !g.follow(ctx, changes):
			g.feed.Again()
			continue
		default:
			g.update(ctx, changes)
		}
		if g.anyFailed() {
			retry.Reset(g.retryAfter)
		}
		if wait := rounds.Ended(began, time.Now()); wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}

func (g *Gateway) anyFailed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.failed)+len(g.failedUDP) > 0
}

// stop drains all ports.
func (g *Gateway) stop() {
	g.mu.Lock()
	for at, p := range g.ports {
		delete(g.ports, at)
		g.closed.Go(func() { p.stop() })
	}
	for at, p := range g.udp {
		delete(g.udp, at)
		g.closed.Go(func() { p.Stop() })
	}
	g.mu.Unlock()
	g.closed.Wait()
	g.mirrors.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, all := range []iter.Seq2[httproute.Ref, *pool]{g.pools.All(), maps.All(g.retired)} {
		for _, p := range all { // any order: each by itself
			g.traffic.set(p, nil)
			p.served.Load().close(nil)
		}
	}
}
