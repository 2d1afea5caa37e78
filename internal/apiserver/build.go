package apiserver

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authzmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"carob/internal/apiserver/admission"
	"carob/internal/apiserver/auth"
	"carob/internal/apiserver/flow"
	"carob/internal/apiserver/tokens"
	"carob/internal/kinds"
	"carob/internal/kinds/admissionregistration"
	"carob/internal/kinds/declarative"
	"carob/internal/kinds/flowcontrol"
	"carob/internal/kinds/scheme"
	"carob/internal/kinds/services"
)

const (
	// The version of Kubernetes that the API is compatible with; in releases, the linker sets it
	// (k8s.io/component-base/version.gitVersion).
	defaultVersion = "v1.37.2"

	minor      = "1.37"
	minorFloor = "1.36"
	maxReads   = 400
	maxWrites  = 200
	noLoopback = "http://carob.invalid"
)

func (c *Config) etcdDir() string { return filepath.Join(c.DataDir, "etcd") }

// prepare creates everything that needs no storage engine.
func (s *Server) prepare() error {
	set, err := scheme.New(kinds.RegisterDefaults, declarative.Register, admissionregistration.RegisterDefaults,
		flowcontrol.RegisterDefaults)
	if err != nil {
		return err
	}
	s.set = set
	s.allocator, err = services.NewAllocator(s.cfg.ServiceCIDRs, s.cfg.NodePorts[0], s.cfg.NodePorts[1])
	if err != nil {
		return err
	}
	s.rbac = auth.NewRBAC(auth.Builtin())
	s.reader = admission.NewReader(s.storageOf,
		func(gr schema.GroupResource) (uint64, bool) { return s.engine.Writes(gr) })
	s.nodes = auth.NewNode(s.reader)
	if s.authorizer, err = union.New(counted("Node", s.nodes), counted("RBAC", s.rbac)); err != nil {
		return fmt.Errorf("put the authorizers in order: %w", err)
	}
	return nil
}

// counted counts the decisions of an authorizer.
func counted(kind string, a authorizer.Authorizer) union.NamedAuthorizer {
	name := strings.ToLower(kind)
	return union.NamedAuthorizer{AuthorizerName: name, Authorizer: authzmetrics.InstrumentedAuthorizer(kind, name, a)}
}

// build creates the generic server, the storages, and the routes.
func (s *Server) build() error {
	reader := s.reader
	var err error
	if s.issuer,
		err = tokens.New(tokens.Config{Key: s.cfg.PKI.ServiceAccountKey, Reader: reader,
		Used: s.secretTokenUsed}); err != nil {
		return err
	}
	c := genericapiserver.NewConfig(s.set.Codecs)
	c.EffectiveVersion = versioned{compatibility.NewEffectiveVersionFromString(minor, minor, minorFloor)}
	c.ExternalAddress = s.cfg.Listener.Addr().String()
	// Required by the library, but nothing in carob calls back over the network.
	c.LoopbackClientConfig = &restclient.Config{Host: noLoopback}
	c.SkipOpenAPIInstallation = true
	c.EnableProfiling = s.cfg.Profiling
	c.EnableIndex, c.EnableDiscovery = true, false // carob has its own list of groups
	c.StorageObjectCountTracker = nil
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = maxReads, maxWrites
	c.RequestTimeout = requestTimeout
	s.ext.flow = flow.New(flow.Config{Client: s.serverClient, Reads: maxReads, Writes: maxWrites,
		LongRunning: longRunning, RequestTimeout: requestTimeout, Count: s.countObjects})
	c.LongRunningFunc = longRunning
	c.DisabledPostStartHooks = sets.NewString("max-in-flight-filter") // measure does it
	c.HealthzChecks, c.LivezChecks, c.ReadyzChecks = s.healthChecks()
	// carob's own first: for an external issuer, the keys may have to be fetched.
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
	s.groups = newAPIGroupList(s.generic.Serializer)
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

// agentTLS is the configuration for connections to node agents: the server's client certificate,
// and trust in the cluster's authority alone. The expected name is set for each connection.
func (s *Server) agentTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.cfg.PKI.Pool,
		GetClientCertificate: s.cfg.PKI.APIServerClient.Present}
}
