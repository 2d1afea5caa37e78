package observe

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/podlife"
	"carob/internal/node/spec"
)

func sandboxOf(item *cri.PodSandbox, s *cri.PodSandboxStatus) podlife.Sandbox {
	sb := podlife.Sandbox{
		ID:        item.Id,
		Attempt:   item.GetMetadata().GetAttempt(),
		CreatedAt: time.Unix(0, item.CreatedAt),
	}
	sb.HostNetwork = s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE
	if sb.HostNetwork {
		return sb
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		sb.IPs = append(sb.IPs, ip)
	}
	for _, ip := range s.GetNetwork().GetAdditionalIps() {
		sb.IPs = append(sb.IPs, ip.Ip)
	}
	return sb
}

func containerOf(item *cri.Container, s *cri.ContainerStatus) podlife.Container {
	meta := spec.Restore(item.Labels, item.Annotations)
	c := podlife.Container{
		ID:         item.Id,
		Name:       meta.Name,
		Attempt:    meta.RestartCount,
		SandboxID:  item.PodSandboxId,
		State:      stateOf(s.State),
		CreatedAt:  timeOf(s.CreatedAt),
		StartedAt:  timeOf(s.StartedAt),
		FinishedAt: timeOf(s.FinishedAt),
		ExitCode:   s.ExitCode,
		Reason:     s.Reason,
		Message:    s.Message,
		Image:      s.GetImage().GetImage(),
		ImageRef:   s.ImageRef,
		Hash:       meta.Hash,
		Resources:  resourcesOf(s.GetResources().GetLinux()),
		User:       userOf(s.GetUser().GetLinux()),
	}
	if c.ImageRef == "" {
		c.ImageRef = s.ImageId
	}
	return c
}

// timeOf reads a time of CRI; 0 means never.
func timeOf(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

func stateOf(s cri.ContainerState) podlife.ContainerState {
	switch s {
	case cri.ContainerState_CONTAINER_CREATED:
		return podlife.ContainerCreated
	case cri.ContainerState_CONTAINER_RUNNING:
		return podlife.ContainerRunning
	case cri.ContainerState_CONTAINER_EXITED:
		return podlife.ContainerExited
	default:
		return podlife.ContainerUnknown
	}
}

// resourcesOf turns cgroup numbers back into quantities (L3.127).
func resourcesOf(l *cri.LinuxContainerResources) *corev1.ResourceRequirements {
	if l == nil {
		return nil
	}
	r := &corev1.ResourceRequirements{}
	limit := func(name corev1.ResourceName, q *resource.Quantity) {
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[name] = *q
	}
	if l.CpuQuota > 0 && l.CpuPeriod > 0 {
		limit(corev1.ResourceCPU, resource.NewMilliQuantity(l.CpuQuota*1000/l.CpuPeriod, resource.DecimalSI))
	}
	if l.MemoryLimitInBytes > 0 {
		limit(corev1.ResourceMemory, resource.NewQuantity(l.MemoryLimitInBytes, resource.BinarySI))
	}
	if l.CpuShares > 0 {
		// Rounded up: 1024 shares are 1000 thousandths of a core, and back.
		milli := (l.CpuShares*1000 + 1023) / 1024
		r.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
	}
	return r
}

// limitedBy are the resources of a container that has so many CPUs for itself; 0: it shares them.
func limitedBy(own int, r *corev1.ResourceRequirements) *corev1.ResourceRequirements {
	if own == 0 || r == nil || !r.Limits.Cpu().IsZero() {
		return r
	}
	r = r.DeepCopy() // others have it, too
	if r.Limits == nil {
		r.Limits = corev1.ResourceList{}
	}
	r.Limits[corev1.ResourceCPU] = *resource.NewQuantity(int64(own), resource.DecimalSI)
	return r
}

func userOf(l *cri.LinuxContainerUser) *corev1.ContainerUser {
	if l == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{
		UID: l.Uid, GID: l.Gid, SupplementalGroups: l.SupplementalGroups,
	}}
}
