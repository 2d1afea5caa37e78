package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"carob/internal/kinds/rules"
)

// Rules are the validation of each kind in this package; read only.
var Rules = map[schema.GroupKind]func() rules.Rules{
	rules.Kind(rbacv1.GroupName,
		"Role"): func() rules.Rules { return rules.Of(rbacName, validateNamespacedRole, nil) },
	rules.Kind(rbacv1.GroupName,
		"ClusterRole"): func() rules.Rules { return rules.Of(rbacName, validateClusterRole, nil) },
	rules.Kind(rbacv1.GroupName,
		"RoleBinding"): func() rules.Rules {
		return rules.Of(rbacName, validateRoleBinding, validateRoleBindingUpdate)
	},
	rules.Kind(rbacv1.GroupName, "ClusterRoleBinding"): func() rules.Rules {
		return rules.Of(rbacName, validateClusterRoleBinding, validateClusterRoleBindingUpdate)
	},
}
