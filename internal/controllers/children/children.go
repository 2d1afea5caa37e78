// Package children carries out the plans of workloads for pods and other children: it creates them
// in growing batches (slow start), deletes, adopts and releases them, records the events, and
// reports its writes to a freshness.Tracker. The drivers of workloads share it; it must never
// decide about actions.
//
// A driver is a reconciler.Reconciler whose reconcile function
//
//  1. returns at once unless Tracker.Fresh(key): the key is queued when it is,
//  2. takes owner and children from the watches (source.Get, source.Candidates),
//  3. adopts and releases children (Keeper.Settle),
//  4. calls its plan: a pure function of core/workload,
//  5. carries out the plan (Keeper.CreatePods, Keeper.DeletePods …),
//  6. stores the status, and returns when to reconcile again.
//
// A conflict is not an error if a newer version is stored (Keeper.Behind): the key is queued when
// the watch shows it. Any other error is returned to the loop, which waits longer each time.
//
// Contract: docs/spec/workloads.md.
package children

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
)

// Burst is the maximum number of pods that one plan creates or deletes (W0.42).
const Burst = 500

// Keeper manages the children of one controller's owners.
type Keeper struct {
	Client kubernetes.Interface
	Events record.EventRecorder
	Fresh  *freshness.Tracker
	Pods   *source.Watch

	strays Failures // children that their owners do not select
}

// Owner is an owner in the three forms that calls need.
type Owner struct {
	workload.Owner
	Runtime runtime.Object // the same object, for events
	Key     string         // of the loop
	// Counts reports whether a pod that was created for the requested one counts for the owner; nil if any pod does.
	Counts func(requested, made *corev1.Pod) bool
}

// Refused reports whether the API server rejected a write, so that nothing was stored. After any other
// error, the write may have been stored.
func Refused(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && status.ErrStatus.Code >= 400 && status.ErrStatus.Code < 500
}

// Behind takes the error of a write to an object that was planned as a watch showed it.
// It returns nil when something newer is stored, which may be this very write if it got no
// answer: the key is then woken when the watch shows that. Else it returns the error, and
// the loop waits: a webhook or a quota may answer with a conflict, too. live reads the object
// from the API.
func (k *Keeper) Behind(ctx context.Context, key string, w *source.Watch, planned metav1.Object, err error,
	live confirm.Live) error {
	if Refused(err) && !confirm.Stale(err) {
		return err
	}
	stored, failed := live(ctx)
	switch {
	case apierrors.IsNotFound(failed), failed == nil && stored.GetUID() != planned.GetUID():
		k.Fresh.Deleted(key, w, planned)
	case failed != nil:
		return fmt.Errorf("%w; then: %w", err, failed)
	case stored.GetResourceVersion() == planned.GetResourceVersion():
		return err
	default:
		k.Fresh.Wrote(key, w, stored)
	}
	return nil
}

// Gone takes the answer to the deletion of an object that a watch showed, by its UID. It returns nil if the object is
// deleted: the key is then woken when the watch shows that. live reads the object from the API after NotFound and
// Conflict, which a webhook may answer, too.
func (k *Keeper) Gone(ctx context.Context, key string, w *source.Watch, o metav1.Object, err error,
	live confirm.Live) error {
	if err = confirm.Ended(ctx, o.GetUID(), err, live); err != nil {
		return err
	}
	k.Fresh.Deleted(key, w, o)
	return nil
}

