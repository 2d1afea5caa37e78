// Package crds serves custom resources: the kind CustomResourceDefinition, the objects of the kinds
// that users define, their discovery, and their part of the OpenAPI documents. The rules come from
// k8s.io/apiextensions-apiserver; the composition is carob's own, so that it costs nothing until a
// first definition is stored, and documents are built only when a client reads them. The API server
// drives it: it installs the kind and passes on requests that no built-in group serves.
package crds

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	clientset "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Config is what serving custom resources needs from the API server.
type Config struct {
	// Client returns the configuration of an in-process client with all permissions.
	Client func() *restclient.Config
	// Objects configures how custom resources are stored.
	Objects    generic.RESTOptionsGetter
	Admission  admission.Interface
	Authorizer authorizer.UnconditionalAuthorizer
	// Resolver finds the endpoints of conversion webhooks, Wrapper adds the credentials for them.
	Resolver webhookutil.ServiceResolver
	Wrapper  webhookutil.AuthenticationInfoResolverWrapper
	// Aggregated and Groups get the API groups.
	Aggregated aggregated.ResourceManager
	Groups     Groups
	// Changed, if not nil, is called for each definition that is served, with its labels, and
	// for each that is gone, with nil. It is called by one goroutine and must not wait.
	Changed func(name string, labels map[string]string)

	RequestTimeout, MinRequestTimeout time.Duration
	MaxBodyBytes                      int64
}

// Groups is the list of all API groups.
type Groups interface {
	AddGroup(g metav1.APIGroup, priority int32)
	RemoveGroup(name string)
}

// Server serves custom resources. Until Activate, there are none.
type Server struct {
	cfg    Config
	groups *groups
	active atomic.Bool
	wake   chan struct{} // closed by Activate
	synced chan struct{} // closed when all stored definitions are known
	once   sync.Once

	// Set before synced is closed.
	err     error
	objects http.Handler
	lister  establishedLister
	limit   *errorLimit
}

// New returns an inactive server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, groups: newGroups(cfg.Aggregated, cfg.Groups), wake: make(chan struct{}),
		synced: make(chan struct{})}
}

// Activate announces that there is a definition. Requests wait until it is loaded.
func (s *Server) Activate() {
	s.once.Do(func() {
		s.active.Store(true)
		close(s.wake)
	})
}

// Wait returns when an activated server has loaded all definitions that were stored before; at once
// if there are none.
func (s *Server) Wait(ctx context.Context) error {
	if !s.active.Load() {
		return nil
	}
	select {
	case <-s.synced:
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unread stands for the groups of definitions that cannot be read.
var unread = metav1.GroupVersion{Group: "unread.carob.dev", Version: "v1"}

// Incomplete lists a version whose kinds are unknown until all definitions are loaded. Without it, discovery would seem
// complete, and the deletion of a namespace would end without its custom resources.
func (s *Server) Incomplete() {
	s.groups.aggregated.AddGroupVersion(unread.Group, apidiscoveryv2.APIVersionDiscovery{Version: unread.Version,
		Freshness: apidiscoveryv2.DiscoveryFreshnessStale})
	go func() {
		<-s.synced // closed at the latest when Run ends
		s.groups.aggregated.RemoveGroupVersion(unread)
	}()
}

// Run serves definitions from Activate until ctx ends.
func (s *Server) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.wake:
	}
	if s.err = s.start(ctx); s.err != nil {
		klog.FromContext(ctx).Error(s.err, "Custom resources cannot be served")
		close(s.synced)
	}
}

// start returns when ctx has ended, or early with an error.
func (s *Server) start(ctx context.Context) error {
	apiextensionsvalidation.RegisterMetrics()
	client, err := clientset.NewForConfig(s.cfg.Client())
	if err != nil {
		return err
	}
	v1 := client.ApiextensionsV1()
	factory := informers.NewSharedInformerFactory(client, 0)
	definitions := factory.Apiextensions().V1().CustomResourceDefinitions()
	s.lister = establishedLister{definitions.Lister()}
	s.groups.definitions = definitions.Lister()
	s.limit = newErrorLimit(s.cfg.Admission, definitions.Lister().Get)
	registration, err := definitions.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.groups.changed(nil, o); s.report(o, false) },
		UpdateFunc: func(old, o any) { s.groups.changed(old, o); s.report(o, false) },
		DeleteFunc: func(o any) { s.groups.changed(o, nil); s.report(o, true) },
	})
	if err != nil {
		return err
	}
	establishing := establish.NewEstablishingController(definitions, v1)
	// carob has its own discovery, so the handler's is never called and may be nil. The empty map
	// means that field ownership follows the schema.
	handler, err := apiextensionsapiserver.NewCustomResourceDefinitionHandler(nil, nil,
		establishedInformer{definitions},
		http.NotFoundHandler(), s.cfg.Objects, s.limit,
		establishing, s.cfg.Resolver, s.cfg.Wrapper, 1, s.cfg.Authorizer, s.cfg.RequestTimeout, s.cfg.MinRequestTimeout,
		map[string]*spec.Schema{}, s.cfg.MaxBodyBytes)
	if err != nil {
		return err
	}
	s.objects = handler
	naming := status.NewNamingConditionController(klog.FromContext(ctx), definitions, v1)
	schemas := nonstructuralschema.NewConditionController(definitions, v1)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(definitions, v1)
	deletion := finalizer.NewCRDFinalizer(definitions, v1, handler)

	factory.Start(ctx.Done())
	if !cache.WaitForNamedCacheSyncWithContext(ctx, registration.HasSynced) {
		return context.Cause(ctx)
	}
	close(s.synced)
	var wg sync.WaitGroup
	for _, run := range []func(context.Context){
		naming.RunWithContext, establishing.RunWithContext,
		func(ctx context.Context) { schemas.RunWithContext(1, ctx) },
		func(ctx context.Context) { approval.RunWithContext(1, ctx) },
		func(ctx context.Context) { deletion.RunWithContext(1, ctx) },
	} {
		wg.Go(func() { run(ctx) })
	}
	<-ctx.Done()
	wg.Wait()
	factory.Shutdown()
	return nil
}

// report calls Changed for a definition that has changed or is gone.
func (s *Server) report(o any, gone bool) {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	d, ok := o.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	if gone {
		s.limit.forget(d.UID)
	}
	if s.cfg.Changed == nil {
		return
	}
	labels := d.Labels
	switch {
	case gone || d.DeletionTimestamp != nil || !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established):
		labels = nil
	case labels == nil:
		labels = map[string]string{}
	}
	s.cfg.Changed(d.Name, labels)
}

// ServeHTTP serves the paths below /apis of the groups that definitions create.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.active.Load() {
		http.NotFound(w, r)
		return
	}
	if err := s.Wait(r.Context()); err != nil {
		http.Error(w, "custom resources are not available: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.IsResourceRequest {
		s.objects.ServeHTTP(w, r)
		return
	}
	s.groups.ServeHTTP(w, r)
}
