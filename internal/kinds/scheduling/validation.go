package scheduling

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/core/resources"
	"carob/internal/kinds/rules"
)

const (
	systemPriorityPrefix       = "system-"
	highestUserPriority  int32 = 1_000_000_000
)

func validatePriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if value, known := resources.SystemPriority(c.Name); strings.HasPrefix(c.Name, systemPriorityPrefix) {
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
			errs = append(errs,
				field.Forbidden(field.NewPath("metadata", "name"),
					fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %s",
						systemPriorityPrefix, wrong)))
		}
	} else if c.Value > highestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %d", highestUserPriority)))
	}
	if p := c.PreemptionPolicy; p != nil {
		errs = append(errs, rules.OneOf(string(*p), field.NewPath("preemptionPolicy"),
			string(corev1.PreemptLowerPriority), string(corev1.PreemptNever))...)
	}
	return errs
}

func validatePriorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, rules.ImmutableSelector(c.PreemptionPolicy, old.PreemptionPolicy,
		field.NewPath("preemptionPolicy"))...)
}
