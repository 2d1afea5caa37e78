package cluster

import (
	"errors"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/disruption"
	"carob/internal/core/garbage"
	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/cronjobs"
	"carob/internal/sim/daemonsets"
	"carob/internal/sim/deployments"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/jobs"
	"carob/internal/sim/statefulsets"
)

// newParts returns the parts of a process.
func (c *process) newParts() []part {
	w, s := c.w, c.w.options.Sabotage
	rollouts := deployments.Hooks{Sabotage: s.Rollout,
		Unanswered: func(uid types.UID) { w.invariants.extra[uid] = true }}
	setHooks := s.Sets
	setHooks.Claims = w.storage != nil
	parts := []part{
		c.newScheduler(),
		deployments.NewDeployments(w.API, c.client, c.caches, rollouts),
		deployments.NewReplicaSets(w.API, c.client, c.caches, rollouts),
		statefulsets.NewController(w.API, c.client, c.caches, setHooks),
		jobPart{jobs.NewController(w.API, c.client, c.caches, jobs.Hooks{Sabotage: s.Jobs,
			Created: func(_ *batchv1.Job, p fakeapi.Object, answered bool) {
				if !answered {
					w.invariants.extra[p.GetUID()] = true
				}
			}})},
		c.newLifecycle(),
		c.newBudgets(),
	}
	if w.kind == Crowded {
		parts = append(parts, daemonsets.NewController(w.API, c.client, c.caches, daemonsets.Hooks{Sabotage: s.Daemons,
			Created: func(_ daemonset.Input, _ string, p fakeapi.Object, answered bool) {
				if !answered {
					w.invariants.extra[p.GetUID()] = true
				}
			}}), cronjobs.NewController(w.API, c.client, c.caches,
			cronjobs.Hooks{Sabotage: s.CronJobs, Created: w.checkScheduled}))
	}
	if w.kind == Elastic {
		parts = append(parts, c.elasticParts()...)
	}
	if w.storage != nil {
		for _, p := range w.storage.Parts(c.client, c.caches) {
			parts = append(parts, p)
		}
	}
	if !s.NoGarbage {
		parts = append(parts, c.newCollector())
	}
	return parts
}

// jobPart also releases the pods whose Job was deleted.
type jobPart struct{ *jobs.Controller }

// Turn implements part.
func (j jobPart) Turn() bool { return j.Controller.Turn() && j.Orphans() }

// collector simulates controllers/garbage: it observes by the watches, and reads before it acts.
type collector struct {
	c     *process
	graph *garbage.Graph
	seen  map[types.UID]string // resource versions of the objects in the graph
	todo  map[types.UID]bool
	all   []*fakeapi.Watch
	dirty bool
}

func (c *process) newCollector() *collector {
	g := &collector{c: c, graph: garbage.NewGraph(), seen: map[types.UID]string{},
		todo: map[types.UID]bool{}, dirty: true}
	changed := func() { g.dirty = true }
	g.all = []*fakeapi.Watch{fakeapi.Shared[*appsv1.Deployment](c.caches, changed),
		fakeapi.Shared[*appsv1.ReplicaSet](c.caches, changed), fakeapi.Shared[*appsv1.StatefulSet](c.caches, changed),
		fakeapi.Shared[*appsv1.ControllerRevision](c.caches, changed), fakeapi.Shared[*batchv1.Job](c.caches, changed),
		fakeapi.Shared[*corev1.Pod](c.caches, changed)}
	if c.w.kind == Crowded {
		g.all = append(g.all, fakeapi.Shared[*appsv1.DaemonSet](c.caches, changed),
			fakeapi.Shared[*batchv1.CronJob](c.caches, changed))
	}
	if c.w.devices != nil {
		g.all = append(g.all, fakeapi.Shared[*resourcev1.ResourceClaim](c.caches, changed))
	}
	if c.w.storage != nil {
		g.all = append(g.all, fakeapi.Shared[*corev1.PersistentVolumeClaim](c.caches, changed))
	}
	return g
}

