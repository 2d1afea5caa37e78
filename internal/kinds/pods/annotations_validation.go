package pods

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// validatePodAnnotations validates annotations of a pod or of a template.
func validatePodAnnotations(m *metav1.ObjectMeta, s *corev1.PodSpec, kept podFaults, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if value, ok := m.Annotations[corev1.MirrorPodAnnotationKey]; ok && s.NodeName == "" {
		errs = append(errs, field.Invalid(path.Key(corev1.MirrorPodAnnotationKey), value,
			"must set spec.nodeName if mirror pod annotation is set"))
	}
	if text := m.Annotations[corev1.TolerationsAnnotationKey]; text != "" {
		var list []corev1.Toleration
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			errs = append(errs, field.Invalid(path, corev1.TolerationsAnnotationKey, err.Error()))
		}
		errs = append(errs, ValidateTolerations(list, kept.comparisons, path.Child(corev1.TolerationsAnnotationKey))...)
	}
	if !kept.deletionCost && badDeletionCost(m.Annotations) {
		errs = append(errs, field.Invalid(path.Key(corev1.PodDeletionCost), m.Annotations[corev1.PodDeletionCost],
			"must be a 32bit integer"))
	}
	for key, value := range m.Annotations {
		if key == corev1.SeccompPodAnnotationKey || strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			errs = append(errs, validateSeccompAnnotation(value, path.Child(key))...)
		}
		name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		if !ok {
			continue
		}
		if !kept.annotations && containerNamed(s, name) == nil {
			errs = append(errs, field.Invalid(path.Key(key), name, "container not found"))
		}
		if value != "" && value != corev1.DeprecatedAppArmorBetaProfileRuntimeDefault &&
			value != corev1.DeprecatedAppArmorBetaProfileNameUnconfined &&
			!strings.HasPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
			errs = append(errs,
				field.Invalid(path.Key(key), value, fmt.Sprintf("invalid AppArmor profile name: %q", value)))
		}
	}
	return errs
}

// badDeletionCost reports whether the deletion cost of a pod is not a 32-bit number in its shortest
// form.
func badDeletionCost(annotations map[string]string) bool {
	text, ok := annotations[corev1.PodDeletionCost]
	if !ok {
		return false
	}
	_, err := strconv.ParseInt(text, 10, 32)
	return err != nil || text[0] == '+' || text[0] == '0' && text != "0"
}

func validateSeccompAnnotation(value string, at *field.Path) field.ErrorList {
	switch value {
	case corev1.SeccompProfileRuntimeDefault, corev1.DeprecatedSeccompProfileDockerDefault,
		corev1.SeccompProfileNameUnconfined:
		return nil
	}
	if profile, ok := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix); ok {
		return rules.DescendingPath(profile, at)
	}
	return field.ErrorList{field.Invalid(at, value, "must be a valid seccomp profile")}
}

// validateAnnotatedProfiles checks that annotations and fields name the same profiles; for AppArmor
// only in a new pod.
func validateAnnotatedProfiles(m *metav1.ObjectMeta, s *corev1.PodSpec, isNew bool, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	compare := func(key, kind, profile string, local *string, names [3][]string, at *field.Path) {
		text, ok := m.Annotations[key]
		if !ok || profile == "" {
			return
		}
		at = at.Child("securityContext")
		name, isLocal := strings.CutPrefix(text, names[2][0])
		var matches bool
		switch profile {
		case "Unconfined":
			matches = text == names[0][0]
		case "RuntimeDefault":
			matches = text == names[1][0] || len(names[1]) > 1 && text == names[1][1]
		case "Localhost":
			matches = isLocal
		default:
			return
		}
		if !matches {
			errs = append(errs,
				field.Forbidden(at.Child(names[2][1], "type"), kind+" type in annotation and field must match"))
		} else if profile == "Localhost" && (local == nil || *local != name) {
			errs = append(errs,
				field.Forbidden(at.Child(names[2][1], "localhostProfile"),
					kind+" profile in annotation and field must match"))
		}
	}
	seccompNames := [3][]string{{corev1.SeccompProfileNameUnconfined},
		{corev1.SeccompProfileRuntimeDefault, corev1.DeprecatedSeccompProfileDockerDefault},
		{corev1.SeccompLocalhostProfileNamePrefix, "seccompProfile"}}
	appArmorNames := [3][]string{{corev1.DeprecatedAppArmorBetaProfileNameUnconfined},
		{corev1.DeprecatedAppArmorBetaProfileRuntimeDefault},
		{corev1.DeprecatedAppArmorBetaProfileNamePrefix, "appArmorProfile"}}
	var ofPod *corev1.AppArmorProfile
	if c := s.SecurityContext; c != nil {
		ofPod = c.AppArmorProfile
		if p := c.SeccompProfile; p != nil {
			compare(corev1.SeccompPodAnnotationKey, "seccomp", string(p.Type), p.LocalhostProfile, seccompNames, spec)
		}
	}
	windows := s.OS != nil && s.OS.Name == corev1.Windows
	for c, at := range containersOf(s, spec) {
		armor := ofPod
		if c.SecurityContext != nil {
			if p := c.SecurityContext.SeccompProfile; p != nil {
				compare(corev1.SeccompContainerAnnotationKeyPrefix+c.Name, "seccomp", string(p.Type),
					p.LocalhostProfile, seccompNames, at)
			}
			if p := c.SecurityContext.AppArmorProfile; p != nil {
				armor = p
			}
		}
		if armor != nil && isNew && !windows {
			compare(corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name, "apparmor", string(armor.Type),
				armor.LocalhostProfile, appArmorNames, at)
		}
	}
	return errs
}
