package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/deployment"
	"carob/internal/core/workload/job"
	"carob/internal/sim"
	"carob/internal/sim/fakeapi"
	"carob/internal/sim/quotas"
)

// The invariants. Those of the pod lifecycle (sim.Invariants) that are not about time are checked, too.
const (
	Fits      fakeapi.Invariant = "what runs on a node fits its allocatable resources (L3.20)"
	Bound     fakeapi.Invariant = "no more pods are bound to a node than fit (L2.20)"
	OneNode   fakeapi.Invariant = "the containers of a pod run on one node only (L1.80, L1.81)"
	Surge     fakeapi.Invariant = "never more pods of a Deployment run than its size and surge (W2.41)"
	Minimum   fakeapi.Invariant = "a rollout leaves at least size minus maxUnavailable pods running (W2.42)"
	Budget    fakeapi.Invariant = "evictions leave as many pods running as a budget says (L1.105)"
	Ordinal   fakeapi.Invariant = "an ordinal never runs twice at once (W3.47)"
	Index     fakeapi.Invariant = "an index of a Job never runs twice at once, and completes once (W5.41, W5.51)"
	Daemon    fakeapi.Invariant = "a node never runs two pods of a DaemonSet, or three with surge (W4.36, W4.38)"
	Scheduled fakeapi.Invariant = "a CronJob makes one Job for a time, and with Forbid none beside another (W6.15, W6.16)"
	Preempted fakeapi.Invariant = "a pod is preempted only for one of higher priority (L2.50)"
	Orphans   fakeapi.Invariant = "when the faults end, no object is left whose owner is gone (W0.27)"
	Ends      fakeapi.Invariant = "half an hour after the faults end, all is as specified, and no part writes any more"
)

// Named is an invariant with a short name, and a way to break it.
type Named struct {
	Name      string
	Invariant fakeapi.Invariant
	Sabotage  Sabotage
}

// unbound is how long a binding without a response may be missing in the scheduler's view.
const unbound = time.Minute

// bound is the maximum time until the desired state is reached: a crash back-off of five minutes, the
// back-off of a Job of ten.
const bound = 30 * time.Minute

// lateExits is how long after the faults a container may still end because of one, and start again.
const lateExits = 20 * time.Minute

// pod holds the facts for the checks about each pod that was ever stored.
type pod struct {
	name       string
	deployment types.UID // through its ReplicaSet
	cpu        int64     // requested, in thousandths
	index      string    // of a Job, with the Job
	set        bool      // of a StatefulSet
	daemon     types.UID // its DaemonSet
	most       int       // pods like it that may run on a node
	active     bool      // exists, is not being deleted, and has not ended
	completed  bool
}

// invariants is the state of the checks.
type invariants struct {
	unanswered map[string]time.Time // nodes with a binding without a response
	extra      map[types.UID]bool   // pods whose creation got no response
	ceiling    map[types.UID]int32  // how many pods of a Deployment may run
	complete   map[types.UID]int32  // the size of a Deployment that was complete, and has not been scaled since
	healthy    map[types.UID]bool   // budgets whose pods were all ready once
	scheduled  map[string]types.UID // Jobs of CronJobs by their names
	completed  map[string]string    // indexes of Jobs that are complete, and by which pod
	settled    time.Duration
}

func newInvariants() invariants {
	return invariants{unanswered: map[string]time.Time{}, extra: map[types.UID]bool{}, ceiling: map[types.UID]int32{},
		complete: map[types.UID]int32{}, healthy: map[types.UID]bool{}, scheduled: map[string]types.UID{},
		completed: map[string]string{}}
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// note records a pod.
func (w *world) note(p *corev1.Pod, gone bool) {
	known := w.pods[p.UID]
	if known == nil {
		known = &pod{name: p.Name, cpu: p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()}
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
			switch owner := w.Get(ref.UID).(type) {
			case *appsv1.ReplicaSet:
				if top := metav1.GetControllerOfNoCopy(owner); top != nil {
					known.deployment = top.UID
				}
			case *batchv1.Job:
				if i, ok := p.Annotations[batchv1.JobCompletionIndexAnnotation]; ok {
					known.index = string(ref.UID) + "/" + i
				}
			case *appsv1.StatefulSet:
				known.set = true
			case *appsv1.DaemonSet:
				known.daemon = ref.UID
				known.most = 1 + owner.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue()
			}
		}
		w.pods[p.UID] = known
	}
	known.active = !gone && workload.Active(p)
	// A controller that got no response to a creation creates another pod. Of two pods of an index it removes one:
	// first its finalizer, so that the Job does not count it (W5.43), then the pod. If it ends in between, the pod
	// stays.
	if known.index != "" && known.active && !slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) {
		w.invariants.extra[p.UID] = true
	}
	if known.index != "" && p.Status.Phase == corev1.PodSucceeded && !known.completed && !w.invariants.extra[p.UID] {
		known.completed = true
		if other, twice := w.invariants.completed[known.index]; twice {
			fakeapi.Break(Index, "%s and %s completed index %s", other, p.Name, known.index)
		}
		w.invariants.completed[known.index] = p.Name
	}
}

