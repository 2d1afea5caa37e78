package storage

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
)

// protection simulates controllers/protection: it reads from the API before it releases an object.
type protection struct {
	controller
	claims, volumes *fakeapi.Watch
}

func (s *Storage) newProtection(client *fakeapi.Client, caches *fakeapi.Caches) *protection {
	p := &protection{controller: controller{Storage: s, client: client, dirty: true}}
	p.claims = fakeapi.Shared[*corev1.PersistentVolumeClaim](caches, p.changed)
	p.volumes = fakeapi.Shared[*corev1.PersistentVolume](caches, p.changed)
	fakeapi.Shared[*corev1.Pod](caches, p.changed)
	return p
}

// Turn implements Part.
func (p *protection) Turn() bool {
	if !p.dirty {
		return true
	}
	p.dirty = false
	for _, seen := range fakeapi.Seen[*corev1.PersistentVolumeClaim](p.claims) {
		c, ok := p.api.Get(seen.UID).(*corev1.PersistentVolumeClaim)
		if ok && held(seen, claimFinalizer) && held(c, claimFinalizer) && !p.isUsed(c) &&
			p.ended(p.release(c, claimFinalizer)) {
			return false
		}
	}
	for _, seen := range fakeapi.Seen[*corev1.PersistentVolume](p.volumes) {
		v, ok := p.api.Get(seen.UID).(*corev1.PersistentVolume)
		if ok && held(seen, volumeFinalizer) && held(v, volumeFinalizer) && v.Status.Phase != corev1.VolumeBound &&
			p.ended(p.release(v, volumeFinalizer)) {
			return false
		}
	}
	return true
}

func (p *protection) release(o fakeapi.Object, finalizer string) error {
	_, err := p.client.Update(o, func(o fakeapi.Object) { o.SetFinalizers(without(o.GetFinalizers(), finalizer)) })
	return err
}

// isUsed reports whether a pod with a node uses a claim (S7.2).
func (p *protection) isUsed(c *corev1.PersistentVolumeClaim) bool {
	return !p.sabotage.Unprotected && slices.ContainsFunc(fakeapi.All[*corev1.Pod](p.api), func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName != "" && pod.Namespace == c.Namespace &&
			slices.Contains(volume.ClaimsOf(pod), c.Name)
	})
}

func held(o fakeapi.Object, finalizer string) bool {
	return o.GetDeletionTimestamp() != nil && slices.Contains(o.GetFinalizers(), finalizer)
}
