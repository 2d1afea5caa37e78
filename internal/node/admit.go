package node

import (
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/placement"
	"carob/internal/core/podlife"
	"carob/internal/core/resources"
	"carob/internal/node/object"
	"carob/internal/node/pods"
	"carob/internal/node/spec"
)

// gate is the node's admission of pods. It keeps what the pods hold counted, so
// that one more pod costs no walk over all the others. One goroutine at a time.
type gate struct {
	object func() *corev1.Node
	down   func() bool // the machine is going down
	// appArmor says whether the kernel enforces AppArmor profiles.
	appArmor func() bool
	node     placement.Node
	counted  map[types.UID]*corev1.Pod
}

// admit says whether the pod may run on this node, beside the others. The first
// check that refuses counts (L3.11).
func (g *gate) admit(pod *corev1.Pod, others []*corev1.Pod) pods.Verdict {
	object := g.object()
	if r := admitUnderPressure(pod, object); r != nil {
		return pods.Verdict{Rejection: r}
	}
	if r := admitSysctls(pod); r != nil {
		return pods.Verdict{Rejection: r}
	}
	if object == nil {
		return pods.Verdict{Rejection: rejection(placement.AdmitOnNode(pod, nil, nil, goruntime.GOOS))}
	}
	if g.node.Object != object {
		g.node.Set(object)
	}
	g.count(others)
	p := placement.Prepare(pod)
	if r := g.node.Admit(p, goruntime.GOOS); r != nil {
		v := pods.Verdict{Rejection: rejection(r)}
		if len(r.Short) > 0 {
			v.Victims = g.node.Victims(p, r.Short)
		}
		return v
	}
	if pod.Status.Phase == corev1.PodPending && spec.WantsAppArmor(pod) && !g.appArmor() { // L3.33
		return pods.Verdict{Rejection: &podlife.Rejection{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}}
	}
	if r := admitFeatures(pod); r != nil {
		return pods.Verdict{Rejection: r}
	}
	if g.down() { // L3.35
		return pods.Verdict{Rejection: &podlife.Rejection{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}}
	}
	return pods.Verdict{}
}

// count brings the ledger up to these pods.
func (g *gate) count(all []*corev1.Pod) {
	if g.counted == nil {
		g.counted = map[types.UID]*corev1.Pod{}
	}
	here := make(map[types.UID]bool, len(all))
	for _, pod := range all {
		here[pod.UID] = true
		old := g.counted[pod.UID]
		switch {
		case old == nil:
		case old == pod:
			continue
		case old.Generation == pod.Generation && old.Status.ObservedGeneration == pod.Status.ObservedGeneration && !resizing(old):
			continue // what it holds changes only with its spec, and with what the agent made of it
		default:
			g.node.Remove(pod.UID)
		}
		g.node.Add(placement.Prepare(pod))
		g.counted[pod.UID] = pod
	}
	for uid := range g.counted {
		if !here[uid] {
			g.node.Remove(uid)
			delete(g.counted, uid)
		}
	}
}

// admitFeatures refuses a pod that needs features of its node which this one has not (L3.34).
func admitFeatures(pod *corev1.Pod) *podlife.Rejection {
	missing, err := object.MissingFeatures(pod)
	switch {
	case err != nil:
		return &podlife.Rejection{Reason: "PodFeatureUnsupported", Message: fmt.Sprintf("Failed to infer pod's feature requirements: %v", err)}
	case len(missing) > 0:
		return &podlife.Rejection{Reason: "PodFeatureUnsupported", Message: missingFeatures(missing)}
	}
	return nil
}

func missingFeatures(names []string) string {
	return "Pod requires node features that are not available: " + strings.Join(names, ", ")
}

func resizing(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodResizeInProgress })
}

// hostAppArmor asks the kernel; that changes at a boot only.
func hostAppArmor() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

func rejection(r *placement.Rejection) *podlife.Rejection {
	if r == nil {
		return nil
	}
	return &podlife.Rejection{Reason: r.Reason, Message: r.Message}
}

// admitUnderPressure keeps new pods off a node that runs out of something (L3.38).
// Pods that ran already before the agent started are for eviction to judge.
func admitUnderPressure(pod *corev1.Pod, node *corev1.Node) *podlife.Rejection {
	if node == nil || resources.IsCritical(pod) || pod.Status.Phase == corev1.PodRunning {
		return nil
	}
	var under []string
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure:
			if c.Status == corev1.ConditionTrue {
				under = append(under, string(c.Type))
			}
		}
	}
	if len(under) == 0 {
		return nil
	}
	if len(under) == 1 && under[0] == string(corev1.NodeMemoryPressure) {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists) && (t.Effect == "" || t.Effect == taint.Effect)
		})
		if resources.QoS(pod) != corev1.PodQOSBestEffort || tolerated {
			return nil
		}
	}
	return &podlife.Rejection{Reason: "Evicted", Message: fmt.Sprintf("The node had condition: %v. ", under)} // L3.30
}

// safeSysctls may be set by every pod (L3.41).
var safeSysctls = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_notsent_lowat",
}

// admitSysctls refuses sysctls that would reach beyond the pod (L3.31, L3.41).
func admitSysctls(pod *corev1.Pod) *podlife.Rejection {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		var why string
		switch {
		case !slices.Contains(safeSysctls, name):
			why = fmt.Sprintf("%q not allowlisted", s.Name)
		case strings.HasPrefix(name, "net.") && pod.Spec.HostNetwork:
			why = fmt.Sprintf("%q not allowed with host net enabled", s.Name)
		case strings.HasPrefix(name, "kernel.") && pod.Spec.HostIPC:
			why = fmt.Sprintf("%q not allowed with host ipc enabled", s.Name)
		}
		if why != "" {
			return &podlife.Rejection{Reason: "SysctlForbidden", Message: "forbidden sysctl: " + why}
		}
	}
	return nil
}
