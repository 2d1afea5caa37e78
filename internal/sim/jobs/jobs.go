// Package jobs runs the plan of Jobs against a store in memory, in random steps from one seed:
// users suspend, scale, delete, and force; watches deliver events late, twice, or only with a new
// list; there are conflicts and lost responses; the controller ends between any two writes; pods
// run, succeed, fail, and disappear with their nodes. After each write it checks the invariants.
// Its tests run it; it must never touch a real cluster.
//
// Contract: docs/spec/pod-lifecycle.md and docs/spec/workloads.md.
package jobs

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
	"carob/internal/core/workload/job"
	"carob/internal/sim/fakeapi"
)

// The invariants.
const (
	Once      fakeapi.Invariant = "each pod counts once, as what it was (W5.31)"
	Kept      fakeapi.Invariant = "a pod keeps its finalizer until its result is stored (W5.30)"
	Indexes   fakeapi.Invariant = "an index is run by one pod, and not again when it is over (W5.41, W5.51)"
	NoMore    fakeapi.Invariant = "the controller never makes more active pods than parallelism (W5.40)"
	Suspended fakeapi.Invariant = "a suspended Job makes no pod (W5.92)"
	Over      fakeapi.Invariant = "a Job that is over makes no pod and keeps its status (W5.97)"
	LetGo     fakeapi.Invariant = "no pod keeps the finalizer of a Job that is over or gone (W5.34)"
	Ends      fakeapi.Invariant = "when the faults end, the Job ends within a day, and no part writes (W5.72, W5.91)"
)

// Sabotage breaks the controller in one way; the zero value breaks nothing.
type Sabotage struct {
	Stale   bool                                 // plans are made before the own writes are delivered
	Early   bool                                 // finalizers are removed before the status is stored
	Orphans bool                                 // pods without a Job are not released
	In      func(in *job.Input)                  // changes the input of the plan; Job is a copy
	Out     func(in *job.Input, out *job.Output) // changes the plan
}

var begin = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const nodes = 3

type world struct {
	*fakeapi.API
	sabotage Sabotage
	c        *Controller
	checker  checker
	down     [nodes]bool
}

// Run runs the given number of steps of a seed and returns the first broken invariant, nil for
// none.
func Run(seed uint64, steps int, sabotage Sabotage) error {
	return fakeapi.Catch(func() {
		w := &world{API: fakeapi.New(seed, begin), sabotage: sabotage}
		w.checker = newChecker(w)
		w.Stored = w.checker.stored
		w.Ended = ended
		w.Create(w.job())
		w.restart()
		for range steps {
			w.step()
		}
		w.rest()
	})
}

// ended reports whether an object being deleted is removed: a pod when no node runs it any more, a
// Job at once.
func ended(o fakeapi.Object) bool {
	p, ok := o.(*corev1.Pod)
	return !ok || p.Spec.NodeName == "" || workload.Terminal(p) || *p.DeletionGracePeriodSeconds == 0
}

func (w *world) job() *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "pi"}, Spec: batchv1.JobSpec{
		Parallelism: w.number(1, 4), BackoffLimit: w.number(0, 12),
		PodReplacementPolicy: new(batchv1.TerminatingOrFailed),
		Selector:             &metav1.LabelSelector{MatchLabels: map[string]string{"job": "pi"}},
	}}
	s := &j.Spec
	switch w.IntN(4) {
	case 0: // a queue of work
	case 1:
		s.Completions = w.number(1, 8)
	default:
		s.Completions, s.CompletionMode = w.number(1, 8), new(batchv1.IndexedCompletion)
		if w.IntN(3) == 0 {
			s.BackoffLimit, s.BackoffLimitPerIndex = new(int32(1<<31-1)), w.number(0, 2)
		}
		if w.IntN(4) == 0 {
			rules := []batchv1.SuccessPolicyRule{{SucceededCount: w.number(1, 3)}}
			s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules}
		}
	}
	if w.IntN(3) == 0 {
		s.PodReplacementPolicy = new(batchv1.Failed)
	}
	if w.IntN(6) == 0 {
		s.ActiveDeadlineSeconds = new(int64(1800))
	}
	if w.IntN(6) == 0 {
		s.Suspend = new(true)
	}
	s.Template.Labels = map[string]string{"job": "pi"}
	s.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	return j
}

