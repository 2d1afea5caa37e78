// Package feed watches the objects that a gateway serves, and only those kinds that it needs: the rest of the kinds are
// watched while a Gateway, an Ingress, or an InferencePool of carob's needs them. Its owner waits for Wake and takes
// what has changed: all objects, or the changed ones and the endpoints of their backends.
package feed

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/base/zerocopy"
	"carob/internal/core/gatewayplan"
	"carob/internal/core/gatewayplan/endpoints"
	"carob/internal/core/httproute"
	"carob/internal/gateway/certs"
	"carob/internal/gateway/statuses"
)

// Config is the configuration of a Feed.
type Config struct {
	Client kubernetes.Interface
	REST   *rest.Config // for the kinds of the Gateway API; nil: they are not watched
	Offers bool         // carob's picker is offered to other gateways
}

type name = types.NamespacedName

// stage is a set of kinds that are watched together.
type stage int

const (
	ingressKinds stage = iota // always
	gatewayKinds              // while the API server serves the Gateway API
	backingKinds              // while there is an Ingress or a Gateway to serve
	routeKinds                // while there is a Gateway to serve
	// These, each of one kind, while there is a Gateway to serve and the API server has the kind.
	poolKinds
	oldPoolKinds
	modelKinds
	objectiveKinds
	rewriteKinds
	routerObjectiveKinds
	routerRewriteKinds
	podKinds // while there is an InferencePool
	stages
)

// Feed has the objects as the watches delivered them. Objects are those of the API server: for reading only.
type Feed struct {
	cfg     Config
	Wake    chan struct{} // capacity 1: there are changes to take
	restage chan struct{} // capacity 1: the set of watched kinds may have changed

	mu         sync.Mutex
	gatewayAPI bool
	inference  inferenceFeed
	kinds      [stages][]*kind
	running    [stages]context.CancelFunc
	missing    int // kinds without a first list

	classes        store[*networkingv1.IngressClass]
	ingresses      store[*networkingv1.Ingress]
	gatewayClasses store[*gatewayv1.GatewayClass]
	gateways       store[*gatewayv1.Gateway]
	listenerSets   store[*gatewayv1.ListenerSet]
	services       store[*corev1.Service]
	slices         store[*discoveryv1.EndpointSlice]
	secrets        store[*corev1.Secret]
	httpRoutes     store[*gatewayv1.HTTPRoute]
	grpcRoutes     store[*gatewayv1.GRPCRoute]
	tlsRoutes      store[*gatewayv1.TLSRoute]
	tcpRoutes      store[*gatewayv1.TCPRoute]
	udpRoutes      store[*gatewayv1.UDPRoute]
	grants         store[*gatewayv1.ReferenceGrant]
	policies       store[*gatewayv1.BackendTLSPolicy]
	namespaces     store[*corev1.Namespace]
	configMaps     store[*corev1.ConfigMap]

	ofService map[name]map[string]*discoveryv1.EndpointSlice
	readCerts map[name]readSecret
	readPicks map[name]readConfig

	serving int                 // Ingresses of carob's classes
	plan    bool                // the plan has to be made afresh
	changes gatewayplan.Changes // otherwise the changes to follow
	changed map[name]bool       // Services whose endpoints have changed
	// changedSecrets is a part of changes that was not read yet; nil: deleted.
	changedSecrets map[name]*corev1.Secret
	touched        map[httproute.Ref]bool // pools whose endpoints have changed
}

// readSecret is a Secret that was parsed.
type readSecret struct {
	version string
	cert    *tls.Certificate
	problem string
}

// kind is one kind that is watched.
type kind struct {
	name    string
	example runtime.Object
	lw      func() cache.ListerWatcher
	store   cache.ReflectorStore
	clear   func()
	listed  bool
	// early: the first take does not wait for this list. Ingresses are served even if the Gateway API cannot be read.
	early bool
}

// awaited is 1 for a kind for whose first list the first take waits.
func (k *kind) awaited() int {
	if k.early {
		return 0
	}
	return 1
}

// store has the objects of one kind; it implements cache.ReflectorStore.
type store[T metav1.Object] struct {
	f       *Feed
	kind    *kind
	all     map[name]T
	changed func(before, after T) // with f.mu held; either may be nil
	keep    func(T) bool          // nil: all
}

func nameOf(o metav1.Object) name { return name{Namespace: o.GetNamespace(), Name: o.GetName()} }

