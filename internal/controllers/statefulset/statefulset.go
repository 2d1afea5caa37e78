// Package statefulset is the controller of StatefulSets. It drives core/workload/statefulset, which makes all
// decisions. The controller manager runs it.
//
// Contract: docs/spec/workloads.md.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/revision"
	"carob/internal/core/workload/statefulset"
)

// workers is the number of sets that are reconciled in parallel (W3.9).
const workers = 5

// Watches are the controller's inputs. Pods and Revisions are indexed ByController, Sets and Claims by namespace.
type Watches struct{ Sets, Pods, Claims, Revisions *source.Watch }

// Controller drives StatefulSets. Its key is a set's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	Watches
	keeper   *children.Keeper
	defaults func(*appsv1.StatefulSet)
	failures children.Failures // pods that nodes refused, by name
}

// New returns a controller. defaults applies the API server's defaults.
func New(client kubernetes.Interface, events record.EventRecorder, w Watches,
	defaults func(*appsv1.StatefulSet)) (*Controller, error) {
	c := &Controller{Watches: w, defaults: defaults}
	c.Reconciler = reconciler.New("statefulset", workers, c.reconcile)
	fresh, err := freshness.New(c.Add, w.Sets, w.Pods, w.Claims, w.Revisions)
	if err != nil {
		return nil, fmt.Errorf("statefulset: %w", err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: w.Pods}
	if err := children.OnChildren(w.Pods, w.Sets, statefulset.Kind().Kind, selects, c.Add); err != nil {
		return nil, fmt.Errorf("statefulset: watch pods: %w", err)
	}
	err = reconciler.OnChange(w.Sets, func(o metav1.Object) { c.Add(o.GetNamespace() + "/" + o.GetName()) })
	if err != nil {
		return nil, fmt.Errorf("statefulset: watch sets: %w", err)
	}
	if err := w.Claims.OnChange(c.claimChanged); err != nil {
		return nil, fmt.Errorf("statefulset: watch claims: %w", err)
	}
	return c, nil
}

func selects(owner metav1.Object, l labels.Set) bool {
	set, ok := owner.(*appsv1.StatefulSet)
	return ok && children.Selects(set.Spec.Selector, l)
}

// claimChanged queues the set when a claim is deleted that one of its pods may wait for (W3.42,
// W3.48).
func (c *Controller) claimChanged(before, after metav1.Object) {
	if after != nil {
		return
	}
	for _, set := range source.Namespaced[*appsv1.StatefulSet](c.Sets, before.GetNamespace()) {
		for i := range set.Spec.VolumeClaimTemplates {
			if strings.HasPrefix(before.GetName(), set.Spec.VolumeClaimTemplates[i].Name+"-"+set.Name+"-") {
				c.Add(set.Namespace + "/" + set.Name)
			}
		}
	}
}

// turn is one reconciliation of one set.
type turn struct {
	*Controller
	owner children.Owner
	set   *appsv1.StatefulSet
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		metrics.StatefulSetSkips.WithLabelValues("apps", "statefulsets").Inc()
		return 0, nil // queued when it is
	}
	set := source.Get[*appsv1.StatefulSet](c.Sets, key)
	if set == nil {
		c.failures.Forget(key)
		return 0, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // rejected by validation; a retry would not help
	}
	t := turn{c, children.Owner{Owner: workload.Owner{Object: set, Kind: statefulset.Kind()}, Runtime: set, Key: key},
		set}
	again, err := t.run(ctx, selector)
	if children.NamespaceEnds(err) {
		return again, nil // W0.40
	}
	return again, err
}

func (t turn) run(ctx context.Context, selector labels.Selector) (time.Duration, error) {
	revisions, err := t.revisions(ctx, selector)
	if err != nil {
		return 0, err
	}
	pods, err := t.pods(ctx, selector)
	if err != nil {
		return 0, err
	}
	in := statefulset.Input{Now: time.Now(), Set: t.set, Pods: pods,
		Failures: t.failures.Of(t.owner.Key, t.set.UID, t.set.Generation),
		Claim: func(name string) *corev1.PersistentVolumeClaim {
			return source.Get[*corev1.PersistentVolumeClaim](t.Claims, t.set.Namespace+"/"+name)
		}}
	if t.set.Status.CollisionCount != nil {
		in.Collisions = *t.set.Status.CollisionCount
	}
	if in.Update, err = t.update(ctx, revisions, &in.Collisions); err != nil {
		return 0, err
	}
	in.Current = statefulset.Current(t.set, revisions, in.Update)
	plan, err := statefulset.Decide(in)
	if err != nil {
		return 0, fmt.Errorf("plan StatefulSet %s: %w", t.owner.Key, err)
	}
	if plan.Refused != "" {
		t.keeper.Events.Event(t.set, corev1.EventTypeWarning, "UnknownStrategy", plan.Refused)
		return 0, errors.New(plan.Refused)
	}
	t.failures.Add(t.owner.Key, t.set.UID, t.set.Generation, plan.Failures)
	deleted, failed := t.do(ctx, &plan)
	status := plan.Status(deleted)
	err = errors.Join(failed, t.store(ctx, &status),
		t.keeper.DeleteRevisions(ctx, t.owner, t.Revisions,
			statefulset.Excess(t.set, revisions, in.Current, in.Update, pods)))
	if plan.Again.IsZero() {
		return 0, err
	}
	return max(time.Until(plan.Again), time.Millisecond), err
}

