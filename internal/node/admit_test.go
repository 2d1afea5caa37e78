package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// L3.31, L3.41
func TestAdmitSysctls(t *testing.T) {
	for _, tt := range []struct {
		name             string
		hostNet, hostIPC bool
		want             string
	}{
		{name: "net.ipv4.tcp_syncookies"},
		{name: "net/ipv4/tcp_syncookies"},
		{name: "kernel.shm_rmid_forced"},
		{name: "net.ipv4.tcp_syncookies", hostNet: true, want: `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`},
		{name: "kernel.shm_rmid_forced", hostIPC: true, want: `forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host ipc enabled`},
		{name: "kernel.msgmax", want: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			HostNetwork: tt.hostNet, HostIPC: tt.hostIPC,
			SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: tt.name, Value: "1"}}},
		}}
		got := ""
		if r := admitSysctls(pod); r != nil {
			got = r.Message
		}
		if got != tt.want {
			t.Errorf("%s (host network %v, IPC %v): %q, want %q", tt.name, tt.hostNet, tt.hostIPC, got, tt.want)
		}
	}
}

// L3.30, L3.38
func TestAdmitUnderPressure(t *testing.T) {
	bestEffort := func() *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	}
	burstable := func() *corev1.Pod {
		p := bestEffort()
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		return p
	}
	critical := func() *corev1.Pod {
		p := bestEffort()
		priority := int32(2000000000)
		p.Spec.Priority = &priority
		return p
	}
	tolerant := func() *corev1.Pod {
		p := bestEffort()
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		return p
	}
	running := func() *corev1.Pod { p := bestEffort(); p.Status.Phase = corev1.PodRunning; return p }
	memory, disk := corev1.NodeMemoryPressure, corev1.NodeDiskPressure
	for _, tt := range []struct {
		name  string
		pod   *corev1.Pod
		under []corev1.NodeConditionType
		want  string
	}{
		{"no pressure", bestEffort(), nil, ""},
		{"memory, best effort", bestEffort(), []corev1.NodeConditionType{memory}, "The node had condition: [MemoryPressure]. "},
		{"memory, burstable", burstable(), []corev1.NodeConditionType{memory}, ""},
		{"memory, tolerated", tolerant(), []corev1.NodeConditionType{memory}, ""},
		{"disk, burstable", burstable(), []corev1.NodeConditionType{disk}, "The node had condition: [DiskPressure]. "},
		{"both, tolerated", tolerant(), []corev1.NodeConditionType{memory, disk}, "The node had condition: [MemoryPressure DiskPressure]. "},
		{"disk, critical", critical(), []corev1.NodeConditionType{disk}, ""},
		{"disk, runs already", running(), []corev1.NodeConditionType{disk}, ""},
	} {
		node := &corev1.Node{}
		for _, kind := range tt.under {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue})
		}
		got := ""
		if r := admitUnderPressure(tt.pod, node); r != nil {
			got = r.Message
			if r.Reason != "Evicted" {
				t.Errorf("%s: reason %s", tt.name, r.Reason)
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// The ledger follows the pods that are there: what left gives its share back (L3.20, L3.22).
func TestGateCounts(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")}
	down := false
	g := &gate{object: func() *corev1.Node { return node }, down: func() bool { return down }, appArmor: func() bool { return false }}
	pod := func(name, cpu string, port int32) *corev1.Pod {
		c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
		if port != 0 {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: port, Protocol: corev1.ProtocolTCP}}
		}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{c}}}
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
	a.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "c": corev1.DeprecatedAppArmorBetaProfileRuntimeDefault}
	for phase, want := range map[corev1.PodPhase]string{corev1.PodPending: "Cannot enforce AppArmor: AppArmor is not enabled on the host", corev1.PodRunning: ""} { // L3.33
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
	if r := g.admit(a, nil).Rejection; r == nil || r.Reason != "NodeShutdown" || r.Message != "Pod was rejected as the node is shutting down." { // L3.35
		t.Errorf("on a node that goes down: %+v", r)
	}
}

// L3.34
func TestAdmitFeatures(t *testing.T) {
	no := false
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostUsers: &no}}
	if r := admitFeatures(pod); r != nil {
		t.Errorf("refused: %+v", r)
	}
	pod.Spec.HostNetwork = true
	r := admitFeatures(pod)
	if r == nil || r.Reason != "PodFeatureUnsupported" || r.Message != "Pod requires node features that are not available: UserNamespacesHostNetworkSupport" {
		t.Errorf("%+v", r)
	}
}
