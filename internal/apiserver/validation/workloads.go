package validation

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var specPath = field.NewPath("spec")

func nonNegative[T int32 | int64](v *T, at *field.Path) field.ErrorList {
	if v == nil {
		return nil
	}
	return apivalidation.ValidateNonnegativeField(int64(*v), at)
}

// selects checks a workload's selector, and that it selects the pods of its own template.
func selects(selector *metav1.LabelSelector, t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	at, unmatched := specPath.Child("selector"), specPath.Child("template", "metadata", "labels")
	if selector == nil {
		// Nothing selects nothing.
		return field.ErrorList{field.Required(at, ""), field.Invalid(unmatched, t.Labels, "`selector` does not match template `labels`")}
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, at)
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(at, selector, fmt.Sprintf("empty selector is invalid for %s", kind)))
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	switch {
	case err != nil && kind == "daemonset": // which upstream says nothing more about
	case err != nil:
		errs = append(errs, field.Invalid(at, selector, "invalid label selector"))
	case !s.Empty() && !s.Matches(labels.Set(t.Labels)):
		errs = append(errs, field.Invalid(unmatched, t.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// replicated checks the template of a workload that keeps pods running.
func replicated(t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	return append(podTemplate(t, specPath.Child("template")), runsAlways(t, kind)...)
}

func runsAlways(t *corev1.PodTemplateSpec, kind string) field.ErrorList {
	at := specPath.Child("template")
	var errs field.ErrorList
	if t.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(at.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(at.Child("spec", "activeDeadlineSeconds"), fmt.Sprintf("activeDeadlineSeconds in %s is not Supported", kind)))
	}
	return errs
}

// amount checks a number or percentage.
func amount(v *intstr.IntOrString, at *field.Path) field.ErrorList {
	switch {
	case v == nil:
		return nil
	case v.Type == intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(v.IntVal), at)
	}
	errs := messages(at, v.StrVal, validation.IsValidPercent(v.StrVal))
	if n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, false); len(errs) == 0 && err == nil && n > 100 {
		errs = append(errs, field.Invalid(at, v.StrVal, "must not be greater than 100%"))
	}
	return errs
}

func zero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if v.Type == intstr.String && len(validation.IsValidPercent(v.StrVal)) == 0 {
		n, _ := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
		return n == 0
	}
	return v.IntValue() == 0
}

func deployment(d *appsv1.Deployment) field.ErrorList {
	s := &d.Spec
	errs := nonNegative(s.Replicas, specPath.Child("replicas"))
	errs = append(errs, selects(s.Selector, &s.Template, "deployment")...)
	errs = append(errs, replicated(&s.Template, "ReplicaSet")...) // which is what upstream calls it
	errs = append(errs, nonNegative(&s.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	errs = append(errs, nonNegative(s.RevisionHistoryLimit, specPath.Child("revisionHistoryLimit"))...)
	if p := s.ProgressDeadlineSeconds; p != nil {
		at := specPath.Child("progressDeadlineSeconds")
		errs = append(errs, nonNegative(p, at)...)
		if *p <= s.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *p, "must be greater than minReadySeconds"))
		}
	}
	at := specPath.Child("strategy")
	switch s.Strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.Strategy.RollingUpdate != nil {
			errs = append(errs, field.Forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'"))
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		r, at := s.Strategy.RollingUpdate, at.Child("rollingUpdate")
		if r == nil {
			return append(errs, field.Required(at, "this should be defaulted and never be nil"))
		}
		errs = append(errs, amount(r.MaxUnavailable, at.Child("maxUnavailable"))...)
		if r.MaxSurge != nil && r.MaxSurge.Type == intstr.String {
			errs = append(errs, messages(at.Child("maxSurge"), r.MaxSurge.StrVal, validation.IsValidPercent(r.MaxSurge.StrVal))...)
		} else {
			errs = append(errs, amount(r.MaxSurge, at.Child("maxSurge"))...)
		}
		if zero(r.MaxUnavailable) && zero(r.MaxSurge) {
			errs = append(errs, field.Invalid(at.Child("maxUnavailable"), r.MaxUnavailable, "may not be 0 when `maxSurge` is 0"))
		}
	default:
		errs = append(errs, field.NotSupported(at, s.Strategy, []string{string(appsv1.RecreateDeploymentStrategyType), string(appsv1.RollingUpdateDeploymentStrategyType)}))
	}
	return errs
}

