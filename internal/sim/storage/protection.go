package storage

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/volume"
	"carob/internal/sim/cluster"
)

// protection simulates controllers/protection: it reads from the API before it releases an object.
type protection struct {
	controller
	claims, volumes *cluster.Watch
}

func (s *Storage) newProtection(client *cluster.Client, caches *cluster.Caches) *protection {
	p := &protection{controller: controller{Storage: s, client: client, dirty: true}}
	p.claims = cluster.Shared[*corev1.PersistentVolumeClaim](caches, p.changed)
	p.volumes = cluster.Shared[*corev1.PersistentVolume](caches, p.changed)
	cluster.Shared[*corev1.Pod](caches, p.changed)
	return p
}

// Turn implements Part.
func (p *protection) Turn() bool {
	if !p.dirty {
		return true
	}
	p.dirty = false
	for _, seen := range cluster.Seen[*corev1.PersistentVolumeClaim](p.claims) {
		c, ok := p.api.Get(seen.UID).(*corev1.PersistentVolumeClaim)
		if ok && held(seen, claimFinalizer) && held(c, claimFinalizer) && !p.isUsed(c) &&
			p.ended(p.release(c, claimFinalizer)) {
			return false
		}
	}
	for _, seen := range cluster.Seen[*corev1.PersistentVolume](p.volumes) {
		v, ok := p.api.Get(seen.UID).(*corev1.PersistentVolume)
		if ok && held(seen, volumeFinalizer) && held(v, volumeFinalizer) && v.Status.Phase != corev1.VolumeBound &&
			p.ended(p.release(v, volumeFinalizer)) {
			return false
		}
	}
	return true
}

func (p *protection) release(o cluster.Object, finalizer string) error {
	_, err := p.client.Update(o, func(o cluster.Object) { o.SetFinalizers(without(o.GetFinalizers(), finalizer)) })
	return err
}

// isUsed reports whether a pod with a node uses a claim (S7.2).
func (p *protection) isUsed(c *corev1.PersistentVolumeClaim) bool {
	return !p.sabotage.Unprotected && slices.ContainsFunc(cluster.All[*corev1.Pod](p.api), func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && pod.Namespace == c.Namespace &&
			slices.Contains(volume.ClaimsOf(pod), c.Name)
	})
}

func held(o cluster.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), finalizer)
}
