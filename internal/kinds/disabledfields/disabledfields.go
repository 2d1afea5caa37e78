// Package disabledfields drops fields of pods that belong to features which are off by default in
// Kubernetes v1.37, as upstream's API server does, so that no client relies on fields without
// effect. A field stays if the stored object already has it. The strategies of pods, and of the
// kinds with a pod template, call it before validation. It writes to an object only to drop a
// field, so parts may be shared between objects without disabled fields.
package disabledfields

import corev1 "k8s.io/api/core/v1"

// PodSpec drops fields from s that old does not use; old is nil for a new object.
func PodSpec(s, old *corev1.PodSpec) {
	for _, feature := range []func(*corev1.PodSpec, *field){
		schedulingGroup, evictionResponders, stopSignal, httpProtocol, grpcMode, emptyDirMode, bindOptions, fileOwners,
	} {
		var before field
		if old != nil {
			feature(old, &before)
		}
		if !before.used {
			feature(s, &field{drop: true})
		}
	}
}

// PodStatus does the same with the status of a pod.
func PodStatus(s, old *corev1.PodStatus) {
	for _, feature := range []func(*corev1.PodStatus, *field){claimedNodeResources, volumeHealth, mountedImages} {
		var before field
		if feature(old, &before); !before.used {
			feature(s, &field{drop: true})
		}
	}
}

// field is the operation on the fields of one feature: whether one is used, or to drop them.
type field struct{ drop, used bool }

// pointer handles one place of a field.
func pointer[T any](f *field, p **T) {
	if *p == nil {
		return
	}
	f.used = true
	if f.drop {
		*p = nil
	}
}

func list[T any](f *field, p *[]T) {
	if len(*p) == 0 {
		return
	}
	f.used = true
	if f.drop {
		*p = nil
	}
}

// GenericWorkload.
func schedulingGroup(s *corev1.PodSpec, f *field) { pointer(f, &s.SchedulingGroup) }

// EvictionRequestAPI.
func evictionResponders(s *corev1.PodSpec, f *field) { list(f, &s.EvictionResponders) }

// containers calls visit with each container of any type.
func containers(s *corev1.PodSpec, visit func(*corev1.Container)) {
	for i := range s.InitContainers {
		visit(&s.InitContainers[i])
	}
	for i := range s.Containers {
		visit(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		visit((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
}

// ContainerStopSignals.
func stopSignal(s *corev1.PodSpec, f *field) {
	containers(s, func(c *corev1.Container) {
		if c.Lifecycle != nil {
			if pointer(f, &c.Lifecycle.StopSignal); f.drop && f.used && *c.Lifecycle == (corev1.Lifecycle{}) {
				c.Lifecycle = nil // nothing else was set
			}
		}
	})
}

func probes(c *corev1.Container, visit func(*corev1.Probe)) {
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			visit(p)
		}
	}
}

// H2CContainerProbe.
func httpProtocol(s *corev1.PodSpec, f *field) {
	http := func(a *corev1.HTTPGetAction) {
		if a != nil {
			pointer(f, &a.Protocol)
		}
	}
	containers(s, func(c *corev1.Container) {
		probes(c, func(p *corev1.Probe) { http(p.HTTPGet) })
		if l := c.Lifecycle; l != nil {
			for _, h := range []*corev1.LifecycleHandler{l.PostStart, l.PreStop} {
				if h != nil {
					http(h.HTTPGet)
				}
			}
		}
	})
}

// GRPCContainerProbeTLS.
func grpcMode(s *corev1.PodSpec, f *field) {
	containers(s, func(c *corev1.Container) {
		probes(c, func(p *corev1.Probe) {
			if p.GRPC != nil {
				pointer(f, &p.GRPC.Mode)
			}
		})
	})
}

// EmptyDirVolumeMode.
func emptyDirMode(s *corev1.PodSpec, f *field) {
	for i := range s.Volumes {
		if e := s.Volumes[i].EmptyDir; e != nil {
			pointer(f, &e.Mode)
		}
	}
}

// VolumeBindMountOptions.
func bindOptions(s *corev1.PodSpec, f *field) {
	containers(s, func(c *corev1.Container) {
		for i := range c.VolumeMounts {
			list(f, &c.VolumeMounts[i].BindMountOptions)
		}
	})
}

// AtomicWriteVolumeUserFields.
func fileOwners(s *corev1.PodSpec, f *field) {
	keys := func(items []corev1.KeyToPath) {
		for i := range items {
			pointer(f, &items[i].User)
		}
	}
	fields := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			pointer(f, &items[i].User)
		}
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		switch {
		case v.Secret != nil:
			pointer(f, &v.Secret.DefaultUser)
			keys(v.Secret.Items)
		case v.ConfigMap != nil:
			pointer(f, &v.ConfigMap.DefaultUser)
			keys(v.ConfigMap.Items)
		case v.DownwardAPI != nil:
			pointer(f, &v.DownwardAPI.DefaultUser)
			fields(v.DownwardAPI.Items)
		case v.Projected != nil:
			pointer(f, &v.Projected.DefaultUser)
			for j := range v.Projected.Sources {
				switch p := &v.Projected.Sources[j]; {
				case p.Secret != nil:
					keys(p.Secret.Items)
				case p.ConfigMap != nil:
					keys(p.ConfigMap.Items)
				case p.DownwardAPI != nil:
					fields(p.DownwardAPI.Items)
				case p.ServiceAccountToken != nil:
					pointer(f, &p.ServiceAccountToken.User)
				case p.ClusterTrustBundle != nil:
					pointer(f, &p.ClusterTrustBundle.User)
				case p.PodCertificate != nil:
					pointer(f, &p.PodCertificate.User)
				}
			}
		}
	}
}

// DRANodeAllocatableResources.
func claimedNodeResources(s *corev1.PodStatus, f *field) {
	list(f, &s.NodeAllocatableResourceClaimStatuses)
}

// CSIVolumeHealth.
func volumeHealth(s *corev1.PodStatus, f *field) { list(f, &s.VolumeHealth) }

// ImageVolumeWithDigest.
func mountedImages(s *corev1.PodStatus, f *field) {
	for _, statuses := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range statuses {
			for j := range statuses[i].VolumeMounts {
				pointer(f, &statuses[i].VolumeMounts[j].VolumeStatus)
			}
		}
	}
}