func (w *world) number(from, to int) *int32 {
	return new(int32(from + w.IntN(to-from+1))) //nolint:gosec // small
}

// step applies one random event.
func (w *world) step() {
	w.Now = w.Now.Add(time.Duration(w.IntN(20)) * time.Second)
	switch n := w.IntN(100); {
	case n < 20:
		w.c.jobs.Deliver()
	case n < 45:
		w.c.pods.Deliver()
	case n < 70:
		w.turn()
	case n < 75:
		w.orphans()
	case n < 88:
		w.node()
	case n < 93:
		w.collect()
	case n < 98:
		w.user()
	case n < 99:
		w.down[w.IntN(nodes)] = w.IntN(2) == 0
	default:
		w.restart() // it also ends when it has nothing to do
	}
}

// restart starts a new process of the controller.
func (w *world) restart() {
	w.c = NewController(w.API, w.Client(), fakeapi.NewCaches(w.API), Hooks{Sabotage: w.sabotage,
		Created: func(known *batchv1.Job, p fakeapi.Object, answered bool) {
			if !answered {
				w.checker.unanswered[p.GetUID()] = true
			}
			w.checker.created(known, p)
		}})
}

func (w *world) turn() {
	if !w.c.Turn() {
		w.restart()
	}
}

func (w *world) orphans() {
	if !w.c.Orphans() {
		w.restart()
	}
}

// user changes the Job, or a pod.
func (w *world) user() {
	jobs := fakeapi.All[*batchv1.Job](w.API)
	if len(jobs) == 0 {
		w.Create(w.job())
		return
	}
	what := w.IntN(16)
	if job.Finished(jobs[0]) && w.IntN(2) == 0 {
		w.Delete(jobs[0].UID, 0) // the next one starts
		return
	}
	if pods := fakeapi.All[*corev1.Pod](w.API); what < 6 {
		if len(pods) > 0 {
			w.Delete(pods[w.IntN(len(pods))].UID, int64(30*(what%2))) // half of them by force
		}
		return
	}
	uid := jobs[0].UID
	spec := func(f func(s *batchv1.JobSpec)) {
		w.Change(uid, func(o fakeapi.Object) {
			if j, ok := o.(*batchv1.Job); ok {
				f(&j.Spec)
				j.Generation++
			}
		})
	}
	switch {
	case what < 10:
		spec(func(s *batchv1.JobSpec) { s.Suspend = new(w.IntN(3) == 0) })
	case what < 14:
		spec(func(s *batchv1.JobSpec) {
			s.Parallelism = w.number(0, 6)
			if s.CompletionMode != nil && s.SuccessPolicy == nil && !job.Finished(jobs[0]) && w.IntN(2) == 0 {
				s.Completions = new(*s.Parallelism) // elastic (W5.53)
			}
		})
	case what < 15:
		spec(func(s *batchv1.JobSpec) { s.BackoffLimit = w.number(0, 12) })
	case w.IntN(3) > 0:
	case w.IntN(2) == 0: // in the foreground: its pods are deleted first (W5.44)
		w.Change(uid, func(o fakeapi.Object) { o.SetFinalizers([]string{metav1.FinalizerDeleteDependents}) })
		w.Delete(uid, 0)
	default:
		w.Delete(uid, 0)
	}
}

