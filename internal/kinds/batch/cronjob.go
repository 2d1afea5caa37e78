package batch

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

func cronJobs() *registry.Resource {
	return registry.Of[batchv1.CronJob, batchv1.CronJobList](registry.Resource{
		Kind: batch("CronJob"), Plural: "cronjobs", ShortNames: []string{"cj"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec {
			return &o.(*batchv1.CronJob).Spec.JobTemplate.Spec.Template.Spec
		},
		PrepareCreate: dropTemplateScheduling,
		PrepareUpdate: func(ctx context.Context, obj, _ runtime.Object) { dropTemplateScheduling(ctx, obj) },
		Table: table.Kind{
			Columns: append(table.Columns([]table.Column{{Name: "Schedule"}, {Name: "Timezone"},
				{Name: "Suspend", Type: "boolean"}, {Name: "Active", Type: "integer"},
				{Name: "Last Schedule"}}, table.AgeColumn), table.WideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*batchv1.CronJob)
				names, images := table.Containers(c.Spec.JobTemplate.Spec.Template.Spec.Containers)
				suspend := table.Unset
				if c.Spec.Suspend != nil {
					suspend = "False"
					if *c.Spec.Suspend {
						suspend = "True"
					}
				}
				return []any{c.Name, c.Spec.Schedule, ptr.Deref(c.Spec.TimeZone, table.None),
					suspend, int64(len(c.Status.Active)),
					table.PointerAge(c.Status.LastScheduleTime, now), table.Age(c.CreationTimestamp, now), names,
					images, table.Selector(c.Spec.JobTemplate.Spec.Selector)}
			}},
	})
}
