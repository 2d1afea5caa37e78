package deployments

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
	"carob/internal/core/workload/replicaset"
	"carob/internal/sim/fakeapi"
)

// Hooks are callbacks of a simulator in the controllers; each function may be nil.
type Hooks struct {
	Sabotage
	Began   func(in deployment.Input)                   // a pass of a deployment begins
	Wrote   func(in deployment.Input)                   // one of its writes took effect
	Created func(set *appsv1.ReplicaSet, p *corev1.Pod) // a pod of a set was created
	// Unanswered is called for each pod whose creation got no response.
	Unanswered func(p types.UID)
}

// Deployments simulates controllers/deployment: the same writes in the same order for the same plan.
type Deployments struct {
	api                     *fakeapi.API
	hooks                   Hooks
	client                  *fakeapi.Client
	deployments, sets, pods *fakeapi.Watch
	fresh                   *fakeapi.Tracker
	dirty                   bool
	due                     time.Time
}

// NewDeployments starts a process: it lists, and has no state of earlier writes.
func NewDeployments(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *Deployments {
	c := &Deployments{api: api, hooks: hooks, client: client, fresh: fakeapi.NewTracker(), dirty: true}
	changed := func() { c.dirty = true }
	c.deployments = fakeapi.Shared[*appsv1.Deployment](caches, changed)
	c.sets, c.pods = fakeapi.Shared[*appsv1.ReplicaSet](caches, changed), fakeapi.Shared[*corev1.Pod](caches, changed)
	return c
}

// Due returns whether the controller has something to do now, and its requested time; zero for
// none.
func (c *Deployments) Due() (now bool, at time.Time) { return c.dirty, c.due }

// Turn handles the deployments if the controller has unprocessed events. It returns false if its
// process has ended.
func (c *Deployments) Turn() bool {
	if !c.dirty && (c.due.IsZero() || c.api.Now.Before(c.due)) {
		return true
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.hooks.Stale {
		return true // called when it is delivered
	}
	c.due = time.Time{}
	for _, d := range fakeapi.Seen[*appsv1.Deployment](c.deployments) {
		err := c.reconcile(d)
		c.dirty = c.dirty || err != nil
		if errors.Is(err, fakeapi.ErrCrash) {
			return false
		}
	}
	return true
}

func (c *Deployments) reconcile(d *appsv1.Deployment) error {
	in := deployment.Input{Deployment: d, Sets: fakeapi.Owned[*appsv1.ReplicaSet](c.sets, d.UID), Now: c.api.Now,
		Running: func(set types.UID) bool { return running(fakeapi.Owned[*corev1.Pod](c.pods, set)) }}
	if c.hooks.Began != nil {
		c.hooks.Began(in)
	}
	spoiled := in
	if c.hooks.In != nil {
		c.hooks.In(&spoiled)
	}
	plan := deployment.Decide(spoiled)
	if c.hooks.Plan != nil {
		c.hooks.Plan(&plan)
	}
	c.client.Done = func(fakeapi.Entry, bool) {
		if c.hooks.Wrote != nil {
			c.hooks.Wrote(in)
		}
	}
	defer func() { c.client.Done = func(fakeapi.Entry, bool) {} }()
	for _, step := range plan.Steps {
		switch err := c.do(d, step); {
		case errors.Is(err, fakeapi.ErrExists):
			return c.taken(d, step.Create.Name)
		case fakeapi.Stale(err):
			return nil // a newer version will be delivered and calls the controller
		case err != nil:
			return err
		}
	}
	c.due = workload.Earlier(c.due, plan.Next)
	return nil
}

func running(pods []*corev1.Pod) bool {
	for _, p := range pods {
		if !workload.Terminal(p) {
			return true
		}
	}
	return false
}

// do makes one write.
func (c *Deployments) do(d *appsv1.Deployment, step deployment.Step) error {
	switch {
	case step.Create != nil:
		e, err := c.client.Create(step.Create, isSet)
		if err == nil {
			c.fresh.Wrote(c.sets, e)
		}
		return err
	case step.Update != nil:
		e, err := c.client.Update(step.Update, func(o fakeapi.Object) {
			if s, ok := o.(*appsv1.ReplicaSet); ok {
				if !reflect.DeepEqual(s.Spec, step.Update.Spec) {
					s.Generation++
				}
				s.Spec, s.Annotations = *step.Update.Spec.DeepCopy(), maps.Clone(step.Update.Annotations)
			}
		})
		if err == nil {
			c.fresh.Wrote(c.sets, e)
		} else {
			c.fresh.Unclear(c.sets, step.Update.UID)
		}
		return err
	case step.Delete != nil:
		_, err := c.client.Delete(step.Delete.UID, 0)
		if err == nil || errors.Is(err, fakeapi.ErrMissing) {
			c.fresh.Deleted(c.sets, step.Delete.UID)
			return nil
		}
		return err
	}
	e, err := c.client.Update(d, func(o fakeapi.Object) {
		stored, ok := o.(*appsv1.Deployment)
		switch {
		case !ok:
		case step.Rollback != nil:
			stored.Spec, stored.Annotations = *step.Rollback.Spec.DeepCopy(), maps.Clone(step.Rollback.Annotations)
			stored.Generation++
		case step.Status != nil:
			stored.Status, stored.Annotations = *step.Status.Status.DeepCopy(), maps.Clone(step.Status.Annotations)
		}
	})
	if err == nil {
		c.fresh.Wrote(c.deployments, e)
	} else {
		c.fresh.Unclear(c.deployments, d.UID)
	}
	return err
}

func isSet(o fakeapi.Object) bool {
	_, ok := o.(*appsv1.ReplicaSet)
	return ok
}

// taken ends a pass whose new set has the name of an existing one.
func (c *Deployments) taken(d *appsv1.Deployment, name string) error {
	for _, s := range fakeapi.All[*appsv1.ReplicaSet](c.api) {
		if s.Name != name {
			continue
		}
		if changed := deployment.Taken(d, s); changed != nil {
			if err := c.do(d, deployment.Step{Status: changed}); !fakeapi.Stale(err) {
				return err
			}
		}
		return nil // the watch shows the set, or the status
	}
	return fakeapi.ErrMissing // deleted meanwhile
}

// ReplicaSets simulates controllers/replicaset.
type ReplicaSets struct {
	api        *fakeapi.API
	hooks      Hooks
	client     *fakeapi.Client
	sets, pods *fakeapi.Watch
	fresh      *fakeapi.Tracker
	dirty      bool
	due        time.Time
}

// NewReplicaSets starts a process: it lists, and has no state of earlier writes.
func NewReplicaSets(api *fakeapi.API, client *fakeapi.Client, caches *fakeapi.Caches, hooks Hooks) *ReplicaSets {
	c := &ReplicaSets{api: api, hooks: hooks, client: client, fresh: fakeapi.NewTracker(), dirty: true}
	changed := func() { c.dirty = true }
	c.sets, c.pods = fakeapi.Shared[*appsv1.ReplicaSet](caches, changed), fakeapi.Shared[*corev1.Pod](caches, changed)
	return c
}

// Due returns whether the controller has something to do now, and its requested time; zero for
// none.
func (c *ReplicaSets) Due() (now bool, at time.Time) { return c.dirty, c.due }

// Turn handles the sets if the controller has unprocessed events. It returns false if its process
// has ended.
func (c *ReplicaSets) Turn() bool {
	if !c.dirty && (c.due.IsZero() || c.api.Now.Before(c.due)) {
		return true
	}
	if c.dirty = false; !c.fresh.Fresh() && !c.hooks.Stale {
		return true // called when it is delivered
	}
	c.due = time.Time{}
	for _, s := range fakeapi.Seen[*appsv1.ReplicaSet](c.sets) {
		err := c.reconcile(s)
		c.dirty = c.dirty || err != nil
		if errors.Is(err, fakeapi.ErrCrash) {
			return false
		}
	}
	return true
}

func (c *ReplicaSets) reconcile(s *appsv1.ReplicaSet) error {
	in := replicaset.Input{Set: s, Now: c.api.Now, Ending: new(int32)}
	for _, p := range fakeapi.Owned[*corev1.Pod](c.pods, s.UID) {
		switch {
		case workload.Active(p):
			in.Active = append(in.Active, p)
		case workload.Terminating(p):
			*in.Ending++
		case workload.Refused(p):
			in.Refused = append(in.Refused, p)
		}
	}
	deleted, failed := c.act(&in)
	if errors.Is(failed, fakeapi.ErrCrash) {
		return failed
	}
	if deleted && failed == nil {
		return nil // woken when the watch shows it
	}
	status, changed, next := replicaset.Status(in, failed)
	if changed {
		e, err := c.client.Update(s, func(o fakeapi.Object) {
			if stored, ok := o.(*appsv1.ReplicaSet); ok {
				stored.Status = status
			}
		})
		switch {
		case fakeapi.Stale(err):
			return failed // a newer version will be delivered and calls the controller
		case err != nil:
			return errors.Join(failed, err)
		}
		c.fresh.Wrote(c.sets, e)
	}
	c.due = workload.Earlier(c.due, next)
	return failed
}

// act carries out the decision about the number of pods. It returns whether that was to delete some; in then has
// only pods that are surely left.
func (c *ReplicaSets) act(in *replicaset.Input) (deleted bool, failed error) {
	plan := replicaset.Decide(*in)
	if c.hooks.Pods != nil {
		c.hooks.Pods(&plan)
	}
	for _, p := range plan.Delete {
		_, err := c.client.Delete(p.UID, *grace(p))
		if !errors.Is(err, fakeapi.ErrRefused) {
			in.Active = slices.DeleteFunc(slices.Clone(in.Active), func(q *corev1.Pod) bool { return q == p })
		}
		if err == nil || errors.Is(err, fakeapi.ErrMissing) {
			c.fresh.Deleted(c.pods, p.UID)
			continue
		}
		if failed = errors.Join(failed, err); errors.Is(err, fakeapi.ErrCrash) {
			return true, failed
		}
	}
	if len(plan.Delete) > 0 {
		return true, failed
	}
	c.due = workload.Earlier(c.due, plan.Again)
	left := plan.Create
	for _, n := range workload.Waves(left) {
		for range n {
			err := c.create(in.Set)
			if failed = errors.Join(failed, err); errors.Is(err, fakeapi.ErrCrash) {
				return false, failed
			}
		}
		if failed != nil {
			return false, failed
		}
	}
	return false, nil
}

func grace(p *corev1.Pod) *int64 {
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		return g
	}
	return new(int64(corev1.DefaultTerminationGracePeriodSeconds))
}

func (c *ReplicaSets) create(set *appsv1.ReplicaSet) error {
	p, err := workload.NewPod(workload.Owner{Object: set, Kind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet")},
		&set.Spec.Template)
	if err != nil {
		return err
	}
	p.Status.Phase = corev1.PodPending
	c.client.Done = func(e fakeapi.Entry, answered bool) {
		if !answered && c.hooks.Unanswered != nil {
			c.hooks.Unanswered(e.Object.GetUID())
		}
		if made, ok := e.Object.(*corev1.Pod); ok && c.hooks.Created != nil {
			c.hooks.Created(set, made)
		}
	}
	e, err := c.client.Create(p, func(fakeapi.Object) bool { return false })
	c.client.Done = func(fakeapi.Entry, bool) {}
	if err == nil {
		c.fresh.Wrote(c.pods, e)
	}
	return err
}
