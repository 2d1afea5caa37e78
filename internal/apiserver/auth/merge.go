package auth

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Merge returns the stored policy object with the missing parts of the built-in one, and whether
// there is a difference. Administrators may add rules and subjects, or disable this with the
// annotation rbac.authorization.kubernetes.io/autoupdate.
func Merge(stored, builtin runtime.Object) (runtime.Object, bool) {
	if accessor(stored).GetAnnotations()[autoUpdate] != "true" {
		return stored, false
	}
	switch b := builtin.(type) {
	case *rbacv1.ClusterRole:
		o := stored.(*rbacv1.ClusterRole)
		rules, changed := mergeRules(o.Rules, b.Rules)
		if !changed {
			return o, false
		}
		o = o.DeepCopy()
		o.Rules = rules
		return o, true
	case *rbacv1.Role:
		o := stored.(*rbacv1.Role)
		rules, changed := mergeRules(o.Rules, b.Rules)
		if !changed {
			return o, false
		}
		o = o.DeepCopy()
		o.Rules = rules
		return o, true
	case *rbacv1.ClusterRoleBinding:
		o := stored.(*rbacv1.ClusterRoleBinding)
		subjects, changed := mergeSubjects(o.Subjects, b.Subjects)
		if !changed {
			return o, false
		}
		o = o.DeepCopy()
		o.Subjects = subjects
		return o, true
	case *rbacv1.RoleBinding:
		o := stored.(*rbacv1.RoleBinding)
		subjects, changed := mergeSubjects(o.Subjects, b.Subjects)
		if !changed {
			return o, false
		}
		o = o.DeepCopy()
		o.Subjects = subjects
		return o, true
	}
	return stored, false
}

func mergeRules(have, want []rbacv1.PolicyRule) ([]rbacv1.PolicyRule, bool) {
	covered, missing := validation.Covers(have, want)
	if covered {
		return have, false
	}
	return slices.Concat(have, missing), true
}

func mergeSubjects(have, want []rbacv1.Subject) ([]rbacv1.Subject, bool) {
	out, changed := slices.Clone(have), false
	for _, s := range want {
		if !slices.Contains(out, s) {
			out, changed = append(out, s), true
		}
	}
	return out, changed
}
