// Package validation holds the rules an object of a built-in kind has to meet before it is stored.
//
// Every rule is a pure function of the object (on update: of the new and the stored one) to a list of errors with field
// paths and messages as kubectl users know them. The registry calls it after defaulting and mutating admission; it never
// changes an object or looks at other objects, and reads no clock but for one thing: that a pod's certificate was issued just
// now.
package validation

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

// For returns the rules of a kind; the version does not matter. A kind without rules of its own gets the zero value, and
// false.
func For(gk schema.GroupKind) (Rules, bool) {
	for _, group := range kinds {
		if rules, ok := group[gk]; ok {
			return rules(), true
		}
	}
	return Rules{}, false
}

// typed turns a check of one Go type into a check of any object.
func typed[T any](fn func(*T) field.ErrorList) func(context.Context, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj runtime.Object) field.ErrorList { return fn(any(obj).(*T)) }
}

// typedUpdate turns a check of a change of one Go type into a check of a change of any object.
func typedUpdate[T any](fn func(obj, old *T) field.ErrorList) func(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj, old runtime.Object) field.ErrorList {
		return fn(any(obj).(*T), any(old).(*T))
	}
}
