package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"carob/internal/kinds/defaulting"
)

func defaultRoleRef(r *rbacv1.RoleRef) { defaulting.OrDefault(&r.APIGroup, rbacv1.GroupName) }

func defaultSubjects(list []rbacv1.Subject) {
	for i := range list {
		if list[i].Kind == rbacv1.UserKind || list[i].Kind == rbacv1.GroupKind {
			defaulting.OrDefault(&list[i].APIGroup, rbacv1.GroupName)
		}
	}
}

// RegisterDefaults adds the defaults of this package's kinds to s.
func RegisterDefaults(s *runtime.Scheme) {
	defaulting.Add(s, func(o *rbacv1.RoleBinding) { defaultRoleRef(&o.RoleRef); defaultSubjects(o.Subjects) })
	defaulting.Add(s, func(o *rbacv1.ClusterRoleBinding) { defaultRoleRef(&o.RoleRef); defaultSubjects(o.Subjects) })
}
