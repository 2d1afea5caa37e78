package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authzmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"carob/internal/apiserver/admission"
	"carob/internal/apiserver/auth"
	"carob/internal/apiserver/flow"
	"carob/internal/apiserver/pods"
	"carob/internal/apiserver/tokens"
	"carob/internal/kinds"
	"carob/internal/kinds/admissionregistration"
	"carob/internal/kinds/apiextensions"
	"carob/internal/kinds/apiregistration"
	"carob/internal/kinds/core"
	"carob/internal/kinds/declarative"
	"carob/internal/kinds/devices"
	"carob/internal/kinds/flowcontrol"
	"carob/internal/kinds/registry"
	"carob/internal/kinds/rules"
	"carob/internal/kinds/scheme"
	"carob/internal/kinds/services"
)

const (
	// The version of Kubernetes that the API is compatible with; releases have it set
	// by the linker (k8s.io/component-base/version.gitVersion).
	defaultVersion = "v1.37.2"

	minor      = "1.37"
	minorFloor = "1.36"
	maxReads   = 400
	maxWrites  = 200
	noLoopback = "http://carob.invalid"
)

// storageIndex finds what is served for a resource.
type storageIndex map[schema.GroupResource]rest.Storage

func (c *Config) etcdDir() string { return filepath.Join(c.DataDir, "etcd") }

// build makes everything that needs no storage engine.
func (s *Server) build() error {
	set, err := scheme.New(kinds.RegisterDefaults, declarative.Register, admissionregistration.RegisterDefaults, flowcontrol.RegisterDefaults)
	if err != nil {
		return err
	}
	s.set = set
	s.allocator, err = services.NewAllocator(s.cfg.ServiceCIDRs, s.cfg.NodePorts[0], s.cfg.NodePorts[1])
	if err != nil {
		return err
	}
	s.rbac = auth.NewRBAC(auth.Builtin())
	s.reader = admission.NewReader(s.storageOf, func(gr schema.GroupResource) (uint64, bool) { return s.engine.Writes(gr) })
	s.nodes = auth.NewNode(s.reader)
	if s.authorizer, err = union.New(counted("Node", s.nodes), counted("RBAC", s.rbac)); err != nil {
		return fmt.Errorf("put the authorizers in order: %w", err)
	}
	return nil
}

// counted counts what an authorizer decides.
func counted(kind string, a authorizer.Authorizer) union.NamedAuthorizer {
	name := strings.ToLower(kind)
	return union.NamedAuthorizer{AuthorizerName: name, Authorizer: authzmetrics.InstrumentedAuthorizer(kind, name, a)}
}

