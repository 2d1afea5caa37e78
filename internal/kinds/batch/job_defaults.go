package batch

import (
	"math"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"carob/internal/kinds/defaulting"
	"carob/internal/kinds/pods"
)

const backoffLimit int32 = 6

func defaultJob(j *batchv1.Job) {
	s := &j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		defaulting.OrNew(&s.Completions, 1)
	}
	defaulting.OrNew(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		defaulting.OrNew(&s.BackoffLimit, int32(math.MaxInt32))
	}
	defaulting.OrNew(&s.BackoffLimit, backoffLimit)
	defaulting.OrNew(&s.CompletionMode, batchv1.NonIndexedCompletion)
	defaulting.OrNew(&s.ManualSelector, false)
	defaulting.OrNew(&s.Suspend, false)
	replacement := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replacement = batchv1.Failed
	}
	defaulting.OrNew(&s.PodReplacementPolicy, replacement)
	defaulting.OrNew(&s.ManualSelector, false)
	if len(j.Labels) == 0 && len(s.Template.Labels) > 0 {
		j.Labels = s.Template.Labels // the same map: prepareJob adds labels to both, as upstream does
	}
	defaultJobTemplateSpec(s)
}

// defaultJobTemplateSpec is the part of a job's defaulting that also applies to a cron job's
// template.
func defaultJobTemplateSpec(s *batchv1.JobSpec) {
	pods.DefaultPodTemplate(&s.Template)
	if s.PodFailurePolicy == nil {
		return
	}
	for i := range s.PodFailurePolicy.Rules {
		for j := range s.PodFailurePolicy.Rules[i].OnPodConditions {
			defaulting.OrDefault(&s.PodFailurePolicy.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
		}
	}
}