// runs returns the pods that have a running container somewhere.
func (w *world) runs() map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, m := range w.machines {
		for _, r := range m.Running() {
			out[r.Pod] = true
		}
	}
	return out
}

// checkRunning checks the running containers whenever one has started.
func (w *world) checkRunning() {
	started := map[types.UID]bool{}
	where, names, indexes := map[types.UID]string{}, map[string]types.UID{}, map[string]types.UID{}
	for _, m := range w.machines {
		used, counted := int64(0), map[types.UID]bool{}
		for _, r := range m.Running() {
			p := w.pods[r.Pod]
			if counted[r.Pod] || p == nil {
				continue
			}
			counted[r.Pod] = true
			used += p.cpu
			if w.storage != nil && !started[r.Pod] {
				w.storage.Started(r.Pod, m.name)
			}
			started[r.Pod] = true
			if other, twice := where[r.Pod]; twice {
				fakeapi.Break(OneNode, "%s runs on %s and %s", p.name, other, m.name)
			}
			where[r.Pod] = m.name
			if other, twice := names[p.name]; twice && p.set {
				fakeapi.Break(Ordinal, "%s runs as %s and %s", p.name, other, r.Pod)
			}
			names[p.name] = r.Pod
			if p.index == "" || w.invariants.extra[r.Pod] {
				continue
			}
			if other, twice := indexes[p.index]; twice {
				fakeapi.Break(Index, "%s and %s run for index %s", w.pods[other].name, p.name, p.index)
			}
			indexes[p.index] = r.Pod
		}
		w.checkDaemons(m)
		if used > m.cpu {
			fakeapi.Break(Fits, "pods with %dm run on %s, which has %dm", used, m.name, m.cpu)
		}
	}
	if w.devices != nil {
		w.devices.Started(started)
	}
	w.checkSurge()
}

// checkBound checks a pod that was bound just now.
func (w *world) checkBound(before fakeapi.Object, p *corev1.Pod) {
	old, ok := before.(*corev1.Pod)
	if !ok || old.Spec.NodeName == p.Spec.NodeName {
		return
	}
	m := w.machine(p.Spec.NodeName)
	if at, lost := w.invariants.unanswered[m.name]; lost && w.Now.Sub(at) < unbound {
		return // the scheduler may not have observed its bound pods yet
	}
	used := int64(0)
	for _, q := range fakeapi.All[*corev1.Pod](w.API) {
		if q.Spec.NodeName == m.name && !workload.Terminal(q) {
			used += w.pods[q.UID].cpu
		}
	}
	if used > m.cpu {
		fakeapi.Break(Bound, "pods with %dm are bound to %s, which has %dm", used, m.name, m.cpu)
	}
}

// checkStored checks a change of Deployments and budgets.
func (w *world) checkStored(e fakeapi.Entry) {
	switch o := e.Object.(type) {
	case *appsv1.Deployment:
		w.limits(o)
	case *appsv1.ReplicaSet:
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			if d, ok := w.Get(ref.UID).(*appsv1.Deployment); ok {
				w.limits(d)
			}
		}
	case *corev1.Pod:
		if d, ok := w.Get(w.pods[o.UID].deployment).(*appsv1.Deployment); ok {
			w.limits(d)
		}
		if o.DeletionTimestamp != nil || e.Gone {
			w.checkMinimum(o)
		}
	}
}

// limits updates how many pods of a Deployment may run, and how many must.
func (w *world) limits(d *appsv1.Deployment) {
	surge, _ := deployment.Bounds(d)
	size := *d.Spec.Replicas
	ceiling := max(w.invariants.ceiling[d.UID], size+surge)
	total, seen := int32(0), d.Status.ObservedGeneration == d.Generation
	for _, s := range fakeapi.All[*appsv1.ReplicaSet](w.API) {
		if metav1.IsControlledBy(s, d) {
			total += *s.Spec.Replicas
			seen = seen && s.Status.ObservedGeneration == s.Generation
		}
	}
	if active := w.active(d.UID, nil); seen && total <= size+surge && active <= size+surge {
		ceiling = size + surge // the controllers have observed the size
	}
	w.invariants.ceiling[d.UID] = ceiling
	if known, ok := w.invariants.complete[d.UID]; ok && known != size {
		delete(w.invariants.complete, d.UID)
	}
	if s := d.Status; seen && s.UpdatedReplicas == size && s.AvailableReplicas == size && s.Replicas == size &&
		w.active(d.UID, w.runs()) >= size {
		w.invariants.complete[d.UID] = size
	}
}

