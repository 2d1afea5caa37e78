package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// rbacName: names of roles and bindings may have colons and capital letters.
func rbacName(name string, _ bool) []string { return content.IsPathSegmentName(name) }

func validateNamespacedRole(r *rbacv1.Role) field.ErrorList { return validateRules(r.Rules, true) }

func validateClusterRole(r *rbacv1.ClusterRole) field.ErrorList {
	errs := validateRules(r.Rules, false)
	if r.AggregationRule == nil {
		return errs
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		errs = append(errs,
			field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		s := &r.AggregationRule.ClusterRoleSelectors[i]
		errs = append(errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{},
			at.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, field.Invalid(at.Index(i), nil, "invalid label selector."))
		}
	}
	return errs
}

func validateRules(list []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		r, at := &list[i], field.NewPath("rules").Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs,
					field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs,
						"namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				errs = append(errs,
					field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs,
						"rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs,
				field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs,
				field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

func validateRoleBinding(b *rbacv1.RoleBinding) field.ErrorList {
	return append(validateRoleRef(&b.RoleRef, "Role", "ClusterRole"), validateSubjects(b.Subjects, true)...)
}

func validateRoleBindingUpdate(b, old *rbacv1.RoleBinding) field.ErrorList {
	return append(validateRoleBinding(b), sameRole(b.RoleRef, old.RoleRef)...)
}

func validateClusterRoleBinding(b *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(validateRoleRef(&b.RoleRef, "ClusterRole"), validateSubjects(b.Subjects, false)...)
}

func validateClusterRoleBindingUpdate(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(validateClusterRoleBinding(b), sameRole(b.RoleRef, old.RoleRef)...)
}

func sameRole(r, old rbacv1.RoleRef) field.ErrorList {
	if r == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), r, "cannot change roleRef")}
}

func validateRoleRef(r *rbacv1.RoleRef, kinds ...string) field.ErrorList {
	at := field.NewPath("roleRef")
	var errs field.ErrorList
	if r.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), r.APIGroup, []string{rbacv1.GroupName}))
	}
	errs = append(errs, rules.Supported(r.Kind, at.Child("kind"), kinds...)...)
	if r.Name == "" {
		return append(errs, field.Required(at.Child("name"), ""))
	}
	return append(errs, rules.Messages(at.Child("name"), r.Name, rbacName(r.Name, false))...)
}

func validateSubjects(list []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		s, at := &list[i], field.NewPath("subjects").Index(i)
		errs = append(errs, rules.Required(at.Child("name"), s.Name)...)
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				errs = append(errs,
					rules.Messages(at.Child("name"), s.Name,
						apivalidation.ValidateServiceAccountName(s.Name, false))...)
			}
			if s.APIGroup != "" {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			// In a role binding, the subject's default namespace is the binding's own.
			if s.Namespace == "" && !namespaced {
				errs = append(errs, field.Required(at.Child("namespace"), ""))
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			if s.APIGroup != rbacv1.GroupName {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
			}
		default:
			errs = append(errs,
				field.NotSupported(at.Child("kind"), s.Kind,
					[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
	return errs
}