// collect does the work of the garbage collectors: pods whose Job is deleted or being deleted, Jobs
// whose pods are deleted, pods of removed nodes (L7.166).
func (w *world) collect() {
	of := map[types.UID]int{}
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		owner := metav1.GetControllerOfNoCopy(p).UID
		of[owner]++
		j := w.Get(owner)
		if p.DeletionTimestamp == nil && (j == nil || j.GetDeletionTimestamp() != nil) {
			w.Delete(p.UID, 30)
		}
		if w.lost(p) && !workload.Terminal(p) {
			w.end(p, corev1.PodFailed)
			w.Delete(p.UID, 0)
		}
	}
	for _, j := range fakeapi.All[*batchv1.Job](w.API) {
		if j.DeletionTimestamp != nil && of[j.UID] == 0 {
			w.Change(j.UID, func(o fakeapi.Object) { o.SetFinalizers(nil) })
		}
	}
}

// lost reports whether a pod's node is removed.
func (w *world) lost(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && w.down[int(p.Spec.NodeName[1]-'0')]
}

// node starts and ends pods, first those that are being deleted.
func (w *world) node() {
	for _, p := range fakeapi.All[*corev1.Pod](w.API) {
		n := w.IntN(nodes)
		switch {
		case workload.Terminal(p) || w.lost(p) || w.One(2):
		case p.DeletionTimestamp != nil && w.IntN(4) == 0:
			w.end(p, corev1.PodSucceeded)
		case p.DeletionTimestamp != nil:
			w.end(p, corev1.PodFailed)
		case p.Spec.NodeName == "" && !w.down[n]:
			w.Change(p.UID, func(o fakeapi.Object) {
				if p, ok := o.(*corev1.Pod); ok {
					p.Spec.NodeName, p.Status.Phase = "n"+string(rune('0'+n)), corev1.PodRunning
					p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
						LastTransitionTime: metav1.NewTime(w.Now)}}
				}
			})
		case p.Spec.NodeName == "":
		case w.One(4):
			w.end(p, corev1.PodFailed)
		case !w.One(3):
			w.end(p, corev1.PodSucceeded)
		}
	}
}

func (w *world) end(p *corev1.Pod, phase corev1.PodPhase) {
	w.Change(p.UID, func(o fakeapi.Object) {
		if p, ok := o.(*corev1.Pod); ok {
			p.Status.Phase, p.Status.Conditions = phase, nil
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(w.Now)}}}}
		}
	})
}

// bound is the maximum time until the Job ends: it waits ten minutes after each of many failures.
const bound = 24 * time.Hour

// rest ends all faults, lets pods succeed and the Job continue, and checks the end. Only its
// watches and its requested time call the controller.
func (w *world) rest() {
	w.Faultless, w.down = true, [nodes]bool{}
	for _, j := range fakeapi.All[*batchv1.Job](w.API) {
		w.Change(j.UID, func(o fakeapi.Object) {
			if j, ok := o.(*batchv1.Job); ok {
				j.Spec.Suspend, j.Spec.Parallelism = nil, new(max(1, *j.Spec.Parallelism))
			}
		})
	}
	for last := w.Now.Add(bound); ; {
		before := w.Writes()
		w.c.jobs.CatchUp()
		w.c.pods.CatchUp()
		w.turn()
		w.orphans()
		w.collect()
		w.node()
		switch {
		case w.Now.After(last):
			fakeapi.Break(Ends, "the writes do not end: %s", w.checker.text())
		case w.Writes() > before || w.c.dirty:
			w.Now = w.Now.Add(time.Second)
		case w.c.due.IsZero():
			w.checker.end()
			w.quiet()
			return
		default:
			w.Now = w.c.due
		}
	}
}

// quiet calls all controllers a day later and checks that they write nothing.
func (w *world) quiet() {
	before := w.Writes()
	w.Now = w.Now.Add(bound)
	for range 3 {
		w.c.jobs.List()
		w.c.pods.List()
		w.turn()
		w.orphans()
	}
	if n := w.Writes() - before; n > 0 {
		fakeapi.Break(Ends, "%d writes after the end: %s", n, w.checker.text())
	}
}
