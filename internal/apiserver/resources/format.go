package resources

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"carob/internal/apiserver/table"
)

const (
	none    = "<none>"
	unknown = "<unknown>"
	unset   = "<unset>"
)

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// containers returns the names and images of the containers, comma separated.
func containers(cs []corev1.Container) (names, images string) {
	n, i := make([]string, len(cs)), make([]string, len(cs))
	for k := range cs {
		n[k], i[k] = cs[k].Name, cs[k].Image
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

// selector prints a label selector as kubectl get -o wide does.
func selector(s *metav1.LabelSelector) string {
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "<invalid>"
	}
	return orNone(sel.String())
}

// age prints a time that may be missing.
func age(t *metav1.Time, now time.Time) string {
	if t == nil {
		return none
	}
	return table.Age(*t, now)
}

func labelMap(m map[string]string) string { return labels.FormatLabels(m) }

// ServicePorts prints "80/TCP" or, with a node port, "80:30080/TCP".
func ServicePorts(ports []corev1.ServicePort) string {
	if len(ports) == 0 {
		return none
	}
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			out[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return strings.Join(out, ",")
}

// ExternalIP prints where a service is reached from outside.
func ExternalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeLoadBalancer:
		var in []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			if i.IP != "" {
				in = append(in, i.IP)
			} else if i.Hostname != "" {
				in = append(in, i.Hostname)
			}
		}
		in = append(in, s.Spec.ExternalIPs...)
		if len(in) == 0 {
			return "<pending>"
		}
		return strings.Join(in, ",")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	default:
		return orNone(strings.Join(s.Spec.ExternalIPs, ","))
	}
}

// endpointAddresses prints the first addresses of an Endpoints object and how many there are more.
func endpointAddresses(subsets []corev1.EndpointSubset) string {
	const most = 3
	var out []string
	total := 0
	for _, s := range subsets {
		add := func(host string) {
			if total++; len(out) < most {
				out = append(out, host)
			}
		}
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 {
				add(a.IP)
			}
			for _, p := range s.Ports {
				host := a.IP
				if strings.Contains(host, ":") {
					host = "[" + host + "]"
				}
				add(host + ":" + strconv.Itoa(int(p.Port)))
			}
		}
	}
	return more(out, total)
}

// more joins the shown elements and says how many of total are not.
func more(shown []string, total int) string {
	switch {
	case total == 0:
		return none
	case total > len(shown):
		return fmt.Sprintf("%s + %d more...", strings.Join(shown, ","), total-len(shown))
	}
	return strings.Join(shown, ",")
}

// accessModes prints access modes in their short form, each once, in the usual order.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(modes, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}
