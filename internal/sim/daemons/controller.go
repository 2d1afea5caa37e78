package daemons

import (
	"errors"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/cluster"
)

// controller simulates controllers/daemonset: the same writes in the same order for the same plan.
type controller struct {
	w                 *world
	client            *cluster.Client
	sets, pods, nodes *cluster.Watch
	fresh             *cluster.Tracker
	failures          map[string]daemonset.Failure
	generation        int64 // of failures
	dirty             bool
	due               time.Time
}

// newController starts a process: it lists, and knows of no earlier writes.
func newController(w *world) *controller {
	c := &controller{w: w, client: w.Client(), fresh: cluster.NewTracker(), dirty: true}
	c.sets, c.pods = cluster.NewWatch[*appsv1.DaemonSet](w.API), cluster.NewWatch[*corev1.Pod](w.API)
	c.nodes = cluster.NewWatch[*corev1.Node](w.API)
	for _, watch := range []*cluster.Watch{c.sets, c.pods, c.nodes} {
		watch.Heard = func() { c.dirty = true }
	}
	return c
}

func (c *controller) catchUp() {
	for _, watch := range []*cluster.Watch{c.sets, c.pods, c.nodes} {
		watch.CatchUp()
	}
}

// turn handles the set if something woke the controller.
func (c *controller) turn() {
	if !c.dirty && (c.due.IsZero() || c.w.Now.Before(c.due)) {
		return
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.w.sabotage.Stale {
		return // woken when it is delivered
	}
	c.due = time.Time{}
	for _, d := range cluster.Seen[*appsv1.DaemonSet](c.sets) {
		err := c.reconcile(d)
		c.dirty = c.dirty || err != nil
		if errors.Is(err, cluster.ErrCrash) {
			c.w.c = newController(c.w)
		}
	}
}

func hash(d *appsv1.DaemonSet) string { return d.Spec.Template.Spec.Containers[0].Image }

func (c *controller) reconcile(d *appsv1.DaemonSet) error {
	if c.generation != d.Status.ObservedGeneration {
		c.generation, c.failures = d.Status.ObservedGeneration, map[string]daemonset.Failure{}
	}
	daemonset.Forget(c.failures, c.w.Now)
	in := daemonset.Input{Now: c.w.Now, Set: d, Hash: hash(d), Failures: maps.Clone(c.failures),
		Pods: cluster.Seen[*corev1.Pod](c.pods), Nodes: cluster.Seen[*corev1.Node](c.nodes)}
	known := in
	if c.w.sabotage.In != nil {
		in.Set = d.DeepCopy()
		c.w.sabotage.In(&in)
	}
	plan, err := daemonset.Decide(in)
	if err != nil {
		return err
	}
	if c.w.sabotage.Plan != nil {
		c.w.sabotage.Plan(&plan)
	}
	c.w.planned(known, &plan)
	if c.failures == nil {
		c.failures = map[string]daemonset.Failure{}
	}
	maps.Copy(c.failures, plan.Failures)
	failed := c.create(known, plan.Create)
	if !errors.Is(failed, cluster.ErrCrash) {
		failed = errors.Join(failed, c.delete(plan.Delete))
	}
	if errors.Is(failed, cluster.ErrCrash) {
		return failed
	}
	if daemonset.Changed(&d.Status, &plan.Status) {
		e, err := c.client.Update(d, func(o cluster.Object) {
			if d, ok := o.(*appsv1.DaemonSet); ok {
				d.Status = *plan.Status.DeepCopy()
			}
		})
		if err == nil {
			c.fresh.Wrote(c.sets, e)
		} else if !cluster.Stale(err) { // otherwise a newer version is on its way and wakes the controller
			failed = errors.Join(failed, err)
		}
	}
	if !plan.Again.IsZero() {
		c.due = plan.Again
	}
	return failed
}

// create creates pods in waves; a wave with a failure is the last one.
func (c *controller) create(in daemonset.Input, nodes []string) error {
	for _, n := range workload.Waves(len(nodes)) {
		var failed error
		for _, node := range nodes[:n] {
			p, err := daemonset.Pod(in.Set, in.Hash, node)
			if err != nil {
				return err
			}
			p.Status.Phase = corev1.PodPending
			c.client.Done = func(e cluster.Entry, answered bool) {
				c.w.unanswered[e.Object.GetUID()] = !answered
				c.w.created(in, node, e.Object)
			}
			e, err := c.client.Create(p, func(cluster.Object) bool { return false })
			c.client.Done = func(cluster.Entry, bool) {}
			if errors.Is(err, cluster.ErrCrash) {
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

func (c *controller) delete(pods []*corev1.Pod) error {
	var failed error
	for _, p := range pods {
		_, err := c.client.Delete(p.UID, 30)
		if err == nil || cluster.Stale(err) {
			c.fresh.Deleted(c.pods, p.UID)
			continue
		}
		if failed = errors.Join(failed, err); errors.Is(err, cluster.ErrCrash) {
			break
		}
	}
	return failed
}
