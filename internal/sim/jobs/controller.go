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
	"carob/internal/sim/fakeapi"
)

// Hooks are callbacks of a simulator in the controller; each may be nil.
type Hooks struct {
	Sabotage
	Created func(known *batchv1.Job, p fakeapi.Object, answered bool) // sees each new pod
}

// Controller simulates controllers/job: the same writes in the same order for the same plan.
type Controller struct {
	api        *fakeapi.API
	hooks      Hooks
	client     *fakeapi.Client
	jobs, pods *fakeapi.Watch
	fresh      *fakeapi.Tracker
	backoffs   map[types.UID]job.Backoff
	dirty      bool      // it has unprocessed events
	due        time.Time // requested time of the next call; zero for none
	reason     reason    // why a finalizer is removed, for the checks
}

type reason int

const (
	counted reason = iota // the result is stored
	dropped               // the pod is not needed (W5.43, W5.92)
	alone                 // its Job was deleted
)

// NewController starts a process: it lists, and has no state of earlier writes.
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *Controller {
	c := &Controller{api: api, hooks: hooks, client: client, fresh: fakeapi.NewTracker(), dirty: true}
	c.backoffs = map[types.UID]job.Backoff{}
	changed := func() { c.dirty = true }
	c.jobs, c.pods = fakeapi.Shared[*batchv1.Job](caches, changed), fakeapi.Shared[*corev1.Pod](caches, changed)
	return c
}

// Due returns whether the controller has something to do now, and its requested time; zero for
// none.
func (c *Controller) Due() (now bool, at time.Time) { return c.dirty, c.due }

// Turn handles the Jobs if the controller has unprocessed events. It returns false if its process
// has ended.
func (c *Controller) Turn() bool {
	if !c.dirty && (c.due.IsZero() || c.api.Now.Before(c.due)) {
		return true
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.hooks.Stale {
		return true // called when it is delivered
	}
	c.due = time.Time{}
	for _, j := range fakeapi.Seen[*batchv1.Job](c.jobs) {
		if c.failed(c.reconcile(j)) {
			return false
		}
	}
	return true
}

// failed handles an error like the work queue, and reports whether the process has ended.
func (c *Controller) failed(err error) bool {
	c.dirty = c.dirty || err != nil
	return errors.Is(err, fakeapi.ErrCrash)
}

func (c *Controller) reconcile(j *batchv1.Job) error {
	in := job.Input{Job: j, Now: c.api.Now, Backoff: c.backoffs[j.UID], Pods: fakeapi.Owned[*corev1.Pod](c.pods, j.UID)}
	out := c.plan(in)
	c.backoffs[j.UID] = out.Backoff
	failed := errors.Join(c.create(j, out.Create), c.delete(out.Delete), out.Problem)
	if errors.Is(failed, fakeapi.ErrCrash) {
		return failed
	}
	if failed != nil {
		in.Hold = true
		out = c.plan(in)
	}
	if c.hooks.Early {
		failed = errors.Join(failed, c.each(out.Untrack, counted))
	}
	if out.Status != nil {
		e, err := c.client.Update(j, func(o fakeapi.Object) {
			if j, ok := o.(*batchv1.Job); ok {
				j.Status = *out.Status.DeepCopy()
			}
		})
		switch {
		case fakeapi.Stale(err):
			return failed // a newer version will be delivered and calls the controller
		case err != nil:
			return errors.Join(failed, err)
		}
		c.fresh.Wrote(c.jobs, e)
	}
	if err := c.each(out.Untrack, counted); err != nil {
		return errors.Join(failed, err)
	}
	if out.Look > 0 {
		c.due = workload.Earlier(c.due, c.api.Now.Add(out.Look))
	}
	return failed
}

func (c *Controller) plan(in job.Input) job.Output {
	if c.hooks.In != nil {
		in.Job = in.Job.DeepCopy()
		c.hooks.In(&in)
	}
	out := job.Plan(in)
	if c.hooks.Out != nil {
		c.hooks.Out(&in, &out)
	}
	return out
}

// create creates pods in batches; a batch with a failure is the last one.
func (c *Controller) create(j *batchv1.Job, pods []*corev1.Pod) error {
	for _, n := range workload.Waves(len(pods)) {
		var failed error
		for _, p := range pods[:n] {
			p = p.DeepCopy()
			p.Status.Phase = corev1.PodPending
			c.client.Done = func(e fakeapi.Entry, answered bool) {
				if c.hooks.Created != nil {
					c.hooks.Created(j, e.Object, answered)
				}
			}
			e, err := c.client.Create(p, func(o fakeapi.Object) bool {
				_, ok := o.(*corev1.Pod)
				return ok
			})
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
		pods = pods[n:]
	}
	return nil
}

func (c *Controller) delete(all []job.Deletion) error {
	var failed error
	for _, d := range all {
		err := error(nil)
		if d.Untrack {
			err = c.untrack(d.Pod, dropped)
		}
		if err == nil {
			if _, err = c.client.Delete(d.Pod.UID, 30); err == nil || fakeapi.Stale(err) {
				c.fresh.Deleted(c.pods, d.Pod.UID)
				err = nil
			}
		}
		if failed = errors.Join(failed, err); errors.Is(err, fakeapi.ErrCrash) {
			break
		}
	}
	return failed
}

func (c *Controller) each(pods []*corev1.Pod, why reason) error {
	var failed error
	for _, p := range pods {
		err := c.untrack(p, why)
		if failed = errors.Join(failed, err); errors.Is(err, fakeapi.ErrCrash) {
			break
		}
	}
	return failed
}

// untrack removes a pod's finalizer, unless the pod was deleted.
func (c *Controller) untrack(p *corev1.Pod, why reason) error {
	c.reason = why
	e, err := c.client.Patch(p.UID, func(o fakeapi.Object) {
		o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == job.Finalizer }))
	})
	switch {
	case err == nil:
		c.fresh.Wrote(c.pods, e)
	case fakeapi.Stale(err):
		c.fresh.Deleted(c.pods, p.UID)
		err = nil
	}
	return err
}

// Orphans releases the pods whose Job was deleted, according to the watch and to a read from the
// API, because the watch may lag behind. It returns false if the process has ended.
func (c *Controller) Orphans() bool {
	if c.hooks.Orphans {
		return true
	}
	for _, p := range fakeapi.Seen[*corev1.Pod](c.pods) {
		ref := metav1.GetControllerOfNoCopy(p)
		if job.Tracked(p) && (ref == nil || c.jobs.Get(ref.UID) == nil && c.api.Get(ref.UID) == nil) &&
			c.failed(c.untrack(p, alone)) {
			return false
		}
	}
	return true
}
