package statefulsets

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/fakeapi"
)

// claim returns a claim as the watch shows it, nil for none.
func (c *Controller) claim(name string) *corev1.PersistentVolumeClaim {
	if c.claims == nil {
		return nil
	}
	for _, claim := range fakeapi.Seen[*corev1.PersistentVolumeClaim](c.claims) {
		if claim.Name == name {
			return claim
		}
	}
	return nil
}

// makeClaims creates missing claims. A terminating claim is an error (W3.48).
func (c *Controller) makeClaims(s statefulset.Step) error {
	var errs []error
	for _, claim := range s.Claims.Create {
		e, err := c.client.Create(claim, func(o fakeapi.Object) bool {
			_, ok := o.(*corev1.PersistentVolumeClaim)
			return ok
		})
		if errors.Is(err, fakeapi.ErrCrash) {
			return err
		}
		if err == nil {
			c.fresh.Wrote(c.claims, e)
			continue
		}
		errs = append(errs, err)
	}
	for _, name := range s.Claims.Terminating {
		errs = append(errs, fmt.Errorf("claim %s is being deleted", name))
	}
	return errors.Join(errs...)
}

// ownClaims updates the owners of claims according to the retention policy (W3.91 to W3.95).
func (c *Controller) ownClaims(set *appsv1.StatefulSet, s statefulset.Step, pod *corev1.Pod) error {
	var errs []error
	for _, name := range s.Claims.Own {
		for _, stored := range fakeapi.All[*corev1.PersistentVolumeClaim](c.api) {
			if stored.Name != name {
				continue
			}
			owned, changed := statefulset.Own(stored, set, pod)
			if !changed {
				continue
			}
			e, err := c.client.Update(stored, func(o fakeapi.Object) { o.SetOwnerReferences(owned.OwnerReferences) })
			if errors.Is(err, fakeapi.ErrCrash) {
				return err
			}
			if err == nil {
				c.fresh.Wrote(c.claims, e)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// repair restores the identity and the volumes of a pod, and the owners of its claims (W3.44).
func (c *Controller) repair(set *appsv1.StatefulSet, s statefulset.Step) error {
	if err := c.makeClaims(s); err != nil {
		return err
	}
	if err := c.ownClaims(set, s, s.Pod); err != nil {
		return err
	}
	pod, ok := c.api.Get(s.Pod.UID).(*corev1.Pod)
	if !ok || statefulset.HasIdentity(pod) && statefulset.HasStorage(set, pod) {
		return nil
	}
	e, err := c.client.Update(pod, func(o fakeapi.Object) {
		if p, ok := o.(*corev1.Pod); ok {
			statefulset.GiveIdentity(set, p)
			statefulset.GiveStorage(set, p)
		}
	})
	if err == nil {
		c.fresh.Wrote(c.pods, e)
	}
	return err
}
