package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field returns the value of a fieldRef path (L3.133), for variables and for downward API files.
// podIPs are those of the sandbox; a pod on the host network has its node's.
func Field(pod *corev1.Pod, node *Node, podIPs []string, path string) (string, error) {
	if len(podIPs) == 0 && pod.Spec.HostNetwork {
		podIPs = node.HostIPs
	}
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "spec.hostname":
		return pod.Spec.Hostname, nil
	case "spec.subdomain":
		return pod.Spec.Subdomain, nil
	case "status.hostIP":
		return firstOf(node.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(node.HostIPs, ","), nil
	case "status.podIP":
		return firstOf(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

// subscript splits metadata.labels['key'].
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return name, strings.TrimSuffix(rest, "']"), true
}

// formatMap prints key="value", one to a line and sorted, as downward API files show labels.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}

func firstOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// ResourceField returns the value of a resourceFieldRef (L3.135). Without a container name it is that of own.
func ResourceField(pod *corev1.Pod, own *corev1.Container, node *Node, ref *corev1.ResourceFieldSelector) (string,
	error) {
	c := own
	if ref.ContainerName != "" && (own == nil || ref.ContainerName != own.Name) {
		c, _ = Find(pod, ref.ContainerName)
	}
	if c == nil {
		return "", fmt.Errorf("container %s not found", ref.ContainerName)
	}
	kind, rest, ok := strings.Cut(ref.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	name := corev1.ResourceName(rest)
	var amount resource.Quantity
	switch kind {
	case "requests":
		amount = c.Resources.Requests[name]
	case "limits":
		amount = effectiveLimit(pod, c, node, name)
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	switch {
	case name == corev1.ResourceCPU:
		return ceil(amount.MilliValue(), orOne(ref.Divisor).MilliValue()), nil
	case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(rest, corev1.ResourceHugePagesPrefix):
		return ceil(amount.Value(), orOne(ref.Divisor).Value()), nil
	}
	return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
}

// effectiveLimit is the container's limit, else the pod's, else the node's allocatable amount.
func effectiveLimit(pod *corev1.Pod, c *corev1.Container, node *Node, name corev1.ResourceName) resource.Quantity {
	if q := c.Resources.Limits[name]; !q.IsZero() {
		return q
	}
	if r := pod.Spec.Resources; r != nil {
		if q := r.Limits[name]; !q.IsZero() {
			return q
		}
	}
	return node.Allocatable[name]
}

func orOne(divisor resource.Quantity) *resource.Quantity {
	if divisor.IsZero() {
		return resource.NewQuantity(1, resource.DecimalSI)
	}
	return &divisor
}

func ceil(n, divisor int64) string {
	if divisor <= 0 {
		divisor = 1
	}
	q := n / divisor
	if n%divisor > 0 {
		q++
	}
	return strconv.FormatInt(q, 10)
}
