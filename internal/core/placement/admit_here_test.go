package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// L3.31, L3.41
func TestAdmitSysctls(t *testing.T) {
	for _, tt := range []struct {
		name             string
		hostNet, hostIPC bool
		allowed          []string
		want             string
	}{
		{name: "net.ipv4.tcp_syncookies"},
		{name: "net/ipv4/tcp_syncookies"},
		{name: "kernel.shm_rmid_forced"},
		{name: "net.ipv4.tcp_syncookies", hostNet: true,
			want: `forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`},
		{name: "kernel.shm_rmid_forced", hostIPC: true,
			want: `forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host ipc enabled`},
		{name: "kernel.msgmax", allowed: []string{"kernel.msg*"}},
		{name: "net/ipv4/conf/eth0.100/arp_filter", allowed: []string{"net.ipv4.conf.*"}},
		{name: "net.core.somaxconn", allowed: []string{"net.core.somaxconn"}},
		{name: "net.core.somaxconn2", allowed: []string{"net.core.somaxconn"},
			want: `forbidden sysctl: "net.core.somaxconn2" not allowlisted`},
		{name: "net.core.somaxconn", allowed: []string{"net.*"}, hostNet: true,
			want: `forbidden sysctl: "net.core.somaxconn" not allowed with host net enabled`},
		{name: "fs.mqueue.msg_max", allowed: []string{"fs.mqueue.*"}, hostIPC: true,
			want: `forbidden sysctl: "fs.mqueue.msg_max" not allowed with host ipc enabled`},
		{name: "kernel.msgmax", want: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			HostNetwork: tt.hostNet, HostIPC: tt.hostIPC,
			SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: tt.name, Value: "1"}}},
		}}
		got := ""
		if r := admitSysctls(pod, tt.allowed); r != nil {
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
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure,
			Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
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
		{"memory, best effort", bestEffort(), []corev1.NodeConditionType{memory},
			"The node had condition: [MemoryPressure]. "},
		{"memory, burstable", burstable(), []corev1.NodeConditionType{memory}, ""},
		{"memory, tolerated", tolerant(), []corev1.NodeConditionType{memory}, ""},
		{"disk, burstable", burstable(), []corev1.NodeConditionType{disk}, "The node had condition: [DiskPressure]. "},
		{"both, tolerated", tolerant(), []corev1.NodeConditionType{memory, disk},
			"The node had condition: [MemoryPressure DiskPressure]. "},
		{"disk, critical", critical(), []corev1.NodeConditionType{disk}, ""},
		{"disk, runs already", running(), []corev1.NodeConditionType{disk}, ""},
	} {
		node := &corev1.Node{}
		for _, kind := range tt.under {
			node.Status.Conditions = append(node.Status.Conditions,
				corev1.NodeCondition{Type: kind, Status: corev1.ConditionTrue})
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

// The order of the admission checks (L3.11).
func TestAdmitHere(t *testing.T) {
	datadriven.RunTest(t, "testdata/admit.txt", func(t *testing.T, d *datadriven.TestData) string {
		n, m, needs := nodeWith(makeNode("n1", "2", "1Gi"), nil), Machine{OS: "linux"}, Needs{}
		pod := makePod("p", requests("cpu", "1"))
		pod.Status.Phase = corev1.PodPending
		for _, arg := range d.CmdArgs {
			value := ""
			if len(arg.Vals) > 0 {
				value = arg.Vals[0]
			}
			switch arg.Key {
			case "unknown-node":
				n = &Node{}
			case "pressure":
				for _, kind := range arg.Vals {
					n.Object.Status.Conditions = append(n.Object.Status.Conditions,
						corev1.NodeCondition{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionTrue})
				}
			case "shutting-down":
				m.ShuttingDown = true
			case "enforces-apparmor":
				m.AppArmor = true
			case "beside":
				n.Add(Prepare(makePod("other", requests("cpu", value))))
			case "critical":
				pod.Spec.Priority = new(int32(2_000_000_000))
			case "running":
				pod.Status.Phase = corev1.PodRunning
			case "windows":
				pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
			case "sysctl":
				pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: value,
					Value: "1"}}}
			case "apparmor":
				needs.AppArmor = true
			case "missing":
				needs.Missing = arg.Vals
			case "unclear":
				needs.Unknown = errors.New(value)
			default:
				t.Fatalf("%s: what is %q?", d.Pos, arg.Key)
			}
		}
		v := n.AdmitHere(Prepare(pod), m, needs)
		if v.Rejection == nil {
			return "runs\n"
		}
		text := fmt.Sprintf("%s: %s\n", v.Rejection.Reason, strings.TrimSpace(v.Rejection.Message))
		for _, victim := range v.Victims {
			text += "  ends " + victim.Name + "\n"
		}
		return text
	})
}
