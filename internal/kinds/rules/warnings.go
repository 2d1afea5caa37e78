package rules

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Warnings collects warnings about fields.
type Warnings []string

// Add adds a warning about the field at a path.
func (h *Warnings) Add(at *field.Path, format string, args ...any) {
	*h = append(*h, at.String()+": "+fmt.Sprintf(format, args...))
}

// Bytes warns that an amount of memory or disk is not a whole number of bytes.
func (h *Warnings) Bytes(list corev1.ResourceList, at *field.Path, names ...corev1.ResourceName) {
	for _, name := range names {
		if q, ok := list[name]; ok && q.MilliValue()%1000 != 0 {
			h.Add(at.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}

// BalancerWarnings returns warnings about the addresses of a load balancer in a status.
func BalancerWarnings(i int, ip string) []string {
	if ip == "" {
		return nil
	}
	return validation.GetWarningsForIP(StatusPath.Child("loadBalancer", "ingress").Index(i), ip)
}
