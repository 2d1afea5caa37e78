package daemonsets

import (
	"errors"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/fakeapi"
)

// Hooks are what a simulator adds to the controller; each may be nil.
type Hooks struct {
	Sabotage
	Planned func(in daemonset.Input, plan *daemonset.Plan) // is called with each plan and its input
	// Created is called for each new pod of a node, even if the response to its creation was lost.
	Created func(in daemonset.Input, node string, made fakeapi.Object, answered bool)
}

// Controller simulates controllers/daemonset: the same writes in the same order for the same plan.
type Controller struct {
	api               *fakeapi.API
	hooks             Hooks
	client            *fakeapi.Client
	sets, pods, nodes *fakeapi.Watch
	fresh             *fakeapi.Tracker
	failures          map[types.UID]*failures // of each set
	dirty             bool
	due               time.Time
}

// failures are the failed pods of a set, by node, since its generation last changed.
type failures struct {
	generation int64
	byNode     map[string]workload.Failure
}

// NewController starts a process: it lists, and has no record of earlier writes.
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *Controller {
	c := &Controller{api: api, hooks: hooks, client: client, fresh: fakeapi.NewTracker(),
		failures: map[types.UID]*failures{}, dirty: true}
	changed := func() { c.dirty = true }
	c.sets, c.pods = fakeapi.Shared[*appsv1.DaemonSet](caches, changed), fakeapi.Shared[*corev1.Pod](caches, changed)
	c.nodes = fakeapi.Shared[*corev1.Node](caches, changed)
	return c
}

// Due returns whether the controller has something to do now, and when to call it again; zero for never.
func (c *Controller) Due() (now bool, at time.Time) { return c.dirty, c.due }

// Turn handles the sets if something has changed. It returns false if the process has ended.
func (c *Controller) Turn() bool {
	if !c.dirty && (c.due.IsZero() || c.api.Now.Before(c.due)) {
		return true
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.hooks.Stale {
		return true // the watch that is behind starts the next turn
	}
	c.due = time.Time{}
	for _, d := range fakeapi.Seen[*appsv1.DaemonSet](c.sets) {
		if d.DeletionTimestamp != nil {
			continue // the garbage collector removes its pods
		}
		err := c.reconcile(d)
		c.dirty = c.dirty || err != nil
		if errors.Is(err, fakeapi.ErrCrash) {
			return false
		}
	}
	return true
}

func hash(d *appsv1.DaemonSet) string { return d.Spec.Template.Spec.Containers[0].Image }

func (c *Controller) reconcile(d *appsv1.DaemonSet) error {
	f := c.failures[d.UID]
	if f == nil || f.generation != d.Status.ObservedGeneration {
		f = &failures{d.Status.ObservedGeneration, map[string]workload.Failure{}}
		c.failures[d.UID] = f
	}
	in := daemonset.Input{Now: c.api.Now, Set: d, Hash: hash(d), Failures: maps.Clone(f.byNode),
		Pods: fakeapi.Owned[*corev1.Pod](c.pods, d.UID), Nodes: fakeapi.Seen[*corev1.Node](c.nodes)}
	unchanged := in // without the sabotage
	if c.hooks.In != nil {
		in.Set = d.DeepCopy()
		c.hooks.In(&in)
	}
	plan, err := daemonset.Decide(in)
	if err != nil {
		return err
	}
	if c.hooks.Plan != nil {
		c.hooks.Plan(&plan)
	}
	if c.hooks.Planned != nil {
		c.hooks.Planned(unchanged, &plan)
	}
	maps.Copy(f.byNode, plan.Failures)
	failed := c.create(unchanged, plan.Create)
	if !errors.Is(failed, fakeapi.ErrCrash) {
		failed = errors.Join(failed, c.delete(plan.Delete))
	}
	if errors.Is(failed, fakeapi.ErrCrash) {
		return failed
	}
	if daemonset.Changed(&d.Status, &plan.Status) {
		e, err := c.client.Update(d, func(o fakeapi.Object) {
			if d, ok := o.(*appsv1.DaemonSet); ok {
				d.Status = *plan.Status.DeepCopy()
			}
		})
		if err == nil {
			c.fresh.Wrote(c.sets, e)
		} else if !fakeapi.Stale(err) { // otherwise the watch will deliver a newer version
			failed = errors.Join(failed, err)
		}
	}
	c.due = workload.Earlier(c.due, plan.Again)
	return failed
}

// create creates pods in waves; a wave with a failure is the last one.
func (c *Controller) create(in daemonset.Input, nodes []string) error {
	for _, n := range workload.Waves(len(nodes)) {
		var failed error
		for _, node := range nodes[:n] {
			p, err := daemonset.Pod(in.Set, in.Hash, node)
			if err != nil {
				return err
			}
			p.Status.Phase = corev1.PodPending
			c.client.Done = func(e fakeapi.Entry, answered bool) {
				if c.hooks.Created != nil {
					c.hooks.Created(in, node, e.Object, answered)
				}
			}
			e, err := c.client.Create(p, func(fakeapi.Object) bool { return false })
			c.client.Done = func(fakeapi.Entry, bool) {}
			if errors.Is(err, fakeapi.ErrCrash) {
				return err
			}
			if err == nil {
				c.fresh.Wrote(c.pods, e)
			}
			failed = errors.Join(failed, err)
		}
		if failed != nil {
			return failed
		}
		nodes = nodes[n:]
	}
	return nil
}

func (c *Controller) delete(pods []*corev1.Pod) error {
	var failed error
	for _, p := range pods {
		_, err := c.client.Delete(p.UID, 30)
		if err == nil || fakeapi.Stale(err) {
			c.fresh.Deleted(c.pods, p.UID)
			continue
		}
		if failed = errors.Join(failed, err); errors.Is(err, fakeapi.ErrCrash) {
			break
		}
	}
	return failed
}
