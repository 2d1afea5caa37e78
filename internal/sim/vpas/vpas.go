// Package vpas runs the decisions of VerticalPodAutoscalers against a store in memory, in random steps from one seed:
// the usage of containers changes, users change the autoscaler, its target and a disruption budget; kubelets resize
// pods, defer it, or fail; there are OOM kills, and missing, late and duplicate metrics; watches deliver events late,
// twice, or only with a new list; writes fail or their responses get lost, and the controller ends between any two of
// them. Its tests run it; it must never touch a real cluster.
//
// Contract: docs/spec/workloads.md.
package vpas

import (
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/vpa"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Bounds  fakeapi.Invariant = "what is recommended stays within minAllowed and maxAllowed (W9.32)"
	Quiet   fakeapi.Invariant = "the modes Off and Initial leave running pods alone (W9.5, W9.6)"
	Least   fakeapi.Invariant = "a group of fewer live pods than minReplicas is left alone (W9.52)"
	Half    fakeapi.Invariant = "a pass disturbs no more than half of a group (W9.53)"
	Budget  fakeapi.Invariant = "pods go only as their disruption budget allows (W9.57)"
	InPlace fakeapi.Invariant = "InPlaceOrRecreate evicts only pods that cannot be resized in place (W9.58, W9.59)"
	Single  fakeapi.Invariant = "while a resize is in flight no other is requested (W9.59)"
	Restart fakeapi.Invariant = "a restart changes no recommendation (W9.37)"
	Ends    fakeapi.Invariant = "in the end the recommendation follows usage, pods follow it, and rest (W9.28, W9.54)"
)

// Sabotage breaks the controller in one way; the zero value breaks nothing.
type Sabotage struct {
	Recommended func(v *vpa.VerticalPodAutoscaler)                     // changes what the recommender reads
	Round       func(v *vpa.VerticalPodAutoscaler, pods []*corev1.Pod) // changes what the updater reads
	Uncounted   bool                                                   // the updater does not count its changes
	Deletes     bool                                                   // pods are deleted, not evicted
	Forgets     bool                                                   // checkpoints are not read
	DropSamples bool                                                   // samples are not added
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// autoscaler, checkpoint and group are objects of the store. The targets of their pointers are never
// changed.
type autoscaler struct{ vpa.VerticalPodAutoscaler }

func (a *autoscaler) DeepCopyObject() runtime.Object {
	c := *a
	a.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

type checkpoint struct{ vpa.Checkpoint }

func (p *checkpoint) DeepCopyObject() runtime.Object {
	c := *p
	p.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// fate is the result of a resize on a kubelet, and its time.
type fate struct {
	kind  int // one of done, deferred, infeasible, slow
	until time.Time
	since time.Time // of the first condition that shows it in flight
}

const (
	done = iota
	deferred
	infeasible
	slow
	fates
)

// load is the usage of each container.
type load struct{ milli, bytes int64 }

type world struct {
	*fakeapi.API
	sabotage Sabotage
	c        *controller
	uid      types.UID // of the autoscaler
	replicas int       // of the group that owns the pods
	budget   int       // healthy pods that an eviction leaves at least
	load     load
	resizes  map[types.UID]fate
	policies map[int64]*vpa.ResourcePolicy // by generation
	scraped  []vpa.Sample                  // the last samples
	before   *known                        // of the process that ended
}

// known is the recommendation of a process just after it had stored its checkpoints.
type known struct {
	at     time.Time
	status vpa.Status
}

// Run runs the given number of steps of a seed and returns the first broken invariant, nil for
// none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage, resizes: map[types.UID]fate{},
			policies: map[int64]*vpa.ResourcePolicy{}}
		w.Ended = func(o fakeapi.Object) bool {
			p, ok := o.(*corev1.Pod)
			return !ok || p.Spec.NodeName == "" || workload.Terminal(p)
		}
		w.replicas, w.load = w.IntN(6), load{100, 300 << 20}
		a := &autoscaler{vpa.VerticalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web"}}}
		w.fill(&a.Spec)
		w.policies[1] = a.Spec.ResourcePolicy
		w.uid = w.Create(a).GetUID()
		w.c = newController(w)
		for range steps {
			w.step()
		}
		w.rest()
	})
}

