package apps

import (
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

func apps(kind string) schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind(kind) }

// Kinds returns the kinds of apps, and replication controllers.
func Kinds() []*registry.Resource {
	return []*registry.Resource{deployments(), replicaSets(), statefulSets(), daemonSets(), controllerRevisions(),
		replicationControllers()}
}

func deployments() *registry.Resource {
	d := func(o runtime.Object) *appsv1.Deployment { return o.(*appsv1.Deployment) }
	return registry.Of[appsv1.Deployment, appsv1.DeploymentList](registry.Resource{
		Kind: apps("Deployment"), Plural: "deployments", ShortNames: []string{"deploy"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec {
			return &o.(*appsv1.Deployment).Spec.Template.Spec
		},
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) { d(obj).Labels = d(old).Labels },
		StatusResets:        []string{"spec", "metadata.labels"},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			if !equality.Semantic.DeepEqual(d(obj).Annotations, d(old).Annotations) {
				d(obj).Generation++
			}
		},
		Scale: &registry.Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(d(o).Spec.Replicas, 0), d(o).Status.Replicas, table.ScaleSelector(d(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { d(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: append(
				table.Columns([]table.Column{{Name: "Ready", Description: "Number of the pod with ready state"},
					{Name: "Up-to-date"}, {Name: "Available"}}, table.AgeColumn), table.WideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				o1 := d(o)
				names, images := table.Containers(o1.Spec.Template.Spec.Containers)
				return []any{o1.Name, fmt.Sprintf("%d/%d", o1.Status.ReadyReplicas, ptr.Deref(o1.Spec.Replicas, 0)),
					int64(o1.Status.UpdatedReplicas),
					int64(o1.Status.AvailableReplicas), table.Age(o1.CreationTimestamp, now), names, images,
					table.Selector(o1.Spec.Selector)}
			}},
	})
}

func replicaSets() *registry.Resource {
	rs := func(o runtime.Object) *appsv1.ReplicaSet { return o.(*appsv1.ReplicaSet) }
	return registry.Of[appsv1.ReplicaSet, appsv1.ReplicaSetList](registry.Resource{
		Kind: apps("ReplicaSet"), Plural: "replicasets", ShortNames: []string{"rs"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*appsv1.ReplicaSet).Spec.Template.Spec },
		Fields: map[string]func(runtime.Object) string{
			"status.replicas": func(o runtime.Object) string { return strconv.Itoa(int(rs(o).Status.Replicas)) }},
		Scale: &registry.Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(rs(o).Spec.Replicas, 0), rs(o).Status.Replicas,
					table.ScaleSelector(rs(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { rs(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: append(table.Columns([]table.Column{{Name: "Desired", Type: "integer"},
				{Name: "Current", Type: "integer"}, {Name: "Ready", Type: "integer"}}, table.AgeColumn),
				table.WideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				r := rs(o)
				names, images := table.Containers(r.Spec.Template.Spec.Containers)
				return []any{r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas),
					int64(r.Status.ReadyReplicas),
					table.Age(r.CreationTimestamp, now), names, images, table.Selector(r.Spec.Selector)}
			}},
	})
}

func statefulSets() *registry.Resource {
	s := func(o runtime.Object) *appsv1.StatefulSet { return o.(*appsv1.StatefulSet) }
	return registry.Of[appsv1.StatefulSet, appsv1.StatefulSetList](registry.Resource{
		Kind: apps("StatefulSet"), Plural: "statefulsets", ShortNames: []string{"sts"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec { return &o.(*appsv1.StatefulSet).Spec.Template.Spec },
		Scale: &registry.Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(s(o).Spec.Replicas, 0), s(o).Status.Replicas, table.ScaleSelector(s(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { s(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: append(table.Columns([]table.Column{{Name: "Ready"}}, table.AgeColumn),
				table.WideTemplateColumns[:2]...),
			Row: func(o runtime.Object, now time.Time) []any {
				names, images := table.Containers(s(o).Spec.Template.Spec.Containers)
				return []any{s(o).Name,
					fmt.Sprintf("%d/%d", s(o).Status.ReadyReplicas, ptr.Deref(s(o).Spec.Replicas, 0)),
					table.Age(s(o).CreationTimestamp, now), names, images}
			}},
	})
}

// templateGeneration returns the number of changes of d's template, from the annotation that
// replaced a field; 0 if it is not a number.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// setTemplateGeneration copies the annotations: other objects may share them.
func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	annotations := map[string]string{appsv1.DeprecatedTemplateGeneration: strconv.FormatInt(n, 10)}
	for key, value := range d.Annotations {
		if key != appsv1.DeprecatedTemplateGeneration {
			annotations[key] = value
		}
	}
	d.Annotations = annotations
}

func daemonSets() *registry.Resource {
	return registry.Of[appsv1.DaemonSet, appsv1.DaemonSetList](registry.Resource{
		Kind: apps("DaemonSet"), Plural: "daemonsets", ShortNames: []string{"ds"}, Categories: []string{"all"},
		Status: true, StatusMetadata: true,
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
			Columns: append(table.Columns([]table.Column{{Name: "Desired", Type: "integer"},
				{Name: "Current", Type: "integer"}, {Name: "Ready", Type: "integer"},
				{Name: "Up-to-date", Type: "integer"}, {Name: "Available", Type: "integer"}, {Name: "Node Selector"}},
				table.AgeColumn), table.WideTemplateColumns...),
			Row: func(o runtime.Object, now time.Time) []any {
				d := o.(*appsv1.DaemonSet)
				names, images := table.Containers(d.Spec.Template.Spec.Containers)
				st := d.Status
				return []any{d.Name, int64(st.DesiredNumberScheduled), int64(st.CurrentNumberScheduled),
					int64(st.NumberReady), int64(st.UpdatedNumberScheduled),
					int64(st.NumberAvailable), table.LabelMap(d.Spec.Template.Spec.NodeSelector),
					table.Age(d.CreationTimestamp, now), names, images, table.Selector(d.Spec.Selector)}
			}},
	})
}

func controllerRevisions() *registry.Resource {
	return registry.Of[appsv1.ControllerRevision, appsv1.ControllerRevisionList](registry.Resource{
		Kind: apps("ControllerRevision"), Plural: "controllerrevisions", NoGeneration: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Controller"},
			{Name: "Revision", Type: "integer"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				r := o.(*appsv1.ControllerRevision)
				owner := table.None
				if c := metav1.GetControllerOf(r); c != nil {
					gv, err := schema.ParseGroupVersion(c.APIVersion)
					if err == nil {
						owner = schema.GroupResource{Group: gv.Group, Resource: table.Lower(c.Kind)}.String() + "/" +
							c.Name
					}
				}
				return []any{r.Name, owner, r.Revision, table.Age(r.CreationTimestamp, now)}
			}},
	})
}
