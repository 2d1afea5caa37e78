package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Related are the objects that belong to the explained object.
type Related struct {
	Pods   []*corev1.Pod  // that it owns, or that it selects
	Events []corev1.Event // about it, and about the ReplicaSets that it owns
	Log    *Log           // of FailedLog for these pods; nil if there is none, or if it could not be read
}

// counts are the numbers of pods in the status of a workload.
type counts struct{ wanted, pods, updated, ready, available int }

// Deployment explains a Deployment.
func Deployment(d *appsv1.Deployment, r Related, now time.Time) (out Lines) {
	s := &d.Status
	out.object(d, s.ObservedGeneration, now)
	if d.Spec.Paused {
		out.warn("is paused: a changed template is not rolled out until `kubectl rollout resume`")
	}
	out.counts(counts{replicas(d.Spec.Replicas), int(s.Replicas), int(s.UpdatedReplicas), int(s.ReadyReplicas),
		int(s.AvailableReplicas)})
	for _, c := range s.Conditions {
		out.condition(string(c.Type), c.Status, c.Reason, c.Message, map[string]corev1.ConditionStatus{
			string(appsv1.DeploymentReplicaFailure): corev1.ConditionTrue,
			string(appsv1.DeploymentProgressing):    corev1.ConditionFalse})
	}
	return out.related(r, now)
}

// ReplicaSet explains a ReplicaSet.
func ReplicaSet(rs *appsv1.ReplicaSet, r Related, now time.Time) (out Lines) {
	s := &rs.Status
	out.object(rs, s.ObservedGeneration, now)
	out.counts(counts{replicas(rs.Spec.Replicas), int(s.Replicas), int(s.Replicas), int(s.ReadyReplicas),
		int(s.AvailableReplicas)})
	for _, c := range s.Conditions {
		out.condition(string(c.Type), c.Status, c.Reason, c.Message, map[string]corev1.ConditionStatus{
			string(appsv1.ReplicaSetReplicaFailure): corev1.ConditionTrue})
	}
	return out.related(r, now)
}

// StatefulSet explains a StatefulSet.
func StatefulSet(set *appsv1.StatefulSet, r Related, now time.Time) (out Lines) {
	s := &set.Status
	out.object(set, s.ObservedGeneration, now)
	wanted := replicas(set.Spec.Replicas)
	n := counts{wanted, int(s.Replicas), int(s.UpdatedReplicas), int(s.ReadyReplicas), int(s.AvailableReplicas)}
	update := set.Spec.UpdateStrategy
	switch {
	case update.Type == appsv1.OnDeleteStatefulSetStrategyType:
		n.updated = n.pods // old pods stay until they are deleted
	case update.RollingUpdate != nil && update.RollingUpdate.Partition != nil && *update.RollingUpdate.Partition > 0:
		out.info("updates only pods with the ordinal %d and above (its partition)", *update.RollingUpdate.Partition)
		n.updated = n.pods
	}
	out.counts(n)
	if n.pods < wanted && n.available < n.pods && set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		out.warn("creates its pods in order: the next one is created when all before it are available")
	}
	return out.related(r, now)
}

// DaemonSet explains a DaemonSet.
func DaemonSet(d *appsv1.DaemonSet, r Related, now time.Time) (out Lines) {
	s := &d.Status
	out.object(d, s.ObservedGeneration, now)
	updated := int(s.UpdatedNumberScheduled)
	if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		updated = int(s.CurrentNumberScheduled)
	}
	if s.DesiredNumberScheduled == 0 && len(out) == 0 {
		out.warn("no node matches its node selector, its node affinity, and its tolerations")
	} else {
		out.counts(counts{int(s.DesiredNumberScheduled), int(s.CurrentNumberScheduled), updated, int(s.NumberReady),
			int(s.NumberAvailable)})
	}
	if s.NumberMisscheduled > 0 {
		out.warn("%s on nodes that should not have one", counted(int(s.NumberMisscheduled), "pod"))
	}
	return out.related(r, now)
}

// Job explains a Job.
func Job(j *batchv1.Job, r Related, now time.Time) (out Lines) {
	out.object(j, unrecorded, now)
	s := &j.Status
	done := counted(int(s.Succeeded), "pod") + " succeeded" // until the first one does, the pods of a work queue go on
	if j.Spec.Completions != nil {
		done = fmt.Sprintf("%d of %s", s.Succeeded, counted(int(*j.Spec.Completions), "completion"))
	}
	failed := slices.ContainsFunc(s.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue
	})
	for _, c := range s.Conditions {
		if c.Status != corev1.ConditionTrue || failed && c.Type == batchv1.JobFailureTarget { // which repeats it
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			out.info("completed %s ago: %s succeeded", ago(now, c.LastTransitionTime.Time),
				counted(int(s.Succeeded), "pod"))
			return out
		case batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuspended:
			out.warn("%s is true: %s", c.Type, because(c.Reason, c.Message))
		}
	}
	if j.Spec.Suspend != nil && *j.Spec.Suspend && !out.Problems() {
		out.warn("is suspended: it creates no pods until .spec.suspend is false")
	}
	ready := 0
	if s.Ready != nil {
		ready = int(*s.Ready)
	}
	out.info("%s; %s active, %d of them ready, %d failed", done, counted(int(s.Active), "pod"), ready, s.Failed)
	if s.Failed > 0 && j.Spec.BackoffLimit != nil && j.Spec.BackoffLimitPerIndex == nil && !out.Problems() {
		out.warn("%s of %d allowed (its backoffLimit)", counted(int(s.Failed), "failure"), *j.Spec.BackoffLimit)
	}
	return out.related(r, now)
}