func (s *store[T]) put(o T) {
	var none T
	key := nameOf(o)
	before, known := s.all[key]
	if s.keep != nil && !s.keep(o) {
		if known {
			delete(s.all, key)
			s.changed(before, none)
		}
		return
	}
	s.all[key] = o
	s.changed(before, o)
}

func (s *store[T]) drop(key name) {
	var none T
	if before, known := s.all[key]; known {
		delete(s.all, key)
		s.changed(before, none)
	}
}

func (s *store[T]) locked(obj any, f func(T)) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("unexpected %T in a watch of the gateway", obj)
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	f(o)
	s.f.notify()
	return nil
}

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(obj any) error { return s.locked(obj, s.put) }

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(obj any) error { return s.locked(obj, s.put) }

// Delete implements cache.ReflectorStore.
func (s *store[T]) Delete(obj any) error { return s.locked(obj, func(o T) { s.drop(nameOf(o)) }) }

// Replace implements cache.ReflectorStore.
func (s *store[T]) Replace(list []any, _ string) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	left := map[name]bool{}
	for key := range s.all {
		left[key] = true
	}
	for _, obj := range list {
		o, ok := obj.(T)
		if !ok {
			return fmt.Errorf("unexpected %T in a list of the gateway", obj)
		}
		delete(left, nameOf(o))
		s.put(o)
	}
	for key := range left {
		s.drop(key)
	}
	if !s.kind.listed {
		s.kind.listed = true
		s.f.missing -= s.kind.awaited()
		s.f.plan = true
		poke(s.f.restage)
	}
	s.f.notify()
	return nil
}

// Resync implements cache.ReflectorStore; there is nothing to repeat.
func (s *store[T]) Resync() error { return nil }

// New returns a Feed that has nothing before Run.
func New(cfg Config) *Feed {
	return &Feed{cfg: cfg, Wake: make(chan struct{}, 1), restage: make(chan struct{}, 1),
		ofService: map[name]map[string]*discoveryv1.EndpointSlice{}, readCerts: map[name]readSecret{},
		changed: map[name]bool{}, touched: map[httproute.Ref]bool{}}
}

// notify wakes the loop if there are changes to take. The lock is held.
func (f *Feed) notify() {
	if f.missing == 0 && (f.plan || f.inference.changed || !f.changes.Empty() || len(f.changedSecrets) > 0 ||
		len(f.changed) > 0 || len(f.touched) > 0) {
		poke(f.Wake)
	}
}

// SetGatewayAPI sets whether the API server serves the kinds of the Gateway API.
func (f *Feed) SetGatewayAPI(on bool) {
	f.mu.Lock()
	f.gatewayAPI = on
	f.mu.Unlock()
	poke(f.restage)
}

// watch adds a kind to a stage.
func watch[T interface {
	metav1.Object
	runtime.Object
}](f *Feed, s *store[T], at stage, what string, example T, lw func() cache.ListerWatcher) {
	s.f, s.all = f, map[name]T{}
	if s.changed == nil {
		s.changed = func(_, _ T) { f.plan = true }
	}
	s.kind = &kind{name: what, example: example, lw: lw, store: s, early: at == gatewayKinds || at >= poolKinds}
	s.kind.clear = func() {
		var none T
		for key, o := range s.all {
			delete(s.all, key)
			s.changed(o, none)
		}
	}
	f.kinds[at] = append(f.kinds[at], s.kind)
}

func local[L runtime.Object](c zerocopy.Client[L], example runtime.Object,
	which fields.Selector) func() cache.ListerWatcher {
	return func() cache.ListerWatcher { return zerocopy.New(c, example, which) }
}

