package endpointslice_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/netplan"
	"carob/internal/core/netplan/endpointslice"
)

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web", Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.9", Selector: map[string]string{"app": "web"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80,
				TargetPort: intstr.FromString("http")}}},
	}
}

func pod(i int, port int32) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%04d", i),
		UID: types.UID(fmt.Sprint("u", i))},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning,
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.1.%d.%03d", i/250, i%250+1)},
				{IP: fmt.Sprintf("fd00::%x", i+1)}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	if port > 0 {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: "TCP"}}
	}
	return p
}

// store applies plans like the API server.
type store struct {
	*testing.T
	slices map[string]*discoveryv1.EndpointSlice
	made   int
}

func (s *store) run(in endpointslice.Input) endpointslice.Plan {
	s.Helper()
	in.Slices = nil
	for _, e := range s.slices {
		in.Slices = append(in.Slices, e)
	}
	if in.Zones == nil {
		in.Zones = map[string]string{"n": "z"}
	}
	plan := endpointslice.Decide(in)
	for _, e := range plan.Create {
		s.made++
		e.Name = fmt.Sprint(e.GenerateName, s.made)
		s.slices[e.Name] = e
	}
	for _, e := range plan.Update {
		if s.slices[e.Name] == nil {
			s.Fatalf("update of %s, which does not exist", e.Name)
		}
		s.slices[e.Name] = e
	}
	for _, e := range plan.Delete {
		delete(s.slices, e.Name)
	}
	return plan
}

func counts(p endpointslice.Plan) string {
	return fmt.Sprint(len(p.Create), len(p.Update), len(p.Delete))
}

// N1.8 to N1.17: a pod's life in the slices of a Service.
func TestLifeOfAPod(t *testing.T) {
	s := &store{T: t, slices: map[string]*discoveryv1.EndpointSlice{}}
	svc := service()
	in := endpointslice.Input{Service: svc}
	step := func(what, want string) *discoveryv1.EndpointSlice {
		t.Helper()
		if got := counts(s.run(in)); got != want {
			t.Errorf("%s: creates, updates, deletes are %s, want %s", what, got, want)
		}
		if got := counts(s.run(in)); got != "0 0 0" {
			t.Errorf("%s, once more: %s", what, got)
		}
		for _, e := range s.slices {
			return e
		}
		return nil
	}
	e := step("no pod: a placeholder", "1 0 0")
	name := e.Name
	if len(e.Ports) != 0 || len(e.Endpoints) != 0 || e.GenerateName != "web-" ||
		e.Labels["kubernetes.io/service-name"] != "web" || e.Labels["team"] != "a" ||
		e.Labels["endpointslice.kubernetes.io/managed-by"] != "endpointslice-controller.k8s.io" ||
		e.OwnerReferences[0].UID != "web" || !*e.OwnerReferences[0].Controller {
		t.Errorf("placeholder: %+v", e)
	}
	p := pod(1, 8080)
	in.Pods = []*corev1.Pod{p}
	conditions := func(what string, ready, serving, terminating bool) {
		t.Helper()
		e := step(what, "0 1 0")
		c := e.Endpoints[0].Conditions
		if e.Name != name || *c.Ready != ready || *c.Serving != serving || *c.Terminating != terminating {
			t.Errorf("%s: %s has %v %v %v", what, e.Name, *c.Ready, *c.Serving, *c.Terminating)
		}
	}
	conditions("a ready pod", true, true, false)
	for _, e := range s.slices {
		x := e.Endpoints[0]
		if *e.Ports[0].Port != 8080 || x.Addresses[0] != "10.1.0.2" || *x.NodeName != "n" || *x.Zone != "z" ||
			x.Hostname != nil || x.TargetRef.Name != p.Name || x.TargetRef.UID != p.UID || len(e.Endpoints) != 1 {
			t.Errorf("endpoint: %+v", e)
		}
	}
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	conditions("not ready", false, false, false)
	svc.Spec.PublishNotReadyAddresses = true
	conditions("published all the same", true, false, false)
	svc.Spec.PublishNotReadyAddresses = false
	p.Status.Conditions[0].Status = corev1.ConditionTrue
	conditions("ready again", true, true, false)
	p.DeletionTimestamp = &metav1.Time{}
	conditions("terminating", false, true, true)
	p.Spec.Hostname, p.Spec.Subdomain = "h", "web"
	if e := step("with a host name", "0 1 0"); e.Endpoints[0].Hostname == nil || *e.Endpoints[0].Hostname != "h" {
		t.Errorf("no host name: %+v", e.Endpoints)
	}
	p.Status.Phase = corev1.PodSucceeded
	if e := step("ended", "0 1 0"); e.Name != name || len(e.Endpoints) != 0 || len(e.Ports) != 0 {
		t.Errorf("the slice of the last pod did not become the placeholder: %+v", e)
	}
	svc.Labels = map[string]string{"team": "b", "kubernetes.io/service-name": "other"}
	if e := step("other labels", "0 1 0"); e.Labels["team"] != "b" || e.Labels["kubernetes.io/service-name"] != "web" {
		t.Errorf("labels: %v", e.Labels)
	}
	svc.UID = "again" // N1.10
	if e := step("a Service made anew", "1 0 1"); e.Name == name {
		t.Error("it took over the slice of the earlier Service")
	}
}

