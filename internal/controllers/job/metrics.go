package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/controllers/metrics"
	"carob/internal/core/workload/job"
)

func mode(j *batchv1.Job) string {
	if j.Spec.CompletionMode != nil {
		return string(*j.Spec.CompletionMode)
	}
	return string(batchv1.NonIndexedCompletion)
}

// synced counts one sync of a Job: what it did, and its result.
func synced(j *batchv1.Job, out *job.Output, began time.Time, err error) {
	action, result := "tracking", "success"
	switch {
	case len(out.Create) > 0:
		action = "pods_created"
	case len(out.Delete) > 0:
		action = "pods_deleted"
	}
	if err != nil {
		result = "error"
	}
	metrics.JobSyncSeconds.WithLabelValues(mode(j), result, action).Observe(time.Since(began).Seconds())
	metrics.JobSyncs.WithLabelValues(mode(j), result, action).Inc()
}

// created counts pods by the reason of their creation.
func created(in *job.Input, made, failed int) {
	j, ended, ending := in.Job, in.Job.Status.Failed, false
	if u := j.Status.UncountedTerminatedPods; u != nil {
		ended += int32(len(u.Failed)) //nolint:gosec // a number of pods
	}
	for _, p := range in.Pods {
		switch {
		case p.Status.Phase == corev1.PodFailed && job.Tracked(p):
			ended++
		case p.DeletionTimestamp != nil:
			ending = true
		}
	}
	reason := "new"
	switch {
	case j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed && ended > 0:
		reason = "recreate_failed"
	case ended > 0 || ending:
		reason = "recreate_terminating_or_failed"
	}
	if made > 0 {
		metrics.JobPodsCreated.WithLabelValues(reason, "succeeded").Add(float64(made))
	}
	if failed > 0 {
		metrics.JobPodsCreated.WithLabelValues(reason, "failed").Add(float64(failed))
	}
}

// counted counts the difference between a stored status and the one before it.
func counted(j *batchv1.Job, next *batchv1.JobStatus) {
	add := func(result string, n int32) {
		if n > 0 {
			metrics.JobPodsFinished.WithLabelValues(mode(j), result).Add(float64(n))
		}
	}
	succeeded := next.Succeeded - j.Status.Succeeded
	if mode(j) == string(batchv1.IndexedCompletion) && j.Spec.Completions != nil {
		all, limit := int(*j.Spec.Completions), "global"
		if j.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
		}
		indexes := func(status, before, after string) int32 {
			n := job.CountIndexes(after, all) - job.CountIndexes(before, all)
			if n > 0 {
				metrics.JobIndexesFinished.WithLabelValues(status, limit).Add(float64(n))
			}
			return int32(n) //nolint:gosec // at most all
		}
		succeeded = indexes("succeeded", j.Status.CompletedIndexes, next.CompletedIndexes)
		if next.FailedIndexes != nil {
			before := ""
			if j.Status.FailedIndexes != nil {
				before = *j.Status.FailedIndexes
			}
			indexes("failed", before, *next.FailedIndexes)
		}
	}
	add("succeeded", succeeded)
	add("failed", next.Failed-j.Status.Failed)
	if job.Finished(j) {
		return
	}
	for _, c := range next.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			metrics.JobsFinished.WithLabelValues(mode(j), "succeeded", c.Reason).Inc()
		case batchv1.JobFailed:
			metrics.JobsFinished.WithLabelValues(mode(j), "failed", c.Reason).Inc()
		default:
		}
	}
}

// tracked counts pods that ended with the finalizer, and those that lose it then.
func tracked(before, after *corev1.Pod) {
	ended := func(p *corev1.Pod) bool {
		return p != nil && job.Tracked(p) &&
			(p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded)
	}
	switch was, is := ended(before), ended(after); {
	case is && !was:
		metrics.TrackedPodsEnded.WithLabelValues("add").Inc()
	case was && !is:
		metrics.TrackedPodsEnded.WithLabelValues("delete").Inc()
	}
}
