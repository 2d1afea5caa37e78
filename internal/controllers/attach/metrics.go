package attach

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/controllers/metrics"
	"carob/internal/controllers/source"
	"carob/internal/core/volume"
)

// measure counts the volumes of drivers that pods use, that are to be attached, and that are attached.
func (c *Controller) measure() {
	metrics.VolumesInUse.Reset()
	metrics.AttachedVolumes.Reset()
	for _, node := range c.in.Nodes.Objects().ListKeys() {
		for _, pod := range source.OnNode(c.in.Pods, node) {
			c.measureUse(node, pod)
		}
		for _, w := range c.wantedOn(node) {
			metrics.AttachedVolumes.WithLabelValues(plugin(w.Driver), "desired_state_of_world").Inc()
		}
		for _, a := range c.attachments(node) {
			if a.Status.Attached {
				metrics.AttachedVolumes.WithLabelValues(plugin(a.Spec.Attacher), "actual_state_of_world").Inc()
			}
		}
	}
}

// measureUse counts the volumes of drivers that a pod names, also ephemeral ones.
func (c *Controller) measureUse(node string, pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		driver := ""
		if v.CSI != nil {
			driver = v.CSI.Driver
		} else if name, _ := volume.ClaimOf(pod, v); name != "" {
			claim := source.Get[*corev1.PersistentVolumeClaim](c.in.Claims, pod.Namespace+"/"+name)
			if claim == nil || claim.Spec.VolumeName == "" {
				continue
			}
			h, _ := volume.HandleOf(source.Get[*corev1.PersistentVolume](c.in.Volumes, claim.Spec.VolumeName))
			driver = h.Driver
		}
		if driver != "" {
			metrics.VolumesInUse.WithLabelValues(node, plugin(driver)).Inc()
		}
	}
}

func plugin(driver string) string { return volume.CSIPlugin + ":" + driver }