// active counts the active pods of a Deployment; those among some, unless that is nil.
func (w *world) active(d types.UID, among map[types.UID]bool) (n int32) {
	for uid, p := range w.pods { // any order: a count
		if p.deployment == d && p.active && (among == nil || among[uid]) {
			n++
		}
	}
	return n
}

// checkSurge checks how many pods of each Deployment run. A pod whose creation got no response may be
// an extra one.
func (w *world) checkSurge() {
	runs := w.runs()
	for _, d := range fakeapi.All[*appsv1.Deployment](w.API) {
		extra := int32(0)
		for uid := range w.invariants.extra { // any order: a count
			if p := w.pods[uid]; p != nil && p.deployment == d.UID && p.active {
				extra++
			}
		}
		if n, most := w.active(d.UID, runs), w.invariants.ceiling[d.UID]+extra; n > most {
			fakeapi.Break(Surge, "%d pods of %s run, %d may", n, d.Name, most)
		}
	}
}

// checkMinimum checks the remaining pods when one is deleted, in worlds without other causes of a
// pod's end.
func (w *world) checkMinimum(p *corev1.Pod) {
	if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Reason == "DeletionByTaintManager"
	}) { // its node was cut off while carob and its agent were down: the minimum does not apply
		delete(w.invariants.complete, w.pods[p.UID].deployment)
		clear(w.invariants.healthy)
		return
	}
	runs := w.runs()
	if runs[p.UID] && !workload.Ready(p) { // its node does not respond: it counts as unavailable (W2.43)
		delete(w.invariants.complete, w.pods[p.UID].deployment)
	}
	if d, ok := w.Get(w.pods[p.UID].deployment).(*appsv1.Deployment); ok && w.kind == Rollouts &&
		d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType && d.DeletionTimestamp == nil {
		_, unavailable := deployment.Bounds(d)
		size, known := w.invariants.complete[d.UID]
		if n, least := w.active(d.UID, runs), size-unavailable; known && size == *d.Spec.Replicas && n < least {
			fakeapi.Break(Minimum, "%d pods of %s are left, %d must be", n, d.Name, least)
		}
	}
	if w.kind != Drains || w.Faultless {
		return
	}
	for _, b := range fakeapi.All[*policyv1.PodDisruptionBudget](w.API) {
		n := int32(0)
		for _, q := range fakeapi.All[*corev1.Pod](w.API) {
			if q.Labels["app"] == b.Name && runs[q.UID] && w.pods[q.UID].active {
				n++
			}
		}
		if b.Status.CurrentHealthy == b.Status.ExpectedPods && b.Status.CurrentHealthy > b.Status.DesiredHealthy {
			w.invariants.healthy[b.UID] = true
		}
		if p.Labels["app"] == b.Name && w.invariants.healthy[b.UID] && n < b.Spec.MinAvailable.IntVal {
			fakeapi.Break(Budget, "%d pods of %s are left, %d must be", n, b.Name, b.Spec.MinAvailable.IntVal)
		}
	}
}

// rest ends all faults, sets a desired state that can be reached, and checks that it is reached in
// time.
func (w *world) rest() {
	w.Now = w.loop.Now()
	w.logf("calm")
	w.Faultless = true
	for _, m := range w.present() {
		m.EndFaults()
		w.cordon(m, false)
	}
	for range 3 {
		w.addNode() // resources for all pods and their surge
	}
	for _, d := range fakeapi.All[*appsv1.Deployment](w.API) {
		edit(w, d, func(d *appsv1.Deployment) {
			d.Spec.Paused = false
			d.Spec.Template.Spec.Containers[0].Image = "v3"
			delete(d.Annotations, appsv1.DeprecatedRollbackTo)
		})
	}
	if all := fakeapi.All[*appsv1.StatefulSet](w.API); w.storage == nil && len(all) > 0 && w.IntN(2) == 0 {
		w.discard(all[0])
	}
	w.settleCrowd()
	w.settleElastic()
	w.settle()
	if w.storage != nil {
		w.shrinkSet()
		w.settle()
	}
	before := w.Writes()
	w.run(w.loop.Now().Add(time.Hour))
	if n := w.Writes() - before; n > 0 {
		fakeapi.Break(Ends, "%d writes after the end", n)
	}
	for _, m := range w.machines {
		m.CheckEnd()
	}
}

