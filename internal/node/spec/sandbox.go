package spec

import (
	"errors"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/resources"
)

// ErrUserNamespaces refuses spec.hostUsers=false on a runtime that can't do it (L3.163).
var ErrUserNamespaces = errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")

// SandboxConfig builds the sandbox of a pod (L3.145–147, L3.161–164). Warnings
// are to be recorded on the pod.
func SandboxConfig(in SandboxInput) (*cri.PodSandboxConfig, []Warning, error) {
	pod := in.Pod
	if usesUserNS(pod) && (!in.Node.UserNamespaces || in.UserNS == nil) {
		return nil, nil, ErrUserNamespaces
	}
	if err := CheckIDs(pod); err != nil {
		return nil, nil, err
	}
	hostname, err := kernelHostname(pod, in.Node.ClusterDomain)
	if err != nil {
		return nil, nil, err
	}
	dns, warnings, err := dnsConfig(pod, in.Node)
	if err != nil {
		return nil, nil, err
	}
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = make(map[string]string, 3)
	}
	maps.Copy(labels, podLabels(pod))

	return &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{
			Name:      pod.Name,
			Namespace: pod.Namespace,
			Uid:       string(pod.UID),
			Attempt:   in.Attempt,
		},
		Hostname:     hostname,
		LogDirectory: PodLogDir(in.Node.LogRoot, pod),
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Labels:       labels,
		Annotations:  maps.Clone(pod.Annotations),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    in.CgroupParent,
			SecurityContext: sandboxSecurity(pod, in.UserNS),
			Sysctls:         sysctls(pod),
			Overhead:        overheadResources(pod, in.Node),
			Resources:       podResources(pod, in.Node),
		},
	}, warnings, nil
}

// portMappings are the host ports of the pod's containers that run together; on the host network there is nothing to
// map. An init container that runs before them may have a host port of one of them.
func portMappings(pod *corev1.Pod) []*cri.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var mappings []*cri.PortMapping
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			mappings = append(mappings, &cri.PortMapping{
				Protocol:      protocol(p.Protocol),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	for i := range pod.Spec.InitContainers {
		if resources.IsSidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return mappings
}

func protocol(p corev1.Protocol) cri.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return cri.Protocol_UDP
	case corev1.ProtocolSCTP:
		return cri.Protocol_SCTP
	default:
		return cri.Protocol_TCP
	}
}

func sysctls(pod *corev1.Pod) map[string]string {
	if pod.Spec.SecurityContext == nil || len(pod.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	m := make(map[string]string, len(pod.Spec.SecurityContext.Sysctls))
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		m[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return m
}

// podResources is what the whole pod may use, for runtimes that size the sandbox (VMs).
func podResources(pod *corev1.Pod, node *Node) *cri.LinuxContainerResources {
	cg := resources.PodCgroup(pod)
	return &cri.LinuxContainerResources{
		CpuPeriod:          resources.CPUPeriod,
		CpuQuota:           node.quota(cg.CPUQuota),
		CpuShares:          int64(cg.CPUShares),
		MemoryLimitInBytes: cg.Memory,
	}
}

func overheadResources(pod *corev1.Pod, node *Node) *cri.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return nil
	}
	cpu := pod.Spec.Overhead.Cpu().MilliValue()
	return &cri.LinuxContainerResources{
		CpuPeriod:          resources.CPUPeriod,
		CpuQuota:           node.quota(resources.CPUQuota(cpu)),
		CpuShares:          int64(resources.CPUShares(cpu)),
		MemoryLimitInBytes: pod.Spec.Overhead.Memory().Value(),
	}
}
