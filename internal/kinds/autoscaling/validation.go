package autoscaling

import (
	"fmt"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

// versionRule says which API versions a reference may have.
type versionRule struct{ any, coreGroup bool }

func validateAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	return validateAutoscalerSpec(&a.Spec,
		versionRule{coreGroup: a.Spec.ScaleTargetRef.Kind == "ReplicationController"}, versionRule{coreGroup: true})
}

func validateAutoscalerUpdate(a, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	target := versionRule{coreGroup: a.Spec.ScaleTargetRef.Kind == "ReplicationController"}
	if was := old.Spec.ScaleTargetRef; was.APIVersion == a.Spec.ScaleTargetRef.APIVersion &&
		was.Kind == a.Spec.ScaleTargetRef.Kind {
		target.any = true
	}
	object := versionRule{coreGroup: true}
	for _, m := range old.Spec.Metrics {
		if m.Type == autoscalingv2.ObjectMetricSourceType && m.Object != nil &&
			apiVersion(m.Object.DescribedObject.APIVersion, object) != nil {
			object.any = true
		}
	}
	return validateAutoscalerSpec(&a.Spec, target, object)
}

func validateAutoscalerSpec(s *autoscalingv2.HorizontalPodAutoscalerSpec, target, object versionRule) field.ErrorList {
	at := field.NewPath("spec")
	var errs field.ErrorList
	if s.MinReplicas != nil && *s.MinReplicas < 0 {
		errs = append(errs, field.Invalid(at.Child("minReplicas"), *s.MinReplicas,
			"must be greater than or equal to 0"))
	}
	switch {
	case s.MaxReplicas == 0:
		errs = append(errs, field.Required(at.Child("maxReplicas"), "must be set and greater than 0"))
	case s.MaxReplicas < 0:
		errs = append(errs, field.Invalid(at.Child("maxReplicas"), s.MaxReplicas, "must be greater than or equal to 1"))
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		errs = append(errs, field.Invalid(at.Child("maxReplicas"), s.MaxReplicas,
			"must be greater than or equal to `minReplicas`"))
	}
	errs = append(errs, validateCrossVersionReference(&s.ScaleTargetRef, target, at.Child("scaleTargetRef"))...)
	wakes := false // a metric that does not need pods
	for i := range s.Metrics {
		m := &s.Metrics[i]
		errs = append(errs, validateMetricSpec(m, object, at.Child("metrics").Index(i))...)
		wakes = wakes || m.Type == autoscalingv2.ObjectMetricSourceType ||
			m.Type == autoscalingv2.ExternalMetricSourceType
	}
	if s.MinReplicas != nil && *s.MinReplicas == 0 && !wakes {
		errs = append(errs, field.Forbidden(at.Child("metrics"),
			"must specify at least one Object or External metric to support scaling to zero replicas"))
	}
	if b := s.Behavior; b != nil {
		errs = append(errs, validateScalingRules(b.ScaleUp, at.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateScalingRules(b.ScaleDown, at.Child("behavior", "scaleDown"))...)
	}
	return errs
}

func validateCrossVersionReference(r *autoscalingv2.CrossVersionObjectReference, rule versionRule,
	at *field.Path) field.ErrorList {
	errs := rules.ObjectReference(nil, r.Kind, r.Name, at)
	if err := apiVersion(r.APIVersion, rule); err != nil {
		errs = append(errs, field.Invalid(at.Child("apiVersion"), r.APIVersion, err.Error()))
	}
	return errs
}

func apiVersion(version string, rule versionRule) error {
	if rule.any {
		return nil
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		return err
	}
	if gv.Group == "" && !rule.coreGroup {
		return fmt.Errorf("apiVersion must specify API group")
	}
	return nil
}

func validateScalingRules(r *autoscalingv2.HPAScalingRules, at *field.Path) field.ErrorList {
	const longestWindow, longestPeriod = 3600, 1800
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	if w, at := r.StabilizationWindowSeconds, at.Child("stabilizationWindowSeconds"); w != nil && *w < 0 {
		errs = append(errs, field.Invalid(at, *w, "must be greater than or equal to zero"))
	} else if w != nil && *w > longestWindow {
		errs = append(errs, field.Invalid(at, *w, fmt.Sprintf("must be less than or equal to %d", longestWindow)))
	}
	if p := r.SelectPolicy; p != nil {
		errs = append(errs, rules.Supported(string(*p), at.Child("selectPolicy"),
			string(autoscalingv2.DisabledPolicySelect), string(autoscalingv2.MaxChangePolicySelect),
			string(autoscalingv2.MinChangePolicySelect))...)
	}
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(at.Child("policies"), "must specify at least one Policy"))
	}
	for i, p := range r.Policies {
		at := at.Child("policies").Index(i)
		errs = append(errs, rules.Supported(string(p.Type), at.Child("type"),
			string(autoscalingv2.PercentScalingPolicy), string(autoscalingv2.PodsScalingPolicy))...)
		if p.Value <= 0 {
			errs = append(errs, field.Invalid(at.Child("value"), p.Value, "must be greater than zero"))
		}
		if p.PeriodSeconds <= 0 {
			errs = append(errs, field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero"))
		} else if p.PeriodSeconds > longestPeriod {
			errs = append(errs,
				field.Invalid(at.Child("periodSeconds"), p.PeriodSeconds,
					fmt.Sprintf("must be less than or equal to %d", longestPeriod)))
		}
	}
	if r.Tolerance != nil {
		errs = append(errs, rules.NonNegativeQuantity(*r.Tolerance, at.Child("tolerance"))...)
	}
	return errs
}

