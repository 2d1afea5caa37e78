// Package services is the data plane of Services on this node: it writes the decisions of core/netplan/services to
// nftables, one table for each address family, with internal/network/nft. Package app drives it. It must never change a
// table of others, and writes only events and the addresses of load balancers to the API.
//
// A change of a Service or of its endpoints is written when the watch delivers it: the loop takes all
// Services that changed meanwhile, and each family is one transaction. Nothing is written before the
// first lists of Services, EndpointSlices and the Node are complete (N2.65). The table stays when
// carob ends; the next process compares it with what it should be. What others change is repaired
// when the kernel reports it.
//
// # What has been programmed
//
// Proxy is a node.Traffic: the node agent calls Routed, and Follow reports when that becomes false.
// To end a pod without losing a request, call UseOf with its UID until the answer is Out, or Fallback
// if no other pod can take its place, and wait for Changed between two calls:
//
//	for {
//		changed := proxy.Changed()
//		if proxy.UseOf(uid) != services.In {
//			break // new connections no longer come, in any table of this node
//		}
//		select {
//		case <-changed:
//		case <-deadline:
//		}
//	}
//
// The answer is about the tables that the kernel has, not about what should be in them, and a pod stays In until its
// connections are ready to be opened again elsewhere (reopener). It does not depend on the pod's
// deletion timestamp: the pod stays In until the EndpointSlices mark it as terminating. A pod of no Service is Out.
// Established connections continue in any case.
//
// Contract: N2, N3, and N9.A in docs/spec/network.md.
package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"carob/internal/core/netplan/addresspool"
	core "carob/internal/core/netplan/services"
	"carob/internal/network/announce"
	"carob/internal/network/nft"
)

// Use is whether new connections can reach a pod through a Service.
type Use = core.Use

// The results of UseOf.
const (
	Out      = core.Out
	Fallback = core.Fallback
	In       = core.In
)

// Config has all names that this data plane uses on the host.
type Config struct {
	Client kubernetes.Interface // with the rights of system:node-proxier
	// Status writes the status of Services of type LoadBalancer: the node's addresses; nil: it
	// is not written.
	Status kubernetes.Interface
	// Pool has the addresses of load balancers; nil: they have the node's. They are announced to
	// neighbours on Links; without Links, on the links with an address of the node.
	Pool   *addresspool.Pool
	Links  []string
	Events record.EventRecorder
	Table  string // name of the nftables tables (ip and ip6)
	IPv6   bool   // besides IPv4
	Node   string
	// Addresses returns the node's current addresses: those that serve node ports.
	Addresses func() []netip.Addr
	Pods      []netip.Prefix   // of the pods of this node
	Own       []netip.AddrPort // where carob itself listens by TCP; more with SetOwn
	OwnUDP    []netip.AddrPort // the same of UDP
	// Healthz answers /healthz and /livez of the data plane (N2.L); nil: they are not served.
	Healthz net.Listener
}

// Proxy is the data plane. Its methods may be called at any time.
type Proxy struct {
	cfg     Config
	feed    *feed
	node    chan struct{} // facts of the node may have changed
	own     atomic.Pointer[ownPorts]
	metrics *metrics
	flows   []*forgetter // UDP, TCP
	reopen  *reopener
	balance *balancer
	health  *health
	checks  *healthPorts

	announcer     announce.Announcer
	announceAgain later
	unannounced   string // why some addresses are not announced

	mu      sync.RWMutex
	planes  []*plane
	running bool          // the tables have been written
	changed chan struct{} // closed by the next change

	leftMu sync.Mutex
	left   map[types.UID]bool // pods that left the tables and were not reported to Follow yet

	reported map[types.NamespacedName][]string // problems
}

// plane is one family's table. Its state is what the kernel has, while broken is false.
type plane struct {
	codec
	state  *core.State
	table  *nft.Table
	broken bool
}

// New returns a data plane that does nothing before Run.
func New(cfg Config) *Proxy {
	p := &Proxy{cfg: cfg, node: make(chan struct{}, 1), changed: make(chan struct{}), metrics: newMetrics(),
		reported: map[types.NamespacedName][]string{}, flows: newForgetters(),
		balance: newBalancer(cfg.Status, cfg.Pool), health: newHealth()}
	p.announceAgain = later{wait: announceAgain, do: p.NodeChanged}
	p.reopen = newReopener(p.announceChange)
	p.feed = newFeed(cfg.Node, p.health)
	p.checks = newHealthPorts(cfg.Node, p.health.healthy, p.healthFailed)
	return p
}

// Remove deletes the tables of a data plane that does not run.
func Remove(table string) error {
	return nft.Remove(table, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6)
}