// PodNamed reads a pod from the API. Most controllers may list pods, but not get one.
func PodNamed(client kubernetes.Interface, namespace, name string) confirm.Live {
	return func(ctx context.Context) (metav1.Object, error) {
		list, err := client.CoreV1().Pods(namespace).List(ctx,
			metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if list.Items[i].Name == name {
				return &list.Items[i], nil
			}
		}
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
}

// NamespaceEnds reports whether a create failed because its namespace is being deleted: no event,
// no condition, and no retry (W0.40).
func NamespaceEnds(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// CreatePod creates a pod and records it (W0.34, W0.35).
func (k *Keeper) CreatePod(ctx context.Context, o Owner, pod *corev1.Pod) error {
	made, err := k.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !NamespaceEnds(err) {
			k.Events.Eventf(o.Runtime, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err
	}
	k.Fresh.Wrote(o.Key, k.Pods, made)
	if o.Counts != nil && !o.Counts(pod, made) {
		k.Astray(o)
		k.Events.Eventf(o.Runtime, corev1.EventTypeWarning, "FailedCreate", "Created pod %v, but %v",
			made.Name, errStray)
		return errStray
	}
	k.Events.Eventf(o.Runtime, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return nil
}

// CreatePods creates n pods from pod, which must be safe for parallel calls, in batches of 1, 2, 4
// …; a batch with an error is the last (W0.41). It returns how many it created, and one of the
// errors.
func (k *Keeper) CreatePods(ctx context.Context, o Owner, n int, pod func(i int) (*corev1.Pod, error)) (created int,
	err error) {
	if n > 0 && k.Waits(o) {
		return 0, errStray
	}
	next := 0
	for _, size := range workload.Waves(n) {
		errs := make([]error, size)
		var wave sync.WaitGroup
		for i := range errs {
			at := next + i
			wave.Go(func() {
				p, err := pod(at)
				if err == nil {
					err = k.CreatePod(ctx, o, p)
				}
				errs[i] = err
			})
		}
		wave.Wait()
		next += size
		for _, failed := range errs {
			if failed == nil {
				created++
			} else if err == nil {
				err = failed
			}
		}
		if err != nil {
			return created, err
		}
	}
	return created, nil
}

// DeletePod deletes a pod and records it (W0.36, W0.37, W0.39). A pod that no longer exists counts
// as deleted.
func (k *Keeper) DeletePod(ctx context.Context, o Owner, pod *corev1.Pod) error {
	// By its UID, so that a later pod of the same name is not deleted.
	err := k.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	deleted := err == nil
	if err = k.Gone(ctx, o.Key, k.Pods, pod, err, PodNamed(k.Client, pod.Namespace, pod.Name)); err != nil {
		k.Events.Eventf(o.Runtime, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	if deleted {
		k.Events.Eventf(o.Runtime, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	}
	return nil
}

// DeletePods deletes pods in parallel. It returns the pods that the API refused to delete, and one of the
// errors. After an error that is no refusal, the pod may be deleted.
func (k *Keeper) DeletePods(ctx context.Context, o Owner, pods []*corev1.Pod) (refused []*corev1.Pod, err error) {
	errs := make([]error, len(pods))
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() { errs[i] = k.DeletePod(ctx, o, p) })
	}
	all.Wait()
	for i, failed := range errs {
		if failed == nil {
			continue
		}
		if err == nil {
			err = failed
		}
		if Refused(failed) {
			refused = append(refused, pods[i])
		}
	}
	return refused, err
}

// Change patches the children of a kind.
type Change[T metav1.Object] struct {
	Watch *source.Watch
	Patch func(ctx context.Context, name string, patch []byte) (T, error)
	// Live reads the owner from the API, before anything is adopted (W0.22).
	Live func(ctx context.Context) (metav1.Object, error)
	// Finalizers are added to adopted objects and removed from released ones.
	Finalizers []string
}

// PodChange is the Change of pods.
func (k *Keeper) PodChange(namespace string,
	live func(ctx context.Context) (metav1.Object, error)) Change[*corev1.Pod] {
	return Change[*corev1.Pod]{Watch: k.Pods, Live: live,
		Patch: func(ctx context.Context, name string, patch []byte) (*corev1.Pod, error) {
			return k.Client.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
		}}
}

// Settle adopts and releases according to a claim, and returns the owner's children: those it keeps
// and those it adopted. It continues after an error, and returns all errors joined.
func Settle[T metav1.Object](ctx context.Context, k *Keeper, o Owner, c workload.Claims[T], how Change[T]) ([]T,
	error) {
	mine := c.Mine
	var errs []error
	if len(c.Adopt) > 0 {
		live, err := how.Live(ctx)
		if err == nil {
			err = workload.CheckAdoption(o.Owner, live)
		}
		for _, child := range c.Adopt {
			if err != nil {
				errs = append(errs,
					fmt.Errorf("can't adopt %s %v/%v (%v): %w", kindOf(child), child.GetNamespace(), child.GetName(),
						child.GetUID(), err))
				continue
			}
			got, err := how.Patch(ctx, child.GetName(), workload.AdoptPatch(o.Owner, child, how.Finalizers...))
			switch {
			case err == nil:
				k.Fresh.Wrote(o.Key, how.Watch, got)
				mine = append(mine, got)
			case !apierrors.IsNotFound(err):
				errs = append(errs, fmt.Errorf("adopt %s: %w", child.GetName(), err))
			}
		}
	}
	for _, child := range c.Release {
		got, err := how.Patch(ctx, child.GetName(), workload.ReleasePatch(o, child, how.Finalizers...))
		switch {
		case err == nil:
			k.Fresh.Wrote(o.Key, how.Watch, got)
		case !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err):
			errs = append(errs, fmt.Errorf("release %s: %w", child.GetName(), err))
		}
	}
	return mine, errors.Join(errs...)
}

// kindOf returns the kind of a child for error messages.
func kindOf(o metav1.Object) string {
	name := fmt.Sprintf("%T", o)
	return name[strings.LastIndexByte(name, '.')+1:]
}

// OnChildren registers wake, which is called with the key of each owner that a change of a child
// concerns (W0.16): its controller before and after the change, and for one without controller each
// owner that selects it. kind is the owners' kind.
func OnChildren(children, owners *source.Watch, kind string, selects func(owner metav1.Object, l labels.Set) bool,
	wake func(key string)) error {
	return children.OnChange(func(before, after metav1.Object) {
		old, now := controller(before), controller(after)
		if old != nil && (now == nil || old.UID != now.UID) {
			wakeOwner(owners, kind, before.GetNamespace(), old, wake)
		}
		if now != nil {
			wakeOwner(owners, kind, after.GetNamespace(), now, wake)
			return
		}
		if after == nil || before != nil && old == nil && labels.Equals(before.GetLabels(), after.GetLabels()) {
			return
		}
		for _, owner := range source.Namespaced[metav1.Object](owners, after.GetNamespace()) {
			if selects(owner, after.GetLabels()) {
				wake(owner.GetNamespace() + "/" + owner.GetName())
			}
		}
	})
}

// Selects reports whether a selector of an owner matches labels; one that is not valid matches nothing.
func Selects(selector *metav1.LabelSelector, l labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(l)
}

func wakeOwner(owners *source.Watch, kind, namespace string, ref *metav1.OwnerReference, wake func(key string)) {
	if ref.Kind != kind {
		return
	}
	key := namespace + "/" + ref.Name
	if owner := source.Get[metav1.Object](owners, key); owner != nil && owner.GetUID() == ref.UID {
		wake(key)
	}
}

func controller(o metav1.Object) *metav1.OwnerReference {
	if o == nil {
		return nil
	}
	return metav1.GetControllerOfNoCopy(o)
}
