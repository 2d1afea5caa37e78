package rules

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kind returns a kind of a group, as a key in a map of rules.
func Kind(group, kind string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: kind} }

// Of makes rules from functions for one Go type. Without an update function, an updated object is
// validated like a new one.
func Of[T any](name func(string, bool) []string, create func(*T) field.ErrorList,
	update func(obj, old *T) field.ErrorList) Rules {
	if update == nil {
		update = func(obj, _ *T) field.ErrorList { return create(obj) }
	}
	return Rules{Name: name, Create: Typed(create), Update: TypedUpdate(update)}
}

// SameGeneration reports whether an update leaves the generation unchanged; false for a new object.
func SameGeneration(obj, old runtime.Object) bool {
	if old == nil {
		return false
	}
	is, err := meta.Accessor(obj)
	was, errOld := meta.Accessor(old)
	return err == nil && errOld == nil && is.GetGeneration() == was.GetGeneration()
}

// WithWarnings adds warnings to rules.
func WithWarnings[T any](r Rules, hints func(*T) []string) Rules {
	r.Warnings = func(_ context.Context, obj, _ runtime.Object) []string { return hints(any(obj).(*T)) }
	return r
}

// WithStatus adds the validation of a status to rules.
func WithStatus[T any](r Rules, check func(obj, old *T) field.ErrorList) Rules {
	r.StatusUpdate = TypedUpdate(check)
	return r
}

// Rules are the validation of one kind. A nil function accepts everything. They do not repeat the
// validation of metadata, except for the form of the name, which differs by kind.
type Rules struct {
	// Name returns the errors of a name; prefix is true for metadata.generateName.
	Name func(name string, prefix bool) []string
	// Create validates a new object.
	Create func(ctx context.Context, obj runtime.Object) field.ErrorList
	// Update validates an update of the main resource.
	Update func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// StatusUpdate validates an update through the status subresource.
	StatusUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// Subresource validates an update through another subresource, by its name.
	Subresource func(ctx context.Context, name string, obj, old runtime.Object) field.ErrorList
	// Warnings are sent to the client on create (old is nil) and update; they do not reject the
	// request.
	Warnings func(ctx context.Context, obj, old runtime.Object) []string
	// StatusWarnings are sent to the client on an update of the status.
	StatusWarnings func(obj runtime.Object) []string
}

// Typed turns validation of one Go type into validation of any object.
func Typed[T any](fn func(*T) field.ErrorList) func(context.Context, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj runtime.Object) field.ErrorList { return fn(any(obj).(*T)) }
}

// TypedUpdate turns validation of updates of one Go type into validation of updates of any object.
func TypedUpdate[T any](fn func(obj, old *T) field.ErrorList) func(context.Context, runtime.Object,
	runtime.Object) field.ErrorList {
	return func(_ context.Context, obj, old runtime.Object) field.ErrorList {
		return fn(any(obj).(*T), any(old).(*T))
	}
}
