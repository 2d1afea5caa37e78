package core

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

func validateNode(n *corev1.Node) field.ErrorList {
	errs := validateTaints(n.Spec.Taints, field.NewPath("metadata", "taints"))
	errs = append(errs, validateNodeAmounts(n)...)
	if s := n.Status.NodeInfo.Swap; s != nil && s.Capacity != nil && *s.Capacity <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "nodeSwapStatus", "capacity"), *s.Capacity,
			"must be greater than zero"))
	}
	errs = append(errs, validateDeclaredFeatures(n.Status.DeclaredFeatures)...)
	cidrs := field.NewPath("spec", "podCIDRs")
	families := map[bool]int{}
	for i, c := range n.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(cidrs.Index(i), c, true, nil)...)
		families[strings.Contains(c, ":")]++
	}
	if len(n.Spec.PodCIDRs) > 1 {
		if _, err := netutils.IsDualStackCIDRStrings(n.Spec.PodCIDRs); err != nil {
			errs = append(errs,
				field.InternalError(cidrs,
					fmt.Errorf("invalid PodCIDRs. failed to check with dual stack with error:%w", err)))
		}
	}
	if len(n.Spec.PodCIDRs) > 1 && (families[true] != 1 || families[false] != 1) {
		errs = append(errs, field.Invalid(cidrs, n.Spec.PodCIDRs,
			"may specify no more than one CIDR for each IP family"))
	}
	return errs
}

func validateNodeAmounts(n *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	for _, list := range []struct {
		name    string
		amounts corev1.ResourceList
	}{{"capacity", n.Status.Capacity}, {"allocatable", n.Status.Allocatable}} {
		for _, name := range rules.SortedNames(list.amounts) {
			errs = append(errs,
				rules.AmountOf(name, list.amounts[name], field.NewPath("status", list.name, string(name)))...)
		}
	}
	return errs
}

var featureName = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*$`)

// validateDeclaredFeatures validates the names of a node's declared features, which are sorted.
func validateDeclaredFeatures(list []string) field.ErrorList {
	at := field.NewPath("status", "declaredFeatures")
	var errs field.ErrorList
	for i, f := range list {
		if len(f) > validation.DNS1123SubdomainMaxLength {
			errs = append(errs,
				field.Invalid(at.Index(i), f,
					fmt.Sprintf("invalid feature name %q: must be no more than %d characters", f,
						validation.DNS1123SubdomainMaxLength)))
		} else if !featureName.MatchString(f) {
			errs = append(errs,
				field.Invalid(at.Index(i), f,
					fmt.Sprintf(
						"invalid feature name %q: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes", f)))
		}
		switch {
		case i == 0:
		case f == list[i-1]:
			errs = append(errs, field.Duplicate(at.Index(i), f))
		case f < list[i-1]:
			errs = append(errs, field.Invalid(at.Index(i), f, "list must be sorted alphabetically"))
		}
	}
	return errs
}

func validateTaints(list []corev1.Taint, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, t := range list {
		at := at.Index(i)
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, strings.Join(msgs, ";")))
		}
		errs = append(errs, pods.ValidateTaintEffect(t.Effect, at.Child("effect"))...)
		key := string(t.Effect) + "/" + t.Key
		if seen.Has(key) {
			d := field.Duplicate(at, t)
			d.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, d)
		}
		seen.Insert(key)
	}
	return errs
}

func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	errs := append(validateNode(n), validateNodeStatus(n)...)
	cidrs := field.NewPath("spec", "podCIDRs")
	if was := old.Spec.PodCIDRs; len(was) > 0 && !slices.Equal(n.Spec.PodCIDRs, was) {
		errs = append(errs, field.Forbidden(cidrs, "node updates may not change podCIDR except from \"\" to valid"))
	}
	if is, was := n.Spec.ProviderID, old.Spec.ProviderID; was != "" && is != was {
		message := "field cannot be modified once set"
		if is == "" {
			message = "field cannot be cleared once set"
		}
		errs = append(errs, field.Invalid(field.NewPath("spec", "providerID"), nil, message).WithOrigin("update"))
	}
	if n.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "externalID"), "may not be updated"))
	}
	if s := n.Spec.ConfigSource; s != nil { //nolint:staticcheck // stored objects may have it
		errs = append(errs, validateConfigSource(s, false, field.NewPath("spec", "configSource"))...)
	}
	return errs
}

func validateNodeStatusUpdate(n, old *corev1.Node) field.ErrorList { return validateNodeUpdate(n, old) }

func validateNodeStatus(n *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.NodeAddress]()
	for i, a := range n.Status.Addresses {
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), a))
		}
		seen.Insert(a)
	}
	if c := n.Status.Config; c != nil {
		for _, s := range []struct {
			name   string
			source *corev1.NodeConfigSource
		}{{"assigned", c.Assigned}, {"active", c.Active}, {"lastKnownGood", c.LastKnownGood}} {
			if s.source != nil {
				errs = append(errs, validateConfigSource(s.source, true, field.NewPath("status", "config", s.name))...)
			}
		}
	}
	return errs
}

// validateConfigSource validates the source of a kubelet's configuration; an assigned one has a
// UID.
func validateConfigSource(s *corev1.NodeConfigSource, found bool, at *field.Path) field.ErrorList {
	c := s.ConfigMap
	if c == nil {
		return field.ErrorList{field.Invalid(at, s, "exactly one reference subfield must be non-nil")}
	}
	at = at.Child("configMap")
	var errs field.ErrorList
	for _, f := range []struct{ name, value string }{{"uid", string(c.UID)}, {"resourceVersion", c.ResourceVersion}} {
		switch {
		case found:
			errs = append(errs, rules.Required(at.Child(f.name), f.value)...)
		case f.value != "":
			errs = append(errs, field.Forbidden(at.Child(f.name), f.name+" must not be set in spec"))
		}
	}
	for _, f := range []struct {
		name, value string
		check       func(string) []string
	}{
		{"namespace", c.Namespace, func(s string) []string { return apivalidation.ValidateNamespaceName(s, false) }},
		{"name", c.Name, func(s string) []string { return apivalidation.NameIsDNSSubdomain(s, false) }},
		{"kubeletConfigKey", c.KubeletConfigKey, validation.IsConfigMapKey},
	} {
		if f.value == "" {
			errs = append(errs, field.Required(at.Child(f.name), ""))
		} else {
			errs = append(errs, rules.Messages(at.Child(f.name), f.value, f.check(f.value))...)
		}
	}
	return errs
}
