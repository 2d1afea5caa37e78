package resourceclaim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/source"
	"carob/internal/core/podclaims"
)

// fieldManager writes pod.status.resourceClaimStatuses (S9.11).
const fieldManager = "ResourceClaimController"

// provide creates the claims of a pod, writes their names to its status, and reserves allocated
// claims for a pod that was bound without the scheduler.
func (c *Controller) provide(ctx context.Context, key string, pod *corev1.Pod) error {
	if pod == nil {
		c.unclear.Put(key, false)
		return nil
	}
	in := podclaims.Input{Pod: pod, Claims: map[string]*resourcev1.ResourceClaim{},
		Templates: map[string]*resourcev1.ResourceClaimTemplate{}}
	for _, claim := range source.Controlled[*resourcev1.ResourceClaim](c.in.Claims, pod.UID) {
		in.Claims[claim.Name] = claim
	}
	for _, name := range podclaims.Names(pod) {
		if claim := source.Get[*resourcev1.ResourceClaim](c.in.Claims, pod.Namespace+"/"+name); claim != nil {
			in.Claims[name] = claim
		}
	}
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			if t := source.Get[*resourcev1.ResourceClaimTemplate](c.in.Templates, pod.Namespace+"/"+*name); t != nil {
				in.Templates[*name] = t
			}
		}
	}
	plan := podclaims.ForPod(in)
	if len(plan.Create) > 0 && c.unclear.Has(key) {
		if err := c.lookFor(ctx, key, pod, in.Claims); err != nil {
			return err
		}
		plan = podclaims.ForPod(in)
	}
	c.unclear.Put(key, false)
	names := map[string]string{}
	maps.Copy(names, plan.Found)
	for _, n := range plan.Create {
		made, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, n.Claim, metav1.CreateOptions{})
		measure(n.Claim, err)
		if err != nil {
			c.unclear.Put(key, !children.Refused(err))
			plan.Failed, plan.Err = n.Entry, fmt.Errorf("create ResourceClaim %s: %w", n.Claim.Name, err)
			break
		}
		c.fresh.Wrote(key, c.in.Claims, made)
		names[n.Entry] = made.Name
	}
	if len(names) > 0 {
		if err := c.writeStatuses(ctx, key, pod, names); err != nil {
			return err
		}
	}
	if plan.Err != nil {
		c.events.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v",
			plan.Failed, plan.Err)
		return fmt.Errorf("pod %s/%s, PodResourceClaim %s: %w", pod.Namespace, pod.Name, plan.Failed, plan.Err)
	}
	for _, claim := range plan.Reserve {
		status := claim.Status.DeepCopy()
		status.ReservedFor = append(status.ReservedFor, podclaims.Reservation(pod))
		if _, err := c.store(ctx, key, claim, status); err != nil {
			return fmt.Errorf("reserve claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return nil
}

// lookFor adds the claims that the API has for a pod: the watch may not show one whose response was lost.
func (c *Controller) lookFor(ctx context.Context, key string, pod *corev1.Pod,
	claims map[string]*resourcev1.ResourceClaim) error {
	list, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the claims of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for i := range list.Items {
		if podclaims.OwnedBy(pod, &list.Items[i]) {
			claims[list.Items[i].Name] = &list.Items[i]
			c.fresh.Wrote(key, c.in.Claims, &list.Items[i])
		}
	}
	return nil
}

// writeStatuses writes the names of claims, by entry, into the status of exactly this pod (S9.11).
func (c *Controller) writeStatuses(ctx context.Context, key string, pod *corev1.Pod, names map[string]string) error {
	status := applycorev1.PodStatus()
	for _, s := range podclaims.Statuses(pod, names) {
		one := applycorev1.PodResourceClaimStatus().WithName(s.Name)
		if s.ResourceClaimName != nil {
			one = one.WithResourceClaimName(*s.ResourceClaimName)
		}
		status = status.WithResourceClaimStatuses(one)
	}
	applied, err := c.client.CoreV1().Pods(pod.Namespace).ApplyStatus(ctx,
		applycorev1.Pod(pod.Name, pod.Namespace).WithUID(pod.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", pod.Namespace, pod.Name, err)
	}
	c.fresh.Wrote(key, c.in.Pods, applied)
	return nil
}

// store writes the status of a claim as read from the watch; nil means that a newer version is stored.
func (c *Controller) store(ctx context.Context, key string, claim *resourcev1.ResourceClaim,
	status *resourcev1.ResourceClaimStatus) (*resourcev1.ResourceClaim, error) {
	changed := claim.DeepCopy()
	changed.Status = *status
	stored, err := c.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, changed,
		metav1.UpdateOptions{})
	return c.written(ctx, key, claim, stored, err)
}

// written handles the response to a write of a claim.
func (c *Controller) written(ctx context.Context, key string, planned, stored *resourcev1.ResourceClaim, err error) (
	*resourcev1.ResourceClaim, error) {
	switch {
	case err == nil:
		c.fresh.Wrote(key, c.in.Claims, stored)
		return stored, nil
	case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
		return nil, err
	}
	// Only a newer version explains the response: a webhook may return the same error.
	live, failed := c.client.ResourceV1().ResourceClaims(planned.Namespace).Get(ctx, planned.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(failed):
		c.fresh.Deleted(key, c.in.Claims, planned)
		return nil, nil
	case failed != nil:
		return nil, fmt.Errorf("%w; then: %w", err, failed)
	case live.ResourceVersion == planned.ResourceVersion:
		return nil, err
	}
	c.fresh.Wrote(key, c.in.Claims, live)
	return nil, nil
}

// release frees a claim of pods that have ended (S9.15, S9.16).
func (c *Controller) release(ctx context.Context, key string, claim *resourcev1.ResourceClaim) error {
	if claim == nil {
		return nil
	}
	gone := map[string]bool{}
	for _, ref := range claim.Status.ReservedFor {
		if !podclaims.IsPod(ref) {
			continue
		}
		pod := source.Get[*corev1.Pod](c.in.Pods, claim.Namespace+"/"+ref.Name)
		if pod == nil {
			// The watch may not show it yet, and the scheduler may be about to bind it.
			live, err := c.client.CoreV1().Pods(claim.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("read pod %s/%s: %w", claim.Namespace, ref.Name, err)
			}
			if err == nil {
				pod = live
			}
		}
		gone[string(ref.UID)] = pod == nil || pod.UID != ref.UID || podclaims.Done(pod)
	}
	name, _ := podclaims.Owner(claim)
	r := podclaims.ForClaim(claim, gone, source.Get[*corev1.Pod](c.in.Pods, claim.Namespace+"/"+name))
	api := c.client.ResourceV1().ResourceClaims(claim.Namespace)
	now := claim
	if r.Status != nil {
		stored, err := c.store(ctx, key, claim, r.Status)
		if err != nil || stored == nil {
			return wrap("release claim", claim, err)
		}
		now = stored
	}
	if r.Finalizer {
		changed := now.DeepCopy()
		changed.Finalizers = slices.DeleteFunc(changed.Finalizers,
			func(f string) bool { return f == resourcev1.Finalizer })
		stored, err := api.Update(ctx, changed, metav1.UpdateOptions{})
		if stored, err = c.written(ctx, key, now, stored, err); err != nil || stored == nil {
			return wrap("remove the finalizer of claim", claim, err)
		}
	}
	if r.Delete {
		err := api.Delete(ctx, claim.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
		keeper := children.Keeper{Fresh: c.fresh}
		return wrap("delete unused generated claim", claim, keeper.Gone(ctx, key, c.in.Claims, claim, err,
			confirm.By(api.Get, claim.Name)))
	}
	return nil
}

func wrap(what string, claim *resourcev1.ResourceClaim, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s/%s: %w", what, claim.Namespace, claim.Name, err)
}
