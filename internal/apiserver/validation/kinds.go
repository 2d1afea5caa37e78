package validation

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds lists the rules by kind. Nothing writes to it.
var kinds = map[schema.GroupKind]func() Rules{
	core("Namespace"): func() Rules {
		return Rules{Name: apivalidation.ValidateNamespaceName}
	},
	core("ServiceAccount"): func() Rules {
		return Rules{Name: apivalidation.ValidateServiceAccountName}
	},
	core("ConfigMap"): func() Rules {
		return Rules{Name: apivalidation.NameIsDNSSubdomain}
	},
}

func core(kind string) schema.GroupKind { return corev1.SchemeGroupVersion.WithKind(kind).GroupKind() }