func validateMetricSpec(m *autoscalingv2.MetricSpec, object versionRule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Type == "" {
		errs = append(errs, field.Required(at.Child("type"), "must specify a metric source type"))
	}
	// In upstream's order: only the first one that is set is validated further.
	sources := []struct {
		kind  autoscalingv2.MetricSourceType
		name  string
		set   bool
		check func(at *field.Path) field.ErrorList
	}{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil, func(at *field.Path) field.ErrorList {
			errs := validateCrossVersionReference(&m.Object.DescribedObject, object, at.Child("describedObject"))
			errs = append(errs, validateMetricNamed(&m.Object.Metric, &m.Object.Target, at)...)
			if t := m.Object.Target; t.Value == nil && t.AverageValue == nil {
				errs = append(errs,
					field.Required(at.Child("target", "averageValue"),
						"must set either a target value or averageValue"))
			}
			return errs
		}},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil, func(at *field.Path) field.ErrorList {
			errs := validateMetricNamed(&m.External.Metric, &m.External.Target, at)
			switch t := m.External.Target; {
			case t.Value == nil && t.AverageValue == nil:
				errs = append(errs,
					field.Required(at.Child("target", "averageValue"),
						"must set either a target value for metric or a per-pod target"))
			case t.Value != nil && t.AverageValue != nil:
				errs = append(errs,
					field.Forbidden(at.Child("target", "value"),
						"may not set both a target value for metric and a per-pod target"))
			}
			return errs
		}},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil, func(at *field.Path) field.ErrorList {
			errs := validateMetricNamed(&m.Pods.Metric, &m.Pods.Target, at)
			if m.Pods.Target.AverageValue == nil {
				errs = append(errs,
					field.Required(at.Child("target", "averageValue"), "must specify a positive target averageValue"))
			}
			return errs
		}},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil, func(at *field.Path) field.ErrorList {
			var errs field.ErrorList
			if m.Resource.Name == "" {
				errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
			}
			return append(errs, validateResourceTarget(&m.Resource.Target, at.Child("target"))...)
		}},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil,
			func(at *field.Path) field.ErrorList {
				c := m.ContainerResource
				var errs field.ErrorList
				if c.Name == "" {
					errs = append(errs, field.Required(at.Child("name"), "must specify a resource name"))
				} else {
					errs = append(errs, rules.ResourceName(c.Name, at.Child("name"), true)...)
				}
				if c.Container == "" {
					errs = append(errs, field.Required(at.Child("container"), "must specify a container"))
				} else {
					errs = append(errs,
						rules.Messages(at.Child("container"), c.Container, validation.IsDNS1123Label(c.Container))...)
				}
				return append(errs, validateResourceTarget(&c.Target, at.Child("target"))...)
			}},
	}
	n, known := 0, false
	var kinds []string
	for _, s := range sources {
		kinds = append(kinds, string(s.kind))
		known = known || s.kind == m.Type
		if s.set {
			if n++; n == 1 {
				errs = append(errs, s.check(at.Child(s.name))...)
			}
		}
		if s.kind == m.Type && !s.set {
			errs = append(errs,
				field.Required(at.Child(s.name), "must populate information for the given metric source"))
		}
	}
	if slices.Sort(kinds); !known {
		errs = append(errs, field.NotSupported(at.Child("type"), m.Type, kinds))
	}
	for _, s := range sources {
		if s.set && s.kind != m.Type && n > 1 {
			errs = append(errs, field.Forbidden(at.Child(s.name), "must populate the given metric source only"))
		}
	}
	return errs
}

