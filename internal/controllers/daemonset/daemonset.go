// Package daemonset is the controller of DaemonSets. It drives core/workload/daemonset, which makes all decisions. The
// controller manager runs it.
//
// Contract: docs/spec/workloads.md.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
)

// workers is the number of sets that are reconciled in parallel (W4.3).
const workers = 2

// Watches are the controller's inputs. Pods and Revisions are indexed ByController, Pods also ByNode, Sets by
// namespace.
type Watches struct{ Sets, Pods, Nodes, Revisions *source.Watch }

// Controller drives DaemonSets. Its key is a set's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	Watches
	keeper *children.Keeper

	failures children.Failures // of pods, by node (W4.34)
}

// New returns a controller.
func New(client kubernetes.Interface, events record.EventRecorder, w Watches) (*Controller, error) {
	c := &Controller{Watches: w}
	c.Reconciler = reconciler.New("daemonset", workers, c.reconcile)
	fresh, err := freshness.New(c.Add, w.Sets, w.Pods, w.Revisions)
	if err != nil {
		return nil, fmt.Errorf("daemonset: %w", err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: w.Pods}
	if err := children.OnChildren(w.Pods, w.Sets, daemonset.Kind().Kind, selects, c.Add); err != nil {
		return nil, fmt.Errorf("daemonset: watch pods: %w", err)
	}
	err = reconciler.OnChange(w.Sets, func(o metav1.Object) { c.Add(o.GetNamespace() + "/" + o.GetName()) })
	if err != nil {
		return nil, fmt.Errorf("daemonset: watch sets: %w", err)
	}
	if err := w.Nodes.OnChange(c.nodeChanged); err != nil {
		return nil, fmt.Errorf("daemonset: watch nodes: %w", err)
	}
	if err := w.Revisions.OnChange(c.revisionChanged); err != nil {
		return nil, fmt.Errorf("daemonset: watch revisions: %w", err)
	}
	return c, nil
}

func selects(owner metav1.Object, l labels.Set) bool {
	set, ok := owner.(*appsv1.DaemonSet)
	return ok && children.Selects(set.Spec.Selector, l)
}

// nodeChanged queues the sets for which a node becomes eligible or stops being so, and those that have a pod on a
// node that appears (W4.4). Nodes that are deleted count, too: a pod that was just created for one can never be
// scheduled (W4.40).
func (c *Controller) nodeChanged(before, after metav1.Object) {
	old, existed := before.(*corev1.Node)
	node, exists := after.(*corev1.Node)
	if existed && exists && maps.Equal(old.Labels, node.Labels) &&
		equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		return
	}
	there := map[types.UID]bool{} // sets that have a pod on a new node
	if !existed && exists {
		for _, p := range source.OnNode(c.Pods, node.Name) {
			if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
				there[ref.UID] = true
			}
		}
	}
	for _, obj := range c.Sets.Objects().List() {
		set, ok := obj.(*appsv1.DaemonSet)
		if !ok {
			continue
		}
		var ran, stayed, run, stay bool
		eligible := daemonset.NewEligible(set)
		if existed {
			ran, stayed = eligible.Of(old)
		}
		if exists {
			run, stay = eligible.Of(node)
		}
		if ran != run || stayed != stay || there[set.UID] {
			c.Add(set.Namespace + "/" + set.Name)
		}
	}
}

// revisionChanged queues the set of a revision that is changed or deleted, but not of one that is
// created (W4.5, W12.41), and the sets that match an orphan.
func (c *Controller) revisionChanged(before, after metav1.Object) {
	wake := func(o metav1.Object) bool {
		if o == nil {
			return false
		}
		ref := metav1.GetControllerOfNoCopy(o)
		if ref == nil {
			return false
		}
		key := o.GetNamespace() + "/" + ref.Name
		if set := source.Get[*appsv1.DaemonSet](c.Sets, key); before != nil && set != nil && set.UID == ref.UID {
			c.Add(key)
		}
		return true
	}
	wake(before)
	if wake(after) || after == nil {
		return
	}
	if before != nil && labels.Equals(before.GetLabels(), after.GetLabels()) &&
		metav1.GetControllerOfNoCopy(before) == nil {
		return
	}
	for _, set := range source.Namespaced[*appsv1.DaemonSet](c.Sets, after.GetNamespace()) {
		if selects(set, after.GetLabels()) {
			c.Add(set.Namespace + "/" + set.Name)
		}
	}
}

