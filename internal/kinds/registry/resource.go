package registry

import (
	"context"
	"fmt"
	"maps"
	"sort"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/kinds/scheme"
	"carob/internal/kinds/table"
)

// CoreKind returns a kind of the core group, version v1.
func CoreKind(kind string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(kind) }

// Validator validates the objects of one kind. The strategy has already validated metadata (names
// by Resource.ValidateName); a Validator adds the kind's own rules. Every field may be nil.
type Validator struct {
	Create       func(ctx context.Context, obj runtime.Object) field.ErrorList
	Update       func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	StatusUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// Subresource validates an update through another subresource, by its name.
	Subresource func(ctx context.Context, name string, obj, old runtime.Object) field.ErrorList
	// Warnings are sent to the client with a create (old is nil) or an update.
	Warnings func(ctx context.Context, obj, old runtime.Object) []string
	// StatusWarnings are sent with an update of the status.
	StatusWarnings func(obj runtime.Object) []string
}

// Resource describes one served kind. Kind, Plural, and the two constructors (set by Of) are
// required; the zero value of the rest is the usual case.
type Resource struct {
	Kind       schema.GroupVersionKind
	Plural     string
	Singular   string // lower-case kind when empty
	ShortNames []string
	Categories []string
	Cluster    bool // cluster-scoped
	New, List  func() runtime.Object

	// Status: a /status subresource owns .status.
	Status bool
	// CreateStatus: a create may set the status.
	CreateStatus bool
	// NoGeneration: the kind has no desired state, so metadata.generation is not kept.
	NoGeneration bool
	// GenerationFromZero: the generation counts changes only.
	GenerationFromZero bool
	// Dependents is the default propagation policy of a deletion; background if empty.
	Dependents rest.GarbageCollectionPolicy
	// CreateOnUpdate: a PUT may create the object.
	CreateOnUpdate bool
	// RequireResourceVersion: a PUT without metadata.resourceVersion is rejected.
	RequireResourceVersion bool
	// StatusMetadata: a write to /status may change labels, annotations, and so on, as in the older
	// kinds.
	StatusMetadata bool
	// ReturnDeleted: a delete returns the object instead of a Status.
	ReturnDeleted bool
	// Resets and StatusResets are the fields that a write to the object, or to its /status, cannot
	// change (dotted paths); the defaults are status and spec.
	Resets, StatusResets []string
	// AlsoServed are further group versions that serve the same storage, converted by the scheme
	// (events.k8s.io/v1 on core events).
	AlsoServed []schema.GroupVersion

	// AlsoFields are the names of Fields under AlsoServed, where they differ.
	AlsoFields map[string]string

	// ValidateName validates metadata.name; DNS subdomain if nil.
	ValidateName apivalidation.ValidateNameFunc
	// OwnMetadata: Validator.Create validates metadata; the library does, with any name, where it finds nothing.
	OwnMetadata bool
	// Template, if set, returns the pod template of an object; nil if it has none.
	Template func(obj runtime.Object) *corev1.PodSpec
	// PrepareCreate and PrepareUpdate change the object before validation, when status and
	// generation are already those of the stored object; a change of the spec increments the
	// generation afterwards.
	PrepareCreate       func(ctx context.Context, obj runtime.Object)
	PrepareUpdate       func(ctx context.Context, obj, old runtime.Object)
	PrepareStatusUpdate func(ctx context.Context, obj, old runtime.Object)
	Validator           Validator
	// AuthorizeCreate and AuthorizeStatus reject content that the user may not write although they
	// may write the object. They may read other objects.
	AuthorizeCreate func(ctx context.Context, obj runtime.Object) field.ErrorList
	AuthorizeStatus func(ctx context.Context, obj, old runtime.Object) field.ErrorList

	// Graceful, if set, may set opts.GracePeriodSeconds, and reports whether the object is deleted
	// gracefully (rest.RESTGracefulDeleteStrategy).
	Graceful func(ctx context.Context, obj runtime.Object, opts *metav1.DeleteOptions) bool
	// TTL is the lifetime of an object, zero for unlimited.
	TTL time.Duration

	// Fields are the selectable fields besides metadata.name and metadata.namespace.
	Fields map[string]func(obj runtime.Object) string
	// Index names the Fields on which the watch cache has a trigger index.
	Index []string
	// Indexers are further indexes of the watch cache (storage.FieldIndex names).
	Indexers *cache.Indexers

	Table table.Kind
	// Scale, if set, serves /scale.
	Scale *Scale

	// Customize may change the store before it is completed: other strategies, Begin/After hooks,
	// Decorator. After hooks are not called for dry runs (SpareDryRuns); Begin hooks are.
	Customize func(s *genericregistry.Store, base *Strategy)
	// Main, if set, replaces the storage that is served for the kind itself.
	Main func(s *Store) rest.Storage
	// Subresources returns further storages, keyed by path ("pods/log").
	Subresources func(s *Store) (map[string]rest.Storage, error)
}

