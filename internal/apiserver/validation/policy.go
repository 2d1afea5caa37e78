package validation

import (
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// rbacName: names of roles and bindings may hold colons and capitals.
func rbacName(name string, _ bool) []string { return content.IsPathSegmentName(name) }

func namespacedRole(r *rbacv1.Role) field.ErrorList { return rules(r.Rules, true) }

func clusterRole(r *rbacv1.ClusterRole) field.ErrorList {
	errs := rules(r.Rules, false)
	if r.AggregationRule == nil {
		return errs
	}
	at := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(r.AggregationRule.ClusterRoleSelectors) == 0 {
		errs = append(errs, field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range r.AggregationRule.ClusterRoleSelectors {
		s := &r.AggregationRule.ClusterRoleSelectors[i]
		errs = append(errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, at.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, field.Invalid(at.Index(i), nil, "invalid label selector."))
		}
	}
	return errs
}

func rules(list []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		r, at := &list[i], field.NewPath("rules").Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

func roleBinding(b *rbacv1.RoleBinding) field.ErrorList {
	return append(roleRef(&b.RoleRef, "Role", "ClusterRole"), subjects(b.Subjects, true)...)
}

func roleBindingUpdate(b, old *rbacv1.RoleBinding) field.ErrorList {
	return append(roleBinding(b), sameRole(b.RoleRef, old.RoleRef)...)
}

func clusterRoleBinding(b *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(roleRef(&b.RoleRef, "ClusterRole"), subjects(b.Subjects, false)...)
}

func clusterRoleBindingUpdate(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(clusterRoleBinding(b), sameRole(b.RoleRef, old.RoleRef)...)
}

func sameRole(r, old rbacv1.RoleRef) field.ErrorList {
	if r == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), r, "cannot change roleRef")}
}

func roleRef(r *rbacv1.RoleRef, kinds ...string) field.ErrorList {
	at := field.NewPath("roleRef")
	var errs field.ErrorList
	if r.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), r.APIGroup, []string{rbacv1.GroupName}))
	}
	errs = append(errs, supported(r.Kind, at.Child("kind"), kinds...)...)
	if r.Name == "" {
		return append(errs, field.Required(at.Child("name"), ""))
	}
	return append(errs, messages(at.Child("name"), r.Name, rbacName(r.Name, false))...)
}

func subjects(list []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		s, at := &list[i], field.NewPath("subjects").Index(i)
		errs = append(errs, required(at.Child("name"), s.Name)...)
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				errs = append(errs, messages(at.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))...)
			}
			if s.APIGroup != "" {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{""}))
			}
			// In a role binding the binding's own namespace is meant.
			if s.Namespace == "" && !namespaced {
				errs = append(errs, field.Required(at.Child("namespace"), ""))
			}
		case rbacv1.UserKind, rbacv1.GroupKind:
			if s.APIGroup != rbacv1.GroupName {
				errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{rbacv1.GroupName}))
			}
		default:
			errs = append(errs, field.NotSupported(at.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
		}
	}
	return errs
}

func lease(l *coordinationv1.Lease) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s <= 0 {
		errs = append(errs, field.Invalid(at.Child("leaseDurationSeconds"), *s, "must be greater than 0"))
	}
	if n := l.Spec.LeaseTransitions; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(at.Child("leaseTransitions"), *n, notNegative))
	}
	return errs
}

func leaseUpdate(l, _ *coordinationv1.Lease) field.ErrorList { return lease(l) }

const (
	systemPriorityPrefix       = "system-"
	highestUserPriority  int32 = 1_000_000_000
)

// systemPriorities are the classes of the system itself (L0.64).
func systemPriorities() map[string]int32 {
	return map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
}

func priorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if value, known := systemPriorities()[c.Name]; strings.HasPrefix(c.Name, systemPriorityPrefix) {
		wrong := ""
		switch {
		case !known:
			wrong = fmt.Sprintf("%s is not a known system priority class", c.Name)
		case value != c.Value:
			wrong = fmt.Sprintf("value of %s PriorityClass must be %d", c.Name, value)
		case c.GlobalDefault:
			wrong = fmt.Sprintf("globalDefault of %s PriorityClass must be false", c.Name)
		}
		if wrong != "" {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %s", systemPriorityPrefix, wrong)))
		}
	} else if c.Value > highestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %d", highestUserPriority)))
	}
	if p := c.PreemptionPolicy; p != nil {
		errs = append(errs, oneOf(string(*p), field.NewPath("preemptionPolicy"), string(corev1.PreemptLowerPriority), string(corev1.PreemptNever))...)
	}
	return errs
}

func priorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, immutableSelector(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
}

func runtimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	if at := field.NewPath("handler"); c.Handler == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, messages(at, c.Handler, validation.IsDNS1123Label(c.Handler))...)
	}
	if c.Overhead != nil {
		errs = append(errs, resourceRequirements(&corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}, podFaults{}, field.NewPath("overhead"))...)
	}
	if c.Scheduling != nil {
		errs = append(errs, metav1validation.ValidateLabels(c.Scheduling.NodeSelector, field.NewPath("scheduling", "nodeSelector"))...)
		at := field.NewPath("scheduling", "tolerations")
		errs = append(errs, validateTolerations(c.Scheduling.Tolerations, false, at)...)
		seen := map[corev1.Toleration]bool{}
		for i, t := range c.Scheduling.Tolerations {
			t.TolerationSeconds = nil
			if seen[t] {
				errs = append(errs, field.Duplicate(at.Index(i), t))
			}
			seen[t] = true
		}
	}
	return errs
}

func runtimeClassUpdate(c, old *nodev1.RuntimeClass) field.ErrorList {
	return append(runtimeClass(c), apivalidation.ValidateImmutableField(c.Handler, old.Handler, field.NewPath("handler"))...)
}
