package nodeobject

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// renewPeriod is a quarter of the time that the lease is valid (L0.44).
func (r *Reporter) renewPeriod() time.Duration {
	return time.Duration(r.cfg.LeaseSeconds) * time.Second / 4
}

// renew writes the lease.
func (r *Reporter) renew(ctx context.Context) error {
	if r.cfg.Client == nil || r.lease != nil && time.Since(r.lease.Spec.RenewTime.Time) < r.renewPeriod()-time.Second {
		return nil
	}
	leases := r.cfg.Client.CoordinationV1().Leases(leaseNamespace)
	now := metav1.NewMicroTime(time.Now())
	seconds := int32(r.cfg.LeaseSeconds)
	write := func(l *coordinationv1.Lease, exists bool) (*coordinationv1.Lease, error) {
		l = l.DeepCopy()
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &r.cfg.Name, &seconds, &now
		if node := r.cfg.Known.node.Load(); node != nil && len(l.OwnerReferences) == 0 {
			l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name,
				UID: node.UID}}
		}
		return timed(ctx, func(ctx context.Context) (*coordinationv1.Lease, error) {
			if !exists {
				return leases.Create(ctx, l, metav1.CreateOptions{})
			}
			return leases.Update(ctx, l, metav1.UpdateOptions{})
		})
	}
	old, exists := r.lease, r.lease != nil
	if !exists {
		old = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Namespace: leaseNamespace}}
	}
	stored, err := write(old, exists)
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		if old, err = timed(ctx, func(ctx context.Context) (*coordinationv1.Lease, error) {
			return leases.Get(ctx, r.cfg.Name, metav1.GetOptions{})
		}); err == nil {
			stored, err = write(old, true)
		}
	}
	if err != nil {
		r.lease = nil
		return fmt.Errorf("renew the lease of node %s: %w", r.cfg.Name, err)
	}
	r.lease = stored
	return nil
}

// timed is a request to the API server that ends after callTimeout.
func timed[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return request(ctx)
}
