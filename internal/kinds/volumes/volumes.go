package volumes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns persistent volumes and their claims.
func Kinds() []*registry.Resource {
	return []*registry.Resource{persistentVolumes(), persistentVolumeClaims()}
}

func persistentVolumes() *registry.Resource {
	return registry.Of[corev1.PersistentVolume, corev1.PersistentVolumeList](registry.Resource{
		Kind: registry.CoreKind("PersistentVolume"), ReturnDeleted: true, Plural: "persistentvolumes",
		ShortNames: []string{"pv"}, Cluster: true, Status: true, StatusMetadata: true, NoGeneration: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			obj.(*corev1.PersistentVolume).Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending,
				LastPhaseTransitionTime: new(metav1.Now())}
		},
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			s, before := &obj.(*corev1.PersistentVolume).Status, old.(*corev1.PersistentVolume).Status
			switch at := s.LastPhaseTransitionTime; {
			case s.Phase == before.Phase && at == nil:
				s.LastPhaseTransitionTime = before.LastPhaseTransitionTime
			case s.Phase != before.Phase && (at == nil || at.Equal(before.LastPhaseTransitionTime)):
				s.LastPhaseTransitionTime = new(metav1.Now())
			}
		},
		Fields: map[string]func(runtime.Object) string{
			"name": func(o runtime.Object) string { return o.(*corev1.PersistentVolume).Name }},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Capacity"}, {Name: "Access Modes"},
				{Name: "Reclaim Policy"}, {Name: "Status"}, {Name: "Claim"},
				{Name: "StorageClass"}, {Name: "VolumeAttributesClass"}, {Name: "Reason"}, table.AgeColumn,
				{Name: "VolumeMode", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				v := o.(*corev1.PersistentVolume)
				claim := ""
				if c := v.Spec.ClaimRef; c != nil {
					claim = c.Namespace + "/" + c.Name
				}
				phase := string(v.Status.Phase)
				if v.DeletionTimestamp != nil {
					phase = "Terminating"
				}
				size := v.Spec.Capacity[corev1.ResourceStorage]
				return []any{v.Name, size.String(), accessModes(v.Spec.AccessModes),
					string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim, v.Spec.StorageClassName,
					ptr.Deref(v.Spec.VolumeAttributesClassName, table.Unset), v.Status.Reason,
					table.Age(v.CreationTimestamp, now), volumeMode(v.Spec.VolumeMode)}
			}},
	})
}

// syncDataSources makes dataSource and dataSourceRef agree. A client that uses only the older field
// expects that a source which is neither a claim nor a snapshot is ignored; sources in other
// namespaces are not supported.
func syncDataSources(s, old *corev1.PersistentVolumeClaimSpec) {
	elsewhere := func(r *corev1.TypedObjectReference) bool {
		return r != nil && r.Namespace != nil && *r.Namespace != ""
	}
	if elsewhere(s.DataSourceRef) && (old == nil || old.DataSourceRef == nil) {
		s.DataSourceRef = nil
	}
	if d := s.DataSource; d != nil && s.DataSourceRef == nil &&
		(old == nil || old.DataSource == nil && old.DataSourceRef == nil) {
		group := ""
		if d.APIGroup != nil {
			group = *d.APIGroup
		}
		if (group != "" || d.Kind != "PersistentVolumeClaim") &&
			(group != "snapshot.storage.k8s.io" || d.Kind != "VolumeSnapshot") {
			s.DataSource = nil
		}
	}
	switch d, r := s.DataSource, s.DataSourceRef; {
	case d != nil && r == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: d.APIGroup, Kind: d.Kind, Name: d.Name}
	case d == nil && r != nil && !elsewhere(r):
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name}
	}
}

func persistentVolumeClaims() *registry.Resource {
	return registry.Of[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](registry.Resource{
		Kind: registry.CoreKind("PersistentVolumeClaim"), ReturnDeleted: true, Plural: "persistentvolumeclaims",
		ShortNames: []string{"pvc"}, Status: true, StatusMetadata: true, NoGeneration: true,
		PrepareCreate: func(_ context.Context, obj runtime.Object) {
			c := obj.(*corev1.PersistentVolumeClaim)
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			syncDataSources(&c.Spec, nil)
		},
		PrepareUpdate: func(_ context.Context, obj, old runtime.Object) {
			syncDataSources(&obj.(*corev1.PersistentVolumeClaim).Spec, &old.(*corev1.PersistentVolumeClaim).Spec)
		},
		Fields: map[string]func(runtime.Object) string{
			"name": func(o runtime.Object) string { return o.(*corev1.PersistentVolumeClaim).Name }},
		Table: table.Kind{
			Columns: []table.Column{table.NameColumn, {Name: "Status"}, {Name: "Volume"}, {Name: "Capacity"},
				{Name: "Access Modes"}, {Name: "StorageClass"},
				{Name: "VolumeAttributesClass"}, table.AgeColumn, {Name: "VolumeMode", Wide: true}},
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*corev1.PersistentVolumeClaim)
				phase, size, modes := string(c.Status.Phase), "", ""
				if c.DeletionTimestamp != nil {
					phase = "Terminating"
				}
				if c.Spec.VolumeName != "" {
					q := c.Status.Capacity[corev1.ResourceStorage]
					size, modes = q.String(), accessModes(c.Status.AccessModes)
				}
				return []any{c.Name, phase, c.Spec.VolumeName, size, modes, ptr.Deref(c.Spec.StorageClassName, ""),
					ptr.Deref(c.Spec.VolumeAttributesClassName, table.Unset),
					table.Age(c.CreationTimestamp, now), volumeMode(c.Spec.VolumeMode)}
			}},
	})
}

func volumeMode(m *corev1.PersistentVolumeMode) string {
	if m == nil {
		return table.Unset
	}
	return string(*m)
}