// declare lists the kinds.
func (f *Feed) declare(gateway rest.Interface) {
	all, everything := metav1.NamespaceAll, fields.Everything()
	c := f.cfg.Client
	f.classes.changed = f.classChanged
	f.ingresses.changed = f.ingressChanged
	watch(f, &f.classes, ingressKinds, "ingressclasses", &networkingv1.IngressClass{},
		local(c.NetworkingV1().IngressClasses(), &networkingv1.IngressClass{}, everything))
	watch(f, &f.ingresses, ingressKinds, "ingresses", &networkingv1.Ingress{},
		local(c.NetworkingV1().Ingresses(all), &networkingv1.Ingress{}, everything))
	f.services.changed = f.serviceChanged
	watch(f, &f.services, backingKinds, "services", &corev1.Service{},
		local(c.CoreV1().Services(all), &corev1.Service{}, everything))
	f.slices.changed = f.sliceChanged
	watch(f, &f.slices, backingKinds, "endpointslices", &discoveryv1.EndpointSlice{},
		local(c.DiscoveryV1().EndpointSlices(all), &discoveryv1.EndpointSlice{}, everything))
	f.secrets.changed = noting(&f.changedSecrets)
	watch(f, &f.secrets, backingKinds, "secrets", &corev1.Secret{}, local(c.CoreV1().Secrets(all), &corev1.Secret{},
		fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS))))
	f.namespaces.changed = f.namespaceChanged
	watch(f, &f.namespaces, routeKinds, "namespaces", &corev1.Namespace{},
		local(c.CoreV1().Namespaces(), &corev1.Namespace{}, everything))
	f.configMaps.keep = func(m *corev1.ConfigMap) bool { return hasPickerConfig(m) || hasCAs(m) }
	f.configMaps.changed = f.configMapChanged
	watch(f, &f.configMaps, routeKinds, "configmaps", &corev1.ConfigMap{},
		local(c.CoreV1().ConfigMaps(all), &corev1.ConfigMap{}, everything))
	if gateway == nil {
		return
	}
	remote := func(resource string) func() cache.ListerWatcher {
		return func() cache.ListerWatcher { return cache.NewListWatchFromClient(gateway, resource, all, everything) }
	}
	f.gatewayClasses.changed = f.gatewayClassChanged
	f.gateways.changed, f.listenerSets.changed = f.gatewayChanged, noting(&f.changes.ListenerSets)
	f.policies.changed = noting(&f.changes.Policies)
	f.httpRoutes.changed = noting(&f.changes.HTTPRoutes)
	f.grpcRoutes.changed = noting(&f.changes.GRPCRoutes)
	f.tlsRoutes.changed = noting(&f.changes.TLSRoutes)
	f.tcpRoutes.changed, f.udpRoutes.changed = noting(&f.changes.TCPRoutes), noting(&f.changes.UDPRoutes)
	f.grants.changed = noting(&f.changes.Grants)
	watch(f, &f.gatewayClasses, gatewayKinds, "gatewayclasses", &gatewayv1.GatewayClass{}, remote("gatewayclasses"))
	watch(f, &f.gateways, gatewayKinds, "gateways", &gatewayv1.Gateway{}, remote("gateways"))
	watch(f, &f.listenerSets, routeKinds, "listenersets", &gatewayv1.ListenerSet{}, remote("listenersets"))
	watch(f, &f.httpRoutes, routeKinds, "httproutes", &gatewayv1.HTTPRoute{}, remote("httproutes"))
	watch(f, &f.grpcRoutes, routeKinds, "grpcroutes", &gatewayv1.GRPCRoute{}, remote("grpcroutes"))
	watch(f, &f.tlsRoutes, routeKinds, "tlsroutes", &gatewayv1.TLSRoute{}, remote("tlsroutes"))
	watch(f, &f.tcpRoutes, routeKinds, "tcproutes", &gatewayv1.TCPRoute{}, remote("tcproutes"))
	watch(f, &f.udpRoutes, routeKinds, "udproutes", &gatewayv1.UDPRoute{}, remote("udproutes"))
	watch(f, &f.grants, routeKinds, "referencegrants", &gatewayv1.ReferenceGrant{}, remote("referencegrants"))
	watch(f, &f.policies, routeKinds, "backendtlspolicies", &gatewayv1.BackendTLSPolicy{}, remote("backendtlspolicies"))
	f.declarePools()
}

// sliceChanged keeps the slices of each Service. The lock is held.
func (f *Feed) sliceChanged(before, after *discoveryv1.EndpointSlice) {
	for i, s := range []*discoveryv1.EndpointSlice{before, after} {
		if s == nil {
			continue
		}
		of := name{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		if of.Name == "" {
			continue
		}
		f.changed[of] = true
		if i == 0 {
			if delete(f.ofService[of], s.Name); len(f.ofService[of]) == 0 {
				delete(f.ofService, of)
			}
			continue
		}
		if f.ofService[of] == nil {
			f.ofService[of] = map[string]*discoveryv1.EndpointSlice{}
		}
		f.ofService[of][s.Name] = s
	}
}

// Run watches the needed kinds until ctx ends.
func (f *Feed) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	var gateway rest.Interface
	if f.cfg.REST != nil {
		var err error
		if gateway, err = statuses.GatewayClient(f.cfg.REST); err != nil {
			klog.FromContext(ctx).Error(err, "The Gateway API is not served")
		}
	}
	f.mu.Lock()
	f.declare(gateway)
	f.mu.Unlock()
	for {
		f.follow(ctx, &group)
		select {
		case <-ctx.Done():
			return
		case <-f.restage:
		}
	}
}

