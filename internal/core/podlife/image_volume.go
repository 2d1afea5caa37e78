package podlife

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// volumeName names an image volume among the containers, none of which can have a
// slash in its name.
func volumeName(name string) string { return "volume/" + name }

// imageVolumes returns the image volumes of the pod (L3.115).
func imageVolumes(spec *corev1.PodSpec) []podContainer {
	var list []podContainer
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.Image != nil && v.Image.Reference != "" {
			list = append(list, podContainer{class: volume, spec: &corev1.Container{
				Name: volumeName(v.Name), Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy,
			}})
		}
	}
	return list
}

// getVolumeImages gets the images of all volumes and reports whether those that c mounts are here.
// The containers that mount a missing one show the reason.
func (m *machine) getVolumeImages(c *podContainer) (here bool) {
	if !m.volumeImagesRequested {
		m.volumeImagesRequested = true
		for i := range m.volumes {
			if v := &m.volumes[i]; v.record.Pulled == "" {
				v.record.Pulled, _, _ = m.getImage(v) // a present image is looked up once, too
			}
		}
	}
	here = true
	for i := range m.volumes {
		v := &m.volumes[i]
		if v.record.Pulled != "" || !mountsVolume(c, v) {
			continue
		}
		here = false
		if v.record.Waiting.Reason != "" {
			c.record.Waiting = v.record.Waiting
		}
	}
	return here
}

func mountsVolume(c, v *podContainer) bool {
	return slices.ContainsFunc(c.spec.VolumeMounts,
		func(m corev1.VolumeMount) bool { return volumeName(m.Name) == v.spec.Name })
}
