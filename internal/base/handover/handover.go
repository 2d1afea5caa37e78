// Package handover lets a client in the process of the API server have the objects of its lists and
// watches as the server holds them, instead of copies that are encoded and decoded again. The request
// itself takes the same way as any other: identity, authorization, audit, and metrics see no
// difference. Only the body of the response remains empty.
//
//	client: List or Watch ─ctx with an offer─▶ handler ─▶ storage: Requested, GiveList or GiveWatch
//	                          ◀─ empty list, or a watch without events ─┘
//
// A server that does not know of handovers (one in another process, an aggregated one) answers as
// usual, and the client gets the decoded objects.
//
// Objects that were handed over are for reading only: the server, its watch cache, and other clients
// hold the same.
package handover

import (
	"context"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

type key struct{}

// Offer is what a request carries for a storage that can hand its objects over.
type Offer struct {
	object reflect.Type // that the client takes; nil for all

	mu    sync.Mutex
	list  runtime.Object
	watch watch.Interface
}

// Requested returns the offer of a request for objects like example; nil if there is none, or if the
// client expects objects of another type.
func Requested(ctx context.Context, example func() runtime.Object) *Offer {
	o, _ := ctx.Value(key{}).(*Offer)
	if o == nil || o.object != nil && o.object != reflect.TypeOf(example()) {
		return nil
	}
	return o
}

// GiveList hands a list over.
func (o *Offer) GiveList(list runtime.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = list
}

// GiveWatch hands a watch over. It returns a watch without events for the handler: when the handler
// stops it, the watch that was handed over ends.
func (o *Offer) GiveWatch(w watch.Interface) watch.Interface {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch != nil { // the response to an earlier attempt was lost
		o.watch.Stop()
	}
	o.watch = w
	return silent{w}
}

// silent is a watch whose events go elsewhere.
type silent struct{ watch.Interface }

// ResultChan implements watch.Interface.
func (silent) ResultChan() <-chan watch.Event { return nil }

// list calls list with an offer. It returns the list that was handed over and true, or else what
// list returned.
func list(ctx context.Context, object reflect.Type,
	list func(context.Context) (runtime.Object, error)) (runtime.Object, bool, error) {
	o := &Offer{object: object}
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

// begin calls begin with an offer. It returns the watch that was handed over and true, or else what
// begin returned.
func begin(ctx context.Context, object reflect.Type,
	begin func(context.Context) (watch.Interface, error)) (watch.Interface, bool, error) {
	o := &Offer{object: object}
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

// taken is a watch that was handed over, and the response that lasts as long.
type taken struct {
	watch.Interface
	response watch.Interface
}

// Stop implements watch.Interface.
func (t taken) Stop() {
	t.Interface.Stop()
	t.response.Stop()
}
