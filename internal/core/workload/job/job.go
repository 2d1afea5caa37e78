// Package job decides what happens to a Job: which pods are created and deleted, which of their
// results are counted, and its status (W5). The job controller drives it. It is a function of its
// arguments.
//
// A pod's result is counted in steps that are each stored before the next: its UID is recorded in
// the status, its finalizer is removed, then the UID becomes a number. Plan returns the steps that
// are possible now; the driver does them, applies their effects to its input, and calls again until
// there is nothing left. A crash between any two of them repeats a step and counts nothing twice
// (W5.31).
//
// Contract: docs/spec/workloads.md.
package job

import (
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/workload"
)

// Finalizer keeps a pod until its result is counted (W5.30).
const Finalizer = batchv1.JobTrackingFinalizer

// limit is the maximum number of pods that one step creates, deletes or records as uncounted
// (W5.21).
const limit = 500

// Input holds everything that Plan uses; all of it is read only.
type Input struct {
	Job  *batchv1.Job  // with defaults
	Pods []*corev1.Pod // those that the Job controls, terminated ones and those being deleted, too
	Now  time.Time
	// Backoff is the back-off from the last output; empty after a restart (W5.24).
	Backoff Backoff
	// Hold prevents the creation and deletion of pods, because such a call has just failed. The
	// status is still brought up to date (W0.15).
	Hold bool
}

// Output holds the actions, in the order of the fields; afterwards decide again, with the effects
// in the input.
type Output struct {
	Create []*corev1.Pod // by slow start (W0.E)
	Delete []Deletion
	// Status is to be written before any finalizer is removed; nil: it is as stored.
	Status *batchv1.JobStatus
	// Events are about the Job, recorded when the status is stored.
	Events []Event
	// Untrack lists pods that lose their finalizer: their results are stored in the status, or
	// not needed.
	Untrack []*corev1.Pod
	Backoff Backoff
	// Problem is the error of making pods from the template.
	Problem error
	// Look is when to decide again without a change; zero for never.
	Look time.Duration
}

// Done reports whether there is nothing left to do: decide again when something else changed, or
// when Look has passed.
func (o *Output) Done() bool {
	return o.Status == nil && len(o.Create)+len(o.Delete)+len(o.Untrack) == 0
}

// Deletion is the deletion of a pod.
type Deletion struct {
	Pod *corev1.Pod
	// Untrack removes the finalizer first, so that the pod's end is not counted (W5.43).
	Untrack bool
}

// Event is an event to record about the Job.
type Event struct{ Type, Reason, Message string }

// Finished reports whether the Job is over: it is Complete or Failed.
func Finished(j *batchv1.Job) bool { return workload.FinishedAs(j) != "" }

// Foreign reports whether another controller manages the Job: then it is ignored (W5.25).
func Foreign(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// Tracked reports whether a pod still has the finalizer.
func Tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, Finalizer) }

// Plan decides about one Job.
func Plan(in Input) Output {
	if Foreign(in.Job) {
		return Output{}
	}
	if Finished(in.Job) {
		return Output{Untrack: tracked(in.Pods)} // W5.34, W5.97
	}
	if m := in.Job.Spec.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion &&
		*m != batchv1.IndexedCompletion {
		return Output{Backoff: in.Backoff,
			Events: []Event{{corev1.EventTypeWarning, "UnknownCompletionMode",
				"Skipped Job sync because completion mode is unknown"}}}
	}
	p := newPlan(in)
	p.finish()
	if !in.Hold && p.manage() {
		return p.out
	}
	if p.verdict == nil && p.complete() {
		p.verdict = p.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached,
			"Reached expected number of succeeded pods")
	} else if p.verdict == nil {
		p.noteSuspension()
	}
	p.count()
	p.conclude()
	if !equality.Semantic.DeepEqual(p.status, p.stored) {
		p.out.Status = &p.status
	}
	return p.out
}

