package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"carob/internal/apiserver/admission"
	"carob/internal/apiserver/audit"
	"carob/internal/apiserver/auth"
	"carob/internal/apiserver/inprocess"
	"carob/internal/apiserver/lists"
	"carob/internal/apiserver/storage"
	"carob/internal/apiserver/tokens"
	"carob/internal/base/errkind"
	"carob/internal/base/gctuning"
	"carob/internal/kinds/scheme"
	"carob/internal/kinds/services"
)

// Close releases a server that will not run. The generators in tools use it.
func (s *Server) Close() { s.close() }

// Server is one API server. Create it with New, then call Run once.
type Server struct {
	cfg     Config
	set     *scheme.Set
	engine  *storage.Engine
	options *storage.Options
	generic *genericapiserver.GenericAPIServer
	groups  *apiGroupList
	// handler serves the network, inner serves carob's own parts (see chain).
	handler, inner  http.Handler
	unauthenticated *unauthenticatedConns
	conditions      conditions // tasks of the server's parts

	stores    stores
	lists     lists.Cache // of what lists have encoded
	storages  storageIndex
	allocator *services.Allocator
	found     []services.Finding // tasks of the start
	// strangeRange is the default ServiceCIDR if its ranges differ from those that the server was
	// started with.
	strangeRange atomic.Pointer[networkingv1.ServiceCIDR]
	rbac         *auth.RBAC
	reader       admission.Reader
	auditor      *audit.Auditor
	nodes        *auth.Node
	// authorizer is nodes, then rbac.
	authorizer authorizer.Authorizer
	// structured authenticates by the user's configuration; nil without one.
	structured *auth.Structured
	issuer     *tokens.Service
	// bearers authenticates by tokens.
	bearers authenticator.Token
	// endKeys ends the fetching of keys from token issuers.
	endKeys    context.CancelFunc
	encryption *storage.Encryption
	ext        extensions
	autoscaler admission.PodAutoscalerSwitch
	versions   []schema.GroupVersion // all built-in groups, sorted

	// advertised is where pods find the server; moved (capacity 1) signals a change.
	advertised atomic.Pointer[netip.Addr]
	moved      chan struct{}

	ready chan struct{}
	// stopped is closed when the server has stopped.
	stopped chan struct{}
}

// Defaults of Config.
var defaultServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")

const defaultLowPort, defaultHighPort = 30000, 32767

// New opens the storage, creates missing system objects, and builds the server; it does not serve
// yet. The kind of the error distinguishes a data directory in use (errkind.InUse) from a damaged
// one (Corrupt) and a full disk (Exhausted). On an error, the listener is closed.
func New(ctx context.Context, cfg Config) (_ *Server, err error) {
	if cfg.Listener == nil || cfg.PKI == nil || cfg.DataDir == "" && len(cfg.EtcdServers) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "the API server needs a data directory, a listener and keys")
	}
	complete(&cfg)
	s := &Server{cfg: cfg, ready: make(chan struct{}), moved: make(chan struct{}, 1), stopped: make(chan struct{}),
		stores: stores{}, storages: storageIndex{},
		unauthenticated: newUnauthenticatedConns(maxUnauthenticatedConns, maxUnauthenticatedRequests)}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.advertised.Store(&s.cfg.AdvertiseAddress)
	if a := cfg.AdvertiseAddress; reachable(a) && a.Is4() != cfg.ServiceCIDRs[0].Addr().Is4() {
		return nil, errkind.Errorf(errkind.Invalid,
			"the API server's address %v and the first service range %v are not of one IP family", a,
			cfg.ServiceCIDRs[0])
	}
	if s.auditor, err = audit.New(cfg.Audit); err != nil {
		return nil, err
	}
	var keys context.Context
	keys, s.endKeys = context.WithCancel(context.WithoutCancel(ctx))
	if s.encryption, err = storage.LoadEncryption(ctx, cfg.EncryptionConfig); err != nil {
		return nil, err
	}
	if s.structured, err = auth.NewStructured(keys,
		auth.StructuredConfig{File: cfg.AuthenticationConfig, OwnIssuer: tokens.DefaultIssuer}); err != nil {
		return nil, err
	}
	// The engine waits for the disk, building the scheme needs the CPU.
	opened := make(chan error, 1)
	go func() {
		var err error
		s.engine, err = storage.Open(ctx,
			storage.Config{Dir: cfg.etcdDir(), Servers: cfg.EtcdServers, TLS: cfg.EtcdTLS, NoFsync: cfg.UnsafeNoFsync})
		opened <- err
	}()
	err = s.prepare()
	if e := <-opened; e != nil {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	s.options = storage.NewOptions(s.engine, s.set, caching, s.encryption.Transformers(), inprocess.Is)
	if err = s.seed(ctx); err != nil {
		return nil, fmt.Errorf("make the system objects: %w", err)
	}
	if err = s.build(); err != nil {
		return nil, err
	}
	return s, nil
}

// caching returns how a kind is cached. Kinds that change all the time, or that several parts of
// carob read, have caches from the start.
func caching(gr schema.GroupResource) storage.Caching {
	switch gr {
	case corev1.Resource("pods"), corev1.Resource("nodes"), corev1.Resource("namespaces"), corev1.Resource("services"),
		corev1.Resource("serviceaccounts"),
		corev1.Resource("configmaps"), corev1.Resource("secrets"), coordinationv1.Resource("leases"),
		discoveryv1.Resource("endpointslices"):
		return storage.Eager
	case corev1.Resource("events"):
		return storage.Uncached
	}
	return storage.Lazy
}

