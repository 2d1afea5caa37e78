// Package endpoints finds the pods of a Service for calls that the API server itself makes: to
// webhooks, aggregated API servers, and services/proxy. It dials the pods' addresses and needs no
// service data plane. The callers drive it; it reads the watch caches and keeps nothing but a
// counter.
package endpoints

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/apiserver/admission"
)

// Resolver resolves all Services; its methods may be called from several goroutines.
type Resolver struct {
	Reader admission.Reader
	next   atomic.Uint32
}

// lookTime is the time limit for reading the watch caches.
const lookTime = 5 * time.Second

// ResolveEndpoint returns the address of a ready endpoint of the Service's port as
// https://HOST:PORT. Calls rotate through the endpoints.
func (r *Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	obj, err := r.Reader.Get(ctx, corev1.Resource("services"), namespace, name)
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("%T is not a service", obj)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return location(svc.Spec.ExternalName, port), nil
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
	if i < 0 {
		return nil, fmt.Errorf("no service port %d found for service %q", port, name)
	}
	found, err := r.find(ctx, svc, &svc.Spec.Ports[i])
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no endpoints available for service %q", name)
	}
	t := r.take(found)
	return location(t.host, t.port), nil
}

// ResolvePod returns host:port of a ready pod of a Service; port is the number or the name of a
// port of the Service, "" for the one without a name. Endpoints that are not pods of the
// namespace are ignored: a user who may write endpoints must not make the server call any
// address.
func (r *Resolver) ResolvePod(ctx context.Context, namespace, name, port string) (string, error) {
	obj, err := r.Reader.Get(ctx, corev1.Resource("services"), namespace, name)
	if err != nil {
		return "", err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return "", fmt.Errorf("%T is not a service", obj)
	}
	number, numeric := 0, false
	if n, err := strconv.Atoi(port); err == nil {
		number, numeric = n, true
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return numeric && int(p.Port) == number || !numeric && p.Name == port
	})
	if i < 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, name))
	}
	found, err := r.find(ctx, svc, &svc.Spec.Ports[i])
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, func(t target) bool { return !r.isPod(ctx, namespace, t) })
	if len(found) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	t := r.take(found)
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))), nil
}

// isPod reports whether a target is the address of the pod that it names.
func (r *Resolver) isPod(ctx context.Context, namespace string, t target) bool {
	if t.pod == "" {
		return false
	}
	obj, err := r.Reader.Get(ctx, corev1.Resource("pods"), namespace, t.pod)
	if err != nil {
		return false
	}
	p, ok := obj.(*corev1.Pod)
	return ok &&
		(p.Status.PodIP == t.host || slices.ContainsFunc(p.Status.PodIPs,
			func(ip corev1.PodIP) bool { return ip.IP == t.host }))
}

// take returns one of the targets, in rotation; there is at least one.
func (r *Resolver) take(found []target) target {
	slices.SortFunc(found,
		func(a, b target) int { return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.port, b.port)) })
	return found[int(r.next.Add(1)%uint32(len(found)))] //nolint:gosec // few
}

type target struct {
	host string
	port int32
	pod  string // the pod that it names; "" for none
}

// podName returns the pod of a namespace that an endpoint refers to.
func podName(ref *corev1.ObjectReference, namespace string) string {
	if ref == nil || ref.Kind != "Pod" || ref.Namespace != "" && ref.Namespace != namespace {
		return ""
	}
	return ref.Name
}

func location(host string, port int32) *url.URL {
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
}

// find reads the service's endpoint slices, then its Endpoints, and, if there are neither, the pods
// themselves.
func (r *Resolver) find(ctx context.Context, svc *corev1.Service, port *corev1.ServicePort) ([]target, error) {
	var found []target
	known := false
	err := r.Reader.List(ctx, discoveryv1.Resource("endpointslices"), svc.Namespace, func(o runtime.Object) bool {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] == svc.Name {
			known = true
			found = append(found, fromSlice(s, port)...)
		}
		return true
	})
	if err != nil || known {
		return found, err
	}
	if o, err := r.Reader.Get(ctx, corev1.Resource("endpoints"), svc.Namespace, svc.Name); err == nil {
		if e, ok := o.(*corev1.Endpoints); ok {
			return fromEndpoints(e, port), nil
		}
	}
	if len(svc.Spec.Selector) == 0 {
		return nil, nil
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	err = r.Reader.List(ctx, corev1.Resource("pods"), svc.Namespace, func(o runtime.Object) bool {
		if p, ok := o.(*corev1.Pod); ok && selector.Matches(labels.Set(p.Labels)) &&
			(ready(p) || svc.Spec.PublishNotReadyAddresses) {
			if n := podPort(p, port); n > 0 && p.Status.PodIP != "" {
				found = append(found, target{p.Status.PodIP, n, p.Name})
			}
		}
		return true
	})
	return found, err
}

func fromSlice(s *discoveryv1.EndpointSlice, port *corev1.ServicePort) []target {
	i := slices.IndexFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
		return p.Port != nil && (p.Name == nil && port.Name == "" || p.Name != nil && *p.Name == port.Name)
	})
	if i < 0 {
		return nil
	}
	var out []target
	for _, e := range s.Endpoints {
		if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
			out = append(out, target{e.Addresses[0], *s.Ports[i].Port, podName(e.TargetRef, s.Namespace)})
		}
	}
	return out
}

func fromEndpoints(e *corev1.Endpoints, port *corev1.ServicePort) []target {
	var out []target
	for _, s := range e.Subsets {
		for _, p := range s.Ports {
			if p.Name != port.Name {
				continue
			}
			for _, a := range s.Addresses {
				out = append(out, target{a.IP, p.Port, podName(a.TargetRef, e.Namespace)})
			}
		}
	}
	return out
}

func ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podPort returns the port of a pod for a service port, 0 if the pod has none of that name.
func podPort(p *corev1.Pod, port *corev1.ServicePort) int32 {
	switch {
	case port.TargetPort.Type == intstr.String:
		for _, c := range p.Spec.Containers {
			for _, cp := range c.Ports {
				if cp.Name == port.TargetPort.StrVal &&
					cmp.Or(cp.Protocol, corev1.ProtocolTCP) == cmp.Or(port.Protocol, corev1.ProtocolTCP) {
					return cp.ContainerPort
				}
			}
		}
		return 0
	case port.TargetPort.IntVal > 0:
		return port.TargetPort.IntVal
	}
	return port.Port
}