// fill sets random valid fields of an autoscaler.
func (w *world) fill(s *vpa.Spec) {
	modes := []vpa.UpdateMode{vpa.ModeOff, vpa.ModeInitial, vpa.ModeRecreate, vpa.ModeRecreate,
		vpa.ModeInPlaceOrRecreate, vpa.ModeInPlaceOrRecreate, vpa.ModeInPlaceOrRecreate}
	s.UpdatePolicy = &vpa.UpdatePolicy{UpdateMode: new(modes[w.IntN(len(modes))])}
	if w.IntN(2) == 0 {
		s.UpdatePolicy.MinReplicas = new(int32(1 + w.IntN(3))) //nolint:gosec // small
	}
	low := load{int64(10 + w.IntN(300)), int64(10+w.IntN(600)) << 20}
	high := load{low.milli + int64(w.IntN(500)), low.bytes + int64(w.IntN(900))<<20}
	p := vpa.ContainerPolicy{ContainerName: vpa.AllContainers}
	if w.IntN(2) == 0 {
		p.MinAllowed = low.list()
	}
	if w.IntN(2) == 0 {
		p.MaxAllowed = high.list()
	}
	s.ResourcePolicy = &vpa.ResourcePolicy{ContainerPolicies: []vpa.ContainerPolicy{p}}
}

func (l load) list() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(l.milli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(l.bytes, resource.BinarySI)}
}

func (w *world) scaler() *autoscaler {
	a, ok := w.Get(w.uid).(*autoscaler)
	if !ok {
		fakeapi.Break(Ends, "the autoscaler is gone")
	}
	return a
}

// change applies a user's change to the autoscaler.
func (w *world) change(f func(s *vpa.Spec)) {
	w.Change(w.uid, func(o fakeapi.Object) {
		if a, ok := o.(*autoscaler); ok {
			f(&a.Spec)
			a.Generation++
			w.policies[a.Generation] = a.Spec.ResourcePolicy
		}
	})
}

// step applies one random event.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(w.IntN(60)) * time.Second)
	switch n := w.IntN(100); {
	case n < 30:
		w.c.watches[w.IntN(len(w.c.watches))].Deliver()
	case n < 55:
		w.turn()
	case n < 70:
		w.owner()
	case n < 90:
		w.kubelets()
	case n < 93:
		w.kill()
	case n < 99:
		w.user()
	default:
		w.c = newController(w)
	}
}

// turn lets the controller make a due pass, or restarts it.
func (w *world) turn() {
	if errors.Is(w.c.turn(), fakeapi.ErrCrash) {
		w.c = newController(w)
	}
}

func (w *world) user() {
	switch w.IntN(8) {
	case 0:
		w.replicas = w.IntN(7)
	case 1:
		w.budget = w.IntN(5)
	case 2, 3, 4:
		w.load = load{int64(20 + w.IntN(800)), int64(50+w.IntN(900)) << 20}
	case 5:
		if pods := fakeapi.All[*corev1.Pod](w.API); len(pods) > 0 {
			w.Delete(pods[w.IntN(len(pods))].UID, 30)
		}
	case 6:
		w.Now = w.Now.Add(time.Duration(1+w.IntN(20)) * time.Hour)
	default:
		w.change(w.fill)
	}
}

// owner creates and deletes pods up to the replicas. Admission sizes new ones.
func (w *world) owner() {
	pods := slices.DeleteFunc(fakeapi.All[*corev1.Pod](w.API), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || workload.Terminal(p)
	})
	for n := len(pods); n > w.replicas; n-- {
		w.Delete(pods[n-1].UID, 30)
	}
	for n := len(pods); n < w.replicas; n++ {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", GenerateName: "web-",
			Labels: map[string]string{"app": "web"}, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}}}
		p.Spec.Containers = []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: load{200, 300 << 20}.list()}}}
		p.Status.Phase = corev1.PodPending
		w.c.admit(p)
		w.Create(p)
	}
}

