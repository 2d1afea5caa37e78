package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
