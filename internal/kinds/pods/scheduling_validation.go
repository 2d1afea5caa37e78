package pods

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// hasBadNodeValues reports whether required node affinity has values that are invalid as labels.
func hasBadNodeValues(a *corev1.Affinity) bool {
	return a != nil && a.NodeAffinity != nil &&
		rules.HasBadTerms(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
}

// hasBadPodValues reports whether the selectors of pod affinity have values that are invalid as
// labels.
func hasBadPodValues(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	bad := func(terms []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
		one := func(t *corev1.PodAffinityTerm) bool {
			options := metav1validation.LabelSelectorValidationOptions{}
			return len(metav1validation.ValidateLabelSelector(t.LabelSelector, options, nil)) > 0 ||
				len(metav1validation.ValidateLabelSelector(t.NamespaceSelector, options, nil)) > 0
		}
		return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return one(&t) }) ||
			slices.ContainsFunc(preferred,
				func(t corev1.WeightedPodAffinityTerm) bool { return one(&t.PodAffinityTerm) })
	}
	if p := a.PodAffinity; p != nil &&
		bad(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution) {
		return true
	}
	p := a.PodAntiAffinity
	return p != nil && bad(p.RequiredDuringSchedulingIgnoredDuringExecution,
		p.PreferredDuringSchedulingIgnoredDuringExecution)
}

func validateAffinity(a *corev1.Affinity, kept podFaults, at *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		errs = append(errs, validateNodeAffinity(n, kept, at.Child("nodeAffinity"))...)
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validatePodAffinity(p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, kept, at.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validatePodAffinity(p.RequiredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution, kept, at.Child("podAntiAffinity"))...)
	}
	return errs
}

const (
	requiredField  = "requiredDuringSchedulingIgnoredDuringExecution"
	preferredField = "preferredDuringSchedulingIgnoredDuringExecution"
)

func validateWeight(w int32, at *field.Path) field.ErrorList {
	if w <= 0 || w > 100 {
		return field.ErrorList{field.Invalid(at.Child("weight"), w, "must be in the range 1-100")}
	}
	return nil
}

func validateNodeAffinity(n *corev1.NodeAffinity, kept podFaults, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		errs = append(errs, rules.NodeSelector(n.RequiredDuringSchedulingIgnoredDuringExecution, kept.nodeValues,
			at.Child(requiredField))...)
	}
	for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
		term, at := &n.PreferredDuringSchedulingIgnoredDuringExecution[i], at.Child(preferredField).Index(i)
		errs = append(errs, validateWeight(term.Weight, at)...)
		errs = append(errs, rules.NodeSelectorTerm(&term.Preference, true, at.Child("preference"))...)
	}
	return errs
}

func validatePodAffinity(terms []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, kept podFaults,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range terms {
		errs = append(errs, validatePodAffinityTerm(&terms[i], kept, at.Child(requiredField).Index(i))...)
	}
	for i := range preferred {
		at := at.Child(preferredField).Index(i)
		errs = append(errs, validateWeight(preferred[i].Weight, at)...)
		errs = append(errs, validatePodAffinityTerm(&preferred[i].PodAffinityTerm, kept,
			at.Child("podAffinityTerm"))...)
	}
	return errs
}

func validatePodAffinityTerm(t *corev1.PodAffinityTerm, kept podFaults, at *field.Path) field.ErrorList {
	options := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: kept.podValues}
	errs := metav1validation.ValidateLabelSelector(t.LabelSelector, options, at.Child("labelSelector"))
	errs = append(errs, metav1validation.ValidateLabelSelector(t.NamespaceSelector, options,
		at.Child("namespaceSelector"))...)
	for _, name := range t.Namespaces {
		errs = append(errs, rules.Messages(at.Child("namespace"), name,
			apivalidation.ValidateNamespaceName(name, false))...)
	}
	errs = append(errs, validateMatchKeys(t.MatchLabelKeys, t.LabelSelector, at.Child("matchLabelKeys"))...)
	errs = append(errs, validateMatchKeys(t.MismatchLabelKeys, t.LabelSelector, at.Child("mismatchLabelKeys"))...)
	mismatched := sets.New(t.MismatchLabelKeys...)
	for i, key := range t.MatchLabelKeys {
		if mismatched.Has(key) {
			errs = append(errs,
				field.Invalid(at.Child("matchLabelKeys").Index(i), key,
					"exists in both matchLabelKeys and mismatchLabelKeys"))
		}
	}
	if t.TopologyKey == "" {
		errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
	}
	return append(errs, metav1validation.ValidateLabelName(t.TopologyKey, at.Child("topologyKey"))...)
}

func validateMatchKeys(keys []string, selector *metav1.LabelSelector, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(keys) > 0 && selector == nil {
		errs = append(errs, field.Forbidden(at, "must not be specified when labelSelector is not set"))
	}
	for i, key := range keys {
		errs = append(errs, metav1validation.ValidateLabelName(key, at.Index(i))...)
	}
	return errs
}

func validateTopologySpread(list []corev1.TopologySpreadConstraint, keptSelectors bool,
	at *field.Path) field.ErrorList {
	type pair struct {
		key           string
		unsatisfiable corev1.UnsatisfiableConstraintAction
	}
	left := map[pair]int{} // from here on
	for i := range list {
		left[pair{list[i].TopologyKey, list[i].WhenUnsatisfiable}]++
	}
	var errs field.ErrorList
	for i := range list {
		c, at := &list[i], at.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		if c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway {
			errs = append(errs,
				field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable,
					[]corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}))
		}
		this := pair{c.TopologyKey, c.WhenUnsatisfiable}
		if left[this]--; left[this] > 0 {
			errs = append(errs,
				field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"),
					fmt.Sprintf("{%v, %v}", c.TopologyKey, c.WhenUnsatisfiable)))
		}
		if m := c.MinDomains; m != nil {
			if *m <= 0 {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m, "must be greater than zero"))
			}
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs = append(errs,
					field.Invalid(at.Child("minDomains"), *m,
						fmt.Sprintf("can only use minDomains if whenUnsatisfiable=%s, not %s", corev1.DoNotSchedule,
							c.WhenUnsatisfiable)))
			}
		}
		for _, p := range []struct {
			name  string
			value *corev1.NodeInclusionPolicy
		}{{"nodeAffinityPolicy", c.NodeAffinityPolicy}, {"nodeTaintsPolicy", c.NodeTaintsPolicy}} {
			if p.value != nil {
				errs = append(errs,
					rules.Supported(string(*p.value), at.Child(p.name), string(corev1.NodeInclusionPolicyHonor),
						string(corev1.NodeInclusionPolicyIgnore))...)
			}
		}
		errs = append(errs, validateMatchKeys(c.MatchLabelKeys, c.LabelSelector, at.Child("matchLabelKeys"))...)
		if !keptSelectors {
			errs = append(errs,
				metav1validation.ValidateLabelSelector(c.LabelSelector,
					metav1validation.LabelSelectorValidationOptions{}, at.Child("labelSelector"))...)
		}
	}
	return errs
}
