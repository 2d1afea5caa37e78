package jobs

import (
	"errors"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/job"
	"carob/internal/sim/cluster"
)

// controller simulates controllers/job: the same writes in the same order for the same plan.
type controller struct {
	w          *world
	client     *cluster.Client
	jobs, pods *cluster.Watch
	fresh      *cluster.Tracker
	backoffs   map[types.UID]job.Backoff
	dirty      bool      // something woke it
	due        time.Time // when it asked to be called again; zero for never
	reason     reason    // why a finalizer is removed, for the checks
}

type reason int

const (
	counted reason = iota // the result is stored
	dropped               // the pod is not wanted (W5.43, W5.92)
	alone                 // its Job is gone
)

// newController starts a process: it lists, and knows of no earlier writes.
func newController(w *world) *controller {
	c := &controller{w: w, client: w.Client(), fresh: cluster.NewTracker(), dirty: true}
	c.backoffs = map[types.UID]job.Backoff{}
	c.jobs, c.pods = cluster.NewWatch[*batchv1.Job](w.API), cluster.NewWatch[*corev1.Pod](w.API)
	c.jobs.Heard = func() { c.dirty = true }
	c.pods.Heard = c.jobs.Heard
	return c
}

// turn handles the Job if something woke the controller.
func (c *controller) turn() {
	if !c.dirty && (c.due.IsZero() || c.w.Now.Before(c.due)) {
		return
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.w.sabotage.Stale {
		return // woken when it is delivered
	}
	c.due = time.Time{}
	for _, j := range cluster.Seen[*batchv1.Job](c.jobs) {
		if c.failed(c.reconcile(j)) {
			return
		}
	}
}

// failed handles an error like the work queue, and reports whether the process has ended.
func (c *controller) failed(err error) bool {
	c.dirty = c.dirty || err != nil
	if errors.Is(err, cluster.ErrCrash) {
		c.w.c = newController(c.w)
		return true
	}
	return false
}

func (c *controller) reconcile(j *batchv1.Job) error {
	in := job.Input{Job: j, Now: c.w.Now, Backoff: c.backoffs[j.UID]}
	for _, p := range cluster.Seen[*corev1.Pod](c.pods) {
		if metav1.GetControllerOfNoCopy(p).UID == j.UID {
			in.Pods = append(in.Pods, p)
		}
	}
	out := c.plan(in)
	c.backoffs[j.UID] = out.Backoff
	failed := errors.Join(c.create(j, out.Create), c.delete(out.Delete), out.Problem)
	if errors.Is(failed, cluster.ErrCrash) {
		return failed
	}
	if failed != nil {
		in.Hold = true
		out = c.plan(in)
	}
	if c.w.sabotage.Early {
		failed = errors.Join(failed, c.each(out.Untrack, counted))
	}
	if out.Status != nil {
		e, err := c.client.Update(j, func(o cluster.Object) {
			if j, ok := o.(*batchv1.Job); ok {
				j.Status = *out.Status.DeepCopy()
			}
		})
		switch {
		case cluster.Stale(err):
			return failed // a newer version is on its way and wakes the controller
		case err != nil:
			return errors.Join(failed, err)
		}
		c.fresh.Wrote(c.jobs, e)
	}
	if err := c.each(out.Untrack, counted); err != nil {
		return errors.Join(failed, err)
	}
	if out.Look > 0 {
		c.due = c.w.Now.Add(out.Look)
	}
	return failed
}

func (c *controller) plan(in job.Input) job.Output {
	if c.w.sabotage.In != nil {
		in.Job = in.Job.DeepCopy()
		c.w.sabotage.In(&in)
	}
	out := job.Plan(in)
	if c.w.sabotage.Out != nil {
		c.w.sabotage.Out(&in, &out)
	}
	return out
}

// create creates pods in waves; a wave with a failure is the last one.
func (c *controller) create(j *batchv1.Job, pods []*corev1.Pod) error {
	for _, n := range workload.Waves(len(pods)) {
		var failed error
		for _, p := range pods[:n] {
			p = p.DeepCopy()
			p.Status.Phase = corev1.PodPending
			c.client.Done = func(e cluster.Entry, answered bool) {
				if !answered {
					c.w.judge.unanswered[e.Object.GetUID()] = true
				}
				c.w.judge.created(j, e.Object)
			}
			e, err := c.client.Create(p, func(o cluster.Object) bool {
				_, ok := o.(*corev1.Pod)
				return ok
			})
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
		pods = pods[n:]
	}
	return nil
}

func (c *controller) delete(all []job.Deletion) error {
	var failed error
	for _, d := range all {
		err := error(nil)
		if d.Untrack {
			err = c.untrack(d.Pod, dropped)
		}
		if err == nil {
			if _, err = c.client.Delete(d.Pod.UID, 30); err == nil || cluster.Stale(err) {
				c.fresh.Deleted(c.pods, d.Pod.UID)
				err = nil
			}
		}
		if failed = errors.Join(failed, err); errors.Is(err, cluster.ErrCrash) {
			break
		}
	}
	return failed
}

func (c *controller) each(pods []*corev1.Pod, why reason) error {
	var failed error
	for _, p := range pods {
		err := c.untrack(p, why)
		if failed = errors.Join(failed, err); errors.Is(err, cluster.ErrCrash) {
			break
		}
	}
	return failed
}

// untrack removes a pod's finalizer, unless the pod is gone.
func (c *controller) untrack(p *corev1.Pod, why reason) error {
	c.reason = why
	e, err := c.client.Patch(p.UID, func(o cluster.Object) {
		o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == job.Finalizer }))
	})
	switch {
	case err == nil:
		c.fresh.Wrote(c.pods, e)
	case cluster.Stale(err):
		c.fresh.Deleted(c.pods, p.UID)
		err = nil
	}
	return err
}

// orphans releases the pods whose Job is gone, by the watch and by a read from the API, because the
// watch may be behind.
func (c *controller) orphans() {
	if c.w.sabotage.Orphans {
		return
	}
	for _, p := range cluster.Seen[*corev1.Pod](c.pods) {
		owner := metav1.GetControllerOfNoCopy(p).UID
		if job.Tracked(p) && c.jobs.Get(owner) == nil && c.w.Get(owner) == nil && c.failed(c.untrack(p, alone)) {
			return
		}
	}
}