// CronJob explains a CronJob.
func CronJob(c *batchv1.CronJob, r Related, now time.Time) (out Lines) {
	out.object(c, unrecorded, now)
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		out.warn("is suspended: it creates no Jobs until .spec.suspend is false")
	}
	zone := "the time zone of carob"
	if c.Spec.TimeZone != nil {
		zone = *c.Spec.TimeZone
	}
	out.info("has the schedule %q (%s)", c.Spec.Schedule, zone)
	if at := c.Status.LastScheduleTime; at != nil {
		out.info("was last scheduled %s ago; %s active", ago(now, at.Time), counted(len(c.Status.Active), "Job"))
	} else {
		out.info("has not created a Job yet")
	}
	if len(c.Status.Active) > 0 && c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent {
		out.info("creates no Job while one is active (its concurrencyPolicy is Forbid)")
	}
	return out.related(r, now)
}

// Autoscaler explains a HorizontalPodAutoscaler.
func Autoscaler(h *autoscalingv2.HorizontalPodAutoscaler, r Related, now time.Time) (out Lines) {
	out.object(h, unrecorded, now)
	s := &h.Status
	bounds := autoscalingv2.ScalingLimited
	bad := map[string]corev1.ConditionStatus{string(autoscalingv2.AbleToScale): corev1.ConditionFalse,
		string(autoscalingv2.ScalingActive): corev1.ConditionFalse}
	if len(s.Conditions) == 0 {
		out.warn("its controller has not processed it yet")
	}
	for _, c := range s.Conditions {
		out.condition(string(c.Type), c.Status, c.Reason, c.Message, bad)
		if c.Type == bounds && c.Status == corev1.ConditionTrue {
			out.info("its size is limited: %s", because(c.Reason, c.Message))
		}
	}
	target := h.Spec.ScaleTargetRef
	known := s.DesiredReplicas > 0 || !out.Problems() // 0 with a problem: it was never computed
	if !known && s.CurrentReplicas == 0 {             // its scale was never read
		return out.related(r, now)
	}
	wanted := ""
	if known {
		wanted = fmt.Sprintf(", and should have %d", s.DesiredReplicas)
	}
	out.info("%s/%s has %s%s", strings.ToLower(target.Kind), target.Name, counted(int(s.CurrentReplicas), "replica"),
		wanted)
	return out.related(r, now)
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

// unrecorded stands for the observed generation of kinds that have none.
const unrecorded = -1

// object explains what applies to any object: its deletion, and whether its controller has observed its
// last change.
func (l *Lines) object(o metav1.Object, observed int64, now time.Time) {
	if at := o.GetDeletionTimestamp(); at != nil {
		l.warn("was deleted %s ago", ago(now, at.Time))
		if f := o.GetFinalizers(); len(f) > 0 {
			l.warn("stays until its finalizers are removed: %s", strings.Join(f, ", "))
		}
	} else if observed != unrecorded && observed < o.GetGeneration() {
		l.warn("its controller has not acted on its last change yet")
	}
}

// counts summarizes the pods of a workload.
func (l *Lines) counts(n counts) {
	switch {
	case n.wanted == 0 && n.pods == 0:
		l.info("needs no pod")
	case n.available >= n.wanted && n.pods == n.wanted && n.updated == n.wanted:
		l.info("%d of %s available", n.available, counted(n.wanted, "pod"))
	default:
		l.warn("%d of %s available: %d exist, %d of them up to date, %d ready", n.available,
			counted(n.wanted, "pod"), n.pods, n.updated, n.ready)
	}
}

// condition warns of a condition with the status that is bad for its type.
func (l *Lines) condition(kind string, status corev1.ConditionStatus, reason, message string,
	bad map[string]corev1.ConditionStatus) {
	if bad[kind] == status {
		l.warn("%s is %s: %s", kind, strings.ToLower(string(status)), because(reason, message))
	}
}

// related explains what the pods wait for, and adds the warnings of the events if there is any
// problem.
func (l Lines) related(r Related, now time.Time) Lines {
	l.waits(r.Pods, now)
	if l.Problems() {
		l.events(r.Events, now)
		l.log(r.Log, "")
	}
	return l
}

// waits groups pods by what they wait for, with one line per group.
func (l *Lines) waits(pods []*corev1.Pod, now time.Time) {
	waiting := map[string][]string{}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		var texts []string
		for _, line := range Pod(p, Beside{}, now) {
			if line.Problem {
				texts = append(texts, line.Text)
			}
		}
		if len(texts) > 0 {
			text := strings.Join(texts, "; ")
			waiting[text] = append(waiting[text], p.Name)
		}
	}
	texts := slices.SortedFunc(maps.Keys(waiting), func(a, b string) int { // the largest group first
		return cmp.Or(cmp.Compare(len(waiting[b]), len(waiting[a])), cmp.Compare(a, b))
	})
	for i, text := range texts {
		if i == mostNamed {
			l.warn("%s more wait for other reasons", counted(len(texts)-i, "group of pod"))
			break
		}
		l.warn("%s: %s", named("pod", waiting[text]), text)
	}
}

// named lists objects by name: "pod a", or "pods a, b and 3 more".
func named(kind string, names []string) string {
	slices.Sort(names)
	if len(names) == 1 {
		return kind + " " + names[0]
	}
	const most = 3
	if len(names) <= most {
		return kind + "s " + strings.Join(names, ", ")
	}
	return kind + "s " + strings.Join(names[:most], ", ") + " and " + counted(len(names)-most, "other")
}
