package resources

import (
	"context"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// prepareJob gives a job its own selector, unless its creator brings one: the
// labels carry the job's UID, so two jobs never share pods.
func prepareJob(_ context.Context, obj runtime.Object) {
	j := obj.(*batchv1.Job)
	j.Spec.Scheduling = nil
	own := !maps.Equal(j.Labels, j.Spec.Template.Labels)
	if ptr.Deref(j.Spec.ManualSelector, false) {
		return
	}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for key, value := range map[string]string{
		batchv1.ControllerUidLabel: string(j.UID), "controller-uid": string(j.UID),
		batchv1.JobNameLabel: j.Name, "job-name": j.Name,
	} {
		if _, ok := j.Spec.Template.Labels[key]; !ok {
			j.Spec.Template.Labels[key] = value
		}
	}
	if !own && j.Labels != nil { // it has them from the template, and so what is added there
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, ok := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !ok {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

// Jobs are not scheduled as a whole (upstream's WorkloadWithJob is off by default):
// what they ask for in that is dropped, as upstream does, so that nobody relies on it.
func dropScheduling(_ context.Context, obj, old runtime.Object) {
	if j := obj.(*batchv1.Job); old.(*batchv1.Job).Spec.Scheduling == nil {
		j.Spec.Scheduling = nil
	}
}

func dropTemplateScheduling(_ context.Context, obj runtime.Object) {
	obj.(*batchv1.CronJob).Spec.JobTemplate.Spec.Scheduling = nil
}
