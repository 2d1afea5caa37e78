// Package slicewriter writes EndpointSlices according to a plan. The controllers endpointslice and
// endpointslicemirroring use it; it must never decide about the content of a slice.
//
// Contract: docs/spec/network.md.
package slicewriter

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/source"
)

// Plan holds the writes, in this order (N1.23).
type Plan struct{ Create, Update, Delete []*discoveryv1.EndpointSlice }

// Write writes a plan for a key, and calls wrote after each write with create, update, or delete. The
// watch is that of EndpointSlices. Without an error, the key is queued when the watch shows the
// writes, or the newer version of another writer.
func Write(ctx context.Context, k *children.Keeper, watch *source.Watch, key string, plan Plan,
	wrote func(operation string)) error {
	api := func(s *discoveryv1.EndpointSlice) client {
		return k.Client.DiscoveryV1().EndpointSlices(s.Namespace)
	}
	for _, s := range plan.Create {
		made, err := api(s).Create(ctx, s, metav1.CreateOptions{})
		if children.NamespaceEnds(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		k.Fresh.Wrote(key, watch, made)
		wrote("create")
	}
	for _, s := range plan.Update {
		stored, err := api(s).Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			err = k.Behind(ctx, key, watch, s, err, confirm.By(api(s).Get, s.Name))
			if err != nil {
				return fmt.Errorf("update %s: %w", s.Name, err)
			}
			return nil // queued when the watch shows the stored version
		}
		k.Fresh.Wrote(key, watch, stored)
		wrote("update")
	}
	for _, s := range plan.Delete {
		err := api(s).Delete(ctx, s.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if err = k.Gone(ctx, key, watch, s, err, confirm.By(api(s).Get, s.Name)); err != nil {
			return fmt.Errorf("delete %s: %w", s.Name, err)
		}
		wrote("delete")
	}
	return nil
}

type client interface {
	Create(context.Context, *discoveryv1.EndpointSlice, metav1.CreateOptions) (*discoveryv1.EndpointSlice, error)
	Update(context.Context, *discoveryv1.EndpointSlice, metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error)
	Get(context.Context, string, metav1.GetOptions) (*discoveryv1.EndpointSlice, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}
