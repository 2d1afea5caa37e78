package defaults

import (
	"maps"
	"math"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	revisionHistory  int32 = 10
	progressDeadline int32 = 600
	jobBackoffLimit  int32 = 6
)

func deployment(d *appsv1.Deployment) {
	orNew(&d.Spec.Replicas, 1)
	orDefault(&d.Spec.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if d.Spec.Strategy.RollingUpdate == nil {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		orNew(&d.Spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		orNew(&d.Spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	orNew(&d.Spec.RevisionHistoryLimit, revisionHistory)
	orNew(&d.Spec.ProgressDeadlineSeconds, progressDeadline)
	podTemplate(&d.Spec.Template)
}

func replicaSet(r *appsv1.ReplicaSet) {
	orNew(&r.Spec.Replicas, 1)
	podTemplate(&r.Spec.Template)
}

// StatefulSet fills in what a StatefulSet leaves out; its controller does so to compare revisions of older releases.
func StatefulSet(s *appsv1.StatefulSet) {
	orDefault(&s.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if s.Spec.UpdateStrategy.Type == "" {
		s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		orNew(&s.Spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if s.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && s.Spec.UpdateStrategy.RollingUpdate != nil {
		orNew(&s.Spec.UpdateStrategy.RollingUpdate.Partition, 0)
		orNew(&s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	if s.Spec.PersistentVolumeClaimRetentionPolicy == nil {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	}
	orDefault(&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	orDefault(&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	orNew(&s.Spec.Replicas, 1)
	orNew(&s.Spec.RevisionHistoryLimit, revisionHistory)
	podTemplate(&s.Spec.Template)
	for i := range s.Spec.VolumeClaimTemplates {
		c := &s.Spec.VolumeClaimTemplates[i]
		c.APIVersion, c.Kind = "v1", "PersistentVolumeClaim" // whatever else it says
		persistentVolumeClaim(c)
	}
}

func daemonSet(d *appsv1.DaemonSet) {
	orDefault(&d.Spec.UpdateStrategy.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if d.Spec.UpdateStrategy.RollingUpdate == nil {
			d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
		}
		orNew(&d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		orNew(&d.Spec.UpdateStrategy.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	orNew(&d.Spec.RevisionHistoryLimit, revisionHistory)
	podTemplate(&d.Spec.Template)
}

// replicationController borrows labels and selector from the template, a convenience only this oldest kind has.
func replicationController(r *corev1.ReplicationController) {
	orNew(&r.Spec.Replicas, 1)
	if r.Spec.Template == nil {
		return
	}
	podTemplate(r.Spec.Template)
	if len(r.Spec.Template.Labels) == 0 {
		return
	}
	if len(r.Spec.Selector) == 0 {
		r.Spec.Selector = maps.Clone(r.Spec.Template.Labels)
	}
	if len(r.Labels) == 0 {
		r.Labels = maps.Clone(r.Spec.Template.Labels)
	}
}

func job(j *batchv1.Job) {
	s := &j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		orNew(&s.Completions, 1)
	}
	orNew(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		orNew(&s.BackoffLimit, int32(math.MaxInt32))
	}
	orNew(&s.BackoffLimit, jobBackoffLimit)
	orNew(&s.CompletionMode, batchv1.NonIndexedCompletion)
	orNew(&s.ManualSelector, false)
	orNew(&s.Suspend, false)
	replacement := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replacement = batchv1.Failed
	}
	orNew(&s.PodReplacementPolicy, replacement)
	orNew(&s.ManualSelector, false)
	if len(j.Labels) == 0 && len(s.Template.Labels) > 0 {
		j.Labels = maps.Clone(s.Template.Labels)
	}
	jobTemplateSpec(s)
}

// jobTemplateSpec is the part of a job's defaulting that also applies inside a cron job's template.
func jobTemplateSpec(s *batchv1.JobSpec) {
	podTemplate(&s.Template)
	if s.PodFailurePolicy == nil {
		return
	}
	for i := range s.PodFailurePolicy.Rules {
		for j := range s.PodFailurePolicy.Rules[i].OnPodConditions {
			orDefault(&s.PodFailurePolicy.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
		}
	}
}

func cronJob(c *batchv1.CronJob) {
	orDefault(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	orNew(&c.Spec.Suspend, false)
	orNew(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	orNew(&c.Spec.FailedJobsHistoryLimit, 1)
	jobTemplateSpec(&c.Spec.JobTemplate.Spec)
}
