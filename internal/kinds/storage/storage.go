package storage

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/registry"
	"carob/internal/kinds/table"
)

// Kinds returns the kinds of storage.k8s.io.
func Kinds() []*registry.Resource {
	return []*registry.Resource{storageClasses(), volumeAttachments(), csiDrivers(), csiNodes(), csiStorageCapacities(),
		volumeAttributesClasses()}
}

func storageKind(kind string) schema.GroupVersionKind {
	return storagev1.SchemeGroupVersion.WithKind(kind)
}

// isDefaultClass is the annotation of the class for claims that name none.
const (
	isDefaultClass     = "storageclass.kubernetes.io/is-default-class"
	betaIsDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
)

func storageClasses() *registry.Resource {
	return registry.Of[storagev1.StorageClass, storagev1.StorageClassList](registry.Resource{
		Kind: storageKind("StorageClass"), Plural: "storageclasses", ShortNames: []string{"sc"}, Cluster: true,
		NoGeneration: true, ReturnDeleted: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Provisioner"}, {Name: "ReclaimPolicy"},
			{Name: "VolumeBindingMode"}, {Name: "AllowVolumeExpansion"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*storagev1.StorageClass)
				name := c.Name
				if c.Annotations[isDefaultClass] == "true" || c.Annotations[betaIsDefaultClass] == "true" {
					name += " (default)"
				}
				return []any{name, c.Provisioner,
					string(ptr.Deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
					string(ptr.Deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
					ptr.Deref(c.AllowVolumeExpansion, false), table.Age(c.CreationTimestamp, now)}
			}},
	})
}

func volumeAttachments() *registry.Resource {
	return registry.Of[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](registry.Resource{
		Kind: storageKind("VolumeAttachment"), Plural: "volumeattachments", Cluster: true, Status: true,
		NoGeneration: true, RequireResourceVersion: true, ReturnDeleted: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Attacher", Format: "name"}, {Name: "PV"},
			{Name: "Node"}, {Name: "Attached", Type: "boolean"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				a := o.(*storagev1.VolumeAttachment)
				return []any{a.Name, a.Spec.Attacher, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""),
					a.Spec.NodeName, a.Status.Attached, table.Age(a.CreationTimestamp, now)}
			}},
	})
}

func csiDrivers() *registry.Resource {
	return registry.Of[storagev1.CSIDriver, storagev1.CSIDriverList](registry.Resource{
		Kind: storageKind("CSIDriver"), Plural: "csidrivers", Cluster: true, GenerationFromZero: true,
		RequireResourceVersion: true, ReturnDeleted: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "AttachRequired", Type: "boolean"},
			{Name: "PodInfoOnMount", Type: "boolean"},
			{Name: "StorageCapacity", Type: "boolean"}, {Name: "TokenRequests"},
			{Name: "RequiresRepublish", Type: "boolean"}, {Name: "Modes"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				d := o.(*storagev1.CSIDriver)
				modes := make([]string, len(d.Spec.VolumeLifecycleModes))
				for i, m := range d.Spec.VolumeLifecycleModes {
					modes[i] = string(m)
				}
				tokens := table.Unset
				if d.Spec.TokenRequests != nil {
					audiences := make([]string, len(d.Spec.TokenRequests))
					for i, t := range d.Spec.TokenRequests {
						audiences[i] = t.Audience
					}
					tokens = strings.Join(audiences, ",")
				}
				return []any{d.Name, ptr.Deref(d.Spec.AttachRequired, true), ptr.Deref(d.Spec.PodInfoOnMount, false),
					ptr.Deref(d.Spec.StorageCapacity, false),
					tokens, ptr.Deref(d.Spec.RequiresRepublish, false), table.OrNone(strings.Join(modes, ",")),
					table.Age(d.CreationTimestamp, now)}
			}},
	})
}

func csiNodes() *registry.Resource {
	return registry.Of[storagev1.CSINode, storagev1.CSINodeList](registry.Resource{
		Kind: storageKind("CSINode"), Plural: "csinodes", Cluster: true, Status: true, NoGeneration: true,
		RequireResourceVersion: true, ReturnDeleted: true,
		// The whole status belongs to volume health (CSIVolumeHealth), which is off in v1.37.
		PrepareStatusUpdate: func(_ context.Context, obj, old runtime.Object) {
			if len(old.(*storagev1.CSINode).Status.StorageHealth) == 0 {
				obj.(*storagev1.CSINode).Status = storagev1.CSINodeStatus{}
			}
		},
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "Drivers", Type: "integer"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				n := o.(*storagev1.CSINode)
				return []any{n.Name, int64(len(n.Spec.Drivers)), table.Age(n.CreationTimestamp, now)}
			}},
	})
}

func csiStorageCapacities() *registry.Resource {
	return registry.Of[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](registry.Resource{
		Kind: storageKind("CSIStorageCapacity"), Plural: "csistoragecapacities", NoGeneration: true,
		RequireResourceVersion: true,
		Table: table.Kind{Columns: []table.Column{table.NameColumn, {Name: "StorageClassName"}, {Name: "Capacity"}},
			Row: func(o runtime.Object, _ time.Time) []any {
				c := o.(*storagev1.CSIStorageCapacity)
				capacity := table.Unset
				if c.Capacity != nil {
					capacity = c.Capacity.String()
				}
				return []any{c.Name, c.StorageClassName, capacity}
			}},
	})
}

func volumeAttributesClasses() *registry.Resource {
	return registry.Of[storagev1.VolumeAttributesClass, storagev1.VolumeAttributesClassList](registry.Resource{
		Kind: storageKind("VolumeAttributesClass"), Plural: "volumeattributesclasses", ShortNames: []string{"vac"},
		Cluster: true, NoGeneration: true, ReturnDeleted: true,
		Table: table.Kind{Columns: table.Columns([]table.Column{{Name: "DriverName"}}, table.AgeColumn),
			Row: func(o runtime.Object, now time.Time) []any {
				c := o.(*storagev1.VolumeAttributesClass)
				return []any{c.Name, c.DriverName, table.Age(c.CreationTimestamp, now)}
			}},
	})
}
