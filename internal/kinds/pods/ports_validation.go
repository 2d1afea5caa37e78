package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"carob/internal/kinds/rules"
)

func (k *podChecker) ports(ports []corev1.ContainerPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range ports {
		at := at.Index(i)
		if p.Name != "" {
			if msgs := validation.IsValidPortName(p.Name); len(msgs) > 0 {
				errs = append(errs, rules.Messages(at.Child("name"), p.Name, msgs)...)
			} else if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			} else {
				names.Insert(p.Name)
			}
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs,
				rules.Messages(at.Child("containerPort"), p.ContainerPort,
					validation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs,
				rules.Messages(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))...)
			if k.spec.HostNetwork && p.HostPort != p.ContainerPort {
				errs = append(errs,
					field.Invalid(at.Child("hostPort"), p.HostPort,
						"must match `containerPort` when `hostNetwork` is true"))
			}
		}
		errs = append(errs, rules.Protocol(p.Protocol, at.Child("protocol"))...)
	}
	return errs
}

func validateHostPortConflicts(ports []corev1.ContainerPort, seen sets.Set[string], at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		if p.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
		if seen.Has(key) {
			errs = append(errs, field.Duplicate(at.Index(i).Child("hostPort"), key))
		}
		seen.Insert(key)
	}
	return errs
}
