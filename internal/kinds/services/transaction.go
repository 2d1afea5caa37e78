package services

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"carob/internal/kinds/registry"
)

// The store calls begin for each attempt to write, and reports success before it writes: the write
// may still conflict with a newer object and be repeated, or fail. So the allocations and releases
// of an attempt are final only when the whole request has its result.

// attempt holds the allocations of one attempt to write a service, and the releases if it is
// stored.
type attempt struct{ commit, undo func(context.Context) }

// transaction is one request to write a service.
type transaction struct{ last *attempt }

type transactionKey struct{}

// try replaces an earlier attempt, which was not written.
func (t *transaction) try(ctx context.Context, a *attempt) {
	if t.last != nil {
		t.last.undo(ctx)
	}
	t.last = a
}

// end finishes the last attempt by the result of the request. If it is unknown whether it was
// written, everything is kept: the next repair corrects it.
func (t *transaction) end(ctx context.Context, err error) {
	switch {
	case t.last == nil:
	case err == nil:
		t.last.commit(ctx)
	case !unknown(err):
		t.last.undo(ctx)
	}
}

// unknown reports whether a failed write may have happened.
func unknown(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// storage is the store of services for requests of clients.
type storage struct{ *registry.Store }

func (s *storage) within(ctx context.Context,
	write func(context.Context) (runtime.Object, bool, error)) (runtime.Object, bool, error) {
	t := &transaction{}
	out, created, err := write(context.WithValue(ctx, transactionKey{}, t))
	t.end(ctx, err)
	return out, created, err
}

// Create implements rest.Creater.
func (s *storage) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	opts *metav1.CreateOptions) (runtime.Object, error) {
	out, _, err := s.within(ctx, func(ctx context.Context) (runtime.Object, bool, error) {
		out, err := s.Store.Create(ctx, obj, validate, opts)
		return out, true, err
	})
	return out, err
}

// Update implements rest.Updater.
func (s *storage) Update(ctx context.Context, name string, obj rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc,
	forceCreate bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.within(ctx, func(ctx context.Context) (runtime.Object, bool, error) {
		return s.Store.Update(ctx, name, obj, create, update, forceCreate, opts)
	})
}

// begin allocates the addresses and ports that s needs beyond those of old (nil for a new service).
// The store calls this before the strategy prepares the object; the returned function finishes it
// for callers without a transaction.
func (a *Allocator) begin(ctx context.Context, s, old *corev1.Service, dry bool) (func(context.Context, bool), error) {
	t, _ := ctx.Value(transactionKey{}).(*transaction)
	if t != nil {
		t.try(ctx, nil)
	}
	try, err := a.allocate(ctx, s, old, dry)
	if err != nil {
		return nil, err
	}
	if t != nil {
		t.try(ctx, try)
		return func(context.Context, bool) {}, nil
	}
	return func(ctx context.Context, success bool) {
		if success {
			try.commit(ctx)
		} else {
			try.undo(ctx)
		}
	}, nil
}
