// Package zerocopy gives a client in the process of the API server the server's own objects in its lists and watches,
// without encoding, decoding, or copying them. The request itself takes the same way as any other: identity,
// authorization, audit, and metrics see no difference. Only the body of the response remains empty.
//
//	client: List or Watch ─ctx with a Response─▶ handler ─▶ storage: ResponseFor, SetList or SetWatch
//	                          ◀─ empty list, or a watch without events ─┘
//
// A server that does not use this package (one in another process, an aggregated one) answers as usual, and the client
// gets the decoded objects.
//
// The objects are for reading only: the server, its watch cache, and other clients hold the same ones. A client must
// never change them.
package zerocopy

import (
	"context"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

type key struct{}

// Response is the place in the context of a request where a storage puts its objects.
type Response struct {
	object reflect.Type // the type that the client accepts; nil for all

	mu    sync.Mutex
	list  runtime.Object
	watch watch.Interface
}

// ResponseFor returns where the storage of objects like example puts the objects of a request; nil if the request
// accepts encoded objects only, or objects of another type.
func ResponseFor(ctx context.Context, example func() runtime.Object) *Response {
	o, _ := ctx.Value(key{}).(*Response)
	if o == nil || o.object != nil && o.object != reflect.TypeOf(example()) {
		return nil
	}
	return o
}

// SetList sets the list that the client gets.
func (o *Response) SetList(list runtime.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = list
}

// SetWatch sets the watch that the client gets. It returns a watch without events for the handler: when the handler
// stops it, the watch of the client ends.
func (o *Response) SetWatch(w watch.Interface) watch.Interface {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch != nil { // the response to an earlier attempt was lost
		o.watch.Stop()
	}
	o.watch = w
	return bare{w}
}

// bare is a watch without events: they go directly to the client.
type bare struct{ watch.Interface }

// ResultChan implements watch.Interface.
func (bare) ResultChan() <-chan watch.Event { return nil }

// list calls list with a Response. It returns the list that the storage has set and true, or else what list returned.
func list(ctx context.Context, object reflect.Type,
	list func(context.Context) (runtime.Object, error)) (runtime.Object, bool, error) {
	o := &Response{object: object}
	answer, err := list(context.WithValue(ctx, key{}, o))
	if err != nil {
		return nil, false, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.list != nil {
		return o.list, true, nil
	}
	return answer, false, nil
}

// begin calls begin with a Response. It returns the watch that the storage has set and true, or else what begin
// returned.
func begin(ctx context.Context, object reflect.Type,
	begin func(context.Context) (watch.Interface, error)) (watch.Interface, bool, error) {
	o := &Response{object: object}
	response, err := begin(context.WithValue(ctx, key{}, o))
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil:
		if o.watch != nil {
			o.watch.Stop()
		}
		return nil, false, err
	case o.watch == nil:
		return response, false, nil
	}
	return taken{o.watch, response}, true, nil
}

// taken is a watch that the storage has set, and the watch of the HTTP response, which lasts as long.
type taken struct {
	watch.Interface
	response watch.Interface
}

// Stop implements watch.Interface.
func (t taken) Stop() {
	t.Interface.Stop()
	t.response.Stop()
}