func deploymentUpdate(d, old *appsv1.Deployment) field.ErrorList {
	return append(deployment(d), immutableSelector(d.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
}

func replicaSet(r *appsv1.ReplicaSet) field.ErrorList {
	errs := nonNegative(r.Spec.Replicas, specPath.Child("replicas"))
	errs = append(errs, nonNegative(&r.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	errs = append(errs, selects(r.Spec.Selector, &r.Spec.Template, "ReplicaSet")...)
	return append(errs, replicated(&r.Spec.Template, "ReplicaSet")...)
}

func replicaSetUpdate(r, old *appsv1.ReplicaSet) field.ErrorList {
	return append(replicaSet(r), immutableSelector(r.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
}

func replicationController(r *corev1.ReplicationController) field.ErrorList {
	errs := nonNegative(r.Spec.Replicas, specPath.Child("replicas"))
	errs = append(errs, nonNegative(&r.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	if len(r.Spec.Selector) == 0 {
		errs = append(errs, field.Required(specPath.Child("selector"), ""))
	}
	if r.Spec.Template == nil {
		return append(errs, field.Required(specPath.Child("template"), ""))
	}
	if s := labels.SelectorFromSet(r.Spec.Selector); !s.Empty() && !s.Matches(labels.Set(r.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(specPath.Child("template", "metadata", "labels"), r.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return append(errs, replicated(r.Spec.Template, "ReplicationController")...)
}

func daemonSet(d *appsv1.DaemonSet) field.ErrorList {
	errs := selects(d.Spec.Selector, &d.Spec.Template, "daemonset")
	errs = append(errs, replicated(&d.Spec.Template, "DaemonSet")...)
	errs = append(errs, nonNegative(&d.Spec.MinReadySeconds, specPath.Child("minReadySeconds"))...)
	errs = append(errs, nonNegative(d.Spec.RevisionHistoryLimit, specPath.Child("revisionHistoryLimit"))...)
	at := specPath.Child("updateStrategy")
	switch d.Spec.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		r, at := d.Spec.UpdateStrategy.RollingUpdate, at.Child("rollingUpdate")
		if r == nil {
			return append(errs, field.Required(at, ""))
		}
		errs = append(errs, amount(r.MaxUnavailable, at.Child("maxUnavailable"))...)
		errs = append(errs, amount(r.MaxSurge, at.Child("maxSurge"))...)
		switch none, surge := zero(r.MaxUnavailable), zero(r.MaxSurge); {
		case none && surge:
			errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
		case !none && !surge:
			errs = append(errs, field.Invalid(at.Child("maxSurge"), r.MaxSurge, "may not be set when maxUnavailable is non-zero"))
		}
	default:
		errs = append(errs, field.NotSupported(at, d.Spec.UpdateStrategy, []string{string(appsv1.RollingUpdateDaemonSetStrategyType), string(appsv1.OnDeleteDaemonSetStrategyType)}))
	}
	return errs
}

func daemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return append(daemonSet(d), immutableSelector(d.Spec.Selector, old.Spec.Selector, specPath.Child("selector"))...)
}

func controllerRevision(r *appsv1.ControllerRevision) field.ErrorList {
	errs := nonNegative(&r.Revision, field.NewPath("revision"))
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

func controllerRevisionUpdate(r, old *appsv1.ControllerRevision) field.ErrorList {
	return append(nonNegative(&r.Revision, field.NewPath("revision")), immutableSelector(r.Data, old.Data, field.NewPath("data"))...)
}
