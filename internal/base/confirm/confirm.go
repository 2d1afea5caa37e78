// Package confirm decides what the answer NotFound or Conflict to a write means. It says that the object is gone, that
// another one has its name, or that a newer version is stored: then the write is not needed any more, and the watch
// shows why. But a webhook may refuse a write with these codes, too, and nothing would follow: who wrote would wait for
// ever. So the object is read then, and the error stays if nothing has changed. It also decides whether a write that
// failed may have taken effect.
package confirm

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Live reads an object from the API.
type Live func(ctx context.Context) (metav1.Object, error)

// By reads the object of a name with the method Get of a client.
func By[T metav1.Object](get func(ctx context.Context, name string, o metav1.GetOptions) (T, error), name string) Live {
	return func(ctx context.Context) (metav1.Object, error) { return get(ctx, name, metav1.GetOptions{}) }
}

// Stale reports whether a write failed because something else is stored than what it was planned on, if no webhook
// says so.
func Stale(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// Unclear reports whether a write that failed may have taken effect: the error is not an answer of the API server, or
// the answer does not say that the write was refused.
func Unclear(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code < http.StatusBadRequest || code >= http.StatusInternalServerError || code == http.StatusRequestTimeout
}

// Removed takes the answer to a write to the object with a UID. It returns nil if the object is removed from the API.
func Removed(ctx context.Context, uid types.UID, err error, live Live) error {
	return unless(ctx, err, live, func(stored metav1.Object) bool { return stored.GetUID() != uid })
}

// Ended takes the answer to the deletion of the object with a UID, or to a write before the deletion. It returns nil if
// the object is deleted, even if finalizers or containers still keep it.
func Ended(ctx context.Context, uid types.UID, err error, live Live) error {
	return unless(ctx, err, live, func(stored metav1.Object) bool {
		return stored.GetUID() != uid || stored.GetDeletionTimestamp() != nil
	})
}

// Overtaken takes the answer to a write to an object that was planned as it is in planned. It returns nil if the object
// is removed or a newer version is stored: the watch then shows that.
func Overtaken(ctx context.Context, planned metav1.Object, err error, live Live) error {
	return unless(ctx, err, live, func(stored metav1.Object) bool {
		return stored.GetUID() != planned.GetUID() || stored.GetResourceVersion() != planned.GetResourceVersion()
	})
}

// unless returns err, or nil if it is stale and the stored object is gone or has changed.
func unless(ctx context.Context, err error, live Live, changed func(stored metav1.Object) bool) error {
	if !Stale(err) {
		return err
	}
	switch stored, failed := live(ctx); {
	case apierrors.IsNotFound(failed):
		return nil
	case failed != nil:
		return fmt.Errorf("%w; then: %w", err, failed)
	case changed(stored):
		return nil
	}
	return err
}