// N1.14, N1.20, N1.21, N1.28: a lost node, ports by name, and the time of the trigger.
func TestPortsNodesAndTrigger(t *testing.T) {
	s := &store{T: t, slices: map[string]*discoveryv1.EndpointSlice{}}
	lost := pod(9, 80)
	lost.Spec.NodeName = "nowhere"
	now := time.Unix(5, 7).UTC()
	plan := s.run(endpointslice.Input{Service: service(), Trigger: now,
		Pods: []*corev1.Pod{pod(1, 80), pod(2, 81), pod(3, 0), lost}})
	if len(plan.Lost) != 1 || plan.Lost[0] != lost.Name || len(s.slices) != 3 {
		t.Errorf("lost %v, %d slices", plan.Lost, len(s.slices))
	}
	for _, e := range s.slices {
		if e.Annotations["endpoints.kubernetes.io/last-change-trigger-time"] != "1970-01-01T00:00:05.000000007Z" {
			t.Errorf("annotations %v", e.Annotations)
		}
		if e.Endpoints[0].TargetRef.Name == "p0003" && len(e.Ports) != 0 {
			t.Errorf("ports of a pod without them: %v", e.Ports)
		}
	}
}

// N1.29, N1.30: hints come and go with the Service's trafficDistribution.
func TestHints(t *testing.T) {
	s := &store{T: t, slices: map[string]*discoveryv1.EndpointSlice{}}
	svc := service()
	in := endpointslice.Input{Service: svc, Pods: []*corev1.Pod{pod(1, 80)}}
	for _, step := range []struct {
		value       string
		zones, node int
	}{{"", 0, 0}, {"PreferSameZone", 1, 0}, {"PreferSameNode", 1, 1}, {"PreferClose", 1, 0}, {"", 0, 0}} {
		svc.Spec.TrafficDistribution = nil
		if step.value != "" {
			svc.Spec.TrafficDistribution = &step.value
		}
		s.run(in)
		for _, e := range s.slices {
			h := e.Endpoints[0].Hints
			if h == nil {
				h = &discoveryv1.EndpointHints{}
			}
			if len(h.ForZones) != step.zones || len(h.ForNodes) != step.node {
				t.Errorf("%q: %+v", step.value, h)
			}
		}
		if got := counts(s.run(in)); got != "0 0 0" {
			t.Errorf("%q, once more: %s", step.value, got)
		}
	}
}

// After random changes, each selected pod is listed exactly once per family, with its own ports and
// state, no other address is listed, no slice exceeds its maximum, and a second plan is empty.
func TestEveryPodOnce(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a repeatable test
		s := &store{T: t, slices: map[string]*discoveryv1.EndpointSlice{}}
		svc := service()
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, corev1.IPv6Protocol)
		pods := map[int]*corev1.Pod{}
		for range 25 {
			for range random.IntN(150) {
				i := random.IntN(400)
				switch random.IntN(5) {
				case 0:
					delete(pods, i)
				case 1:
					if p := pods[i]; p != nil {
						p.Status.Conditions[0].Status = corev1.ConditionFalse
					}
				case 2:
					if p := pods[i]; p != nil && random.IntN(4) == 0 {
						p.Status.Phase = corev1.PodFailed
					}
				default:
					pods[i] = pod(i, int32(random.IntN(3)))
				}
			}
			in := endpointslice.Input{Service: svc}
			for _, p := range pods {
				in.Pods = append(in.Pods, p)
			}
			s.run(in)
			s.check(svc, in.Pods)
			if got := counts(s.run(in)); got != "0 0 0" {
				t.Fatalf("seed %d: a second plan has %s", seed, got)
			}
		}
	}
}

func (s *store) check(svc *corev1.Service, pods []*corev1.Pod) {
	s.Helper()
	want, got := map[string]bool{}, map[string]bool{}
	for _, p := range pods {
		for _, f := range svc.Spec.IPFamilies {
			if netplan.Ended(p) {
				continue
			}
			n, ok := netplan.Target(p, &svc.Spec.Ports[0])
			want[fmt.Sprint(f, p.Name, netplan.Address(p, f), n, ok, netplan.Ready(p))] = true
		}
	}
	for _, e := range s.slices {
		if len(e.Endpoints) > endpointslice.Max {
			s.Fatalf("%s has %d endpoints", e.Name, len(e.Endpoints))
		}
		n, ok := int32(0), len(e.Ports) > 0
		if ok {
			n = *e.Ports[0].Port
		}
		for _, x := range e.Endpoints {
			id := fmt.Sprint(e.AddressType, x.TargetRef.Name, x.Addresses[0], n, ok, *x.Conditions.Ready)
			if got[id] || !want[id] {
				s.Fatalf("%s is listed twice, or should not be listed", id)
			}
			got[id] = true
		}
	}
	if len(got) != len(want) {
		s.Fatalf("%d endpoints, want %d", len(got), len(want))
	}
}
