package statefulset

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"carob/internal/controllers/children"
	"carob/internal/core/workload/statefulset"
)

// tries is the number of attempts to update a pod or claim on conflicts (W3.44).
const tries = 4

// recordResult records the result of an action on a pod (W3.80–W3.82), unless the namespace is terminating (W0.40).
func (t turn) recordResult(verb string, pod *corev1.Pod, err error) {
	switch {
	case err == nil:
		t.keeper.Events.Eventf(t.set, corev1.EventTypeNormal, "Successful"+verb,
			"%s Pod %s in StatefulSet %s successful", verb, pod.Name, t.set.Name)
	case !children.NamespaceEnds(err):
		t.keeper.Events.Eventf(t.set, corev1.EventTypeWarning, "Failed"+verb,
			"%s Pod %s in StatefulSet %s failed error: %s", verb, pod.Name, t.set.Name, err)
	}
}

func (t turn) step(ctx context.Context, s statefulset.Step) error {
	switch s.Action {
	case statefulset.Create:
		return t.create(ctx, s)
	case statefulset.Delete:
		return t.delete(ctx, s.Pod)
	case statefulset.Repair:
		err := t.repair(ctx, s)
		t.recordResult("Update", s.Pod, err)
		return err
	case statefulset.EnsureClaims:
		return t.ensureClaims(ctx, s)
	}
	return fmt.Errorf("unknown action %q", s.Action)
}

func (t turn) create(ctx context.Context, s statefulset.Step) error {
	if err := t.makeClaims(ctx, s); err != nil {
		t.recordResult("Create", s.Pod, err)
		return err
	}
	made, err := t.keeper.Client.CoreV1().Pods(s.Pod.Namespace).Create(ctx, s.Pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) && !children.NamespaceEnds(err) {
		return fmt.Errorf("create pod %s: %w", s.Pod.Name, err) // retried until the name is free (W3.49)
	}
	owner := s.Pod
	if err == nil {
		t.keeper.Fresh.Wrote(t.owner.Key, t.Pods, made)
		owner = made
	}
	if err := t.ownClaims(ctx, s, owner); err != nil {
		t.recordResult("Update", s.Pod, err)
		return err
	}
	t.recordResult("Create", s.Pod, err)
	return err
}

func (t turn) delete(ctx context.Context, pod *corev1.Pod) error {
	// With the UID, so that a later pod with the same name is not deleted.
	err := t.keeper.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err == nil {
		t.keeper.Fresh.Deleted(t.owner.Key, t.Pods, pod)
		t.recordResult("Delete", pod, nil)
		return nil
	}
	// After some errors the pod may be deleted. If it is, wait until the watch shows it before the next plan.
	live, e := t.keeper.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(e) || e == nil && live.UID != pod.UID
	if gone || e == nil && live.DeletionTimestamp != nil {
		t.keeper.Fresh.Deleted(t.owner.Key, t.Pods, pod)
	}
	switch {
	case gone && apierrors.IsConflict(err):
		return nil
	case apierrors.IsNotFound(err) && (gone || e == nil && live.DeletionTimestamp != nil):
		t.recordResult("Delete", pod, nil)
		return nil
	}
	t.recordResult("Delete", pod, err)
	return fmt.Errorf("delete pod %s: %w", pod.Name, err)
}

// repair restores the identity and volumes of a pod and the owners of its claims (W3.44).
func (t turn) repair(ctx context.Context, s statefulset.Step) error {
	if err := t.makeClaims(ctx, s); err != nil {
		return err
	}
	if err := t.ownClaims(ctx, s, s.Pod); err != nil {
		return err
	}
	return again(func() error {
		pod, err := t.keeper.Client.CoreV1().Pods(s.Pod.Namespace).Get(ctx, s.Pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.UID != s.Pod.UID {
			return apierrors.NewNotFound(corev1.Resource("pods"), s.Pod.Name)
		}
		if !statefulset.HasIdentity(pod) {
			statefulset.GiveIdentity(t.set, pod)
		}
		if !statefulset.HasStorage(t.set, pod) {
			statefulset.GiveStorage(t.set, pod)
		}
		if pod, err = t.keeper.Client.CoreV1().Pods(pod.Namespace).Update(ctx, pod,
			metav1.UpdateOptions{}); err == nil {
			t.keeper.Fresh.Wrote(t.owner.Key, t.Pods, pod)
		}
		return err
	})
}

// ensureClaims creates the missing claims of a Pending pod and updates the owners of claims (W3.43).
func (t turn) ensureClaims(ctx context.Context, s statefulset.Step) error {
	if err := t.makeClaims(ctx, s); err != nil {
		return err
	}
	err := t.ownClaims(ctx, s, s.Pod)
	if err != nil {
		t.recordResult("Update", s.Pod, err)
	}
	return err
}

// again retries f on conflicts, a few times.
func again(f func() error) error {
	var err error
	for range tries {
		if err = f(); !apierrors.IsConflict(err) {
			break
		}
	}
	return err
}

// makeClaims creates missing claims (W3.83, W3.84). A terminating claim is an error (W3.48).
func (t turn) makeClaims(ctx context.Context, s statefulset.Step) error {
	var errs []error
	for _, claim := range s.Claims.Create {
		made, err := t.keeper.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim,
			metav1.CreateOptions{})
		switch {
		case err == nil:
			t.keeper.Fresh.Wrote(t.owner.Key, t.Claims, made)
			t.keeper.Events.Eventf(t.set, corev1.EventTypeNormal, "SuccessfulCreate",
				"Create Claim %s Pod %s in StatefulSet %s success", claim.Name, s.Pod.Name, t.set.Name)
			continue
		case !apierrors.IsAlreadyExists(err) && !children.NamespaceEnds(err):
			t.keeper.Events.Eventf(t.set, corev1.EventTypeWarning, "FailedCreate",
				"Create Claim %s for Pod %s in StatefulSet %s failed error: %s",
				claim.Name, s.Pod.Name, t.set.Name, err)
		}
		errs = append(errs, fmt.Errorf("failed to create PVC %s: %w", claim.Name, err))
	}
	for _, name := range s.Claims.Terminating {
		errs = append(errs, fmt.Errorf("pvc %s is being deleted", name))
	}
	if len(errs) == 0 {
		return nil
	}
	return utilerrors.NewAggregate(errs)
}

// ownClaims updates the owners of claims according to the retention policy (W3.85, W3.91–W3.95).
func (t turn) ownClaims(ctx context.Context, s statefulset.Step, pod *corev1.Pod) error {
	for _, name := range s.Claims.Conflicting {
		t.keeper.Events.Eventf(t.set, corev1.EventTypeWarning, "ConflictingController",
			"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", name) //nolint:misspell // upstream's spelling
	}
	var errs []error
	api := t.keeper.Client.CoreV1().PersistentVolumeClaims(t.set.Namespace)
	for _, name := range s.Claims.Own {
		err := again(func() error {
			claim, err := api.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil // the next reconciliation creates it
			}
			if err != nil {
				return err
			}
			owned, changed := statefulset.Own(claim, t.set, pod)
			if !changed {
				return nil
			}
			if owned, err = api.Update(ctx, owned, metav1.UpdateOptions{}); err == nil {
				t.keeper.Fresh.Wrote(t.owner.Key, t.Claims, owned)
			}
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
