package volumes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(corev1.GroupName, "PersistentVolume"): func() rules.Rules {
		return rules.WithWarnings(rules.Of(nil, validatePersistentVolume, validatePersistentVolumeUpdate),
			persistentVolumeWarnings)
	},
	rules.Kind(corev1.GroupName, "PersistentVolumeClaim"): func() rules.Rules {
		return rules.WithWarnings(rules.WithStatus(rules.Of(nil, validatePersistentVolumeClaim,
			validatePersistentVolumeClaimUpdate), validatePersistentVolumeClaimStatusUpdate),
			persistentVolumeClaimWarnings)
	},
}
