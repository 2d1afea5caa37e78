package cluster

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/workload"
	"carob/internal/core/workload/daemonset"
	"carob/internal/sim/fakeapi"
)

// important is the priority of pods that each node needs.
const important = 1000

// crowd creates what only crowded worlds have: a DaemonSet, whose pods preempt others on full nodes, and a CronJob.
func (w *world) crowd() {
	if w.kind != Crowded {
		return
	}
	w.Create(w.daemonSet("log"))
	w.Create(w.cronJob("tick"))
}

func (w *world) daemonSet(name string) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec = appsv1.DaemonSetSpec{Selector: selector(name), Template: w.template(name, "server"),
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt(1 + w.IntN(2))),
				MaxSurge: new(intstr.FromInt(0))}}}
	if w.IntN(3) == 0 {
		r := d.Spec.UpdateStrategy.RollingUpdate
		r.MaxUnavailable, r.MaxSurge = new(intstr.FromInt(0)), new(intstr.FromInt(1))
	}
	d.Spec.Template.Spec.Priority = new(int32(important))
	// Of any size, two pods would not fit beside each other on the smallest node, and an update with surge never ends.
	d.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] =
		*resource.NewMilliQuantity(unit, resource.DecimalSI)
	return d
}

func (w *world) cronJob(name string) *batchv1.CronJob {
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	cj.Spec = batchv1.CronJobSpec{Schedule: fmt.Sprintf("*/%d * * * *", 2+w.IntN(10)), ConcurrencyPolicy: w.policy(),
		SuccessfulJobsHistoryLimit: w.number(0, 2), FailedJobsHistoryLimit: w.number(0, 2),
		JobTemplate: batchv1.JobTemplateSpec{Spec: w.job(name).Spec}}
	return cj
}

func (w *world) policy() batchv1.ConcurrencyPolicy {
	all := []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}
	return all[w.IntN(len(all))]
}

// changeCrowd changes the DaemonSet or the CronJob, or replaces it.
func (w *world) changeCrowd() {
	sets, schedules := fakeapi.All[*appsv1.DaemonSet](w.API), fakeapi.All[*batchv1.CronJob](w.API)
	switch n := w.IntN(12); {
	case len(sets) == 0:
		w.Create(w.daemonSet("log"))
	case len(schedules) == 0:
		w.Create(w.cronJob("tick"))
	case n == 0:
		w.discard(sets[0])
	case n == 1:
		w.discard(schedules[0])
	case n < 7:
		edit(w, sets[0], func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Containers[0].Image = []string{"v0", "v1", "v2"}[w.IntN(3)]
		})
	case n < 10:
		edit(w, schedules[0], func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = w.policy() })
	default:
		edit(w, schedules[0], func(cj *batchv1.CronJob) { cj.Spec.Suspend = new(w.IntN(2) == 0) })
	}
}

// settleCrowd sets a desired state of the DaemonSet and the CronJob that can be reached, and stays.
func (w *world) settleCrowd() {
	for _, d := range fakeapi.All[*appsv1.DaemonSet](w.API) {
		edit(w, d, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "v3" })
		if w.IntN(3) == 0 {
			w.discard(d)
		}
	}
	for _, cj := range fakeapi.All[*batchv1.CronJob](w.API) {
		edit(w, cj, func(cj *batchv1.CronJob) { cj.Spec.Suspend = new(true) })
	}
}

func ofDaemonSet(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && ref.Kind == "DaemonSet"
}

// checkDaemons checks how many pods of each DaemonSet run on a machine. One whose creation got no answer may be
// one too many.
func (w *world) checkDaemons(m *machine) {
	running := map[types.UID][]types.UID{}
	for _, r := range m.Running() {
		p := w.pods[r.Pod]
		if p == nil || p.daemon == "" || w.invariants.extra[r.Pod] || slices.Contains(running[p.daemon], r.Pod) {
			continue
		}
		running[p.daemon] = append(running[p.daemon], r.Pod)
		if n := len(running[p.daemon]); n > p.most {
			fakeapi.Break(Daemon, "%d pods like %s run on %s", n, p.name, m.name)
		}
	}
}

// checkScheduled checks a Job that the controller of CronJobs created.
func (w *world) checkScheduled(known *batchv1.CronJob, j fakeapi.Object, answered bool) {
	if !answered {
		w.invariants.extra[j.GetUID()] = true
	}
	if other, twice := w.invariants.scheduled[j.GetName()]; twice && other != j.GetUID() {
		fakeapi.Break(Scheduled, "%s is made again", j.GetName())
	}
	w.invariants.scheduled[j.GetName()] = j.GetUID()
	if known.Spec.ConcurrencyPolicy != batchv1.ForbidConcurrent {
		return
	}
	for _, other := range fakeapi.All[*batchv1.Job](w.API) {
		if other.UID != j.GetUID() && metav1.IsControlledBy(other, known) && workload.FinishedAs(other) == "" &&
			other.DeletionTimestamp == nil && !w.invariants.extra[other.UID] {
			fakeapi.Break(Scheduled, "%s is made beside %s", j.GetName(), other.Name)
		}
	}
}

// checkPreempted checks a pod that is going to be deleted for another one.
func (w *world) checkPreempted(preemptor, victim *corev1.Pod) {
	if *victim.Spec.Priority >= *preemptor.Spec.Priority {
		fakeapi.Break(Preempted, "%s of priority %d is preempted for %s of priority %d", victim.Name,
			*victim.Spec.Priority, preemptor.Name, *preemptor.Spec.Priority)
	}
}

// daemonsEnd checks that each node runs the one pod that it should.
func (w *world) daemonsEnd() *fakeapi.Broken {
	runs := w.runs()
	for _, d := range fakeapi.All[*appsv1.DaemonSet](w.API) {
		eligible, nodes := daemonset.NewEligible(d), int32(0)
		for _, n := range fakeapi.All[*corev1.Node](w.API) {
			if run, _ := eligible.Of(n); run {
				nodes++
			}
		}
		n := int32(0)
		for _, p := range fakeapi.All[*corev1.Pod](w.API) {
			if metav1.IsControlledBy(p, d) && runs[p.UID] && workload.Ready(p) && p.Spec.Containers[0].Image == "v3" {
				n++
			}
		}
		if s := d.Status; d.DeletionTimestamp != nil || n != nodes || s.DesiredNumberScheduled != nodes ||
			s.NumberAvailable != nodes || s.UpdatedNumberScheduled != nodes || s.ObservedGeneration != d.Generation {
			return broken(Ends, "%s: %d nodes, %d run, status %+v", d.Name, nodes, n, s)
		}
	}
	return nil
}

// schedulesEnd checks the history of CronJobs.
func (w *world) schedulesEnd() *fakeapi.Broken {
	for _, cj := range fakeapi.All[*batchv1.CronJob](w.API) {
		n := int32(0)
		for _, j := range fakeapi.All[*batchv1.Job](w.API) {
			if metav1.IsControlledBy(j, cj) {
				n++
			}
		}
		if len(cj.Status.Active) > 0 || n > *cj.Spec.SuccessfulJobsHistoryLimit {
			return broken(Ends, "%s: %d Jobs are kept, status %+v", cj.Name, n, cj.Status)
		}
	}
	return nil
}
