// Package replicaset keeps the number of pods at the replicas of ReplicaSets and
// ReplicationControllers. It drives core/workload/replicaset, one controller for each of the two
// kinds. The controller manager runs it; it must never change an owner's spec.
//
// Contract: docs/spec/workloads.md.
package replicaset

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/metrics"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/replicaset"
)

// kind is one of the two kinds of owners.
type kind interface {
	gvk() schema.GroupVersionKind
	// read reads an owner as a replica set.
	read(owner metav1.Object) *appsv1.ReplicaSet
	// live reads an owner from the API.
	live(ctx context.Context, namespace, name string) (metav1.Object, error)
	// store writes the status of an owner as read from the watch.
	store(ctx context.Context, owner metav1.Object, status appsv1.ReplicaSetStatus) (metav1.Object, error)
	// countsEnding is whether the status counts pods that are ending (W1.21).
	countsEnding() bool
}

// Controller keeps the pods of one kind of owners. Its key is an owner's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	kind         kind
	keeper       *children.Keeper
	owners, pods *source.Watch
}

// New returns the controller of replica sets; sets and pods are indexed
// source.ByController and by namespace.
func New(client kubernetes.Interface, events record.EventRecorder, sets, pods *source.Watch) (*Controller, error) {
	return newController("replicaset", replicaSets{client}, client, events, sets, pods)
}

// NewForReplicationControllers returns the controller of replication controllers.
func NewForReplicationControllers(client kubernetes.Interface, events record.EventRecorder, owners,
	pods *source.Watch) (*Controller, error) {
	return newController("replicationmanager", replicationControllers{client}, client, events, owners, pods)
}

func newController(name string, k kind, client kubernetes.Interface, events record.EventRecorder, owners,
	pods *source.Watch) (*Controller, error) {
	c := &Controller{kind: k, owners: owners, pods: pods}
	c.Reconciler = reconciler.New(name, 8, c.reconcile)
	fresh, err := freshness.New(c.Add, owners, pods)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: pods}
	err = reconciler.OnChange(owners, func(o metav1.Object) { c.Add(o.GetNamespace() + "/" + o.GetName()) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := children.OnChildren(pods, owners, k.gvk().Kind, c.selects, c.Add); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func (c *Controller) selects(owner metav1.Object, l labels.Set) bool {
	s, err := metav1.LabelSelectorAsSelector(c.kind.read(owner).Spec.Selector)
	return err == nil && !s.Empty() && s.Matches(l)
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		metrics.ReplicaSetSkips.WithLabelValues("apps", "replicasets").Inc()
		return 0, nil // queued when it is
	}
	object := source.Get[metav1.Object](c.owners, key)
	if object == nil {
		c.keeper.Forget(key)
		return 0, nil
	}
	set := c.kind.read(object)
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // validation rejects these; a change queues the key
	}
	owner := children.Owner{Owner: workload.Owner{Object: set, Kind: c.kind.gvk()}, Runtime: object.(runtime.Object),
		Key: key, Counts: children.Selected(selector)} //nolint:errcheck,forcetypeassert // every object is one
	in := replicaset.Input{Set: set, Burst: children.Burst}
	ending, err := c.claim(ctx, owner, selector, &in)
	if err != nil {
		return 0, err
	}
	in.Now = time.Now()
	if c.kind.countsEnding() {
		in.Ending = &ending
	}
	complete, again, failure := c.act(ctx, owner, &in)
	if complete {
		return 0, nil // woken when the watch shows it; the numbers are stored then
	}
	if children.NamespaceEnds(failure) {
		failure = nil
	}
	status, changed, next := replicaset.Status(in, failure)
	next = workload.Earlier(next, again)
	if changed {
		stored, err := c.kind.store(ctx, object, status)
		if err != nil {
			err = c.keeper.Behind(ctx, key, c.owners, object, err, func(ctx context.Context) (metav1.Object, error) {
				return c.kind.live(ctx, set.Namespace, set.Name)
			})
			if err != nil {
				return 0, fmt.Errorf("update the status of %s %s: %w", c.kind.gvk().Kind, key, err)
			}
			return 0, failure
		}
		c.keeper.Fresh.Wrote(key, c.owners, stored)
	}
	if failure != nil || next.IsZero() {
		return 0, failure
	}
	return max(time.Until(next), time.Millisecond), nil
}