// settle checks that the desired state is reached in time, and stays.
func (w *world) settle() {
	begun, still := w.Now, 2*time.Minute
	if w.kind == Elastic {
		still = 6 * time.Minute // the windows of an autoscaler, and those of its messages, have passed
	}
	var reached time.Time
	for {
		w.run(w.loop.Now().Add(5 * time.Second))
		w.Now = w.loop.Now()
		if w.storage != nil {
			w.storage.Supply(6)
			w.storage.Repair()
		}
		b := w.missing()
		switch {
		case b != nil && w.Now.Sub(begun) > bound:
			panic(b)
		case b != nil:
			reached = time.Time{}
		case reached.IsZero():
			reached = w.Now
			w.invariants.settled = w.Now.Sub(begun)
		}
		if !reached.IsZero() && w.Now.Sub(reached) > still && w.Now.Sub(begun) > lateExits {
			return
		}
	}
}

// missing returns differences from the desired state, nil for none.
func (w *world) missing() *fakeapi.Broken {
	for _, f := range []func() *fakeapi.Broken{w.orphansEnd, w.deploymentsEnd, w.setsEnd, w.jobsEnd,
		w.daemonsEnd, w.schedulesEnd, w.podsEnd, w.autoscalersEnd} {
		if b := f(); b != nil {
			return b
		}
	}
	if w.storage != nil {
		return w.storage.Missing()
	}
	return quotas.Missing(w.API)
}

func (w *world) deploymentsEnd() *fakeapi.Broken {
	runs := w.runs()
	for _, d := range fakeapi.All[*appsv1.Deployment](w.API) {
		s, size := d.Status, *d.Spec.Replicas
		if d.DeletionTimestamp != nil {
			return broken(Ends, "%s is not gone", d.Name)
		}
		if s.ObservedGeneration != d.Generation || s.Replicas != size || s.UpdatedReplicas != size ||
			s.AvailableReplicas != size || w.active(d.UID, runs) != size {
			return broken(Ends, "%s: size %d, %d run, status %+v", d.Name, size, w.active(d.UID, runs), s)
		}
	}
	return nil
}

func (w *world) setsEnd() *fakeapi.Broken {
	runs := w.runs()
	for _, s := range fakeapi.All[*appsv1.StatefulSet](w.API) {
		n, size := int32(0), *s.Spec.Replicas
		for _, p := range fakeapi.All[*corev1.Pod](w.API) {
			if metav1.IsControlledBy(p, s) && runs[p.UID] && workload.Ready(p) &&
				p.Spec.Containers[0].Image == s.Spec.Template.Spec.Containers[0].Image {
				n++
			}
		}
		if st := s.Status; s.DeletionTimestamp != nil || n != size || st.ObservedGeneration != s.Generation ||
			st.AvailableReplicas != size || st.UpdatedReplicas != size || st.CurrentRevision != st.UpdateRevision {
			return broken(Ends, "%s: size %d, %d run, status %+v", s.Name, size, n, st)
		}
	}
	return nil
}

func (w *world) jobsEnd() *fakeapi.Broken {
	for _, j := range fakeapi.All[*batchv1.Job](w.API) {
		if j.DeletionTimestamp != nil || !job.Finished(j) || j.Status.Succeeded != *j.Spec.Completions {
			return broken(Ends, "%s: %d completions, status %+v", j.Name, *j.Spec.Completions, j.Status)
		}
	}
	return nil
}

func (w *world) orphansEnd() *fakeapi.Broken {
	for _, o := range fakeapi.All[fakeapi.Object](w.API) {
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil && w.Get(ref.UID) == nil {
			return broken(Orphans, "%s of %s", o.GetName(), ref.Name)
		}
	}
	return nil
}

// podsEnd checks that nothing is being deleted, and that no other containers run.
func (w *world) podsEnd() *fakeapi.Broken {
	for _, o := range fakeapi.All[fakeapi.Object](w.API) {
		if o.GetDeletionTimestamp() != nil && (w.storage == nil || !w.storage.Stays(o)) {
			return broken(Ends, "%s is not gone", o.GetName())
		}
	}
	for uid := range w.runs() { // any order: any one
		if p := w.pods[uid]; !p.active {
			return broken(Ends, "%s runs", p.name)
		}
	}
	return nil
}

func broken(p fakeapi.Invariant, format string, args ...any) *fakeapi.Broken {
	return &fakeapi.Broken{Invariant: p, How: fmt.Sprintf(format, args...)}
}

var _ sim.Store = &world{}
