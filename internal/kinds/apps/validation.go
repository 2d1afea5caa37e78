package apps

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

// selects validates a workload's selector, and that it matches the labels of the template.
func selects(selector *metav1.LabelSelector, t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	at, unmatched := rules.SpecPath.Child("selector"), rules.SpecPath.Child("template", "metadata", "labels")
	if selector == nil {
		// A selector that is not there selects nothing.
		errs := field.ErrorList{field.Invalid(unmatched, t.Labels, "`selector` does not match template `labels`")}
		if kind == "daemonset" { // upstream adds no text here
			return errs
		}
		return append(field.ErrorList{field.Required(at, "")}, errs...)
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at, selector, fmt.Sprintf("empty selector is invalid for %s", kind)))
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	switch {
	case err != nil && kind == "daemonset": // upstream adds no text here
	case err != nil:
		errs = append(errs, field.Invalid(at, selector, "invalid label selector"))
	case !s.Empty() && !s.Matches(labels.Set(t.Labels)):
		errs = append(errs, field.Invalid(unmatched, t.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// replicated validates the template of a workload whose pods are restarted.
func replicated(t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	return append(pods.ValidateTemplate(t, rules.SpecPath.Child("template")), runsAlways(t, kind)...)
}

func runsAlways(t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	at := rules.SpecPath.Child("template")
	var errs field.ErrorList
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(at.Child("spec", "restartPolicy"), t.Spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(at.Child("spec", "activeDeadlineSeconds"),
			fmt.Sprintf("activeDeadlineSeconds in %s is not Supported", kind)))
	}
	return errs
}

func validateDeployment(d *appsv1.Deployment) field.ErrorList {
	s := &d.Spec
	errs := rules.NonNegative(s.Replicas, rules.SpecPath.Child("replicas"))
	errs = append(errs, selects(s.Selector, &s.Template, "deployment")...)
	errs = append(errs, replicated(&s.Template, "ReplicaSet")...) // upstream's name for it
	errs = append(errs, rules.NonNegative(&s.MinReadySeconds, rules.SpecPath.Child("minReadySeconds"))...)
	errs = append(errs, rules.NonNegative(s.RevisionHistoryLimit, rules.SpecPath.Child("revisionHistoryLimit"))...)
	if p := s.ProgressDeadlineSeconds; p != nil {
		at := rules.SpecPath.Child("progressDeadlineSeconds")
		errs = append(errs, rules.NonNegative(p, at)...)
		if *p <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *p, "must be greater than minReadySeconds"))
		}
	}
	at := rules.SpecPath.Child("strategy")
	switch s.Strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.Strategy.RollingUpdate != nil {
			errs = append(errs,
				field.Forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'"))
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		r, at := s.Strategy.RollingUpdate, at.Child("rollingUpdate")
		if r == nil {
			return append(errs, field.Required(at, "this should be defaulted and never be nil"))
		}
		errs = append(errs, rules.Amount(r.MaxUnavailable, at.Child("maxUnavailable"))...)
		if r.MaxSurge != nil && r.MaxSurge.Type == intstr.String {
			errs = append(errs,
				rules.Messages(at.Child("maxSurge"), r.MaxSurge.StrVal,
					validation.IsValidPercent(r.MaxSurge.StrVal))...)
		} else {
			errs = append(errs, rules.Amount(r.MaxSurge, at.Child("maxSurge"))...)
		}
		if rules.Zero(r.MaxUnavailable) && rules.Zero(r.MaxSurge) {
			errs = append(errs,
				field.Invalid(at.Child("maxUnavailable"), r.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
		}
	default:
		errs = append(errs, field.NotSupported(at, s.Strategy,
			[]string{string(appsv1.RecreateDeploymentStrategyType),
				string(appsv1.RollingUpdateDeploymentStrategyType)}))
	}
	return errs
}

func validateDeploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	return append(validateDeployment(d),
		rules.ImmutableSelector(d.Spec.Selector, old.Spec.Selector, rules.SpecPath.Child("selector"))...)
}

func validateReplicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	errs := rules.NonNegative(r.Spec.Replicas, rules.SpecPath.Child("replicas"))
	errs = append(errs, rules.NonNegative(&r.Spec.MinReadySeconds, rules.SpecPath.Child("minReadySeconds"))...)
	errs = append(errs, selects(r.Spec.Selector, &r.Spec.Template, "deployment")...) // upstream has no text of its own
	return append(errs, replicated(&r.Spec.Template, "ReplicaSet")...)
}