func complete(cfg *Config) {
	if len(cfg.ServiceCIDRs) == 0 {
		cfg.ServiceCIDRs = []netip.Prefix{defaultServiceCIDR}
	}
	if cfg.NodePorts == [2]int{} {
		cfg.NodePorts = [2]int{defaultLowPort, defaultHighPort}
	}
	if !cfg.AdvertiseAddress.IsValid() {
		if a, err := netip.ParseAddrPort(cfg.Listener.Addr().String()); err == nil {
			cfg.AdvertiseAddress = a.Addr().Unmap()
		}
	}
	if cfg.NodeDialer == nil {
		var d net.Dialer
		cfg.NodeDialer = func(ctx context.Context, _, addr string) (net.Conn,
			error) {
			return d.DialContext(ctx, "tcp", addr)
		}
	}
}

// Ready returns a channel that is closed when the API can be used: all system objects exist and the
// listener is served.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// ClientConfig returns a client configuration for one of carob's own parts. Its requests reach the
// server by a function call, are authenticated as the given user in the given groups
// (system:authenticated is added), and are authorized like any other. It works after New, and only
// in this process; exec, attach, and port-forward need the network.
func (s *Server) ClientConfig(user string, groups ...string) *restclient.Config {
	return inprocess.ClientConfig(s.inner, user, groups...)
}

// SetPodAutoscaler sets what sizes new pods; with nil they keep their sizes. While it is set,
// VerticalPodAutoscalers are validated, too.
func (s *Server) SetPodAutoscaler(a admission.PodAutoscaler) { s.autoscaler.Set(a) }

// FirstServiceIP returns the cluster IP of the kubernetes Service for service ranges (the default
// range if there are none): certificates must contain it.
func FirstServiceIP(cidrs []netip.Prefix) netip.Addr {
	if len(cidrs) == 0 {
		cidrs = []netip.Prefix{defaultServiceCIDR}
	}
	return cidrs[0].Masked().Addr().Next()
}

// Run serves until ctx ends, and closes the storage. It returns nil after ctx ended, otherwise the
// error that made serving impossible.
func (s *Server) Run(ctx context.Context) error {
	defer s.close()
	defer gctuning.OnSettle(s.lists.Clear)()
	compressLists(s.generic.Handler.GoRestfulContainer)
	trimRoutes(s.generic.Handler.GoRestfulContainer)
	s.generic.Handler.GoRestfulContainer.Router(&router{})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.engine.Failed():
			cancel(s.engine.Err())
		case <-ctx.Done():
		}
	}()
	parts := newTaskGroup(ctx)
	defer parts.wait()
	defer cancel(nil)
	parts.run(s.rbac.Run)
	parts.run(s.nodes.Run)
	parts.run(s.auditor.Run)
	parts.run(s.structured.Run)
	parts.run(s.encryption.Run)
	parts.run(s.conditions.checked(s.ext.plugins.Run, admissionChecks...))
	parts.run(s.conditions.checked(s.ext.crds.Run, crdChecks...))
	parts.run(s.conditions.checked(s.ext.aggregation.Run, aggregationChecks...))
	served := make(chan error, 1)
	parts.run(func(ctx context.Context) { served <- s.serve(ctx) })
	limit := readTime
	if s.encryption.Check(ctx) != nil {
		limit = lockedTime
	}
	unread, err := s.options.Wait(ctx, limit)
	if err != nil {
		if ctx.Err() != nil {
			return s.engine.Err() // stopped early, or failed
		}
		return err
	}
	for _, gr := range unread {
		klog.FromContext(ctx).Error(s.encryption.Check(ctx),
			"Stored objects of a kind cannot be read; it is served as soon as they can be read", "kind", gr)
	}
	if err := s.wakeExtensions(ctx); err != nil {
		if ctx.Err() != nil {
			return s.engine.Err()
		}
		return fmt.Errorf("read the stored extensions of the API: %w", err)
	}
	close(s.ready)
	klog.FromContext(ctx).V(2).Info("API server is ready", "address", s.cfg.Listener.Addr().String())
	parts.run(s.conditions.checked(s.reconcilePolicy, slices.Concat(policyChecks, groupChecks, trustChecks)...))
	parts.run(s.conditions.checked(func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(policyDelay):
			s.ext.flow.Run(ctx)
		}
	}, flowChecks...))
	parts.run(s.conditions.checked(s.keepKubernetesService, keeperChecks...))
	parts.run(s.conditions.checked(s.repair, repairChecks...))
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return errors.Join(<-served, s.engine.Err())
	}
}

func (s *Server) close() {
	close(s.stopped)
	_ = s.cfg.Listener.Close() // already closed if it was served
	if s.endKeys != nil {
		s.endKeys()
	}
	s.closeStores()
	if s.engine != nil {
		s.engine.Close()
	}
	s.encryption.Close()
}

// closeStores ends the work of the stores. If the engine has failed, a read of theirs may never end, because what
// failed holds etcd's locks; then nothing waits for them.
func (s *Server) closeStores() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.stores.destroy()
		for _, f := range []*storage.CustomResourceOptions{s.ext.objects, s.ext.definitions} {
			if f != nil {
				f.Close()
			}
		}
		if s.options != nil {
			s.options.Close()
		}
	}()
	var failed <-chan struct{}
	if s.engine != nil {
		failed = s.engine.Failed()
	}
	select {
	case <-closed:
	case <-failed:
	}
}

// readTime is how long the start waits for the caches. A kind that cannot be read, because its
// encryption key is unavailable or an object is damaged, must not keep the rest from starting: the
// key server may be one of the pods.
const (
	readTime   = 10 * time.Second
	lockedTime = time.Second // if a key server reports that it does not work
)

// requestTimeout is the time limit of a request that is not a watch or a stream.
const requestTimeout = 60 * time.Second

var podsResource = corev1.Resource("pods")
