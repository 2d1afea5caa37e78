package podlife

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"carob/internal/core/podstatus"
	"carob/internal/core/resources"
)

const (
	reasonStatusUnknown = "ContainerStatusUnknown"
	reasonRestartingAll = "RestartingAllContainers"
	reasonOOMKilled     = "OOMKilled"
	reasonCompleted     = "Completed"

	unknownExitCode = 137
)

// status computes what to publish (L4.1–L4.10). Everything that has not changed
// is shared with the status published before.
func (m *machine) status() corev1.PodStatus {
	if m.s.End.Rejected {
		return m.rejectedStatus()
	}
	old := &m.s.Last
	st := corev1.PodStatus{
		ObservedGeneration:                   max(m.pod.Generation, old.ObservedGeneration),
		NominatedNodeName:                    m.pod.Status.NominatedNodeName,
		StartTime:                            m.startTime(),
		QOSClass:                             m.qosClass(),
		Resize:                               m.pod.Status.Resize,
		ResourceClaimStatuses:                m.pod.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          m.pod.Status.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: m.pod.Status.NodeAllocatableResourceClaimStatuses,
	}
	m.setAddresses(&st)
	m.setContainers(&st)
	m.setPhase(&st)
	m.setResources(&st)
	m.setConditions(&st)
	return st
}

// rejectedStatus replaces the agent's part of the status; conditions of other writers stay (L3.12).
func (m *machine) rejectedStatus() corev1.PodStatus {
	held := m.s.Life == Syncing || m.s.Life == Terminating // until its containers have ended (L7.70)
	st := m.s.Last
	if st.Phase == "" {
		st.Phase = corev1.PodPending
	}
	if !held {
		st = corev1.PodStatus{
			ObservedGeneration: max(m.pod.Generation, m.s.Last.ObservedGeneration),
			StartTime:          m.startTime(),
			QOSClass:           m.qosClass(),
			Phase:              m.s.End.Phase, Reason: m.s.End.Reason, Message: m.s.End.Message,
		}
	}
	var list []corev1.PodCondition
	for i := range m.pod.Status.Conditions {
		if c := &m.pod.Status.Conditions[i]; !podstatus.OwnCondition(c.Type) {
			list = append(list, *c)
		}
	}
	for i := range m.s.Last.Conditions {
		switch c := &m.s.Last.Conditions[i]; {
		case !held || !podstatus.OwnCondition(c.Type):
		case c.Type == corev1.PodReady: // the readiness gates are conditions of other writers
			list = append(list, m.stamped(m.podReady(m.containersReady(&m.s.Last))))
		default:
			list = append(list, *c)
		}
	}
	st.Conditions = list
	return st
}

func (m *machine) startTime() *metav1.Time {
	if t := m.s.Last.StartTime; t != nil && t.Time.Equal(m.s.StartTime) {
		return t
	}
	t := metav1.NewTime(m.s.StartTime)
	return &t
}

// setAddresses fills the addresses of host and pod (L4.2, L4.9).
func (m *machine) setAddresses(st *corev1.PodStatus) {
	old := &m.s.Last
	st.HostIP, st.HostIPs = old.HostIP, old.HostIPs
	if ips := m.in.Node.HostIPs; len(ips) > 0 && !sameHostIPs(old.HostIPs, ips) {
		st.HostIP, st.HostIPs = ips[0], nil
		for _, ip := range ips {
			st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	st.PodIP, st.PodIPs = old.PodIP, old.PodIPs
	if ips := m.publishedIPs(); len(ips) > 0 && !samePodIPs(old.PodIPs, ips) {
		st.PodIP, st.PodIPs = ips[0], nil
		for _, ip := range ips {
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
	}
}

// publishedIPs returns one address of each family, the node's primary family first.
func (m *machine) publishedIPs() []string {
	ips := m.podIPs()
	if len(ips) < 2 {
		return ips
	}
	primary6 := len(m.in.Node.HostIPs) > 0 && isIPv6(m.in.Node.HostIPs[0])
	one := slices.IndexFunc(ips, func(ip string) bool { return isIPv6(ip) == primary6 })
	two := slices.IndexFunc(ips, func(ip string) bool { return isIPv6(ip) != primary6 })
	switch {
	case one < 0:
		return ips[two : two+1]
	case two < 0:
		return ips[one : one+1]
	}
	return []string{ips[one], ips[two]}
}

func isIPv6(ip string) bool { return strings.Contains(ip, ":") }

func sameHostIPs(a []corev1.HostIP, b []string) bool {
	return slices.EqualFunc(a, b, func(x corev1.HostIP, y string) bool { return x.IP == y })
}

func samePodIPs(a []corev1.PodIP, b []string) bool {
	return slices.EqualFunc(a, b, func(x corev1.PodIP, y string) bool { return x.IP == y })
}

// second truncates a time to the precision of the API (L4.10).
func second(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t.Truncate(time.Second))
}

// qosClass returns the class that the API server stored, or the one of the spec (L1.40).
func (m *machine) qosClass() corev1.PodQOSClass {
	if q := m.pod.Status.QOSClass; q != "" {
		return q
	}
	return resources.ComputeQoS(m.pod)
}
