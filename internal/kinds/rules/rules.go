package rules

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kind returns a kind of a group, as a key of a table of rules.
func Kind(group, kind string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: kind} }

// Of makes rules from checks of one Go type. Without an update check of its own a changed object is checked like a
// new one.
func Of[T any](name func(string, bool) []string, create func(*T) field.ErrorList,
	update func(obj, old *T) field.ErrorList) Rules {
	if update == nil {
		update = func(obj, _ *T) field.ErrorList { return create(obj) }
	}
	return Rules{Name: name, Create: Typed(create), Update: TypedUpdate(update)}
}

// SameGeneration tells whether an update changes nothing that pods are made of; false for a new object.
func SameGeneration(obj, old runtime.Object) bool {
	if old == nil {
		return false
	}
	is, err := meta.Accessor(obj)
	was, errOld := meta.Accessor(old)
	return err == nil && errOld == nil && is.GetGeneration() == was.GetGeneration()
}

// WithWarnings adds hints to rules.
func WithWarnings[T any](r Rules, hints func(*T) []string) Rules {
	r.Warnings = func(_ context.Context, obj, _ runtime.Object) []string { return hints(any(obj).(*T)) }
	return r
}

// WithStatus adds the check of a status to rules.
func WithStatus[T any](r Rules, check func(obj, old *T) field.ErrorList) Rules {
	r.StatusUpdate = TypedUpdate(check)
	return r
}

// Rules are the checks of one kind. A nil function checks nothing. They do not repeat the metadata checks every object
// gets, except for the form of the name, which differs by kind.
type Rules struct {
	// Name returns what is wrong with a name; prefix is true for metadata.generateName.
	Name func(name string, prefix bool) []string
	// Create checks an object about to be stored.
	Create func(ctx context.Context, obj runtime.Object) field.ErrorList
	// Update checks a change of the main resource.
	Update func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// StatusUpdate checks a change through the status subresource.
	StatusUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// Subresource checks a change through another subresource, by its name.
	Subresource func(ctx context.Context, name string, obj, old runtime.Object) field.ErrorList
	// Warnings are said to the client on create (old is nil) and update; they reject nothing.
	Warnings func(ctx context.Context, obj, old runtime.Object) []string
	// StatusWarnings are said on an update of the status.
	StatusWarnings func(obj runtime.Object) []string
}

// Typed turns a check of one Go type into a check of any object.
func Typed[T any](fn func(*T) field.ErrorList) func(context.Context, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj runtime.Object) field.ErrorList { return fn(any(obj).(*T)) }
}

// TypedUpdate turns a check of a change of one Go type into a check of a change of any object.
func TypedUpdate[T any](fn func(obj, old *T) field.ErrorList) func(context.Context, runtime.Object,
	runtime.Object) field.ErrorList {
	return func(_ context.Context, obj, old runtime.Object) field.ErrorList {
		return fn(any(obj).(*T), any(old).(*T))
	}
}
