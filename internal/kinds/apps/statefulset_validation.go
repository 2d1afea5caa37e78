package apps

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
	"carob/internal/kinds/volumes"
)

func validateStatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	errs := validateStatefulSpec(s)
	if s.Spec.ServiceName != "" {
		errs = append(errs, rules.Messages(rules.SpecPath.Child("serviceName"), s.Spec.ServiceName,
			validation.IsDNS1123Label(s.Spec.ServiceName))...)
	}
	for i := range s.Spec.VolumeClaimTemplates {
		errs = append(errs, volumes.ValidateClaimSpec(&s.Spec.VolumeClaimTemplates[i].Spec, volumes.ClaimFaults{},
			rules.SpecPath.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	return append(errs, pods.ValidateTemplate(asControllerMakes(s), rules.SpecPath.Child("template"))...)
}

// validateStatefulSpec validates everything except immutable fields and the template itself.
func validateStatefulSpec(s *appsv1.StatefulSet) field.ErrorList {
	var errs field.ErrorList
	switch p := s.Spec.PodManagementPolicy; p {
	case "":
		errs = append(errs, field.Required(rules.SpecPath.Child("podManagementPolicy"), ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(rules.SpecPath.Child("podManagementPolicy"), p,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	at := rules.SpecPath.Child("updateStrategy")
	switch s.Spec.UpdateStrategy.Type {
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.Spec.UpdateStrategy.RollingUpdate != nil {
			errs = append(errs,
				field.Invalid(at.Child("rollingUpdate"), s.Spec.UpdateStrategy.RollingUpdate,
					fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType)))
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
			errs = append(errs, rules.NonNegative(r.Partition, at.Child("rollingUpdate", "partition"))...)
			errs = append(errs, rules.Amount(r.MaxUnavailable, at.Child("rollingUpdate", "maxUnavailable"))...)
			if r.MaxUnavailable != nil && rules.Zero(r.MaxUnavailable) {
				errs = append(errs,
					field.Invalid(at.Child("rollingUpdate", "maxUnavailable"), *r.MaxUnavailable, "cannot be 0"))
			}
		}
	case "":
		errs = append(errs, field.Required(at, ""))
	default:
		errs = append(errs, field.Invalid(at, s.Spec.UpdateStrategy,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType,
				appsv1.OnDeleteStatefulSetStrategyType)))
	}
	errs = append(errs, rules.NonNegative(s.Spec.Replicas, rules.SpecPath.Child("replicas"))...)
	errs = append(errs, rules.NonNegative(&s.Spec.MinReadySeconds, rules.SpecPath.Child("minReadySeconds"))...)
	if s.Spec.Ordinals != nil {
		errs = append(errs, rules.NonNegative(&s.Spec.Ordinals.Start, rules.SpecPath.Child("ordinals.start"))...)
	}
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := rules.SpecPath.Child("persistentVolumeClaimRetentionPolicy")
		for _, x := range []struct {
			name   string
			policy appsv1.PersistentVolumeClaimRetentionPolicyType
		}{{"whenDeleted", p.WhenDeleted}, {"whenScaled", p.WhenScaled}} {
			if x.policy != appsv1.RetainPersistentVolumeClaimRetentionPolicyType &&
				x.policy != appsv1.DeletePersistentVolumeClaimRetentionPolicyType {
				errs = append(errs,
					field.NotSupported(at.Child(x.name), x.policy, []appsv1.PersistentVolumeClaimRetentionPolicyType{
						appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
						appsv1.DeletePersistentVolumeClaimRetentionPolicyType}))
			}
		}
	}
	errs = append(errs, selects(s.Spec.Selector, &s.Spec.Template, "statefulset")...)
	return append(errs, runsAlways(&s.Spec.Template, "StatefulSet")...)
}

// asControllerMakes returns a template with the fields that the controller adds to each pod: a
// volume for each claim, and a host name.
func asControllerMakes(s *appsv1.StatefulSet) *corev1.PodTemplateSpec {
	t := s.Spec.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	var of []corev1.Volume
	claimed := map[string]bool{}
	for _, c := range s.Spec.VolumeClaimTemplates {
		if !claimed[c.Name] {
			of = append(of,
				corev1.Volume{Name: c.Name,
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
		}
		claimed[c.Name] = true
	}
	for _, v := range t.Spec.Volumes {
		if !claimed[v.Name] {
			of = append(of, v)
		}
	}
	t.Spec.Volumes = of
	return t
}

// A template that was invalid before may stay invalid: otherwise the set could not be repaired.
func validateStatefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	errs := validateStatefulSpec(s)
	before := append(validateStatefulSpec(old),
		pods.ValidateTemplate(asControllerMakes(old), rules.SpecPath.Child("template"))...)
	if len(before) == 0 {
		errs = append(errs, pods.ValidateTemplate(asControllerMakes(s), rules.SpecPath.Child("template"))...)
	} else {
		errs = append(errs, metav1validation.ValidateLabels(s.Spec.Template.Labels,
			rules.SpecPath.Child("template", "labels"))...)
		errs = append(errs, apivalidation.ValidateAnnotations(s.Spec.Template.Annotations,
			rules.SpecPath.Child("template", "annotations"))...)
	}
	errs = append(errs, rules.ImmutableSelector(s.Spec.Selector, old.Spec.Selector,
		rules.SpecPath.Child("selector"))...)
	errs = append(errs, rules.ImmutableSelector(s.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates,
		rules.SpecPath.Child("volumeClaimTemplates"))...)
	errs = append(errs, rules.ImmutableSelector(s.Spec.ServiceName, old.Spec.ServiceName,
		rules.SpecPath.Child("serviceName"))...)
	return append(errs, rules.ImmutableSelector(s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy,
		rules.SpecPath.Child("podManagementPolicy"))...)
}

func statefulSetWarnings(s *appsv1.StatefulSet) []string {
	var out []string
	for i := range s.Spec.VolumeClaimTemplates {
		out = append(out, volumes.ClaimSpecWarnings(&s.Spec.VolumeClaimTemplates[i].Spec,
			rules.SpecPath.Child("volumeClaimTemplates").Index(i))...)
	}
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		out = append(out,
			"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return out
}
