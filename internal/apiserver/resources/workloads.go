package resources

import (
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"carob/internal/apiserver/table"
)

func apps(kind string) schema.GroupVersionKind  { return appsv1.SchemeGroupVersion.WithKind(kind) }
func batch(kind string) schema.GroupVersionKind { return batchv1.SchemeGroupVersion.WithKind(kind) }

var wideTemplateColumns = []table.Column{
	{Name: "Containers", Wide: true, Description: "Names of each container in the template."},
	{Name: "Images", Wide: true, Description: "Images referenced by each container in the template."},
	{Name: "Selector", Wide: true, Description: "The label selector of the pods."},
}

// Apps returns the kinds of apps, and replication controllers.
func Apps() []*Resource {
	return []*Resource{deployments(), replicaSets(), statefulSets(), daemonSets(), controllerRevisions(), replicationControllers()}
}

// Batch returns the kinds of batch.
func Batch() []*Resource { return []*Resource{jobs(), cronJobs()} }

func columns(own []table.Column, rest ...table.Column) []table.Column {
	return append(append([]table.Column{table.NameColumn}, own...), rest...)
}

func labelMapSelector(m map[string]string) string { return labels.SelectorFromSet(m).String() }

// scaleSelector prints a label selector for a Scale's status.
func scaleSelector(s *metav1.LabelSelector) string {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return ""
	}
	return sel.String()
}

func deployments() *Resource {
	d := func(o runtime.Object) *appsv1.Deployment { return o.(*appsv1.Deployment) }
	return Of[appsv1.Deployment, appsv1.DeploymentList](Resource{
		Kind: apps("Deployment"), Plural: "deployments", ShortNames: []string{"deploy"}, Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template:            func(o runtime.Object) *corev1.PodSpec { return &o.(*appsv1.Deployment).Spec.Template.Spec },
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) { d(obj).Labels = d(old).Labels },
		StatusResets:        []string{"spec", "metadata.labels"},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			if !equality.Semantic.DeepEqual(d(obj).Annotations, d(old).Annotations) {
				d(obj).Generation++
			}
		},
		Scale: &Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(d(o).Spec.Replicas, 0), d(o).Status.Replicas, scaleSelector(d(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { d(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: append(columns([]table.Column{{Name: "Ready", Description: "Number of the pod with ready state"}, {Name: "Up-to-date"}, {Name: "Available"}}, table.AgeColumn), wideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				o1 := d(o)
				names, images := containers(o1.Spec.Template.Spec.Containers)
				return []any{o1.Name, fmt.Sprintf("%d/%d", o1.Status.ReadyReplicas, ptr.Deref(o1.Spec.Replicas, 0)), int64(o1.Status.UpdatedReplicas),
					int64(o1.Status.AvailableReplicas), table.Age(o1.CreationTimestamp, now), names, images, selector(o1.Spec.Selector)}
			}},
	})
}

func replicaSets() *Resource {
	rs := func(o runtime.Object) *appsv1.ReplicaSet { return o.(*appsv1.ReplicaSet) }
	return Of[appsv1.ReplicaSet, appsv1.ReplicaSetList](Resource{
		Kind: apps("ReplicaSet"), Plural: "replicasets", ShortNames: []string{"rs"}, Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*appsv1.ReplicaSet).Spec.Template.Spec },
		Fields:   map[string]func(runtime.Object) string{"status.replicas": func(o runtime.Object) string { return strconv.Itoa(int(rs(o).Status.Replicas)) }},
		Scale: &Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(rs(o).Spec.Replicas, 0), rs(o).Status.Replicas, scaleSelector(rs(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { rs(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: append(columns([]table.Column{{Name: "Desired", Type: "integer"}, {Name: "Current", Type: "integer"}, {Name: "Ready", Type: "integer"}}, table.AgeColumn), wideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				r := rs(o)
				names, images := containers(r.Spec.Template.Spec.Containers)
				return []any{r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
					table.Age(r.CreationTimestamp, now), names, images, selector(r.Spec.Selector)}
			}},
	})
}

func statefulSets() *Resource {
	s := func(o runtime.Object) *appsv1.StatefulSet { return o.(*appsv1.StatefulSet) }
	return Of[appsv1.StatefulSet, appsv1.StatefulSetList](Resource{
		Kind: apps("StatefulSet"), Plural: "statefulsets", ShortNames: []string{"sts"}, Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*appsv1.StatefulSet).Spec.Template.Spec },
		Scale: &Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(s(o).Spec.Replicas, 0), s(o).Status.Replicas, scaleSelector(s(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { s(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: append(columns([]table.Column{{Name: "Ready"}}, table.AgeColumn), wideTemplateColumns[:2]...),
			Row: func(o runtime.Object, now time.Time) []any {
				names, images := containers(s(o).Spec.Template.Spec.Containers)
				return []any{s(o).Name, fmt.Sprintf("%d/%d", s(o).Status.ReadyReplicas, ptr.Deref(s(o).Spec.Replicas, 0)), table.Age(s(o).CreationTimestamp, now), names, images}
			}},
	})
}

// templateGeneration returns how often the template of d was changed, as the annotation says that has taken the place of a
// field; 0 if there is no number.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// setTemplateGeneration leaves the annotations as they are for others that share them.
func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	annotations := map[string]string{appsv1.DeprecatedTemplateGeneration: strconv.FormatInt(n, 10)}
	for key, value := range d.Annotations {
		if key != appsv1.DeprecatedTemplateGeneration {
			annotations[key] = value
		}
	}
	d.Annotations = annotations
}

func daemonSets() *Resource {
	return Of[appsv1.DaemonSet, appsv1.DaemonSetList](Resource{
		Kind: apps("DaemonSet"), Plural: "daemonsets", ShortNames: []string{"ds"}, Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*appsv1.DaemonSet).Spec.Template.Spec },
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			d := obj.(*appsv1.DaemonSet)
			setTemplateGeneration(d, max(1, templateGeneration(d)))
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			d, o := obj.(*appsv1.DaemonSet), old.(*appsv1.DaemonSet)
			n := templateGeneration(o)
			if !equality.Semantic.DeepEqual(d.Spec.Template, o.Spec.Template) {
				n++
			}
			setTemplateGeneration(d, n)
		},
		Table: table.Kind{
			Columns: append(columns([]table.Column{{Name: "Desired", Type: "integer"}, {Name: "Current", Type: "integer"}, {Name: "Ready", Type: "integer"},
				{Name: "Up-to-date", Type: "integer"}, {Name: "Available", Type: "integer"}, {Name: "Node Selector"}}, table.AgeColumn), wideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				d := o.(*appsv1.DaemonSet)
				names, images := containers(d.Spec.Template.Spec.Containers)
				st := d.Status
				return []any{d.Name, int64(st.DesiredNumberScheduled), int64(st.CurrentNumberScheduled), int64(st.NumberReady), int64(st.UpdatedNumberScheduled),
					int64(st.NumberAvailable), labelMap(d.Spec.Template.Spec.NodeSelector), table.Age(d.CreationTimestamp, now), names, images, selector(d.Spec.Selector)}
			}},
	})
}