// plan is the state of one decision.
type plan struct {
	in     Input
	job    *batchv1.Job
	now    metav1.Time
	status batchv1.JobStatus // the next one
	stored batchv1.JobStatus // the stored status, for comparison
	out    Output

	pods        []*corev1.Pod // oldest first; by index in Indexed Jobs
	active      []*corev1.Pod
	terminating []*corev1.Pod
	noted       map[types.UID]bool // the UIDs in uncountedTerminatedPods
	indexed     bool
	perIndex    bool // failures are limited per index

	succeeded, failed int32                 // counted, uncounted and not recorded yet
	done              indexes               // completed indexes, with those not recorded yet
	doneStored        indexes               // those that are recorded
	lost              indexes               // failed indexes, with those not recorded yet
	waiting           map[int]*corev1.Pod   // failed pods whose replacement inherits their count (W5.62)
	verdict           *batchv1.JobCondition // how the Job ends: SuccessCriteriaMet or FailureTarget
}

func newPlan(in Input) *plan {
	j := in.Job
	p := &plan{
		in: in, job: j, now: metav1.NewTime(in.Now), status: *j.Status.DeepCopy(), pods: slices.Clone(in.Pods),
		indexed: j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion &&
			j.Spec.Completions != nil,
		perIndex: j.Spec.BackoffLimitPerIndex != nil,
	}
	if p.status.UncountedTerminatedPods == nil {
		p.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	p.stored = *p.status.DeepCopy()
	p.noted = map[types.UID]bool{}
	for _, uid := range slices.Concat(p.status.UncountedTerminatedPods.Succeeded,
		p.status.UncountedTerminatedPods.Failed) {
		p.noted[uid] = true
	}
	if p.status.StartTime == nil && !p.suspended() {
		p.status.StartTime = &p.now
	}
	slices.SortStableFunc(p.pods, p.order)
	for _, pod := range p.pods {
		switch {
		case workload.Terminal(pod):
		case pod.DeletionTimestamp != nil:
			p.terminating = append(p.terminating, pod)
		default:
			p.active = append(p.active, pod)
		}
	}
	successes, failures := p.fresh()
	p.out.Backoff = in.Backoff.next(p.pods, successes, failures)
	uncounted := p.status.UncountedTerminatedPods
	p.succeeded = p.status.Succeeded + int32(len(successes)+len(uncounted.Succeeded))
	p.failed = p.status.Failed + int32(len(uncounted.Failed))
	for _, pod := range failures {
		if counts, _ := p.policy(pod); counts {
			p.failed++
		}
	}
	if p.indexed {
		p.indexes()
	}
	return p
}

// order sorts pods by index, then age, then name.
func (p *plan) order(a, b *corev1.Pod) int {
	if p.indexed {
		if c := indexOf(a) - indexOf(b); c != 0 {
			return c
		}
	}
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

func (p *plan) suspended() bool { return p.job.Spec.Suspend != nil && *p.job.Spec.Suspend }

// onlyFailed reports whether pods that are still ending are not replaced (W5.41).
func (p *plan) onlyFailed() bool {
	return p.job.Spec.PodReplacementPolicy != nil && *p.job.Spec.PodReplacementPolicy == batchv1.Failed
}

// hasFailed reports whether a pod's end is a failure (W5.33).
func (p *plan) hasFailed(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed ||
		!p.onlyFailed() && pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

// within reports whether a pod's result can count: in an Indexed Job it has an index of the Job.
func (p *plan) within(pod *corev1.Pod) bool {
	i := indexOf(pod)
	return !p.indexed || i >= 0 && i < int(*p.job.Spec.Completions)
}

// fresh returns the pods that have ended and are not in the status yet.
func (p *plan) fresh() (successes, failures []*corev1.Pod) {
	for _, pod := range p.pods {
		switch {
		case !Tracked(pod) || !p.within(pod) || p.noted[pod.UID]:
		case pod.Status.Phase == corev1.PodSucceeded:
			successes = append(successes, pod)
		case p.hasFailed(pod):
			failures = append(failures, pod)
		}
	}
	return successes, failures
}

func (p *plan) condition(kind batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	return &batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastProbeTime: p.now,
		LastTransitionTime: p.now, Reason: reason, Message: message}
}

// find returns a condition of the new status, or nil.
func (p *plan) find(kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range p.status.Conditions {
		if p.status.Conditions[i].Type == kind {
			return &p.status.Conditions[i]
		}
	}
	return nil
}

func (p *plan) is(kind batchv1.JobConditionType) bool {
	c := p.find(kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// set changes or adds a condition; a missing one does not become False. It reports whether
// anything changed.
func (p *plan) set(c batchv1.JobCondition) bool {
	old := p.find(c.Type)
	switch {
	case old == nil && c.Status == corev1.ConditionFalse:
		return false
	case old == nil:
		p.status.Conditions = append(p.status.Conditions, c)
	case old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message:
		return false
	default:
		*old = c
	}
	return true
}

func (p *plan) event(kind, reason, message string) {
	p.out.Events = append(p.out.Events, Event{kind, reason, message})
}

// lookIn requests another decision; the earliest request applies.
func (p *plan) lookIn(d time.Duration) {
	d = max(d, time.Millisecond)
	if p.out.Look == 0 || d < p.out.Look {
		p.out.Look = d
	}
}

// noteSuspension brings the Suspended condition up to date (W5.92).
func (p *plan) noteSuspension() {
	if p.job.DeletionTimestamp != nil {
		return
	}
	if p.suspended() {
		if p.set(*p.condition(batchv1.JobSuspended, "JobSuspended", "Job suspended")) {
			p.status.StartTime = nil
			p.event(corev1.EventTypeNormal, "Suspended", "Job suspended")
		}
		return
	}
	resumed := p.condition(batchv1.JobSuspended, "JobResumed", "Job resumed")
	resumed.Status = corev1.ConditionFalse
	if p.set(*resumed) {
		p.status.StartTime = &p.now
		p.event(corev1.EventTypeNormal, "Resumed", "Job resumed")
	}
}

// complete reports whether enough pods have succeeded and none is running (W5.72).
func (p *plan) complete() bool {
	if len(p.active) > 0 {
		return false
	}
	if p.job.Spec.Completions == nil {
		return p.succeeded > 0
	}
	return p.succeeded >= *p.job.Spec.Completions
}

// conclude writes the interim condition, and the final one when nothing is left to count, remove or
// wait for (W5.89, W5.91).
func (p *plan) conclude() {
	ready := int32(0)
	for _, pod := range p.active {
		if workload.Ready(pod) {
			ready++
		}
	}
	terminating := int32(len(p.terminating))
	p.status.Active, p.status.Ready, p.status.Terminating = int32(len(p.active)), &ready, &terminating
	if p.verdict == nil {
		return
	}
	if !p.is(p.verdict.Type) {
		p.set(*p.verdict)
	}
	u := p.status.UncountedTerminatedPods
	if len(p.active)+len(p.terminating)+len(u.Succeeded)+len(u.Failed)+len(p.out.Untrack) > 0 {
		return
	}
	final := p.condition(batchv1.JobComplete, p.verdict.Reason, p.verdict.Message)
	if p.verdict.Type == batchv1.JobFailureTarget {
		final.Type = batchv1.JobFailed
	}
	if p.status.StartTime == nil && !(p.suspended() && p.job.Spec.Completions != nil && *p.job.Spec.Completions == 0) {
		p.status.StartTime = &p.now // it ends while it is suspended; validation requires a time
	}
	p.set(*final)
	p.out.Look = 0
	if final.Type == batchv1.JobFailed {
		p.event(corev1.EventTypeWarning, final.Reason, final.Message)
		return
	}
	p.status.CompletionTime = &p.now
	if p.job.Spec.Completions != nil && p.status.Succeeded > *p.job.Spec.Completions {
		p.event(corev1.EventTypeWarning, "TooManySucceededPods",
			"Too many succeeded pods running after completion count reached")
	}
	p.event(corev1.EventTypeNormal, "Completed", "Job completed")
}

func tracked(pods []*corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, p := range pods {
		if Tracked(p) {
			out = append(out, p)
		}
	}
	return out
}