// turn is one reconciliation of one set.
type turn struct {
	*Controller
	owner children.Owner
	set   *appsv1.DaemonSet
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		metrics.DaemonSetSkips.WithLabelValues("apps", "daemonsets").Inc()
		return 0, nil // queued when it is
	}
	set := source.Get[*appsv1.DaemonSet](c.Sets, key)
	if set == nil {
		c.failures.Forget(key)
		c.keeper.Forget(key)
		return 0, nil
	}
	if equality.Semantic.DeepEqual(set.Spec.Selector, &metav1.LabelSelector{}) { // W4.6
		c.keeper.Events.Event(set, corev1.EventTypeWarning, "SelectingAll",
			"This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil || set.DeletionTimestamp != nil {
		return 0, nil //nolint:nilerr // rejected by validation; a retry would not help
	}
	t := turn{c, children.Owner{Owner: workload.Owner{Object: set, Kind: daemonset.Kind()}, Runtime: set, Key: key,
		Counts: func(requested, made *corev1.Pod) bool {
			return selector.Matches(labels.Set(made.Labels)) && daemonset.Target(made) == daemonset.Target(requested)
		}}, set}
	again, err := t.run(ctx, selector)
	if children.NamespaceEnds(err) {
		return again, nil // W0.40
	}
	return again, err
}

func (t turn) run(ctx context.Context, selector labels.Selector) (time.Duration, error) {
	pods, err := t.pods(ctx, selector)
	if err != nil {
		return 0, err
	}
	hash, old, err := t.revise(ctx, selector, pods)
	if errors.Is(err, errRelabelled) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("failed to construct revisions of DaemonSet: %w", err)
	}
	in := daemonset.Input{Now: time.Now(), Set: t.set, Hash: hash, Pods: pods, Failures: t.failed()}
	for _, obj := range t.Nodes.Objects().List() {
		if n, ok := obj.(*corev1.Node); ok {
			in.Nodes = append(in.Nodes, n)
		}
	}
	plan, failed := daemonset.Decide(in)
	if failed == nil {
		failed = t.do(ctx, &plan, hash)
	}
	if failed == nil {
		failed = t.keeper.DeleteRevisions(ctx, t.owner, t.Revisions, daemonset.Excess(t.set, old, pods))
	}
	err = errors.Join(failed, t.store(ctx, &plan.Status))
	if plan.Again.IsZero() {
		return 0, err
	}
	return max(time.Until(plan.Again), time.Millisecond), err
}

// do executes the plan (W4.41).
func (t turn) do(ctx context.Context, plan *daemonset.Plan, hash string) error {
	for _, e := range plan.Events {
		t.keeper.Events.Event(t.set, e.Type, e.Reason, e.Message)
	}
	t.keep(plan.Failures)
	_, created := t.keeper.CreatePods(ctx, t.owner, len(plan.Create), func(i int) (*corev1.Pod, error) {
		return daemonset.Pod(t.set, hash, plan.Create[i])
	})
	_, deleted := t.keeper.DeletePods(ctx, t.owner, plan.Delete)
	return errors.Join(created, deleted)
}

// failed returns the back-off state of the set's generation (W4.34).
func (t turn) failed() map[string]workload.Failure {
	return t.failures.Of(t.owner.Key, t.set.UID, t.set.Status.ObservedGeneration)
}

func (t turn) keep(nodes map[string]workload.Failure) {
	t.failures.Add(t.owner.Key, t.set.UID, t.set.Status.ObservedGeneration, nodes)
}

func (t turn) live(ctx context.Context) (metav1.Object, error) {
	return t.keeper.Client.AppsV1().DaemonSets(t.set.Namespace).Get(ctx, t.set.Name, metav1.GetOptions{})
}

// pods adopts and releases pods, and returns those of the set.
func (t turn) pods(ctx context.Context, selector labels.Selector) ([]*corev1.Pod, error) {
	claims := workload.Claim(t.owner.Owner, selector, source.Candidates[*corev1.Pod](t.Pods, t.set), nil)
	return children.Settle(ctx, t.keeper, t.owner, claims, t.keeper.PodChange(t.set.Namespace, t.live))
}

// store writes the status (W4.68). A conflict with a newer set is not an error: its event queues
// the key.
func (t turn) store(ctx context.Context, status *appsv1.DaemonSetStatus) error {
	if !daemonset.Changed(&t.set.Status, status) {
		return nil
	}
	set := t.set.DeepCopy()
	set.Status = *status
	stored, err := t.keeper.Client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
	if err != nil {
		if err = t.keeper.Behind(ctx, t.owner.Key, t.Sets, t.set, err, t.live); err == nil {
			return nil
		}
		return fmt.Errorf("store the status of DaemonSet %s: %w", t.owner.Key, err)
	}
	t.keeper.Fresh.Wrote(t.owner.Key, t.Sets, stored)
	return nil
}
