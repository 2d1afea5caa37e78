// Package deployment rolls out Deployments by means of ReplicaSets. It drives
// core/workload/deployment. The controller manager runs it; it must never create or delete a pod.
//
// Contract: docs/spec/workloads.md.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/confirm"
	"carob/internal/controllers/children"
	"carob/internal/controllers/freshness"
	"carob/internal/controllers/reconciler"
	"carob/internal/controllers/source"
	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
)

// errLater ends a pass; the next one starts when the watches show the stored version.
var errLater = errors.New("something newer is stored")

// errChanged: a webhook or a policy changes the replica sets of a deployment, so that the next pass finds none with its
// template, and would create another one, without end.
var errChanged = errors.New("it was created with another template or other labels than requested: " +
	"a webhook or a policy changes it")

// Controller rolls deployments out. Its key is a deployment's namespace/name.
type Controller struct {
	*reconciler.Reconciler
	client                  kubernetes.Interface
	events                  record.EventRecorder
	keeper                  *children.Keeper
	deployments, sets, pods *source.Watch
}

// New returns a controller; sets and pods are indexed source.ByController, all by namespace.
func New(client kubernetes.Interface, events record.EventRecorder, deployments, sets, pods *source.Watch) (*Controller,
	error) {
	c := &Controller{client: client, events: events, deployments: deployments, sets: sets, pods: pods}
	c.Reconciler = reconciler.New("deployment", 8, c.reconcile)
	fresh, err := freshness.New(c.Add, deployments, sets)
	if err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	c.keeper = &children.Keeper{Client: client, Events: events, Fresh: fresh, Pods: pods}
	if err := reconciler.OnChange(deployments, func(o metav1.Object) { c.Add(key(o)) }); err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	if err := children.OnChildren(sets, deployments, "Deployment", selects, c.Add); err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	if err := pods.OnChange(c.podChanged); err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	return c, nil
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

func selects(owner metav1.Object, l labels.Set) bool {
	d, ok := owner.(*appsv1.Deployment)
	if !ok {
		return false
	}
	s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return err == nil && !s.Empty() && s.Matches(l)
}

// podChanged queues the deployment that waits for a pod's end before it creates new ones (W2.12).
func (c *Controller) podChanged(before, after metav1.Object) {
	if before == nil {
		return
	}
	if p, ok := after.(*corev1.Pod); ok && !workload.Terminal(p) {
		return
	}
	ref := metav1.GetControllerOfNoCopy(before)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	set := source.Get[*appsv1.ReplicaSet](c.sets, before.GetNamespace()+"/"+ref.Name)
	if set == nil || set.UID != ref.UID {
		return
	}
	top := metav1.GetControllerOfNoCopy(set)
	if top == nil {
		return
	}
	d := source.Get[*appsv1.Deployment](c.deployments, set.Namespace+"/"+top.Name)
	if d != nil && d.UID == top.UID && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.Add(key(d))
	}
}

func (c *Controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	if !c.keeper.Fresh.Fresh(key) {
		return 0, nil // queued when it is
	}
	d := source.Get[*appsv1.Deployment](c.deployments, key)
	if d == nil {
		c.keeper.Forget(key)
		return 0, nil
	}
	sets, err := c.claim(ctx, key, d)
	if err != nil {
		return 0, err
	}
	in := deployment.Input{Deployment: d, Sets: sets, Running: c.running, Now: time.Now()}
	plan := deployment.Decide(in)
	for _, e := range plan.Events {
		c.record(d, e)
	}
	for _, step := range plan.Steps {
		switch err := c.do(ctx, key, in, step); {
		case errors.Is(err, errLater), children.NamespaceEnds(err):
			return 0, nil
		case err != nil:
			return 0, err
		}
		c.record(d, step.Event)
	}
	if plan.Next.IsZero() {
		return 0, nil
	}
	return max(time.Until(plan.Next), time.Millisecond), nil
}

func (c *Controller) record(d *appsv1.Deployment, e deployment.Event) {
	if e.Reason != "" {
		c.events.Event(d, e.Type, e.Reason, e.Message)
	}
}

