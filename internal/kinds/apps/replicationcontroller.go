package apps

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

func replicationControllers() *registry.Resource {
	rc := func(o runtime.Object) *corev1.ReplicationController { return o.(*corev1.ReplicationController) }
	return registry.Of[corev1.ReplicationController, corev1.ReplicationControllerList](registry.Resource{
		Kind: registry.CoreKind("ReplicationController"), Plural: "replicationcontrollers", ShortNames: []string{"rc"},
		Categories: []string{"all"}, Status: true, StatusMetadata: true,
		Template: func(o runtime.Object) *corev1.PodSpec {
			if t := o.(*corev1.ReplicationController).Spec.Template; t != nil {
				return &t.Spec
			}
			return nil
		},
		Dependents: rest.OrphanDependents,
		Fields: map[string]func(runtime.Object) string{
			"status.replicas": func(o runtime.Object) string { return strconv.Itoa(int(rc(o).Status.Replicas)) }},
		Scale: &registry.Scale{
			Get: func(o runtime.Object) (int32, int32, string) {
				return ptr.Deref(rc(o).Spec.Replicas, 0), rc(o).Status.Replicas,
					table.LabelMapSelector(rc(o).Spec.Selector)
			},
			Set: func(o runtime.Object, n int32) { rc(o).Spec.Replicas = &n },
		},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Desired", Type: "integer"},
				{Name: "Current", Type: "integer"}, {Name: "Ready", Type: "integer"}, table.AgeColumn,
				{Name: "Containers", Wide: true}, {Name: "Images", Wide: true}, {Name: "Selector", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				r := rc(o)
				var names, images string
				if r.Spec.Template != nil {
					names, images = table.Containers(r.Spec.Template.Spec.Containers)
				}
				return []any{r.Name, int64(ptr.Deref(r.Spec.Replicas, 0)), int64(r.Status.Replicas),
					int64(r.Status.ReadyReplicas), table.Age(r.CreationTimestamp, now),
					names, images, table.LabelMap(r.Spec.Selector)}
			}},
	})
}
