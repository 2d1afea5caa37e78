package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The ledger follows the pods that are there: what left gives its share back (L3.20, L3.22).
func TestGateCounts(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
		corev1.ResourcePods: resource.MustParse("10")}
	down := false
	g := &admission{object: func() *corev1.Node { return node }, down: func() bool { return down },
		appArmor: func() bool { return false }}
	pod := func(name, cpu string, port int32) *corev1.Pod {
		c := corev1.Container{Name: "c",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
		if port != 0 {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: port, Protocol: corev1.ProtocolTCP}}
		}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{c}}}
	}
	a, b, c := pod("a", "1", 8080), pod("b", "1", 0), pod("c", "500m", 8080)
	for i, step := range []struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string
	}{
		{a, nil, ""},
		{b, []*corev1.Pod{a}, ""},
		{c, []*corev1.Pod{a, b}, "OutOfcpu"},
		{c, []*corev1.Pod{a}, "NodePorts"},
		{c, []*corev1.Pod{b}, ""},
		{a, []*corev1.Pod{b, c}, "OutOfcpu"},
		{a, nil, ""},
	} {
		got := ""
		if r := g.admit(step.pod, step.others).Rejection; r != nil {
			got = r.Reason
		}
		if got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	// L3.40: what a critical pod needs is what others hold.
	c.Spec.Priority, c.Spec.Containers[0].Ports = new(int32), nil
	*c.Spec.Priority = 2_000_000_000
	if v := g.admit(c, []*corev1.Pod{a, b}); v.Rejection == nil || len(v.Victims) != 1 {
		t.Errorf("a critical pod: %+v", v)
	}
	a.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix +
		"c": corev1.DeprecatedAppArmorBetaProfileRuntimeDefault}
	for phase, want := range map[corev1.PodPhase]string{corev1.PodPending: "Cannot enforce AppArmor: AppArmor is not enabled on the host", corev1.PodRunning: ""} {
		// L3.33
		a.Status.Phase = phase
		got := ""
		if r := g.admit(a, nil).Rejection; r != nil {
			got = r.Message
		}
		if got != want {
			t.Errorf("AppArmor, %s: %q, want %q", phase, got, want)
		}
	}
	a.Annotations = nil
	down = true
	if r := g.admit(a, nil).Rejection; r == nil || r.Reason != "NodeShutdown" ||
		r.Message != "Pod was rejected as the node is shutting down." {
		// L3.35
		t.Errorf("on a node that goes down: %+v", r)
	}
}

// A pod that was resized occupies what its status reports, until that is what its spec requests: then the ledger gives
// the rest to others, although the spec has not changed since (L3.127a).
func TestResizedPodIsCountedAgain(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"),
		corev1.ResourcePods: resource.MustParse("10")}
	g := &admission{object: func() *corev1.Node { return node }, down: func() bool { return false }}
	cpus := func(n string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}
	}
	pod := func(name, requests, has string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 2}}
		p.Spec.Containers = []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: cpus(requests)}}}
		p.Status.ObservedGeneration = 2
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: cpus(has),
			Resources: &corev1.ResourceRequirements{Requests: cpus(has)}}}
		return p
	}
	other := pod("other", "2", "2")
	for _, step := range []struct {
		has  string
		fits bool
	}{{"2", false}, {"2", false}, {"1", true}, {"2", false}} {
		if r := g.admit(other, []*corev1.Pod{pod("resized", "1", step.has)}).Rejection; (r == nil) != step.fits {
			t.Errorf("beside a pod that has %s: %+v", step.has, r)
		}
	}
}

// L3.34
func TestAdmitFeatures(t *testing.T) {
	no := false
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostUsers: &no}}
	if n := needs(pod); len(n.Missing) > 0 || n.Unknown != nil || n.AppArmor {
		t.Errorf("%+v", n)
	}
	pod.Spec.HostNetwork = true
	if n := needs(pod); len(n.Missing) != 1 || n.Missing[0] != "UserNamespacesHostNetworkSupport" || n.Unknown != nil {
		t.Errorf("%+v", n)
	}
}
