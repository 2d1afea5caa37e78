package devices

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(resourcev1.GroupName,
		"DeviceClass"): func() rules.Rules { return rules.Of(nil, validateDeviceClass, checkDeviceClass) },
	rules.Kind(resourcev1.GroupName, "DeviceTaintRule"): func() rules.Rules {
		return rules.WithStatus(rules.Of(nil, validateDeviceTaintRule, validateDeviceTaintRuleUpdate),
			validateDeviceTaintRuleStatusUpdate)
	},
	rules.Kind(resourcev1.GroupName, "ResourceClaim"): func() rules.Rules {
		r := rules.Of(nil, validateResourceClaim, validateResourceClaimUpdate)
		r.StatusUpdate = rules.TypedUpdate(validateResourceClaimStatusUpdate)
		return r
	},
	rules.Kind(resourcev1.GroupName, "ResourceClaimTemplate"): func() rules.Rules {
		return rules.Of(nil, validateResourceClaimTemplate, validateResourceClaimTemplateUpdate)
	},
	rules.Kind(resourcev1.GroupName,
		"ResourceSlice"): func() rules.Rules {
		return rules.Of(nil, validateResourceSlice, validateResourceSliceUpdate)
	},
}
