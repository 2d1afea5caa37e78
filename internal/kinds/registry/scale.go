package registry

import (
	"context"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"carob/internal/kinds/table"
)

// Scale gives access to the replica counts of a workload.
type Scale struct {
	// Get returns desired and observed replicas, and the pods' label selector as a string.
	Get func(obj runtime.Object) (spec, status int32, selector string)
	// Set writes the desired replicas into obj.
	Set func(obj runtime.Object, replicas int32)
}

// scaleStorage serves autoscaling/v1 Scale as a view of a workload.
type scaleStorage struct {
	store *Store
	scale *Scale
}

// replicasPath is the field of the desired replicas in a workload and in its Scale.
var replicasPath = fieldpath.MakePathOrDie("spec", "replicas")

var (
	_ rest.Patcher                  = (*scaleStorage)(nil)
	_ rest.GroupVersionKindProvider = (*scaleStorage)(nil)
	_ rest.TableConvertor           = (*scaleStorage)(nil)
)

// scaleTable is what kubectl get --subresource=scale prints.
var scaleTable = table.NewConvertor(table.Kind{
	Columns: []table.Column{table.NameColumn,
		{Name: "Desired", Type: "integer", Description: "Number of pods that are wanted"},
		{Name: "Available", Type: "integer", Description: "Number of pods that exist"}, table.AgeColumn},
	Row: func(obj runtime.Object, now time.Time) []any {
		s := obj.(*autoscalingv1.Scale)
		return []any{s.Name, int64(s.Spec.Replicas), int64(s.Status.Replicas), table.Age(s.CreationTimestamp, now)}
	},
})

// ConvertToTable implements rest.TableConvertor.
func (s *scaleStorage) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return scaleTable.ConvertToTable(ctx, obj, options)
}

func (s *scaleStorage) New() runtime.Object { return &autoscalingv1.Scale{} }

func (s *scaleStorage) Destroy() {}

func (s *scaleStorage) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

func (s *scaleStorage) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.store.Get(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return s.view(obj), nil
}

func (s *scaleStorage) view(obj runtime.Object) *autoscalingv1.Scale {
	m := objectMeta(obj)
	spec, status, selector := s.scale.Get(obj)
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
			ResourceVersion:   m.GetResourceVersion(),
			CreationTimestamp: m.GetCreationTimestamp()},
		Spec:   autoscalingv1.ScaleSpec{Replicas: spec},
		Status: autoscalingv1.ScaleStatus{Replicas: status, Selector: selector},
	}
}

func (s *scaleStorage) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc,
	_ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	transform := func(ctx context.Context, _, old runtime.Object) (runtime.Object, error) {
		before, of := s.view(old), objectMeta(old)
		// The client that scales becomes the owner of the workload's replicas in server-side apply.
		gv := s.store.Resource.Kind.GroupVersion()
		owners := managedfields.NewScaleHandler(of.GetManagedFields(), gv,
			managedfields.ResourcePathMappings{gv.String(): replicasPath})
		var err error
		if before.ManagedFields, err = owners.ToSubresource(); err != nil {
			return nil, fmt.Errorf("see who owns the replicas of %s: %w", name, err)
		}
		changed, err := info.UpdatedObject(ctx, before)
		if err != nil {
			return nil, err
		}
		scale, ok := changed.(*autoscalingv1.Scale)
		if !ok {
			return nil, apierrors.NewBadRequest("expected a Scale object")
		}
		if scale.Spec.Replicas < 0 {
			return nil, apierrors.NewInvalid(s.GroupVersionKind(schema.GroupVersion{}).GroupKind(), name,
				invalidReplicas(scale.Spec.Replicas))
		}
		if update != nil {
			if err := update(ctx, scale, before); err != nil {
				return nil, err
			}
		}
		if scale.UID != "" && scale.UID != of.GetUID() {
			return nil, apierrors.NewConflict(s.store.Resource.GroupResource(), name,
				fmt.Errorf("UID in precondition: %s, UID in object meta: %s", scale.UID, of.GetUID()))
		}
		managed, err := owners.ToParent(scale.ManagedFields)
		if err != nil {
			return nil, fmt.Errorf("record who owns the replicas of %s: %w", name, err)
		}
		obj := old.DeepCopyObject()
		s.scale.Set(obj, scale.Spec.Replicas)
		objectMeta(obj).SetManagedFields(managed)
		if scale.ResourceVersion != "" {
			objectMeta(obj).SetResourceVersion(scale.ResourceVersion)
		}
		return obj, nil
	}
	// Validation of the Scale has run in transform, and admission of the workload before, so only
	// the workload's strategy runs again.
	obj, _, err := s.store.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, transform), create, nil, false, opts)
	if err != nil {
		return nil, false, err
	}
	return s.view(obj), false, nil
}

func invalidReplicas(n int32) field.ErrorList {
	return validation.ValidateNonnegativeField(int64(n), field.NewPath("spec", "replicas"))
}