// Of sets the constructors of r for object type T and list type L.
func Of[T, L any, PT interface {
	*T
	runtime.Object
}, PL interface {
	*L
	runtime.Object
}](r Resource) *Resource {
	r.New = func() runtime.Object { return PT(new(T)) }
	r.List = func() runtime.Object { return PL(new(L)) }
	return &r
}

// GroupResource returns the group and plural name.
func (r *Resource) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Kind.Group, Resource: r.Plural}
}

// Store is the storage of one kind. Other storages in this process use its embedded generic store.
type Store struct {
	*genericregistry.Store
	Resource *Resource
	builder  *Builder
}

// Status returns the storage of /status, if the kind has one.
func (s *Store) Status() *Subresource {
	return NewSubresource(s, s.UpdateStrategy.(*Strategy).ForStatus())
}

var (
	_ rest.StandardStorage    = (*Store)(nil)
	_ rest.ShortNamesProvider = (*Store)(nil)
	_ rest.CategoriesProvider = (*Store)(nil)
)

// ShortNames implements rest.ShortNamesProvider.
func (s *Store) ShortNames() []string { return s.Resource.ShortNames }

// Categories implements rest.CategoriesProvider.
func (s *Store) Categories() []string { return s.Resource.Categories }

// Builder builds storages. Set is the type registry (Build adds field label functions to it),
// Options defines how a kind is stored.
type Builder struct {
	Set     *scheme.Set
	Options generic.RESTOptionsGetter

	once  sync.Once
	types managedfields.TypeConverter
}

// Build builds the kind's store and all its endpoints, keyed by the path below the group version
// ("pods", "pods/status").
func (b *Builder) Build(r *Resource) (*Store, map[string]rest.Storage, error) {
	if r.Singular == "" {
		r.Singular = strings.ToLower(r.Kind.Kind)
	}
	if err := b.AddFieldLabels(r, r.Kind); err != nil {
		return nil, nil, err
	}
	strategy, err := newStrategy(b.Set.Scheme, r)
	if err != nil {
		return nil, nil, err
	}
	attrs := r.attributes()
	s := &genericregistry.Store{
		NewFunc: r.New, NewListFunc: r.List,
		DefaultQualifiedResource:  r.GroupResource(),
		SingularQualifiedResource: schema.GroupResource{Group: r.Kind.Group, Resource: r.Singular},
		CreateStrategy:            strategy, UpdateStrategy: strategy, DeleteStrategy: strategy,
		ResetFieldsStrategy: strategy,
		TableConvertor:      table.NewConvertor(r.Table), ReturnDeletedObject: r.ReturnDeleted,
		PredicateFunc: func(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: attrs, IndexFields: r.Index}
		},
	}
	if r.Graceful != nil {
		s.DeleteStrategy = gracefulStrategy{strategy}
	}
	if r.TTL > 0 {
		s.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return uint64(r.TTL / time.Second), nil }
	}
	if r.Customize != nil {
		r.Customize(s, strategy)
	}
	SpareDryRuns(s)
	opts := &generic.StoreOptions{RESTOptions: b.Options, AttrFunc: attrs, Indexers: r.Indexers}
	if len(r.Index) > 0 {
		opts.TriggerFunc = storage.IndexerFuncs{}
		for _, f := range r.Index {
			opts.TriggerFunc[f] = r.Fields[f]
		}
	}
	if err := s.CompleteWithOptions(opts); err != nil {
		return nil, nil, fmt.Errorf("build the storage of %v: %w", r.GroupResource(), err)
	}
	main := &Store{Store: s, Resource: r, builder: b}
	out := map[string]rest.Storage{r.Plural: main}
	if r.Main != nil {
		out[r.Plural] = r.Main(main)
	}
	if r.Status {
		out[r.Plural+"/status"] = NewSubresource(main, strategy.ForStatus())
	}
	if r.Scale != nil {
		out[r.Plural+"/scale"] = &scaleStorage{store: main, scale: r.Scale}
	}
	if r.Subresources != nil {
		more, err := r.Subresources(main)
		if err != nil {
			return nil, nil, fmt.Errorf("build the subresources of %v: %w", r.GroupResource(), err)
		}
		maps.Copy(out, more)
	}
	return main, out, nil
}

