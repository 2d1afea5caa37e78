package batch

import (
	batchv1 "k8s.io/api/batch/v1"

	"carob/internal/kinds/defaulting"
)

func defaultCronJob(c *batchv1.CronJob) {
	defaulting.OrDefault(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	defaulting.OrNew(&c.Spec.Suspend, false)
	defaulting.OrNew(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	defaulting.OrNew(&c.Spec.FailedJobsHistoryLimit, 1)
	defaultJobTemplateSpec(&c.Spec.JobTemplate.Spec)
}
