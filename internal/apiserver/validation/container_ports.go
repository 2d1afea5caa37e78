package validation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (k *podChecker) ports(ports []corev1.ContainerPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range ports {
		at := at.Index(i)
		if p.Name != "" {
			if msgs := validation.IsValidPortName(p.Name); len(msgs) > 0 {
				errs = append(errs, messages(at.Child("name"), p.Name, msgs)...)
			} else if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			} else {
				names.Insert(p.Name)
			}
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, messages(at.Child("containerPort"), p.ContainerPort, validation.IsValidPortNum(int(p.ContainerPort)))...)
		}
		if p.HostPort != 0 {
			errs = append(errs, messages(at.Child("hostPort"), p.HostPort, validation.IsValidPortNum(int(p.HostPort)))...)
			if k.spec.HostNetwork && p.HostPort != p.ContainerPort {
				errs = append(errs, field.Invalid(at.Child("hostPort"), p.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
		}
		errs = append(errs, protocol(p.Protocol, at.Child("protocol"))...)
	}
	return errs
}

func protocol(p corev1.Protocol, at *field.Path) field.ErrorList {
	return oneOf(string(p), at, string(corev1.ProtocolSCTP), string(corev1.ProtocolTCP), string(corev1.ProtocolUDP))
}

func hostPortConflicts(ports []corev1.ContainerPort, seen sets.Set[string], at *field.Path) field.ErrorList {
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

func portNumberOrName(p intstr.IntOrString, at *field.Path) field.ErrorList {
	if p.Type == intstr.String {
		return messages(at, p.StrVal, validation.IsValidPortName(p.StrVal))
	}
	return messages(at, p.IntVal, validation.IsValidPortNum(int(p.IntVal)))
}
