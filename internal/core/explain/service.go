package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Service explains a Service: where its traffic goes, or why it has no destination. r.Pods are the pods that its
// selector matches.
func Service(s *corev1.Service, all []*discoveryv1.EndpointSlice, r Related, now time.Time) (out Lines) {
	out.object(s, unrecorded, now)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		out.info("is a name of %s in DNS; it has no endpoints", s.Spec.ExternalName)
		return out
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 0 {
		out.warn("waits for an address of a load balancer")
	}
	if len(s.Spec.Selector) > 0 {
		out.selected(s, r.Pods)
	} else {
		out.info("has no selector: its endpoints are not made by carob")
	}
	ready, other := addresses(all)
	switch {
	case len(ready) > 0:
		out.info("%s: %s", counted(len(ready), "ready endpoint"), some(ready))
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		out.warn("no endpoint is ready: its name has no address in DNS")
	default:
		out.warn("no endpoint is ready: connections are refused")
	}
	if len(other) > 0 {
		out.warn("%s: %s", counted(len(other), "endpoint")+" not ready", some(other))
	}
	return out.related(r, now)
}

// selected explains what is wrong with the pods that a Service selects.
func (l *Lines) selected(s *corev1.Service, pods []*corev1.Pod) {
	if len(pods) == 0 {
		l.warn("no pod matches its selector %s", labelsText(s.Spec.Selector))
		return
	}
	for _, p := range s.Spec.Ports {
		if p.TargetPort.Type != intstr.String {
			l.number(p, pods)
			continue
		}
		if !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return hasPort(pod, p) }) {
			l.warn("no container of its pods has a port named %q (protocol %s): port %d has no endpoint",
				p.TargetPort.StrVal, p.Protocol, p.Port)
		}
	}
}

// number adds a line if the pods declare ports, and none of them has the number of a target port. Containers need not
// declare the ports that they listen on, so that it is no problem by itself.
func (l *Lines) number(want corev1.ServicePort, pods []*corev1.Pod) {
	target := want.TargetPort.IntVal
	if target == 0 {
		target = want.Port
	}
	var declared []string
	for _, pod := range pods {
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				for _, p := range list[i].Ports {
					if p.ContainerPort == target {
						return
					}
					if n := fmt.Sprint(p.ContainerPort); !slices.Contains(declared, n) {
						declared = append(declared, n)
					}
				}
			}
		}
	}
	if len(declared) > 0 {
		l.info("port %d goes to port %d of its pods, whose containers declare %s: check targetPort", want.Port, target,
			some(declared))
	}
}

func hasPort(pod *corev1.Pod, want corev1.ServicePort) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.Name == want.TargetPort.StrVal && p.Protocol == want.Protocol {
					return true
				}
			}
		}
	}
	return false
}

// addresses returns the addresses of endpoints, without duplicates, in order.
func addresses(all []*discoveryv1.EndpointSlice) (ready, other []string) {
	have := map[string]bool{}
	for _, s := range all {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			for _, a := range e.Addresses {
				have[a] = have[a] || e.Conditions.Ready == nil || *e.Conditions.Ready
			}
		}
	}
	for _, a := range slices.Sorted(maps.Keys(have)) {
		if have[a] {
			ready = append(ready, a)
		} else {
			other = append(other, a)
		}
	}
	return ready, other
}

// some formats at most mostNamed names.
func some(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:mostNamed], ", ") + fmt.Sprintf(" and %d more", len(names)-mostNamed)
}
