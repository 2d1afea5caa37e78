package vpa

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func modes() []UpdateMode {
	return []UpdateMode{ModeAuto, ModeInPlace, ModeInPlaceOrRecreate, ModeInitial, ModeOff, ModeRecreate}
}

// Validate returns the errors and warnings of an autoscaler; old is nil for a new one. Alpha fields
// stay allowed in objects that have them (W9.4, W9.10).
func Validate(v, old *VerticalPodAutoscaler) (warnings []string, errs field.ErrorList) {
	if old == nil {
		old = &VerticalPodAutoscaler{}
		if v.Spec.TargetRef == nil {
			errs = append(errs, field.Required(field.NewPath("spec", "targetRef"),
				"If you're using v1beta1 version of the API, please migrate to v1"))
		}
	}
	path := field.NewPath("spec")
	had := alphaOf(&old.Spec)
	if p := v.Spec.UpdatePolicy; p != nil {
		w, e := p.validate(path.Child("updatePolicy"), had)
		warnings, errs = append(warnings, w...), append(errs, e...)
	}
	if p := v.Spec.ResourcePolicy; p != nil {
		for i := range p.ContainerPolicies {
			at := path.Child("resourcePolicy", "containerPolicies").Index(i)
			w, e := p.ContainerPolicies[i].validate(at, had)
			warnings, errs = append(warnings, w...), append(errs, e...)
		}
	}
	if v.Spec.StartupBoost != nil && !had.boost {
		errs = append(errs, field.Forbidden(path.Child("startupBoost"), gate("startupBoost", "CPUStartupBoost")))
	}
	if n := len(v.Spec.Recommenders); n > 1 {
		errs = append(errs, field.TooMany(path.Child("recommenders"), n, 1))
	}
	return warnings, errs
}

func gate(what, feature string) string {
	return fmt.Sprintf("in order to use %s, you must enable feature gate %s in the admission-controller args", what,
		feature)
}

// alpha lists the alpha fields that a stored autoscaler has and that new ones must not have.
type alpha struct {
	inPlace, boost, perVPA bool
	resources              map[corev1.ResourceName]bool
}

func alphaOf(s *Spec) alpha {
	out := alpha{boost: s.StartupBoost != nil, resources: map[corev1.ResourceName]bool{}}
	if p := s.UpdatePolicy; p != nil {
		out.inPlace = p.UpdateMode != nil && *p.UpdateMode == ModeInPlace
		out.perVPA = p.EvictAfterOOMSeconds != nil
	}
	if s.ResourcePolicy == nil {
		return out
	}
	for i := range s.ResourcePolicy.ContainerPolicies {
		p := &s.ResourcePolicy.ContainerPolicies[i]
		out.boost = out.boost || p.StartupBoost != nil
		out.perVPA = out.perVPA || p.OOMBumpUpRatio != nil || p.OOMMinBumpUp != nil ||
			p.MemoryAggregationIntervalCount != nil || p.MemoryAggregationIntervalSeconds != nil
		if p.ControlledResources != nil {
			for _, r := range *p.ControlledResources {
				out.resources[r] = true
			}
		}
	}
	return out
}

func (p *UpdatePolicy) validate(path *field.Path, had alpha) (warnings []string, errs field.ErrorList) {
	switch at := path.Child("updateMode"); {
	case p.UpdateMode == nil:
		errs = append(errs, field.Required(at, "updateMode is required if UpdatePolicy is used"))
	case !slices.Contains(modes(), *p.UpdateMode):
		errs = append(errs, field.NotSupported(at, *p.UpdateMode, modes()))
	case *p.UpdateMode == ModeAuto:
		warnings = append(warnings, fmt.Sprintf("%s: %q mode is deprecated and will be removed in a future API "+
			"version. Use explicit update modes like: %s. See https://github.com/kubernetes/autoscaler/issues/8424 "+
			"for more details.", path, ModeAuto, modes()))
	case *p.UpdateMode == ModeInPlace && !had.inPlace:
		errs = append(errs, field.Forbidden(at, gate("UpdateMode InPlace", "InPlace")))
	}
	if p.MinReplicas != nil && *p.MinReplicas <= 0 {
		errs = append(errs, field.Invalid(path.Child("minReplicas"), *p.MinReplicas, "minReplicas has to be positive"))
	}
	if p.EvictAfterOOMSeconds != nil {
		errs = append(errs, perVPA(path.Child("evictAfterOOMSeconds"), had, *p.EvictAfterOOMSeconds >= 1,
			*p.EvictAfterOOMSeconds, 1)...)
	}
	return warnings, errs
}

