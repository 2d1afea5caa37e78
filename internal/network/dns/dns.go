package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	core "carob/internal/core/netplan/dns"
)

// Config is the configuration of a server.
type Config struct {
	Client  kubernetes.Interface
	Listen  []netip.Addr   // addresses of this host; port 53, or a free one if another process uses 53
	Sources []netip.Prefix // the pods' addresses: pods and this host may query; empty: everybody
	Domain  string         // of the cluster, such as cluster.local

	ClusterIPs []netip.Addr // of the Service kube-system/kube-dns: one, or one of each family
	Node       string       // name of this node
	ResolvConf string       // the node's resolver file; its servers resolve other names
	Register   prometheus.Registerer
}

// corefileName is the name of the ConfigMap in kube-system, and of its key.
const (
	configMapName = "coredns"
	corefileKey   = "Corefile"
)

// New opens the ports. No query is answered before Run.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if _, err := core.Wire(cfg.Domain); err != nil {
		return nil, fmt.Errorf("cluster domain: %w", err)
	}
	s := newServer(cfg, network{}, time.Now)
	for _, a := range cfg.Listen {
		udp, tcp, err := listen(ctx, a)
		if err != nil {
			s.closeListeners()
			return nil, err
		}
		s.udp, s.tcp = append(s.udp, udp), append(s.tcp, tcp)
	}
	if cfg.Register != nil {
		if err := cfg.Register.Register(s.m); err != nil {
			s.closeListeners()
			return nil, fmt.Errorf("register the metrics of the DNS: %w", err)
		}
	}
	return s, nil
}

// watched is the number of kinds that the zone needs to be complete.
const watched = 3

func newServer(cfg Config, e exchanger, now func() time.Time) *Server {
	s := &Server{cfg: cfg, m: newMetrics(), exchange: e, now: now, pods: make(chan struct{}, 1),
		zone:    newZone(cfg.Listen),
		waiting: quota{all: mostWaiting, one: mostWaitingSource}, conns: quota{all: mostConns, one: mostConnsSource},
		sources: &sources{pods: cfg.Sources, now: now, list: net.InterfaceAddrs}}
	s.resolver = &resolverFile{name: cfg.ResolvConf, now: now, own: func(a netip.Addr) bool {
		return slices.Contains(cfg.Listen, a) || slices.Contains(cfg.ClusterIPs, a)
	}}
	s.m.entries = func() (n [2]int) {
		for _, one := range s.blocks.Load().all {
			if one.cache != nil {
				a, b := one.cache.count()
				n[success], n[denial] = n[success]+a, n[denial]+b
			}
		}
		return n
	}
	if err := s.configure(core.DefaultCorefile(cfg.Domain)); err != nil {
		panic(fmt.Sprintf("the built-in Corefile is invalid: %v", err)) // a test parses it
	}
	return s
}

// Addresses are where the server listens.
func (s *Server) Addresses() []netip.AddrPort {
	var out []netip.AddrPort
	for _, u := range s.udp {
		out = append(out, u.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	return out
}

func (s *Server) closeListeners() {
	for i := range s.udp {
		_ = s.udp[i].Close()
		_ = s.tcp[i].Close()
	}
}

// configure applies a Corefile. After an error, the last one stays in force.
func (s *Server) configure(text string) error {
	cfg, err := core.Parse(text)
	if err != nil {
		return err
	}
	made, err := build(cfg, s.resolver.list, s.exchange, s.now, s.m)
	if err != nil {
		return err
	}
	if old := s.blocks.Swap(made); old != nil {
		old.retire()
	}
	made.group.start(func() { s.look(made) })
	for _, one := range made.all {
		if one.Kubernetes != nil && one.Kubernetes.Pods == core.PodsVerified {
			s.wantPods()
		}
	}
	return nil
}

// wantPods starts to watch pods when a Corefile first has `pods verified`.
func (s *Server) wantPods() {
	select {
	case s.pods <- struct{}{}:
	default: // already requested
	}
}

// lookForLoop is how long after a forwarding loop was found it is looked for again: whoever ends it changes the
// resolver of the node, or another server, of which nothing is heard here.
const lookForLoop = 30 * time.Second

// look checks for forwarding loops, if the configuration has the directive `loop`: once, and again while there is one.
func (s *Server) look(on *serverBlocks) {
	for {
		var looping *forwarder
		for _, one := range on.all {
			for _, f := range one.forwards {
				if one.Loop && f.ctx.Err() == nil {
					f.probe(f.ctx, s.expect)
				}
				if f.looping.Load() {
					looping = f
				}
			}
		}
		if looping == nil {
			return
		}
		select {
		case <-looping.ctx.Done():
			return
		case <-time.After(lookForLoop):
		}
	}
}

// Run answers until ctx ends, and returns when all goroutines have ended.
func (s *Server) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logged(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer func() { s.blocks.Load().stop() }()
	defer s.closeListeners()
	if s.cfg.Register != nil {
		defer s.cfg.Register.Unregister(s.m)
	}
	k := &clusterService{client: s.cfg.Client, clusterIP: s.cfg.ClusterIPs, node: s.cfg.Node, at: s.Addresses(),
		wake: make(chan struct{}, 1)}
	for _, f := range s.followers(ctx, k) {
		group.Go(func() { f.run(ctx) })
	}
	group.Go(func() { k.run(ctx) })
	group.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-s.pods:
		}
		c := s.cfg.Client
		pods := follow(c.CoreV1().Pods(""), &corev1.Pod{}, fields.Everything(), s.zone.change)
		pods.listed = s.zone.listed
		s.zone.expect()
		pods.run(ctx)
	})
	for i := range s.udp {
		for range readers() {
			group.Go(func() { s.serveUDP(ctx, s.udp[i], &group) })
		}
		group.Go(func() { s.serveTCP(ctx, s.tcp[i], &group) })
	}
	<-ctx.Done()
	return nil
}