// install makes the generic server, the storages and the routes.
func (s *Server) install() error {
	reader := s.reader
	var err error
	if s.issuer, err = tokens.New(tokens.Config{Key: s.cfg.PKI.ServiceAccountKey, Reader: reader, Used: s.secretTokenUsed}); err != nil {
		return err
	}
	c := genericapiserver.NewConfig(s.set.Codecs)
	c.EffectiveVersion = versioned{compatibility.NewEffectiveVersionFromString(minor, minor, minorFloor)}
	c.ExternalAddress = s.cfg.Listener.Addr().String()
	// Required, but nothing of ours calls back over the network.
	c.LoopbackClientConfig = &restclient.Config{Host: noLoopback}
	c.SkipOpenAPIInstallation = true
	c.EnableProfiling = s.cfg.Profiling
	c.EnableIndex, c.EnableDiscovery = true, false // the list of groups is ours
	c.StorageObjectCountTracker = nil
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = maxReads, maxWrites
	c.RequestTimeout = requestTimeout
	s.ext.flow = flow.New(flow.Config{Client: s.ownClient, Reads: maxReads, Writes: maxWrites, LongRunning: longRunning, RequestTimeout: requestTimeout, Count: s.countObjects})
	c.LongRunningFunc = longRunning
	c.DisabledPostStartHooks = sets.NewString("max-in-flight-filter") // measure does it
	c.HealthzChecks, c.LivezChecks, c.ReadyzChecks = s.healthChecks()
	// The own ones first: an issuer outside may have to be asked for its keys.
	bearers := []authenticator.Token{auth.NewBootstrap(reader)}
	if s.structured != nil {
		bearers = append(bearers, s.structured)
	}
	s.bearers = forAudiences(s.issuer.Audiences(), s.issuer.Authenticator(), bearers...)
	c.Authentication.Authenticator = auth.NewAuthenticator(s.cfg.PKI.Pool, s.bearers, s.structured)
	c.Authorization.Authorizer = s.authorizer
	if err := s.chainAdmission(c, reader); err != nil {
		return err
	}
	c.RESTOptionsGetter = s.options
	c.BuildHandlerChainFunc = s.chain

	completed := c.Complete(nil)
	if s.generic, err = completed.New("carob", genericapiserver.NewEmptyDelegate()); err != nil {
		return fmt.Errorf("build the API server: %w", err)
	}
	s.groups = newGroupList(s.generic.Serializer)
	s.generic.Handler.NonGoRestfulMux.NotFoundHandler(http.NotFoundHandler())
	if err := s.extend(c); err != nil {
		return err
	}
	groups, err := s.storagesByGroup(reader)
	if err != nil {
		return err
	}
	if err := s.installGroups(c, groups); err != nil {
		return err
	}
	handlers, err := s.issuer.Handlers()
	if err != nil {
		return err
	}
	for path, h := range handlers {
		s.generic.Handler.NonGoRestfulMux.Handle(path, h)
	}
	s.generic.Handler.NonGoRestfulMux.UnlistedHandlePrefix(flow.DebugPath, http.HandlerFunc(s.ext.flow.Debug))
	s.generic.PrepareRun() // installs the health endpoints
	s.handler = s.generic.Handler
	s.rbac.SetSources(func(gr schema.GroupResource) auth.Source { return s.stores[gr] })
	s.nodes.SetPods(s.stores[podsResource])
	return nil
}

func (s *Server) storageOf(gr schema.GroupResource) rest.Storage { return s.storages[gr] }

// storagesByGroup builds the storage of every kind, keyed by group version and
// path, and remembers the main ones.
func (s *Server) storagesByGroup(reader admission.Reader) (map[schema.GroupVersion]map[string]rest.Storage, error) {
	b := &registry.Builder{Set: s.set, Options: s.options}
	out := map[schema.GroupVersion]map[string]rest.Storage{}
	put := func(gv schema.GroupVersion, paths map[string]rest.Storage) {
		if out[gv] == nil {
			out[gv] = map[string]rest.Storage{}
		}
		for path, st := range paths {
			out[gv][path] = st
			if _, ok := s.storages[schema.GroupResource{Group: gv.Group, Resource: path}]; !ok {
				s.storages[schema.GroupResource{Group: gv.Group, Resource: path}] = st
			}
		}
	}
	for _, r := range s.descriptors() {
		of, _ := kinds.RulesOf(r.Kind.GroupKind()) // a kind without rules of its own gets the zero value
		hook(r, of)
		store, paths, err := b.Build(r)
		if err != nil {
			return nil, err
		}
		s.stores[r.GroupResource()] = store
		put(r.Kind.GroupVersion(), paths)
		for _, gv := range r.AlsoServed {
			if err := b.AddFieldLabels(r, gv.WithKind(r.Kind.Kind)); err != nil {
				return nil, err
			}
			put(gv, paths)
		}
	}
	s.allocator.Bind(s.stores[rangesResource], s.stores[addressesResource])
	p, err := pods.New(pods.Config{Scheme: s.set.Scheme, RESTOptions: s.options, Reader: reader, Storages: s.storageOf, Authorizer: s.authorizer, Agents: pods.NodeAgents{
		Dial: s.cfg.NodeDialer, TLS: s.agentTLS()}})
	if err != nil {
		return nil, err
	}
	s.stores[podsResource] = &registry.Store{Store: p.Pods.Store}
	put(corev1.SchemeGroupVersion, p.Resources)
	put(corev1.SchemeGroupVersion, map[string]rest.Storage{"componentstatuses": core.NewComponents(map[string]func() error{"etcd-0": func() error { return s.engine.Check(context.Background()) }})})
	definitions, err := apiextensions.Storage(s.ext.definitions, s.ext.crds.Activate)
	if err != nil {
		return nil, err
	}
	put(apiextensionsv1.SchemeGroupVersion, definitions)
	for gv, paths := range auth.Reviews(union.NewRuleResolvers(s.nodes, s.rbac), s.generic.Authorizer, s.bearers) {
		put(gv, paths)
	}
	return out, nil
}

