package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"carob/internal/apiserver/aggregation"
	"carob/internal/apiserver/compression"
	"carob/internal/apiserver/crds"
	"carob/internal/apiserver/flow"
	"carob/internal/apiserver/inprocess"
	"carob/internal/apiserver/metricsapi/external"
	"carob/internal/apiserver/metricsapi/usage"
	"carob/internal/apiserver/storage"
	"carob/internal/apiserver/webhooks"
	"carob/internal/base/externalmetrics"
	"carob/internal/base/partiallist"
	"carob/internal/kinds/admissionregistration"
	"carob/internal/kinds/apiextensions"
	"carob/internal/kinds/apiregistration"
	"carob/internal/kinds/registry"
)

// extensions are the parts by which users extend the API. They are inactive until they are needed.
type extensions struct {
	resolver             webhookutil.ServiceResolver
	plugins              *webhooks.Plugins
	objects, definitions *storage.CustomResourceOptions // storage options of custom resources and their definitions
	crds                 *crds.Server
	flow                 *flow.Dispatcher
	aggregation          *aggregation.Server
	usage                *usage.Server
	external             *external.Server
}

// serverClient is the client configuration of the extensions' controllers and informers, with the
// server's own identity.
func (s *Server) serverClient() *restclient.Config {
	c := s.ClientConfig(user.APIServerUser, user.SystemPrivilegedGroup)
	c.UserAgent = inprocess.UserAgent(serverName)
	return c
}

func admissionregistrationResource(r string) schema.GroupResource {
	return schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: r}
}

// extensionKinds describes the extension kinds in the registry.
func (s *Server) extensionKinds() []*registry.Resource {
	return admissionregistration.Kinds(admissionregistration.Hooks{Written: func() { s.ext.plugins.Activate() },
		MayRead: s.mayReadParams, ParamKind: s.paramKind})
}

// extend creates the handlers of paths that no built-in group serves.
func (s *Server) extend(c *genericapiserver.Config) error {
	s.ext.objects = s.options.ForCustomResources(apiextensions.ObjectCodec(), nil)
	s.ext.definitions = s.options.ForCustomResources(apiextensions.DefinitionCodec())
	s.ext.crds = crds.New(crds.Config{
		Client: s.serverClient, Objects: s.ext.objects, Admission: c.AdmissionControl, Authorizer: s.generic.Authorizer,
		Resolver: s.ext.resolver, Wrapper: s.credentials,
		Aggregated: s.generic.AggregatedDiscoveryGroupManager, Groups: s.groups,
		Changed:        s.cfg.DefinitionChanged,
		RequestTimeout: c.RequestTimeout, MinRequestTimeout: time.Duration(c.MinRequestTimeout) * time.Second,
		MaxBodyBytes: c.MaxRequestBodyBytes,
	})
	var err error
	s.ext.usage, err = usage.New(usage.Config{
		Reader: s.reader, Sampler: &usage.Sampler{Read: s.readSummary()}, Authorizer: s.generic.Authorizer,
		Groups: s.groups, Aggregated: s.generic.AggregatedDiscoveryGroupManager,
		Next: compression.Lists(s.ext.crds),
	})
	if err != nil {
		return err
	}
	s.ext.external = external.New(external.Config{Groups: s.groups,
		Aggregated: s.generic.AggregatedDiscoveryGroupManager, Next: s.ext.usage})
	s.ext.aggregation = aggregation.New(aggregation.Config{
		Client: s.serverClient, Resolver: s.ext.resolver, Aggregated: s.generic.AggregatedDiscoveryGroupManager,
		Groups:     s.groups,
		Serializer: s.set.Codecs, Next: s.ext.external,
		Lasts: lasts, Timeout: c.RequestTimeout, Own: inprocess.Is,
		Taken: func(group string, taken bool) {
			switch group {
			case usage.Group:
				s.ext.usage.GiveWay(taken)
			case external.Group:
				s.ext.external.GiveWay(taken)
			}
		},
		FrontProxy: func() (*tls.Certificate, error) {
			proxy, err := s.cfg.PKI.FrontProxy(time.Now())
			if err != nil {
				return nil, err
			}
			return proxy.Certificate()
		},
	})
	manager := s.generic.AggregatedDiscoveryGroupManager
	list := aggregated.WrapAggregatedDiscoveryToHandler(s.groups, manager, manager)
	mux := s.generic.Handler.NonGoRestfulMux
	mux.Handle(genericapiserver.APIGroupPrefix, s.whenReady(list))
	mux.HandlePrefix(genericapiserver.APIGroupPrefix+"/",
		s.whenReady(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == genericapiserver.APIGroupPrefix+"/" {
				list.ServeHTTP(w, r)
				return
			}
			s.ext.aggregation.ServeHTTP(w, r)
		})))
	return nil
}

// whenReady passes requests on when the stored definitions and APIServices are known. Before that, their groups would
// be missing, which clients take for the end of these kinds.
func (s *Server) whenReady(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.ready:
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			http.Error(w, "the stored definitions have not been read yet", http.StatusServiceUnavailable)
		}
	})
}

// ServeExternalMetrics serves the values of a source as external.metrics.k8s.io, unless an APIService assigns the
// group to another server. A nil source ends it.
func (s *Server) ServeExternalMetrics(source externalmetrics.Source) { s.ext.external.Serve(source) }

