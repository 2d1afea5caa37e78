package rules

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Protocol validates the protocol of a port, which is required.
func Protocol(p corev1.Protocol, at *field.Path) field.ErrorList {
	return OneOf(string(p), at, string(corev1.ProtocolSCTP), string(corev1.ProtocolTCP), string(corev1.ProtocolUDP))
}

// PortNumberOrName validates a port given by its number or by its name in a container.
func PortNumberOrName(p intstr.IntOrString, at *field.Path) field.ErrorList {
	if p.Type == intstr.String {
		return Messages(at, p.StrVal, validation.IsValidPortName(p.StrVal))
	}
	return Messages(at, p.IntVal, validation.IsValidPortNum(int(p.IntVal)))
}
