package registry

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/kinds/declarative"
	"carob/internal/kinds/disabledfields"
	"carob/internal/kinds/rules"
	"carob/internal/kinds/unchanged"
)

// Strategy is the create, update, and delete strategy of every kind, configured by its Resource.
// Kinds with their own rules embed it and override methods.
type Strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	declarative.Once
	Resource *Resource
	// Field positions in the Go struct, -1 if the kind has no such field: looked up once, because
	// FieldByName on each write is expensive.
	meta, spec, status int
	scheme             *runtime.Scheme
	reset              map[fieldpath.APIVersion]*fieldpath.Set
}

var (
	_ rest.RESTCreateStrategy         = (*Strategy)(nil)
	_ rest.RESTUpdateStrategy         = (*Strategy)(nil)
	_ rest.RESTDeleteStrategy         = (*Strategy)(nil)
	_ rest.ResetFieldsStrategy        = (*Strategy)(nil)
	_ UpdateStrategy                  = (*StatusStrategy)(nil)
	_ rest.RESTGracefulDeleteStrategy = gracefulStrategy{}

	_ rest.DeclarativeValidationStrategy   = (*Strategy)(nil)
	_ rest.GarbageCollectionDeleteStrategy = (*Strategy)(nil)
)

func newStrategy(scheme *runtime.Scheme, r *Resource) (*Strategy, error) {
	t := reflect.TypeOf(r.New()).Elem()
	s := &Strategy{ObjectTyper: scheme, scheme: scheme, NameGenerator: names.SimpleNameGenerator, Resource: r,
		meta: fieldIndex(t, "ObjectMeta"), spec: fieldIndex(t, "Spec"), status: fieldIndex(t, "Status")}
	if s.meta < 0 || r.Status && s.status < 0 {
		return nil, fmt.Errorf("%v has not the fields its descriptor says", r.Kind)
	}
	switch {
	case len(r.Resets) > 0:
		s.reset = ResetFields(r, r.Resets...)
	case r.Status:
		s.reset = ResetFields(r, "status")
	}
	return s, nil
}

func fieldIndex(t reflect.Type, name string) int {
	if f, ok := t.FieldByName(name); ok && len(f.Index) == 1 {
		return f.Index[0]
	}
	return -1
}

// ResetFields returns the set of the given dotted paths for every version in which the kind is
// served.
func ResetFields(r *Resource, paths ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, p := range paths {
		var elements []any
		for name := range strings.SplitSeq(p, ".") {
			elements = append(elements, name)
		}
		set.Insert(fieldpath.MakePathOrDie(elements...))
	}
	out := map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(r.Kind.GroupVersion().String()): set}
	for _, gv := range r.AlsoServed {
		out[fieldpath.APIVersion(gv.String())] = set
	}
	return out
}

// NamespaceScoped implements rest.RESTCreateStrategy.
func (s *Strategy) NamespaceScoped() bool { return !s.Resource.Cluster }

// AllowCreateOnUpdate implements rest.RESTUpdateStrategy.
func (s *Strategy) AllowCreateOnUpdate(context.Context) bool { return s.Resource.CreateOnUpdate }

// AllowUnconditionalUpdate implements rest.RESTUpdateStrategy.
func (s *Strategy) AllowUnconditionalUpdate(context.Context) bool {
	return !s.Resource.RequireResourceVersion
}

// Canonicalize implements rest.RESTCreateStrategy.
func (s *Strategy) Canonicalize(runtime.Object) {}

// PrepareForCreate clears fields that a client may not set, and starts the generation at 1.
func (s *Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.Resource.Status && !s.Resource.CreateStatus {
		reflect.ValueOf(obj).Elem().Field(s.status).SetZero()
	}
	if !s.Resource.NoGeneration && !s.Resource.GenerationFromZero {
		objectMeta(obj).SetGeneration(1)
	}
	s.dropDisabledFields(obj, nil)
	if s.Resource.PrepareCreate != nil {
		s.Resource.PrepareCreate(ctx, obj)
	}
}

// PrepareForUpdate keeps the old status, and increments the generation if the desired state
// changes.
func (s *Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, p := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	if s.Resource.Status {
		o.Field(s.status).Set(p.Field(s.status))
	}
	s.dropDisabledFields(obj, old)
	m, om := objectMeta(obj), objectMeta(old)
	if !s.Resource.NoGeneration {
		m.SetGeneration(om.GetGeneration())
	}
	if s.Resource.PrepareUpdate != nil {
		s.Resource.PrepareUpdate(ctx, obj, old)
	}
	if s.Resource.NoGeneration || s.spec < 0 {
		return
	}
	if now, was := o.Field(s.spec), p.Field(s.spec); !unchanged.Reflected(now, was) &&
		!equality.Semantic.DeepEqual(now.Addr().Interface(), was.Addr().Interface()) {
		m.SetGeneration(om.GetGeneration() + 1)
	}
}

// dropDisabledFields drops disabled fields in obj's pod template; old is nil for a create.
func (s *Strategy) dropDisabledFields(obj, old runtime.Object) {
	if s.Resource.Template == nil {
		return
	}
	pods := s.Resource.Template(obj)
	if pods == nil {
		return
	}
	var before *corev1.PodSpec
	if old != nil {
		before = s.Resource.Template(old)
	}
	disabledfields.PodSpec(pods, before)
}

