package podstorage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"carob/internal/apiserver/admission"
	"carob/internal/core/podstatus"
	"carob/internal/kinds/scheme"
)

var (
	disruptionBudgets       = policyv1.Resource("poddisruptionbudgets")
	disruptionBudgetsStatus = policyv1.Resource("poddisruptionbudgets/status")
)

const (
	// evictionSteps and evictionPause limit the retries after a conflict (L1.105).
	evictionSteps = 20
	evictionPause = 500 * time.Millisecond
	// maxDisrupted is how many evictions a budget records until the controller has confirmed them
	// (L1.108).
	maxDisrupted = 2000
	// budgetNotReady is the Retry-After of a budget that is not up to date (L1.106).
	budgetNotReady = 10
)

const violates = "Cannot evict pod as it would violate the pod's disruption budget."

// evictionREST deletes a pod if its disruption budget allows it (L1.100–L1.111).
type evictionREST struct {
	store    *genericregistry.Store
	status   *updateREST
	reader   admission.Reader
	storages admission.Storages
	// pause waits between two attempts; tests replace it.
	pause func(ctx context.Context) error
}

var (
	_ rest.NamedCreater             = (*evictionREST)(nil)
	_ rest.GroupVersionKindProvider = (*evictionREST)(nil)
	_ rest.GroupVersionAcceptor     = (*evictionREST)(nil)
)

func (*evictionREST) New() runtime.Object { return &policyv1.Eviction{} }

func (*evictionREST) Destroy() {}

// GroupVersionKind returns the type of the body, whose group differs from that of the path.
func (*evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// AcceptsGroupVersion reports which versions the body may have.
func (*evictionREST) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == scheme.EvictionBeta.GroupVersion()
}

// retryPause waits half a second plus a random time, so that concurrent requests do not conflict
// again.
func retryPause(ctx context.Context) error {
	t := time.NewTimer(evictionPause + time.Duration(rand.Int64N(int64(evictionPause)/10)))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (r *evictionREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	e, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if e.Name != name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	wanted, err := deleteOptions(e, options)
	if err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, e.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		done, err := r.evict(ctx, name, wanted.DeepCopy())
		changed, unready := errors.AsType[*changedError](err)
		if unready {
			err = changed.conflict
		}
		switch {
		case err == nil && done:
			return &metav1.Status{Status: metav1.StatusSuccess}, nil
		case err != nil && !apierrors.IsConflict(err):
			return nil, err
		case err != nil && ownPrecondition(wanted):
			return nil, err // the client's own precondition fails; another attempt cannot help
		case try == evictionSteps && unready:
			return nil, tooMany(fmt.Sprintf("The disruption budget %s does not allow evicting pods currently",
				changed.budget), 0)
		case try == evictionSteps && err != nil:
			return nil, err
		}
		if err := r.pause(ctx); err != nil {
			return nil, apierrors.NewTimeoutError(err.Error(), 0)
		}
	}
}

func ownPrecondition(o *metav1.DeleteOptions) bool {
	return o.Preconditions != nil && o.Preconditions.ResourceVersion != nil
}

// deleteOptions are those of the eviction; a dry run may be requested in either place, but not
// differently.
func deleteOptions(e *policyv1.Eviction, options *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	if e.DeleteOptions == nil {
		return &metav1.DeleteOptions{DryRun: options.DryRun}, nil
	}
	out := e.DeleteOptions.DeepCopy()
	if len(out.DryRun) == 0 {
		out.DryRun = options.DryRun
		return out, nil
	}
	if len(options.DryRun) == 0 {
		options.DryRun = out.DryRun
		return out, nil
	}
	for i := range out.DryRun {
		if i >= len(options.DryRun) || out.DryRun[i] != options.DryRun[i] {
			return nil, apierrors.NewBadRequest("non-matching dry-run options in request and content")
		}
	}
	return out, nil
}

// changedError is the conflict of a pod that was not ready and has changed: it may be ready now.
type changedError struct {
	conflict error
	budget   string
}

func (e *changedError) Error() string { return e.conflict.Error() }

// evict makes one attempt. A changedError or a Conflict means that the pod or the budget has changed.
func (r *evictionREST) evict(ctx context.Context, name string, options *metav1.DeleteOptions) (bool, error) {
	obj, err := r.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return false, apierrors.NewInternalError(fmt.Errorf("read pod %s: unexpected %T", name, obj))
	}
	if exempt(p) {
		// A pending pod may start running meanwhile, and a running one is not exempt.
		if p.Status.Phase == corev1.PodPending && p.DeletionTimestamp == nil {
			requireVersion(options, p)
		}
		return true, r.remove(ctx, p, options)
	}

	budget, err := r.budget(ctx, p)
	if err != nil {
		return false, err
	}
	if budget == nil {
		return true, r.remove(ctx, p, options)
	}
	if !podstatus.ConditionTrue(p.Status.Conditions, corev1.PodReady) && unhealthyMayGo(budget) {
		requireVersion(options, p)
		err := r.remove(ctx, p, options)
		if apierrors.IsConflict(err) {
			err = &changedError{err, budget.Name}
		}
		return true, err
	}
	if err := r.take(ctx, p, budget.Name, dryrun.IsDryRun(options.DryRun)); err != nil {
		return false, err
	}
	return true, r.remove(ctx, p, options)
}

// exempt: deleting a pod that does not run disrupts nothing (L1.100).
func exempt(p *corev1.Pod) bool {
	switch p.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return p.DeletionTimestamp != nil
}

func requireVersion(o *metav1.DeleteOptions, p *corev1.Pod) {
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	if o.Preconditions.ResourceVersion == nil {
		version := p.ResourceVersion
		o.Preconditions.ResourceVersion = &version
	}
}