// perVPA checks a field of the feature PerVPAConfig, which is alpha.
func perVPA(path *field.Path, had alpha, fits bool, value any, floor float64) field.ErrorList {
	switch {
	case !had.perVPA:
		return field.ErrorList{field.Forbidden(path, "not supported when feature flag PerVPAConfig is disabled")}
	case !fits:
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be greater than or equal to %v", floor))}
	}
	return nil
}

func (p *ContainerPolicy) validate(path *field.Path, had alpha) (warnings []string, errs field.ErrorList) {
	if p.ContainerName == "" {
		errs = append(errs, field.Required(path.Child("containerName"), ""))
	}
	if p.Mode != nil && *p.Mode != ScalingAuto && *p.Mode != ScalingOff {
		errs = append(errs, field.NotSupported(path.Child("mode"), *p.Mode, []string{ScalingAuto, ScalingOff}))
	}
	for _, name := range slices.Sorted(maps.Keys(p.MinAllowed)) {
		low := p.MinAllowed[name]
		errs = append(errs, whole(path.Child("minAllowed").Key(string(name)), name, low)...)
		if high, there := p.MaxAllowed[name]; there && high.Cmp(low) < 0 {
			errs = append(errs, field.Invalid(path.Child("maxAllowed").Key(string(name)), high.String(),
				fmt.Sprintf("max resource for %v is lower than min of \"%v\"", name, low.String())))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.MaxAllowed)) {
		errs = append(errs, whole(path.Child("maxAllowed").Key(string(name)), name, p.MaxAllowed[name])...)
	}
	if p.off() && p.ControlledValues != nil && *p.ControlledValues == RequestsAndLimits {
		errs = append(errs, field.Forbidden(path.Child("controlledValues"),
			"controlledValues shouldn't be specified if container scaling mode is off"))
	}
	if p.ControlledResources != nil {
		for i, name := range *p.ControlledResources {
			known := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
			switch at := path.Child("controlledResources").Index(i); {
			case slices.Contains(known, name):
			case had.resources[name]:
				warnings = append(warnings, fmt.Sprintf("%s: unsupported value %q is allowed only because it is "+
					"present in the existing VPA object; supported values: %q, %q", at, name, known[0], known[1]))
			default:
				errs = append(errs, field.NotSupported(at, name, known))
			}
		}
	}
	if q := p.OOMBumpUpRatio; q != nil {
		errs = append(errs, perVPA(path.Child("oomBumpUpRatio"), had, q.MilliValue() >= 1000, q.String(), 1)...)
	}
	if q := p.OOMMinBumpUp; q != nil {
		errs = append(errs, perVPA(path.Child("oomMinBumpUp"), had, q.Sign() >= 0, q.String(), 0)...)
	}
	if n := p.MemoryAggregationIntervalSeconds; n != nil {
		errs = append(errs, perVPA(path.Child("memoryAggregationIntervalSeconds"), had, *n >= 1, *n, 1)...)
	}
	if n := p.MemoryAggregationIntervalCount; n != nil {
		errs = append(errs, perVPA(path.Child("memoryAggregationIntervalCount"), had, *n >= 1, *n, 1)...)
	}
	if p.StartupBoost != nil && !had.boost {
		errs = append(errs, field.Forbidden(path.Child("startupBoost"), gate("startupBoost", "CPUStartupBoost")))
	}
	return warnings, errs
}

// whole returns an error if an amount is not a whole number of milli-cores or bytes.
func whole(path *field.Path, name corev1.ResourceName, q resource.Quantity) field.ErrorList {
	unit, text := resource.Scale(0), "must be a whole number of bytes"
	switch name {
	case corev1.ResourceCPU:
		unit, text = resource.Milli, "must be a whole number of milli CPUs"
	case corev1.ResourceMemory:
	default:
		return nil
	}
	if q.Sign() < 0 { // a pod with a negative request can't be created
		return field.ErrorList{field.Invalid(path, q.String(), "must be greater than or equal to 0")}
	}
	if _, exact := q.AsScale(unit); !exact {
		return field.ErrorList{field.Invalid(path, q.String(), text)}
	}
	return nil
}