// ownPorts are where else carob itself listens.
type ownPorts struct{ tcp, udp []netip.AddrPort }

// SetOwn sets where else carob itself listens: no Service gets what is sent there.
func (p *Proxy) SetOwn(tcp, udp []netip.AddrPort) {
	p.own.Store(&ownPorts{tcp, udp})
	p.NodeChanged()
}

// NodeChanged causes the facts of the node to be read again.
func (p *Proxy) NodeChanged() { poke(p.node) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// UseOf returns whether new connections can reach the pod with this UID through Services on this node.
// Before the tables have been written, and while the kernel refuses them, every pod may be In.
func (p *Proxy) UseOf(pod types.UID) Use {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.running {
		return In
	}
	use := Out
	for _, pl := range p.planes {
		if pl.broken {
			return In
		}
		use = max(use, pl.state.UseOf(pod))
	}
	if p.reopen.pending(pod) {
		return In
	}
	return use
}

// announceChange closes the channel of Changed.
func (p *Proxy) announceChange() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Changed is closed when a result of UseOf may have changed.
func (p *Proxy) Changed() <-chan struct{} {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.changed
}

func (p *Proxy) facts() core.Node {
	own := ownPorts{p.cfg.Own, p.cfg.OwnUDP}
	if more := p.own.Load(); more != nil {
		own = ownPorts{slices.Concat(own.tcp, more.tcp), slices.Concat(own.udp, more.udp)}
	}
	return core.Node{Name: p.cfg.Node, Zone: p.feed.zone(), Addresses: p.cfg.Addresses(), Pods: p.cfg.Pods,
		Own: own.tcp, OwnUDP: own.udp}
}

// retryAfter is the wait after the kernel refused a table; it doubles up to retryMax.
const (
	retryAfter = time.Second
	retryMax   = 30 * time.Second
)

// Run drives the tables until ctx is done. They stay.
func (p *Proxy) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	disturbed, err := p.open(ctx, &group)
	if err != nil {
		return err
	}
	defer p.close()
	p.feed.start(ctx, &group, p.cfg.Client)
	for _, f := range p.flows {
		group.Go(func() { f.run(ctx) })
	}
	group.Go(func() { p.reopen.run(ctx) })
	group.Go(func() { p.balance.run(ctx) })
	if p.cfg.Healthz != nil {
		p.serveHealth(ctx, &group, p.cfg.Healthz)
	}
	defer p.checks.close()
	defer p.announcer.Close()
	select {
	case <-ctx.Done():
		return nil
	case <-p.feed.synced:
	}
	retry := time.NewTimer(0)
	wait := retryAfter
	defer retry.Stop()
	failed := true // the first transaction compares
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			if !failed {
				continue
			}
			err = p.update(ctx, p.feed.all(), true)
		case <-p.feed.wake:
			err = p.update(ctx, p.feed.take(), false)
		case <-p.node:
			err = p.update(ctx, p.feed.all(), false)
		case <-disturbed:
			if failed { // there may be no table yet to compare with
				err = p.update(ctx, p.feed.all(), true)
			} else {
				err = p.restore(ctx)
			}
		case <-p.checks.wake:
			p.checks.listen(ctx, p.cfg.Addresses())
			continue
		}
		if failed = err != nil; failed {
			klog.FromContext(ctx).Error(err, "Cannot write the rules of Services; trying again", "after", wait)
			retry.Reset(wait)
			wait = min(2*wait, retryMax)
		} else {
			wait = retryAfter
		}
	}
}

// open opens the tables and follows changes of them by other programs.
func (p *Proxy) open(ctx context.Context, group *sync.WaitGroup) (<-chan struct{}, error) {
	if err := p.reopen.open(); err != nil {
		return nil, err
	}
	for _, f := range p.flows {
		if err := f.open(); err != nil {
			return nil, err
		}
	}
	disturbed := make(chan struct{}, 1)
	families := []codec{{}}
	if p.cfg.IPv6 {
		families = append(families, codec{v6: true})
	}
	var planes []*plane
	for _, c := range families {
		table, err := nft.Open(nft.Config{Name: p.cfg.Table, Family: c.family(), Sets: c.sets(),
			Version: layoutVersion})
		if err != nil {
			return nil, fmt.Errorf("services: %w", err)
		}
		planes = append(planes, &plane{codec: c, table: table, broken: true})
		group.Go(func() {
			if err := table.Watch(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Changes of others to the rules of Services will not be noticed")
			}
		})
		group.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-table.Disturbed():
					poke(disturbed)
				}
			}
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.planes = planes
	return disturbed, nil
}