func (s *Server) descriptors() []*registry.Resource {
	var out []*registry.Resource
	out = append(out, kinds.BuiltIn(s.authorizer, devices.DeviceChecks{Authorizer: s.authorizer, Namespace: s.namespace})...)
	out = append(out, s.allocator.Resource())
	out = append(out, s.extensionKinds()...)
	out = append(out, flowcontrol.Kinds(func() { s.ext.flow.Deleted() })...)
	out = append(out, apiregistration.Kind(func(name string, o *apiregistrationv1.APIService) { s.ext.foreign.Changed(name, o) }))
	for _, r := range out {
		if s.issuer != nil && r.GroupResource() == corev1.Resource("serviceaccounts") {
			r.Subresources = func(*registry.Store) (map[string]rest.Storage, error) {
				return map[string]rest.Storage{"serviceaccounts/token": s.issuer.REST()}, nil
			}
		}
		auth.Guard(r, s.rbac)
	}
	return out
}

// namespace returns a namespace for a check within the request of ctx.
func (s *Server) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	obj, err := s.reader.Get(ctx, corev1.Resource("namespaces"), "", name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Namespace), nil
}

// hook gives a descriptor the rules of its kind.
func hook(r *registry.Resource, of rules.Rules) {
	if of.Name != nil {
		r.ValidateName = of.Name
	}
	if of.Create != nil {
		r.Validator.Create = of.Create
	}
	if of.Update != nil {
		r.Validator.Update = of.Update
	}
	if of.StatusUpdate != nil {
		r.Validator.StatusUpdate = of.StatusUpdate
	}
	if of.Subresource != nil {
		r.Validator.Subresource = of.Subresource
	}
	if of.StatusWarnings != nil {
		r.Validator.StatusWarnings = of.StatusWarnings
	}
	if of.Warnings != nil {
		r.Validator.Warnings = of.Warnings
	}
}

// agentTLS is how the server speaks to node agents: it shows its client
// certificate and trusts the cluster's authority alone. The name to expect is
// set for each connection.
func (s *Server) agentTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.cfg.PKI.Pool, GetClientCertificate: s.cfg.PKI.APIServerClient.Present}
}

// versioned is the effective version with a fallback for builds whose linker was
// not told the library's version variables: then they hold a template that no
// client can parse.
type versioned struct{ compatibility.EffectiveVersion }

func (v versioned) Info() *apimachineryversion.Info {
	i := v.EffectiveVersion.Info()
	if _, err := utilversion.ParseSemantic(i.GitVersion); err != nil || strings.Contains(i.GitVersion, "$Format") {
		i.GitVersion, i.GitCommit, i.GitTreeState = defaultVersion, "unknown", "clean"
	}
	return i
}

// forAudiences authenticates by tokens that name their audiences, then by others, which
// are for the API server alone. Who asks for no audience asks as the API server.
func forAudiences(own authenticator.Audiences, named authenticator.Token, others ...authenticator.Token) authenticator.Token {
	all := tokenunion.NewFailOnError(named, authenticator.WrapAudienceAgnosticToken(own, tokenunion.NewFailOnError(others...)))
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if _, ok := authenticator.AudiencesFrom(ctx); !ok {
			ctx = authenticator.WithAudiences(ctx, own)
		}
		return all.AuthenticateToken(ctx, token)
	})
}