func controllerRevisions() *Resource {
	return Of[appsv1.ControllerRevision, appsv1.ControllerRevisionList](Resource{
		Kind: apps("ControllerRevision"), Plural: "controllerrevisions", NoGeneration: true,
		Table: table.Kind{Columns: columns([]table.Column{{Name: "Controller"}, {Name: "Revision", Type: "integer"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				r := o.(*appsv1.ControllerRevision)
				owner := none
				if c := metav1.GetControllerOf(r); c != nil {
					gv, err := schema.ParseGroupVersion(c.APIVersion)
					if err == nil {
						owner = schema.GroupResource{Group: gv.Group, Resource: lower(c.Kind)}.String() + "/" + c.Name
					}
				}
				return []any{r.Name, owner, r.Revision, table.Age(r.CreationTimestamp, now)}
			}},
	})
}

func jobs() *Resource {
	return Of[batchv1.Job, batchv1.JobList](Resource{
		Kind: batch("Job"), Plural: "jobs", Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template:      func(o runtime.Object) *corev1.PodSpec { return &o.(*batchv1.Job).Spec.Template.Spec },
		Fields:        map[string]func(runtime.Object) string{"status.successful": func(o runtime.Object) string { return strconv.Itoa(int(o.(*batchv1.Job).Status.Succeeded)) }},
		Dependents:    rest.OrphanDependents,
		Main:          func(s *Store) rest.Storage { return jobStorage{s} },
		PrepareCreate: prepareJob,
		PrepareUpdate: dropScheduling,
		Table: table.Kind{
			Columns: append(columns([]table.Column{{Name: "Status"}, {Name: "Completions"}, {Name: "Duration"}}, table.AgeColumn), wideTemplateColumns...),
			Row:     jobRow},
	})
}

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
	names, images := containers(j.Spec.Template.Spec.Containers)
	return []any{j.Name, jobStatus(j), completions, took, table.Age(j.CreationTimestamp, now), names, images, selector(j.Spec.Selector)}
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

func cronJobs() *Resource {
	return Of[batchv1.CronJob, batchv1.CronJobList](Resource{
		Kind: batch("CronJob"), Plural: "cronjobs", ShortNames: []string{"cj"}, Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec {
			return &o.(*batchv1.CronJob).Spec.JobTemplate.Spec.Template.Spec
		},
		PrepareCreate: dropTemplateScheduling,
		PrepareUpdate: func(ctx context.Context, obj, _ runtime.Object) { dropTemplateScheduling(ctx, obj) },
		Table: table.Kind{
			Columns: append(columns([]table.Column{{Name: "Schedule"}, {Name: "Timezone"}, {Name: "Suspend", Type: "boolean"}, {Name: "Active", Type: "integer"},
				{Name: "Last Schedule"}}, table.AgeColumn), wideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*batchv1.CronJob)
				names, images := containers(c.Spec.JobTemplate.Spec.Template.Spec.Containers)
				return []any{c.Name, c.Spec.Schedule, ptr.Deref(c.Spec.TimeZone, none), ptr.Deref(c.Spec.Suspend, false), int64(len(c.Status.Active)),
					age(c.Status.LastScheduleTime, now), table.Age(c.CreationTimestamp, now), names, images, selector(c.Spec.JobTemplate.Spec.Selector)}
			}},
	})
}
