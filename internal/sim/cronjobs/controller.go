package cronjobs

import (
	"errors"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/cronjob"
	"carob/internal/sim/fakeapi"
)

// Hooks are what a simulator adds to the controller; each may be nil.
type Hooks struct {
	Sabotage
	// Created is called for each new Job, even if the response to its creation was lost. read is the version of
	// the CronJob that the controller acted on.
	Created func(read *batchv1.CronJob, j fakeapi.Object, answered bool)
}

// Controller simulates controllers/cronjob: the same writes in the same order for the same plan.
type Controller struct {
	api            *fakeapi.API
	hooks          Hooks
	client         *fakeapi.Client
	cronJobs, jobs *fakeapi.Watch
	fresh          *fakeapi.Tracker
	dirty          bool      // a watch has delivered something since the last turn
	due            time.Time // when to call it again; zero for never
}

// NewController starts a process: it lists, and has no record of earlier writes.
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *Controller {
	c := &Controller{api: api, hooks: hooks, client: client, fresh: fakeapi.NewTracker(), dirty: true}
	changed := func() { c.dirty = true }
	c.cronJobs = fakeapi.Shared[*batchv1.CronJob](caches, changed)
	c.jobs = fakeapi.Shared[*batchv1.Job](caches, changed)
	return c
}

// Due returns whether the controller has something to do now, and when to call it again; zero for never.
func (c *Controller) Due() (now bool, at time.Time) { return c.dirty, c.due }

// Turn handles the CronJobs if something has changed. It returns false if the process has ended.
func (c *Controller) Turn() bool {
	if !c.dirty && (c.due.IsZero() || c.api.Now.Before(c.due)) {
		return true
	}
	if c.dirty = false; !c.fresh.Fresh() {
		return true // the watch that is behind starts the next turn
	}
	c.due = time.Time{}
	for _, cj := range fakeapi.Seen[*batchv1.CronJob](c.cronJobs) {
		t := turn{Controller: c, in: cronjob.Input{CronJob: cj, Schedule: schedule(cj),
			Deleted: map[types.UID]bool{}, Foreign: map[string]bool{}}}
		for _, j := range fakeapi.Seen[*batchv1.Job](c.jobs) {
			if metav1.IsControlledBy(j, cj) {
				t.in.Jobs = append(t.in.Jobs, j)
			}
		}
		err := t.all()
		c.dirty = c.dirty || err != nil
		if errors.Is(err, fakeapi.ErrCrash) {
			return false
		}
	}
	return true
}

type turn struct {
	*Controller
	in cronjob.Input
}

// all executes plans until there is nothing left to do now, and records the effects in the input.
func (t *turn) all() error {
	for range 100 {
		t.in.Now = t.api.Now
		in := t.in
		if t.hooks.In != nil {
			in.CronJob = in.CronJob.DeepCopy()
			t.hooks.In(&in)
		}
		out := cronjob.Plan(in)
		if t.hooks.Out != nil {
			t.hooks.Out(&in, &out)
		}
		if over, err := t.act(out); over || err != nil {
			return err
		}
	}
	fakeapi.Break(Ends, "a turn does not end")
	return nil
}

// act executes the plan. over means that the turn has ended.
func (t *turn) act(out cronjob.Output) (over bool, err error) {
	if out.Status != nil {
		e, err := t.client.Update(t.in.CronJob, func(o fakeapi.Object) {
			if cj, ok := o.(*batchv1.CronJob); ok {
				cj.Status = *out.Status.DeepCopy()
			}
		})
		switch {
		case fakeapi.Stale(err):
			return true, nil // the watch will deliver a newer version
		case err != nil:
			return true, err
		}
		t.fresh.Wrote(t.cronJobs, e)
		if cj, ok := e.Object.(*batchv1.CronJob); ok {
			t.in.CronJob = cj
		}
	}
	for _, j := range out.History {
		switch err := t.remove(j.UID); {
		case errors.Is(err, fakeapi.ErrCrash):
			return true, err
		case err != nil:
			t.in.Keep = true
		}
	}
	for _, r := range out.Replace {
		if err := t.remove(r.UID); err != nil {
			return true, err
		}
	}
	if out.Create != nil {
		if over, err := t.create(out.Create); over || err != nil {
			return true, err
		}
	}
	if out.Done() && out.Look > 0 {
		t.due = workload.Earlier(t.due, t.api.Now.Add(out.Look))
	}
	return out.Done(), nil
}

func (t *turn) remove(uid types.UID) error {
	if _, err := t.client.Delete(uid, 0); err != nil && !fakeapi.Stale(err) {
		return err
	}
	t.in.Deleted[uid] = true
	t.fresh.Deleted(t.jobs, uid)
	return nil
}

func isJob(o fakeapi.Object) bool {
	_, ok := o.(*batchv1.Job)
	return ok
}

func (t *turn) create(j *batchv1.Job) (over bool, err error) {
	t.client.Done = func(e fakeapi.Entry, answered bool) {
		if t.hooks.Created != nil {
			t.hooks.Created(t.in.CronJob, e.Object, answered)
		}
	}
	e, err := t.client.Create(j, isJob)
	t.client.Done = func(fakeapi.Entry, bool) {}
	switch {
	case errors.Is(err, fakeapi.ErrExists):
		all := fakeapi.All[*batchv1.Job](t.api)
		i := slices.IndexFunc(all, func(o *batchv1.Job) bool { return o.Name == j.Name })
		if metav1.IsControlledBy(all[i], t.in.CronJob) {
			t.in.Jobs = append(t.in.Jobs, all[i])
		} else {
			t.in.Foreign[j.Name] = true
		}
		return false, nil
	case err != nil:
		return true, err
	}
	t.fresh.Wrote(t.jobs, e)
	if made, ok := e.Object.(*batchv1.Job); ok {
		t.in.Jobs = append(t.in.Jobs, made)
	}
	return false, nil
}