func validateReplicaSetUpdate(r, old *appsv1.ReplicaSet) field.ErrorList {
	return append(validateReplicaSet(r),
		rules.ImmutableSelector(r.Spec.Selector, old.Spec.Selector, rules.SpecPath.Child("selector"))...)
}

func validateReplicationController(r *corev1.ReplicationController) field.ErrorList {
	errs := rules.NonNegative(r.Spec.Replicas, rules.SpecPath.Child("replicas"))
	errs = append(errs, rules.NonNegative(&r.Spec.MinReadySeconds, rules.SpecPath.Child("minReadySeconds"))...)
	if len(r.Spec.Selector) == 0 {
		errs = append(errs, field.Required(rules.SpecPath.Child("selector"), ""))
	}
	if r.Spec.Template == nil {
		return append(errs, field.Required(rules.SpecPath.Child("template"), ""))
	}
	if s := labels.SelectorFromSet(r.Spec.Selector); !s.Empty() && !s.Matches(labels.Set(r.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(rules.SpecPath.Child("template", "metadata", "labels"),
			r.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return append(errs, replicated(r.Spec.Template, "ReplicationController")...)
}

func validateDaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	errs := selects(d.Spec.Selector, &d.Spec.Template, "daemonset")
	errs = append(errs, replicated(&d.Spec.Template, "DaemonSet")...)
	errs = append(errs, rules.NonNegative(&d.Spec.MinReadySeconds, rules.SpecPath.Child("minReadySeconds"))...)
	errs = append(errs, rules.NonNegative(d.Spec.RevisionHistoryLimit, rules.SpecPath.Child("revisionHistoryLimit"))...)
	at := rules.SpecPath.Child("updateStrategy")
	switch d.Spec.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		r, at := d.Spec.UpdateStrategy.RollingUpdate, at.Child("rollingUpdate")
		if r == nil {
			return append(errs, field.Required(at, ""))
		}
		errs = append(errs, rules.Amount(r.MaxUnavailable, at.Child("maxUnavailable"))...)
		errs = append(errs, rules.Amount(r.MaxSurge, at.Child("maxSurge"))...)
		switch none, surge := rules.Zero(r.MaxUnavailable), rules.Zero(r.MaxSurge); {
		case none && surge:
			errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
		case !none && !surge:
			errs = append(errs,
				field.Invalid(at.Child("maxSurge"), r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
		}
	default:
		errs = append(errs, field.NotSupported(at, d.Spec.UpdateStrategy,
			[]string{string(appsv1.RollingUpdateDaemonSetStrategyType), string(appsv1.OnDeleteDaemonSetStrategyType)}))
	}
	return errs
}

func validateDaemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return append(validateDaemonSet(d),
		rules.ImmutableSelector(d.Spec.Selector, old.Spec.Selector, rules.SpecPath.Child("selector"))...)
}

func validateControllerRevision(r *appsv1.ControllerRevision) field.ErrorList {
	errs := rules.NonNegative(&r.Revision, field.NewPath("revision"))
	at := field.NewPath("data")
	var value any
	if r.Data.Raw == nil {
		return append(errs, field.Required(at, "data is mandatory"))
	}
	if err := json.Unmarshal(r.Data.Raw, &value); err != nil {
		return append(errs, field.Invalid(at, "<value omitted>", fmt.Sprintf("error parsing data: %v", err)))
	}
	switch value.(type) {
	case nil:
		errs = append(errs, field.Required(at, "data is mandatory"))
	case map[string]any:
	default:
		errs = append(errs, field.Required(at, "data must be a valid JSON object"))
	}
	return errs
}

func validateControllerRevisionUpdate(r, old *appsv1.ControllerRevision) field.ErrorList {
	return append(rules.NonNegative(&r.Revision, field.NewPath("revision")),
		rules.ImmutableSelector(r.Data, old.Data, field.NewPath("data"))...)
}