// claim finds the active pods of an owner, adopted ones too, and those that nodes refused. It returns how many are
// ending.
func (c *Controller) claim(ctx context.Context, owner children.Owner, selector labels.Selector,
	in *replicaset.Input) (ending int32, err error) {
	var candidates []*corev1.Pod
	for _, p := range source.Candidates[*corev1.Pod](c.pods, owner) {
		switch {
		case workload.Active(p):
			candidates = append(candidates, p)
		case workload.Terminating(p) && owner.Owns(p) && selector.Matches(labels.Set(p.Labels)):
			ending++
		case workload.Refused(p) && owner.Owns(p):
			in.Refused = append(in.Refused, p)
		}
	}
	in.Active, err = children.Settle(ctx, c.keeper, owner, workload.Claim(owner, selector, candidates, nil),
		c.keeper.PodChange(owner.GetNamespace(), func(ctx context.Context) (metav1.Object, error) {
			return c.kind.live(ctx, owner.GetNamespace(), owner.GetName())
		}))
	return ending, err
}

// act carries out the decision about the number of pods.
//
// complete is whether it created the last pods that were missing, or deleted all that it was to delete: then the
// status that follows from in would be replaced at once, and each of the two writes would lead to one of the
// Deployment's. If some could not be deleted, in has only pods that are surely left: a Deployment relies on each
// pod that an observed size counts as available (W2.42).
//
// again is when to act again, unless something changes; zero for never.
func (c *Controller) act(ctx context.Context, owner children.Owner, in *replicaset.Input) (complete bool,
	again time.Time, err error) {
	if int(workload.Replicas(in.Set)) < len(in.Active) {
		in.Related = c.related(in.Set)
	}
	plan := replicaset.Decide(*in)
	if len(plan.Delete) > 0 {
		measureAges(in.Active, plan.Delete)
		refused, err := c.keeper.DeletePods(ctx, owner, plan.Delete)
		in.Active = slices.DeleteFunc(slices.Clone(in.Active), func(p *corev1.Pod) bool {
			return slices.Contains(plan.Delete, p) && !slices.Contains(refused, p)
		})
		return err == nil, time.Time{}, err
	}
	_, err = c.keeper.CreatePods(ctx, owner, plan.Create, func(int) (*corev1.Pod, error) {
		return workload.NewPod(owner.Owner, &in.Set.Spec.Template)
	})
	complete = err == nil && plan.Create > 0 && len(in.Active)+plan.Create == int(workload.Replicas(in.Set))
	return complete, plan.Again, err
}

// measureAges records how old the deleted ready pods are, relative to the youngest one.
func measureAges(active, going []*corev1.Pod) {
	var youngest time.Time
	for _, p := range active {
		if workload.Ready(p) && p.CreationTimestamp.After(youngest) {
			youngest = p.CreationTimestamp.Time
		}
	}
	least := time.Since(youngest).Milliseconds()
	if youngest.IsZero() || least <= 0 || len(going) == len(active) {
		return
	}
	for _, p := range going {
		if workload.Ready(p) {
			metrics.DeletionAgeRatio.WithLabelValues().Observe(
				float64(time.Since(p.CreationTimestamp.Time).Milliseconds() / least))
		}
	}
}

// related counts the active pods of all replica sets with the same controller, by node. Sets without
// a controller, and replication controllers, do not rank by node, as upstream (W0.53).
func (c *Controller) related(set *appsv1.ReplicaSet) map[string]int {
	top := metav1.GetControllerOfNoCopy(set)
	if top == nil || !c.kind.countsEnding() {
		return nil
	}
	pods := source.Controlled[*corev1.Pod](c.pods, set.UID)
	for _, s := range source.Controlled[*appsv1.ReplicaSet](c.owners, top.UID) {
		if s.UID != set.UID {
			pods = append(pods, source.Controlled[*corev1.Pod](c.pods, s.UID)...)
		}
	}
	return workload.PodsOnNodes(pods)
}