func (t turn) live(ctx context.Context) (metav1.Object, error) {
	return t.keeper.Client.AppsV1().StatefulSets(t.set.Namespace).Get(ctx, t.set.Name, metav1.GetOptions{})
}

// pods adopts and releases pods, and returns those of the set (W0.25).
func (t turn) pods(ctx context.Context, selector labels.Selector) ([]*corev1.Pod, error) {
	claims := workload.Claim(t.owner.Owner, selector, source.Candidates[*corev1.Pod](t.Pods, t.set),
		func(p *corev1.Pod) bool { return statefulset.Member(t.set, p) })
	return children.Settle(ctx, t.keeper, t.owner, claims, t.keeper.PodChange(t.set.Namespace, t.live))
}

// revisions adopts orphans, and returns the revisions of the set (W3.26).
func (t turn) revisions(ctx context.Context, selector labels.Selector) ([]*appsv1.ControllerRevision, error) {
	claims := workload.Claim(t.owner.Owner, selector, source.Candidates[*appsv1.ControllerRevision](t.Revisions, t.set),
		nil)
	claims.Release = nil
	return children.Settle(ctx, t.keeper, t.owner, claims,
		t.keeper.RevisionChange(t.set.Namespace, t.Revisions, t.live))
}

// update returns the stored update revision, after creating or changing it if necessary (W3.22, W3.23).
func (t turn) update(ctx context.Context, revisions []*appsv1.ControllerRevision,
	collisions *int32) (*appsv1.ControllerRevision, error) {
	r, err := statefulset.Revise(t.set, revisions, *collisions, t.defaults)
	if err != nil {
		return nil, fmt.Errorf("revise StatefulSet %s: %w", t.owner.Key, err)
	}
	api := t.keeper.Client.AppsV1().ControllerRevisions(t.set.Namespace)
	switch {
	case t.set.DeletionTimestamp != nil && (r.Create || r.Raise != 0):
		// A terminating set needs no new revision.
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: t.set.Status.UpdateRevision}}, nil
	case r.Raise != 0:
		raised := r.Update.DeepCopy()
		raised.Revision = r.Raise
		if raised, err = api.Update(ctx, raised, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("raise the number of revision %s: %w", r.Update.Name, err)
		}
		t.keeper.Fresh.Wrote(t.owner.Key, t.Revisions, raised)
		return raised, nil
	case !r.Create:
		return r.Update, nil
	}
	for {
		made, err := api.Create(ctx, r.Update, metav1.CreateOptions{})
		if err == nil {
			t.keeper.Fresh.Wrote(t.owner.Key, t.Revisions, made)
			return made, nil
		}
		if !apierrors.IsAlreadyExists(err) || children.NamespaceEnds(err) {
			return nil, fmt.Errorf("create revision %s: %w", r.Update.Name, err)
		}
		there, err := api.Get(ctx, r.Update.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read revision %s, whose name is taken: %w", r.Update.Name, err)
		}
		if revision.Holds(there, r.Update.Data.Raw) {
			return there, nil
		}
		*collisions++
		statefulset.Rename(t.set, r.Update, *collisions)
	}
}

// store writes the status (W3.77). A conflict with a newer set is not an error: its event queues
// the key.
func (t turn) store(ctx context.Context, status *appsv1.StatefulSetStatus) error {
	if !statefulset.Changed(&t.set.Status, status) {
		return nil
	}
	set := t.set.DeepCopy()
	set.Status = *status
	stored, err := t.keeper.Client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if err != nil {
		if err = t.keeper.Behind(ctx, t.owner.Key, t.Sets, t.set, err, t.live); err == nil {
			return nil
		}
		return fmt.Errorf("store the status of StatefulSet %s: %w", t.owner.Key, err)
	}
	t.keeper.Fresh.Wrote(t.owner.Key, t.Sets, stored)
	return nil
}

// do executes the plan until a step fails, and returns the number of counted pods that it deleted.
func (t turn) do(ctx context.Context, plan *statefulset.Plan) (deleted int, err error) {
	for _, stage := range plan.Stages {
		sizes := workload.Waves(len(stage)) // W0.41
		if plan.InOrder {
			sizes = make([]int, len(stage))
			for i := range sizes {
				sizes[i] = 1
			}
		}
		for _, size := range sizes {
			errs := make([]error, size)
			var wave sync.WaitGroup
			for i, step := range stage[:size] {
				wave.Go(func() { errs[i] = t.step(ctx, step) })
			}
			wave.Wait()
			for i, step := range stage[:size] {
				if errs[i] == nil && step.Counted {
					deleted++
				}
			}
			if err := errors.Join(errs...); err != nil {
				return deleted, err
			}
			stage = stage[size:]
		}
	}
	return deleted, nil
}