// claim returns the sets of a deployment, including adopted ones.
func (c *Controller) claim(ctx context.Context, key string, d *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || selector.Empty() {
		return nil, nil //nolint:nilerr // validation rejects invalid ones
	}
	owner := owner(key, d)
	claims := workload.Claim(owner, selector, source.Candidates[*appsv1.ReplicaSet](c.sets, d), nil)
	return children.Settle(ctx, c.keeper, owner, claims, children.Change[*appsv1.ReplicaSet]{Watch: c.sets,
		Patch: func(ctx context.Context, name string, patch []byte) (*appsv1.ReplicaSet, error) {
			return c.client.AppsV1().ReplicaSets(d.Namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
		},
		Live: confirm.By(c.client.AppsV1().Deployments(d.Namespace).Get, d.Name)})
}

func owner(key string, d *appsv1.Deployment) children.Owner {
	return children.Owner{Owner: workload.Owner{Object: d, Kind: appsv1.SchemeGroupVersion.WithKind("Deployment")},
		Runtime: d, Key: key}
}

// running reports whether a set has pods that have not ended.
func (c *Controller) running(set types.UID) bool {
	for _, p := range source.Controlled[*corev1.Pod](c.pods, set) {
		if !workload.Terminal(p) {
			return true
		}
	}
	return false
}

// do makes one write.
func (c *Controller) do(ctx context.Context, key string, in deployment.Input, step deployment.Step) error {
	fresh, sets, deployments := c.keeper.Fresh, c.client.AppsV1().ReplicaSets(in.Deployment.Namespace),
		c.client.AppsV1().Deployments(in.Deployment.Namespace)
	switch {
	case step.Create != nil:
		return c.create(ctx, key, in, step.Create)
	case step.Update != nil:
		set, err := sets.Update(ctx, step.Update, metav1.UpdateOptions{})
		if err != nil {
			return c.retryLater(c.keeper.Behind(ctx, key, c.sets, step.Update,
				fmt.Errorf("update replica set %s: %w", step.Update.Name, err),
				confirm.By(sets.Get, step.Update.Name)))
		}
		fresh.Wrote(key, c.sets, set)
	case step.Delete != nil:
		err := sets.Delete(ctx, step.Delete.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(step.Delete.UID))})
		if err = c.keeper.Gone(ctx, key, c.sets, step.Delete, err, confirm.By(sets.Get, step.Delete.Name)); err != nil {
			return fmt.Errorf("delete replica set %s: %w", step.Delete.Name, err)
		}
	case step.Rollback != nil:
		d, err := deployments.Update(ctx, step.Rollback, metav1.UpdateOptions{})
		if err != nil {
			return c.behind(ctx, key, in.Deployment, fmt.Errorf("roll back deployment %s: %w", key, err))
		}
		fresh.Wrote(key, c.deployments, d)
	case step.Status != nil:
		d, err := deployments.UpdateStatus(ctx, step.Status, metav1.UpdateOptions{})
		if err != nil {
			return c.behind(ctx, key, in.Deployment, fmt.Errorf("update the status of deployment %s: %w", key, err))
		}
		fresh.Wrote(key, c.deployments, d)
	}
	return nil
}

// behind handles the error of a write to a deployment.
func (c *Controller) behind(ctx context.Context, key string, d *appsv1.Deployment, err error) error {
	get := confirm.By(c.client.AppsV1().Deployments(d.Namespace).Get, d.Name)
	return c.retryLater(c.keeper.Behind(ctx, key, c.deployments, d, err, get))
}

// retryLater returns the error of a failed write, or errLater if Behind found a newer version, so that the
// Deployment is processed again later.
func (c *Controller) retryLater(err error) error {
	if err == nil {
		return errLater
	}
	return err
}

// create creates a set. If the name exists, the set is the deployment's own, or another name is
// needed (W2.33).
func (c *Controller) create(ctx context.Context, key string, in deployment.Input, set *appsv1.ReplicaSet) error {
	if c.keeper.Waits(owner(key, in.Deployment)) {
		return fmt.Errorf("create replica set %s: %w", set.Name, errChanged)
	}
	made, err := c.client.AppsV1().ReplicaSets(set.Namespace).Create(ctx, set, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.keeper.Fresh.Wrote(key, c.sets, made)
		if deployment.Found(in.Deployment, made) {
			return nil
		}
		c.keeper.Astray(owner(key, in.Deployment))
		err = errChanged
	case children.NamespaceEnds(err):
		return err
	case apierrors.IsAlreadyExists(err):
		return c.taken(ctx, key, in, set.Name)
	}
	e, d := deployment.NotCreated(in, set.Name, err)
	if d != nil {
		if err := c.do(ctx, key, in, deployment.Step{Status: d}); err != nil && !errors.Is(err, errLater) {
			return err
		}
	}
	c.record(in.Deployment, e)
	return fmt.Errorf("create replica set %s: %w", set.Name, err)
}

// taken ends a pass whose new set has the name of an existing one. The next pass starts when the
// watch shows it, or the status with a higher count of collisions.
func (c *Controller) taken(ctx context.Context, key string, in deployment.Input, name string) error {
	exists, err := c.client.AppsV1().ReplicaSets(in.Deployment.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read ReplicaSet %s, whose name is taken: %w", name, err)
	}
	c.keeper.Fresh.Wrote(key, c.sets, exists)
	if d := deployment.Taken(in.Deployment, exists); d != nil {
		if err := c.do(ctx, key, in, deployment.Step{Status: d}); err != nil {
			return err
		}
	}
	return errLater
}
