// Package podstorage is the API server's storage of pods: how a pod is created, changed, and deleted, and the
// subresources that reach its node (log, exec, attach, portforward, proxy), bind it, or evict it.
//
// The API server drives it: it installs the storages that New returns under /api/v1. The package decides nothing
// about where or how a pod runs. It reads nodes and disruption budgets through a reader, and passes a client's
// request for logs or streams on to the node's agent.
//
//	POST pods ──▶ Pending ──▶ binding ──▶ (node agent writes status) ──▶ DELETE: deletionTimestamp ──▶ DELETE grace 0: gone
//	                 └── DELETE of an unscheduled or finished pod: gone at once ──────────────────────────────┘
//
// Contract: docs/spec/pod-lifecycle.md.
package podstorage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/apiserver/admission"
	"carob/internal/apiserver/endpoints"
	carobstorage "carob/internal/apiserver/storage"
	"carob/internal/kinds/pods"
)

// Config is what the pod storages need.
type Config struct {
	// Scheme is the server's type registry; New adds the field selectors of pods to it.
	Scheme *runtime.Scheme
	// RESTOptions makes the store.
	RESTOptions generic.RESTOptionsGetter
	// Reader reads nodes and pod disruption budgets.
	Reader admission.Reader
	// Storages finds the storage of another resource; eviction writes to "poddisruptionbudgets/status" with it.
	Storages admission.Storages
	// Agents reaches the node agents for logs, exec, attach, and port-forward.
	Agents NodeAgents
	// Authorizer decides who may start streams with a GET.
	Authorizer authorizer.UnconditionalAuthorizer
}

// NodeAgents is how the API server connects to the agent of a node.
type NodeAgents struct {
	// Dial opens a connection to the agent of a node; addr is the host:port in its Node object.
	Dial func(ctx context.Context, nodeName, addr string) (net.Conn, error)
	// TLS is the client side of that connection: the client certificate, and the CA of the agent's
	// certificate. Nil means that Dial already returns a connection that no other process can use, with
	// plain HTTP on it.
	TLS *tls.Config
}

// Storage is the set of pod storages.
type Storage struct {
	// Pods is the main resource.
	Pods *Store
	// Resources are all of them by path under /api/v1 ("pods", "pods/status", "bindings", ...),
	// "services/proxy", and "nodes/proxy".
	Resources map[string]rest.Storage
}

// Resource is the group and resource of pods.
var Resource = schema.GroupResource{Resource: "pods"}

// New creates the pod storages. It registers in the scheme the field selectors of pods (L1.2) and
// the query parameters of the streaming subresources of pods, nodes, and services.
func New(c Config) (*Storage, error) {
	if err := c.Scheme.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind("Pod"),
		pods.FieldLabel); err != nil {
		return nil, fmt.Errorf("register the field selectors of pods: %w", err)
	}
	if err := registerOptions(c.Scheme); err != nil {
		return nil, err
	}
	main := pods.NewStrategy(c.Scheme)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &corev1.Pod{} },
		NewListFunc:               func() runtime.Object { return &corev1.PodList{} },
		PredicateFunc:             pods.Match,
		DefaultQualifiedResource:  Resource,
		SingularQualifiedResource: schema.GroupResource{Resource: "pod"},
		CreateStrategy:            main,
		UpdateStrategy:            main,
		DeleteStrategy:            main,
		ResetFieldsStrategy:       main,
		ReturnDeletedObject:       true,
		TableConvertor:            pods.TableConvertor{},
	}
	options := &generic.StoreOptions{
		RESTOptions: c.RESTOptions,
		AttrFunc:    pods.Attributes,
		TriggerFunc: map[string]storage.IndexerFunc{
			"spec.nodeName": func(o runtime.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return nil, fmt.Errorf("make the pod store: %w", err)
	}

	s := &Storage{Pods: &Store{store}}
	bind := &bindingREST{store: store}
	status := &statusREST{subresource(store, pods.StatusStrategy{Strategy: main})}
	agents := newAgents(c.Agents, c.Reader)
	create := creator{c.Authorizer}
	connect := connecter{finder{store: store, agents: agents}, create}
	transport := podTransport()
	s.Resources = map[string]rest.Storage{
		"pods":                     s.Pods,
		"pods/status":              status,
		"pods/ephemeralcontainers": subresource(store, pods.EphemeralStrategy{Strategy: main}),
		"pods/resize":              subresource(store, pods.ResizeStrategy{Strategy: main}),
		"pods/binding":             bind,
		"bindings":                 &legacyBindingREST{bind},
		"pods/eviction": &evictionREST{store: store, status: status.updateREST, reader: c.Reader, storages: c.Storages,
			pause: retryPause},
		"pods/log":         &logREST{connect.finder},
		"pods/exec":        &execREST{connect},
		"pods/attach":      &attachREST{connect},
		"pods/portforward": &portForwardREST{connect},
		"pods/proxy":       &proxyREST{finder: connect.finder, transport: transport},
		"services/proxy":   &serviceProxyREST{&endpoints.Resolver{Reader: c.Reader}, transport},
		"nodes/proxy":      &nodeProxyREST{agents, create},
	}
	return s, nil
}

// Store is the main resource: a generic store with the names kubectl uses (L1.1).
type Store struct{ *genericregistry.Store }

// Delete implements rest.GracefulDeleter. A pod that needs no grace period is updated first, so that watches show that
// it is being deleted, and then deleted.
func (s *Store) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	return s.Store.Delete(carobstorage.WithUpdates(ctx), name, validate, options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (s *Store) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
	which *metainternalversion.ListOptions) (runtime.Object, error) {
	return s.Store.DeleteCollection(carobstorage.WithUpdates(ctx), validate, options, which)
}

// ShortNames are what kubectl accepts instead of "pods".
func (*Store) ShortNames() []string { return []string{"po"} }

// Categories puts pods into "kubectl get all".
func (*Store) Categories() []string { return []string{"all"} }

// updateREST serves a subresource that gets, updates, and patches the pod itself with a strategy of
// its own. As in upstream's server, ephemeralcontainers and resize do not declare which fields they never
// change: server-side apply records an owner of whatever a request contains.
type updateREST struct{ store *genericregistry.Store }

// subresource uses the pods of store with another strategy.
func subresource(store *genericregistry.Store, s rest.RESTUpdateStrategy) *updateREST {
	copied := *store
	copied.UpdateStrategy = s
	return &updateREST{&copied}
}

// statusREST is the status subresource.
type statusREST struct{ *updateREST }

// GetResetFields are the fields this subresource never changes, for server-side apply.
func (*statusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return pods.StatusStrategy{}.GetResetFields()
}

func (r *updateREST) New() runtime.Object { return &corev1.Pod{} }

// Destroy does nothing: the store is shared with the main resource.
func (r *updateREST) Destroy() {}

func (r *updateREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

func (r *updateREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool,
	options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, info, create, update, false, options)
}

// UpdateStrategy returns the strategy by which the subresource changes the pod.
func (r *updateREST) UpdateStrategy() rest.RESTUpdateStrategy { return r.store.UpdateStrategy }

func (r *updateREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, obj, options)
}
