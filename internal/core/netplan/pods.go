// Package netplan holds what the plans of the service network share: which pods are behind a
// Service, at which addresses and ports, and since when. The drivers of EndpointSlices and
// Endpoints call it; it must never look at a clock or at the API.
//
// Contract: N1 in docs/spec/network.md.
package netplan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Selects reports whether controllers make endpoints for a Service: it has a selector and
// addresses of its own (N1.6).
func Selects(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && len(s.Spec.Selector) > 0
}

// Matches reports whether a Service selects pods with these labels.
func Matches(s *corev1.Service, l labels.Set) bool {
	return Selects(s) && labels.SelectorFromValidatedSet(s.Spec.Selector).Matches(l)
}

// Headless reports whether a Service has no cluster IP.
func Headless(s *corev1.Service) bool {
	return s.Spec.ClusterIP == corev1.ClusterIPNone || s.Spec.ClusterIP == ""
}

// Families returns the address families of a Service, the first one first. A Service that names
// none has the family of its cluster IP; a headless one has both (N1.11).
func Families(s *corev1.Service) []corev1.IPFamily {
	if len(s.Spec.IPFamilies) > 0 {
		return s.Spec.IPFamilies
	}
	if Headless(s) {
		return []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && a.Is6() {
		return []corev1.IPFamily{corev1.IPv6Protocol}
	}
	return []corev1.IPFamily{corev1.IPv4Protocol}
}

// Ready reports whether a pod is ready.
func Ready(p *corev1.Pod) bool {
	c := readyCondition(p)
	return c != nil && c.Status == corev1.ConditionTrue
}

func readyCondition(p *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// Ended reports whether all containers of a pod have ended for good.
func Ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// Address returns the address of a pod in one family in its canonical text; "" when it has none
// (N1.16).
func Address(p *corev1.Pod, family corev1.IPFamily) string {
	for _, ip := range p.Status.PodIPs {
		if a, ok := ParseIP(ip.IP); ok && a.Is6() == (family == corev1.IPv6Protocol) {
			return a.String()
		}
	}
	return ""
}

// ParseIP reads an address of a pod or an endpoint: IPv4 also in the form for IPv6, and with leading
// zeros; a zone is dropped.
func ParseIP(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(unpadded(text))
	return a.Unmap().WithZone(""), err == nil
}

// unpadded is an IPv4 address without leading zeros, which the API takes in a pod's status.
func unpadded(ip string) string {
	if strings.Contains(ip, ":") {
		return ip
	}
	parts := strings.Split(ip, ".")
	for i, part := range parts {
		for len(part) > 1 && part[0] == '0' {
			part = part[1:]
		}
		parts[i] = part
	}
	return strings.Join(parts, ".")
}

// Hostname returns the host name of a pod below a Service; "" when it has none (N1.17).
func Hostname(p *corev1.Pod, s *corev1.Service) string {
	if p.Spec.Subdomain != s.Name || p.Namespace != s.Namespace {
		return ""
	}
	return p.Spec.Hostname
}

// Target returns the port of a pod that a port of a Service targets; false when the pod has no port
// of the name (N1.20).
func Target(p *corev1.Pod, port *corev1.ServicePort) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		return port.TargetPort.IntVal, true
	}
	for i := range p.Spec.Containers {
		if n, ok := named(&p.Spec.Containers[i], port); ok {
			return n, true
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if n, ok := named(c, port); ok {
			return n, true
		}
	}
	return 0, false
}

func named(c *corev1.Container, port *corev1.ServicePort) (int32, bool) {
	for i := range c.Ports {
		if c.Ports[i].Name == port.TargetPort.StrVal && c.Ports[i].Protocol == port.Protocol {
			return c.Ports[i].ContainerPort, true
		}
	}
	return 0, false
}

// Changed reports whether a change of a pod may change endpoints (N1.2).
func Changed(before, after *corev1.Pod) bool {
	return !maps.Equal(before.Labels, after.Labels) ||
		before.Spec.Hostname != after.Spec.Hostname || before.Spec.Subdomain != after.Spec.Subdomain ||
		before.Spec.NodeName != after.Spec.NodeName ||
		Ready(before) != Ready(after) || Ended(before) != Ended(after) ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		!slices.EqualFunc(before.Status.PodIPs, after.Status.PodIPs,
			func(a, b corev1.PodIP) bool { return a.IP == b.IP })
}

// Seen holds the times of a Service and its pods at the last plan. The zero value is the state
// before the first plan.
type Seen struct {
	known   bool
	service time.Time
	pods    map[string]time.Time // by name, when Ready last changed
}

// Trigger returns the time of the change that leads to the next write, zero for none, and the new
// state (N1.28).
func (s Seen) Trigger(service *corev1.Service, pods []*corev1.Pod) (time.Time, Seen) {
	now := Seen{known: true, service: service.CreationTimestamp.Time, pods: map[string]time.Time{}}
	var first time.Time
	note := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for _, p := range pods {
		c := readyCondition(p)
		if c == nil || c.LastTransitionTime.IsZero() {
			continue
		}
		now.pods[p.Name] = c.LastTransitionTime.Time
		if c.LastTransitionTime.After(s.pods[p.Name]) {
			note(c.LastTransitionTime.Time)
		}
	}
	if now.service.After(s.service) {
		note(now.service)
	}
	if !s.known {
		return now.service, now
	}
	return first, now
}

// SetTrigger writes the time of a trigger into annotations, or removes it when it is zero.
func SetTrigger(annotations map[string]string, trigger time.Time) map[string]string {
	if trigger.IsZero() {
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		return annotations
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[corev1.EndpointsLastChangeTriggerTime] = trigger.UTC().Format(time.RFC3339Nano)
	return annotations
}

// PortKey is a text that is equal for equal ports, and sorts them by name, protocol, and number.
func PortKey(p *corev1.EndpointPort) string {
	app := "-"
	if p.AppProtocol != nil {
		app = fmt.Sprintf("%q", *p.AppProtocol)
	}
	return fmt.Sprintf("%q,%q,%05d,%s", p.Name, p.Protocol, p.Port, app)
}