// SpareDryRuns keeps the After hooks of s from being called for dry runs: upstream's store calls
// them although nothing was stored, so a hook with effects would make them real.
func SpareDryRuns(s *genericregistry.Store) {
	if created := s.AfterCreate; created != nil {
		s.AfterCreate = func(obj runtime.Object, opts *metav1.CreateOptions) {
			if !dryrun.IsDryRun(opts.DryRun) {
				created(obj, opts)
			}
		}
	}
	if updated := s.AfterUpdate; updated != nil {
		s.AfterUpdate = func(obj runtime.Object, opts *metav1.UpdateOptions) {
			if !dryrun.IsDryRun(opts.DryRun) {
				updated(obj, opts)
			}
		}
	}
	if deleted := s.AfterDelete; deleted != nil {
		s.AfterDelete = func(obj runtime.Object, opts *metav1.DeleteOptions) {
			if !dryrun.IsDryRun(opts.DryRun) {
				deleted(obj, opts)
			}
		}
	}
}

// attributes returns the labels and fields that selectors are matched against.
func (r *Resource) attributes() storage.AttrFunc {
	names := make([]string, 0, len(r.Fields))
	for n := range r.Fields {
		names = append(names, n)
	}
	sort.Strings(names)
	return func(obj runtime.Object) (labels.Set, fields.Set, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, nil, err
		}
		f := make(fields.Set, 2+len(names))
		f["metadata.name"] = m.GetName()
		if !r.Cluster {
			f["metadata.namespace"] = m.GetNamespace()
		}
		for _, n := range names {
			f[n] = r.Fields[n](obj)
		}
		return m.GetLabels(), f, nil
	}
}

// AddFieldLabels makes r's fields selectable for kind, which is r's own or another one under which
// r is served.
func (b *Builder) AddFieldLabels(r *Resource, kind schema.GroupVersionKind) error {
	err := b.Set.Scheme.AddFieldLabelConversionFunc(kind, func(label, value string) (string, string, error) {
		if same, ok := r.AlsoFields[label]; ok && kind != r.Kind {
			return same, value, nil
		}
		if len(r.Fields) == 0 {
			return runtime.DefaultMetaV1FieldSelectorConversion(label, value)
		}
		if _, ok := r.Fields[label]; ok || label == "metadata.name" || label == "metadata.namespace" && !r.Cluster {
			return label, value, nil
		}
		return "", "", fmt.Errorf("field label not supported: %s", label)
	})
	if err != nil {
		return fmt.Errorf("register the field labels of %v: %w", kind, err)
	}
	return nil
}

// Subresource serves get, update, and patch of a part of the object ("/status").
type Subresource struct{ store *genericregistry.Store }

// UpdateStrategy is a strategy that also returns the fields that it resets.
type UpdateStrategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// NewSubresource returns a view of s that updates with strategy.
func NewSubresource(s *Store, strategy UpdateStrategy) *Subresource {
	view := *s.Store
	view.UpdateStrategy, view.ResetFieldsStrategy = strategy, strategy
	view.BeginUpdate = nil // the After hooks apply to other writes
	return &Subresource{store: &view}
}

var (
	_ rest.Patcher        = (*Subresource)(nil)
	_ rest.TableConvertor = (*Subresource)(nil)
)

// New implements rest.Storage.
func (s *Subresource) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage; the main storage owns the resources.
func (s *Subresource) Destroy() {}

// Get implements rest.Getter.
func (s *Subresource) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, opts)
}

// Update implements rest.Updater; a subresource never creates.
func (s *Subresource) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc,
	_ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, obj, create, update, false, opts)
}

// UpdateStrategy returns the strategy by which the subresource changes the object.
func (s *Subresource) UpdateStrategy() rest.RESTUpdateStrategy { return s.store.UpdateStrategy }

// GetResetFields implements rest.ResetFieldsStrategy.
func (s *Subresource) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (s *Subresource) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, obj, options)
}
