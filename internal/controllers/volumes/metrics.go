package volumes

import (
	corev1 "k8s.io/api/core/v1"

	"carob/internal/controllers/metrics"
	"carob/internal/core/volume"
)

// measure counts the volumes and claims (S1.96).
func (c *Controller) measure() {
	for _, g := range []interface{ Reset() }{metrics.TotalVolumes, metrics.BoundVolumes, metrics.UnboundVolumes,
		metrics.BoundClaims, metrics.UnboundClaims} {
		g.Reset()
	}
	for _, o := range c.in.Volumes.Objects().List() {
		v, ok := o.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		metrics.TotalVolumes.WithLabelValues(volume.PluginName(v), string(volume.ModeOf(v))).Inc()
		bound := metrics.UnboundVolumes
		if v.Status.Phase == corev1.VolumeBound {
			bound = metrics.BoundVolumes
		}
		bound.WithLabelValues(v.Spec.StorageClassName).Inc()
	}
	for _, o := range c.in.Claims.Objects().List() {
		claim, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		class, _ := volume.ClassOf(claim)
		attributes := ""
		if name := claim.Spec.VolumeAttributesClassName; name != nil {
			attributes = *name
		}
		bound := metrics.UnboundClaims
		if claim.Status.Phase == corev1.ClaimBound {
			bound = metrics.BoundClaims
		}
		bound.WithLabelValues(claim.Namespace, class, attributes).Inc()
	}
}

// countLateClass counts a claim that got the default class after it was created (S1.33).
func countLateClass(before *corev1.PersistentVolumeClaim, w volume.Write, err error) {
	if w.Claim == nil || w.Status {
		return
	}
	if _, had := volume.ClassOf(before); had {
		return
	}
	if _, has := volume.ClassOf(w.Claim); has {
		metrics.LateClasses.WithLabelValues().Inc()
		if err != nil {
			metrics.NoLateClasses.WithLabelValues().Inc()
		}
	}
}