// kubelets start pods, end those that are being deleted, and resize.
func (w *world) kubelets() {
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		change := func(f func(p *corev1.Pod)) {
			w.Change(p.UID, func(o fakeapi.Object) {
				if p, ok := o.(*corev1.Pod); ok {
					f(p)
				}
			})
		}
		switch {
		case w.One(4) || workload.Terminal(p):
		case p.DeletionTimestamp != nil:
			change(func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodFailed} })
		case p.Spec.NodeName == "":
			change(func(p *corev1.Pod) { p.Spec.NodeName = "node" })
		case p.Status.Phase == corev1.PodPending:
			change(func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: new(metav1.NewTime(w.Now)),
					ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
						Resources: p.Spec.Containers[0].Resources.DeepCopy()}}}
				workloadReady(p, w.Now)
			})
		case w.resizes[p.UID] != fate{}:
			change(w.resize)
		case w.One(60):
			change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		}
	}
	maps.DeleteFunc(w.resizes, func(uid types.UID, _ fate) bool { return w.Get(uid) == nil })
}

func workloadReady(p *corev1.Pod, now time.Time) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady,
		Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)})
}

// resize lets the kubelet carry out a resize and report its conditions.
func (w *world) resize(p *corev1.Pod) {
	f := w.resizes[p.UID]
	p.Status.Conditions = slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
	c := corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue}
	switch {
	case f.kind == infeasible:
		c.Reason = corev1.PodReasonInfeasible
	case f.kind == deferred && w.Now.Before(f.until):
		c.Reason = corev1.PodReasonDeferred
	case f.kind == slow && w.Now.Before(f.until):
		c.Type = corev1.PodResizeInProgress
	default:
		p.Status.ContainerStatuses = slices.Clone(p.Status.ContainerStatuses)
		p.Status.ContainerStatuses[0].Resources = p.Spec.Containers[0].Resources.DeepCopy()
		delete(w.resizes, p.UID)
		return
	}
	if f.since.IsZero() {
		f.since = w.Now
		w.resizes[p.UID] = f
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}

// kill OOM-kills a container, which is restarted.
func (w *world) kill() {
	pods := slices.DeleteFunc(fakeapi.All[*corev1.Pod](w.API), func(p *corev1.Pod) bool {
		return p.Status.Phase != corev1.PodRunning
	})
	if len(pods) == 0 {
		return
	}
	w.Change(pods[w.IntN(len(pods))].UID, func(o fakeapi.Object) {
		if p, ok := o.(*corev1.Pod); ok {
			p.Status.ContainerStatuses = slices.Clone(p.Status.ContainerStatuses)
			s := &p.Status.ContainerStatuses[0]
			s.RestartCount++
			s.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled",
				StartedAt: *p.Status.StartTime, FinishedAt: metav1.NewTime(w.Now)}
		}
	})
}

// samples returns the response of metrics.k8s.io: without some pods, sometimes old, sometimes empty.
func (w *world) samples() []vpa.Sample {
	switch {
	case w.One(15):
		return nil
	case w.One(10):
		return w.scraped
	}
	w.scraped = nil
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		if p.Status.Phase != corev1.PodRunning || w.One(10) {
			continue
		}
		used := w.load
		if !w.Faultless { // as calm as the load
			used.milli += int64(w.IntN(10))
			used.bytes += int64(w.IntN(1 << 20))
		}
		w.scraped = append(w.scraped, vpa.Sample{Pod: vpa.Name{Namespace: "n", Name: p.Name}, Container: "c", At: w.Now,
			CPU: used.milli, Memory: used.bytes})
	}
	return w.scraped
}

// rest ends all faults: the usage of containers stays constant. It checks the result after days.
func (w *world) rest() {
	w.Faultless, w.replicas, w.budget = true, 2+w.IntN(4), 1
	w.change(func(s *vpa.Spec) {
		p := *s.UpdatePolicy
		p.MinReplicas = new(int32(1 + w.IntN(2))) //nolint:gosec // small
		s.UpdatePolicy = &p
	})
	settled := w.Now.Add(21 * 24 * time.Hour)
	for end := settled.Add(2 * 24 * time.Hour); w.Now.Before(end); {
		for _, watch := range w.c.watches {
			watch.CatchUp()
		}
		if w.IntN(30) == 0 {
			w.c = newController(w)
		}
		w.turn()
		if w.Now.After(settled) && w.c.disturbed > 0 {
			fakeapi.Break(Ends, "pods are still changed: the load is %+v, the status %+v", w.load, w.scaler().Status)
		}
		w.owner()
		w.kubelets()
		w.Now = w.Now.Add(2 * time.Hour)
	}
	w.checkEnd()
}
