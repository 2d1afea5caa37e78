package node

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/pods"
	"carob/internal/kinds/rules"
)

func runtimeClassWarnings(c *nodev1.RuntimeClass) []string {
	if c.Scheduling == nil {
		return nil
	}
	var out []string
	for _, label := range slices.Sorted(maps.Keys(c.Scheduling.NodeSelector)) {
		if old, ok := rules.OldNodeLabels[label]; ok {
			out = append(out, fmt.Sprintf("scheduling.nodeSelector: %s", old))
		}
	}
	return out
}

func validateRuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	if at := field.NewPath("handler"); c.Handler == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, rules.Messages(at, c.Handler, validation.IsDNS1123Label(c.Handler))...)
	}
	if c.Overhead != nil {
		errs = append(errs, rules.ResourceRequirements(&corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}, false,
			field.NewPath("overhead"))...)
	}
	if c.Scheduling != nil {
		errs = append(errs, metav1validation.ValidateLabels(c.Scheduling.NodeSelector,
			field.NewPath("scheduling", "nodeSelector"))...)
		at := field.NewPath("scheduling", "tolerations")
		errs = append(errs, pods.ValidateTolerations(c.Scheduling.Tolerations, false, at)...)
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

func validateRuntimeClassUpdate(c, old *nodev1.RuntimeClass) field.ErrorList {
	return append(validateRuntimeClass(c),
		apivalidation.ValidateImmutableField(c.Handler, old.Handler, field.NewPath("handler"))...)
}
