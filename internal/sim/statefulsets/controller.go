package statefulsets

import (
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/statefulset"
	"carob/internal/sim/fakeapi"
)

// Hooks are callbacks of a simulator in the controller; each may be nil.
type Hooks struct {
	In      func(in *statefulset.Input)                        // breaks the input of the plan; Set is a copy
	Plan    func(p *statefulset.Plan)                          // breaks the plan
	Planned func(in statefulset.Input, plan *statefulset.Plan) // sees both
	Created func(p fakeapi.Object)                             // sees each new pod
	Claims  bool                                               // sets have claim templates
}

// Controller simulates controllers/statefulset: the same writes in the same order for the same
// plan.
type Controller struct {
	api                   *fakeapi.API
	hooks                 Hooks
	client                *fakeapi.Client
	sets, pods, revisions *fakeapi.Watch
	claims                *fakeapi.Watch     // nil without claim templates
	seen                  map[types.UID]bool // claims of the last event
	waits                 bool               // for a watch that shows the own writes
	fresh                 *fakeapi.Tracker
	failures              map[types.UID]*failures // of each set
	dirty                 bool
	due                   time.Time
}

// failures are the deletions of pods that nodes refused, by name, since the set's generation last changed.
type failures struct {
	generation int64
	byName     map[string]workload.Failure
}

