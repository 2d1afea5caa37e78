package placement

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/resources"
)

// Machine holds the facts for a node's own admission that the Node object does not have.
type Machine struct {
	OS           string // as runtime.GOOS
	AppArmor     bool   // the kernel enforces AppArmor profiles
	ShuttingDown bool
	// UnsafeSysctls may be set by pods in addition to the safe ones: names, or prefixes that end
	// with an asterisk (S11.71).
	UnsafeSysctls []string
}

// Needs are the requirements of a pod for its node that are not in its resource requests.
type Needs struct {
	AppArmor bool     // one of its containers names a profile
	Missing  []string // features that the node doesn't have, sorted
	Unknown  error    // why its features can't be determined; nil: they can
	// Served are extended resources that are not counted here: claims provide them, or the pod has its share
	// already, or the device plugin is away, and the pod waits for it.
	Served []corev1.ResourceName
}

// Verdict is the result of a node's admission of a pod. The zero value: it may run.
type Verdict struct {
	Rejection *Rejection
	Victims   []*corev1.Pod // that have to end so that it can run (L3.40); nil: none
}

// AdmitHere is the whole admission of a node's agent, for a pod in addition to those that it
// counts; n has no Object while the node can't be read. The first check that refuses determines the
// result (L3.11).
func (n *Node) AdmitHere(p *Pod, m Machine, needs Needs) Verdict {
	if r := admitUnderPressure(p.Object, n.Object); r != nil {
		return Verdict{Rejection: r}
	}
	if r := admitSysctls(p.Object, m.UnsafeSysctls); r != nil {
		return Verdict{Rejection: r}
	}
	if n.Object == nil { // L3.27
		return Verdict{Rejection: &Rejection{Reason: "InvalidNodeInfo", Message: "Kubelet cannot get node info."}}
	}
	if r := n.admit(p, m.OS, needs.Served); r != nil {
		v := Verdict{Rejection: r}
		if len(r.Short) > 0 {
			v.Victims = n.Victims(p, r.Short)
		}
		return v
	}
	if p.Object.Status.Phase == corev1.PodPending && needs.AppArmor && !m.AppArmor { // L3.33
		return Verdict{Rejection: &Rejection{Reason: "AppArmor",
			Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}}
	}
	if r := admitFeatures(needs); r != nil {
		return Verdict{Rejection: r}
	}
	if m.ShuttingDown { // L3.35
		return Verdict{Rejection: &Rejection{Reason: "NodeShutdown",
			Message: "Pod was rejected as the node is shutting down."}}
	}
	return Verdict{}
}

// admitFeatures refuses a pod that needs features of its node that it does not have (L3.34).
func admitFeatures(needs Needs) *Rejection {
	const reason = "PodFeatureUnsupported"
	switch {
	case needs.Unknown != nil:
		return &Rejection{Reason: reason,
			Message: fmt.Sprintf("Failed to infer pod's feature requirements: %v", needs.Unknown)}
	case len(needs.Missing) > 0:
		return &Rejection{Reason: reason, Message: MissingFeatures(needs.Missing)}
	}
	return nil
}

// MissingFeatures returns which features a pod needs that a node lacks.
func MissingFeatures(names []string) string {
	return "Pod requires node features that are not available: " + strings.Join(names, ", ")
}

// admitUnderPressure keeps new pods off a node that runs out of something (L3.38). It does not
// apply to pods that ran before the agent started: eviction handles them.
func admitUnderPressure(pod *corev1.Pod, node *corev1.Node) *Rejection {
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
			return (t.Key == taint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists) &&
				(t.Effect == "" || t.Effect == taint.Effect)
		})
		if resources.QoS(pod) != corev1.PodQOSBestEffort || tolerated {
			return nil
		}
	}
	return &Rejection{Reason: "Evicted", Message: fmt.Sprintf("The node had condition: %v. ", under)} // L3.30
}

// safeSysctls may be set by every pod (L3.41).
var safeSysctls = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_slow_start_after_idle",
	"net.ipv4.tcp_notsent_lowat",
}

// admitSysctls refuses sysctls that would affect more than the pod (L3.31, L3.41). Sysctls that match unsafe
// apply to the pod's own network or IPC namespace.
func admitSysctls(pod *corev1.Pod, unsafe []string) *Rejection {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := sysctlName(s.Name)
		var why string
		switch {
		case !slices.Contains(safeSysctls, name) && !allowed(name, unsafe):
			why = fmt.Sprintf("%q not allowlisted", s.Name)
		case strings.HasPrefix(name, "net.") && pod.Spec.HostNetwork:
			why = fmt.Sprintf("%q not allowed with host net enabled", s.Name)
		case (strings.HasPrefix(name, "kernel.") || strings.HasPrefix(name, "fs.mqueue.")) && pod.Spec.HostIPC:
			why = fmt.Sprintf("%q not allowed with host ipc enabled", s.Name)
		}
		if why != "" {
			return &Rejection{Reason: "SysctlForbidden", Message: "forbidden sysctl: " + why}
		}
	}
	return nil
}

// sysctlName writes a sysctl with dots between its parts; slashes then mean dots within a part,
// such as that of a network device (sysctl.d(5)).
func sysctlName(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

// allowed reports whether a list has a sysctl, or a prefix of it that ends with an asterisk.
func allowed(name string, list []string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		entry = sysctlName(entry)
		prefix, wild := strings.CutSuffix(entry, "*")
		return entry == name || wild && strings.HasPrefix(name, prefix)
	})
}
