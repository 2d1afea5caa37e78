package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/union"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"carob/internal/apiserver/admission"
	"carob/internal/apiserver/auth"
	"carob/internal/apiserver/podstorage"
	"carob/internal/kinds"
	"carob/internal/kinds/apiextensions"
	"carob/internal/kinds/apiregistration"
	"carob/internal/kinds/core"
	"carob/internal/kinds/devices"
	"carob/internal/kinds/flowcontrol"
	"carob/internal/kinds/registry"
	"carob/internal/kinds/rules"
)

// serverName is the manager of the fields that the server writes itself.
const serverName = "kube-apiserver"

// storageIndex finds the storage that is served for a resource.
type storageIndex map[schema.GroupResource]rest.Storage

func (s *Server) storageOf(gr schema.GroupResource) rest.Storage { return s.storages[gr] }

// storagesByGroup builds the storage of every kind, keyed by group version and path, and records
// the main ones.
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
		of, _ := kinds.RulesOf(r.Kind.GroupKind()) // a kind without validation of its own gets the zero value
		setRules(r, of)
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
	p, err := podstorage.New(podstorage.Config{
		Scheme: s.set.Scheme, RESTOptions: s.options, Reader: reader, Storages: s.storageOf,
		Authorizer: s.authorizer, Agents: podstorage.NodeAgents{
			Dial: s.cfg.NodeDialer, TLS: s.agentTLS()}})
	if err != nil {
		return nil, err
	}
	s.stores[podsResource] = &registry.Store{Store: p.Pods.Store}
	put(corev1.SchemeGroupVersion, p.Resources)
	put(corev1.SchemeGroupVersion,
		map[string]rest.Storage{"componentstatuses": core.NewComponents(
			map[string]func() error{"etcd-0": func() error { return s.engine.Check(context.Background()) }})})
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
	out = append(out,
		kinds.BuiltIn(s.authorizer, devices.DeviceChecks{Authorizer: s.authorizer, Namespace: s.namespace})...)
	out = append(out, s.allocator.Resource())
	out = append(out, s.extensionKinds()...)
	out = append(out, flowcontrol.Kinds(func() { s.ext.flow.Deleted() })...)
	out = append(out,
		apiregistration.Kind(func(o *apiregistrationv1.APIService, exists bool) {
			s.ext.aggregation.Written(o, exists)
		}))
	for _, r := range out {
		if s.issuer != nil && r.GroupResource() == corev1.Resource("serviceaccounts") {
			r.Subresources = func(*registry.Store) (map[string]rest.Storage, error) {
				return map[string]rest.Storage{"serviceaccounts/token": s.issuer.REST()}, nil
			}
		}
		auth.PreventEscalation(r, s.rbac)
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

// setRules sets the validation of a kind in its descriptor.
func setRules(r *registry.Resource, of rules.Rules) {
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

// stores are the main storages of kinds.
type stores map[schema.GroupResource]*registry.Store

func (s stores) destroy() {
	for _, st := range s {
		if st.DestroyFunc != nil {
			st.DestroyFunc()
		}
	}
}

// create stores obj unless it exists. It looks first: on all but the first start, this avoids a
// failed write.
func (s stores) create(ctx context.Context, gr schema.GroupResource, namespace string, obj metav1.Object) error {
	ctx = apirequest.WithNamespace(ctx, namespace)
	if _, err := s[gr].Get(ctx, obj.GetName(), &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	owned, err := s[gr].Manage(s[gr].New(), obj.(runtime.Object), serverName)
	if err != nil {
		return err
	}
	_, err = s[gr].Create(ctx, owned, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %v: %w", gr, err)
	}
	return nil
}

// upsert creates obj, or lets change adjust the stored one; change reports whether there is
// anything to write.
func upsert[T metav1.Object](ctx context.Context, st *registry.Store, obj T, change func(T) bool) error {
	ctx = apirequest.WithNamespace(ctx, obj.GetNamespace())
	owned, err := st.Manage(st.New(), any(obj).(runtime.Object).DeepCopyObject(), serverName)
	if err != nil {
		return err
	}
	_, err = st.Create(ctx, owned, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, _, err = st.Update(ctx, obj.GetName(),
		rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			o := old.DeepCopyObject()
			if !change(any(o).(T)) {
				return o, nil
			}
			return st.Manage(old.DeepCopyObject(), o, serverName)
		}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}