// budget returns the one budget that selects the pod, nil if there is none (L1.102).
func (r *evictionREST) budget(ctx context.Context, p *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	var found []*policyv1.PodDisruptionBudget
	err := r.reader.List(ctx, disruptionBudgets, p.Namespace, func(o runtime.Object) bool {
		b, ok := o.(*policyv1.PodDisruptionBudget)
		if !ok {
			return true
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(p.Labels)) {
			found = append(found, b)
		}
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) > 1:
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		}}
	case len(found) == 0:
		return nil, nil
	}
	return found[0], nil
}

// unhealthyMayGo reports whether an unready pod may be evicted without counting against the budget
// (L1.104).
func unhealthyMayGo(b *policyv1.PodDisruptionBudget) bool {
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// take decrements the budget's allowed disruptions and records the pod in it (L1.105–L1.111).
func (r *evictionREST) take(ctx context.Context, p *corev1.Pod, name string, dryRun bool) error {
	ctx = admission.ContextFor(ctx, disruptionBudgets, p.Namespace)
	for range evictionSteps {
		b, err := r.freshBudget(ctx, name)
		if err != nil {
			return err
		}
		if b == nil {
			return nil // deleted meanwhile: nothing forbids the eviction any more
		}
		if err := mayTake(b); err != nil {
			return err
		}
		if dryRun {
			return nil
		}
		b = b.DeepCopy()
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		b.Status.DisruptedPods[p.Name] = metav1.Now()
		err = r.writeBudget(ctx, b)
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		if err := r.pause(ctx); err != nil {
			return apierrors.NewTimeoutError(err.Error(), 0)
		}
	}
	return apierrors.NewTimeoutError(fmt.Sprintf("couldn't update PodDisruptionBudget %q due to conflicts", name), 10)
}

func (r *evictionREST) freshBudget(ctx context.Context, name string) (*policyv1.PodDisruptionBudget, error) {
	getter, ok := r.storages(disruptionBudgets).(rest.Getter)
	if !ok {
		return nil, nil
	}
	obj, err := getter.Get(ctx, name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, ok := obj.(*policyv1.PodDisruptionBudget)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("read disruption budget %s: unexpected %T", name, obj))
	}
	return b, nil
}

func (r *evictionREST) writeBudget(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	updater, ok := r.storages(disruptionBudgetsStatus).(rest.Updater)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("the status of disruption budgets is not served"))
	}
	_, _, err := updater.Update(ctx, b.Name, rest.DefaultUpdatedObjectInfo(b), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	return err
}

// mayTake returns why the budget does not allow one more eviction (L1.106–L1.109).
func mayTake(b *policyv1.PodDisruptionBudget) error {
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return tooMany(fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name),
			budgetNotReady)
	case b.Status.DisruptionsAllowed < 0:
		return budgetForbids(b, "pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(b.Status.DisruptedPods) > maxDisrupted:
		return budgetForbids(b, "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
			"too many pending evictions not confirmed by PDB controller")
	case b.Status.DisruptionsAllowed > 0:
		return nil
	}
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	text := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	switch {
	case c != nil && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason:
		text += fmt.Sprintf(" because it failed sync: %s", c.Message)
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		text = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name,
			b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case c != nil && c.Status == metav1.ConditionFalse && c.Message != "":
		text += fmt.Sprintf(" (%s): %s", c.Reason, c.Message)
	}
	return tooMany(text, 0)
}

// tooMany is the 429 of a budget, with the budget's message as its cause.
func tooMany(cause string, retryAfter int) error {
	err := apierrors.NewTooManyRequests(violates, retryAfter)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

func budgetForbids(b *policyv1.PodDisruptionBudget, message, cause string) error {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudget"}, b.Name,
		fmt.Errorf("%s", message))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", b.Name, cause),
	})
	return err
}

// remove sets the condition about the eviction in the pod's status, and deletes the pod (L1.101): the one that the
// budget was asked about, not a later pod of the same name.
func (r *evictionREST) remove(ctx context.Context, p *corev1.Pod, options *metav1.DeleteOptions) error {
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		options.Preconditions.UID = new(p.UID)
	}
	if !dryrun.IsDryRun(options.DryRun) {
		written, err := r.mark(ctx, p, options)
		if err != nil {
			return err
		}
		if options.Preconditions != nil && options.Preconditions.ResourceVersion != nil {
			options.Preconditions.ResourceVersion = &written.ResourceVersion
		}
	}
	_, _, err := r.store.Delete(ctx, p.Name, rest.ValidateAllObjectFunc, options)
	return err
}

// mark adds the condition, if the preconditions of the deletion hold.
func (r *evictionREST) mark(ctx context.Context, p *corev1.Pod, options *metav1.DeleteOptions) (*corev1.Pod, error) {
	change := func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		old, ok := stored.(*corev1.Pod)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("unexpected %T", stored))
		}
		if pre := options.Preconditions; pre != nil {
			if pre.UID != nil && *pre.UID != old.UID {
				return nil, apierrors.NewConflict(Resource, old.Name,
					fmt.Errorf(
						"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *pre.UID, old.UID))
			}
			if pre.ResourceVersion != nil && *pre.ResourceVersion != old.ResourceVersion {
				return nil, apierrors.NewConflict(Resource, old.Name,
					fmt.Errorf(
						"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *pre.ResourceVersion, old.ResourceVersion))
			}
		}
		out := old.DeepCopy()
		setCondition(&out.Status, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
			Message:            "Eviction API: evicting",
			ObservedGeneration: old.Generation,
		})
		return out, nil
	}
	obj, _, err := r.status.Update(ctx, p.Name, rest.DefaultUpdatedObjectInfo(nil, change), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	out, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("unexpected %T", obj))
	}
	return out, nil
}