// readSummary returns the function that reads the usage of nodes and pods from node agents, through
// the server's own proxy.
func (s *Server) readSummary() func(ctx context.Context, node string) (*usage.Summary, error) {
	client := sync.OnceValues(func() (restclient.Interface, error) {
		c := s.serverClient()
		c.NegotiatedSerializer, c.QPS = s.set.Codecs, -1
		return restclient.UnversionedRESTClientFor(c)
	})
	return func(ctx context.Context, node string) (*usage.Summary, error) {
		c, err := client()
		if err != nil {
			return nil, fmt.Errorf("make a client for node agents: %w", err)
		}
		answer, err := c.Get().AbsPath("/api/v1/nodes", node, "proxy/stats/summary").
			Param("only_cpu_and_memory", "true").Stream(ctx)
		if err != nil {
			return nil, fmt.Errorf("query the agent of node %s: %w", node, err)
		}
		defer answer.Close()
		sum, err := usage.ReadSummary(answer)
		if err != nil {
			return nil, fmt.Errorf("read what the agent of node %s measured: %w", node, err)
		}
		return sum, nil
	}
}

// wakeExtensions activates the extensions that have stored objects. It is called before the server
// is ready, so that no request bypasses a stored policy.
func (s *Server) wakeExtensions(ctx context.Context) error {
	for _, e := range []struct {
		options interface {
			Any(context.Context, ...schema.GroupResource) (bool, error)
		}
		kinds    []schema.GroupResource
		activate func()
	}{{s.options, admissionregistration.GroupResources(), s.ext.plugins.Activate},
		{s.ext.objects, []schema.GroupResource{apiextensions.GroupResource}, s.ext.crds.Activate}} {
		some, err := e.options.Any(ctx, e.kinds...)
		if err != nil {
			return err
		}
		if some {
			e.activate()
		}
	}
	// One that cannot be read must not keep the others from being served.
	err := s.reader.List(partiallist.With(ctx), apiregistration.GroupResource, "", func(o runtime.Object) bool {
		if a, ok := o.(*apiregistrationv1.APIService); ok {
			s.ext.aggregation.Written(a, true)
		}
		return true
	})
	if err != nil {
		return err
	}
	return s.awaitDefinitions(ctx)
}

// definitionsTime is how long the start waits for the stored definitions. One that cannot be read must not keep the
// rest from starting, or it could not be deleted.
const definitionsTime = 5 * time.Second

func (s *Server) awaitDefinitions(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, definitionsTime)
	defer cancel()
	err := s.ext.crds.Wait(bounded)
	if err == nil || ctx.Err() != nil || bounded.Err() == nil {
		return err
	}
	s.ext.crds.Incomplete()
	klog.FromContext(ctx).Error(err, "Stored definitions cannot be read; custom resources are served when they can")
	return nil
}

// mayReadParams implements webhooks.Hooks.
func (s *Server) mayReadParams(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) error {
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return errors.New("cannot identify user to authorize read access to parameters")
	}
	verb := "get"
	if name == "" {
		verb = "list"
	}
	a := authorizer.AttributesRecord{User: u, Verb: verb, ResourceRequest: true, Name: name, Namespace: namespace,
		APIGroup: "*", APIVersion: "*", Resource: "*"}
	if kind.Kind != "" {
		a.APIGroup, a.APIVersion = kind.Group, kind.Version
		if r := s.resourceOf(kind); r != "" {
			a.Resource = r
		}
	}
	switch d, _, err := s.authorizer.Authorize(ctx, a); {
	case err != nil:
		return err
	case d != authorizer.DecisionAllow:
		return fmt.Errorf(
			"user %q must have %q permission on the objects of the referenced paramKind (kind=%s, apiVersion=%s)",
			u.GetName(), verb, kind.Kind, kind.GroupVersion())
	}
	return nil
}

// resourceOf finds the resource of a kind in the discovery documents; "" if none is served.
func (s *Server) resourceOf(kind schema.GroupVersionKind) string {
	for gr, st := range s.stores {
		if gr.Group == kind.Group && st.Resource != nil && st.Resource.Kind.Kind == kind.Kind {
			return gr.Resource
		}
	}
	return s.ext.crds.ResourceOf(kind)
}

// paramKind implements webhooks.Hooks.
func (s *Server) paramKind(ctx context.Context, mutating bool, policy string) *admissionregistrationv1.ParamKind {
	gr := admissionregistrationResource("validatingadmissionpolicies")
	if mutating {
		gr = admissionregistrationResource("mutatingadmissionpolicies")
	}
	o, err := s.reader.Get(ctx, gr, "", policy)
	if err != nil {
		return nil // then the user must be allowed to read all groups and resources
	}
	switch p := o.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return p.Spec.ParamKind
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return p.Spec.ParamKind
	}
	return nil
}

// countObjects implements flow.Config.
func (s *Server) countObjects(ctx context.Context, gr schema.GroupResource) (int64, error) {
	if _, ok := s.stores[gr]; ok {
		return s.options.Count(ctx, gr)
	}
	return s.ext.objects.Count(ctx, gr)
}
