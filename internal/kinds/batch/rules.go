package batch

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(batchv1.GroupName, "Job"): func() rules.Rules {
		r := rules.WithStatus(rules.Of(nil, validateJob, validateJobUpdate), validateJobStatusUpdate)
		r.Warnings = func(_ context.Context, obj, old runtime.Object) []string {
			if rules.SameGeneration(obj, old) {
				return nil
			}
			return jobSpecWarnings(&obj.(*batchv1.Job).Spec, rules.SpecPath)
		}
		return pods.WithWorkloadWarnings(r, func(j *batchv1.Job) *corev1.PodTemplateSpec { return &j.Spec.Template })
	},
	rules.Kind(batchv1.GroupName, "CronJob"): func() rules.Rules {
		r := rules.Of(nil, validateCronJob, validateCronJobUpdate)
		r.Warnings = cronJobWarnings
		return pods.WithWorkloadWarnings(r, func(*batchv1.CronJob) *corev1.PodTemplateSpec { return nil })
	},
}
