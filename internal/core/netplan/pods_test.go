package netplan_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/netplan"
)

// N1.6, N1.11: which Services have pods, and in which families.
func TestServices(t *testing.T) {
	selector := map[string]string{"app": "web"}
	for what, c := range map[string]struct {
		spec     corev1.ServiceSpec
		selects  bool
		families string
	}{
		"cluster IP":    {corev1.ServiceSpec{Selector: selector, ClusterIP: "10.0.0.1"}, true, "IPv4"},
		"IPv6":          {corev1.ServiceSpec{Selector: selector, ClusterIP: "fd00::1"}, true, "IPv6"},
		"headless":      {corev1.ServiceSpec{Selector: selector, ClusterIP: "None"}, true, "IPv4 IPv6"},
		"no selector":   {corev1.ServiceSpec{ClusterIP: "None"}, false, "IPv4 IPv6"},
		"external name": {corev1.ServiceSpec{Selector: selector, Type: "ExternalName"}, false, "IPv4 IPv6"},
		"named": {corev1.ServiceSpec{ClusterIP: "10.0.0.1",
			IPFamilies: []corev1.IPFamily{"IPv6", "IPv4"}}, false, "IPv6 IPv4"},
	} {
		s := &corev1.Service{Spec: c.spec}
		var families []string
		for _, f := range netplan.Families(s) {
			families = append(families, string(f))
		}
		if netplan.Selects(s) != c.selects || strings.Join(families, " ") != c.families ||
			netplan.Matches(s, labels.Set{"app": "web", "x": "y"}) != c.selects ||
			netplan.Matches(s, labels.Set{"x": "y"}) {
			t.Errorf("%s: %v, %q", what, netplan.Selects(s), families)
		}
	}
}

// N1.20: which container port a name refers to.
func TestTarget(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	port := func(name string, n int32, p corev1.Protocol) []corev1.ContainerPort {
		return []corev1.ContainerPort{{Name: name, ContainerPort: n, Protocol: p}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Ports: port("http", 80, "TCP")}, {Ports: port("http", 81, "TCP")},
			{Ports: port("dns", 53, "UDP")}},
		InitContainers: []corev1.Container{{Ports: port("setup", 82, "TCP")},
			{Ports: port("side", 83, "TCP"), RestartPolicy: &always}}}}
	for what, c := range map[string]struct {
		target   intstr.IntOrString
		protocol corev1.Protocol
		want     int32
		ok       bool
	}{
		"a number that no container has": {intstr.FromInt32(9), "TCP", 9, true},
		"the first of a name":            {intstr.FromString("http"), "TCP", 80, true},
		"of another protocol":            {intstr.FromString("dns"), "TCP", 0, false},
		"of this protocol":               {intstr.FromString("dns"), "UDP", 53, true},
		"of an init container":           {intstr.FromString("setup"), "TCP", 0, false},
		"of a sidecar":                   {intstr.FromString("side"), "TCP", 83, true},
		"of nobody":                      {intstr.FromString("x"), "TCP", 0, false},
	} {
		n, ok := netplan.Target(pod, &corev1.ServicePort{TargetPort: c.target, Protocol: c.protocol})
		if n != c.want || ok != c.ok {
			t.Errorf("%s: %d, %v", what, n, ok)
		}
	}
}

// N1.2: which changes of a pod matter to endpoints.
func TestChanged(t *testing.T) {
	pod := func(f func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}
		f(p)
		return p
	}
	before := pod(func(*corev1.Pod) {})
	for what, c := range map[string]struct {
		f    func(*corev1.Pod)
		want bool
	}{
		"nothing":    {func(*corev1.Pod) {}, false},
		"annotation": {func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "y"} }, false},
		"restarts": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
		}, false},
		"labels":    {func(p *corev1.Pod) { p.Labels["a"] = "c" }, true},
		"hostname":  {func(p *corev1.Pod) { p.Spec.Hostname = "h" }, true},
		"subdomain": {func(p *corev1.Pod) { p.Spec.Subdomain = "h" }, true},
		"node":      {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, true},
		"address":   {func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.0.0.2" }, true},
		"ended":     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		"deleted":   {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, true},
		"ready": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, true},
	} {
		if after := pod(c.f); netplan.Changed(before, after) != c.want || netplan.Changed(after, before) != c.want {
			t.Errorf("%s: %v", what, !c.want)
		}
	}
}

