package endpoints

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// objects returns objects like the watch caches.
type objects map[string][]runtime.Object

func (o objects) Get(_ context.Context, gr schema.GroupResource, namespace, name string) (runtime.Object, error) {
	for _, x := range o[gr.Resource] {
		if m := x.(metav1.Object); m.GetName() == name && m.GetNamespace() == namespace {
			return x, nil
		}
	}
	return nil, apierrors.NewNotFound(gr, name)
}

func (o objects) Await(ctx context.Context, gr schema.GroupResource, namespace, name string,
	_ time.Duration) (runtime.Object, error) {
	return o.Get(ctx, gr, namespace, name)
}

func (o objects) List(_ context.Context, gr schema.GroupResource, namespace string,
	fn func(runtime.Object) bool) error {
	for _, x := range o[gr.Resource] {
		if x.(metav1.Object).GetNamespace() == namespace && !fn(x) {
			return nil
		}
	}
	return nil
}

func service(spec corev1.ServiceSpec) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "n"}, Spec: spec}
}

func pod(name, ip string, isReady corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", Labels: map[string]string{"app": "s"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: 8443}}}}},
		Status: corev1.PodStatus{PodIP: ip,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: isReady}}}}
}

func slice(ready bool, ip string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s-1", Namespace: "n",
		Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports: []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(9443))}}}
}

func TestResolve(t *testing.T) {
	ports := []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromString("https")}}
	selecting := service(corev1.ServiceSpec{Ports: ports, Selector: map[string]string{"app": "s"}})
	for name, c := range map[string]struct {
		objects objects
		port    int32
		want    string // "" for an error
	}{
		"no service":   {objects{}, 443, ""},
		"another port": {objects{"services": {selecting}, "pods": {pod("a", "10.0.0.1", "True")}}, 80, ""},
		"ready pod by named port": {objects{"services": {selecting},
			"pods": {pod("a", "10.0.0.1", "True"), pod("b", "10.0.0.2", "False")}}, 443, "10.0.0.1:8443"},
		"no pod is ready": {objects{"services": {selecting}, "pods": {pod("b", "10.0.0.2", "False")}}, 443,
			""},
		"a slice goes before pods": {objects{"services": {selecting}, "pods": {pod("a", "10.0.0.1", "True")},
			"endpointslices": {slice(true, "10.0.0.9")}}, 443, "10.0.0.9:9443"},
		"a slice without ready": {objects{"services": {selecting}, "pods": {pod("a", "10.0.0.1", "True")},
			"endpointslices": {slice(false, "10.0.0.9")}}, 443, ""},
		"an IPv6 endpoint": {objects{"services": {selecting}, "endpointslices": {slice(true, "fd00::9")}}, 443,
			"[fd00::9]:9443"},
		"external name": {objects{
			"services": {service(corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
				ExternalName: "far.example.org"})}}, 443, "far.example.org:443"},
		"nobody without selector": {objects{"services": {service(corev1.ServiceSpec{Ports: ports})}}, 443, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Resolver{Reader: c.objects}
			u, err := r.ResolveEndpoint("n", "s", c.port)
			if c.want == "" {
				if err == nil {
					t.Errorf("got %v", u)
				}
				return
			}
			if err != nil || u.Host != c.want || u.Scheme != "https" {
				t.Errorf("got %v, %v, want %s", u, err, c.want)
			}
		})
	}
}

// Calls rotate through the endpoints.
func TestTurns(t *testing.T) {
	svc := service(corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}},
		Selector: map[string]string{"app": "s"}})
	r := &Resolver{Reader: objects{"services": {svc},
		"pods": {pod("a", "10.0.0.1", "True"), pod("b", "10.0.0.2", "True")}}}
	seen := map[string]int{}
	for range 4 {
		u, err := r.ResolveEndpoint("n", "s", 443)
		if err != nil {
			t.Fatal(err)
		}
		seen[u.Host]++
	}
	if seen["10.0.0.1:443"] != 2 || seen["10.0.0.2:443"] != 2 {
		t.Errorf("turns: %v", seen)
	}
}

func TestResolvePod(t *testing.T) {
	svc := service(corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80},
		{Name: "tls", Port: 443, TargetPort: intstr.FromString("https")}}, Selector: map[string]string{"app": "s"}})
	as := func(kind, namespace, name string) *discoveryv1.EndpointSlice {
		s := slice(true, "10.0.0.1")
		s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}
		return s
	}
	legacy := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "n"},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1",
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "n", Name: "a"}}, {IP: "192.0.2.1"}},
			Ports: []corev1.EndpointPort{{Port: 7000}}}}}
	pods := []runtime.Object{pod("a", "10.0.0.1", "True")}
	for name, c := range map[string]struct {
		objects objects
		port    string
		want    string // "" for an error
	}{
		"selector, the port without a name": {objects{"pods": pods}, "", "10.0.0.1:80"},
		"by number":                         {objects{"pods": pods}, "443", "10.0.0.1:8443"},
		"by name":                           {objects{"pods": pods}, "tls", "10.0.0.1:8443"},
		"no such port":                      {objects{"pods": pods}, "81", ""},
		"slice of the pod": {objects{"pods": pods, "endpointslices": {as("Pod", "n", "a")}}, "80",
			"10.0.0.1:9443"},
		"slice of an address": {objects{"pods": pods, "endpointslices": {slice(true, "10.0.0.1")}},
			"80", ""},
		"slice that lies about the pod": {objects{"pods": {pod("a", "10.0.0.2", "True")},
			"endpointslices": {as("Pod", "n", "a")}}, "80", ""},
		"slice of another namespace's pod": {objects{"pods": pods, "endpointslices": {as("Pod", "m", "a")}}, "80",
			""},
		"slice of no pod": {objects{"pods": pods, "endpointslices": {as("Node", "n", "a")}}, "80",
			""},
		"endpoints, of which one is not a pod": {objects{"pods": pods, "endpoints": {legacy}}, "80", "10.0.0.1:7000"},
		"endpoints don't have the named port":  {objects{"pods": pods, "endpoints": {legacy}}, "tls", ""},
	} {
		c.objects["services"] = []runtime.Object{svc}
		got, err := (&Resolver{Reader: c.objects}).ResolvePod(t.Context(), "n", "s", c.port)
		if got != c.want || (err == nil) != (c.want != "") || err != nil && !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := (&Resolver{Reader: objects{}}).ResolvePod(t.Context(), "n", "s", ""); !apierrors.IsNotFound(err) {
		t.Errorf("no service: %v", err)
	}
}
