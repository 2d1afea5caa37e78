// Package partiallist lets a part of this process list a kind although some of its stored objects cannot be read: for
// example after a downgrade, or an error of the disk. Clients get the error StoreReadError for such a list, as from
// upstream's server: what is missing could otherwise be taken for deleted. A part that uses this package must not
// conclude from a list or watch that an object is gone for good.
package partiallist

import (
	"context"
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type key struct{}

// With returns a context whose lists and watches lack the objects that cannot be read, instead of failing. Requests
// from the network cannot have it.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Accepted reports whether the caller accepts a list without the objects that cannot be read.
func Accepted(ctx context.Context) bool { return ctx.Value(key{}) != nil }

// Keys returns the keys in the store of the objects because of which a list failed; nil if it failed for another
// reason, or if there may be more of them.
func Keys(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Reason != metav1.StatusReasonStoreReadError ||
		status.Status().Details == nil {
		return nil
	}
	var keys []string
	for _, c := range status.Status().Details.Causes {
		if c.Type != metav1.CauseTypeUnexpectedServerResponse || c.Field == "" {
			return nil
		}
		keys = append(keys, c.Field)
	}
	return keys
}

// Names returns the objects because of which a list of a namespaced kind failed; nil as for Keys.
func Names(err error) []types.NamespacedName {
	var names []types.NamespacedName
	for _, k := range Keys(err) {
		path := strings.Split(strings.Trim(k, "/"), "/")
		slices.Reverse(path)
		if len(path) < 2 {
			return nil
		}
		names = append(names, types.NamespacedName{Namespace: path[1], Name: path[0]})
	}
	return names
}

// List lists a namespaced kind. If some of its objects cannot be read, it returns the others, and the names of these.
func List[L any](ctx context.Context, list func(context.Context) (L, error)) (L, []types.NamespacedName, error) {
	out, err := list(ctx)
	unread := Names(err)
	if unread != nil {
		out, err = list(With(ctx))
	}
	return out, unread, err
}