// N1.28: the time of a trigger is the first change that was not seen yet.
func TestTrigger(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.Unix(s, 0) }
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(5)}}
	pod := func(name string, s int64) *corev1.Pod {
		ready := corev1.PodCondition{Type: corev1.PodReady, LastTransitionTime: at(s)}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{ready}}}
	}
	var seen netplan.Seen
	for _, c := range []struct {
		what string
		pods []*corev1.Pod
		want int64 // 0: none
	}{
		{"a new Service", []*corev1.Pod{pod("a", 9)}, 5},
		{"nothing new", []*corev1.Pod{pod("a", 9)}, 0},
		{"two new ones", []*corev1.Pod{pod("a", 12), pod("b", 11)}, 11},
		{"one goes", []*corev1.Pod{pod("b", 11)}, 0},
		{"it comes again", []*corev1.Pod{pod("a", 20), pod("b", 11)}, 20},
	} {
		var got time.Time
		got, seen = seen.Trigger(service, c.pods)
		if c.want == 0 && !got.IsZero() || c.want != 0 && got.Unix() != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	a := netplan.SetTrigger(nil, time.Unix(1, 5))
	if a[corev1.EndpointsLastChangeTriggerTime] != "1970-01-01T00:00:01.000000005Z" {
		t.Errorf("annotations %v", a)
	}
	if a = netplan.SetTrigger(a, time.Time{}); len(a) != 0 {
		t.Errorf("annotations %v", a)
	}
}

func TestAddress(t *testing.T) {
	for ips, want := range map[string]string{
		"10.0.0.1": "10.0.0.1 ", "010.000.0.01": "10.0.0.1 ", "::ffff:10.0.0.1": "10.0.0.1 ", "fd00::0:1": " fd00::1",
		"fe80::1%eth0": " fe80::1", "x,10.0.0.2,fd00::1": "10.0.0.2 fd00::1", "": " ", "1.2.3.4.5": " ", "0x1.2.3.4": " ",
	} {
		p := &corev1.Pod{}
		for ip := range strings.SplitSeq(ips, ",") {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		if got := netplan.Address(p, "IPv4") + " " + netplan.Address(p, "IPv6"); got != want {
			t.Errorf("%q: %q", ips, got)
		}
	}
}

// FuzzAddress: whatever the status contains, an address that is used is canonical and of its
// family.
func FuzzAddress(f *testing.F) {
	f.Add("010.0.0.1", "http", "TCP")
	f.Add("::ffff:1.2.3.4", "", "udp")
	f.Add("fe80::1%\x00", "http\x00", "")
	f.Fuzz(func(t *testing.T, ip, name, protocol string) {
		p := &corev1.Pod{Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: name,
				ContainerPort: 7, Protocol: corev1.Protocol(protocol)}}}}}}
		for family, is6 := range map[corev1.IPFamily]bool{corev1.IPv4Protocol: false, corev1.IPv6Protocol: true} {
			text := netplan.Address(p, family)
			if text == "" {
				continue
			}
			a, err := netip.ParseAddr(text)
			if err != nil || a.String() != text || a.Is6() != is6 || a.Is4In6() || a.Zone() != "" {
				t.Errorf("%q as %s: %q", ip, family, text)
			}
		}
		port := &corev1.ServicePort{TargetPort: intstr.FromString(name), Protocol: corev1.Protocol(protocol)}
		if n, ok := netplan.Target(p, port); !ok || n != 7 {
			t.Errorf("port %q: %d, %v", name, n, ok)
		}
	})
}
