package gateway

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"carob/internal/core/gatewayplan"
	"carob/internal/gateway/certs"
)

// BenchmarkOneOfMany measures what the gateway does when one object of many changes: the path of an HTTPRoute or of an
// Ingress, among routes with a host each and among routes of one host, the certificate of an Ingress, and an endpoint,
// of a Service with few endpoints among many Services, and of a Service with many endpoints.
func BenchmarkOneOfMany(b *testing.B) {
	for _, n := range []int{50, 500, 5000} {
		for _, c := range []struct {
			name string
			make func(l *lab, n int) func(i int)
		}{
			{"httproutes/hosts", func(l *lab, n int) func(int) { return l.manyHTTPRoutes(n, "h%d.example.com") }},
			{"httproutes/paths", func(l *lab, n int) func(int) { return l.manyHTTPRoutes(n, "") }},
			{"ingresses/hosts", func(l *lab, n int) func(int) { return l.manyIngresses(n, "h%d.example.com") }},
			{"ingresses/paths", func(l *lab, n int) func(int) { return l.manyIngresses(n, "x%.0d.example.com") }},
			{"certificates", (*lab).manyCertificates},
			{"services", func(l *lab, n int) func(int) { return l.manyEndpoints(n, 2) }},
			{"endpoints", func(l *lab, n int) func(int) { return l.manyEndpoints(1, n) }},
		} {
			b.Run(fmt.Sprint(c.name, "/", n), func(b *testing.B) {
				l := newLab(b)
				change := c.make(l, n)
				change(0)
				before := processorTime()
				for i := 1; b.Loop(); i++ {
					change(i)
				}
				b.ReportMetric(float64(processorTime()-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

func (l *lab) manyHTTPRoutes(n int, host string) func(i int) {
	at80 := freePort(l.t)
	l.gateway(gatewayv1.HTTPProtocolType, at80)
	l.service("a", "")
	path := func(text string) []gatewayv1.HTTPRouteMatch {
		return []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Value: &text}}}
	}
	for i := range n {
		r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("r", i)}}
		r.Spec.ParentRefs = parent()
		r.Spec.Rules = []gatewayv1.HTTPRouteRule{{Matches: path(fmt.Sprint("/p", i)),
			BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: toService("a", 1)}}}}
		if host != "" {
			r.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(fmt.Sprintf(host, i))}
		}
		l.world.HTTPRoutes = append(l.world.HTTPRoutes, r)
	}
	routes := l.world.HTTPRoutes
	l.update()
	return func(i int) {
		r := routes[i%n].DeepCopy()
		r.Spec.Rules[0].Matches = path(fmt.Sprint("/new", i))
		s := l.snapshot()
		note(&s.Changes.HTTPRoutes, nameOf(r), r)
		l.followed(s)
	}
}

func (l *lab) manyIngresses(n int, host string) func(i int) {
	l.service("a", "")
	for i := range n {
		l.ingress(fmt.Sprintf(host, i), nil, fmt.Sprintf("/p%d=a", i))
	}
	all := l.world.Ingresses
	l.update()
	return func(i int) {
		in := all[i%n].DeepCopy()
		in.Spec.Rules[0].HTTP.Paths[0].Path = fmt.Sprint("/new", i)
		l.change(map[string]*networkingv1.Ingress{in.Name: in})
	}
}

func (l *lab) manyCertificates(n int) func(i int) {
	l.service("a", "")
	cert, err := certs.SelfSigned(time.Now())
	if err != nil {
		l.t.Fatal(err)
	}
	of := func(i int) name { return name{Namespace: "default", Name: fmt.Sprint("s", i)} }
	for i := range n {
		host := fmt.Sprintf("h%d.example.com", i)
		in := l.ingress(host, nil, "/=a")
		in.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host}, SecretName: of(i).Name}}
		l.certs[of(i)], l.world.Secrets[of(i)] = cert, gatewayplan.Material{}
	}
	l.update()
	return func(i int) {
		s := l.snapshot()
		note(&s.Changes.Secrets, of(i%n), &gatewayplan.Material{})
		note(&s.Certificates, of(i%n), new(*cert))
		l.followed(s)
	}
}

func (l *lab) manyEndpoints(services, endpoints int) func(i int) {
	const most = 100 // endpoints of a slice
	one := func(at, i int) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i%200, at>>8, at&0xff)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: types.UID(fmt.Sprint(at, "-", i))}}
	}
	of := func(s int) name { return name{Namespace: "default", Name: fmt.Sprint("s", s)} }
	for s := range services {
		l.service(of(s).Name, "")
		l.ingress(fmt.Sprintf("h%d.example.com", s), nil, fmt.Sprintf("/=s%d", s))
		port, number := "p", int32(80)
		for at := range endpoints {
			if at%most == 0 {
				l.slices[of(s)] = append(l.slices[of(s)], &discoveryv1.EndpointSlice{
					AddressType: discoveryv1.AddressTypeIPv4,
					ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(s, "-", at)},
					Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: &number}}})
			}
			slice := l.slices[of(s)][at/most]
			slice.Endpoints = append(slice.Endpoints, one(at, 0))
		}
	}
	l.update()
	return func(i int) {
		of := of(i % services)
		slice := l.slices[of][i/services%len(l.slices[of])]
		slice.Endpoints[i%len(slice.Endpoints)] = one(i%endpoints, i)
		s := l.snapshot()
		s.Changed[of] = true
		s.Services[of], s.Slices[of] = l.world.Services[of], l.slices[of]
		l.Gateway.update(l.t.Context(), s)
	}
}
