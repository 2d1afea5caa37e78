package batch

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

func jobRow(o runtime.Object, now time.Time) []any {
	j := o.(*batchv1.Job)
	completions := fmt.Sprintf("%d/1", j.Status.Succeeded)
	if j.Spec.Completions != nil {
		completions = fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	} else if p := ptr.Deref(j.Spec.Parallelism, 0); p > 1 {
		completions = fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, p)
	}
	took := ""
	if j.Status.StartTime != nil {
		end := now
		if j.Status.CompletionTime != nil {
			end = j.Status.CompletionTime.Time
		}
		took = duration.HumanDuration(end.Sub(j.Status.StartTime.Time))
	}
	names, images := table.Containers(j.Spec.Template.Spec.Containers)
	return []any{j.Name, jobStatus(j), completions, took, table.Age(j.CreationTimestamp, now), names, images,
		table.Selector(j.Spec.Selector)}
}

func jobStatus(j *batchv1.Job) string {
	has := func(t batchv1.JobConditionType) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == t && c.Status == "True" {
				return true
			}
		}
		return false
	}
	switch {
	case has(batchv1.JobComplete):
		return "Complete"
	case has(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case has(batchv1.JobSuspended):
		return "Suspended"
	case has(batchv1.JobFailureTarget):
		return "FailureTarget"
	case has(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func jobs() *registry.Resource {
	return registry.Of[batchv1.Job, batchv1.JobList](registry.Resource{
		Kind: batch("Job"), Plural: "jobs", Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*batchv1.Job).Spec.Template.Spec },
		Fields: map[string]func(runtime.Object) string{
			"status.successful": func(o runtime.Object) string {
				return strconv.Itoa(int(o.(*batchv1.Job).Status.Succeeded))
			}},
		Dependents:    rest.OrphanDependents,
		Main:          func(s *registry.Store) rest.Storage { return jobStorage{s} },
		PrepareCreate: prepareJob,
		PrepareUpdate: dropScheduling,
		Table: table.Kind{
			Columns: append(table.Columns([]table.Column{{Name: "Status"}, {Name: "Completions"}, {Name: "Duration"}},
				table.AgeColumn), table.WideTemplateColumns...),
			Row: jobRow},
	})
}

// prepareJob gives a job its own selector unless its creator sets one: the labels contain the job's
// UID, so two jobs never share pods.
func prepareJob(_ context.Context, obj runtime.Object) {
	j := obj.(*batchv1.Job)
	j.Spec.Scheduling = nil
	defaulted := reflect.ValueOf(j.Labels).UnsafePointer() == reflect.ValueOf(j.Spec.Template.Labels).UnsafePointer()
	if ptr.Deref(j.Spec.ManualSelector, false) {
		return
	}
	labels := maps.Clone(j.Spec.Template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for key, value := range map[string]string{
		batchv1.ControllerUidLabel: string(j.UID), "controller-uid": string(j.UID),
		batchv1.JobNameLabel: j.Name, "job-name": j.Name,
	} {
		if _, ok := labels[key]; !ok {
			labels[key] = value
		}
	}
	if j.Spec.Template.Labels = labels; defaulted && j.Labels != nil {
		j.Labels = maps.Clone(labels)
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

// Gang scheduling of jobs (upstream's WorkloadWithJob) is off by default: its fields are dropped,
// as upstream does, so that no client relies on them.
func dropScheduling(_ context.Context, obj, old runtime.Object) {
	if j := obj.(*batchv1.Job); old.(*batchv1.Job).Spec.Scheduling == nil {
		j.Spec.Scheduling = nil
	}
}

func dropTemplateScheduling(_ context.Context, obj runtime.Object) {
	obj.(*batchv1.CronJob).Spec.JobTemplate.Spec.Scheduling = nil
}

// jobStorage warns clients that delete a job without a propagation policy that its pods are
// preserved.
type jobStorage struct{ *registry.Store }

const jobPodsStay = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"

func warnOfPods(ctx context.Context, opts *metav1.DeleteOptions) {
	//nolint:staticcheck // Old clients send OrphanDependents.
	if opts != nil && opts.PropagationPolicy == nil && opts.OrphanDependents == nil {
		warning.AddWarning(ctx, "", jobPodsStay)
	}
}

// Delete implements rest.GracefulDeleter.
func (s jobStorage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	warnOfPods(ctx, opts)
	return s.Store.Delete(ctx, name, validate, opts)
}

// DeleteCollection implements rest.CollectionDeleter.
func (s jobStorage) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions,
	list *internalversion.ListOptions) (runtime.Object, error) {
	warnOfPods(ctx, opts)
	return s.Store.DeleteCollection(ctx, validate, opts, list)
}
