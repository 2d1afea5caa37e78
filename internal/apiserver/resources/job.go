package resources

import (
	"context"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
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

// jobStorage tells who deletes a job without a policy what becomes of its pods.
type jobStorage struct{ *Store }

const jobPodsStay = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

func warnOfPods(ctx context.Context, opts *metav1.DeleteOptions) {
	//nolint:staticcheck // Old clients send OrphanDependents.
	if opts != nil && opts.PropagationPolicy == nil && opts.OrphanDependents == nil {
		warning.AddWarning(ctx, "", jobPodsStay)
	}
}

// Delete implements rest.GracefulDeleter.
func (s jobStorage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	warnOfPods(ctx, opts)
	return s.Store.Delete(ctx, name, validate, opts)
}

// DeleteCollection implements rest.CollectionDeleter.
func (s jobStorage) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions, list *internalversion.ListOptions) (runtime.Object, error) {
	warnOfPods(ctx, opts)
	return s.Store.DeleteCollection(ctx, validate, opts, list)
}