func validateMetricNamed(id *autoscalingv2.MetricIdentifier, t *autoscalingv2.MetricTarget,
	at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if id.Name == "" {
		errs = append(errs, field.Required(at.Child("metric", "name"), "must specify a metric name"))
	} else {
		errs = append(errs, rules.Messages(at.Child("metric", "name"), id.Name, content.IsPathSegmentName(id.Name))...)
	}
	return append(errs, validateMetricTarget(t, at.Child("target"))...)
}

func validateMetricTarget(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Type == "" {
		errs = append(errs, field.Required(at.Child("type"), "must specify a metric target type"))
	}
	if t.Type != autoscalingv2.UtilizationMetricType && t.Type != autoscalingv2.ValueMetricType &&
		t.Type != autoscalingv2.AverageValueMetricType {
		errs = append(errs, field.Invalid(at.Child("type"), t.Type,
			"must be either Utilization, Value, or AverageValue"))
	}
	for _, v := range []struct {
		name  string
		value *resource.Quantity
	}{{"value", t.Value}, {"averageValue", t.AverageValue}} {
		if v.value != nil && v.value.Sign() != 1 {
			errs = append(errs, field.Invalid(at.Child(v.name), v.value.String(), "must be positive"))
		}
	}
	if u := t.AverageUtilization; u != nil && *u < 1 {
		errs = append(errs, field.Invalid(at.Child("averageUtilization"), *u, "must be greater than 0"))
	}
	return errs
}

func validateResourceTarget(t *autoscalingv2.MetricTarget, at *field.Path) field.ErrorList {
	errs := validateMetricTarget(t, at)
	switch {
	case t.AverageUtilization == nil && t.AverageValue == nil:
		errs = append(errs, field.Required(at.Child("averageUtilization"),
			"must set either a target raw value or a target utilization"))
	case t.AverageUtilization != nil && t.AverageValue != nil:
		errs = append(errs, field.Forbidden(at.Child("averageValue"),
			"may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateAutoscalerStatusUpdate(a, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	at := field.NewPath("status")
	errs := apivalidation.ValidateNonnegativeField(int64(a.Status.CurrentReplicas), at.Child("currentReplicas"))
	for i, c := range a.Status.Conditions {
		errs = append(errs, rules.NonNegative(c.ObservedGeneration,
			at.Child("conditions").Index(i).Child("observedGeneration"))...)
	}
	return append(errs, apivalidation.ValidateNonnegativeField(int64(a.Status.DesiredReplicas),
		at.Child("desiredReplicas"))...)
}