// Due implements part.
func (g *collector) Due() (now bool, at time.Time) { return g.dirty || len(g.todo) > 0, time.Time{} }

// kindOf returns the kind of an object that can own or be owned.
func kindOf(o fakeapi.Object) schema.GroupKind {
	switch o.(type) {
	case *appsv1.Deployment:
		return schema.GroupKind{Group: "apps", Kind: "Deployment"}
	case *appsv1.ReplicaSet:
		return schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}
	case *appsv1.StatefulSet:
		return schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
	case *appsv1.ControllerRevision:
		return schema.GroupKind{Group: "apps", Kind: "ControllerRevision"}
	case *appsv1.DaemonSet:
		return schema.GroupKind{Group: "apps", Kind: "DaemonSet"}
	case *batchv1.CronJob:
		return schema.GroupKind{Group: "batch", Kind: "CronJob"}
	case *batchv1.Job:
		return schema.GroupKind{Group: "batch", Kind: "Job"}
	case *resourcev1.ResourceClaim:
		return schema.GroupKind{Group: resourcev1.GroupName, Kind: "ResourceClaim"}
	case *corev1.PersistentVolumeClaim:
		return schema.GroupKind{Kind: "PersistentVolumeClaim"}
	}
	return schema.GroupKind{Kind: "Pod"}
}

// Turn implements part.
func (g *collector) Turn() bool {
	g.observe()
	for _, uid := range sorted(g.todo) {
		delete(g.todo, uid)
		if err := g.collect(uid); failed(err) {
			return false
		} else if err != nil {
			g.todo[uid] = true
		}
	}
	return true
}

// observe updates the graph from the watches.
func (g *collector) observe() {
	if !g.dirty {
		return
	}
	g.dirty = false
	there := map[types.UID]bool{}
	look := func(uids []types.UID) {
		for _, uid := range uids {
			g.todo[uid] = true
		}
	}
	for _, watch := range g.all {
		for _, o := range fakeapi.Seen[fakeapi.Object](watch) {
			there[o.GetUID()] = true
			if g.seen[o.GetUID()] != o.GetResourceVersion() {
				g.seen[o.GetUID()] = o.GetResourceVersion()
				look(g.graph.Observe(garbage.New(kindOf(o), o)))
			}
		}
	}
	for _, uid := range sorted(g.seen) {
		if !there[uid] {
			delete(g.seen, uid)
			look(g.graph.Gone(uid))
		}
	}
}

func (g *collector) collect(uid types.UID) error {
	if _, ok := g.graph.Object(uid); !ok {
		return nil
	}
	api := g.c.w.API
	stored := api.Get(uid)
	if stored == nil {
		for _, other := range g.graph.Gone(uid) {
			g.todo[other] = true
		}
		return nil
	}
	in := garbage.Input{Object: garbage.New(kindOf(stored), stored), Dependents: g.graph.Dependents(uid)}
	for _, r := range in.Object.Owners {
		state := garbage.Absent
		if owner := api.Get(r.UID); owner != nil {
			state = garbage.Present
			if seen := garbage.New(kindOf(owner), owner); seen.Waiting() {
				state = garbage.WaitsForDependents
			}
		}
		in.Owners = append(in.Owners, state)
	}
	return g.act(stored, garbage.Decide(in))
}

