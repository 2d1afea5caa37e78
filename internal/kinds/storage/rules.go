package storage

import (
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(storagev1.GroupName, "StorageClass"): func() rules.Rules {
		return rules.WithWarnings(rules.Of(nil, validateStorageClass, validateStorageClassUpdate), storageClassWarnings)
	},
	rules.Kind(storagev1.GroupName, "VolumeAttachment"): func() rules.Rules {
		r := rules.Of(nil, validateVolumeAttachment, validateVolumeAttachmentUpdate)
		r.StatusUpdate = rules.TypedUpdate(func(a,
			_ *storagev1.VolumeAttachment) field.ErrorList {
			return validateAttachmentStatus(&a.Status)
		})
		return r
	},
	rules.Kind(storagev1.GroupName, "CSIDriver"): func() rules.Rules {
		r := rules.Of(nil, validateCSIDriver, validateCSIDriverUpdate)
		r.Warnings = csiDriverWarnings
		return r
	},
	rules.Kind(storagev1.GroupName,
		"CSINode"): func() rules.Rules { return rules.Of(nil, validateCSINode, validateCSINodeUpdate) },
	rules.Kind(storagev1.GroupName, "CSIStorageCapacity"): func() rules.Rules {
		return rules.WithWarnings(rules.Of(nil, validateCSIStorageCapacity, validateCSIStorageCapacityUpdate),
			csiStorageCapacityWarnings)
	},
	rules.Kind(storagev1.GroupName, "VolumeAttributesClass"): func() rules.Rules {
		return rules.Of(nil, validateVolumeAttributesClass, validateVolumeAttributesClassUpdate)
	},
}