func (p *Proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pl := range p.planes {
		_ = pl.table.Close()
	}
	p.planes, p.running = nil, false
}

// update writes Services as they are now. whole compares the tables with the kernel's.
func (p *Proxy) update(ctx context.Context, in []input, whole bool) error {
	start := time.Now()
	inputs := make([]core.Input, len(in))
	for i := range in {
		inputs[i] = in[i].Input
	}
	node := p.facts()
	p.mu.Lock()
	var errs []error
	var gone []types.UID
	problems := map[types.NamespacedName][]string{}
	var families []bool
	for _, pl := range p.planes {
		families = append(families, pl.v6)
		left, err := p.updatePlane(pl, node, inputs, whole, problems)
		gone, errs = append(gone, left...), append(errs, err)
	}
	p.checks.update(ctx, in, node, families)
	p.running = true
	p.note(gone)
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.recordProblems(in, problems)
	p.recordEvents(p.balance.look(in, node.Addresses))
	p.announce(ctx, node.Addresses)
	err := errors.Join(errs...)
	p.metrics.synced(p, in, start, whole, err)
	if err == nil {
		klog.FromContext(ctx).V(4).Info("Wrote the rules of Services", "services", len(in), "took", time.Since(start))
	}
	return err
}

func (p *Proxy) updatePlane(pl *plane, node core.Node, in []core.Input, whole bool,
	problems map[types.NamespacedName][]string) (left []types.UID, err error) {
	p.health.begin(pl.name())
	if pl.state == nil {
		pl.state = core.New(pl.v6, node)
		whole = true
	}
	var changes []core.Change
	if have := pl.state.Node(); !sameFacts(have, node, pl.v6) {
		changes = append(changes, pl.state.SetNode(node))
	}
	changes = append(changes, pl.state.Update(in))
	last := changes[len(changes)-1]
	for _, problem := range last.Problems {
		if list := problems[problem.Service]; !slices.Contains(list, problem.Text) {
			problems[problem.Service] = append(list, problem.Text)
		}
	}
	if !whole && !pl.broken {
		for _, c := range changes {
			if err == nil {
				err = pl.table.Apply(pl.change(c))
			}
		}
	}
	if whole || pl.broken || err != nil {
		p.metrics.failures(pl.name(), err)
		err = pl.table.Sync(pl.content(pl.state))
	}
	if pl.broken = err != nil; err == nil {
		p.health.done(pl.name())
		for _, f := range p.flows {
			f.forget(pl.v6, node.Addresses, last.Flows)
		}
		p.reopen.left(changes)
	}
	return last.Left, err
}

func sameFacts(have, now core.Node, v6 bool) bool {
	now = core.New(v6, now).Node()
	return have.Zone == now.Zone && slices.Equal(have.Addresses, now.Addresses) && slices.Equal(have.Own, now.Own) &&
		slices.Equal(have.OwnUDP, now.OwnUDP)
}

// restore compares the tables with the kernel's after another program may have changed them.
func (p *Proxy) restore(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, pl := range p.planes {
		if pl.state == nil {
			continue
		}
		p.health.begin(pl.name())
		err := pl.table.Sync(pl.content(pl.state))
		if pl.broken = err != nil; err == nil {
			p.health.done(pl.name())
		}
		errs = append(errs, err)
	}
	close(p.changed)
	p.changed = make(chan struct{})
	klog.FromContext(ctx).V(2).Info("Compared the rules of Services after others changed them")
	return errors.Join(errs...)
}

// recordProblems records the new problems of Services as events.
func (p *Proxy) recordProblems(in []input, problems map[types.NamespacedName][]string) {
	for _, i := range in {
		if _, has := problems[i.Name]; !has {
			delete(p.reported, i.Name)
		}
	}
	for name, list := range problems {
		for _, text := range list {
			if slices.Contains(p.reported[name], text) || p.cfg.Events == nil {
				continue
			}
			if s := p.feed.service(name); s != nil {
				p.cfg.Events.Event(s, corev1.EventTypeWarning, "ServiceAddressConflict", text)
			}
		}
		p.reported[name] = list
	}
}

// input is a Service with the trigger of its change.
type input struct {
	core.Input
	triggered []time.Time
}

// slim drops fields that are not needed.
func slimService(s *corev1.Service) *corev1.Service {
	out := *s
	out.ManagedFields, out.Annotations = nil, nil
	for _, name := range addresspool.Annotations() {
		if v, ok := s.Annotations[name]; ok {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[name] = v
		}
	}
	return &out
}

func slimSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := *s
	out.ManagedFields, out.OwnerReferences = nil, nil
	return &out
}