// Validate implements rest.RESTCreateStrategy: metadata, then the kind.
func (s *Strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	var errs field.ErrorList
	if !s.Resource.OwnMetadata {
		errs = s.metadata(obj)
	}
	if s.Resource.AuthorizeCreate != nil {
		errs = append(errs, s.Resource.AuthorizeCreate(ctx, obj)...)
	}
	if s.Resource.Validator.Create != nil {
		errs = append(errs, s.Resource.Validator.Create(ctx, obj)...)
	}
	return Bounded(declarative.Check(ctx, s.scheme, errs, obj, nil, ""))
}

func (s *Strategy) metadata(obj runtime.Object) field.ErrorList {
	name := s.Resource.ValidateName
	if name == nil {
		name = apivalidation.NameIsDNSSubdomain
	}
	errs := apivalidation.ValidateObjectMetaAccessor(objectMeta(obj), !s.Resource.Cluster, name,
		field.NewPath("metadata"))
	return append(errs, s.finalizers(obj)...)
}

// finalizers validates their names; a few kinds, as upstream, accept any qualified name.
func (s *Strategy) finalizers(obj runtime.Object) field.ErrorList {
	switch s.Resource.Kind.Kind {
	case "Event", "Lease", "PodDisruptionBudget", "RuntimeClass", "ValidatingWebhookConfiguration",
		"MutatingWebhookConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy",
		"MutatingAdmissionPolicyBinding":
		return nil
	}
	return rules.Finalizers(objectMeta(obj).GetFinalizers())
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s *Strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(objectMeta(obj), objectMeta(old), field.NewPath("metadata"))
	errs = append(errs, s.finalizers(obj)...)
	if s.Resource.Validator.Update != nil {
		errs = append(errs, s.Resource.Validator.Update(ctx, obj, old)...)
	}
	return Bounded(declarative.Check(ctx, s.scheme, errs, obj, old, ""))
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s *Strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	if s.Resource.Validator.Warnings == nil {
		return nil
	}
	return s.Resource.Validator.Warnings(ctx, obj, nil)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s *Strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s.Resource.Validator.Warnings == nil {
		return nil
	}
	return s.Resource.Validator.Warnings(ctx, obj, old)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return s.reset }

// DefaultGarbageCollectionPolicy implements rest.GarbageCollectionDeleteStrategy.
func (s *Strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return s.Resource.Dependents
}

type gracefulStrategy struct{ *Strategy }

func (g gracefulStrategy) CheckGracefulDelete(ctx context.Context, obj runtime.Object,
	opts *metav1.DeleteOptions) bool {
	return g.Resource.Graceful(ctx, obj, opts)
}

// StatusStrategy updates .status and leaves everything else unchanged.
type StatusStrategy struct{ *Strategy }

// ForStatus returns the strategy of the kind's /status subresource.
func (s *Strategy) ForStatus() *StatusStrategy {
	c := *s
	c.reset = nil
	switch {
	case len(s.Resource.StatusResets) > 0:
		c.reset = ResetFields(s.Resource, s.Resource.StatusResets...)
	case c.spec >= 0 && s.Resource.StatusMetadata:
		c.reset = ResetFields(s.Resource, "spec")
	case c.spec >= 0:
		c.reset = ResetFields(s.Resource, "metadata", "spec")
	}
	return &StatusStrategy{&c}
}

// AllowCreateOnUpdate implements rest.RESTUpdateStrategy.
func (s *StatusStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

// PrepareForUpdate keeps everything of old except the status, the field owners, and the metadata that no update may
// change (validation refuses another UID); with StatusMetadata, metadata is also the client's.
func (s *StatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, p := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	if !s.Resource.StatusMetadata {
		metav1.ResetObjectMetaForStatus(objectMeta(obj), objectMeta(old))
	}
	for i := range o.NumField() {
		// Field 0 is TypeMeta in every kind; the rest is in spec and other fields.
		if i != s.meta && i != s.status && o.Type().Field(i).Name != "TypeMeta" {
			o.Field(i).Set(p.Field(i))
		}
	}
	if s.Resource.PrepareStatusUpdate != nil {
		s.Resource.PrepareStatusUpdate(ctx, obj, old)
	}
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s *StatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessorUpdate(objectMeta(obj), objectMeta(old), field.NewPath("metadata"))
	if s.Resource.AuthorizeStatus != nil {
		errs = append(errs, s.Resource.AuthorizeStatus(ctx, obj, old)...)
	}
	if s.Resource.Validator.StatusUpdate != nil {
		errs = append(errs, s.Resource.Validator.StatusUpdate(ctx, obj, old)...)
	}
	return Bounded(declarative.Check(ctx, s.scheme, errs, obj, old, "status"))
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s *StatusStrategy) WarningsOnUpdate(_ context.Context, obj, _ runtime.Object) []string {
	if s.Resource.Validator.StatusWarnings == nil {
		return nil
	}
	return s.Resource.Validator.StatusWarnings(obj)
}

// objectMeta returns the metadata of an object of a registered kind; newStrategy has checked that
// it exists.
func objectMeta(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(fmt.Sprintf("resources: %T has no metadata: %v", obj, err))
	}
	return m
}