// NewController starts a process: it lists, and has no state of earlier writes.
func NewController(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *Controller {
	c := &Controller{api: api, hooks: hooks, client: client, fresh: fakeapi.NewTracker(), dirty: true,
		failures: map[types.UID]*failures{}}
	changed := func() { c.dirty = true }
	c.sets, c.pods = fakeapi.Shared[*appsv1.StatefulSet](caches, changed), fakeapi.Shared[*corev1.Pod](caches, changed)
	c.revisions = fakeapi.Shared[*appsv1.ControllerRevision](caches, changed)
	if hooks.Claims {
		c.claims = fakeapi.Shared[*corev1.PersistentVolumeClaim](caches, c.claimsChanged)
	}
	return c
}

// claimsChanged wakes the controller when a claim is gone that a pod may wait for, as the driver does (W3.42, W3.48).
func (c *Controller) claimsChanged() {
	seen := map[types.UID]bool{}
	for _, claim := range fakeapi.Seen[*corev1.PersistentVolumeClaim](c.claims) {
		seen[claim.UID] = true
	}
	for uid := range c.seen { // any order: one is enough
		c.dirty = c.dirty || !seen[uid]
	}
	c.seen, c.dirty = seen, c.dirty || c.waits
}

// Due returns whether the controller has something to do now, and its requested time; zero for
// none.
func (c *Controller) Due() (now bool, at time.Time) { return c.dirty, c.due }

// Turn handles the sets if the controller has unprocessed events. It returns false if its process
// has ended.
func (c *Controller) Turn() bool {
	if !c.dirty && (c.due.IsZero() || c.api.Now.Before(c.due)) {
		return true
	}
	c.dirty, c.waits = false, !c.fresh.Fresh()
	if c.waits {
		return true // called when it is delivered
	}
	c.due = time.Time{}
	for _, s := range fakeapi.Seen[*appsv1.StatefulSet](c.sets) {
		err := c.reconcile(s)
		c.dirty = c.dirty || err != nil
		if errors.Is(err, fakeapi.ErrCrash) {
			return false
		}
	}
	return true
}

func (c *Controller) reconcile(s *appsv1.StatefulSet) error {
	in := statefulset.Input{Now: c.api.Now, Set: s, Pods: fakeapi.Owned[*corev1.Pod](c.pods, s.UID),
		Claim: c.claim}
	f := c.failures[s.UID]
	if f == nil || f.generation != s.Generation {
		f = &failures{s.Generation, map[string]workload.Failure{}}
		c.failures[s.UID] = f
	}
	in.Failures = maps.Clone(f.byName)
	known := fakeapi.Owned[*appsv1.ControllerRevision](c.revisions, s.UID)
	var err error
	if in.Update, err = c.update(s, known); err != nil {
		return err
	}
	in.Current = statefulset.Current(s, known, in.Update)
	spoiled := in
	if c.hooks.In != nil {
		spoiled.Set = s.DeepCopy()
		c.hooks.In(&spoiled)
	}
	plan, err := statefulset.Decide(spoiled)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if c.hooks.Plan != nil {
		c.hooks.Plan(&plan)
	}
	if c.hooks.Planned != nil {
		c.hooks.Planned(in, &plan)
	}
	maps.Copy(f.byName, plan.Failures)
	deleted, failed := c.do(spoiled.Set, &plan)
	if errors.Is(failed, fakeapi.ErrCrash) {
		return failed
	}
	if status := plan.Status(deleted); statefulset.Changed(&s.Status, &status) {
		e, err := c.client.Update(s, func(o fakeapi.Object) {
			if s, ok := o.(*appsv1.StatefulSet); ok {
				s.Status = *status.DeepCopy()
			}
		})
		if err == nil {
			c.fresh.Wrote(c.sets, e)
		} else if !fakeapi.Stale(err) { // otherwise a newer version will be delivered and calls the controller
			failed = errors.Join(failed, err)
		}
	}
	for _, r := range statefulset.Excess(s, known, in.Current, in.Update, in.Pods) {
		if _, err := c.client.Delete(r.UID, 0); err != nil && !fakeapi.Stale(err) {
			failed = errors.Join(failed, err)
			break
		}
		c.fresh.Deleted(c.revisions, r.UID)
	}
	c.due = workload.Earlier(c.due, plan.Again)
	return failed
}

func isRevision(o fakeapi.Object) bool {
	_, ok := o.(*appsv1.ControllerRevision)
	return ok
}

// update returns the stored update revision; it creates or changes the revision if necessary.
func (c *Controller) update(s *appsv1.StatefulSet, known []*appsv1.ControllerRevision) (*appsv1.ControllerRevision,
	error) {
	r, err := statefulset.Revise(s, known, 0, nil)
	if err != nil || !r.Create && r.Raise == 0 {
		return r.Update, err
	}
	var e fakeapi.Entry
	if r.Raise != 0 {
		e, err = c.client.Update(r.Update, func(o fakeapi.Object) {
			if stored, ok := o.(*appsv1.ControllerRevision); ok {
				stored.Revision = r.Raise
			}
		})
	} else {
		e, err = c.client.Create(r.Update, isRevision)
	}
	if errors.Is(err, fakeapi.ErrExists) { // a response was lost; a name is the hash of the revision's content
		for _, there := range fakeapi.All[*appsv1.ControllerRevision](c.api) {
			if there.Name == r.Update.Name {
				return there, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	c.fresh.Wrote(c.revisions, e)
	made, ok := e.Object.(*appsv1.ControllerRevision)
	if !ok {
		return nil, errors.New("the response is not a revision")
	}
	return made, nil
}

// do executes the plan until a step fails, and returns how many counted pods it deleted.
func (c *Controller) do(set *appsv1.StatefulSet, plan *statefulset.Plan) (deleted int, err error) {
	for _, stage := range plan.Stages {
		sizes := workload.Waves(len(stage))
		if plan.InOrder {
			sizes = make([]int, len(stage))
			for i := range sizes {
				sizes[i] = 1
			}
		}
		for _, size := range sizes {
			var failed error
			for _, step := range stage[:size] {
				err := c.step(set, step)
				if errors.Is(err, fakeapi.ErrCrash) {
					return deleted, err
				}
				if err == nil && step.Counted {
					deleted++
				}
				failed = errors.Join(failed, err)
			}
			if failed != nil {
				return deleted, failed
			}
			stage = stage[size:]
		}
	}
	return deleted, nil
}

func (c *Controller) step(set *appsv1.StatefulSet, s statefulset.Step) error {
	switch s.Action {
	case statefulset.Create:
		if err := c.makeClaims(s); err != nil {
			return err
		}
		p := s.Pod.DeepCopy()
		p.Status.Phase = corev1.PodPending
		c.client.Done = func(e fakeapi.Entry, _ bool) {
			if c.hooks.Created != nil {
				c.hooks.Created(e.Object)
			}
		}
		e, err := c.client.Create(p, func(o fakeapi.Object) bool {
			_, ok := o.(*corev1.Pod)
			return ok
		})
		c.client.Done = func(fakeapi.Entry, bool) {}
		if err == nil {
			c.fresh.Wrote(c.pods, e)
			p, _ = e.Object.(*corev1.Pod)
		} else if errors.Is(err, fakeapi.ErrExists) || errors.Is(err, fakeapi.ErrCrash) {
			return err
		}
		return errors.Join(err, c.ownClaims(set, s, p))
	case statefulset.Delete:
		_, err := c.client.Delete(s.Pod.UID, 30)
		if live := c.api.Get(s.Pod.UID); err == nil || live == nil || live.GetDeletionTimestamp() != nil {
			c.fresh.Deleted(c.pods, s.Pod.UID) // after an error the driver reads again
		}
		if errors.Is(err, fakeapi.ErrMissing) {
			return nil
		}
		return err
	case statefulset.EnsureClaims:
		if err := c.makeClaims(s); err != nil {
			return err
		}
		return c.ownClaims(set, s, s.Pod)
	case statefulset.Repair:
		return c.repair(set, s)
	}
	return fmt.Errorf("unknown action %s of %s", s.Action, s.Pod.Name)
}