// follow starts and ends the watches of stages.
func (f *Feed) follow(ctx context.Context, group *sync.WaitGroup) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, wanted := range f.needed() {
		switch {
		case wanted && f.running[at] == nil:
			watching, cancel := context.WithCancel(ctx)
			f.running[at] = cancel
			f.await(stage(at))
			for _, k := range f.kinds[at] {
				k.listed = false
				f.missing += k.awaited()
				log := klog.FromContext(ctx)
				r := cache.NewReflectorWithOptions(k.lw(), k.example, k.store,
					cache.ReflectorOptions{Name: "gateway-" + k.name, Logger: &log})
				group.Go(func() { r.RunWithContext(watching) })
			}
		case !wanted && f.running[at] != nil:
			f.running[at]()
			f.running[at] = nil
			for _, k := range f.kinds[at] {
				if !k.listed {
					f.missing -= k.awaited()
				}
				k.listed = true // a late list of the old watch is ignored
				k.clear()
			}
			f.plan = true
		}
	}
	f.notify()
}

// needed returns which stages are needed.
func (f *Feed) needed() [stages]bool {
	out := [stages]bool{ingressKinds: true, gatewayKinds: f.gatewayAPI && len(f.kinds[gatewayKinds]) > 0}
	out[backingKinds] = f.serving > 0
	ours := map[string]bool{}
	for _, c := range f.gatewayClasses.all {
		ours[c.Name] = c.Spec.ControllerName == gatewayplan.GatewayController
	}
	for _, g := range f.gateways.all {
		out[routeKinds] = out[routeKinds] || ours[string(g.Spec.GatewayClassName)]
	}
	if f.cfg.Offers && f.gatewayAPI { // other gateways call the picker
		out[routeKinds] = out[routeKinds] || f.inference.served[definitionOf(poolKinds)] ||
			f.inference.served[definitionOf(oldPoolKinds)]
	}
	out[backingKinds] = out[backingKinds] || out[routeKinds]
	f.neededPools(&out)
	return out
}

func values[T any](m map[name]T) []T {
	out := make([]T, 0, len(m))
	for _, o := range m {
		out = append(out, o)
	}
	return out
}

// Snapshot is what Take returns: all objects, or only the changed ones.
type Snapshot struct {
	World        gatewayplan.World                     // all objects, or nothing
	Changes      gatewayplan.Changes                   // otherwise the changed ones
	Certificates map[name]*tls.Certificate             // of World or Changes; nil for a Secret that has none any more
	Changed      map[name]bool                         // Services whose endpoints have changed
	Touched      map[httproute.Ref]bool                // pools whose endpoints have changed
	Services     map[name]*corev1.Service              // with Slices, what Endpoints needs
	Slices       map[name][]*discoveryv1.EndpointSlice // by Service
	Pods         map[string][]*corev1.Pod              // that can be endpoints of pools, by namespace
}

// Endpoints are the endpoints of a backend.
func (s *Snapshot) Endpoints(ref httproute.Ref) []endpoints.Endpoint {
	of := name{Namespace: ref.Namespace, Name: ref.Name}
	if s.Services[of] == nil {
		return nil
	}
	return endpoints.OfService(s.Services[of], ref, s.Slices[of])
}

// Again makes the next Take return all objects.
func (f *Feed) Again() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = true
	poke(f.Wake)
}