func (g *collector) act(stored fakeapi.Object, a garbage.Action) error {
	client, uid := g.c.client, stored.GetUID()
	if a.SetOwners != nil {
		if _, err := client.Patch(uid, func(o fakeapi.Object) { o.SetOwnerReferences(a.SetOwners) }); err != nil {
			return ignoreMissing(err)
		}
	}
	if a.Delete != "" {
		if _, err := client.PatchIf(uid, unchanged(stored, a.SetOwners != nil), func(o fakeapi.Object) {
			withPropagation(o, a.Delete)
		}); err != nil {
			return ignoreMissing(err)
		}
		if _, err := client.Delete(uid, podGrace); err != nil {
			return ignoreMissing(err)
		}
	}
	for _, d := range a.Release {
		if _, err := client.Patch(d.UID, func(o fakeapi.Object) {
			o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(),
				func(r metav1.OwnerReference) bool { return r.UID == uid }))
		}); ignoreMissing(err) != nil {
			return err
		}
	}
	if a.RemoveFinalizer != "" {
		if _, err := client.Patch(uid, func(o fakeapi.Object) { dropFinalizer(o, a.RemoveFinalizer) }); err != nil {
			return ignoreMissing(err)
		}
	}
	for _, other := range a.Look {
		g.todo[other] = true
	}
	return nil
}

// unchanged accepts the version that was read, or any if this pass has changed it since.
func unchanged(read fakeapi.Object, anyVersion bool) func(fakeapi.Object) bool {
	return func(o fakeapi.Object) bool { return anyVersion || o.GetResourceVersion() == read.GetResourceVersion() }
}

func ignoreMissing(err error) error {
	if errors.Is(err, fakeapi.ErrMissing) {
		return nil
	}
	return err
}

// withPropagation sets the finalizer of a propagation policy.
func withPropagation(o fakeapi.Object, p metav1.DeletionPropagation) {
	dropFinalizer(o, metav1.FinalizerDeleteDependents)
	dropFinalizer(o, metav1.FinalizerOrphanDependents)
	switch p {
	case metav1.DeletePropagationForeground:
		o.SetFinalizers(append(o.GetFinalizers(), metav1.FinalizerDeleteDependents))
	case metav1.DeletePropagationOrphan:
		o.SetFinalizers(append(o.GetFinalizers(), metav1.FinalizerOrphanDependents))
	case metav1.DeletePropagationBackground:
	}
}

func dropFinalizer(o fakeapi.Object, name string) {
	o.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == name }))
}

// budgets simulates controllers/disruption.
type budgets struct {
	c      *process
	stored *fakeapi.Watch
	pods   *fakeapi.Watch
	dirty  bool
	due    time.Time
}

func (c *process) newBudgets() *budgets {
	b := &budgets{c: c, dirty: true}
	changed := func() { b.dirty = true }
	b.stored = fakeapi.Shared[*policyv1.PodDisruptionBudget](c.caches, changed)
	b.pods = fakeapi.Shared[*corev1.Pod](c.caches, changed)
	return b
}

// Due implements part.
func (b *budgets) Due() (now bool, at time.Time) { return b.dirty, b.due }

// Turn implements part.
func (b *budgets) Turn() bool {
	w := b.c.w
	if !b.dirty && (b.due.IsZero() || w.Now.Before(b.due)) {
		return true
	}
	b.dirty, b.due = false, time.Time{}
	for _, budget := range fakeapi.Seen[*policyv1.PodDisruptionBudget](b.stored) {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			panic(err)
		}
		in := disruption.Input{Now: w.Now, Budget: budget}
		for _, p := range fakeapi.Seen[*corev1.Pod](b.pods) {
			if selector.Matches(labels.Set(p.Labels)) {
				in.Pods = append(in.Pods, p)
			}
		}
		status, again, err := disruption.Decide(in)
		if err != nil {
			panic(err)
		}
		if again > 0 {
			b.due = workload.Earlier(b.due, w.Now.Add(again))
		}
		if equality.Semantic.DeepEqual(status, budget.Status) {
			continue
		}
		_, err = b.c.client.Update(budget, func(o fakeapi.Object) {
			if stored, ok := o.(*policyv1.PodDisruptionBudget); ok {
				stored.Status = status
			}
		})
		if failed(err) {
			return false
		}
		b.dirty = b.dirty || err != nil && !fakeapi.Stale(err)
	}
	return true
}