// followers watch the objects from which the zone and the configuration are made.
func (s *Server) followers(ctx context.Context, k *clusterService) []*follower {
	c := s.cfg.Client
	all := fields.Everything()
	namespaces := follow(c.CoreV1().Namespaces(), &corev1.Namespace{}, all, s.zone.change)
	services := follow(c.CoreV1().Services(""), &corev1.Service{}, all, func(before, after metav1.Object) {
		s.zone.change(before, after)
		for _, o := range []metav1.Object{before, after} {
			if o != nil && o.GetName() == serviceName && o.GetNamespace() == serviceNamespace {
				k.poke()
			}
		}
	})
	slices := follow(c.DiscoveryV1().EndpointSlices(""), &discoveryv1.EndpointSlice{}, all,
		func(before, after metav1.Object) {
			s.zone.change(before, after)
			if slice, ok := after.(*discoveryv1.EndpointSlice); ok {
				s.programmed(slice)
			}
			for _, o := range []metav1.Object{before, after} {
				if o != nil && o.GetNamespace() == serviceNamespace &&
					(o.GetName() == sliceName || o.GetName() == secondSliceName) {
					k.poke()
				}
			}
		})
	list := []*follower{namespaces, services, slices}
	for _, f := range list {
		f.listed = s.zone.listed
	}
	configs := follow(c.CoreV1().ConfigMaps(serviceNamespace), &corev1.ConfigMap{},
		fields.OneTermEqualSelector(metav1.ObjectNameField, configMapName), nil)
	configs.changed = func(_, after metav1.Object) { s.reconfigure(ctx, after) }
	return append(list, configs)
}

// programmed records how long a change of a headless Service took to arrive (N9.12).
func (s *Server) programmed(slice *discoveryv1.EndpointSlice) {
	if _, headless := slice.Labels[corev1.IsHeadlessService]; !headless {
		return
	}
	t, err := time.Parse(time.RFC3339Nano, slice.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return
	}
	kind := "headless_without_selector"
	if slice.Labels[discoveryv1.LabelManagedBy] == "endpointslice-controller.k8s.io" {
		kind = "headless_with_selector"
	}
	s.m.programming.WithLabelValues(kind).Observe(s.now().Sub(t).Seconds())
}

// reconfigure follows the ConfigMap; without one, or without its key, carob's own Corefile is in force.
func (s *Server) reconfigure(ctx context.Context, o metav1.Object) {
	text := core.DefaultCorefile(s.cfg.Domain)
	m, _ := o.(*corev1.ConfigMap)
	if m != nil && m.Data[corefileKey] != "" {
		text = m.Data[corefileKey]
	}
	err := s.configure(text)
	if err == nil {
		klog.FromContext(ctx).Info("The DNS has a new configuration")
		return
	}
	s.m.reloadFailed.Inc()
	klog.FromContext(ctx).Error(err, "The Corefile in kube-system/coredns is invalid; the previous one stays in effect")
	if m == nil {
		return
	}
	now := metav1.NewTime(s.now())
	_, failed := s.cfg.Client.CoreV1().Events(serviceNamespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, GenerateName: configMapName + "."},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: m.Namespace,
			Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion},
		Reason: "InvalidCorefile", Type: corev1.EventTypeWarning, Count: 1,
		Message:        "The Corefile is invalid, the previous one stays in effect: " + limit(err.Error()),
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: "carob-dns"},
	}, metav1.CreateOptions{})
	if failed != nil && !errors.Is(failed, context.Canceled) {
		klog.FromContext(ctx).V(2).Info("Cannot record an event", "err", failed)
	}
}

// limit cuts a text to what an event can hold.
func limit(s string) string { return strings.ToValidUTF8(s[:min(len(s), 900)], "") }