// Take returns what has changed: all objects if the whole plan must be computed again, else changed objects and
// endpoints; false before all lists are complete.
func (f *Feed) Take() (world, changes *Snapshot, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.missing > 0 || f.awaiting() {
		return nil, nil, false
	}
	for at, wanted := range f.needed() {
		if wanted && f.running[at] == nil {
			return nil, nil, false // about to start
		}
	}
	f.takeInference()
	s := &Snapshot{Changed: f.changed, Services: map[name]*corev1.Service{},
		Slices: map[name][]*discoveryv1.EndpointSlice{}}
	f.changed = map[name]bool{}
	s.Changes, f.changes = f.changes, gatewayplan.Changes{}
	secrets := f.changedSecrets
	f.changedSecrets = nil
	f.takePods(s)
	if !f.plan {
		f.readChanged(s, secrets)
		for of := range s.Changed {
			s.Services[of] = f.services.all[of]
			s.Slices[of] = sorted(f.ofService[of])
		}
		return nil, s, true
	}
	s.Changes = gatewayplan.Changes{}
	f.plan = false
	for of, service := range f.services.all {
		s.Services[of] = service
		s.Slices[of] = sorted(f.ofService[of])
	}
	s.World = gatewayplan.World{
		Classes: values(f.classes.all), Ingresses: values(f.ingresses.all), Services: s.Services,
		GatewayClasses: values(f.gatewayClasses.all), Gateways: values(f.gateways.all),
		ListenerSets: values(f.listenerSets.all), HTTPRoutes: values(f.httpRoutes.all),
		GRPCRoutes: values(f.grpcRoutes.all), TLSRoutes: values(f.tlsRoutes.all),
		TCPRoutes: values(f.tcpRoutes.all), UDPRoutes: values(f.udpRoutes.all), Grants: values(f.grants.all),
		Policies: values(f.policies.all), Secrets: map[name]gatewayplan.Material{},
		CAs: map[name]gatewayplan.Material{}, Namespaces: map[string]labels.Set{}}
	for _, n := range f.namespaces.all {
		s.World.Namespaces[n.Name] = n.Labels
	}
	for key, m := range f.configMaps.all {
		s.World.CAs[key] = certs.ReadCAs(m)
	}
	s.World.Inference = f.pools()
	f.readSecrets(s)
	return s, nil, true
}

// identities are the Secrets to which Gateways refer as their certificates for backends. The lock is held.
func (f *Feed) identities() map[name]bool {
	out := map[name]bool{}
	for _, g := range f.gateways.all {
		if of, ok := gatewayplan.Identity(g); ok {
			out[of] = true
		}
	}
	return out
}

// readSecrets reads all Secrets. Keys stay in memory only.
func (f *Feed) readSecrets(s *Snapshot) {
	s.Certificates = map[name]*tls.Certificate{}
	identities := f.identities()
	for key, secret := range f.secrets.all {
		var cert *tls.Certificate
		if s.World.Secrets[key], cert = f.readSecret(key, secret, identities[key]); cert != nil {
			s.Certificates[key] = cert
		}
	}
	for key := range f.readCerts {
		if f.secrets.all[key] == nil {
			delete(f.readCerts, key)
		}
	}
}

// readChanged reads Secrets that have changed. The snapshot gets the new certificates; nil for a Secret without one.
func (f *Feed) readChanged(s *Snapshot, secrets map[name]*corev1.Secret) {
	if len(secrets) == 0 {
		return
	}
	s.Certificates, s.Changes.Secrets = map[name]*tls.Certificate{}, map[name]*gatewayplan.Material{}
	identities := f.identities()
	for key, secret := range secrets {
		if secret == nil {
			delete(f.readCerts, key)
			s.Certificates[key], s.Changes.Secrets[key] = nil, nil
			continue
		}
		material, cert := f.readSecret(key, secret, identities[key])
		s.Certificates[key], s.Changes.Secrets[key] = cert, &material
	}
}

// readSecret parses a Secret, unless this version was parsed before.
func (f *Feed) readSecret(key name, secret *corev1.Secret, identity bool) (gatewayplan.Material, *tls.Certificate) {
	known, was := f.readCerts[key]
	if !was || known.version != secret.ResourceVersion {
		known = readSecret{version: secret.ResourceVersion}
		cert, err := certs.Read(secret)
		if err != nil {
			known.problem = err.Error()
		} else {
			known.cert = cert
		}
		f.readCerts[key] = known
	}
	material := gatewayplan.Material{Problem: known.problem}
	if identity && known.problem == "" {
		material.PEM = certs.PEM(secret)
	}
	return material, known.cert
}

func sorted(m map[string]*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	out := make([]*discoveryv1.EndpointSlice, 0, len(m))
	for _, s := range m {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
