package storage

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"carob/internal/core/volume"
	"carob/internal/sim/fakeapi"
)

// binder simulates controllers/volumes: it decides on the newest version that it has read or written.
type binder struct {
	controller
	view *View
}

// most is the number of decisions about one object in a row; the four writes of a binding are the most.
const most = 10

func (s *Storage) newBinder(client *fakeapi.Client, caches *fakeapi.Caches) *binder {
	b := &binder{controller: controller{Storage: s, client: client, dirty: true}}
	b.view = s.NewView(fakeapi.Shared[*corev1.PersistentVolumeClaim](caches, b.changed),
		fakeapi.Shared[*corev1.PersistentVolume](caches, b.changed))
	return b
}

// withoutOtherClaims returns volumes without the other claims that they are bound to.
func withoutOtherClaims(c *corev1.PersistentVolumeClaim) func(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	return func(v *corev1.PersistentVolume) *corev1.PersistentVolume {
		if v.Spec.ClaimRef == nil || volume.IsFor(v, c) {
			return v
		}
		v = v.DeepCopy()
		v.Spec.ClaimRef, v.Status.Phase = nil, corev1.VolumeAvailable
		return v
	}
}

// Turn implements Part. All objects are processed, in any order: volumes wake their claims.
func (b *binder) Turn() bool {
	if !b.dirty {
		return true
	}
	b.dirty = false
	var uids []types.UID
	for _, c := range b.view.Claims() {
		uids = append(uids, c.UID)
	}
	for _, v := range b.view.Volumes() {
		uids = append(uids, v.UID)
	}
	for _, i := range b.api.Perm(len(uids)) {
		for range most {
			step := b.decide(uids[i])
			b.dirty = b.dirty || step.WakeClaim && b.claimWaits(uids[i])
			if step.Err != nil || step.Write.Nothing() {
				break
			}
			if err := b.view.Write(b.client, step.Write); b.ended(err) {
				return false
			} else if err != nil {
				break
			}
		}
	}
	return true
}

// claimWaits reports whether the claim that a volume wakes can be bound to it: it would be woken for ever otherwise.
func (b *binder) claimWaits(uid types.UID) bool {
	for _, v := range b.view.Volumes() {
		if v.UID == uid && v.Spec.ClaimRef != nil {
			c := b.view.Claim(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
			return c != nil && !volume.ForClaim(volume.ClaimInput{Claim: c, View: b.view}).Write.Nothing()
		}
	}
	return false
}

func (b *binder) decide(uid types.UID) volume.Step {
	for _, c := range b.view.Claims() {
		if c.UID == uid {
			view := *b.view
			if b.sabotage.IgnoresBindings {
				view.spoil = withoutOtherClaims(c)
			}
			return volume.ForClaim(volume.ClaimInput{Claim: c, View: &view})
		}
	}
	for _, v := range b.view.Volumes() {
		if v.UID != uid {
			continue
		}
		in := volume.PVInput{Volume: v}
		if r := v.Spec.ClaimRef; r != nil {
			in.Claim = b.view.Claim(r.Namespace, r.Name)
			if volume.ForVolume(in).Confirm {
				in.Claim, in.Confirmed = b.claimOf(r.Namespace, r.Name), true
			}
		}
		return volume.ForVolume(in)
	}
	return volume.Step{}
}
