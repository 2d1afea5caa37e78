package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(corev1.GroupName, "Namespace"): func() rules.Rules {
		r := rules.Of(apivalidation.ValidateNamespaceName, validateNamespace, nil)
		r.StatusUpdate = rules.TypedUpdate(validateNamespaceStatusUpdate)
		return r
	},
	rules.Kind(corev1.GroupName, "Node"): func() rules.Rules {
		return rules.WithWarnings(rules.WithStatus(rules.Of(nil, validateNode, validateNodeUpdate),
			validateNodeStatusUpdate), nodeWarnings)
	},
	rules.Kind(corev1.GroupName,
		"ServiceAccount"): func() rules.Rules { return rules.Rules{Name: apivalidation.ValidateServiceAccountName} },
	rules.Kind(corev1.GroupName,
		"ConfigMap"): func() rules.Rules { return rules.Of(nil, validateConfigMap, validateConfigMapUpdate) },
	rules.Kind(corev1.GroupName, "Secret"): func() rules.Rules {
		return rules.WithWarnings(rules.Of(nil, validateSecret, validateSecretUpdate), secretWarnings)
	},
	rules.Kind(corev1.GroupName, "Endpoints"): func() rules.Rules {
		return rules.WithWarnings(rules.Of(nil, validateEndpoints, validateEndpointsUpdate), endpointsWarnings)
	},
	rules.Kind(corev1.GroupName, "Event"): func() rules.Rules {
		return rules.Rules{Name: rules.NoName, Create: validateEventCreate, Update: validateEventUpdate}
	},
	rules.Kind(corev1.GroupName, "LimitRange"): func() rules.Rules { return rules.Of(nil, validateLimitRange, nil) },
	rules.Kind(corev1.GroupName, "ResourceQuota"): func() rules.Rules {
		return rules.WithStatus(rules.Of(nil, validateResourceQuota, validateResourceQuotaUpdate),
			validateResourceQuotaStatusUpdate)
	},
	rules.Kind(corev1.GroupName, "PodTemplate"): func() rules.Rules {
		r := rules.Of(nil, func(t *corev1.PodTemplate) field.ErrorList {
			return pods.ValidateTemplate(&t.Template, field.NewPath("template"))
		}, nil)
		r.Warnings = func(_ context.Context, obj, old runtime.Object) []string {
			if rules.SameGeneration(obj, old) {
				return nil
			}
			return pods.TemplateWarnings(&obj.(*corev1.PodTemplate).Template, field.NewPath("template"))
		}
		return r
	},
}
